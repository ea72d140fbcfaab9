/* SPDX-License-Identifier: Apache-2.0 */
/* The helper must see what it promises to see: good code passes, leaking and error-swallowing code does not. */
#include <setjmp.h>
#include <stdarg.h>

#include "base/base.h"
#include "base/bytes.h"
#include "failalloc.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/wait.h>
#include <cmocka.h>

static int good(void *ctx)
{
    AUTO_FREE char *a = strdup("abc");
    AUTO_FREE char *b = a ? calloc(2, 8) : NULL;
    if (!b)
        return -ENOMEM;
    char *more = realloc(b, 64);
    if (!more)
        return -ENOMEM;
    b = more;
    AUTO_FREE char *c = NULL;
    if (asprintf(&c, "%s%d", a, 7) < 0)
        return -ENOMEM;
    assert_string_equal(c, "abc7");
    *(unsigned *)ctx += 1;
    return 0;
}

static int library(void *ctx)
{
    struct bytes_out out = {0};
    for (unsigned i = 0; i < 10000; i++)
        bytes_put_u64(&out, i);
    int rc = out.failed ? -ENOMEM : 0;
    bytes_out_fini(&out);
    return rc;
}

static void test_good(void **state)
{
    unsigned successes = 0;
    assert_int_equal(failalloc_run(good, &successes), 4);
    assert_int_equal(successes, 1);
    assert_true(failalloc_run(library, NULL) >= 1);
}

static void test_nth(void **state)
{
    failalloc_arm(2);
    void *a = malloc(1), *b = malloc(1), *c = malloc(1);
    assert_int_equal(failalloc_disarm(), 3);
    assert_non_null(a);
    assert_null(b);
    assert_non_null(c);
    free(a);
    free(c);
}

/* A failed realloc keeps its block; a block counts once however often it moves; the table survives growth. */
static void test_live(void **state)
{
    size_t before = failalloc_live();
    void *blocks[1000];
    for (unsigned i = 0; i < ARRAY_LEN(blocks); i++)
        blocks[i] = malloc(i + 1);
    assert_int_equal(failalloc_live(), before + ARRAY_LEN(blocks));
    failalloc_arm(1);
    assert_null(realloc(blocks[0], 100000));
    failalloc_disarm();
    assert_int_equal(failalloc_live(), before + ARRAY_LEN(blocks));
    for (unsigned i = 0; i < ARRAY_LEN(blocks); i++) {
        void *moved = realloc(blocks[i], 5000 + i);
        assert_non_null(moved);
        free(moved);
    }
    assert_int_equal(failalloc_live(), before);
}

static void *kept;
static int leaks(void *ctx)
{
    void *a = malloc(10);
    if (!a)
        return -ENOMEM;
    void *b = malloc(10);
    if (!b) {
        kept = a;
        return -ENOMEM; /* a leaks */
    }
    free(a);
    free(b);
    return 0;
}

static int swallows(void *ctx)
{
    void *volatile a = malloc(10); /* volatile, or the compiler leaves both calls out */
    free(a);
    return 0;
}

static int wrong_code(void *ctx)
{
    void *a = malloc(10);
    free(a);
    return a ? 0 : -EIO;
}

/* failalloc_run over bad code ends in cmocka's fail: seen from outside, in a process of its own. */
static int (*const bad[])(void *) = {leaks, swallows, wrong_code};

static void run_bad(void **state)
{
    failalloc_run(*(int (*const *)(void *)) * state, NULL);
}

static int bad_main(unsigned which)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_prestate(run_bad, (void *)&bad[which])};
    int failures = cmocka_run_group_tests(tests, NULL, NULL);
    free(kept);
    return failures;
}

static void test_bad(void **state)
{
    for (unsigned i = 0; i < ARRAY_LEN(bad); i++) {
        pid_t pid = fork();
        if (pid == 0) {
            char which[2] = {(char)('0' + i), 0};
            int null = open("/dev/null", O_WRONLY);
            dup2(null, 1);
            dup2(null, 2);
            execl("/proc/self/exe", "test_failalloc", which, (char *)NULL);
            _exit(99);
        }
        int status;
        assert_true(pid > 0 && waitpid(pid, &status, 0) == pid);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 1);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return bad_main((unsigned)(argv[1][0] - '0'));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),
        cmocka_unit_test(test_nth),
        cmocka_unit_test(test_live),
        cmocka_unit_test(test_bad),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
