/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zip.c: the directory of a ZIP archive stands at its end, and where it begins stands behind it.
 *
 *   TAIL (the last 64 KiB) ──▶ FIXED (46 bytes of an entry) ──▶ ENTRY (all of it) ──▶ member out ──▶ FIXED … ──▶ ZIP_END
 *
 * Failure modes: LEAT_CORRUPT names the offset; LEAT_INVALID the path; LEAT_UNSUPPORTED archives over several disks.
 * Invariants: what is wanted lies within the file; a member's local header lies in front of the directory; sizes agree with what its
 * method can do; as many entries come as the end says, and fill the directory's bytes.
 */
#include "wire/archive/zip.h"

#include <time.h>

#include "base/utf8.h"

#define END_BYTES         22u
#define LOCATOR_BYTES     20u
#define END64_BYTES       56u
#define ENTRY_BYTES       46u

#define SIGNATURE_LOCAL   0x04034b50u
#define SIGNATURE_ENTRY   0x02014b50u
#define SIGNATURE_END     0x06054b50u
#define SIGNATURE_LOCATOR 0x07064b50u
#define SIGNATURE_END64   0x06064b50u

#define FLAG_ENCRYPTED    1u
#define FLAG_UTF8         (1u << 11)
#define EXTRA_ZIP64       1u

enum { STATE_TAIL, STATE_FIXED, STATE_ENTRY, STATE_DONE };

static uint16_t le16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}
static uint32_t le32(const uint8_t *p)
{
    return le16(p) | (uint32_t)le16(p + 2) << 16;
}
static uint64_t le64(const uint8_t *p)
{
    return le32(p) | (uint64_t)le32(p + 4) << 32;
}

static int corrupt(uint64_t offset, struct leat_error *err, const char *what)
{
    return error_set(err, LEAT_CORRUPT, "%s at offset %llu", what, (unsigned long long)offset);
}

int zip_parser_init(struct zip_parser *p, uint64_t file_bytes, struct leat_error *err)
{
    if (file_bytes < END_BYTES || file_bytes > INT64_MAX)
        return error_set(err, LEAT_CORRUPT, "a file of %llu bytes is no ZIP archive",
                         (unsigned long long)file_bytes);
    uint32_t tail = (uint32_t)MIN(file_bytes, (uint64_t)ZIP_TAIL_MAX);
    *p = (struct zip_parser){
        .offset = file_bytes - tail, .want = tail, .file_bytes = file_bytes, .state = STATE_TAIL};
    return 0;
}

/* --- the end ------------------------------------------------------------------------------------------------------- */

/* The last end record whose comment reaches to the end of the file; else the last one that can have its
 * directory in front of it: what follows is no part of the archive, as for other readers. Or NULL. */
static const uint8_t *find_end(const uint8_t *tail, size_t len, uint64_t tail_offset)
{
    const uint8_t *followed = NULL;
    for (size_t i = len - END_BYTES + 1; i-- > 0 && len - i <= END_BYTES + 65535u;) {
        const uint8_t *end = tail + i;
        if (le32(end) != SIGNATURE_END)
            continue;
        if (i + END_BYTES + le16(end + 20) == len)
            return end;
        bool fits =
            (uint64_t)le32(end + 12) + le32(end + 16) <= tail_offset + i || le32(end + 16) == UINT32_MAX;
        if (!followed && fits)
            followed = end;
    }
    return followed;
}

struct directory {
    uint64_t members, bytes, offset;
    uint64_t end; /* where it ends: in front of the first of the end records */
    bool zip64;
};

/* The zip64 record stands right in front of its locator: one with data of its own behind it is of a later version than ours. */
static int read_end64(const uint8_t *tail, size_t at, uint64_t tail_offset, struct directory *d,
                      struct leat_error *err)
{
    if (at < LOCATOR_BYTES || le32(tail + at - LOCATOR_BYTES) != SIGNATURE_LOCATOR)
        return 0;
    if (at < LOCATOR_BYTES + END64_BYTES || le32(tail + at - LOCATOR_BYTES - END64_BYTES) != SIGNATURE_END64)
        return corrupt(tail_offset + at, err, "no zip64 end record in front of its locator");
    const uint8_t *end = tail + at - LOCATOR_BYTES - END64_BYTES;
    if (le32(end + 16) || le32(end + 20) || le64(end + 24) != le64(end + 32))
        return error_set(err, LEAT_UNSUPPORTED, "a ZIP archive over several disks; make it one file");
    *d = (struct directory){.members = le64(end + 32),
                            .bytes = le64(end + 40),
                            .offset = le64(end + 48),
                            .end = tail_offset + at - LOCATOR_BYTES - END64_BYTES,
                            .zip64 = true};
    return 0;
}

