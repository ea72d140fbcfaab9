/* SPDX-License-Identifier: Apache-2.0 */
/* The whole client against a small daemon in the same process (fake_daemon.h): connect, open, read, batches, and what goes wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "client/client.h"
#include "client/fake_daemon.h"

struct fixture {
    struct fake_daemon *daemon;
    struct leat_client *client;
    struct leat_ws *ws;
};

static struct leat_error err;

static void open_set(struct fixture *x, struct fake_options options)
{
    x->daemon = fake_start(&options);
    struct leat_client_options o = {
        .size = sizeof(o), .socket = x->daemon->path, .timeout_ns = 20 * NS_PER_S};
    assert_int_equal(leat_connect(&o, &x->client, &err), 0);
    assert_int_equal(leat_open(x->client, "set", NULL, &x->ws, &err), 0);
}

static void close_set(struct fixture *x)
{
    leat_close(x->ws);
    leat_disconnect(x->client);
    fake_stop(x->daemon);
}

#define FD_EVENT(number) ((struct leat_event){.size = sizeof(struct leat_event), .fd = (number)})

static struct leat_view *load(struct leat_ws *ws, unsigned batch, unsigned slots)
{
    struct leat_view *view;
    struct leat_view_options o = {.size = sizeof(o), .batch_size = batch, .slots = slots};
    int rc = leat_load(ws, &o, &view, &err);
    if (rc)
        print_message("load: %s\n", err.message);
    assert_int_equal(rc, 0);
    return view;
}

static void check_batch(struct leat_batch *batch)
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

static void read_all(struct leat_ws *ws)
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

static void batches_by(struct leat_ws *ws, const char *transport)
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
        check_batch(batch);
        leat_batch_release(batch);
    }
    leat_view_close(view);
}

static void batches_all(struct leat_ws *ws)
{
    batches_by(ws, NULL);
}

/* --- what is told -------------------------------------------------------------------------------------------------- */

static void test_info(void **state)
{
    struct fixture x;
    struct leat_field field = {.size = sizeof(field)};
    char buf[24];
    size_t len;
    uint64_t index, bytes;
    open_set(&x, (struct fake_options){0});
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
    close_set(&x);
}

/* --- reading ---------------------------------------------------------------------------------------------------------- */

static void test_shm(void **state)
{
    struct fixture x;
    open_set(&x, (struct fake_options){0});
    read_all(x.ws);
    batches_all(x.ws);
    assert_true(x.daemon->regions_asked <= div_up(x.daemon->nregions, 64));
    assert_int_equal(x.daemon->waits, 0);
    assert_int_equal(x.daemon->brokers, 0);
    batches_by(x.ws, "tcp"); /* our own node, as if it were far away */
    assert_int_equal(x.daemon->brokers, 1);
    close_set(&x);
}

static void test_two_nodes(void **state)
{
    struct fixture x;
    open_set(&x, (struct fake_options){.remote_odd = true});
    read_all(x.ws);
    batches_all(x.ws);
    struct leat_ws_stat stat = {.size = sizeof(stat)};
    assert_int_equal(leat_ws_stat(x.ws, &stat, &err), 0);
    assert_string_equal(stat.transport, "shm+tcp");
    struct leat_view *view;
    struct leat_view_options o = {.size = sizeof(o), .batch_size = 4, .transport = "shm"};
    assert_int_equal(leat_load(x.ws, &o, &view, &err), LEAT_UNSUPPORTED);
    close_set(&x);
}

static void test_waits_once_a_batch(void **state)
{
    struct fixture x;
    open_set(&x, (struct fake_options){.all_loading = true});
    struct leat_view *view = load(x.ws, 8, 2);
    const uint64_t ids[] = {5, 6, 7, 5, 300, 301, 2, 1};
    struct leat_batch *batch;
    assert_int_equal(leat_read_batch(view, ids, 8, 0, &batch, &err), 0);
    assert_int_equal(x.daemon->waits, 1);
    check_batch(batch);
    leat_batch_release(batch);
    assert_int_equal(leat_read_batch(view, ids, 8, 0, &batch, &err), 0);
    assert_int_equal(x.daemon->waits, 1);
    leat_batch_release(batch);
    x.daemon->live_map[4096 + 9] = LIVE_FAILED;
    const uint64_t failed[] = {5, 9};
    assert_int_equal(leat_read_batch(view, failed, 2, 0, &batch, &err), -EIO);
    assert_string_equal(err.message, "the fake daemon says no");
    leat_view_close(view);
    close_set(&x);
}

static void test_streamed(void **state)
{
    struct fixture x;
    open_set(&x, (struct fake_options){.streamed_tail = true});
    read_all(x.ws);
    batches_all(x.ws); /* batches of more than the window go in portions */
    assert_true(x.daemon->fetches > 0);
    for (unsigned i = 0; i < 200 && x.daemon->releases < x.daemon->fetches; i++)
        usleep(5000);
    assert_int_equal(x.daemon->releases, x.daemon->fetches);
    close_set(&x);
}

