/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "http/server/testing.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/testing.h"

/* --- handler ------------------------------------------------------------------------------------------------------------- */

struct job {
    struct rig *rig;
    struct http_request *req;
    struct http_work work;
    bool working, over; /* reactor's thread: it is freed when neither the request nor a worker has it */
    char *text;
    size_t len, cap, size;
    unsigned instalments;
    bool unknown, cut, failing;
    struct http_piece pieces[16];
};

static void job_put(struct job *job)
{
    if (!job->over || job->working)
        return;
    free(job->text);
    free(job);
}

static void reply(struct http_request *req, unsigned status, const char *text)
{
    http_put_header(http_respond(req, status), "Content-Type", "text/plain");
    http_send_copy(req, text, strlen(text));
}

static void on_over(struct http_request *req, int rc)
{
    struct job *job = req->user;
    struct rig *rig = job->rig;
    job->over = true;
    atomic_fetch_add(rc == 0                ? &rig->over_good
                     : rc == LEAT_PEER_GONE ? &rig->over_gone
                     : rc == LEAT_CORRUPT   ? &rig->over_corrupt
                                            : &rig->over_cancelled,
                     1);
    job_put(job);
}

static void work_run(struct http_work *work)
{
    struct job *job = container_of(work, struct job, work);
    test_wait_until(!atomic_load(&job->rig->gated) || atomic_load(&job->rig->release));
}

static void late_done(struct http_work *work, struct http_request *req)
{
    struct job *job = container_of(work, struct job, work);
    job->working = false;
    atomic_fetch_add(req ? &job->rig->works : &job->rig->dead_works, 1);
    if (req)
        reply(req, 200, "late");
    job_put(job);
}

#define SLOW_BYTES (64 * KIB)

static void slow_next(struct http_work *work, struct http_request *req)
{
    struct job *job = container_of(work, struct job, work);
    job->working = false;
    if (req)
        http_body_into(req, job->text, SLOW_BYTES);
    job_put(job);
}

static void start(struct job *job, struct http_request *req,
                  void (*done)(struct http_work *, struct http_request *))
{
    job->work = (struct http_work){.run = work_run, .done = done};
    job->working = true;
    if (http_work_start(job->rig->workers, http_request_ref(req), HTTP_PRIORITY_SHORT, &job->work) < 0) {
        job->working = false;
        reply(req, 503, "busy");
    }
}

static void on_data(struct http_request *req, const void *data, size_t len, bool last)
{
    struct job *job = req->user;
    if (job->len + len > job->cap) {
        job->cap = (job->len + len) * 2;
        job->text = realloc(job->text, job->cap);
    }
    if (len)
        memcpy(job->text + job->len, data, len);
    job->len += len;
    atomic_fetch_add(&job->rig->streamed, len);
    if (last)
        http_send_copy((http_respond(req, 200), req), job->text, job->len);
}

static void slow_full(struct http_request *req, size_t got, bool last)
{
    struct job *job = req->user;
    char text[32];
    job->len += got;
    atomic_fetch_add(&job->rig->streamed, got);
    if (last) {
        snprintf(text, sizeof(text), "%zu", job->len);
        reply(req, 200, text);
        return;
    }
    start(job, req, slow_next);
}

static void on_full(struct http_request *req, size_t got, bool last)
{
    struct job *job = req->user;
    assert(last || got == job->size);
    job->len += got;
    if (last) {
        http_send_copy((http_respond(req, 200), req), job->text, job->len);
        return;
    }
    job->text = realloc(job->text, job->len + job->size);
    http_body_into(req, job->text + job->len, job->size);
}

static void next_instalment(struct http_request *req)
{
    struct job *job = req->user;
    if (job->failing && job->instalments == 1) {
        http_abort(req);
        return;
    }
    job->instalments--;
    struct http_piece p = {.data = job->text, .bytes = job->cut && job->instalments == 0 ? 9999 : 10000};
    http_send_more(req, &p, 1, job->instalments == 0);
}

