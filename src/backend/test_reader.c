/* SPDX-License-Identifier: Apache-2.0 */
/* The reader: many threads that submit, two that read; deadlines, cancelled requests, no room; sessions that
 * share what a server says of its load. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include <pthread.h>

#include "backend/reader.h"
#include "base/clock.h"
#include "base/testing.h"
#include "base/testing_pieces.h"
#include "http/client/testing.h"
#include "store/testing.h"

#define OBJECT    (3 * MIB + 77)
#define SUBMITTER 6u
#define EACH      40u

static char object[OBJECT];
static atomic_bool answers; /* else requests are heard, and wait */
static _Atomic unsigned heard, refused;
static struct web_server server;
static char url[64], folder[300];

static void say_object(struct web_peer *p)
{
    char range[80], head[300];
    unsigned long long first = 0, last = OBJECT - 1;
    bool asks = strncmp(p->head, "HEAD", 4) == 0, ranged = web_header(p, "range", range, sizeof(range));
    if (ranged)
        sscanf(range, "bytes=%llu-%llu", &first, &last);
    snprintf(
        head, sizeof(head),
        "HTTP/1.1 %s\r\nContent-Length: %llu\r\nETag: \"one\"\r\nContent-Range: bytes %llu-%llu/%llu\r\n\r\n",
        ranged ? "206 Partial Content" : "200 OK", last - first + 1, first, last, (unsigned long long)OBJECT);
    web_say(p, head);
    if (!asks)
        web_say_bytes(p, object + first, last - first + 1);
}

static void talk(struct web_peer *p)
{
    char path[256];
    while (web_hear(p, path)) {
        heard++;
        test_wait_until(atomic_load(&answers));
        if (strstr(path, "missing"))
            web_say(p, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
        else
            say_object(p);
    }
}

/* The first is to come back in a minute; those after it are as talk()'s. */
static void talk_busy(struct web_peer *p)
{
    char path[256];
    while (web_hear(p, path)) {
        if (refused++ == 0) {
            web_say(p, "HTTP/1.1 503 Slow Down\r\nRetry-After: 60\r\nContent-Length: 0\r\n\r\n");
            continue;
        }
        heard++;
        test_wait_until(atomic_load(&answers));
        say_object(p);
    }
}

static struct reader *reader_of(struct reader_config config)
{
    struct reader *r = NULL;
    struct leat_error err = {0};
    if (!config.session.folder) {
        config.session.endpoint = url;
        config.session.region = "us-east-1";
        config.session.anonymous = config.session.given = true;
        config.session.connections = 4;
    }
    if (reader_new(&config, &r, &err) < 0)
        fail_msg("%s", err.message);
    return r;
}

static void serve(void (*how)(struct web_peer *p), bool answer)
{
    heard = refused = 0;
    atomic_store(&answers, answer);
    web_start(&server, how, NULL);
    snprintf(url, sizeof(url), "http://127.0.0.1:%u", server.origin.port);
}

static void serve_end(void)
{
    atomic_store(&answers, true);
    web_stop(&server);
}

struct asked {
    struct reader_request rq;
    _Atomic unsigned ended;
    int rc;
    char message[600];
};

static _Atomic unsigned ended;

static void done(struct reader_request *rq, int rc, const struct leat_error *err)
{
    struct asked *a = container_of(rq, struct asked, rq);
    a->rc = rc;
    snprintf(a->message, sizeof(a->message), "%s", rc < 0 ? err->message : "");
    a->ended++;
    ended++;
}

static struct asked *ask_read(struct asked *a, struct reader_file *f, uint64_t offset, uint64_t bytes,
                              void *dst)
{
    *a = (struct asked){
        .rq = {.file = f, .read = {.offset = offset, .bytes = bytes, .dst = dst}, .done = done}};
    return a;
}

/* --- many threads --------------------------------------------------------------------------------------------------------- */

static struct reader *shared;
static const char *where; /* of its objects: "s3://bucket" or a folder */

static void *submitter(void *arg)
{
    uint64_t seed = (uint64_t)(uintptr_t)arg;
    char uri[400], missing[400];
    struct reader_file *f;
    struct backend_stat stat;
    snprintf(uri, sizeof(uri), "%s/key", where);
    snprintf(missing, sizeof(missing), "%s/missing", where);
    for (unsigned i = 0; i < EACH; i++) {
        struct leat_error err;
        uint64_t offset = rng_below(&seed, OBJECT), bytes = 1 + rng_below(&seed, OBJECT - offset);
        struct test_pieces t;
        test_pieces_make(&t, bytes, 1 + bytes / (1 + i % 9), seed);
        if (reader_open(shared, i % 8 ? uri : missing, NULL, i % 8 ? OBJECT : 0, false, &f) < 0)
            abort();
        struct reader_request read = {
            .file = f, .read = {.offset = offset, .bytes = bytes, .pieces = t.iov, .npieces = t.n}};
        int rc = reader_run(shared, &read, &err);
        if (rc != (i % 8 ? 0 : LEAT_NOT_FOUND))
            abort();
        if (rc == 0)
            test_pieces_check(&t, object + offset);
        reader_close(f);
        test_pieces_free(&t);
        struct reader_request op = {
            .op = {.kind = BACKEND_STAT, .uri = i % 5 ? uri : missing, .stat = &stat}};
        rc = reader_run(shared, &op, &err);
        if (rc != (i % 5 ? 0 : LEAT_NOT_FOUND) || (rc == 0 && stat.bytes != OBJECT))
            abort();
    }
    return NULL;
}

static void run_many(const struct reader_config *config)
{
    pthread_t threads[SUBMITTER];
    shared = reader_of(*config);
    for (uintptr_t i = 0; i < SUBMITTER; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, submitter, (void *)(i + 1)), 0);
    for (unsigned i = 0; i < SUBMITTER; i++)
        pthread_join(threads[i], NULL);
    struct backend_stats stats;
    reader_stats(shared, &stats);
    assert_true(stats.requests > SUBMITTER * EACH);
    reader_free(shared);
}

