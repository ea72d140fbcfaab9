/* SPDX-License-Identifier: Apache-2.0 */
/* stat, delete and copy, many at a time, against a scripted server: each ends once, with its own result;
 * cancelled; out of time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "backend/s3/throttle.h"
#include "http/client/testing.h"
#include "base/clock.h"
#include "base/testing.h"

#define OPS  64u
#define SIZE 1000u

static _Atomic unsigned heard, retried[OPS], begun, aborted, completed, parts;
static atomic_bool answers, hangs; /* requests are answered; parts of copies, and deletes, are not */
static uint64_t timeout_ns;        /* of the next session; 0: the default */
static const char *identity;       /* of the next session */
static struct web_server server;

static unsigned number_of(const char *path)
{
    unsigned k = 0;
    assert_int_equal(sscanf(path, "/bucket/k%u", &k), 1);
    return k;
}

/* Keys k0 ...: every fourth is missing, every fourth comes with the second try, every fourth may not be asked
 * for. */
static void talk_keys(struct web_peer *p)
{
    char path[256], head[200];
    while (web_hear(p, path)) {
        unsigned k = number_of(path);
        heard++;
        test_wait_until(atomic_load(&answers));
        const char *status = k % 4 == 1                                            ? "404 Not Found"
                             : k % 4 == 2 && atomic_fetch_add(&retried[k], 1) == 0 ? "500 Oops"
                             : k % 4 == 3                                          ? "403 Forbidden"
                                                                                   : "200 OK";
        bool good = *status == '2', asks = strncmp(p->head, "HEAD", 4) == 0;
        snprintf(head, sizeof(head), "HTTP/1.1 %s\r\nContent-Length: %u\r\nETag: \"e%u\"\r\n\r\n", status,
                 good && asks ? SIZE + k : 0, k);
        web_say(p, head);
    }
}

static void say_xml(struct web_peer *p, const char *status, const char *body)
{
    char text[1000];
    snprintf(text, sizeof(text), "HTTP/1.1 %s\r\nContent-Length: %zu\r\n\r\n%s", status, strlen(body), body);
    web_say(p, text);
}

/* Copies: in one request, or in parts, the third of which may be refused or never answered. */
static void talk_copies(struct web_peer *p)
{
    char path[256];
    while (web_hear(p, path)) {
        heard++;
        if (strncmp(p->head, "POST", 4) == 0 && strstr(path, "uploads=")) {
            begun++;
            say_xml(p, "200 OK",
                    "<InitiateMultipartUploadResult><UploadId>id</UploadId></InitiateMultipartUploadResult>");
        } else if (strncmp(p->head, "POST", 4) == 0) {
            completed++;
            say_xml(p, "200 OK",
                    "<CompleteMultipartUploadResult><ETag>\"all\"</ETag></CompleteMultipartUploadResult>");
        } else if (strncmp(p->head, "DELETE", 6) == 0) {
            aborted += strstr(path, "uploadId=id") != NULL;
            if (strstr(path, "stuck"))
                continue;
            web_say(p, "HTTP/1.1 204 No Content\r\n\r\n");
        } else if (strstr(path, "partNumber=3") && strstr(path, "refused")) {
            say_xml(p, "403 Forbidden", "<Error><Code>AccessDenied</Code><Message>no</Message></Error>");
        } else if (strstr(path, "partNumber=") && atomic_load(&hangs)) {
            parts++;
        } else {
            parts += strstr(path, "partNumber=") != NULL;
            say_xml(p, "200 OK", "<CopyPartResult><ETag>\"one\"</ETag></CopyPartResult>");
        }
    }
}

static struct backend *begin(void (*talk)(struct web_peer *p), unsigned connections)
{
    static char url[64];
    struct leat_error err = {0};
    struct backend *b = NULL;
    heard = begun = aborted = completed = parts = 0;
    memset(retried, 0, sizeof(retried));
    atomic_store(&answers, false);
    atomic_store(&hangs, false);
    web_start(&server, talk, NULL);
    snprintf(url, sizeof(url), "http://127.0.0.1:%u", server.origin.port);
    struct backend_config config = {.connections = connections,
                                    .endpoint = url,
                                    .region = "us-east-1",
                                    .anonymous = true,
                                    .given = true,
                                    .timeout_ns = timeout_ns,
                                    .identity = identity};
    if (backend_new(&config, &b, &err) < 0)
        fail_msg("%s", err.message);
    return b;
}

static void end(struct backend *b)
{
    backend_free(b);
    atomic_store(&answers, true);
    web_stop(&server);
}

