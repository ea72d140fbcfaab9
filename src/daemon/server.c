/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection's life: accepted; HELLO (on TCP also the proof of the token); then control requests, or, for DATA, handed to a
 * data thread. Nothing is served before that, and a peer that does not finish its handshake within HANDSHAKE_NS, sends
 * anything else, or speaks garbage is closed. A client that goes gives back all it held, whatever it was doing.
 */
#include "daemon/server_internal.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/size.h"
#include "base/fdpass.h"
#include "pool/nodes/nodes.h"
#include "rpc/peer.h"
#include "pool/set/wset.h"

#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

/* Of HELLO and PROOF: an unauthenticated peer costs no more memory than that */
#define HANDSHAKE_BODY 1024u
#define HANDSHAKE_OUT  (64 * KIB) /* and no more unread output */
#define OVER_LIMIT_MAX 64u        /* at a time; others are disconnected */
#define PEERS_MAX      (4u * CLUSTER_NODES_MAX)
#define HANDSHAKE_NS   (10 * NS_PER_S)
#define GRACE_NS       (500 * NS_PER_MS) /* for a whole handshake, before it gives way to others */
#define REFUSED_NS     (100 * NS_PER_MS) /* for the reason to reach a peer that is refused */
#define REST_NS        (50 * NS_PER_MS)  /* without descriptors */
#define OVER_LIMIT_NS  NS_PER_S          /* for a connection past a limit to say HELLO and get the reason */

static void linger_update(struct server *s)
{
    bool keep = s->nclients > 0;
    list_for_each (node, &s->pool->sets)
        keep = keep || (container_of(node, struct wset, node)->flags & PROTO_WS_EXPLICIT) ||
               container_of(node, struct wset, node)->peers.nholders; /* other nodes read it here */
    if (keep || !s->config.linger_ns)
        loop_timer_clear(&s->linger);
    else if (s->linger.due_ns == 0)
        loop_timer_set(s->loop, &s->linger, clock_now_ns() + s->config.linger_ns);
}

static void linger_fire(struct loop_timer *timer)
{
    struct server *s = container_of(timer, struct server, linger);
    log_info("no client for %llu s: ending", (unsigned long long)(s->config.linger_ns / NS_PER_S));
    loop_stop(s->loop);
}

static struct server_user *user_ref(struct server *s, uint32_t uid)
{
    list_for_each (node, &s->users) {
        struct server_user *u = container_of(node, struct server_user, node);
        if (u->uid == uid) {
            u->nclients++;
            return u;
        }
    }
    struct server_user *u = malloc(sizeof(*u));
    if (!u)
        return NULL;
    *u = (struct server_user){
        .uid = uid, .nclients = 1, .budget.limit_bytes = s->pool->config.limits.user_buffers_bytes};
    list_init(&u->node);
    list_push_back(&s->users, &u->node);
    return u;
}

static void user_unref(struct server_user *u)
{
    if (!u || --u->nclients)
        return;
    list_remove(&u->node);
    free(u);
}

/* The TCP listeners accept no connection until then; 0: they do. */
static void listeners_rest(struct server *s, uint64_t until_ns)
{
    for (unsigned k = 0; k < s->nlisteners; k++)
        loop_modify(&s->listeners[k].source, until_ns ? 0 : EPOLLIN);
    if (until_ns)
        loop_timer_set(s->loop, &s->rest, until_ns);
    else
        loop_timer_clear(&s->rest);
}

static void rest_over(struct loop_timer *timer)
{
    listeners_rest(container_of(timer, struct server, rest), 0);
}

#define P(phase) (1u << CLIENT_##phase)
static const uint32_t client_moves[CLIENT_PHASES] = {
    [CLIENT_HELLO] = P(PROOF) | P(OVER_LIMIT) | P(READY) | P(REFUSED),
    [CLIENT_PROOF] = P(READY) | P(REFUSED),
    [CLIENT_OVER_LIMIT] = P(REFUSED),
};
#undef P

