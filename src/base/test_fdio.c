/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays that grow, and reading and writing all of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/array.h"
#include "base/fdio.h"
#include "failalloc.h"

static void test_grows(void **state)
{
    uint64_t *numbers = NULL;
    size_t cap = 0;
    for (size_t n = 0; n < 1000; n++) {
        assert_int_equal(array_reserve(&numbers, &cap, n + 1), 0);
        assert_true(cap > n);
        numbers[n] = n * n;
    }
    for (size_t n = 0; n < 1000; n++)
        assert_int_equal(numbers[n], n * n);
    const size_t before = cap;
    assert_int_equal(array_reserve(&numbers, &cap, 17), 0); /* never less */
    assert_int_equal(cap, before);
    free(numbers);
}

/* A count that is as narrow as its type has no room for more, whatever memory there is. */
static void test_narrow_count(void **state)
{
    char *text = NULL;
    uint8_t cap = 0;
    assert_int_equal(array_reserve(&text, &cap, 200), 0);
    assert_int_equal(cap, 200);
    assert_int_equal(array_reserve(&text, &cap, 255), 0);
    assert_int_equal(cap, 255);
    assert_int_equal(array_reserve(&text, &cap, 256), -ENOMEM);
    assert_int_equal(cap, 255);
    memset(text, 'x', cap);
    free(text);
}

static void test_no_memory(void **state)
{
    uint64_t *numbers = NULL, cap = 0;
    assert_int_equal(array_reserve(&numbers, &cap, 1), 0);
    uint64_t *const at = numbers;
    const uint64_t had = cap;
    failalloc_arm(1);
    assert_int_equal(array_reserve(&numbers, &cap, had + 1), -ENOMEM);
    failalloc_disarm();
    assert_int_equal(array_reserve(&numbers, &cap, UINT64_MAX / 2), -ENOMEM); /* its bytes overflow */
    assert_ptr_equal(numbers, at);
    assert_int_equal(cap, had);
    free(numbers);
}

static void test_at(void **state)
{
    AUTO_CLOSE int fd = memfd_create("fdio", MFD_CLOEXEC);
    char out[16] = "";
    assert_true(fd >= 0);
    assert_int_equal(fd_write_at(fd, "abcdefgh", 8, 2), 0);
    assert_int_equal(fd_read_at(fd, out, 4, 4), 4);
    assert_memory_equal(out, "cdef", 4);
    assert_int_equal(fd_read_at(fd, out, sizeof(out), 6), 4); /* what there is */
    assert_int_equal(fd_read_at(fd, out, 1, 10), 0);
    assert_int_equal(fd_read_at(fd, out, 1, UINT64_MAX - 5), 0);
    assert_int_equal(fd_read_at(-1, out, 1, 0), -EBADF);
    assert_int_equal(fd_write_at(-1, out, 1, 0), -EBADF);
    assert_int_equal(fd_write_at(-1, out, 0, 0), 0);
}

/* More than a pipe holds, to a reader that takes a little at a time. */
static void test_pipe(void **state)
{
    enum { BYTES = 300000 };
    int pipes[2], status;
    assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        char *all = malloc(BYTES);
        memset(all, 'p', BYTES);
        close(pipes[0]);
        _exit(fd_write(pipes[1], all, BYTES) == 0 ? 0 : 1);
    }
    close(pipes[1]);
    char some[777];
    size_t got = 0;
    for (ssize_t n; (n = read(pipes[0], some, sizeof(some))) > 0;)
        got += (size_t)n;
    assert_int_equal(got, BYTES);
    close(pipes[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    signal(SIGPIPE, SIG_IGN);
    assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
    close(pipes[0]);
    assert_int_equal(fd_write(pipes[1], some, sizeof(some)), -EPIPE);
    close(pipes[1]);
}

static void test_text(void **state)
{
    AUTO_CLOSE int fd = memfd_create("fdio", MFD_CLOEXEC);
    char out[8];
    assert_int_equal(fd_write(fd, "a b \t\n\n", 7), 0);
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    assert_int_equal(fd_read_text(fd, out, sizeof(out)), 0);
    assert_string_equal(out, "a b");
    assert_int_equal(fd_read_text(fd, out, sizeof(out)), 0); /* nothing is left */
    assert_string_equal(out, "");
    assert_int_equal(fd_write(fd, "0123456789", 10), 0);
    assert_int_equal(lseek(fd, 7, SEEK_SET), 7);
    assert_int_equal(fd_read_text(fd, out, sizeof(out)), 0);
    assert_string_equal(out, "0123456"); /* cut */
    assert_int_equal(fd_read_text(-1, out, sizeof(out)), -EBADF);
}

static void test_parents(void **state)
{
    char folder[64], path[128];
    struct stat st;
    snprintf(folder, sizeof(folder), "/tmp/leat-test-fdio-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/a/b/name", folder);
    fd_make_parents(path);
    assert_int_equal(stat(path, &st), -1);
    *strrchr(path, '/') = 0;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 077, 0);
    fd_make_parents(path); /* they are there */
    assert_int_equal(rmdir(path), 0);
    *strrchr(path, '/') = 0;
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grows),   cmocka_unit_test(test_narrow_count), cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_at),      cmocka_unit_test(test_pipe),         cmocka_unit_test(test_text),
        cmocka_unit_test(test_parents),
    };
    return cmocka_run_group_tests_name("base_fdio", tests, NULL, NULL);
}
