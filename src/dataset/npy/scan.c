/* SPDX-License-Identifier: Apache-2.0 */
/* npy/scan.c: the data of a .npy file are one RAW extent. */

#include "dataset/scan.h"
#include "wire/archive/npy.h"

static int place(struct scan_array *a, struct index_builder *b, uint32_t source, uint64_t *ret_address,
                 struct leat_error *err)
{
    return scan_place_raw(b, source, a->data_offset, a->shape[0] * scan_array_row_bytes(a),
                          scan_array_sample_bytes(a), ret_address);
}

static int parse_file(struct scan_file *file, struct npy_header *ret_header, struct leat_error *err)
{
    uint8_t head[12] = {0};
    int64_t n = scan_file_pread(file, head, sizeof(head), 0, err);
    if (n < 0)
        return (int)n;
    struct leat_error local = {0};
    uint64_t bytes = npy_header_bytes(head, (size_t)n, &local);
    if (bytes == 0)
        return error_set(err, local.code, "%s", local.message);
    AUTO_FREE void *buf = malloc(bytes);
    if (!buf)
        return -ENOMEM;
    n = scan_file_pread(file, buf, bytes, 0, err);
    if (n < 0)
        return (int)n;
    int rc = npy_parse(buf, (size_t)n, ret_header, err);
    if (rc < 0)
        return rc;
    uint64_t want = ret_header->data_offset + ret_header->data_bytes;
    if (want > (uint64_t)file->st.st_size)
        return error_set(err, LEAT_CORRUPT, "it is truncated: its header promises %llu bytes and it has %llu",
                         (unsigned long long)want, (unsigned long long)file->st.st_size);
    if (ret_header->ndim > INDEX_MAX_DIMS + 1)
        return error_set(err, LEAT_UNSUPPORTED, "it has %u dimensions, and at most %u are read",
                         ret_header->ndim, INDEX_MAX_DIMS + 1);
    return 0;
}

int npy_scan(struct scan *scan, const char *path, const char *field, struct scan_file *file,
             struct scan_arrays *arrays, struct leat_error *err)
{
    struct npy_header h;
    int rc = parse_file(file, &h, err);
    if (rc < 0) {
        char shown[200];
        scan_escape(path, shown, sizeof(shown));
        return error_prefix(err, rc, "%s", shown);
    }
    struct scan_array *a = scan_arrays_add(arrays);
    if (!a)
        return -ENOMEM;
    a->field = strdup(field ? field : "data");
    a->path = strdup(path);
    a->shown = strdup(path);
    if (!a->field || !a->path || !a->shown)
        return -ENOMEM;
    a->st = file->st;
    memcpy(a->etag, file->etag, sizeof(a->etag));
    memcpy(a->dtype, h.dtype, sizeof(a->dtype));
    a->itemsize = h.itemsize;
    a->ndim = h.ndim;
    memcpy(a->shape, h.shape, h.ndim * sizeof(h.shape[0]));
    a->data_offset = h.data_offset;
    a->place = place;
    return 0;
}