/* Behind the last entry nothing is wanted any more. */
static void next_entry(struct zip_parser *p)
{
    p->state = STATE_FIXED;
    p->want = p->left < ENTRY_BYTES ? 0 : ENTRY_BYTES;
}

static int feed_tail(struct zip_parser *p, const uint8_t *tail, size_t len, struct leat_error *err)
{
    const uint8_t *end = find_end(tail, len, p->offset);
    if (!end)
        return error_set(
            err, LEAT_CORRUPT,
            "no end of a ZIP directory in the last 64 KiB (not a ZIP archive, or one cut short)");
    size_t at = (size_t)(end - tail);
    if ((le16(end + 4) && le16(end + 4) != 0xffff) || (le16(end + 6) && le16(end + 6) != 0xffff) ||
        le16(end + 8) != le16(end + 10))
        return error_set(err, LEAT_UNSUPPORTED, "a ZIP archive over several disks; make it one file");
    struct directory d = {
        .members = le16(end + 10), .bytes = le32(end + 12), .offset = le32(end + 16), .end = p->offset + at};
    int rc = read_end64(tail, at, p->offset, &d, err);
    if (rc < 0)
        return rc;
    /* Bytes before the archive moved all of its offsets. */
    if (d.bytes > d.end || d.offset > d.end - d.bytes)
        return corrupt(d.end, err, "a ZIP directory that does not lie in front of its end");
    p->base = d.end - d.bytes - d.offset;
    p->directory_offset = d.end - d.bytes;
    p->directory_bytes = p->left = d.bytes;
    p->zip64 = d.zip64;
    p->members = d.members;
    if (d.zip64 ? d.members > d.bytes / ENTRY_BYTES : d.members * ENTRY_BYTES > d.bytes)
        return corrupt(p->directory_offset, err, "a ZIP directory with more members than bytes for them");
    p->offset = p->directory_offset;
    next_entry(p);
    return ZIP_MORE;
}

/* --- names --------------------------------------------------------------------------------------------------------- */

/* Code page 437, upper half: what a name is in when nothing says UTF-8. */
static const uint16_t CP437[128] = {
    0x00c7, 0x00fc, 0x00e9, 0x00e2, 0x00e4, 0x00e0, 0x00e5, 0x00e7, 0x00ea, 0x00eb, 0x00e8, 0x00ef, 0x00ee,
    0x00ec, 0x00c4, 0x00c5, 0x00c9, 0x00e6, 0x00c6, 0x00f4, 0x00f6, 0x00f2, 0x00fb, 0x00f9, 0x00ff, 0x00d6,
    0x00dc, 0x00a2, 0x00a3, 0x00a5, 0x20a7, 0x0192, 0x00e1, 0x00ed, 0x00f3, 0x00fa, 0x00f1, 0x00d1, 0x00aa,
    0x00ba, 0x00bf, 0x2310, 0x00ac, 0x00bd, 0x00bc, 0x00a1, 0x00ab, 0x00bb, 0x2591, 0x2592, 0x2593, 0x2502,
    0x2524, 0x2561, 0x2562, 0x2556, 0x2555, 0x2563, 0x2551, 0x2557, 0x255d, 0x255c, 0x255b, 0x2510, 0x2514,
    0x2534, 0x252c, 0x251c, 0x2500, 0x253c, 0x255e, 0x255f, 0x255a, 0x2554, 0x2569, 0x2566, 0x2560, 0x2550,
    0x256c, 0x2567, 0x2568, 0x2564, 0x2565, 0x2559, 0x2558, 0x2552, 0x2553, 0x256b, 0x256a, 0x2518, 0x250c,
    0x2588, 0x2584, 0x258c, 0x2590, 0x2580, 0x03b1, 0x00df, 0x0393, 0x03c0, 0x03a3, 0x03c3, 0x00b5, 0x03c4,
    0x03a6, 0x0398, 0x03a9, 0x03b4, 0x221e, 0x03c6, 0x03b5, 0x2229, 0x2261, 0x00b1, 0x2265, 0x2264, 0x2320,
    0x2321, 0x00f7, 0x2248, 0x00b0, 0x2219, 0x00b7, 0x221a, 0x207f, 0x00b2, 0x25a0, 0x00a0};