static void on_left(struct http_request *req)
{
    struct job *job = req->user;
    atomic_fetch_add(&job->rig->lefts, 1);
    http_abort(req);
}

static const struct http_ops plain_ops = {.over = on_over};
static const struct http_ops hold_ops = {.over = on_over, .left = on_left};
static const struct http_ops echo_ops = {.data = on_data, .over = on_over};
static const struct http_ops slow_ops = {.full = slow_full, .over = on_over};
static const struct http_ops into_ops = {.full = on_full, .over = on_over};
static const struct http_ops flow_ops = {.more = next_instalment, .over = on_over};

static uint64_t number(struct http_request *req, const char *name, uint64_t otherwise)
{
    size_t n = strlen(name);
    for (size_t i = 0; req->query.data && i + n < req->query.len; i++) {
        if (memcmp(req->query.data + i, name, n) == 0 && req->query.data[i + n] == '=')
            return strtoull(req->query.data + i + n + 1, NULL, 10); /* a space ends it */
    }
    return otherwise;
}

static bool has(struct http_request *req, const char *word)
{
    return req->query.data && memmem(req->query.data, req->query.len, word, strlen(word));
}

static void give_mixed(struct job *job, struct http_request *req)
{
    unsigned n = 0;
    uint64_t total = 0;
    for (unsigned i = 0; i < 5; i++) {
        job->pieces[n++] = (struct http_piece){.data = "head-", .bytes = 5};
        job->pieces[n++] = (struct http_piece){.fd = job->rig->file, .at = 10, .bytes = 10};
        job->pieces[n++] = (struct http_piece){.data = "-tail", .bytes = 5};
        total += 20;
    }
    http_respond(req, 200);
    http_send(req, total, job->pieces, n, true);
}

static void give_flow(struct job *job, struct http_request *req)
{
    job->instalments = (unsigned)number(req, "n", 3);
    job->unknown = has(req, "unknown");
    job->cut = has(req, "short");
    job->failing = has(req, "failing");
    job->text = malloc(10000);
    if (!job->text) {
        reply(req, 503, "no memory");
        return;
    }
    memset(job->text, 'f', 10000);
    http_respond(req, 200);
    http_send(req, job->unknown ? HTTP_BODY_UNKNOWN : job->instalments * 10000ull, NULL, 0, false);
}

static void give_file(struct job *job, struct http_request *req)
{
    struct http_piece p = {.fd = job->rig->file, .bytes = job->rig->file_bytes};
    http_respond(req, 200);
    http_send(req, p.bytes, &p, 1, true);
}

static void give_text(struct job *job, struct http_request *req)
{
    size_t n = (size_t)number(req, "n", 1);
    job->text = malloc(n + 1);
    if (!job->text) {
        reply(req, 503, "no memory");
        return;
    }
    memset(job->text, 't', n);
    http_respond(req, 200);
    http_send_copy(req, job->text, n);
}

static void on_request(void *user, struct http_request *req)
{
    struct rig *rig = user;
    struct job *job = calloc(1, sizeof(*job));
    rig->last = http_request_ref(req);
    if (!job) {
        reply(req, 503, "no memory");
        return;
    }
    *job = (struct job){.rig = rig, .req = req, .size = (size_t)number(req, "size", 4096)};
    req->user = job;
    req->ops = &plain_ops;
    atomic_fetch_add(&rig->begun, 1);
    if (http_text_is(req->path, "/late")) {
        start(job, req, late_done);
    } else if (http_text_is(req->path, "/echo")) {
        req->ops = &echo_ops;
        http_body_stream(req);
    } else if (http_text_is(req->path, "/slow")) {
        req->ops = &slow_ops;
        job->text = malloc(SLOW_BYTES);
        http_body_into(req, job->text, SLOW_BYTES);
    } else if (http_text_is(req->path, "/into")) {
        req->ops = &into_ops;
        job->text = malloc(job->size);
        http_body_into(req, job->text, job->size);
    } else if (http_text_is(req->path, "/hold")) {
        req->ops = &hold_ops;
    } else if (http_text_is(req->path, "/refuse")) {
        reply(req, 403, "no");
    } else if (http_text_is(req->path, "/file")) {
        give_file(job, req);
    } else if (http_text_is(req->path, "/mixed")) {
        give_mixed(job, req);
    } else if (http_text_is(req->path, "/flow")) {
        req->ops = &flow_ops;
        give_flow(job, req);
    } else if (http_text_is(req->path, "/text")) {
        give_text(job, req);
    } else {
        reply(req, http_text_is(req->path, "/hello") ? 200 : 404, "hello");
    }
}

