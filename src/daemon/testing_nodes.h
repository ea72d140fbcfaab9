/* SPDX-License-Identifier: Apache-2.0 */
/* testing_nodes.h: pools, servers and clusters of several daemons on one loop, over TCP of this host. Errors in here fail the running
 * test. */
#ifndef DAEMON_TESTING_NODES_H
#define DAEMON_TESTING_NODES_H

#include "leat/leat.h"
#include "loop/loop.h"
#include "pool/nodes/nodes.h"

extern const char token[33];
extern const struct pool_config settings;
extern struct loop *loop; /* the test's */

struct host {
    char address[32], socket[600];
    struct pool *pool;
    struct server *server;
    struct cluster *cluster;
};

/* Ports that are free just now, of 4 hosts at most. */
void addresses(struct host *hosts, unsigned n);
/* self: its entry in `nodes`. */
void start_as(struct host *h, char *self, const char *secret, char **nodes, unsigned nnodes);
void start(struct host *h, const char *secret, char **nodes, unsigned nnodes);
void stop(struct host *h);
bool is_up(struct host *h, unsigned n);
void both_up(struct host h[2]);

struct opened {
    bool done;
    struct wset *ws;
    int code;
    char message[LEAT_ERROR_MESSAGE_MAX];
};

/* Of an open_request whose user is a struct opened: takes a lease. */
void on_opened(struct open_request *request, struct wset *ws, const struct leat_error *err);
void on_progress(struct open_request *request, uint64_t samples, uint64_t bytes);
/* Opens a file of the test's folder, and turns the loop until it is open, or refused. */
void open_at(struct host *h, const char *file, struct opened *ret);

#endif
