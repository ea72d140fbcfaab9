/* SPDX-License-Identifier: Apache-2.0 */
/* The example of the S3 API reference ("transferring payload in multiple chunks"), cut everywhere; and all ways to lie that we know of. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "wire/s3/aws_chunked.h"

#define WHEN "20130524T000000Z"
#define SEED "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"
#define SIG1 "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648"
#define SIG2 "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497"
#define SIG3 "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9"

static struct sigv4_key key;
static struct bytes_out got;

static int sink(void *user, const void *data, size_t len)
{
    (void)user;
    bytes_put(&got, data, len);
    return 0;
}

static int setup(void **state)
{
    return sigv4_key_derive("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", 1369353600, "us-east-1", "s3", &key);
}

/* 65 KiB of 'a' in chunks of 64 KiB, 1 KiB and nothing, as the reference has it. `order`: "123", or something else. */
static size_t example(char *out, const char *order)
{
    char *at = out;
    for (; *order; order++) {
        size_t n = *order == '1' ? 65536 : *order == '2' ? 1024 : 0;
        at += sprintf(at, "%zx;chunk-signature=%s\r\n", n,
                      *order == '1'   ? SIG1
                      : *order == '2' ? SIG2
                                      : SIG3);
        memset(at, 'a', n);
        at += n;
        if (n || !order[1])
            at += sprintf(at, "\r\n");
    }
    return (size_t)(at - out);
}

static int decode(const char *text, size_t len, size_t step, uint64_t bytes, bool trailers, bool is_signed)
{
    struct aws_chunked c;
    int rc = 0;
    bytes_out_reset(&got);
    aws_chunked_init(&c, bytes, trailers, is_signed ? &key : NULL, WHEN, SEED);
    for (size_t i = 0; rc == 0 && i < len; i += step)
        rc = aws_chunked_feed(&c, text + i, MIN(step, len - i), sink, NULL);
    if (rc == 0)
        rc = aws_chunked_end(&c);
    if (rc < 0)
        assert_non_null(c.why);
    aws_chunked_fini(&c);
    return rc;
}

static void test_reference(void **state)
{
    static char text[70000];
    static const size_t steps[] = {1, 2, 7, 85, 86, 87, 4096, 65536, sizeof(text)};
    size_t len = example(text, "123");
    for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
        assert_int_equal(decode(text, len, steps[i], 66560, false, true), 0);
        assert_int_equal(got.len, 66560);
        for (size_t k = 0; k < got.len; k++)
            assert_int_equal(got.data[k], 'a');
    }
}

static void test_lies(void **state)
{
    static char text[140000];
    size_t len = example(text, "123");
    for (size_t i = 0; i < len; i += i < 90 || i > 65600 ? 1 : 4099) { /* any bit, anywhere */
        text[i] ^= 1;
        int rc = decode(text, len, sizeof(text), 66560, false, true);
        /* but for the case of a hex digit of the size, which means the same */
        if (rc == 0)
            fail_msg("byte %zu of another value was taken", i);
        text[i] ^= 1;
    }
    static const char *const orders[] = {"213", "13", "23", "1123", "1223", "3", "12"};
    for (size_t i = 0; i < ARRAY_LEN(orders); i++) {
        len = example(text, orders[i]);
        assert_true(decode(text, len, sizeof(text), 66560, false, true) < 0);
    }
    len = example(text, "123");
    for (size_t cut = 1; cut < 300; cut++) /* the last CR LF may be missing: the body ends there anyway */
        if (cut > 2)
            assert_true(decode(text, len - cut, sizeof(text), 66560, false, true) < 0);
    assert_int_equal(decode(text, len, sizeof(text), 66559, false, true), LEAT_INVALID);
    assert_int_equal(decode(text, len, sizeof(text), 66561, false, true), LEAT_INVALID);
    memcpy(text + len, "more", 4);
    assert_int_equal(decode(text, len + 4, sizeof(text), 66560, false, true), LEAT_CORRUPT);
}

