/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>

#include "wire/leat/messages.h"

#include <cmocka.h>

static void test_frame(void **state)
{
    uint8_t wire[PROTO_FRAME];
    struct proto_frame f = {.version = 1,
                            .kind = PROTO_REPLY,
                            .type = PROTO_VERIFY,
                            .status = -5,
                            .id = 1ull << 60,
                            .body_bytes = PROTO_BODY_MAX,
                            .nfds = PROTO_FDS_MAX,
                            .payload_bytes = PROTO_PAYLOAD_MAX},
                       g;
    proto_frame_put(wire, &f);
    assert_memory_equal(wire, "LEAT\1\2\x1c\0\xfb\xff\xff\xff\0\0\0\0", 16);
    assert_int_equal(proto_frame_get(wire, &g), 0);
    /* Member by member: there is padding between them. */
    assert_true(g.version == f.version && g.kind == f.kind && g.type == f.type && g.status == f.status);
    assert_true(g.lost == f.lost && g.id == f.id && g.body_bytes == f.body_bytes && g.nfds == f.nfds);
    assert_true(g.payload_bytes == f.payload_bytes);

    struct proto_frame bad[] = {f, f, f, f, f, f};
    bad[0].kind = 0;
    bad[1].kind = 4;
    bad[2].status = 1;
    bad[3].body_bytes++;
    bad[4].nfds++;
    bad[5].payload_bytes++;
    for (unsigned i = 0; i < ARRAY_LEN(bad); i++) {
        proto_frame_put(wire, &bad[i]);
        assert_int_equal(proto_frame_get(wire, &g), LEAT_CORRUPT);
    }
    proto_frame_put(wire, &f);
    wire[0] = 'l';
    assert_int_equal(proto_frame_get(wire, &g), LEAT_CORRUPT);
    for (unsigned i = 40; i < PROTO_FRAME; i++) {
        proto_frame_put(wire, &f);
        assert_int_equal(wire[i], 0);
        wire[i] = 1;
        assert_int_equal(proto_frame_get(wire, &g), LEAT_CORRUPT);
    }
}

static void test_versions(void **state)
{
    const unsigned oldest = PROTO_VERSION_MIN, newest = PROTO_VERSION;
    assert_int_equal(proto_version_common(oldest, newest), newest);
    assert_int_equal(proto_version_common(1, oldest), oldest);   /* the other side is older, */
    assert_int_equal(proto_version_common(newest, 255), newest); /* or newer */
    assert_int_equal(proto_version_common(0, 255), newest);
    for (unsigned v = oldest; v <= newest; v++)
        assert_int_equal(proto_version_common(v, v), v);
    assert_int_equal(proto_version_common(0, oldest - 1), 0);
    assert_int_equal(proto_version_common(newest + 1, 255), 0);
}

/* An URGENT is short, so that what is done for one is. */
static void test_urgent_limit(void **state)
{
    struct bytes_out out = {0};
    for (uint32_t n = PROTO_URGENT_MAX; n <= PROTO_URGENT_MAX + 1; n++) {
        struct proto_urgent m = {.n = n}, got;
        bytes_out_reset(&out);
        proto_urgent_put(&out, &m);
        for (uint64_t i = 0; i < n; i++)
            proto_id_put(&out, &(struct proto_id){i});
        struct bytes_in in = bytes_in_of(out.data, out.len);
        assert_int_equal(proto_urgent_next(&in, &got), n > PROTO_URGENT_MAX ? LEAT_CORRUPT : 0);
    }
    bytes_out_fini(&out);
}

/* Every prefix of a good message, and the message with a byte too many, is refused. */
#define ASSERT_EXACT(get, fini, out, type)                                                                   \
    do {                                                                                                     \
        for (size_t len_ = 0; len_ <= (out)->len + 1; len_++) {                                              \
            if (len_ == (out)->len)                                                                          \
                continue;                                                                                    \
            AUTO_FREE uint8_t *copy_ = calloc(1, len_ + 1);                                                  \
            memcpy(copy_, (out)->data, MIN(len_, (out)->len));                                               \
            struct type m_;                                                                                  \
            assert_int_equal(get(copy_, len_, &m_), LEAT_CORRUPT);                                           \
        }                                                                                                    \
    } while (0)

