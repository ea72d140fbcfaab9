/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tar.c: a tar archive is a run of 512-byte blocks: a header, its payload rounded up, the next header; two
 * blocks of zeros at the end. Long names and large sizes are in extra members in front ('x' and 'g' of pax,
 * 'L' and 'K' of GNU). Their payload is parsed and applied to the following member.
 *
 *   HEADER ──regular──▶ member out, offset moves over the payload ──▶ HEADER
 *      └──x, g, L, K──▶ EXTENSION (wants its payload) ──▶ HEADER, same member
 *      └──zeros──────▶ HEADER ──zeros or end of file──▶ TAR_END
 *
 * Failure modes: LEAT_CORRUPT names the offset of the block; LEAT_INVALID the path. The caller compares the end of
 * each payload with the size of the file: a parser that is only shown headers cannot.
 */
#include "wire/archive/tar.h"

#include <stdio.h>

#include "base/utf8.h"

#define EXTENSION_MAX (1u << 20) /* of pax records for one member: real ones are a few hundred bytes */

/* POSIX.1-2017 pax, "ustar Interchange Format". */
struct header {
    char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], chksum[8];
    char typeflag;
    char linkname[100], magic[6], version[2], uname[32], gname[32], devmajor[8], devminor[8], prefix[155],
        pad[12];
};
_Static_assert(sizeof(struct header) == TAR_BLOCK, "header layout");

enum { STATE_HEADER, STATE_EXTENSION, STATE_DONE };

void tar_parser_init(struct tar_parser *p)
{
    *p = (struct tar_parser){.want = TAR_BLOCK, .state = STATE_HEADER};
}

static int corrupt(const struct tar_parser *p, struct leat_error *err, const char *what)
{
    return error_set(err, LEAT_CORRUPT, "%s at offset %llu", what, (unsigned long long)p->offset);
}

/* Octal with blanks around it, or base-256 with the top bit set. False when it is neither, or negative, or huge. */
static bool parse_number(const char *field, size_t len, uint64_t *ret_n)
{
    const uint8_t *f = (const uint8_t *)field;
    uint64_t n = 0;
    size_t i = 0;
    if (f[0] & 0x80) {
        if (f[0] != 0x80)
            return false; /* 0xff...: negative; other bits: past 2^64 in any field that is long enough */
        for (i = 1; i < len; i++) {
            if (n >> 55)
                return false;
            n = n << 8 | f[i];
        }
        *ret_n = n;
        return true;
    }
    while (i < len && f[i] == ' ')
        i++;
    for (; i < len && f[i] >= '0' && f[i] <= '7'; i++) {
        if (n >> 60)
            return false;
        n = n << 3 | (uint64_t)(f[i] - '0');
    }
    for (; i < len; i++)
        if (f[i] != ' ' && f[i] != 0)
            return false;
    *ret_n = n;
    return true;
}

/* The sum of all bytes with the checksum field as blanks; some old archivers summed signed characters. */
static bool checksum_matches(const struct header *h)
{
    const char *b = (const char *)h;
    uint64_t want, plain = 0;
    int64_t with_sign = 0;
    if (!parse_number(h->chksum, sizeof(h->chksum), &want))
        return false;
    for (size_t i = 0; i < TAR_BLOCK; i++) {
        bool blank = i >= offsetof(struct header, chksum) && i < offsetof(struct header, typeflag);
        plain += blank ? ' ' : (uint8_t)b[i];
        with_sign += blank ? ' ' : (int8_t)b[i];
    }
    return want == plain || (int64_t)want == with_sign;
}

static bool all_zero(const void *buf, size_t len)
{
    const char *b = buf;
    return len == 0 || (b[0] == 0 && !memcmp(b, b + 1, len - 1));
}

/* Printable form of outside bytes for a message. */
static void escape(const char *s, char *out, size_t cap)
{
    size_t used = 0;
    for (; *s && used + 5 < cap; s++) {
        if ((uint8_t)*s < 0x20 || (uint8_t)*s >= 0x7f)
            used += (size_t)snprintf(out + used, cap - used, "\\x%02x", (uint8_t)*s);
        else
            out[used++] = *s;
    }
    snprintf(out + used, cap - used, "%s", *s ? "..." : "");
}

int tar_path_check(const char *path, struct leat_error *err)
{
    const char *why = NULL;
    unsigned depth = 0;
    if (!*path)
        why = "is empty";
    else if (*path == '/')
        why = "is absolute";
    else if (!utf8_valid(path))
        why = "is not UTF-8; rename it";
    for (const char *p = path; !why && *p;) {
        size_t len = strcspn(p, "/");
        if (len == 2 && p[0] == '.' && p[1] == '.')
            why = "has a \"..\" in it, which could lead out of the dataset";
        if (++depth > TAR_DEPTH_MAX)
            why = "is more than 1000 folders deep";
        p += len;
        p += *p == '/';
    }
    if (!why)
        return 0;
    char shown[160];
    escape(path, shown, sizeof(shown));
    return error_set(err, LEAT_INVALID, "the path \"%s\" %s", shown, why);
}

