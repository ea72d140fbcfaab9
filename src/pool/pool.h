/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool.h: the DataServer: regions under one cap, working sets, their opening, sharing and end. Everything here belongs to
 * the control loop unless it says otherwise.
 *
 *   OPEN ─▶ opening (index thread: scan or map) ─▶ admission ─▶ regions ─▶ fill ─▶ READY
 *                                                    │
 *                        all of it fits: pinned whole ┴ else: a pinned part that is never replaced, and a window (staging)
 */
#ifndef POOL_POOL_H
#define POOL_POOL_H

#include "base/base.h"
#include "base/list.h"
#include "base/budget.h"
#include "loop/loop.h"
#include "rpc/addresses.h"
#include "pool/source/access.h"
#include "pool/fill/fill.h"
#include "pool/rdma.h"
#include "pool/limits.h"
#include "pool/region/region.h"
#include "pool/set/wset.h"
#include "pool/source/source.h"
#include "wire/leat/proto.h"

#include <pthread.h>

struct cluster;
struct net_server;
struct prefault;
struct index;
struct stream_window;

struct pool_config {
    uint64_t cap_bytes;         /* of all working sets on this host: regions, windows, tables, scratch */
    uint64_t region_bytes;      /* power of two */
    uint64_t prefault_bytes;    /* of memory to prefault, part of cap_bytes (prefault.h); 0: none */
    struct region_source pages; /* huge pages, where the kernel gives them */
    unsigned fill_threads, data_threads, disk_depth;
    const char *disk_engine;
    struct source_opener opener;
    struct access_config s3;
    struct pool_rdma_config rdma; /* its strings are the caller's, and outlive the pool */
    struct limits limits;
};

struct opening;

struct open_request {
    struct list node; /* pool's until called back */
    uint32_t uid, gid, flags;
    struct source_groups *groups; /* of the requesting process; owned by the request. NULL: source.h */
    uint64_t pool_bytes;
    char *name; /* "" = implicit; owned by the request */
    char *uri;
    struct access *access; /* of remote sources; owned by the request. NULL: the requester brought none */
    bool append;           /* uri is added to the explicit set `name` */
    bool local;            /* asked by another node, or decided: not to be forwarded */
    /* On the loop: ws (a lease is the callee's to take) or an error. The request is freed afterwards. */
    void (*opened)(struct open_request *request, struct wset *ws, const struct leat_error *err);
    void (*progress)(struct open_request *request, uint64_t samples, uint64_t bytes);
    uint64_t began_ns;
    void *user; /* the requester: its connection, and which message */
    uint16_t type;
    uint64_t id;
};

/* Later, on the loop: the set is prepared (err NULL), or gone. */
typedef void (*pool_prepared_fn)(void *user, const struct leat_error *err);

/* Services of the other nodes that hold a pool's sets: pool/nodes. Control loop, except `filled`. Sets of one
 * node (ws->nnodes == 0) are passed, too, and ignored. */
#define POOL_ALL_NODES UINT32_MAX
struct pool_nodes_ops {
    /* An OPEN by canonical source, or by name (spec NULL), that another node answers: true: the request was taken. */
    bool (*open)(struct cluster *cluster, struct open_request *request, const char *spec);
    /* An APPEND that another node makes: true: the request was taken. */
    bool (*append)(struct cluster *cluster, struct open_request *request);
    /* The requests of this user are not called back any more. */
    void (*open_forget)(struct cluster *cluster, const void *user);
    /*
     * Places ws, which no list has yet, over the live nodes, and commits it on all of them or none. Takes its first reference, also on
     * failure. limit: bytes at most, 0: none. done: maybe at once. ws->replaces is the version before, whose hosts must be alive. -ENOMEM.
     */
    int (*place)(struct cluster *cluster, struct wset *ws, uint64_t limit, pool_prepared_fn done, void *user);
    bool (*all_reachable)(const struct cluster *cluster);
    /* The hosts keep ws for this node, until it is released or forgotten. */
    void (*retain)(struct cluster *cluster, struct wset *ws);
    void (*release)(struct cluster *cluster, struct wset *ws);
    /* ws ended here. `end`: it was dropped by name, for all nodes. */
    void (*forget)(struct cluster *cluster, struct wset *ws, bool end, bool force);
    /* Pieces that this node has, as READY records. Any thread. May take the buffer. */
    void (*filled)(struct cluster *cluster, struct wset *ws, struct bytes_out *records);
    /* A client waits for sample i of ws: the nodes that have bytes of it to load do so first. False: so many are waited for that there is
     * no room: to be called again when samples have arrived. */
    bool (*urge)(struct cluster *cluster, struct wset *ws, uint64_t i);
    /* Samples of ws changed state. Before pool.advanced. */
    void (*advanced)(struct cluster *cluster, struct wset *ws);
    /* The access of user uid to a source: to one node, or to POOL_ALL_NODES; unreachable ones are skipped. */
    void (*share_access)(struct cluster *cluster, unsigned node, uint32_t uid, const char *spec,
                         struct access *access);
};

