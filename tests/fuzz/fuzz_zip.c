/* SPDX-License-Identifier: Apache-2.0 */
/* Archives, read as a server reads them: wants lie within the file, what comes out is sound and bounded, and it comes to an end. */
#include "wire/archive/zip.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void *exactly(const uint8_t *data, size_t len)
{
    uint8_t *exact = malloc(len ? len : 1); /* so that a read past `len` is seen */
    if (!exact)
        abort();
    memcpy(exact, data, len);
    return exact;
}

static void read_payload(const struct zip_member *m, const uint8_t *data, uint64_t at)
{
    struct zip_stream *s;
    struct leat_error err;
    uint64_t in_left = m->stored_bytes, out_left = m->bytes;
    uint8_t out[777];
    int rc = zip_stream_new(m, &s);
    if (rc < 0)
        return;
    for (unsigned turns = 0; rc == 0 && turns < 300; turns++) {
        size_t used, made, n = MIN(in_left, 333ull);
        uint8_t *in = exactly(data + at, n);
        rc = zip_stream_feed(s, in, n, &used, out, sizeof(out), &made, &err);
        free(in);
        if (rc < 0)
            break;
        if (used > n || made > out_left || (rc == 0 && used == 0 && made == 0))
            abort();
        at += used;
        in_left -= used;
        out_left -= made;
        if (rc == 1 && (in_left || out_left))
            abort();
    }
    zip_stream_free(s);
}

static void check_member(const struct zip_member *m, const struct zip_parser *p, const uint8_t *data)
{
    uint64_t offset;
    struct leat_error err;
    if (strnlen(m->path, sizeof(m->path)) == sizeof(m->path) || tar_path_check(m->path, NULL) < 0 ||
        m->header_offset + ZIP_LOCAL_BYTES + m->stored_bytes > p->directory_offset)
        abort();
    uint8_t *local = exactly(data + m->header_offset, ZIP_LOCAL_BYTES);
    int rc = zip_data_offset(m, local, p->directory_offset, &offset, &err);
    free(local);
    if (rc < 0)
        return;
    if (offset + m->stored_bytes > p->directory_offset)
        abort();
    if (zip_member_readable(m, &err) == 0)
        read_payload(m, data, offset);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct zip_parser p;
    static struct zip_member m;
    struct leat_error err;
    int rc = zip_parser_init(&p, size, &err);
    for (unsigned members = 0; rc >= 0 && rc != ZIP_END;) {
        if (p.offset > size || p.want > size - p.offset || p.want > MAX(ZIP_TAIL_MAX, ZIP_WANT_MAX))
            abort();
        uint8_t *exact = exactly(data + p.offset, p.want);
        rc = zip_parser_feed(&p, exact, p.want, &m, &err);
        free(exact);
        if (rc == ZIP_MEMBER && members++ < 20)
            check_member(&m, &p, data);
        if (members > size / 46)
            abort();
    }
    return 0;
}
