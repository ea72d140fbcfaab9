/* SPDX-License-Identifier: Apache-2.0 */
/* A real server on a thread of its own, and a client that speaks the protocol by hand, in orders that a good one would not use. */
#include <setjmp.h>
#include <stdarg.h>

#include "base/clock.h"
#include "base/testing.h"
#include "dataset/index.h"
#include "leat/leat.h"
#include "loop/loop.h"
#include "rpc/conn.h"
#include "pool/pool.h"
#include "pool/region/prefault.h"
#include "pool/region/region.h"
#include "daemon/server_internal.h"
#include "pool/set/wset.h"

#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>

#include <cmocka.h>

#define ROWS      2048u
#define ROW_BYTES 4096u

struct host {
    char folder[64], data[128], more[128], socket[128];
    struct loop *loop;
    struct pool *pool;
    struct server *server;
    pthread_t thread;
};

static void write_array(const char *path, unsigned seed)
{
    char header[128];
    int n = snprintf(header + 10, sizeof(header) - 10,
                     "{'descr': '|u1', 'fortran_order': False, 'shape': (%u, %u), }", ROWS, ROW_BYTES);
    memset(header + 10 + n, ' ', sizeof(header) - 10 - (size_t)n);
    header[127] = '\n';
    memcpy(header, "\x93NUMPY\x01\x00\x76\x00", 10);
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    assert_int_equal(fwrite(header, 1, sizeof(header), f), sizeof(header));
    uint8_t row[ROW_BYTES];
    for (unsigned i = 0; i < ROWS; i++) {
        memset(row, (int)(seed + i), sizeof(row));
        assert_int_equal(fwrite(row, 1, sizeof(row), f), sizeof(row));
    }
    fclose(f);
}

static void *run(void *arg)
{
    loop_run(arg);
    return NULL;
}

static void host_start_ready(struct host *h, uint64_t cap_bytes, uint64_t ready)
{
    *h = (struct host){.folder = "/tmp/leat-test-XXXXXX"};
    assert_non_null(mkdtemp(h->folder));
    setenv("XDG_CACHE_HOME", h->folder, 1);
    snprintf(h->data, sizeof(h->data), "%s/a.npy", h->folder);
    snprintf(h->more, sizeof(h->more), "%s/b.npy", h->folder);
    snprintf(h->socket, sizeof(h->socket), "%s/leatd.sock", h->folder);
    write_array(h->data, 1);
    write_array(h->more, 7);
    struct leat_error err = {0};
    struct pool_config pc = {.cap_bytes = cap_bytes,
                             .region_bytes = 2 * MIB,
                             .prefault_bytes = ready,
                             .pages = {.huge_dir = -1},
                             .fill_threads = 2,
                             .data_threads = 1,
                             .disk_depth = 8,
                             .disk_engine = "worker"};
    struct server_config sc = {.socket = h->socket, .node_name = "test", .program = "test"};
    assert_int_equal(loop_new(&h->loop), 0);
    assert_int_equal(pool_new(h->loop, &pc, &h->pool, &err), 0);
    assert_int_equal(server_new(h->loop, h->pool, &sc, &h->server, &err), 0);
}

static void host_start(struct host *h, uint64_t cap_bytes)
{
    host_start_ready(h, cap_bytes, 0);
}

static void host_run(struct host *h)
{
    assert_int_equal(pthread_create(&h->thread, NULL, run, h->loop), 0);
}

static void host_stop(struct host *h, bool running)
{
    if (running) {
        loop_stop(h->loop);
        pthread_join(h->thread, NULL);
    }
    server_free(h->server);
    assert_int_equal(pool_stop(h->pool), 0);
    assert_int_equal(atomic_load(&h->pool->sets_alive), 0);
    assert_int_equal(atomic_load(&h->pool->budget.used_bytes), 0);
    pool_free(h->pool);
    loop_free(h->loop);
    char command[128];
    snprintf(command, sizeof(command), "rm -rf %s", h->folder);
    assert_int_equal(system(command), 0);
}

/* --- a client by hand ---------------------------------------------------------------------------------------------- */

static uint64_t last_id;

static void send_request(int fd, uint16_t type, struct bytes_out *body)
{
    assert_int_equal(net_frame_send(fd, PROTO_REQUEST, type, ++last_id, body, NULL, 0, 0), 0);
    bytes_out_fini(body);
}

/* The reply to `id`; events are passed over. */
static void receive_reply(int fd, uint64_t id, struct net_reply *reply)
{
    for (;;) {
        assert_int_equal(net_frame_receive(fd, reply, clock_now_ns() + 20 * NS_PER_S), 0);
        if (reply->frame.kind == PROTO_REPLY && reply->frame.id == id)
            return;
        net_reply_fini(reply);
    }
}

static int ask(int fd, uint16_t type, struct bytes_out *body, struct net_reply *ret_reply)
{
    struct net_reply reply;
    send_request(fd, type, body);
    receive_reply(fd, last_id, &reply);
    int status = reply.frame.status;
    if (ret_reply)
        *ret_reply = reply;
    else
        net_reply_fini(&reply);
    return status;
}

static int dial(struct host *h)
{
    int fd;
    struct leat_error err = {0};
    struct bytes_out body = {0};
    struct proto_hello hello = {
        .version_min = PROTO_VERSION, .version_max = PROTO_VERSION, .role = PROTO_ROLE_CONTROL};
    assert_int_equal(net_dial(h->socket, 0, &fd, &err), 0);
    proto_hello_put(&body, &hello);
    assert_int_equal(ask(fd, PROTO_HELLO, &body, NULL), 0);
    return fd;
}

static void open_body(struct bytes_out *body, const char *name, const char *uri)
{
    struct proto_open o = {.name = (char *)name, .uri = (char *)uri};
    proto_open_put(body, &o);
}