/* One pax record: "LEN KEY=VALUE\n". Advances *at; false when malformed. */
static bool pax_record(const char *buf, size_t len, size_t *at, const char **ret_key, size_t *ret_key_len,
                       const char **ret_value, size_t *ret_value_len)
{
    size_t i = *at, n = 0, start = *at;
    for (; i < len && buf[i] >= '0' && buf[i] <= '9'; i++) {
        n = n * 10 + (size_t)(buf[i] - '0');
        if (n > EXTENSION_MAX)
            return false;
    }
    if (i == start || i >= len || buf[i] != ' ' || n > len - start || n < i - start + 3 ||
        buf[start + n - 1] != '\n')
        return false;
    const char *key = buf + i + 1, *end = buf + start + n - 1;
    const char *equals = memchr(key, '=', (size_t)(end - key));
    if (!equals || equals == key)
        return false;
    *ret_key = key;
    *ret_key_len = (size_t)(equals - key);
    *ret_value = equals + 1;
    *ret_value_len = (size_t)(end - equals - 1);
    *at = start + n;
    return true;
}

static int keep_long_path(struct tar_parser *p, const char *s, size_t len, struct leat_error *err)
{
    if (len >= sizeof(p->long_path))
        return corrupt(p, err, "a member's path is longer than 4095 bytes");
    if (memchr(s, 0, len))
        return corrupt(p, err, "a member's path holds a NUL byte");
    memcpy(p->long_path, s, len);
    p->long_path[len] = 0;
    p->have_long_path = true;
    return 0;
}

static int apply_pax(struct tar_parser *p, const char *buf, size_t len, struct leat_error *err)
{
    for (size_t at = 0; at < len;) {
        const char *key, *value;
        size_t key_len, value_len;
        if (!pax_record(buf, len, &at, &key, &key_len, &value, &value_len))
            return corrupt(p, err, "a malformed pax record");
        bool is_path = key_len == 4 && !memcmp(key, "path", 4);
        bool is_size = key_len == 4 && !memcmp(key, "size", 4);
        bool is_sparse = key_len > 11 && !memcmp(key, "GNU.sparse.", 11);
        if (p->ext_type == 'g' && (is_path || is_size))
            return corrupt(p, err, "a pax header that gives all members one path or size");
        if (is_sparse)
            p->sparse = true;
        if (is_path) {
            int rc = keep_long_path(p, value, value_len, err);
            if (rc < 0)
                return rc;
        }
        if (is_size) {
            uint64_t n = 0;
            for (size_t i = 0; i < value_len; i++)
                if (value[i] < '0' || value[i] > '9' || mul_overflows(n, 10, &n) ||
                    add_overflows(n, value[i] - '0', &n))
                    return corrupt(p, err, "a member whose size overflows");
            p->pax_size = n;
            p->have_pax_size = value_len > 0;
        }
    }
    return 0;
}

static int feed_extension(struct tar_parser *p, const char *buf, size_t len, struct leat_error *err)
{
    if (len < p->want)
        return corrupt(p, err, "the archive is truncated");
    int rc = 0;
    if (p->ext_type == 'x' || p->ext_type == 'g')
        rc = apply_pax(p, buf, p->ext_bytes, err);
    else if (p->ext_type == 'L')
        rc = keep_long_path(p, buf, strnlen(buf, p->ext_bytes), err);
    if (rc < 0)
        return rc;
    p->offset += p->want;
    p->want = TAR_BLOCK;
    p->state = STATE_HEADER;
    return TAR_MORE;
}

/* The name as the header alone has it: POSIX archives may keep the front of it in `prefix`. */
static void header_path(const struct header *h, char path[TAR_PATH_MAX])
{
    size_t used = 0;
    if (!memcmp(h->magic, "ustar\0", 6) && h->prefix[0]) {
        used = strnlen(h->prefix, sizeof(h->prefix));
        memcpy(path, h->prefix, used);
        path[used++] = '/';
    }
    size_t len = strnlen(h->name, sizeof(h->name));
    memcpy(path + used, h->name, len);
    path[used + len] = 0;
}

/* Removes "./" in front, and the "/" that directories end with. */
static void tidy_path(char path[TAR_PATH_MAX], char *type)
{
    size_t skip = 0, len = strlen(path);
    while (path[skip] == '.' && path[skip + 1] == '/') {
        skip += 2;
        while (path[skip] == '/')
            skip++;
    }
    memmove(path, path + skip, len - skip + 1);
    len -= skip;
    if (len && path[len - 1] == '/' && *type == '0')
        *type = '5'; /* before POSIX, directories were files whose names ended so */
    while (*type == '5' && len > 1 && path[len - 1] == '/')
        path[--len] = 0;
    if (*type == '5' && len == 0)
        strcpy(path, ".");
}

