/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session that lists, looks, reads, stores and deletes while one allocation after the other fails, or one call of the network: it ends, with
 * the right bytes or with a reason, and leaves nothing behind. The server is a process of its own, which nothing fails in.
 */
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <cmocka.h>

#include "backend/reader.h"
#include "http/client/testing.h"
#include "base/clock.h"
#include "base/testing.h"
#include "failalloc.h"

#define OBJECT       (200 * KIB)
#define KEYS         200u
#define PAGE         20u
#define RUNS_A_CHILD 40u /* testing.h's server ends with its thousandth connection */

static char object[OBJECT], dst[OBJECT];

/* --- the server -------------------------------------------------------------------------------------------------------- */

static void say(struct web_peer *p, const char *status, const char *headers, const char *body, size_t len)
{
    struct bytes_out out = {0};
    char head[200];
    snprintf(head, sizeof(head), "HTTP/1.1 %s\r\nContent-Length: %zu\r\nETag: \"one\"\r\n%s\r\n", status, len,
             headers);
    http_put(&out, head);
    bytes_put(&out, body, body ? len : 0);
    web_say_bytes(p, out.data, out.len);
    bytes_out_fini(&out);
}

static void say_page(struct web_peer *p)
{
    char after[20] = "", line[100];
    const char *at = strstr(p->head, "continuation-token=T");
    at = at ? at + 20 : strstr(p->head, "start-after=");
    if (at)
        snprintf(after, sizeof(after), "%.4s", *at == 's' ? at + 12 : at);
    struct bytes_out out = {0};
    unsigned n = 0, key = 0;
    http_put(&out, "<ListBucketResult>");
    for (; key < KEYS && n < PAGE; key++) {
        snprintf(line, sizeof(line), "%04u", key);
        if (strcmp(line, after) <= 0)
            continue;
        snprintf(line, sizeof(line), "<Contents><Key>%04u</Key><Size>1</Size></Contents>", key);
        http_put(&out, line);
        n++;
    }
    if (key < KEYS) {
        snprintf(line, sizeof(line),
                 "<IsTruncated>true</IsTruncated><NextContinuationToken>T%04u</NextContinuationToken>",
                 key - 1);
        http_put(&out, line);
    }
    http_put(&out, "</ListBucketResult>");
    say(p, "200 OK", "", (const char *)out.data, out.len);
    bytes_out_fini(&out);
}

static void talk(struct web_peer *p)
{
    char path[256], range[80], told[120];
    while (web_hear(p, path)) {
        unsigned long long first = 0, last = OBJECT - 1;
        if (strncmp(p->head, "HEAD", 4) == 0) {
            say(p, "200 OK", "", NULL, OBJECT);
        } else if (web_header(p, "x-amz-copy-source", told, sizeof(told))) {
            static const char copied[] = "<CopyObjectResult><ETag>\"two\"</ETag></CopyObjectResult>";
            say(p, "200 OK", "", copied, sizeof(copied) - 1);
        } else if (strncmp(p->head, "PUT", 3) == 0 || strncmp(p->head, "DELETE", 6) == 0) {
            say(p, "200 OK", "", "", 0);
        } else if (strstr(path, "list-type=2")) {
            say_page(p);
        } else {
            bool ranged = web_header(p, "range", range, sizeof(range));
            if (ranged)
                sscanf(range, "bytes=%llu-%llu", &first, &last);
            snprintf(told, sizeof(told), "Content-Range: bytes %llu-%llu/%llu\r\n", first, last,
                     (unsigned long long)OBJECT);
            say(p, ranged ? "206 Partial Content" : "200 OK", ranged ? told : "", object + first,
                last - first + 1);
        }
    }
}

static pid_t child;
static char url[64];
static unsigned runs;

static void server_end(void)
{
    if (child > 0)
        web_reap(child);
    child = 0;
}

static void server_renew(void)
{
    uint16_t port = 0;
    if (child && ++runs % RUNS_A_CHILD)
        return;
    server_end();
    child = web_fork(talk, &port);
    snprintf(url, sizeof(url), "http://127.0.0.1:%u", port);
}

/* --- the session ------------------------------------------------------------------------------------------------------- */

static int count(void *user, const struct backend_object *o)
{
    unsigned *n = user;
    char due[8];
    snprintf(due, sizeof(due), "%04u", *n);
    assert_string_equal(o->name, due);
    ++*n;
    return 0;
}

static unsigned ops_left;
static int ops_rc;

static void op_done(struct backend_op *op, int rc, const struct leat_error *err)
{
    (void)op;
    assert_true(rc == 0 || err->message[0]);
    ops_rc = ops_rc ? ops_rc : rc;
    ops_left--;
}

