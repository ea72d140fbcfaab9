/* SPDX-License-Identifier: Apache-2.0 */
/*
 * push.c: sets that ranks fill, because they have no source that Leat can read.
 *
 *   leat_create (rank 0): fields and lengths ──▶ an index of kind PUSHED in a memfd ──▶ CREATE
 *   leat_push (any rank): data of samples [first, +n) ──▶ by node ──▶ WRITE on a data connection, payload behind it
 *
 * Failure modes: a name that exists is refused by the daemon; a connection that breaks in the middle leaves the samples
 * unreadable until they are pushed again (a sample turns resident only when the daemon has checksummed all of its
 * fields). Invariants: pushed bytes are sent from the caller's memory, never copied here; a WRITE never crosses nodes.
 */
#include "base/array.h"
#include "client/client.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/clock.h"
#include "wire/archive/npy.h"

/* --- create -------------------------------------------------------------------------------------------------------- */

static int item_bytes(const char *dtype, uint64_t *ret)
{
    char spelled[NPY_DTYPE_CAP];
    uint32_t n;
    int rc = npy_dtype(dtype, strlen(dtype), spelled, &n, NULL);
    if (rc < 0 || n == 0 || n > 4 * MIB)
        return LEAT_INVALID;
    *ret = n;
    return 0;
}

static int fixed_stride(const struct leat_create_field *f, uint64_t *ret, struct leat_error *err)
{
    uint64_t bytes;
    if (item_bytes(f->dtype, &bytes))
        return error_set(err, LEAT_INVALID, "field %s: dtype '%s' is not one of NumPy's plain ones", f->name,
                         f->dtype);
    if (f->ndim > INDEX_MAX_DIMS)
        return error_set(err, LEAT_INVALID, "field %s has %u dimensions, at most %u are possible", f->name,
                         f->ndim, INDEX_MAX_DIMS);
    for (unsigned d = 0; d < f->ndim; d++)
        if (mul_overflows(bytes, f->shape[d], &bytes))
            return error_set(err, LEAT_INVALID, "field %s: its shape does not fit into 64 bits", f->name);
    if (!bytes)
        return error_set(err, LEAT_INVALID, "field %s: a value of 0 bytes", f->name);
    *ret = bytes;
    return 0;
}

static bool is_fixed(const struct leat_create_field *f)
{
    return f->dtype && *f->dtype;
}

static int add_fields(struct index_builder *b, const struct leat_create_field *fields, unsigned nfields,
                      uint64_t nsamples, int *numbers, struct leat_error *err)
{
    for (unsigned f = 0; f < nfields; f++) {
        uint64_t stride = 0, address = 0, total = 0;
        if (is_fixed(&fields[f])) {
            int rc = fixed_stride(&fields[f], &stride, err);
            if (rc)
                return rc;
            if (mul_overflows(stride, nsamples, &total))
                return error_set(err, LEAT_INVALID, "field %s: %llu samples of %llu bytes are too many",
                                 fields[f].name, (unsigned long long)nsamples, (unsigned long long)stride);
            address = index_builder_reserve(b, total, INDEX_FILE_ALIGN, 0);
        }
        numbers[f] =
            index_builder_field(b, fields[f].name, is_fixed(&fields[f]) ? fields[f].dtype : "",
                                is_fixed(&fields[f]) ? INDEX_FIELD_UNIFORM : INDEX_FIELD_TABLE,
                                is_fixed(&fields[f]) ? fields[f].ndim : 0, fields[f].shape, address, stride);
        if (numbers[f] < 0)
            return error_sys(err, numbers[f], "field %s", fields[f].name);
    }
    return 0;
}

static int add_samples(struct index_builder *b, const struct leat_create_options *o,
                       const struct leat_create_field *fields, const int *numbers, struct leat_error *err)
{
    for (uint64_t i = 0; i < o->nsamples; i++) {
        const char *key = o->keys ? o->keys[i] : NULL;
        if (o->keys && !key)
            return error_set(err, LEAT_INVALID, "key %llu is NULL", (unsigned long long)i);
        int rc = index_builder_sample(b, key, key ? strlen(key) : 0);
        for (unsigned f = 0; !rc && f < o->nfields; f++) {
            if (is_fixed(&fields[f]))
                continue;
            uint64_t bytes = fields[f].lengths[i];
            rc = index_builder_part(b, (unsigned)numbers[f], index_builder_reserve(b, bytes, 64, 0), bytes);
        }
        if (rc)
            return error_sys(err, rc, "cannot build the index of sample %llu", (unsigned long long)i);
    }
    return 0;
}

