/* SPDX-License-Identifier: Apache-2.0 */
/*
 * paths.h: several connections to each node, one for each rail, stacked on a transport whose endpoints are one connection each.
 *
 *   op ──▶ slices ──▶ the path predicted to bring each first (net/flow/stripe.h) ──▶ ops of the lower transport ──▶ DONE, QUIESCED
 *                            path broke, or stalls ──▶ closed; what it owed goes by the others
 *
 * The owner of an endpoint provides its connections: net_paths_wanted names paths that are missing or were
 * left, net_paths_add adds one, while the others are used. An endpoint of one path costs a function call.
 */
#ifndef NET_PATHS_H
#define NET_PATHS_H

#include "net/net.h"

#define NET_PATHS_MAX 8u

/* Takes `lower`, also when it fails. Its connect makes an endpoint of peer->npaths paths (0 is 1), of which peer->path is there. */
int net_paths_new(struct net_ctx *lower, struct net_ctx **ret_ctx);

/* True when some endpoint may have a path to try: cheap enough for each poll. */
bool net_paths_any_wanted(const struct net_ctx *ctx);
/* Bit k: path k is missing, and not being tried. Each is reported once; the caller adds it or fails it. */
unsigned net_paths_wanted(struct net_endpoint *endpoint, uint64_t now_ns);
/* A connection for path peer->path; peer->connected_fd is taken when 0 is returned. */
int net_paths_add(struct net_endpoint *endpoint, const struct net_peer *peer, uint64_t deadline_ns,
                  struct leat_error *err);
/* It could not be connected: wanted again after a pause. */
void net_paths_failed(struct net_endpoint *endpoint, unsigned path, uint64_t now_ns);
/* Properties of a path's link: its nominal rate (0: unknown), and a slice's penalty for distance. */
void net_paths_hint(struct net_endpoint *endpoint, unsigned path, uint64_t bytes_per_s, uint64_t penalty_ns);
/*
 * Which path should get the next `bytes`, of `left` in all (they included); for callers that set op->path,
 * since each path has a limit of its own. `refused`: paths (bits) that have no room now. -1: to wait for the
 * best is predicted to be faster, or none has room.
 */
int net_paths_pick(struct net_endpoint *endpoint, uint64_t bytes, uint64_t left, unsigned refused,
                   uint64_t now_ns);
/* For an endpoint of one path neither bytes nor rate: nothing is counted there. */
unsigned net_paths_info(const struct net_endpoint *endpoint, struct net_path_info ret_info[NET_PATHS_MAX]);

#endif
