/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blobs of an index. The header's magic, size and checksum are put right first, or nothing would come past them. What
 * opens can be asked anything; what validates can be decoded, from a file that holds the blob itself.
 */
#include <stdio.h>
#include <sys/mman.h>

#include "dataset/dataset.h"
#include "dataset/index_internal.h"

#define DECODE_MAX (1u << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void ask(const struct index *ix)
{
    char scratch[24], path[256];
    size_t len;
    struct index_part part;
    for (uint64_t i = 0; i < MIN(ix->header->nsamples, 64ull); i++) {
        const char *key = index_key(ix, i, scratch, &len);
        index_find(ix, key, len);
        for (unsigned f = 0; f < ix->header->nfields; f++)
            if (index_part(ix, i, f, &part))
                index_sample_at(ix, f, part.address);
        if (ix->labels)
            index_class(ix, ix->labels[i], &len);
    }
    for (uint64_t s = 0; s < ix->header->nsources; s++)
        index_source_path(ix, s, path, sizeof(path));
    index_extent_at(ix, ix->header->address_end / 2);
    index_field_find(ix, "data");
}

static void decode(const struct index *ix, const void *blob, size_t size)
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    struct dataset_scratch scratch = {0};
    if (fd < 0 || write(fd, blob, size) != (ssize_t)size)
        abort();
    for (uint64_t e = 0; e < ix->header->nextents; e++) {
        const struct index_extent *x = &ix->extents[e];
        bool small = x->bytes <= DECODE_MAX && x->kind != INDEX_EXTENT_RAW;
        for (uint64_t c = x->chunk; small && x->kind == INDEX_EXTENT_CHUNK && c < x->chunk + x->nchunk; c++)
            small = c < ix->header->nchunks && ix->chunks[c].shape < ix->header->nshapes &&
                    ix->shapes[ix->chunks[c].shape].decoded_bytes <= DECODE_MAX;
        void *dst = small ? malloc(x->bytes ? x->bytes : 1) : NULL;
        if (dst)
            dataset_extent_decode(ix, x, fd, dst, &scratch, NULL);
        free(dst);
    }
    dataset_scratch_fini(&scratch);
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < sizeof(struct index_header))
        return 0;
    struct index_header *h = malloc(size);
    struct index ix;
    if (!h)
        return 0;
    memcpy(h, data, size);
    h->magic = INDEX_MAGIC;
    h->version = INDEX_VERSION;
    h->total_bytes = size;
    h->header_crc = index_header_crc(h);
    if (index_open(h, size, &ix, NULL) == 0) {
        ask(&ix);
        index_validate(&ix, NULL);
        decode(&ix, h, size);
    }
    free(h);
    return 0;
}
