/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client.h: inside of the DataClient (include/leat/leat.h is its face).
 *
 *   connect.c  find or start the daemon, hello          order.c    epoch order: pure
 *   rpc.c      one socket, many threads: calls, events   rails.c   this process's endpoints to the nodes, and their credit
 *   ws.c       working sets: index, live table, regions  view.c    ring of slots: holders, quarantine, release events
 *   gather.c   parts -> pieces -> transports -> CRC      stream.c  the window of a set larger than the pool
 *   batch.c    read, hold and ReadBatch                  push.c    create and push
 *   options.c  structs of programs older and newer       query.c   query, drop, verify, stop, counters
 *   iter.c     epoch iterator: reads ahead               info.c    what the index tells
 *   plan.c     samples of a step, mixtures: pure
 *   delivery.c how bytes came, by mechanism and rail     scan.c     a prefix elsewhere, once, in its order
 *
 * Access by threads. A client's socket is written under `send_lock` and read by one thread at a time, the waiting caller that
 * set `reading`; everything else of it is under `lock`. The holder of its `fill_lock` fills a view; the
 * states of its slots are under `lock`, so that a batch may be released by any thread at any time.
 */
#ifndef CLIENT_CLIENT_H
#define CLIENT_CLIENT_H

#include <pthread.h>

#include "base/base.h"
#include "base/cond.h"
#include "base/forkfd.h"
#include "base/list.h"
#include "dataset/index.h"
#include "gpu/gpu.h"
#include "leat/leat.h"
#include "rpc/conn.h"
#include "net/flow/credit.h"
#include "net/net.h"
#include "net/paths.h"
#include "net/flow/stripe.h"
#include "wire/leat/messages.h"

/* --- options.c ----------------------------------------------------------------------------------------------- */

/* A copy of `given` (NULL: all zero) as large as ours. `least`: what any caller sets. LEAT_INVALID: size cannot be right;
 * LEAT_UNSUPPORTED: something behind what we know is not zero. */
int options_take(const char *name, const void *given, size_t least, void *ret, size_t own,
                 struct leat_error *err);
/* n of them in a row, each as large as the first. */
int options_take_array(const char *name, const void *given, unsigned n, size_t least, void *ret, size_t own,
                       struct leat_error *err);
/* The other way: fills `given` as far as its size goes; size itself stays. */
int options_give(const char *name, void *given, size_t least, const void *own, size_t own_size,
                 struct leat_error *err);
int options_flags(const char *name, unsigned flags, unsigned known, struct leat_error *err);

/* --- connect.c, rpc.c --------------------------------------------------------------------------------------- */

#define CLIENT_JOB_ROOM 64 /* as connect.h's names, and more */
struct leat_client {
    _Atomic unsigned refs; /* the handle, and every working set */
    unsigned fork_count;   /* of this process when it connected */
    int fd;
    uint8_t version; /* of the protocol; the oldest until the handshake */
    struct forkfd forkfd;
    leat_interrupt_fn interrupt; /* NULL: none */
    void *interrupt_user;
    _Atomic int dead; /* 0, or the negative code every call returns from now on */
    uint64_t timeout_ns;
    char *socket;
    char job[CLIENT_JOB_ROOM]; /* its name, for reports */
    struct proto_welcome welcome;

    pthread_mutex_t send_lock;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool reading;      /* a thread reads the socket */
    struct list calls; /* struct client_rpc_waiter */
    struct list sets;  /* struct leat_ws */
    uint64_t next_id;
    struct net_rx rx;           /* of the reading thread */
    _Atomic uint64_t looked_ns; /* at the socket, by client_rpc_look */

    pthread_mutex_t credit_lock;
    bool credit_asked;            /* the daemon, once */
    struct credit_table *credits; /* shared by this user's processes on this host; NULL: none to be had */
    unsigned credit_slot;
};

