/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions against a scripted server: cancelled reads, buckets that move under many requests, clean ends.
 * Faults one by one: tests/test_s3_faults.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "http/client/testing.h"
#include "base/clock.h"
#include "base/testing.h"
#include "base/testing_pieces.h"

#define OBJECT (4 * MIB)

static char object[OBJECT];
static _Atomic unsigned refused, served;
static atomic_bool answers; /* of talk_late */

static void say_range(struct web_peer *p)
{
    char range[80], head[300];
    unsigned long long first = 0, last = OBJECT - 1;
    bool ranged = web_header(p, "range", range, sizeof(range));
    if (ranged)
        sscanf(range, "bytes=%llu-%llu", &first, &last);
    snprintf(
        head, sizeof(head),
        "HTTP/1.1 %s\r\nContent-Length: %llu\r\nETag: \"one\"\r\nContent-Range: bytes %llu-%llu/%llu\r\n\r\n",
        ranged ? "206 Partial Content" : "200 OK", last - first + 1, first, last, (unsigned long long)OBJECT);
    web_say(p, head);
    web_say_bytes(p, object + first, last - first + 1);
    served++;
}

static void talk_object(struct web_peer *p)
{
    char path[256];
    while (web_hear(p, path))
        say_range(p);
}

/* Reads on, and says nothing before it may. */
static void talk_late(struct web_peer *p)
{
    char path[256];
    while (web_hear(p, path)) {
        if (atomic_load(&answers))
            say_range(p);
    }
}

static const char *summed; /* talk_summed says this of all of the object */

/* As talk_object, with a checksum of the whole: by a HEAD, and beside all of it. */
static void talk_summed(struct web_peer *p)
{
    char path[256], range[80], head[300];
    while (web_hear(p, path)) {
        bool asks = strncmp(p->head, "HEAD", 4) == 0;
        if (!asks && web_header(p, "range", range, sizeof(range))) {
            say_range(p);
            continue;
        }
        snprintf(head, sizeof(head),
                 "HTTP/1.1 200 OK\r\nContent-Length: %llu\r\nETag: \"one\"\r\nx-amz-checksum-crc32c: "
                 "%s\r\n\r\n",
                 (unsigned long long)OBJECT, summed);
        web_say(p, head);
        if (!asks)
            web_say_bytes(p, object, OBJECT);
        served++;
    }
}

#define BUSY_READS 16u
static _Atomic uint64_t first_ns, last_ns; /* of those that are tried again */

/* Everybody is to come back in a second. */
static void talk_busy(struct web_peer *p)
{
    char path[256];
    while (web_hear(p, path)) {
        if (atomic_fetch_add(&refused, 1) < BUSY_READS) {
            web_say(p, "HTTP/1.1 503 Slow Down\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n");
            continue;
        }
        uint64_t now = clock_now_ns(), none = 0;
        atomic_compare_exchange_strong(&first_ns, &none, now);
        atomic_store(&last_ns, now);
        say_range(p);
    }
}

/* The bucket is in another region: requests signed for the first one are redirected there. */
static void talk_region(struct web_peer *p)
{
    char path[256], auth[600];
    while (web_hear(p, path)) {
        if (web_header(p, "authorization", auth, sizeof(auth)) && strstr(auth, "/eu-west-3/s3/")) {
            say_range(p);
            continue;
        }
        refused++;
        web_say(
            p,
            "HTTP/1.1 301 Moved Permanently\r\nx-amz-bucket-region: eu-west-3\r\nContent-Length: 0\r\n\r\n");
    }
}

/* Hears the head of a PUT, refuses it, and hangs up with most of the body unread. */
static void talk_refuse(struct web_peer *p)
{
    static const char body[] = "<Error><Code>QuotaExceeded</Code><Message>full</Message></Error>";
    char buf[2000], head[200];
    if (web_read(p, buf, sizeof(buf)) <= 0)
        return;
    snprintf(head, sizeof(head),
             "HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n%s", sizeof(body) - 1,
             body);
    web_say(p, head);
}

