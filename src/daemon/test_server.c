/* SPDX-License-Identifier: Apache-2.0 */
/* Names and their owners, connections, indexes, reports: over the protocol, by hand. */
#include <setjmp.h>
#include <stdarg.h>

#include "base/clock.h"
#include "base/testing.h"
#include "dataset/index.h"
#include "leat/leat.h"
#include "loop/loop.h"
#include "rpc/conn.h"
#include "pool/pool.h"
#include "daemon/server_internal.h"
#include "pool/set/wset.h"
#include "daemon/testing.h"

#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>

#include <cmocka.h>

/* In the place of libc's: what files are said to lie on; 0: what they do. */
static _Atomic long file_system;

int fstatfs(int fd, struct statfs *ret)
{
    long rc = syscall(SYS_fstatfs, fd, ret);
    if (rc == 0 && file_system)
        ret->f_type = file_system;
    return (int)rc;
}

/* --- whose is what ------------------------------------------------------------------------------------------------- */

/* Another daemon has taken the name of our socket (its file had been removed): it is not ours to remove. */
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
    /* The name belongs to another user's set: it is no obstacle, and cannot be opened. */
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

/* A disk was away: an open of the set by its name loads it again, and it keeps its properties. */
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

/* Connections that come while there are none wait at no cost, and are served when there are some again. */
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
    few.rlim_cur = (rlim_t)fd + 2; /* one is left, and kept for existing connections */
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

/* "jobs" of the daemon's status, as this client gets it. Caller frees. */
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
    /* Two of four ranks are here, at 100 samples/s each; the one that waits most determines the cause. */
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
    while (left) { /* a loader that is gone reports nothing: once the daemon has noticed */
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

/* --- versions ------------------------------------------------------------------------------------------- */

/* What a program of the release that spoke version 2 alone sends: HELLO as frame and body. */
static const uint8_t hello_2[PROTO_FRAME + 74] = {'L',
                                                  'E',
                                                  'A',
                                                  'T',
                                                  2,
                                                  1,
                                                  1,
                                                  0,
                                                  [16] = 7,
                                                  [24] = 74,
                                                  [PROTO_FRAME] = 2,
                                                  2,
                                                  1,
                                                  42,
                                                  [PROTO_FRAME + 7] = 3,
                                                  [PROTO_FRAME + 11] = 'o',
                                                  'l',
                                                  'd'};

static void test_versions(void **state)
{
    static const struct {
        unsigned min, max, spoken;
    } others[] = {{2, 2, 2}, {1, 2, 2}, {3, 3, 3}, {2, 3, 3}, {3, 9, 3}, {1, 1, 0}, {4, 9, 0}};
    struct host h;
    struct leat_error err;
    struct net_reply reply;
    struct proto_welcome w;
    host_start(&h, 16 * MIB);
    host_run(&h);
    for (unsigned k = 0; k < ARRAY_LEN(others); k++) {
        int fd;
        uint8_t hello[sizeof(hello_2)];
        memcpy(hello, hello_2, sizeof(hello));
        hello[PROTO_FRAME] = (uint8_t)others[k].min;
        hello[PROTO_FRAME + 1] = (uint8_t)others[k].max;
        assert_int_equal(net_dial(h.socket, 0, &fd, &err), 0);
        assert_int_equal(send(fd, hello, sizeof(hello), 0), sizeof(hello));
        receive_reply(fd, 7, &reply);
        assert_int_equal(reply.frame.version, others[k].spoken ? others[k].spoken : PROTO_VERSION_MIN);
        if (others[k].spoken) {
            assert_int_equal(reply.frame.status, 0);
            assert_int_equal(proto_welcome_get(reply.body.data, reply.body.len, &w), 0);
            assert_int_equal(w.version, others[k].spoken);
        } else {
            char both[64];
            snprintf(both, sizeof(both), "2 to 3, the other side %u to %u: stop it", others[k].min,
                     others[k].max);
            assert_int_equal(reply.frame.status, LEAT_UNSUPPORTED);
            AUTO_FREE char *text = proto_error_text(reply.body.data, reply.body.len);
            assert_non_null(strstr(text, both));
        }
        net_reply_fini(&reply);
        close(fd);
    }
    host_stop(&h, true);
}

/* BROKER says the version of its connection to those who can read it, and data threads answer as they are
 * asked. */
static void test_brokered(void **state)
{
    struct host h;
    host_start(&h, 64 * MIB);
    host_run(&h);
    for (unsigned version = PROTO_VERSION_MIN; version <= PROTO_VERSION; version++) {
        struct leat_error err;
        struct net_reply reply;
        struct bytes_out body = {0};
        struct proto_brokered m;
        int fd;
        assert_int_equal(net_dial(h.socket, 0, &fd, &err), 0);
        proto_hello_put(&body, &(struct proto_hello){.version_min = 1,
                                                     .version_max = (uint8_t)version,
                                                     .role = PROTO_ROLE_CONTROL});
        assert_int_equal(ask(fd, PROTO_HELLO, &body, NULL), 0);
        uint64_t ws = open_set(fd, PROTO_OPEN, "set", h.data, NULL, NULL);
        proto_broker_put(&body, &(struct proto_broker){.ws = ws});
        assert_int_equal(ask(fd, PROTO_BROKER, &body, &reply), 0);
        assert_int_equal(reply.body.len, version > 2);
        assert_int_equal(proto_brokered_get(reply.body.data, reply.body.len, &m), 0);
        assert_true(version == 2 || (m.says && m.version == version));
        assert_int_equal(reply.nfds, 1);
        int data = reply.fds[0];
        reply.fds[0] = -1;
        net_reply_fini(&reply);
        bytes_put_u32(&body, 0); /* of no range */
        assert_int_equal(net_frame_send(data, version, PROTO_REQUEST, PROTO_READ, 1, &body, NULL, 0, 0), 0);
        receive_reply(data, 1, &reply);
        assert_int_equal(reply.frame.version, version);
        assert_int_equal(reply.frame.status, 0);
        net_reply_fini(&reply);
        /* The connection keeps its version. */
        net_frame_send(data, version ^ 1, PROTO_REQUEST, PROTO_READ, 2, &body, NULL, 0, 0);
        assert_int_not_equal(net_frame_receive(data, &reply, clock_now_ns() + 20 * NS_PER_S), 0);
        bytes_out_fini(&body);
        close(data);
        close(fd);
    }
    host_stop(&h, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_descriptor_for_a_connection),
        cmocka_unit_test(test_index_on_a_network),
        cmocka_unit_test(test_names_of_users),
        cmocka_unit_test(test_the_name_of_another),
        cmocka_unit_test(test_only_the_owner_names),
        cmocka_unit_test(test_loaded_again_as_it_was),
        cmocka_unit_test(test_reports),
        cmocka_unit_test(test_versions),
        cmocka_unit_test(test_brokered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
