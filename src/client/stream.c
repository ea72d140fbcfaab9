/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream.c: samples that the pool does not keep. The daemon reads them into staging regions (FETCH), which we map like
 * any other; the bytes are copied out and checked, and the lease goes back so that the window moves on.
 *
 *   wants, sorted ──▶ runs of consecutive samples ──▶ FETCH ──▶ copy + CRC ──▶ RELEASE
 *
 * Failure modes: LEAT_BUSY means that the window is taken by others' leases, LEAT_NO_SPACE that it is smaller than the portion: it is
 * halved, down to a single block, then to its samples; a single sample that is too large is the caller's error, one that
 * finds no room is asked for again until the deadline. Invariants: at most one lease at a time a call, released on
 * every way out; never more than the window.
 */
#include "client/client.h"

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/ledger.h"

#define PORTION_BYTES (64 * MIB) /* asked for at once: a full pipe, and far below any sensible window */
#define RANGES_MAX    4096u
#define RETRY_US      2000u

/* FETCH and PREFETCH. */
static void put_ranges(struct bytes_out *body, const struct leat_ws *ws, const struct stream_range *ranges,
                       uint32_t n)
{
    proto_fetch_put(body, &(struct proto_fetch){.ws = ws->info.ws, .n = n});
    for (uint32_t i = 0; i < n; i++)
        proto_span_put(body, &(struct proto_span){.first = ranges[i].first, .count = ranges[i].count});
}

static int by_address(const void *a, const void *b)
{
    const struct proto_run *x = a, *y = b;
    return x->address < y->address ? -1 : x->address > y->address;
}

int stream_fetch(struct leat_ws *ws, const struct stream_range *ranges, uint32_t n,
                 const struct client_rpc_how *how, struct stream_lease **ret_lease, struct leat_error *err)
{
    struct stream_lease *lease = calloc(1, sizeof(*lease));
    AUTO_BYTES struct bytes_out body = {0};
    struct net_reply reply;
    if (!lease)
        return error_set(err, -ENOMEM, "out of memory");
    put_ranges(&body, ws, ranges, n);
    int rc = client_rpc_call(ws->client, PROTO_FETCH, &body, NULL, 0, how, &reply, err);
    if (rc) {
        free(lease);
        return rc;
    }
    rc = proto_fetched_get(reply.body.data, reply.body.len, &lease->fetched);
    if (rc) {
        net_reply_fini(&reply);
        free(lease);
        return error_set(err, rc, "the daemon's answer to a fetch cannot be read");
    }
    lease->ws = ws;
    qsort(lease->fetched.runs, lease->fetched.nruns, sizeof(*lease->fetched.runs), by_address);
    rc = ws_map_window(ws, &lease->fetched, &reply, how, err);
    net_reply_fini(&reply);
    if (rc) {
        stream_release(lease);
        return rc;
    }
    *ret_lease = lease;
    return 0;
}

void stream_prefetch(struct leat_ws *ws, const struct stream_range *ranges, uint32_t n)
{
    AUTO_BYTES struct bytes_out body = {0};
    n = MIN(n, RANGES_MAX); /* a hint: never so long that it fills the socket of a daemon that is busy */
    put_ranges(&body, ws, ranges, n);
    client_rpc_post(ws->client, PROTO_PREFETCH, &body);
}

void stream_release(struct stream_lease *lease)
{
    if (!lease)
        return;
    client_rpc_post_id(lease->ws->client, PROTO_RELEASE, lease->fetched.lease);
    proto_fetched_fini(&lease->fetched);
    free(lease);
}

/* A run that holds `address`: the last that begins at or before it, or one before that, since runs widened to whole
 * blocks may overlap. */
static const struct proto_run *find_run(const struct proto_fetched *f, uint64_t address)
{
    uint32_t low = 0, high = f->nruns;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (f->runs[mid].address <= address)
            low = mid + 1;
        else
            high = mid;
    }
    while (low > 0 && f->runs[low - 1].address + f->runs[low - 1].bytes <= address)
        low--;
    return low ? &f->runs[low - 1] : NULL;
}

