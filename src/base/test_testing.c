/* SPDX-License-Identifier: Apache-2.0 */
/* Bounded waits: what they look at, and how they end a test. */
#define TEST_WAIT_S 0

#include "base/testing.h"

#include <pthread.h>
#include <string.h>
#include <sys/wait.h>

static int looks;

static void test_holds(void **state)
{
    looks = 0;
    test_run_until(looks >= 0, looks++);
    assert_int_equal(looks, 0);
    test_wait_until(looks == 0);
}

static void hangs(void **state)
{
    test_wait_until(looks == -1);
}

static void *hang(void *unused)
{
    hangs(NULL);
    return NULL;
}

static void hangs_in_thread(void **state)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, hang, NULL), 0);
    pthread_join(thread, NULL);
}

/* Runs a test that fails, in a child. Returns its wait status and what it printed. */
static int run_child(CMUnitTestFunction fn, char text[4096])
{
    int pipes[2], status;
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const struct CMUnitTest tests[] = {{.name = "child", .test_func = fn}};
        dup2(pipes[1], STDOUT_FILENO);
        dup2(pipes[1], STDERR_FILENO);
        cmocka_set_message_output(CM_OUTPUT_STDOUT);
        _exit(cmocka_run_group_tests(tests, NULL, NULL));
    }
    close(pipes[1]);
    size_t have = 0;
    for (ssize_t n; (n = read(pipes[0], text + have, 4095 - have)) > 0;)
        have += (size_t)n;
    text[have] = '\0';
    close(pipes[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void test_time_over(void **state)
{
    char text[4096];
    int status = run_child(hangs, text);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    assert_non_null(strstr(text, "still false after 0 s: looks == -1"));
    assert_non_null(strstr(text, "test_testing.c:23"));
}

static void test_time_over_in_thread(void **state)
{
    char text[4096];
    run_child(hangs_in_thread, text);
    assert_non_null(strstr(text, "test_testing.c:23: still false after 0 s: looks == -1"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_holds),
        cmocka_unit_test(test_time_over),
        cmocka_unit_test(test_time_over_in_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