int client_new(int fd, const char *socket, uint64_t timeout_ns, struct leat_client **ret_client);
struct leat_client *client_ref(struct leat_client *client);
void client_unref(struct leat_client *client);
/* How often this process's line has forked: a handle made before the last fork is not ours. */
unsigned client_fork_count(void);
bool client_forked(const struct leat_client *client);
int client_forked_error(struct leat_error *err);
/* Absolute deadline (0: none) of a call that was given timeout_ns. */
uint64_t client_deadline(const struct leat_client *client, uint64_t timeout_ns);

struct client_rpc_how {
    uint64_t deadline_ns;
    uint64_t progress_extends_ns; /* each sign of progress moves the deadline so far ahead; 0: it stays */
    leat_progress_fn progress;    /* called on the waiting thread, no lock held */
    void *progress_user;
    const _Atomic bool *
        cancel; /* looked at every so often: -ECANCELED. NULL: a call of the user's own thread, interruptible */
};
#define POLL_MS 20 /* how long a wait may sleep before it checks for cancellation */
/* Whether a wait is cancelled: by its cancel flag, or by the client's interrupt hook, which is not called
 * too often. *poll_ns starts as 0. No lock may be held: the hook is the user's. */
bool client_cancelled(const struct leat_client *client, const struct client_rpc_how *how, uint64_t *poll_ns);
int client_cancelled_error(struct leat_error *err);
/* The timeout for poll(2) until deadline_ns. */
int client_sleep_ms(const struct leat_client *client, const struct client_rpc_how *how);
/* The same as a point in time for pthread_cond_timedwait; 0: no end. */
uint64_t client_sleep_until(const struct leat_client *client, const struct client_rpc_how *how);

/* --- tlock.c ------------------------------------------------------------------------------------------------- */

/* A lock for long work: a waiting thread keeps its own deadline, and can be interrupted. */
struct tlock {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool taken;
    pthread_t owner;
};
void tlock_init(struct tlock *turn);
void tlock_fini(struct tlock *turn);
/* LEAT_TIMED_OUT, -ECANCELED; LEAT_BUSY when this very thread has it: a hook that calls back in. `what` for messages. */
int tlock_take(struct tlock *turn, const struct leat_client *client, const struct client_rpc_how *how,
               const char *what, struct leat_error *err);
void tlock_give(struct tlock *turn);
/* One call. A negative status of the reply is returned, its message in err. -ENOMEM, LEAT_PEER_GONE, LEAT_TIMED_OUT, -ECANCELED. */
int client_rpc_call(struct leat_client *client, uint16_t type, const struct bytes_out *body, const int *fds,
                    unsigned nfds, const struct client_rpc_how *how, struct net_reply *ret_reply,
                    struct leat_error *err);
/* The same without waiting: begun, looked at now and then, taken once it is ready (or the client dead), or forgotten. */
struct client_rpc_pending;
int client_rpc_begin(struct leat_client *client, uint16_t type, const struct bytes_out *body,
                     struct client_rpc_pending **ret_pending);
/* Of a short request: -EAGAIN where sending it would wait for a daemon that does not read, or for another thread's sending. */
int client_rpc_begin_now(struct leat_client *client, uint16_t type, const struct bytes_out *body,
                         struct client_rpc_pending **ret_pending);
bool client_rpc_ready(struct leat_client *client, const struct client_rpc_pending *pending);
/* As client_rpc_call returns; frees it. */
int client_rpc_take(struct leat_client *client, struct client_rpc_pending *pending,
                    struct net_reply *ret_reply, struct leat_error *err);
void client_rpc_forget(struct leat_client *client, struct client_rpc_pending *pending); /* NULL is fine */
/* The same, where the daemon would work on it, or keep it, for good. */
void client_rpc_cancel(struct leat_client *client, struct client_rpc_pending *pending);
/* Waits for one of n, some of them NULL: its number; or LEAT_TIMED_OUT, -ECANCELED, what the client died of. */
int client_rpc_wait_any(struct leat_client *client, struct client_rpc_pending *const *pendings, unsigned n,
                        const struct client_rpc_how *how, struct leat_error *err);
