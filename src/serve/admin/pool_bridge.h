/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool_bridge.h: a daemon's pool, for workers of its services: what they ask is done by the control loop, as all of the pool's is, while they
 * wait.
 */
#ifndef SERVE_ADMIN_POOL_BRIDGE_H
#define SERVE_ADMIN_POOL_BRIDGE_H

#include "serve/admin/admin.h"

struct loop;
struct server;
struct pool_bridge;

int pool_bridge_new(struct loop *loop, struct server *server, struct pool_bridge **ret_bridge);
/* For admin_config.pool; as long as the bridge. */
const struct admin_pool *pool_bridge_pool(struct pool_bridge *bridge);
/* The loop has ended, or will run nothing more: waiting and later requests get the error that the daemon
 * ends. Harmless twice. */
void pool_bridge_close(struct pool_bridge *bridge);
/* After the last request. NULL is fine. */
void pool_bridge_free(struct pool_bridge *bridge);

#endif