int stream_copy(const struct stream_lease *lease, uint64_t sample, unsigned field,
                const struct index_part *part, void *dst, struct leat_error *err)
{
    struct leat_ws *ws = lease->ws;
    uint64_t address = part->address, left = part->bytes;
    uint8_t *to = dst;
    uint32_t crc = 0;
    char what[256];
    while (left) {
        const struct proto_run *run = find_run(&lease->fetched, address);
        if (!run)
            return error_set(err, -EIO, "the daemon fetched less than %s",
                             ws_describe(ws, sample, field, what));
        uint32_t gid = run->gid;
        const uint8_t *region =
            gid & PROTO_STREAM_WINDOW ? ws->windows[gid & ~PROTO_STREAM_WINDOW].at : ws_region(ws, gid);
        uint64_t skip = address - run->address, bytes = MIN(left, run->bytes - skip);
        crc = crc32c_copy(crc, to, region + run->offset + skip, bytes);
        address += bytes;
        to += bytes;
        left -= bytes;
    }
    ledger_add(LEDGER_GATHER, part->bytes);
    atomic_fetch_add_explicit(&client_counters.fetched_bytes, part->bytes, memory_order_relaxed);
    delivered(ws, DELIVERED_STREAMED, part->bytes);
    if (crc == ws_crc(ws, sample, field))
        return 0;
    int rc = ws_check_generation(ws, err);
    return rc ? rc
              : error_set(err, LEAT_CORRUPT,
                          "checksum of %s does not match what was recorded: its source has changed",
                          ws_describe(ws, sample, field, what));
}

static int by_sample(const void *a, const void *b)
{
    const struct stream_want *x = a, *y = b;
    return x->sample < y->sample ? -1 : x->sample > y->sample;
}

/* The ranges of one FETCH, which shrinks if they are too many. */
struct portion {
    uint64_t max_bytes, block;
    uint32_t max_ranges, nranges;
    struct stream_range *ranges;
};

static struct stream_range range_of(const struct leat_ws *ws, uint64_t sample, uint64_t block)
{
    uint64_t first = block > 1 ? sample - sample % block : sample;
    return (struct stream_range){first, MIN(MAX(block, 1ull), ws->index.header->nsamples - first)};
}

/* How many wants, from the first, make a portion: at least one whole sample. */
static uint32_t make_portion(const struct leat_ws *ws, const struct stream_want *wants, uint32_t n,
                             struct portion *p)
{
    uint32_t i = 0;
    uint64_t bytes = 0;
    p->nranges = 0;
    while (i < n) {
        uint32_t same = i;
        uint64_t more = 0;
        while (same < n && wants[same].sample == wants[i].sample)
            more += wants[same++].part.bytes;
        if (i && bytes + more > p->max_bytes)
            break;
        struct stream_range r = range_of(ws, wants[i].sample, p->block),
                            *last = p->nranges ? &p->ranges[p->nranges - 1] : NULL;
        if (last && last->first == r.first)
            ; /* a block that is there already */
        else if (last && p->block <= 1 && last->first + last->count == r.first)
            last->count++;
        else if (p->nranges == p->max_ranges)
            break;
        else
            p->ranges[p->nranges++] = r;
        bytes += more;
        i = same;
    }
    return i;
}

/* Less at once: half the ranges, then half the bytes, then samples instead of blocks. False: it is one sample already. */
static bool shrink(struct portion *p, const struct stream_want *wants, uint32_t count)
{
    if (p->nranges > 1) {
        p->max_ranges = p->nranges / 2;
        return true;
    }
    if (p->block > 1) {
        p->block = 0;
        return true;
    }
    if (wants[0].sample == wants[count - 1].sample)
        return false;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++)
        bytes += wants[i].part.bytes;
    p->max_bytes = bytes / 2;
    return true;
}

int stream_read(struct leat_ws *ws, struct stream_want *wants, uint32_t n, uint64_t block,
                const struct client_rpc_how *how, struct leat_error *err)
{
    struct portion p = {.max_bytes = PORTION_BYTES, .block = block, .max_ranges = MIN(n, RANGES_MAX)};
    AUTO_FREE struct stream_range *ranges = malloc(sizeof(*ranges) * MAX(p.max_ranges, 1u));
    if (!ranges)
        return error_set(err, -ENOMEM, "out of memory");
    p.ranges = ranges;
    uint64_t poll_ns = 0;
    qsort(wants, n, sizeof(*wants), by_sample);
    for (uint32_t at = 0; at < n;) {
        uint32_t count = make_portion(ws, wants + at, n - at, &p);
        struct stream_lease *lease;
        int rc = stream_fetch(ws, p.ranges, p.nranges, how, &lease, err);
        if ((rc == LEAT_NO_SPACE || rc == LEAT_BUSY) && shrink(&p, wants + at, count))
            continue;
        if (rc == LEAT_BUSY && client_cancelled(ws->client, how, &poll_ns))
            return client_cancelled_error(err);
        if (rc == LEAT_BUSY && !(how->deadline_ns && clock_now_ns() >= how->deadline_ns)) {
            usleep(RETRY_US); /* leases of other threads or processes: they end with their copies */
            continue;
        }
        if (rc)
            return rc;
        for (uint32_t i = at; !rc && i < at + count; i++)
            rc = stream_copy(lease, wants[i].sample, wants[i].field, &wants[i].part, wants[i].dst, err);
        stream_release(lease);
        if (rc)
            return rc;
        at += count;
    }
    return 0;
}
