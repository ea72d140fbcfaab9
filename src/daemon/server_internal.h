/* SPDX-License-Identifier: Apache-2.0 */
/* server_internal.h: between server.c (listeners, handshakes, clients' lives) and requests.c. */
#ifndef DAEMON_SERVER_INTERNAL_H
#define DAEMON_SERVER_INTERNAL_H

#include "loop/loop.h"
#include "rpc/addresses.h"
#include "rpc/session.h"
#include "daemon/server.h"

#include <sys/socket.h>
#include <sys/stat.h>

struct wset;
struct client;

struct listener { /* an address of this daemon */
    struct loop_source source;
    struct server *server;
    struct sockaddr_storage address;
};

struct server_user {  /* of the unix socket */
    struct list node; /* server.users */
    uint32_t uid;
    unsigned nclients;
    struct conn_budget budget;
    bool logged; /* its limit was reported as too small */
};

struct server {
    struct loop *loop;
    struct pool *pool;
    struct server_config config;
    struct loop_source unix_source;
    struct listener listeners[NET_ADDRESSES_MAX];
    unsigned nlisteners;
    struct stat socket_file; /* ours; by the end another daemon's may have its name */
    struct list clients;
    struct list credits; /* credit_tables.c: a table for each user */
    struct list users;
    unsigned nclients;     /* after their handshake, on the unix socket */
    unsigned nconnections; /* on the unix socket */
    unsigned npeers;
    unsigned nover_limit; /* past a limit: here until they got the reason */
    unsigned npreauth;    /* on TCP, before their proof */
    uint64_t started_ns, requests, rejected, serials;
    struct server_times times;
    struct loop_timer linger;
    struct loop_timer rest;      /* set: the TCP listeners accept no connection */
    struct loop_timer unix_rest; /* set: nor does the unix socket */
};

/* A working set that a client has open. */
struct handle {
    uint64_t id;
    struct wset *ws;
};

/* A WAIT, DROP or FETCH that is not answered yet. */
enum pending_kind { PENDING_WAIT, PENDING_FETCH, PENDING_DROP };

struct pending {
    struct list client_node, set_node; /* client.pendings; wset.waiters */
    struct client *client;
    struct wset *ws; /* a reference */
    enum pending_kind kind;
    uint16_t type;
    uint64_t id;
    uint64_t *samples; /* WAIT */
    uint32_t n, at;
    uint32_t urged; /* samples below have been made urgent on other nodes */
    uint64_t began_ns;
    struct fetch *fetch;     /* FETCH */
    struct loop_timer timer; /* DROP */
};

/* Staging ranges that a client holds: the lease of a FETCH. */
struct fetch {
    struct list node; /* client.fetches */
    uint64_t id;
    struct wset *ws; /* a reference: the entries are in its window */
    struct stream_window_entry **entries;
    uint32_t n, cap;
    uint32_t uid; /* the user that is charged for cap */
};

struct credits;

/* README.md has the moves. A connection for DATA is handed over, or refused, with its last message of the handshake. */
enum client_phase {
    CLIENT_HELLO,
    CLIENT_PROOF,      /* TCP: HELLO came, the token is not proved */
    CLIENT_OVER_LIMIT, /* unix: past a limit, and gets the reason after its HELLO */
    CLIENT_READY,      /* served: of the unix socket a local client, of TCP another node */
    CLIENT_REFUSED,    /* the reason was sent; its messages are dropped until the connection ends soon */
    CLIENT_PHASES
};

struct client {
    struct list node; /* server.clients */
    struct server *server;
    struct rpc_session session;
    enum client_phase phase;
    bool is_unix;
    unsigned *counted_in; /* one of the server's nconnections, nover_limit, npreauth, npeers; NULL: none */
    struct loop_timer handshake; /* until READY */
    uint64_t came_ns;
    uint8_t proof[32]; /* of ours, for a TCP client that gave its own */
    struct proto_hello hello;
    uint32_t uid, gid;
    struct source_groups *groups; /* of a system daemon's client on the unix socket; else NULL */
    int32_t pid;
    struct server_user *user; /* NULL: of TCP */
    struct handle *handles;
    unsigned nhandles, handles_cap;
    uint64_t next_id;
    struct list pendings, fetches;
    struct list reports; /* loaders.c: of its loaders */
    unsigned nreports;
    struct list scans; /* scan_requests.c: struct client_scan */
    unsigned npendings, nfetches, nopening, nverifying, ndialing;
    uint64_t requests;
    struct credits *credits; /* NULL: it asked for none */
    unsigned credit_slot;
};

