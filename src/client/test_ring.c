/* SPDX-License-Identifier: Apache-2.0 */
/* The ring of batches: who holds what, several threads, epochs read ahead. */
#include "client/test_fixture.h"

#include <sys/eventfd.h>

#include "base/clock.h"
#include "base/testing.h"

static struct leat_error err;

static void test_ring(void **state)
{
    struct fixture x;
    struct leat_batch *batches[3], *extra;
    const uint64_t ids[] = {1, 2, 3, 4};
    fixture_open(&x, (struct fake_options){0});
    struct leat_view *view = fixture_load(x.ws, 4, 3);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(leat_read_batch(view, ids, 4, 0, &batches[i], &err), 0);
    assert_int_equal(leat_read_batch(view, ids, 4, 0, &extra, &err), LEAT_BUSY);
    assert_non_null(strstr(err.message, "1, 2, 3"));
    leat_batch_release(batches[1]);
    assert_int_equal(leat_read_batch(view, ids, 4, 0, &extra, &err), 0);
    assert_int_equal(leat_batch_slot(extra), 1);

    /* A slot given back after an event: not before it. */
    int event = eventfd(0, EFD_CLOEXEC);
    assert_int_equal(leat_batch_release_after(batches[0], &FD_EVENT(event), &err), 0);
    assert_int_equal(leat_read_batch(view, ids, 4, 30 * NS_PER_MS, &batches[1], &err), LEAT_TIMED_OUT);
    assert_int_equal(eventfd_write(event, 1), 0);
    close(event);
    assert_int_equal(leat_read_batch(view, ids, 4, 0, &batches[0], &err), 0);
    assert_int_equal(leat_batch_slot(batches[0]), 0);
    assert_int_equal(leat_batch_release_after(batches[0], &FD_EVENT(-1), &err), LEAT_INVALID);

    /* The memory of held batches outlives the view, the set and the client. */
    leat_view_close(view);
    leat_close(x.ws);
    leat_disconnect(x.client);
    fixture_check_batch(extra);
    leat_batch_release(extra);
    leat_batch_release(batches[0]);
    leat_batch_release(batches[2]);
    fake_stop(x.daemon);
}

/* --- several threads -------------------------------------------------------------------------------------------------------------- */

static void *reader(void *arg)
{
    struct leat_ws *ws = arg;
    uint64_t errors = 0;
    for (unsigned round = 0; round < 3; round++)
        for (uint64_t i = 0; i < FAKE_SAMPLES; i += 3) {
            uint8_t buf[60];
            struct leat_error e;
            char *text;
            errors += leat_read(ws, i, 0, buf, 60, 0, NULL, &e) != 0 || !fake_matches(i, 0, buf, 60);
            errors += leat_query(ws->client, LEAT_QUERY_STATUS, NULL, &text, &e) != 0;
            leat_free(text);
        }
    return (void *)(uintptr_t)errors;
}

static void test_threads(void **state)
{
    struct fixture x;
    pthread_t threads[4];
    fixture_open(&x, (struct fake_options){.all_loading = true});
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, reader, x.ws), 0);
    for (unsigned i = 0; i < 4; i++) {
        void *errors;
        pthread_join(threads[i], &errors);
        assert_null(errors);
    }
    fixture_close(&x);
}

/* --- epochs ------------------------------------------------------------------------------------------------------------------------- */

static void test_iterate(void **state)
{
    struct fixture x;
    fixture_open(&x, (struct fake_options){0});
    static const unsigned worlds[] = {1, 3};
    for (unsigned w = 0; w < 2; w++)
        for (int keep = 0; keep < 2; keep++) {
            uint8_t seen[FAKE_SAMPLES] = {0};
            uint64_t total = 0, global = 32ull * worlds[w];
            for (unsigned rank = 0; rank < worlds[w]; rank++) {
                struct leat_view *view = fixture_load(x.ws, 32, 3);
                struct leat_iter *it;
                struct leat_iter_options o = {
                    .size = sizeof(o), .seed = 5, .rank = rank, .world_size = worlds[w], .keep_tail = keep};
                assert_int_equal(leat_iterate(view, &o, &it, &err), 0);
                leat_view_close(view); /* the iterator keeps it */
                struct leat_order order;
                assert_int_equal(
                    leat_order_init(&order, FAKE_SAMPLES, 5, 0, 0, leat_ws_fingerprint(x.ws), NULL), 0);
                uint64_t steps = 0;
                for (;; steps++) {
                    struct leat_batch *batch;
                    assert_int_equal(leat_next(it, 0, &batch, &err), 0);
                    if (!batch)
                        break;
                    fixture_check_batch(batch);
                    for (unsigned i = 0; i < leat_batch_size(batch); i++) {
                        uint64_t id = leat_batch_ids(batch)[i];
                        assert_int_equal(id, leat_order_at(&order, leat_batch_position(batch) + i));
                        assert_int_equal(seen[id]++, 0);
                        total++;
                    }
                    leat_batch_release(batch);
                }
                assert_int_equal(steps, leat_iter_steps(it));
                struct leat_batch *end;
                assert_int_equal(leat_next(it, 0, &end, &err), 0);
                assert_null(end);
                leat_iter_close(it);
            }
            assert_int_equal(total, keep ? FAKE_SAMPLES : FAKE_SAMPLES / global * global);
        }
    fixture_close(&x);
}

