/* SPDX-License-Identifier: Apache-2.0 */
/*
 * testing.h: a real server for tests, on a thread of its own or turned by the test. Its client speaks the
 * protocol by hand, in orders that a correct one would not use. Errors in here fail the running test.
 */
#ifndef DAEMON_TESTING_H
#define DAEMON_TESTING_H

#include <pthread.h>

#include "base/bytes.h"
#include "dataset/index.h"
#include "loop/loop.h"
#include "pool/pool.h"
#include "rpc/conn.h"

#define ROWS      2048u
#define ROW_BYTES 4096u

struct host {
    char folder[64], data[128], more[128], socket[128];
    struct loop *loop;
    struct pool *pool;
    struct server *server;
    pthread_t thread;
};

/* Of the request that was sent last. */
extern uint64_t last_id;
/* `ready` bytes are prefaulted; the loop is not run yet. */
void host_start_ready(struct host *h, uint64_t cap_bytes, uint64_t ready);
void host_start(struct host *h, uint64_t cap_bytes);
/* The loop, in a thread of its own. */
void host_run(struct host *h);
/* Nothing may be left of its pool. */
void host_stop(struct host *h, bool running);
void send_request(int fd, uint16_t type, struct bytes_out *body);
/* The reply to `id`; events are passed over. */
void receive_reply(int fd, uint64_t id, struct net_reply *reply);
int ask(int fd, uint16_t type, struct bytes_out *body, struct net_reply *ret_reply);
int dial(struct host *h);
void open_body(struct bytes_out *body, const char *name, const char *uri);
uint64_t open_set(int fd, uint16_t type, const char *name, const char *uri, struct proto_ws *ret_ws,
                  int ret_fds[2]);
/* Until it is loaded. */
int wait_for(int fd, uint64_t ws);
int fetch(int fd, uint64_t ws, uint64_t first, uint64_t count, uint64_t *ret_lease);
void release(int fd, uint64_t lease);
int close_set(int fd, uint64_t ws);
int drop(int fd, const char *name, uint32_t flags);

/* Requests as the server makes them, with any user. */
struct answer {
    bool here;
    struct wset *ws;
    int code;
};

/* For open_request.opened, where `user` is a struct answer. */
void opened(struct open_request *r, struct wset *ws, const struct leat_error *err);
/* Turns the loop until the set is open, or refused. */
struct answer open_within(struct host *h, uint32_t uid, uint32_t flags, uint64_t pool_bytes, const char *name,
                          const char *uri);
struct answer open_as(struct host *h, uint32_t uid, uint32_t flags, const char *name, const char *uri);

#endif