#define CLIENT_HANDLES_MAX  4096u
#define CLIENT_PENDINGS_MAX 1024u
#define CLIENT_OPENING_MAX  64u
#define CLIENT_DIALING_MAX  64u
#define USER_WAITING_MAX    (8u << 20) /* samples of all WAITs of a user: 8 bytes each */
#define USER_RANGES_MAX     (4u << 20) /* fetched ranges that a user holds */
#define CLIENT_FETCHES_MAX  4096u
#define CLIENT_REPORTS_MAX  32u /* 600 bytes each */

/* Negative: the connection is closed. */
int requests_dispatch(struct client *client, struct conn_message *message);
/*
 * The requests below: 0: it was answered, or will be. Negative with err set: err is the answer, and the connection stays. Negative without:
 * the message is malformed, or memory is short, and it is closed.
 */
/* Returns 0. */
int requests_reply(struct client *client, const struct conn_message *message, const struct bytes_out *body,
                   const int *fds, unsigned nfds);
void requests_progress(struct client *client, uint64_t id, const struct proto_progress *progress);
/* admin_requests.c and data.c */
int requests_query(struct client *client, struct conn_message *message, struct leat_error *err);
int requests_drop(struct client *client, struct conn_message *message, struct leat_error *err);
int requests_stop(struct client *client, struct conn_message *message, struct leat_error *err);
int requests_verify(struct client *client, struct conn_message *message, struct leat_error *err);
int requests_broker(struct client *client, struct conn_message *message, struct leat_error *err);
/* credit_tables.c */
int requests_credits(struct client *client, struct conn_message *message, struct leat_error *err);
void credits_client_gone(struct client *client);
/* loaders.c */
int loaders_report_request(struct client *client, struct conn_message *message, struct leat_error *err);
/* scan_requests.c */
int requests_scan(struct client *client, struct conn_message *message, struct leat_error *err);
int requests_scan_next(struct client *client, struct conn_message *message, struct leat_error *err);
int requests_scan_end(struct client *client, struct conn_message *message, struct leat_error *err);
void scans_client_gone(struct client *client);
/* Answers its request `id`, if it waits for a scan. */
void scans_cancel(struct client *client, uint64_t id);
/* Drops the reports of a handle that it closes. */
void loaders_forget(struct client *client, uint64_t handle);
/* NULL with err set when the client has too many, or memory is short. */
struct pending *pending_new(struct client *client, const struct proto_frame *frame, struct wset *ws,
                            enum pending_kind kind, struct leat_error *err);
/* Answers with err and frees. */
void pending_refuse(struct pending *pending, const struct leat_error *err);
/* A DROP that waits for leases: true when it was answered (and is gone). */
bool pending_drop_advance(struct pending *pending);
/* The client if it, and the server, are still there, else NULL. */
struct client *client_alive(struct pool *pool, uint64_t serial);
/* Advances requests that wait for this set. */
void requests_advance(struct wset *ws);
/* Gives back everything that the client holds. */
void requests_client_gone(struct client *client);
/* Notifies holders of ws that it was revoked. */
void requests_revoked(struct server *server, struct wset *ws);
/* NULL: err is set, LEAT_STALE. */
struct wset *client_handle(struct client *client, uint64_t id, struct leat_error *err);

/* A data connection's target: a reference to a working set, for net_server. LEAT_BUSY when the user has too many. */
struct data_target;
int data_target_new(struct server *server, struct wset *ws, uint32_t uid, struct data_target **ret_target,
                    struct leat_error *err);
void data_target_free(struct data_target *target); /* one without a connection; NULL is fine */
/* Takes both on success. */
int data_serve(struct server *server, struct data_target *target, int fd);

#endif
