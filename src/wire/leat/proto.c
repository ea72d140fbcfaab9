/* SPDX-License-Identifier: Apache-2.0 */
/*
 * proto.c: frames and messages, bytes to structs and back.
 *
 * A reader takes any bytes: counts are checked against the bytes that are left before anything is allocated
 * for them, strings have a limit, and what a struct promises (a region's node is in the table, regions are in
 * order) is checked here, so that nobody behind it has to.
 */
#include "wire/leat/proto.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#define FRAME_USED 40 /* the rest is zeros */

/* Least bytes of one element on the wire: a count is believed only as far as the bytes behind it go. */
enum { NODE_WIRE_MIN = 8, REGION_WIRE = 16, RUN_WIRE = 28 };

static void put_le32(uint8_t *at, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(v >> (8 * i));
}

static void put_le64(uint8_t *at, uint64_t v)
{
    put_le32(at, (uint32_t)v);
    put_le32(at + 4, (uint32_t)(v >> 32));
}

static uint32_t get_le32(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static uint64_t get_le64(const uint8_t *at)
{
    return get_le32(at) | (uint64_t)get_le32(at + 4) << 32;
}

void proto_frame_put(uint8_t out[PROTO_FRAME], const struct proto_frame *frame)
{
    put_le32(out, PROTO_MAGIC);
    out[4] = frame->version;
    out[5] = frame->kind;
    out[6] = (uint8_t)frame->type;
    out[7] = (uint8_t)(frame->type >> 8);
    put_le32(out + 8, (uint32_t)frame->status);
    put_le32(out + 12, frame->lost);
    put_le64(out + 16, frame->id);
    put_le32(out + 24, frame->body_bytes);
    put_le32(out + 28, frame->nfds);
    put_le64(out + 32, frame->payload_bytes);
    memset(out + FRAME_USED, 0, PROTO_FRAME - FRAME_USED);
}

int proto_frame_get(const uint8_t in[PROTO_FRAME], struct proto_frame *ret_frame)
{
    struct proto_frame f = {
        .version = in[4],
        .kind = in[5],
        .type = (uint16_t)(in[6] | in[7] << 8),
        .status = (int32_t)get_le32(in + 8),
        .lost = get_le32(in + 12),
        .id = get_le64(in + 16),
        .body_bytes = get_le32(in + 24),
        .nfds = get_le32(in + 28),
        .payload_bytes = get_le64(in + 32),
    };
    uint8_t rest = 0;
    for (unsigned i = FRAME_USED; i < PROTO_FRAME; i++)
        rest |= in[i];
    if (rest || get_le32(in) != PROTO_MAGIC || f.kind < PROTO_REQUEST || f.kind > PROTO_EVENT)
        return LEAT_CORRUPT;
    /* A status is 0 or -errno: a positive one would be taken for success by some and for a count by others. */
    if (f.status > 0 || f.status < -4095)
        return LEAT_CORRUPT;
    if (f.body_bytes > PROTO_BODY_MAX || f.nfds > PROTO_FDS_MAX || f.payload_bytes > PROTO_PAYLOAD_MAX)
        return LEAT_CORRUPT;
    *ret_frame = f;
    return 0;
}

/* A string into a fixed field; too long or with a NUL inside is bad. */
static void get_fixed_str(struct bytes_in *in, char *buf, size_t cap)
{
    uint32_t len = bytes_get_u32(in);
    const char *s = len < cap ? bytes_get(in, len) : NULL;
    buf[0] = 0;
    if (!s || memchr(s, 0, len)) {
        in->bad = true;
        return;
    }
    memcpy(buf, s, len);
    buf[len] = 0;
}

static void get_fixed_bytes(struct bytes_in *in, uint8_t *buf, size_t bytes)
{
    const void *p = bytes_get(in, bytes);
    if (p)
        memcpy(buf, p, bytes);
}

/* An array of n elements, at least wire_bytes each on the wire. NULL and bad when the bytes cannot be there; an
 * allocation failure is told apart by *ret_nomem. */
static void *get_array(struct bytes_in *in, uint32_t n, size_t wire_bytes, size_t size, bool *ret_nomem)
{
    if (in->bad || n > bytes_left(in) / wire_bytes) {
        in->bad = true;
        return NULL;
    }
    void *p = calloc(n ? n : 1, size);
    if (!p)
        *ret_nomem = true;
    return p;
}

/* --- hello and welcome ---------------------------------------------------------------------------------------- */

void proto_hello_put(struct bytes_out *out, const struct proto_hello *m)
{
    bytes_put_u8(out, m->version_min);
    bytes_put_u8(out, m->version_max);
    bytes_put_u8(out, m->role);
    bytes_put_u32(out, m->pid);
    bytes_put_str(out, m->program);
    bytes_put(out, m->nonce, sizeof(m->nonce));
    bytes_put_u32(out, m->acting_uid);
    bytes_put_u32(out, m->acting_gid);
    bytes_put(out, m->uuid, sizeof(m->uuid));
    bytes_put_u32(out, m->generation);
}

int proto_hello_get(const void *body, size_t len, struct proto_hello *ret)
{
    struct bytes_in in = bytes_in_of(body, len);
    struct proto_hello m = {0};
    m.version_min = bytes_get_u8(&in);
    m.version_max = bytes_get_u8(&in);
    m.role = bytes_get_u8(&in);
    m.pid = bytes_get_u32(&in);
    get_fixed_str(&in, m.program, sizeof(m.program));
    get_fixed_bytes(&in, m.nonce, sizeof(m.nonce));
    m.acting_uid = bytes_get_u32(&in);
    m.acting_gid = bytes_get_u32(&in);
    get_fixed_bytes(&in, m.uuid, sizeof(m.uuid));
    m.generation = bytes_get_u32(&in);
    if (m.role < PROTO_ROLE_CONTROL || m.role > PROTO_ROLE_PEER || m.version_min > m.version_max)
        in.bad = true;
    int rc = bytes_in_done(&in);
    if (rc == 0)
        *ret = m;
    return rc;
}

void proto_welcome_put(struct bytes_out *out, const struct proto_welcome *m)
{
    bytes_put_u8(out, m->version);
    bytes_put(out, m->nonce, sizeof(m->nonce));
    bytes_put(out, m->mac, sizeof(m->mac));
    bytes_put_str(out, m->node);
    bytes_put_u32(out, m->node_id);
    bytes_put_u64(out, m->region_bytes);
    bytes_put_u64(out, m->pool_bytes);
    bytes_put_u64(out, m->client_count);
}

int proto_welcome_get(const void *body, size_t len, struct proto_welcome *ret)
{
    struct bytes_in in = bytes_in_of(body, len);
    struct proto_welcome m = {0};
    m.version = bytes_get_u8(&in);
    get_fixed_bytes(&in, m.nonce, sizeof(m.nonce));
    get_fixed_bytes(&in, m.mac, sizeof(m.mac));
    get_fixed_str(&in, m.node, sizeof(m.node));
    m.node_id = bytes_get_u32(&in);
    m.region_bytes = bytes_get_u64(&in);
    m.pool_bytes = bytes_get_u64(&in);
    m.client_count = bytes_get_u64(&in);
    int rc = bytes_in_done(&in);
    if (rc == 0)
        *ret = m;
    return rc;
}

/* --- open ------------------------------------------------------------------------------------------------------ */

/* As bytes_get_str, but lack of memory is told apart from bad input. */
static char *get_str(struct bytes_in *in, bool *ret_nomem)
{
    uint32_t len = bytes_get_u32(in);
    const char *at = len <= PROTO_STR_MAX ? bytes_get(in, len) : NULL;
    if (!at || memchr(at, 0, len)) {
        in->bad = true;
        return NULL;
    }
    char *s = malloc((size_t)len + 1);
    if (!s) {
        *ret_nomem = true;
        return NULL;
    }
    memcpy(s, at, len);
    s[len] = 0;
    return s;
}

/* --- access ------------------------------------------------------------------------------------------------------ */

static const struct {
    size_t at;
    size_t most;
} access_strings[] = {
    {offsetof(struct proto_access, endpoint), PROTO_ACCESS_STR_MAX},
    {offsetof(struct proto_access, region), PROTO_ACCESS_STR_MAX},
    {offsetof(struct proto_access, style), PROTO_ACCESS_STR_MAX},
    {offsetof(struct proto_access, ca_file), PROTO_STR_MAX},
    {offsetof(struct proto_access, profile), PROTO_ACCESS_STR_MAX},
    {offsetof(struct proto_access, access_key), PROTO_ACCESS_STR_MAX},
    {offsetof(struct proto_access, secret_key), PROTO_ACCESS_STR_MAX},
    {offsetof(struct proto_access, token), PROTO_ACCESS_TOKEN_MAX},
};

static char **access_string(struct proto_access *m, size_t k)
{
    return (char **)((char *)m + access_strings[k].at);
}

void proto_access_put(struct bytes_out *out, const struct proto_access *m)
{
    bytes_put_u32(out, m->flags);
    bytes_put_u64(out, (uint64_t)m->expires);
    for (size_t k = 0; k < ARRAY_LEN(access_strings); k++) {
        const char *s = *access_string((struct proto_access *)(uintptr_t)m, k);
        bytes_put_str(out, s ? s : "");
    }
}

int proto_access_get(struct bytes_in *in, struct proto_access *ret)
{
    struct proto_access m = {.flags = bytes_get_u32(in), .expires = (int64_t)bytes_get_u64(in)};
    for (size_t k = 0; k < ARRAY_LEN(access_strings) && !in->bad; k++) {
        char *s = bytes_get_str(in, access_strings[k].most);
        if (!s && !in->bad) {
            proto_access_fini(&m);
            return -ENOMEM;
        }
        *access_string(&m, k) = s;
        if (s && !*s) {
            free(s);
            *access_string(&m, k) = NULL;
        }
    }
    if (in->bad) {
        proto_access_fini(&m);
        return LEAT_CORRUPT;
    }
    *ret = m;
    return 0;
}

void proto_access_fini(struct proto_access *m)
{
    for (size_t k = 0; k < ARRAY_LEN(access_strings); k++) {
        char **s = access_string(m, k);
        if (*s)
            explicit_bzero(*s, strlen(*s));
        free(*s);
        *s = NULL;
    }
}

/* --- opening ----------------------------------------------------------------------------------------------------- */

void proto_open_put(struct bytes_out *out, const struct proto_open *m)
{
    bytes_put_u32(out, m->flags);
    bytes_put_u64(out, m->pool_bytes);
    bytes_put_str(out, m->name);
    bytes_put_str(out, m->uri);
    if (m->has_access)
        proto_access_put(out, &m->access);
}

int proto_open_get(const void *body, size_t len, struct proto_open *ret)
{
    struct bytes_in in = bytes_in_of(body, len);
    struct proto_open m = {0};
    bool nomem = false;
    m.flags = bytes_get_u32(&in);
    m.pool_bytes = bytes_get_u64(&in);
    m.name = get_str(&in, &nomem);
    m.uri = get_str(&in, &nomem);
    int rc = nomem ? -ENOMEM : 0;
    m.has_access = rc == 0 && !in.bad && bytes_left(&in) > 0;
    if (m.has_access)
        rc = proto_access_get(&in, &m.access);
    if (rc == 0)
        rc = bytes_in_done(&in);
    if (rc < 0) {
        proto_open_fini(&m);
        return rc;
    }
    *ret = m;
    return 0;
}

void proto_open_fini(struct proto_open *m)
{
    free(m->name);
    free(m->uri);
    m->name = m->uri = NULL;
    proto_access_fini(&m->access);
}

/* --- working set ----------------------------------------------------------------------------------------------- */

void proto_ws_put(struct bytes_out *out, const struct proto_ws *m)
{
    bytes_put_u64(out, m->ws);
    bytes_put(out, m->uuid, sizeof(m->uuid));
    bytes_put_u32(out, m->generation);
    bytes_put_u32(out, m->version);
    bytes_put_u32(out, m->flags);
    bytes_put_u32(out, m->mode);
    bytes_put_u32(out, m->owner_uid);
    bytes_put_u32(out, m->owner_gid);
    bytes_put_u64(out, m->region_bytes);
    bytes_put_u64(out, m->pinned_end);
    bytes_put_u64(out, m->index_bytes);
    bytes_put_u64(out, m->live_bytes);
    bytes_put_str(out, m->name);
    bytes_put_str(out, m->uri);
    bytes_put_u32(out, m->nnodes);
    for (uint32_t i = 0; i < m->nnodes; i++) {
        bytes_put_u32(out, m->nodes[i].id);
        bytes_put_str(out, m->nodes[i].address);
    }
    bytes_put_u32(out, m->nregions);
    for (uint32_t i = 0; i < m->nregions; i++) {
        bytes_put_u32(out, m->regions[i].gid);
        bytes_put_u32(out, m->regions[i].node);
        bytes_put_u32(out, m->regions[i].page_bytes);
        bytes_put_u32(out, m->regions[i].generation);
    }
}

static void get_nodes(struct bytes_in *in, struct proto_ws *m, bool *nomem)
{
    uint32_t n = bytes_get_u32(in);
    m->nodes = get_array(in, n, NODE_WIRE_MIN, sizeof(*m->nodes), nomem);
    if (!m->nodes)
        return;
    m->nnodes = n;
    for (uint32_t i = 0; i < n && !in->bad; i++) {
        m->nodes[i].id = bytes_get_u32(in);
        get_fixed_str(in, m->nodes[i].address, sizeof(m->nodes[i].address));
    }
}

static void get_regions(struct bytes_in *in, struct proto_ws *m, bool *nomem)
{
    uint32_t n = bytes_get_u32(in);
    m->regions = get_array(in, n, REGION_WIRE, sizeof(*m->regions), nomem);
    if (!m->regions)
        return;
    m->nregions = n;
    for (uint32_t i = 0; i < n && !in->bad; i++) {
        struct proto_region *r = &m->regions[i];
        r->gid = bytes_get_u32(in);
        r->node = bytes_get_u32(in);
        r->page_bytes = bytes_get_u32(in);
        r->generation = bytes_get_u32(in);
        if (r->node >= m->nnodes || (i > 0 && r->gid <= r[-1].gid))
            in->bad = true;
    }
}

int proto_ws_get(const void *body, size_t len, struct proto_ws *ret)
{
    struct bytes_in in = bytes_in_of(body, len);
    struct proto_ws m = {0};
    bool nomem = false;
    m.ws = bytes_get_u64(&in);
    get_fixed_bytes(&in, m.uuid, sizeof(m.uuid));
    m.generation = bytes_get_u32(&in);
    m.version = bytes_get_u32(&in);
    m.flags = bytes_get_u32(&in);
    m.mode = bytes_get_u32(&in);
    m.owner_uid = bytes_get_u32(&in);
    m.owner_gid = bytes_get_u32(&in);
    m.region_bytes = bytes_get_u64(&in);
    m.pinned_end = bytes_get_u64(&in);
    m.index_bytes = bytes_get_u64(&in);
    m.live_bytes = bytes_get_u64(&in);
    m.name = get_str(&in, &nomem);
    m.uri = get_str(&in, &nomem);
    if (!nomem)
        get_nodes(&in, &m, &nomem);
    if (!nomem)
        get_regions(&in, &m, &nomem);
    int rc = nomem ? -ENOMEM : bytes_in_done(&in);
    if (rc < 0) {
        proto_ws_fini(&m);
        return rc;
    }
    *ret = m;
    return 0;
}

void proto_ws_fini(struct proto_ws *m)
{
    free(m->name);
    free(m->uri);
    free(m->nodes);
    free(m->regions);
    m->name = m->uri = NULL;
    m->nodes = NULL;
    m->regions = NULL;
    m->nnodes = m->nregions = 0;
}

/* --- fetched, ranges ------------------------------------------------------------------------------------------- */

void proto_fetched_put(struct bytes_out *out, const struct proto_fetched *m)
{
    bytes_put_u64(out, m->lease);
    bytes_put_u32(out, m->nruns);
    for (uint32_t i = 0; i < m->nruns; i++) {
        bytes_put_u64(out, m->runs[i].address);
        bytes_put_u64(out, m->runs[i].bytes);
        bytes_put_u64(out, m->runs[i].offset);
        bytes_put_u32(out, m->runs[i].gid);
    }
}

int proto_fetched_get(const void *body, size_t len, struct proto_fetched *ret)
{
    struct bytes_in in = bytes_in_of(body, len);
    struct proto_fetched m = {0};
    bool nomem = false;
    m.lease = bytes_get_u64(&in);
    uint32_t n = bytes_get_u32(&in);
    m.runs = get_array(&in, n, RUN_WIRE, sizeof(*m.runs), &nomem);
    if (m.runs)
        m.nruns = n;
    for (uint32_t i = 0; m.runs && i < n && !in.bad; i++) {
        struct proto_run *r = &m.runs[i];
        uint64_t end, offset_end;
        r->address = bytes_get_u64(&in);
        r->bytes = bytes_get_u64(&in);
        r->offset = bytes_get_u64(&in);
        r->gid = bytes_get_u32(&in);
        if (add_overflows(r->address, r->bytes, &end) || add_overflows(r->offset, r->bytes, &offset_end))
            in.bad = true;
    }
    int rc = nomem ? -ENOMEM : bytes_in_done(&in);
    if (rc < 0) {
        proto_fetched_fini(&m);
        return rc;
    }
    *ret = m;
    return 0;
}

void proto_fetched_fini(struct proto_fetched *m)
{
    free(m->runs);
    m->runs = NULL;
    m->nruns = 0;
}

/* --- scanned --------------------------------------------------------------------------------------------------- */

#define SCAN_OBJECT_WIRE_MIN 32u

void proto_scanned_put(struct bytes_out *out, const struct proto_scanned *m)
{
    bytes_put_u32(out, m->flags);
    bytes_put_u32(out, m->n);
    for (uint32_t i = 0; i < m->n; i++) {
        const struct proto_scan_object *o = &m->objects[i];
        bytes_put_u64(out, o->offset);
        bytes_put_u64(out, o->bytes);
        bytes_put_u64(out, (uint64_t)o->modified);
        bytes_put_str(out, o->key);
        bytes_put_str(out, o->etag);
    }
}

int proto_scanned_get(const void *body, size_t len, struct proto_scanned *ret)
{
    struct bytes_in in = bytes_in_of(body, len);
    struct proto_scanned m = {.flags = bytes_get_u32(&in)};
    bool nomem = false;
    uint32_t n = bytes_get_u32(&in);
    m.objects = get_array(&in, n, SCAN_OBJECT_WIRE_MIN, sizeof(*m.objects), &nomem);
    for (; m.objects && m.n < n && !in.bad; m.n++) {
        struct proto_scan_object *o = &m.objects[m.n];
        uint64_t end;
        o->offset = bytes_get_u64(&in);
        o->bytes = bytes_get_u64(&in);
        o->modified = (int64_t)bytes_get_u64(&in);
        o->key = bytes_get_str(&in, PROTO_STR_MAX);
        o->etag = bytes_get_str(&in, PROTO_SCAN_ETAG);
        in.bad = in.bad || add_overflows(o->offset, o->bytes, &end);
    }
    int rc = nomem ? -ENOMEM : bytes_in_done(&in);
    if (rc < 0) {
        proto_scanned_fini(&m);
        return rc;
    }
    *ret = m;
    return 0;
}

void proto_scanned_fini(struct proto_scanned *m)
{
    for (uint32_t i = 0; i < m->n; i++) {
        free(m->objects[i].key);
        free(m->objects[i].etag);
    }
    free(m->objects);
    *m = (struct proto_scanned){0};
}

/* --- report ---------------------------------------------------------------------------------------------------- */

/* The numbers of a report, in the order in which they are sent. */
static const size_t report_words[] = {
    offsetof(struct proto_report, ws),           offsetof(struct proto_report, loader),
    offsetof(struct proto_report, epoch),        offsetof(struct proto_report, samples),
    offsetof(struct proto_report, length),       offsetof(struct proto_report, batch_samples),
    offsetof(struct proto_report, step_samples), offsetof(struct proto_report, total_samples),
    offsetof(struct proto_report, total_bytes),  offsetof(struct proto_report, samples_per_ks),
    offsetof(struct proto_report, bytes_per_s),  offsetof(struct proto_report, order),
};

void proto_report_put(struct bytes_out *out, const struct proto_report *m)
{
    for (size_t k = 0; k < ARRAY_LEN(report_words); k++)
        bytes_put_u64(out, *(const uint64_t *)((const char *)m + report_words[k]));
    bytes_put_u32(out, m->flags);
    bytes_put_u32(out, m->verdict);
    bytes_put_u32(out, m->rank);
    bytes_put_u32(out, m->world_size);
    bytes_put_u32(out, m->waiting_permille);
    bytes_put_str(out, m->job);
    bytes_put_str(out, m->title);
}

int proto_report_get(const void *body, size_t len, struct proto_report *ret)
{
    struct bytes_in in = bytes_in_of(body, len);
    struct proto_report m = {0};
    for (size_t k = 0; k < ARRAY_LEN(report_words); k++)
        *(uint64_t *)((char *)&m + report_words[k]) = bytes_get_u64(&in);
    m.flags = bytes_get_u32(&in);
    m.verdict = bytes_get_u32(&in);
    m.rank = bytes_get_u32(&in);
    m.world_size = bytes_get_u32(&in);
    m.waiting_permille = bytes_get_u32(&in);
    get_fixed_str(&in, m.job, sizeof(m.job));
    get_fixed_str(&in, m.title, sizeof(m.title));
    if (m.rank >= m.world_size || m.waiting_permille > 1000)
        in.bad = true;
    int rc = bytes_in_done(&in);
    if (rc == 0)
        *ret = m;
    return rc;
}

void proto_range_write(uint8_t wire[PROTO_RANGE], const struct proto_range *m)
{
    put_le32(wire, m->gid);
    put_le32(wire + 4, m->bytes);
    put_le64(wire + 8, m->offset);
}

void proto_range_put(struct bytes_out *out, const struct proto_range *m)
{
    uint8_t *wire = bytes_room(out, PROTO_RANGE); /* one append a range: a READ has thousands */
    if (wire)
        proto_range_write(wire, m);
}

void proto_range_get(struct bytes_in *in, struct proto_range *ret)
{
    const uint8_t *wire = bytes_get(in, PROTO_RANGE);
    if (!wire) {
        *ret = (struct proto_range){0};
        return;
    }
    ret->gid = get_le32(wire);
    ret->bytes = get_le32(wire + 4);
    ret->offset = get_le64(wire + 8);
}

void proto_ready_record_put(struct bytes_out *out, const struct proto_ready_record *m)
{
    bytes_put_u64(out, m->sample);
    bytes_put_u32(out, m->field);
    bytes_put_u32(out, m->crc);
    bytes_put_u64(out, m->offset);
    bytes_put_u64(out, m->bytes);
    bytes_put_u32(out, (uint32_t)m->status);
}

/* --- proofs ---------------------------------------------------------------------------------------------------- */

/* `label` has eleven characters, so that no text is another one's. */
static int transcript_mac(const char *label, const void *token, size_t token_len, const void *hello_body,
                          size_t hello_len, const uint8_t nonce_s[32], uint8_t ret_mac[32])
{
    const size_t label_len = 11;
    if (token_len == 0 || token_len > INT32_MAX || hello_len > PROTO_BODY_MAX)
        return -EIO;
    AUTO_FREE uint8_t *text = malloc(label_len + hello_len + 32);
    if (!text)
        return -ENOMEM;
    memcpy(text, label, label_len);
    if (hello_len)
        memcpy(text + label_len, hello_body, hello_len);
    memcpy(text + label_len + hello_len, nonce_s, 32);
    unsigned len = 0;
    uint8_t mac[EVP_MAX_MD_SIZE];
    if (!HMAC(EVP_sha256(), token, (int)token_len, text, label_len + hello_len + 32, mac, &len) || len != 32)
        return -EIO;
    memcpy(ret_mac, mac, 32);
    return 0;
}

int proto_mac(const void *token, size_t token_len, bool server, const void *hello_body, size_t hello_len,
              const uint8_t nonce_s[32], uint8_t ret_mac[32])
{
    return transcript_mac(server ? "leat server" : "leat client", token, token_len, hello_body, hello_len,
                          nonce_s, ret_mac);
}

int proto_seal_key(const void *token, size_t token_len, const void *hello_body, size_t hello_len,
                   const uint8_t nonce_s[32], uint8_t ret_key[32])
{
    return transcript_mac("leat sealed", token, token_len, hello_body, hello_len, nonce_s, ret_key);
}

bool proto_mac_equal(const uint8_t a[32], const uint8_t b[32])
{
    uint8_t diff = 0;
    for (int i = 0; i < 32; i++)
        diff |= a[i] ^ b[i];
    return diff == 0;
}