static void test_unsigned(void **state)
{
    static const struct {
        const char *text;
        uint64_t bytes;
        int rc;
    } cases[] = {
        {"3\r\nabc\r\n0\r\nx-amz-checksum-crc32:NSRBwg==\r\n\r\n", 3, 0},
        {"3\r\nabc\r\n0\r\nX-Amz-Checksum-Crc32:  NSRBwg== \n\r\n", 3, 0},
        {"1\r\na\r\n2\r\nbc\r\n0\r\nx-amz-checksum-crc32:NSRBwg==\r\n\r\n", 3, 0},
        {"3\r\nabc\r\n0\r\nx-amz-checksum-crc32:NSRBwg==", 3, LEAT_CORRUPT},
        {"3\r\nabc\r\n0\r\nnonsense\r\n\r\n", 3, LEAT_CORRUPT},
        {"3\r\nabc\r\n0\r\n:x\r\n\r\n", 3, LEAT_CORRUPT},
        {"3\r\nabcd\r\n0\r\n\r\n", 3, LEAT_CORRUPT},
        {"4\r\nabc\r\n0\r\n\r\n", 4, LEAT_CORRUPT},
        {"3\nabc\r\n0\r\n\r\n", 3, LEAT_CORRUPT},
        {"\r\nabc\r\n0\r\n\r\n", 3, LEAT_CORRUPT},
        {"-3\r\nabc\r\n0\r\n\r\n", 3, LEAT_CORRUPT},
        {"0x3\r\nabc\r\n0\r\n\r\n", 3, LEAT_CORRUPT},
        {"3;chunk-signature=" SIG1 "\r\nabc\r\n0\r\n\r\n", 3, LEAT_CORRUPT},
        {"ffffffffffffffffffff\r\n", 3, LEAT_CORRUPT},
        {"fffffffffffffff\r\n", 3, LEAT_INVALID},
        {"4\r\nabcd\r\n0\r\n\r\n", 3, LEAT_INVALID},
        {"2\r\nab\r\n0\r\n\r\n", 3, LEAT_INVALID},
        {"3\r\nabc\r\n", 3, LEAT_CORRUPT},
        {"", 0, LEAT_CORRUPT},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        for (size_t step = 1; step < 40; step += 38) {
            int rc = decode(cases[i].text, strlen(cases[i].text), step, cases[i].bytes, true, false);
            if (rc != cases[i].rc)
                fail_msg("case %zu: %d", i, rc);
            if (rc == 0)
                assert_memory_equal(got.data, "abc", 3);
        }
    }
    char line[AWS_CHUNKED_LINE + 8], many[AWS_CHUNKED_TRAILERS + 64];
    memset(line, '0', sizeof(line));
    assert_int_equal(decode(line, sizeof(line), sizeof(line), 3, true, false), LEAT_CORRUPT);
    memset(many, 'x', sizeof(many));
    memcpy(many, "0\r\n", 3);
    assert_int_equal(decode(many, sizeof(many), 100, 0, true, false), LEAT_CORRUPT);
}

/* Chunks and trailers that are signed, made by the signing side. */
static size_t sealed(char *out, const char *trailer)
{
    char first[SIGV4_SIGNATURE], last[SIGV4_SIGNATURE], end[SIGV4_SIGNATURE];
    char hash[SIGV4_SIGNATURE];
    sigv4_sha256("abc", 3, hash);
    assert_int_equal(sigv4_chunk(&key, WHEN, SEED, hash, first), 0);
    assert_int_equal(sigv4_chunk(&key, WHEN, first, SIGV4_EMPTY, last), 0);
    assert_int_equal(sigv4_trailer(&key, WHEN, last, trailer, strlen(trailer), end), 0);
    return (size_t)sprintf(
        out,
        "3;chunk-signature=%s\r\nabc\r\n0;chunk-signature=%s\r\nx-amz-checksum-crc32c:NksVFg==\r\n"
        "x-amz-trailer-signature:%s\r\n\r\n",
        first, last, end);
}

static void test_trailers(void **state)
{
    char text[1024];
    const char *value;
    size_t len = sealed(text, "x-amz-checksum-crc32c:NksVFg==\n"), n;
    struct aws_chunked c;
    aws_chunked_init(&c, 3, true, &key, WHEN, SEED);
    assert_int_equal(aws_chunked_feed(&c, text, len, sink, NULL), 0);
    assert_int_equal(aws_chunked_end(&c), 0);
    assert_true(aws_chunked_trailer(&c, "x-amz-checksum-crc32c", &value, &n));
    assert_int_equal(n, 8);
    assert_memory_equal(value, "NksVFg==", 8);
    assert_false(aws_chunked_trailer(&c, "x-amz-checksum-crc32", &value, &n));
    aws_chunked_fini(&c);

    assert_int_equal(decode(text, len, 1, 3, true, true), 0);
    char *sum = strstr(text, "NksV");
    sum[0] = 'M'; /* a checksum that was changed on the way to fit */
    assert_int_equal(decode(text, len, 1024, 3, true, true), LEAT_DENIED);
    sum[0] = 'N';
    *strstr(text, "trailer-signature") = 'T';
    assert_int_equal(decode(text, len, 1024, 3, true, true), 0); /* names have no case */
    len = sealed(text, "x-amz-checksum-crc32c:AAAAAA==\n");
    assert_int_equal(decode(text, len, 1024, 3, true, true), LEAT_DENIED);
    len = sealed(text, "x-amz-checksum-crc32c:NksVFg==\n");
    char *signature = strstr(text, "x-amz-trailer-signature");
    memcpy(signature, "\r\n", 3);
    assert_int_equal(decode(text, (size_t)(signature - text) + 2, 1024, 3, true, true), LEAT_DENIED);
    assert_int_equal(decode(text, len, 1024, 3, false, true), LEAT_CORRUPT); /* none were announced */
}

static int refuse(void *user, const void *data, size_t len)
{
    (void)data, (void)len;
    ++*(unsigned *)user;
    return LEAT_NO_SPACE;
}

static void test_sink(void **state)
{
    struct aws_chunked c;
    unsigned calls = 0;
    aws_chunked_init(&c, 3, true, NULL, NULL, NULL);
    assert_int_equal(aws_chunked_feed(&c, "3\r\nabc\r\n", 8, refuse, &calls), LEAT_NO_SPACE);
    assert_int_equal(aws_chunked_feed(&c, "0\r\n\r\n", 5, refuse, &calls), LEAT_NO_SPACE);
    assert_int_equal(aws_chunked_end(&c), LEAT_NO_SPACE);
    assert_int_equal(calls, 1);
    aws_chunked_fini(&c);
}

static int teardown(void **state)
{
    bytes_out_fini(&got);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference), cmocka_unit_test(test_lies), cmocka_unit_test(test_unsigned),
        cmocka_unit_test(test_trailers),  cmocka_unit_test(test_sink),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