/* keep_tail 2: every rank gets whole batches, and those before the end each sample once; behind it the first positions again. */
static void test_iterate_padded(void **state)
{
    struct fixture x;
    fixture_open(&x, (struct fake_options){0});
    uint8_t seen[FAKE_SAMPLES] = {0};
    uint64_t total = 0, steps = (FAKE_SAMPLES + 3 * 32 - 1) / (3 * 32);
    struct leat_order order;
    assert_int_equal(leat_order_init(&order, FAKE_SAMPLES, 5, 0, 0, leat_ws_fingerprint(x.ws), NULL), 0);
    for (unsigned rank = 0; rank < 3; rank++) {
        struct leat_view *view = fixture_load(x.ws, 32, 3);
        struct leat_iter *it;
        struct leat_iter_options o = {
            .size = sizeof(o), .seed = 5, .rank = rank, .world_size = 3, .keep_tail = 2};
        assert_int_equal(leat_iterate(view, &o, &it, &err), 0);
        leat_view_close(view);
        assert_int_equal(leat_iter_steps(it), steps);
        for (uint64_t s = 0; s < steps; s++) {
            struct leat_batch *batch;
            assert_int_equal(leat_next(it, 0, &batch, &err), 0);
            assert_int_equal(leat_batch_size(batch), 32);
            fixture_check_batch(batch);
            for (unsigned i = 0; i < 32; i++) {
                uint64_t p = leat_batch_position(batch) + i, id = leat_batch_ids(batch)[i];
                assert_int_equal(p, s * 96 + rank * 32 + i);
                assert_int_equal(id, leat_order_at(&order, p % FAKE_SAMPLES));
                if (p < FAKE_SAMPLES) {
                    assert_int_equal(seen[id]++, 0);
                    total++;
                }
            }
            leat_batch_release(batch);
        }
        leat_iter_close(it);
    }
    assert_int_equal(total, FAKE_SAMPLES);
    fixture_close(&x);
}

static void test_iterate_plan(void **state)
{
    struct fixture x;
    struct leat_iter *it;
    struct leat_batch *batch;
    fixture_open(&x, (struct fake_options){0});
    struct leat_view *view = fixture_load(x.ws, 4, 2);
    uint64_t ids[] = {5, 3, 3, 9, 0, 7}, ends[] = {2, 3, 6};
    struct leat_iter_options o = {.size = sizeof(o), .ids = ids, .nids = 6, .ends = ends, .nends = 3};
    assert_int_equal(leat_iterate(view, &o, &it, &err), 0);
    ids[0] = ends[0] = 1; /* they were copied */
    static const unsigned sizes[] = {2, 1, 3};
    for (unsigned b = 0, at = 0; b < 3; at += sizes[b++]) {
        static const uint64_t want[] = {5, 3, 3, 9, 0, 7};
        assert_int_equal(leat_next(it, 0, &batch, &err), 0);
        assert_int_equal(leat_batch_size(batch), sizes[b]);
        assert_memory_equal(leat_batch_ids(batch), want + at, sizes[b] * 8);
        fixture_check_batch(batch);
        leat_batch_release(batch);
    }
    assert_int_equal(leat_next(it, 0, &batch, &err), 0);
    assert_null(batch);
    leat_iter_close(it);
    o.ends = NULL; /* batch_size each */
    assert_int_equal(leat_iterate(view, &o, &it, &err), 0);
    assert_int_equal(leat_iter_steps(it), 2);
    leat_iter_close(it);
    static const uint64_t wrong[][3] = {{0, 3, 6}, {2, 2, 6}, {1, 6, 6}, {2, 3, 7}};
    for (unsigned i = 0; i < 4; i++) {
        o.ends = wrong[i];
        assert_int_equal(leat_iterate(view, &o, &it, &err), LEAT_INVALID);
    }
    o.ends = NULL;
    ids[5] = FAKE_SAMPLES;
    assert_int_equal(leat_iterate(view, &o, &it, &err), LEAT_INVALID);
    leat_view_close(view);
    fixture_close(&x);
}