/* HEAD is refused, and a range of an object of unknown length is answered. */
static void talk_unknown(struct web_peer *p)
{
    char path[256];
    while (web_hear(p, path)) {
        refused += strncmp(p->head, "HEAD", 4) == 0;
        served += strncmp(p->head, "GET", 3) == 0;
        web_say(p, strncmp(p->head, "HEAD", 4) == 0
                       ? "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"
                       : "HTTP/1.1 206 Partial Content\r\nContent-Length: 1\r\nContent-Range: bytes "
                         "0-0/*\r\n\r\nx");
    }
}

static struct web_server server;

static uint64_t block_bytes; /* of the next session */
static unsigned tries;

static struct backend *begin(void (*talk)(struct web_peer *p), bool anonymous)
{
    static char url[64];
    struct leat_error err = {0};
    struct backend *b = NULL;
    refused = served = 0;
    atomic_store(&answers, false);
    web_start(&server, talk, NULL);
    snprintf(url, sizeof(url), "http://127.0.0.1:%u", server.origin.port);
    struct backend_config config = {.connections = 4,
                                    .block_bytes = block_bytes,
                                    .tries = tries,
                                    .endpoint = url,
                                    .region = "us-east-1",
                                    .anonymous = anonymous,
                                    .given = true};
    setenv("AWS_ACCESS_KEY_ID", "AK", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "SK", 1);
    if (backend_new(&config, &b, &err) < 0)
        fail_msg("%s", err.message);
    return b;
}

static void end(struct backend *b)
{
    backend_free(b);
    web_stop(&server);
}

static unsigned ended;
static int last_rc;

static void done(struct backend_read *read, int rc, const struct leat_error *err)
{
    (void)read;
    assert_true(rc == 0 || err->message[0]);
    last_rc = rc;
    ended++;
}

static void wait_for(struct backend *b, unsigned n)
{
    test_run_until(ended >= n, assert_true(backend_wait(b, 1, 100) >= 0));
    assert_int_equal(ended, n);
}

static void test_read(void **state)
{
    (void)state;
    struct backend *b = begin(talk_object, true);
    struct backend_file *f;
    static char dst[OBJECT];
    assert_int_equal(backend_open(b, "s3://bucket/key", NULL, OBJECT, &f, NULL), 0);
    assert_int_equal(backend_pread(b, f, dst, OBJECT, 0, NULL), OBJECT);
    assert_memory_equal(dst, object, OBJECT);
    assert_int_equal(backend_pread(b, f, dst, 1000, OBJECT - 10, NULL), 10);
    assert_memory_equal(dst, object + OBJECT - 10, 10);
    assert_int_equal(backend_pread(b, f, dst, 1000, OBJECT, NULL), 0);
    backend_close(f);
    end(b);
}

/* Of all of the object or of most of it, to pieces that begin and end in the middle of blocks. */
static void read_pieces(struct backend *b, uint64_t offset, uint64_t most, int rc)
{
    struct test_pieces t;
    struct backend_file *f;
    test_pieces_make(&t, OBJECT - offset, most, offset);
    assert_int_equal(backend_open(b, "s3://bucket/key", NULL, OBJECT, &f, NULL), 0);
    struct backend_read read = {
        .file = f, .offset = offset, .bytes = OBJECT - offset, .pieces = t.iov, .npieces = t.n, .done = done};
    ended = 0;
    backend_submit(b, &read);
    wait_for(b, 1);
    assert_int_equal(last_rc, rc);
    if (rc == 0)
        test_pieces_check(&t, object + offset);
    backend_close(f);
    test_pieces_free(&t);
}

