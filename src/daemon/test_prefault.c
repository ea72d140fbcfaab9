/* SPDX-License-Identifier: Apache-2.0 */
/* Prefaulted memory, in addition to sets and windows. */
#include <setjmp.h>
#include <stdarg.h>

#include "base/testing.h"
#include "dataset/index.h"
#include "loop/loop.h"
#include "pool/pool.h"
#include "pool/region/prefault.h"
#include "pool/region/region.h"
#include "daemon/server_internal.h"
#include "pool/set/wset.h"
#include "daemon/testing.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cmocka.h>

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

/* A window is no region: prefaulted memory is released for it, and the cap holds. */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ready_memory_is_free_memory),
        cmocka_unit_test(test_ready_memory_gives_way_to_a_window),
        cmocka_unit_test(test_ready_memory_serves_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