struct asked {
    struct backend_op op;
    struct backend_stat stat;
    char uri[40];
    unsigned ended;
    int rc;
    char message[600];
};

static struct asked asked[OPS];
static unsigned ended;

static void done(struct backend_op *op, int rc, const struct leat_error *err)
{
    struct asked *a = container_of(op, struct asked, op);
    a->rc = rc;
    a->ended++;
    snprintf(a->message, sizeof(a->message), "%s", rc < 0 ? err->message : "");
    ended++;
}

static void ask(struct backend *b, unsigned k, enum backend_op_kind kind, const char *uri)
{
    struct asked *a = &asked[k];
    *a = (struct asked){0};
    if (uri)
        snprintf(a->uri, sizeof(a->uri), "%s", uri);
    else
        snprintf(a->uri, sizeof(a->uri), "s3://bucket/k%u", k);
    a->op = (struct backend_op){.kind = kind, .uri = a->uri, .stat = &a->stat, .done = done};
    backend_op_submit(b, &a->op);
    assert_int_equal(a->ended, 0);
}

static void turn(struct backend *b)
{
    assert_true(backend_wait(b, 1, 20) >= 0);
}

static void check(unsigned k, bool stat)
{
    static const int due[] = {0, LEAT_NOT_FOUND, 0, LEAT_DENIED};
    char etag[16];
    const struct asked *a = &asked[k];
    snprintf(etag, sizeof(etag), "\"e%u\"", k);
    assert_int_equal(a->ended, 1);
    assert_int_equal(a->rc, due[k % 4]);
    if (a->rc < 0)
        assert_non_null(strstr(a->message, a->uri));
    else if (stat)
        assert_true(a->stat.bytes == SIZE + k && strcmp(a->stat.etag, etag) == 0);
}

/* All of them are under way before one is answered. */
static void test_many(void **state)
{
    (void)state;
    for (unsigned round = 0; round < 2; round++) {
        struct backend *b = begin(talk_keys, OPS);
        ended = 0;
        for (unsigned k = 0; k < OPS; k++)
            ask(b, k, round ? BACKEND_DELETE : BACKEND_STAT, NULL);
        test_run_until(heard == OPS, turn(b));
        assert_int_equal(ended, 0);
        atomic_store(&answers, true);
        test_run_until(ended == OPS, turn(b));
        for (unsigned k = 0; k < OPS; k++)
            check(k, round == 0);
        assert_int_equal(backend_wait(b, 1, -1), 0); /* none is left */
        end(b);
    }
}

/* What cannot be begun ends as all do, and among the others. */
static void test_wrong(void **state)
{
    (void)state;
    struct backend *b = begin(talk_keys, 4);
    atomic_store(&answers, true);
    ended = 0;
    ask(b, 0, BACKEND_STAT, "s3://bucket/");
    ask(b, 1, BACKEND_DELETE, "http://127.0.0.1/x");
    ask(b, 2, BACKEND_STAT, NULL);
    ask(b, 3, BACKEND_STAT, "gopher://x");
    ask(b, 4, BACKEND_STAT, "s3://bucket/");
    backend_op_cancel(b, &asked[4].op);
    test_run_until(ended == 4, turn(b));
    assert_int_equal(asked[0].rc, LEAT_INVALID);
    assert_int_equal(asked[1].rc, LEAT_UNSUPPORTED);
    check(2, true);
    assert_int_equal(asked[3].rc, LEAT_INVALID);
    assert_int_equal(asked[4].ended, 0);
    end(b);
}

static void done_cancels(struct backend_op *op, int rc, const struct leat_error *err)
{
    struct asked *a = container_of(op, struct asked, op);
    done(op, rc, err);
    for (struct asked *other = a + 1; other < &asked[8]; other++)
        if (!other->ended && other != &asked[6])
            backend_op_cancel(op->user, &other->op);
    op->user = NULL;
}

/* done() cancels all but one of those that have ended with it, the last among them. */
static void test_cancel_from_done(void **state)
{
    (void)state;
    struct backend *b = begin(talk_keys, 4);
    ended = 0;
    for (unsigned k = 0; k < 8; k++)
        ask(b, k, BACKEND_STAT, "s3://bucket/");
    asked[0].op.done = done_cancels;
    asked[0].op.user = b;
    test_run_until(ended == 2, turn(b));
    for (unsigned k = 0; k < 8; k++)
        assert_int_equal(asked[k].ended, k == 0 || k == 6);
    assert_int_equal(backend_wait(b, 1, -1), 0); /* none is left */
    end(b);
}

/* --- what the server takes -------------------------------------------------------------------------------- */

