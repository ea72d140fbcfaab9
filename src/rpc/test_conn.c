/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>

#include "base/clock.h"
#include "rpc/conn.h"
#include "base/fdpass.h"
#include "base/testing.h"

#include <fcntl.h>
#include <malloc.h>
#include <netinet/in.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <cmocka.h>

/* The daemon's side of a connection under test; the other end, `peer`, is a plain socket. */
struct side {
    struct loop *loop;
    struct conn *conn;
    int peer;
    unsigned messages, closed, done;
    int status, done_status;
    struct proto_frame last;
    char body[64];
    int fds[PROTO_FDS_MAX];
    unsigned nfds;
    uint8_t *payload;
    bool echo, free_in_callback, take_fds;
};

static void payload_done(void *user, int status)
{
    struct side *s = user;
    s->done++;
    s->done_status = status;
}

static int on_message(struct conn *conn, struct conn_message *m)
{
    struct side *s = conn_user(conn);
    s->messages++;
    s->last = m->frame;
    memcpy(s->body, m->body, MIN(m->frame.body_bytes, sizeof(s->body)));
    if (s->take_fds) {
        for (unsigned i = 0; i < m->frame.nfds; i++) {
            s->fds[s->nfds++] = m->fds[i];
            m->fds[i] = -1;
        }
    }
    if (m->frame.payload_bytes && s->payload)
        conn_receive_payload(conn, s->payload, m->frame.payload_bytes, payload_done, s);
    if (s->echo)
        conn_send(conn, PROTO_REPLY, m->frame.type, m->frame.id, 0, NULL, NULL, 0);
    if (s->free_in_callback) {
        conn_free(conn);
        s->conn = NULL;
    }
    return 0;
}

static void on_closed(struct conn *conn, int status)
{
    struct side *s = conn_user(conn);
    s->closed++;
    s->status = status;
}

static const struct conn_ops ops = {.message = on_message, .closed = on_closed};

static void side_init(struct side *s, int family, uint64_t out_bytes)
{
    int pair[2];
    *s = (struct side){.peer = -1};
    assert_int_equal(loop_new(&s->loop), 0);
    if (family == AF_UNIX) {
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    } else {
        int listener;
        struct sockaddr_in a;
        socklen_t len = sizeof(a);
        char address[64];
        assert_int_equal(net_listen("127.0.0.1:0", 0, &listener, NULL), 0);
        assert_int_equal(getsockname(listener, (struct sockaddr *)&a, &len), 0);
        snprintf(address, sizeof(address), "127.0.0.1:%d", ntohs(a.sin_port));
        assert_int_equal(net_dial(address, 0, &pair[0], NULL), 0);
        pair[1] = accept(listener, NULL, NULL);
        assert_true(pair[1] >= 0);
        close(listener);
    }
    s->peer = pair[0];
    struct conn_limits limits = {.out_bytes = out_bytes};
    assert_int_equal(conn_new(s->loop, pair[1], &ops, s, &limits, &s->conn), 0);
}

static void side_fini(struct side *s)
{
    conn_free(s->conn);
    if (s->peer >= 0)
        close(s->peer);
    for (unsigned i = 0; i < s->nfds; i++)
        close(s->fds[i]);
    loop_free(s->loop);
}

static void turns(struct side *s)
{
    for (int i = 0; i < 20; i++)
        loop_turn(s->loop, 1);
}

static void send_frame(struct side *s, const struct proto_frame *frame, const void *body, size_t bytes)
{
    uint8_t wire[PROTO_FRAME];
    proto_frame_put(wire, frame);
    assert_int_equal(write(s->peer, wire, sizeof(wire)), sizeof(wire));
    if (bytes)
        assert_int_equal(write(s->peer, body, bytes), (ssize_t)bytes);
}

