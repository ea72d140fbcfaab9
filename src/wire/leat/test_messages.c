/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of each message, field by field in hex. They stay as they are: other versions of Leat send and read them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include "wire/leat/proto.h"

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
static void golden(struct bytes_out *out, const char *hex)
{
    assert_false(out->failed);
    AUTO_FREE char *text = calloc(1, out->len * 2 + 1);
    for (size_t i = 0; i < out->len; i++)
        snprintf(text + 2 * i, 3, "%02x", out->data[i]);
    assert_string_equal(text, hex);
    bytes_out_fini(out);
}

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
    proto_hello_put(&out, &hello);
    golden(&out, "02"
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
    proto_welcome_put(&out, &welcome);
    golden(&out, "02" NONCE MAC N1 "01000000" /* bytes of a region, of the pool */ "0000100000000000"
                 "0000004000000000"
                 "0500000000000000");
    uint8_t mac[32];
    rising(mac, 32, 0xc0);
    bytes_put(&out, mac, 32); /* PROOF */
    golden(&out, MAC);
    bytes_put_str(&out, "train"); /* of a status < 0; the answer to QUERY */
    golden(&out, TRAIN);
}

static void test_opening(void **state)
{
    struct bytes_out out = {0};
    struct proto_open open = {
        .flags = 3, .pool_bytes = 1 << 20, .name = (char *)"train", .uri = (char *)"/data"};
    proto_open_put(&out, &open); /* OPEN and APPEND */
#define OPENED                                                                                               \
    "03000000"                                                                                               \
    "0000100000000000" TRAIN DATA
    golden(&out, OPENED);
    open.has_access = true;
    open.access = (struct proto_access){.flags = PROTO_ACCESS_FOUND,
                                        .expires = -2,
                                        .endpoint = (char *)"n1:7",
                                        .access_key = (char *)"train",
                                        .secret_key = (char *)"/data"};
    proto_open_put(&out, &open);
#define ACCESS                                                                                               \
    "04000000"                                                                                               \
    "feffffffffffffff" N1 EMPTY EMPTY EMPTY EMPTY TRAIN DATA EMPTY
    golden(&out, OPENED ACCESS);
    bytes_put_str(&out, "n1:7"); /* SCAN: to go on behind it */
    proto_open_put(&out, &open);
    golden(&out, N1 OPENED ACCESS);
    bytes_put_u64(&out, 7); /* its answer: the scan, bytes of the window */
    bytes_put_u64(&out, 4096);
    golden(&out, "0700000000000000"
                 "0010000000000000");
    bytes_put_u32(&out, (uint32_t)-5); /* leatd --find-credentials */
    bytes_put_str(&out, "train");
    golden(&out, "fbffffff" TRAIN);
    bytes_put_u32(&out, 0);
    proto_access_put(&out, &open.access);
    golden(&out, "00000000" ACCESS);
    bytes_put_u32(&out, 3); /* CREATE: flags, name */
    bytes_put_str(&out, "train");
    golden(&out, "03000000" TRAIN);
    bytes_put_u32(&out, 3); /* PROGRESS: stage, samples done and all, bytes done and all */
    bytes_put_u64(&out, 1);
    bytes_put_u64(&out, 2);
    bytes_put_u64(&out, 3);
    bytes_put_u64(&out, 4);
    golden(&out, "03000000"
                 "0100000000000000"
                 "0200000000000000"
                 "0300000000000000"
                 "0400000000000000");
    bytes_put_u64(&out, 7); /* REVOKED: set, generation */
    bytes_put_u32(&out, 3);
    golden(&out, "0700000000000000"
                 "03000000");
}

static void test_set(void **state)
{
    struct bytes_out out = {0};
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
    proto_ws_put(&out, &ws);
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
    golden(&out, WS);
    bytes_put_u64(&out, 7); /* CLOSE; RELEASE, CANCEL and SCAN_END are such numbers, too */
    golden(&out, "0700000000000000");
    bytes_put_u64(&out, 7); /* REGIONS: set, first, count */
    bytes_put_u32(&out, 1);
    bytes_put_u32(&out, 64);
    golden(&out, "0700000000000000"
                 "01000000"
                 "40000000");
    bytes_put_u32(&out, 2); /* its answer */
    bytes_put_u32(&out, 1);
    bytes_put_u32(&out, PROTO_STREAM_WINDOW);
    golden(&out, "02000000"
                 "01000000"
                 "00000080");
    bytes_put_u64(&out, 7); /* WAIT */
    bytes_put_u32(&out, 2);
    bytes_put_u64(&out, 5);
    bytes_put_u64(&out, 6);
    golden(&out, "0700000000000000"
                 "02000000"
                 "0500000000000000"
                 "0600000000000000");
    bytes_put_u64(&out, 7); /* FETCH and PREFETCH: ranges of samples */
    bytes_put_u32(&out, 1);
    bytes_put_u64(&out, 5);
    bytes_put_u64(&out, 6);
    golden(&out, "0700000000000000"
                 "01000000"
                 "0500000000000000"
                 "0600000000000000");
    struct proto_run run = {100, 50, 4096, PROTO_STREAM_WINDOW | 1};
    struct proto_fetched fetched = {.lease = 42, .nruns = 1, .runs = &run};
    proto_fetched_put(&out, &fetched);
    golden(&out, "2a00000000000000"
                 "01000000"
                 "6400000000000000"
                 "3200000000000000"
                 "0010000000000000"
                 "01000080");
    bytes_put_u64(&out, 7); /* BROKER: set, node */
    bytes_put_u32(&out, 1);
    golden(&out, "0700000000000000"
                 "01000000");
    bytes_put_u64(&out, 7); /* the same, by one rail */
    bytes_put_u32(&out, 1);
    bytes_put_u32(&out, 2);
    golden(&out, "0700000000000000"
                 "01000000"
                 "02000000");
    bytes_put_u32(&out, 6); /* CREDITS: slot */
    golden(&out, "06000000");
}

