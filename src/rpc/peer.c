/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/peer.h"

#include "base/clock.h"
#include "base/list.h"
#include "base/log.h"
#include "loop/loop.h"
#include "rpc/addresses.h"
#include "rpc/auth.h"
#include "rpc/dial.h"
#include "rpc/seal.h"
#include "rpc/nic.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#define PAYLOAD_MAX (64 * GIB) /* an index */

struct call {
    struct list node;
    struct peer *peer;
    uint64_t id;
    peer_reply_fn answer;
    void *user;
    /* a payload on its way */
    struct peer_reply reply;
    void *map;
    uint8_t *body;
};

struct peer {
    struct loop *loop;
    struct peer_config config;
    enum peer_state state;
    struct dial dial;
    struct resolve_list list; /* what the name of the address leads to that is dialled */
    char address[NET_ADDRESS_BYTES];
    char name[sizeof(((struct proto_welcome *)NULL)->node)]; /* the other side's name of itself */
    int begin_code; /* why this try ended before it began: the timer reports it */
    struct loop_source connecting;
    struct resolve *resolving; /* a name is being looked up */
    struct loop_source resolved;
    struct loop_timer timer; /* handshake deadline, or the pause before the next try */
    struct conn *conn;
    struct net_auth auth;
    struct net_seal seal;
    struct list calls;
    uint64_t next_id;
};

#define P(state) (1u << PEER_##state)
/* DOWN from UP, without a loss: the socket became the owner's. */
static const uint32_t peer_moves[PEER_STATES] = {
    [PEER_DOWN] = P(CONNECTING),    [PEER_CONNECTING] = P(DOWN) | P(HELLO), [PEER_HELLO] = P(DOWN) | P(PROOF),
    [PEER_PROOF] = P(DOWN) | P(UP), [PEER_UP] = P(DOWN) | P(IDENTIFIED),    [PEER_IDENTIFIED] = P(DOWN),
};
#undef P

static void peer_move(struct peer *p, enum peer_state to)
{
    static const char *const names[PEER_STATES] = {"DOWN",  "CONNECTING", "HELLO",
                                                   "PROOF", "UP",         "IDENTIFIED"};
    assert(to < PEER_STATES && (peer_moves[p->state] >> to & 1));
    log_debug("connection to %s: %s -> %s", p->address, names[p->state], names[to]);
    p->state = to;
}

/* Requests may be sent. */
static bool is_up(const struct peer *p)
{
    return p->state >= PEER_UP;
}

static void begin(struct peer *p);
static void connect_found(struct peer *p);
static void resolving_end(struct peer *p);

static void call_answer(struct call *c, struct peer_reply *reply)
{
    list_remove(&c->node);
    c->answer(c->user, reply);
    if (reply->payload_fd >= 0)
        close(reply->payload_fd);
    if (reply != &c->reply && c->reply.payload_fd >= 0)
        close(c->reply.payload_fd);
    if (c->map)
        munmap(c->map, c->reply.payload_bytes);
    free(c->body);
    free(c);
}

static void disconnect(struct peer *p)
{
    if (p->connecting.fd >= 0) {
        loop_remove(&p->connecting);
        close(p->connecting.fd);
        p->connecting.fd = -1;
    }
    loop_timer_clear(&p->timer);
    struct conn *conn = p->conn;
    p->conn = NULL;
    if (p->state != PEER_DOWN)
        peer_move(p, PEER_DOWN); /* before the callbacks of sent data: they send nothing more */
    conn_free(conn);
    net_auth_fini(&p->auth);
    net_seal_fini(&p->seal);
}

static const char *why_not(int rc)
{
    return rc == -EADDRNOTAVAIL ? "no interface of this node is in that address's subnet"
           : rc == -ENETDOWN    ? "this node's interface in that subnet is down"
                                : strerror(-rc);
}

static void answer_calls(struct peer *p, const char *message)
{
    struct list calls;
    list_init(&calls);
    while (!list_empty(&p->calls)) {
        struct list *node = p->calls.next;
        list_remove(node);
        list_push_back(&calls, node);
    }
    while (!list_empty(&calls)) {
        struct call *c = container_of(calls.next, struct call, node);
        call_answer(c, &(struct peer_reply){.status = LEAT_PEER_GONE, .message = message, .payload_fd = -1});
    }
}

