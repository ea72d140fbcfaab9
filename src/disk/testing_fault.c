/* SPDX-License-Identifier: Apache-2.0 */
/*
 * testing_fault.c: errors, short reads and delays in front of another engine.
 *
 * Happy path: each request gets a shadow, which goes to the lower engine with a done() of ours; when that comes the
 * shadow moves to `held`, in the order of when it is due, and reap() calls the real done() once that time has come. A request
 * that is to fail goes to `held` at once and never reaches the lower engine, so its destination stays untouched.
 *
 * Failure modes: no memory for the shadows: submit returns -ENOMEM and nothing was queued; the requests are not counted.
 *
 * Invariants
 * 1. Requests are numbered from 1 in the order of submission; the rules look at that number alone, so a run repeats.
 * 2. A shadow is in the lower engine or in `held`; it is freed just before the real done().
 * 3. The epoll descriptor is readable when the lower engine's is, or the timer that is set to the first of `held`.
 */
#include "disk/testing_fault.h"

#include "base/clock.h"
#include "base/list.h"
#include "disk/engine.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

struct shadow {
    struct disk_read read; /* the lower engine's copy */
    struct disk_read *real;
    struct fault *owner;
    struct list node; /* in held, or in a submit under way */
    int64_t result;
    uint64_t due_ns;
    int fails; /* with this code; 0: it does not */
};

struct fault {
    struct disk_engine e;
    struct disk_engine *lower;
    struct disk_fault_rules rules;
    uint64_t count; /* requests so far */
    struct list held;
    int epoll_fd, timer_fd;
    bool closing;
};

static struct fault *fault_of(struct disk_engine *e)
{
    return container_of(e, struct fault, e);
}

static void timer_set(struct fault *f)
{
    struct shadow *first = list_first(&f->held, struct shadow, node);
    struct itimerspec at = {0};
    if (first) {
        uint64_t due = MAX(first->due_ns, UINT64_C(1)); /* 0 would disarm */
        at.it_value =
            (struct timespec){.tv_sec = (time_t)(due / NS_PER_S), .tv_nsec = (long)(due % NS_PER_S)};
    }
    timerfd_settime(f->timer_fd, TFD_TIMER_ABSTIME, &at, NULL); /* also makes it unreadable */
}

static void hold(struct fault *f, struct shadow *s, int64_t result)
{
    s->result = result;
    struct list *at = f->held.prev;
    while (at != &f->held && container_of(at, struct shadow, node)->due_ns > s->due_ns)
        at = at->prev;
    list_push_front(at, &s->node);
}

static void lower_done(struct disk_read *req, int64_t result)
{
    struct shadow *s = container_of(req, struct shadow, read);
    hold(s->owner, s, result);
}

static void apply(struct fault *f, struct shadow *s, uint64_t nth)
{
    const struct disk_fault_rules *rules = &f->rules;
    if (nth == rules->fail_nth || (rules->fail_every > 0 && nth % rules->fail_every == 0))
        s->fails = rules->fail_code ? rules->fail_code : -EIO;
    else if (nth == rules->other_nth)
        s->fails = rules->other_code;
    if (nth == rules->short_nth)
        s->read.bytes /= 2;
    s->due_ns = rules->delay_ns ? clock_now_ns() + rules->delay_ns : 0;
}

static int fault_submit(struct disk_engine *e, struct disk_read **reqs, unsigned n)
{
    struct fault *f = fault_of(e);
    if (f->closing)
        return -ECANCELED;
    if (n == 0)
        return 0;
    AUTO_FREE struct disk_read **lower = calloc(n, sizeof(*lower));
    struct list made;
    list_init(&made);
    unsigned n_lower = 0;
    int r = lower ? 0 : -ENOMEM;
    for (unsigned i = 0; i < n && r == 0; i++) {
        struct shadow *s = calloc(1, sizeof(*s));
        if (!s) {
            r = -ENOMEM;
            break;
        }
        s->read = *reqs[i];
        s->read.done = lower_done;
        s->real = reqs[i];
        s->owner = f;
        list_push_back(&made, &s->node);
        apply(f, s, f->count + i + 1);
        if (!s->fails)
            lower[n_lower++] = &s->read;
    }
    if (r == 0 && n_lower > 0)
        r = f->lower->ops->submit(f->lower, lower, n_lower);
    list_for_each_safe (node, &made) {
        struct shadow *s = container_of(node, struct shadow, node);
        list_remove(&s->node);
        if (r < 0)
            free(s);
        else if (s->fails)
            hold(f, s, s->fails);
    }
    if (r < 0)
        return r;
    f->count += n;
    e->in_flight += n;
    timer_set(f);
    return 0;
}