static void test_many(void **state)
{
    (void)state;
    serve(talk, true);
    where = "s3://bucket";
    run_many(&(struct reader_config){.threads = 2, .depth = 3, .queue = 4, .queue_bytes = 2 * MIB});
    serve_end();
}

static void test_folder(void **state)
{
    char path[400], top[256];
    (void)state;
    testing_mkdir(top);
    snprintf(path, sizeof(path), "%s/key", top);
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    assert_int_equal(fwrite(object, 1, OBJECT, out), OBJECT);
    fclose(out);
    snprintf(folder, sizeof(folder), "file://%s", top);
    where = folder;
    run_many(&(struct reader_config){.session.folder = folder, .threads = 2});
    testing_rmdir(top);
}

/* --- ends ----------------------------------------------------------------------------------------------------------------- */

static void wait_ended(unsigned n)
{
    test_wait_until(ended >= n);
    assert_int_equal(ended, n);
}

/* Queued or under way: nothing comes after a deadline, nor after reader_cancel has returned. */
static void test_deadline_and_cancel(void **state)
{
    enum { N = 24 };
    static struct asked a[N];
    static char dst[N][64 * KIB], untouched[64 * KIB];
    struct reader_file *f;
    (void)state;
    serve(talk, false);
    struct reader *r = reader_of((struct reader_config){.depth = 16});
    assert_int_equal(reader_open(r, "s3://bucket/key", NULL, OBJECT, false, &f), 0);
    ended = 0;
    memset(dst, 0, sizeof(dst));
    for (unsigned i = 0; i < N; i++) {
        ask_read(&a[i], f, i * 1000, 64 * KIB, dst[i]);
        a[i].rq.deadline_ns = i % 3 == 1 ? clock_now_ns() + 20 * NS_PER_MS : 0;
        assert_int_equal(reader_submit(r, &a[i].rq, false), 0);
    }
    wait_ended(N / 3);
    test_wait_until(heard > 0);
    for (unsigned i = 0; i < N; i += 3)
        assert_true(reader_cancel(r, &a[i].rq));
    assert_false(reader_cancel(r, &a[1].rq)); /* it is over */
    atomic_store(&answers, true);
    wait_ended(2 * N / 3);
    for (unsigned i = 0; i < N; i++) {
        assert_int_equal(a[i].ended, i % 3 != 0);
        assert_int_equal(a[i].rc, i % 3 == 1 ? LEAT_TIMED_OUT : 0);
        assert_memory_equal(dst[i], i % 3 == 2 ? object + i * 1000 : untouched, 64 * KIB);
    }
    assert_non_null(strstr(a[1].message, "s3://bucket/key"));
    reader_close(f);
    reader_free(r);
    serve_end();
}

