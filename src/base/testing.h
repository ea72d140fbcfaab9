/* SPDX-License-Identifier: Apache-2.0 */
/*
 * testing.h: waits of unit tests. tools/lint refuses other sleeps in tests, and loops that wait without an end.
 *
 * A wait that takes longer than TEST_WAIT_S fails the test with its condition and its place. In another thread than the first one, where
 * cmocka cannot leave a test, it ends the process.
 */
#ifndef BASE_TESTING_H
#define BASE_TESTING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"

#ifndef TEST_WAIT_S
#    if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#        define TEST_WAIT_S 120
#    else
#        define TEST_WAIT_S 30
#    endif
#endif

/* n rounds that differ by seed or moment alone: a quarter of them under ThreadSanitizer, which takes ten times
 * as long and looks for races, which are in each round. The build with AddressSanitizer has all of them. */
static inline unsigned test_seeds(unsigned n)
{
#if defined(__SANITIZE_THREAD__)
    return n < 4 ? 1 : n / 4;
#else
    return n;
#endif
}

/* The step over n cases that differ by data alone, so that the same threads meet in each: n under
 * ThreadSanitizer, else 1. */
static inline unsigned test_step(unsigned n)
{
#if defined(__SANITIZE_THREAD__)
    return n;
#else
    (void)n;
    return 1;
#endif
}

/* Millions of bytes, of which an assertion for each would take most of a test's time. */
static inline bool test_all_are(uint8_t byte, const void *data, size_t n)
{
    const uint8_t *p = data;
    return n == 0 || (*p == byte && memcmp(p, p + 1, n - 1) == 0);
}

/* Sleeps. For a peer that is late, for calls that should meet at random, and for the time in which a fault
 * would show. Waits for events use test_wait_until. */
static inline void test_pause_us(unsigned us)
{
    usleep(us);
}

static inline void test_check_time(uint64_t end_ns, const char *condition, const char *file, int line)
{
    if (clock_now_ns() < end_ns)
        return;
    char text[512];
    snprintf(text, sizeof(text), "still false after %d s: %s", TEST_WAIT_S, condition);
    if (gettid() == getpid())
        _assert_true(0, text, file, line);
    fprintf(stderr, "%s:%d: %s\n", file, line, text);
    abort();
}

#define test_run_until_(condition, text, step)                                                               \
    for (uint64_t test_end_ns = clock_now_ns() + TEST_WAIT_S * NS_PER_S; !(condition); (void)(step))         \
    test_check_time(test_end_ns, text, __FILE__, __LINE__)

/* Until `condition` holds; `step`, an expression that itself ends soon, is evaluated before each further look. */
#define test_run_until(condition, step) test_run_until_(condition, #condition, step)

/* Until `condition` holds, made true by another thread or process. */
#define test_wait_until(condition) test_run_until_(condition, #condition, test_pause_us(500))

#endif
