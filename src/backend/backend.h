/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backend.h: remote objects: list, stat, ranged read, write. One session belongs to one thread and drives its own loop:
 * reads are submitted, any number, and the thread waits for them, or does other things between. Implementations stand beside each
 * other (ops.h): s3/ speaks to S3, compatible services and plain web servers; dir/ serves a folder as if it were a bucket.
 *
 *   backend_submit ──▶ cut in blocks ──▶ requests, many at a time, tried again where that helps ──▶ done(read), exactly once
 *
 * A read promises: all its bytes are of one version of the object (its ETag is pinned by If-Match if the caller gives one, and
 * compared if not), and match the server's checksum where there is one. Anything less is an error; the destination may have been written
 * by then, but not after done().
 * Failure modes: LEAT_NOT_FOUND, LEAT_DENIED, LEAT_STALE (changed), LEAT_CORRUPT, LEAT_TIMED_OUT, LEAT_PEER_GONE, LEAT_BUSY (throttled to the
 * end), LEAT_UNSUPPORTED. Messages name bucket, key, range and cause; never a secret.
 */
#ifndef BACKEND_BACKEND_H
#define BACKEND_BACKEND_H

#include "base/base.h"
#include "base/list.h"
#include "base/pieces.h"
#include "wire/s3/s3_crc.h"

#define BACKEND_ETAG_MAX    160
#define BACKEND_HEADERS_MAX 4096u /* bytes of all headers that are kept with an object */
#define BACKEND_HEADERS     64u   /* and how many */

struct backend;
struct backend_file;
struct store;       /* store/store.h */
struct credentials; /* s3/credentials.h */

struct backend_config {
    /* "file:///srv/data": the session is of this folder and what is below it, and nothing else. NULL: S3 and web servers. */
    const char *folder;
    /* The session is of this store of ours ("store://bucket/key"), and outlived by it; NULL: see above. Read by this engine of disk.h. */
    struct store *store;
    const char *disk_engine; /* NULL: "auto" */
    unsigned disk_depth;     /* reads handed to the kernel at a time; 0: 16 */
    unsigned connections;    /* to one host at a time; 0: 16 */
    uint64_t block_bytes;    /* of one request; 0: chosen by the size of a read */
    uint64_t timeout_ns;     /* of a request, tries included; 0: 60 s */
    unsigned tries;          /* of a block; 0: 6 */
    /* S3. NULL: from the environment and AWS's files, as its own tools do it. */
    const char *endpoint, *region, *profile, *style, *ca_file;
    bool anonymous; /* do not sign requests */
    bool insecure;  /* do not check certificates */
    bool given;     /* NULL members mean S3's defaults, not the environment */
    /*
     * Credentials: requested before the first request, when what it gave last is about to expire, and
     * (`refused`) when a server says that it has. Fills ret_credentials, which become the session's. On the
     * session's thread. NULL: credentials_find.
     */
    int (*credentials)(void *user, bool refused, struct credentials *ret_credentials, struct leat_error *err);
    void *user;
    /* Checked during waits (lists, stat, put, pread, wait): true ends the wait with -ECANCELED. NULL: no
     * cancellation. */
    const atomic_bool *cancelled;
    /*
     * Whose requests they are, in any words (not kept). Sessions of one endpoint and region with the same
     * identity share, in all of the process, how much its server takes, and the pauses that it asks for. NULL: this one shares
     * with none. S3's.
     */
    const char *identity;
    bool stay; /* a redirection to another host is refused, not followed */
};

/* The most that a session on our own store holds: buffers, and records of reads. */
#define BACKEND_STORE_BYTES (2560 * KIB)

struct backend_object {
    const char *uri;  /* the whole address; valid during the callback */
    const char *name; /* the part after the listed prefix */
    uint64_t bytes;
    const char *etag; /* with its quotes; "" if there is none */
    int64_t modified; /* seconds since 1970 */
    bool prefix;      /* a "folder": only in a list that is not recursive */
};