static void test_room(void **state)
{
    static struct asked a[6];
    static char dst[6][100];
    struct reader_file *f;
    (void)state;
    serve(talk, false);
    struct reader *r = reader_of((struct reader_config){.queue = 4, .queue_bytes = 250});
    assert_int_equal(reader_open(r, "s3://bucket/key", NULL, 0, false, &f), 0);
    ended = 0;
    assert_int_equal(reader_submit(r, &ask_read(&a[0], f, 0, 100, dst[0])->rq, false), 0);
    assert_int_equal(reader_submit(r, &ask_read(&a[1], f, 100, 100, dst[1])->rq, false), 0);
    assert_int_equal(reader_submit(r, &ask_read(&a[2], f, 200, 100, dst[2])->rq, false),
                     LEAT_BUSY); /* bytes */
    assert_int_equal(reader_submit(r, &ask_read(&a[2], f, 200, 50, dst[2])->rq, false), 0);
    struct backend_stat stat;
    a[3] = (struct asked){
        .rq = {.op = {.kind = BACKEND_STAT, .uri = "s3://bucket/key", .stat = &stat}, .done = done}};
    assert_int_equal(reader_submit(r, &a[3].rq, false), 0);
    a[4] = (struct asked){.rq = {.op = {.kind = BACKEND_DELETE, .uri = "s3://bucket/key"}, .done = done}};
    assert_int_equal(reader_submit(r, &a[4].rq, false), LEAT_BUSY); /* requests */
    atomic_store(&answers, true);
    assert_int_equal(reader_submit(r, &ask_read(&a[5], f, 0, 100, dst[5])->rq, true), 0);
    wait_ended(5);
    for (unsigned i = 0; i < 6; i++)
        assert_true(i == 4 || (a[i].ended == 1 && a[i].rc == 0));
    assert_memory_equal(dst[1], object + 100, 100);
    reader_close(f);
    reader_free(r);
    serve_end();
}

static _Atomic unsigned left;

/* Submits the next one, until there are none left, and closes the file. */
static void done_more(struct reader_request *rq, int rc, const struct leat_error *err)
{
    struct asked *a = container_of(rq, struct asked, rq);
    (void)err;
    if (rc < 0)
        abort();
    if (--left)
        rc = reader_submit(rq->user, rq, false);
    else
        reader_close(rq->file);
    if (rc < 0)
        abort();
    a->ended += left == 0;
}

static void test_from_done(void **state)
{
    static struct asked a;
    static char dst[100];
    struct reader_file *f;
    (void)state;
    serve(talk, true);
    struct reader *r = reader_of((struct reader_config){.queue = 1});
    assert_int_equal(reader_open(r, "s3://bucket/key", NULL, OBJECT, true, &f), 0);
    ask_read(&a, f, 5, 100, dst);
    a.rq.done = done_more;
    a.rq.user = r;
    left = 100;
    assert_int_equal(reader_submit(r, &a.rq, false), 0);
    test_wait_until(a.ended);
    assert_memory_equal(dst, object + 5, 100);
    reader_free(r);
    serve_end();
}

/* The reader ends, or its user interrupts it: so does all that it has. */
static void test_ends(void **state)
{
    enum { N = 30 };
    static struct asked a[N];
    static char dst[N][1000];
    (void)state;
    for (unsigned round = 0; round < 2; round++) {
        atomic_bool cancelled = false;
        struct reader_file *f;
        struct backend_stat stat;
        serve(talk, false);
        struct reader *r = reader_of((struct reader_config){.depth = 10, .session.cancelled = &cancelled});
        assert_int_equal(reader_open(r, "s3://bucket/key", NULL, OBJECT, false, &f), 0);
        ended = 0;
        for (unsigned i = 0; i < N; i++) {
            ask_read(&a[i], f, i, 1000, dst[i]);
            if (i % 4 == 0)
                a[i].rq = (struct reader_request){
                    .op = {.kind = BACKEND_STAT, .uri = "s3://bucket/key", .stat = &stat}, .done = done};
            assert_int_equal(reader_submit(r, &a[i].rq, false), 0);
        }
        test_wait_until(heard > 0);
        if (round)
            atomic_store(&cancelled, true);
        else
            reader_free(r);
        wait_ended(N);
        for (unsigned i = 0; i < N; i++)
            assert_true(a[i].rc == -ECANCELED && a[i].message[0]);
        if (round) {
            reader_close(f);
            reader_free(r);
        }
        serve_end();
    }
}