static void client_move(struct client *c, enum client_phase to)
{
    static const char *const names[CLIENT_PHASES] = {"HELLO", "PROOF", "OVER_LIMIT", "READY", "REFUSED"};
    assert(to < CLIENT_PHASES && (client_moves[c->phase] >> to & 1));
    log_debug("connection %llu: %s -> %s", (unsigned long long)c->session.serial, names[c->phase], names[to]);
    c->phase = to;
}

static bool client_is_peer(const struct client *c)
{
    return !c->is_unix && c->phase == CLIENT_READY;
}

static bool client_is_local(const struct client *c)
{
    return c->is_unix && c->phase == CLIENT_READY;
}

/* Removes it from its present counter of connections, and counts it in this one; NULL: in none. */
static void client_count(struct client *c, unsigned *in)
{
    struct server *s = c->server;
    if (c->counted_in)
        --*c->counted_in;
    if (c->counted_in == &s->nconnections)
        quota_give(&s->pool->shares, c->uid, QUOTA_CONNECTIONS, 1);
    else if (c->counted_in == &s->npreauth && s->rest.due_ns)
        listeners_rest(s, 0);
    c->counted_in = in;
    if (in)
        ++*in;
}

static void client_free(struct client *c)
{
    struct server *s = c->server;
    requests_client_gone(c);
    credits_client_gone(c);
    if (client_is_peer(c) && s->pool->cluster)
        nodes_session_closed(s->pool->cluster, &c->session);
    bool local = client_is_local(c);
    uint32_t uid = c->uid;
    client_count(c, NULL);
    loop_timer_clear(&c->handshake);
    conn_free(c->session.conn);
    user_unref(c->user);
    list_remove(&c->node);
    source_groups_unref(c->groups);
    net_auth_fini(&c->session.auth);
    net_seal_fini(&c->session.seal);
    free(c->handles);
    free(c);
    if (!local)
        return;
    s->nclients--;
    bool others = false;
    list_for_each (node, &s->clients) {
        struct client *other = container_of(node, struct client, node);
        others = others || (client_is_local(other) && other->uid == uid);
    }
    if (!others)
        pool_sweep(s->pool, s->config.linger_ns ? UINT32_MAX : uid);
    linger_update(s);
}

static void client_name(const struct client *c, char ret[96])
{
    struct sockaddr_storage far;
    socklen_t len = sizeof(far);
    char host[NI_MAXHOST], port[NI_MAXSERV];
    if (c->is_unix)
        snprintf(ret, 96, "pid %d, uid %u", c->pid, c->uid);
    else if (getpeername(conn_fd(c->session.conn), (struct sockaddr *)&far, &len) == 0 &&
             getnameinfo((struct sockaddr *)&far, len, host, sizeof(host), port, sizeof(port),
                         NI_NUMERICHOST | NI_NUMERICSERV) == 0)
        snprintf(ret, 96, "%.70s port %.10s", host, port);
    else
        snprintf(ret, 96, "over TCP");
}

/* Peers may send nonsense as fast as they like, local ones faster than others. */
static void client_log(const struct client *c, const char *why)
{
    char name[96];
    client_name(c, name);
    /* Unauthenticated peers on TCP do not use up the log lines of local clients. */
    static struct log_limit limits[2];
    log_write_limited(LOG_LEVEL_WARNING, &limits[c->is_unix], "closed a connection (%s) that %s", name, why);
}

static void client_complain(struct client *c, const char *why)
{
    c->server->rejected++;
    client_log(c, why);
}

/* A client that does not read gets no error; the log has one for all connections of the user. */
static void client_too_much(struct client *c)
{
    char most[SIZE_TEXT_MAX];
    if (!conn_over_budget(c->session.conn)) {
        client_complain(c, "does not read its replies");
        return;
    }
    c->server->rejected++;
    if (!c->user->logged)
        log_warning_limited(
            "closed the connection of pid %d, and will close others that grow: unread answers and half "
            "messages of uid %u may take %s here (user_buffers in [limits] of leatd.conf)",
            c->pid, c->uid, size_format(c->user->budget.limit_bytes, most));
    c->user->logged = true;
}

