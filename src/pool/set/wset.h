/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wset.h: a working set as its host keeps it: index, live table, regions, and the state of each sample.
 *
 * Owners. The control loop owns the object: creation, leases, waiters, its end. Fill threads and peers report pieces
 * ("these bytes of this part have arrived, with this CRC") through wset_piece, which any thread may call: a part that arrives
 * whole is set at once, one that straddles segments or hosts is put together under straddle_lock with crc32c_combine.
 */
#ifndef POOL_SET_WSET_H
#define POOL_SET_WSET_H

#include "cluster/set_nodes.h"
#include "base/base.h"
#include "base/list.h"
#include "dataset/index.h"
#include "wire/leat/messages.h"

#include <pthread.h>

struct access;
struct urgent;
struct pool;
struct region;
struct stream_window;
struct wset;

/* Moves: wset_moves in wset.c, drawn in README.md. */
enum wset_phase {
    WSET_NEW,       /* in the hands of its maker alone; no list has it */
    WSET_PREPARING, /* listed, and found by its uuid only, until it is LIVE */
    WSET_PREPARED,  /* all that can fail is done: it waits for its commit */
    WSET_ORPHANED,  /* PREPARED, and the node that was to commit it is lost; PREPARED again when it is back */
    WSET_LIVE,
    WSET_SUPERSEDED, /* by a later version: its readers keep it, and come for it by its uuid */
    WSET_ENDED,      /* no list has it: its memory goes with the last reference */
    WSET_REVOKED,    /* ended by force: its memory is gone */
    WSET_PHASES
};

struct wset_region {
    struct region *region; /* NULL: on another node */
};

/* A contiguous range of addresses on this host that is filled by one thread in one go. */
struct wset_segment {
    uint64_t address, bytes;
    uint8_t state; /* enum segment_state; fill's lock */
};

struct wset_failure {
    uint64_t sample;
    int code;
    char message[400];
};

/* Samples that go first, in the order in which they were asked for. `from`: by which node; NULL: this one. */
struct wset_urgent {
    uint64_t *samples;
    uint8_t *from;
    uint32_t n;
};

struct straddle; /* a part whose pieces are not all here yet */

/* What a set needs from its owner. */
struct wset_owner_ops {
    /* Takes reservations for tables of ws, counted in ws->table_bytes. Any thread. LEAT_NO_SPACE, with the figures in err. */
    int (*charge)(struct wset *ws, uint64_t bytes, struct leat_error *err);
    void (*born)(struct pool *pool);
    /* The last reference is gone: charged bytes come back. Any thread. */
    void (*gone)(struct wset *ws);
};

/* Outlives its sets. */
struct wset_config {
    const struct wset_owner_ops *owner;
    struct pool *pool;     /* wset.pool: the owner's */
    uint64_t region_bytes; /* of the pool: for wset_table_bytes */
    int huge_dir;          /* of region_source; -1: none */
};

struct wset {
    /* control loop */
    struct list node;
    const struct wset_config *config; /* NULL: a set without an owner */
    struct pool *pool;
    char *name, *spec; /* name "" = implicit */
    uint32_t version;
    unsigned leases;     /* handles of clients */
    struct list waiters; /* struct waiter */
    uint64_t created_ns;
    bool loaded;           /* has been complete once, or was pushed: see wset_is_loaded */
    struct wset *replaces; /* until the commit: the version before, a reference, or NULL */
    const void *appender;  /* the maker of the next version of this set, or NULL: one at a time */
    uint64_t limit_bytes;  /* as its creator asked: at most so much of the pool; 0: no limit */
    uint64_t losses;       /* how often a node of it was lost */
    struct urgent
        *wanted; /* samples that clients wait for, of other nodes (cluster/urgent.h); NULL: none yet */

    /* immutable after wset_new */
    uint64_t serial; /* unique in this process: what caches are keyed by, never the address */
    uint8_t uuid[PROTO_UUID];
    uint32_t owner_uid, owner_gid, mode;
    struct source_groups *owner_groups; /* of the process that had it made; NULL: pool/source/source.h */
    uint32_t flags;                     /* PROTO_WS_* */
    int index_fd;                       /* read-only */
    struct index index;
    int live_fd, live_fd_ro;
    struct live_header *live;
    _Atomic uint8_t *sample_state;
    uint32_t *crc; /* nsamples * nfields; written before its sample turns resident */
    uint64_t region_bytes;
    uint32_t nregions;
    struct wset_region *regions;
    uint32_t nnodes, self_node; /* nnodes 0: this host alone */
    struct proto_node *nodes;
    _Atomic uint64_t *places; /* of the live table: wset_region_node; NULL: one node alone */
    struct set_nodes peers;   /* control loop: which of them are lost, and which hold it here */
    bool holding;             /* control loop: the hosts keep it for us */
    uint64_t streamed_samples, window_bytes;
    uint64_t pinned_end; /* addresses at and above are streamed */
    uint64_t
        first_new_address;  /* append: below, the previous version's regions are shared and already filled */
    uint64_t pool_bytes;    /* regions and window: charged on this host */
    uint64_t scratch_each;  /* scratch of a thread that decodes its chunks; 0: negligible */
    uint64_t scratch_bytes; /* charged: for `decoders` threads at a time */
    unsigned decoders;      /* 0: as many as there are */

