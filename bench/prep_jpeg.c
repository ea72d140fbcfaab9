/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prep_jpeg FILE...: reads the JPEGs, then answers lines "MODE EPOCH" with "CPU-SECONDS IMAGES", one pass over all of them in this thread:
 *     crop      random crop to 224, flip, normalise, float32 CHW (prep_jpeg)       crop-u8   the same to uint8 HWC
 *     plain, avx2, avx512   `crop` with these kernels                              center    validation's
 *     decode    the whole image (prep_jpeg_decode)
 *     entropy   entropy decoding of the whole image: jpeg_read_coefficients
 *     entropy-crop   entropy decoding as far as `crop` of this epoch goes, with nothing kept: rows skipped from the first to the crop's last
 */
#include "base/base.h"
#include "prep/kernels.h"
#include "prep/prep.h"

#include <stdio.h>
#include <time.h>

#include <jpeglib.h>

struct file {
    uint8_t *bytes;
    size_t n;
    struct prep_size size;
};

static double cpu_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int load(const char *path, struct file *ret_file)
{
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END))
        return -errno;
    ret_file->n = (size_t)ftell(f);
    rewind(f);
    ret_file->bytes = malloc(ret_file->n + 1);
    bool whole = ret_file->bytes && fread(ret_file->bytes, 1, ret_file->n, f) == ret_file->n;
    fclose(f);
    return whole ? 0 : -EIO;
}

static void entropy(struct jpeg_decompress_struct *info, const struct file *file, unsigned until)
{
    jpeg_mem_src(info, file->bytes, file->n);
    jpeg_read_header(info, TRUE);
    if (until) {
        jpeg_start_decompress(info);
        jpeg_skip_scanlines(info, until);
    } else {
        jpeg_read_coefficients(info);
    }
    jpeg_abort_decompress(info);
}

int main(int argc, char **argv)
{
    unsigned n = (unsigned)argc - 1;
    struct file *files = calloc(n + 1, sizeof(*files));
    struct prep_scratch *scratch;
    struct leat_error err = {0};
    if (!files || prep_scratch_new(&scratch))
        return 1;
    size_t most = 0;
    for (unsigned i = 0; i < n; i++) {
        if (load(argv[i + 1], &files[i]) ||
            prep_jpeg_size(files[i].bytes, files[i].n, 0, false, scratch, &files[i].size, &err)) {
            fprintf(stderr, "prep_jpeg: %s: %s\n", argv[i + 1], err.message);
            return 1;
        }
        most = MAX(most, (size_t)files[i].size.width * files[i].size.height * 3);
    }
    struct prep_params params;
    prep_params_init(&params);
    /* A ring of destinations, as a view is one: 64 samples. */
    size_t slot = 3 * 224 * 224 * sizeof(float);
    uint8_t *ring = calloc(64, slot), *whole = malloc(most + 1);
    struct jpeg_decompress_struct info;
    struct jpeg_error_mgr errors;
    info.err = jpeg_std_error(&errors);
    jpeg_create_decompress(&info);
    const struct kernels *const *kernels;
    unsigned nkernels = kernels_all(&kernels);
    char mode[32];
    unsigned long long epoch;
    while (ring && whole && scanf("%31s %llu", mode, &epoch) == 2) {
        struct prep_params p = params;
        if (!strcmp(mode, "center"))
            p.mode = PREP_CENTER_CROP;
        if (!strcmp(mode, "crop-u8")) {
            p.format = PREP_U8;
            prep_params_layout(&p, false);
        }
        prep_scratch_kernels(scratch, NULL);
        for (unsigned k = 0; k < nkernels; k++) {
            if (!strcmp(mode, kernels[k]->name))
                prep_scratch_kernels(scratch, kernels[k]);
        }
        int rc = 0;
        double begin = cpu_now();
        for (unsigned i = 0; i < n && !rc; i++) {
            const struct file *file = &files[i];
            if (!strcmp(mode, "entropy")) {
                entropy(&info, file, 0);
            } else if (!strcmp(mode, "entropy-crop")) {
                struct prep_crop crop;
                prep_random_crop(&p, file->size.width, file->size.height, 7, epoch, i, &crop);
                entropy(&info, file, crop.top + crop.height);
            } else if (!strcmp(mode, "decode")) {
                rc = prep_jpeg_decode(file->bytes, file->n, 0, false, false, whole,
                                      3 * (size_t)file->size.width * file->size.height, scratch, &err);
            } else {
                rc = prep_jpeg(&p, file->bytes, file->n, 7, epoch, i, ring + i % 64 * slot, scratch, &err);
            }
        }
        double seconds = cpu_now() - begin;
        if (rc)
            fprintf(stderr, "prep_jpeg: %s\n", err.message);
        printf("%.9f %u\n", rc ? -1 : seconds, n);
        fflush(stdout);
    }
    jpeg_destroy_decompress(&info);
    prep_scratch_free(scratch);
    return 0;
}