static int build_index(const struct leat_create_options *o, const struct leat_create_field *fields,
                       const char *name, int fd, struct leat_error *err)
{
    struct index_builder *b;
    int numbers[INDEX_MAX_FIELDS];
    bool tables = o->keys != NULL;
    for (unsigned f = 0; f < o->nfields; f++)
        tables = tables || !is_fixed(&fields[f]);
    int rc = index_builder_new(INDEX_KIND_PUSHED, name, &b);
    if (rc)
        return error_set(err, rc, "out of memory for an index");
    rc = add_fields(b, fields, o->nfields, o->nsamples, numbers, err);
    if (!rc && tables)
        rc = add_samples(b, o, fields, numbers, err);
    else if (!rc)
        index_builder_count(b, o->nsamples);
    if (!rc)
        rc = index_builder_finish(b, fd, err);
    index_builder_free(b);
    return rc;
}

/* Every array has as many entries as what is read of it. */
static int check_field(const struct leat_create_field *f, unsigned number, uint64_t nsamples,
                       struct leat_error *err)
{
    if (!f->name || !*f->name)
        return error_set(err, LEAT_INVALID, "field %u has no name", number);
    if (f->ndim && !f->shape)
        return error_set(err, LEAT_INVALID, "field %s: %u dimensions and no shape", f->name, f->ndim);
    if (is_fixed(f))
        return !f->lengths && !f->nlengths
                   ? 0
                   : error_set(err, LEAT_INVALID, "field %s is fixed by its dtype and shape: no lengths",
                               f->name);
    if (!f->lengths || f->nlengths != nsamples)
        return error_set(
            err, LEAT_INVALID,
            "field %s is of raw bytes: %llu lengths are needed, one for each sample; %llu were given",
            f->name, (unsigned long long)nsamples, (unsigned long long)(f->lengths ? f->nlengths : 0));
    return 0;
}

static int take_create(const struct leat_create_options *options, struct leat_create_options *o,
                       struct leat_create_field *fields, struct leat_error *err)
{
    int rc = options_take("leat_create_options", options, offsetof(struct leat_create_options, flags), o,
                          sizeof(*o), err);
    if (!rc)
        rc = options_flags("leat_create_options", o->flags, LEAT_OPEN_PUBLIC, err);
    if (rc)
        return rc;
    if (!o->fields || o->nfields == 0 || o->nfields > INDEX_MAX_FIELDS || o->nsamples == 0)
        return error_set(err, LEAT_INVALID,
                         "%u fields of %llu samples: 1 to %u fields and at least 1 sample are needed",
                         o->fields ? o->nfields : 0, (unsigned long long)o->nsamples, INDEX_MAX_FIELDS);
    if (o->keys ? o->nkeys != o->nsamples : o->nkeys)
        return error_set(err, LEAT_INVALID, "%llu keys for %llu samples", (unsigned long long)o->nkeys,
                         (unsigned long long)o->nsamples);
    rc = options_take_array("leat_create_field", o->fields, o->nfields,
                            offsetof(struct leat_create_field, dtype), fields, sizeof(*fields), err);
    for (unsigned f = 0; !rc && f < o->nfields; f++)
        rc = check_field(&fields[f], f, o->nsamples, err);
    return rc;
}

