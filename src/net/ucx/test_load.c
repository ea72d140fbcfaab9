/* SPDX-License-Identifier: Apache-2.0 */
/* What setenv does while UCX is being loaded stays, and what was said to UCX's constructors does not. */
#include <setjmp.h>
#include <stdarg.h>

#include "net/ucx/symbols.h"

#include <cmocka.h>

static void test_environment(void **state)
{
    const struct ucx_symbols *ucx;
    struct leat_error err = {0};
    setenv("UCX_MEM_EVENTS", "theirs",
           1); /* from here on libc owns the environment: setenv moves and frees it */
    setenv("LEAT_LIBUCP", RESTLESS, 1);
    assert_int_equal(ucx_load(&ucx, &err), LEAT_UNSUPPORTED);
    assert_non_null(strstr(err.message, "UCX 1.13")); /* it was loaded, and is not UCX */
    assert_string_equal(getenv("LEAT_TEST_EVENTS"), "n");
    assert_string_equal(getenv("LEAT_TEST_A"), "new");
    assert_string_equal(getenv("LEAT_TEST_Z"), "new");
    assert_string_equal(getenv("UCX_MEM_EVENTS"), "theirs");
    assert_null(getenv("UCX_HANDLE_ERRORS"));
    assert_string_equal(getenv("LEAT_LIBUCP"), RESTLESS);
    for (char **e = environ; *e; e++)
        assert_non_null(strchr(*e, '=')); /* all of it can be read */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_environment)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
