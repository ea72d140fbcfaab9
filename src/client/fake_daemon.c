/* SPDX-License-Identifier: Apache-2.0 */
#include "client/fake_daemon.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/testing.h"

#define MUST(x)                                                                                              \
    do {                                                                                                     \
        if (!(x)) {                                                                                          \
            fprintf(stderr, "fake daemon, line %d: %s\n", __LINE__, #x);                                     \
            abort();                                                                                         \
        }                                                                                                    \
    } while (0)

/* --- the set ------------------------------------------------------------------------------------------------------ */

uint64_t fake_bytes(uint64_t sample, unsigned field, bool *ret_present)
{
    *ret_present = field != 1 || sample % 7 != 6;
    return field == 0 ? 60 : field == 1 ? sample * 977 % 5001 : 4;
}

uint8_t fake_byte(uint64_t sample, unsigned field, uint64_t i)
{
    if (field == 2)
        return i ? 0 : (uint8_t)(sample % 3);
    return (uint8_t)(sample * 31 + field * 7 + i * 13 + (i >> 8));
}

bool fake_matches(uint64_t sample, unsigned field, const void *data, uint64_t bytes)
{
    bool present;
    if (fake_bytes(sample, field, &present) != bytes || !present)
        return false;
    for (uint64_t i = 0; i < bytes; i++)
        if (((const uint8_t *)data)[i] != fake_byte(sample, field, i))
            return false;
    return true;
}

static void build_index(struct fake_daemon *f)
{
    struct index_builder *b;
    static const char *const classes[] = {"ant", "bee", "cat"};
    const uint64_t shape[] = {3, 10};
    MUST(!index_builder_new(f->options.pushed ? INDEX_KIND_PUSHED : INDEX_KIND_DIR, "/nowhere", &b));
    uint64_t base = index_builder_reserve(b, FAKE_SAMPLES * 60, 4096, 0);
    MUST(index_builder_field(b, "data", "<u2", INDEX_FIELD_UNIFORM, 2, shape, base, 60) == 0);
    MUST(index_builder_field(b, "blob", "", INDEX_FIELD_TABLE, 0, NULL, 0, 0) == 1);
    MUST(index_builder_field(b, "label", "", INDEX_FIELD_LABEL, 0, NULL, 0, 0) == 2);
    for (unsigned c = 0; c < 3; c++)
        MUST(index_builder_class(b, classes[c]) == c);
    for (uint64_t i = 0; i < FAKE_SAMPLES; i++) {
        char key[32];
        bool present;
        int len = snprintf(key, sizeof(key), "s/%05u.bin", (unsigned)i);
        MUST(!index_builder_sample(b, key, (size_t)len));
        uint64_t bytes = fake_bytes(i, 1, &present);
        if (present)
            MUST(!index_builder_part(b, 1, index_builder_reserve(b, bytes, 64, 0), bytes));
        MUST(!index_builder_label(b, (uint32_t)(i % 3)));
    }
    struct leat_error err;
    f->index_fd = memfd_create("fake-index", MFD_CLOEXEC);
    int rc = index_builder_finish(b, f->index_fd, &err);
    if (rc)
        fprintf(stderr, "index_builder_finish: %s\n", err.message);
    MUST(rc == 0);
    index_builder_free(b);
    MUST(!index_map(f->index_fd, &f->index, &err));
}

static int shared(uint64_t bytes, uint8_t **ret_map)
{
    int fd = memfd_create("fake", MFD_CLOEXEC);
    MUST(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
    *ret_map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    MUST(*ret_map != MAP_FAILED);
    return fd;
}

static uint8_t *pool_at(struct fake_daemon *f, uint64_t address)
{
    return f->regions[address / FAKE_REGION_BYTES] + address % FAKE_REGION_BYTES;
}

static void fill_pool(struct fake_daemon *f)
{
    const struct index_header *h = f->index.header;
    uint64_t live = live_bytes(h->nsamples, h->nfields);
    f->nregions = (uint32_t)div_up(h->address_end, FAKE_REGION_BYTES);
    MUST(f->nregions <= FAKE_MAX_REGIONS);
    for (uint32_t r = 0; r < f->nregions; r++)
        f->region_fds[r] = shared(FAKE_REGION_BYTES, &f->regions[r]);
    const uint64_t places_at = align_up(live, 64 * KIB);
    live = f->options.places ? places_at + 4096 : live;
    f->live_fd = shared(live, &f->live_map);
    f->stream_window_fd = shared(FAKE_REGION_BYTES, &f->window);
    f->live = (struct live_header *)f->live_map;
    *f->live = (struct live_header){.magic = LIVE_MAGIC,
                                    .nsamples = h->nsamples,
                                    .nfields = h->nfields,
                                    .generation = 1,
                                    .state_offset = 4096,
                                    .crc_offset = live_crc_offset(h->nsamples),
                                    .total_bytes = live};
    if (f->options.places) {
        f->places = (_Atomic uint64_t *)(void *)(f->live_map + places_at);
        f->live->places_offset = places_at;
        f->live->nplaces = f->nregions;
        for (uint32_t r = 0; r < f->nregions; r++)
            f->places[r] = live_place(f->options.remote_odd && r % 2, 0);
    }
    uint32_t *crcs = (uint32_t *)(f->live_map + f->live->crc_offset);
    for (uint64_t i = 0; i < FAKE_SAMPLES; i++) {
        bool streamed = f->options.streamed_tail && i >= FAKE_SAMPLES / 2;
        for (unsigned field = 0; field < 2; field++) {
            struct index_part part;
            uint32_t crc = 0;
            if (!index_part(&f->index, i, field, &part))
                continue;
            for (uint64_t k = 0; k < part.bytes; k++) {
                uint8_t byte = fake_byte(i, field, k);
                crc = crc32c(crc, &byte, 1);
                if (!streamed)
                    *pool_at(f, part.address + k) = byte;
            }
            crcs[i * FAKE_FIELDS + field] = crc;
        }
        f->live_map[4096 + i] = streamed                 ? LIVE_STREAMED
                                : f->options.all_loading ? LIVE_LOADING
                                                         : LIVE_RESIDENT;
    }
}

void fake_corrupt(struct fake_daemon *f, uint64_t sample, unsigned field)
{
    struct index_part part;
    MUST(index_part(&f->index, sample, field, &part));
    *pool_at(f, part.address + part.bytes / 2) ^= 4;
}

/* --- answers -------------------------------------------------------------------------------------------------------- */

static void reply(int fd, const struct net_reply *to, int status, struct bytes_out *body, const int *fds,
                  unsigned nfds)
{
    /* net_frame_send has no status: the frame is written by hand. */
    uint8_t head[PROTO_FRAME];
    struct bytes_out text = {0};
    if (status < 0) {
        bytes_put_str(&text, "the fake daemon says no");
        body = &text;
    }
    size_t len = body ? body->len : 0;
    proto_frame_put(head, &(struct proto_frame){.version = PROTO_VERSION,
                                                .kind = PROTO_REPLY,
                                                .type = to->frame.type,
                                                .status = status,
                                                .id = to->frame.id,
                                                .body_bytes = (uint32_t)len});
    if (status < 0) {
        MUST(send(fd, head, sizeof(head), MSG_NOSIGNAL) >= 0 || errno == EPIPE);
        MUST(send(fd, body->data, len, MSG_NOSIGNAL) >= 0 || errno == EPIPE);
    } else {
        net_frame_send(fd, PROTO_VERSION, PROTO_REPLY, to->frame.type, to->frame.id, body, fds, nfds, 0);
    }
    bytes_out_fini(&text);
    if (body && body != &text)
        bytes_out_fini(body);
}

static void on_hello(struct fake_daemon *f, int fd, const struct net_reply *m)
{
    MUST(!proto_hello_get(m->body.data, m->body.len, &f->offered));
    struct proto_welcome w = {.version = f->hello_version ? (uint8_t)f->hello_version : PROTO_VERSION,
                              .node = "fake",
                              .region_bytes = FAKE_REGION_BYTES,
                              .client_count = 1};
    struct bytes_out body = {0};
    proto_welcome_put(&body, &w);
    reply(fd, m, 0, &body, NULL, 0);
}

static void on_open(struct fake_daemon *f, int fd, const struct net_reply *m)
{
    struct proto_open o;
    MUST(!proto_open_get(m->body.data, m->body.len, &o));
    if (strstr(o.uri, "missing")) {
        proto_open_fini(&o);
        reply(fd, m, LEAT_NOT_FOUND, NULL, NULL, 0);
        return;
    }
    struct proto_node nodes[2] = {{.id = 10}, {.id = 11, .address = "other:1"}};
    struct proto_region regions[FAKE_MAX_REGIONS];
    for (uint32_t r = 0; r < f->nregions; r++)
        regions[r] = (struct proto_region){
            .gid = r, .node = f->options.remote_odd && r % 2, .page_bytes = 4096, .generation = 1};
    struct proto_ws ws = {.ws = 77,
                          .generation = f->live->generation,
                          .version = 1,
                          .flags = (f->options.streamed_tail ? PROTO_WS_STREAMED : 0) |
                                   (f->options.pushed ? PROTO_WS_PUSHED | PROTO_WS_EXPLICIT : 0),
                          .region_bytes = FAKE_REGION_BYTES,
                          .pinned_end = f->index.header->address_end,
                          .index_bytes = f->index.blob_bytes,
                          .live_bytes = f->live->total_bytes,
                          .name = o.name,
                          .uri = o.uri,
                          .nnodes = f->options.remote_odd || f->options.places ? 2 : 1,
                          .nregions = f->nregions,
                          .nodes = nodes,
                          .regions = regions};
    struct bytes_out body = {0};
    proto_ws_put(&body, &ws);
    int fds[] = {f->index_fd, f->live_fd};
    struct bytes_out progress = {0};
    bytes_put_u32(&progress, 1);
    for (unsigned i = 1; i <= 4; i++)
        bytes_put_u64(&progress, i);
    for (unsigned i = 0; i < f->options.slow_open; i++) {
        net_frame_send(fd, PROTO_VERSION, PROTO_EVENT, PROTO_PROGRESS, m->frame.id, &progress, NULL, 0, 0);
        test_pause_us(40000);
    }
    net_frame_send(fd, PROTO_VERSION, PROTO_EVENT, PROTO_PROGRESS, m->frame.id, &progress, NULL, 0, 0);
    bytes_out_fini(&progress);
    reply(fd, m, 0, &body, fds, 2);
    proto_open_fini(&o);
}

static bool is_remote(struct fake_daemon *f, uint32_t gid)
{
    return f->places ? (uint32_t)f->places[gid] : f->options.remote_odd && gid % 2;
}

static void on_regions(struct fake_daemon *f, int fd, const struct net_reply *m)
{
    struct bytes_in in = bytes_in_of(m->body.data, m->body.len);
    bytes_get_u64(&in);
    uint32_t first = bytes_get_u32(&in), count = bytes_get_u32(&in), n = 0;
    int fds[PROTO_FDS_MAX];
    struct bytes_out gids = {0}, body = {0};
    for (uint32_t g = first; g < first + count; g++) {
        if (g < f->nregions && !is_remote(f, g) && atomic_exchange(&f->leaves[g], false))
            fake_move(f, g, 1);
        if (g & PROTO_STREAM_WINDOW)
            fds[n++] = f->stream_window_fd;
        else if (g < f->nregions && !is_remote(f, g))
            fds[n++] = f->region_fds[g];
        else
            continue;
        bytes_put_u32(&gids, g);
    }
    bytes_put_u32(&body, n);
    bytes_put(&body, gids.data, gids.len);
    bytes_out_fini(&gids);
    f->regions_asked++;
    reply(fd, m, 0, &body, fds, n);
}

static void on_wait(struct fake_daemon *f, int fd, const struct net_reply *m)
{
    struct bytes_in in = bytes_in_of(m->body.data, m->body.len);
    bytes_get_u64(&in);
    uint32_t n = bytes_get_u32(&in);
    f->waits++;
    for (uint32_t i = 0; i < (n ? n : FAKE_SAMPLES); i++) {
        uint64_t sample = n ? bytes_get_u64(&in) : i;
        if (f->live_map[4096 + sample] == LIVE_FAILED) {
            reply(fd, m, -EIO, NULL, NULL, 0);
            return;
        }
        if (f->live_map[4096 + sample] == LIVE_LOADING)
            __atomic_store_n(&f->live_map[4096 + sample], LIVE_RESIDENT, __ATOMIC_RELEASE);
    }
    reply(fd, m, 0, NULL, NULL, 0);
}

/* Everything asked for, part by part, into the one staging region. */
static void on_fetch(struct fake_daemon *f, int fd, const struct net_reply *m)
{
    struct bytes_in in = bytes_in_of(m->body.data, m->body.len);
    struct proto_run runs[2 * FAKE_SAMPLES];
    struct proto_fetched out = {.lease = f->fetches + 1, .runs = runs};
    uint64_t at = 0, window = f->options.window_bytes ? f->options.window_bytes : FAKE_REGION_BYTES;
    bytes_get_u64(&in);
    uint32_t n = bytes_get_u32(&in);
    for (unsigned field = 0; field < 2; field++) {
        struct bytes_in ranges = in;
        for (uint32_t r = 0; r < n; r++) {
            uint64_t first = bytes_get_u64(&ranges), count = bytes_get_u64(&ranges);
            for (uint64_t s = first; s < first + count; s++) {
                struct index_part part;
                if (!index_part(&f->index, s, field, &part) || !part.bytes)
                    continue;
                if (part.bytes > window - at) {
                    reply(fd, m, LEAT_NO_SPACE, NULL, NULL, 0);
                    return;
                }
                for (uint64_t k = 0; k < part.bytes; k++)
                    f->window[at + k] = fake_byte(s, field, k);
                runs[out.nruns++] = (struct proto_run){part.address, part.bytes, at, PROTO_STREAM_WINDOW | 3};
                at += part.bytes;
            }
        }
    }
    struct bytes_out body = {0};
    proto_fetched_put(&body, &out);
    f->fetches++;
    reply(fd, m, 0, &body, &f->stream_window_fd, out.lease == 1 ? 1 : 0);
}

static void *resolve(struct net_serve_target *target, uint32_t gid, uint64_t offset, uint64_t bytes,
                     bool write, int *ret_status)
{
    struct fake_daemon *f = container_of(target, struct fake_daemon, target);
    (void)write;
    if (gid >= f->nregions || offset > FAKE_REGION_BYTES || bytes > FAKE_REGION_BYTES - offset) {
        *ret_status = LEAT_INVALID;
        return NULL;
    }
    if (f->leaves[gid])
        fake_move(f, gid, 0);
    if (f->refuses || f->leaves[gid]) {
        f->leaves[gid] = false;
        *ret_status = LEAT_INVALID;
        return NULL;
    }
    return f->regions[gid] + offset;
}

static int written(struct net_serve_target *target, uint64_t first, uint32_t count)
{
    struct fake_daemon *f = container_of(target, struct fake_daemon, target);
    for (uint64_t i = first; i < first + count; i++)
        __atomic_store_n(&f->live_map[4096 + i], LIVE_RESIDENT, __ATOMIC_RELEASE);
    return 0;
}

static void unref(struct net_serve_target *target)
{
    (void)target;
}

static void on_broker(struct fake_daemon *f, int fd, const struct net_reply *m)
{
    int pair[2];
    struct bytes_out body = {0};
    f->brokers++;
    if (f->broker_fails > 0) {
        f->broker_fails--;
        reply(fd, m, LEAT_PEER_GONE, NULL, NULL, 0);
        return;
    }
    MUST(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair));
    if (f->hold_broker) {
        if (f->broker_peer >= 0)
            close(f->broker_peer);
        f->broker_peer = pair[1];
    } else {
        int before = atomic_exchange(&f->data_fd, fcntl(pair[0], F_DUPFD_CLOEXEC, 0));
        if (before >= 0)
            close(before);
        MUST(!net_server_add(f->server, pair[1], &f->target));
    }
    if (f->hello_version != 2) /* whose answers have no body */
        proto_brokered_put(&body, &(struct proto_brokered){.says = true, .version = PROTO_VERSION});
    reply(fd, m, 0, &body, &pair[0], 1);
    close(pair[0]);
}

static void on_scan(struct fake_daemon *f, int fd, const struct net_reply *m)
{
    struct bytes_out body = {0};
    int window = memfd_create("scan", MFD_CLOEXEC);
    MUST(window >= 0 && !ftruncate(window, FAKE_SCAN_BYTES));
    for (uint64_t i = 0; i < 8; i++)
        for (unsigned k = 0; k < fake_bytes(i, 0, &(bool){0}); k++) {
            uint8_t byte = fake_byte(i, 0, k);
            MUST(pwrite(window, &byte, 1, (off_t)(i * 8192 + k)) == 1);
        }
    bytes_put_u64(&body, 7);
    bytes_put_u64(&body, FAKE_SCAN_BYTES);
    reply(fd, m, 0, &body, &window, 1);
    close(window);
}

static void on_scan_next(struct fake_daemon *f, int fd, const struct net_reply *m)
{
    struct bytes_in in = bytes_in_of(m->body.data, m->body.len);
    struct proto_scan_object objects[3];
    struct proto_scanned out = {.objects = objects};
    char keys[3][24];
    MUST(bytes_get_u64(&in) == 7);
    f->scan_from = bytes_get_u64(&in);
    f->scan_released = bytes_get_u64(&in);
    for (uint64_t i = f->scan_from; i < f->scan_objects && out.n < 3; i++, out.n++) {
        snprintf(keys[out.n], sizeof(keys[0]), "%05u", (unsigned)i);
        objects[out.n] = (struct proto_scan_object){.offset = i % 8 * 8192 + f->scan_skew,
                                                    .bytes = fake_bytes(i % 8, 0, &(bool){0}),
                                                    .key = keys[out.n],
                                                    .etag = keys[0]};
    }
    out.flags = out.n ? 0 : PROTO_SCANNED_END;
    struct bytes_out body = {0};
    proto_scanned_put(&body, &out);
    reply(fd, m, 0, &body, NULL, 0);
}

static void answer(struct fake_daemon *f, int fd, const struct net_reply *m)
{
    struct bytes_out body = {0};
    switch (m->frame.type) {
    case PROTO_HELLO:
        on_hello(f, fd, m);
        return;
    case PROTO_OPEN:
        on_open(f, fd, m);
        return;
    case PROTO_REGIONS:
        on_regions(f, fd, m);
        return;
    case PROTO_WAIT:
        on_wait(f, fd, m);
        return;
    case PROTO_FETCH:
        on_fetch(f, fd, m);
        return;
    case PROTO_BROKER:
        on_broker(f, fd, m);
        return;
    case PROTO_SCAN:
        on_scan(f, fd, m);
        return;
    case PROTO_SCAN_NEXT:
        on_scan_next(f, fd, m);
        return;
    case PROTO_SCAN_END:
        f->scan_ends++;
        return;
    case PROTO_RELEASE:
        f->releases++;
        return;
    case PROTO_CANCEL:
        f->cancels++;
        return;
    case PROTO_REPORT:
        if (proto_report_get(m->body.data, m->body.len, &f->report) == 0)
            f->reports++;
        return;
    case PROTO_QUERY:
        bytes_put_str(&body, "{\"fake\":true}");
        reply(fd, m, 0, &body, NULL, 0);
        return;
    case PROTO_VERIFY:
        bytes_put_u64(&body, 2);
        bytes_put_str(&body, "s/00001.bin");
        reply(fd, m, 0, &body, NULL, 0);
        return;
    case PROTO_CLOSE:
        f->closes++; /* fall through */
    default:
        reply(fd, m, 0, NULL, NULL, 0);
    }
}

/* --- life --------------------------------------------------------------------------------------------------------------- */

static void serve(struct fake_daemon *f, int fd)
{
    f->connection = fd;
    while (!f->stop) {
        struct pollfd pfd = {.fd = fd, .events = POLLIN};
        if (poll(&pfd, 1, 20) <= 0)
            continue;
        struct net_reply m;
        if (net_frame_receive(fd, &m, clock_now_ns() + NS_PER_S))
            break;
        f->heard_version = m.frame.version;
        if (!f->mute)
            answer(f, fd, &m);
        else if (m.frame.type == PROTO_CANCEL)
            f->cancels++;
        net_reply_fini(&m);
    }
    f->connection = f->data_fd = -1;
    close(fd);
}

static void *run(void *arg)
{
    struct fake_daemon *f = arg;
    while (!f->stop) {
        struct pollfd pfd = {.fd = f->listen_fd, .events = POLLIN};
        if (poll(&pfd, 1, 20) <= 0)
            continue;
        int fd = accept4(f->listen_fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0)
            serve(f, fd);
    }
    return NULL;
}

struct fake_daemon *fake_start(const struct fake_options *options)
{
    struct fake_daemon *f = calloc(1, sizeof(*f));
    struct leat_error err;
    MUST(f);
    f->options = *options;
    f->broker_peer = -1;
    f->connection = -1;
    f->target = (struct net_serve_target){.resolve = resolve, .written = written, .unref = unref};
    if (options->path) {
        snprintf(f->path, sizeof(f->path), "%s", options->path);
    } else {
        strcpy(f->folder, "/tmp/leat-test-XXXXXX");
        MUST(mkdtemp(f->folder));
        snprintf(f->path, sizeof(f->path), "%s/leatd.sock", f->folder);
    }
    build_index(f);
    fill_pool(f);
    MUST(!net_server_new(1, &f->server));
    MUST(!net_listen(f->path, 0600, &f->listen_fd, &err));
    MUST(!pthread_create(&f->thread, NULL, run, f));
    return f;
}

void fake_stop(struct fake_daemon *f)
{
    f->stop = true;
    pthread_join(f->thread, NULL);
    net_server_free(f->server);
    if (f->broker_peer >= 0)
        close(f->broker_peer);
    if (f->data_fd >= 0)
        close(f->data_fd);
    close(f->listen_fd);
    unlink(f->path);
    if (f->folder[0])
        rmdir(f->folder);
    for (uint32_t r = 0; r < f->nregions; r++) {
        munmap(f->regions[r], FAKE_REGION_BYTES);
        close(f->region_fds[r]);
    }
    munmap(f->live_map, f->live->total_bytes);
    munmap(f->window, FAKE_REGION_BYTES);
    close(f->live_fd);
    close(f->stream_window_fd);
    close(f->index_fd);
    index_close(&f->index);
    free(f);
}

void fake_move(struct fake_daemon *f, uint32_t gid, uint32_t node)
{
    f->places[gid] = live_place(node, (uint32_t)(f->places[gid] >> 32) + 1);
    f->live->moves++;
}

void fake_revoke(struct fake_daemon *f, bool send_event)
{
    atomic_fetch_add(&f->live->generation, 1);
    for (uint32_t r = 0; r < f->nregions; r++)
        memset(f->regions[r], 0, FAKE_REGION_BYTES);
    if (send_event) {
        struct bytes_out body = {0};
        bytes_put_u64(&body, 77);
        bytes_put_u32(&body, 2);
        net_frame_send(f->connection, PROTO_VERSION, PROTO_EVENT, PROTO_REVOKED, 0, &body, NULL, 0, 0);
        bytes_out_fini(&body);
    }
}

void fake_hang_up(struct fake_daemon *f)
{
    shutdown(f->connection, SHUT_RDWR);
}

void fake_node_hangs_up(struct fake_daemon *f)
{
    shutdown(f->data_fd, SHUT_RDWR);
}
