/* SPDX-License-Identifier: Apache-2.0 */
/*
 * messages.c: messages, bytes to structs and back: one table of fields a message, one writer and one reader for all of them.
 *
 * A reader takes any bytes: counts are checked against the bytes that are left before anything is allocated
 * for them, and strings have a limit. A struct's promises (a region's node is in the table, regions are in
 * order) are checked here, so that no caller has to.
 */
#include "wire/leat/messages.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "integers are copied as they are in memory");

enum field_kind {
    FIELD_BYTES,    /* `size` bytes as they are in memory: an array, integers */
    FIELD_TEXT,     /* a string in an array of `size` bytes */
    FIELD_STRING,   /* owned, at most `max` bytes */
    FIELD_SECRET,   /* the same; "" is read as NULL; wiped */
    FIELD_VIEW,     /* u32 at `count`, and as many bytes; a reader's points into the input */
    FIELD_LIST,     /* u32 at `count`, and as many of `of`; owned */
    FIELD_ELEMENTS, /* u32, at most `max`, and as many times `size` bytes are what is left: the caller's */
    FIELD_OPTIONAL, /* a bool: is there more? */
    FIELD_MESSAGE,  /* a struct of `of` */
};

struct field {
    enum field_kind kind;
    uint16_t at, size, count;
    uint32_t max;
    const struct proto_layout *of;
};

struct proto_layout {
    const struct field *fields;
    uint16_t nfields, size;
    bool (*check)(const void *m); /* NULL: nothing to check */
};

#define SIZE(X, f) sizeof(((struct proto_##X *)NULL)->f)
#define AT(X, f)   .at = offsetof(struct proto_##X, f)
#define BYTES(X, f)                                                                                          \
    {                                                                                                        \
        .kind = FIELD_BYTES, AT(X, f), .size = SIZE(X, f)                                                    \
    }