static void test_hello(void **state)
{
    struct proto_hello m = {.version_min = 1,
                            .version_max = 3,
                            .role = PROTO_ROLE_DATA,
                            .pid = 77,
                            .program = "leat",
                            .nonce = {1, 2},
                            .acting_uid = 5,
                            .acting_gid = 6,
                            .uuid = {9},
                            .generation = 4},
                       g;
    struct bytes_out out = {0};
    proto_hello_put(&out, &m);
    assert_int_equal(proto_hello_get(out.data, out.len, &g), 0);
    struct bytes_out again = {0}; /* the structs have padding */
    proto_hello_put(&again, &g);
    assert_int_equal(again.len, out.len);
    assert_memory_equal(again.data, out.data, out.len);
    bytes_out_fini(&again);
    assert_string_equal(g.program, "leat");
    assert_int_equal(g.acting_gid, 6);
    ASSERT_EXACT(proto_hello_get, , &out, proto_hello);
    m.role = 4;
    bytes_out_reset(&out);
    proto_hello_put(&out, &m);
    assert_int_equal(proto_hello_get(out.data, out.len, &g), LEAT_CORRUPT);
    bytes_out_fini(&out);
}

static void test_welcome(void **state)
{
    struct proto_welcome m = {.version = 1,
                              .nonce = {3},
                              .mac = {4},
                              .node = "a:1",
                              .node_id = 2,
                              .region_bytes = 512,
                              .pool_bytes = 1024,
                              .client_count = 3},
                         g;
    struct bytes_out out = {0};
    proto_welcome_put(&out, &m);
    assert_int_equal(proto_welcome_get(out.data, out.len, &g), 0);
    assert_int_equal(g.pool_bytes, 1024);
    assert_string_equal(g.node, "a:1");
    assert_memory_equal(m.mac, g.mac, 32);
    ASSERT_EXACT(proto_welcome_get, , &out, proto_welcome);
    bytes_out_fini(&out);
}

static void test_open(void **state)
{
    struct proto_open m = {.flags = 2, .pool_bytes = 3, .name = (char *)"train", .uri = (char *)"/data"}, g;
    struct bytes_out out = {0};
    proto_open_put(&out, &m);
    assert_int_equal(proto_open_get(out.data, out.len, &g), 0);
    assert_string_equal(g.name, "train");
    assert_string_equal(g.uri, "/data");
    proto_open_fini(&g);
    ASSERT_EXACT(proto_open_get, proto_open_fini, &out, proto_open);

    AUTO_FREE char *longer = malloc(PROTO_STR_MAX + 2);
    memset(longer, 'x', PROTO_STR_MAX + 1);
    longer[PROTO_STR_MAX + 1] = 0;
    m.uri = longer;
    bytes_out_reset(&out);
    proto_open_put(&out, &m);
    assert_int_equal(proto_open_get(out.data, out.len, &g), LEAT_CORRUPT);
    bytes_out_fini(&out);
}

static void test_open_access(void **state)
{
    struct proto_open m = {.flags = 2,
                           .name = (char *)"",
                           .uri = (char *)"s3://b/p",
                           .has_access = true,
                           .access = {.flags = PROTO_ACCESS_FOUND,
                                      .expires = -5,
                                      .endpoint = (char *)"http://h:1",
                                      .access_key = (char *)"AKEY",
                                      .secret_key = (char *)"secret"}},
                      g;
    struct bytes_out out = {0};
    proto_open_put(&out, &m);
    assert_int_equal(proto_open_get(out.data, out.len, &g), 0);
    assert_true(g.has_access);
    assert_int_equal(g.access.flags, PROTO_ACCESS_FOUND);
    assert_int_equal(g.access.expires, -5);
    assert_string_equal(g.access.endpoint, "http://h:1");
    assert_string_equal(g.access.access_key, "AKEY");
    assert_string_equal(g.access.secret_key, "secret");
    assert_null(g.access.token); /* what is not said is NULL */
    assert_null(g.access.region);
    proto_open_fini(&g);
    assert_null(g.access.secret_key);
    /* Cut anywhere within it, or longer: nothing. Without it: an opening of files. */
    size_t plain = out.len;
    m.has_access = false;
    struct bytes_out without = {0};
    proto_open_put(&without, &m);
    for (size_t n = without.len + 1; n < plain; n++)
        assert_int_equal(proto_open_get(out.data, n, &g), LEAT_CORRUPT);
    assert_int_equal(proto_open_get(out.data, without.len, &g), 0);
    assert_false(g.has_access);
    proto_open_fini(&g);
    bytes_put_u8(&out, 0);
    assert_int_equal(proto_open_get(out.data, out.len, &g), LEAT_CORRUPT);
    bytes_out_fini(&without);
    bytes_out_fini(&out);
    AUTO_FREE char *longer = malloc(PROTO_ACCESS_TOKEN_MAX + 2);
    memset(longer, 'x', PROTO_ACCESS_TOKEN_MAX + 1);
    longer[PROTO_ACCESS_TOKEN_MAX + 1] = 0;
    m.has_access = true;
    m.access.token = longer;
    proto_open_put(&out, &m);
    assert_int_equal(proto_open_get(out.data, out.len, &g), LEAT_CORRUPT);
    bytes_out_fini(&out);
}