int leat_create(struct leat_client *client, const char *name, const struct leat_create_options *options,
                struct leat_error *err)
{
    struct leat_create_options o;
    struct leat_create_field fields[INDEX_MAX_FIELDS];
    if (!client || !name || !*name || !options)
        return error_set(err, LEAT_INVALID, "client, name and options are required");
    if (client_forked(client))
        return client_forked_error(err);
    int rc = take_create(options, &o, fields, err);
    if (rc)
        return rc;
    AUTO_CLOSE int fd = memfd_create("leat-index", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return error_sys(err, -errno, "cannot make a memfd");
    rc = build_index(&o, fields, name, fd, err);
    if (rc)
        return rc;
    /* The daemon takes only what cannot change any more under its feet. */
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW) < 0)
        return error_sys(err, -errno, "cannot seal the index");
    AUTO_BYTES struct bytes_out body = {0};
    struct net_reply reply;
    proto_create_put(&body, &(struct proto_create){.flags = o.flags, .name = (char *)(uintptr_t)name});
    const struct client_rpc_how how = {.deadline_ns = client_deadline(client, o.timeout_ns)};
    rc = client_rpc_call(client, PROTO_CREATE, &body, &fd, 1, &how, &reply, err);
    if (!rc)
        net_reply_fini(&reply);
    return rc;
}

/* --- push ------------------------------------------------------------------------------------------------------------- */

/* The ranges of one WRITE and where their bytes are. */
struct push {
    struct leat_ws *ws;
    struct proto_range *ranges;
    struct iovec *iov;
    uint32_t *node;
    uint32_t n, cap;
};

static int push_add(struct push *p, uint64_t address, uint64_t bytes, const uint8_t *at)
{
    const uint64_t region_bytes = p->ws->info.region_bytes;
    while (bytes) {
        uint64_t gid = address / region_bytes, offset = address % region_bytes;
        uint64_t whole = MIN(bytes, region_bytes - offset), piece = MIN(whole, 1 * GIB);
        if (gid >= p->ws->info.nregions)
            return LEAT_CORRUPT;
        /* What did not fail is kept longer than cap says, which does no harm. */
        uint32_t ranges = p->cap, iov = p->cap;
        if (array_reserve(&p->ranges, &ranges, p->n + 1) < 0 || array_reserve(&p->iov, &iov, p->n + 1) < 0 ||
            array_reserve(&p->node, &p->cap, p->n + 1) < 0)
            return -ENOMEM;
        p->ranges[p->n] =
            (struct proto_range){.gid = (uint32_t)gid, .bytes = (uint32_t)piece, .offset = offset};
        p->iov[p->n] = (struct iovec){(void *)(uintptr_t)at, piece};
        p->node[p->n++] = ws_region_node(p->ws, gid);
        address += piece;
        at += piece;
        bytes -= piece;
    }
    return 0;
}

/* data[f]: where the values of field f begin, which check_lengths has found long enough. */
static int collect(struct push *p, uint64_t first, unsigned n, const void *const *data,
                   struct leat_error *err)
{
    const struct index *index = &p->ws->index;
    for (unsigned f = 0; f < index->header->nfields; f++) {
        const uint8_t *at = data[f];
        for (uint64_t i = first; i < first + n; i++) {
            struct index_part part;
            if (!index_part(index, i, f, &part))
                continue;
            int rc = push_add(p, part.address, part.bytes, at);
            if (rc)
                return error_set(err, rc, "cannot lay out sample %llu", (unsigned long long)i);
            at += part.bytes;
        }
    }
    return 0;
}

static int broker(struct leat_ws *ws, uint32_t node, const struct client_rpc_how *how, int *ret_fd,
                  unsigned *ret_version, struct leat_error *err)
{
    AUTO_BYTES struct bytes_out body = {0};
    struct net_reply reply;
    proto_broker_put(&body, &(struct proto_broker){.ws = ws->info.ws, .node = ws->info.nodes[node].id});
    int rc = client_rpc_call(ws->client, PROTO_BROKER, &body, NULL, 0, how, &reply, err);
    return rc ? rc : ws_brokered(&reply, ret_fd, ret_version, err);
}

/* Until fd is ready; an error closes the connection. */
static int wait_ready(const struct leat_client *client, int fd, short events,
                      const struct client_rpc_how *how)
{
    for (uint64_t poll_ns = 0;;) {
        struct pollfd pfd = {.fd = fd, .events = events};
        if (poll(&pfd, 1, client_sleep_ms(client, how)) > 0)
            return 0;
        if (how->deadline_ns && clock_now_ns() >= how->deadline_ns)
            return LEAT_TIMED_OUT;
        if (client_cancelled(client, how, &poll_ns))
            return LEAT_CANCELED;
    }
}

