/* SPDX-License-Identifier: Apache-2.0 */
/* Opening and reading: facts about a set, single samples and batches, from the pool, streamed, of several
 * nodes. */
#include "client/test_fixture.h"

#include "base/testing.h"

#include <stdio.h>

static struct leat_error err;

/* --- facts about a set --------------------------------------------------------------------------------------------- */

static void test_info(void **state)
{
    struct fixture x;
    struct leat_field field = {.size = sizeof(field)};
    char buf[24];
    size_t len;
    uint64_t index, bytes;
    fixture_open(&x, (struct fake_options){0});
    assert_int_equal(leat_ws_length(x.ws), FAKE_SAMPLES);
    assert_int_equal(leat_ws_fields(x.ws), 3);
    assert_int_equal(leat_ws_field(x.ws, 0, &field), 0);
    assert_string_equal(field.name, "data");
    assert_string_equal(field.dtype, "<u2");
    assert_int_equal(field.ndim, 2);
    assert_int_equal(field.fixed_bytes, 60);
    assert_int_equal(leat_ws_field(x.ws, 1, &field), 0);
    assert_int_equal(field.fixed_bytes, 0);
    assert_int_equal(leat_ws_field(x.ws, 2, &field), 0);
    assert_true(field.is_label);
    assert_int_equal(leat_ws_field(x.ws, 3, &field), LEAT_NOT_FOUND);
    assert_int_equal(leat_ws_find_field(x.ws, "blob"), 1);
    assert_int_equal(leat_ws_find_field(x.ws, "nothing"), -1);
    const char *key = leat_ws_key(x.ws, 17, buf, sizeof(buf), &len);
    assert_int_equal(len, 11);
    assert_memory_equal(key, "s/00017.bin", 11);
    assert_null(leat_ws_key(x.ws, FAKE_SAMPLES, buf, sizeof(buf), &len));
    assert_int_equal(leat_ws_index(x.ws, "s/00017.bin", 11, &index), 0);
    assert_int_equal(index, 17);
    assert_int_equal(leat_ws_index(x.ws, "s/00017.bi", 10, &index), LEAT_NOT_FOUND);
    assert_int_equal(leat_ws_classes(x.ws), 3);
    assert_memory_equal(leat_ws_class(x.ws, 1, &len), "bee", 3);
    assert_null(leat_ws_class(x.ws, 3, &len));
    assert_int_equal(leat_ws_field_bytes(x.ws, 8, 1, &bytes), 0);
    assert_int_equal(bytes, 8 * 977 % 5001);
    assert_int_equal(leat_ws_field_bytes(x.ws, 6, 1, &bytes), LEAT_NOT_FOUND);
    assert_int_equal(strlen(leat_ws_fingerprint(x.ws)), 32);
    struct leat_ws_stat stat = {.size = sizeof(stat)};
    assert_int_equal(leat_ws_stat(x.ws, &stat, &err), 0);
    assert_int_equal(stat.samples, FAKE_SAMPLES);
    assert_string_equal(stat.transport, "shm");
    char *text;
    assert_int_equal(leat_query(x.client, LEAT_QUERY_STATUS, NULL, &text, &err), 0);
    assert_string_equal(text, "{\"fake\":true}");
    leat_free(text);
    uint64_t bad;
    assert_int_equal(leat_verify(x.ws, 0, NULL, NULL, &bad, &err), LEAT_CORRUPT);
    assert_int_equal(bad, 2);
    assert_int_equal(leat_counters(&text, &err), 0);
    assert_non_null(strstr(text, "\"batches\":"));
    leat_free(text);
    fixture_close(&x);
}

/* --- reading ---------------------------------------------------------------------------------------------------------- */

