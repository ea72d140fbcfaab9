/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serve_rail.c: the daemon's rails: a thread and a listener each, and a new one of both when the device is another.
 *
 *   OPEN ──▶ (the device went, or is another one of the same name; its worker fails) ──▶ CLOSED ──▶ (pause) ──▶ OPEN
 *
 * Happy path: the rail's thread waits for its worker, and checks once a second whether the device is still
 * the one that was opened. When a NIC was reset, or taken away and given back, it is not. Then all of the
 * rail is closed, so that removal of the device can complete: connections (their puts fail, and go by another
 * rail), listener, its part of every registration, worker, context. It is opened again after 1, 2 ... 32 s:
 * regions are registered again, and only then RDMA_CONNECT returns its new address.
 *
 * Failure modes: a rail that cannot be opened, even at first, stays closed, costs nothing, and is tried
 * again. When UCX does not complete puts in flight, the rail stays as it is, with a line in the log: the
 * memory of these puts must not be freed.
 *
 * Invariants: all of this happens on the rail's thread, which other rails and data threads do not wait for.
 * Each opening has a number (incarnation), which its keys carry. A client is accepted when the last number it
 * was sent is this one, so no new connection uses old keys.
 */
#include "net/ucx/serve.h"

#include "base/clock.h"
#include "base/log.h"
#include "net/topo/topo.h"

#include <sys/epoll.h>

#define END_TURNS 5000 /* of a millisecond, for puts to come back */
#define LOOK_NS   NS_PER_S
#define PAUSE_NS  NS_PER_S /* before it is opened again; doubles */
#define PAUSE_MAX (32 * NS_PER_S)

static void progress(struct loop_source *source, uint32_t events)
{
    struct serve_rail *r = container_of(source, struct serve_rail, source);
    ucx_rail_progress(&r->rail);
    serve_look(r);
}

static int arm(struct loop_source *source)
{
    struct serve_rail *r = container_of(source, struct serve_rail, source);
    int rc = ucx_rail_arm(&r->rail);
    if (rc == 0 || rc == -EBUSY)
        return rc;
    atomic_store(&r->lost, true);
    return 0;
}

/* --- opening and closing -------------------------------------------------------------------------------------------------- */

static int listen_on(struct serve_rail *r, char ret_address[80], struct leat_error *err)
{
    const struct ucx_symbols *ucx = r->rail.ucx;
    ucp_listener_params_t params = {
        .field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
        .sockaddr = {(const struct sockaddr *)&r->rail.address, ucx_address_len(&r->rail.address)},
        .conn_handler = {serve_on_connection, r}};
    ucs_status_t status = ucx->ucp_listener_create(r->rail.worker, &params, &r->listener);
    ucp_listener_attr_t attr = {.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR};
    if (status != UCS_OK)
        r->listener = NULL;
    else
        status = ucx->ucp_listener_query(r->listener, &attr);
    if (status != UCS_OK)
        return error_set(
            err, LEAT_UNSUPPORTED,
            "rail %s cannot take connections: %s (is rdma_cm loaded, and /dev/infiniband/rdma_cm "
            "there for us?)",
            r->rail.name, ucx->ucs_status_string(status));
    ucx_address_print((const struct sockaddr *)&attr.sockaddr, ret_address);
    return 0;
}

/* "": it is closed. */
static void publish(struct serve_rail *r, const char *address)
{
    pthread_mutex_lock(&r->server->lock);
    memcpy(r->address, address, strlen(address) + 1);
    pthread_mutex_unlock(&r->server->lock);
    atomic_store(&r->up, address[0] != 0);
}

/* False: UCX kept something in flight, and the rail stays as it was. */
static bool rail_close(struct serve_rail *r)
{
    publish(r, "");
    loop_remove(&r->source);
    if (r->listener)
        r->rail.ucx->ucp_listener_destroy(TAKE_PTR(r->listener));
    list_for_each_safe (node, &r->eps)
        serve_ep_close(r, container_of(node, struct serve_ep, node));
    for (unsigned i = 0; (i == 0 || r->puts) && i < END_TURNS; i++) {
        ucx_rail_progress(&r->rail);
        serve_look(r);
        if (r->puts)
            usleep(1000);
    }
    if (r->puts)
        return false;
    /* The keys of clients belong to the worker. The end of a connection may be reported while the worker is
     * taken down, or never. */
    list_for_each (node, &r->ended)
        serve_ep_forget_keys(container_of(node, struct serve_ep, node));
    serve_memories_leave(r);
    ucx_rail_close(&r->rail);
    list_for_each_safe (node, &r->ended) {
        list_remove(node);
        free(container_of(node, struct serve_ep, node));
    }
    return true;
}