static void test_hold(void **state)
{
    struct fixture x;
    struct leat_hold *hold;
    const void *data;
    uint64_t bytes;
    unsigned held = 0, refused = 0;
    open_set(&x, (struct fake_options){0});
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
    close_set(&x);
}

static void test_arguments(void **state)
{
    struct fixture x;
    struct leat_batch *batch;
    struct leat_view *view;
    struct leat_ws *ws;
    uint8_t buf[10];
    uint64_t bytes = 0;
    open_set(&x, (struct fake_options){0});
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
    close_set(&x);
}

/* --- the ring ------------------------------------------------------------------------------------------------------------ */

static void test_ring(void **state)
{
    struct fixture x;
    struct leat_batch *batches[3], *extra;
    const uint64_t ids[] = {1, 2, 3, 4};
    open_set(&x, (struct fake_options){0});
    struct leat_view *view = load(x.ws, 4, 3);
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
    check_batch(extra);
    leat_batch_release(extra);
    leat_batch_release(batches[0]);
    leat_batch_release(batches[2]);
    fake_stop(x.daemon);
}

/* --- what goes wrong -------------------------------------------------------------------------------------------------------- */

static void test_corrupt(void **state)
{
    struct fixture x;
    struct leat_batch *batch;
    uint8_t buf[6000];
    uint64_t bytes;
    open_set(&x, (struct fake_options){0});
    struct leat_view *view = load(x.ws, 4, 2);
    const uint64_t ids[] = {10, 11, 12, 13};
    fake_corrupt(x.daemon, 11, 1);
    assert_int_equal(leat_read(x.ws, 11, 1, buf, sizeof(buf), 0, &bytes, &err), LEAT_CORRUPT);
    assert_int_equal(leat_read_batch(view, ids, 4, 0, &batch, &err), LEAT_CORRUPT);
    assert_non_null(strstr(err.message, "s/00011.bin"));
    assert_non_null(strstr(err.message, "blob"));
    assert_int_equal(leat_read_batch(view, ids, 1, 0, &batch, &err), 0);
    leat_batch_release(batch);
    leat_view_close(view);
    close_set(&x);
}

static void test_revoked(void **state)
{
    for (int with_event = 0; with_event < 2; with_event++) {
        struct fixture x;
        struct leat_batch *batch;
        const uint64_t ids[] = {10, 11};
        open_set(&x, (struct fake_options){0});
        struct leat_view *view = load(x.ws, 4, 2);
        assert_int_equal(leat_read_batch(view, ids, 2, 0, &batch, &err), 0);
        leat_batch_release(batch);
        fake_revoke(x.daemon, with_event);
        assert_int_equal(leat_read_batch(view, ids, 2, 0, &batch, &err), LEAT_STALE);
        leat_view_close(view);
        close_set(&x);
    }
}

static void test_daemon_dies(void **state)
{
    struct fixture x;
    struct leat_batch *batch;
    struct leat_ws *ws;
    const uint64_t ids[] = {10, 11};
    open_set(&x, (struct fake_options){0});
    struct leat_view *view = load(x.ws, 4, 2);
    assert_int_equal(leat_read_batch(view, ids, 2, 0, &batch, &err), 0);
    fake_hang_up(x.daemon);
    struct leat_batch *other;
    int rc = 0;
    for (unsigned i = 0; i < 400 && rc == 0; i++) { /* the end of file takes a moment to arrive */
        rc = leat_read_batch(view, ids, 2, 0, &other, &err);
        if (!rc)
            leat_batch_release(other);
        usleep(5000);
    }
    assert_int_equal(rc, LEAT_PEER_GONE);
    assert_int_equal(leat_open(x.client, "set", NULL, &ws, &err), LEAT_PEER_GONE);
    struct leat_view *far;
    struct leat_view_options by_tcp = {.size = sizeof(by_tcp), .batch_size = 4, .transport = "tcp"};
    assert_int_equal(leat_load(x.ws, &by_tcp, &far, &err), LEAT_PEER_GONE);
    check_batch(batch); /* what was read stays */
    leat_batch_release(batch);
    leat_view_close(view);
    leat_close(x.ws);
    leat_disconnect(x.client);
    struct leat_client_options o = {.size = sizeof(o), .socket = x.daemon->path};
    assert_int_equal(leat_connect(&o, &x.client, &err), 0);
    assert_int_equal(leat_open(x.client, "set", NULL, &x.ws, &err), 0);
    read_all(x.ws);
    close_set(&x);
}