static void test_shm(void **state)
{
    struct fixture x;
    struct leat_rail rail = {.size = sizeof(rail)};
    fixture_open(&x, (struct fake_options){0});
    fixture_read_all(x.ws);
    struct leat_ws_stat stat = {.size = sizeof(stat)};
    assert_int_equal(leat_ws_stat(x.ws, &stat, &err), 0);
    assert_true(stat.shm_bytes > 0);
    assert_int_equal(stat.tcp_bytes + stat.rdma_read_bytes + stat.rdma_write_bytes + stat.streamed_bytes +
                         stat.bounced_bytes,
                     0);
    assert_int_equal(stat.rails, 0);
    assert_int_equal(leat_ws_rail(x.ws, 0, &rail), LEAT_NOT_FOUND);
    fixture_batches_all(x.ws);
    assert_true(x.daemon->regions_asked <= div_up(x.daemon->nregions, 64));
    assert_int_equal(x.daemon->waits, 0);
    assert_int_equal(x.daemon->brokers, 0);
    fixture_batches_by(x.ws, "tcp"); /* our own node, as if it were far away */
    assert_int_equal(x.daemon->brokers, 1);
    fixture_close(&x);
}

static void test_two_nodes(void **state)
{
    struct fixture x;
    fixture_open(&x, (struct fake_options){.remote_odd = true});
    fixture_read_all(x.ws);
    fixture_batches_all(x.ws);
    struct leat_ws_stat stat = {.size = sizeof(stat)};
    assert_int_equal(leat_ws_stat(x.ws, &stat, &err), 0);
    assert_string_equal(stat.transport, "shm+tcp");
    struct leat_view *view;
    struct leat_view_options o = {.size = sizeof(o), .batch_size = 4, .transport = "shm"};
    assert_int_equal(leat_load(x.ws, &o, &view, &err), LEAT_UNSUPPORTED);
    fixture_close(&x);
}

static void test_waits_once_a_batch(void **state)
{
    struct fixture x;
    fixture_open(&x, (struct fake_options){.all_loading = true});
    struct leat_view *view = fixture_load(x.ws, 8, 2);
    const uint64_t ids[] = {5, 6, 7, 5, 300, 301, 2, 1};
    struct leat_batch *batch;
    assert_int_equal(leat_read_batch(view, ids, 8, 0, &batch, &err), 0);
    assert_int_equal(x.daemon->waits, 1);
    fixture_check_batch(batch);
    leat_batch_release(batch);
    assert_int_equal(leat_read_batch(view, ids, 8, 0, &batch, &err), 0);
    assert_int_equal(x.daemon->waits, 1);
    leat_batch_release(batch);
    x.daemon->live_map[4096 + 9] = LIVE_FAILED;
    const uint64_t failed[] = {5, 9};
    assert_int_equal(leat_read_batch(view, failed, 2, 0, &batch, &err), -EIO);
    assert_string_equal(err.message, "the fake daemon says no");
    leat_view_close(view);
    fixture_close(&x);
}

static void test_streamed(void **state)
{
    struct fixture x;
    fixture_open(&x, (struct fake_options){.streamed_tail = true});
    fixture_read_all(x.ws);
    fixture_batches_all(x.ws); /* batches of more than the window go in portions */
    assert_true(x.daemon->fetches > 0);
    test_wait_until(x.daemon->releases >= x.daemon->fetches);
    assert_int_equal(x.daemon->releases, x.daemon->fetches);
    fixture_close(&x);
}

static void test_hold(void **state)
{
    struct fixture x;
    struct leat_hold *hold;
    const void *data;
    uint64_t bytes;
    unsigned held = 0, refused = 0;
    fixture_open(&x, (struct fake_options){0});
    for (uint64_t i = 0; i < FAKE_SAMPLES; i++) {
        bool present;
        fake_bytes(i, 1, &present);
        int rc = leat_hold(x.ws, i, 1, 0, &hold, &data, &bytes, &err);
        if (!present) {
            assert_int_equal(rc, LEAT_NOT_FOUND);
        } else if (rc == 0) {
            assert_true(fake_matches(i, 1, data, bytes));
            leat_hold_release(hold);
            held++;
        } else {
            assert_int_equal(rc, LEAT_UNSUPPORTED); /* across a region boundary */
            refused++;
        }
    }
    assert_true(held > 200 && refused > 10);
    fixture_close(&x);
}

