/* SPDX-License-Identifier: Apache-2.0 */
/* test_fixture.c: see test_fixture.h */
#include "client/test_fixture.h"

#include <stdio.h>

#include "base/clock.h"

static struct leat_error err;

void fixture_open(struct fixture *x, struct fake_options options)
{
    x->daemon = fake_start(&options);
    struct leat_client_options o = {
        .size = sizeof(o), .socket = x->daemon->path, .timeout_ns = 20 * NS_PER_S};
    assert_int_equal(leat_connect(&o, &x->client, &err), 0);
    assert_int_equal(leat_open(x->client, "set", NULL, &x->ws, &err), 0);
}

void fixture_close(struct fixture *x)
{
    leat_close(x->ws);
    leat_disconnect(x->client);
    fake_stop(x->daemon);
}

struct leat_view *fixture_load(struct leat_ws *ws, unsigned batch, unsigned slots)
{
    struct leat_view *view;
    struct leat_view_options o = {.size = sizeof(o), .batch_size = batch, .slots = slots};
    int rc = leat_load(ws, &o, &view, &err);
    if (rc)
        print_message("load: %s\n", err.message);
    assert_int_equal(rc, 0);
    return view;
}

void fixture_check_batch(struct leat_batch *batch)
{
    uint64_t bytes;
    const uint64_t *ids = leat_batch_ids(batch), *offsets = leat_batch_offsets(batch, 1);
    const uint8_t *data = leat_batch_data(batch, 0, &bytes), *blob = leat_batch_data(batch, 1, NULL);
    const uint32_t *labels = leat_batch_data(batch, 2, NULL);
    assert_int_equal(bytes, leat_batch_size(batch) * 60);
    assert_null(leat_batch_offsets(batch, 0));
    for (unsigned i = 0; i < leat_batch_size(batch); i++) {
        bool present;
        uint64_t length = fake_bytes(ids[i], 1, &present);
        assert_true(fake_matches(ids[i], 0, data + i * 60, 60));
        assert_int_equal(leat_batch_present(batch, 1, i), present);
        assert_int_equal(offsets[i + 1] - offsets[i], present ? length : 0);
        if (present)
            assert_true(fake_matches(ids[i], 1, blob + offsets[i], length));
        assert_int_equal(labels[i], ids[i] % 3);
    }
}

void fixture_read_all(struct leat_ws *ws)
{
    for (uint64_t i = 0; i < FAKE_SAMPLES; i++)
        for (unsigned field = 0; field < FAKE_FIELDS; field++) {
            uint8_t buf[6000];
            bool present;
            uint64_t bytes = 0;
            fake_bytes(i, field, &present);
            int rc = leat_read(ws, i, field, buf, sizeof(buf), 0, &bytes, &err);
            assert_int_equal(rc, present ? 0 : LEAT_NOT_FOUND);
            if (present)
                assert_true(fake_matches(i, field, buf, bytes));
        }
}

void fixture_batches_by(struct leat_ws *ws, const char *transport)
{
    struct leat_view *view;
    struct leat_view_options o = {.size = sizeof(o), .batch_size = 33, .slots = 3, .transport = transport};
    assert_int_equal(leat_load(ws, &o, &view, &err), 0);
    uint64_t ids[33];
    for (unsigned round = 0; round < 40; round++) {
        unsigned n = 1 + round * 5 % 33;
        for (unsigned i = 0; i < n; i++)
            ids[i] = (round * 131 + i * i * 17) % FAKE_SAMPLES; /* repeats happen */
        struct leat_batch *batch;
        int rc = leat_read_batch(view, ids, n, 0, &batch, &err);
        if (rc)
            print_message("%s\n", err.message);
        assert_int_equal(rc, 0);
        assert_int_equal(leat_batch_size(batch), n);
        fixture_check_batch(batch);
        leat_batch_release(batch);
    }
    leat_view_close(view);
}

void fixture_batches_all(struct leat_ws *ws)
{
    fixture_batches_by(ws, NULL);
}
