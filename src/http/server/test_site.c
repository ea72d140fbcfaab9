/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "failalloc.h"
#include "http/server/site.h"

static struct http_text text(const char *s)
{
    return (struct http_text){s, s ? strlen(s) : 0};
}

/* Longer than a host's own name may be, as cluster managers make them. */
#define LONG_NAME "gateway-0123456789.storage-0123456789.namespace-of-a-team-0123456789.svc.cluster.local"

static struct site *made(void)
{
    static const char *const domains[] = {"s3.example.org", "localhost", NULL};
    static const char *const listen[] = {"store.lan:9000", LONG_NAME ":9000", "10.1.2.3:9000",
                                         ":9001",          "unix:/run/x",     NULL};
    struct site *site;
    assert_int_equal(site_new(domains, listen, &site), 0);
    return site;
}

static void test_names(void **state)
{
    static const char *const ours[] = {
        LONG_NAME,

        "localhost",      "LocalHost:9000",     "localhost.",     "bucket.localhost:9000",
        "127.0.0.1",      "127.0.0.1:9000",     "192.0.2.7:80",   "[::1]",
        "[::1]:9000",     "[2001:db8::1]:9000", "s3.example.org", "a.b.S3.example.org.:9000",
        "store.lan:9000", "store.lan",          "10.1.2.3",
    };
    static const char *const others[] = {
        "",
        "evil.example",
        "localhost.evil.example",
        "evillocalhost",
        "xs3.example.org",
        "example.org",
        "a.store.lan", /* a bucket's name may precede domains only */
        "127.0.0.1.evil.example",
        "1.2.3.4.5",
        "127.1",
        "[::1",
        "[evil.example]:9000",
        "[]",
        ":9000",
        "0123456789012345678901234567890123456789012345678901234567890123456789.example",
    };
    struct site *site = made();
    for (unsigned i = 0; i < ARRAY_LEN(ours); i++)
        if (!site_is_ours(site, text(ours[i])))
            fail_msg("%s is a name of this server", ours[i]);
    for (unsigned i = 0; i < ARRAY_LEN(others); i++)
        if (site_is_ours(site, text(others[i])))
            fail_msg("%s is no name of this server", others[i]);
    char host[256] = "";
    assert_int_equal(gethostname(host, sizeof(host) - 1), 0);
    assert_true(site_is_ours(site, text(host)));
    host[strcspn(host, ".")] = 0;
    assert_true(site_is_ours(site, text(host)));
    site_free(site);
    assert_int_equal(site_new(NULL, NULL, &site), 0);
    assert_true(site_is_ours(site, text("localhost:1")));
    assert_false(site_is_ours(site, text("s3.example.org")));
    site_free(site);
    site_free(NULL);
}

static void test_cross_site(void **state)
{
    static const struct {
        const char *host, *origin, *fetch_site;
        bool cross;
    } cases[] = {
        {"localhost:9000", NULL, NULL, false}, /* no browser */
        {"localhost:9000", "http://localhost:9000", NULL, false},
        {"localhost:9000", "https://LOCALHOST:9000", "same-origin", false},
        {"localhost:9000", NULL, "none", false}, /* typed by the user */
        {"localhost:9000", "http://localhost:8000", NULL, true},
        {"localhost:9000", "http://localhost", NULL, true},
        {"localhost", "http://localhost", NULL, false},
        {"localhost:9000", "null", NULL, true},
        {"localhost:9000", "", NULL, true},
        {"localhost:9000", "http://evil.example", NULL, true},
        {"localhost:9000", NULL, "cross-site", true},
        {"localhost:9000", NULL, "same-site", true},
        {"localhost:9000", NULL, "what comes later", true},
        {"localhost:9000", "http://localhost:9000", "cross-site", true},
        {"localhost:9000", "http://evil.example", "same-origin", true},
    };
    for (unsigned i = 0; i < ARRAY_LEN(cases); i++)
        if (site_is_cross(text(cases[i].host), text(cases[i].origin), text(cases[i].fetch_site)) !=
            cases[i].cross)
            fail_msg("case %u", i);
}

static int make(void *ctx)
{
    static const char *const names[] = {"a", "b", NULL};
    struct site *site;
    int rc = site_new(names, names, &site);
    if (rc == 0)
        site_free(site);
    return rc;
}

static void test_memory(void **state)
{
    assert_true(failalloc_run(make, NULL) > 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_names), cmocka_unit_test(test_cross_site),
                                       cmocka_unit_test(test_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