static void test_round_trip(void **state)
{
    int families[] = {AF_UNIX, AF_INET};
    for (unsigned f = 0; f < 2; f++) {
        struct side s;
        side_init(&s, families[f], 0);
        s.echo = true;
        struct bytes_out body = {0};
        bytes_put_str(&body, "hello");
        for (unsigned i = 0; i < 100; i++)
            assert_int_equal(
                net_frame_send(s.peer, PROTO_VERSION, PROTO_REQUEST, PROTO_QUERY, i, &body, NULL, 0, 0), 0);
        turns(&s);
        assert_int_equal(s.messages, 100);
        assert_memory_equal(s.body, "\5\0\0\0hello", 9);
        for (unsigned i = 0; i < 100; i++) {
            struct net_reply reply;
            assert_int_equal(net_frame_receive(s.peer, &reply, 0), 0);
            assert_int_equal(reply.frame.id, i);
            assert_int_equal(reply.frame.kind, PROTO_REPLY);
            net_reply_fini(&reply);
        }
        struct leat_error err = {.code = LEAT_STALE, .message = "gone for good"};
        conn_send_error(s.conn, PROTO_QUERY, 9, &err);
        struct net_reply reply;
        struct leat_error got = {0};
        assert_int_equal(net_frame_receive(s.peer, &reply, 0), 0);
        assert_int_equal(net_reply_status(&reply, &got), LEAT_STALE);
        assert_string_equal(got.message, "gone for good");
        net_reply_fini(&reply);
        close(s.peer);
        s.peer = -1;
        turns(&s);
        assert_int_equal(s.closed, 1);
        assert_int_equal(s.status, LEAT_PEER_GONE);
        bytes_out_fini(&body);
        side_fini(&s);
    }
}

/* A frame that comes one byte at a time is one message. */
static void test_dribble(void **state)
{
    struct side s;
    side_init(&s, AF_UNIX, 0);
    uint8_t wire[PROTO_FRAME + 3] = {0};
    proto_frame_put(
        wire, &(struct proto_frame){
                  .version = PROTO_VERSION, .kind = PROTO_REQUEST, .type = 16, .id = 8, .body_bytes = 3});
    memcpy(wire + PROTO_FRAME, "abc", 3);
    for (size_t i = 0; i < sizeof(wire); i++) {
        assert_int_equal(s.messages, 0);
        assert_int_equal(write(s.peer, wire + i, 1), 1);
        loop_turn(s.loop, 10);
    }
    assert_int_equal(s.messages, 1);
    assert_memory_equal(s.body, "abc", 3);
    side_fini(&s);
}

static void test_large_body(void **state)
{
    struct side s;
    side_init(&s, AF_UNIX, 0);
    size_t bytes = 3 * MIB + 7, at = 0;
    AUTO_FREE uint8_t *body = calloc(1, bytes);
    memcpy(body, "start", 5);
    send_frame(&s,
               &(struct proto_frame){
                   .version = PROTO_VERSION, .kind = PROTO_REQUEST, .type = 16, .body_bytes = bytes},
               "", 0);
    assert_int_equal(fcntl(s.peer, F_SETFL, O_NONBLOCK), 0);
    while (at < bytes) {
        ssize_t n = write(s.peer, body + at, bytes - at);
        if (n > 0)
            at += (size_t)n;
        loop_turn(s.loop, 0);
    }
    turns(&s);
    assert_int_equal(s.messages, 1);
    assert_memory_equal(s.body, "start", 5);
    side_fini(&s);
}

static void expect_closed(struct side *s, int status)
{
    turns(s);
    assert_int_equal(s->closed, 1);
    assert_int_equal(s->status, status);
    turns(s);
    assert_int_equal(s->closed, 1);
    side_fini(s);
}