static struct throttle *throttle_of_server(void)
{
    struct throttle *t;
    char name[200];
    snprintf(name, sizeof(name), "http://127.0.0.1:%u us-east-1 me", server.origin.port);
    assert_int_equal(throttle_get(name, &t), 0);
    return t;
}

/* Each good answer says that the server takes more, of whatever request. */
static void test_good_answers(void **state)
{
    (void)state;
    identity = "me";
    struct backend *b = begin(talk_keys, 4);
    struct throttle *t = throttle_of_server();
    atomic_store(&answers, true);
    throttle_busy(t, 100, 0);
    double before = throttle_limit(t, 100);
    assert_true(before < 100);
    ended = 0;
    ask(b, 0, BACKEND_STAT, NULL);
    ask(b, 1, BACKEND_STAT, NULL); /* missing: no sign of either */
    test_run_until(ended == 2, turn(b));
    assert_true(throttle_limit(t, 100) > before);
    throttle_unref(t);
    end(b);
    identity = NULL;
}

static struct backend *reading;
static struct backend_read reads[2];
static unsigned read_ends;

static void read_done(struct backend_read *read, int rc, const struct leat_error *err)
{
    (void)err;
    assert_true(rc < 0); /* no such object */
    read_ends++;
    if (read == &reads[0])
        ask(reading, 9, BACKEND_STAT, "s3://bucket/");
}

/* A pause of the server's is for what is sent: what failed here ends all the same. */
static void test_pause(void **state)
{
    (void)state;
    static char dst[2][100];
    struct leat_error err;
    struct backend_file *f;
    identity = "me";
    struct backend *b = begin(talk_keys, 4);
    struct throttle *t = throttle_of_server();
    assert_int_equal(backend_open(b, "s3://bucket/k1", NULL, 0, &f, &err), 0);
    throttle_busy(t, 100, NS_PER_S * 60);
    reading = b;
    ended = read_ends = 0;
    for (unsigned i = 0; i < 2; i++) {
        reads[i] = (struct backend_read){
            .file = f, .offset = 200 * i, .bytes = 100, .dst = dst[i], .done = read_done};
        backend_submit(b, &reads[i]);
    }
    test_run_until(heard == 1, turn(b)); /* one is sent all the same */
    assert_true(throttle_until(t) > 0);
    atomic_store(&answers, true);
    test_run_until(ended == 1, turn(b));
    assert_true(throttle_until(t) > 0);
    assert_int_equal(asked[9].rc, LEAT_INVALID);
    test_run_until(read_ends == 2, turn(b));
    throttle_unref(t);
    backend_close(f);
    end(b);
    identity = NULL;
}

static void test_cancel(void **state)
{
    (void)state;
    struct backend *b = begin(talk_keys, 8);
    ended = 0;
    for (unsigned k = 0; k < OPS; k++)
        ask(b, k, BACKEND_STAT, NULL);
    test_run_until(heard == 8, turn(b));
    for (unsigned k = 0; k < OPS; k += 2) { /* those under way as well as those that wait */
        backend_op_cancel(b, &asked[k].op);
        memset(&asked[k].op, 0xff, sizeof(asked[k].op));
    }
    atomic_store(&answers, true);
    test_run_until(ended == OPS / 2, turn(b));
    for (unsigned k = 0; k < OPS; k++) {
        if (k % 2)
            check(k, true);
        else
            assert_int_equal(asked[k].ended, 0);
    }
    end(b);
}

static void test_deadline(void **state)
{
    (void)state;
    struct backend *b = begin(talk_keys, 4);
    ended = 0;
    for (unsigned k = 0; k < 12; k++) { /* four are asked for, the others wait for a connection */
        ask(b, k, BACKEND_STAT, NULL);
        backend_op_cancel(b, &asked[k].op);
        asked[k].op.deadline_ns = k % 3 ? clock_now_ns() + 30 * NS_PER_MS : 0;
        backend_op_submit(b, &asked[k].op);
    }
    test_run_until(ended == 8, turn(b));
    for (unsigned k = 0; k < 12; k++) {
        assert_int_equal(asked[k].ended, k % 3 != 0);
        if (k % 3)
            assert_int_equal(asked[k].rc, LEAT_TIMED_OUT);
    }
    atomic_store(&answers, true);
    test_run_until(ended == 12, turn(b));
    for (unsigned k = 0; k < 12; k += 3)
        check(k, true);
    end(b);
}