static void client_closed(struct conn *conn, int status)
{
    struct client *c = conn_user(conn);
    if (c->phase == CLIENT_REFUSED)
        ; /* counted, and in the log, when it was refused */
    else if (status == LEAT_CORRUPT)
        client_complain(c, "broke the protocol");
    else if (status == LEAT_NO_SPACE)
        client_too_much(c);
    else if (status == LEAT_BUSY)
        client_complain(c, "passed a descriptor while its user's others wait to be closed");
    client_free(c);
}

static void handshake_late(struct loop_timer *timer)
{
    struct client *c = container_of(timer, struct client, handshake);
    c->server->rejected += c->phase != CLIENT_REFUSED && c->phase != CLIENT_OVER_LIMIT;
    client_free(c);
}

/* Sends the reason, once, and closes soon. */
static int handshake_refuse(struct client *c, uint16_t type, uint64_t id, const struct leat_error *err)
{
    c->server->rejected += c->phase != CLIENT_OVER_LIMIT; /* that one was counted when it came */
    client_move(c, CLIENT_REFUSED);
    conn_send_error(c->session.conn, type, id, err);
    loop_timer_set(c->server->loop, &c->handshake, clock_now_ns() + REFUSED_NS);
    return 0;
}

static int handshake_version(struct client *c, uint64_t id)
{
    struct leat_error err;
    error_set(
        &err, LEAT_UNSUPPORTED,
        "this daemon speaks protocol versions %d to %d, the other side %u to %u: stop it (`leat stop`) and "
        "start one of the same release",
        PROTO_VERSION_MIN, PROTO_VERSION, c->hello.version_min, c->hello.version_max);
    return handshake_refuse(c, PROTO_HELLO, id, &err);
}

static int handshake_too_many(struct client *c, uint64_t id)
{
    const struct limits *l = &c->server->pool->config.limits;
    struct leat_error err;
    if (fdpass_full(c->uid))
        error_set(&err, LEAT_BUSY,
                  "user %u has passed descriptors that cannot be closed yet, and %d may wait: end what they "
                  "wait for, such as the reader of a socket or the server of a FUSE file system",
                  c->uid, FDPASS_WAITING_MAX);
    else if (c->server->nconnections >= l->connections)
        error_set(
            &err, LEAT_BUSY,
            "the daemon has %u connections, and %u are allowed: end some processes, or raise connections "
            "in [limits] of leatd.conf",
            c->server->nconnections, l->connections);
    else
        error_set(
            &err, LEAT_BUSY,
            "user %u has as many connections as one may have, which is %u: end some processes, or raise "
            "user_connections in [limits] of leatd.conf",
            c->uid, l->user_connections);
    return handshake_refuse(c, PROTO_HELLO, id, &err);
}

/* The file's mode and its folder deny it too; but a file system may have no modes, and a descriptor may have
 * been passed on. */
static int handshake_foreign(struct client *c, uint64_t id)
{
    struct leat_error err;
    error_set(
        &err, LEAT_DENIED,
        "this daemon is private to user %u, and user %u asks: start one of your own, or ask for a system "
        "daemon (mode = system in leatd.conf)",
        geteuid(), c->uid);
    return handshake_refuse(c, PROTO_HELLO, id, &err);
}

/* False: there is no version that both sides speak. */
static bool version_agree(struct client *c)
{
    unsigned version = proto_version_common(c->hello.version_min, c->hello.version_max);
    if (version)
        conn_set_version(c->session.conn, version);
    return version > 0;
}

static void welcome_fill(const struct client *c, struct proto_welcome *w)
{
    const struct server *s = c->server;
    memcpy(w->mac, c->proof, sizeof(w->mac));
    w->version = (uint8_t)conn_version(c->session.conn);
    snprintf(w->node, sizeof(w->node), "%s", s->config.node_name);
    w->region_bytes = s->pool->config.region_bytes;
    w->pool_bytes = s->pool->config.cap_bytes;
    w->client_count = s->nclients;
}

static void reply_welcome(struct client *c, uint16_t type, uint64_t id, const struct proto_welcome *w)
{
    AUTO_BYTES struct bytes_out body = {0};
    proto_welcome_put(&body, w);
    conn_send(c->session.conn, PROTO_REPLY, type, id, 0, &body, NULL, 0);
}