static uint64_t open_set(int fd, uint16_t type, const char *name, const char *uri, struct proto_ws *ret_ws,
                         int ret_fds[2])
{
    struct bytes_out body = {0};
    struct net_reply reply;
    struct proto_ws ws;
    open_body(&body, name, uri);
    assert_int_equal(ask(fd, type, &body, &reply), 0);
    assert_int_equal(proto_ws_get(reply.body.data, reply.body.len, &ws), 0);
    for (unsigned k = 0; ret_fds && k < 2; k++) {
        ret_fds[k] = reply.fds[k];
        reply.fds[k] = -1;
    }
    net_reply_fini(&reply);
    uint64_t id = ws.ws;
    if (ret_ws)
        *ret_ws = ws;
    else
        proto_ws_fini(&ws);
    return id;
}

static int wait_for(int fd, uint64_t ws)
{
    struct bytes_out body = {0};
    bytes_put_u64(&body, ws);
    bytes_put_u32(&body, 0);
    return ask(fd, PROTO_WAIT, &body, NULL);
}

static int fetch(int fd, uint64_t ws, uint64_t first, uint64_t count, uint64_t *ret_lease)
{
    struct bytes_out body = {0};
    struct net_reply reply;
    bytes_put_u64(&body, ws);
    bytes_put_u32(&body, 1);
    bytes_put_u64(&body, first);
    bytes_put_u64(&body, count);
    int status = ask(fd, PROTO_FETCH, &body, &reply);
    struct proto_fetched f;
    if (status == 0) {
        assert_int_equal(proto_fetched_get(reply.body.data, reply.body.len, &f), 0);
        *ret_lease = f.lease;
        proto_fetched_fini(&f);
    }
    net_reply_fini(&reply);
    return status;
}

static void release(int fd, uint64_t lease)
{
    struct bytes_out body = {0};
    bytes_put_u64(&body, lease);
    send_request(fd, PROTO_RELEASE, &body);
}

static int close_set(int fd, uint64_t ws)
{
    struct bytes_out body = {0};
    bytes_put_u64(&body, ws);
    return ask(fd, PROTO_CLOSE, &body, NULL);
}

static int drop(int fd, const char *name, uint32_t flags)
{
    struct bytes_out body = {0};
    bytes_put_u32(&body, flags);
    bytes_put_u64(&body, 0);
    bytes_put_str(&body, name);
    return ask(fd, PROTO_DROP, &body, NULL);
}

/* In the place of libc's: what files are said to lie on; 0: what they do. */
static _Atomic long file_system;

int fstatfs(int fd, struct statfs *ret)
{
    long rc = syscall(SYS_fstatfs, fd, ret);
    if (rc == 0 && file_system)
        ret->f_type = file_system;
    return (int)rc;
}

/* Requests as the server makes them, with any user. */
struct answer {
    bool here;
    struct wset *ws;
    int code;
};

static void opened(struct open_request *r, struct wset *ws, const struct leat_error *err)
{
    struct answer *a = r->user;
    *a = (struct answer){.here = true, .ws = ws, .code = err ? err->code : 0};
}

static struct answer open_within(struct host *h, uint32_t uid, uint32_t flags, uint64_t pool_bytes,
                                 const char *name, const char *uri)
{
    struct answer a = {0};
    struct open_request *r = calloc(1, sizeof(*r));
    assert_non_null(r);
    *r = (struct open_request){.uid = uid,
                               .gid = uid,
                               .flags = flags,
                               .pool_bytes = pool_bytes,
                               .name = strdup(name),
                               .uri = strdup(uri),
                               .opened = opened,
                               .user = &a};
    pool_open(h->pool, r);
    for (unsigned k = 0; k < 2000 && !a.here; k++)
        loop_turn(h->loop, 10);
    assert_true(a.here);
    return a;
}

static struct answer open_as(struct host *h, uint32_t uid, uint32_t flags, const char *name, const char *uri)
{
    return open_within(h, uid, flags, 0, name, uri);
}

/* --- tests --------------------------------------------------------------------------------------------------------- */

static void test_lease_outlives_its_set(void **state)
{
    struct host h;
    host_start(&h, 4 * MIB);
    host_run(&h);
    int fd = dial(&h);
    uint64_t lease, ws = open_set(fd, PROTO_OPEN, "", h.data, NULL, NULL);
    assert_int_equal(fetch(fd, ws, ROWS - 8, 8, &lease), 0);
    assert_int_equal(close_set(fd, ws), 0);
    assert_int_equal(drop(fd, h.data, 0), 0);
    release(fd, lease);
    assert_int_equal(wait_for(fd, 99), LEAT_STALE); /* it is still there, and answers */
    close(fd);
    host_stop(&h, true);
}

static void test_failed_range(void **state)
{
    struct host h;
    host_start(&h, 4 * MIB);
    host_run(&h);
    int fd = dial(&h);
    uint64_t lease, ws = open_set(fd, PROTO_OPEN, "", h.data, NULL, NULL);
    assert_int_equal(wait_for(fd, ws), 0);
    assert_int_equal(truncate(h.data, 4096), 0);
    for (unsigned k = 0; k < 4; k++)
        assert_int_equal(fetch(fd, ws, ROWS - 8, 8, &lease), LEAT_STALE);
    close(fd);
    host_stop(&h, true);
}

/* Many small ranges through a small window: each finds a place, whatever was there before. */
static void test_window_turns_over(void **state)
{
    struct host h;
    host_start(&h, 4 * MIB);
    host_run(&h);
    int fd = dial(&h);
    uint64_t held, lease, ws = open_set(fd, PROTO_OPEN, "", h.data, NULL, NULL);
    assert_int_equal(fetch(fd, ws, ROWS - 1, 1, &held), 0);
    for (unsigned k = 0; k < 3 * ROWS / 4; k++) {
        assert_int_equal(fetch(fd, ws, ROWS - 2 - k * 7919 % (ROWS / 4), 1 + k % 3 % 2, &lease), 0);
        release(fd, lease);
    }
    /* A count that is nobody's business to walk over, and a range past the window. */
    assert_int_equal(fetch(fd, ws, 0, ROWS, &lease), LEAT_NO_SPACE);
    release(fd, held);
    close(fd);
    host_stop(&h, true);
}