struct pool {
    struct pool_config config;
    struct wset_config set_config;
    struct access_store store; /* ours; none before pool_store */
    struct loop *loop;
    struct fill *fill;
    struct net_server *server;
    struct budget budget;
    struct prefault *ready; /* NULL: none is wanted */
    struct loop_timer prefault_timer;
    struct quota shares;  /* what each user has */
    struct list sets;     /* wset.node */
    struct list openings; /* struct opening.node */
    struct list changes;  /* change.c: sets that are being made of a given index, or longer */
    struct list works;    /* work.node */
    struct list scans;    /* struct pool_scan.node */
    /* Struct cached_access.node: accesses that clients here brought, the last one first */
    struct list access_cache;
    unsigned naccess_cache;
    unsigned working;   /* works whose thread runs */
    unsigned indexing;  /* index threads that run */
    unsigned verifying; /* verifications under way */
    /* Set by cluster_new, until cluster_free; NULL: a single node. */
    struct cluster *cluster;
    const struct pool_nodes_ops *nodes;
    pthread_mutex_t rdma_lock;
    struct net_rdma_server *rdma; /* under rdma_lock; NULL: not asked for yet, or not available: rdma_why */
    struct leat_error rdma_why;
    uint64_t rdma_again_ns; /* not looked for again before */
    /* Samples of ws changed state: waiters are looked at (server.c). */
    void (*advanced)(void *user, struct wset *ws);
    /* ws ends by force: notifies its holders. */
    void (*revoked)(void *user, struct wset *ws);
    /* An explicit set came or went. */
    void (*changed)(void *user);
    void *user;
    _Atomic uint64_t opens, index_scans, index_hits, drops, evictions;
    /* Of index threads and scans, as fill_stats has them of fill threads. */
    _Atomic uint64_t remote_requests, remote_retries, remote_throttled, remote_connections, remote_bytes;
    _Atomic uint64_t table_bytes, scratch_bytes; /* of the reservations taken */
    _Atomic uint64_t
        leaving_bytes; /* of sets that ended, unused, and have a thread inside or a connection: it comes back soon */
    _Atomic uint64_t sets_alive; /* until their memory is gone */
    _Atomic unsigned threads;    /* of indexing and verifying: each has a message to the loop to deliver */
    _Atomic bool stopping;
    _Atomic uint64_t
        rail_sent_bytes[NET_ADDRESSES_MAX]; /* any thread: by each of the addresses that we listen on */
};

int pool_new(struct loop *loop, const struct pool_config *config, struct pool **ret_pool,
             struct leat_error *err);
/* Sets may be of this store from now on ("store://bucket/prefix"); it outlives pool_stop. Control loop. */
struct store;
void pool_store(struct pool *pool, struct store *store,
                bool (*may_read)(void *user, uint32_t uid, const char *bucket), void *user);
/*
 * Before cluster_free, so that no thread is left that could call into it: openings end, threads are joined, every set goes.
 * LEAT_TIMED_OUT: a thread does not come back (a file system that hangs): then nothing may be freed. NULL is fine.
 */
int pool_stop(struct pool *pool);
/* After pool_stop (which it calls if need be); NULL is fine. Clients' connections must be gone. */
void pool_free(struct pool *pool);

