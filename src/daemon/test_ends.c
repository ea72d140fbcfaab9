/* SPDX-License-Identifier: Apache-2.0 */
/* Sets that are dropped by force, and servers that end, while others are at work in them. */
#include <setjmp.h>
#include <stdarg.h>

#include "base/clock.h"
#include "base/testing.h"
#include "dataset/index.h"
#include "leat/leat.h"
#include "loop/loop.h"
#include "rpc/conn.h"
#include "pool/pool.h"
#include "pool/region/region.h"
#include "daemon/server_internal.h"
#include "pool/set/wset.h"
#include "daemon/testing.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cmocka.h>

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
    /* What the new version had for itself is free for others, though readers still hold it. */
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

/* A push in progress when its set is dropped by force writes memory that no budget covers: none stays. */
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
        /* Asked of the file: a read of the memory would race with the thread that fills it. */
        uint8_t last = 0;
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

/* A read of a page that this test protected waits until it is released. */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forced_drop_spares_old_version),
        cmocka_unit_test(test_forced_drop_while_pushed),
        cmocka_unit_test(test_forced_drop_while_verified),
        cmocka_unit_test(test_one_verification_each),
        cmocka_unit_test(test_stop_under_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