static void test_nothing_is_writable(void **state)
{
    struct host h;
    host_start(&h, 64 * MIB);
    host_run(&h);
    int fd = dial(&h), fds[2];
    open_set(fd, PROTO_OPEN, "set", h.data, NULL, fds);
    uint64_t ws = open_set(fd, PROTO_OPEN, "set", h.data, NULL, NULL);
    assert_int_equal(wait_for(fd, ws), 0);
    int more[2];
    ws = open_set(fd, PROTO_APPEND, "set", h.more, NULL, more);
    struct bytes_out body = {0};
    struct net_reply reply;
    bytes_put_u64(&body, ws);
    bytes_put_u32(&body, 0);
    bytes_put_u32(&body, 4);
    assert_int_equal(ask(fd, PROTO_REGIONS, &body, &reply), 0);
    assert_int_equal(reply.nfds, 4);
    int all[] = {fds[0], fds[1], more[0], more[1], reply.fds[0], reply.fds[1]};
    for (unsigned k = 0; k < ARRAY_LEN(all); k++) {
        struct stat st;
        int seals = fcntl(all[k], F_GET_SEALS);
        assert_int_equal(fstat(all[k], &st), 0);
        bool sealed = seals >= 0 && (seals & F_SEAL_WRITE);
        assert_true(sealed || (st.st_mode & 0077) == 0);
        assert_true(sealed || (fcntl(all[k], F_GETFL) & O_ACCMODE) == O_RDONLY);
    }
    for (unsigned k = 0; k < 4; k++)
        close(all[k]);
    net_reply_fini(&reply);
    close(fd);
    host_stop(&h, true);
}

static void test_forced_drop_spares_old_version(void **state)
{
    struct host h;
    host_start(&h, 64 * MIB);
    host_run(&h);
    int fd = dial(&h);
    uint64_t old = open_set(fd, PROTO_OPEN, "set", h.data, NULL, NULL);
    assert_int_equal(wait_for(fd, old), 0);
    struct bytes_out body = {0};
    struct net_reply reply;
    bytes_put_u64(&body, old);
    bytes_put_u32(&body, 0);
    bytes_put_u32(&body, 1);
    assert_int_equal(ask(fd, PROTO_REGIONS, &body, &reply), 0);
    uint8_t *map = mmap(NULL, 2 * MIB, PROT_READ, MAP_SHARED, reply.fds[0], 0);
    assert_ptr_not_equal(map, MAP_FAILED);
    net_reply_fini(&reply);
    uint64_t ws = open_set(fd, PROTO_APPEND, "set", h.more, NULL, NULL);
    assert_int_equal(wait_for(fd, ws), 0);
    assert_int_equal(map[128], 1); /* behind the header, which is read along */
    assert_int_equal(drop(fd, "set", LEAT_DROP_FORCE), 0);
    assert_int_equal(map[128], 1); /* behind the header, which is read along */
    /* What the new version had for itself is free for others, though readers have not let go of it. */
    assert_true(atomic_load(&h.pool->budget.used_bytes) <= align_up(ROWS * ROW_BYTES, 2 * MIB) + 2 * MIB);
    munmap(map, 2 * MIB);
    close(fd);
    host_stop(&h, true);
}

/* What its regions take. */
static uint64_t backed_bytes(const struct wset *ws)
{
    uint64_t bytes = 0;
    struct stat st;
    for (uint32_t g = 0; g < ws->nregions; g++) {
        assert_int_equal(fstat(ws->regions[g].region->fd, &st), 0);
        bytes += (uint64_t)st.st_blocks * 512;
    }
    return bytes;
}

