/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>

#include "loop/loop.h"
#include "base/clock.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_post_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
