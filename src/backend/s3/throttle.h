/* SPDX-License-Identifier: Apache-2.0 */
/*
 * throttle.h: how much of what a session may have under way its server takes at present. Sessions of one
 * endpoint with one identity may share it: what one of them learns holds for all. Any thread.
 */
#ifndef BACKEND_S3_THROTTLE_H
#define BACKEND_S3_THROTTLE_H

#include "base/base.h"

struct throttle;

/* The one of this name in this process, or a new one; NULL: one of the caller's own, which knows no pauses.
 * -ENOMEM */
int throttle_get(const char *name, struct throttle **ret_throttle);
void throttle_unref(struct throttle *t); /* NULL is fine */
/* So many of `most` at a time: at least one. */
double throttle_limit(const struct throttle *t, unsigned most);
/* The server had too much to do; pause_ns: what it asked for, 0: nothing. A pause that runs stays
 * as it is. */
void throttle_busy(struct throttle *t, unsigned most, uint64_t pause_ns);
void throttle_good(struct throttle *t, unsigned most);
/* clock_now_ns() before which nothing new is begun beside what is under way; 0: there is no pause. */
uint64_t throttle_until(struct throttle *t);

#endif