/* A request without a waiter for its reply. Failures show in the next call. */
void client_rpc_post(struct leat_client *client, uint16_t type, const struct bytes_out *body);
void client_rpc_post_id(struct leat_client *client, uint16_t type,
                        uint64_t id); /* of a message that is a proto_id */
/* The same of a short frame, or -EAGAIN: it would have had to wait. */
int client_rpc_post_now(struct leat_client *client, uint16_t type, const struct bytes_out *body);
/* Takes in what has come, without waiting. 0, or the code the connection died with. */
int client_rpc_poll(struct leat_client *client);
/* The same, at most once a millisecond: for frequent callers, which notice the daemon's death that much
 * later. */
int client_rpc_look(struct leat_client *client);
int client_rpc_dead_error(const struct leat_client *client, struct leat_error *err);

/* --- delivery.c ----------------------------------------------------------------------------------------------- */

/* How bytes reached this process: of a set for leat_ws_stat, of all together for leat_counters. */
enum delivery {
    DELIVERED_SHM,
    DELIVERED_TCP,
    DELIVERED_RDMA_READ,
    DELIVERED_RDMA_WRITE,
    DELIVERED_STREAMED, /* by the daemon, which read them from their source */
    DELIVERED_BOUNCED,  /* from a view's host memory on to a device: counted above as well */
    DELIVERIES
};
extern const char *const delivery_names[DELIVERIES];
struct leat_ws;
struct rails;
/* Any thread. */
void delivered(struct leat_ws *ws, enum delivery how, uint64_t bytes);
/* Adds the bytes of each path to a node since the last call, and the states of the paths; over: its
 * endpoint is about to be disconnected. */
void delivery_note(struct rails *rails, uint32_t node, bool over);
void delivery_free(struct leat_ws *ws);
uint64_t delivery_paths(struct leat_ws *ws); /* how many leat_ws_rail can return */

/* --- ws.c --------------------------------------------------------------------------------------------------- */

struct rails;
struct gather;

#define WS_WINDOWS_MAX 64u
struct ws_window_map { /* a window of the daemon's; its size is its own */
    const uint8_t *at;
    uint64_t bytes;
};

struct leat_ws {
    _Atomic unsigned refs; /* the handle, views, holds */
    struct leat_client *client;
    struct list node; /* client->sets */
    struct proto_ws info;
    struct index index;
    const struct live_header *live;
    const _Atomic uint8_t *state;
    const uint32_t *crc;
    uint64_t live_mapped;
    const _Atomic uint64_t *places; /* [nregions], of the live table: ws_region_node */
    bool places_own;                /* the daemon has none: what it said at OPEN */
    char *uri;
    char fingerprint[33];
    const char *transport;
    uint32_t local_node; /* index into info.nodes of the daemon we talk to; UINT32_MAX: it holds nothing */
    bool all_local;
    _Atomic bool revoked;

    /* Mapped on first use, never unmapped before the end: read with acquire, written under map_lock. */
    struct tlock map_lock;
    const void **maps;             /* [nregions]: NULL where not mapped (yet), or on another node */
    struct ws_window_map *windows; /* [WS_WINDOWS_MAX] */

    struct tlock read_lock; /* single reads that need a transport */
    struct rails *rails;
    struct gather *gather;

    _Atomic uint64_t delivered[DELIVERIES];
    pthread_mutex_t path_stats_lock;
    struct path_stats
        *path_stats; /* delivery.c's: in the order in which they were first used, as long as the set */
};

/* The URI in a form for the daemon, whose working directory differs. Caller frees. */
int ws_absolute_uri(const char *uri, char **ret_uri, struct leat_error *err);
/* Asks the daemon for a source: `head` (or NULL), then `open`, whose uri and access are found here.
 * Secrets are wiped once they are sent. */
