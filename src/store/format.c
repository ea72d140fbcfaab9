/* SPDX-License-Identifier: Apache-2.0 */
/*
 * format.c: objects' trailers, log records and snapshots as bytes.
 *
 * Failure modes: whatever is cut short, has a wrong checksum, a wrong magic, or sizes that contradict each other is LEAT_CORRUPT (a log record:
 * 0 bytes); nothing is allocated.
 * Invariants: what parses is sound: lengths are inside the bytes, keys are not longer than allowed and sorted, texts end with NUL.
 */
#include "store/format.h"

#include <stdio.h>

#include "base/crc32c.h"
#include "base/hex.h"

static const char object_magic[8] = "leatobj1", log_magic[8] = "leatlog1", snapshot_magic[8] = "leatidx1";

static uint32_t get32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

static uint64_t get64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

/* --- object ------------------------------------------------------------------------------------------------------------- */

/*
 * | n x u32: CRC of a block | file, seq, bytes, mtime: u64 | flags, crc32c, bucket id, parts: u32 | etag: 16 | lengths of the six: u32 |
 * key | bucket NUL | etag text NUL | remote NUL | meta | zeros to 8 |      and the footer:
 * | magic: 8 | file u64 | bytes u64 | trailer_bytes u32 | version u32 | CRC of all trailer bytes before this u32 | 0 u32 |
 */
static uint32_t text_length(const char *text)
{
    return text ? (uint32_t)strlen(text) + 1 : 1;
}

int store_trailer_put(struct bytes_out *out, const struct trailer *t)
{
    size_t start = out->len;
    bytes_put(out, t->crcs, t->ncrcs * sizeof(uint32_t));
    bytes_put_u64(out, t->file);
    bytes_put_u64(out, t->seq);
    bytes_put_u64(out, t->bytes);
    bytes_put_u64(out, (uint64_t)t->mtime_ns);
    bytes_put_u32(out, t->flags);
    bytes_put_u32(out, t->crc32c);
    bytes_put_u32(out, t->bucket_id);
    bytes_put_u32(out, t->parts);
    bytes_put(out, t->etag, sizeof(t->etag));
    const char *texts[3] = {t->bucket, t->etag_text, t->remote};
    bytes_put_u32(out, t->key_len);
    for (unsigned i = 0; i < ARRAY_LEN(texts); i++)
        bytes_put_u32(out, text_length(texts[i]));
    bytes_put_u32(out, t->meta_len);
    bytes_put(out, t->key, t->key_len);
    for (unsigned i = 0; i < ARRAY_LEN(texts); i++)
        bytes_put(out, texts[i] ? texts[i] : "", text_length(texts[i]));
    bytes_put(out, t->meta, t->meta_len);
    static const uint8_t zeros[8];
    bytes_put(out, zeros, (8 - (out->len - start) % 8) % 8);
    uint32_t total = (uint32_t)(out->len - start) + FOOTER_BYTES;
    bytes_put(out, object_magic, sizeof(object_magic));
    bytes_put_u64(out, t->file);
    bytes_put_u64(out, t->bytes);
    bytes_put_u32(out, total);
    bytes_put_u32(out, 1);
    if (out->failed)
        return -ENOMEM;
    bytes_put_u32(out, crc32c(0, out->data + start, out->len - start));
    bytes_put_u32(out, 0);
    return out->failed ? -ENOMEM : 0;
}

int store_footer_parse(const void *footer, uint32_t *ret_trailer_bytes, uint64_t *ret_bytes)
{
    const uint8_t *f = footer;
    uint64_t bytes = get64(f + 16);
    uint32_t total = get32(f + 24);
    if (memcmp(f, object_magic, sizeof(object_magic)) != 0 || get32(f + 28) != 1 || get32(f + 36) != 0 ||
        bytes > INT64_MAX / 2 || total < FOOTER_BYTES || total > TRAILER_BYTES_MAX || total % 8)
        return LEAT_CORRUPT;
    *ret_trailer_bytes = total;
    *ret_bytes = bytes;
    return 0;
}

