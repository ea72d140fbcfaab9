/* SPDX-License-Identifier: Apache-2.0 */
/* Which operation a request means, the documents that come with one, and what is answered, read again by the client's side. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "wire/s3/s3_server.h"
#include "wire/s3/xml.h"

static struct s3_call call;

static struct http_text text_of(const char *s)
{
    return (struct http_text){s, s ? strlen(s) : 0};
}

static bool parse(const char *method, const char *target, const char *host, bool copy)
{
    static const char *const domains[] = {"s3.example.org", "localhost", NULL};
    return s3_call_parse(&call, method, text_of(target), text_of(host), domains, copy);
}

static void test_operations(void **state)
{
    static const struct {
        const char *method, *target;
        bool copy;
        enum s3_op op;
        enum s3_code code;
    } cases[] = {
        {"GET", "/", false, S3_OP_LIST_BUCKETS, S3_OK},
        {"GET", "/?x-id=ListBuckets", false, S3_OP_LIST_BUCKETS, S3_OK},
        {"PUT", "/", false, S3_OP_NONE, S3_METHOD_NOT_ALLOWED},
        {"PUT", "/b", false, S3_OP_CREATE_BUCKET, S3_OK},
        {"PUT", "/b/", false, S3_OP_CREATE_BUCKET, S3_OK},
        {"HEAD", "/b", false, S3_OP_HEAD_BUCKET, S3_OK},
        {"DELETE", "/b", false, S3_OP_DELETE_BUCKET, S3_OK},
        {"GET", "/b?location", false, S3_OP_GET_LOCATION, S3_OK},
        {"GET", "/b", false, S3_OP_LIST_OBJECTS, S3_OK},
        {"GET", "/b?list-type=2&prefix=a", false, S3_OP_LIST_OBJECTS_V2, S3_OK},
        {"GET", "/b?uploads", false, S3_OP_LIST_UPLOADS, S3_OK},
        {"POST", "/b?delete", false, S3_OP_DELETE_OBJECTS, S3_OK},
        {"POST", "/b", false, S3_OP_NONE, S3_NOT_IMPLEMENTED},
        {"PATCH", "/b", false, S3_OP_NONE, S3_METHOD_NOT_ALLOWED},
        {"GET", "/b?versions", false, S3_OP_LIST_VERSIONS, S3_OK},
        {"GET", "/b?versions&prefix=a", false, S3_OP_LIST_VERSIONS, S3_OK},
        {"PUT", "/b?versions", false, S3_OP_NONE, S3_NOT_IMPLEMENTED},
        {"GET", "/b/k?versions", false, S3_OP_NONE, S3_NOT_IMPLEMENTED},
        {"GET", "/b?versioning", false, S3_OP_DEFAULT_READ, S3_OK},
        {"PUT", "/b?versioning", false, S3_OP_NONE, S3_NOT_IMPLEMENTED},
        {"GET", "/b?policy", false, S3_OP_DEFAULT_READ, S3_NO_BUCKET_POLICY},
        {"GET", "/b?cors=", false, S3_OP_DEFAULT_READ, S3_NO_CORS},
        {"GET", "/b/k", false, S3_OP_GET_OBJECT, S3_OK},
        {"GET", "/b/k?versionId=null", false, S3_OP_GET_OBJECT, S3_OK},
        {"GET", "/b/k?versionId=3", false, S3_OP_NONE, S3_NO_SUCH_VERSION},
        {"GET", "/b/k?tagging", false, S3_OP_DEFAULT_READ, S3_OK},
        {"GET", "/b/k?attributes", false, S3_OP_GET_ATTRIBUTES, S3_OK},
        {"GET", "/b/k?attributes&versionId=null", false, S3_OP_GET_ATTRIBUTES, S3_OK},
        {"GET", "/b/k?attributes&versionId=3", false, S3_OP_NONE, S3_NO_SUCH_VERSION},
        {"HEAD", "/b/k?attributes", false, S3_OP_NONE, S3_NOT_IMPLEMENTED},
        {"GET", "/b?attributes", false, S3_OP_NONE, S3_NOT_IMPLEMENTED},
        {"GET", "/b/k?uploadId=1", false, S3_OP_LIST_PARTS, S3_OK},
        {"HEAD", "/b/k", false, S3_OP_HEAD_OBJECT, S3_OK},
        {"PUT", "/b/k", false, S3_OP_PUT_OBJECT, S3_OK},
        {"PUT", "/b/k", true, S3_OP_COPY_OBJECT, S3_OK},
        {"PUT", "/b/k?partNumber=1&uploadId=1", false, S3_OP_UPLOAD_PART, S3_OK},
        {"PUT", "/b/k?partNumber=1&uploadId=1", true, S3_OP_UPLOAD_PART_COPY, S3_OK},
        {"DELETE", "/b/k", false, S3_OP_DELETE_OBJECT, S3_OK},
        {"DELETE", "/b/k?uploadId=1", false, S3_OP_ABORT_UPLOAD, S3_OK},
        {"POST", "/b/k?uploads", false, S3_OP_CREATE_UPLOAD, S3_OK},
        {"POST", "/b/k?uploadId=1", false, S3_OP_COMPLETE_UPLOAD, S3_OK},
        {"POST", "/b/k?restore", false, S3_OP_NONE, S3_NOT_IMPLEMENTED},
        {"POST", "/b/k", false, S3_OP_NONE, S3_METHOD_NOT_ALLOWED},
        {"GET", "//k", false, S3_OP_NONE, S3_INVALID_BUCKET},
        {"GET", "http://h/b/k", false, S3_OP_NONE, S3_INVALID_URI},
        {"GET", "/b/%zz", false, S3_OP_NONE, S3_INVALID_URI},
        {"GET", "/b/%2", false, S3_OP_NONE, S3_INVALID_URI},
        {"GET", "/b/%00", false, S3_OP_NONE, S3_INVALID_URI},
        {"GET", "/b/%ff", false, S3_OP_NONE, S3_INVALID_URI},
        {"GET", "/b?prefix=%", false, S3_OP_NONE, S3_INVALID_URI},
        {"GET", "/b?prefix=%ff", false, S3_OP_NONE, S3_INVALID_ARGUMENT},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        bool good = parse(cases[i].method, cases[i].target, "127.0.0.1:9000", cases[i].copy);
        if (call.op != cases[i].op || call.code != cases[i].code || good != (cases[i].op != S3_OP_NONE))
            fail_msg("%s %s: %s, %s", cases[i].method, cases[i].target, s3_op_name(call.op),
                     s3_code_name(call.code));
    }
}

/* An unknown word is a parameter like others; each of these is a setting, which a GET never ignores. */
static void test_settings(void **state)
{
    static const char *const names[] = {"accelerate",
                                        "acl",
                                        "analytics",
                                        "attributes",
                                        "cors",
                                        "encryption",
                                        "intelligent-tiering",
                                        "inventory",
                                        "legal-hold",
                                        "lifecycle",
                                        "logging",
                                        "metrics",
                                        "notification",
                                        "object-lock",
                                        "ownershipControls",
                                        "policy",
                                        "policyStatus",
                                        "publicAccessBlock",
                                        "renameObject",
                                        "replication",
                                        "requestPayment",
                                        "restore",
                                        "retention",
                                        "select",
                                        "session",
                                        "tagging",
                                        "torrent",
                                        "versioning",
                                        "versions",
                                        "website"};
    char target[64];
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        snprintf(target, sizeof(target), "/b?x-id=1&%s", names[i]);
        parse("GET", target, "h", false);
        assert_string_equal(call.subject, names[i]);
        assert_true(call.op == S3_OP_DEFAULT_READ || call.op == S3_OP_LIST_VERSIONS ||
                    call.code == S3_NOT_IMPLEMENTED);
    }
    assert_true(parse("GET", "/b?x-id=1&zzz", "h", false));
    assert_string_equal(call.subject, "");
}