/* --- rig ----------------------------------------------------------------------------------------------------------------- */

void rig_start(struct rig *rig, const struct http_server_config *config)
{
    static const struct http_listen any = {.address = "127.0.0.1:0"};
    struct http_server_config c = config ? *config : (struct http_server_config){0};
    struct leat_error err = {0};
    *rig = (struct rig){.file = -1, .file_bytes = 1000000};
    alarm(900); /* a test that waits for what never comes ends */
    if (!c.listen) {
        c.listen = &any;
        c.nlisten = 1;
    }
    c.handler.request = on_request;
    c.handler.user = rig;
    snprintf(rig->folder, sizeof(rig->folder), "/tmp/leat-http-XXXXXX");
    assert_non_null(mkdtemp(rig->folder));
    rig->file = open(rig->folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    assert_true(rig->file >= 0);
    AUTO_FREE char *text = malloc(rig->file_bytes);
    for (uint64_t i = 0; i < rig->file_bytes; i++)
        text[i] = (char)('a' + i % 23);
    assert_int_equal(pwrite(rig->file, text, rig->file_bytes, 0), rig->file_bytes);
    assert_int_equal(http_workers_new(2, 64, &rig->workers, NULL), 0);
    c.workers = rig->workers;
    int rc = http_server_new(&c, &rig->server, &err);
    if (rc < 0)
        print_error("%s\n", err.message);
    assert_int_equal(rc, 0);
}

unsigned rig_overs(struct rig *rig)
{
    return atomic_load(&rig->over_good) + atomic_load(&rig->over_gone) + atomic_load(&rig->over_cancelled) +
           atomic_load(&rig->over_corrupt);
}

void rig_stop(struct rig *rig)
{
    struct http_server_stats stats;
    atomic_store(&rig->release, true);
    http_server_stop(rig->server, 0);
    http_workers_free(rig->workers);
    http_server_stats(rig->server, &stats);
    assert_int_equal(stats.connections, 0);
    assert_int_equal(stats.busy, 0);
    assert_int_equal(stats.memory_bytes, 0);
    http_server_free(rig->server);
    assert_int_equal(rig_overs(rig), atomic_load(&rig->begun));
    close(rig->file);
    rmdir(rig->folder);
}

void rig_await(_Atomic unsigned *counter, unsigned n)
{
    test_wait_until(atomic_load(counter) >= n);
}

int rig_connect(struct rig *rig)
{
    return rig_connect_narrow(rig, 0);
}

int rig_connect_narrow(struct rig *rig, int bytes)
{
    const char *address = http_server_address(rig->server, 0);
    struct sockaddr_in in = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)atoi(strrchr(address, ':') + 1))};
    in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    if (bytes) {
        static const int segment = 1000;
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
        setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &segment, sizeof(segment));
    }
    assert_int_equal(connect(fd, (struct sockaddr *)&in, sizeof(in)), 0);
    struct timeval tv = {.tv_sec = PATIENCE_NS / NS_PER_S};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv));
    return fd;
}

