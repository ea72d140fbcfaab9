/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames and messages of wire/leat/proto.h. First byte: which reader; what one accepts must come out of the writer as it
 * was, byte for byte.
 */
#include "wire/leat/messages.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void same(struct bytes_out *out, const uint8_t *data, size_t size)
{
    if (!out->failed && (out->len != size || (size && memcmp(out->data, data, size) != 0)))
        abort();
    bytes_out_fini(out);
}

static void frame(const uint8_t *data, size_t size)
{
    struct proto_frame f;
    uint8_t again[PROTO_FRAME];
    if (size < PROTO_FRAME || proto_frame_get(data, &f) < 0)
        return;
    proto_frame_put(again, &f);
    if (memcmp(again, data, PROTO_FRAME) != 0)
        abort();
    if (f.body_bytes > PROTO_BODY_MAX || f.nfds > PROTO_FDS_MAX || f.status > 0)
        abort();
}

static void ranges(const uint8_t *data, size_t size)
{
    struct bytes_in in = bytes_in_of(data, size);
    struct bytes_out out = {0};
    struct proto_range range;
    while (bytes_left(&in) >= 16) {
        proto_range_get(&in, &range);
        proto_range_put(&out, &range);
    }
    same(&out, data, size / 16 * 16);
    proto_range_get(&in, &range);
    if (!in.bad)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bytes_out out = {0};
    union {
        struct proto_hello hello;
        struct proto_welcome welcome;
        struct proto_open open;
        struct proto_ws ws;
        struct proto_fetched fetched;
        struct proto_report report;
        struct proto_scanned scanned;
    } m;
    if (size == 0)
        return 0;
    uint8_t which = data[0];
    data++;
    size--;
    switch (which % 9) {
    case 0:
        frame(data, size);
        break;
    case 1:
        if (proto_hello_get(data, size, &m.hello) == 0) {
            proto_hello_put(&out, &m.hello);
            same(&out, data, size);
        }
        break;
    case 2:
        if (proto_welcome_get(data, size, &m.welcome) == 0) {
            proto_welcome_put(&out, &m.welcome);
            same(&out, data, size);
        }
        break;
    case 3:
        if (proto_open_get(data, size, &m.open) == 0) {
            proto_open_put(&out, &m.open);
            same(&out, data, size);
            proto_open_fini(&m.open);
        }
        break;
    case 4:
        if (proto_ws_get(data, size, &m.ws) == 0) {
            proto_ws_put(&out, &m.ws);
            same(&out, data, size);
            proto_ws_fini(&m.ws);
        }
        break;
    case 5:
        if (proto_fetched_get(data, size, &m.fetched) == 0) {
            proto_fetched_put(&out, &m.fetched);
            same(&out, data, size);
            proto_fetched_fini(&m.fetched);
        }
        break;
    case 6:
        ranges(data, size);
        break;
    case 8:
        if (proto_scanned_get(data, size, &m.scanned) == 0) {
            proto_scanned_put(&out, &m.scanned);
            same(&out, data, size);
            proto_scanned_fini(&m.scanned);
        }
        break;
    default:
        if (proto_report_get(data, size, &m.report) == 0) {
            proto_report_put(&out, &m.report);
            same(&out, data, size);
        }
    }
    return 0;
}