static void test_iterate_errors(void **state)
{
    struct fixture x;
    struct leat_iter *it;
    struct leat_batch *batch, *held[3];
    fixture_open(&x, (struct fake_options){0});
    struct leat_view *view = fixture_load(x.ws, 10, 3);
    struct leat_iter_options o = {.size = sizeof(o), .block = LEAT_ORDER_SEQUENTIAL};
    assert_int_equal(leat_iterate(view, &o, &it, &err), 0);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(leat_next(it, 0, &held[i], &err), 0);
    assert_int_equal(leat_next(it, 0, &batch, &err), LEAT_BUSY);
    for (unsigned i = 0; i < 3; i++)
        leat_batch_release(held[i]);
    leat_iter_close(it);

    /* An error comes at its place, and only there. */
    fake_corrupt(x.daemon, 25, 0);
    assert_int_equal(leat_iterate(view, &o, &it, &err), 0);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(leat_next(it, 0, &batch, &err), 0);
        leat_batch_release(batch);
    }
    assert_int_equal(leat_next(it, 0, &batch, &err), LEAT_CORRUPT);
    fake_corrupt(x.daemon, 25, 0); /* mends it */
    int rc = leat_next(it, 0, &batch, &err);
    if (rc == LEAT_CORRUPT) /* the thread had tried again before it was mended */
        rc = leat_next(it, 0, &batch, &err);
    assert_int_equal(rc, 0);
    assert_int_equal(leat_batch_position(batch), 20);
    leat_batch_release(batch);
    leat_iter_close(it);

    /* Closing in the middle of a wait that would last. */
    x.daemon->mute = true;
    for (unsigned i = 0; i < FAKE_SAMPLES; i++)
        x.daemon->live_map[4096 + i] = LIVE_LOADING;
    assert_int_equal(leat_iterate(view, &o, &it, &err), 0);
    test_pause_us(30000);
    uint64_t before = clock_now_ns();
    leat_iter_close(it);
    assert_true(clock_now_ns() - before < 10 * NS_PER_S); /* the call's own deadline is 20 s */
    leat_view_close(view);
    x.daemon->mute = false;
    fixture_close(&x);
}

/* An iterator that waits for a slot does not block other callers, with or without a deadline. */
static void test_iterator_waits_alone(void **state)
{
    struct fixture x;
    struct leat_iter *it;
    struct leat_batch *held[2], *batch;
    const uint64_t ids[] = {5, 6};
    fixture_open(&x, (struct fake_options){0});
    struct leat_view *view = fixture_load(x.ws, 4, 3);
    struct leat_iter_options o = {.size = sizeof(o)};
    assert_int_equal(leat_iterate(view, &o, &it, &err), 0);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(leat_next(it, 0, &held[i], &err), 0);
    test_pause_us(50000); /* the third is read ahead, and the thread waits for a slot */
    assert_int_equal(leat_read_batch(view, ids, 2, UINT64_MAX, &batch, &err), LEAT_BUSY);
    for (unsigned i = 0; i < 2; i++)
        leat_batch_release(held[i]);
    assert_int_equal(leat_next(it, 0, &batch, &err), 0);
    fixture_check_batch(batch);
    leat_batch_release(batch);
    leat_iter_close(it);
    leat_view_close(view);
    fixture_close(&x);
}

