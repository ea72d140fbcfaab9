/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reader.c: threads with a session each.
 *
 * Happy path: a thread gives its session what is queued, up to `depth` at a time, and waits for one to end,
 * or to be woken by another request. Files are bound to a thread, which opens them with their first read;
 * operations go to the threads in order.
 * Failure modes: a session that cannot wait any more (-ECANCELED: the user interrupted it) ends what it has
 * with that, and what comes later.
 * Invariants: everything but a session and what it has is under the lock. A request is in one list: of what
 * is queued, or of what runs. It is OVER before its done() is called, and `calling` names it until that has
 * returned.
 */
#include "backend/ops.h"
#include "backend/reader.h"

#include <pthread.h>
#include <signal.h>

#include "base/clock.h"
#include "base/cond.h"

#define DEPTH 256u
#define QUEUE 4096u
/* A session without requests is turned for so long, and so often: it closes its connections in that time. */
#define IDLE_NS (20 * NS_PER_S)
#define TURN_NS NS_PER_S

enum request_state { QUEUED, RUNNING, OVER };

struct reader_thread {
    struct reader *reader;
    pthread_t thread;
    pthread_cond_t work;
    struct backend *backend;
    bool started, waits;         /* waits: in backend_wait, from which it is woken */
    struct list queued, running; /* reader_request.node */
    struct list cancels;         /* reader_request.cancel_node: running, and to be cancelled */
    struct list files, closing;  /* reader_file.node */
    unsigned nrunning;
    uint64_t due_ns; /* no deadline is earlier; UINT64_MAX: there is none */
    struct reader_request *calling;
    struct backend_stats stats; /* of the last turn */
};

struct reader {
    struct reader_config config;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a request is over, or its done() has returned */
    bool ending;
    unsigned n, next; /* requests that are not over; the next thread's number */
    uint64_t bytes;
    unsigned nthreads;
    struct reader_thread threads[];
};

struct reader_file {
    struct list node; /* reader_thread.files, or .closing */
    struct reader_thread *thread;
    struct backend_file *file; /* the thread's; NULL: not opened yet */
    uint64_t bytes;
    bool all;
    char *etag; /* behind uri */
    char uri[];
};

/* --- ends --------------------------------------------------------------------------------------------------------------- */

/* Under the lock: it is neither queued nor running any more. */
static void request_leave(struct reader_request *rq)
{
    struct reader *r = rq->thread->reader;
    list_remove(&rq->node);
    list_remove(&rq->cancel_node);
    rq->thread->nrunning -= rq->state == RUNNING;
    rq->state = OVER;
    r->n--;
    r->bytes -= rq->bytes;
    pthread_cond_broadcast(&r->changed);
}

/* Under the lock, which is free while done() runs. */
static void request_over(struct reader_request *rq, int rc, const struct leat_error *err)
{
    struct reader_thread *t = rq->thread;
    request_leave(rq);
    t->calling = rq;
    pthread_mutex_unlock(&t->reader->lock);
    rq->done(rq, rc, err);
    pthread_mutex_lock(&t->reader->lock);
    t->calling = NULL;
    pthread_cond_broadcast(&t->reader->changed);
}

static void session_done(struct reader_request *rq, int rc, const struct leat_error *err)
{
    struct reader *r = rq->thread->reader;
    pthread_mutex_lock(&r->lock);
    request_over(rq, rc, err);
    pthread_mutex_unlock(&r->lock);
}

static void read_done(struct backend_read *read, int rc, const struct leat_error *err)
{
    session_done(container_of(read, struct reader_request, read), rc, err);
}

static void op_done(struct backend_op *op, int rc, const struct leat_error *err)
{
    session_done(container_of(op, struct reader_request, op), rc, err);
}

/* For messages. Returns out. */
static const char *shown(const struct reader_request *rq, char out[BACKEND_SHOWN])
{
    return backend_uri_shown(rq->file ? rq->file->uri : rq->op.uri, out, BACKEND_SHOWN);
}

static int why_cancelled(const struct reader_request *rq, struct leat_error *err)
{
    char uri[BACKEND_SHOWN];
    return error_set(err, -ECANCELED, "%s: cancelled", shown(rq, uri));
}

/* --- a thread ------------------------------------------------------------------------------------------------------------- */

/* Out of the session's hands. The lock is free. */
static void session_cancel(struct reader_thread *t, struct reader_request *rq)
{
    if (rq->file)
        backend_cancel(t->backend, &rq->read);
    else
        backend_op_cancel(t->backend, &rq->op);
}