static void test_nonsense(void **state)
{
    struct side s;
    char garbage[1000];
    memset(garbage, 'G', sizeof(garbage));
    side_init(&s, AF_UNIX, 0);
    assert_int_equal(write(s.peer, garbage, sizeof(garbage)), sizeof(garbage));
    expect_closed(&s, LEAT_CORRUPT);

    side_init(&s, AF_UNIX, 0); /* a body past the limit */
    send_frame(&s,
               &(struct proto_frame){
                   .version = PROTO_VERSION, .kind = 1, .type = 16, .body_bytes = PROTO_BODY_MAX + 1},
               "", 0);
    expect_closed(&s, LEAT_CORRUPT);

    side_init(&s, AF_UNIX, 0); /* half a message, then the end */
    send_frame(&s, &(struct proto_frame){.version = PROTO_VERSION, .kind = 1, .type = 16, .body_bytes = 100},
               "abc", 3);
    shutdown(s.peer, SHUT_WR);
    expect_closed(&s, LEAT_CORRUPT);
    assert_int_equal(s.messages, 0);

    side_init(&s, AF_UNIX, 0); /* an unexpected payload */
    send_frame(&s,
               &(struct proto_frame){.version = PROTO_VERSION, .kind = 1, .type = 16, .payload_bytes = 100},
               "", 0);
    expect_closed(&s, LEAT_CORRUPT);

    side_init(&s, AF_UNIX, 0); /* descriptors promised, none sent */
    send_frame(&s, &(struct proto_frame){.version = PROTO_VERSION, .kind = 1, .type = 16, .nfds = 1}, "", 0);
    expect_closed(&s, LEAT_CORRUPT);

    side_init(&s, AF_INET, 0);
    send_frame(&s, &(struct proto_frame){.version = PROTO_VERSION, .kind = 1, .type = 16, .nfds = 1}, "", 0);
    expect_closed(&s, LEAT_CORRUPT);
}

static unsigned open_fds(void)
{
    unsigned n = 0;
    for (int fd = 0; fd < 1024; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static void wait_readable(struct side *s)
{
    int bytes = 0;
    test_run_until(ioctl(s->peer, FIONREAD, &bytes) != 0 || bytes != 0, loop_turn(s->loop, 5));
}

static void test_descriptors(void **state)
{
    struct side s;
    unsigned before = open_fds();
    side_init(&s, AF_UNIX, 0);
    s.take_fds = true;
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    assert_int_equal(net_frame_send(s.peer, PROTO_VERSION, PROTO_REQUEST, 16, 1, NULL, NULL, 0, 0), 0);
    assert_int_equal(net_frame_send(s.peer, PROTO_VERSION, PROTO_REQUEST, 16, 2, NULL, pipes, 1, 0), 0);
    assert_int_equal(net_frame_send(s.peer, PROTO_VERSION, PROTO_REQUEST, 16, 3, NULL, pipes, 2, 0), 0);
    turns(&s);
    assert_int_equal(s.messages, 3);
    assert_int_equal(s.nfds, 3);
    assert_true(fcntl(s.fds[0], F_GETFD) & FD_CLOEXEC);
    assert_int_equal(write(s.fds[2], "x", 1), 1); /* the pipe's write end, in order */
    char c;
    assert_int_equal(read(s.fds[0], &c, 1), 1);

    int many[PROTO_FDS_MAX];
    for (unsigned i = 0; i < PROTO_FDS_MAX; i++)
        many[i] = pipes[0];
    s.take_fds = false; /* what the owner does not take is closed */
    assert_int_equal(net_frame_send(s.peer, PROTO_VERSION, PROTO_REQUEST, 16, 4, NULL, many, 4, 0), 0);
    conn_send(s.conn, PROTO_REPLY, 16, 4, 0, NULL, many, PROTO_FDS_MAX);
    conn_send(s.conn, PROTO_REPLY, 16, 5, 0, NULL, many, 2);
    turns(&s);
    for (unsigned i = 0; i < 2; i++) {
        struct net_reply reply;
        wait_readable(&s);
        assert_int_equal(net_frame_receive(s.peer, &reply, 0), 0);
        assert_int_equal(reply.nfds, i == 0 ? PROTO_FDS_MAX : 2);
        net_reply_fini(&reply);
    }
    /* More than the frame says: refused, and nothing leaks. */
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(3 * sizeof(int))];
    } control;
    uint8_t wire[PROTO_FRAME];
    proto_frame_put(wire, &(struct proto_frame){.version = PROTO_VERSION, .kind = 1, .type = 16, .nfds = 1});
    struct iovec iov = {wire, sizeof(wire)};
    struct msghdr msg = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
    struct cmsghdr *cm = CMSG_FIRSTHDR(&msg);
    *cm = (struct cmsghdr){
        .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(3 * sizeof(int))};
    memcpy(CMSG_DATA(cm), many, 3 * sizeof(int));
    assert_int_equal(sendmsg(s.peer, &msg, 0), sizeof(wire));
    expect_closed(&s, LEAT_CORRUPT);
    side_init(&s, AF_UNIX, 0); /* more than any request has */
    assert_int_equal(net_frame_send(s.peer, PROTO_VERSION, PROTO_REQUEST, 16, 4, NULL, many, 5, 0), 0);
    close(pipes[0]);
    close(pipes[1]);
    expect_closed(&s, LEAT_CORRUPT);
    test_wait_until(open_fds() == before); /* those of pipes are closed by another thread */
    assert_int_equal(open_fds(), before);
}

