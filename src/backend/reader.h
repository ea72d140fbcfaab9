/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reader.h: reads and operations for callers that have no session of their own. Threads of the reader have
 * one each; any thread submits.
 *
 *   reader_submit ──▶ the queue of a thread ──▶ its session, many side by side ──▶ done(), on that thread, exactly once
 *                                                                              └▶ or: reader_run waits for it
 *
 * All that uses one reader shares its connections; sessions whose backend_config.identity is the same share,
 * in all of the process, what a server says of its load.
 * Failure modes: backend.h's; LEAT_TIMED_OUT at a request's deadline, and nothing is written to its
 * destination after that; LEAT_BUSY: too many are under way already. A folder whose file system hangs keeps
 * its thread, and what waits for it.
 */
#ifndef BACKEND_READER_H
#define BACKEND_READER_H

#include "backend/backend.h"

struct reader;
struct reader_file;

struct reader_config {
    struct backend_config
        session;          /* of each thread's; its texts are not kept. `cancelled` ends all there is */
    unsigned threads;     /* 0: one */
    unsigned depth;       /* most that one session is given at a time; 0: 256 */
    unsigned queue;       /* most that are not over, of all threads; 0: 4096 */
    uint64_t queue_bytes; /* and most bytes of them, or one; 0: without limit */
};

struct reader_request {
    /* in; the caller's, unchanged until it is over */
    struct reader_file *file; /* of a read; NULL: an operation */
    union {
        struct backend_read read; /* offset, bytes, shared, and dst or pieces are the caller's */
        struct backend_op op;     /* kind, uri, from, from_etag, bytes and stat */
    };
    uint64_t deadline_ns; /* clock_now_ns(); 0: there is none */
    /* On a thread of the reader: it must not wait for other requests, nor cancel any. It may submit (without
     * waiting), and free its own. */
    void (*done)(struct reader_request *rq, int rc, const struct leat_error *err);
    void *user;
    /* the reader's */
    struct list node, cancel_node;
    struct reader_thread *thread;
    uint64_t bytes; /* counted */
    int state;
    bool cancelled;
};

/* LEAT_INVALID: a setting; -errno: no thread. */
int reader_new(const struct reader_config *config, struct reader **ret_reader, struct leat_error *err);
/* What is not over ends with -ECANCELED; files that are open are closed. NULL is fine. */
void reader_free(struct reader *r);

/*
 * A handle for reads, which all go by one session. As backend_open, but that what is wrong with it is said by
 * its reads. all: backend_expect_all. Any thread. -ENOMEM.
 */
int reader_open(struct reader *r, const char *uri, const char *etag, uint64_t bytes, bool all,
                struct reader_file **ret_file);
/* No read of it is under way; also from done(). NULL is fine. */
void reader_close(struct reader_file *file);

/* Any thread. wait: until there is room for it; else LEAT_BUSY where there is none. -ECANCELED: the reader
 * ends. done() comes after 0 alone. */
int reader_submit(struct reader *r, struct reader_request *rq, bool wait);
/*
 * Returns when nothing touches its destination any more, and it is the caller's again. True: done() does not
 * come; false: it has come. Any thread but the reader's own; while it runs no one else frees the request.
 */
bool reader_cancel(struct reader *r, struct reader_request *rq);
/* Submits it, and waits for its end. `done` and `user` are set in here. Any thread but the reader's own. */
int reader_run(struct reader *r, struct reader_request *rq, struct leat_error *err);

/* Of all sessions together, as of a moment ago. */
void reader_stats(struct reader *r, struct backend_stats *ret_stats);

#endif