struct backend_stat {
    uint64_t bytes;
    char etag[BACKEND_ETAG_MAX];
    int64_t modified;
    struct s3_crc crc; /* of the whole object, where its server keeps one */
    /* Its metadata: "name:value\n" each, names in lower case. Those that do not fit are left out. */
    char headers[BACKEND_HEADERS_MAX];
};
/* Of these: content-type, -encoding, -language, -disposition, cache-control, expires, and x-amz-meta-... */
bool backend_header_kept(const char *name);
struct backend_header {
    char *name, *value;
};
/* Splits the next such line in place. False: there is none. */
bool backend_header_next(char **at, struct backend_header *ret_header);

/* One range of one object. */
struct backend_read {
    /* in; the caller's, unchanged until done() */
    struct backend_file *file;
    uint64_t offset, bytes; /* bytes > 0, inside the object */
    /* One of many reads under way, each with a waiter: its requests share connections. */
    bool shared;
    void *
        dst; /* where they go; NULL: to these pieces, of as many bytes together, some of them empty perhaps */
    const struct iovec *pieces;
    unsigned npieces;
    void (*done)(struct backend_read *read, int rc, const struct leat_error *err);
    /* the session's */
    struct list node;
    uint64_t next, left; /* bytes not yet asked for begin here; bytes not yet there */
    struct pieces rest;  /* where those not yet asked for go */
    unsigned inside;     /* requests under way */
    int rc;              /* the first error, and why */
    struct leat_error *why;
};

enum backend_op_kind { BACKEND_STAT, BACKEND_DELETE, BACKEND_COPY };

/* What is asked of one object beside its bytes: as backend_stat_object, backend_delete and backend_copy, which
 * are these, waited for. */
struct backend_op {
    /* in; the caller's, unchanged until done() */
    enum backend_op_kind kind;
    const char *uri;              /* of the object; of what a copy becomes */
    const char *from, *from_etag; /* COPY */
    uint64_t bytes;               /* COPY: of `from` */
    struct backend_stat *stat;    /* STAT: filled where rc is 0 */
    uint64_t deadline_ns;         /* clock_now_ns() at which it fails; 0: timeout_ns alone is its limit */
    void (*done)(struct backend_op *op, int rc, const struct leat_error *err);
    void *user; /* the caller's */
    /* the session's */
    struct list node;
    void *work;
    int rc;
    struct leat_error *why;
};

struct backend_stats {
    uint64_t requests, retries, throttled, bytes_in, bytes_straight, bytes_out, connections, handshakes,
        resumed;
    /* The store's: by direct I/O; through the page cache; read in addition, and dropped. */
    uint64_t bytes_direct, bytes_buffered, bytes_padding;
    uint64_t
        first_byte_ns; /* the least time from a request to the first byte of its answer; 0: not known, or no network */
    uint64_t checked, unchecked; /* reads of whole objects with and without a checksum of the server's */
};

/* Is this an address that a backend reads ("s3://", "http://", "https://", "store://")? */
bool backend_uri(const char *uri);

/* Can there be an object of this address, whether there is one or not? key: the part of `uri` within the
 * folder; NULL: S3. LEAT_INVALID. */
int backend_key_check(const char *uri, const char *key, struct leat_error *err);

/* The most that a reading session holds beside the destinations, with that many connections (0: the
 * configuration's). While no read is under way it is a few KiB a connection. Lists hold two pages beside
 * it, of a MiB usually and 8 MiB at most, and long ones up to 16 MiB of pages that come ahead of their
 * turn. */
uint64_t backend_session_bytes(unsigned connections);
#define BACKEND_LIST_BYTES (18 * MIB) /* of a list on S3, with pages of the usual size */
/* Reads no credentials and makes no connection yet. LEAT_INVALID: a setting. */
int backend_new(const struct backend_config *config, struct backend **ret_backend, struct leat_error *err);
/* Operations under way end with -ECANCELED. NULL is fine. */
void backend_free(struct backend *b);

/*
 * Every object below `uri` ("s3://bucket/prefix"), page by page, in the order of keys; `recursive` false: up
 * to the next "/". Pages are requested ahead while `object` runs, for long lists on S3 many at a time. after:
 * only keys greater than this one (a whole key, with the prefix), or NULL. A negative result of `object` ends
 * the list with it. LEAT_UNSUPPORTED for a server that has no lists.
 */
int backend_list(struct backend *b, const char *uri, bool recursive, const char *after,
                 int (*object)(void *user, const struct backend_object *object), void *user,
                 struct leat_error *err);
