/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "base/secret_file.h"

static char path[64];

static int try(bool roots_group, struct leat_error *err)
{
    AUTO_CLOSE int fd = -1;
    return secret_file_open("token file", path, "; do otherwise", roots_group, &fd, err);
}

static void test_who_may(void **state)
{
    struct leat_error err;
    snprintf(path, sizeof(path), "/tmp/leat-test-secret-%d", (int)getpid());
    unlink(path);
    assert_int_equal(try(false, &err), LEAT_NOT_FOUND);
    assert_non_null(strstr(err.message, "no token file /tmp/"));
    assert_non_null(strstr(err.message, "; do otherwise"));
    AUTO_CLOSE int fd = open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    for (mode_t mode = 0400; mode <= 0777; mode++) {
        assert_int_equal(fchmod(fd, mode), 0);
        int expected = mode & 077 ? LEAT_DENIED : 0;
        if (try(false, &err) != expected)
            fail_msg("mode %04o", mode);
        expected = mode & (geteuid() == 0 ? 037 : 077) ? LEAT_DENIED : 0; /* what we make is root's, or not */
        if (try(true, &err) != expected)
            fail_msg("mode %04o of a key", mode);
    }
    assert_non_null(strstr(err.message, "chmod 600 /tmp/"));
    assert_int_equal(fchmod(fd, 0600), 0);
    if (geteuid() == 0) {
        assert_int_equal(fchown(fd, 12345, 0), 0);
        assert_int_equal(try(false, &err), LEAT_DENIED);
        assert_non_null(strstr(err.message, "user 12345"));
    }
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0); /* must not hang */
    assert_int_equal(try(false, &err), LEAT_INVALID);
    unlink(path);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(try(false, &err), LEAT_INVALID);
    rmdir(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_who_may)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