static void test_deadline(void **state)
{
    struct fixture x;
    uint8_t buf[100];
    uint64_t bytes;
    open_set(&x, (struct fake_options){.all_loading = true});
    x.daemon->mute = true;
    assert_int_equal(leat_read(x.ws, 3, 0, buf, sizeof(buf), 50 * NS_PER_MS, &bytes, &err), LEAT_TIMED_OUT);
    for (unsigned i = 0; i < 200 && !x.daemon->cancels; i++)
        usleep(5000);
    assert_int_equal(x.daemon->cancels, 1);
    x.daemon->mute = false;
    assert_int_equal(leat_read(x.ws, 3, 0, buf, sizeof(buf), 0, &bytes, &err), 0);
    close_set(&x);
}

static int count_progress(const struct leat_progress *progress, void *user)
{
    assert_int_equal(progress->samples_total, 2);
    return ++*(int *)user == 30; /* gives up */
}

/* A scan may take longer than a deadline as long as it moves; one that the caller gave stays. */
static void test_slow_open(void **state)
{
    struct fake_daemon *f = fake_start(&(struct fake_options){.slow_open = 20});
    struct leat_client *client;
    struct leat_ws *ws;
    int seen = 0;
    struct leat_client_options o = {.size = sizeof(o), .socket = f->path, .timeout_ns = 400 * NS_PER_MS};
    struct leat_open_options open = {
        .size = sizeof(open), .progress = count_progress, .progress_user = &seen};
    assert_int_equal(leat_connect(&o, &client, &err), 0);
    assert_int_equal(leat_open(client, "set", &open, &ws, &err), 0);
    assert_true(seen > 0);
    leat_close(ws);
    seen = 29;
    assert_int_equal(leat_open(client, "set", &open, &ws, &err), -ECANCELED);
    leat_disconnect(client);
    o.timeout_ns = 0;
    assert_int_equal(leat_connect(&o, &client, &err), 0);
    open.timeout_ns = 100 * NS_PER_MS;
    open.progress = NULL;
    unsigned closes = f->closes;
    assert_int_equal(leat_open(client, "set", &open, &ws, &err), LEAT_TIMED_OUT);
    char *text; /* its answer comes first, and what it opened is closed */
    assert_int_equal(leat_query(client, LEAT_QUERY_STATUS, NULL, &text, &err), 0);
    leat_free(text);
    for (unsigned i = 0; i < 400 && f->closes == closes; i++)
        usleep(5000);
    assert_int_equal(f->closes, closes + 1);
    leat_disconnect(client);
    fake_stop(f);
}

static void test_version(void **state)
{
    struct fake_daemon *f = fake_start(&(struct fake_options){0});
    struct leat_client *client;
    f->hello_version = 9;
    struct leat_client_options o = {.size = sizeof(o), .socket = f->path};
    assert_int_equal(leat_connect(&o, &client, &err), LEAT_INVALID);
    assert_non_null(strstr(err.message, "9"));
    assert_non_null(strstr(err.message, leat_version()));
    fake_stop(f);
}

static void test_nobody(void **state)
{
    struct leat_client *client;
    struct leat_client_options o = {
        .size = sizeof(o), .socket = "/tmp/leat-test-nobody.sock", .flags = LEAT_CONNECT_NO_START};
    assert_int_equal(leat_connect(&o, &client, &err), LEAT_NOT_FOUND);
}

