/* SPDX-License-Identifier: Apache-2.0 */
/* The store's files: trailers, logs, snapshots, buckets. The first byte says which; what parses keeps its promises. */
#include "store/internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const uint8_t path_id[16] = "0123456789abcdef";

static void trailer(const uint8_t *data, size_t size)
{
    struct trailer t;
    uint32_t bytes;
    uint64_t payload;
    if (size >= FOOTER_BYTES)
        store_footer_parse(data + size - FOOTER_BYTES, &bytes, &payload);
    if (store_trailer_parse(data, size, &t) < 0)
        return;
    uint32_t sum = 0;
    for (uint64_t i = 0; i < t.ncrcs; i++)
        sum += t.crcs[i];
    for (uint32_t i = 0; i < t.key_len; i++)
        sum += t.key[i];
    for (uint32_t i = 0; i < t.meta_len; i++)
        sum += t.meta[i];
    pairs_get(t.meta, t.meta_len, "content-type");
    if (strlen(t.bucket) > STORE_BUCKET_MAX || strlen(t.etag_text) > STORE_ETAG_MAX ||
        strlen(t.remote) > STORE_REMOTE_MAX || t.key_len > STORE_KEY_MAX || (sum == 0 && t.ncrcs > size))
        abort();
}

static void records(const uint8_t *data, size_t size)
{
    struct log_record r;
    uint64_t nth = 0;
    for (size_t at = 0, n; (n = store_log_record_parse(data + at, size - at, 1, nth, &r)) > 0;
         at += n, nth++) {
        uint32_t sum = 0;
        for (unsigned i = 0; i < r.key_len; i++)
            sum += r.key[i];
        const char *text = store_extra_get(r.extra, r.extra_len, 'e');
        if (n > size - at || (text && strlen(text) > r.extra_len) || sum > 255u * INDEX_KEY_MAX)
            abort();
    }
    store_log_header_parse(data, size, path_id, 1, &(struct log_header){0});
}

static void snapshot(const uint8_t *data, size_t size)
{
    struct snapshot_header h;
    const struct snapshot_entry *entries;
    const uint8_t *strings;
    const uint64_t *outstanding;
    if (store_snapshot_parse(data, size, path_id, &h, &entries, &strings, &outstanding) < 0)
        return;
    uint64_t sum = 0;
    for (uint64_t i = 0; i < h.count; i++)
        for (unsigned k = 0; k < entries[i].key_len; k++)
            sum += strings[entries[i].key_offset + k];
    for (uint64_t i = 0; i < h.outstanding; i++)
        sum += outstanding[i];
    if (sum == 1 && h.count > size)
        abort();
}

static void bucket(const uint8_t *data, size_t size)
{
    struct store_bucket b;
    bool deleted;
    if (store_bucket_parse(data, size, &b, &deleted) < 0)
        return;
    if (!store_bucket_name_ok(b.name) || strlen(b.props) != b.props_len)
        abort();
    store_bucket_fini(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const parsers[])(const uint8_t *data, size_t size) = {trailer, records, snapshot, bucket};
    if (size == 0)
        return 0;
    uint8_t *exact =
        malloc(size > 1 ? size - 1 : 1); /* aligned as a map is, and so that a read past the end is seen */
    if (!exact)
        return 0;
    memcpy(exact, data + 1, size - 1);
    parsers[data[0] % ARRAY_LEN(parsers)](exact, size - 1);
    free(exact);
    return 0;
}