int ws_ask(struct leat_client *client, uint16_t type, const char *head, const char *uri,
           const struct leat_s3_options *s3, struct proto_open *open, const struct client_rpc_how *how,
           struct net_reply *ret_reply, struct leat_error *err);
/*
 * How to read a remote `uri` (as it is sent), into open->access; the program's options win. *ret_why: code <
 * 0 when no credentials were found, which the daemon may have: access_refused words its answer then.
 */
struct proto_open;
int access_find(const char *uri, const struct leat_s3_options *given, struct proto_open *open,
                struct leat_error *ret_why, struct leat_error *err);
int access_refused(int rc, const struct leat_error *why, const char *uri, struct leat_error *err);
int ws_new(struct leat_client *client, struct net_reply *reply, struct leat_ws **ret_ws,
           struct leat_error *err);
struct leat_ws *ws_ref(struct leat_ws *ws);
void ws_unref(struct leat_ws *ws);
/* Alive and of the same generation: 0, LEAT_STALE, or what the connection died of. Makes one poll(2). */
int ws_check(struct leat_ws *ws, struct leat_error *err);
/* The same without a system call: for after the bytes were taken. */
int ws_check_generation(const struct leat_ws *ws, struct leat_error *err);
/* Maps the run of regions around gid. */
int ws_map_region(struct leat_ws *ws, uint32_t gid, const struct client_rpc_how *how, struct leat_error *err);
/* Takes descriptors of staging regions out of a reply, or asks for them. */
int ws_map_window(struct leat_ws *ws, const struct proto_fetched *fetched, struct net_reply *reply,
                  const struct client_rpc_how *how, struct leat_error *err);
/* Bytes of the window that a streamed set comes through; 0: it has none. */
int ws_window(struct leat_ws *ws, const struct client_rpc_how *how, uint64_t *ret_bytes,
              struct leat_error *err);
/* Waits until these samples (n = 0: all) are readable. */
int ws_wait(struct leat_ws *ws, const uint64_t *ids, uint32_t n, const struct client_rpc_how *how,
            struct leat_error *err);
int ws_bad_index(const struct leat_ws *ws, uint64_t index, struct leat_error *err);
/* "sample KEY, field NAME" for messages. */
const char *ws_describe(const struct leat_ws *ws, uint64_t index, unsigned field, char buf[256]);
static inline unsigned ws_state(const struct leat_ws *ws, uint64_t index)
{
    return atomic_load_explicit(&ws->state[index], memory_order_acquire);
}
/* The node of a region, which may change at any time; ws_moves() does then. */
static inline uint32_t ws_region_node(const struct leat_ws *ws, uint64_t gid)
{
    uint32_t node = (uint32_t)atomic_load_explicit(&ws->places[gid], memory_order_acquire);
    return likely(node < ws->info.nnodes) ? node : ws->info.regions[gid].node;
}
static inline uint32_t ws_moves(const struct leat_ws *ws)
{
    return atomic_load_explicit(&ws->live->moves, memory_order_acquire);
}
static inline const void *ws_region(const struct leat_ws *ws, uint32_t gid)
{
    return __atomic_load_n(&ws->maps[gid], __ATOMIC_ACQUIRE);
}
static inline uint32_t ws_crc(const struct leat_ws *ws, uint64_t index, unsigned field)
{
    return ws->crc[index * ws->index.header->nfields + field];
}

/* The connection in an answer to BROKER, and its version; finishes the reply. */
int ws_brokered(struct net_reply *reply, int *ret_fd, unsigned *ret_version, struct leat_error *err);

/* --- rails.c ------------------------------------------------------------------------------------------------- */

/* Endpoints 0 .. nnodes - 1 are the nodes of the region table. One thread at a time. */
struct transport_set {
    /* Allowed transports; rdma without tcp is required, with tcp it is used where both ends have it. */
    bool shm, tcp, rdma;
    bool put; /* RDMA: servers write, instead of our reading */
};
/* "shm", "tcp", "rdma" or "rdma-read", "rdma-write", "shm+tcp", "shm+rdma"; "auto" allows all; NULL is $LEAT_TRANSPORT, else auto. LEAT_INVALID. */
int transport_set(const char *transport, struct transport_set *ret_transports);