/* `rows` of 1 KiB that ranks push, a region full; the reference is the caller's. */
static struct wset *pushed_set(struct host *h, uint64_t rows)
{
    struct index_builder *b;
    struct answer a = {0};
    struct leat_error err = {0};
    uint64_t shape[] = {1024};
    int fd = memfd_create("index", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(index_builder_new(INDEX_KIND_PUSHED, "p", &b), 0);
    uint64_t address = index_builder_reserve(b, rows * 1024, INDEX_FILE_ALIGN, 0);
    assert_int_equal(index_builder_field(b, "x", "|u1", INDEX_FIELD_UNIFORM, 1, shape, address, 1024), 0);
    index_builder_count(b, rows);
    assert_int_equal(index_builder_finish(b, fd, &err), 0);
    index_builder_free(b);
    struct open_request *r = calloc(1, sizeof(*r));
    assert_non_null(r);
    *r = (struct open_request){.uid = geteuid(),
                               .gid = getegid(),
                               .name = strdup("p"),
                               .uri = strdup(""),
                               .opened = opened,
                               .user = &a};
    pool_create(h->pool, r, fd);
    test_run_until(a.here, loop_turn(h->loop, 10));
    assert_non_null(a.ws);
    return wset_ref(a.ws);
}

static int data_connection(struct host *h, struct wset *ws)
{
    int pair[2];
    struct leat_error err;
    struct data_target *target;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(data_target_new(h->server, ws, geteuid(), &target, &err), 0);
    assert_int_equal(data_serve(h->server, target, pair[0]), 0);
    return pair[1];
}

/* The head of a WRITE of `count` rows from `first`, which lie in region 0. */
static void begin_push(int fd, uint64_t first, uint32_t count)
{
    uint8_t head[PROTO_FRAME];
    struct bytes_out body = {0};
    bytes_put_u64(&body, first);
    bytes_put_u32(&body, count);
    bytes_put_u32(&body, 1);
    proto_range_put(&body, &(struct proto_range){.offset = first * 1024, .bytes = count * 1024});
    proto_frame_put(head, &(struct proto_frame){.version = PROTO_VERSION,
                                                .kind = PROTO_REQUEST,
                                                .type = PROTO_WRITE,
                                                .id = 1,
                                                .body_bytes = (uint32_t)body.len,
                                                .payload_bytes = count * 1024});
    assert_int_equal(send(fd, head, sizeof(head), 0), sizeof(head));
    assert_int_equal(send(fd, body.data, body.len, 0), body.len);
    bytes_out_fini(&body);
}

/* A push that is under way when its set is dropped by force goes on into memory that nobody pays for: none of it stays. */
static void test_forced_drop_while_pushed(void **state)
{
    enum { ROWS_EACH = 1024, BYTES = ROWS_EACH * 1024, HEAD = 4096, TAIL = BYTES - HEAD };
    static uint8_t ones[BYTES];
    struct host h;
    int fds[2];
    memset(ones, 1, sizeof(ones));
    host_start(&h, 64 * MIB);
    struct wset *ws = pushed_set(&h, 2 * ROWS_EACH);
    for (unsigned k = 0; k < 2; k++) {
        uint8_t last = 0; /* asked of the file: who reads the memory races with the thread that fills it */
        fds[k] = data_connection(&h, ws);
        begin_push(fds[k], k * ROWS_EACH, ROWS_EACH);
        assert_int_equal(send(fds[k], ones, HEAD, 0), HEAD);
        test_wait_until(pread(ws->regions[0].region->fd, &last, 1, (off_t)(k * BYTES + HEAD - 1)) != 1 ||
                        last);
    }
    pool_drop(h.pool, ws, POOL_DROP_FORCE);
    assert_int_equal(backed_bytes(ws), 0);
    /* One that comes to its end, */
    struct net_reply reply;
    assert_int_equal(send(fds[0], ones, TAIL, 0), TAIL);
    assert_int_equal(net_frame_receive(fds[0], &reply, clock_now_ns() + 20 * NS_PER_S), 0);
    assert_int_equal(reply.frame.status, LEAT_STALE);
    net_reply_fini(&reply);
    assert_int_equal(backed_bytes(ws), 0);
    /* and one that does not. */
    assert_int_equal(send(fds[1], ones, TAIL / 2, 0), TAIL / 2);
    close(fds[0]);
    close(fds[1]);
    test_run_until(atomic_load(&ws->refs) <= 1, loop_turn(h.loop, 1));
    assert_int_equal(backed_bytes(ws), 0);
    wset_unref(ws);
    host_stop(&h, false);
}

/* Whoever reads a page that this one took the rights of waits until it is let go on. */
static uint8_t *guarded;
static _Atomic bool guard_met, guard_gone;

static void on_guard(int signal, siginfo_t *info, void *context)
{
    if ((uint8_t *)info->si_addr < guarded || (uint8_t *)info->si_addr >= guarded + 4096)
        abort();
    atomic_store(&guard_met, true);
    test_wait_until(atomic_load(&guard_gone));
}

static void on_verified(void *user, const struct verify_result *result)
{
    *(struct verify_result *)user = *result;
}

static void on_verifying(void *user, uint64_t done, uint64_t total) {}

/* A hole that is read takes memory too. */
static void test_forced_drop_while_verified(void **state)
{
#ifdef __SANITIZE_ADDRESS__
    skip(); /* it keeps SIGSEGV for itself (tools/check) */
#endif
    struct host h;
    struct verify_result result = {0};
    struct sigaction action = {.sa_sigaction = on_guard, .sa_flags = SA_SIGINFO}, before;
    host_start(&h, 64 * MIB);
    struct wset *ws = wset_ref(open_as(&h, geteuid(), 0, "set", h.data).ws);
    test_run_until(wset_complete(ws), loop_turn(h.loop, 10));
    guarded = ws->regions[1].region->addr;
    assert_int_equal(sigaction(SIGSEGV, &action, &before), 0);
    assert_int_equal(mprotect(guarded, 4096, PROT_NONE), 0);
    assert_int_equal(verify_start(h.pool, ws, false, on_verifying, on_verified, &result), 0);
    test_wait_until(atomic_load(&guard_met));
    pool_drop(h.pool, ws, POOL_DROP_FORCE);
    assert_int_equal(backed_bytes(ws), 0);
    assert_int_equal(mprotect(guarded, 4096, PROT_READ | PROT_WRITE), 0);
    atomic_store(&guard_gone, true);
    test_run_until(result.status != 0, loop_turn(h.loop, 10));
    assert_int_equal(sigaction(SIGSEGV, &before, NULL), 0);
    assert_int_equal(result.status, LEAT_STALE);
    assert_int_equal(backed_bytes(ws), 0);
    wset_unref(ws);
    host_stop(&h, false);
}

static void test_one_verification_each(void **state)
{
    struct host h;
    host_start(&h, 64 * MIB);
    host_run(&h);
    int fd = dial(&h), busy = 0, good = 0;
    uint64_t ws = open_set(fd, PROTO_OPEN, "", h.data, NULL, NULL);
    assert_int_equal(wait_for(fd, ws), 0);
    uint64_t first = last_id + 1;
    for (unsigned k = 0; k < 200; k++) {
        struct bytes_out body = {0};
        bytes_put_u64(&body, ws);
        bytes_put_u32(&body, LEAT_VERIFY_SOURCE);
        send_request(fd, PROTO_VERIFY, &body);
    }
    for (unsigned k = 0; k < 200;) {
        struct net_reply reply;
        assert_int_equal(net_frame_receive(fd, &reply, clock_now_ns() + 20 * NS_PER_S), 0);
        if (reply.frame.kind == PROTO_REPLY && reply.frame.id >= first) {
            busy += reply.frame.status == LEAT_BUSY;
            good += reply.frame.status == 0;
            k++;
        }
        net_reply_fini(&reply);
    }
    assert_true(good >= 1 && busy >= 1 && good + busy == 200);
    close(fd);
    host_stop(&h, true);
}

/* An end in the middle of everything. */
static void test_stop_under_way(void **state)
{
    for (unsigned k = 0; k < 5; k++) {
        struct host h;
        host_start(&h, k % 2 ? 4 * MIB : 64 * MIB);
        host_run(&h);
        int fd = dial(&h);
        uint64_t ws = open_set(fd, PROTO_OPEN, k % 2 ? "" : "set", h.data, NULL, NULL);
        struct bytes_out body = {0};
        bytes_put_u64(&body, ws);
        bytes_put_u32(&body, LEAT_VERIFY_SOURCE);
        send_request(fd, PROTO_VERIFY, &body);
        for (unsigned n = 0; n < 4; n++) {
            body = (struct bytes_out){0};
            open_body(&body, "", n % 2 ? h.data : h.more);
            send_request(fd, PROTO_OPEN, &body);
        }
        body = (struct bytes_out){0};
        bytes_put_u64(&body, ws);
        bytes_put_u32(&body, 1);
        bytes_put_u64(&body, ROWS - 8);
        bytes_put_u64(&body, 8);
        send_request(fd, PROTO_FETCH, &body);
        host_stop(&h, true);
        close(fd);
    }
}

/* --- whose is what ------------------------------------------------------------------------------------------------- */

/* Another daemon has taken the name of our socket (somebody had removed the file): it is not ours to remove. */
static void test_the_name_of_another(void **state)
{
    struct host h;
    struct leat_error err;
    int other, fd;
    host_start(&h, 16 * MIB);
    assert_int_equal(unlink(h.socket), 0);
    assert_int_equal(net_listen(h.socket, 0, &other, &err), 0);
    server_free(h.server);
    h.server = NULL;
    assert_int_equal(net_dial(h.socket, 0, &fd, &err), 0);
    close(fd);
    close(other);
    host_stop(&h, false);
}

static void test_names_of_users(void **state)
{
    struct host h;
    host_start(&h, 64 * MIB);
    struct answer a = open_as(&h, 1000, 0, "train", h.data);
    assert_int_equal(a.code, 0);
    /* The name is taken by somebody else: neither in the way, nor to be looked at. */
    assert_int_equal(open_as(&h, 2000, 0, "", "leat://train").code, LEAT_DENIED);
    struct answer b = open_as(&h, 2000, 0, "train", h.more);
    assert_int_equal(b.code, 0);
    assert_ptr_not_equal(a.ws, b.ws);
    assert_ptr_equal(open_as(&h, 2000, 0, "", "leat://train").ws, b.ws);
    assert_ptr_equal(open_as(&h, 1000, 0, "", "leat://train").ws, a.ws);
    assert_int_equal(open_as(&h, 1000, 0, "train", h.more).code, LEAT_INVALID);
    assert_int_equal(open_as(&h, 1000, 0, "two\nlines", h.more).code, LEAT_INVALID);
    host_stop(&h, false);
}

static void test_only_the_owner_names(void **state)
{
    struct host h;
    host_start(&h, 64 * MIB);
    struct answer a = open_as(&h, 1000, LEAT_OPEN_PUBLIC, "", h.data);
    assert_int_equal(a.code, 0);
    assert_ptr_equal(open_as(&h, 2000, 0, "", h.data).ws, a.ws);
    struct answer b = open_as(&h, 2000, 0, "mine", h.data);
    assert_int_equal(b.code, 0);
    assert_ptr_not_equal(b.ws, a.ws);
    assert_false(a.ws->flags & PROTO_WS_EXPLICIT);
    /* One's own is meant before another's. */
    assert_ptr_equal(pool_find(h.pool, h.data, 2000, 2000), b.ws);
    assert_ptr_equal(pool_find(h.pool, h.data, 1000, 1000), a.ws);
    host_stop(&h, false);
}

/* A disk was away: whoever asks for the set by its name has it loaded again, and it stays what it was. */
static void test_loaded_again_as_it_was(void **state)
{
    struct host h;
    host_start(&h, 64 * MIB);
    struct wset *ws = open_within(&h, 1000, LEAT_OPEN_PUBLIC, 4 * MIB, "set", h.data).ws;
    test_run_until(wset_complete(ws), loop_turn(h.loop, 10));
    uint64_t first = ws->serial, bytes = ws->pool_bytes;
    assert_true(bytes > 0 && bytes <= 4 * MIB);
    wset_failure(ws, 0, -EIO, "the disk was away");
    wset_piece(ws, 0, 0, 0, 0, 0, -EIO);
    assert_true(wset_failed_transient(ws));
    /* One for all is not to be made one for its owner. */
    ws = open_as(&h, 1000, 0, "set", h.data).ws;
    assert_int_equal(ws->serial, first);
    ws = open_as(&h, 1000, LEAT_OPEN_PUBLIC, "set", h.data).ws;
    assert_int_not_equal(ws->serial, first);
    assert_int_equal(ws->mode, 0644);
    assert_int_equal(ws->pool_bytes, bytes);
    host_stop(&h, false);
}

static struct prefault_stats ready_of(struct host *h, uint64_t wanted_bytes)
{
    struct prefault_stats stats;
    test_wait_until((prefault_stats(h->pool->ready, &stats), stats.bytes == wanted_bytes));
    return stats;
}

/* All of the cap is ready. Sets are admitted as if it were free, whole; the rest is made ready again behind them. */
static void test_ready_memory_is_free_memory(void **state)
{
    struct host h;
    host_start_ready(&h, 24 * MIB, 24 * MIB);
    host_run(&h);
    ready_of(&h, 24 * MIB);
    int fd = dial(&h);
    struct proto_ws a, b;
    uint64_t id = open_set(fd, PROTO_OPEN, "a", h.data, &a, NULL);
    assert_int_equal(wait_for(fd, id), 0);
    uint64_t second = open_set(fd, PROTO_OPEN, "b", h.more, &b, NULL);
    assert_int_equal(wait_for(fd, second), 0);
    assert_false((a.flags | b.flags) & PROTO_WS_STREAMED);
    struct prefault_stats stats;
    prefault_stats(h.pool->ready, &stats);
    assert_true(stats.taken_bytes >= 16 * MIB);
    assert_true(stats.made_bytes <= stats.bytes + stats.taken_bytes + stats.given_up_bytes);
    assert_int_equal(close_set(fd, id), 0);
    assert_int_equal(close_set(fd, second), 0);
    assert_int_equal(drop(fd, "a", 0), 0);
    assert_int_equal(drop(fd, "b", 0), 0);
    proto_ws_fini(&a);
    proto_ws_fini(&b);
    close(fd);
    ready_of(&h, 24 * MIB);
    assert_true(atomic_load(&h.pool->budget.peak_bytes) <= 24 * MIB);
    host_stop(&h, true);
}

/* A window is no region: ready memory is given up for it, and the cap holds. */
static void test_ready_memory_gives_way_to_a_window(void **state)
{
    struct host h;
    host_start_ready(&h, 4 * MIB, 4 * MIB);
    host_run(&h);
    ready_of(&h, 4 * MIB);
    int fd = dial(&h);
    struct proto_ws ws;
    uint64_t lease, id = open_set(fd, PROTO_OPEN, "", h.data, &ws, NULL);
    assert_true(ws.flags & PROTO_WS_STREAMED);
    proto_ws_fini(&ws);
    assert_int_equal(fetch(fd, id, ROWS - 8, 8, &lease), 0);
    release(fd, lease);
    struct prefault_stats stats;
    prefault_stats(h.pool->ready, &stats);
    assert_true(stats.given_up_bytes >= 1 * MIB);
    assert_true(atomic_load(&h.pool->budget.peak_bytes) <= 4 * MIB);
    close(fd);
    host_stop(&h, true);
}

/* Alone, with no loop that runs: what a set wrote is in no region of the next. */
static void test_ready_memory_serves_once(void **state)
{
    struct host h;
    host_start_ready(&h, 64 * MIB, 8 * MIB);
    ino_t seen[8];
    int kept[8];
    unsigned n = 0;
    for (unsigned turn = 0; turn < 2; turn++) {
        struct prefault_stats stats = {0};
        test_run_until((prefault_stats(h.pool->ready, &stats), stats.bytes == 8 * MIB), loop_turn(h.loop, 1));
        struct answer a = open_as(&h, geteuid(), 0, "", h.data);
        assert_int_equal(a.code, 0);
        test_run_until(wset_complete(a.ws), loop_turn(h.loop, 1));
        for (unsigned g = 0; g < 4; g++) {
            struct stat st;
            assert_int_equal(fstat(a.ws->regions[g].region->fd, &st), 0);
            assert_true(atomic_load(&a.ws->regions[g].region->prefault_bytes) > 0);
            for (unsigned k = 0; turn && k < 4; k++)
                assert_int_not_equal(seen[k], st.st_ino);
            seen[n++] = st.st_ino;
        }
        uint8_t row[ROW_BYTES], want[ROW_BYTES];
        memset(want, 1 + 7, sizeof(want));
        struct index_part part = {0};
        assert_true(index_part(&a.ws->index, 7, 0, &part));
        assert_int_equal(wset_sample_state(a.ws, 7),
                         LIVE_RESIDENT); /* by which its bytes are published; a count is not */
        memcpy(row, wset_address(a.ws, part.address, part.bytes), sizeof(row));
        assert_memory_equal(row, want, sizeof(row));
        for (unsigned g = 0; g < 4; g++) /* or their numbers could come again */
            kept[turn * 4 + g] = dup(a.ws->regions[g].region->fd_ro);
        pool_drop(h.pool, a.ws, POOL_DROP_FORCE);
    }
    for (unsigned k = 0; k < 8; k++)
        close(kept[k]);
    host_stop(&h, false);
}

/* It is in the pool whole: the answer names its regions, and no window is made. */
static void test_fetch_of_what_is_there(void **state)
{
    struct host h;
    host_start(&h, 64 * MIB);
    host_run(&h);
    int fd = dial(&h);
    struct proto_fetched f;
    struct net_reply reply;
    uint64_t ws = open_set(fd, PROTO_OPEN, "", h.data, NULL, NULL);
    assert_int_equal(wait_for(fd, ws), 0);
    uint64_t used = atomic_load(&h.pool->budget.used_bytes);
    struct bytes_out body = {0};
    bytes_put_u64(&body, ws);
    bytes_put_u32(&body, 2);
    bytes_put_u64(&body, 1);
    bytes_put_u64(&body, 1);
    bytes_put_u64(&body, 2 * MIB / ROW_BYTES - 2);
    bytes_put_u64(&body, 4); /* across the end of a region */
    assert_int_equal(ask(fd, PROTO_FETCH, &body, &reply), 0);
    assert_int_equal(proto_fetched_get(reply.body.data, reply.body.len, &f), 0);
    net_reply_fini(&reply);
    assert_int_equal(f.nruns, 3);
    assert_int_equal(f.runs[0].gid, 0);
    assert_int_equal(f.runs[0].bytes, ROW_BYTES);
    assert_int_equal(f.runs[0].offset, f.runs[0].address);
    assert_int_equal(f.runs[2].gid, 1);
    assert_int_equal(f.runs[2].offset, 0);
    assert_int_equal(f.runs[1].bytes + f.runs[2].bytes, 4 * ROW_BYTES);
    proto_fetched_fini(&f);
    uint64_t lease;
    assert_int_equal(fetch(fd, ws, ROWS, 1, &lease), LEAT_INVALID);
    assert_int_equal(atomic_load(&h.pool->budget.used_bytes), used);
    close(fd);
    host_stop(&h, true);
}

static void *let_go_later(void *arg)
{
    test_pause_us(50000);
    wset_unref(arg);
    return NULL;
}

/* A set that makes room may still have a thread or a connection inside: who takes its place waits for that, and is not streamed. */
static void test_room_that_comes_back_late(void **state)
{
    struct host h;
    pthread_t reader;
    host_start(&h, 12 * MIB);
    struct answer a = open_as(&h, 1000, 0, "", h.data);
    assert_int_equal(a.code, 0);
    assert_int_equal(a.ws->streamed_samples, 0);
    wset_ref(a.ws);
    assert_int_equal(pthread_create(&reader, NULL, let_go_later, a.ws), 0);
    struct answer b = open_as(&h, 1000, 0, "", h.more);
    pthread_join(reader, NULL);
    assert_int_equal(b.code, 0);
    assert_int_equal(b.ws->flags & PROTO_WS_STREAMED, 0);
    assert_int_equal(atomic_load(&h.pool->evictions), 1);
    /* The thread that let go last gives its room back, whereupon b is answered, and then says that nothing leaves any more. */
    test_wait_until(!atomic_load(&h.pool->leaving_bytes));
    host_stop(&h, false);
}

/* Tables are paid for like samples, and so is the window's bookkeeping. */
static void test_tables_are_charged(void **state)
{
    struct host h;
    host_start(&h, 64 * MIB);
    struct answer a = open_as(&h, 1000, 0, "", h.data);
    assert_int_equal(a.code, 0);
    uint64_t tables = atomic_load(&h.pool->table_bytes);
    assert_true(tables >= live_bytes(ROWS, 1) + ROWS);
    assert_int_equal(atomic_load(&h.pool->budget.used_bytes), a.ws->pool_bytes + tables);
    host_stop(&h, false);

    host_start(&h, 4 * MIB);
    a = open_as(&h, 1000, 0, "", h.data);
    assert_int_equal(a.code, 0);
    assert_true(a.ws->flags & PROTO_WS_STREAMED);
    assert_true(atomic_load(&h.pool->table_bytes) > tables + a.ws->window_bytes / 32);
    assert_true(atomic_load(&h.pool->budget.used_bytes) <= 4 * MIB);
    assert_int_equal(atomic_load(&h.pool->budget.used_bytes),
                     a.ws->pool_bytes + atomic_load(&h.pool->table_bytes));
    host_stop(&h, false);
}

/* A window that cannot be had costs nothing, however often it is asked for. */
static void test_window_that_fails(void **state)
{
    struct host h;
    struct leat_error err;
    struct stream_window *staging;
    struct rlimit had, none = {0};
    host_start(&h, 64 * MIB);
    struct answer a = open_as(&h, geteuid(), 0, "", h.data);
    assert_int_equal(a.code, 0);
    pool_lease(a.ws); /* or it is what gives way */
    test_run_until(wset_complete(a.ws), loop_turn(h.loop, 1));
    uint64_t used = atomic_load(&h.pool->budget.used_bytes), tables = atomic_load(&h.pool->table_bytes);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &had), 0);
    none.rlim_max = had.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0); /* no file for its memory */
    for (unsigned k = 0; k < 3; k++)
        assert_true(pool_stream_window(h.pool, a.ws, &staging, &err) < 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &had), 0);
    assert_non_null(strstr(err.message, "no room for a window"));
    assert_int_equal(atomic_load(&h.pool->budget.used_bytes), used);
    assert_int_equal(atomic_load(&h.pool->table_bytes), tables);
    assert_int_equal(pool_stream_window(h.pool, a.ws, &staging, &err), 0);
    pool_unlease(a.ws);
    host_stop(&h, false);
}

