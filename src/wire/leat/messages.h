/* SPDX-License-Identifier: Apache-2.0 */
/*
 * messages.h: the bodies of frames, one struct a message; enum proto_type maps messages to structs.
 *
 * Fields are on the wire in the order of their declaration: an integer little-endian in as many bytes as it has here, an array of
 * bytes as it is, a string as u32 length and its UTF-8 bytes, without a NUL. test_messages.c has the bytes of each.
 *
 * Each has these functions:
 *     void proto_X_put(out, m)       appends it; lack of memory is in out->failed
 *     int  proto_X_get(body, len, m) reads it; it is all of the body
 *     int  proto_X_next(in, m)       reads it; other things may follow, and in->pos is where
 *     void proto_X_fini(m)           frees what a reader has allocated; secrets are wiped
 *
 * Readers return 0; LEAT_CORRUPT for what is cut short, too long or breaks a promise of the struct; or -ENOMEM. After an error *m has
 * nothing to free. Strings and arrays of a message that was read belong to it. A message that ends with a count `n` announces
 * elements: the caller writes and reads them one by one, and a reader has checked that they are what follows, and nothing more.
 */
#ifndef WIRE_LEAT_MESSAGES_H
#define WIRE_LEAT_MESSAGES_H

#include "base/bytes.h"
#include "wire/leat/proto.h"

