/* SPDX-License-Identifier: Apache-2.0 */
/* addresses.h: the addresses of one node, "host:port[,host:port]", one for each rail, as configured and as PROTO carries them. */
#ifndef RPC_ADDRESSES_H
#define RPC_ADDRESSES_H

#include "base/base.h"

#define NET_ADDRESSES_MAX 8u
#define NET_ADDRESS_BYTES 256u

unsigned net_addresses_count(const char *list);
/* The k-th; "" past the end, or when it is too long. */
void net_addresses_at(const char *list, unsigned k, char ret_address[NET_ADDRESS_BYTES]);
/* The position of this very address in list, or -1. */
int net_addresses_find(const char *list, const char *address);
/* Each with a port, none empty or twice, no more than NET_ADDRESSES_MAX, and all together no longer than a frame's field. LEAT_INVALID
 * with a message that begins with `what`. */
int net_addresses_check(const char *what, const char *list, struct leat_error *err);

#endif
