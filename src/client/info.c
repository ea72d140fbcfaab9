/* SPDX-License-Identifier: Apache-2.0 */
/* info.c: what the index holds of a working set: lengths, fields, keys, classes. No I/O, any thread. */
#include "client/client.h"

#include <stdio.h>

static const struct index_field *field_of(const struct leat_ws *ws, unsigned field)
{
    return field < ws->index.header->nfields ? &ws->index.fields[field] : NULL;
}

uint64_t leat_ws_length(const struct leat_ws *ws)
{
    return ws->index.header->nsamples;
}

unsigned leat_ws_fields(const struct leat_ws *ws)
{
    return ws->index.header->nfields;
}

int leat_ws_field(const struct leat_ws *ws, unsigned field, struct leat_field *ret_field)
{
    const struct index_field *f = field_of(ws, field);
    if (!f || !ret_field)
        return f ? LEAT_INVALID : LEAT_NOT_FOUND;
    struct leat_field out = {.name = index_string(&ws->index, f->name),
                             .dtype = index_string(&ws->index, f->dtype)};
    if (f->kind == INDEX_FIELD_LABEL) {
        out.dtype = "<u4";
        out.max_bytes = out.fixed_bytes = 4;
        out.is_label = 1;
    } else if (f->stride) { /* an array, or one that was appended to */
        out.ndim = MIN(f->ndim, INDEX_MAX_DIMS);
        memcpy(out.shape, f->shape, sizeof(out.shape));
        out.max_bytes = out.fixed_bytes = f->stride;
    } else {
        out.max_bytes = f->max_bytes;
    }
    return options_give("leat_field", ret_field, offsetof(struct leat_field, name), &out, sizeof(out), NULL);
}

int leat_ws_find_field(const struct leat_ws *ws, const char *name)
{
    int field = name ? index_field_find(&ws->index, name) : -1;
    return field < 0 ? -1 : field;
}

const char *leat_ws_uri(const struct leat_ws *ws)
{
    return ws->uri;
}

const char *leat_ws_fingerprint(const struct leat_ws *ws)
{
    return ws->fingerprint;
}

uint64_t leat_ws_classes(const struct leat_ws *ws)
{
    return ws->index.header->nclasses;
}

const char *leat_ws_class(const struct leat_ws *ws, uint64_t label, size_t *ret_len)
{
    size_t len;
    if (label >= ws->index.header->nclasses)
        return NULL;
    const char *name = index_class(&ws->index, (uint32_t)label, &len);
    if (name && ret_len)
        *ret_len = len;
    return name;
}

const char *leat_ws_key(const struct leat_ws *ws, uint64_t index, char *buf, size_t cap, size_t *ret_len)
{
    char scratch[LEAT_KEY_BUF];
    size_t len;
    if (index >= ws->index.header->nsamples)
        return NULL;
    const char *key = index_key(&ws->index, index, scratch, &len);
    if (key == scratch) {
        if (!buf || cap <= len)
            return NULL;
        memcpy(buf, scratch, len + 1);
        key = buf;
    }
    if (key && ret_len)
        *ret_len = len;
    return key;
}

int leat_ws_index(const struct leat_ws *ws, const char *key, size_t key_len, uint64_t *ret_index)
{
    uint64_t index = key ? index_find(&ws->index, key, key_len) : UINT64_MAX;
    if (index == UINT64_MAX)
        return LEAT_NOT_FOUND;
    *ret_index = index;
    return 0;
}

int leat_ws_field_bytes(const struct leat_ws *ws, uint64_t index, unsigned field, uint64_t *ret_bytes)
{
    const struct index_field *f = field_of(ws, field);
    struct index_part part = {.bytes = 4};
    if (!f || index >= ws->index.header->nsamples)
        return LEAT_NOT_FOUND;
    if (f->kind != INDEX_FIELD_LABEL && !index_part(&ws->index, index, field, &part))
        return LEAT_NOT_FOUND;
    *ret_bytes = part.bytes;
    return 0;
}

