/* SPDX-License-Identifier: Apache-2.0 */
/*
 * resolve.h: "host:port" to an address without waiting for a name server on the caller's thread. A numeric
 * address is there at once; a name is looked up on a thread of its own, which may outlive the caller.
 */
#ifndef LOOP_RESOLVE_H
#define LOOP_RESOLVE_H

#include "base/base.h"

#include <sys/socket.h>

struct resolve;

struct resolve_address {
    struct sockaddr_storage at;
    socklen_t len;
};
#define RESOLVE_MAX 16u /* of a name; more are left out */
struct resolve_list {
    struct resolve_address found[RESOLVE_MAX]; /* in the order of getaddrinfo (RFC 6724) */
    unsigned n;
    int gai; /* of getaddrinfo, when there is none */
};

/* Numeric only: 0, -EINVAL (no port), -EHOSTUNREACH (a name). Does not wait. */
int resolve_numeric(const char *address, struct resolve_address *ret_address);
/* Starts the look-up; its descriptor turns readable when that is done. `flags`: AI_ADDRCONFIG, which is left
 * out where a host has nothing but loopback, or 0. */
int resolve_start(const char *address, int flags, struct resolve **ret_resolve);
int resolve_fd(const struct resolve *resolve);
/* Once it is readable: 0 and one address at least, or -EHOSTUNREACH and why. */
int resolve_result(const struct resolve *resolve, struct resolve_list *ret_list);
/* Also while it is being looked up. NULL is fine. */
void resolve_free(struct resolve *resolve);

#endif