struct rails_end {
    struct net_endpoint *endpoint;                   /* NULL: not connected */
    struct delivery_seen *seen;                      /* delivery.c's, of its paths */
    struct stripe_path sole_op;                      /* of a TCP connection that is the only one */
    struct net_ctx *ctx;                             /* its transport */
    uint64_t rdma_again_ns;                          /* no RDMA to this node before */
    struct client_rpc_pending *dials[NET_PATHS_MAX]; /* rails that our daemon is connecting for us */
};
struct rails {
    struct leat_ws *ws;
    struct transport_set transports;
    struct net_ctx *shm, *tcp, *rdma;   /* NULL: not used */
    struct rails_end *ends;             /* [nnodes] */
    struct credit credit[CREDIT_RAILS]; /* one for each rail: each has a queue of its own in front of us */
    unsigned ncredits;
    uint32_t local_node;      /* read through shared memory; UINT32_MAX: none is, as required of this view */
    uint64_t inflight_bytes;  /* the view's fixed limit, or 0 */
    bool all_local;           /* nothing but shared memory is open */
    bool near;                /* all that was read is on our own node, by whatever transport */
    struct topo_choice *topo; /* NULL: nothing is known of our interfaces */
    bool topo_asked;
    uint64_t reconnect_ns; /* when missing rails were looked after last */
    unsigned unquiesced;   /* operations that may still write somewhere */
};
/* Without transports->shm our own node, too, is read through a connection. */
int rails_new(struct leat_ws *ws, uint64_t inflight_bytes, const struct transport_set *transports,
              struct rails **ret_rails, struct leat_error *err);
/* A region has moved to another node from ours, which alone was read: credit is opened again, as of a network.
 * Where nothing but shared memory is open, by TCP: destinations were not registered for RDMA. */
int rails_widen(struct rails *rails, struct leat_error *err);
/* Disconnects and waits until nothing can land any more; what is registered may go then. NULL is fine. */
void rails_quiesce(struct rails *rails);
void rails_free(struct rails *rails); /* that too. NULL is fine */
/* A destination for the life of a view. *ret_memory stays NULL where no transport wants it. */
int rails_register(struct rails *rails, void *addr, uint64_t bytes, struct net_memory **ret_memory,
                   struct leat_error *err);
/* The same of a device's memory. LEAT_UNSUPPORTED: RDMA does not reach it, with the reason. */
int rails_register_device(struct rails *rails, void *addr, uint64_t bytes, int device,
                          struct net_memory **ret_memory, struct leat_error *err);
/* Whether a direct read of a node can land in the device's memory now. */
bool rails_reach_device(const struct rails *rails, uint32_t node, const struct net_memory *memory);
void rails_deregister(struct rails *rails, struct net_memory *memory);
/* The longest piece of a sample that is requested from other nodes. */
uint64_t rails_piece_bytes(const struct rails *rails);
/* Of all rails together. */
uint64_t rails_limit(const struct rails *rails);
void rails_rest(struct rails *rails); /* no more requests for now */
/* The rail to a node for `bytes` of the `left` that it has, none of `refused` (bits). -1: wait. */
int rails_pick(struct rails *rails, uint32_t node, uint64_t bytes, uint64_t left, unsigned refused);
int rails_submit(struct rails *rails, uint32_t node, struct net_op *op);
/* Completions of all remote transports, as net_ops.poll. */
int rails_poll(struct rails *rails, struct net_event *events, unsigned max, int timeout_ms);
/* Whether the next polls may wait for the first request only. */
static inline void rails_poll_in_order(struct rails *rails, bool poll_in_order)
{
    if (rails->tcp)
        rails->tcp->poll_in_order = poll_in_order;
}
int rails_connect(struct rails *rails, uint32_t node, const struct client_rpc_how *how,
                  struct leat_error *err);
