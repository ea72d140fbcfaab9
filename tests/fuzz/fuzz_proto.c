/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames and messages of wire/leat. First byte: which reader; what one accepts must come out of the writer as it was, byte for byte.
 */
#include "wire/leat/messages.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define M(X)                                                                                                 \
    {                                                                                                        \
        &proto_##X##_layout, NULL                                                                            \
    }
/* With elements behind it. */
#define N(X, E)                                                                                              \
    {                                                                                                        \
        &proto_##X##_layout, &proto_##E##_layout                                                             \
    }

/* Seeds say a message by its place here. NULL: frame, ranges. */
static const struct {
    const struct proto_layout *layout, *element;
} messages[] = {
    {NULL, NULL},
    M(hello),
    M(welcome),
    M(open),
    M(ws),
    M(fetched),
    {NULL, NULL},
    M(report),
    M(scanned),
    M(proof),
    M(id),
    M(access),
    M(found),
    M(create),
    M(progress),
    M(revoked),
    M(regions),
    M(broker),
    M(credits),
    M(query),
    M(query_reply),
    M(drop),
    M(stop),
    M(verify),
    M(verify_reply),
    M(scan),
    M(scan_reply),
    M(scan_next),
    M(name),
    M(node_reply),
    M(install),
    M(commit),
    M(set_flags),
    M(resync_reply),
    M(describe),
    M(access_of),
    N(regions_reply, gid),
    N(wait, id),
    N(fetch, span),
    N(keys, gid),
    N(puts, put_range),
    N(ready, ready_record),
    M(write),
    M(brokered),
    N(moved, place),
    M(node_ask),
    N(urgent, id),
};

static void same(struct bytes_out *out, const uint8_t *data, size_t size)
{
    if (!out->failed && (out->len != size || (size && memcmp(out->data, data, size) != 0)))
        abort();
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

static void ranges(const uint8_t *data, size_t size, struct bytes_out *out)
{
    struct bytes_in in = bytes_in_of(data, size);
    struct proto_range range;
    while (bytes_left(&in) >= PROTO_RANGE) {
        proto_range_get(&in, &range);
        proto_range_put(out, &range);
    }
    same(out, data, size / PROTO_RANGE * PROTO_RANGE);
    proto_range_get(&in, &range);
    if (!in.bad)
        abort();
}

/* Also when other things follow: what was read comes out. */
static void message(const struct proto_layout *layout, const struct proto_layout *element,
                    const uint8_t *data, size_t size, struct bytes_out *out)
{
    union {
        struct proto_report report;
        struct proto_welcome welcome;
        struct proto_scan scan;
        struct proto_ws ws;
    } m;
    struct bytes_in in = bytes_in_of(data, size);
    int rc = proto_next(&in, layout, &m);
    if (rc == 0)
        proto_put(out, layout, &m);
    if (rc == 0)
        proto_fini(layout, &m);
    while (rc == 0 && element && bytes_left(&in) > 0) {
        if (proto_next(&in, element, &m) < 0)
            abort(); /* it had been promised */
        proto_put(out, element, &m);
    }
    if (rc == 0)
        same(out, data, in.pos);
    rc = proto_get(data, size, layout, &m);
    if (rc == 0 && in.pos != size)
        abort();
    if (rc == 0)
        proto_fini(layout, &m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bytes_out out = {0};
    if (size == 0)
        return 0;
    size_t which = data[0] % ARRAY_LEN(messages);
    if (which == 0)
        frame(data + 1, size - 1);
    else if (!messages[which].layout)
        ranges(data + 1, size - 1, &out);
    else
        message(messages[which].layout, messages[which].element, data + 1, size - 1, &out);
    bytes_out_fini(&out);
    return 0;
}