/* A consumer that is back at once reads by itself, another has it read ahead: the batches are the same ones. */
static void test_iterate_haste(void **state)
{
    enum { STEPS = 600, BATCH = 4 };
    struct fixture x;
    struct leat_iter *it;
    struct leat_batch *batch, *held[3];
    uint64_t *ids = calloc(STEPS * BATCH, sizeof(*ids)), step = 0;
    assert_non_null(ids);
    for (unsigned i = 0; i < STEPS * BATCH; i++)
        ids[i] = (i * 7ull + i / FAKE_SAMPLES) % FAKE_SAMPLES;
    fixture_open(&x, (struct fake_options){0});
    struct leat_view *view = fixture_load(x.ws, BATCH, 3);
    struct leat_iter_options o = {.size = sizeof(o), .ids = ids, .nids = STEPS * BATCH};
    assert_int_equal(leat_iterate(view, &o, &it, &err), 0);
    for (; step < STEPS - 3; step++) {
        if (step % 200 > 190)
            test_pause_us(300);
        assert_int_equal(leat_next(it, 0, &batch, &err), 0);
        assert_int_equal(leat_batch_position(batch), step * BATCH);
        assert_memory_equal(leat_batch_ids(batch), ids + step * BATCH, BATCH * sizeof(*ids));
        fixture_check_batch(batch);
        leat_batch_release(batch);
    }
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(leat_next(it, 0, &held[i], &err), 0);
    assert_int_equal(leat_next(it, 0, &batch, &err), 0);
    assert_null(batch);
    for (unsigned i = 0; i < 3; i++)
        leat_batch_release(held[i]);
    leat_iter_close(it);

    /* All slots held, without read-ahead: the batch that could not be read is the next one. */
    assert_int_equal(leat_iterate(view, &o, &it, &err), 0);
    for (step = 0; step < 100; step++) {
        assert_int_equal(leat_next(it, 0, &batch, &err), 0);
        leat_batch_release(batch);
    }
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(leat_next(it, 0, &held[i], &err), 0);
    assert_int_equal(leat_next(it, 0, &batch, &err), LEAT_BUSY);
    for (unsigned i = 0; i < 3; i++)
        leat_batch_release(held[i]);
    for (step += 3; step < STEPS; step++) {
        assert_int_equal(leat_next(it, 0, &batch, &err), 0);
        assert_int_equal(leat_batch_position(batch), step * BATCH);
        leat_batch_release(batch);
    }
    leat_iter_close(it);
    leat_view_close(view);
    fixture_close(&x);
    free(ids);
}

struct consumer {
    struct leat_iter *it;
    _Atomic unsigned *seen; /* by step */
};

static void *consume(void *arg)
{
    struct consumer *c = arg;
    struct leat_error e;
    struct leat_batch *batch;
    while (leat_next(c->it, 0, &batch, &e) == 0 && batch) {
        atomic_fetch_add(&c->seen[leat_batch_position(batch)], 1);
        leat_batch_release(batch);
    }
    return NULL;
}

static void test_iterate_haste_of_two(void **state)
{
    enum { STEPS = 3000 };
    static _Atomic unsigned seen[STEPS];
    uint64_t ids[STEPS];
    struct fixture x;
    struct consumer c = {.seen = seen};
    pthread_t threads[2];
    for (unsigned i = 0; i < STEPS; i++)
        ids[i] = i % FAKE_SAMPLES;
    fixture_open(&x, (struct fake_options){0});
    struct leat_view *view = fixture_load(x.ws, 1, 4);
    struct leat_iter_options o = {.size = sizeof(o), .ids = ids, .nids = STEPS};
    assert_int_equal(leat_iterate(view, &o, &c.it, &err), 0);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, consume, &c), 0);
    for (unsigned i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    for (unsigned i = 0; i < STEPS; i++)
        assert_int_equal(seen[i], 1);
    leat_iter_close(c.it);
    leat_view_close(view);
    fixture_close(&x);
}

/* --- windows ------------------------------------------------------------------------------------------------------ */

#define WINDOW 5u
#define STEP   3u

static bool is_window(struct leat_batch *batch, unsigned i)
{
    uint64_t bytes, id = leat_batch_ids(batch)[i];
    const uint8_t *data = leat_batch_data(batch, 0, &bytes);
    bool same = bytes == leat_batch_size(batch) * WINDOW * 60ull && leat_batch_present(batch, 0, i);
    for (unsigned j = 0; j < WINDOW; j++)
        same = same && fake_matches(id * STEP + j, 0, data + (i * WINDOW + j) * 60ull, 60);
    return same;
}