static const char *get_text(struct bytes_in *in, uint32_t len, uint32_t max)
{
    const char *text = bytes_get(in, len);
    if (!text || len == 0 || len > max + 1 || memchr(text, 0, len) != text + len - 1) {
        in->bad = true;
        return "";
    }
    return text;
}

int store_trailer_parse(const void *data, size_t len, struct trailer *ret)
{
    uint32_t total;
    uint64_t bytes;
    if (len < FOOTER_BYTES ||
        store_footer_parse((const uint8_t *)data + len - FOOTER_BYTES, &total, &bytes) < 0 || total != len ||
        get32((const uint8_t *)data + len - 8) != crc32c(0, data, len - 8))
        return LEAT_CORRUPT;
    struct trailer t = {.ncrcs = store_blocks(bytes), .crcs = data};
    struct bytes_in in = bytes_in_of(data, len - FOOTER_BYTES);
    if (t.ncrcs > in.len / sizeof(uint32_t))
        return LEAT_CORRUPT;
    bytes_get(&in, t.ncrcs * sizeof(uint32_t));
    t.file = bytes_get_u64(&in);
    t.seq = bytes_get_u64(&in);
    t.bytes = bytes_get_u64(&in);
    t.mtime_ns = (int64_t)bytes_get_u64(&in);
    t.flags = bytes_get_u32(&in);
    t.crc32c = bytes_get_u32(&in);
    t.bucket_id = bytes_get_u32(&in);
    t.parts = bytes_get_u32(&in);
    const void *etag = bytes_get(&in, sizeof(t.etag));
    if (etag)
        memcpy(t.etag, etag, sizeof(t.etag));
    t.key_len = bytes_get_u32(&in);
    uint32_t bucket_len = bytes_get_u32(&in), etag_len = bytes_get_u32(&in), remote_len = bytes_get_u32(&in);
    t.meta_len = bytes_get_u32(&in);
    t.key = bytes_get(&in, t.key_len);
    t.bucket = get_text(&in, bucket_len, STORE_BUCKET_MAX);
    t.etag_text = get_text(&in, etag_len, STORE_ETAG_MAX);
    t.remote = get_text(&in, remote_len, STORE_REMOTE_MAX);
    t.meta = bytes_get(&in, t.meta_len);
    if (in.bad || t.key_len == 0 || t.key_len > STORE_KEY_MAX || t.meta_len > STORE_META_MAX ||
        t.bytes != bytes || t.file != get64((const uint8_t *)data + len - FOOTER_BYTES + 8) ||
        bytes_left(&in) >= 8)
        return LEAT_CORRUPT;
    *ret = t;
    return 0;
}

/* --- ETags -------------------------------------------------------------------------------------------------------------- */

void store_etag_pack(const char *text, uint8_t ret_md5[16], uint32_t *ret_parts)
{
    *ret_parts = INDEX_ETAG_TEXT;
    memset(ret_md5, 0, 16);
    uint8_t md5[16];
    if (!hex_get(text, 16, md5))
        return;
    uint32_t parts = 0;
    if (text[32]) {
        size_t n = strlen(text + 33);
        if (text[32] != '-' || n == 0 || n > 5 || text[33] == '0')
            return;
        for (const char *p = text + 33; *p; p++) {
            if (*p < '0' || *p > '9')
                return;
            parts = parts * 10 + (uint32_t)(*p - '0');
        }
    }
    memcpy(ret_md5, md5, 16);
    *ret_parts = parts;
}

void store_etag_format(const uint8_t md5[16], uint32_t parts, const char *text, char out[STORE_ETAG_MAX + 1])
{
    if (parts == INDEX_ETAG_TEXT) {
        snprintf(out, STORE_ETAG_MAX + 1, "%s", text ? text : "");
        return;
    }
    hex_put(out, md5, 16);
    if (parts)
        snprintf(out + 32, STORE_ETAG_MAX + 1 - 32, "-%u", parts);
}

const char *store_extra_get(const uint8_t *extra, size_t len, char type)
{
    while (len > 1) {
        const uint8_t *end = memchr(extra + 1, 0, len - 1);
        if (!end)
            return NULL;
        if (*extra == (uint8_t)type)
            return (const char *)extra + 1;
        len -= (size_t)(end + 1 - extra);
        extra = end + 1;
    }
    return NULL;
}