/* Side by side, and one of them cancelled. The first error. */
static int work_ops(struct backend *b)
{
    struct backend_stat stat;
    struct backend_op ops[] = {
        {.kind = BACKEND_STAT, .uri = "s3://bucket/key", .stat = &stat},
        {.kind = BACKEND_DELETE, .uri = "s3://bucket/key"},
        {.kind = BACKEND_COPY, .uri = "s3://bucket/key", .from = "s3://bucket/k", .bytes = 9},
        {.kind = BACKEND_STAT, .uri = "s3://bucket/key", .stat = &stat}};
    ops_left = 3;
    ops_rc = 0;
    for (unsigned i = 0; i < ARRAY_LEN(ops); i++) {
        ops[i].done = op_done;
        backend_op_submit(b, &ops[i]);
    }
    backend_op_cancel(b, &ops[3]);
    while (ops_left) {
        if (backend_wait(b, 1, -1) < 0)
            fail_msg("%u operations are left", ops_left);
    }
    return ops_rc;
}

/* The first error, with its reason. */
static int work(struct leat_error *err)
{
    struct backend *b = NULL;
    struct backend_file *f = NULL;
    struct backend_stat stat;
    unsigned n = 0;
    struct backend_config config = {.connections = 3,
                                    .block_bytes = 64 * KIB,
                                    .endpoint = url,
                                    .region = "us-east-1",
                                    .given = true,
                                    .tries = 3,
                                    .timeout_ns = 10 * NS_PER_S};
    int fd = memfd_create("in", MFD_CLOEXEC);
    assert_int_equal(pwrite(fd, object, OBJECT, 0), OBJECT);
    *err = (struct leat_error){0};
    memset(dst, 0, sizeof(dst));
    int rc = backend_new(&config, &b, err);
    if (rc == 0)
        rc = backend_list(b, "s3://bucket/", true, NULL, count, &n, err);
    assert_true(rc < 0 || n == KEYS);
    if (rc == 0)
        rc = backend_stat_object(b, "s3://bucket/key", &stat, err);
    assert_true(rc < 0 || stat.bytes == OBJECT);
    if (rc == 0)
        rc = backend_open(b, "s3://bucket/key", NULL, OBJECT, &f, err);
    if (rc == 0) {
        int64_t got = backend_pread(b, f, dst, OBJECT, 0, err);
        rc = got < 0 ? (int)got : 0;
        assert_true(got < 0 || (got == OBJECT && memcmp(dst, object, OBJECT) == 0));
    }
    if (f)
        backend_close(f);
    if (rc == 0)
        rc = backend_put(b, "s3://bucket/new", fd, 0, 20 * KIB, "x-amz-meta-a:b\n", NULL, err);
    if (rc == 0)
        rc = backend_delete(b, "s3://bucket/new", err);
    if (rc == 0 && (rc = work_ops(b)) < 0)
        error_sys(err, rc, "operations");
    backend_free(b);
    close(fd);
    return rc;
}

static void test_allocations(void **state)
{
    (void)state;
    unsigned refused = 0;
    for (unsigned nth = 1;; nth += test_step(4)) { /* work() starts no thread */
        struct leat_error err;
        server_renew();
        size_t before = failalloc_live();
        failalloc_arm(nth);
        int rc = work(&err);
        bool over = failalloc_disarm() < nth;
        if (rc != 0 && rc != -ENOMEM)
            fail_msg("allocation %u: %d, %s", nth, rc, err.message);
        if (failalloc_live() != before)
            fail_msg("allocation %u: %zu blocks are left", nth, failalloc_live() - before);
        refused += rc != 0;
        if (over) {
            assert_int_equal(rc, 0);
            break;
        }
    }
    assert_true(refused > 20 / test_step(4));
}

/* The same of a reader: one read in pieces, and one operation. */
static int work_reader(struct leat_error *err)
{
    struct reader *r = NULL;
    struct reader_file *f = NULL;
    struct backend_stat stat;
    struct iovec iov[] = {{dst, 70000}, {dst + 70000, OBJECT - 70000}};
    struct reader_config config = {.session = {.connections = 3,
                                               .block_bytes = 64 * KIB,
                                               .endpoint = url,
                                               .region = "us-east-1",
                                               .given = true,
                                               .tries = 3,
                                               .identity = "me"}};
    *err = (struct leat_error){0};
    memset(dst, 0, sizeof(dst));
    int rc = reader_new(&config, &r, err);
    if (rc == 0)
        rc = reader_open(r, "s3://bucket/key", NULL, OBJECT, true, &f);
    if (rc == 0) {
        struct reader_request read = {.file = f, .read = {.bytes = OBJECT, .pieces = iov, .npieces = 2}};
        rc = reader_run(r, &read, err);
        assert_true(rc < 0 || memcmp(dst, object, OBJECT) == 0);
    }
    if (rc == 0) {
        struct reader_request op = {.op = {.kind = BACKEND_STAT, .uri = "s3://bucket/key", .stat = &stat}};
        rc = reader_run(r, &op, err);
        assert_true(rc < 0 || stat.bytes == OBJECT);
    }
    reader_close(f);
    reader_free(r);
    return rc;
}

