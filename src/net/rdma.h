/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rdma.h: reads by RDMA. Its client is a transport of net.h ("rdma"). Its server half, here, runs in a
 * daemon: it registers regions with every rail, gives their keys to authenticated clients, and accepts their
 * connections.
 *
 * A client asks on its data connection, which is authenticated, so no other process gets a key or a
 * connection:
 *
 *   client ── RDMA_CONNECT {secrets of its rails} ──▶ daemon    the addresses of its rails
 *   client ── connects (RDMA_CM), shows its secret ──▶ rail    others are turned away
 *   client ── RDMA_KEYS {regions} ──▶ daemon    registers them if they are not, gives their keys
 *   client ◀══ reads ══ region    the daemon's CPU takes no part
 *
 * Built without UCX's headers, or run without its library or a device: every net_rdma_*_new is LEAT_UNSUPPORTED with the reason.
 */
#ifndef NET_RDMA_H
#define NET_RDMA_H

#include "net/net.h"

#include "base/bytes.h"

#define NET_RDMA_RAILS_MAX 16u

struct net_rdma_config {
    /* "mlx5_0:1,mlx5_1:1" devices and ports; NULL or "": $LEAT_RAILS, else every active port that has an IP address. */
    const char *rails;
    /* UCX's names of transports; NULL or "": $LEAT_RDMA_TLS, else RC over verbs. "tcp" is for tests without
     * RDMA hardware (rails are network interfaces then): any process that reaches its ports can write into
     * this one. */
    const char *tls;
    /* Clients: the far end writes into registered destinations after a request (RDMA_PUT), instead of our reading its memory. */
    bool put;
};

/* --- the client: a transport of net.h ---------------------------------------------------------------------------- */

/* Its connect() needs a peer with connected_fd (the brokered data connection) and nregions; LEAT_UNSUPPORTED from there: the far end
 * has no RDMA, and the connection is still good for TCP (and still the caller's). */
int net_rdma_new(const struct net_rdma_config *config, struct net_ctx **ret_ctx, struct leat_error *err);
/* Whether net_rdma_new is likely to work, without loading anything: some RDMA port is active. */
bool net_rdma_likely(void);

/* Whether the far end can write into it now. Device memory is reached in no other way: reads into memory that
 * cannot be written are refused (LEAT_UNSUPPORTED). They come without a checksum, which the device has to
 * compute. */
bool net_rdma_may_put(const struct net_memory *memory);

/* The paths of one of its endpoints, named for our rails. */
unsigned net_rdma_paths(const struct net_endpoint *endpoint,
                        struct net_path_info ret_info[NET_RDMA_RAILS_MAX]);

/* For leat doctor: library, devices and limits, a line each (without the newline), in the order of asking. */
struct net_rdma_report {
    bool built, ucx, devices, memlock_unlimited;
    char ucx_text[160], devices_text[400];
    uint64_t memlock_bytes;
};
void net_rdma_report(struct net_rdma_report *ret_report);

/* Bytes that this process has read by each rail so far, all contexts together. Any thread. */
struct net_rdma_total {
    char name[32];
    _Atomic uint64_t bytes, failures;
};
/* *ret_totals: of this process's life. Returns how many. */
unsigned net_rdma_totals(const struct net_rdma_total **ret_totals);

/* --- the daemon's half ------------------------------------------------------------------------------------------- */

struct net_rdma_server;
struct net_rdma_peer;
struct net_rdma_memory;

/* Opens every rail; nothing is registered yet. A rail that cannot be opened is logged, and tried again later; LEAT_UNSUPPORTED: none could. */
int net_rdma_server_new(const struct net_rdma_config *config, struct net_rdma_server **ret_server,
                        struct leat_error *err);
/* After every peer and registration is gone. NULL is fine. */
void net_rdma_server_free(struct net_rdma_server *server);

/* A region's registration: zeroed at first; made when the first client asks for its keys. Any thread. */
struct net_rdma_slot {
    struct net_rdma_memory *memory; /* under a lock of serve.c, as closed and busy are */
    bool closed, busy;              /* busy: a thread registers it, or takes that down */
    _Atomic bool known;             /* it was registered: its memory is there */
};
/* Deregisters from every rail, so that its pages may be given back, and refuses from then on. Harmless twice, and on a zeroed one. */
void net_rdma_slot_close(struct net_rdma_slot *slot);

/* One client's data connection, as long as it lives. Any thread. */
int net_rdma_peer_new(struct net_rdma_server *server, struct net_rdma_peer **ret_peer);
/* Closes its connections, later, on the rails' threads. NULL is fine. */
void net_rdma_peer_free(struct net_rdma_peer *peer);
/* For callers of net_rdma_peer_put that run later than the request: the peer may be freed before. */
void net_rdma_peer_ref(struct net_rdma_peer *peer);
void net_rdma_peer_unref(struct net_rdma_peer *peer);
/* Answers RDMA_CONNECT: appends the reply's body. */
int net_rdma_peer_connect(struct net_rdma_peer *peer, struct bytes_in *in, struct bytes_out *reply,
                          struct leat_error *err);
/* Appends the keys of [addr, +bytes), registered in `slot`, to a reply of RDMA_KEYS. LEAT_STALE: the slot is closed. */
int net_rdma_put_keys(struct net_rdma_server *server, struct net_rdma_slot *slot, void *addr, uint64_t bytes,
                      struct bytes_out *reply, struct leat_error *err);

/* Answers RDMA_VIEW: the client's buffers, for puts. */
int net_rdma_peer_view(struct net_rdma_peer *peer, struct bytes_in *in, struct leat_error *err);
/* The source of a put's range: all that `slot` registers or will, after a check that the range lies in it. */
struct proto_range;
typedef int (*net_rdma_source_fn)(void *user, const struct proto_range *range,
                                  struct net_rdma_slot **ret_slot, uint8_t **ret_addr, uint64_t *ret_bytes,
                                  struct leat_error *err);
/* Answers RDMA_PUT: NET_LATER, or why not. source_fn is called before this returns. Any thread, once the
 * peer's view is known; registers what is not registered yet, which takes long. */
struct net_later;
int net_rdma_peer_put(struct net_rdma_peer *peer, struct bytes_in *in, net_rdma_source_fn source, void *user,
                      const struct net_later *later, struct leat_error *err);

struct net_rdma_rail_stats {
    char name[32];
    bool up; /* false: its device went, and is not back */
    uint64_t connections, refused, errors;
    uint64_t put_bytes; /* written into clients' views; only clients know what they read themselves */
};
struct net_rdma_stats {
    uint64_t registrations, registered_bytes, key_requests;
    /* A holder of a key may write by it: false where UCX cannot give that right (net/ucx/verbs.h). */
    bool may_write;
    unsigned nrails;
    struct net_rdma_rail_stats rails[NET_RDMA_RAILS_MAX];
};
void net_rdma_server_stats(struct net_rdma_server *server, struct net_rdma_stats *ret_stats);

#endif