size_t store_extra_put(uint8_t *extra, size_t len, char type, const char *text)
{
    size_t n = strlen(text) + 1;
    if (len == SIZE_MAX || n + 1 > INDEX_EXTRA_MAX - len)
        return SIZE_MAX;
    extra[len] = (uint8_t)type;
    memcpy(extra + len + 1, text, n);
    return len + 1 + n;
}

/* --- log ---------------------------------------------------------------------------------------------------------------- */

/* | magic: 8 | version u32 | CRC of the rest u32 | path id: 16 | number, records before, end before u64 | zeros |        version 1 has zeros there */
void store_log_header_put(uint8_t out[LOG_HEADER_BYTES], const uint8_t path_id[16],
                          const struct log_header *h)
{
    memset(out, 0, LOG_HEADER_BYTES);
    memcpy(out, log_magic, 8);
    out[8] = h->before_records ? 2 : 1;
    memcpy(out + 16, path_id, 16);
    memcpy(out + 32, &h->number, 8);
    memcpy(out + 40, &h->before_records, 8);
    memcpy(out + 48, &h->before_end, 8);
    uint32_t crc = crc32c(0, out + 16, LOG_HEADER_BYTES - 16);
    memcpy(out + 12, &crc, 4);
}

int store_log_header_parse(const uint8_t *data, size_t len, const uint8_t path_id[16], uint64_t number,
                           struct log_header *ret)
{
    uint8_t wanted[LOG_HEADER_BYTES];
    if (len < LOG_HEADER_BYTES)
        return LEAT_CORRUPT;
    struct log_header h = {
        .number = number, .before_records = get64(data + 40), .before_end = get64(data + 48)};
    store_log_header_put(wanted, path_id, &h);
    if (memcmp(data, wanted, LOG_HEADER_BYTES) != 0)
        return LEAT_CORRUPT;
    *ret = h;
    return 0;
}

/* | bytes in all u32 | CRC of what follows u32 | nth u64 | type u8, unflushed u8, key length u16 | value: 64 | extra length u16 | key | extra |
 * The CRC starts from the log's number, so that a record of another log that lies in the same blocks of the disk is none of this one. */
static uint32_t record_seed(uint64_t number)
{
    return crc32c(0, &number, sizeof(number));
}

size_t store_log_record_put(uint8_t *out, uint64_t number, uint64_t nth, const struct log_record *r)
{
    uint8_t *p = out + 8;
    memcpy(p, &nth, 8);
    p[8] = (uint8_t)r->type;
    p[9] = r->unflushed;
    memcpy(p + 10, &r->key_len, 2);
    memcpy(p + 12, &r->value, sizeof(r->value));
    memcpy(p + 12 + sizeof(r->value), &r->extra_len, 2);
    p += 14 + sizeof(r->value);
    if (r->key_len)
        memcpy(p, r->key, r->key_len);
    if (r->extra_len)
        memcpy(p + r->key_len, r->extra, r->extra_len);
    p += r->key_len + r->extra_len;
    uint32_t bytes = (uint32_t)(p - out), crc = crc32c(record_seed(number), out + 8, bytes - 8);
    memcpy(out, &bytes, 4);
    memcpy(out + 4, &crc, 4);
    return bytes;
}

size_t store_log_record_parse(const uint8_t *data, size_t len, uint64_t number, uint64_t nth,
                              struct log_record *ret)
{
    const size_t fixed = 22 + sizeof(struct index_value);
    if (len < fixed)
        return 0;
    uint32_t bytes = get32(data);
    if (bytes < fixed || bytes > len || get64(data + 8) != nth ||
        get32(data + 4) != crc32c(record_seed(number), data + 8, bytes - 8))
        return 0;
    struct log_record r = {.type = data[16], .unflushed = data[17]};
    memcpy(&r.key_len, data + 18, 2);
    memcpy(&r.value, data + 20, sizeof(r.value));
    memcpy(&r.extra_len, data + 20 + sizeof(r.value), 2);
    r.key = data + fixed;
    r.extra = r.key + r.key_len;
    if (bytes != fixed + r.key_len + r.extra_len || r.key_len > INDEX_KEY_MAX ||
        r.extra_len > INDEX_EXTRA_MAX || r.type < LOG_PUT || r.type > LOG_MARK ||
        ((r.type == LOG_PUT || r.type == LOG_DELETE) && r.key_len < 5))
        return 0;
    *ret = r;
    return bytes;
}