void rails_disconnect(struct rails *rails, uint32_t node);
static inline bool rails_is_local(const struct rails *rails, uint32_t node)
{
    return node == rails->local_node;
}

/* --- gather.c ------------------------------------------------------------------------------------------------- */

/* Parts of samples on their way into a destination. Arrays grow to what the largest batch so far took and stay. */
struct gather_part {
    uint64_t sample;
    uint32_t field;          /* of the index */
    uint32_t first, npieces; /* reads[first, +npieces) */
};
struct gather_op {
    struct net_op op;
    struct gather *gather;
    uint32_t node;
    bool busy, done, sole_op; /* alone: nothing else was in flight when it was sent */
    bool given_up;            /* its credit was given back: never poll for it again */
    struct credit *credit;    /* by which it was asked for */
    uint64_t bytes, sent_ns;
};
#define GATHER_OPS 64u
/* A second half of destinations: bytes that come by RDMA land at the same offset there. Zeroed: there is
 * none. */
struct gather_direct {
    uint8_t *host, *device;
    uint64_t bytes;
    struct net_memory *memory; /* the device's */
};
struct gather {
    struct rails *rails;
    struct gather_direct direct;
    uint32_t ndirect;       /* parts with such a piece; their checksums are not compared yet */
    struct net_read *reads; /* in order of parts; in order of nodes once sorted */
    uint32_t nreads, reads_cap;
    uint32_t *node;          /* [reads_cap] of each read, as added */
    uint32_t *place;         /* [reads_cap] where a read went when sorted */
    struct net_read *sorted; /* [reads_cap] */
    struct gather_part *parts;
    uint32_t nparts, parts_cap;
    uint32_t *cursor, *end;  /* [nnodes] of sorted reads not yet requested */
    uint64_t *in_flight;     /* [nnodes] bytes */
    uint32_t next_node;      /* node with the first request when there is credit again */
    unsigned refused;        /* rail that had no credit last */
    uint64_t sent_ns;        /* the last request to any node */
    bool remote;             /* some read is not local */
    uint64_t local_bytes;    /* of those that are */
    uint32_t moves;          /* ws_moves() before the first was added */
    uint64_t piece_bytes;    /* how long pieces of other nodes are, in this batch */
    uint64_t share_bytes;    /* and the smallest share of several rails, any of which may bring a piece */
    unsigned unquiesced;     /* own operations that may still write */
    unsigned unanswered;     /* of those: neither good nor failed yet */
    bool failed;             /* some read of another node, in this pass */
    struct leat_error cause; /* why the node that failed last could not be asked */
    struct gather_op ops[GATHER_OPS];
};
int gather_new(struct rails *rails, uint32_t parts, uint32_t reads, struct gather **ret_gather);
void gather_free(struct gather *gather); /* must be quiesced */
void gather_reset(struct gather *gather);
int gather_add(struct gather *gather, uint64_t sample, unsigned field, const struct index_part *part,
               void *dst, const struct client_rpc_how *how, struct leat_error *err);
/* Asks for everything and waits; then checks every CRC but those of `ndirect` parts. GATHER_MOVED, of both: a sample is not where it was when it was
 * added (its node was lost, or came back, or its region moved): add everything again. */
#define GATHER_MOVED 1
/* What a checksum that does not match means: LEAT_STALE, GATHER_MOVED or LEAT_CORRUPT. `moves`: ws_moves()
 * before the bytes were read. */
int gather_mismatch(struct leat_ws *ws, uint64_t sample, unsigned field, uint32_t moves,
                    struct leat_error *err);
int gather_run(struct gather *gather, const struct client_rpc_how *how, struct leat_error *err);
/* Read number i, in the order in which destinations lie, with where it landed. */
const struct net_read *gather_read(struct gather *gather, uint32_t i);
bool gather_is_direct(const struct gather *gather, const struct net_read *read);
bool gather_part_is_direct(struct gather *gather, const struct gather_part *part);
/* Takes in completions of earlier, timed-out operations, without waiting longer than timeout_ms. */
void rails_progress(struct rails *rails, int timeout_ms);