struct proto_layout;
void proto_put(struct bytes_out *out, const struct proto_layout *layout, const void *m);
int proto_get(const void *body, size_t len, const struct proto_layout *layout, void *ret);
int proto_next(struct bytes_in *in, const struct proto_layout *layout, void *ret);
void proto_fini(const struct proto_layout *layout, void *m);
#define PROTO_MESSAGE(X)                                                                                     \
    extern const struct proto_layout proto_##X##_layout;                                                     \
    static inline void proto_##X##_put(struct bytes_out *out, const struct proto_##X *m)                     \
    {                                                                                                        \
        proto_put(out, &proto_##X##_layout, m);                                                              \
    }                                                                                                        \
    static inline int proto_##X##_get(const void *body, size_t len, struct proto_##X *ret)                   \
    {                                                                                                        \
        return proto_get(body, len, &proto_##X##_layout, ret);                                               \
    }                                                                                                        \
    static inline int proto_##X##_next(struct bytes_in *in, struct proto_##X *ret)                           \
    {                                                                                                        \
        return proto_next(in, &proto_##X##_layout, ret);                                                     \
    }                                                                                                        \
    static inline void proto_##X##_fini(struct proto_##X *m)                                                 \
    {                                                                                                        \
        proto_fini(&proto_##X##_layout, m);                                                                  \
    }

/* AUTO_MESSAGE(drop) m; once a reader has filled it, or it is {0}, it may go out of scope. */
#define AUTO_MESSAGE(X) __attribute__((cleanup(proto_##X##_fini))) struct proto_##X

/* --- every connection ------------------------------------------------------------------------------------------ */

/* HELLO. Its role is an enum proto_role; the lowest version is at most the highest. */
struct proto_hello {
    uint8_t version_min, version_max;
    uint8_t role;
    uint32_t pid;
    char program[32];
    uint8_t nonce[32];               /* TCP; zeros on a unix socket */
    uint32_t acting_uid, acting_gid; /* TCP: on whose behalf */
    uint8_t uuid[PROTO_UUID];        /* DATA: the working set */
    uint32_t generation;             /* DATA: of its descriptor */
};
PROTO_MESSAGE(hello)

struct proto_welcome {
    uint8_t version;
    uint8_t nonce[32], mac[32]; /* TCP: of the first reply, of the second */
    char node[256];             /* its name or address */
    uint32_t node_id;
    uint64_t region_bytes, pool_bytes;
    uint64_t client_count;
};
PROTO_MESSAGE(welcome)

struct proto_proof {
    uint8_t mac[32];
};
PROTO_MESSAGE(proof)

/* The message of a reply with status < 0: owned; NULL if it cannot be read. Bytes behind it are ignored. */
char *proto_error_text(const void *body, size_t len);
void proto_error_text_put(struct bytes_out *out, const char *text);

/* CLOSE: a set's handle. RELEASE: a lease. CANCEL: a request. SCAN_END: a scan. Also an element of WAIT and
 * URGENT: a sample. */
struct proto_id {
    uint64_t id;
};
PROTO_MESSAGE(id)

/* --- opening ---------------------------------------------------------------------------------------------------- */

/*
 * The settings and identity with which a remote source is read, as the client found them in its own
 * environment. Between a client and its daemon; between hosts only sealed (rpc/seal.h). Strings are owned;
 * NULL and "" are the same: not set.
 */
struct proto_access {
    uint32_t flags;  /* PROTO_ACCESS_* */
    int64_t expires; /* seconds since 1970; 0: never, or not known */
    char *endpoint, *region, *style, *ca_file, *profile;
    char *access_key, *secret_key, *token;
};
#define PROTO_ACCESS_ANONYMOUS 1u
#define PROTO_ACCESS_INSECURE  2u
#define PROTO_ACCESS_FOUND     4u /* by looking where AWS's tools look; else the program gave them */
#define PROTO_ACCESS_STR_MAX   1024u
#define PROTO_ACCESS_TOKEN_MAX 16384u
PROTO_MESSAGE(access)

/* The output of `leatd --find-credentials`: behind it a proto_access, or the text of an error. */
struct proto_found {
    int32_t status;
};
PROTO_MESSAGE(found)

struct proto_open {
    uint32_t flags; /* LEAT_OPEN_* */
    uint64_t pool_bytes;
    char *name; /* owned; "" = implicit */
    char *uri;
    bool has_access; /* for remote sources: a tail that may be missing; this bool itself is not on the wire */
    struct proto_access access;
};
PROTO_MESSAGE(open)

struct proto_create {
    uint32_t flags;
    char *name;
};
PROTO_MESSAGE(create)

struct proto_progress {
    uint32_t stage; /* enum leat_stage */
    uint64_t samples_done, samples_total, bytes_done, bytes_total;
};
PROTO_MESSAGE(progress)

struct proto_revoked {
    uint64_t ws;
    uint32_t generation;
};
PROTO_MESSAGE(revoked)

/* --- working set ------------------------------------------------------------------------------------------------ */

struct proto_node {
    uint32_t id;
    char address[256]; /* "host:port[,host:port]"; "" for the daemon that answers */
};
PROTO_MESSAGE(node)
struct proto_region {
    uint32_t gid;
    uint32_t node;       /* index into nodes */
    uint32_t page_bytes; /* reserved: the live table has the obtained size */
    uint32_t generation;
};
PROTO_MESSAGE(region)
struct proto_ws {
    uint64_t ws; /* handle on this connection */
    uint8_t uuid[PROTO_UUID];
    uint32_t generation, version, flags, mode, owner_uid, owner_gid;
    uint64_t region_bytes;
    /* addresses below are (or become) resident; at and above are streamed. address_end: none */
    uint64_t pinned_end;
    uint64_t index_bytes, live_bytes;
    char *name; /* owned */
    char *uri;
    uint32_t nnodes, nregions;    /* on the wire each is ahead of its array */
    struct proto_node *nodes;     /* owned */
    struct proto_region *regions; /* owned; in order of gid */
};
#define PROTO_WS_STREAMED 1u
#define PROTO_WS_EXPLICIT 2u
#define PROTO_WS_PUSHED   4u
PROTO_MESSAGE(ws)

struct proto_regions {
    uint64_t ws;
    uint32_t first, count; /* at most PROTO_FDS_MAX; the caller checks */
};
PROTO_MESSAGE(regions)

/* A region by its number: an element of the answer to REGIONS, and of RDMA_KEYS. */
struct proto_gid {
    uint32_t gid;
};
PROTO_MESSAGE(gid)

struct proto_regions_reply {
    uint32_t n; /* proto_gid follow, as many as descriptors */
};
PROTO_MESSAGE(regions_reply)

struct proto_wait {
    uint64_t ws;
    uint32_t n; /* proto_id follow: samples; at most PROTO_IDS_MAX */
};
PROTO_MESSAGE(wait)

struct proto_span {
    uint64_t first, count; /* samples */
};
PROTO_MESSAGE(span)

struct proto_fetch {
    uint64_t ws;
    uint32_t n; /* proto_span follow; at most PROTO_IDS_MAX */
};
PROTO_MESSAGE(fetch)

/* Staging places of a FETCH: linear addresses [address, +bytes) lie at `offset` of staging region `gid`. Range
 * by range as asked for; runs of different ranges may overlap (direct I/O widens them to whole blocks). */
struct proto_run {
    uint64_t address, bytes, offset;
    uint32_t
        gid; /* PROTO_STREAM_WINDOW | n: its descriptor comes with the reply the first time, else by REGIONS */
};
#define PROTO_STREAM_WINDOW 0x80000000u
PROTO_MESSAGE(run)
struct proto_fetched {
    uint64_t lease;
    uint32_t nruns;
    struct proto_run *runs; /* owned */
};
PROTO_MESSAGE(fetched)

struct proto_broker {
    uint64_t ws;
    uint32_t node;
    bool by_rail; /* not on the wire: without it the rail is missing, and any address will do */
    uint32_t rail;
};
PROTO_MESSAGE(broker)

struct proto_brokered {
    bool says; /* not on the wire: without it the version is missing, and PROTO_VERSION_MIN */
    uint8_t version;
};
PROTO_MESSAGE(brokered)

struct proto_credits {
    uint32_t slot;
};
PROTO_MESSAGE(credits)

/* --- administration --------------------------------------------------------------------------------------------- */

struct proto_query {
    uint32_t query; /* enum leat_query */
    const char *arg;
};
PROTO_MESSAGE(query)

struct proto_query_reply {
    char *text; /* up to PROTO_BODY_MAX bytes */
};
PROTO_MESSAGE(query_reply)

struct proto_drop {
    uint32_t flags; /* LEAT_DROP_* */
    uint64_t wait_ns;
    const char *name;
};
PROTO_MESSAGE(drop)

struct proto_stop {
    uint32_t force;
};
PROTO_MESSAGE(stop)

struct proto_verify {
    uint64_t ws;
    uint32_t flags; /* LEAT_VERIFY_* */
};
PROTO_MESSAGE(verify)

struct proto_verify_reply {
    uint64_t bad;
    const char *first_bad; /* its key */
};
PROTO_MESSAGE(verify_reply)

/* The rank is below the world's size, and the share of waiting at most 1000. */
struct proto_report {
    uint64_t ws, loader; /* handle on this connection; which loader of this process */
    uint64_t epoch, samples, length, batch_samples, step_samples;
    uint64_t total_samples, total_bytes, samples_per_ks, bytes_per_s; /* ks: 1,000 seconds */
    uint64_t order;          /* digest of the epoch's order, the same on all ranks; 0: none */
    uint32_t flags, verdict; /* enum leat_verdict: unknown values are shown as such */
    uint32_t rank, world_size, waiting_permille;
    char job[128], title[256];
};
#define PROTO_REPORT_ENDED 1u
PROTO_MESSAGE(report)

/* --- scan --------------------------------------------------------------------------------------------------------- */

struct proto_scan {
    const char *after; /* the key behind which it begins; "" for the first */
    struct proto_open open;
};
PROTO_MESSAGE(scan)

struct proto_scan_reply {
    uint64_t id, window_bytes;
};
PROTO_MESSAGE(scan_reply)

struct proto_scan_next {
    uint64_t id, from, released; /* numbers of objects */
};
PROTO_MESSAGE(scan_next)

/* Objects of a scan, one after another: the bytes of each lie in its window at `offset`. */
struct proto_scan_object {
    uint64_t offset, bytes;
    int64_t modified; /* seconds since 1970 */
    char *key, *etag; /* owned; key: what follows the prefix */
};
PROTO_MESSAGE(scan_object)
struct proto_scanned {
    uint32_t flags, n;
    struct proto_scan_object *objects; /* owned */
};
#define PROTO_SCANNED_END 1u /* there are no more behind these */
#define PROTO_SCAN_ETAG   160u
#define PROTO_SCAN_HELD                                                                                      \
    1024u /* objects at most from the first that is not released to the last that was sent */
PROTO_MESSAGE(scanned)

/* --- data --------------------------------------------------------------------------------------------------------- */

struct proto_write {
    uint64_t first; /* sample */
    uint32_t count; /* of samples */
    uint32_t n;     /* proto_range follow; at most PROTO_READS_MAX */
};
PROTO_MESSAGE(write)

struct proto_keys {
    uint32_t n; /* proto_gid follow; at most PROTO_KEYS_MAX */
};
PROTO_MESSAGE(keys)

/* Of one region in the answer to RDMA_KEYS; its address, bytes and keys follow. */
struct proto_key {
    uint32_t gid, generation;
};
PROTO_MESSAGE(key)

/* RDMA_PUT. */
struct proto_puts {
    uint32_t view, rail; /* the server's rail */
    uint32_t n;          /* proto_put_range follow; at most PROTO_PUTS_MAX */
};
PROTO_MESSAGE(puts)

struct proto_put_range {
    uint32_t gid, bytes;
    uint64_t offset, to; /* in the region, in the view */
};
PROTO_MESSAGE(put_range)

/* --- peers -------------------------------------------------------------------------------------------------------- */

/* NODE: who asks. */
struct proto_node_ask {
    const char *name;
    bool says; /* not on the wire: without it the incarnation is missing, as in version 2 */
    uint64_t incarnation;
};
PROTO_MESSAGE(node_ask)

/* What a proto_node_reply begins with: who answers. */
struct proto_name {
    const char *name;
};
PROTO_MESSAGE(name)

struct proto_node_reply {
    const char *name;
    uint64_t cap_bytes, free_bytes, region_bytes, used_bytes;
    uint64_t incarnation; /* another one each time the daemon is started */
};
PROTO_MESSAGE(node_reply)

/* INSTALL, behind its proto_ws. */
struct proto_install {
    uint32_t flags; /* 1: wait for COMMIT */
    uint64_t first_new_address;
    uint8_t replaces[PROTO_UUID]; /* the version before it; zeros: none */
};
PROTO_MESSAGE(install)

struct proto_commit {
    uint8_t uuid[PROTO_UUID], replaces[PROTO_UUID];
};
PROTO_MESSAGE(commit)

/* FORGET and RESYNC. */
struct proto_set_flags {
    uint8_t uuid[PROTO_UUID];
    uint32_t flags;
};
PROTO_MESSAGE(set_flags)

struct proto_resync_reply {
    uint32_t filled; /* 1: all of its regions */
};
PROTO_MESSAGE(resync_reply)

struct proto_ready {
    uint8_t uuid[PROTO_UUID];
    uint32_t n; /* proto_ready_record follow */
};
PROTO_MESSAGE(ready)

struct proto_ready_record {
    uint64_t sample;
    uint32_t field, crc;
    uint64_t offset, bytes; /* in the part */
    int32_t status;
};
#define PROTO_READY_RECORD 36u /* bytes on the wire */
PROTO_MESSAGE(ready_record)

struct proto_moved {
    uint8_t uuid[PROTO_UUID];
    uint32_t n; /* proto_place follow */
};
PROTO_MESSAGE(moved)

struct proto_place {
    uint32_t gid, node;  /* index into the set's nodes */
    uint32_t generation; /* how often the region has moved: of two places the later one holds */
};
PROTO_MESSAGE(place)

struct proto_urgent {
    uint8_t uuid[PROTO_UUID];
    uint32_t n; /* proto_id follow: samples of the set; at most PROTO_URGENT_MAX */
};
PROTO_MESSAGE(urgent)

/* DESCRIBE and APPEND: a sealed proto_access may follow, sealed to what is before it. */
struct proto_describe {
    uint32_t uid, gid;
    uint32_t open_bytes;
    const uint8_t *open; /* a proto_open without access; a reader's points into what it has read */
};
PROTO_MESSAGE(describe)

/* ACCESS: a sealed proto_access follows, sealed to this. */
struct proto_access_of {
    uint32_t uid;
    const char *source;
};
PROTO_MESSAGE(access_of)

#endif