static void test_reader_allocations(void **state)
{
    (void)state;
    unsigned refused = 0;
    for (unsigned nth = 1, calm = 0; calm < 3; nth++) { /* threads do not count alike each time */
        struct leat_error err;
        server_renew();
        size_t before = failalloc_live();
        failalloc_arm(nth);
        int rc = work_reader(&err);
        calm = failalloc_disarm() < nth ? calm + 1 : 0;
        if (rc != 0 && rc != -ENOMEM && rc != -EAGAIN)
            fail_msg("allocation %u: %d, %s", nth, rc, err.message);
        if (failalloc_live() != before)
            fail_msg("allocation %u: %zu blocks are left", nth, failalloc_live() - before);
        refused += rc != 0;
    }
    assert_true(refused > 10);
}

/* --- calls that fail --------------------------------------------------------------------------------------------------- */

enum call { SOCKET, CONNECT, SEND, RECV, CALLS };

static struct {
    enum call call;
    unsigned nth, made; /* of this one; nth 0: none fails */
    unsigned times;
    int with; /* an errno, or 0: the connection's end */
} fault;

static bool fails(enum call call)
{
    if (fault.nth == 0 || fault.call != call)
        return false;
    unsigned n = ++fault.made;
    errno = fault.with;
    return n >= fault.nth && n - fault.nth < fault.times;
}

/* In front of libc's, for all of this program. */
int socket(int domain, int type, int protocol)
{
    return fails(SOCKET) ? -1 : (int)syscall(SYS_socket, domain, type, protocol);
}

int connect(int fd, const struct sockaddr *addr, socklen_t len)
{
    return fails(CONNECT) ? -1 : (int)syscall(SYS_connect, fd, addr, len);
}

ssize_t sendmsg(int fd, const struct msghdr *msg, int flags)
{
    return fails(SEND) ? -1 : syscall(SYS_sendmsg, fd, msg, flags);
}

ssize_t recv(int fd, void *buf, size_t len, int flags)
{
    return !fails(RECV) ? syscall(SYS_recvfrom, fd, buf, len, flags, NULL, NULL) : fault.with ? -1 : 0;
}

static const struct {
    enum call call;
    int with;
    bool passes; /* once is never seen from outside */
} kinds[] = {
    {SOCKET, EMFILE, false}, {CONNECT, ECONNREFUSED, true}, {CONNECT, ENETUNREACH, true},
    {SEND, EPIPE, true},     {SEND, ECONNRESET, true},      {RECV, ECONNRESET, true},
    {RECV, 0, true},         {RECV, ETIMEDOUT, true},
};

static void arm(unsigned kind, unsigned nth, unsigned times)
{
    memset(&fault, 0, sizeof(fault));
    fault.call = kinds[kind].call;
    fault.with = kinds[kind].with;
    fault.nth = nth;
    fault.times = times;
}

static void test_calls(void **state)
{
    (void)state;
    for (unsigned k = 0; k < ARRAY_LEN(kinds); k++) {
        for (unsigned nth = 1;; nth += test_step(4) * (nth < 8 ? 1 : 5)) {
            struct leat_error err;
            server_renew();
            size_t before = failalloc_live();
            arm(k, nth, 1);
            int rc = work(&err);
            bool over = fault.made < nth;
            fault.nth = 0;
            if (rc != 0 && (kinds[k].passes || over || !err.message[0]))
                fail_msg("kind %u, call %u: %d, \"%s\"", k, nth, rc, err.message);
            assert_int_equal(failalloc_live(), before);
            if (over)
                break;
        }
    }
}

/* Nothing works: each operation says what and where. */
static void test_no_network(void **state)
{
    (void)state;
    for (unsigned k = 0; k < ARRAY_LEN(kinds); k++) {
        struct leat_error err;
        server_renew();
        size_t before = failalloc_live();
        arm(k, 1, UINT_MAX);
        int rc = work(&err);
        fault.nth = 0;
        assert_true(rc < 0);
        if (!strstr(err.message, "GET s3://bucket/"))
            fail_msg("kind %u: %d, \"%s\"", k, rc, err.message);
        assert_int_equal(failalloc_live(), before);
    }
}

static int teardown(void **state)
{
    (void)state;
    server_end();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_allocations, teardown),
        cmocka_unit_test_teardown(test_reader_allocations, teardown),
        cmocka_unit_test_teardown(test_calls, teardown),
        cmocka_unit_test_teardown(test_no_network, teardown),
    };
    setenv("AWS_ACCESS_KEY_ID", "AK", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "SK", 1);
    for (size_t i = 0; i < OBJECT; i++)
        object[i] = (char)(i * 2654435761u >> 13);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