/* --- snapshot ----------------------------------------------------------------------------------------------------------- */

/* | magic: 8 | version u32 | CRC of the rest of the page u32 | path id: 16 | snapshot_header | zeros | */
void store_snapshot_header_put(uint8_t out[SNAPSHOT_HEADER_BYTES], const uint8_t path_id[16],
                               const struct snapshot_header *h)
{
    memset(out, 0, SNAPSHOT_HEADER_BYTES);
    memcpy(out, snapshot_magic, 8);
    out[8] = 1;
    memcpy(out + 16, path_id, 16);
    memcpy(out + 32, &h->number, 8);
    memcpy(out + 40, &h->count, 8);
    memcpy(out + 48, &h->strings_bytes, 8);
    memcpy(out + 56, &h->outstanding, 8);
    memcpy(out + 64, &h->next_file, 8);
    memcpy(out + 72, &h->next_seq, 8);
    memcpy(out + 80, &h->body_crc, 4);
    uint32_t crc = crc32c(0, out + 16, SNAPSHOT_HEADER_BYTES - 16);
    memcpy(out + 12, &crc, 4);
}

static bool entries_sound(const struct snapshot_entry *e, uint64_t n, const uint8_t *strings, uint64_t bytes)
{
    for (uint64_t i = 0; i < n; i++) {
        uint64_t len = (uint64_t)e[i].key_len + e[i].extra_len;
        if (e[i].key_len < 5 || e[i].key_len > INDEX_KEY_MAX || e[i].extra_len > INDEX_EXTRA_MAX ||
            len > bytes || e[i].key_offset > bytes - len || e[i].value.flags & INDEX_DEAD)
            return false;
        if (i > 0 && store_index_compare(strings + e[i - 1].key_offset, e[i - 1].key_len,
                                         strings + e[i].key_offset, e[i].key_len) >= 0)
            return false;
    }
    return true;
}

int store_snapshot_parse(const uint8_t *data, size_t len, const uint8_t path_id[16],
                         struct snapshot_header *ret_header, const struct snapshot_entry **ret_entries,
                         const uint8_t **ret_strings, const uint64_t **ret_outstanding)
{
    if (len < SNAPSHOT_HEADER_BYTES || memcmp(data, snapshot_magic, 8) != 0 || get32(data + 8) != 1 ||
        get32(data + 12) != crc32c(0, data + 16, SNAPSHOT_HEADER_BYTES - 16) ||
        memcmp(data + 16, path_id, 16) != 0)
        return LEAT_CORRUPT;
    struct snapshot_header h = {
        .number = get64(data + 32),
        .count = get64(data + 40),
        .strings_bytes = get64(data + 48),
        .outstanding = get64(data + 56),
        .next_file = get64(data + 64),
        .next_seq = get64(data + 72),
        .body_crc = get32(data + 80),
    };
    uint64_t body = len - SNAPSHOT_HEADER_BYTES;
    if (h.outstanding > OUTSTANDING_MAX || h.outstanding * 8 > body ||
        h.count > body / sizeof(struct snapshot_entry) || h.strings_bytes > body || h.strings_bytes % 8 ||
        h.count * sizeof(struct snapshot_entry) + h.strings_bytes + h.outstanding * 8 != body ||
        crc32c(0, data + SNAPSHOT_HEADER_BYTES, body) != h.body_crc)
        return LEAT_CORRUPT;
    const struct snapshot_entry *entries = (const void *)(data + SNAPSHOT_HEADER_BYTES);
    const uint8_t *strings = (const uint8_t *)(entries + h.count);
    if (!entries_sound(entries, h.count, strings, h.strings_bytes))
        return LEAT_CORRUPT;
    *ret_header = h;
    *ret_entries = entries;
    *ret_strings = strings;
    *ret_outstanding = (const uint64_t *)(const void *)(strings + h.strings_bytes);
    return 0;
}
