/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "serve/config.h"

static struct leat_error set_err;

static int set(struct serve_config *c, const char *section, const char *key, const char *value)
{
    struct ini_part parts[] = {{.keys = serve_config_keys, .into = c}, {0}};
    return ini_set(parts, section, key, value, &set_err);
}

static void test_config(void **state)
{
    static const char *const bad[][3] = {
        {"serve", "nonsense", "1"},       {"store", "capacity", "1"},    {"store", "high", "100"},
        {"serve", "threads", "0"},        {"serve", "anonymous", "may"}, {"serve", "region", "US EAST"},
        {"serve", "drain_timeout", "10"}, {"store", "memory", "x"},
    };
    struct serve_config c;
    struct leat_error err = {0};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        serve_config_init(&c);
        assert_int_equal(set(&c, bad[i][0], bad[i][1], bad[i][2]), LEAT_INVALID);
        assert_non_null(strstr(set_err.message, bad[i][1]));
        ini_fini(serve_config_keys, &c);
    }
    serve_config_init(&c);
    assert_int_equal(set(&c, "pool", "size", "1GiB"), LEAT_INVALID);
    assert_string_equal(set_err.message, "no section [pool]: there are serve, store");
    assert_int_equal(set(&c, "serve", "grace", "7s"), 0); /* its old name */
    assert_int_equal(c.grace_ns, 7000000000);
    assert_int_equal(set(&c, "store", "scrub", "59m"), LEAT_INVALID);
    assert_string_equal(set_err.message, "scrub = 59m: give at least 1h, or off");
    assert_int_equal(set(&c, "store", "scrub", "1h"), 0);
    assert_int_equal(c.scrub_ns, 3600 * 1000000000ull);
    assert_int_equal(set(&c, "store", "scrub", "off"), 0);
    assert_int_equal(c.scrub_ns, UINT64_MAX);
    assert_int_equal(serve_config_finish(&c, NULL), 0); /* nothing is asked for */
    assert_int_equal(set(&c, "serve", "listen", "0.0.0.0:9000"), 0);
    assert_int_equal(serve_config_finish(&c, NULL), LEAT_INVALID); /* no store */
    assert_int_equal(set(&c, "store", "paths", "/a, /b /c"), 0);   /* one, as of a command line */
    assert_int_equal(c.npaths, 1);
    assert_int_equal(serve_config_finish(&c, &err), LEAT_INVALID); /* neither keys nor anonymous */
    assert_non_null(strstr(err.message, "--new-keys"));
    assert_int_equal(set(&c, "serve", "anonymous", "yes"), 0);
    assert_int_equal(serve_config_finish(&c, &err), LEAT_INVALID); /* for everybody */
    assert_non_null(strstr(err.message, "other machines reach it"));
    assert_int_equal(set(&c, "serve", "keys_file", "/k"), 0);
    assert_int_equal(serve_config_finish(&c, &err), LEAT_INVALID); /* both */
    assert_int_equal(set(&c, "serve", "anonymous", "no"), 0);
    assert_int_equal(serve_config_finish(&c, &err), 0);
    assert_string_equal(c.region, "us-east-1");
    assert_int_equal(set(&c, "serve", "tls_cert", "/c"), 0);
    assert_int_equal(serve_config_finish(&c, &err), LEAT_INVALID);
    ini_fini(serve_config_keys, &c);
    static const char *const local[] = {"127.0.0.1:9000", "[::1]:0", "unix:/x", "localhost:1"};
    for (size_t i = 0; i < ARRAY_LEN(local); i++) {
        serve_config_init(&c);
        assert_int_equal(set(&c, "store", "paths", "/a"), 0);
        assert_int_equal(set(&c, "serve", "anonymous", "yes"), 0);
        assert_int_equal(set(&c, "serve", "listen", local[i]), 0);
        assert_int_equal(serve_config_finish(&c, NULL), 0);
        ini_fini(serve_config_keys, &c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
