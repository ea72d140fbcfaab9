/* SPDX-License-Identifier: Apache-2.0 */
/* Scans, the client's side: objects received, handed out, released, requested again, and checked. */
#include "client/test_fixture.h"

#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/testing.h"

static struct leat_error err;

struct scanned {
    struct fixture x;
    struct leat_scan *scan;
};

static void begin(struct scanned *s, uint64_t objects)
{
    fixture_open(&s->x, (struct fake_options){0});
    s->x.daemon->scan_objects = objects;
    struct leat_scan_options o = {.size = sizeof(o), .window_bytes = MIB};
    int rc = leat_scan(s->x.client, "s3://bucket/set", &o, &s->scan, &err);
    if (rc)
        print_message("%s\n", err.message);
    assert_int_equal(rc, 0);
}

static void end(struct scanned *s)
{
    leat_scan_close(s->scan);
    test_wait_until(s->x.daemon->scan_ends != 0);
    assert_int_equal(s->x.daemon->scan_ends, 1);
    fixture_close(&s->x);
}

static struct leat_scan_sample next(struct scanned *s)
{
    struct leat_scan_sample sample = {.size = sizeof(sample)};
    int rc = leat_scan_next(s->scan, 0, &sample, &err);
    if (rc)
        print_message("%s\n", err.message);
    assert_int_equal(rc, 0);
    return sample;
}

static void test_in_order(void **state)
{
    struct scanned s;
    begin(&s, 100);
    for (uint64_t i = 0; i < 100; i++) {
        struct leat_scan_sample sample = next(&s);
        char key[24];
        snprintf(key, sizeof(key), "%05u", (unsigned)i);
        assert_string_equal(sample.key, key);
        assert_int_equal(sample.number, i);
        assert_int_equal(sample.bytes, fake_bytes(i % 8, 0, &(bool){0}));
        assert_true(fake_matches(i % 8, 0, sample.data, sample.bytes));
        leat_scan_release(s.scan, i);
    }
    for (unsigned again = 0; again < 2; again++)
        assert_null(next(&s).key);
    assert_int_equal(s.x.daemon->scan_released, 100);
    end(&s);
}

/* The daemon learns of releases without a gap; releasing an object twice, or before it was handed out, has
 * no effect. */
static void test_released_in_any_order(void **state)
{
    struct scanned s;
    begin(&s, 100);
    for (unsigned i = 0; i < 6; i++)
        next(&s);
    leat_scan_release(s.scan, 6);
    leat_scan_release(s.scan, UINT64_MAX);
    for (unsigned i = 1; i < 6; i++)
        leat_scan_release(s.scan, i);
    for (unsigned i = 0; i < 3; i++)
        next(&s);
    assert_int_equal(s.x.daemon->scan_released, 0);
    leat_scan_release(s.scan, 0);
    leat_scan_release(s.scan, 0);
    next(&s);
    assert_int_equal(s.x.daemon->scan_from, 9);
    assert_int_equal(s.x.daemon->scan_released, 6);
    leat_scan_release(NULL, 0);
    end(&s);
}

/* A call after a cancelled one requests the same object. */
static void test_an_answer_that_does_not_come(void **state)
{
    struct scanned s;
    struct leat_scan_sample sample = {.size = sizeof(sample)};
    begin(&s, 10);
    for (unsigned i = 0; i < 3; i++)
        next(&s);
    s.x.daemon->mute = true;
    assert_int_equal(leat_scan_next(s.scan, 50 * NS_PER_MS, &sample, &err), LEAT_TIMED_OUT);
    s.x.daemon->mute = false;
    assert_int_equal(next(&s).number, 3);
    fake_hang_up(s.x.daemon);
    while (leat_scan_next(s.scan, 0, &sample, &err) == 0)
        ; /* objects already received */
    assert_int_equal(leat_scan_next(s.scan, 0, &sample, &err), LEAT_PEER_GONE);
    leat_scan_close(s.scan);
    fixture_close(&s.x);
}

static void test_what_cannot_be_is_not_believed(void **state)
{
    struct scanned s;
    struct leat_scan_sample sample = {.size = sizeof(sample)};
    begin(&s, 10);
    s.x.daemon->scan_skew = FAKE_SCAN_BYTES;
    assert_int_equal(leat_scan_next(s.scan, 0, &sample, &err), LEAT_CORRUPT);
    s.x.daemon->scan_skew = 0;
    assert_int_equal(next(&s).number, 0);
    end(&s);
    begin(&s, UINT64_MAX); /* and more than a client ever lets a daemon hold */
    for (unsigned i = 0; i < PROTO_SCAN_HELD - PROTO_SCAN_HELD % 3; i++)
        next(&s);
    assert_int_equal(leat_scan_next(s.scan, 0, &sample, &err), LEAT_CORRUPT);
    end(&s);
}

static void test_arguments(void **state)
{
    struct scanned s;
    struct leat_scan_sample sample = {.size = 0};
    struct leat_scan_options o = {.size = sizeof(o)};
    begin(&s, 1);
    struct leat_client *c = s.x.client;
    struct leat_scan *scan;
    assert_int_equal(leat_scan(NULL, "s3://b/p", &o, &scan, &err), LEAT_INVALID);
    assert_int_equal(leat_scan(c, "", &o, &scan, &err), LEAT_INVALID);
    assert_int_equal(leat_scan(c, "s3://b/p", &o, NULL, &err), LEAT_INVALID);
    assert_int_equal(leat_scan(c, "leat://name", &o, &scan, &err), LEAT_UNSUPPORTED);
    assert_int_equal(leat_scan_next(NULL, 0, &sample, &err), LEAT_INVALID);
    assert_int_equal(leat_scan_next(s.scan, 0, NULL, &err), LEAT_INVALID);
    assert_int_equal(leat_scan_next(s.scan, 0, &sample, &err), LEAT_INVALID); /* size was not set */
    assert_int_equal(next(&s).number, 0);                                     /* and nothing was left out */
    leat_scan_close(NULL);
    end(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_in_order),
        cmocka_unit_test(test_released_in_any_order),
        cmocka_unit_test(test_an_answer_that_does_not_come),
        cmocka_unit_test(test_what_cannot_be_is_not_believed),
        cmocka_unit_test(test_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
