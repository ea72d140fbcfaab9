/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/addresses.h"

#include <stdio.h>

unsigned net_addresses_count(const char *list)
{
    unsigned n = 1;
    for (const char *c = list; *c; c++)
        n += *c == ',';
    return n;
}

static const char *seek(const char *list, unsigned k)
{
    for (; k && list; k--) {
        list = strchr(list, ',');
        list += list != NULL;
    }
    return list;
}

void net_addresses_at(const char *list, unsigned k, char ret_address[NET_ADDRESS_BYTES])
{
    const char *at = seek(list, k);
    size_t len = at ? strcspn(at, ",") : 0;
    if (len >= NET_ADDRESS_BYTES)
        len = 0;
    memcpy(ret_address, at ? at : "", len);
    ret_address[len] = 0;
}

int net_addresses_find(const char *list, const char *address)
{
    char one[NET_ADDRESS_BYTES];
    for (unsigned k = 0; k < net_addresses_count(list); k++) {
        net_addresses_at(list, k, one);
        if (one[0] && strcmp(one, address) == 0)
            return (int)k;
    }
    return -1;
}

/* "host:port", "[v6]:port", or ":port" for all addresses of this host. */
static bool plausible(const char *address)
{
    const char *colon = strrchr(address, ':');
    if (!colon || !colon[1] || strspn(colon + 1, "0123456789") != strlen(colon + 1))
        return false;
    bool bracketed = address[0] == '[' && colon[-1] == ']';
    return colon == address || bracketed || memchr(address, ':', (size_t)(colon - address)) == NULL;
}

int net_addresses_check(const char *what, const char *list, struct leat_error *err)
{
    unsigned n = net_addresses_count(list);
    char one[NET_ADDRESS_BYTES];
    if (strlen(list) >= NET_ADDRESS_BYTES)
        return error_set(err, LEAT_INVALID, "%s = %s: the addresses of one node have at most %u characters",
                         what, list, NET_ADDRESS_BYTES - 1);
    if (n > NET_ADDRESSES_MAX)
        return error_set(err, LEAT_INVALID, "%s = %s: a node has at most %u addresses, one for each rail",
                         what, list, NET_ADDRESSES_MAX);
    for (unsigned k = 0; k < n; k++) {
        net_addresses_at(list, k, one);
        if (!plausible(one))
            return error_set(
                err, LEAT_INVALID,
                "%s = %s: '%s' is neither host:port nor [ipv6]:port; several addresses of one node "
                "are joined by commas without a space",
                what, list, one);
        if (net_addresses_find(list, one) != (int)k)
            return error_set(err, LEAT_INVALID, "%s = %s: %s is there twice", what, list, one);
    }
    return 0;
}