static void test_payload(void **state)
{
    struct side s;
    uint8_t got[5000] = {0}, sent[5000];
    for (size_t i = 0; i < sizeof(sent); i++)
        sent[i] = (uint8_t)(i * 7);
    side_init(&s, AF_UNIX, 0);
    s.payload = got;
    send_frame(&s,
               &(struct proto_frame){.version = PROTO_VERSION,
                                     .kind = PROTO_REQUEST,
                                     .type = PROTO_INSTALL,
                                     .id = 1,
                                     .payload_bytes = sizeof(sent)},
               sent, sizeof(sent));
    assert_int_equal(net_frame_send(s.peer, PROTO_VERSION, PROTO_REQUEST, 17, 2, NULL, NULL, 0, 0), 0);
    turns(&s);
    assert_int_equal(s.messages, 2);
    assert_int_equal(s.done, 1);
    assert_int_equal(s.done_status, 0);
    assert_memory_equal(got, sent, sizeof(got));

    /* And out, by reference. */
    conn_send_payload(s.conn, PROTO_REPLY, PROTO_DESCRIBE, 3, NULL, sent, sizeof(sent), payload_done, &s);
    assert_int_equal(s.done, 1); /* later, never at once */
    turns(&s);
    assert_int_equal(s.done, 2);
    struct net_reply reply;
    assert_int_equal(net_frame_receive(s.peer, &reply, 0), 0);
    assert_int_equal(reply.frame.payload_bytes, sizeof(sent));
    memset(got, 0, sizeof(got));
    assert_int_equal(recv(s.peer, got, sizeof(got), MSG_WAITALL), sizeof(got));
    assert_memory_equal(got, sent, sizeof(got));
    net_reply_fini(&reply);

    /* The peer dies in the middle of one. */
    send_frame(&s,
               &(struct proto_frame){.version = PROTO_VERSION, .kind = 1, .type = 66, .payload_bytes = 100},
               "abc", 3);
    turns(&s);
    close(s.peer);
    s.peer = -1;
    turns(&s);
    assert_int_equal(s.done, 3);
    assert_true(s.done_status < 0);
    expect_closed(&s, LEAT_CORRUPT);
}

static void test_slow_reader(void **state)
{
    struct side s;
    side_init(&s, AF_UNIX, 1 * MIB);
    struct bytes_out body = {0};
    AUTO_FREE char *text = calloc(1, 64 * KIB);
    bytes_put(&body, text, 64 * KIB);
    for (int i = 0; i < 100; i++)
        conn_send(s.conn, PROTO_REPLY, 25, 1, 0, &body, NULL, 0);
    assert_int_equal(s.closed, 0); /* not from inside conn_send */
    bytes_out_fini(&body);
    expect_closed(&s, LEAT_NO_SPACE);
}

/* Replies of a frame alone, unread: what they take of the heap stays below what they count as, and ends with them. */
static void test_small_replies(void **state)
{
    enum { MANY = 20000 };
    struct side s;
    struct net_reply reply;
    side_init(&s, AF_UNIX, 0);
    size_t before = mallinfo2().uordblks;
    for (unsigned k = 0; k < MANY; k++)
        conn_send(s.conn, PROTO_REPLY, 25, k, 0, NULL, NULL, 0);
    size_t heap = mallinfo2().uordblks - before;
    assert_in_range(heap, 0, conn_queued(s.conn) * 5 / 4); /* the allocator rounds up */
    for (unsigned k = 0; k < MANY; k++) {
        if (k % 16 == 0)
            loop_turn(s.loop, 0);
        assert_int_equal(net_frame_receive(s.peer, &reply, clock_now_ns() + 20 * NS_PER_S), 0);
        net_reply_fini(&reply);
    }
    assert_int_equal(conn_queued(s.conn), 0);
    side_fini(&s);
}

