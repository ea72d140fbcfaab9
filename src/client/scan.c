/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scan.c: a remote prefix, once, in its order. The daemon lists, and reads into a window that we map; SCAN_NEXT returns the objects there.
 *
 *   SCAN ──▶ window ──▶ SCAN_NEXT {from, released} ──▶ objects ──▶ handed out one by one ──▶ released ──▶ the next SCAN_NEXT reports it
 *
 * Failure modes: a call that is cancelled, or whose answer is late, loses nothing: the next one asks from the same number. The daemon dies:
 * LEAT_PEER_GONE; the window stays mapped. Invariants: below `released` everything was released; [released, next) was handed out, PROTO_SCAN_HELD at
 * most; an offset from the daemon is checked against the window. An object that was handed out keeps its names until its release: another
 * thread's leat_scan_next, which may request more, does not touch them.
 */
#include "client/client.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include "wire/address.h"

struct held {
    char *key, *etag; /* NULL: it was released, or not handed out */
};

struct leat_scan {
    struct leat_client *client; /* a reference */
    uint64_t id;
    const uint8_t *window;
    uint64_t window_bytes;
    struct tlock turn; /* of leat_scan_next, for what follows */
    struct proto_scanned told;
    uint32_t at; /* of them was handed out */
    pthread_mutex_t lock;
    uint64_t released, next;
    struct held
        held[PROTO_SCAN_HELD]; /* by number. [released, next) without names: released before those below it */
};

/* --- beginning --------------------------------------------------------------------------------------------------- */

static int window_map(struct leat_scan *s, struct net_reply *reply, struct leat_error *err)
{
    struct proto_scan_reply m;
    struct stat st;
    int rc = proto_scan_reply_get(reply->body.data, reply->body.len, &m);
    uint64_t bytes = m.window_bytes;
    s->id = m.id;
    if (rc < 0 || reply->nfds != 1 || fstat(reply->fds[0], &st) < 0 || bytes == 0 ||
        (uint64_t)st.st_size < bytes)
        return error_set(err, LEAT_CORRUPT, "the daemon's answer to a scan cannot be read");
    void *at = mmap(NULL, bytes, PROT_READ, MAP_SHARED, reply->fds[0], 0);
    if (at == MAP_FAILED)
        return error_sys(err, -errno, "cannot map a window of %llu bytes", (unsigned long long)bytes);
    s->window = at;
    s->window_bytes = bytes;
    return 0;
}

static int scan_take_options(const struct leat_client *client, const char *uri,
                             const struct leat_scan_options *options, struct leat_scan_options *ret,
                             struct leat_error *err)
{
    if (!client || !uri || !*uri)
        return error_set(err, LEAT_INVALID,
                         !client ? "client is NULL" : "uri is empty: give s3://bucket/prefix");
    if (client_forked(client))
        return client_forked_error(err);
    int rc = options_take("leat_scan_options", options, offsetof(struct leat_scan_options, after), ret,
                          sizeof(*ret), err);
    if (!rc && address_of(uri) == ADDRESS_SET)
        rc = error_set(err, LEAT_UNSUPPORTED, "%.200s is in the pool already: open it, and read it in order",
                       uri);
    if (!rc && (strlen(uri) > PROTO_STR_MAX || (ret->after && strlen(ret->after) > PROTO_STR_MAX)))
        rc = error_set(err, LEAT_INVALID, "uri or key of more than %d bytes", PROTO_STR_MAX);
    return rc;
}

int leat_scan(struct leat_client *client, const char *uri, const struct leat_scan_options *options,
              struct leat_scan **ret_scan, struct leat_error *err)
{
    struct leat_scan_options o;
    int rc = scan_take_options(client, uri, options, &o, err);
    if (rc)
        return rc;
    if (!ret_scan)
        return error_set(err, LEAT_INVALID, "ret_scan is NULL");
    struct proto_open open = {.pool_bytes = o.window_bytes, .name = (char *)(uintptr_t) ""};
    const struct client_rpc_how how = {.deadline_ns = client_deadline(client, o.timeout_ns)};
    struct net_reply reply;
    struct leat_scan *s = calloc(1, sizeof(*s));
    if (!s)
        return error_set(err, -ENOMEM, "out of memory");
    s->client = client_ref(client);
    tlock_init(&s->turn);
    pthread_mutex_init(&s->lock, NULL);
    rc = ws_ask(client, PROTO_SCAN, o.after ? o.after : "", uri, o.s3, &open, &how, &reply, err);
    if (!rc) {
        rc = window_map(s, &reply, err);
        net_reply_fini(&reply);
    }
    if (rc) {
        leat_scan_close(s);
        return rc;
    }
    *ret_scan = s;
    return 0;
}