/* Under the lock: the session has it, or it is over. */
static void request_begin(struct reader_thread *t, struct reader_request *rq)
{
    struct reader_file *f = rq->file;
    struct leat_error err = {0};
    char uri[BACKEND_SHOWN];
    int rc = 0;
    list_remove(&rq->node);
    list_push_back(&t->running, &rq->node);
    rq->state = RUNNING;
    t->nrunning++;
    pthread_mutex_unlock(&t->reader->lock);
    if (f && !f->file) {
        rc = backend_open(t->backend, f->uri, f->etag, f->bytes, &f->file, &err);
        if (rc == 0 && f->all)
            backend_expect_all(f->file);
        if (rc < 0 && !err.message[0])
            error_sys(&err, rc, "%s", shown(rq, uri));
    }
    if (rc == 0 && f) {
        rq->read.file = f->file;
        rq->read.done = read_done;
        backend_submit(t->backend, &rq->read);
    } else if (rc == 0) {
        rq->op.done = op_done;
        rq->op.deadline_ns = rq->deadline_ns;
        backend_op_submit(t->backend, &rq->op);
    }
    pthread_mutex_lock(&t->reader->lock);
    if (rc < 0)
        request_over(rq, rc, &err);
}

/* Under the lock: those of one list whose time is over (a session looks at those of its operations itself),
 * and when the next one's is. */
static bool expire_one(struct reader_thread *t, struct list *list, uint64_t now)
{
    list_for_each (node, list) {
        struct reader_request *rq = container_of(node, struct reader_request, node);
        struct leat_error err;
        char uri[BACKEND_SHOWN];
        if (!rq->deadline_ns || (rq->state == RUNNING && !rq->file))
            continue;
        if (rq->deadline_ns > now) {
            t->due_ns = MIN(t->due_ns, rq->deadline_ns);
            continue;
        }
        if (rq->state == RUNNING) {
            pthread_mutex_unlock(&t->reader->lock);
            session_cancel(t, rq);
            pthread_mutex_lock(&t->reader->lock);
        }
        error_set(&err, LEAT_TIMED_OUT, "%s: not done by its deadline", shown(rq, uri));
        request_over(rq, LEAT_TIMED_OUT, &err);
        return true;
    }
    return false;
}

static void expire(struct reader_thread *t)
{
    uint64_t now = t->due_ns == UINT64_MAX ? 0 : clock_now_ns();
    if (now < t->due_ns)
        return;
    do {
        t->due_ns = UINT64_MAX;
    } while (expire_one(t, &t->queued, now) || expire_one(t, &t->running, now));
}

/* Under the lock. What is cancelled, or closed. */
static void clear_away(struct reader_thread *t)
{
    struct reader_request *rq;
    struct reader_file *f;
    while ((rq = list_first(&t->cancels, struct reader_request, cancel_node))) {
        list_remove(&rq->cancel_node);
        pthread_mutex_unlock(&t->reader->lock);
        session_cancel(t, rq);
        pthread_mutex_lock(&t->reader->lock);
        rq->cancelled = true;
        request_leave(rq);
    }
    while ((f = list_first(&t->closing, struct reader_file, node))) {
        list_remove(&f->node);
        pthread_mutex_unlock(&t->reader->lock);
        backend_close(f->file);
        free(f);
        pthread_mutex_lock(&t->reader->lock);
    }
}

/* Under the lock: everything ends with this. */
static void end_all(struct reader_thread *t, int rc)
{
    struct reader_request *rq;
    struct leat_error err;
    char uri[BACKEND_SHOWN];
    clear_away(t);
    while ((rq = list_first(&t->running, struct reader_request, node))) {
        pthread_mutex_unlock(&t->reader->lock);
        session_cancel(t, rq);
        pthread_mutex_lock(&t->reader->lock);
        request_over(rq, rc,
                     rc == -ECANCELED ? (why_cancelled(rq, &err), &err)
                                      : (error_sys(&err, rc, "%s", shown(rq, uri)), &err));
    }
    while ((rq = list_first(&t->queued, struct reader_request, node))) {
        why_cancelled(rq, &err);
        request_over(rq, rc, &err);
    }
}

/* Under the lock, which is free in here. What the session says. */
static int session_wait(struct reader_thread *t, int timeout_ms)
{
    t->waits = true;
    pthread_mutex_unlock(&t->reader->lock);
    int rc = backend_wait(t->backend, 1, timeout_ms);
    struct backend_stats stats;
    backend_stats(t->backend, &stats);
    pthread_mutex_lock(&t->reader->lock);
    t->waits = false;
    t->stats = stats;
    return rc;
}