/* Half a long message, descriptors, unread replies: each within its own limits, and together too much. */
static void test_budget(void **state)
{
    struct conn_budget budget = {.limit_bytes = 2 * MIB};
    struct side s[3];
    AUTO_FREE char *text = calloc(1, 1 * MIB);
    for (unsigned i = 0; i < 3; i++) {
        side_init(&s[i], AF_UNIX, 64 * MIB);
        conn_share_budget(s[i].conn, &budget);
        fcntl(s[i].peer, F_SETFL, O_NONBLOCK);
    }
    for (unsigned i = 0; i < 2; i++) { /* of 4 MiB so much that both may keep it, then what one may not */
        struct proto_frame frame = {.version = PROTO_VERSION, .kind = PROTO_REQUEST, .body_bytes = 4 * MIB};
        send_frame(&s[i], &frame, NULL, 0);
        turns(&s[i]);
        for (unsigned k = 0; k < 14; k++) {
            assert_int_equal(write(s[i].peer, text, 64 * KIB), 64 * KIB);
            turns(&s[i]);
        }
        assert_int_equal(s[i].closed, 0);
    }
    assert_in_range(budget.used_bytes, 1 * MIB, 2 * MIB);
    struct bytes_out body = {0};
    bytes_put(&body, text, 1 * MIB);
    for (unsigned i = 0; i < 4 && !s[2].closed; i++) {
        conn_send(s[2].conn, PROTO_REPLY, 25, 1, 0, &body, NULL, 0);
        turns(&s[2]);
    }
    bytes_out_fini(&body);
    assert_int_equal(s[2].status, LEAT_NO_SPACE);
    assert_int_equal(s[0].closed + s[1].closed, 0);
    for (unsigned i = 0; i < 3; i++)
        side_fini(&s[i]);
    assert_int_equal(budget.used_bytes, 0);
}

/* A peer that reads nothing has one frame's descriptors in flight, and the others' once it reads. */
static void test_descriptors_unread(void **state)
{
    struct side s;
    struct net_reply reply;
    int null = open("/dev/null", O_RDONLY), queued[2];
    side_init(&s, AF_UNIX, 64 * MIB);
    for (unsigned i = 0; i < 2; i++) {
        for (unsigned k = 0; k < 100; k++)
            conn_send(s.conn, PROTO_REPLY, 25, k, 0, NULL, &null, 1);
        for (unsigned k = 0; k < 5; k++)
            loop_turn(s.loop, 5);
        assert_int_equal(ioctl(s.peer, FIONREAD, &queued[i]), 0);
        assert_int_equal(queued[i], PROTO_FRAME);
    }
    for (unsigned k = 0; k < 200; k++) {
        wait_readable(&s);
        assert_int_equal(net_frame_receive(s.peer, &reply, clock_now_ns() + NS_PER_S), 0);
        assert_int_equal(reply.nfds, 1);
        assert_int_equal(reply.frame.id, k % 100);
        net_reply_fini(&reply);
    }
    assert_int_equal(s.closed, 0);
    close(null);
    side_fini(&s);
}

static void time_is_up(struct loop_timer *timer)
{
    timer->fire = NULL;
}

/* However long a reply with descriptors lies unread, it wakes the loop a few times a second only. */
static void test_descriptors_unread_for_long(void **state)
{
    struct side s;
    struct net_reply reply;
    struct loop_timer up = {.fire = time_is_up};
    unsigned nturns = 0;
    int null = open("/dev/null", O_RDONLY);
    side_init(&s, AF_UNIX, 0);
    list_init(&up.node);
    for (unsigned k = 0; k < 2; k++)
        conn_send(s.conn, PROTO_REPLY, 25, k, 0, NULL, &null, 1);
    loop_timer_set(s.loop, &up, clock_now_ns() + NS_PER_S);
    test_run_until(!up.fire, (loop_turn(s.loop, -1), nturns++));
    assert_in_range(nturns, 1, 50);
    for (unsigned k = 0; k < 2; k++) {
        wait_readable(&s);
        assert_int_equal(net_frame_receive(s.peer, &reply, clock_now_ns() + 20 * NS_PER_S), 0);
        assert_int_equal(reply.frame.id, k);
        net_reply_fini(&reply);
    }
    close(null);
    side_fini(&s);
}