static void test_ws(void **state)
{
    struct proto_node nodes[] = {{1, ""}, {2, "host:1234"}};
    struct proto_region regions[] = {{0, 0, 4096, 1}, {1, 1, 4096, 1}, {7, 1, 2 << 20, 3}};
    struct proto_ws m = {.ws = 5,
                         .uuid = {1},
                         .generation = 2,
                         .version = 3,
                         .flags = PROTO_WS_EXPLICIT,
                         .mode = 0600,
                         .owner_uid = 10,
                         .owner_gid = 11,
                         .region_bytes = 1 << 20,
                         .pinned_end = 9,
                         .index_bytes = 8,
                         .live_bytes = 7,
                         .name = (char *)"n",
                         .uri = (char *)"u",
                         .nnodes = 2,
                         .nregions = 3,
                         .nodes = nodes,
                         .regions = regions},
                    g;
    struct bytes_out out = {0};
    proto_ws_put(&out, &m);
    assert_int_equal(proto_ws_get(out.data, out.len, &g), 0);
    assert_int_equal(g.nregions, 3);
    assert_memory_equal(g.regions, regions, sizeof(regions));
    assert_string_equal(g.nodes[1].address, "host:1234");
    assert_int_equal(g.live_bytes, 7);
    proto_ws_fini(&g);
    ASSERT_EXACT(proto_ws_get, proto_ws_fini, &out, proto_ws);

    regions[2].node = 2; /* no such node */
    bytes_out_reset(&out);
    proto_ws_put(&out, &m);
    assert_int_equal(proto_ws_get(out.data, out.len, &g), LEAT_CORRUPT);
    regions[2].node = 0;
    regions[2].gid = 1; /* twice */
    bytes_out_reset(&out);
    proto_ws_put(&out, &m);
    assert_int_equal(proto_ws_get(out.data, out.len, &g), LEAT_CORRUPT);
    /* A count that the bytes cannot hold allocates nothing. */
    memset(out.data + out.len - 3 * 16 - 4, 0xff, 4);
    assert_int_equal(proto_ws_get(out.data, out.len, &g), LEAT_CORRUPT);
    bytes_out_fini(&out);
}

static void test_fetched(void **state)
{
    struct proto_run runs[] = {{100, 50, 0, PROTO_STREAM_WINDOW | 1},
                               {150, 10, 4096, PROTO_STREAM_WINDOW | 2}};
    struct proto_fetched m = {.lease = 42, .nruns = 2, .runs = runs}, g;
    struct bytes_out out = {0};
    proto_fetched_put(&out, &m);
    assert_int_equal(proto_fetched_get(out.data, out.len, &g), 0);
    assert_int_equal(g.lease, 42);
    assert_int_equal(g.runs[1].offset, 4096);
    assert_int_equal(g.runs[1].gid, PROTO_STREAM_WINDOW | 2);
    proto_fetched_fini(&g);
    ASSERT_EXACT(proto_fetched_get, proto_fetched_fini, &out, proto_fetched);
    runs[1].address = 90; /* neither order nor distance is promised: ranges come as they were asked for */
    bytes_out_reset(&out);
    proto_fetched_put(&out, &m);
    assert_int_equal(proto_fetched_get(out.data, out.len, &g), 0);
    proto_fetched_fini(&g);
    runs[1] = (struct proto_run){150, UINT64_MAX, 0, 1};
    bytes_out_reset(&out);
    proto_fetched_put(&out, &m);
    assert_int_equal(proto_fetched_get(out.data, out.len, &g), LEAT_CORRUPT);
    bytes_out_fini(&out);
}

static void test_scanned(void **state)
{
    struct proto_scan_object objects[] = {
        {.bytes = 5, .modified = -1, .key = (char *)"a/1.jpg", .etag = (char *)"\"x\""},
        {.offset = 4096,
         .bytes = UINT64_MAX - 4096,
         .modified = 1700000000,
         .key = (char *)"",
         .etag = (char *)""}};
    struct proto_scanned m = {.flags = PROTO_SCANNED_END, .n = 2, .objects = objects}, g;
    struct bytes_out out = {0};
    proto_scanned_put(&out, &m);
    assert_int_equal(proto_scanned_get(out.data, out.len, &g), 0);
    assert_true(g.flags == PROTO_SCANNED_END && g.n == 2 && g.objects[0].modified == -1);
    assert_string_equal(g.objects[0].key, "a/1.jpg");
    assert_string_equal(g.objects[0].etag, "\"x\"");
    assert_true(g.objects[1].offset == 4096 && g.objects[1].bytes == UINT64_MAX - 4096);
    proto_scanned_fini(&g);
    ASSERT_EXACT(proto_scanned_get, proto_scanned_fini, &out, proto_scanned);
    objects[1].bytes++;
    bytes_out_reset(&out);
    proto_scanned_put(&out, &m);
    assert_int_equal(proto_scanned_get(out.data, out.len, &g), LEAT_CORRUPT);
    bytes_out_fini(&out);
}