int leat_ws_source(const struct leat_ws *ws, uint64_t index, unsigned field, char *buf, size_t cap,
                   size_t *ret_len, uint64_t *ret_offset)
{
    const struct index_field *f = field_of(ws, field);
    struct index_part part;
    if (!f || index >= ws->index.header->nsamples || f->kind == INDEX_FIELD_LABEL ||
        !index_part(&ws->index, index, field, &part))
        return LEAT_NOT_FOUND;
    uint64_t at = index_extent_at(&ws->index, part.address);
    if (at >= ws->index.header->nextents)
        return LEAT_NOT_FOUND;
    const struct index_extent *e = &ws->index.extents[at];
    if (e->kind != INDEX_EXTENT_RAW || e->address > part.address || e->source >= ws->index.header->nsources)
        return LEAT_NOT_FOUND;
    int len = index_source_path(&ws->index, e->source, buf, cap);
    if (len <= 0)
        return LEAT_NOT_FOUND;
    *ret_len = (size_t)len;
    *ret_offset = e->source_offset + (part.address - e->address);
    return 0;
}

/* Of all nodes together. The last region is no longer than what lies in it, in whole pages. */
static uint64_t regions_bytes(const struct leat_ws *ws)
{
    uint64_t page = MAX(ws->live->page_bytes, 4096u), most = ws->info.nregions * ws->info.region_bytes;
    uint64_t end = MIN(ws->index.header->address_end, ws->info.pinned_end);
    return MIN(align_up(end, page), most);
}

int leat_ws_stat(struct leat_ws *ws, struct leat_ws_stat *ret_stat, struct leat_error *err)
{
    if (!ret_stat)
        return error_set(err, LEAT_INVALID, "ret_stat is NULL");
    int rc = ws_check(ws, err);
    if (rc)
        return rc;
    const struct proto_ws *info = &ws->info;
    struct leat_ws_stat out = {
        .samples = ws->index.header->nsamples,
        .resident_samples = ws->live->resident_samples,
        .failed_samples = ws->live->failed_samples,
        .payload_bytes = ws->index.header->payload_bytes,
        .resident_bytes = ws->live->resident_bytes,
        .pool_bytes = regions_bytes(ws),
        .regions = info->nregions,
        .region_bytes = info->region_bytes,
        .page_bytes = ws->live->page_bytes,
        .streamed = !!(info->flags & PROTO_WS_STREAMED),
        .generation = info->generation,
        .version = info->version,
        .transport = ws->transport,
        .lost_samples = ws->live->lost_samples,
        .shm_bytes = ws->delivered[DELIVERED_SHM],
        .tcp_bytes = ws->delivered[DELIVERED_TCP],
        .rdma_read_bytes = ws->delivered[DELIVERED_RDMA_READ],
        .rdma_write_bytes = ws->delivered[DELIVERED_RDMA_WRITE],
        .streamed_bytes = ws->delivered[DELIVERED_STREAMED],
        .bounced_bytes = ws->delivered[DELIVERED_BOUNCED],
        .rails = delivery_paths(ws),
    };
    return options_give("leat_ws_stat", ret_stat, offsetof(struct leat_ws_stat, samples), &out, sizeof(out),
                        err);
}

int ws_bad_index(const struct leat_ws *ws, uint64_t index, struct leat_error *err)
{
    return error_set(err, LEAT_NOT_FOUND, "sample %lld of a set of %llu", (long long)index,
                     (unsigned long long)ws->index.header->nsamples);
}

const char *ws_describe(const struct leat_ws *ws, uint64_t index, unsigned field, char buf[256])
{
    char scratch[LEAT_KEY_BUF];
    size_t len = 0;
    const char *key = leat_ws_key(ws, index, scratch, sizeof(scratch), &len);
    const struct index_field *f = field_of(ws, field);
    snprintf(buf, 256, "sample %llu (%.*s), field %s", (unsigned long long)index, (int)MIN(len, (size_t)160),
             key ? key : "", f ? index_string(&ws->index, f->name) : "?");
    return buf;
}
