/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>

#include "loop/loop.h"
#include "base/clock.h"
#include "base/testing.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <cmocka.h>

#define POSTERS 4
#define POSTS   5000

struct poster {
    struct loop *loop;
    pthread_t thread;
    unsigned sent, seen; /* seen: loop's thread */
    unsigned *total;
    bool in_order;
};
struct post {
    struct poster *poster;
    unsigned seq;
};

static void on_post(void *arg)
{
    struct post *post = arg;
    struct poster *poster = post->poster;
    if (post->seq != poster->seen++)
        poster->in_order = false;
    if (++*poster->total == POSTERS * POSTS)
        loop_stop(poster->loop);
    free(post);
}

static void *post_many(void *arg)
{
    struct poster *poster = arg;
    for (unsigned i = 0; i < POSTS; i++) {
        struct post *post = malloc(sizeof(*post));
        *post = (struct post){poster, i};
        if (loop_post(poster->loop, on_post, post) != 0)
            abort();
    }
    return NULL;
}

static void test_post_threads(void **state)
{
    struct loop *loop;
    struct poster posters[POSTERS];
    unsigned total = 0;
    assert_int_equal(loop_new(&loop), 0);
    for (unsigned i = 0; i < POSTERS; i++) {
        posters[i] = (struct poster){.loop = loop, .total = &total, .in_order = true};
        assert_int_equal(pthread_create(&posters[i].thread, NULL, post_many, &posters[i]), 0);
    }
    assert_int_equal(loop_run(loop), 0);
    for (unsigned i = 0; i < POSTERS; i++) {
        pthread_join(posters[i].thread, NULL);
        assert_true(posters[i].in_order);
        assert_int_equal(posters[i].seen, POSTS);
    }
    loop_free(loop);
}

/* ---- timers ---- */

static char trace[64];

static void note(char c)
{
    size_t len = strlen(trace);
    assert_true(len + 1 < sizeof(trace));
    trace[len] = c;
    trace[len + 1] = 0;
}

struct noting_timer {
    struct loop_timer timer;
    char name;
    struct loop_timer *clears;
    unsigned again; /* how often it sets itself again, already due */
};

static void on_timer(struct loop_timer *timer)
{
    struct noting_timer *noting = container_of(timer, struct noting_timer, timer);
    note(noting->name);
    assert_int_equal(timer->due_ns, 0);
    if (noting->clears)
        loop_timer_clear(noting->clears);
    if (noting->again) {
        noting->again--;
        loop_timer_set(timer->loop, timer, 1);
    }
}

static struct noting_timer timer_named(char name)
{
    return (struct noting_timer){.timer.fire = on_timer, .name = name};
}

static void test_timer_order(void **state)
{
    struct loop *loop;
    assert_int_equal(loop_new(&loop), 0);
    struct noting_timer a = timer_named('a'), b = timer_named('b'), c = timer_named('c'),
                        d = timer_named('d');
    trace[0] = 0;
    loop_timer_set(loop, &c.timer, 30);
    loop_timer_set(loop, &a.timer, 10);
    loop_timer_set(loop, &d.timer, clock_now_ns() + 3600 * NS_PER_S);
    loop_timer_set(loop, &b.timer, 50);
    loop_timer_set(loop, &b.timer, 30); /* moved: behind c, which was first with that time */
    assert_int_equal(loop_turn(loop, -1), 0);
    assert_string_equal(trace, "acb");
    loop_timer_clear(&d.timer);
    loop_timer_clear(&d.timer);
    loop_timer_clear(&a.timer);
    assert_int_equal(loop_turn(loop, 0), 0);
    assert_string_equal(trace, "acb");

    /* A wait ends when the first timer is due, and not before. */
    uint64_t due = clock_now_ns() + 2 * NS_PER_MS;
    loop_timer_set(loop, &d.timer, due);
    test_run_until(!d.timer.due_ns, assert_int_equal(loop_turn(loop, -1), 0));
    assert_true(clock_now_ns() >= due);
    loop_free(loop);
}