static void test_pieces(void **state)
{
    static const uint64_t mosts[] = {OBJECT, MIB, 70001, 3000};
    static char right[S3_CRC_TEXT], wrong[S3_CRC_TEXT];
    uint64_t sum = s3_crc_add(S3_CRC32C, 0, object, OBJECT);
    s3_crc_format((struct s3_crc){S3_CRC32C, sum}, right);
    s3_crc_format((struct s3_crc){S3_CRC32C, sum ^ 1}, wrong);
    (void)state;
    tries = 1;
    for (unsigned i = 0; i < 2 * ARRAY_LEN(mosts); i++) {
        struct backend_stats stats;
        block_bytes = i % 2 ? OBJECT : 300001; /* compared at once, or block by block */
        summed = right;
        struct backend *b = begin(talk_summed, true);
        read_pieces(b, 0, mosts[i / 2], 0);
        backend_stats(b, &stats);
        assert_int_equal(stats.checked, 1);
        read_pieces(b, 4099, mosts[i / 2], 0);
        summed = wrong;
        read_pieces(b, 0, mosts[i / 2], LEAT_CORRUPT);
        end(b);
    }
    block_bytes = tries = 0;
}

/* Half of it came: nothing is written to the pieces after it is cancelled. */
static void test_cancel_pieces(void **state)
{
    (void)state;
    struct backend *b = begin(talk_object, true);
    struct backend_file *f;
    assert_int_equal(backend_open(b, "s3://bucket/key", NULL, OBJECT, &f, NULL), 0);
    for (unsigned i = 0; i < 20; i++) {
        struct test_pieces t;
        test_pieces_make(&t, OBJECT, 5000, i);
        struct backend_read read = {
            .file = f, .bytes = OBJECT, .pieces = t.iov, .npieces = t.n, .done = done};
        ended = 0;
        backend_submit(b, &read);
        for (unsigned turn = 0; turn < i && !ended; turn++)
            assert_true(backend_wait(b, 1, 0) >= 0);
        if (!ended)
            backend_cancel(b, &read);
        memset(t.memory, TEST_GUARD, t.memory_bytes);
        assert_int_equal(backend_wait(b, 1, 20), 0);
        test_pieces_check(&t, NULL);
        assert_true(test_all_are(TEST_GUARD, t.memory, t.memory_bytes));
        test_pieces_free(&t);
    }
    backend_close(f);
    end(b);
}

/* "bytes 0-0/" and a star is no length: one of 2^64 - 1 bytes would be believed, and read. */
static void test_length_unknown(void **state)
{
    (void)state;
    struct backend *b = begin(talk_unknown, true);
    struct backend_stat stat;
    struct leat_error err = {0};
    char uri[80];
    snprintf(uri, sizeof(uri), "http://127.0.0.1:%u/key?signed", server.origin.port);
    assert_int_equal(backend_stat_object(b, uri, &stat, &err), LEAT_DENIED);
    assert_true(refused == 1 && served == 1);
    end(b);
}

/* Cancelled reads take every place: those that waited behind them continue. */
static void test_cancel_makes_room(void **state)
{
    (void)state;
    struct backend *b = begin(talk_late, true);
    struct backend_file *f;
    static char dst[OBJECT];
    assert_int_equal(backend_open(b, "s3://bucket/key", NULL, OBJECT, &f, NULL), 0);
    struct backend_read first = {.file = f, .bytes = OBJECT, .dst = dst, .done = done};
    ended = 0;
    backend_submit(b, &first);
    assert_int_equal(backend_wait(b, 1, 200), 0);
    atomic_store(&answers, true);
    struct backend_read second = {.file = f, .bytes = 2 * MIB, .dst = dst, .done = done};
    backend_submit(b, &second);
    assert_int_equal(backend_wait(b, 1, 200), 0);
    backend_cancel(b, &first);
    wait_for(b, 1);
    assert_int_equal(last_rc, 0);
    assert_memory_equal(dst, object, 2 * MIB);
    backend_close(f);
    end(b);
}