/* What one session learns of the server's load holds for another of the same identity, and for no other; of one
 * that is to pause, one block is under way all the same. */
static void test_load_is_shared(void **state)
{
    enum { EACH_OF = 3 };
    static const char *const names[] = {"one", "one", "other"};
    struct reader *r[3];
    struct reader_file *f[3];
    static struct asked a[3][EACH_OF];
    static char dst[3][EACH_OF][1000];
    (void)state;
    serve(talk_busy, false);
    ended = 0;
    for (unsigned i = 0; i < 3; i++) {
        r[i] = reader_of((struct reader_config){.session.identity = names[i]});
        assert_int_equal(reader_open(r[i], "s3://bucket/key", NULL, OBJECT, false, &f[i]), 0);
        for (unsigned k = 0; k < (i ? EACH_OF : 1); k++)
            assert_int_equal(
                reader_submit(r[i], &ask_read(&a[i][k], f[i], 2000 * k, 1000, dst[i][k])->rq, false), 0);
        if (i == 0)
            test_wait_until(a[0][0].ended); /* it is not asked again: a minute is more than its time */
        else if (i == 1)
            test_wait_until(heard == 1);
        else
            test_wait_until(heard == 1 + EACH_OF);
    }
    assert_true(a[0][0].rc < 0);
    atomic_store(&answers, true);
    wait_ended(1 + 2 * EACH_OF);
    for (unsigned i = 1; i < 3; i++)
        for (unsigned k = 0; k < EACH_OF; k++)
            assert_true(a[i][k].rc == 0 && memcmp(dst[i][k], object + 2000 * k, 1000) == 0);
    for (unsigned i = 0; i < 3; i++)
        reader_free(r[i]); /* with their files */
    serve_end();
}

/* What stands behind the ? of an address, or before its @, may be secret: no message has it. */
static void test_secrets(void **state)
{
    static struct asked a[4];
    static char dst[4][100];
    char uri[200], user[200];
    struct reader_file *f, *refused_file;
    (void)state;
    serve(talk, false);
    snprintf(uri, sizeof(uri), "%s/key?sig=SECRET", url);
    snprintf(user, sizeof(user), "http://SECRET:SECRET@%s/key?sig=SECRET", url + strlen("http://"));
    struct reader *r = reader_of((struct reader_config){.depth = 10});
    assert_int_equal(reader_open(r, uri, NULL, OBJECT, false, &f), 0);
    assert_int_equal(reader_open(r, user, NULL, OBJECT, false, &refused_file), 0);
    ended = 0;
    ask_read(&a[0], f, 0, 100, dst[0]);
    a[0].rq.deadline_ns = clock_now_ns() + 30 * NS_PER_MS;
    ask_read(&a[1], f, 0, 100, dst[1]);
    ask_read(&a[2], refused_file, 0, 100, dst[2]);
    a[3] = (struct asked){.rq = {.op = {.kind = BACKEND_DELETE, .uri = uri}, .done = done}};
    for (unsigned i = 0; i < ARRAY_LEN(a); i++)
        assert_int_equal(reader_submit(r, &a[i].rq, false), 0);
    wait_ended(3);
    assert_int_equal(a[1].ended, 0);
    reader_free(r);
    static const int due[] = {LEAT_TIMED_OUT, -ECANCELED, LEAT_INVALID, LEAT_UNSUPPORTED};
    for (unsigned i = 0; i < ARRAY_LEN(a); i++) {
        assert_int_equal(a[i].rc, due[i]);
        assert_non_null(strstr(a[i].message, "/key?..."));
        assert_null(strstr(a[i].message, "SECRET"));
    }
    serve_end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many),           cmocka_unit_test(test_folder),
        cmocka_unit_test(test_room),           cmocka_unit_test(test_deadline_and_cancel),
        cmocka_unit_test(test_from_done),      cmocka_unit_test(test_ends),
        cmocka_unit_test(test_load_is_shared), cmocka_unit_test(test_secrets),
    };
    for (size_t i = 0; i < OBJECT; i++)
        object[i] = (char)(i * 2654435761u >> 13);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