static void test_report(void **state)
{
    struct proto_report m = {.ws = 7,
                             .loader = 2,
                             .verdict = 9, /* of a newer client */
                             .rank = 3,
                             .world_size = 8,
                             .waiting_permille = 1000,
                             .epoch = 4,
                             .samples = 51200,
                             .length = UINT64_MAX,
                             .bytes_per_s = 1ull << 40,
                             .order = UINT64_MAX - 1,
                             .job = "train-7",
                             .title = "imagenet"},
                        g;
    struct bytes_out out = {0};
    proto_report_put(&out, &m);
    assert_int_equal(proto_report_get(out.data, out.len, &g), 0);
    struct bytes_out again = {0}; /* the struct has padding */
    proto_report_put(&again, &g);
    assert_int_equal(again.len, out.len);
    assert_memory_equal(again.data, out.data, out.len);
    bytes_out_fini(&again);
    ASSERT_EXACT(proto_report_get, , &out, proto_report);
    for (unsigned i = 0; i < 3; i++) { /* no such rank, no such share, a title that fits nowhere */
        g = m;
        if (i == 0)
            g.rank = 8;
        else if (i == 1)
            g.waiting_permille = 1001;
        bytes_out_reset(&out);
        proto_report_put(&out, &g);
        if (i == 2) {
            char title[300] = {0};
            memset(title, 'x', sizeof(title) - 1);
            out.len -= 4 + strlen(m.title);
            bytes_put_str(&out, title);
        }
        assert_int_equal(proto_report_get(out.data, out.len, &g), LEAT_CORRUPT);
    }
    bytes_out_fini(&out);
}

static void test_range(void **state)
{
    struct proto_range m = {3, 4096, 1ull << 40}, g;
    struct bytes_out out = {0};
    proto_range_put(&out, &m);
    assert_int_equal(out.len, 16);
    struct bytes_in in = bytes_in_of(out.data, out.len);
    proto_range_get(&in, &g);
    assert_memory_equal(&m, &g, sizeof(m));
    proto_range_get(&in, &g);
    assert_true(in.bad);
    bytes_out_fini(&out);
}

static void test_mac(void **state)
{
    /* HMAC-SHA256("key", "leat server" ‖ "body" ‖ 32 zero bytes), by Python's hmac. */
    static const uint8_t expected[32] = {0x86, 0x35, 0xfa, 0x25, 0xff, 0xef, 0x23, 0x58, 0x43, 0x1e, 0x32,
                                         0x44, 0xa3, 0xed, 0xa5, 0x02, 0x22, 0x30, 0xbf, 0x6b, 0x92, 0x26,
                                         0x47, 0x05, 0x30, 0xb7, 0x93, 0x82, 0xf1, 0x3c, 0x4e, 0xc6};
    uint8_t nonce[32] = {0}, server[32], client[32], again[32];
    assert_int_equal(proto_mac("key", 3, true, "body", 4, nonce, server), 0);
    assert_memory_equal(server, expected, 32);
    assert_int_equal(proto_mac("key", 3, false, "body", 4, nonce, client), 0);
    assert_false(proto_mac_equal(server, client));
    nonce[31] = 1;
    assert_int_equal(proto_mac("key", 3, true, "body", 4, nonce, again), 0);
    assert_false(proto_mac_equal(server, again));
    assert_int_equal(proto_mac("", 0, true, "body", 4, nonce, again), -EIO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_versions),     cmocka_unit_test(test_frame),
        cmocka_unit_test(test_hello),        cmocka_unit_test(test_welcome),
        cmocka_unit_test(test_open),         cmocka_unit_test(test_open_access),
        cmocka_unit_test(test_ws),           cmocka_unit_test(test_fetched),
        cmocka_unit_test(test_report),       cmocka_unit_test(test_scanned),
        cmocka_unit_test(test_range),        cmocka_unit_test(test_mac),
        cmocka_unit_test(test_urgent_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