/* As a user with a low kernel limit of descriptors in flight. 0, or the line that went wrong. */
static int too_many_on_their_way(void)
{
    const struct rlimit few = {64, 64};
    const char byte = 0;
    int pair[2], null = open("/dev/null", O_RDONLY), fds[32];
    struct side s;
    side_init(&s, AF_UNIX, 1 * MIB);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0 || setrlimit(RLIMIT_NOFILE, &few) < 0 ||
        setresuid(54321, 54321, 54321) < 0)
        return __LINE__;
    for (unsigned i = 0; i < ARRAY_LEN(fds); i++)
        fds[i] = null;
    for (unsigned i = 0; i < 3; i++) {
        union fdpass_control control;
        struct iovec iov = {(void *)&byte, 1};
        struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
        fdpass_attach(&msg, &control, fds, ARRAY_LEN(fds));
        if (sendmsg(pair[0], &msg, 0) < 0)
            return __LINE__;
    }
    conn_send(s.conn, PROTO_REPLY, 25, 1, 0, NULL, &null, 1);
    for (unsigned i = 0; i < 5; i++)
        loop_turn(s.loop, 20);
    if (s.closed || recv(s.peer, fds, 1, MSG_DONTWAIT | MSG_PEEK) >= 0)
        return __LINE__;
    close(pair[0]);
    close(pair[1]); /* not taken */
    for (unsigned i = 0; i < 500 && recv(s.peer, fds, 1, MSG_DONTWAIT | MSG_PEEK) < 0; i++)
        loop_turn(s.loop, 20);
    if (s.closed || recv(s.peer, fds, 1, MSG_DONTWAIT | MSG_PEEK) < 0)
        return __LINE__;
    side_fini(&s);
    return 0;
}

static void test_no_room_in_the_kernel(void **state)
{
    int status;
    if (geteuid() != 0)
        skip(); /* one user's share of descriptors is another's only for root to try */
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(too_many_on_their_way() & 255);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void test_free_inside(void **state)
{
    struct side s;
    side_init(&s, AF_UNIX, 0);
    s.free_in_callback = true;
    s.echo = true;
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(
            net_frame_send(s.peer, PROTO_VERSION, PROTO_REQUEST, PROTO_QUERY, i, NULL, NULL, 0, 0), 0);
    turns(&s);
    assert_int_equal(s.messages, 1);
    assert_int_equal(s.closed, 0);
    /* A payload still queued tells its owner. */
    side_fini(&s);
    side_init(&s, AF_UNIX, 0);
    AUTO_FREE char *big = calloc(1, 8 * MIB);
    conn_send_payload(s.conn, PROTO_REPLY, 69, 1, NULL, big, 8 * MIB, payload_done, &s);
    conn_free(s.conn);
    s.conn = NULL;
    assert_int_equal(s.done, 1);
    assert_int_equal(s.done_status, -ECANCELED);
    side_fini(&s);
}

static void test_release_fd(void **state)
{
    struct side s;
    uint32_t uid, gid;
    int32_t pid;
    side_init(&s, AF_UNIX, 0);
    assert_int_equal(conn_credentials(s.conn, &uid, &gid, &pid), 0);
    assert_int_equal(uid, geteuid());
    assert_int_equal(pid, getpid());
    conn_send(s.conn, PROTO_REPLY, 1, 1, 0, NULL, NULL, 0);
    int fd = conn_release_fd(s.conn);
    assert_true(fd >= 0);
    s.conn = NULL;
    struct net_reply reply;
    assert_int_equal(net_frame_receive(s.peer, &reply, 0), 0);
    assert_int_equal(write(fd, "x", 1), 1);
    close(fd);
    side_fini(&s);
}

static void test_blocking_face(void **state)
{
    int pair[2];
    struct net_reply reply;
    const uint8_t garbage[PROTO_FRAME] = "0123456789";
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    assert_int_equal(net_frame_receive(pair[0], &reply, clock_now_ns() + NS_PER_MS), LEAT_TIMED_OUT);
    assert_int_equal(write(pair[1], garbage, sizeof(garbage)), sizeof(garbage));
    assert_int_equal(net_frame_receive(pair[0], &reply, 0), LEAT_CORRUPT);
    close(pair[1]);
    assert_int_equal(net_frame_receive(pair[0], &reply, 0), LEAT_PEER_GONE);
    assert_int_equal(net_frame_send(pair[0], PROTO_VERSION, PROTO_REQUEST, 1, 1, NULL, NULL, 0, 0),
                     LEAT_PEER_GONE);
    close(pair[0]);
}

static void test_addresses(void **state)
{
    struct leat_error err;
    char path[64];
    int fd, other;
    snprintf(path, sizeof(path), "/tmp/leat-test-conn-%d", (int)getpid());
    unlink(path);
    assert_int_equal(net_dial(path, 0, &fd, &err), LEAT_NOT_FOUND);
    assert_int_equal(net_listen(path, 0, &fd, &err), 0);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(net_listen(path, 0, &other, &err), -EADDRINUSE); /* a process listens */
    assert_int_equal(net_dial(path, 0, &other, &err), 0);
    close(other);
    close(fd);
    assert_int_equal(net_listen(path, 0666, &fd, &err), 0); /* none does any more */
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0666);
    close(fd);
    unlink(path);

    char longer[200];
    memset(longer, 'x', sizeof(longer));
    longer[0] = '/';
    longer[199] = 0;
    assert_int_equal(net_dial(longer, 0, &fd, &err), LEAT_INVALID);
    const char *bad[] = {"nonsense", "host:", "::1:80", "", "a:b:c"};
    for (unsigned i = 0; i < ARRAY_LEN(bad); i++)
        assert_int_equal(net_dial(bad[i], 0, &fd, &err), LEAT_INVALID);
}

