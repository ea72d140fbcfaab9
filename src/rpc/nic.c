/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/nic.h"

#include "rpc/addresses.h"
#include "loop/resolve.h"

#include <ifaddrs.h>
#include <netinet/in.h>

static const uint8_t *bytes_of(const struct sockaddr *a, size_t *ret_len)
{
    *ret_len = a->sa_family == AF_INET ? sizeof(struct in_addr) : sizeof(struct in6_addr);
    return a->sa_family == AF_INET
               ? (const uint8_t *)&((const struct sockaddr_in *)(const void *)a)->sin_addr
               : (const uint8_t *)&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
}

static bool same_address(const struct sockaddr *a, const struct sockaddr *b)
{
    size_t len, other;
    const uint8_t *x = bytes_of(a, &len), *y = bytes_of(b, &other);
    return a->sa_family == b->sa_family && memcmp(x, y, len) == 0;
}

static bool in_subnet(const struct ifaddrs *i, const struct sockaddr *far)
{
    if (!i->ifa_addr || !i->ifa_netmask || i->ifa_addr->sa_family != far->sa_family)
        return false;
    size_t len, other;
    const uint8_t *ours = bytes_of(i->ifa_addr, &len), *theirs = bytes_of(far, &other);
    const uint8_t *mask = bytes_of(i->ifa_netmask, &other);
    for (size_t b = 0; b < len; b++)
        if ((ours[b] ^ theirs[b]) & mask[b])
            return false;
    return true;
}

/* Its place in listen, or -1. */
static int listened(const struct sockaddr *ours, const char *listen)
{
    char one[NET_ADDRESS_BYTES];
    for (unsigned k = 0; listen && k < net_addresses_count(listen); k++) {
        struct resolve_address a;
        net_addresses_at(listen, k, one);
        if (resolve_numeric(one, &a) == 0 && same_address((const struct sockaddr *)&a.at, ours))
            return (int)k;
    }
    return -1;
}

static void fill(const struct ifaddrs *i, struct nic *ret)
{
    *ret = (struct nic){.running = (i->ifa_flags & IFF_UP) && (i->ifa_flags & IFF_RUNNING)};
    ret->len = i->ifa_addr->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    memcpy(&ret->address, i->ifa_addr, ret->len);
    strncpy(ret->name, i->ifa_name, sizeof(ret->name) - 1);
}

int nic_find(const struct sockaddr_storage *far, unsigned k, const char *listen, struct nic *ret_nic)
{
    const struct sockaddr *to = (const struct sockaddr *)far;
    struct nic ours[NET_ADDRESSES_MAX] = {0}, other = {0};
    struct ifaddrs *list;
    unsigned n = 0;
    bool here = false;
    if (to->sa_family != AF_INET && to->sa_family != AF_INET6)
        return LEAT_NOT_FOUND;
    if (getifaddrs(&list) < 0)
        return -errno;
    for (const struct ifaddrs *i = list; i; i = i->ifa_next) {
        int at = in_subnet(i, to) ? listened(i->ifa_addr, listen) : -2;
        here = here || (at != -2 && same_address(i->ifa_addr, to));
        if (at >= 0 && at < (int)NET_ADDRESSES_MAX)
            fill(i, &ours[at]);
        else if (at == -1 && !other.len)
            fill(i, &other);
    }
    freeifaddrs(list);
    for (unsigned i = 0; i < NET_ADDRESSES_MAX; i++)
        if (ours[i].len)
            ours[n++] = ours[i];
    if (!n && !other.len)
        return LEAT_NOT_FOUND;
    *ret_nic = n ? ours[k % n] : other;
    if (here)
        ret_nic->name[0] = 0; /* packets to this very host come in by lo, whatever its address */
    return 0;
}

int nic_bind(int fd, const struct nic *nic)
{
    if (nic->name[0] &&
        setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, nic->name, (socklen_t)strlen(nic->name)) < 0 &&
        errno != EPERM)
        return -errno;
    return bind(fd, (const struct sockaddr *)&nic->address, nic->len) < 0 ? -errno : 0;
}
