/* SPDX-License-Identifier: Apache-2.0 */
/* Archives, fed to the push parser as a scanner does: what comes out is sound, and it always comes to an end. */
#include "wire/archive/tar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_member(const struct tar_member *m, uint64_t before)
{
    char field[TAR_PATH_MAX];
    size_t key_len;
    if (strnlen(m->path, sizeof(m->path)) == sizeof(m->path) || tar_path_check(m->path, NULL) < 0 ||
        m->header_offset < before || m->data_offset <= m->header_offset ||
        m->data_offset > INT64_MAX - m->bytes)
        abort();
    if (tar_sample_key(m->path, &key_len, field, sizeof(field)) &&
        (key_len == 0 || key_len >= strlen(m->path) || m->path[key_len] != '.' || !*field))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tar_parser p;
    struct tar_member m;
    struct leat_error err;
    uint64_t before = 0;
    tar_parser_init(&p);
    for (;;) {
        uint64_t at = MIN(p.offset, (uint64_t)size), offset = p.offset;
        if (p.want == 0 || p.want % TAR_BLOCK)
            abort();
        size_t len = MIN((uint64_t)p.want, size - at);
        uint8_t *exact = malloc(len ? len : 1); /* so that a read past `len` is seen */
        if (!exact)
            return 0;
        memcpy(exact, data + at, len);
        int rc = tar_parser_feed(&p, exact, len, &m, &err);
        free(exact);
        if (rc < 0 || rc == TAR_END)
            return 0;
        if (p.offset <= offset) /* every step advances */
            abort();
        if (rc == TAR_MEMBER) {
            check_member(&m, before);
            before = m.data_offset;
        }
    }
}
