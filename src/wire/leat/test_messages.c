/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of each message, field by field in hex. They stay as they are: other versions of Leat send and read them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include "wire/leat/messages.h"

#include <cmocka.h>

#define NONCE "a0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebf"
#define MAC   "c0c1c2c3c4c5c6c7c8c9cacbcccdcecfd0d1d2d3d4d5d6d7d8d9dadbdcdddedf"
#define UUID  "10111213141516171819" /* of a set */ "1a1b1c1d1e1f"
#define OLD   "20212223242526272829" /* of the version before it */ "2a2b2c2d2e2f"
#define TRAIN                                                                                                \
    "05000000"                                                                                               \
    "747261696e" /* "train" */
#define DATA                                                                                                 \
    "05000000"                                                                                               \
    "2f64617461" /* "/data" */
#define N1                                                                                                   \
    "04000000"                                                                                               \
    "6e313a37" /* "n1:7" */
#define EMPTY "00000000"

static void rising(uint8_t *at, size_t bytes, uint8_t first)
{
    for (size_t i = 0; i < bytes; i++)
        at[i] = (uint8_t)(first + i);
}

/* Compares and empties `out`. */
static void expect(struct bytes_out *out, const char *hex)
{
    assert_false(out->failed);
    AUTO_FREE char *text = calloc(1, out->len * 2 + 1);
    for (size_t i = 0; i < out->len; i++)
        snprintf(text + 2 * i, 3, "%02x", out->data[i]);
    assert_string_equal(text, hex);
    bytes_out_fini(out);
}

/* What a reader makes of `len` bytes, written again; false: it refuses them. They are at the end of an allocation. */
static bool again(const struct proto_layout *layout, const uint8_t *data, size_t len, struct bytes_out *ret)
{
    AUTO_FREE uint8_t *copy = malloc(len + !len);
    union {
        char bytes[4096];
        uint64_t align;
    } m;
    if (len)
        memcpy(copy, data, len);
    int rc = proto_get(copy, len, layout, &m);
    if (rc == 0)
        proto_put(ret, layout, &m);
    if (rc == 0)
        proto_fini(layout, &m);
    assert_true(rc == 0 || rc == LEAT_CORRUPT);
    return rc == 0;
}

/* Its bytes are `hex`; they are read, and written as they were. A part of them, or a byte more, is refused, or is what was meant. */
static void same(const struct proto_layout *layout, const void *m, const char *hex)
{
    struct bytes_out out = {0}, back = {0};
    proto_put(&out, layout, m);
    assert_true(again(layout, out.data, out.len, &back));
    expect(&back, hex);
    bytes_put_u8(&out, 0);
    out.len--;
    for (size_t len = 0; len <= out.len + 1; len++) {
        if (again(layout, out.data, len, &back)) {
            assert_int_equal(back.len, len);
            assert_memory_equal(back.data, out.data, len);
        }
        assert_true(len <= out.len || back.len == 0);
        bytes_out_fini(&back);
    }
    expect(&out, hex);
}
#define GOLDEN(X, m, hex) same(&proto_##X##_layout, (m), hex)
#define MESSAGE(X, ...)   (&(struct proto_##X){__VA_ARGS__})

