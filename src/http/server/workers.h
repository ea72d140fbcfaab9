/* SPDX-License-Identifier: Apache-2.0 */
/*
 * workers.h: threads for what a reactor may not do itself: opening, fsync, hashing, waiting for other services.
 *
 *   reactor: http_work_start ──▶ a worker: run(work) ──▶ the request's reactor: done(work, req)
 *
 * Two priorities: what is short does not wait behind what is long, because long work may hold all workers but a quarter (one at least).
 * Work that waits for a remote names it, and shares the threads with what waits for others as fairq.h has it.
 * Queues are bounded: -EAGAIN is the time to say 503.
 */
#ifndef HTTP_SERVER_WORKERS_H
#define HTTP_SERVER_WORKERS_H

#include "base/fairq.h"
#include "http/server/http_server.h"

struct http_workers;

enum http_priority { HTTP_PRIORITY_SHORT, HTTP_PRIORITY_LONG, HTTP_PRIORITIES };

/* Embedded in the caller's own state; memory is the caller's until done. */
struct http_work {
    void (*run)(struct http_work *work); /* a worker's thread; knows of no request */
    /* The reactor's thread, exactly once; req: NULL when it is over by then. Not run at all where `cancelled`. Frees. */
    void (*done)(struct http_work *work, struct http_request *req);
    uint64_t party; /* the remote that it waits for; 0: none, and its priority counts */
    bool cancelled; /* the workers ended before it was run */

    struct http_message message; /* private from here on */
    struct fairq_item turn;
    enum http_priority priority;
};

/* threads: 0: twice the CPUs, 4 at least and 32 at most. queue_max: of each priority, and of each party; 0: 1024. */
int http_workers_new(unsigned threads, unsigned queue_max, struct http_workers **ret_workers,
                     struct leat_error *err);
/* Running work completes, waiting work is cancelled; every done is posted. After http_server_stop, before
 * http_server_free. */
void http_workers_free(struct http_workers *workers);
/* Any thread. run and done are set, perhaps party, the rest is zero. 0, or -EAGAIN: the priority is full, or too much waits for this party (and the work the caller's as before). */
int http_work_start(struct http_workers *workers, struct http_ref ref, enum http_priority priority,
                    struct http_work *work);

/* Any thread. For tests, which wait until work has begun, or was done: nothing else shows that. */
struct http_workers_stats {
    unsigned threads, running, queued[HTTP_PRIORITIES], waiting; /* waiting: for their parties */
    uint64_t done, refused;
};
void http_workers_stats(struct http_workers *workers, struct http_workers_stats *ret_stats);

#endif
