/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leat/leat.h: the DataService API: datasets in a memory pool, read in batches at memory speed.
 *
 *     struct leat_client *client;   leat_connect(NULL, &client, &err);
 *     struct leat_ws *ws;           leat_open(client, "train/", NULL, &ws, &err);
 *     struct leat_view *view;       leat_load(ws, &(struct leat_view_options){.size = sizeof(...), .batch_size = 64}, &view, &err);
 *     struct leat_batch *batch;     leat_read_batch(view, ids, 64, 0, &batch, &err);
 *     ... leat_batch_data(batch, 0) ...
 *     leat_batch_release(batch);
 *
 * Rules that hold throughout
 *  - Functions return 0 or a negative code of <leat/error.h>; outputs come last and are written only on success;
 *    `err` may be NULL.
 *  - Structs begin with `size` = sizeof of the struct the caller was compiled with; other members that are zero mean their
 *    default. Of a shorter one (an older program's) the rest is taken as zero; in a longer one (a newer program's) what this
 *    library does not know must be zero, LEAT_UNSUPPORTED otherwise. Structs that the library fills are filled as far as `size`
 *    goes, and zero behind what it knows; of those that it hands to a callback it sets `size` itself. An array of such structs
 *    has one size throughout, that of its first. Error, order, plan and run have no `size`: theirs never changes.
 *  - Unknown bits in `flags` are LEAT_INVALID. Every buffer comes with its length, which is checked before it is used.
 *  - Deadlines are durations in nanoseconds from the call; 0 means the client's default (30 s), UINT64_MAX none.
 *    Exceptions are stated below. Waiting for another thread that uses the same view counts as well.
 *  - Every wait can be interrupted: leat_client_options.interrupt.
 *  - A client, its working sets and views may be used from any thread; one view is filled by one thread at a time
 *    (others wait). After fork() the child must not touch them; it connects again. leat_forked recognises the child.
 *  - Complete means: the bytes are in the destination and their CRC32C matched what was recorded at preload.
 */
#ifndef LEAT_LEAT_H
#define LEAT_LEAT_H

#include <stddef.h>
#include <stdint.h>

#include <leat/error.h>