static void test_fork(void **state)
{
    struct fixture x;
    open_set(&x, (struct fake_options){0});
    struct leat_view *view = load(x.ws, 4, 2);
    struct leat_batch *batch;
    const uint64_t ids[] = {10, 11};
    assert_int_equal(leat_read_batch(view, ids, 2, 0, &batch, &err), 0);
    int parents_fd = x.client->fd;
    pid_t pid = fork();
    if (pid == 0) {
        struct leat_batch *other;
        struct leat_ws *ws;
        uint8_t buf[100];
        uint64_t bytes;
        int bad = !leat_forked(x.client) || x.client->fd != -1 || /* the daemon hears of its parent's death */
                  fcntl(parents_fd, F_GETFD) != -1 ||
                  leat_open(x.client, "set", NULL, &ws, &err) != LEAT_INVALID ||
                  leat_read_batch(view, ids, 2, 0, &other, &err) != LEAT_INVALID ||
                  leat_read(x.ws, 1, 0, buf, 100, 0, &bytes, &err) != LEAT_INVALID;
        leat_batch_release(batch); /* all without effect */
        leat_view_close(view);
        leat_close(x.ws);
        leat_disconnect(x.client);
        _exit(bad);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_false(leat_forked(x.client));
    leat_batch_release(batch);
    leat_view_close(view);
    read_all(x.ws);
    close_set(&x);
}

/* Paths are seen from where the program stands, in every form of a source. */
static void test_paths(void **state)
{
    struct fixture x;
    char cwd[4096], wanted[9000];
    open_set(&x, (struct fake_options){0});
    assert_non_null(getcwd(cwd, sizeof(cwd)));
    leat_close(x.ws);
    assert_int_equal(leat_open(x.client, "image=a.npy;label=d/b*.npy;more=file:///c", NULL, &x.ws, &err), 0);
    snprintf(wanted, sizeof(wanted), "image=%s/a.npy;label=%s/d/b*.npy;more=/c", cwd, cwd);
    assert_string_equal(leat_ws_uri(x.ws), wanted);
    struct leat_ws *ws;
    assert_int_equal(leat_open(x.client, "s3://bucket/key", NULL, &ws, &err), LEAT_UNSUPPORTED);
    assert_non_null(strstr(err.message, "s3://bucket/key"));
    assert_int_equal(leat_open(x.client, "image=", NULL, &ws, &err), LEAT_INVALID);
    assert_int_equal(leat_open(x.client, "missing", NULL, &ws, &err), LEAT_NOT_FOUND);
    /* A request that is too long fails alone. */
    char *huge = calloc(1, PROTO_BODY_MAX + 10), *text;
    memset(huge, 'x', PROTO_BODY_MAX + 9);
    assert_int_equal(leat_query(x.client, LEAT_QUERY_STAT, huge, &text, &err), LEAT_INVALID);
    free(huge);
    assert_int_equal(leat_query(x.client, LEAT_QUERY_STATUS, NULL, &text, &err), 0);
    leat_free(text);
    close_set(&x);
}

/* Every wait asks the hook, and ends when it says so, long before its deadline. */
static _Atomic int hook_left;
static struct leat_ws *hook_ws;

static int hook(void *user)
{
    assert_ptr_equal(user, &hook_left);
    return --hook_left <= 0;
}

static int hook_calls_back(void *user)
{
    struct leat_error e;
    if (leat_read(hook_ws, 1, 0, user, 60, 0, NULL, &e) == LEAT_BUSY)
        hook_left--;
    return hook_left <= 0;
}

static void open_hooked(struct fixture *x, struct fake_options options)
{
    x->daemon = fake_start(&options);
    struct leat_client_options o = {.size = sizeof(o),
                                    .socket = x->daemon->path,
                                    .timeout_ns = UINT64_MAX,
                                    .interrupt = hook,
                                    .interrupt_user = &hook_left};
    assert_int_equal(leat_connect(&o, &x->client, &err), 0);
    assert_int_equal(leat_open(x->client, "set", NULL, &x->ws, &err), 0);
}

static void test_interrupt(void **state)
{
    struct fixture x;
    struct leat_ws *ws;
    struct leat_batch *batch, *held[3];
    struct leat_iter *it;
    uint8_t buf[60];
    const uint64_t ids[] = {5, 6};
    char *text;
    open_hooked(&x, (struct fake_options){.all_loading = true});
    struct leat_view *view = load(x.ws, 4, 3);
    x.daemon->mute = true;
    hook_left = 2;
    assert_int_equal(leat_read(x.ws, 3, 0, buf, sizeof(buf), 0, NULL, &err), LEAT_CANCELED);
    hook_left = 1;
    assert_int_equal(leat_read_batch(view, ids, 2, 0, &batch, &err), LEAT_CANCELED);
    hook_left = 1;
    assert_int_equal(leat_open(x.client, "set", NULL, &ws, &err), LEAT_CANCELED);
    hook_left = 1;
    assert_int_equal(leat_ws_wait(x.ws, NULL, NULL, 0, &err), LEAT_CANCELED);
    hook_left = 1;
    assert_int_equal(leat_query(x.client, LEAT_QUERY_STATUS, NULL, &text, &err), LEAT_CANCELED);
    struct leat_iter_options io = {.size = sizeof(io), .block = LEAT_ORDER_SEQUENTIAL};
    assert_int_equal(leat_iterate(view, &io, &it, &err), 0);
    hook_left = 1;
    assert_int_equal(leat_next(it, 0, &batch, &err), LEAT_CANCELED);
    leat_iter_close(it);
    x.daemon->mute = false;

    /* A slot that comes back when a descriptor says so, which is never. */
    int fd = eventfd(0, EFD_CLOEXEC);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(leat_read_batch(view, ids, 2, 0, &held[i], &err), 0);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(leat_batch_release_after(held[i], &FD_EVENT(fd), &err), 0);
    hook_left = 1;
    assert_int_equal(leat_read_batch(view, ids, 2, 0, &batch, &err), LEAT_CANCELED);
    close(fd);
    leat_view_close(view);
    close_set(&x);

    /* A node that is silent; and a hook that calls back in. */
    open_hooked(&x, (struct fake_options){.remote_odd = true});
    uint64_t far = FAKE_REGION_BYTES / 60 + 1;
    x.daemon->hold_broker = true;
    hook_left = 1;
    assert_int_equal(leat_read(x.ws, far, 0, buf, 60, 0, NULL, &err), LEAT_CANCELED);
    hook_left = 1;
    hook_ws = x.ws;
    x.client->interrupt = hook_calls_back;
    x.client->interrupt_user = buf;
    hook_left = 0;
    assert_int_equal(leat_read(x.ws, far, 0, buf, 60, 0, NULL, &err), LEAT_CANCELED);
    x.client->interrupt = NULL;
    x.daemon->hold_broker = false;
    assert_int_equal(leat_read(x.ws, far, 0, buf, 60, 0, NULL, &err), 0);
    close_set(&x);
}

/* An iterator that waits for a slot keeps nobody else waiting, with or without a deadline. */
static void test_iterator_waits_alone(void **state)
{
    struct fixture x;
    struct leat_iter *it;
    struct leat_batch *held[2], *batch;
    const uint64_t ids[] = {5, 6};
    open_set(&x, (struct fake_options){0});
    struct leat_view *view = load(x.ws, 4, 3);
    struct leat_iter_options o = {.size = sizeof(o)};
    assert_int_equal(leat_iterate(view, &o, &it, &err), 0);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(leat_next(it, 0, &held[i], &err), 0);
    usleep(50000); /* the third is read ahead, and the thread waits for a slot */
    assert_int_equal(leat_read_batch(view, ids, 2, UINT64_MAX, &batch, &err), LEAT_BUSY);
    for (unsigned i = 0; i < 2; i++)
        leat_batch_release(held[i]);
    assert_int_equal(leat_next(it, 0, &batch, &err), 0);
    check_batch(batch);
    leat_batch_release(batch);
    leat_iter_close(it);
    leat_view_close(view);
    close_set(&x);
}

/* Another thread that is at it for long does not move our deadline. */
static void *read_for_long(void *arg)
{
    struct fixture *x = arg;
    uint8_t buf[60];
    struct leat_error e;
    return (void *)(intptr_t)leat_read(x->ws, FAKE_REGION_BYTES / 60 + 1, 0, buf, 60, 0, NULL, &e);
}

static void test_turns(void **state)
{
    struct fixture x;
    pthread_t thread;
    uint8_t buf[60];
    void *rc;
    open_hooked(&x, (struct fake_options){.remote_odd = true});
    hook_left = 1 << 30;
    x.daemon->hold_broker = true;
    assert_int_equal(pthread_create(&thread, NULL, read_for_long, &x), 0);
    while (!x.daemon->brokers)
        usleep(1000);
    usleep(20000);
    assert_int_equal(leat_read(x.ws, FAKE_REGION_BYTES / 60 + 2, 0, buf, 60, 50 * NS_PER_MS, NULL, &err),
                     LEAT_TIMED_OUT);
    hook_left = 0;
    pthread_join(thread, &rc);
    assert_int_equal((int)(intptr_t)rc, LEAT_CANCELED);
    close_set(&x);
}

/* A checksum that does not match is no fault of the data when the sample has gone away meanwhile. */
static void test_moved(void **state)
{
    struct fixture x;
    open_set(&x, (struct fake_options){0});
    assert_int_equal(gather_mismatch(x.ws, 7, 0, &err), LEAT_CORRUPT);
    x.daemon->live_map[4096 + 7] = LIVE_LOST;
    assert_int_equal(gather_mismatch(x.ws, 7, 0, &err), GATHER_MOVED);
    fake_revoke(x.daemon, false);
    assert_int_equal(gather_mismatch(x.ws, 7, 0, &err), LEAT_STALE);
    close_set(&x);
}

/* --- other nodes --------------------------------------------------------------------------------------------------------------- */

/* The connection breaks in the middle: brokered anew, once; then the samples come by way of their source. */
static void test_node_dies(void **state)
{
    struct fixture x;
    struct leat_batch *batch;
    uint64_t ids[32];
    open_set(&x, (struct fake_options){.remote_odd = true});
    struct leat_view *view = load(x.ws, 32, 2);
    for (unsigned i = 0; i < 32; i++)
        ids[i] = i * 12;
    x.daemon->broker_fails = 1;
    assert_int_equal(leat_read_batch(view, ids, 32, 0, &batch, &err), 0);
    check_batch(batch);
    leat_batch_release(batch);
    assert_int_equal(x.daemon->brokers, 2);
    assert_int_equal(x.daemon->fetches, 0);
    net_server_revoke(x.daemon->server, &x.daemon->target); /* every data connection is closed */
    assert_int_equal(leat_read_batch(view, ids, 32, 0, &batch, &err), 0);
    check_batch(batch);
    leat_batch_release(batch);
    assert_int_equal(x.daemon->fetches, 0);
    net_server_revoke(x.daemon->server, &x.daemon->target);
    x.daemon->broker_fails = 100;
    int rc = leat_read_batch(view, ids, 32, 0, &batch, &err);
    if (rc)
        print_message("%s\n", err.message);
    assert_int_equal(rc, 0);
    check_batch(batch);
    leat_batch_release(batch);
    assert_true(x.daemon->fetches > 0);
    leat_view_close(view);
    close_set(&x);

    open_set(&x, (struct fake_options){.remote_odd = true, .pushed = true});
    view = load(x.ws, 32, 2);
    x.daemon->broker_fails = 100;
    assert_int_equal(leat_read_batch(view, ids, 32, 0, &batch, &err), LEAT_PEER_GONE);
    assert_non_null(strstr(err.message, "other:1"));
    leat_view_close(view);
    close_set(&x);
}

/* A peer frozen past the deadline: its slot is in quarantine, others go on, and nothing late lands in a slot in use. */
static void test_frozen_node(void **state)
{
    struct fixture x;
    struct leat_batch *batch, *kept[2];
    const uint64_t local[] = {0, 1, 2, 3}; /* of field data: region 0 */
    uint64_t far = UINT64_MAX;
    open_set(&x, (struct fake_options){.remote_odd = true});
    for (uint64_t i = 0; i < FAKE_SAMPLES && far == UINT64_MAX; i++)
        if (i * 60 / FAKE_REGION_BYTES == 1)
            far = i + 1;
    x.daemon->hold_broker = true;
    struct leat_view *view;
    const unsigned fields[] = {0};
    struct leat_view_options o = {
        .size = sizeof(o), .batch_size = 4, .slots = 2, .fields = fields, .nfields = 1};
    assert_int_equal(leat_load(x.ws, &o, &view, &err), 0);
    assert_int_equal(leat_read_batch(view, &far, 1, 50 * NS_PER_MS, &batch, &err), LEAT_TIMED_OUT);
    /* One slot is in quarantine; the other serves. */
    assert_int_equal(leat_read_batch(view, local, 4, 0, &kept[0], &err), 0);
    /* Now nothing but the quarantined one is left: the connection is torn down and the slot used. */
    assert_int_equal(leat_read_batch(view, local, 4, 0, &kept[1], &err), 0);
    assert_int_not_equal(leat_batch_slot(kept[0]), leat_batch_slot(kept[1]));
    /* The peer wakes up and sends what it owed; nobody may see it. */
    uint8_t late[256];
    memset(late, 0xee, sizeof(late));
    send(x.daemon->broker_peer, late, sizeof(late), MSG_NOSIGNAL | MSG_DONTWAIT);
    usleep(20000);
    for (unsigned b = 0; b < 2; b++) {
        const uint8_t *data = leat_batch_data(kept[b], 0, NULL);
        for (unsigned i = 0; i < 4; i++)
            assert_true(fake_matches(local[i], 0, data + i * 60, 60));
        leat_batch_release(kept[b]);
    }
    x.daemon->hold_broker = false;
    assert_int_equal(leat_read_batch(view, &far, 1, 0, &batch, &err), 0);
    assert_true(fake_matches(far, 0, leat_batch_data(batch, 0, NULL), 60));
    leat_batch_release(batch);
    leat_view_close(view);

    /* The same for a single read: nothing is outstanding when it returns. */
    x.daemon->hold_broker = true;
    uint8_t buf[60];
    assert_int_equal(leat_read(x.ws, far, 0, buf, 60, 50 * NS_PER_MS, NULL, &err), LEAT_TIMED_OUT);
    assert_int_equal(x.ws->rails->unquiesced, 0);
    x.daemon->hold_broker = false;
    assert_int_equal(leat_read(x.ws, far, 0, buf, 60, 0, NULL, &err), 0);
    close_set(&x);
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
    open_set(&x, (struct fake_options){.all_loading = true});
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, reader, x.ws), 0);
    for (unsigned i = 0; i < 4; i++) {
        void *errors;
        pthread_join(threads[i], &errors);
        assert_null(errors);
    }
    close_set(&x);
}