/* DATA: found, allowed and current: its socket goes to a data thread after the last reply has left. */
static int data_begin(struct client *c, uint16_t type, uint64_t id)
{
    struct server *s = c->server;
    struct leat_error err = {0};
    struct wset *ws = pool_find_uuid(s->pool, c->hello.uuid);
    if (!ws || atomic_load(&ws->live->generation) != c->hello.generation)
        error_set(&err, LEAT_STALE, "this node does not hold the working set any more");
    else if (!wset_allows(ws, c->uid, c->gid))
        error_set(&err, LEAT_DENIED, "the working set belongs to another user");
    struct data_target *target = NULL;
    if (!err.code)
        data_target_new(s, ws, c->uid, &target, &err);
    if (err.code)
        return handshake_refuse(c, type, id, &err);
    /* The reply is written by hand: conn must have nothing queued when its descriptor moves on. */
    struct proto_welcome w = {0};
    welcome_fill(c, &w);
    AUTO_BYTES struct bytes_out body = {0};
    proto_welcome_put(&body, &w);
    unsigned version = conn_version(c->session.conn);
    int fd = body.failed ? -ENOMEM : conn_release_fd(c->session.conn);
    if (fd >= 0) {
        c->session.conn = NULL;
        int rc =
            net_frame_send(fd, version, PROTO_REPLY, type, id, &body, NULL, 0, clock_now_ns() + NS_PER_S);
        if (rc == 0)
            rc = data_serve(s, target, fd);
        if (rc < 0)
            fdpass_hang_up(fd, c->uid);
        if (rc == 0)
            target = NULL;
        client_free(c);
    }
    data_target_free(target);
    return fd < 0 ? fd : 1;
}

static int handshake_unix(struct client *c, struct conn_message *m)
{
    struct proto_welcome w = {0};
    if (m->frame.type != PROTO_HELLO || proto_hello_get(m->body, m->frame.body_bytes, &c->hello) < 0)
        return LEAT_CORRUPT;
    if (!c->server->pool->config.opener.system && c->uid != geteuid() && c->uid != 0)
        return handshake_foreign(c, m->frame.id);
    if (!version_agree(c))
        return handshake_version(c, m->frame.id);
    if (c->phase == CLIENT_OVER_LIMIT)
        return handshake_too_many(c, m->frame.id);
    if (c->hello.role == PROTO_ROLE_DATA)
        return data_begin(c, PROTO_HELLO, m->frame.id);
    if (c->hello.role != PROTO_ROLE_CONTROL)
        return LEAT_CORRUPT;
    client_move(c, CLIENT_READY);
    conn_trust(c->session.conn);
    loop_timer_clear(&c->handshake);
    c->server->nclients++;
    welcome_fill(c, &w);
    reply_welcome(c, PROTO_HELLO, m->frame.id, &w);
    linger_update(c->server);
    return 0;
}

static int handshake_tcp(struct client *c, struct conn_message *m)
{
    struct proto_welcome w = {0};
    if (m->frame.type == PROTO_HELLO) {
        int rc = net_auth_server_hello(&c->session.auth, m->body, m->frame.body_bytes, &c->hello, &w);
        if (rc < 0)
            return rc;
        if (!version_agree(c))
            return handshake_version(c, m->frame.id);
        client_move(c, CLIENT_PROOF);
        /* Not authenticated: this node identifies itself after the proof */
        reply_welcome(c, PROTO_HELLO, m->frame.id, &w);
        return 0;
    }
    int rc = m->frame.type == PROTO_PROOF
                 ? net_auth_server_proof(&c->session.auth, m->body, m->frame.body_bytes, c->proof)
                 : LEAT_CORRUPT;
    if (rc < 0) {
        struct leat_error err;
        error_set(&err, LEAT_DENIED,
                  "the token does not match this node's: the same file must be on every node");
        client_log(c, "has another token");
        return handshake_refuse(c, PROTO_PROOF, m->frame.id, &err);
    }
    client_count(c, NULL);
    peer_socket_watch(conn_fd(c->session.conn));
    c->uid = c->hello.acting_uid;
    c->gid = c->hello.acting_gid;
    if (c->hello.role == PROTO_ROLE_DATA)
        return data_begin(c, PROTO_PROOF, m->frame.id);
    if (c->hello.role != PROTO_ROLE_PEER || !c->server->pool->cluster)
        return LEAT_CORRUPT;
    if (c->server->npeers >= PEERS_MAX) {
        struct leat_error err;
        error_set(&err, LEAT_BUSY, "there are %u connections of other nodes, and %u are allowed",
                  c->server->npeers, PEERS_MAX);
        return handshake_refuse(c, PROTO_PROOF, m->frame.id, &err);
    }
    client_count(c, &c->server->npeers);
    client_move(c, CLIENT_READY);
    conn_trust(c->session.conn);
    loop_timer_clear(&c->handshake);
    welcome_fill(c, &w);
    reply_welcome(c, PROTO_PROOF, m->frame.id, &w);
    return 0;
}