struct slow_bind {
    char folder[32];
    sem_t bound;
    int fd;
    bool failed;
};

/* Binds as a daemon that is slow to listen. */
static void *bind_slowly(void *user)
{
    struct slow_bind *b = user;
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    snprintf(un.sun_path, sizeof(un.sun_path), "%s/sock", b->folder);
    b->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int lock = open(b->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    b->failed = lock < 0 || flock(lock, LOCK_EX) || bind(b->fd, (struct sockaddr *)&un, sizeof(un));
    sem_post(&b->bound);
    test_pause_us(100000);
    b->failed = b->failed || listen(b->fd, 5);
    close(lock);
    return NULL;
}

/* A socket that is bound and does not listen yet is not taken for one that a dead process left. */
static void test_listen_beside_a_slow_one(void **state)
{
    struct slow_bind b = {.folder = "/tmp/leat-test-XXXXXX"};
    struct leat_error err;
    char path[64];
    int other = -1;
    pthread_t thread;
    assert_non_null(mkdtemp(b.folder));
    sem_init(&b.bound, 0, 0);
    assert_int_equal(pthread_create(&thread, NULL, bind_slowly, &b), 0);
    while (sem_wait(&b.bound) < 0)
        ;
    snprintf(path, sizeof(path), "%s/sock", b.folder);
    assert_int_equal(net_listen(path, 0, &other, &err), -EADDRINUSE);
    pthread_join(thread, NULL);
    assert_false(b.failed);
    assert_int_equal(net_dial(path, 0, &other, &err), 0);
    close(other);
    close(b.fd);
    unlink(path);
    rmdir(b.folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_dribble),
        cmocka_unit_test(test_large_body),
        cmocka_unit_test(test_nonsense),
        cmocka_unit_test(test_descriptors),
        cmocka_unit_test(test_payload),
        cmocka_unit_test(test_slow_reader),
        cmocka_unit_test(test_small_replies),
        cmocka_unit_test(test_free_inside),
        cmocka_unit_test(test_release_fd),
        cmocka_unit_test(test_blocking_face),
        cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_listen_beside_a_slow_one),
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_descriptors_unread),
        cmocka_unit_test(test_descriptors_unread_for_long),
        cmocka_unit_test(test_no_room_in_the_kernel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
