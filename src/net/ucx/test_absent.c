/* SPDX-License-Identifier: Apache-2.0 */
/* Without UCX's library every RDMA call fails with that reason, every time, and nothing else happens. */
#include <setjmp.h>
#include <stdarg.h>

#include "net/rdma.h"

#include <cmocka.h>

static void test_absent(void **state)
{
    const struct net_rdma_config config = {.rails = "lo", .tls = "tcp"};
    struct net_ctx *ctx;
    struct net_rdma_server *server;
    struct leat_error err;
    setenv("LEAT_LIBUCP", "libnot-there.so.0", 1); /* nothing was loaded in this process yet */
    for (unsigned i = 0; i < 2; i++) {
        err = (struct leat_error){0};
        assert_int_equal(net_rdma_new(&config, &ctx, &err), LEAT_UNSUPPORTED);
        assert_true(strstr(err.message, "libnot-there.so.0") || strstr(err.message, "built without UCX"));
        err = (struct leat_error){0};
        assert_int_equal(net_rdma_server_new(&config, &server, &err), LEAT_UNSUPPORTED);
        assert_true(strstr(err.message, "libnot-there.so.0") || strstr(err.message, "built without UCX"));
        setenv("LEAT_LIBUCP", "libucp.so.0", 1); /* the first answer stays */
    }
    struct net_rdma_report report;
    net_rdma_report(&report);
    assert_false(report.ucx);
    assert_true(report.ucx_text[0]);
    struct net_rdma_slot slot = {0};
    net_rdma_slot_close(&slot);
    net_rdma_slot_close(&slot);
    assert_true(slot.closed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_absent)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