static void test_administration(void **state)
{
    struct bytes_out out = {0};
    bytes_put_u32(&out, 2); /* QUERY: which, of what */
    bytes_put_str(&out, "train");
    golden(&out, "02000000" TRAIN);
    bytes_put_u32(&out, 1); /* DROP */
    bytes_put_u64(&out, 1000);
    bytes_put_str(&out, "train");
    golden(&out, "01000000"
                 "e803000000000000" TRAIN);
    bytes_put_u32(&out, 1); /* STOP: by force */
    golden(&out, "01000000");
    bytes_put_u64(&out, 7); /* VERIFY: set, flags */
    bytes_put_u32(&out, 1);
    golden(&out, "0700000000000000"
                 "01000000");
    bytes_put_u64(&out, 2); /* its answer: how many are bad, the first */
    bytes_put_str(&out, "train");
    golden(&out, "0200000000000000" TRAIN);
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
    proto_report_put(&out, &report);
    golden(&out, /* set, loader, epoch, samples */
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
    struct bytes_out out = {0};
    bytes_put_u64(&out, 7); /* SCAN_NEXT: scan, from, released */
    bytes_put_u64(&out, 5);
    bytes_put_u64(&out, 3);
    golden(&out, "0700000000000000"
                 "0500000000000000"
                 "0300000000000000");
    struct proto_scan_object object = {4096, 9, -1, (char *)"train", (char *)"n1:7"};
    struct proto_scanned scanned = {.flags = PROTO_SCANNED_END, .n = 1, .objects = &object};
    proto_scanned_put(&out, &scanned);
    golden(&out, "01000000"
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
    golden(&out, "01000000" RANGE);
    bytes_put_u64(&out, 5); /* WRITE: first sample, count, ranges */
    bytes_put_u32(&out, 2);
    bytes_put_u32(&out, 1);
    proto_range_put(&out, &range);
    golden(&out, "0500000000000000"
                 "02000000"
                 "01000000" RANGE);
    bytes_put_u32(&out, 1); /* RDMA_KEYS */
    bytes_put_u32(&out, 9);
    golden(&out, "01000000"
                 "09000000");
    bytes_put_u32(&out, 4); /* RDMA_PUT: view, rail, ranges */
    bytes_put_u32(&out, 1);
    bytes_put_u32(&out, 1);
    proto_range_put(&out, &range);
    bytes_put_u64(&out, 512);
    golden(&out, "04000000"
                 "01000000"
                 "01000000" RANGE "0002000000000000");
}

static void test_peers(void **state)
{
    struct bytes_out out = {0};
    uint8_t uuid[16], old[16];
    rising(uuid, 16, 0x10);
    rising(old, 16, 0x20);
    bytes_put_str(&out, "n1:7"); /* NODE */
    golden(&out, N1);
    bytes_put_str(&out, "n1:7"); /* its answer: capacity, free, bytes of a region, used, incarnation */
    bytes_put_u64(&out, 4);
    bytes_put_u64(&out, 3);
    bytes_put_u64(&out, 2);
    bytes_put_u64(&out, 1);
    bytes_put_u64(&out, 9);
    golden(&out, N1 "0400000000000000"
                    "0300000000000000"
                    "0200000000000000"
                    "0100000000000000"
                    "0900000000000000");
    bytes_put_u32(&out, 1); /* INSTALL, behind a proto_ws: flags, first new address, the version before it */
    bytes_put_u64(&out, 512);
    bytes_put(&out, old, 16);
    golden(&out, "01000000"
                 "0002000000000000" OLD);
    bytes_put(&out, uuid, 16); /* COMMIT */
    bytes_put(&out, old, 16);
    golden(&out, UUID OLD);
    bytes_put(&out, uuid, 16); /* FORGET and RESYNC: set, flags */
    bytes_put_u32(&out, 3);
    golden(&out, UUID "03000000");
    bytes_put_u32(&out, 1); /* the answer to RESYNC: all is filled */
    golden(&out, "01000000");
    bytes_put(&out, uuid, 16); /* READY: set; sample, field, CRC, offset, bytes, status */
    bytes_put_u32(&out, 1);
    bytes_put_u64(&out, 5);
    bytes_put_u32(&out, 2);
    bytes_put_u32(&out, 0xdeadbeef);
    bytes_put_u64(&out, 512);
    bytes_put_u64(&out, 1024);
    bytes_put_u32(&out, (uint32_t)-5);
    golden(&out, UUID "01000000"
                      "0500000000000000"
                      "02000000"
                      "efbeadde"
                      "0002000000000000"
                      "0004000000000000"
                      "fbffffff");
    bytes_put_u32(&out,
                  1000); /* DESCRIBE and APPEND: user, group, proto_open; what is sealed comes behind it */
    bytes_put_u32(&out, 100);
    bytes_put_u32(&out, 4);
    bytes_put(&out, "open", 4);
    golden(&out, "e8030000"
                 "64000000"
                 "04000000"
                 "6f70656e");
    bytes_put_u32(&out, 1000); /* ACCESS: user, source; what is sealed comes behind it */
    bytes_put_str(&out, "/data");
    golden(&out, "e8030000" DATA);
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