static int send_bytes(const struct leat_client *client, int fd, const void *data, uint64_t bytes,
                      const struct client_rpc_how *how)
{
    while (bytes) {
        ssize_t sent = send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent > 0) {
            data = (const uint8_t *)data + sent;
            bytes -= (uint64_t)sent;
        } else if (errno == EAGAIN) {
            int rc = wait_ready(client, fd, POLLOUT, how);
            if (rc)
                return rc;
        } else if (errno != EINTR) {
            return LEAT_PEER_GONE;
        }
    }
    return 0;
}

/* The frame, its ranges, and their bytes straight from the caller's memory. */
static int send_write(int fd, unsigned version, const struct bytes_out *body, uint64_t payload_bytes,
                      const struct push *p, uint32_t node, const struct client_rpc_how *how)
{
    const struct leat_client *client = p->ws->client;
    uint8_t head[PROTO_FRAME];
    struct proto_frame frame = {.version = (uint8_t)version,
                                .kind = PROTO_REQUEST,
                                .type = PROTO_WRITE,
                                .id = 1,
                                .body_bytes = (uint32_t)body->len,
                                .payload_bytes = payload_bytes};
    if (body->failed)
        return -ENOMEM;
    proto_frame_put(head, &frame);
    int rc = send_bytes(client, fd, head, sizeof(head), how);
    if (!rc)
        rc = send_bytes(client, fd, body->data, body->len, how);
    for (uint32_t i = 0; !rc && i < p->n; i++)
        if (p->node[i] == node)
            rc = send_bytes(client, fd, p->iov[i].iov_base, p->iov[i].iov_len, how);
    return rc;
}

static int write_node(const struct push *p, uint32_t node, uint64_t first, unsigned n,
                      const struct client_rpc_how *how, struct leat_error *err)
{
    AUTO_BYTES struct bytes_out body = {0};
    uint32_t nranges = 0;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < p->n; i++)
        nranges += p->node[i] == node;
    if (!nranges)
        return 0;
    proto_write_put(&body, &(struct proto_write){.first = first, .count = n, .n = nranges});
    for (uint32_t i = 0; i < p->n; i++)
        if (p->node[i] == node) {
            proto_range_put(&body, &p->ranges[i]);
            bytes += p->ranges[i].bytes;
        }
    AUTO_CLOSE int fd = -1;
    struct net_reply reply;
    unsigned version;
    int rc = broker(p->ws, node, how, &fd, &version, err);
    if (rc)
        return rc;
    rc = send_write(fd, version, &body, bytes, p, node, how);
    if (!rc)
        rc = wait_ready(p->ws->client, fd, POLLIN, how);
    if (!rc)
        rc = net_frame_receive(fd, &reply, how->deadline_ns);
    if (rc)
        return error_sys(err, rc, "pushing samples %llu to %llu", (unsigned long long)first,
                         (unsigned long long)first + n - 1);
    rc = net_reply_status(&reply, err);
    net_reply_fini(&reply);
    return rc;
}

/* Bytes of one field of samples [first, +n), which lie one after another in the caller's memory. */
static uint64_t span_bytes(const struct index *index, unsigned field, uint64_t first, unsigned n)
{
    uint64_t bytes = 0;
    for (uint64_t i = first; i < first + n; i++) {
        struct index_part part;
        if (index_part(index, i, field, &part))
            bytes += part.bytes;
    }
    return bytes;
}

static int push_some(struct leat_ws *ws, uint64_t first, unsigned n, const void *const *data,
                     const struct client_rpc_how *how, struct leat_error *err)
{
    struct push p = {.ws = ws};
    int rc = collect(&p, first, n, data, err);
    for (uint32_t node = 0; !rc && node < ws->info.nnodes; node++)
        rc = write_node(&p, node, first, n, how, err);
    free(p.ranges);
    free(p.iov);
    free(p.node);
    return rc;
}