static int client_message(struct conn *conn, struct conn_message *message)
{
    struct client *c = conn_user(conn);
    if (c->phase == CLIENT_REFUSED)
        return 0; /* all input is dropped: its connection ends at the time that was set then */
    c->requests++;
    c->server->requests++;
    if (client_is_peer(c))
        return cluster_message(c->server->pool->cluster, &c->session, message);
    if (message->frame.kind != PROTO_REQUEST)
        return LEAT_CORRUPT;
    if (client_is_local(c))
        return requests_dispatch(c, message);
    int rc = c->is_unix ? handshake_unix(c, message) : handshake_tcp(c, message);
    return rc < 0 ? rc : 0;
}

static const struct conn_ops client_ops = {.message = client_message, .closed = client_closed};

/* The unix socket accepts no connection until then; 0: it does. */
static void unix_rest(struct server *s, uint64_t until_ns)
{
    loop_modify(&s->unix_source, until_ns ? 0 : EPOLLIN);
    if (until_ns)
        loop_timer_set(s->loop, &s->unix_rest, until_ns);
}

static void unix_rest_over(struct loop_timer *timer)
{
    unix_rest(container_of(timer, struct server, unix_rest), 0);
}

/* Keeps some for existing connections: for memory, files, and descriptors that are received. The lowest free
 * one shows how many are in use. */
static bool descriptors_short(int listener)
{
    struct rlimit most;
    int next = fcntl(listener, F_DUPFD_CLOEXEC, 0);
    if (next < 0)
        return errno == EMFILE || errno == ENFILE;
    close(next);
    return getrlimit(RLIMIT_NOFILE, &most) == 0 &&
           (rlim_t)next + MIN(most.rlim_cur / 8, (rlim_t)FDPASS_MESSAGE_MAX) >= most.rlim_cur;
}

/* Connections that cannot be served wait in the listener's queue. It rests, or the loop would spin on it. */
static int accept_fd(struct server *s, int listener, bool is_unix)
{
    bool none = descriptors_short(listener);
    int fd = none ? -1 : accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0 || (!none && errno != EMFILE && errno != ENFILE))
        return fd;
    log_error_limited(
        "no descriptor is left for another connection: raise the limit (LimitNOFILE, ulimit -n)");
    (is_unix ? unix_rest : listeners_rest)(s, clock_now_ns() + REST_NS);
    return -EMFILE;
}

/*
 * Is there a place for one more unauthenticated connection? The oldest half-done handshake gives way, so a
 * flood of the port pushes out its own connections. It does not give way at once: when all of a cluster
 * connect to one node, each of them needs its milliseconds, and the others wait in the listeners' queues.
 */
static bool preauth_admit(struct server *s)
{
    if (s->npreauth < s->pool->config.limits.handshakes)
        return true;
    list_for_each (node, &s->clients) {
        struct client *c = container_of(node, struct client, node);
        if (c->counted_in != &s->npreauth)
            continue;
        if (clock_now_ns() < c->came_ns + GRACE_NS) { /* the first of the list is the oldest */
            listeners_rest(s, c->came_ns + GRACE_NS);
            return false;
        }
        s->rejected += c->phase != CLIENT_REFUSED; /* else it was counted then */
        client_free(c);
        return true;
    }
    return true;
}

