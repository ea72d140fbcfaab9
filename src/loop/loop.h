/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop.h: one thread that owns things. It waits on sources, runs timers and takes messages that other threads
 * post. Everything a loop's objects hold is touched by its thread alone; others call loop_post. A source is
 * {fd, arm(), progress()}: before the loop sleeps it calls arm(); a source that still has work returns "busy"
 * and is progressed at once, without a sleep. A socket needs no arm(); a completion queue does.
 */
#ifndef LOOP_LOOP_H
#define LOOP_LOOP_H

#include "base/base.h"
#include "base/list.h"

struct loop;

struct loop_source {
    int fd;
    uint32_t events; /* EPOLLIN | EPOLLOUT ..., level-triggered */
    /* 0: may sleep; -EBUSY: there is work now. NULL for plain descriptors. Everything else starts zeroed. */
    int (*arm)(struct loop_source *source);
    /* `events` is what epoll reported (0 after a busy arm()). It may remove and free its own source, and others. */
    void (*progress)(struct loop_source *source, uint32_t events);
    struct loop *loop;    /* set by loop_add */
    struct list arm_node; /* loop's */
};

struct loop_timer {
    uint64_t due_ns; /* clock_now_ns(); 0 = not set: so a zeroed timer is. 0 again when it fires */
    void (*fire)(struct loop_timer *timer);
    struct list node; /* loop's */
    struct loop *loop;
};

typedef void (*loop_post_fn)(void *arg);

int loop_new(struct loop **ret_loop);
/* Sources and timers still there are forgotten, not closed; messages still queued are dropped. NULL is fine. */
void loop_free(struct loop *loop);

/* Owner thread only. */
int loop_add(struct loop *loop, struct loop_source *source);
int loop_modify(struct loop_source *source, uint32_t events);
void loop_remove(struct loop_source *source); /* the descriptor stays open; harmless twice */
void loop_timer_set(struct loop *loop, struct loop_timer *timer, uint64_t due_ns);
void loop_timer_clear(struct loop_timer *timer);
/* Runs until loop_stop, also one from before the call; then runs messages from before the stop, and returns
 * 0; or -errno when epoll itself fails. */
int loop_run(struct loop *loop);
/* One turn, waiting at most timeout_ms (-1: until an event): for tests and for embedding. */
int loop_turn(struct loop *loop, int timeout_ms);

/* Any thread. fn(arg) runs once on the loop's thread, later, in the order of posting. -ENOMEM: will not run. */
int loop_post(struct loop *loop, loop_post_fn fn, void *arg);
void loop_stop(struct loop *loop);

#endif