    /* any thread */
    _Atomic uint64_t table_bytes; /* charged: index, live table, bookkeeping of samples, regions and window */
    _Atomic uint64_t leaving_bytes; /* ended, and this much comes back with the last reference */
    _Atomic unsigned refs;
    _Atomic(enum wset_phase) phase; /* wset_move writes it */
    _Atomic bool rdma_preparing;    /* its regions are being registered for puts */
    _Atomic uint8_t *parts_done; /* per sample: a bit for each field that is complete, mask_bytes of them */
    unsigned mask_bytes;
    _Atomic uint8_t
        *crc_known; /* per sample and field, streamed sets only: later reads are checked against crc[] */
    pthread_mutex_t straddle_lock;
    struct straddle *straddles[256]; /* hashed by (sample, field) */
    pthread_mutex_t failure_lock;
    struct wset_failure *failures;
    unsigned nfailures, failures_cap;
    _Atomic uint64_t pending_bytes; /* of local segments not filled yet */
    _Atomic bool notify_pending;    /* a wake-up of waiters is on its way to the loop */

    /* fill's lock (pool/fill/fill.c) */
    struct list fill_node;
    struct wset_segment *segments;
    uint32_t nsegments, next_segment, segments_left, active;
    unsigned decoding; /* threads inside, of sets with `decoders` */
    /* pool/fill/fill_urgent.c: samples that a client of this node waits for, or one of another node */
    struct wset_urgent urgent, urgent_there;
    bool urgent_turn; /* those of other nodes are next */
    bool fill_cancelled;

    bool remote, local; /* immutable: some of its sources are remote; some are not */
    /* How they are read: set before anything is filled; a reference. NULL: as anybody. */
    struct access *access;

    struct stream_window *window; /* NULL until first needed; then the last reference calls window_free */
    void (*window_free)(struct stream_window *window);
};

/* Maps index and live table and sets up the bookkeeping; takes index_fd on success. The region table is
 * empty. `trusted`: the index was made here; otherwise it is validated in full. LEAT_CORRUPT, -ENOMEM. */
int wset_new(const struct wset_config *config, int index_fd, bool trusted, struct wset **ret_ws,
             struct leat_error *err);
struct wset *wset_ref(struct wset *ws);
/* Any thread. The last one frees everything, the regions' memory with it. */
void wset_unref(struct wset *ws);

/*
 * How much one thread loads in one go: 8 MiB, as disks and checksums want it. Small files cost most at their
 * opening, so sixteen of them do as well: a file that is waited for comes alone, when a thread has ended its
 * segment. Fewer, larger segments in a set so large that the table of segments would count. Smaller ones
 * where samples are of a few bytes: other nodes get each.
 */
uint64_t wset_segment_bytes(const struct index *index);
/* Of remote sources one thread takes several segments at once, 8 to 64 MiB: the more, the longer the server
 * takes to answer. 0: not known. */
uint64_t wset_run_bytes(const struct index *index, uint64_t first_byte_ns);
/*
 * Memory that the tables of a set with this index take: the index itself when it is memory (`in_memory`; a file of the cache is the
 * kernel's page cache), states and checksums, and what is kept of each region and segment.
 */
uint64_t wset_table_bytes(const struct index *index, bool in_memory, const struct wset_config *config);

/* Marks what lies at or above `end` as streamed. Before anything is filled. */
void wset_pin(struct wset *ws, uint64_t end);
/* A set on several nodes: its live table gets a place for each region, all at node 0. Once, before it is
 * listed. -ENOMEM or another errno. */
int wset_places_make(struct wset *ws);
/* The node of a region: an index into the set's nodes. Any thread; on the control loop alone it changes. */
static inline uint32_t wset_region_node(const struct wset *ws, uint32_t gid)
{
    return ws->places ? (uint32_t)atomic_load_explicit(&ws->places[gid], memory_order_acquire)
                      : ws->self_node;
}
/* Before the set is listed. */
void wset_region_put(struct wset *ws, uint32_t gid, uint32_t node);
/*
 * Region gid has moved to `node`, as its move number `generation` (from 1): readers find it there with their
 * next look at the live table. False: a later move is known, or this one; of two with the same number the one
 * to the higher node is the later. What the node has of it is another matter: states of samples stay as they
 * are. Control loop.
 */
bool wset_region_move(struct wset *ws, uint32_t gid, uint32_t node, uint32_t generation);
/* Whether that would return true. */
bool wset_region_moves(const struct wset *ws, uint32_t gid, uint32_t node, uint32_t generation);
/* The local part of [address, +bytes), which must not cross a region; NULL when it is not on this host. */
uint8_t *wset_address(const struct wset *ws, uint64_t address, uint64_t bytes);