/*
 * Is there a place for c? A local client without one gets an error to its HELLO. On TCP there is always one:
 * `handshakes` bounds unauthenticated connections, PEERS_MAX other nodes, and this host's processes use no
 * place of theirs.
 */
static bool client_admit(struct server *s, struct client *c)
{
    const struct limits *l = &s->pool->config.limits;
    uint64_t has;
    if (!c->is_unix) {
        client_count(c, &s->npreauth);
        return true;
    }
    if (s->nconnections < l->connections && !fdpass_full(c->uid) &&
        quota_take(&s->pool->shares, c->uid, QUOTA_CONNECTIONS, 1, l->user_connections, &has) == 0) {
        client_count(c, &s->nconnections);
        return true;
    }
    s->rejected++;
    if (s->nover_limit >= OVER_LIMIT_MAX)
        return false;
    client_move(c, CLIENT_OVER_LIMIT);
    client_count(c, &s->nover_limit);
    return true;
}

/* The user and process at the other end of the unix socket, from the kernel. */
static int client_identify(struct server *s, struct client *c)
{
    int rc = conn_credentials(c->session.conn, &c->uid, &c->gid, &c->pid);
    if (rc == 0 && s->pool->config.opener.system) {
        rc = source_groups_of(conn_fd(c->session.conn), &c->groups);
        if (rc < 0)
            log_error_limited(
                "closed a connection (pid %d, uid %u): cannot find out its groups (%s). A system "
                "daemon needs SO_PEERGROUPS of the kernel: allow it in the sandbox (seccomp, "
                "gVisor), or run private daemons",
                c->pid, c->uid, strerror(-rc));
    }
    if (rc == 0 && !(c->user = user_ref(s, c->uid)))
        rc = -ENOMEM;
    return rc;
}

static void accept_one(struct server *s, int listener, bool is_unix)
{
    int fd = accept_fd(s, listener, is_unix);
    if (fd < 0)
        return;
    struct client *c = calloc(1, sizeof(*c));
    if (!c) {
        fdpass_hang_up(fd, UINT32_MAX);
        return;
    }
    *c = (struct client){.server = s,
                         .is_unix = is_unix,
                         .came_ns = clock_now_ns(),
                         .next_id = 1,
                         .pid = -1,
                         .uid = UINT32_MAX,
                         .gid = UINT32_MAX,
                         .session = {.serial = ++s->serials, .node = RPC_NODE_UNKNOWN}};
    list_init(&c->pendings);
    list_init(&c->fetches);
    list_init(&c->reports);
    list_init(&c->scans);
    list_init(&c->node);
    net_auth_init(&c->session.auth, s->config.token, s->config.token_len);
    static const struct conn_limits preauth = {
        .out_bytes = HANDSHAKE_OUT, .body_bytes = HANDSHAKE_BODY, .no_fds = true};
    if (conn_new(s->loop, fd, &client_ops, c, &preauth, &c->session.conn) < 0) {
        fdpass_hang_up(fd, c->uid);
        free(c);
        return;
    }
    if ((is_unix && client_identify(s, c) < 0) || !client_admit(s, c)) {
        conn_free(c->session.conn);
        user_unref(c->user);
        source_groups_unref(c->groups);
        free(c);
        return;
    }
    if (c->user)
        conn_share_budget(c->session.conn, &c->user->budget);
    c->handshake.fire = handshake_late;
    loop_timer_set(s->loop, &c->handshake,
                   clock_now_ns() + (c->phase == CLIENT_OVER_LIMIT ? OVER_LIMIT_NS : HANDSHAKE_NS));
    list_push_back(&s->clients, &c->node);
}

static void unix_progress(struct loop_source *source, uint32_t events)
{
    accept_one(container_of(source, struct server, unix_source), source->fd, true);
}

static void tcp_progress(struct loop_source *source, uint32_t events)
{
    struct server *s = container_of(source, struct listener, source)->server;
    if (preauth_admit(s))
        accept_one(s, source->fd, false);
}