static size_t put_utf8(char *out, uint16_t c)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3f));
        return 2;
    }
    out[0] = (char)(0xe0 | c >> 12);
    out[1] = (char)(0x80 | (c >> 6 & 0x3f));
    out[2] = (char)(0x80 | (c & 0x3f));
    return 3;
}

static int member_path(const struct zip_parser *p, const uint8_t *raw, size_t len, bool utf8,
                       struct zip_member *m, struct leat_error *err)
{
    if (len == 0 || len >= sizeof(m->path) || memchr(raw, 0, len))
        return corrupt(p->offset, err,
                       len ? "a member's path is longer than 4095 bytes, or holds a NUL byte"
                           : "a member without a name");
    memcpy(m->path, raw, len);
    m->path[len] = 0;
    /* Without the flag, UTF-8 is UTF-8 all the same: many an archiver writes it so. */
    if (!utf8 && !utf8_valid(m->path)) {
        size_t used = 0;
        for (size_t i = 0; i < len; i++) {
            if (used + 4 > sizeof(m->path))
                return corrupt(p->offset, err, "a member's path is longer than 4095 bytes");
            used += put_utf8(m->path + used, raw[i] < 0x80 ? raw[i] : CP437[raw[i] - 0x80]);
        }
        m->path[used] = 0;
    }
    size_t skip = 0, end = strlen(m->path);
    while (m->path[skip] == '.' && m->path[skip + 1] == '/')
        skip += 2;
    memmove(m->path, m->path + skip, end - skip + 1);
    end -= skip;
    m->directory = end == 0 || m->path[end - 1] == '/';
    while (end > 1 && m->path[end - 1] == '/')
        m->path[--end] = 0;
    if (end == 0)
        strcpy(m->path, ".");
    int rc = tar_path_check(m->path, err);
    return rc < 0 ? error_prefix(err, rc, "the member at offset %llu", (unsigned long long)p->offset) : 0;
}

/* --- entries ------------------------------------------------------------------------------------------------------- */

/* Two fields of DOS. */
static int64_t dos_time(uint16_t date, uint16_t clock)
{
    struct tm tm = {.tm_year = 80 + (date >> 9),
                    .tm_mon = (date >> 5 & 15) - 1,
                    .tm_mday = date & 31,
                    .tm_hour = clock >> 11,
                    .tm_min = clock >> 5 & 63,
                    .tm_sec = (clock & 31) * 2};
    if (tm.tm_mon < 0 || tm.tm_mon > 11 || tm.tm_mday < 1 || tm.tm_hour > 23 || tm.tm_min > 59)
        return 0;
    return timegm(&tm);
}

/* What 32 bits cannot hold stands in an extra field, in this order, and only that. */
static bool read_extra64(const uint8_t *extra, size_t len, struct zip_member *m)
{
    bool wanted = m->bytes == UINT32_MAX || m->stored_bytes == UINT32_MAX || m->header_offset == UINT32_MAX;
    for (size_t at = 0; len - at >= 4;) {
        size_t n = le16(extra + at + 2), begin = at + 4;
        if (n > len - begin)
            return !wanted; /* some archivers pad with what is no field */
        at = begin + n;
        if (le16(extra + begin - 4) != EXTRA_ZIP64)
            continue;
        uint64_t *fields[] = {&m->bytes, &m->stored_bytes, &m->header_offset};
        for (unsigned i = 0; i < ARRAY_LEN(fields); i++) {
            if (*fields[i] != UINT32_MAX)
                continue;
            if (at - begin < 8)
                return false;
            *fields[i] = le64(extra + begin);
            begin += 8;
        }
        return true;
    }
    return !wanted || len == 0; /* 4 GiB - 1 bytes, given without zip64, are what they are */
}

static int check_sizes(const struct zip_parser *p, struct zip_member *m, struct leat_error *err)
{
    uint64_t end, most;
    if (add_overflows(m->header_offset, p->base, &m->header_offset) ||
        add_overflows(m->header_offset, ZIP_LOCAL_BYTES, &end) || add_overflows(end, m->stored_bytes, &end) ||
        end > p->directory_offset)
        return corrupt(p->offset, err, "a member that reaches beyond the directory's begin");
    if (m->method == ZIP_STORED && !m->encrypted && m->bytes != m->stored_bytes)
        return corrupt(p->offset, err, "a stored member of two sizes");
    if (m->method == ZIP_DEFLATED &&
        (mul_overflows(m->stored_bytes, ZIP_RATIO_MAX, &most) || m->bytes > most))
        return corrupt(p->offset, err, "a member that claims more bytes than deflate can hold");
    return 0;
}