#define INT BYTES /* in memory they are as on the wire */
/* Neighbours from f to l without padding between them, in one step: some messages have thousands. */
#define INTS(X, f, l)                                                                                        \
    {                                                                                                        \
        .kind = FIELD_BYTES, AT(X, f),                                                                       \
        .size = offsetof(struct proto_##X, l) + SIZE(X, l) - offsetof(struct proto_##X, f)                   \
    }
#define TEXT(X, f)                                                                                           \
    {                                                                                                        \
        .kind = FIELD_TEXT, AT(X, f), .size = SIZE(X, f)                                                     \
    }
#define STRING(X, f, most)                                                                                   \
    {                                                                                                        \
        .kind = FIELD_STRING, AT(X, f), .max = most                                                          \
    }
#define SECRET(X, f, most)                                                                                   \
    {                                                                                                        \
        .kind = FIELD_SECRET, AT(X, f), .max = most                                                          \
    }
#define VIEW(X, n, f)                                                                                        \
    {                                                                                                        \
        .kind = FIELD_VIEW, AT(X, f), .count = offsetof(struct proto_##X, n)                                 \
    }
#define LIST(X, n, f, E)                                                                                     \
    {                                                                                                        \
        .kind = FIELD_LIST, AT(X, f), .count = offsetof(struct proto_##X, n), .of = &proto_##E##_layout      \
    }
#define ELEMENTS(X, f, bytes, most)                                                                          \
    {                                                                                                        \
        .kind = FIELD_ELEMENTS, AT(X, f), .size = bytes, .max = most                                         \
    }
#define OPTIONAL(X, f)                                                                                       \
    {                                                                                                        \
        .kind = FIELD_OPTIONAL, AT(X, f)                                                                     \
    }
#define MESSAGE(X, f, E)                                                                                     \
    {                                                                                                        \
        .kind = FIELD_MESSAGE, AT(X, f), .of = &proto_##E##_layout                                           \
    }

#define TABLE(X, check_fn, ...)                                                                              \
    static const struct field X##_fields[] = {__VA_ARGS__};                                                  \
    const struct proto_layout proto_##X##_layout = {X##_fields, ARRAY_LEN(X##_fields),                       \
                                                    sizeof(struct proto_##X), check_fn};

/* --- writing and reading ---------------------------------------------------------------------------------------- */

static uint32_t count_of(const void *m, const struct field *f)
{
    return *(const uint32_t *)(const void *)((const char *)m + f->count);
}

static void set_count(void *m, const struct field *f, uint32_t n)
{
    *(uint32_t *)(void *)((char *)m + f->count) = n;
}

void proto_put(struct bytes_out *out, const struct proto_layout *layout, const void *m)
{
    for (const struct field *f = layout->fields, *end = f + layout->nfields; f < end; f++) {
        const void *at = (const char *)m + f->at;
        switch (f->kind) {
        case FIELD_BYTES:
            bytes_put(out, at, f->size);
            break;
        case FIELD_ELEMENTS:
            bytes_put_u32(out, *(const uint32_t *)at);
            break;
        case FIELD_TEXT:
            bytes_put_str(out, at);
            break;
        case FIELD_STRING:
        case FIELD_SECRET:
            bytes_put_str(out, *(void *const *)at);
            break;
        case FIELD_VIEW:
            bytes_put_u32(out, count_of(m, f));
            bytes_put(out, *(void *const *)at, count_of(m, f));
            break;
        case FIELD_LIST:
            bytes_put_u32(out, count_of(m, f));
            for (uint32_t i = 0; i < count_of(m, f); i++)
                proto_put(out, f->of, *(char *const *)at + (size_t)i * f->of->size);
            break;
        case FIELD_OPTIONAL:
            if (!*(const bool *)at)
                return;
            break;
        case FIELD_MESSAGE:
            proto_put(out, f->of, at);
            break;
        }
    }
}

/* The bytes of the next string, if it has at most `max` and no NUL inside; else NULL and bad. */
static const char *get_chars(struct bytes_in *in, size_t max, uint32_t *ret_len)
{
    uint32_t len = *ret_len = bytes_get_u32(in);
    const char *at = len <= max ? bytes_get(in, len) : NULL;
    if (at && !memchr(at, 0, len))
        return at;
    in->bad = true;
    return NULL;
}

static void get_text(struct bytes_in *in, char *buf, size_t size)
{
    uint32_t len;
    const char *at = get_chars(in, size - 1, &len);
    if (at)
        memcpy(buf, at, len); /* zeros are behind it */
}

static int get_string(struct bytes_in *in, const struct field *f, void **ret)
{
    uint32_t len;
    const char *at = get_chars(in, f->max, &len);
    if (!at || (len == 0 && f->kind == FIELD_SECRET))
        return 0;
    *ret = strndup(at, len);
    return *ret ? 0 : -ENOMEM;
}

/* Least bytes of one element on the wire: a count must fit the bytes behind it. */
static size_t least_bytes(const struct proto_layout *layout)
{
    size_t sum = 0;
    for (unsigned k = 0; k < layout->nfields; k++)
        sum += layout->fields[k].kind == FIELD_BYTES ? layout->fields[k].size : sizeof(uint32_t);
    return sum;
}

static int get_fields(struct bytes_in *in, const struct proto_layout *layout, void *m);

static int get_list(struct bytes_in *in, const struct field *f, void *m, void **ret)
{
    uint32_t n = bytes_get_u32(in);
    int rc = 0;
    if (in->bad || n > bytes_left(in) / least_bytes(f->of))
        return LEAT_CORRUPT;
    *ret = calloc(n ? n : 1, f->of->size);
    if (!*ret)
        return -ENOMEM;
    set_count(m, f, n);
    for (uint32_t i = 0; rc == 0 && i < n; i++)
        rc = get_fields(in, f->of, (char *)*ret + (size_t)i * f->of->size);
    return rc;
}

static int get_field(struct bytes_in *in, const struct field *f, void *m)
{
    void *at = (char *)m + f->at;
    const void *p;
    uint32_t n;
    switch (f->kind) {
    case FIELD_BYTES:
        p = bytes_get(in, f->size);
        if (p)
            memcpy(at, p, f->size);
        return 0;
    case FIELD_TEXT:
        get_text(in, at, f->size);
        return 0;
    case FIELD_STRING:
    case FIELD_SECRET:
        return get_string(in, f, at);
    case FIELD_VIEW:
        n = bytes_get_u32(in);
        *(const void **)at = bytes_get(in, n);
        set_count(m, f, n);
        return 0;
    case FIELD_LIST:
        return get_list(in, f, m, at);
    case FIELD_ELEMENTS:
        n = *(uint32_t *)at = bytes_get_u32(in);
        return n > f->max || bytes_left(in) != (uint64_t)n * f->size ? LEAT_CORRUPT : 0;
    case FIELD_OPTIONAL:
        *(bool *)at = bytes_left(in) > 0;
        return 0;
    case FIELD_MESSAGE:
        return get_fields(in, f->of, at);
    }
    return LEAT_CORRUPT;
}

static int get_fields(struct bytes_in *in, const struct proto_layout *layout, void *m)
{
    for (const struct field *f = layout->fields, *end = f + layout->nfields; f < end; f++) {
        int rc = get_field(in, f, m);
        if (rc < 0 || in->bad)
            return rc < 0 ? rc : LEAT_CORRUPT;
        if (f->kind == FIELD_OPTIONAL && !*(const bool *)((const char *)m + f->at))
            break;
    }
    return !layout->check || layout->check(m) ? 0 : LEAT_CORRUPT;
}

int proto_next(struct bytes_in *in, const struct proto_layout *layout, void *ret)
{
    memset(ret, 0, layout->size);
    int rc = get_fields(in, layout, ret);
    if (rc < 0)
        proto_fini(layout, ret);
    in->bad = in->bad || rc == LEAT_CORRUPT;
    return rc;
}

int proto_get(const void *body, size_t len, const struct proto_layout *layout, void *ret)
{
    struct bytes_in in = bytes_in_of(body, len);
    int rc = proto_next(&in, layout, ret);
    if (rc == 0 && bytes_left(&in) > 0) {
        proto_fini(layout, ret);
        return LEAT_CORRUPT;
    }
    return rc;
}

void proto_fini(const struct proto_layout *layout, void *m)
{
    for (const struct field *f = layout->fields, *end = f + layout->nfields; f < end; f++) {
        void *at = (char *)m + f->at, **p = at;
        if (f->kind == FIELD_MESSAGE)
            proto_fini(f->of, at);
        if (f->kind != FIELD_STRING && f->kind != FIELD_SECRET && f->kind != FIELD_LIST)
            continue;
        if (f->kind == FIELD_SECRET && *p)
            explicit_bzero(*p, strlen(*p));
        for (uint32_t i = 0; f->kind == FIELD_LIST && i < count_of(m, f); i++)
            proto_fini(f->of, (char *)*p + (size_t)i * f->of->size);
        if (f->kind == FIELD_LIST)
            set_count(m, f, 0);
        free(*p);
        *p = NULL;
    }
}

/* --- what structs promise --------------------------------------------------------------------------------------- */

static bool hello_check(const void *p)
{
    const struct proto_hello *m = p;
    return m->role >= PROTO_ROLE_CONTROL && m->role <= PROTO_ROLE_PEER && m->version_min <= m->version_max;
}

static bool ws_check(const void *p)
{
    const struct proto_ws *m = p;
    for (uint32_t i = 0; i < m->nregions; i++) {
        const struct proto_region *r = &m->regions[i];
        if (r->node >= m->nnodes || (i > 0 && r->gid <= r[-1].gid))
            return false;
    }
    return true;
}

static bool run_check(const void *p)
{
    const struct proto_run *m = p;
    uint64_t end;
    return !add_overflows(m->address, m->bytes, &end) && !add_overflows(m->offset, m->bytes, &end);
}

static bool scan_object_check(const void *p)
{
    const struct proto_scan_object *m = p;
    uint64_t end;
    return !add_overflows(m->offset, m->bytes, &end);
}

static bool report_check(const void *p)
{
    const struct proto_report *m = p;
    return m->rank < m->world_size && m->waiting_permille <= 1000;
}

/* --- messages --------------------------------------------------------------------------------------------------- */

TABLE(hello, hello_check, INT(hello, version_min), INT(hello, version_max), INT(hello, role), INT(hello, pid),
      TEXT(hello, program), BYTES(hello, nonce), INT(hello, acting_uid), INT(hello, acting_gid),
      BYTES(hello, uuid), INT(hello, generation))
TABLE(welcome, NULL, INT(welcome, version), BYTES(welcome, nonce), BYTES(welcome, mac), TEXT(welcome, node),
      INT(welcome, node_id), INT(welcome, region_bytes), INT(welcome, pool_bytes), INT(welcome, client_count))
TABLE(proof, NULL, BYTES(proof, mac))
TABLE(id, NULL, INT(id, id))

TABLE(access, NULL, INT(access, flags), INT(access, expires), SECRET(access, endpoint, PROTO_ACCESS_STR_MAX),
      SECRET(access, region, PROTO_ACCESS_STR_MAX), SECRET(access, style, PROTO_ACCESS_STR_MAX),
      SECRET(access, ca_file, PROTO_STR_MAX), SECRET(access, profile, PROTO_ACCESS_STR_MAX),
      SECRET(access, access_key, PROTO_ACCESS_STR_MAX), SECRET(access, secret_key, PROTO_ACCESS_STR_MAX),
      SECRET(access, token, PROTO_ACCESS_TOKEN_MAX))
TABLE(found, NULL, INT(found, status))
TABLE(open, NULL, INT(open, flags), INT(open, pool_bytes), STRING(open, name, PROTO_STR_MAX),
      STRING(open, uri, PROTO_STR_MAX), OPTIONAL(open, has_access), MESSAGE(open, access, access))
TABLE(create, NULL, INT(create, flags), STRING(create, name, PROTO_STR_MAX))
TABLE(progress, NULL, INT(progress, stage), INT(progress, samples_done), INT(progress, samples_total),
      INT(progress, bytes_done), INT(progress, bytes_total))
TABLE(revoked, NULL, INT(revoked, ws), INT(revoked, generation))

TABLE(node, NULL, INT(node, id), TEXT(node, address))
TABLE(region, NULL, INTS(region, gid, generation))
TABLE(ws, ws_check, INT(ws, ws), BYTES(ws, uuid), INT(ws, generation), INT(ws, version), INT(ws, flags),
      INT(ws, mode), INT(ws, owner_uid), INT(ws, owner_gid), INT(ws, region_bytes), INT(ws, pinned_end),
      INT(ws, index_bytes), INT(ws, live_bytes), STRING(ws, name, PROTO_STR_MAX),
      STRING(ws, uri, PROTO_STR_MAX), LIST(ws, nnodes, nodes, node), LIST(ws, nregions, regions, region))
TABLE(regions, NULL, INT(regions, ws), INT(regions, first), INT(regions, count))
TABLE(gid, NULL, INT(gid, gid))
TABLE(regions_reply, NULL, ELEMENTS(regions_reply, n, 4, UINT32_MAX))
TABLE(wait, NULL, INT(wait, ws), ELEMENTS(wait, n, 8, PROTO_IDS_MAX))
TABLE(span, NULL, INTS(span, first, count))
TABLE(fetch, NULL, INT(fetch, ws), ELEMENTS(fetch, n, 16, PROTO_IDS_MAX))
TABLE(run, run_check, INTS(run, address, gid))
TABLE(fetched, NULL, INT(fetched, lease), LIST(fetched, nruns, runs, run))
TABLE(broker, NULL, INT(broker, ws), INT(broker, node), OPTIONAL(broker, by_rail), INT(broker, rail))
TABLE(brokered, NULL, OPTIONAL(brokered, says), INT(brokered, version))
TABLE(credits, NULL, INT(credits, slot))

TABLE(query, NULL, INT(query, query), STRING(query, arg, PROTO_STR_MAX))
TABLE(query_reply, NULL, STRING(query_reply, text, PROTO_BODY_MAX))
TABLE(drop, NULL, INT(drop, flags), INT(drop, wait_ns), STRING(drop, name, PROTO_STR_MAX))
TABLE(stop, NULL, INT(stop, force))
TABLE(verify, NULL, INT(verify, ws), INT(verify, flags))
TABLE(verify_reply, NULL, INT(verify_reply, bad), STRING(verify_reply, first_bad, PROTO_STR_MAX))
TABLE(report, report_check, INT(report, ws), INT(report, loader), INT(report, epoch), INT(report, samples),
      INT(report, length), INT(report, batch_samples), INT(report, step_samples), INT(report, total_samples),
      INT(report, total_bytes), INT(report, samples_per_ks), INT(report, bytes_per_s), INT(report, order),
      INT(report, flags), INT(report, verdict), INT(report, rank), INT(report, world_size),
      INT(report, waiting_permille), TEXT(report, job), TEXT(report, title))

TABLE(scan, NULL, STRING(scan, after, PROTO_STR_MAX), MESSAGE(scan, open, open))
TABLE(scan_reply, NULL, INT(scan_reply, id), INT(scan_reply, window_bytes))
TABLE(scan_next, NULL, INT(scan_next, id), INT(scan_next, from), INT(scan_next, released))
TABLE(scan_object, scan_object_check, INT(scan_object, offset), INT(scan_object, bytes),
      INT(scan_object, modified), STRING(scan_object, key, PROTO_STR_MAX),
      STRING(scan_object, etag, PROTO_SCAN_ETAG))
TABLE(scanned, NULL, INT(scanned, flags), LIST(scanned, n, objects, scan_object))

TABLE(write, NULL, INT(write, first), INT(write, count), ELEMENTS(write, n, PROTO_RANGE, PROTO_READS_MAX))
TABLE(keys, NULL, ELEMENTS(keys, n, 4, PROTO_KEYS_MAX))
TABLE(key, NULL, INT(key, gid), INT(key, generation))
TABLE(puts, NULL, INT(puts, view), INT(puts, rail), ELEMENTS(puts, n, PROTO_RANGE + 8, PROTO_PUTS_MAX))
TABLE(put_range, NULL, INTS(put_range, gid, to))

TABLE(node_ask, NULL, STRING(node_ask, name, PROTO_STR_MAX), OPTIONAL(node_ask, says),
      INT(node_ask, incarnation))
TABLE(name, NULL, STRING(name, name, PROTO_STR_MAX))
TABLE(node_reply, NULL, STRING(node_reply, name, PROTO_STR_MAX), INT(node_reply, cap_bytes),
      INT(node_reply, free_bytes), INT(node_reply, region_bytes), INT(node_reply, used_bytes),
      INT(node_reply, incarnation))
TABLE(install, NULL, INT(install, flags), INT(install, first_new_address), BYTES(install, replaces))
TABLE(commit, NULL, BYTES(commit, uuid), BYTES(commit, replaces))
TABLE(set_flags, NULL, BYTES(set_flags, uuid), INT(set_flags, flags))
TABLE(resync_reply, NULL, INT(resync_reply, filled))
TABLE(ready, NULL, BYTES(ready, uuid), ELEMENTS(ready, n, PROTO_READY_RECORD, UINT32_MAX))
TABLE(ready_record, NULL, INTS(ready_record, sample, status))
TABLE(moved, NULL, BYTES(moved, uuid), ELEMENTS(moved, n, 12, UINT32_MAX))
TABLE(place, NULL, INTS(place, gid, generation))
TABLE(urgent, NULL, BYTES(urgent, uuid), ELEMENTS(urgent, n, 8, PROTO_URGENT_MAX))
TABLE(describe, NULL, INT(describe, uid), INT(describe, gid), VIEW(describe, open_bytes, open))
TABLE(access_of, NULL, INT(access_of, uid), STRING(access_of, source, PROTO_STR_MAX))

/* --- errors ----------------------------------------------------------------------------------------------------- */

char *proto_error_text(const void *body, size_t len)
{
    struct bytes_in in = bytes_in_of(body, len);
    return bytes_get_str(&in, PROTO_STR_MAX);
}

void proto_error_text_put(struct bytes_out *out, const char *text)
{
    bytes_put_str(out, text);
}