int backend_stat_object(struct backend *b, const char *uri, struct backend_stat *ret_stat,
                        struct leat_error *err);

/*
 * The stat of an object, and by the same request its first bytes, up to `room` of them. whole: requests all
 * of it, so that its checksum comes along (ret_stat->has_...), at the cost of a connection if it is longer.
 * LEAT_UNSUPPORTED: it is longer, or the server's answer lacks a fact; LEAT_STALE of some servers if it is
 * empty: call backend_stat_object.
 */
int backend_first(struct backend *b, const char *uri, void *dst, uint64_t room, bool whole,
                  struct backend_stat *ret_stat, uint64_t *ret_bytes, struct leat_error *err);

/* A handle for reads. etag NULL or "": the first answer pins it. bytes: of the object, if known (a read of
 * all of it is then checked against the server's checksum), else 0. */
int backend_open(struct backend *b, const char *uri, const char *etag, uint64_t bytes,
                 struct backend_file **ret_file, struct leat_error *err);
/* Declares that all of it will be read through this handle, each byte once, in any order. It is then
 * compared with the server's checksum, where there is one; the last read fails with LEAT_CORRUPT if it
 * differs. One read of all of it is always compared. `bytes` must be known. */
void backend_expect_all(struct backend_file *file);
/* The time of its last write, in seconds since 1970, from the caller's list; 0: not known. Where no ETag
 * was given that can be relied on, an answer which says another time is LEAT_STALE: handles of one object,
 * one after the other, read one version. Before the first read. */
void backend_expect_modified(struct backend_file *file, int64_t modified);
void backend_close(struct backend_file *file); /* no read of it is under way */

/* done() does not run in here. */
void backend_submit(struct backend *b, struct backend_read *read);
/* Cancels it: returns when nothing touches its destination any more; done() is not called. */
void backend_cancel(struct backend *b, struct backend_read *read);
/*
 * The same for operations, which backend_wait counts as reads. Many are under way at a time, in no order. A
 * folder looks at a deadline when a thread begins with the operation, no more. To cancel a copy in parts waits
 * until they are taken away: not in a callback of the session.
 */
void backend_op_submit(struct backend *b, struct backend_op *op);
void backend_op_cancel(struct backend *b, struct backend_op *op);
/* Works until at least `min_done` reads have ended, or none is left, or timeout_ms (-1: none) has passed. Number that ended, or -errno.
 * Also from inside a list's callback: pages that were asked for ahead come meanwhile. A callback that waits for something else calls it every so
 * often, also without reads, or their time runs out. */
int backend_wait(struct backend *b, unsigned min_done, int timeout_ms);
/* backend_wait returns early, this time or the next. Any thread; the session must not end during the call. */
void backend_wake(struct backend *b);
/* One range, now. Bytes that came: fewer only at the object's end. */
int64_t backend_pread(struct backend *b, struct backend_file *file, void *dst, uint64_t bytes,
                      uint64_t offset, struct leat_error *err);

/*
 * A descriptor's [offset, +bytes) under this name; in parts where that is due. Nothing is visible before all
 * of it is there. headers: as in backend_stat, or NULL. ret_etag: of the stored object, "" if the server sent
 * none; or NULL.
 */
int backend_put(struct backend *b, const char *uri, int fd, uint64_t offset, uint64_t bytes,
                const char *headers, char ret_etag[BACKEND_ETAG_MAX], struct leat_error *err);
/* The server copies an object of `bytes` by itself, if both addresses are of one service; in parts where
 * that is due. etag: this version only, else LEAT_STALE; "" or NULL: any. LEAT_UNSUPPORTED: it cannot. */
int backend_copy(struct backend *b, const char *from, const char *etag, uint64_t bytes, const char *to,
                 struct leat_error *err);
/* 0 if there was none, too; LEAT_NOT_FOUND from servers that report it. */
int backend_delete(struct backend *b, const char *uri, struct leat_error *err);

/* A bucket "s3://NAME" at a Leat server; remote: its remote, JSON as objects/tier/tier.h has it, or NULL.
 * -EEXIST: there is one; LEAT_UNSUPPORTED: no Leat server is there. */
int backend_bucket_create(struct backend *b, const char *uri, const char *remote, struct leat_error *err);

void backend_stats(const struct backend *b, struct backend_stats *ret_stats);

#endif