static int rail_open(struct serve_rail *r, struct leat_error *err)
{
    const struct net_rdma_config config = {.tls = r->server->tls};
    char address[80];
    int rc = ucx_rail_open(&config, &r->wanted, 0, &r->rail, err);
    if (rc)
        return rc;
    atomic_store(&r->lost, false);
    atomic_fetch_add(&r->incarnation, 1);
    rc = serve_memories_join(r, err);
    if (rc == 0)
        rc = listen_on(r, address, err);
    r->source = (struct loop_source){.fd = r->rail.fd, .events = EPOLLIN, .arm = arm, .progress = progress};
    if (rc == 0 && (rc = loop_add(r->loop, &r->source)) < 0)
        error_sys(err, rc, "rail %s: cannot watch it", r->wanted.name);
    if (rc == 0)
        publish(r, address);
    else
        rail_close(r);
    return rc;
}

/* --- looking --------------------------------------------------------------------------------------------------------------- */

static void pause_again(struct serve_rail *r)
{
    r->pause_ns = MIN(r->pause_ns ? r->pause_ns * 2 : PAUSE_NS, PAUSE_MAX);
    r->again_ns = clock_now_ns() + r->pause_ns;
}

static void look(struct loop_timer *timer)
{
    struct serve_rail *r = container_of(timer, struct serve_rail, timer);
    struct leat_error why = {0};
    if (r->rail.worker && (atomic_load(&r->lost) || ucx_rail_gone(&r->rail))) {
        log_warning("rail %s: its device is gone: closing it until the device is back", r->wanted.name);
        if (!rail_close(r)) {
            log_error("rail %s stays open: UCX does not complete its operations", r->wanted.name);
            return;
        }
        r->pause_ns = 0;
        pause_again(r);
    } else if (!r->rail.worker && clock_now_ns() >= r->again_ns) {
        if (rail_open(r, &why)) {
            log_debug("rail %s stays closed: %s", r->wanted.name, why.message);
            pause_again(r);
        } else {
            log_info("rail %s was opened again", r->wanted.name);
        }
    }
    loop_timer_set(r->loop, &r->timer, clock_now_ns() + LOOK_NS);
}

/* --- life -------------------------------------------------------------------------------------------------------------------- */

static void *thread_main(void *arg)
{
    struct serve_rail *r = arg;
    loop_timer_set(r->loop, &r->timer, clock_now_ns() + LOOK_NS);
    loop_run(r->loop);
    loop_timer_clear(&r->timer);
    if (r->rail.worker && !rail_close(r))
        log_error("rail %s stays open: UCX does not complete its operations", r->wanted.name);
    return NULL;
}

void serve_rail_stop(struct serve_rail *r)
{
    if (r->running) {
        loop_stop(r->loop);
        pthread_join(r->thread, NULL);
    } else if (r->rail.worker) {
        rail_close(r);
    }
    loop_free(r->loop);
    *r = (struct serve_rail){0};
}

int serve_rail_start(struct net_rdma_server *server, struct serve_rail *r, const struct ucx_wanted *wanted,
                     struct leat_error *err)
{
    *r = (struct serve_rail){.server = server,
                             .number = (unsigned)(r - server->rails),
                             .wanted = *wanted,
                             .timer = {.fire = look}};
    list_init(&r->eps);
    list_init(&r->ended);
    list_init(&r->waiting);
    int rc = loop_new(&r->loop);
    if (rc < 0)
        error_sys(err, rc, "rail %s: cannot start its loop", wanted->name);
    if (rc == 0 && rail_open(r, err) < 0)
        pause_again(r);
    if (rc == 0 && (rc = -pthread_create(&r->thread, NULL, thread_main, r)) < 0)
        error_sys(err, rc, "rail %s: cannot start its thread", wanted->name);
    if (rc < 0) {
        serve_rail_stop(r);
        return rc;
    }
    r->running = true;
    pthread_setname_np(r->thread, "leat-rdma");
    topo_pin_to_rail(r->thread, wanted->name);
    return 0;
}