static int feed_entry(struct zip_parser *p, const uint8_t *e, size_t len, struct zip_member *m,
                      struct leat_error *err)
{
    size_t name = le16(e + 28), extra = le16(e + 30);
    uint16_t flags = le16(e + 8);
    m->encrypted = flags & FLAG_ENCRYPTED;
    m->method = le16(e + 10);
    m->mtime = dos_time(le16(e + 14), le16(e + 12));
    m->crc = le32(e + 16);
    m->stored_bytes = le32(e + 20);
    m->bytes = le32(e + 24);
    m->header_offset = le32(e + 42);
    if (le16(e + 34) && le16(e + 34) != 0xffff)
        return error_set(err, LEAT_UNSUPPORTED, "a ZIP archive over several disks; make it one file");
    if (!read_extra64(e + ENTRY_BYTES + name, extra, m))
        return corrupt(p->offset, err, "a member without the sizes that zip64 has for it");
    int rc = member_path(p, e + ENTRY_BYTES, name, flags & FLAG_UTF8, m, err);
    if (rc == 0)
        rc = check_sizes(p, m, err);
    if (rc < 0)
        return rc;
    p->offset += len;
    p->left -= len;
    p->seen++;
    next_entry(p);
    return ZIP_MEMBER;
}

static int feed_fixed(struct zip_parser *p, const uint8_t *e, struct leat_error *err)
{
    if (le32(e) != SIGNATURE_ENTRY)
        return corrupt(p->offset, err, "no entry of a ZIP directory");
    uint32_t len = ENTRY_BYTES + le16(e + 28) + le16(e + 30) + le16(e + 32);
    if (len > p->left)
        return corrupt(p->offset, err, "an entry that reaches beyond the ZIP directory");
    p->want = len;
    p->state = STATE_ENTRY;
    return ZIP_MORE;
}

/* A count of 16 bits may have gone round where nothing says zip64. */
static int directory_over(struct zip_parser *p, struct leat_error *err)
{
    if (p->left || (p->zip64 ? p->seen != p->members : (p->seen & 0xffff) != p->members))
        return corrupt(p->offset, err, "a ZIP directory with another number of members than at its end");
    p->members = p->seen;
    p->state = STATE_DONE;
    return ZIP_END;
}

int zip_parser_feed(struct zip_parser *p, const void *buf, size_t len, struct zip_member *ret_member,
                    struct leat_error *err)
{
    if (p->state == STATE_DONE)
        return ZIP_END;
    if (p->state == STATE_FIXED && p->left < ENTRY_BYTES)
        return directory_over(p, err);
    if (len < p->want)
        return corrupt(p->offset + len, err, "the archive is truncated");
    switch (p->state) {
    case STATE_TAIL:
        return feed_tail(p, buf, p->want, err);
    case STATE_FIXED:
        return feed_fixed(p, buf, err);
    default:
        return feed_entry(p, buf, p->want, ret_member, err);
    }
}

/* --- payload ------------------------------------------------------------------------------------------------------- */

int zip_member_readable(const struct zip_member *m, struct leat_error *err)
{
    if (m->encrypted)
        return error_set(err, LEAT_UNSUPPORTED, "the member is encrypted");
    if (m->method != ZIP_STORED && m->method != ZIP_DEFLATED)
        return error_set(err, LEAT_UNSUPPORTED,
                         "the member is compressed by method %u of ZIP; stored (0) and deflate (8) are read",
                         m->method);
    return 0;
}

int zip_data_offset(const struct zip_member *m, const void *local, uint64_t limit, uint64_t *ret_offset,
                    struct leat_error *err)
{
    const uint8_t *l = local;
    if (le32(l) != SIGNATURE_LOCAL)
        return corrupt(m->header_offset, err, "no header of a ZIP member");
    if (le16(l + 8) != m->method || ((le16(l + 6) & FLAG_ENCRYPTED) != 0) != m->encrypted)
        return corrupt(m->header_offset, err, "a member's header and the directory contradict each other");
    uint64_t offset = m->header_offset + ZIP_LOCAL_BYTES + le16(l + 26) + le16(l + 28);
    if (offset > limit || m->stored_bytes > limit - offset)
        return corrupt(m->header_offset, err, "a member that reaches into the ZIP directory");
    *ret_offset = offset;
    return 0;
}