static void test_free_ends_reads(void **state)
{
    (void)state;
    struct backend *b = begin(talk_late, true);
    struct backend_file *f;
    static char dst[OBJECT];
    struct backend_read reads[40];
    assert_int_equal(backend_open(b, "s3://bucket/key", NULL, OBJECT, &f, NULL), 0);
    ended = 0;
    for (unsigned i = 0; i < ARRAY_LEN(reads); i++) {
        reads[i] = (struct backend_read){
            .file = f, .offset = i * 65536, .bytes = 65536, .dst = dst + i * 65536, .done = done};
        backend_submit(b, &reads[i]);
    }
    assert_int_equal(backend_wait(b, 1, 100), 0);
    end(b);
    assert_int_equal(ended, ARRAY_LEN(reads));
    assert_int_equal(last_rc, -ECANCELED);
    backend_close(f);
}

static void test_region(void **state)
{
    (void)state;
    struct backend *b = begin(talk_region, false);
    struct backend_file *f;
    static char dst[OBJECT];
    struct backend_read reads[16];
    assert_int_equal(backend_open(b, "s3://bucket/key", NULL, OBJECT, &f, NULL), 0);
    ended = 0;
    for (unsigned i = 0; i < ARRAY_LEN(reads);
         i++) { /* all of them are on their way before one is answered */
        reads[i] = (struct backend_read){
            .file = f, .offset = i * 4096, .bytes = 4096, .dst = dst + i * 4096, .done = done};
        backend_submit(b, &reads[i]);
    }
    wait_for(b, ARRAY_LEN(reads));
    assert_int_equal(last_rc, 0);
    assert_memory_equal(dst, object, 16 * 4096);
    assert_true(refused > 1);
    unsigned before = refused;
    assert_int_equal(backend_pread(b, f, dst, 100, 0, NULL), 100);
    assert_int_equal(refused, before);
    backend_close(f);
    end(b);
}

/* After a Retry-After of a second, requests do not all come at that moment. A slow machine only spreads
 * them more. */
static void test_busy_is_spread(void **state)
{
    (void)state;
    struct backend *b = begin(talk_busy, true);
    struct backend_file *f;
    static char dst[BUSY_READS * 4096];
    struct backend_read reads[BUSY_READS];
    assert_int_equal(backend_open(b, "s3://bucket/key", NULL, OBJECT, &f, NULL), 0);
    ended = 0;
    for (unsigned i = 0; i < BUSY_READS; i++) {
        reads[i] = (struct backend_read){
            .file = f, .offset = i * 4096, .bytes = 4096, .dst = dst + i * 4096, .done = done};
        backend_submit(b, &reads[i]);
    }
    wait_for(b, BUSY_READS);
    assert_int_equal(last_rc, 0);
    assert_memory_equal(dst, object, sizeof(dst));
    assert_true(last_ns - first_ns > 20 * NS_PER_MS); /* of 100 */
    backend_close(f);
    end(b);
}

/* The answer counts, not that the rest of the body could not be sent. */
static void test_refused_body(void **state)
{
    (void)state;
    struct backend *b = begin(talk_refuse, true);
    struct leat_error err = {0};
    FILE *file = tmpfile();
    assert_non_null(file);
    assert_int_equal(fwrite(object, 1, OBJECT, file), OBJECT);
    fflush(file);
    int rc = backend_put(b, "s3://bucket/key", fileno(file), 0, OBJECT, NULL, NULL, &err);
    assert_int_equal(rc, LEAT_DENIED);
    assert_non_null(strstr(err.message, "QuotaExceeded: full"));
    fclose(file);
    end(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read),           cmocka_unit_test(test_cancel_makes_room),
        cmocka_unit_test(test_length_unknown), cmocka_unit_test(test_free_ends_reads),
        cmocka_unit_test(test_region),         cmocka_unit_test(test_refused_body),
        cmocka_unit_test(test_busy_is_spread), cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_cancel_pieces),
    };
    for (size_t i = 0; i < OBJECT; i++)
        object[i] = (char)(i * 2654435761u >> 13);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
