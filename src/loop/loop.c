/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop.c: an event loop over epoll.
 *
 * Happy path of a turn: every source with arm() is asked whether it may sleep; epoll waits until the first timer
 * is due (not at all when a source was busy or a message is queued); then run, in this order, the sources epoll
 * reported, the busy sources, the posted messages and the timers that were due.
 *
 * Messages are pushed on a lock-free stack that the loop takes whole and reverses: the first push on an empty
 * stack writes the eventfd, the others cost one compare-and-swap.
 *
 * Failure modes: epoll_wait failing ends loop_run with its errno; a signal ends a turn early, which is harmless;
 * no memory for a message is the poster's -ENOMEM.
 *
 * Invariants:
 * 1. Callbacks may add and remove any source or timer. Nothing here holds a pointer to one across a callback
 *    except in lists it is unlinked from and in `events`, where loop_remove blanks it.
 * 2. A timer set by a callback, even one already due, fires in a later turn, so sources are never starved.
 * 3. Timers stand sorted by due time, equal ones in the order of setting. Most are "now plus a constant" and
 *    are appended; the walk starts at the end for that reason.
 */
#include "loop/loop.h"
#include "base/clock.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#define EVENTS_PER_TURN 64

struct message {
    struct message *next;
    loop_post_fn fn;
    void *arg;
};

struct loop {
    /* Owner thread. */
    int epoll_fd;
    struct list plain;   /* sources without arm() */
    struct list unarmed; /* sources whose arm() is to be called before the next sleep */
    struct list armed;   /* sources whose arm() returned "may sleep" */
    struct list busy;    /* sources whose arm() returned "busy" */
    struct list timers;  /* sorted */
    struct list firing;  /* due in this turn */
    struct epoll_event events[EVENTS_PER_TURN];
    int event_count; /* valid in `events`, during dispatch only */

    /* Any thread. */
    int wake_fd;
    struct message *_Atomic posted; /* newest first */
    atomic_bool stopping;
};

static void list_move_all(struct list *to, struct list *from)
{
    if (list_empty(from))
        return;
    from->next->prev = to->prev;
    to->prev->next = from->next;
    from->prev->next = to;
    to->prev = from->prev;
    list_init(from);
}

int loop_new(struct loop **ret_loop)
{
    AUTO_FREE struct loop *loop = calloc(1, sizeof(*loop));
    if (!loop)
        return -ENOMEM;
    AUTO_CLOSE int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (epoll_fd < 0)
        return -errno;
    AUTO_CLOSE int wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_fd < 0)
        return -errno;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL}; /* NULL: nothing to progress */
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, wake_fd, &event) < 0)
        return -errno;
    struct list *lists[] = {&loop->plain, &loop->unarmed, &loop->armed,
                            &loop->busy,  &loop->timers,  &loop->firing};
    for (unsigned i = 0; i < ARRAY_LEN(lists); i++)
        list_init(lists[i]);
    loop->epoll_fd = TAKE_FD(epoll_fd);
    loop->wake_fd = TAKE_FD(wake_fd);
    *ret_loop = TAKE_PTR(loop);
    return 0;
}

void loop_free(struct loop *loop)
{
    if (!loop)
        return;
    struct list *sources[] = {&loop->plain, &loop->unarmed, &loop->armed, &loop->busy};
    for (unsigned i = 0; i < ARRAY_LEN(sources); i++) {
        list_for_each_safe (node, sources[i]) {
            container_of(node, struct loop_source, arm_node)->loop = NULL;
            list_init(node);
        }
    }
    list_move_all(&loop->timers, &loop->firing);
    list_for_each_safe (node, &loop->timers) {
        container_of(node, struct loop_timer, node)->due_ns = 0;
        list_init(node);
    }
    struct message *message = atomic_load(&loop->posted);
    while (message) {
        struct message *next = message->next;
        free(message);
        message = next;
    }
    close(loop->wake_fd);
    close(loop->epoll_fd);
    free(loop);
}

int loop_add(struct loop *loop, struct loop_source *source)
{
    assert(!source->loop);
    struct epoll_event event = {.events = source->events, .data.ptr = source};
    if (epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, source->fd, &event) < 0)
        return -errno;
    source->loop = loop;
    list_push_back(source->arm ? &loop->unarmed : &loop->plain, &source->arm_node);
    return 0;
}

int loop_modify(struct loop_source *source, uint32_t events)
{
    if (events == source->events)
        return 0;
    struct epoll_event event = {.events = events, .data.ptr = source};
    if (epoll_ctl(source->loop->epoll_fd, EPOLL_CTL_MOD, source->fd, &event) < 0)
        return -errno;
    source->events = events;
    return 0;
}

void loop_remove(struct loop_source *source)
{
    struct loop *loop = source->loop;
    if (!loop)
        return;
    /* May fail when the descriptor was closed first; epoll forgot it by itself then. */
    epoll_ctl(loop->epoll_fd, EPOLL_CTL_DEL, source->fd, NULL);
    list_remove(&source->arm_node);
    source->loop = NULL;
    for (int i = 0; i < loop->event_count; i++) {
        if (loop->events[i].data.ptr == source)
            loop->events[i].data.ptr = NULL;
    }
}