/* Those who come while there are none wait at no cost, and are served when there are some again. */
static void test_no_descriptor_for_a_connection(void **state)
{
    struct host h;
    struct rlimit had, few;
    struct leat_error err;
    struct bytes_out body = {0};
    int fd, turns = 0;
    host_start(&h, 16 * MIB);
    assert_int_equal(net_dial(h.socket, 0, &fd, &err), 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &had), 0);
    few = had;
    few.rlim_cur = (rlim_t)fd + 2; /* one is left, and kept for those who are here */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    loop_turn(h.loop, 0);
    few.rlim_cur = 3;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    uint64_t end_ns = clock_now_ns() + NS_PER_S;
    for (; turns < 200 && clock_now_ns() < end_ns; turns++)
        loop_turn(h.loop, 200);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &had), 0);
    assert_true(turns < 200);
    host_run(&h);
    proto_hello_put(&body, &(struct proto_hello){.version_min = PROTO_VERSION,
                                                 .version_max = PROTO_VERSION,
                                                 .role = PROTO_ROLE_CONTROL});
    assert_int_equal(ask(fd, PROTO_HELLO, &body, NULL), 0);
    close(fd);
    host_stop(&h, true);
}

/* Another host could rename another index over ours: its pages would be gone. */
static void test_index_on_a_network(void **state)
{
    static const long kinds[] = {0xEF53, 0x6969}; /* ext4, NFS */
    for (unsigned k = 0; k < ARRAY_LEN(kinds); k++) {
        struct host h;
        host_start(&h, 64 * MIB);
        file_system = kinds[k];
        struct answer a = open_as(&h, geteuid(), 0, "", h.data);
        file_system = 0;
        assert_int_equal(a.code, 0);
        int seals = fcntl(a.ws->index_fd, F_GET_SEALS);
        assert_int_equal(seals >= 0 && (seals & F_SEAL_WRITE), k == 1);
        host_stop(&h, false);
    }
}

