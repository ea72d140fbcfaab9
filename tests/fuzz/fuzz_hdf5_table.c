/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of leat-hdf5-table: one that is accepted and laid out gives an index that validates. */
#include <sys/mman.h>
#include <sys/stat.h>

#include "dataset/hdf5/table.h"

#define FILE_BYTES (1u << 20)
#define ROWS_MAX   4096u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void lay_out(const struct hdf5_dataset *d)
{
    struct index_builder *b;
    if (index_builder_new(INDEX_KIND_ARRAY, "/x", &b) < 0)
        return;
    struct stat st = {.st_mode = S_IFREG, .st_size = FILE_BYTES};
    int64_t source = index_builder_source(b, "x.h5", &st);
    uint64_t address, row = d->itemsize;
    for (unsigned i = 1; i < d->ndim; i++)
        row *= d->dims[i];
    int rc = source < 0 ? -1 : hdf5_place(d, 1, b, (uint32_t)source, &address, NULL);
    if (rc == 0)
        rc = index_builder_field(b, "x", d->dtype, INDEX_FIELD_UNIFORM, d->ndim - 1, d->dims + 1, address,
                                 row);
    index_builder_count(b, d->dims[0]);
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    struct index ix;
    if (rc == 0 && index_builder_finish(b, fd, NULL) == 0) {
        if (index_map(fd, &ix, NULL) < 0 || index_validate(&ix, NULL) < 0)
            abort();
        index_close(&ix);
    }
    close(fd);
    index_builder_free(b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hdf5_table table;
    if (hdf5_table_parse(data, size, FILE_BYTES, &table, NULL) < 0)
        return 0;
    for (unsigned i = 0; i < table.n; i++) {
        const struct hdf5_dataset *d = &table.datasets[i];
        bool empty = d->ndim == 0 || d->dims[0] > ROWS_MAX;
        for (unsigned k = 0; k < d->ndim; k++)
            empty = empty || d->dims[k] == 0; /* refused before it is laid out (arrays.c) */
        if (!empty)
            lay_out(d);
    }
    hdf5_table_fini(&table);
    return 0;
}
