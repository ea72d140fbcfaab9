/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/metrics_text.h"

static void test_text(void **state)
{
    struct bytes_out out = {0};
    metrics_counter(&out, "a_total", "All of a.", UINT64_MAX);
    metrics_gauge(&out, "b", "b now.", 0);
    metrics_family(&out, "c", "gauge", "By path.");
    metrics_sample(&out, "c", "path", "/x \"y\"\\\nz", 7);
    assert_false(out.failed);
    bytes_put(&out, "", 1);
    assert_string_equal((char *)out.data, "# HELP leat_a_total All of a.\n# TYPE leat_a_total counter\n"
                                          "leat_a_total 18446744073709551615\n"
                                          "# HELP leat_b b now.\n# TYPE leat_b gauge\nleat_b 0\n"
                                          "# HELP leat_c By path.\n# TYPE leat_c gauge\n"
                                          "leat_c{path=\"/x \\\"y\\\"\\\\\\nz\"} 7\n");
    bytes_out_fini(&out);
}

static void test_histogram(void **state)
{
    struct bytes_out out = {0};
    struct histogram h = {0};
    histogram_add(&h, 2000);
    histogram_add(&h, UINT64_MAX / 2);
    metrics_histogram(&out, "t", "Times.", &h);
    bytes_put(&out, "", 1);
    const char *text = (const char *)out.data;
    assert_memory_equal(text, "# HELP leat_t_seconds Times.\n# TYPE leat_t_seconds histogram\n", 60);
    assert_non_null(
        strstr(text, "leat_t_seconds_bucket{le=\"1e-06\"} 0\nleat_t_seconds_bucket{le=\"2e-06\"} 1\n"));
    assert_non_null(strstr(text, "le=\"67.108864\"} 1\nleat_t_seconds_bucket{le=\"+Inf\"} 2\n"));
    assert_non_null(strstr(text, "\nleat_t_seconds_count 2\n"));
    bytes_out_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_text), cmocka_unit_test(test_histogram)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