static int feed_member(struct tar_parser *p, const struct header *h, uint64_t size, struct tar_member *m,
                       struct leat_error *err)
{
    m->type = h->typeflag == 0 || h->typeflag == '7' ? '0' : h->typeflag;
    if (p->have_long_path)
        memcpy(m->path, p->long_path, strlen(p->long_path) + 1);
    else
        header_path(h, m->path);
    tidy_path(m->path, &m->type);
    if (p->have_pax_size)
        size = p->pax_size;
    if (p->sparse && m->type == '0')
        m->type = 'S';
    /* Links, devices and directories have no payload, whatever their size says. */
    if (m->type >= '1' && m->type <= '6')
        size = 0;
    int rc = tar_path_check(m->path, err);
    if (rc < 0)
        return error_prefix(err, rc, "the member at offset %llu", (unsigned long long)p->first_header);
    uint64_t end;
    m->header_offset = p->first_header;
    m->data_offset = p->offset + TAR_BLOCK;
    m->bytes = size;
    if (size > INT64_MAX - 2 * TAR_BLOCK || add_overflows(m->data_offset, align_up(size, TAR_BLOCK), &end) ||
        end > INT64_MAX)
        return corrupt(p, err, "a member whose size overflows");
    p->offset = end;
    p->have_long_path = p->have_pax_size = p->sparse = p->in_member = false;
    return TAR_MEMBER;
}

static int feed_header(struct tar_parser *p, const struct header *h, size_t len,
                       struct tar_member *ret_member, struct leat_error *err)
{
    if (len == 0 && !p->in_member) {
        p->state = STATE_DONE;
        return TAR_END;
    }
    if (len < TAR_BLOCK)
        return corrupt(p, err, "the archive is truncated");
    if (all_zero(h, TAR_BLOCK)) {
        if (p->in_member)
            return corrupt(p, err, "the archive ends inside a member's header");
        p->offset += TAR_BLOCK;
        if (++p->zero_blocks == 2) {
            p->state = STATE_DONE;
            return TAR_END;
        }
        return TAR_MORE;
    }
    p->zero_blocks = 0;
    if (!checksum_matches(h))
        return corrupt(p, err, "a header whose checksum is wrong (not a tar archive, or a damaged one)");
    uint64_t size;
    if (!parse_number(h->size, sizeof(h->size), &size))
        return corrupt(p, err, "a member whose size is not a number, or overflows");
    if (!p->in_member) {
        p->first_header = p->offset;
        p->in_member = true;
    }
    char t = h->typeflag;
    if (t != 'x' && t != 'g' && t != 'L' && t != 'K')
        return feed_member(p, h, size, ret_member, err);
    if (size > EXTENSION_MAX)
        return corrupt(p, err, "an extended header that is longer than 1 MiB");
    p->ext_type = t;
    p->ext_bytes = (uint32_t)size;
    p->offset += TAR_BLOCK;
    if (t == 'g')
        p->in_member = false; /* belongs to the archive; may be its last word */
    if (size) {
        p->state = STATE_EXTENSION;
        p->want = (uint32_t)align_up(size, TAR_BLOCK);
    }
    return TAR_MORE;
}

int tar_parser_feed(struct tar_parser *p, const void *buf, size_t len, struct tar_member *ret_member,
                    struct leat_error *err)
{
    switch (p->state) {
    case STATE_HEADER:
        return feed_header(p, buf, len, ret_member, err);
    case STATE_EXTENSION:
        return feed_extension(p, buf, len, err);
    default:
        return TAR_END;
    }
}

bool tar_sample_key(const char *path, size_t *ret_key_len, char *ret_field, size_t field_cap)
{
    const char *base = path;
    for (const char *p = path; *p;) {
        size_t len = strcspn(p, "/");
        if (p == path && len >= 4 && p[0] == '_' && p[1] == '_' && p[len - 1] == '_' && p[len - 2] == '_')
            return false;
        base = p;
        p += len;
        p += *p == '/';
    }
    const char *dot = strchr(base, '.');
    if (!dot || dot == base || !dot[1] || strchr(dot, '/') || strlen(dot + 1) >= field_cap)
        return false;
    *ret_key_len = (size_t)(dot - path);
    char *out = ret_field;
    for (const char *p = dot + 1; *p; p++)
        *out++ = *p >= 'A' && *p <= 'Z' ? (char)(*p + 32) : *p;
    *out = 0;
    return true;
}
