/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>

#include "base/base.h"
#include "base/log.h"

#include <stdio.h>
#include <sys/mman.h>

#include <cmocka.h>

static int output = -1;

/* What was logged since the last call. */
static const char *logged(char text[4096])
{
    ssize_t n = pread(output, text, 4095, 0);
    text[n > 0 ? n : 0] = 0;
    assert_int_equal(ftruncate(output, 0), 0);
    lseek(output, 0, SEEK_SET);
    return text;
}

/* First, while nothing has set the level. */
static void test_environment(void **state)
{
    char text[4096];
    setenv("LEAT_LOG", "info", 1);
    log_debug("no");
    log_info("yes");
    assert_non_null(strstr(logged(text), "info: yes\n"));
    log_set_level(LOG_LEVEL_ERROR);
    log_info("no");
    log_warning("no");
    assert_string_equal(logged(text), "");
}

static void test_line(void **state)
{
    char text[4096];
    log_set_level(LOG_LEVEL_WARNING);
    errno = EPIPE;
    log_warning("working set '%s' dropped", "a\nleatd: error: forged\x1b[31m");
    assert_int_equal(errno, EPIPE);
    logged(text);
    assert_memory_equal(text, "leatd: 2", 8); /* name and year */
    assert_non_null(strstr(text, "Z warning: working set 'a\\x0aleatd: error: forged\\x1b[31m' dropped\n"));
    assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);
}

static void test_long(void **state)
{
    char text[4096], much[3000];
    memset(much, 'x', sizeof(much));
    much[sizeof(much) - 1] = 0;
    log_error("%s", much);
    logged(text);
    assert_true(strlen(text) <= 1024);
    assert_string_equal(text + strlen(text) - 5, "x...\n");
}

/* What a peer can cause without end is logged without filling a disk, with the number of lines left out. */
static void test_limit(void **state)
{
    struct log_limit limit = {0};
    unsigned left_out, told = 0, passed = 0;
    for (unsigned period = 0; period < 3; period++) {
        for (unsigned i = 0; i < 100; i++) {
            bool last, pass = log_limit_pass(&limit, period * LOG_LIMIT_NS + i, &left_out, &last);
            assert_int_equal(pass, i < LOG_LIMIT_LINES);
            assert_int_equal(last, i + 1 == LOG_LIMIT_LINES);
            assert_true(left_out == 0 || (pass && i == 0));
            passed += pass;
            told += left_out;
        }
    }
    assert_int_equal(passed, 3 * LOG_LIMIT_LINES);
    assert_int_equal(told, 2 * (100 - LOG_LIMIT_LINES));
    char text[4096];
    log_set_level(LOG_LEVEL_WARNING);
    unsigned lines = 0;
    for (unsigned i = 0; i < 1000; i++)
        log_warning_limited("line %u", i);
    for (const char *at = logged(text); (at = strchr(at, '\n')); at++)
        lines++;
    assert_true(lines >= LOG_LIMIT_LINES && lines <= 2 * LOG_LIMIT_LINES); /* two periods may touch */
    assert_non_null(strstr(text, "warning: line 0\n"));
    limit = (struct log_limit){.period = 1, .left_out = 7};
    log_write_limited(LOG_LEVEL_INFO, &limit, "too quiet");
    log_write_limited(LOG_LEVEL_WARNING, &limit, "and now");
    assert_non_null(strstr(logged(text), "warning: (7 such lines were left out) and now\n"));
    bool ended = false;
    for (unsigned i = 0; i < 2 * LOG_LIMIT_LINES && !ended; i++) { /* the period may end among them */
        log_write_limited(LOG_LEVEL_WARNING, &limit, "%02000u", i);
        ended = strstr(logged(text), "000... (more such lines are suppressed for up to 5 s)\n");
        assert_true(strlen(text) <= 1024);
    }
    assert_true(ended);
}

static void test_parse(void **state)
{
    enum log_level level = LOG_LEVEL_ERROR;
    assert_int_equal(log_parse_level("debug", &level), 0);
    assert_int_equal(level, LOG_LEVEL_DEBUG);
    assert_int_equal(log_parse_level("loud", &level), -EINVAL);
    assert_int_equal(log_parse_level(NULL, &level), -EINVAL);
    assert_int_equal(level, LOG_LEVEL_DEBUG);
}

int main(void)
{
    output = memfd_create("log", MFD_CLOEXEC);
    if (output < 0)
        return 1;
    log_set_output(output, "leatd");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_environment), cmocka_unit_test(test_line),  cmocka_unit_test(test_long),
        cmocka_unit_test(test_limit),       cmocka_unit_test(test_parse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
