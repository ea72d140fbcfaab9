/* SPDX-License-Identifier: Apache-2.0 */
/* Structs of the API between a program and a library of different releases; flags; batch memory and events. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/client.h"
#include "client/fake_daemon.h"

static struct leat_error err;

/* No padding at the end: with it, a member that a later release puts there would be read out of nothing. And of the two
 * structs without `size`: theirs for good. */
#define ENDS_WITH(type, member)                                                                              \
    _Static_assert(                                                                                          \
        offsetof(struct type, member) + sizeof(((struct type *)0)->member) == sizeof(struct type), #type)
ENDS_WITH(leat_client_options, interrupt_user);
ENDS_WITH(leat_progress, bytes_total);
ENDS_WITH(leat_open_options, s3);
ENDS_WITH(leat_s3_options, token);
ENDS_WITH(leat_scan_options, timeout_ns);
ENDS_WITH(leat_scan_sample, bytes);
ENDS_WITH(leat_field, shape);
ENDS_WITH(leat_ws_stat, rails);
ENDS_WITH(leat_rail, rate_bytes_per_s);
ENDS_WITH(leat_report, order);
ENDS_WITH(leat_view_options, fingerprint);
ENDS_WITH(leat_event, reserved);
ENDS_WITH(leat_iter_options, nends);
ENDS_WITH(leat_create_field, nlengths);
ENDS_WITH(leat_create_options, timeout_ns);
ENDS_WITH(leat_push_field, nlengths);
_Static_assert(sizeof(struct leat_error) == 512, "leat_error");
_Static_assert(sizeof(struct leat_order) == 256, "leat_order");
_Static_assert(sizeof(struct leat_plan) == 512, "leat_plan");
_Static_assert(sizeof(struct leat_plan_run) == 32, "leat_plan_run");

struct ours {
    size_t size;
    uint64_t a, b;
};
struct theirs { /* a newer release's */
    size_t size;
    uint64_t a, b, c;
};

static void test_take(void **state)
{
    struct ours got;
    struct theirs given = {.size = sizeof(given), .a = 1, .b = 2};
    assert_int_equal(options_take("ours", &given, 8, &got, sizeof(got), &err), 0);
    assert_true(got.size == sizeof(got) && got.a == 1 && got.b == 2);
    ((uint8_t *)&given.c)[7] = 1; /* the very last byte counts */
    assert_int_equal(options_take("ours", &given, 8, &got, sizeof(got), &err), LEAT_UNSUPPORTED);
    assert_non_null(strstr(err.message, "ours asks for something"));

    given.size = offsetof(struct theirs, b); /* an older one: b is not looked at */
    assert_int_equal(options_take("ours", &given, 8, &got, sizeof(got), &err), 0);
    assert_true(got.a == 1 && got.b == 0);
    const size_t wrong[] = {0, 7, 4097, SIZE_MAX};
    for (unsigned i = 0; i < ARRAY_LEN(wrong); i++) {
        given.size = wrong[i];
        assert_int_equal(options_take("ours", &given, 8, &got, sizeof(got), &err), LEAT_INVALID);
        assert_non_null(strstr(err.message, "sizeof(struct ours)"));
    }
    assert_int_equal(options_take("ours", NULL, 8, &got, sizeof(got), &err), 0);
    assert_true(got.a == 0 && got.b == 0);
}

static void test_take_array(void **state)
{
    struct ours got[3];
    struct theirs given[3] = {
        {sizeof(given[0]), 1, 2, 0}, {sizeof(given[0]), 3, 4, 0}, {sizeof(given[0]), 5, 6, 0}};
    assert_int_equal(options_take_array("ours", given, 3, 8, got, sizeof(got[0]), &err), 0);
    for (unsigned i = 0; i < 3; i++)
        assert_true(got[i].a == 2 * i + 1 && got[i].b == 2 * i + 2);
    given[2].c = 1;
    assert_int_equal(options_take_array("ours", given, 3, 8, got, sizeof(got[0]), &err), LEAT_UNSUPPORTED);
    given[1].size = sizeof(struct ours);
    assert_int_equal(options_take_array("ours", given, 3, 8, got, sizeof(got[0]), &err), LEAT_INVALID);
    assert_non_null(strstr(err.message, "ours 1"));
    given[0].size = 0;
    assert_int_equal(options_take_array("ours", given, 3, 8, got, sizeof(got[0]), &err), LEAT_INVALID);
}

static void test_give(void **state)
{
    const struct ours own = {sizeof(own), 1, 2};
    struct theirs given = {sizeof(given), 9, 9, 9};
    assert_int_equal(options_give("ours", &given, 8, &own, sizeof(own), &err), 0);
    assert_true(given.size == sizeof(given) && given.a == 1 && given.b == 2 && given.c == 0);
    given = (struct theirs){offsetof(struct theirs, b), 9, 9, 9};
    assert_int_equal(options_give("ours", &given, 8, &own, sizeof(own), &err), 0);
    assert_true(given.a == 1 && given.b == 9 && given.c == 9); /* nothing behind an older caller's end */
    given.size = 0;
    assert_int_equal(options_give("ours", &given, 8, &own, sizeof(own), &err), LEAT_INVALID);
}

/* --- each call ----------------------------------------------------------------------------------------------------- */

struct fixture {
    struct fake_daemon *daemon;
    struct leat_client *client;
    struct leat_ws *ws;
    struct leat_view *view;
};

static void open_set(struct fixture *x)
{
    x->daemon = fake_start(&(struct fake_options){0});
    struct leat_client_options o = {.size = sizeof(o), .socket = x->daemon->path};
    assert_int_equal(leat_connect(&o, &x->client, &err), 0);
    assert_int_equal(leat_open(x->client, "set", NULL, &x->ws, &err), 0);
    struct leat_view_options v = {.size = sizeof(v), .batch_size = 4, .slots = 2};
    assert_int_equal(leat_load(x->ws, &v, &x->view, &err), 0);
}

static void close_set(struct fixture *x)
{
    leat_view_close(x->view);
    leat_close(x->ws);
    leat_disconnect(x->client);
    fake_stop(x->daemon);
}

/* One of the public structs in memory larger than it, as a newer program has it. */
union newer {
    size_t size;
    struct leat_client_options client;
    struct leat_open_options open;
    struct leat_scan_options scan;
    struct leat_view_options view;
    struct leat_event event;
    struct leat_iter_options iter;
    struct leat_create_options create;
    struct leat_report report;
    struct leat_field field;
    struct leat_ws_stat stat;
    uint8_t bytes[512];
};

struct call {
    int (*call)(struct fixture *x, const union newer *o);
    size_t own;
};

static int do_connect(struct fixture *x, const union newer *o) /* the small daemon serves one client */
{
    union newer with = *o;
    struct leat_client *client;
    with.client.socket = "/nonexistent/leatd.sock";
    int rc = leat_connect(&with.client, &client, &err);
    return rc == LEAT_NOT_FOUND ? 0 : rc; /* it has got as far as looking for one */
}

static int do_open(struct fixture *x, const union newer *o)
{
    struct leat_ws *ws;
    int rc = leat_open(x->client, "set", &o->open, &ws, &err);
    if (!rc)
        leat_close(ws);
    return rc;
}

static int do_load(struct fixture *x, const union newer *o)
{
    union newer with = *o;
    struct leat_view *view;
    with.view.batch_size = 1;
    int rc = leat_load(x->ws, &with.view, &view, &err);
    if (!rc)
        leat_view_close(view);
    return rc;
}

static int do_iterate(struct fixture *x, const union newer *o)
{
    struct leat_iter *iter;
    int rc = leat_iterate(x->view, &o->iter, &iter, &err);
    if (!rc)
        leat_iter_close(iter);
    return rc;
}

static int do_release_after(struct fixture *x, const union newer *o)
{
    union newer with = *o;
    struct leat_batch *batch;
    const uint64_t id = 1;
    assert_int_equal(leat_read_batch(x->view, &id, 1, 0, &batch, &err), 0);
    with.event.fd = eventfd(1, EFD_CLOEXEC);
    int rc = leat_batch_release_after(batch, &with.event, &err);
    close(with.event.fd);
    if (rc)
        leat_batch_release(batch); /* still held */
    return rc;
}

static int do_create(struct fixture *x, const union newer *o)
{
    union newer with = *o;
    const uint64_t length = 1;
    const struct leat_create_field field = {
        .size = sizeof(field), .name = "text", .lengths = &length, .nlengths = 1};
    with.create.fields = &field;
    with.create.nfields = with.create.nsamples = 1;
    return leat_create(x->client, "new", &with.create, &err);
}

static int do_report(struct fixture *x, const union newer *o)
{
    return leat_ws_report(x->ws, &o->report, &err);
}

static int do_scan(struct fixture *x, const union newer *o)
{
    struct leat_scan *scan;
    int rc = leat_scan(x->client, "s3://bucket/set", &o->scan, &scan, &err);
    if (!rc)
        leat_scan_close(scan);
    return rc;
}

static void test_calls(void **state)
{
    const struct call calls[] = {
        {do_connect, sizeof(struct leat_client_options)}, {do_open, sizeof(struct leat_open_options)},
        {do_load, sizeof(struct leat_view_options)},      {do_iterate, sizeof(struct leat_iter_options)},
        {do_release_after, sizeof(struct leat_event)},    {do_create, sizeof(struct leat_create_options)},
        {do_report, sizeof(struct leat_report)},          {do_scan, sizeof(struct leat_scan_options)},
    };
    struct fixture x;
    open_set(&x);
    for (unsigned i = 0; i < ARRAY_LEN(calls); i++) {
        union newer o = {.bytes = {0}};
        assert_int_equal(calls[i].call(&x, &o), LEAT_INVALID); /* size was not set */
        o.size = calls[i].own;
        int rc = calls[i].call(&x, &o);
        if (rc)
            print_message("call %u: %s\n", i, err.message);
        assert_int_equal(rc, 0);
        o.size = sizeof(o);
        assert_int_equal(calls[i].call(&x, &o), 0);
        o.bytes[calls[i].own] = 1;
        assert_int_equal(calls[i].call(&x, &o), LEAT_UNSUPPORTED);
        o.size = calls[i].own; /* what lies behind the end is not the struct's */
        assert_int_equal(calls[i].call(&x, &o), 0);
    }
    close_set(&x);
}

static void test_outputs(void **state)
{
    struct fixture x;
    open_set(&x);
    union newer o;
    memset(&o, 0xff, sizeof(o));
    o.size = sizeof(o);
    assert_int_equal(leat_ws_field(x.ws, 0, &o.field), 0);
    assert_string_equal(o.field.name, "data");
    for (size_t i = sizeof(o.field); i < sizeof(o); i++)
        assert_int_equal(o.bytes[i], 0);
    o.field.fixed_bytes = 7;
    o.size = offsetof(struct leat_field, fixed_bytes);
    assert_int_equal(leat_ws_field(x.ws, 0, &o.field), 0);
    assert_int_equal(o.field.fixed_bytes, 7);
    o.size = 0;
    assert_int_equal(leat_ws_field(x.ws, 0, &o.field), LEAT_INVALID);
    assert_int_equal(leat_ws_field(x.ws, 0, NULL), LEAT_INVALID);

    memset(&o, 0xff, sizeof(o));
    o.size = sizeof(o);
    assert_int_equal(leat_ws_stat(x.ws, &o.stat, &err), 0);
    assert_int_equal(o.stat.samples, FAKE_SAMPLES);
    for (size_t i = sizeof(o.stat); i < sizeof(o); i++)
        assert_int_equal(o.bytes[i], 0);
    o.size = 0;
    assert_int_equal(leat_ws_stat(x.ws, &o.stat, &err), LEAT_INVALID);
    assert_int_equal(leat_ws_stat(x.ws, NULL, &err), LEAT_INVALID);

    char small[2];
    assert_non_null(leat_ws_key(x.ws, 1, small, sizeof(small), NULL));
    close_set(&x);
}

static void test_flags(void **state)
{
    struct fixture x;
    open_set(&x);
    const unsigned unknown = 1u << 30;
    struct leat_client_options co = {.size = sizeof(co), .socket = x.daemon->path, .flags = unknown};
    struct leat_client *client;
    assert_int_equal(leat_connect(&co, &client, &err), LEAT_INVALID);
    struct leat_open_options oo = {.size = sizeof(oo), .flags = unknown | LEAT_OPEN_WAIT};
    struct leat_ws *ws;
    assert_int_equal(leat_open(x.client, "set", &oo, &ws, &err), LEAT_INVALID);
    assert_non_null(strstr(err.message, "0x40000000"));
    assert_int_equal(leat_preload(x.client, "set", &oo, &ws, &err), LEAT_INVALID);
    assert_int_equal(leat_append(x.client, "name", "set", &oo, NULL, &err), LEAT_INVALID);
    struct leat_iter_options io = {.size = sizeof(io), .flags = unknown};
    struct leat_iter *iter;
    assert_int_equal(leat_iterate(x.view, &io, &iter, &err), LEAT_INVALID);
    assert_int_equal(leat_drop(x.client, "set", unknown, 0, &err), LEAT_INVALID);
    assert_int_equal(leat_verify(x.ws, unknown, NULL, NULL, NULL, &err), LEAT_INVALID);
    close_set(&x);
}

/* --- where batches are, and when they are given back ----------------------------------------------------------------- */

static void test_memory(void **state)
{
    const struct {
        unsigned memory;
        int device, rc;
        const char *says;
    } cases[] = {
        {LEAT_MEMORY_HOST, 0, 0, ""},
        {LEAT_MEMORY_HOST, 1, LEAT_INVALID, "it has none"},
        {LEAT_MEMORY_CUDA, 0, LEAT_UNSUPPORTED, "libnot-there.so.1"},
        {LEAT_MEMORY_CUDA, 3, LEAT_UNSUPPORTED, "CUDA device 3"},
        {LEAT_MEMORY_CUDA, -1, LEAT_INVALID, "numbered from 0"},
        {LEAT_MEMORY_PINNED, 0, LEAT_UNSUPPORTED, "pinned for CUDA device 0"},
        {3, 0, LEAT_INVALID, "enum leat_memory"},
    };
    struct fixture x;
    setenv("LEAT_LIBCUDA", "libnot-there.so.1", 1); /* also where there is a GPU */
    open_set(&x);
    for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
        struct leat_view *view;
        struct leat_view_options o = {
            .size = sizeof(o), .batch_size = 4, .memory = cases[i].memory, .device = cases[i].device};
        assert_int_equal(leat_load(x.ws, &o, &view, &err), cases[i].rc);
        if (cases[i].rc)
            assert_non_null(strstr(err.message, cases[i].says));
        else
            leat_view_close(view);
    }
    struct leat_batch *batch;
    const uint64_t id = 1;
    int device = 7;
    assert_int_equal(leat_read_batch(x.view, &id, 1, 0, &batch, &err), 0);
    assert_int_equal(leat_batch_memory(batch, &device), LEAT_MEMORY_HOST);
    assert_int_equal(device, 0);
    assert_int_equal(leat_batch_memory(batch, NULL), LEAT_MEMORY_HOST);
    leat_batch_release(batch);
    close_set(&x);
}