/* A message whose count announces `n` elements: as long as they are all there, and nothing else. Then each of them. */
static void listed(const struct proto_layout *layout, const void *m, const struct proto_layout *element,
                   const void *elements, size_t size, unsigned n, const char *hex)
{
    struct bytes_out out = {0}, back = {0};
    uint64_t got[32];
    proto_put(&out, layout, m);
    for (unsigned i = 0; i < n; i++)
        proto_put(&out, element, (const char *)elements + i * size);
    for (size_t len = 0; len < out.len; len++) {
        struct bytes_in cut = bytes_in_of(out.data, len);
        assert_int_equal(proto_next(&cut, layout, got), LEAT_CORRUPT);
    }
    struct bytes_in in = bytes_in_of(out.data, out.len);
    assert_int_equal(proto_next(&in, layout, got), 0);
    proto_put(&back, layout, got);
    for (unsigned i = 0; i < n; i++) {
        assert_int_equal(proto_next(&in, element, got), 0);
        proto_put(&back, element, got);
    }
    assert_int_equal(bytes_in_done(&in), 0);
    expect(&back, hex);
    expect(&out, hex);
}
#define LISTED(X, m, E, elements, hex)                                                                       \
    listed(&proto_##X##_layout, (m), &proto_##E##_layout, (elements), sizeof(struct proto_##E), (m)->n, hex)

/* The same, of ranges. */
#define LEFT(X, bytes)                                                                                       \
    do {                                                                                                     \
        struct proto_##X left_;                                                                              \
        struct bytes_in in_ = bytes_in_of(out.data, out.len);                                                \
        assert_int_equal(proto_##X##_next(&in_, &left_), 0);                                                 \
        assert_int_equal(bytes_left(&in_), left_.n *(bytes));                                                \
        assert_int_equal(proto_##X##_get(out.data, out.len - 1, &left_), LEAT_CORRUPT);                      \
    } while (0)

static void test_handshake(void **state)
{
    struct bytes_out out = {0};
    struct proto_hello hello = {.version_min = 2,
                                .version_max = 2,
                                .role = PROTO_ROLE_DATA,
                                .pid = 77,
                                .program = "train",
                                .acting_uid = 1000,
                                .acting_gid = 100,
                                .generation = 3};
    rising(hello.nonce, 32, 0xa0);
    rising(hello.uuid, 16, 0x10);
    GOLDEN(hello, &hello,
           "02"
           "02"
           "02"
           "4d000000" TRAIN NONCE /* uid, gid */ "e8030000"
           "64000000" UUID "03000000");
    struct proto_welcome welcome = {.version = 2,
                                    .node = "n1:7",
                                    .node_id = 1,
                                    .region_bytes = 1 << 20,
                                    .pool_bytes = 1 << 30,
                                    .client_count = 5};
    rising(welcome.nonce, 32, 0xa0);
    rising(welcome.mac, 32, 0xc0);
    GOLDEN(welcome, &welcome,
           "02" NONCE MAC N1 "01000000" /* bytes of a region, of the pool */ "0000100000000000"
           "0000004000000000"
           "0500000000000000");
    struct proto_proof proof;
    rising(proof.mac, 32, 0xc0);
    /* PROOF */
    GOLDEN(proof, &proof, MAC);
    proto_error_text_put(&out, "train"); /* of a status < 0; the answer to QUERY */
    AUTO_FREE char *text = proto_error_text(out.data, out.len);
    assert_string_equal(text, "train");
    expect(&out, TRAIN);
}

static void test_opening(void **state)
{
    struct bytes_out out = {0};
    struct proto_open open = {
        .flags = 3, .pool_bytes = 1 << 20, .name = (char *)"train", .uri = (char *)"/data"};
#define OPENED                                                                                               \
    "03000000"                                                                                               \
    "0000100000000000" TRAIN DATA
    GOLDEN(open, &open, /* OPEN and APPEND */ OPENED);
    open.has_access = true;
    open.access = (struct proto_access){.flags = PROTO_ACCESS_FOUND,
                                        .expires = -2,
                                        .endpoint = (char *)"n1:7",
                                        .access_key = (char *)"train",
                                        .secret_key = (char *)"/data"};
#define ACCESS                                                                                               \
    "04000000"                                                                                               \
    "feffffffffffffff" N1 EMPTY EMPTY EMPTY EMPTY TRAIN DATA EMPTY
    GOLDEN(open, &open, OPENED ACCESS);
    /* SCAN: it begins behind that key */
    GOLDEN(scan, MESSAGE(scan, .after = "n1:7", .open = open), N1 OPENED ACCESS);
    /* its answer: the scan, bytes of the window */
    GOLDEN(scan_reply, MESSAGE(scan_reply, 7, 4096),
           "0700000000000000"
           "0010000000000000");
    GOLDEN(found, MESSAGE(found, -5), "fbffffff");
    proto_found_put(&out, MESSAGE(found, -5)); /* leatd --find-credentials */
    proto_error_text_put(&out, "train");
    expect(&out, "fbffffff" TRAIN);
    GOLDEN(access, &open.access, ACCESS);
    proto_found_put(&out, MESSAGE(found, 0));
    proto_access_put(&out, &open.access);
    expect(&out, "00000000" ACCESS);
    /* CREATE: flags, name */
    GOLDEN(create, MESSAGE(create, 3, (char *)"train"), "03000000" TRAIN);
    /* PROGRESS: stage, samples done and all, bytes done and all */
    GOLDEN(progress, MESSAGE(progress, 3, 1, 2, 3, 4),
           "03000000"
           "0100000000000000"
           "0200000000000000"
           "0300000000000000"
           "0400000000000000");
    /* REVOKED: set, generation */
    GOLDEN(revoked, MESSAGE(revoked, 7, 3),
           "0700000000000000"
           "03000000");
}

static void test_set(void **state)
{
    struct proto_node nodes[] = {{1, ""}, {2, "n1:7"}};
    struct proto_region regions[] = {{0, 0, 4096, 3}, {7, 1, 1 << 21, 3}};
    struct proto_ws ws = {.ws = 7,
                          .generation = 3,
                          .version = 4,
                          .flags = PROTO_WS_EXPLICIT,
                          .mode = 0600,
                          .owner_uid = 1000,
                          .owner_gid = 100,
                          .region_bytes = 1 << 20,
                          .pinned_end = 9,
                          .index_bytes = 8,
                          .live_bytes = 5,
                          .name = (char *)"train",
                          .uri = (char *)"/data",
                          .nnodes = 2,
                          .nregions = 2,
                          .nodes = nodes,
                          .regions = regions};
    rising(ws.uuid, 16, 0x10);
#define WS                                                                                                   \
    "0700000000000000" UUID /* generation, version, flags, mode */ "03000000"                                \
    "04000000"                                                                                               \
    "02000000"                                                                                               \
    "80010000" /* owner */ "e8030000"                                                                        \
    "64000000" /* bytes of a region; end of what is pinned */                                                \
    "0000100000000000"                                                                                       \
    "0900000000000000" /* bytes of the index, of the live table */ "0800000000000000"                        \
    "0500000000000000" TRAIN DATA /* nodes */ "02000000"                                                     \
    "01000000" EMPTY "02000000" N1 /* regions */                                                             \
    "02000000"                                                                                               \
    "00000000"                                                                                               \
    "00000000"                                                                                               \
    "00100000"                                                                                               \
    "03000000"                                                                                               \
    "07000000"                                                                                               \
    "01000000"                                                                                               \
    "00002000"                                                                                               \
    "03000000"
    GOLDEN(ws, &ws, WS);
    /* CLOSE; RELEASE, CANCEL and SCAN_END are such numbers, too */
    GOLDEN(id, MESSAGE(id, 7), "0700000000000000");
    /* REGIONS: set, first, count */
    GOLDEN(regions, MESSAGE(regions, 7, 1, 64),
           "0700000000000000"
           "01000000"
           "40000000");
    /* its answer */
    LISTED(regions_reply, MESSAGE(regions_reply, 2), gid, ((struct proto_gid[]){{1}, {0x80000000u}}),
           "02000000"
           "01000000"
           "00000080");
    /* WAIT */
    LISTED(wait, MESSAGE(wait, 7, 2), id, ((struct proto_id[]){{5}, {6}}),
           "0700000000000000"
           "02000000"
           "0500000000000000"
           "0600000000000000");
    /* FETCH and PREFETCH: ranges of samples */
    LISTED(fetch, MESSAGE(fetch, 7, 1), span, ((struct proto_span[]){{5, 6}}),
           "0700000000000000"
           "01000000"
           "0500000000000000"
           "0600000000000000");
    struct proto_run run = {100, 50, 4096, 0x80000000u | 1};
    struct proto_fetched fetched = {.lease = 42, .nruns = 1, .runs = &run};
    GOLDEN(fetched, &fetched,
           "2a00000000000000"
           "01000000"
           "6400000000000000"
           "3200000000000000"
           "0010000000000000"
           "01000080");
    /* BROKER: set, node */
    GOLDEN(broker, MESSAGE(broker, 7, 1),
           "0700000000000000"
           "01000000");
    /* the same, by one rail */
    GOLDEN(broker, MESSAGE(broker, 7, 1, true, 2),
           "0700000000000000"
           "01000000"
           "02000000");
    /* its answer: nothing in version 2; the version of the connection */
    struct bytes_out nothing = {0};
    struct proto_brokered brokered;
    proto_brokered_put(&nothing, MESSAGE(brokered, false));
    assert_int_equal(nothing.len, 0);
    assert_int_equal(proto_brokered_get("", 0, &brokered), 0);
    assert_false(brokered.says);
    GOLDEN(brokered, MESSAGE(brokered, true, 3), "03");
    /* CREDITS: slot */
    GOLDEN(credits, MESSAGE(credits, 6), "06000000");
}

static void test_administration(void **state)
{
    /* QUERY: which, of what */
    GOLDEN(query, MESSAGE(query, 2, "train"), "02000000" TRAIN);
    /* DROP */
    GOLDEN(drop, MESSAGE(drop, 1, 1000, "train"),
           "01000000"
           "e803000000000000" TRAIN);
    /* STOP: by force */
    GOLDEN(stop, MESSAGE(stop, 1), "01000000");
    /* VERIFY: set, flags */
    GOLDEN(verify, MESSAGE(verify, 7, 1),
           "0700000000000000"
           "01000000");
    /* its answer: how many are bad, the first */
    GOLDEN(verify_reply, MESSAGE(verify_reply, 2, "train"), "0200000000000000" TRAIN);
    struct proto_report report = {.ws = 7,
                                  .loader = 1,
                                  .flags = PROTO_REPORT_ENDED,
                                  .verdict = 2,
                                  .rank = 3,
                                  .world_size = 8,
                                  .waiting_permille = 100,
                                  .epoch = 4,
                                  .samples = 5,
                                  .length = 6,
                                  .batch_samples = 16,
                                  .step_samples = 128,
                                  .total_samples = 9,
                                  .total_bytes = 10,
                                  .samples_per_ks = 11,
                                  .bytes_per_s = 12,
                                  .order = 13,
                                  .job = "n1:7",
                                  .title = "train"};
    GOLDEN(report, &report, /* set, loader, epoch, samples */
           "0700000000000000"
           "0100000000000000"
           "0400000000000000"
           "0500000000000000" /* of the epoch, a batch, a step */ "0600000000000000"
           "1000000000000000"
           "8000000000000000" /* in all; a second; order */ "0900000000000000"
           "0a00000000000000"
           "0b00000000000000"
           "0c00000000000000"
           "0d00000000000000" /* flags, verdict, rank */
           "01000000"
           "02000000"
           "03000000"
           "08000000"
           "64000000" N1 TRAIN);
}

static void test_scan(void **state)
{
    /* SCAN_NEXT: scan, from, released */
    GOLDEN(scan_next, MESSAGE(scan_next, 7, 5, 3),
           "0700000000000000"
           "0500000000000000"
           "0300000000000000");
    struct proto_scan_object object = {4096, 9, -1, (char *)"train", (char *)"n1:7"};
    struct proto_scanned scanned = {.flags = PROTO_SCANNED_END, .n = 1, .objects = &object};
    GOLDEN(scanned, &scanned,
           "01000000"
           "01000000"
           "0010000000000000"
           "0900000000000000"
           "ffffffffffffffff" TRAIN N1);
}

static void test_data(void **state)
{
    struct bytes_out out = {0};
    struct proto_range range = {1, 4096, 1ull << 32};
#define RANGE                                                                                                \
    "01000000"                                                                                               \
    "00100000"                                                                                               \
    "0000000001000000"
    bytes_put_u32(&out, 1); /* READ */
    proto_range_put(&out, &range);
    expect(&out, "01000000" RANGE);
    proto_write_put(&out, MESSAGE(write, 5, 2, 1)); /* WRITE: first sample, count, ranges */
    proto_range_put(&out, &range);
    LEFT(write, PROTO_RANGE);
    expect(&out, "0500000000000000"
                 "02000000"
                 "01000000" RANGE);
    /* RDMA_KEYS */
    LISTED(keys, MESSAGE(keys, 1), gid, (&(struct proto_gid){9}),
           "01000000"
           "09000000");
    /* RDMA_PUT: view, rail, ranges */
    LISTED(puts, MESSAGE(puts, 4, 1, 1), put_range, (&(struct proto_put_range){1, 4096, 1ull << 32, 512}),
           "04000000"
           "01000000"
           "01000000" RANGE "0002000000000000");
}

static void test_peers(void **state)
{
    struct proto_install install = {.flags = 1, .first_new_address = 512};
    struct proto_commit commit;
    struct proto_set_flags set = {.flags = 3};
    struct proto_ready ready = {.n = 1};
    rising(install.replaces, 16, 0x20);
    rising(commit.uuid, 16, 0x10);
    rising(commit.replaces, 16, 0x20);
    rising(set.uuid, 16, 0x10);
    rising(ready.uuid, 16, 0x10);
    /* NODE */
    GOLDEN(name, MESSAGE(name, "n1:7"), N1);
    GOLDEN(node_ask, MESSAGE(node_ask, "n1:7"), N1);
    /* from version 3 on with its incarnation */
    GOLDEN(node_ask, MESSAGE(node_ask, "n1:7", true, 9), N1 "0900000000000000");
    /* its answer: capacity, free, bytes of a region, used, incarnation */
    GOLDEN(node_reply, MESSAGE(node_reply, "n1:7", 4, 3, 2, 1, 9),
           N1 "0400000000000000"
              "0300000000000000"
              "0200000000000000"
              "0100000000000000"
              "0900000000000000");
    /* INSTALL, behind a proto_ws: flags, first new address, the version before it */
    GOLDEN(install, &install,
           "01000000"
           "0002000000000000" OLD);
    /* COMMIT */
    GOLDEN(commit, &commit, UUID OLD);
    /* FORGET and RESYNC: set, flags */
    GOLDEN(set_flags, &set, UUID "03000000");
    /* the answer to RESYNC: all is filled */
    GOLDEN(resync_reply, MESSAGE(resync_reply, 1), "01000000");
    /* READY: set; sample, field, CRC, offset, bytes, status */
    LISTED(ready, &ready, ready_record, (&(struct proto_ready_record){5, 2, 0xdeadbeef, 512, 1024, -5}),
           UUID "01000000"
                "0500000000000000"
                "02000000"
                "efbeadde"
                "0002000000000000"
                "0004000000000000"
                "fbffffff");
    /* MOVED: set; region, node, generation */
    struct proto_moved moved = {.n = 1};
    rising(moved.uuid, 16, 0x10);
    LISTED(moved, &moved, place, (&(struct proto_place){7, 1, 3}),
           UUID "01000000"
                "07000000"
                "01000000"
                "03000000");
    /* URGENT: set; samples */
    struct proto_urgent urgent = {.n = 2};
    rising(urgent.uuid, 16, 0x10);
    LISTED(urgent, &urgent, id, ((struct proto_id[]){{5}, {0x0102030405060708}}),
           UUID "02000000"
                "0500000000000000"
                "0807060504030201");
    /* DESCRIBE and APPEND: user, group, proto_open; what is sealed comes behind it */
    GOLDEN(describe, MESSAGE(describe, 1000, 100, 4, (const uint8_t *)"open"),
           "e8030000"
           "64000000"
           "04000000"
           "6f70656e");
    /* ACCESS: user, source; what is sealed comes behind it */
    GOLDEN(access_of, MESSAGE(access_of, 1000, "/data"), "e8030000" DATA);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_handshake),      cmocka_unit_test(test_opening), cmocka_unit_test(test_set),
        cmocka_unit_test(test_administration), cmocka_unit_test(test_scan),    cmocka_unit_test(test_data),
        cmocka_unit_test(test_peers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
