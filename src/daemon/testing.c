/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/testing.h"

#include <setjmp.h>
#include <stdarg.h>

#include "base/clock.h"
#include "leat/leat.h"
#include "loop/loop.h"
#include "rpc/conn.h"
#include "pool/pool.h"
#include "pool/region/prefault.h"
#include "pool/region/region.h"
#include "daemon/server_internal.h"
#include "pool/set/wset.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#include <cmocka.h>

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

void host_start_ready(struct host *h, uint64_t cap_bytes, uint64_t ready)
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

void host_start(struct host *h, uint64_t cap_bytes)
{
    host_start_ready(h, cap_bytes, 0);
}

void host_run(struct host *h)
{
    assert_int_equal(pthread_create(&h->thread, NULL, run, h->loop), 0);
}

void host_stop(struct host *h, bool running)
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

uint64_t last_id;

void send_request(int fd, uint16_t type, struct bytes_out *body)
{
    assert_int_equal(net_frame_send(fd, PROTO_VERSION, PROTO_REQUEST, type, ++last_id, body, NULL, 0, 0), 0);
    bytes_out_fini(body);
}

void receive_reply(int fd, uint64_t id, struct net_reply *reply)
{
    for (;;) {
        assert_int_equal(net_frame_receive(fd, reply, clock_now_ns() + 20 * NS_PER_S), 0);
        if (reply->frame.kind == PROTO_REPLY && reply->frame.id == id)
            return;
        net_reply_fini(reply);
    }
}

int ask(int fd, uint16_t type, struct bytes_out *body, struct net_reply *ret_reply)
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

int dial(struct host *h)
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

void open_body(struct bytes_out *body, const char *name, const char *uri)
{
    struct proto_open o = {.name = (char *)name, .uri = (char *)uri};
    proto_open_put(body, &o);
}

uint64_t open_set(int fd, uint16_t type, const char *name, const char *uri, struct proto_ws *ret_ws,
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

int wait_for(int fd, uint64_t ws)
{
    struct bytes_out body = {0};
    bytes_put_u64(&body, ws);
    bytes_put_u32(&body, 0);
    return ask(fd, PROTO_WAIT, &body, NULL);
}

int fetch(int fd, uint64_t ws, uint64_t first, uint64_t count, uint64_t *ret_lease)
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

void release(int fd, uint64_t lease)
{
    struct bytes_out body = {0};
    bytes_put_u64(&body, lease);
    send_request(fd, PROTO_RELEASE, &body);
}

int close_set(int fd, uint64_t ws)
{
    struct bytes_out body = {0};
    bytes_put_u64(&body, ws);
    return ask(fd, PROTO_CLOSE, &body, NULL);
}

int drop(int fd, const char *name, uint32_t flags)
{
    struct bytes_out body = {0};
    bytes_put_u32(&body, flags);
    bytes_put_u64(&body, 0);
    bytes_put_str(&body, name);
    return ask(fd, PROTO_DROP, &body, NULL);
}

void opened(struct open_request *r, struct wset *ws, const struct leat_error *err)
{
    struct answer *a = r->user;
    *a = (struct answer){.here = true, .ws = ws, .code = err ? err->code : 0};
}

struct answer open_within(struct host *h, uint32_t uid, uint32_t flags, uint64_t pool_bytes, const char *name,
                          const char *uri)
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

struct answer open_as(struct host *h, uint32_t uid, uint32_t flags, const char *name, const char *uri)
{
    return open_within(h, uid, flags, 0, name, uri);
}