static void pool_advanced(void *user, struct wset *ws)
{
    requests_advance(ws);
}

static void pool_revoked(void *user, struct wset *ws)
{
    requests_revoked(user, ws);
}

static void pool_changed(void *user)
{
    linger_update(user);
}

static int tcp_listener_open(struct loop *loop, struct loop_source *source, const char *address,
                             unsigned mode, void (*progress)(struct loop_source *, uint32_t),
                             struct leat_error *err)
{
    int rc = net_listen(address, mode, &source->fd, err);
    if (rc < 0)
        return rc;
    source->events = EPOLLIN;
    source->progress = progress;
    rc = loop_add(loop, source);
    return rc < 0 ? error_sys(err, rc, "cannot wait on %s", address) : 0;
}

int server_new(struct loop *loop, struct pool *pool, const struct server_config *config,
               struct server **ret_server, struct leat_error *err)
{
    struct server *s = calloc(1, sizeof(*s));
    if (!s)
        return error_set(err, -ENOMEM, "out of memory");
    s->loop = loop;
    s->pool = pool;
    s->config = *config;
    s->unix_source.fd = -1;
    s->started_ns = clock_now_ns();
    s->linger.fire = linger_fire;
    s->rest.fire = rest_over;
    s->unix_rest.fire = unix_rest_over;
    list_init(&s->clients);
    list_init(&s->credits);
    list_init(&s->users);
    unsigned mode = pool->config.opener.system ? 0666 : 0600;
    int rc = config->listen ? net_addresses_check("listen", config->listen, err) : 0;
    if (rc == 0 && config->listen && !config->token)
        rc = error_set(
            err, LEAT_INVALID,
            "listen = %s needs token_file: every process that reaches the port could read every dataset",
            config->listen);
    if (rc == 0)
        rc = tcp_listener_open(loop, &s->unix_source, config->socket, mode, unix_progress, err);
    if (rc == 0 && stat(config->socket, &s->socket_file) < 0)
        rc = error_sys(err, -errno, "cannot look at %s", config->socket);
    for (unsigned k = 0; rc == 0 && config->listen && k < net_addresses_count(config->listen); k++) {
        char address[NET_ADDRESS_BYTES];
        net_addresses_at(config->listen, k, address);
        s->listeners[k] = (struct listener){.server = s, .source.fd = -1};
        s->nlisteners = k + 1;
        rc = tcp_listener_open(loop, &s->listeners[k].source, address, 0, tcp_progress, err);
        socklen_t len = sizeof(s->listeners[k].address);
        if (rc == 0)
            getsockname(s->listeners[k].source.fd, (struct sockaddr *)&s->listeners[k].address, &len);
    }
    if (rc < 0) {
        server_free(s);
        return rc;
    }
    pool->user = s;
    pool->advanced = pool_advanced;
    pool->changed = pool_changed;
    pool->revoked = pool_revoked;
    linger_update(s);
    *ret_server = s;
    return 0;
}

/* Before the listener is closed: from then on another process may bind a socket to the name. */
static void socket_unlink(const struct server *s)
{
    struct stat now;
    if (stat(s->config.socket, &now) == 0 && now.st_ino == s->socket_file.st_ino &&
        now.st_dev == s->socket_file.st_dev)
        unlink(s->config.socket);
}

void server_free(struct server *s)
{
    if (!s)
        return;
    list_for_each_safe (node, &s->clients)
        client_free(container_of(node, struct client, node));
    for (unsigned k = 0; k <= s->nlisteners; k++) {
        struct loop_source *source = k ? &s->listeners[k - 1].source : &s->unix_source;
        if (source->fd >= 0) {
            loop_remove(source);
            if (!k)
                socket_unlink(s);
            close(source->fd);
        }
    }
    loop_timer_clear(&s->linger);
    loop_timer_clear(&s->rest);
    loop_timer_clear(&s->unix_rest);
    s->pool->advanced = NULL;
    s->pool->revoked = NULL;
    s->pool->changed = NULL;
    s->pool->user = NULL;
    free(s);
}
