/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scan.h: the objects below a remote prefix, read once, in the order of their list, while the list is still
 * coming (docs/decisions/0103). No working set: it has no index, no number of samples and no other order.
 *
 *   thread:  list ──▶ room in the window ──▶ read under way ──▶ there ─┐         loop:  pool_scan_take ──▶ one client, which maps the window
 *                        ▲                                            └─ advanced ─▶      │
 *                        └──────────────────────────── released ──────────────────────────┘
 *
 * The window is a region, a ring of whole objects. All of a scan (window, session, list, table) is charged
 * when it is made, and comes back when both its thread and its user have released it.
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
    const char *after;     /* key below it behind which to continue, "": from the first one */
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
 * Objects below number `released` are no longer used. Available ones from `from` on are put into ret, a few
 * at a time. Its strings stay the scan's, valid until the next call; the caller frees ret->objects only. 1:
 * there are some, or the end; 0: none yet, `advanced` will come. Negative: the error of the list, or of the
 * object `from`; LEAT_BUSY: unreleased objects leave no room for more.
 */
int pool_scan_take(struct pool_scan *scan, uint64_t from, uint64_t released, struct proto_scanned *ret,
                   struct leat_error *err);
/* Its user ends it: no more callbacks. NULL is fine. */
void pool_scan_end(struct pool_scan *scan);
/* Of all scans. */
uint64_t pool_scans_window_bytes(const struct pool *pool);

#endif