/* --- epochs ------------------------------------------------------------------------------------------------------------------------- */

static void test_iterate(void **state)
{
    struct fixture x;
    open_set(&x, (struct fake_options){0});
    static const unsigned worlds[] = {1, 3};
    for (unsigned w = 0; w < 2; w++)
        for (int keep = 0; keep < 2; keep++) {
            uint8_t seen[FAKE_SAMPLES] = {0};
            uint64_t total = 0, global = 32ull * worlds[w];
            for (unsigned rank = 0; rank < worlds[w]; rank++) {
                struct leat_view *view = load(x.ws, 32, 3);
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
                    check_batch(batch);
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
    close_set(&x);
}

static void test_iterate_errors(void **state)
{
    struct fixture x;
    struct leat_iter *it;
    struct leat_batch *batch, *held[3];
    open_set(&x, (struct fake_options){0});
    struct leat_view *view = load(x.ws, 10, 3);
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
    usleep(30000);
    uint64_t before = clock_now_ns();
    leat_iter_close(it);
    assert_true(clock_now_ns() - before < 10 * NS_PER_S); /* the call's own deadline is 20 s */
    leat_view_close(view);
    x.daemon->mute = false;
    close_set(&x);
}

static void test_push(void **state)
{
    struct fixture x;
    open_set(&x, (struct fake_options){.pushed = true, .remote_odd = true, .all_loading = true});
    assert_string_equal(strrchr(leat_ws_uri(x.ws), 0) - 4, "/set"); /* absolute */
    /* Wipe the pool, push it all back, and read it. */
    for (uint32_t r = 0; r < x.daemon->nregions; r++)
        memset(x.daemon->regions[r], 0, FAKE_REGION_BYTES);
    uint8_t *data = malloc(60 * FAKE_SAMPLES), *blob = malloc(6000 * FAKE_SAMPLES), *at = blob;
    uint32_t labels[FAKE_SAMPLES];
    uint64_t lengths[FAKE_SAMPLES];
    for (uint64_t i = 0; i < FAKE_SAMPLES; i++) {
        bool present;
        for (unsigned k = 0; k < 60; k++)
            data[i * 60 + k] = fake_byte(i, 0, k);
        uint64_t bytes = fake_bytes(i, 1, &present);
        lengths[i] = present ? bytes : 0;
        for (uint64_t k = 0; k < lengths[i]; k++)
            *at++ = fake_byte(i, 1, k);
        labels[i] = i % 3;
    }
    struct leat_push_field fields[] = {
        {.size = sizeof(fields[0]), .data = data, .bytes = 60 * FAKE_SAMPLES},
        {.size = sizeof(fields[0]),
         .data = blob,
         .bytes = (uint64_t)(at - blob),
         .lengths = lengths,
         .nlengths = FAKE_SAMPLES},
        {.size = sizeof(fields[0])},
    };
    int rc = leat_push(x.ws, 0, FAKE_SAMPLES, fields, 3, 0, &err);
    if (rc)
        print_message("%s\n", err.message);
    assert_int_equal(rc, 0);
    read_all(x.ws);
    assert_int_equal(leat_push(x.ws, FAKE_SAMPLES - 1, 2, fields, 3, 0, &err), LEAT_INVALID);
    assert_int_equal(leat_push(x.ws, 0, FAKE_SAMPLES, fields, 2, 0, &err), LEAT_INVALID);
    assert_int_equal(leat_push(x.ws, 0, FAKE_SAMPLES, NULL, 3, 0, &err), LEAT_INVALID);

    /* Each wrong in one thing, which the message names. */
    const struct push_slip {
        unsigned field;
        struct leat_push_field is;
        const char *says;
    } slips[] = {
        {0, {sizeof(fields[0]), data, 60 * FAKE_SAMPLES - 1, NULL, 0}, "were given"},
        {0, {sizeof(fields[0]), NULL, 60 * FAKE_SAMPLES, NULL, 0}, "NULL"},
        {0, {sizeof(fields[0]), data, 60 * FAKE_SAMPLES, lengths, FAKE_SAMPLES}, "no lengths"},
        {1, {sizeof(fields[0]), blob, fields[1].bytes, NULL, 0}, "as many lengths"},
        {1, {sizeof(fields[0]), blob, fields[1].bytes, lengths, FAKE_SAMPLES - 1}, "as many lengths"},
        {1, {sizeof(fields[0]), blob, fields[1].bytes + 1, lengths, FAKE_SAMPLES}, "were given"},
        {2, {sizeof(fields[0]), labels, sizeof(labels), NULL, 0}, "labels"},
        {2, {0, NULL, 0, NULL, 0}, "another size"},
    };
    for (unsigned i = 0; i < ARRAY_LEN(slips); i++) {
        struct leat_push_field slip[3] = {fields[0], fields[1], fields[2]};
        slip[slips[i].field] = slips[i].is;
        assert_int_equal(leat_push(x.ws, 0, FAKE_SAMPLES, slip, 3, 0, &err), LEAT_INVALID);
        assert_non_null(strstr(err.message, slips[i].says));
    }
    /* The same sum, shared out otherwise: nothing may land in another sample. */
    unsigned i = 0;
    while (lengths[i] == lengths[i + 1])
        i++;
    const uint64_t swapped = lengths[i];
    lengths[i] = lengths[i + 1];
    lengths[i + 1] = swapped;
    assert_int_equal(leat_push(x.ws, 0, FAKE_SAMPLES, fields, 3, 0, &err), LEAT_INVALID);
    assert_non_null(strstr(err.message, "its length was given as"));
    free(data);
    free(blob);
    close_set(&x);
}

static void test_create(void **state)
{
    struct fixture x;
    open_set(&x, (struct fake_options){0});
    const uint64_t shape[] = {28, 28}, lengths[] = {10, 20, 0}, huge[] = {1ull << 40, 1ull << 40};
    const char *const keys[] = {"a", "b", "c"};
    enum { SIZE = sizeof(struct leat_create_field) };
    const struct leat_create_field image = {
        .size = SIZE, .name = "image", .dtype = "|u1", .shape = shape, .ndim = 2};
    const struct leat_create_field text = {.size = SIZE, .name = "text", .lengths = lengths, .nlengths = 3};
    struct leat_create_field fields[2] = {image, text};
    struct leat_create_options o = {.size = sizeof(o), .fields = fields, .nfields = 1, .nsamples = 100};
    assert_int_equal(leat_create(x.client, "mine", &o, &err), 0);
    o = (struct leat_create_options){
        .size = sizeof(o), .fields = fields, .nfields = 2, .nsamples = 3, .keys = keys, .nkeys = 3};
    assert_int_equal(leat_create(x.client, "mine", &o, &err), 0);

    const struct leat_create_field bad[] = {
        {.size = SIZE, .name = "text"},
        {.size = SIZE, .name = "text", .lengths = lengths, .nlengths = 2},
        {.size = SIZE, .name = "text", .nlengths = 3},
        {.size = SIZE, .name = "", .lengths = lengths, .nlengths = 3},
        {.size = SIZE,
         .name = "image",
         .dtype = "|u1",
         .shape = shape,
         .ndim = 2,
         .lengths = lengths,
         .nlengths = 3},
        {.size = SIZE, .name = "image", .dtype = "|u1", .ndim = 2},
        {.size = SIZE, .name = "image", .dtype = "|u1", .shape = shape, .ndim = 9},
        {.size = SIZE, .name = "image", .dtype = "object"},
        {.size = SIZE, .name = "image", .dtype = "<f8", .shape = huge, .ndim = 2},
    };
    for (unsigned i = 0; i < ARRAY_LEN(bad); i++) {
        fields[1] = bad[i];
        assert_int_equal(leat_create(x.client, "mine", &o, &err), LEAT_INVALID);
    }
    fields[1] = text;
    o.nkeys = 2;
    assert_int_equal(leat_create(x.client, "mine", &o, &err), LEAT_INVALID);
    o.nkeys = 3;
    o.keys = NULL;
    assert_int_equal(leat_create(x.client, "mine", &o, &err), LEAT_INVALID);
    o.keys = (const char *const[]){"a", NULL, "c"};
    assert_int_equal(leat_create(x.client, "mine", &o, &err), LEAT_INVALID);
    o.keys = keys;
    o.flags = LEAT_OPEN_PUBLIC | 1u << 20;
    assert_int_equal(leat_create(x.client, "mine", &o, &err), LEAT_INVALID);
    o.flags = LEAT_OPEN_PUBLIC;
    assert_int_equal(leat_create(x.client, "mine", &o, &err), 0);
    close_set(&x);
}

static void test_share(void **state)
{
    for (uint64_t n = 0; n < 50; n++)
        for (unsigned world = 1; world < 9; world++) {
            uint64_t next = 0, first, end;
            for (unsigned r = 0; r < world; r++) {
                leat_share(n, r, world, &first, &end);
                assert_int_equal(first, next);
                assert_true(end - first == n / world || end - first == n / world + 1);
                next = end;
            }
            assert_int_equal(next, n);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_info),           cmocka_unit_test(test_shm),
        cmocka_unit_test(test_two_nodes),      cmocka_unit_test(test_waits_once_a_batch),
        cmocka_unit_test(test_streamed),       cmocka_unit_test(test_hold),
        cmocka_unit_test(test_arguments),      cmocka_unit_test(test_ring),
        cmocka_unit_test(test_corrupt),        cmocka_unit_test(test_revoked),
        cmocka_unit_test(test_daemon_dies),    cmocka_unit_test(test_deadline),
        cmocka_unit_test(test_slow_open),      cmocka_unit_test(test_version),
        cmocka_unit_test(test_nobody),         cmocka_unit_test(test_fork),
        cmocka_unit_test(test_node_dies),      cmocka_unit_test(test_frozen_node),
        cmocka_unit_test(test_threads),        cmocka_unit_test(test_iterate),
        cmocka_unit_test(test_iterate_errors), cmocka_unit_test(test_push),
        cmocka_unit_test(test_create),         cmocka_unit_test(test_share),
        cmocka_unit_test(test_paths),          cmocka_unit_test(test_interrupt),
        cmocka_unit_test(test_moved),          cmocka_unit_test(test_iterator_waits_alone),
        cmocka_unit_test(test_turns),
    };
    return cmocka_run_group_tests_name("client_read", tests, NULL, NULL);
}
