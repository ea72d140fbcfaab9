/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/rng.h"
#include "wire/s3/s3_crc.h"

#include <cmocka.h>

/* The check values of CRC-32/ISCSI, CRC-64/NVME and CRC-32/ISO-HDLC: of "123456789". */
static const struct {
    struct s3_crc crc;
    const char *text;
} checks[] = {{{S3_CRC32C, 0xe3069283}, "4waSgw=="},
              {{S3_CRC64NVME, 0xae8b14860a799888}, "rosUhgp5mIg="},
              {{S3_CRC32, 0xcbf43926}, "y/Q5Jg=="}};

static void test_texts(void **state)
{
    char text[S3_CRC_TEXT];
    struct s3_crc crc;
    for (size_t i = 0; i < ARRAY_LEN(checks); i++) {
        struct s3_crc want = checks[i].crc;
        assert_true(s3_crc_add(want.kind, 0, "123456789", 9) == want.value);
        s3_crc_format(want, text);
        assert_string_equal(text, checks[i].text);
        assert_true(s3_crc_parse(want.kind, (struct http_text){text, strlen(text)}, &crc));
        assert_true(crc.kind == want.kind && crc.value == want.value);
    }
    static const char *bad[] = {
        "", "4waSgw", "4waSgw==-5", "4waSgx==", "4waSgw=A", "4wa gw==", "rosUhgp5mIg=", "4waSg==="};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_false(s3_crc_parse(S3_CRC32C, (struct http_text){bad[i], strlen(bad[i])}, &crc));
    assert_false(s3_crc_parse(S3_CRC32C, (struct http_text){NULL, 0}, &crc));
}

/* Of pieces, in one go, all kinds or one. */
static void test_pieces(void **state)
{
    static uint8_t data[100000];
    uint64_t seed = 5;
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (uint8_t)rng_next(&seed);
    for (unsigned turn = 0; turn < 100; turn++) {
        size_t cut = rng_next(&seed) % (sizeof(data) + 1);
        struct s3_crcs a = {0}, b = {0};
        s3_crcs_add(&a, S3_CRC_NONE, data, cut);
        s3_crcs_add(&b, S3_CRC_NONE, data + cut, sizeof(data) - cut);
        s3_crcs_join(&a, &b, sizeof(data) - cut);
        for (enum s3_crc_kind k = S3_CRC_NONE + 1; k < S3_CRC_KINDS; k++) {
            struct s3_crcs one = {0};
            s3_crcs_add(&one, k, data, cut);
            s3_crcs_add(&one, k, data + cut, sizeof(data) - cut);
            assert_true(a.of[k] == one.of[k] && one.of[k] == s3_crc_add(k, 0, data, sizeof(data)));
        }
    }
}

/* What an answer with these headers says. */
static struct s3_crc of(const char *headers)
{
    static struct http_reader reader;
    char buf[600];
    int len = snprintf(buf, sizeof(buf), "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n%s\r\n", headers);
    http_reader_init_response(&reader, 0);
    assert_int_equal(http_head_feed(&reader, buf, (size_t)len, "HEAD", NULL), 1);
    return s3_crc_of(&reader, buf);
}

static void test_answers(void **state)
{
    static const struct {
        const char *headers;
        struct s3_crc crc;
    } cases[] = {
        {"", {S3_CRC_NONE, 0}},
        {"x-amz-checksum-crc32: y/Q5Jg==\r\n", {S3_CRC32, 0xcbf43926}},
        {"X-Amz-Checksum-CRC64NVME: rosUhgp5mIg=\r\nx-amz-checksum-crc32: y/Q5Jg==\r\n",
         {S3_CRC64NVME, 0xae8b14860a799888}},
        {"x-amz-checksum-crc32: y/Q5Jg==\r\nx-amz-checksum-crc32c: 4waSgw==\r\n", {S3_CRC32C, 0xe3069283}},
        {"x-amz-checksum-crc32c: 4waSgw==-5\r\n", {S3_CRC_NONE, 0}}, /* of parts */
        {"x-amz-checksum-sha1: 9/+eGs9mKXeEAxrv6Eo1ZjiqTgE=\r\n", {S3_CRC_NONE, 0}},
        {"x-goog-hash: crc32c=4waSgw==\r\nx-goog-hash: md5=JfnnlDI7RTiF9RgfG2JNCw==\r\n",
         {S3_CRC32C, 0xe3069283}},
        {"x-goog-hash: md5=JfnnlDI7RTiF9RgfG2JNCw==\r\nX-Goog-Hash: crc32c=4waSgw==\r\n",
         {S3_CRC32C, 0xe3069283}},
        {"x-goog-hash: md5=JfnnlDI7RTiF9RgfG2JNCw==, crc32c=4waSgw==\r\n", {S3_CRC32C, 0xe3069283}},
        {"x-goog-hash: crc32c=, crc32c=4wa, ,,crc32c\r\n", {S3_CRC_NONE, 0}},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct s3_crc crc = of(cases[i].headers);
        assert_int_equal(crc.kind, cases[i].crc.kind);
        assert_true(crc.kind == S3_CRC_NONE || crc.value == cases[i].crc.value);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