static void test_arguments(void **state)
{
    struct fixture x;
    struct leat_batch *batch;
    struct leat_view *view;
    struct leat_ws *ws;
    uint8_t buf[10];
    uint64_t bytes = 0;
    fixture_open(&x, (struct fake_options){0});
    assert_int_equal(leat_open(x.client, "missing", NULL, &ws, &err), LEAT_NOT_FOUND);
    assert_int_equal(leat_open(x.client, "", NULL, &ws, &err), LEAT_INVALID);
    assert_int_equal(leat_read(x.ws, FAKE_SAMPLES, 0, buf, 10, 0, &bytes, &err), LEAT_NOT_FOUND);
    assert_int_equal(leat_read(x.ws, UINT64_MAX, 0, buf, 10, 0, &bytes, &err), LEAT_NOT_FOUND);
    assert_int_equal(leat_read(x.ws, 0, 9, buf, 10, 0, &bytes, &err), LEAT_NOT_FOUND);
    assert_int_equal(leat_read(x.ws, 0, 0, buf, 10, 0, &bytes, &err), LEAT_NO_SPACE);
    assert_int_equal(bytes, 60);
    struct leat_view_options o = {.size = sizeof(o)};
    assert_int_equal(leat_load(x.ws, &o, &view, &err), LEAT_INVALID);
    o.batch_size = 4;
    o.transport = "smoke";
    assert_int_equal(leat_load(x.ws, &o, &view, &err), LEAT_INVALID);
    o.transport = "shm";
    o.max_batch_bytes = 100;
    assert_int_equal(leat_load(x.ws, &o, &view, &err), 0);
    const uint64_t ids[] = {1, 2, 3, 4, 5}, far[] = {1, FAKE_SAMPLES};
    assert_int_equal(leat_read_batch(view, ids, 5, 0, &batch, &err), LEAT_INVALID);
    assert_int_equal(leat_read_batch(view, ids, 0, 0, &batch, &err), LEAT_INVALID);
    assert_int_equal(leat_read_batch(view, far, 2, 0, &batch, &err), LEAT_NOT_FOUND);
    assert_int_equal(leat_read_batch(view, ids, 2, 0, &batch, &err), LEAT_NO_SPACE);
    leat_view_close(view);
    fixture_close(&x);
}

static void test_corrupt(void **state)
{
    struct fixture x;
    struct leat_batch *batch;
    uint8_t buf[6000];
    uint64_t bytes;
    fixture_open(&x, (struct fake_options){0});
    struct leat_view *view = fixture_load(x.ws, 4, 2);
    const uint64_t ids[] = {10, 11, 12, 13};
    fake_corrupt(x.daemon, 11, 1);
    assert_int_equal(leat_read(x.ws, 11, 1, buf, sizeof(buf), 0, &bytes, &err), LEAT_CORRUPT);
    assert_int_equal(leat_read_batch(view, ids, 4, 0, &batch, &err), LEAT_CORRUPT);
    assert_non_null(strstr(err.message, "s/00011.bin"));
    assert_non_null(strstr(err.message, "blob"));
    assert_int_equal(leat_read_batch(view, ids, 1, 0, &batch, &err), 0);
    leat_batch_release(batch);
    leat_view_close(view);
    fixture_close(&x);
}