static void go_down(struct peer *p, int status, const char *message)
{
    disconnect(p);
    if (p->dial.at)
        resolving_end(p); /* a lookup that hangs is waited for by the next try, if that is of the same name */
    dial_down(&p->dial);
    if (p->dial.stay)
        loop_timer_set(p->loop, &p->timer, clock_now_ns() + DIAL_PAUSE_NS);
    answer_calls(p, message);
    p->config.ops->down(p, status, message);
}

/* This address does not answer, or no more: the next one of its name, then of the node, is tried before the
 * node is reported as down. Only requests over the lost connection get an error. */
static void address_failed(struct peer *p, int status, const char *message)
{
    bool identified = p->state == PEER_IDENTIFIED;
    enum dial_action action = dial_failed(&p->dial, identified);
    if (action == DIAL_DOWN) {
        go_down(p, status, message);
        return;
    }
    if (identified)
        log_info("%s does not answer any more (%s): trying the node's next address", p->address, message);
    disconnect(p);
    resolving_end(p); /* that was of this address */
    if (action == DIAL_FOUND) {
        peer_move(p, PEER_CONNECTING);
        connect_found(p);
    } else {
        begin(p);
    }
    answer_calls(p, message);
}

static void on_timer(struct loop_timer *timer)
{
    struct peer *p = container_of(timer, struct peer, timer);
    if (p->state == PEER_DOWN)
        begin(p);
    else if (p->begin_code < 0)
        address_failed(p, LEAT_PEER_GONE, why_not(p->begin_code));
    else
        address_failed(p, LEAT_TIMED_OUT,
                       p->resolving ? "its name is not resolved in time" : "the node does not answer");
}

static void call_payload_done(void *user, int status)
{
    struct call *c = user;
    if (status < 0)
        return; /* the connection is going: go_down answers */
    /* No writable mapping is left, so that the receiver can seal it. */
    munmap(c->map, c->reply.payload_bytes);
    c->map = NULL;
    call_answer(c, &c->reply);
}

