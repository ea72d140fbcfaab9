/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nodes_access.c: what a client brought to read a source elsewhere goes to the nodes that read it for that client's set, sealed
 * (rpc/seal.h; docs/decisions/0083).
 *
 *   DESCRIBE ── the opener's, not tried yet ─▶ coordinator, which opens the source with it
 *   ACCESS   ── before INSTALL ─▶ host; to all nodes once an opening went well, when a link comes up, and when keys were found anew
 *
 * Failure modes: a node that cannot be told (no memory, the link is down) reads with what it has, or says that it has nothing, and is told
 * when the link is back. What does not open ends the connection. Invariants: only what has opened the source is told to all; no plain
 * text of it outlives the call.
 */
#include "pool/nodes/nodes_internal.h"

#include "base/clock.h"
#include "base/log.h"
#include "leat/leat.h"
#include "pool/source/access.h"
#include "pool/pool_internal.h"

int nodes_seal_access(struct cluster *c, unsigned n, struct access *access, const void *aad, size_t aad_len,
                      struct bytes_out *out)
{
    struct bytes_out text = {0};
    int rc = access_put(access, &text);
    if (rc == 0)
        rc = peer_seal(c->links[n].peer, aad, aad_len, text.data, text.len, out);
    if (text.data)
        explicit_bzero(text.data, text.len);
    bytes_out_fini(&text);
    return rc;
}

int nodes_unseal_access(struct cluster *c, struct rpc_session *session, const void *aad, size_t aad_len,
                        const void *sealed, size_t len, struct access **ret_access)
{
    uint8_t *text;
    size_t n;
    int rc = net_unseal(&session->seal, &session->auth, aad, aad_len, sealed, len, &text, &n);
    if (rc < 0)
        return rc;
    struct proto_access m;
    rc = proto_access_get(text, n, &m);
    explicit_bzero(text, n);
    free(text);
    return rc < 0 ? rc : access_new(&m, !c->pool->config.opener.system, ret_access);
}

void nodes_send_access(struct cluster *c, unsigned n, uint32_t uid, const char *spec, struct access *access)
{
    if (!cluster_is_up(c, n) || !access_signed(access))
        return;
    struct bytes_out body = {0};
    proto_access_of_put(&body, &(struct proto_access_of){.uid = uid, .source = spec});
    int rc = body.failed ? -ENOMEM : 0;
    if (rc == 0) {
        /* The head is what is sealed to: for another source or user it is worth nothing. A copy, as the body grows behind it. */
        AUTO_FREE uint8_t *head = malloc(body.len);
        size_t len = body.len;
        if (head)
            memcpy(head, body.data, len);
        rc = head ? nodes_seal_access(c, n, access, head, len, &body) : -ENOMEM;
    }
    if (rc == 0 && !body.failed)
        peer_event(c->links[n].peer, PROTO_ACCESS, &body);
    else
        log_warning("node %s is not told how to read %s: %s", c->config.nodes[n], spec,
                    leat_strerror(rc ? rc : -ENOMEM));
    bytes_out_fini(&body);
}

void nodes_share_access(struct cluster *c, unsigned n, uint32_t uid, const char *spec, struct access *access)
{
    for (unsigned k = 0; k < c->config.nnodes; k++) {
        if (n == k || n == POOL_ALL_NODES)
            nodes_send_access(c, k, uid, spec, access);
    }
}

int nodes_on_access(struct cluster *c, struct rpc_session *session, struct conn_message *m)
{
    struct bytes_in in = bytes_in_of(m->body, m->frame.body_bytes);
    AUTO_MESSAGE(access_of) of;
    if (proto_access_of_next(&in, &of) < 0)
        return LEAT_CORRUPT;
    struct access *access = NULL;
    int rc = nodes_unseal_access(c, session, m->body, in.pos, m->body + in.pos, bytes_left(&in), &access);
    if (rc == 0)
        access_cache_received(c->pool, of.uid, of.source, access);
    access_unref(access);
    return rc;
}