/* Paths are seen from where the program stands, in every form of a source. */
static void test_paths(void **state)
{
    struct fixture x;
    char cwd[4096], wanted[9000];
    fixture_open(&x, (struct fake_options){0});
    assert_non_null(getcwd(cwd, sizeof(cwd)));
    leat_close(x.ws);
    assert_int_equal(leat_open(x.client, "image=a.npy;label=d/b*.npy;more=file:///c", NULL, &x.ws, &err), 0);
    snprintf(wanted, sizeof(wanted), "image=%s/a.npy;label=%s/d/b*.npy;more=/c", cwd, cwd);
    assert_string_equal(leat_ws_uri(x.ws), wanted);
    struct leat_ws *ws;
    assert_int_equal(leat_open(x.client, "gs://bucket/key", NULL, &ws, &err), LEAT_UNSUPPORTED);
    assert_non_null(strstr(err.message, "gs://bucket/key"));
    assert_int_equal(leat_open(x.client, "image=", NULL, &ws, &err), LEAT_INVALID);
    assert_int_equal(leat_open(x.client, "missing", NULL, &ws, &err), LEAT_NOT_FOUND);
    /* A request that is too long fails alone. */
    char *huge = calloc(1, PROTO_BODY_MAX + 10), *text;
    memset(huge, 'x', PROTO_BODY_MAX + 9);
    assert_int_equal(leat_query(x.client, LEAT_QUERY_STAT, huge, &text, &err), LEAT_INVALID);
    free(huge);
    assert_int_equal(leat_query(x.client, LEAT_QUERY_STATUS, NULL, &text, &err), 0);
    leat_free(text);
    fixture_close(&x);
}

/* A checksum that does not match is no fault of the data if the sample left the pool during the read. */
static void test_moved(void **state)
{
    struct fixture x;
    fixture_open(&x, (struct fake_options){0});
    assert_int_equal(gather_mismatch(x.ws, 7, 0, 0, &err), LEAT_CORRUPT);
    x.daemon->live_map[4096 + 7] = LIVE_LOST;
    assert_int_equal(gather_mismatch(x.ws, 7, 0, 0, &err), GATHER_MOVED);
    fake_revoke(x.daemon, false);
    assert_int_equal(gather_mismatch(x.ws, 7, 0, 0, &err), LEAT_STALE);
    fixture_close(&x);
}

/* A report arrives unchanged; a senseless one is refused here, or has no effect. */
static void test_report(void **state)
{
    struct leat_report r = {.size = sizeof(r),
                            .loader = 3,
                            .title = "mixture of a, b",
                            .verdict = LEAT_VERDICT_PREP,
                            .rank = 1,
                            .world_size = 4,
                            .epoch = 2,
                            .samples = 100,
                            .length = 400,
                            .samples_per_s = 1.5,
                            .bytes_per_s = -1,
                            .waiting = 7};
    struct fixture x;
    fixture_open(&x, (struct fake_options){0});
    assert_int_equal(leat_ws_report(x.ws, &r, &err), 0);
    test_wait_until(x.daemon->reports);
    const struct proto_report *m = &x.daemon->report;
    assert_int_equal(x.daemon->reports, 1);
    assert_int_equal(m->loader, 3);
    assert_string_equal(m->title, r.title);
    assert_true(m->job[0] != 0);
    assert_true(m->verdict == LEAT_VERDICT_PREP && m->rank == 1 && m->world_size == 4 && m->epoch == 2);
    assert_true(m->samples == 100 && m->length == 400 && m->samples_per_ks == 1500);
    assert_true(m->bytes_per_s == 0 && m->waiting_permille == 1000);
    r.rank = 4;
    assert_int_equal(leat_ws_report(x.ws, &r, &err), LEAT_INVALID);
    assert_int_equal(leat_ws_report(x.ws, NULL, &err), LEAT_INVALID);
    fake_hang_up(x.daemon);
    r.rank = 0;
    test_wait_until(leat_ws_report(x.ws, &r, &err) == LEAT_PEER_GONE);
    fixture_close(&x);
}

/* --- regions that move ---------------------------------------------------------------------------------- */

static void read_some(struct leat_view *view)
{
    struct leat_batch *batch;
    uint64_t ids[32];
    for (unsigned i = 0; i < 32; i++)
        ids[i] = i * 12;
    assert_int_equal(leat_read_batch(view, ids, 32, 0, &batch, &err), 0);
    fixture_check_batch(batch);
    leat_batch_release(batch);
}

/* The daemon's table says where each region lives: a set that is open follows, there and back, and into
 * its own node. */
