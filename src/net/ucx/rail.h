/* SPDX-License-Identifier: Apache-2.0 */
/* rail.h: one port of one RDMA device: a UCX context and worker of its own, and the IP address by which connections find it. */
#ifndef NET_UCX_RAIL_H
#define NET_UCX_RAIL_H

#include "net/rdma.h"
#include "net/ucx/symbols.h"

#include <netinet/in.h>
#include <sys/types.h>

/* Of a device, as long as it is there; a replaced one of the same name has another. */
struct ucx_identity {
    dev_t device;
    ino_t inode; /* 0: unknown */
};

struct ucx_rail {
    const struct ucx_symbols *ucx;
    char name[32]; /* "mlx5_0:1" */
    bool tcp;      /* UCX's TCP: an interface, for tests */
    struct ucx_identity identity;
    struct sockaddr_in6 address; /* large enough for either family; port 0 */
    struct sockaddr_in6 netmask;
    ucp_context_h context;
    ucp_worker_h worker;
    struct net_rdma_total *total;             /* the process's, for clients; NULL: too many names */
    uint64_t nominal_bytes_per_s, penalty_ns; /* for stripe.h */
    int fd;                                   /* readable when there is progress to make, after arm */
};

/* The rails that there are, nearest first, as net/topo chooses them: what `leat topo` shows is what is opened. */
struct ucx_found {
    unsigned n,
        use; /* all; the first so many carry the bytes, the rest stand by for when none of those can be opened */
    struct ucx_wanted {
        char name[32]; /* "a:1" */
        uint64_t nominal_bytes_per_s, penalty_ns;
    } rails[NET_RDMA_RAILS_MAX];
};
/* From the configuration, the environment or the host. whole_host: for a daemon. LEAT_UNSUPPORTED: there is
 * none, with the reason; LEAT_INVALID: a named one is not there. */
int ucx_rails_find(const struct net_rdma_config *config, bool whole_host, struct ucx_found *ret_found,
                   struct leat_error *err);
/* client_id is shown to the far end of the worker's connections; 0: none. */
int ucx_rail_open(const struct net_rdma_config *config, const struct ucx_wanted *wanted, uint64_t client_id,
                  struct ucx_rail *ret_rail, struct leat_error *err);
void ucx_rail_close(struct ucx_rail *rail); /* harmless on a zeroed one */
/* Progresses until there is no more, but not for ever. True: there may be more. */
bool ucx_rail_progress(struct ucx_rail *rail);
/* 0: its fd may be slept on; -EBUSY: progress first; -EIO: its device is of no more use. Callbacks may come. */
int ucx_rail_arm(struct ucx_rail *rail);

/* Its device is not there, or is another one of the same name, or its address has become another one. Calls nothing of UCX. */
bool ucx_rail_gone(const struct ucx_rail *rail);

/* Registers [addr, +bytes). `remote_read`: others read it; else it is ours to read into. device < 0: host memory. */
int ucx_rail_map(struct ucx_rail *rail, void *addr, uint64_t bytes, bool remote_read, int device,
                 ucp_mem_h *ret_memh, struct leat_error *err);

/* The beginning of a packed key of host memory on our rails (devices, kind of memory, size of the first
 * device's part), and its length. */
#define UCX_SHAPE 10u
struct ucx_shape {
    uint8_t head[UCX_SHAPE];
    size_t bytes;
    bool read_only; /* not in the shape: whether a holder of such a key cannot write (verbs.h) */
};
/* Registers a page for as long as it takes to see its key. */
int ucx_shape_take(struct ucx_rail *rail, struct ucx_shape *ret_shape, struct leat_error *err);
/* UCX trusts the contents of a packed key, and crashes on a false one. One that fits holds nothing but
 * numbers for the NIC, which checks them. */
bool ucx_shape_fits(const struct ucx_shape *shape, const void *key, size_t len);
/* With zeros behind it: UCX does not get the length of a key. NULL: no memory. */
void *ucx_key_copy(const void *key, size_t len);

bool ucx_is_tcp(const struct net_rdma_config *config);
const char *ucx_tls(const struct net_rdma_config *config);
/* "10.0.0.1:1234", "[fe80::1]:1234" and back. */
void ucx_address_print(const struct sockaddr *address, char buf[80]);
int ucx_address_parse(const char *text, struct sockaddr_in6 *ret_address);
static inline socklen_t ucx_address_len(const struct sockaddr_in6 *a)
{
    return a->sin6_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(*a);
}
bool ucx_same_subnet(const struct ucx_rail *rail, const struct sockaddr_in6 *other);

#endif