static void test_timer_in_callback(void **state)
{
    struct loop *loop;
    assert_int_equal(loop_new(&loop), 0);
    struct noting_timer a = timer_named('a'), b = timer_named('b'), c = timer_named('c');
    trace[0] = 0;
    a.clears = &b.timer; /* due in the same turn, and taken back by the one before */
    c.again = 2;
    loop_timer_set(loop, &a.timer, 1);
    loop_timer_set(loop, &b.timer, 2);
    loop_timer_set(loop, &c.timer, 3);
    assert_int_equal(loop_turn(loop, -1), 0);
    assert_string_equal(trace, "ac"); /* one turn, one time */
    assert_int_equal(loop_turn(loop, -1), 0);
    assert_int_equal(loop_turn(loop, -1), 0);
    assert_int_equal(loop_turn(loop, 0), 0);
    assert_string_equal(trace, "accc");

    loop_timer_set(loop, &a.timer, UINT64_MAX);
    loop_free(loop);
    assert_int_equal(a.timer.due_ns, 0); /* forgotten */
    loop_timer_clear(&a.timer);
}

/* ---- sources ---- */

struct counting_source {
    struct loop_source source;
    unsigned progressed, armed;
    unsigned work; /* arm() is busy while there is some */
    uint32_t last_events;
    struct counting_source **removes[2]; /* freed and set to NULL by progress */
};

static void source_free(struct counting_source **source)
{
    if (!*source)
        return;
    loop_remove(&(*source)->source);
    close((*source)->source.fd);
    free(*source);
    *source = NULL;
}

static void on_progress(struct loop_source *source, uint32_t events)
{
    struct counting_source *counting = container_of(source, struct counting_source, source);
    counting->progressed++;
    counting->last_events = events;
    if (counting->work)
        counting->work--;
    struct counting_source **removes[2] = {counting->removes[0], counting->removes[1]};
    for (unsigned i = 0; i < 2; i++) {
        if (removes[i])
            source_free(removes[i]);
    }
}

static int on_arm(struct loop_source *source)
{
    struct counting_source *counting = container_of(source, struct counting_source, source);
    counting->armed++;
    return counting->work ? -EBUSY : 0;
}

static struct counting_source *source_new(struct loop *loop, unsigned readable, bool arm)
{
    struct counting_source *source = calloc(1, sizeof(*source));
    assert_non_null(source);
    source->source = (struct loop_source){.fd = eventfd(readable, EFD_CLOEXEC),
                                          .events = EPOLLIN,
                                          .progress = on_progress,
                                          .arm = arm ? on_arm : NULL};
    assert_int_equal(loop_add(loop, &source->source), 0);
    return source;
}

static void test_source(void **state)
{
    struct loop *loop;
    assert_int_equal(loop_new(&loop), 0);
    struct counting_source *a = source_new(loop, 0, false);
    assert_int_equal(loop_turn(loop, 0), 0);
    assert_int_equal(a->progressed, 0);
    assert_int_equal(eventfd_write(a->source.fd, 1), 0);
    assert_int_equal(loop_turn(loop, -1), 0);
    assert_int_equal(loop_turn(loop, -1), 0); /* level-triggered: the bytes are unread */
    assert_int_equal(a->progressed, 2);
    assert_int_equal(a->last_events, EPOLLIN);
    assert_int_equal(loop_modify(&a->source, EPOLLOUT), 0);
    assert_int_equal(loop_turn(loop, -1), 0);
    assert_int_equal(a->last_events, EPOLLOUT);
    assert_int_equal(loop_modify(&a->source, 0), 0);
    assert_int_equal(loop_turn(loop, 0), 0);
    assert_int_equal(a->progressed, 3);

    struct loop_source bad = {.fd = -1, .progress = on_progress};
    assert_int_equal(loop_add(loop, &bad), -EBADF);
    loop_remove(&bad); /* never added: harmless */
    struct counting_source *left = source_new(loop, 0, true);
    source_free(&a);
    loop_free(loop);
    assert_null(left->source.loop);
    source_free(&left);
    loop_free(NULL);
}