static void test_regions_move(void **state)
{
    struct fixture x;
    fixture_open(&x, (struct fake_options){.remote_odd = true, .places = true});
    assert_false(x.ws->places_own);
    struct leat_view *view = fixture_load(x.ws, 32, 2);
    read_some(view);
    fixture_read_all(x.ws);
    for (unsigned round = 0; round < 3; round++) {
        for (uint32_t g = 0; g < x.daemon->nregions; g++)
            fake_move(x.daemon, g, (g + round) % 2);
        assert_int_equal(ws_region_node(x.ws, 0), round % 2);
        read_some(view);
        fixture_read_all(x.ws);
    }
    leat_view_close(view);
    fixture_close(&x);
}

/* All of it was on this host, and nothing else was opened. */
static void test_first_region_leaves(void **state)
{
    struct fixture x;
    fixture_open(&x, (struct fake_options){.places = true});
    struct leat_view *view = fixture_load(x.ws, 32, 2);
    read_some(view);
    fixture_read_all(x.ws);
    assert_true(view->rails->all_local);
    assert_int_equal(x.daemon->brokers, 0);
    fake_move(x.daemon, 1, 1);
    read_some(view);
    read_some(view); /* by the other slot */
    fixture_read_all(x.ws);
    assert_false(view->rails->all_local);
    assert_int_equal(x.daemon->brokers, 2); /* of the view, of single reads */
    /* One that may use shared memory alone says so. */
    struct leat_view_options o = {.size = sizeof(o), .batch_size = 32, .transport = "shm"};
    struct leat_view *narrow;
    struct leat_batch *batch;
    const uint64_t ids[] = {FAKE_SAMPLES - 1, 200, 300, 350};
    assert_int_equal(leat_load(x.ws, &o, &narrow, &err), 0);
    assert_int_equal(leat_read_batch(narrow, ids, 4, 0, &batch, &err), LEAT_UNSUPPORTED);
    assert_non_null(strstr(err.message, "has moved to another host"));
    leat_view_close(narrow);
    leat_view_close(view);
    fixture_close(&x);
}

/* It leaves while it is asked for: the node that had it refuses, and the table is read again. */
static void test_refused_where_it_was(void **state)
{
    struct fixture x;
    fixture_open(&x, (struct fake_options){.remote_odd = true, .places = true});
    struct leat_view *view = fixture_load(x.ws, 32, 2);
    read_some(view);
    for (uint32_t g = 1; g < 6; g += 2)
        x.daemon->leaves[g] = true;
    read_some(view);
    assert_int_equal(ws_region_node(x.ws, 1), 0);
    for (uint32_t g = 1; g < x.daemon->nregions; g += 2)
        fake_move(x.daemon, g, 1);
    for (uint32_t g = 1; g < x.daemon->nregions; g += 2)
        x.daemon->leaves[g] = true;
    fixture_read_all(x.ws);
    assert_int_equal(x.daemon->fetches, 0);
    /* Refused, and nothing has moved: that is an error. */
    for (uint32_t g = 1; g < x.daemon->nregions; g += 2)
        fake_move(x.daemon, g, 1);
    x.daemon->refuses = true;
    struct leat_batch *batch;
    const uint64_t ids[] = {FAKE_SAMPLES - 1, 200, 300, 350};
    assert_int_equal(leat_read_batch(view, ids, 4, 0, &batch, &err), LEAT_INVALID);
    assert_non_null(strstr(err.message, "from node other:1"));
    leat_view_close(view);
    fixture_close(&x);
}

/* A sample whose `data` is in region 1 alone. */
static uint64_t in_region_1(void)
{
    return FAKE_REGION_BYTES / 60 + 1;
}