/* A peer that has closed is no failure here: its answer is checked. */
void rig_send(int fd, const void *data, size_t len)
{
    while (len) {
        ssize_t n = send(fd, data, len, MSG_NOSIGNAL);
        if (n <= 0)
            return;
        data = (const char *)data + n;
        len -= (size_t)n;
    }
}

/* --- client -------------------------------------------------------------------------------------------------------------- */

void stream_fini(struct stream *s)
{
    close(s->fd);
    free(s->buf);
}

void answer_fini(struct answer *a)
{
    free(a->head);
    free(a->body);
}

static bool more(struct stream *s)
{
    if (s->have == s->cap) {
        s->cap = s->cap ? s->cap * 2 : 4096;
        s->buf = realloc(s->buf, s->cap);
    }
    ssize_t n = recv(s->fd, s->buf + s->have, s->cap - s->have, 0);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        fail_msg("nothing came for %llu s", PATIENCE_NS / NS_PER_S);
    s->end = n <= 0;
    s->have += n > 0 ? (size_t)n : 0;
    return n > 0;
}

static int collect(void *user, const void *data, size_t len)
{
    bytes_put(user, data, len);
    return 0;
}

static void drop(struct stream *s, size_t n)
{
    memmove(s->buf, s->buf + n, s->have - n);
    s->have -= n;
}

static void body(struct stream *s, struct http_reader *r, struct answer *a)
{
    struct bytes_out text = {0};
    uint64_t left = r->body == HTTP_BODY_LENGTH ? r->body_bytes : UINT64_MAX;
    while (r->body != HTTP_BODY_NONE && left && !r->ended) {
        if (s->have == 0 && !more(s)) {
            a->cut = r->body != HTTP_BODY_UNTIL_CLOSE;
            break;
        }
        size_t used = (size_t)MIN(left, (uint64_t)s->have);
        if (r->body == HTTP_BODY_CHUNKED)
            assert_int_equal(http_body_feed(r, s->buf, s->have, collect, &text, &used, NULL), 0);
        else
            bytes_put(&text, s->buf, used);
        left -= r->body == HTTP_BODY_LENGTH ? used : 0;
        drop(s, used);
    }
    a->body_len = text.len;
    bytes_put(&text, "", 1);
    a->body = (char *)text.data;
}

bool stream_answer(struct stream *s, const char *method, struct answer *ret_answer)
{
    struct http_reader r;
    struct leat_error err = {0};
    struct answer *a = ret_answer;
    *a = (struct answer){0};
    int rc = 0;
    do {
        http_reader_init_response(&r, 0);
        while ((rc = s->have ? http_head_feed(&r, s->buf, s->have, method, &err) : 0) == 0) {
            if (!more(s))
                return false;
        }
        if (rc < 0)
            fail_msg("%s", err.message);
        if (r.status == 100)
            drop(s, r.head_bytes);
    } while (r.status == 100);
    a->status = r.status;
    a->keep_alive = r.keep_alive;
    a->chunked = r.body == HTTP_BODY_CHUNKED;
    a->has_length = http_text_u64(http_header(&r, s->buf, "content-length"), &a->length);
    a->head = strndup(s->buf, r.head_bytes);
    drop(s, r.head_bytes);
    body(s, &r, a);
    return true;
}

bool stream_ended(struct stream *s)
{
    while (!s->end && s->have == 0)
        more(s);
    return s->have == 0;
}

void rig_expect(struct rig *rig, const char *text, int status, bool closed)
{
    struct stream s = {.fd = rig_connect(rig)};
    struct answer a;
    rig_say(s.fd, text);
    if (!stream_answer(&s, "GET", &a))
        fail_msg("no answer to %s", text);
    if (a.status != status)
        fail_msg("%d, not %d, to %s", a.status, status, text);
    assert_int_equal(a.keep_alive, !closed);
    if (closed)
        assert_true(stream_ended(&s));
    answer_fini(&a);
    stream_fini(&s);
}