static int countdown(void *user) /* finished once it has come down to 0; it is not called again */
{
    int *left = user;
    assert_true(*left > 0);
    return --*left == 0;
}

static void test_function_event(void **state)
{
    struct fixture x;
    open_set(&x);
    const uint64_t id = 1;
    struct leat_batch *batch[2], *next;
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(leat_read_batch(x.view, &id, 1, 0, &batch[i], &err), 0);
    int left = 5;
    struct leat_event e = {.size = sizeof(e), .finished = countdown, .user = &left, .fd = -1};
    assert_int_equal(leat_batch_release_after(batch[1], &e, &err), 0);
    assert_int_equal(left, 5); /* asked when a slot is wanted */
    assert_int_equal(leat_read_batch(x.view, &id, 1, 0, &next, &err), 0);
    assert_int_equal(left, 0);
    assert_int_equal(leat_batch_slot(next), 1);
    leat_batch_release(batch[0]);
    leat_batch_release(next);
    assert_int_equal(leat_batch_release_after(NULL, &e, &err), LEAT_INVALID);
    close_set(&x);
}

static unsigned mapped(const void *at)
{
    unsigned char resident;
    return mincore((void *)((uintptr_t)at & ~4095ull), 4096, &resident) == 0;
}

/* A copy engine reads on while the view is closed: its memory goes when the engine has finished, not before. */
static void test_event_after_close(void **state)
{
    struct fixture x;
    open_set(&x);
    const uint64_t id = 1;
    struct leat_batch *batch[2];
    const void *data[2];
    int left = 1, event = eventfd(0, EFD_CLOEXEC);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(leat_read_batch(x.view, &id, 1, 0, &batch[i], &err), 0);
        data[i] = leat_batch_data(batch[i], 0, NULL);
    }
    left = 3;
    struct leat_event by_fd = {.size = sizeof(by_fd), .fd = event};
    struct leat_event by_function = {.size = sizeof(by_fd), .finished = countdown, .user = &left};
    leat_view_close(x.view);
    assert_int_equal(leat_batch_release_after(batch[0], &by_fd, &err), 0);
    assert_int_equal(leat_batch_release_after(batch[1], &by_function, &err), 0);
    x.view = NULL;
    assert_true(mapped(data[0]) && mapped(data[1]));
    assert_int_equal(eventfd_write(event, 1), 0);
    struct leat_view_options o = {.size = sizeof(o), .batch_size = 4};
    while (left) {
        assert_true(mapped(data[1]));
        assert_int_equal(leat_load(x.ws, &o, &x.view, &err), 0);
        leat_view_close(x.view);
    }
    assert_false(mapped(data[0]) || mapped(data[1]));
    x.view = NULL;
    close(event);
    close_set(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_take),
        cmocka_unit_test(test_take_array),
        cmocka_unit_test(test_give),
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_outputs),
        cmocka_unit_test(test_flags),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_function_event),
        cmocka_unit_test(test_event_after_close),
    };
    return cmocka_run_group_tests_name("client_options", tests, NULL, NULL);
}
