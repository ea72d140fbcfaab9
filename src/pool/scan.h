/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scan.h: the objects below a prefix elsewhere, read once, in the order of their list, while the list is still coming (docs/decisions/0103). No working
 * set: there is no index, no number of samples and no order but that one.
 *
 *   thread:  list ──▶ room in the window ──▶ read under way ──▶ there ─┐         loop:  pool_scan_take ──▶ one client, which maps the window
 *                        ▲                                            └─ advanced ─▶      │
 *                        └──────────────────────────── released ──────────────────────────┘
 *
 * The window is a region, a ring of whole objects. All of a scan (window, session, list, table) is charged when it is made, and comes back when
 * both its thread and its user have let go.
 */
#ifndef POOL_SCAN_H
#define POOL_SCAN_H

#include "base/base.h"
#include "wire/leat/messages.h"

struct access;
struct pool;
struct region;
struct pool_scan;

struct pool_scan_spec {
    uint32_t uid;
    const char *uri;       /* "s3://bucket/prefix", "store://bucket/prefix": dataset_has_lists */
    const char *after;     /* key below it to go on behind, "": from the first one */
    uint64_t window_bytes; /* at most; 0: 64 MiB, or half of what room there is */
    struct access *access; /* a reference is taken */
    /* On the loop, later: there may be something new to take. */
    void (*advanced)(void *user);
    void *user;
};

/* All on the control loop. LEAT_NO_SPACE, LEAT_BUSY (too many scans). */
int pool_scan_new(struct pool *pool, const struct pool_scan_spec *spec, struct pool_scan **ret_scan,
                  struct leat_error *err);
const struct region *pool_scan_window(const struct pool_scan *scan);
/*
 * Objects below number `released` are done with; those from `from` on that are there, a few at a time, are put into ret, whose strings stay the
 * scan's, valid until the next call (the caller frees ret->objects only). 1: there are some, or the end; 0: none yet, `advanced` will come.
 * Negative: what the list, or the object `from`, failed with; LEAT_BUSY: what is not released leaves no room for more.
 */
int pool_scan_take(struct pool_scan *scan, uint64_t from, uint64_t released, struct proto_scanned *ret,
                   struct leat_error *err);
/* The user lets go: it is not called any more. NULL is fine. */
void pool_scan_end(struct pool_scan *scan);
/* Of all scans. */
uint64_t pool_scans_window_bytes(const struct pool *pool);

#endif
