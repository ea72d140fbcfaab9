/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serve_memory.c: the daemon's registrations: regions, known to every rail that is open.
 *
 * Happy path: the first request for a region's keys, or for a put out of it, registers it with every rail;
 * others wait for that one region. A rail that closes takes its part of every registration down. One that was
 * opened again adds its part again on its own thread, before its address is published (serve_rail.c).
 *
 * Failure modes: a region that cannot be registered is the requesting client's error, with the limit that it
 * met. If the device is gone, the rail is marked instead, and the region does without it.
 *
 * Invariants, all under slot_lock, which is held for moments only:
 * 1. A thread that registers a region, or takes its registration down, has marked its slot `busy` and holds
 *    no lock in that time.
 * 2. A thread that calls UCX with the context of another thread's rail is one of the rail's `mappers`: a
 *    context is closed when there are none and `maps` is false.
 * 3. A registration with `users` stays; one that is `making` is its maker's, and a rail that was opened waits for it.
 */
#include "net/ucx/serve.h"

static pthread_mutex_t slot_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t slot_changed = PTHREAD_COND_INITIALIZER;

/* --- one part of one registration --------------------------------------------------------------------------------------- */

/* With no lock; the caller keeps the context there. */
static int part_join(struct net_rdma_memory *m, struct serve_rail *r, struct leat_error *err)
{
    const struct ucx_symbols *ucx = r->rail.ucx;
    struct part part = {.incarnation = atomic_load(&r->incarnation)};
    int rc = ucx_rail_map(&r->rail, m->addr, m->bytes, true, -1, &part.memh, err);
    if (rc)
        return rc;
    ucs_status_t status = ucx->ucp_rkey_pack(r->rail.context, part.memh, &part.key, &part.key_bytes);
    if (status != UCS_OK) {
        ucx->ucp_mem_unmap(r->rail.context, part.memh);
        return error_set(err, ucx_errno(status), "rail %s gives no key: %s", r->rail.name,
                         ucx->ucs_status_string(status));
    }
    pthread_mutex_lock(&slot_lock);
    m->parts[r->number] = part;
    pthread_mutex_unlock(&slot_lock);
    return 0;
}

static void part_free(const struct ucx_rail *rail, struct part *part)
{
    if (part->key)
        rail->ucx->ucp_rkey_buffer_release(part->key);
    if (part->memh)
        rail->ucx->ucp_mem_unmap(rail->context, part->memh);
    *part = (struct part){0};
}

static struct part part_take(struct net_rdma_memory *m, unsigned i)
{
    struct part part = m->parts[i];
    m->parts[i] = (struct part){0};
    return part;
}

/* --- a rail closes, or was opened: on its thread ------------------------------------------------------------------------- */

void serve_memories_leave(struct serve_rail *r)
{
    struct net_rdma_server *server = r->server;
    pthread_mutex_lock(&slot_lock);
    r->maps = false;
    for (;;) {
        struct net_rdma_memory *found = NULL;
        list_for_each (node, &server->memories) {
            struct net_rdma_memory *m = container_of(node, struct net_rdma_memory, node);
            if (m->parts[r->number].memh)
                found = m;
        }
        if (!found && r->mappers == 0)
            break;
        if (!found) {
            pthread_cond_wait(&slot_changed, &slot_lock);
            continue;
        }
        struct part part = part_take(found, r->number);
        found->users++; /* its pages stay until this rail reaches them no more */
        pthread_mutex_unlock(&slot_lock);
        part_free(&r->rail, &part);
        pthread_mutex_lock(&slot_lock);
        found->users--;
        pthread_cond_broadcast(&slot_changed);
    }
    pthread_mutex_unlock(&slot_lock);
}

int serve_memories_join(struct serve_rail *r, struct leat_error *err)
{
    struct net_rdma_server *server = r->server;
    int rc = 0;
    pthread_mutex_lock(&slot_lock);
    r->maps = true; /* what is made from now on has it */
    for (;;) {
        struct net_rdma_memory *without = NULL;
        bool making = false;
        list_for_each (node, &server->memories) {
            struct net_rdma_memory *m = container_of(node, struct net_rdma_memory, node);
            making = making || m->making;
            if (!m->making && !m->parts[r->number].memh)
                without = m;
        }
        if (!without && !making)
            break;
        if (!without) {
            pthread_cond_wait(&slot_changed, &slot_lock);
            continue;
        }
        without->users++;
        pthread_mutex_unlock(&slot_lock);
        rc = part_join(without, r, err);
        pthread_mutex_lock(&slot_lock);
        without->users--;
        pthread_cond_broadcast(&slot_changed);
        if (rc)
            break;
    }
    pthread_mutex_unlock(&slot_lock);
    return rc;
}

/* --- registrations: any thread ---------------------------------------------------------------------------------------------- */

/* The caller has the only reference. */
static void memory_free(struct net_rdma_memory *m)
{
    if (!m)
        return;
    struct net_rdma_server *server = m->server;
    struct part parts[NET_RDMA_RAILS_MAX];
    pthread_mutex_lock(&slot_lock);
    while (m->users)
        pthread_cond_wait(&slot_changed, &slot_lock);
    list_remove(&m->node);
    for (unsigned i = 0; i < server->n; i++) {
        parts[i] = part_take(m, i);
        server->rails[i].mappers += parts[i].memh != NULL;
    }
    pthread_mutex_unlock(&slot_lock);
    for (unsigned i = 0; i < server->n; i++) {
        if (!parts[i].memh)
            continue;
        part_free(&server->rails[i].rail, &parts[i]);
        pthread_mutex_lock(&slot_lock);
        server->rails[i].mappers--;
        pthread_mutex_unlock(&slot_lock);
    }
    pthread_mutex_lock(&slot_lock);
    pthread_cond_broadcast(&slot_changed);
    pthread_mutex_unlock(&slot_lock);
    atomic_fetch_sub(&server->registered_bytes, m->bytes);
    atomic_fetch_sub(&server->registrations, 1);
    free(m);
}