/* Bytes [offset, +bytes) of field f of sample i are in place with this CRC, or will not come (status < 0). */
void wset_piece(struct wset *ws, uint64_t i, unsigned f, uint64_t offset, uint64_t bytes, uint32_t crc,
                int status);
/* What is known of a part: all of it, or the pieces that have come. */
void wset_pieces(struct wset *ws, uint64_t i, unsigned f,
                 void (*fn)(void *user, uint64_t i, unsigned f, uint64_t offset, uint64_t bytes,
                            uint32_t crc),
                 void *user);
/* Has part f of sample i arrived whole? With which CRC? */
bool wset_part_known(const struct wset *ws, uint64_t i, unsigned f);
uint32_t wset_part_crc(const struct wset *ws, uint64_t i, unsigned f);
/* Does part f of sample i lack bytes that this host fills? */
bool wset_part_missing(struct wset *ws, uint64_t i, unsigned f);
/* The same for streamed samples: the CRC is recorded the first time and compared afterwards: LEAT_CORRUPT. Whole parts only. */
int wset_streamed(struct wset *ws, uint64_t i, unsigned f, uint32_t crc);
/* Remembers why (the first 256 samples), for the message that a reader gets. */
void wset_failure(struct wset *ws, uint64_t sample, int rc, const char *message);
/* A node is lost: samples with bytes on it turn LOST; it is back with them: RESIDENT again, unless another of theirs is lost.
 * Control loop; O(samples). */
void wset_node_lost(struct wset *ws, uint32_t node);
void wset_node_back(struct wset *ws, uint32_t node);
/* Fills err for a sample whose state is FAILED or LOST; returns its code. */
int wset_failure_get(struct wset *ws, uint64_t sample, struct leat_error *err);
/* Some failed, and not for what they hold: read again they may be there. */
bool wset_failed_transient(struct wset *ws);
/* One that failed, and how many did: for a caller that waits for all. */
int wset_failure_any(struct wset *ws, struct leat_error *err);
/* Every sample is resident, failed, lost (and so read from its source), or streamed. */
bool wset_complete(const struct wset *ws);
/* Is it complete, or has it been? Clients see that the last sample is there before the loop does, so this looks. Control loop. */
bool wset_is_loaded(const struct wset *ws);

/* Control loop. A move that the table does not allow is our mistake: it asserts. */
void wset_move(struct wset *ws, enum wset_phase to);
/* The phase is one of these bits. Any thread, as all predicates. */
static inline bool wset_phase_in(const struct wset *ws, uint32_t phases)
{
    return phases >> atomic_load(&ws->phase) & 1;
}
/* By name and by source. */
static inline bool wset_is_findable(const struct wset *ws)
{
    return wset_phase_in(ws, 1u << WSET_LIVE);
}
static inline bool wset_is_committable(const struct wset *ws)
{
    return wset_phase_in(ws, 1u << WSET_PREPARED | 1u << WSET_ORPHANED);
}
/* Listed and not committed. */
static inline bool wset_is_uncommitted(const struct wset *ws)
{
    return wset_phase_in(ws, 1u << WSET_PREPARING | 1u << WSET_PREPARED | 1u << WSET_ORPHANED);
}
static inline bool wset_has_ended(const struct wset *ws)
{
    return wset_phase_in(ws, 1u << WSET_ENDED | 1u << WSET_REVOKED);
}
static inline bool wset_is_revoked(const struct wset *ws)
{
    return wset_phase_in(ws, 1u << WSET_REVOKED);
}
/* Append: takes over states, CRCs and failures of the version before, which is complete; fields are the same and in the same order. */
void wset_inherit(struct wset *ws, struct wset *old);
/* Parts of sample i that have bytes to wait for. */
unsigned wset_parts_of(const struct wset *ws, uint64_t i);
static inline enum live_state wset_sample_state(const struct wset *ws, uint64_t i)
{
    return (enum live_state)atomic_load_explicit(&ws->sample_state[i], memory_order_acquire);
}
/* A region of ours has been written: notes the page size that it got. Any thread. */
void wset_note_pages(struct wset *ws, const struct region *region);
/* Its regions have been written, or read where they may be holes, which takes memory as well. True: it was
 * dropped by force, and what was brought back after that has gone again. Any thread. */
bool wset_written(struct wset *ws);
/* May this user read it? */
#define WSET_NOBODY UINT32_MAX /* no user has this id (chown(2)), nor a group: public sets only */
bool wset_allows(const struct wset *ws, uint32_t uid, uint32_t gid);

/* Calls fn for each part of the set that has bytes in [begin, end), with the clipped range. Parts of no bytes are never
 * visited. O(parts found + fields * log n). */
typedef void (*wset_part_fn)(void *user, uint64_t i, unsigned f, const struct index_part *part,
                             uint64_t offset, uint64_t bytes);
void wset_parts_in(const struct wset *ws, uint64_t begin, uint64_t end, wset_part_fn fn, void *user);
/* Samples whose parts are all empty or absent have nothing to wait for: turns them resident. O(samples). */
void wset_settle_empty(struct wset *ws);

#endif