static void test_session_ends(void **state)
{
    (void)state;
    struct backend *b = begin(talk_keys, 4);
    ended = 0;
    for (unsigned k = 0; k < 20; k++)
        ask(b, k, BACKEND_STAT, k == 7 ? "s3://bucket/" : NULL);
    test_run_until(heard > 0, turn(b));
    end(b);
    assert_int_equal(ended, 20);
    for (unsigned k = 0; k < 20; k++)
        assert_int_equal(asked[k].rc, k == 7 ? LEAT_INVALID : -ECANCELED);
}

/* --- copies ------------------------------------------------------------------------------------------------------------- */

static void copy(struct backend *b, unsigned k, const char *to, uint64_t bytes)
{
    struct asked *a = &asked[k];
    *a = (struct asked){0};
    a->op = (struct backend_op){.kind = BACKEND_COPY,
                                .uri = to,
                                .from = "s3://bucket/from",
                                .from_etag = "\"e\"",
                                .bytes = bytes,
                                .done = done};
    snprintf(a->uri, sizeof(a->uri), "%s", to);
    backend_op_submit(b, &a->op);
}

static void test_copies(void **state)
{
    (void)state;
    struct backend *b = begin(talk_copies, 16);
    ended = 0;
    copy(b, 0, "s3://bucket/small", 100);
    copy(b, 1, "s3://bucket/large", 200 * MIB);
    copy(b, 2, "s3://bucket/refused", 200 * MIB);
    copy(b, 3, "s3://bucket/large2", 300 * MIB);
    test_run_until(ended == 4, turn(b));
    assert_true(asked[0].rc == 0 && asked[1].rc == 0 && asked[3].rc == 0);
    assert_int_equal(asked[2].rc, LEAT_DENIED);
    assert_non_null(strstr(asked[2].message, "s3://bucket/refused"));
    assert_true(begun == 3 && completed == 2 && aborted == 1);
    struct leat_error err;
    assert_int_equal(backend_copy(b, "s3://bucket/from", NULL, 200 * MIB, "s3://bucket/again", &err), 0);
    assert_int_equal(backend_copy(b, "http://127.0.0.1/x", NULL, 1, "s3://bucket/again", &err),
                     LEAT_UNSUPPORTED);
    assert_int_equal(backend_copy(b, "s3://bucket/from", NULL, 200 * MIB, "s3://bucket/refused", &err),
                     LEAT_DENIED);
    assert_true(begun == 5 && completed == 3 && aborted == 2);
    end(b);
}

/* Cancelled, or out of time, with parts under way: they are taken away. */
static void test_copy_cancel(void **state)
{
    (void)state;
    struct backend *b = begin(talk_copies, 16);
    atomic_store(&hangs, true);
    ended = 0;
    copy(b, 0, "s3://bucket/large", 1024 * MIB);
    test_run_until(parts == 4, turn(b));
    backend_op_cancel(b, &asked[0].op);
    assert_true(ended == 0 && aborted == 1);
    copy(b, 0, "s3://bucket/large", 1024 * MIB);
    backend_op_cancel(b, &asked[0].op); /* its id is not known yet */
    asked[0].op.deadline_ns = clock_now_ns() + 300 * NS_PER_MS;
    backend_op_submit(b, &asked[0].op);
    test_run_until(ended == 1, turn(b));
    assert_int_equal(asked[0].rc, LEAT_TIMED_OUT);
    test_run_until(aborted == begun, turn(b));
    end(b);
}

/* The server does not answer that the parts are to go: it is not waited for as long as for others. */
static void test_copy_cancel_stuck(void **state)
{
    (void)state;
    timeout_ns = 3600 * NS_PER_S;
    struct backend *b = begin(talk_copies, 16);
    timeout_ns = 0;
    atomic_store(&hangs, true);
    ended = 0;
    copy(b, 0, "s3://bucket/stuck", 1024 * MIB);
    test_run_until(parts == 4, turn(b));
    backend_op_cancel(b, &asked[0].op);
    assert_true(ended == 0 && aborted >= 1);
    /* Out of time, its parts are being taken away when it is cancelled as well. */
    copy(b, 0, "s3://bucket/stuck", 1024 * MIB);
    backend_op_cancel(b, &asked[0].op);
    unsigned before = aborted;
    asked[0].op.deadline_ns = clock_now_ns() + 300 * NS_PER_MS;
    backend_op_submit(b, &asked[0].op);
    test_run_until(aborted > before, turn(b));
    backend_op_cancel(b, &asked[0].op);
    assert_int_equal(ended, 0);
    end(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_wrong),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_deadline),
        cmocka_unit_test(test_session_ends),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_copy_cancel),
        cmocka_unit_test(test_cancel_from_done),
        cmocka_unit_test(test_good_answers),
        cmocka_unit_test(test_pause),
        cmocka_unit_test(test_copy_cancel_stuck),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