/* It leaves our node before it was mapped here. */
static void test_leaves_before_it_is_mapped(void **state)
{
    const uint64_t id = in_region_1();
    const unsigned field = 0;
    uint8_t buf[60];
    struct fixture x;
    struct leat_batch *batch;
    for (unsigned single = 0; single < 2; single++) {
        fixture_open(&x, (struct fake_options){.places = true});
        x.daemon->leaves[1] = true;
        if (single) {
            assert_int_equal(leat_read(x.ws, id, 0, buf, sizeof(buf), 0, NULL, &err), 0);
            assert_true(fake_matches(id, 0, buf, sizeof(buf)));
        } else {
            struct leat_view_options o = {.size = sizeof(o), .batch_size = 1, .fields = &field, .nfields = 1};
            struct leat_view *view;
            assert_int_equal(leat_load(x.ws, &o, &view, &err), 0);
            assert_int_equal(leat_read_batch(view, &id, 1, 0, &batch, &err), 0);
            assert_true(fake_matches(id, 0, leat_batch_data(batch, 0, NULL), 60));
            leat_batch_release(batch);
            leat_view_close(view);
        }
        assert_int_equal(ws_region_node(x.ws, 1), 1);
        fixture_close(&x);
    }
}

/* The limit that a view was given stays when the first region leaves. One that reads its own host by TCP has
 * the credit of a network from then on. */
static void test_credit_when_it_leaves(void **state)
{
    struct fixture x;
    struct leat_view *fixed, *by_tcp;
    struct leat_view_options o = {.size = sizeof(o), .batch_size = 32, .inflight_bytes = 5000},
                             tcp = {.size = sizeof(o), .batch_size = 32, .transport = "tcp"};
    fixture_open(&x, (struct fake_options){.places = true});
    assert_int_equal(leat_load(x.ws, &o, &fixed, &err), 0);
    assert_int_equal(leat_load(x.ws, &tcp, &by_tcp, &err), 0);
    read_some(fixed);
    read_some(by_tcp);
    const uint64_t floor_bytes = by_tcp->rails->credit[0].floor_bytes;
    fake_move(x.daemon, 1, 1);
    read_some(fixed);
    read_some(by_tcp);
    assert_int_equal(credit_limit(&fixed->rails->credit[0]), 5000);
    assert_true(by_tcp->rails->credit[0].floor_bytes < floor_bytes);
    leat_view_close(fixed);
    leat_view_close(by_tcp);
    fixture_close(&x);
}

static void *move_during_read(void *user)
{
    struct fake_daemon *f = user;
    test_wait_until(f->brokers);
    fake_move(f, 2, 1);
    return NULL;
}

/* A deadline that passes while another region moves is a deadline. */
static void test_deadline_while_regions_move(void **state)
{
    const uint64_t id = in_region_1();
    const unsigned field = 0;
    struct leat_view_options o = {.size = sizeof(o), .batch_size = 1, .fields = &field, .nfields = 1};
    struct fixture x;
    struct leat_view *view;
    struct leat_batch *batch;
    pthread_t thread;
    fixture_open(&x, (struct fake_options){.remote_odd = true, .places = true});
    x.daemon->hold_broker = true;
    const uint64_t reconnects = client_counters.reconnects;
    assert_int_equal(leat_load(x.ws, &o, &view, &err), 0);
    assert_int_equal(pthread_create(&thread, NULL, move_during_read, x.daemon), 0);
    assert_int_equal(leat_read_batch(view, &id, 1, 300 * NS_PER_MS, &batch, &err), LEAT_TIMED_OUT);
    pthread_join(thread, NULL);
    assert_int_equal(ws_moves(x.ws), 1);
    assert_int_equal(client_counters.reconnects, reconnects); /* it was not tried again */
    leat_view_close(view);
    fixture_close(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_info),
        cmocka_unit_test(test_shm),
        cmocka_unit_test(test_two_nodes),
        cmocka_unit_test(test_waits_once_a_batch),
        cmocka_unit_test(test_streamed),
        cmocka_unit_test(test_hold),
        cmocka_unit_test(test_report),
        cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_corrupt),
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_moved),
        cmocka_unit_test(test_regions_move),
        cmocka_unit_test(test_first_region_leaves),
        cmocka_unit_test(test_refused_where_it_was),
        cmocka_unit_test(test_leaves_before_it_is_mapped),
        cmocka_unit_test(test_credit_when_it_leaves),
        cmocka_unit_test(test_deadline_while_regions_move),
    };
    return cmocka_run_group_tests_name("client_read", tests, NULL, NULL);
}