/* --- reports ------------------------------------------------------------------------------------------------------- */

static void report(int fd, const struct proto_report *m)
{
    struct bytes_out body = {0};
    proto_report_put(&body, m);
    send_request(fd, PROTO_REPORT, &body);
}

/* "jobs" of the daemon's status, as this client is told. Caller frees. */
static json_t *loaders_seen(int fd)
{
    struct bytes_out body = {0};
    struct net_reply reply;
    bytes_put_u32(&body, LEAT_QUERY_STATUS);
    bytes_put_str(&body, "");
    assert_int_equal(ask(fd, PROTO_QUERY, &body, &reply), 0);
    struct bytes_in in = bytes_in_of(reply.body.data, reply.body.len);
    AUTO_FREE char *text = bytes_get_str(&in, PROTO_BODY_MAX);
    net_reply_fini(&reply);
    json_t *root = json_loads(text, 0, NULL), *jobs = json_incref(json_object_get(root, "jobs"));
    json_decref(root);
    return jobs;
}

static double number(const json_t *jobs, size_t i, const char *key)
{
    const json_t *v = json_object_get(json_array_get(jobs, i), key);
    assert_true(json_is_number(v));
    return json_number_value(v);
}

static void test_reports(void **state)
{
    struct host h;
    host_start(&h, 64 * MIB);
    host_run(&h);
    int fd = dial(&h), other = dial(&h);
    struct proto_report m = {.loader = 1,
                             .world_size = 4,
                             .epoch = 2,
                             .samples = 1000,
                             .length = 5000,
                             .batch_samples = 8,
                             .step_samples = 32,
                             .samples_per_ks = 100000,
                             .waiting_permille = 10,
                             .verdict = LEAT_VERDICT_CONSUMER,
                             .order = 5,
                             .job = "a\xff",
                             .title = ""};
    m.ws = open_set(fd, PROTO_OPEN, "set", h.data, NULL, NULL);
    report(fd, &m);
    m.ws = open_set(other, PROTO_OPEN, "set", h.data, NULL, NULL);
    m.rank = 1;
    m.samples = 1032;
    m.waiting_permille = 500;
    m.verdict = LEAT_VERDICT_PREP;
    report(other, &m);
    json_t *jobs = loaders_seen(other);
    while (number(jobs, 0, "samples") < 1032 ||
           json_array_size(json_object_get(json_array_get(jobs, 0), "ranks")) < 2) {
        json_decref(jobs); /* the other connection's may come later */
        jobs = loaders_seen(other);
    }
    assert_int_equal(json_array_size(jobs), 1);
    /* Two of four ranks are here, at 100 samples/s each; who waits most says what holds them up. */
    assert_true(number(jobs, 0, "samples_per_s") == 400);
    assert_true(number(jobs, 0, "seconds_left") == (5000 - 1032) / 400.0);
    assert_true(number(jobs, 0, "waiting") == 0.5);
    const json_t *job = json_array_get(jobs, 0);
    assert_string_equal(json_string_value(json_object_get(job, "verdict")), "prep-bound");
    assert_string_equal(json_string_value(json_object_get(job, "set")), "set");
    assert_string_equal(json_string_value(json_object_get(job, "job")), "a\\xff");
    assert_int_equal(json_array_size(json_object_get(job, "overlapping_ranks")), 0);
    json_decref(jobs);

    m.order = 6; /* of the same epoch: rank 1 takes its slice of another list */
    report(other, &m);
    jobs = loaders_seen(other);
    assert_int_equal(json_array_size(json_object_get(json_array_get(jobs, 0), "overlapping_ranks")), 2);
    json_decref(jobs);
    m.epoch++; /* in another epoch it has another order */
    report(other, &m);
    jobs = loaders_seen(other);
    assert_int_equal(json_array_size(json_object_get(json_array_get(jobs, 0), "overlapping_ranks")), 0);
    json_decref(jobs);

    m.flags = PROTO_REPORT_ENDED;
    report(other, &m);
    m.flags = 0;
    for (m.loader = 2; m.loader < 200; m.loader++) /* of one client only so many are kept */
        report(other, &m);
    m.ws += 1000; /* of a set that is not open */
    report(other, &m);
    jobs = loaders_seen(other);
    assert_int_equal(json_array_size(jobs), 1 + 32);
    assert_int_equal(json_array_size(json_object_get(json_array_get(jobs, 0), "ranks")), 1);
    json_decref(jobs);

    close(fd);
    assert_int_equal(close_set(other, m.ws - 1000), 0);
    size_t left = 1;
    while (left) { /* who is gone has nothing to tell: once the daemon has noticed */
        jobs = loaders_seen(other);
        left = json_array_size(jobs);
        json_decref(jobs);
    }

    struct bytes_out bad = {0};
    bytes_put_u64(&bad, 1);
    send_request(other, PROTO_REPORT, &bad);
    struct net_reply reply;
    assert_int_not_equal(net_frame_receive(other, &reply, clock_now_ns() + 20 * NS_PER_S), 0);
    close(other);
    host_stop(&h, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lease_outlives_its_set),
        cmocka_unit_test(test_failed_range),
        cmocka_unit_test(test_window_turns_over),
        cmocka_unit_test(test_nothing_is_writable),
        cmocka_unit_test(test_forced_drop_spares_old_version),
        cmocka_unit_test(test_forced_drop_while_pushed),
        cmocka_unit_test(test_forced_drop_while_verified),
        cmocka_unit_test(test_one_verification_each),
        cmocka_unit_test(test_stop_under_way),
        cmocka_unit_test(test_fetch_of_what_is_there),
        cmocka_unit_test(test_room_that_comes_back_late),
        cmocka_unit_test(test_tables_are_charged),
        cmocka_unit_test(test_window_that_fails),
        cmocka_unit_test(test_no_descriptor_for_a_connection),
        cmocka_unit_test(test_index_on_a_network),
        cmocka_unit_test(test_names_of_users),
        cmocka_unit_test(test_the_name_of_another),
        cmocka_unit_test(test_only_the_owner_names),
        cmocka_unit_test(test_loaded_again_as_it_was),
        cmocka_unit_test(test_ready_memory_is_free_memory),
        cmocka_unit_test(test_ready_memory_gives_way_to_a_window),
        cmocka_unit_test(test_ready_memory_serves_once),
        cmocka_unit_test(test_reports),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