void loop_timer_clear(struct loop_timer *timer)
{
    if (timer->due_ns == 0)
        return;
    list_remove(&timer->node);
    timer->due_ns = 0;
}

void loop_timer_set(struct loop *loop, struct loop_timer *timer, uint64_t due_ns)
{
    loop_timer_clear(timer);
    if (due_ns == 0)
        return;
    timer->loop = loop;
    timer->due_ns = due_ns;
    struct list *after = loop->timers.prev;
    while (after != &loop->timers && container_of(after, struct loop_timer, node)->due_ns > due_ns)
        after = after->prev;
    list_push_front(after, &timer->node);
}

static void wake(struct loop *loop)
{
    uint64_t one = 1;
    ssize_t n = write(loop->wake_fd, &one, sizeof(one));
    (void)n; /* EAGAIN: the counter is full, so the loop wakes anyway */
}

int loop_post(struct loop *loop, loop_post_fn fn, void *arg)
{
    struct message *message = malloc(sizeof(*message));
    if (!message)
        return -ENOMEM;
    message->fn = fn;
    message->arg = arg;
    struct message *head = atomic_load_explicit(&loop->posted, memory_order_relaxed);
    do {
        message->next = head;
    } while (!atomic_compare_exchange_weak_explicit(&loop->posted, &head, message, memory_order_release,
                                                    memory_order_relaxed));
    if (!head)
        wake(loop);
    return 0;
}

void loop_stop(struct loop *loop)
{
    atomic_store(&loop->stopping, true);
    wake(loop);
}

static void run_posted(struct loop *loop)
{
    struct message *newest = atomic_exchange_explicit(&loop->posted, NULL, memory_order_acquire);
    struct message *oldest = NULL;
    while (newest) {
        struct message *next = newest->next;
        newest->next = oldest;
        oldest = newest;
        newest = next;
    }
    while (oldest) {
        struct message message = *oldest;
        free(oldest);
        oldest = message.next;
        message.fn(message.arg);
    }
}

static void fire_timers(struct loop *loop)
{
    if (list_empty(&loop->timers))
        return;
    uint64_t now = clock_now_ns();
    struct loop_timer *timer;
    while ((timer = list_first(&loop->timers, struct loop_timer, node)) && timer->due_ns <= now) {
        list_remove(&timer->node);
        list_push_back(&loop->firing, &timer->node);
    }
    while ((timer = list_first(&loop->firing, struct loop_timer, node))) {
        loop_timer_clear(timer);
        timer->fire(timer);
    }
}

static void arm_sources(struct loop *loop)
{
    struct loop_source *source;
    list_move_all(&loop->unarmed, &loop->armed);
    while ((source = list_first(&loop->unarmed, struct loop_source, arm_node))) {
        list_remove(&source->arm_node);
        list_push_back(&loop->armed, &source->arm_node);
        if (source->arm(source) != 0 && source->loop) {
            list_remove(&source->arm_node);
            list_push_back(&loop->busy, &source->arm_node);
        }
    }
}

static void progress_busy(struct loop *loop)
{
    struct list busy;
    struct loop_source *source;
    list_init(&busy);
    list_move_all(&busy, &loop->busy);
    while ((source = list_first(&busy, struct loop_source, arm_node))) {
        list_remove(&source->arm_node);
        list_push_back(&loop->armed, &source->arm_node);
        source->progress(source, 0);
    }
}

static int wait_ms(struct loop *loop, int timeout_ms)
{
    if (!list_empty(&loop->busy) || atomic_load_explicit(&loop->posted, memory_order_relaxed))
        return 0;
    struct loop_timer *first = list_first(&loop->timers, struct loop_timer, node);
    int timer_ms = first ? clock_poll_ms(first->due_ns) : -1;
    if (timer_ms < 0)
        return timeout_ms;
    return timeout_ms < 0 ? timer_ms : MIN(timeout_ms, timer_ms);
}

int loop_turn(struct loop *loop, int timeout_ms)
{
    arm_sources(loop);
    int n = epoll_wait(loop->epoll_fd, loop->events, EVENTS_PER_TURN, wait_ms(loop, timeout_ms));
    if (n < 0) {
        if (errno != EINTR)
            return -errno;
        n = 0;
    }
    loop->event_count = n;
    bool woken = false;
    for (int i = 0; i < n; i++) {
        struct loop_source *source = loop->events[i].data.ptr;
        /* NULL is the eventfd, or a source that a callback before this one removed. */
        if (source)
            source->progress(source, loop->events[i].events);
        else
            woken = true;
    }
    loop->event_count = 0;
    progress_busy(loop);
    if (woken) {
        /* Emptied before the messages are taken: one pushed in between writes it again. */
        uint64_t count;
        ssize_t got = read(loop->wake_fd, &count, sizeof(count));
        (void)got;
    }
    run_posted(loop);
    fire_timers(loop);
    return 0;
}

int loop_run(struct loop *loop)
{
    while (!atomic_load(&loop->stopping)) {
        int rc = loop_turn(loop, -1);
        if (rc < 0)
            return rc;
    }
    atomic_store(&loop->stopping, false);
    run_posted(loop); /* messages from before the stop still run */
    return 0;
}