static void test_windows(void **state)
{
    static const struct fake_options options[] = {{0}, {.all_loading = true}, {.streamed_tail = true}};
    static const char fingerprint[] = "000102030405060708090a0b0c0d0e0f";
    const uint64_t length = (FAKE_SAMPLES - WINDOW) / STEP + 1;
    const unsigned fields[] = {0};
    struct leat_view_options o = {.size = sizeof(o),
                                  .batch_size = 8,
                                  .slots = 3,
                                  .fields = fields,
                                  .nfields = 1,
                                  .window = WINDOW,
                                  .window_step = STEP,
                                  .fingerprint = fingerprint};
    for (unsigned k = 0; k < ARRAY_LEN(options); k++) {
        struct fixture x;
        struct leat_view *view;
        struct leat_iter *it;
        struct leat_batch *batch;
        struct leat_order order;
        uint8_t seen[FAKE_SAMPLES] = {0};
        fixture_open(&x, options[k]);
        assert_int_equal(leat_load(x.ws, &o, &view, &err), 0);
        const struct leat_iter_options walk = {.size = sizeof(walk), .seed = 5, .keep_tail = 1};
        assert_int_equal(leat_iterate(view, &walk, &it, &err), 0);
        assert_int_equal(leat_order_init(&order, length, 5, 0, 0, fingerprint, NULL), 0);
        for (uint64_t total = 0; total < length; leat_batch_release(batch)) {
            assert_int_equal(leat_next(it, 0, &batch, &err), 0);
            assert_non_null(batch);
            for (unsigned i = 0; i < leat_batch_size(batch); i++, total++) {
                assert_true(is_window(batch, i));
                assert_int_equal(leat_batch_ids(batch)[i], leat_order_at(&order, total));
                assert_int_equal(seen[leat_batch_ids(batch)[i]]++, 0);
            }
        }
        leat_iter_close(it);
        const uint64_t ids[] = {length - 1, 0, 0}, beyond = length;
        assert_int_equal(leat_read_batch(view, ids, 3, 0, &batch, &err), 0);
        assert_true(is_window(batch, 0) && is_window(batch, 1) && is_window(batch, 2));
        leat_batch_release(batch);
        assert_int_equal(leat_read_batch(view, &beyond, 1, 0, &batch, &err), LEAT_INVALID);
        if (k == 0) { /* what is checked is each sample of the set */
            fake_corrupt(x.daemon, STEP + 4, 0);
            const uint64_t bad = 1, good = 0;
            assert_int_equal(leat_read_batch(view, &bad, 1, 0, &batch, &err), LEAT_CORRUPT);
            assert_int_equal(leat_read_batch(view, &good, 1, 0, &batch, &err), 0);
            leat_batch_release(batch);
        }
        leat_view_close(view);
        fixture_close(&x);
    }
}

static void test_windows_refused(void **state)
{
    struct fixture x;
    struct leat_view *view;
    fixture_open(&x, (struct fake_options){0});
    for (unsigned f = 1; f < FAKE_FIELDS; f++) { /* ragged, label */
        struct leat_view_options o = {
            .size = sizeof(o), .batch_size = 2, .fields = &f, .nfields = 1, .window = 2};
        assert_int_equal(leat_load(x.ws, &o, &view, &err), LEAT_INVALID);
        assert_non_null(strstr(err.message, "fixed length"));
    }
    const unsigned field = 0;
    struct leat_view_options o = {
        .size = sizeof(o), .batch_size = 1, .fields = &field, .nfields = 1, .window = FAKE_SAMPLES + 1};
    assert_int_equal(leat_load(x.ws, &o, &view, &err), LEAT_INVALID);
    o.batch_size = 1u << 24;
    o.window = 400;
    assert_int_equal(leat_load(x.ws, &o, &view, &err), LEAT_INVALID);
    o = (struct leat_view_options){.size = sizeof(o), .batch_size = 1, .fingerprint = "12"};
    assert_int_equal(leat_load(x.ws, &o, &view, &err), LEAT_INVALID);
    fixture_close(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ring),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_iterate),
        cmocka_unit_test(test_iterate_padded),
        cmocka_unit_test(test_iterate_plan),
        cmocka_unit_test(test_iterate_errors),
        cmocka_unit_test(test_iterator_waits_alone),
        cmocka_unit_test(test_iterate_haste),
        cmocka_unit_test(test_iterate_haste_of_two),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_windows_refused),
    };
    return cmocka_run_group_tests_name("client_ring", tests, NULL, NULL);
}
