/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serve.h: a store and its services, put together: what `leat serve` and leatd start. Threads of its own; calls are for one thread at a time.
 */
#ifndef SERVE_SERVE_H
#define SERVE_SERVE_H

#include "base/base.h"
#include "serve/config.h"

struct serve;
/* Serves when it returns 0. The configuration was finished; it may go afterwards. */
int serve_new(const struct serve_config *config, struct serve **ret_serve, struct leat_error *err);
/* "http://127.0.0.1:9000": address i, with the port that it came out with; NULL: there is none. */
const char *serve_endpoint(const struct serve *serve, unsigned i);
/* Its store; lives as long as `serve`. */
struct store *serve_store(struct serve *serve);
/* May a user of this host read a bucket directly? Yes: this process's user, root, and users that the keys
 * file permits: a section with the user's name, or [anonymous]. Any thread. */
bool serve_may_read(void *serve, uint32_t uid, const char *bucket);
/* Reloads keys and certificates if their files have changed. That is done once a second as well. */
void serve_reload(struct serve *serve);
/* No new connections; requests under way get the configuration's grace; then all of it goes. NULL is fine. */
void serve_free(struct serve *serve);

#endif