/* Under the lock: nothing is asked of the session. Its connections are looked after for a while. */
static void rest(struct reader_thread *t, uint64_t until)
{
    uint64_t now = clock_now_ns();
    if (now >= until) {
        pthread_cond_wait(&t->work, &t->reader->lock);
        return;
    }
    cond_wait_until(&t->work, &t->reader->lock, MIN(now + TURN_NS, until));
    session_wait(t, 0);
}

static void *thread_main(void *arg)
{
    struct reader_thread *t = arg;
    struct reader *r = t->reader;
    struct reader_request *rq;
    uint64_t idle_ns = 0;
    pthread_mutex_lock(&r->lock);
    while (!r->ending) {
        clear_away(t);
        expire(t);
        while (t->nrunning < r->config.depth && (rq = list_first(&t->queued, struct reader_request, node)))
            request_begin(t, rq);
        /* done() may have brought more of all of them. */
        if (r->ending || !list_empty(&t->cancels) || !list_empty(&t->closing))
            continue;
        if (t->nrunning == 0) {
            rest(t, idle_ns);
            continue;
        }
        idle_ns = clock_now_ns() + IDLE_NS;
        int rc = session_wait(t, clock_poll_ms(t->due_ns == UINT64_MAX ? 0 : t->due_ns));
        if (rc < 0)
            end_all(t, rc);
    }
    end_all(t, -ECANCELED);
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

/* --- any thread ----------------------------------------------------------------------------------------------------------- */

/* Under the lock. */
static void thread_wake(struct reader_thread *t)
{
    if (t->waits)
        backend_wake(t->backend);
    else
        pthread_cond_signal(&t->work);
}

static struct reader_thread *next_thread(struct reader *r)
{
    return &r->threads[r->next++ % r->nthreads];
}

int reader_open(struct reader *r, const char *uri, const char *etag, uint64_t bytes, bool all,
                struct reader_file **ret_file)
{
    size_t uri_len = strlen(uri) + 1, etag_len = strlen(etag ? etag : "") + 1;
    struct reader_file *f = malloc(sizeof(*f) + uri_len + etag_len);
    if (!f)
        return -ENOMEM;
    *f = (struct reader_file){.bytes = bytes, .all = all};
    memcpy(f->uri, uri, uri_len);
    f->etag = f->uri + uri_len;
    memcpy(f->etag, etag ? etag : "", etag_len);
    list_init(&f->node);
    pthread_mutex_lock(&r->lock);
    f->thread = next_thread(r);
    list_push_back(&f->thread->files, &f->node);
    pthread_mutex_unlock(&r->lock);
    *ret_file = f;
    return 0;
}

void reader_close(struct reader_file *f)
{
    if (!f)
        return;
    struct reader_thread *t = f->thread;
    pthread_mutex_lock(&t->reader->lock);
    list_remove(&f->node);
    list_push_back(&t->closing, &f->node);
    thread_wake(t);
    pthread_mutex_unlock(&t->reader->lock);
}

static bool has_room(const struct reader *r, uint64_t bytes)
{
    return r->n < r->config.queue && (r->bytes + bytes <= r->config.queue_bytes || r->bytes == 0);
}

int reader_submit(struct reader *r, struct reader_request *rq, bool wait)
{
    rq->bytes = rq->file ? rq->read.bytes : 0;
    rq->cancelled = false;
    list_init(&rq->node);
    list_init(&rq->cancel_node);
    pthread_mutex_lock(&r->lock);
    while (wait && !r->ending && !has_room(r, rq->bytes))
        pthread_cond_wait(&r->changed, &r->lock);
    int rc = r->ending ? -ECANCELED : has_room(r, rq->bytes) ? 0 : LEAT_BUSY;
    if (rc == 0) {
        struct reader_thread *t = rq->thread = rq->file ? rq->file->thread : next_thread(r);
        rq->state = QUEUED;
        r->n++;
        r->bytes += rq->bytes;
        list_push_back(&t->queued, &rq->node);
        if (rq->deadline_ns)
            t->due_ns = MIN(t->due_ns, rq->deadline_ns);
        thread_wake(t);
    }
    pthread_mutex_unlock(&r->lock);
    return rc;
}

bool reader_cancel(struct reader *r, struct reader_request *rq)
{
    struct reader_thread *t = rq->thread;
    pthread_mutex_lock(&r->lock);
    if (rq->state == QUEUED) {
        rq->cancelled = true;
        request_leave(rq);
    } else if (rq->state == RUNNING) {
        list_push_back(&t->cancels, &rq->cancel_node);
        thread_wake(t);
    }
    while (rq->state != OVER || t->calling == rq)
        pthread_cond_wait(&r->changed, &r->lock);
    bool cancelled = rq->cancelled;
    pthread_mutex_unlock(&r->lock);
    return cancelled;
}

struct waited {
    struct reader *r;
    bool over;
    int rc;
    struct leat_error err;
};

static void waited_done(struct reader_request *rq, int rc, const struct leat_error *err)
{
    struct waited *w = rq->user;
    pthread_mutex_lock(&w->r->lock);
    w->rc = rc;
    if (rc < 0)
        w->err = *err;
    w->over = true;
    pthread_cond_broadcast(&w->r->changed);
    pthread_mutex_unlock(&w->r->lock);
}

int reader_run(struct reader *r, struct reader_request *rq, struct leat_error *err)
{
    struct waited w = {.r = r};
    rq->done = waited_done;
    rq->user = &w;
    int rc = reader_submit(r, rq, true);
    if (rc < 0)
        return why_cancelled(rq, err);
    pthread_mutex_lock(&r->lock);
    while (!w.over || rq->thread->calling == rq)
        pthread_cond_wait(&r->changed, &r->lock);
    pthread_mutex_unlock(&r->lock);
    if (w.rc < 0 && err)
        *err = w.err;
    return w.rc;
}

void reader_stats(struct reader *r, struct backend_stats *ret_stats)
{
    *ret_stats = (struct backend_stats){0};
    uint64_t *sum = (uint64_t *)ret_stats, first = UINT64_MAX;
    static_assert(sizeof(*ret_stats) % sizeof(*sum) == 0, "nothing but numbers");
    pthread_mutex_lock(&r->lock);
    for (unsigned i = 0; i < r->nthreads; i++) {
        const struct backend_stats *stats = &r->threads[i].stats;
        for (size_t k = 0; k < sizeof(*stats) / sizeof(*sum); k++)
            sum[k] += ((const uint64_t *)stats)[k];
        first = MIN(first, stats->first_byte_ns ? stats->first_byte_ns : UINT64_MAX);
    }
    pthread_mutex_unlock(&r->lock);
    ret_stats->first_byte_ns = first == UINT64_MAX ? 0 : first;
}

/* --- its life ------------------------------------------------------------------------------------------------------------- */

int reader_new(const struct reader_config *config, struct reader **ret_reader, struct leat_error *err)
{
    unsigned n = config->threads ? config->threads : 1;
    struct reader *r = calloc(1, sizeof(*r) + n * sizeof(r->threads[0]));
    sigset_t all, old;
    int rc = 0;
    if (!r)
        return -ENOMEM;
    r->config = *config;
    r->config.depth = config->depth ? config->depth : DEPTH;
    r->config.queue = config->queue ? config->queue : QUEUE;
    r->config.queue_bytes = config->queue_bytes ? config->queue_bytes : UINT64_MAX;
    pthread_mutex_init(&r->lock, NULL);
    cond_init(&r->changed);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    for (unsigned i = 0; i < n && rc == 0; i++) {
        struct reader_thread *t = &r->threads[i];
        *t = (struct reader_thread){.reader = r, .due_ns = UINT64_MAX};
        struct list *lists[] = {&t->queued, &t->running, &t->cancels, &t->files, &t->closing};
        for (size_t k = 0; k < ARRAY_LEN(lists); k++)
            list_init(lists[k]);
        cond_init(&t->work);
        r->nthreads++;
        rc = backend_new(&config->session, &t->backend, err);
        if (rc == 0 && (rc = -pthread_create(&t->thread, NULL, thread_main, t)) < 0)
            error_sys(err, rc, "a thread for reads");
        t->started = rc == 0;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc < 0) {
        reader_free(r);
        return rc;
    }
    *ret_reader = r;
    return 0;
}

void reader_free(struct reader *r)
{
    if (!r)
        return;
    pthread_mutex_lock(&r->lock);
    r->ending = true;
    for (unsigned i = 0; i < r->nthreads; i++)
        thread_wake(&r->threads[i]);
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    for (unsigned i = 0; i < r->nthreads; i++) {
        struct reader_thread *t = &r->threads[i];
        if (t->started)
            pthread_join(t->thread, NULL);
        pthread_mutex_lock(&r->lock);
        list_for_each_safe (node, &t->files) {
            list_remove(node);
            list_push_back(&t->closing, node);
        }
        clear_away(t);
        pthread_mutex_unlock(&r->lock);
        backend_free(t->backend);
        pthread_cond_destroy(&t->work);
    }
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    free(r);
}