static void test_places(void **state)
{
    static const struct {
        const char *target, *host, *bucket, *key;
    } cases[] = {
        {"/b/a%20b+c%2Fd%2B", "h", "b", "a b+c/d+"},
        {"/b/../../etc/passwd", "h", "b", "../../etc/passwd"},
        {"/b//k", "h", "b", "/k"},
        {"/b/%2e%2e/", "h", "b", "../"},
        {"/b/%C3%A4?x", "h", "b", "\xc3\xa4"},
        {"/b/%0A%09%7f", "h", "b", "\n\t\x7f"},
        {"/k", "b.s3.example.org", "b", "k"},
        {"/k/x", "my.bucket.S3.example.org:9000", "my.bucket", "k/x"},
        {"/", "b.localhost:9000", "b", ""},
        {"/K", "B.LocalHost:9000", "b", "K"},
        {"/b/k", "s3.example.org", "b", "k"},
        {"/b/k", "evils3.example.org", "b", "k"},
        {"/b/k", NULL, "b", "k"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        assert_true(parse("GET", cases[i].target, cases[i].host, false));
        assert_string_equal(call.bucket, cases[i].bucket);
        assert_string_equal(call.key, cases[i].key);
        assert_int_equal(call.key_len, strlen(cases[i].key));
    }
}

static void test_limits(void **state)
{
    char target[3 * S3_KEY_MAX + 64], *at = target + sprintf(target, "/b/");
    for (unsigned i = 0; i < S3_KEY_MAX; i++)
        at += sprintf(at, "%%%02x", 1 + i % 127);
    assert_true(parse("GET", target, "h", false));
    assert_int_equal(call.key_len, S3_KEY_MAX);
    sprintf(at, "x");
    assert_false(parse("GET", target, "h", false));
    assert_int_equal(call.code, S3_KEY_TOO_LONG);

    char query[S3_QUERY_BYTES + 64];
    at = query + sprintf(query, "/b?");
    for (unsigned i = 0; i < S3_QUERY_PARAMS; i++)
        at += sprintf(at, "p%u=%u&", i, i);
    assert_true(parse("GET", query, "h", false));
    assert_string_equal(s3_call_param(&call, "p31", NULL), "31");
    assert_null(s3_call_param(&call, "p32", NULL));
    sprintf(at, "one=more");
    assert_false(parse("GET", query, "h", false));
    memset(query + 3, 'x', sizeof(query) - 4);
    query[sizeof(query) - 1] = 0;
    assert_false(parse("GET", query, "h", false));
    size_t len;
    assert_true(parse("GET", "/b?prefix=a+b%2B&empty&delimiter=", "h", false));
    assert_string_equal(s3_call_param(&call, "prefix", &len), "a b+");
    assert_int_equal(len, 4);
    assert_string_equal(s3_call_param(&call, "empty", &len), "");
}

static void test_buckets(void **state)
{
    static const char *const good[] = {"abc", "a-b", "my.bucket.2", "123", "1.2.3.4.5"},
                             *const bad[] = {"ab",  "Abc", "a_b",     "-ab", "ab-", "a..b",
                                             ".ab", "ab.", "1.2.3.4", "a/b", ""};
    for (size_t i = 0; i < ARRAY_LEN(good); i++)
        assert_true(s3_bucket_valid(good[i]));
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_false(s3_bucket_valid(bad[i]));
    char name[65];
    memset(name, 'a', 64);
    name[64] = 0;
    assert_false(s3_bucket_valid(name));
    assert_true(s3_bucket_valid(name + 1));
}

static void test_copy_sources(void **state)
{
    char bucket[S3_BUCKET_MAX + 1], key[S3_KEY_MAX + 1];
    size_t len;
    static const struct {
        const char *value, *bucket, *key;
        enum s3_code code;
    } cases[] = {
        {"/b/k", "b", "k", S3_OK},
        {"b/a%20b%2Bc/d", "b", "a b+c/d", S3_OK},
        {"b%2Fk", "b", "k", S3_OK},
        {"b/k?versionId=null", "b", "k", S3_OK},
        {"b/k?versionId=1", "", "", S3_NO_SUCH_VERSION},
        {"b/k?x", "", "", S3_INVALID_ARGUMENT},
        {"b", "", "", S3_INVALID_ARGUMENT},
        {"/b/", "", "", S3_INVALID_ARGUMENT},
        {"", "", "", S3_INVALID_ARGUMENT},
        {"b/%", "", "", S3_INVALID_ARGUMENT},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        assert_int_equal(s3_copy_source_parse(text_of(cases[i].value), bucket, key, &len), cases[i].code);
        if (cases[i].code != S3_OK)
            continue;
        assert_string_equal(bucket, cases[i].bucket);
        assert_string_equal(key, cases[i].key);
        assert_int_equal(len, strlen(key));
    }
}

static void test_complete(void **state)
{
    struct s3_part_named *parts = NULL;
    unsigned n = 0;
    char a[] = "\"aa\"", b[] = "\"bb\"", *etags[] = {a, b};
    struct bytes_out out = {0};
    s3_complete_put(&out, etags, 2);
    assert_int_equal(s3_complete_parse(out.data, out.len, &parts, &n), S3_OK);
    bytes_out_fini(&out);
    assert_int_equal(n, 2);
    assert_string_equal(parts[1].etag, "bb");
    assert_int_equal(parts[1].number, 2);
    free(parts);

    static const char sums[] = "<CompleteMultipartUpload><Part><ETag>aa</ETag><PartNumber>7</PartNumber>"
                               "<ChecksumCRC32>AAAAAA==</ChecksumCRC32></Part></CompleteMultipartUpload>";
    assert_int_equal(s3_complete_parse(sums, sizeof(sums) - 1, &parts, &n), S3_OK);
    assert_string_equal(parts[0].algorithm, "CRC32");
    assert_string_equal(parts[0].checksum, "AAAAAA==");
    free(parts);

#define PART(n) "<Part><PartNumber>" n "</PartNumber><ETag>a</ETag></Part>"
    static const struct {
        const char *text;
        enum s3_code code;
    } bad[] = {
        {"", S3_MALFORMED_XML},
        {"<CompleteMultipartUpload/>", S3_MALFORMED_XML},
        {"<CompleteMultipartUpload>" PART("1"), S3_MALFORMED_XML},
        {"<Other>" PART("1") "</Other>", S3_MALFORMED_XML},
        {"<CompleteMultipartUpload>" PART("0") "</CompleteMultipartUpload>", S3_MALFORMED_XML},
        {"<CompleteMultipartUpload>" PART("10001") "</CompleteMultipartUpload>", S3_MALFORMED_XML},
        {"<CompleteMultipartUpload>" PART("2") PART("1") "</CompleteMultipartUpload>", S3_INVALID_PART_ORDER},
        {"<CompleteMultipartUpload>" PART("2") PART("2") "</CompleteMultipartUpload>", S3_INVALID_PART_ORDER},
        {"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber></Part></CompleteMultipartUpload>",
         S3_MALFORMED_XML},
        {"<!DOCTYPE a [<!ENTITY b \"c\">]><CompleteMultipartUpload>" PART("1") "</CompleteMultipartUpload>",
         S3_MALFORMED_XML},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_int_equal(s3_complete_parse(bad[i].text, strlen(bad[i].text), &parts, &n), bad[i].code);
}

static void test_delete(void **state)
{
    struct s3_delete *d;
    static const char good[] =
        "<Delete xmlns=\"" S3_NAMESPACE "\"><Quiet>true</Quiet><Object><Key>a&amp;b</Key></Object>"
        "<Object><Key> c </Key><VersionId>null</VersionId></Object></Delete>";
    assert_int_equal(s3_delete_parse(good, sizeof(good) - 1, &d), S3_OK);
    assert_true(d->quiet);
    assert_int_equal(d->n, 2);
    assert_string_equal(d->texts.data + d->keys[0].key_at, "a&b");
    assert_string_equal(d->texts.data + d->keys[1].key_at, " c ");
    assert_string_equal(d->texts.data + d->keys[1].version_at, "null");
    s3_delete_free(d);
    static const char *const bad[] = {"", "<Delete/>", "<Delete><Object/></Delete>",
                                      "<Delete><Object><Key/></Object></Delete>",
                                      "<A><Object><Key>a</Key></Object></A>"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_int_equal(s3_delete_parse(bad[i], strlen(bad[i]), &d), S3_MALFORMED_XML);
    struct bytes_out many = {0};
    http_put(&many, "<Delete>");
    for (unsigned i = 0; i <= S3_LIST_MAX; i++)
        http_put(&many, "<Object><Key>k</Key></Object>");
    http_put(&many, "</Delete>");
    assert_int_equal(s3_delete_parse(many.data, many.len, &d), S3_MALFORMED_XML);
    bytes_out_fini(&many);
}

static void test_create_bucket(void **state)
{
    char location[65];
    static const char good[] =
        "<CreateBucketConfiguration xmlns=\"" S3_NAMESPACE "\"><LocationConstraint>eu-west-1"
        "</LocationConstraint></CreateBucketConfiguration>";
    assert_int_equal(s3_create_bucket_parse(good, sizeof(good) - 1, location), S3_OK);
    assert_string_equal(location, "eu-west-1");
    assert_int_equal(s3_create_bucket_parse(NULL, 0, location), S3_OK);
    assert_string_equal(location, "");
    assert_int_equal(s3_create_bucket_parse("<x/>", 4, location), S3_MALFORMED_XML);
    assert_int_equal(s3_create_bucket_parse("nonsense", 8, location), S3_MALFORMED_XML);
}

struct seen {
    unsigned objects, prefixes;
    char keys[4][S3_KEY_MAX + 1];
};

static void see(struct seen *seen, const struct s3_object *o)
{
    memcpy(seen->keys[seen->objects + seen->prefixes], o->key, o->key_len + 1);
    if (o->prefix) {
        seen->prefixes++;
        return;
    }
    seen->objects++;
    assert_int_equal(o->bytes, 12345678901);
    assert_string_equal(o->etag, "\"d41d8cd98f00b204e9800998ecf8427e-3\"");
    assert_int_equal(o->modified, 1369353600);
}

/* A page as we write it, read by the client's side, escaped and not. */
static void test_pages(void **state)
{
    for (int url = 0; url < 2; url++) {
        struct s3_page page = {.v2 = true,
                               .url = url,
                               .bucket = "b",
                               .prefix = "a<",
                               .prefix_len = 2,
                               .max_keys = 3,
                               .count = 3,
                               .truncated = true,
                               .next = "k61",
                               .next_len = 3,
                               .owners = url};
        struct bytes_out out = {0};
        struct seen seen = {0};
        s3_page_begin(&out, &page);
        s3_page_object(&out, &page, "a<&>\"b+ c", 9, 12345678901, "d41d8cd98f00b204e9800998ecf8427e-3",
                       1369353600, "me");
        s3_page_prefix(&out, &page, "a<dir/", 6);
        s3_page_object(&out, &page, url ? "\x01\n" : "\xc3\xa4", 2, 12345678901,
                       "d41d8cd98f00b204e9800998ecf8427e-3", 1369353600, "me");
        s3_page_end(&out, &page);
        struct s3_list *l = s3_list_new();
        assert_int_equal(s3_list_feed(l, out.data, out.len, true, NULL), 0);
        for (size_t i = 0; i < s3_list_count(l); i++) {
            struct s3_object o = s3_list_at(l, i);
            see(&seen, &o);
        }
        assert_string_equal(s3_list_next(l), "k61");
        assert_int_equal(seen.objects, 2);
        assert_int_equal(seen.prefixes, 1);
        assert_string_equal(seen.keys[0], "a<&>\"b+ c");
        assert_string_equal(seen.keys[1], "a<dir/");
        assert_string_equal(seen.keys[2], url ? "\x01\n" : "\xc3\xa4");
        s3_list_free(l);
        bytes_out_fini(&out);
    }
}

static void test_errors(void **state)
{
    for (unsigned code = 1; code < S3_CODES; code++) {
        struct bytes_out out = {0};
        struct s3_error e;
        assert_true(s3_code_name(code)[0] && s3_code_status(code) >= 300 && s3_code_message(code)[0]);
        s3_error_put(&out, code, NULL, "/b/<k>", 6, "ID", code == S3_AUTH_HEADER_MALFORMED ? "eu" : NULL);
        s3_error_parse(out.data, out.len, &e);
        assert_string_equal(e.code, s3_code_name(code));
        assert_string_equal(e.request_id, "ID");
        assert_string_equal(e.region, code == S3_AUTH_HEADER_MALFORMED ? "eu" : "");
        bytes_out_fini(&out);
    }
    char time[S3_TIME_TEXT];
    s3_time_format(1369353600, time);
    assert_string_equal(time, "2013-05-24T00:00:00.000Z");
}

static int count(void *user, const char *path, const char *text, size_t len)
{
    (void)path, (void)text, (void)len;
    ++*(unsigned *)user;
    return 0;
}

/* The other documents are at least XML. */
static void test_documents(void **state)
{
    struct bytes_out out = {0};
    static const char key[] = "a&b<c>";
    for (int i = 0; i < 9; i++) {
        unsigned elements = 0;
        bytes_out_reset(&out);
        if (i == 0) {
            s3_buckets_begin(&out, "me");
            s3_buckets_put(&out, "b", 1369353600);
            s3_buckets_end(&out);
        } else if (i == 1) {
            s3_copied_put(&out, "CopyObjectResult", "e", 0, "ChecksumCRC32", "AAAAAA==");
        } else if (i == 2) {
            s3_created_upload_put(&out, "b", key, strlen(key), "id");
        } else if (i == 3) {
            s3_completed_put(&out, "http://h/b/k", "b", key, strlen(key), "e-2", "ChecksumCRC32",
                             "AAAAAA==", "FULL_OBJECT");
        } else if (i == 4) {
            s3_location_put(&out, "eu-west-1");
        } else if (i == 5) {
            s3_deleted_begin(&out);
            s3_deleted_key(&out, key, strlen(key), S3_OK);
            s3_deleted_key(&out, key, strlen(key), S3_INTERNAL);
            s3_deleted_end(&out);
        } else {
            assert_true(parse("GET",
                              i == 6   ? "/b?acl"
                              : i == 7 ? "/b?versioning"
                                       : "/b/k?tagging",
                              "h", false));
            assert_true(s3_default_put(&out, &call, "me"));
        }
        struct xml_reader *xml = xml_reader_new(NULL, count, &elements);
        assert_int_equal(xml_reader_feed(xml, out.data, out.len, true, NULL), 0);
        assert_true(elements >= 1);
        xml_reader_free(xml);
    }
    bytes_out_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_operations),    cmocka_unit_test(test_settings),
        cmocka_unit_test(test_places),        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_buckets),       cmocka_unit_test(test_copy_sources),
        cmocka_unit_test(test_complete),      cmocka_unit_test(test_delete),
        cmocka_unit_test(test_create_bucket), cmocka_unit_test(test_pages),
        cmocka_unit_test(test_errors),        cmocka_unit_test(test_documents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