/* Takes the request (also on failure, when it calls back later with the error). */
void pool_open(struct pool *pool, struct open_request *request);
/* The requester is gone: its callback is dropped. */
void pool_open_forget(struct pool *pool, void *user);
/* Memory set by ranks: index of kind PUSHED in index_fd, which is taken. Takes the request, as pool_open does. */
void pool_create(struct pool *pool, struct open_request *request, int index_fd);
/*
 * A set is made in two steps. Prepared: it has its memory here and all that can fail has been done, off the
 * loop where it takes long; no search by name finds it. Committed: it is there, and the version that it
 * replaces is gone, in one turn of the loop. Takes the set's first reference, also on failure.
 */
int pool_prepare(struct pool *pool, struct wset *ws, uint64_t limit, pool_prepared_fn done, void *user);
void pool_commit(struct pool *pool, struct wset *ws);

/* Names are each user's own: theirs first, then one that they may read, then any (which the caller refuses). */
struct wset *pool_find_name(struct pool *pool, const char *name, uint32_t uid, uint32_t gid);
struct wset *pool_find_uuid(struct pool *pool, const uint8_t uuid[PROTO_UUID]);
/* By name or, for implicit sets, by source. */
struct wset *pool_find(struct pool *pool, const char *name_or_uri, uint32_t uid, uint32_t gid);

/* A handle: keeps the set alive and prevents a drop. */
void pool_lease(struct wset *ws);
void pool_unlease(struct wset *ws);
/* No client is left: implicit sets go. `uid`: of that user only, UINT32_MAX all. */
void pool_sweep(struct pool *pool, uint32_t uid);
/*
 * Ends a set: searches no longer find it, filling stops, memory goes with the last reference. SWEEP: on this
 * node, as no client here uses it; DROP: by its name, for all nodes; DROP_FORCE: readers get LEAT_STALE and
 * the memory goes now.
 */
enum pool_end { POOL_SWEEP, POOL_DROP, POOL_DROP_FORCE };
void pool_drop(struct pool *pool, struct wset *ws, enum pool_end end);
/* Wakes requests that wait for samples of this set. Any thread, coalesced. */
void wset_progressed(struct wset *ws);
/* Takes reservations and makes the regions of ws that are ours, lists it, and begins to fill. `limit_bytes` of the pool at most; 0: no limit. */
int pool_host(struct pool *pool, struct wset *ws, uint64_t limit_bytes, struct leat_error *err);
int pool_name(struct wset *ws, const char *name, const char *spec);
/* Ends idle sets until `want` bytes are free or coming back. True: they are coming back, and the caller looks
 * again in some ms, until *until_ns (0 at first). False: they are free, or there is nothing to wait for. */
bool pool_wait_for_free(struct pool *pool, uint64_t want, uint64_t *until_ns);
/* Bytes that could be admitted now. */
uint64_t pool_free_bytes(struct pool *pool);
/* LEAT_BUSY when the user, or all users together, have the most sets that are allowed. */
int pool_sets_check(struct pool *pool, uint32_t uid, struct leat_error *err);
/* Answers and frees a request that was taken from pool_open. */
void pool_answer(struct pool *pool, struct open_request *request, struct wset *ws,
                 const struct leat_error *err);

/*
 * The access with which this node reads a remote source for a set that another one places: what this user's
 * own clients here brought for it, else the daemon's. Keys do not travel between nodes. -ENOMEM, LEAT_DENIED.
 */
int pool_access_for(struct pool *pool, uint32_t uid, const char *spec, struct access **ret_access,
                    struct leat_error *err);

/* verify.c. Computes each CRC again, on a thread of its own. `source`: reads the source, too. Takes a reference to ws. LEAT_BUSY, -ENOMEM. */
struct verify_result {
    uint64_t bad;        /* samples that failed to load, that are lost, or whose bytes differ */
    char first_bad[720]; /* and how many there are of each kind */
    int status;
};
/* progress and done: on the loop, done once and last. */
int verify_start(struct pool *pool, struct wset *ws, bool source,
                 void (*progress)(void *user, uint64_t done, uint64_t total),
                 void (*done)(void *user, const struct verify_result *result), void *user);

/* Staging for streamed samples, made at first use. */
int pool_stream_window(struct pool *pool, struct wset *ws, struct stream_window **ret_window,
                       struct leat_error *err);

#endif