static unsigned deliver(struct fault *f, uint64_t now_ns)
{
    unsigned count = 0;
    for (struct shadow *s; (s = list_first(&f->held, struct shadow, node)) && s->due_ns <= now_ns; count++) {
        struct disk_read *real = s->real;
        int64_t result = s->result;
        list_remove(&s->node);
        free(s);
        disk_request_finish(&f->e, real, result);
    }
    return count;
}

/* Sleeps until the first of `held` is due or the lower engine has something. */
static void wait_some(struct fault *f)
{
    struct shadow *first = list_first(&f->held, struct shadow, node);
    struct pollfd p = {.fd = f->lower->ops->event_fd(f->lower), .events = POLLIN};
    if (f->lower->in_flight == 0)
        p.fd = -1;
    poll(&p, 1, first ? clock_poll_ms(MAX(first->due_ns, UINT64_C(1))) : -1);
}

static int fault_reap(struct disk_engine *e, unsigned min_done)
{
    struct fault *f = fault_of(e);
    unsigned count = 0;
    for (;;) {
        if (f->lower->in_flight > 0) {
            int r = f->lower->ops->reap(f->lower, 0);
            if (r < 0)
                return r;
        }
        count += deliver(f, clock_now_ns());
        if (count >= min_done || e->in_flight == 0)
            break;
        wait_some(f);
    }
    timer_set(f);
    return (int)count;
}

static int fault_event_fd(struct disk_engine *e)
{
    return fault_of(e)->epoll_fd;
}

static int fault_buffer_register(struct disk_engine *e, void *addr, uint64_t bytes)
{
    struct fault *f = fault_of(e);
    return f->lower->ops->buffer_register(f->lower, addr, bytes);
}

static void fault_buffer_unregister(struct disk_engine *e, int buffer)
{
    struct fault *f = fault_of(e);
    f->lower->ops->buffer_unregister(f->lower, buffer);
}

static void fault_free(struct disk_engine *e)
{
    struct fault *f = fault_of(e);
    f->closing = true;
    disk_engine_free(f->lower); /* its requests end here, and come to held */
    deliver(f, UINT64_MAX);
    if (f->timer_fd >= 0)
        close(f->timer_fd);
    if (f->epoll_fd >= 0)
        close(f->epoll_fd);
    free(f);
}

static const struct disk_ops fault_ops = {
    .name = "fault",
    .submit = fault_submit,
    .reap = fault_reap,
    .event_fd = fault_event_fd,
    .buffer_register = fault_buffer_register,
    .buffer_unregister = fault_buffer_unregister,
    .free = fault_free,
};

int disk_fault_new(struct disk_engine *lower, const struct disk_fault_rules *rules,
                   struct disk_engine **ret_engine)
{
    struct fault *f = calloc(1, sizeof(*f));
    if (!f)
        return -ENOMEM;
    f->e.ops = &fault_ops;
    f->e.depth = lower->depth;
    f->rules = *rules;
    list_init(&f->held);
    f->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    f->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    struct epoll_event in = {.events = EPOLLIN};
    if (f->epoll_fd < 0 || f->timer_fd < 0 || epoll_ctl(f->epoll_fd, EPOLL_CTL_ADD, f->timer_fd, &in) < 0 ||
        epoll_ctl(f->epoll_fd, EPOLL_CTL_ADD, lower->ops->event_fd(lower), &in) < 0) {
        int r = -errno;
        fault_free(&f->e); /* lower is NULL still: the caller keeps it on failure */
        return r;
    }
    f->lower = lower;
    *ret_engine = &f->e;
    return 0;
}