static void held_fini(struct held *h)
{
    free(TAKE_PTR(h->key));
    free(TAKE_PTR(h->etag));
}

void leat_scan_close(struct leat_scan *s)
{
    if (!s || client_forked(s->client))
        return;
    if (s->id)
        client_rpc_post_id(s->client, PROTO_SCAN_END, s->id);
    if (s->window)
        munmap((void *)(uintptr_t)s->window, s->window_bytes);
    proto_scanned_fini(&s->told);
    for (unsigned i = 0; i < PROTO_SCAN_HELD; i++)
        held_fini(&s->held[i]);
    tlock_fini(&s->turn);
    pthread_mutex_destroy(&s->lock);
    client_unref(s->client);
    free(s);
}

/* --- the next object --------------------------------------------------------------------------------------------- */

/* Requests more objects, or the end. The caller holds `turn`. */
static int ask(struct leat_scan *s, const struct client_rpc_how *how, struct leat_error *err)
{
    AUTO_BYTES struct bytes_out body = {0};
    struct net_reply reply;
    pthread_mutex_lock(&s->lock);
    const struct proto_scan_next m = {.id = s->id, .from = s->next, .released = s->released};
    pthread_mutex_unlock(&s->lock);
    proto_scan_next_put(&body, &m);
    int rc = client_rpc_call(s->client, PROTO_SCAN_NEXT, &body, NULL, 0, how, &reply, err);
    if (rc)
        return rc;
    struct proto_scanned told;
    rc = proto_scanned_get(reply.body.data, reply.body.len, &told);
    net_reply_fini(&reply);
    if (rc == -ENOMEM)
        return error_set(err, rc, "out of memory");
    bool bad = rc || (told.n == 0) != (told.flags & PROTO_SCANNED_END) ||
               m.from + told.n - m.released > PROTO_SCAN_HELD;
    for (uint32_t i = 0; !bad && i < told.n; i++)
        bad = told.objects[i].offset + told.objects[i].bytes > s->window_bytes;
    if (bad) {
        if (!rc)
            proto_scanned_fini(&told);
        return error_set(err, LEAT_CORRUPT, "the daemon's reply to a scan is malformed");
    }
    proto_scanned_fini(&s->told);
    s->told = told;
    s->at = 0;
    return 0;
}

int leat_scan_next(struct leat_scan *s, uint64_t timeout_ns, struct leat_scan_sample *ret_sample,
                   struct leat_error *err)
{
    struct leat_scan_sample out = {.etag = ""};
    if (!s || !ret_sample)
        return error_set(err, LEAT_INVALID, !s ? "scan is NULL" : "ret_sample is NULL");
    if (client_forked(s->client))
        return client_forked_error(err);
    const struct client_rpc_how how = {.deadline_ns = client_deadline(s->client, timeout_ns)};
    int rc = tlock_take(&s->turn, s->client, &how, "a scan", err);
    if (rc)
        return rc;
    if (s->at == s->told.n && !(s->told.flags & PROTO_SCANNED_END))
        rc = ask(s, &how, err);
    struct proto_scan_object *o = !rc && s->at < s->told.n ? &s->told.objects[s->at] : NULL;
    if (o)
        out = (struct leat_scan_sample){.number = s->next,
                                        .key = o->key,
                                        .etag = o->etag,
                                        .modified = o->modified,
                                        .data = s->window + o->offset,
                                        .bytes = o->bytes};
    if (!rc)
        rc = options_give("leat_scan_sample", ret_sample, offsetof(struct leat_scan_sample, number), &out,
                          sizeof(out), err);
    if (!rc && o) {
        s->at++;
        pthread_mutex_lock(&s->lock);
        s->held[s->next++ % PROTO_SCAN_HELD] =
            (struct held){.key = TAKE_PTR(o->key), .etag = TAKE_PTR(o->etag)};
        pthread_mutex_unlock(&s->lock);
    }
    tlock_give(&s->turn);
    return rc;
}

void leat_scan_release(struct leat_scan *s, uint64_t number)
{
    if (!s || client_forked(s->client))
        return;
    pthread_mutex_lock(&s->lock);
    if (number >= s->released && number < s->next)
        held_fini(&s->held[number % PROTO_SCAN_HELD]);
    while (s->released < s->next && !s->held[s->released % PROTO_SCAN_HELD].key)
        s->released++;
    pthread_mutex_unlock(&s->lock);
}