/* Three readable sources in one batch of events; whichever comes first frees the two others, or itself too. */
static void test_remove_in_callback(void **state)
{
    for (unsigned self = 0; self < 2; self++) {
        struct loop *loop;
        assert_int_equal(loop_new(&loop), 0);
        struct counting_source *s[3];
        for (unsigned i = 0; i < 3; i++)
            s[i] = source_new(loop, 1, false);
        for (unsigned i = 0; i < 3; i++) {
            s[i]->removes[0] = &s[(i + 1) % 3];
            s[i]->removes[1] = self ? &s[i] : &s[(i + 2) % 3];
        }
        assert_int_equal(loop_turn(loop, -1), 0);
        unsigned left = 0;
        for (unsigned i = 0; i < 3; i++)
            left += s[i] != NULL;
        /* With `self`, the first removes the next and itself; the third removes (again) the first and itself. */
        assert_int_equal(left, self ? 0 : 1);
        for (unsigned i = 0; i < 3; i++)
            source_free(&s[i]);
        loop_free(loop);
    }
}

static void test_busy_arm(void **state)
{
    struct loop *loop;
    assert_int_equal(loop_new(&loop), 0);
    struct counting_source *a = source_new(loop, 0, true), *b = source_new(loop, 0, true);
    a->work = 3;
    for (unsigned i = 1; i <= 3; i++) {
        assert_int_equal(loop_turn(loop, -1), 0); /* busy: does not sleep, though nothing is readable */
        assert_int_equal(a->progressed, i);
        assert_int_equal(a->last_events, 0);
        assert_int_equal(a->armed, i);
        assert_int_equal(b->armed, i);
    }
    assert_int_equal(loop_turn(loop, 0), 0);
    assert_int_equal(a->progressed, 3);
    assert_int_equal(b->progressed, 0);

    /* Both busy; the first frees the other and itself. */
    a->work = b->work = 1;
    a->removes[0] = &b;
    a->removes[1] = &a;
    b->removes[0] = &a;
    b->removes[1] = &b;
    assert_int_equal(loop_turn(loop, -1), 0);
    assert_null(a);
    assert_null(b);
    assert_int_equal(loop_turn(loop, 0), 0);
    loop_free(loop);
}

/* ---- posting and stopping ---- */

struct poster_of_more {
    struct loop *loop;
    unsigned ran;
};

static void post_again(void *arg)
{
    struct poster_of_more *more = arg;
    if (++more->ran < 3)
        assert_int_equal(loop_post(more->loop, post_again, more), 0);
}

static void test_post_from_post(void **state)
{
    struct poster_of_more more = {0};
    assert_int_equal(loop_new(&more.loop), 0);
    assert_int_equal(loop_post(more.loop, post_again, &more), 0);
    for (unsigned i = 1; i <= 3; i++) {
        assert_int_equal(loop_turn(more.loop, -1), 0);
        assert_int_equal(more.ran, i); /* later always means a later turn */
    }
    assert_int_equal(loop_turn(more.loop, 0), 0);
    assert_int_equal(more.ran, 3);

    /* A stop before the run is not lost; what was posted before it runs; the loop can run again. */
    more.ran = 2;
    assert_int_equal(loop_post(more.loop, post_again, &more), 0);
    loop_stop(more.loop);
    assert_int_equal(loop_run(more.loop), 0);
    assert_int_equal(more.ran, 3);
    loop_stop(more.loop);
    assert_int_equal(loop_run(more.loop), 0);
    assert_int_equal(loop_post(more.loop, post_again, &more), 0); /* dropped, not leaked */
    loop_free(more.loop);
    assert_int_equal(more.ran, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_post_threads),       cmocka_unit_test(test_timer_order),
        cmocka_unit_test(test_timer_in_callback),  cmocka_unit_test(test_source),
        cmocka_unit_test(test_remove_in_callback), cmocka_unit_test(test_busy_arm),
        cmocka_unit_test(test_post_from_post),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