/* The caller's lengths against the index's, so that nothing is read past data and no byte goes into another sample. */
static int check_lengths(struct leat_ws *ws, unsigned field, const struct leat_push_field *f, uint64_t first,
                         unsigned n, struct leat_error *err)
{
    const struct index *index = &ws->index;
    const struct index_field *known = &index->fields[field];
    const char *name = index_string(index, known->name);
    if (known->kind == INDEX_FIELD_LABEL)
        return f->bytes ? error_set(err, LEAT_INVALID, "field %s: labels stand in the index", name) : 0;
    if (f->bytes && !f->data)
        return error_set(err, LEAT_INVALID, "field %s: data is NULL", name);
    if (known->stride ? f->lengths || f->nlengths : !f->lengths || f->nlengths != n)
        return error_set(err, LEAT_INVALID, "field %s is %s", name,
                         known->stride ? "fixed by its dtype and shape: no lengths"
                                       : "of raw bytes: as many lengths as samples are needed");
    for (unsigned i = 0; !known->stride && i < n; i++) {
        struct index_part part;
        uint64_t bytes = index_part(index, first + i, field, &part) ? part.bytes : 0;
        char what[256];
        if (f->lengths[i] != bytes)
            return error_set(err, LEAT_INVALID, "%s: %llu bytes, its length was given as %llu",
                             ws_describe(ws, first + i, field, what), (unsigned long long)f->lengths[i],
                             (unsigned long long)bytes);
    }
    uint64_t bytes = span_bytes(index, field, first, n);
    if (f->bytes == bytes)
        return 0;
    return error_set(err, LEAT_INVALID, "field %s: samples %llu to %llu take %llu bytes, %llu were given",
                     name, (unsigned long long)first, (unsigned long long)first + n - 1,
                     (unsigned long long)bytes, (unsigned long long)f->bytes);
}

static int take_push(struct leat_ws *ws, uint64_t first, unsigned n, const struct leat_push_field *given,
                     unsigned nfields, const void **ret_at, struct leat_error *err)
{
    const struct index_header *h = ws->index.header;
    struct leat_push_field fields[INDEX_MAX_FIELDS];
    if (!(ws->info.flags & PROTO_WS_PUSHED))
        return error_set(err, LEAT_INVALID, "%s has a source of its own and cannot be pushed to", ws->uri);
    if (nfields != h->nfields)
        return error_set(err, LEAT_INVALID,
                         "%u fields pushed of %u: all fields of a sample are pushed together", nfields,
                         h->nfields);
    if (first > h->nsamples || n > h->nsamples - first)
        return error_set(err, LEAT_INVALID, "samples %llu to %llu of a set of %llu",
                         (unsigned long long)first, (unsigned long long)first + n,
                         (unsigned long long)h->nsamples);
    int rc = options_take_array("leat_push_field", given, nfields, offsetof(struct leat_push_field, lengths),
                                fields, sizeof(*fields), err);
    for (unsigned f = 0; !rc && f < nfields; f++) {
        rc = check_lengths(ws, f, &fields[f], first, n, err);
        ret_at[f] = fields[f].data;
    }
    return rc;
}

int leat_push(struct leat_ws *ws, uint64_t first, unsigned n, const struct leat_push_field *fields,
              unsigned nfields, uint64_t timeout_ns, struct leat_error *err)
{
    const void *at[INDEX_MAX_FIELDS];
    if (!ws || !fields)
        return error_set(err, LEAT_INVALID, "%s is NULL", ws ? "fields" : "ws");
    int rc = ws_check(ws, err);
    if (!rc)
        rc = take_push(ws, first, n, fields, nfields, at, err);
    if (rc)
        return rc;
    const struct index_header *h = ws->index.header;
    const struct client_rpc_how how = {.deadline_ns = client_deadline(ws->client, timeout_ns)};
    /* A WRITE names at most PROTO_READS_MAX ranges; a sample has one a field, and one more a region it reaches into. */
    uint64_t pieces = h->nfields * (2 + h->max_sample_bytes / ws->info.region_bytes);
    unsigned most = (unsigned)MAX((uint64_t)PROTO_READS_MAX / pieces, 1ull);
    while (n && !rc) {
        unsigned now = MIN(n, most);
        rc = push_some(ws, first, now, at, &how, err);
        for (unsigned f = 0; !rc && f < h->nfields; f++)
            if (at[f]) /* all of its values may be of 0 bytes */
                at[f] = (const uint8_t *)at[f] + span_bytes(&ws->index, f, first, now);
        first += now;
        n -= now;
    }
    return rc;
}