#if defined(__GNUC__)
#    pragma GCC visibility push(default)
#endif
#ifdef __cplusplus
extern "C" {
#endif

struct leat_client;
struct leat_ws;
struct leat_view;
struct leat_batch;
struct leat_iter;

/* "0.1.0" */
const char *leat_version(void);

/* --- the connection to this host's daemon --------------------------------------------------------------------- */

#define LEAT_CONNECT_NO_START 1u /* never start a private daemon: LEAT_NOT_FOUND when none runs */

/*
 * Every waiting call runs it about every 50 ms, on the caller's thread, with no lock of the library held.
 * Non-zero ends the call with LEAT_CANCELED, as if its deadline had passed. It must not call back into the
 * set, view or iterator that the call is about (LEAT_BUSY). Python handles signals in it: Ctrl-C ends a read.
 */
typedef int (*leat_interrupt_fn)(void *user);

struct leat_client_options {
    size_t size;
    const char *socket;    /* absolute; NULL: LEAT_SOCKET, else the private daemon of this user and job */
    const char *job;       /* NULL: LEAT_JOB, TORCHELASTIC_RUN_ID, SLURM_JOB_ID, else the login session */
    uint64_t pool_bytes;   /* cap of a daemon started by this call; 0: half of what memory or cgroup leaves */
    uint64_t region_bytes; /* of a daemon started by this call; 0: 512 MiB, less when the pool is small */
    uint64_t timeout_ns;   /* default deadline of operations; 0: 30 s */
    unsigned flags;        /* LEAT_CONNECT_* */
    /* NULL: calls end by their deadlines only. Must stay callable as long as the client */
    leat_interrupt_fn interrupt;
    void *interrupt_user;
};

/*
 * Finds or starts the daemon and shakes hands. Starting is serialised over all processes of the job by a
 * lock. LEAT_PEER_GONE: the daemon ended during three attempts in a row, killed for example; its log may have
 * the cause.
 */
int leat_connect(const struct leat_client_options *options, struct leat_client **ret_client,
                 struct leat_error *err);
/* Working sets and views still open stay usable until closed themselves. NULL is fine. */
void leat_disconnect(struct leat_client *client);
/* The daemon's socket path; valid as long as the client. */
const char *leat_client_socket(const struct leat_client *client);
/* 1 when this process is a forked child of the one that connected. */
int leat_forked(const struct leat_client *client);

/* Progress of long work. Return non-zero to cancel the call, which then ends with LEAT_CANCELED. */
enum leat_stage { LEAT_STAGE_INDEX = 1, LEAT_STAGE_LOAD = 2, LEAT_STAGE_VERIFY = 3 };
struct leat_progress {
    size_t size;
    enum leat_stage stage;
    uint64_t samples_done, samples_total; /* total 0: not known yet */
    uint64_t bytes_done, bytes_total;
};
typedef int (*leat_progress_fn)(const struct leat_progress *progress, void *user);

/* --- working sets ---------------------------------------------------------------------------------------------- */

#define LEAT_OPEN_NO_LOAD 1u /* fail with LEAT_NOT_FOUND unless it is in the pool already */
/* return only when every sample is resident (or streamed: when the pinned part is) */
#define LEAT_OPEN_WAIT   2u
#define LEAT_OPEN_PUBLIC 4u /* other users of a system daemon may read it (mode 0644; default 0600) */

/*
 * How to read sources on S3 and web servers. Leat searches for a NULL member where AWS's own tools do: in
 * this process's environment and its user's files. The daemon keeps these options with the set, wipes them
 * with it, and never shows them.
 */
#define LEAT_S3_ANONYMOUS 1u /* do not sign requests; also LEAT_S3_ANONYMOUS=1 in the environment */
#define LEAT_S3_INSECURE  2u /* do not check certificates; also LEAT_S3_INSECURE=1 */
struct leat_s3_options {
    size_t size;
    unsigned flags;
    const char *endpoint; /* "https://host[:port]" */
    const char *region, *profile;
    const char *style;                           /* "path" or "virtual" */
    const char *ca_file;                         /* PEM */
    const char *access_key, *secret_key, *token; /* token: of temporary ones, else NULL */
};

struct leat_open_options {
    size_t size;
    const char *name; /* explicit working set: stays until dropped. NULL: implicit, ends with its last user */
    unsigned flags;   /* LEAT_OPEN_* */
    /* at most this much of the pool; the rest is streamed. 0: as much as it needs and the pool has */
    uint64_t pool_bytes;
    leat_progress_fn progress;
    void *progress_user;
    uint64_t timeout_ns;
    const struct leat_s3_options *s3; /* NULL: all of it from the environment */
};

/*
 * Opens a dataset: a path, a file URI, an address ("s3://bucket/prefix", "https://host/x.tar"),
 * "field=path;field=path" (any of these), or "leat://NAME" for a set in the pool. A path is taken literally;
 * a relative one starts at this process's working directory. A file URI is "file:///absolute", host empty or
 * "localhost", percent-encoded (RFC 8089).
 *
 * Does not wait for the data: a background preload runs, and a read waits for its own samples only. Scanning
 * a source without an index may take long: as long as the scan makes progress, only a timeout_ns that was
 * given ends the call.
 *
 * LEAT_INVALID: the URI is not well-formed; LEAT_UNSUPPORTED: another scheme. Of the source: LEAT_NOT_FOUND,
 * LEAT_DENIED, LEAT_INVALID, LEAT_CORRUPT, LEAT_UNSUPPORTED. LEAT_NO_SPACE: not even a window fits.
 */
int leat_open(struct leat_client *client, const char *uri, const struct leat_open_options *options,
              struct leat_ws **ret_ws, struct leat_error *err);
/* Opens a dataset and waits until it is in the pool; with options->name it stays there. ret_ws may be
 * NULL. */
int leat_preload(struct leat_client *client, const char *uri, const struct leat_open_options *options,
                 struct leat_ws **ret_ws, struct leat_error *err);
/* Adds the samples of `uri` (same fields) to explicit set `name`, as a new version; handles already open keep
 * reading theirs. *ret_length (may be NULL): samples of the new version. A version that is still being loaded
 * cannot be appended to (LEAT_BUSY): with LEAT_OPEN_WAIT in options->flags the call returns when all of it is
 * in the pool. LEAT_TIMED_OUT or a cancelled wait does not undo the append, and *ret_length is set. Samples that
 * cannot be loaded are errors of their reads. */
int leat_append(struct leat_client *client, const char *name, const char *uri,
                const struct leat_open_options *options, uint64_t *ret_length, struct leat_error *err);
/* NULL is fine. Views, iterators and leases of the set stay valid until they are closed themselves. */
void leat_close(struct leat_ws *ws);

#define LEAT_MAX_DIMS 8
struct leat_field {
    size_t size;
    const char *name;              /* valid as long as the working set */
    const char *dtype;             /* NumPy's ("<f4", "|u1"); "" for raw bytes; "<u4" for labels */
    uint64_t max_bytes;            /* longest value */
    uint64_t fixed_bytes;          /* every value has this length; 0: ragged */
    unsigned is_label;             /* 1: a class number: value held in the index, named by leat_ws_class */
    unsigned ndim;                 /* of one sample */
    uint64_t shape[LEAT_MAX_DIMS]; /* of one sample, elements */
};

uint64_t leat_ws_length(const struct leat_ws *ws);
unsigned leat_ws_fields(const struct leat_ws *ws);
/* ret_field->size is the caller's to set. LEAT_NOT_FOUND: no such field; LEAT_INVALID: size is not set. */
int leat_ws_field(const struct leat_ws *ws, unsigned field, struct leat_field *ret_field);
int leat_ws_find_field(const struct leat_ws *ws, const char *name); /* number or -1 */
/* "leat://NAME", or the canonical source: opens the same set in another process. */
const char *leat_ws_uri(const struct leat_ws *ws);
/* 32 hex digits of the fingerprint: keys, sizes and shapes, never times. */
const char *leat_ws_fingerprint(const struct leat_ws *ws);
uint64_t leat_ws_classes(const struct leat_ws *ws);
/* Not NUL-terminated; valid as long as the set. NULL past the end. */
const char *leat_ws_class(const struct leat_ws *ws, uint64_t label, size_t *ret_len);
/*
 * Key of a sample: pathname in filesets (valid as long as the set, not NUL-terminated), decimal number in arrays, which is written to
 * buf: cap of LEAT_KEY_BUF is enough for any. NULL past the end, or when buf is too short.
 */
#define LEAT_KEY_BUF 24
const char *leat_ws_key(const struct leat_ws *ws, uint64_t index, char *buf, size_t cap, size_t *ret_len);
/* Number of a key, LEAT_NOT_FOUND otherwise. */
int leat_ws_index(const struct leat_ws *ws, const char *key, size_t key_len, uint64_t *ret_index);
/* Where one field of one sample comes from: path of the file (or URI; snprintf's way: *ret_len may be >= cap) and the offset of
 * its bytes there. LEAT_NOT_FOUND: absent, made by a filter, a label, or pushed. No I/O. For messages to people. */
int leat_ws_source(const struct leat_ws *ws, uint64_t index, unsigned field, char *buf, size_t cap,
                   size_t *ret_len, uint64_t *ret_offset);
/* Bytes of one field of one sample; LEAT_NOT_FOUND when the sample has no such field. No I/O. */
int leat_ws_field_bytes(const struct leat_ws *ws, uint64_t index, unsigned field, uint64_t *ret_bytes);

struct leat_ws_stat {
    size_t size;
    uint64_t samples, resident_samples, failed_samples;
    uint64_t payload_bytes, resident_bytes;
    uint64_t pool_bytes; /* regions held; the last one is as long as it has to be */
    uint64_t regions, region_bytes;
    uint64_t page_bytes; /* smallest page size obtained for a region of it */
    unsigned streamed;   /* 1: larger than the pool; unpinned samples come through a window */
    unsigned generation, version;
    /* How this process reads the set: "shm", "tcp", "shm+tcp", "rdma", "rdma-write", "shm+rdma"; by
     * several rails "tcp x2". */
    const char *transport;
    /* On a lost node: read from their source, or, in a pushed set, unavailable. */
    uint64_t lost_samples;
    /* Bytes of samples that this handle has read, by transport. leat_hold moves no bytes. */
    uint64_t shm_bytes;        /* copied out of shared memory of this host */
    uint64_t tcp_bytes;        /* received from other nodes */
    uint64_t rdma_read_bytes;  /* read out of their memory */
    uint64_t rdma_write_bytes; /* written by them into our views */
    uint64_t streamed_bytes;   /* read from the source by the daemon, then copied out of shared memory */
    uint64_t bounced_bytes;    /* counted above, and copied on to a device from pinned memory */
    uint64_t rails;            /* how many leat_ws_rail can return */
};
int leat_ws_stat(struct leat_ws *ws, struct leat_ws_stat *ret_stat, struct leat_error *err);

/* One of the ways by which this handle reads another node. Strings live as long as the handle. */
struct leat_rail {
    size_t size;
    const char *node;      /* its addresses, as in the list of nodes */
    const char *name;      /* tcp: the connected one of them; rdma: our port, "mlx5_0:1" */
    const char *transport; /* "tcp", "rdma" */
    const char *state;     /* "up"; "down": it is tried again; "closed": nothing reads by it now */
    uint64_t bytes;
    uint64_t rate_bytes_per_s; /* measured last while it was busy, by one view; 0: not yet */
};
/* i: 0 to leat_ws_stat's `rails`, in the order in which they were first used; figures are those after the last batch. LEAT_NOT_FOUND: there
 * are fewer; LEAT_INVALID: size is not set. No I/O. */
int leat_ws_rail(struct leat_ws *ws, uint64_t i, struct leat_rail *ret_rail);

/*
 * Progress of a training loop, for `leat top` and `leat status`. They show the last report of each loader
 * until a report with LEAT_REPORT_ENDED comes, the set is closed or the process ends. leat.Loader reports by
 * itself, about once a second.
 */
enum leat_verdict {
    LEAT_VERDICT_UNKNOWN = 0,
    LEAT_VERDICT_CONSUMER = 1, /* batches are ready before the loop requests them */
    LEAT_VERDICT_FETCH = 2,    /* the loop waits for bytes */
    LEAT_VERDICT_PREP = 3,     /* for decoding and transforms */
    LEAT_VERDICT_COPY = 4,     /* for copies to a GPU */
};
#define LEAT_REPORT_ENDED 1u
struct leat_report {
    size_t size;
    uint64_t loader;           /* the caller's number of this loader in its process, the same on all ranks */
    const char *title;         /* name of the data, if it is not the set's name; else NULL */
    unsigned flags;            /* LEAT_REPORT_* */
    enum leat_verdict verdict; /* on the last batches */
    unsigned rank, world_size; /* world_size 0: 1 */
    uint64_t epoch;
    uint64_t samples, length;            /* of all ranks: received in this epoch, of so many */
    uint64_t batch_samples;              /* a step of this rank */
    uint64_t step_samples;               /* a step of all */
    uint64_t total_samples, total_bytes; /* that this rank received since the loader was made */
    double samples_per_s, bytes_per_s;   /* of this rank, in the last seconds */
    double waiting;                      /* share of the loop's time that it waited for batches, 0 to 1 */
    /* digest of this epoch's order; ranks that report different ones read overlapping samples. 0: none */
    uint64_t order;
};
/*
 * Never waits, and gets no answer. LEAT_BUSY: the daemon does not take it now; the next report has the same
 * figures and newer ones. Long strings are cut.
 */
int leat_ws_report(struct leat_ws *ws, const struct leat_report *report, struct leat_error *err);
/* Waits until all samples are resident: timeout_ns 0 means no deadline. */
int leat_ws_wait(struct leat_ws *ws, leat_progress_fn progress, void *user, uint64_t timeout_ns,
                 struct leat_error *err);

/* --- single samples -------------------------------------------------------------------------------------------- */

/* Copies one field of one sample into buf (cap bytes); *ret_bytes is its length. LEAT_NO_SPACE when cap is
 * short (*ret_bytes is then the size needed). Labels are 4 bytes, little-endian. Negative numbers are the
 * caller's to resolve. */
int leat_read(struct leat_ws *ws, uint64_t index, unsigned field, void *buf, uint64_t cap,
              uint64_t timeout_ns, uint64_t *ret_bytes, struct leat_error *err);

/*
 * Zero copy: a read-only pointer into the pool. Holds a lease until leat_hold_release; until then only a drop
 * by force succeeds, and turns the bytes to zeros. LEAT_UNSUPPORTED when the sample is not in this host's
 * pool in one piece (another node, a region boundary, a streamed sample): use leat_read.
 */
struct leat_hold;
int leat_hold(struct leat_ws *ws, uint64_t index, unsigned field, uint64_t timeout_ns,
              struct leat_hold **ret_hold, const void **ret_data, uint64_t *ret_bytes,
              struct leat_error *err);
void leat_hold_release(struct leat_hold *hold);

/* --- batches --------------------------------------------------------------------------------------------------- */

/* Where the buffers of a view are. Offsets and ids of a batch are always in host memory. */
enum leat_memory {
    LEAT_MEMORY_HOST = 0,   /* plain memory of this process */
    LEAT_MEMORY_PINNED = 1, /* page-locked memory of the host that `device` copies from at full speed */
    LEAT_MEMORY_CUDA = 2,   /* memory of CUDA device `device`: leat_batch_data is a device pointer */
};

struct leat_view_options {
    size_t size;
    unsigned batch_size;    /* most samples a batch; required */
    unsigned slots;         /* batch buffers in the ring; 0: 4 */
    const unsigned *fields; /* field numbers; NULL: all */
    unsigned nfields;
    uint64_t max_batch_bytes; /* of one ragged field of one batch; 0: batch_size * longest, reserved lazily */
    /* "shm", "tcp", "rdma" (or "rdma-read"), "rdma-write" (servers write on request), "shm+tcp",
     * "shm+rdma": required, LEAT_UNSUPPORTED, -ENOMEM or LEAT_DENIED with the reason if unavailable.
     * "auto": shared memory on this host, RDMA where both ends have it, else TCP. NULL: $LEAT_TRANSPORT,
     * else auto */
    const char *transport;
    uint64_t inflight_bytes; /* most bytes requested and not yet received; 0: measured */
    unsigned memory;         /* enum leat_memory: required; LEAT_UNSUPPORTED if unavailable */
    int device;              /* CUDA ordinal, as the process sees them; 0 for LEAT_MEMORY_HOST */
    unsigned flags;          /* LEAT_LOAD_* */
    unsigned reserved;       /* 0 */
    /* Windows over consecutive samples, of fields of fixed length: sample i of this view, its ids and orders is the samples
     * [i * window_step, i * window_step + window) of the set, side by side; they may overlap. A view has 1 + (length - window) /
     * window_step of them. 0: 1 each. LEAT_INVALID: longer than the set, or a field that is ragged or a label. */
    unsigned window, window_step;
    const char *fingerprint; /* 32 hex digits that orders of this view depend on; NULL: the set's */
};

/* LEAT_MEMORY_CUDA: batches are handed out while they are still copied: leat_batch_wait_on_stream before each use. */
#define LEAT_LOAD_ASYNC 1u
/*
 * LEAT_MEMORY_CUDA: bytes that come by RDMA land in the device's memory and are checked there. All others
 * (shared memory, TCP, streamed samples, labels) go through the slot's pinned memory. _DIRECT: required, with
 * RDMA as the only transport to other nodes, else LEAT_UNSUPPORTED with the reason. _IF_POSSIBLE: else
 * through pinned memory; leat_view_stat reports the path. A batch with such bytes is handed out after its
 * check, also with LEAT_LOAD_ASYNC. Tested on emulated devices, not on a GPU.
 */
#define LEAT_LOAD_DIRECT             2u
#define LEAT_LOAD_DIRECT_IF_POSSIBLE 4u

/*
 * Load: allocates, pins and registers the ring of batch buffers, once. A batch is handed out when its bytes
 * are in the buffer and were checked: a kernel on any stream may read it at once (but see LEAT_LOAD_ASYNC).
 *
 * LEAT_MEMORY_PINNED and LEAT_MEMORY_CUDA need NVIDIA's driver (libcuda.so.1, loaded now): LEAT_UNSUPPORTED
 * names what is missing, LEAT_INVALID means no such device, -ENOMEM names what could not be pinned or
 * allocated. Pinned memory is committed as a whole, slots times the longest batch: set max_batch_bytes where
 * a field is ragged. With LEAT_MEMORY_CUDA each slot is pinned memory ("bounce"), where checksums are
 * compared, and as much memory of the device, to which it is then copied on a stream of the library's own. A
 * copy that fails is -EIO with the driver's words; leat_batch_data is not for the CPU.
 */
int leat_load(struct leat_ws *ws, const struct leat_view_options *options, struct leat_view **ret_view,
              struct leat_error *err);
/* Batches still held stay valid until released; the memory goes with the last one. */
void leat_view_close(struct leat_view *view);

struct leat_view_stat {
    size_t size;
    unsigned memory; /* enum leat_memory */
    int device;
    /* "host", "pinned", "bounce": through pinned memory to the device, "direct". A constant. */
    const char *delivery;
    uint64_t slots, slot_bytes;
    uint64_t pinned_bytes, device_bytes; /* of all slots */
    uint64_t bounced_bytes, copies;      /* to the device so far */
    uint64_t lags; /* batches that had to wait for a slot that was released but still in use on the device */
    uint64_t direct_bytes; /* that NICs wrote into the device's memory so far */
};
/* Any thread, at any time. LEAT_INVALID: size is not set. */
int leat_view_stat(const struct leat_view *view, struct leat_view_stat *ret_stat, struct leat_error *err);

/*
 * ReadBatch: n <= batch_size samples, any order, repeats allowed, into a free slot. When every slot is held: LEAT_BUSY, naming
 * the holders' sequence numbers. A failed read leaves no batch: err names the first bad sample.
 */
int leat_read_batch(struct leat_view *view, const uint64_t *ids, unsigned n, uint64_t timeout_ns,
                    struct leat_batch **ret_batch, struct leat_error *err);

unsigned leat_batch_size(const struct leat_batch *batch);
const uint64_t *leat_batch_ids(const struct leat_batch *batch);
/* Position in the epoch order of the first sample, for batches of an iterator. */
uint64_t leat_batch_position(const struct leat_batch *batch);
/* Field `f` counts within the view's fields. Fixed: sample i at data + i * fixed_bytes. Ragged: sample i is
 * [offsets[i], offsets[i + 1]) of data; absent fields have length 0 and present(…) = 0. Labels: u32 each. */
void *leat_batch_data(const struct leat_batch *batch, unsigned f, uint64_t *ret_bytes);
/* NULL for fixed fields; n + 1 entries */
const uint64_t *leat_batch_offsets(const struct leat_batch *batch, unsigned f);
int leat_batch_present(const struct leat_batch *batch, unsigned f, unsigned i);
unsigned leat_batch_slot(const struct leat_batch *batch); /* which buffer of the ring */
/* Where leat_batch_data points to; *ret_device (may be NULL): the CUDA ordinal, 0 for host memory. */
enum leat_memory leat_batch_memory(const struct leat_batch *batch, int *ret_device);
/* Gives the slot back. Any thread, exactly once. */
void leat_batch_release(struct leat_batch *batch);

/*
 * The end of work that still reads a slot (of a copy engine, a kernel): a descriptor that turns readable
 * then, or a function. Any thread that searches for a free slot may call `finished`, with locks of the view
 * held: it returns at once and calls nothing of this library. Non-zero means finished, or that it cannot be
 * determined any more. It is not called again after that, so it may free what `user` points to. For CUDA:
 * cudaEventQuery(event) != cudaErrorNotReady.
 */
struct leat_event {
    size_t size;
    int (*finished)(void *user); /* NULL: fd is meant */
    void *user;
    int fd; /* an eventfd, or anything for poll(2); the library keeps a duplicate. Ignored if `finished` is set */
    unsigned reserved;
};
/*
 * Gives the slot back after the event. Any thread. After a failure the batch is still held. If the view is
 * closed before the event, the slot's memory stays until then.
 */
int leat_batch_release_after(struct leat_batch *batch, const struct leat_event *event,
                             struct leat_error *err);

/*
 * For views in LEAT_MEMORY_PINNED or LEAT_MEMORY_CUDA; `stream` is a CUstream or cudaStream_t of the view's
 * device, NULL its default stream (1 and 2, CU_STREAM_LEGACY and _PER_THREAD, as well). Neither call waits.
 * -EIO: the driver refused; the batch is still held.
 *
 * Work put on `stream` from now on runs after the batch has come. Needed with LEAT_LOAD_ASYNC only.
 */
int leat_batch_wait_on_stream(const struct leat_batch *batch, void *stream, struct leat_error *err);
/*
 * Gives the slot back when all work that is now on `stream` has finished. As leat_batch_release_after,
 * without an event of the caller's. -EIO: the device is lost, and uses nothing any more: call
 * leat_batch_release. A stream that takes no event now (it refuses, or is being captured) gets it later, and
 * the slot stays in use until then. A thread that waits for a slot gets the refusal as its error if no other
 * slot is left. CU_STREAM_PER_THREAD is another stream in each thread: it must not be captured during this
 * call, because a later attempt may run in another thread.
 */
int leat_batch_release_on_stream(struct leat_batch *batch, void *stream, struct leat_error *err);

/* --- reading a prefix once, in order ----------------------------------------------------------------------------- */

/*
 * Reads each object below "s3://bucket/prefix" (or "store://bucket/prefix") once, in the order of the list,
 * while the list is still coming: for statistics, checks and conversions, which need no shuffle. The first
 * object does not wait for the last key, and nothing stays in the pool. There is no working set: no length,
 * no lasting numbers, no ranks. Objects come as they are, shards too. Hidden objects and folder markers are
 * left out, as by leat_open. All bytes of an object are of the version that the list named, and are compared
 * with the server's checksum where there is one.
 *
 * The daemon fetches ahead into a window of shared memory, which is part of its pool as long as the scan is
 * open.
 */
struct leat_scan;
struct leat_scan_options {
    size_t size;
    const char *after; /* only keys after this one, to continue a scan that ended early; NULL: all */
    /* Of the pool; no object may be larger. 0: 64 MiB, or half of what is free if that is less. */
    uint64_t window_bytes;
    const struct leat_s3_options *s3; /* NULL: all of it from the environment */
    uint64_t timeout_ns;              /* of this call */
};
/* LEAT_UNSUPPORTED: a local path, or a web server, which has no lists; LEAT_NO_SPACE: the pool has no room
 * for the window; LEAT_BUSY: too many scans; LEAT_DENIED. An empty or unreadable prefix shows in
 * leat_scan_next. */
int leat_scan(struct leat_client *client, const char *uri, const struct leat_scan_options *options,
              struct leat_scan **ret_scan, struct leat_error *err);

struct leat_scan_sample {
    size_t size;
    uint64_t number;  /* 0, 1, ...: for leat_scan_release */
    const char *key;  /* the rest of the key after the prefix; NULL: the end. Valid until the release */
    const char *etag; /* with its quotes, "" if there is none; valid as `key` */
    int64_t modified; /* seconds since 1970 */
    const void *data; /* read-only, valid until the release */
    uint64_t bytes;
};
/*
 * The next object, in order; waits for another thread's call. LEAT_NOT_FOUND: nothing lies below the prefix,
 * or the object vanished after the list named it; LEAT_STALE: it has changed; LEAT_CORRUPT, LEAT_DENIED;
 * LEAT_NO_SPACE: it is larger than the window; LEAT_BUSY: objects not yet released fill the window. After
 * LEAT_BUSY, LEAT_TIMED_OUT and LEAT_CANCELED it may be called again, and leaves out nothing. Other errors
 * are final.
 */
int leat_scan_next(struct leat_scan *scan, uint64_t timeout_ns, struct leat_scan_sample *ret_sample,
                   struct leat_error *err);
/* Releases an object's data: in any order, from any thread, once each. Window room is used again in order. */
void leat_scan_release(struct leat_scan *scan, uint64_t number);
/* Ends the scan at any object; all its data becomes invalid. NULL is fine. */
void leat_scan_close(struct leat_scan *scan);

/* --- epoch order ----------------------------------------------------------------------------------------------- */

/*
 * perm(seed, epoch, fingerprint, kind): a permutation of [0, n) in O(1) memory. block == 0: full shuffle; block = N: blocks of N
 * consecutive samples in random order, mixed inside groups of LEAT_ORDER_GROUP blocks, so that storage is read in
 * runs; UINT64_MAX: no shuffle. No batch size, rank or world size in it.
 */
#define LEAT_ORDER_SEQUENTIAL UINT64_MAX
#define LEAT_ORDER_GROUP      16u
struct leat_order { /* a value that may be copied; its size never changes */
    uint64_t n, seed, epoch, block;
    uint64_t key[4]; /* private from here: filled by leat_order_init */
    uint64_t a, b, ga, gb;
    uint64_t nblocks, tail_slot;
    uint64_t reserved[18]; /* 0 */
};
/* fingerprint: 32 hex digits or NULL. LEAT_INVALID when n == 0. */
int leat_order_init(struct leat_order *order, uint64_t n, uint64_t seed, uint64_t epoch, uint64_t block,
                    const char *fingerprint, struct leat_error *err);
/* Sample at position p < n, UINT64_MAX past the end. Pure; any thread. */
uint64_t leat_order_at(const struct leat_order *order, uint64_t position);
/* The samples at positions [first, first + count). LEAT_INVALID, and nothing is written, when that goes past the end. */
int leat_order_fill(const struct leat_order *order, uint64_t first, unsigned count, uint64_t *ret_ids);

/* --- plan: which samples stand in which step of an epoch ------------------------------------------------------------ */

/*
 * Positions [0, length) count the samples of all ranks. The sample at a position follows from n, seed, epoch, block,
 * fingerprint, skips and parts alone. Positions from `length` on are padding: the epoch's first samples again.
 * Step s takes the G = batch_size * world_size positions from first_position + s * G on, each rank its slice of them;
 * keep_tail says what becomes of the last, short one. Training resumes behind step s at position
 * MIN(first_position + (s + 1) * G, length): a plan that begins there, on any ranks, has exactly the rest.
 *
 * A mixture draws from several sets in proportion to their weights. Each has an order of its own, which continues from
 * epoch to epoch. Ids count the samples of all sets, one set after another. Their bits from LEAT_PLAN_ID_BITS on count the
 * epochs of the set that have ended since this epoch began, modulo 2^20: a sample that comes again has another id.
 *
 * Pure functions without I/O, allocation or locks, for any thread.
 */
#define LEAT_PLAN_ID_BITS 44
#define LEAT_PLAN_ID_MASK ((1ull << LEAT_PLAN_ID_BITS) - 1)
/* Of this size for good: a value that may be copied. Arrays and strings stay the caller's, unchanged while it is used. */
struct leat_plan {
    /* Set by the caller, everything else to 0, which is also each one's default */
    uint64_t n;                  /* positions before skips: samples of the set; of a mixture any number */
    uint64_t seed, epoch, block; /* as of leat_order_init */
    const char *fingerprint;     /* 32 hex digits or NULL; of a mixture 32 for each set, in one string */
    const uint64_t *skips;       /* nskips rising, disjoint ranges [first, end) of [0, n) that are left out */
    uint64_t nskips;             /* pairs */
    const uint64_t *weights, *lengths; /* of each set of a mixture; all weights together below 2^25 */
    uint64_t nparts;                   /* sets of a mixture, at most 256; 0: one set, no mixture */
    uint64_t first_position;
    unsigned batch_size, rank, world_size; /* 0: no steps; 0, 0: one rank */
    int keep_tail;                         /* as of leat_iter_options */
    /* Filled by leat_plan_init */
    uint64_t length, steps; /* positions of the epoch; batches of this rank from first_position on */
    uint64_t full_steps, tail_first, tail_count, base, weight; /* private from here */
    struct leat_order order;
    uint64_t reserved[12]; /* 0 */
};
/* LEAT_INVALID, or LEAT_UNSUPPORTED (a reserved word is not 0), and the plan stays as it was: err says what is possible.
 * A mixture ends after 2^38 samples of all epochs. */
int leat_plan_init(struct leat_plan *plan, struct leat_error *err);
/* Positions [*ret_first, + *ret_count) of this rank's batch of a step. LEAT_INVALID: step >= steps. */
int leat_plan_step(const struct leat_plan *plan, uint64_t step, uint64_t *ret_first, unsigned *ret_count);
/* The ids at positions [first, first + count), first + count below 2^64. LEAT_INVALID: an epoch without samples. */
int leat_plan_ids(const struct leat_plan *plan, uint64_t first, uint64_t count, uint64_t *ret_ids);

/* From a position of an epoch on, steps have global_batch samples, batch_size of each rank (0: not known). */
struct leat_plan_run { /* of this size for good */
    uint64_t epoch, position, global_batch, batch_size;
};
/*
 * Step `step` of the plan's epoch, counted from its start through all runs, which rise. *ret_run begins with that step,
 * *ret_count is its samples without padding. The plan's own steps do not matter. LEAT_NOT_FOUND: err says how many there are.
 */
int leat_plan_find(const struct leat_plan *plan, const struct leat_plan_run *runs, uint64_t nruns,
                   uint64_t step, struct leat_plan_run *ret_run, uint64_t *ret_count, struct leat_error *err);

/* --- batches of an epoch, read ahead ----------------------------------------------------------------------------- */

#define LEAT_SHUFFLE_AUTO 1u /* block = 0 for sets in the pool, a stated block for streamed ones */

struct leat_iter_options {
    size_t size;
    uint64_t seed, epoch;
    uint64_t block; /* as in leat_order */
    /* LEAT_SHUFFLE_AUTO overrides block. The choice depends on this host's pool: ranks of several hosts
     * agree by taking leat_iter_block of rank 0 as their block */
    unsigned flags;
    unsigned rank, world_size; /* 0, 0: one rank */
    uint64_t first_position;   /* global position to start at: resume */
    /* The last, short step: 0: is dropped; 1: is delivered, possibly shorter on some ranks; 2: is padded
     * to batch_size on all ranks, with the epoch's first positions again: samples at positions >= the
     * epoch's length are padding */
    int keep_tail;
    unsigned ahead; /* batches read ahead by the iterator's thread; 0: slots - 1; at most slots - 1 */
    /* Not NULL: ids of the caller's instead of an order. This rank's samples, one batch after another, of which batch b ends
     * before ends[b]; read during the call only; positions count ids. Of the members above, ahead counts, and block: what is
     * fetched of a streamed set comes in whole blocks of so many samples, which pays where those of a block are near in time */
    const uint64_t *ids;
    uint64_t nids;
    const uint64_t *ends; /* rising, the last one nids; NULL: batch_size each */
    uint64_t nends;
};
/* The steps are those of leat_plan. */
int leat_iterate(struct leat_view *view, const struct leat_iter_options *options, struct leat_iter **ret_iter,
                 struct leat_error *err);
/* Next batch, in order. *ret_batch = NULL at the end of the epoch. */
int leat_next(struct leat_iter *iter, uint64_t timeout_ns, struct leat_batch **ret_batch,
              struct leat_error *err);
uint64_t leat_iter_steps(const struct leat_iter *iter); /* batches this rank gets in all */
uint64_t leat_iter_block(const struct leat_iter *iter); /* the block chosen: 0 full */
/* Ends reading ahead; batches handed out stay valid. Not while another thread is in leat_next of it. */
void leat_iter_close(struct leat_iter *iter);

/* --- push: ranks fill a set that has no source Leat can read ----------------------------------------------------- */

struct leat_create_field {
    size_t size;
    const char *name;
    const char *dtype;     /* NumPy's: the field is fixed; NULL or "": raw bytes, ragged */
    const uint64_t *shape; /* of one sample, ndim numbers */
    unsigned ndim;         /* at most LEAT_MAX_DIMS */
    unsigned reserved;
    const uint64_t *lengths; /* of a raw field: bytes of each sample. NULL for fixed ones */
    uint64_t nlengths;       /* numbers in lengths: nsamples, or 0 */
};
struct leat_create_options {
    size_t size;
    const struct leat_create_field *fields;
    unsigned nfields;
    unsigned flags; /* LEAT_OPEN_PUBLIC */
    uint64_t nsamples;
    const char *const *keys; /* NUL-terminated; NULL: samples are called by their numbers */
    uint64_t nkeys;          /* pointers in keys: nsamples, or 0 */
    uint64_t timeout_ns;
};
/* Rank 0 allocates explicit set `name`. It is readable sample by sample as they come. */
int leat_create(struct leat_client *client, const char *name, const struct leat_create_options *options,
                struct leat_error *err);

struct leat_push_field {
    size_t size;
    const void *data; /* the values of the samples, one after another */
    uint64_t bytes;   /* of all of data */
    /* Of a raw field: the bytes of each value, as given to leat_create. NULL for fixed ones */
    const uint64_t *lengths;
    uint64_t nlengths; /* numbers in lengths: n, or 0 */
};
/*
 * Any rank: writes all fields of samples [first, first + n), in the set's order of fields; nfields of the set. Not readable before
 * all fields are there. LEAT_INVALID, before anything is sent, when some length is not the set's.
 */
int leat_push(struct leat_ws *ws, uint64_t first, unsigned n, const struct leat_push_field *fields,
              unsigned nfields, uint64_t timeout_ns, struct leat_error *err);
/* The share of a rank: [*ret_first, *ret_end). */
void leat_share(uint64_t nsamples, unsigned rank, unsigned world_size, uint64_t *ret_first,
                uint64_t *ret_end);

/* --- looking after the pool -------------------------------------------------------------------------------------- */

enum leat_query {
    LEAT_QUERY_LIST = 1,    /* all working sets the caller may see */
    LEAT_QUERY_STAT = 2,    /* one: arg = name or URI */
    LEAT_QUERY_STATUS = 3,  /* the daemon: pool, regions, clients, nodes, engines, page sizes */
    LEAT_QUERY_METRICS = 4, /* Prometheus text, not JSON */
};
/* *ret_text: UTF-8 JSON (or Prometheus text), NUL-terminated; free it with leat_free. */
int leat_query(struct leat_client *client, enum leat_query query, const char *arg, char **ret_text,
               struct leat_error *err);
void leat_free(void *text);

#define LEAT_DROP_FORCE 1u /* do not wait for leases: readers get LEAT_STALE */
/* Waits for leases up to timeout_ns, then LEAT_BUSY naming how many. */
int leat_drop(struct leat_client *client, const char *name, unsigned flags, uint64_t timeout_ns,
              struct leat_error *err);

#define LEAT_VERIFY_SOURCE 1u /* read the source again as well, not only the pool */
/* Recomputes every CRC, however long that takes. LEAT_CORRUPT naming the first bad key; *ret_bad is how many samples are bad: bytes that
 * differ, and samples that failed to load or are lost. */
int leat_verify(struct leat_ws *ws, unsigned flags, leat_progress_fn progress, void *user, uint64_t *ret_bad,
                struct leat_error *err);
/* Ends the daemon: refused with LEAT_BUSY while others use it, unless force. */
int leat_stop(struct leat_client *client, int force, struct leat_error *err);

/* Counters of this process, all clients together: names as in the daemon's metrics. JSON; leat_free it. */
int leat_counters(char **ret_json, struct leat_error *err);

#ifdef __cplusplus
}
#endif
#if defined(__GNUC__)
#    pragma GCC visibility pop
#endif
#endif