static int call_receive_payload(struct call *c, const struct conn_message *m)
{
    if (m->frame.payload_bytes > PAYLOAD_MAX)
        return LEAT_CORRUPT;
    c->body = malloc(m->frame.body_bytes ? m->frame.body_bytes : 1);
    int fd = memfd_create("leat-index", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    c->reply = (struct peer_reply){.body = c->body,
                                   .body_bytes = m->frame.body_bytes,
                                   .payload_fd = fd,
                                   .payload_bytes = m->frame.payload_bytes};
    if (!c->body || fd < 0 || fallocate(fd, 0, 0, (off_t)m->frame.payload_bytes) < 0)
        return -ENOMEM;
    memcpy(c->body, m->body, m->frame.body_bytes);
    c->map = mmap(NULL, m->frame.payload_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (c->map == MAP_FAILED) {
        c->map = NULL;
        return -ENOMEM;
    }
    conn_receive_payload(c->peer->conn, c->map, m->frame.payload_bytes, call_payload_done, c);
    return 0;
}

static int on_reply(struct peer *p, struct conn_message *m)
{
    list_for_each (node, &p->calls) {
        struct call *c = container_of(node, struct call, node);
        if (c->id != m->frame.id)
            continue;
        if (m->frame.payload_bytes)
            return call_receive_payload(c, m);
        AUTO_FREE char *text = m->frame.status < 0 ? proto_error_text(m->body, m->frame.body_bytes) : NULL;
        call_answer(c, &(struct peer_reply){.status = m->frame.status,
                                            .message = text ? text : "",
                                            .body = m->body,
                                            .body_bytes = m->frame.body_bytes,
                                            .payload_fd = -1});
        return 0;
    }
    return LEAT_CORRUPT;
}

static void wrong_version(struct peer *p)
{
    char why[160];
    snprintf(
        why, sizeof(why),
        "it speaks protocol version %u, this side %u to %u: install the same release of Leat on both nodes",
        p->auth.version, p->config.hello.version_min, p->config.hello.version_max);
    go_down(p, LEAT_UNSUPPORTED, why);
}

static int on_welcome(struct peer *p, struct conn_message *m)
{
    if (m->frame.status < 0) {
        AUTO_FREE char *text = proto_error_text(m->body, m->frame.body_bytes);
        go_down(p, m->frame.status, text ? text : "refused");
        return 0;
    }
    if (p->state == PEER_PROOF) {
        struct proto_welcome welcome;
        if (proto_welcome_get(m->body, m->frame.body_bytes, &welcome) < 0)
            return LEAT_CORRUPT;
        if (net_auth_client_confirm(&p->auth, &welcome) < 0) {
            go_down(p, LEAT_DENIED, "it does not know our token");
            return 0;
        }
        snprintf(p->name, sizeof(p->name), "%s", welcome.node);
        peer_move(p, PEER_UP);
        loop_timer_clear(&p->timer);
        p->config.ops->up(p);
        return 0;
    }
    struct proto_proof proof;
    int rc = net_auth_client_welcome(&p->auth, m->body, m->frame.body_bytes, proof.mac);
    if (rc == LEAT_UNSUPPORTED) {
        wrong_version(p);
        return 0;
    }
    if (rc < 0) {
        go_down(p, LEAT_DENIED, "it does not keep to the handshake");
        return 0;
    }
    conn_set_version(p->conn, p->auth.version);
    AUTO_BYTES struct bytes_out body = {0};
    proto_proof_put(&body, &proof);
    peer_move(p, PEER_PROOF);
    conn_send(p->conn, PROTO_REQUEST, PROTO_PROOF, 0, 0, &body, NULL, 0);
    return 0;
}

static int on_message(struct conn *conn, struct conn_message *m)
{
    struct peer *p = conn_user(conn);
    if (m->frame.kind != PROTO_REPLY)
        return LEAT_CORRUPT;
    return is_up(p) ? on_reply(p, m) : on_welcome(p, m);
}

static void on_closed(struct conn *conn, int status)
{
    struct peer *p = conn_user(conn);
    address_failed(p, status < 0 ? status : LEAT_PEER_GONE, "the node closed the connection");
}

static const struct conn_ops ops = {.message = on_message, .closed = on_closed};

void peer_socket_watch(int fd)
{
    /* A host that vanishes silently is noticed within about ten seconds. */
    int on = 1, idle = 3, interval = 2, count = 3;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
    unsigned unacknowledged_ms = 15000;
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacknowledged_ms, sizeof(unacknowledged_ms));
}

static void on_connected(struct loop_source *source, uint32_t events)
{
    struct peer *p = container_of(source, struct peer, connecting);
    int error = 0;
    socklen_t len = sizeof(error);
    getsockopt(source->fd, SOL_SOCKET, SO_ERROR, &error, &len);
    if (error) {
        address_failed(p, LEAT_PEER_GONE, strerror(error));
        return;
    }
    int fd = source->fd, on = 1;
    loop_remove(source);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    peer_socket_watch(fd);
    struct conn *conn;
    int rc = conn_new(p->loop, fd, &ops, p, NULL, &conn);
    p->connecting.fd = -1;
    if (rc < 0) {
        close(fd);
        go_down(p, rc, "out of memory");
        return;
    }
    p->conn = conn;
    peer_move(p, PEER_HELLO);
    net_auth_init(&p->auth, p->config.token, p->config.token_len);
    AUTO_BYTES struct bytes_out body = {0};
    rc = net_auth_client_start(&p->auth, &p->config.hello, &body);
    if (rc == 0)
        conn_send(p->conn, PROTO_REQUEST, PROTO_HELLO, 0, 0, &body, NULL, 0);
    if (rc < 0)
        go_down(p, rc, "cannot begin the handshake");
}

/* Is another rail of that node in a subnet of ours? Only as far as no name has to be looked up. */
static bool other_rail(const struct peer *p)
{
    const char *all = p->config.address;
    char one[NET_ADDRESS_BYTES];
    for (unsigned k = 0; k < net_addresses_count(all); k++) {
        struct resolve_address far;
        struct nic nic;
        net_addresses_at(all, k, one);
        if ((int)k != p->config.rail && resolve_numeric(one, &far) == 0 &&
            nic_find(&far.at, k, p->config.listen, &nic) == 0)
            return true;
    }
    return false;
}

/* One rail is dialled from the interface that shares its subnet, or not at all: over another one it would not
 * be a separate rail. Without a shared subnet, routing finds the first address, and it is the only rail. */
static int bind_rail(const struct peer *p, int fd, const struct sockaddr_storage *far)
{
    struct nic nic;
    int rc = nic_find(far, (unsigned)p->config.rail, p->config.listen, &nic);
    if (rc == LEAT_NOT_FOUND)
        return p->config.rail == 0 && !other_rail(p) ? 0 : -EADDRNOTAVAIL;
    if (rc < 0)
        return rc;
    return nic.running ? nic_bind(fd, &nic) : -ENETDOWN;
}

static int try_connect(struct peer *p, const struct resolve_address *to)
{
    AUTO_CLOSE int fd = socket(to->at.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int bound = fd < 0 || p->config.rail < 0 ? 0 : bind_rail(p, fd, &to->at);
    if (bound < 0)
        return bound;
    if (fd < 0 || (connect(fd, (const struct sockaddr *)&to->at, to->len) < 0 && errno != EINPROGRESS))
        return -errno;
    p->connecting = (struct loop_source){.fd = fd, .events = EPOLLOUT, .progress = on_connected};
    int rc = loop_add(p->loop, &p->connecting);
    if (rc == 0)
        fd = -1;
    else
        p->connecting.fd = -1;
    return rc;
}

static void resolving_end(struct peer *p)
{
    if (p->resolving)
        loop_remove(&p->resolved);
    resolve_free(TAKE_PTR(p->resolving));
}

/* A failure is reported later, like every other answer. */
static void wait_for_it(struct peer *p, int rc)
{
    p->begin_code = rc;
    loop_timer_set(p->loop, &p->timer, clock_now_ns() + (rc < 0 ? NS_PER_MS : dial_patience_ns(&p->dial)));
}

static void connect_found(struct peer *p)
{
    wait_for_it(p, try_connect(p, &p->list.found[p->dial.found_at]));
}

/* The address that its name last led to comes first. */
static void connect_first(struct peer *p)
{
    const struct resolve_address *last = p->config.answered ? &p->config.answered[peer_address(p)] : NULL;
    unsigned first = 0;
    for (unsigned k = 0; last && k < p->list.n; k++) {
        const struct resolve_address *a = &p->list.found[k];
        if (a->len == last->len && memcmp(&a->at, &last->at, a->len) == 0)
            first = k;
    }
    dial_found(&p->dial, p->list.n, first);
    connect_found(p);
}

static void address_answered(struct peer *p)
{
    if (p->config.answered)
        p->config.answered[peer_address(p)] = p->list.found[p->dial.found_at];
}

static void on_resolved(struct loop_source *source, uint32_t events)
{
    struct peer *p = container_of(source, struct peer, resolved);
    struct resolve_list list;
    int rc = resolve_result(p->resolving, &list);
    if (rc == -EAGAIN)
        return;
    resolving_end(p);
    if (p->state != PEER_CONNECTING)
        return; /* the answer came too late: the next try asks again, and likely gets it at once */
    if (rc < 0) {
        address_failed(p, LEAT_PEER_GONE, "its name is not known");
        return;
    }
    p->list = list;
    connect_first(p);
}

/* One lookup at a time. */
static int resolve_name(struct peer *p)
{
    if (p->resolving)
        return 0;
    int rc = resolve_start(p->address, 0, &p->resolving);
    if (rc < 0)
        return rc;
    p->resolved =
        (struct loop_source){.fd = resolve_fd(p->resolving), .events = EPOLLIN, .progress = on_resolved};
    rc = loop_add(p->loop, &p->resolved);
    if (rc < 0)
        resolve_free(TAKE_PTR(p->resolving));
    return rc;
}

static void begin(struct peer *p)
{
    net_addresses_at(p->config.address, peer_address(p), p->address);
    peer_move(p, PEER_CONNECTING);
    dial_begin(&p->dial);
    int rc = resolve_numeric(p->address, &p->list.found[0]);
    p->list.n = rc == 0;
    if (rc == 0)
        connect_first(p);
    else
        wait_for_it(p, rc == -EHOSTUNREACH ? resolve_name(p) : rc);
}

int peer_new(struct loop *loop, const struct peer_config *config, struct peer **ret_peer)
{
    struct peer *p = calloc(1, sizeof(*p));
    if (!p)
        return -ENOMEM;
    p->loop = loop;
    p->config = *config;
    p->dial.naddresses = config->rail < 0 ? net_addresses_count(config->address) : 1;
    p->dial.stay = config->stay;
    p->connecting.fd = -1;
    p->timer.fire = on_timer;
    p->next_id = 1;
    list_init(&p->calls);
    begin(p);
    *ret_peer = p;
    return 0;
}

void peer_free(struct peer *p)
{
    if (!p)
        return;
    disconnect(p);
    resolving_end(p);
    list_for_each_safe (node, &p->calls) {
        struct call *c = container_of(node, struct call, node);
        list_remove(node);
        if (c->map)
            munmap(c->map, c->reply.payload_bytes);
        if (c->reply.payload_fd >= 0)
            close(c->reply.payload_fd);
        free(c->body);
        free(c);
    }
    free(p);
}

void *peer_user(const struct peer *p)
{
    return p->config.user;
}

unsigned peer_address(const struct peer *p)
{
    return p->config.rail < 0 ? p->dial.at : (unsigned)p->config.rail;
}

const char *peer_name(const struct peer *p)
{
    return p->name;
}

unsigned peer_version(const struct peer *p)
{
    return p->auth.version;
}

enum peer_state peer_state(const struct peer *p)
{
    return p->state > PEER_UP ? PEER_UP : p->state;
}

int peer_call(struct peer *p, uint16_t type, const struct bytes_out *body, const void *payload,
              uint64_t payload_bytes, void (*payload_done)(void *user, int status), peer_reply_fn answer,
              void *user)
{
    if (!is_up(p))
        return -ENOTCONN;
    struct call *c = calloc(1, sizeof(*c));
    if (!c)
        return -ENOMEM;
    *c = (struct call){.peer = p, .id = p->next_id++, .answer = answer, .user = user, .reply.payload_fd = -1};
    list_push_back(&p->calls, &c->node);
    if (payload)
        conn_send_payload(p->conn, PROTO_REQUEST, type, c->id, body, payload, payload_bytes, payload_done,
                          user);
    else
        conn_send(p->conn, PROTO_REQUEST, type, c->id, 0, body, NULL, 0);
    return 0;
}

int peer_seal(struct peer *p, const void *aad, size_t aad_len, const void *text, size_t len,
              struct bytes_out *out)
{
    return is_up(p) ? net_seal(&p->seal, &p->auth, aad, aad_len, text, len, out) : -ENOTCONN;
}

void peer_event(struct peer *p, uint16_t type, const struct bytes_out *body)
{
    peer_event_done(p, type, body, NULL, NULL);
}

uint64_t peer_queued(const struct peer *p)
{
    return p->conn ? conn_queued(p->conn) : 0;
}

void peer_event_done(struct peer *p, uint16_t type, const struct bytes_out *body,
                     void (*done)(void *user, int status), void *user)
{
    if (is_up(p))
        conn_send_payload(p->conn, PROTO_EVENT, type, 0, body, NULL, 0, done, user);
    else if (done)
        done(user, -ENOTCONN);
}

void peer_fail(struct peer *p, int status, const char *message)
{
    if (p->state != PEER_DOWN)
        go_down(p, status, message);
}

void peer_accept(struct peer *p)
{
    dial_accepted(&p->dial);
    peer_move(p, PEER_IDENTIFIED);
    address_answered(p);
}

void peer_reject(struct peer *p, int status, const char *message)
{
    if (is_up(p))
        address_failed(p, status, message);
}

int peer_release_fd(struct peer *p)
{
    int fd = conn_release_fd(p->conn);
    if (fd >= 0) {
        address_answered(p);
        p->conn = NULL;
        peer_move(p, PEER_DOWN);
        loop_timer_clear(&p->timer);
    }
    return fd;
}