/* --- stream.c --------------------------------------------------------------------------------------------------- */

struct stream_lease {
    struct leat_ws *ws;
    struct proto_fetched fetched;
};
struct stream_range {
    uint64_t first, count;
};
/* Has the daemon load these samples into its stream window. LEAT_NO_SPACE: the window is full. */
int stream_fetch(struct leat_ws *ws, const struct stream_range *ranges, uint32_t n,
                 const struct client_rpc_how *how, struct stream_lease **ret_lease, struct leat_error *err);
void stream_release(struct stream_lease *lease); /* NULL is fine */
/* Announces ranges that will be fetched soon to the daemon: sends and returns. */
void stream_prefetch(struct leat_ws *ws, const struct stream_range *ranges, uint32_t n);
/* Copies one part out of a lease and checks it. */
int stream_copy(const struct stream_lease *lease, uint64_t sample, unsigned field,
                const struct index_part *part, void *dst, struct leat_error *err);

/* A batch's request to stream_read: one part of a sample and its destination. */
struct stream_want {
    uint64_t sample;
    unsigned field;
    struct index_part part;
    void *dst;
};
/* Fetches, copies and releases, in portions that fit the window. Sorts wants by sample. With block > 1
 * whole blocks of that many samples are requested: the daemon keeps them while there is room, and finds
 * them again by the same range. */
int stream_read(struct leat_ws *ws, struct stream_want *wants, uint32_t n, uint64_t block,
                const struct client_rpc_how *how, struct leat_error *err);

/* --- order.c ---------------------------------------------------------------------------------------------------- */

/* Block order: the group that `position` is in covers positions [*ret_start, *ret_end), which are the samples of `n` blocks. */
unsigned order_group(const struct leat_order *order, uint64_t position, uint64_t *ret_start,
                     uint64_t *ret_end, uint64_t ret_blocks[LEAT_ORDER_GROUP]);

/* --- view.c ----------------------------------------------------------------------------------------------------- */

enum slot_state {
    SLOT_FREE,
    SLOT_FILLING,
    SLOT_HELD,
    SLOT_RELEASING,  /* until its event has come, and its copy to a device has ended */
    SLOT_QUARANTINE, /* until its operations are quiesced */
    SLOT_STATES
};

struct leat_batch {
    struct leat_view *view;
    unsigned slot, n;
    uint64_t sequence, position;
    bool undelivered; /* an iterator's, not yet handed out; under view->lock */
    uint64_t *ids;
};

struct view_field {
    unsigned field;       /* of the index */
    uint64_t fixed_bytes; /* 0: ragged */
    uint64_t part_bytes;  /* of one sample of the set: fixed_bytes is a window of them */
    uint64_t cap_bytes;
    uint64_t data_offset; /* within a slot's memory */
    bool label;
};

struct view_event { /* struct leat_event, kept: one of the two */
    int (*finished)(void *user);
    void *user;
    int fd; /* our own; -1: none */
};

struct view_slot {
    enum slot_state state;
    struct view_event event;
    uint8_t *memory;           /* where bytes land and are checked; pinned where the view has a gpu */
    struct gpu_buffer *buffer; /* NULL without a gpu */
    bool copying;              /* a copy to the device may be under way; view->lock, or the filling thread */
    uint64_t **offsets;        /* [nfields]: NULL for fixed ones */
    struct gather *gather;
    struct net_memory *registered;
    struct net_memory *direct; /* its memory of the device; NULL: no NIC writes there */
    struct leat_batch batch;
};