/* With one rail, if that is open. */
static int memory_join(struct net_rdma_memory *m, struct serve_rail *r, struct leat_error *err)
{
    pthread_mutex_lock(&slot_lock);
    const bool maps = r->maps;
    r->mappers += maps;
    pthread_mutex_unlock(&slot_lock);
    if (!maps)
        return 0;
    int rc = part_join(m, r, err);
    const bool gone = rc && ucx_rail_gone(&r->rail);
    pthread_mutex_lock(&slot_lock);
    r->mappers--;
    pthread_cond_broadcast(&slot_changed);
    pthread_mutex_unlock(&slot_lock);
    if (gone)
        atomic_store(&r->lost, true);
    return gone ? 0 : rc;
}

static int memory_new(struct net_rdma_server *server, void *addr, uint64_t bytes,
                      struct net_rdma_memory **ret_memory, struct leat_error *err)
{
    struct net_rdma_memory *m = calloc(1, sizeof(*m));
    if (!m)
        return error_set(err, -ENOMEM, "out of memory for a registration");
    *m = (struct net_rdma_memory){.server = server, .addr = addr, .bytes = bytes, .making = true};
    atomic_fetch_add(&server->registrations, 1);
    atomic_fetch_add(&server->registered_bytes, bytes);
    pthread_mutex_lock(&slot_lock);
    list_push_back(&server->memories, &m->node);
    pthread_mutex_unlock(&slot_lock);
    int rc = 0;
    for (unsigned i = 0; i < server->n && rc == 0; i++)
        rc = memory_join(m, &server->rails[i], err);
    if (rc) {
        memory_free(m);
        return rc;
    }
    pthread_mutex_lock(&slot_lock);
    m->making = false;
    pthread_cond_broadcast(&slot_changed);
    pthread_mutex_unlock(&slot_lock);
    *ret_memory = m;
    return 0;
}

/* With slot_lock held, which is released while the region is registered. 0: slot->memory is there as long as
 * the lock is held. */
static int slot_memory(struct net_rdma_server *server, struct net_rdma_slot *slot, void *addr, uint64_t bytes,
                       struct leat_error *err)
{
    while (slot->busy)
        pthread_cond_wait(&slot_changed, &slot_lock);
    if (slot->closed)
        return error_set(err, LEAT_STALE, "the region was given back");
    if (slot->memory)
        return 0;
    slot->busy = true;
    pthread_mutex_unlock(&slot_lock);
    struct net_rdma_memory *memory = NULL;
    int rc = memory_new(server, addr, bytes, &memory, err);
    pthread_mutex_lock(&slot_lock);
    slot->busy = false;
    pthread_cond_broadcast(&slot_changed);
    slot->memory = memory;
    if (rc == 0)
        atomic_store(&slot->known, true);
    if (rc == 0 && slot->closed) /* the closing thread waits for us, and takes the registration down */
        rc = error_set(err, LEAT_STALE, "the region was given back");
    return rc;
}

int net_rdma_put_keys(struct net_rdma_server *server, struct net_rdma_slot *slot, void *addr, uint64_t bytes,
                      struct bytes_out *reply, struct leat_error *err)
{
    atomic_fetch_add(&server->key_requests, 1);
    pthread_mutex_lock(&slot_lock);
    int rc = slot_memory(server, slot, addr, bytes, err);
    if (rc == 0) {
        const struct net_rdma_memory *m = slot->memory;
        bytes_put_u64(reply, (uintptr_t)addr);
        bytes_put_u64(reply, bytes);
        bytes_put_u32(reply, server->n);
        for (unsigned i = 0; i < server->n; i++) { /* of a rail that is closed: no bytes */
            bytes_put_u32(reply, m->parts[i].incarnation);
            bytes_put_u32(reply, (uint32_t)m->parts[i].key_bytes);
            bytes_put(reply, m->parts[i].key, m->parts[i].key_bytes);
        }
    }
    pthread_mutex_unlock(&slot_lock);
    return rc;
}

int serve_use(struct net_rdma_server *server, struct net_rdma_slot *slot, void *addr, uint64_t bytes,
              struct net_rdma_memory **ret_memory, struct leat_error *err)
{
    pthread_mutex_lock(&slot_lock);
    int rc = slot_memory(server, slot, addr, bytes, err);
    if (rc == 0) {
        slot->memory->users++;
        *ret_memory = slot->memory;
    }
    pthread_mutex_unlock(&slot_lock);
    return rc;
}

void serve_unuse(struct net_rdma_memory *memory)
{
    pthread_mutex_lock(&slot_lock);
    if (--memory->users == 0)
        pthread_cond_broadcast(&slot_changed);
    pthread_mutex_unlock(&slot_lock);
}

void net_rdma_slot_close(struct net_rdma_slot *slot)
{
    pthread_mutex_lock(&slot_lock);
    slot->closed = true;
    while (slot->busy || (slot->memory && slot->memory->users))
        pthread_cond_wait(&slot_changed, &slot_lock);
    struct net_rdma_memory *memory = TAKE_PTR(slot->memory);
    slot->busy = true;
    pthread_mutex_unlock(&slot_lock);
    memory_free(memory);
    pthread_mutex_lock(&slot_lock);
    slot->busy = false;
    pthread_cond_broadcast(&slot_changed);
    pthread_mutex_unlock(&slot_lock);
}