struct leat_view {
    _Atomic unsigned refs; /* the handle, held batches, iterators */
    unsigned fork_count;
    struct leat_ws *ws;
    unsigned batch_size, nslots, nfields, next_slot;
    unsigned window, step; /* at least 1: samples of the set in one of ours, and from one to the next */
    uint64_t length;       /* our samples */
    char fingerprint[33];
    struct view_field *fields;
    uint64_t slot_bytes;
    enum leat_memory memory;
    int device;
    bool async;      /* LEAT_LOAD_ASYNC */
    bool direct;     /* bytes that come by RDMA land on the device */
    struct gpu *gpu; /* NULL: batches in plain host memory */
    _Atomic uint64_t bounced_bytes, copies, lags, direct_bytes; /* of leat_view_stat */
    uint8_t *spare; /* fills the last huge page behind the slots; the slots own their memory */
    uint64_t spare_bytes;
    struct tlock fill_lock;
    pthread_mutex_t lock; /* states of slots, sequence */
    pthread_cond_t freed; /* a slot was given back */
    struct view_slot *slots;
    uint64_t sequence;
    struct rails *rails;
    uint64_t *wait_ids;        /* [batch_size * window] scratch of fills */
    uint64_t *part_ids;        /* the same: samples of the set; NULL: ours are the set's */
    struct stream_want *wants; /* [batch_size * nfields], streamed sets only */
};

/* In the child of a fork: forgets memory of closed views, which the parent frees. */
void view_forget_orphans(void);
/* A free slot, with fill_lock held, which the caller gives back. wait_held: wait for a consumer to release
 * one instead of LEAT_BUSY. Others may fill while this waits. */
int view_slot_take(struct leat_view *view, bool wait_held, const struct client_rpc_how *how,
                   struct view_slot **ret_slot, struct leat_error *err);
/* After the fill: held by the caller, or back in the ring (or quarantine when operations are still out). */
struct leat_batch *view_slot_hold(struct leat_view *view, struct view_slot *slot, uint64_t position,
                                  bool undelivered);
void view_slot_drop(struct leat_view *view, struct view_slot *slot);
void view_unref(struct leat_view *view);
/* A held batch: its slot is free once `event` has come (NULL: at once) and no copy of it is under way. */
void view_give_back(struct leat_batch *batch, const struct view_event *event);

/* --- device.c --------------------------------------------------------------------------------------------------- */

int device_open(struct leat_view *view, const struct leat_view_options *options, struct leat_error *err);
int device_slot_new(struct leat_view *view, struct view_slot *slot, struct leat_error *err);
/* After all slots were made: lets NICs write to their memory of the device, if the view asked for that. */
int device_make_direct(struct leat_view *view, const struct leat_view_options *options,
                       struct leat_error *err);
/* A copy of this slot is under way. Under view->lock, or while the slot is in no list. */
bool device_copying(struct view_slot *slot);
/* After the slot was filled and checked: to where the view wants it. Bytes that NICs wrote there are checked
 * there: LEAT_CORRUPT, GATHER_MOVED: fill it again. */
int device_deliver(struct leat_view *view, struct view_slot *slot, const struct client_rpc_how *how,
                   struct leat_error *err);

/* --- batch.c ---------------------------------------------------------------------------------------------------- */

/* ReadBatch, and what an iterator does besides: it waits for a slot as long as its consumer likes, its deadline runs from
 * then on, and its batches are `undelivered` until leat_next hands them out. */
struct fill_how {
    bool iterator;
    uint64_t timeout_ns, position;
    uint64_t block; /* of the order, for streamed sets; 0: none */
    const _Atomic bool *cancel;
};
int batch_fill(struct leat_view *view, const uint64_t *ids, unsigned n, const struct fill_how *how,
               struct leat_batch **ret_batch, struct leat_error *err);
/* True when the consumer holds every slot and none waits to be delivered: no batch can come before a
 * release. */
bool view_starved(struct leat_view *view, struct leat_error *err);

/* Counters of this process, all clients together. */
struct client_counters {
    _Atomic uint64_t batches, samples, bytes, waits, corrupt, stale, timeouts, quarantined, reconnects,
        fetched_bytes, delivered[DELIVERIES];
};
extern struct client_counters client_counters;

#endif
