/* SPDX-License-Identifier: Apache-2.0 */
/* The client against a server that follows a script, over real sockets: what arrives, what breaks, and that each call ends once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>

#include "http/client/http_client.h"
#include "http/client/testing.h"
#include "base/clock.h"
#include "base/testing.h"
#include "base/testing_pieces.h"
#include "loop/loop.h"

/* --- the client's side ------------------------------------------------------------------------------------------------- */

struct get {
    struct http_call call;
    char head[300], etag[40];
    int rc;
    unsigned ended;
    struct leat_error err;
    int refuse;
};

static unsigned left;

static void on_done(struct http_call *call, int rc, const struct leat_error *err)
{
    struct get *g = container_of(call, struct get, call);
    g->rc = rc;
    g->ended++;
    if (err)
        g->err = *err;
    left--;
}

static int on_head(struct http_call *call, const struct http_reader *reader, const char *buf,
                   struct leat_error *err)
{
    struct get *g = container_of(call, struct get, call);
    http_text_copy(http_header(reader, buf, "etag"), g->etag, sizeof(g->etag));
    return g->refuse ? error_set(err, g->refuse, "not wanted") : 0;
}

static void get_init(struct get *g, const struct http_origin *origin, const char *path, void *dst,
                     uint64_t bytes)
{
    memset(g, 0, sizeof(*g));
    snprintf(g->head, sizeof(g->head), "GET %s HTTP/1.1\r\nhost: x\r\n\r\n", path);
    g->call = (struct http_call){.origin = origin,
                                 .method = "GET",
                                 .head = g->head,
                                 .head_len = strlen(g->head),
                                 .repeatable = true,
                                 .dst = pieces_one(dst, bytes),
                                 .dst_bytes = bytes,
                                 .on_head = on_head,
                                 .done = on_done};
}

static struct loop *loop;
static struct http_client *client;

static void run(unsigned n, struct get *gets)
{
    left = n;
    for (unsigned i = 0; i < n; i++)
        assert_int_equal(http_call_start(client, &gets[i].call), 0);
    test_run_until(!left, loop_turn(loop, 100));
    for (unsigned i = 0; i < n; i++)
        assert_int_equal(gets[i].ended, 1);
}

static void begin_with(const struct http_client_config *config)
{
    assert_int_equal(loop_new(&loop), 0);
    assert_int_equal(http_client_new(loop, config, &client, NULL), 0);
}

static void begin(unsigned connections, unsigned pipeline)
{
    struct http_client_config config = {.connections = connections, .pipeline = pipeline};
    begin_with(&config);
}

static void end(struct web_server *s)
{
    http_client_free(client);
    if (s)
        web_stop(s);
    loop_turn(loop, 0);
    loop_free(loop);
}

#define LATE_NS (20 * NS_PER_MS)
#define BIG     (3 * 1024 * 1024 + 17)
static char big[BIG]; /* filled before there are threads */

static void talk_plain(struct web_peer *p)
{
    char path[256], head[256];
    while (web_hear(p, path)) {
        unsigned n = 0;
        if (strcmp(path, "/big") == 0) {
            sprintf(head, "HTTP/1.1 200 OK\r\nETag: \"e\"\r\nContent-Length: %d\r\n\r\n", BIG);
            web_say(p, head);
            web_say_bytes(p, big, BIG);
        } else if (sscanf(path, "/n/%u", &n) == 1 || sscanf(path, "/late/%u", &n) == 1) {
            char body[64];
            if (path[1] == 'l')
                test_pause_us(LATE_NS / 1000);
            sprintf(body, "number %u", n);
            sprintf(head, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n%s", strlen(body), body);
            web_say(p, head);
        } else if (strcmp(path, "/chunked") == 0) {
            web_say(p, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n");
            web_say(p,
                    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1\r\n!\r\n0\r\n\r\n");
        } else if (strcmp(path, "/close") == 0) {
            web_say(p, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nuntil the end");
            return;
        } else if (strcmp(path, "/short") == 0) {
            web_say(p, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this");
            return;
        } else if (strcmp(path, "/junk") == 0) {
            web_say(p, "SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n");
        } else if (strcmp(path, "/extra") == 0) {
            web_say(p, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n");
        } else if (strcmp(path, "/switch") == 0) {
            web_say(p, "HTTP/1.1 101 Switching Protocols\r\n\r\n");
        } else if (strcmp(path, "/trickle") == 0) { /* less at a time than a large answer is looked at for */
            sprintf(head, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", BIG);
            web_say(p, head);
            web_say_bytes(p, big, 10000);
            test_pause_us(50000);
            web_say_bytes(p, big, 10000);
            while (web_read(p, p->buf, sizeof(p->buf)) > 0) {
            }
            return;
        } else if (strcmp(path, "/silent") == 0) {
            web_say(p, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf");
            while (web_read(p, p->buf, sizeof(p->buf)) > 0) {
            }
            return;
        } else {
            web_say(p, "HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nnot there");
        }
    }
}

static void test_straight(void **state)
{
    struct web_server s;
    struct get g[3];
    struct http_client_stats stats;
    AUTO_FREE char *dst = calloc(3, BIG + 64);
    web_start(&s, talk_plain, NULL);
    begin(2, 0);
    for (int i = 0; i < 3; i++)
        get_init(&g[i], &s.origin, "/big", dst + i * (BIG + 64), BIG);
    run(3, g);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(g[i].rc, 0);
        assert_int_equal(g[i].call.status, 200);
        assert_int_equal(g[i].call.received, BIG);
        assert_string_equal(g[i].etag, "\"e\"");
        for (int k = 0; k < BIG; k++)
            assert_int_equal(dst[i * (BIG + 64) + k], big[k]);
        for (int k = BIG; k < BIG + 64; k++)
            assert_int_equal(dst[i * (BIG + 64) + k], 0);
    }
    http_client_stats(client, &stats);
    assert_true(stats.connections <= 2);
    assert_int_equal(stats.bytes_in, 3 * BIG);
    assert_true(stats.bytes_straight > 3 * (BIG - 8192));
    /* more than there is room for: refused, and nothing behind the destination is touched */
    memset(dst, 0, BIG + 64);
    get_init(&g[0], &s.origin, "/big", dst, BIG - 1);
    run(1, g);
    assert_int_equal(g[0].rc, LEAT_CORRUPT);
    assert_int_equal(dst[BIG - 1], 0);
    end(&s);
}

/* Many pieces to a call, and several calls to a piece. */
static void get_pieces(const struct http_origin *origin)
{
    static const uint64_t mosts[] = {BIG, 100000, 3000, 200};
    struct http_client_stats before, after;
    for (unsigned i = 0; i < ARRAY_LEN(mosts); i++) {
        struct test_pieces t;
        struct get g;
        test_pieces_make(&t, BIG, mosts[i], i);
        get_init(&g, origin, "/big", NULL, BIG);
        g.call.dst = pieces_of(t.iov, t.n);
        http_client_stats(client, &before);
        run(1, &g);
        http_client_stats(client, &after);
        assert_int_equal(g.rc, 0);
        assert_true(after.bytes_straight - before.bytes_straight > BIG / 2);
        test_pieces_check(&t, big);
        test_pieces_free(&t);
    }
}

static void test_pieces(void **state)
{
    struct web_server s;
    web_start(&s, talk_plain, NULL);
    begin(1, 1);
    get_pieces(&s.origin);
    struct test_pieces t; /* chunked: by way of the buffer */
    struct get g;
    test_pieces_make(&t, 6, 2, 5);
    get_init(&g, &s.origin, "/chunked", NULL, 6);
    g.call.dst = pieces_of(t.iov, t.n);
    run(1, &g);
    assert_int_equal(g.rc, 0);
    test_pieces_check(&t, "hello!");
    test_pieces_free(&t);
    end(&s);
}

static void test_kinds(void **state)
{
    static const struct {
        const char *path, *text;
        int rc, status;
    } cases[] = {
        {"/chunked", "hello!", 0, 200},        {"/close", "until the end", 0, 200},
        {"/nothing", "not there", 0, 404},     {"/n/7", "number 7", 0, 200},
        {"/short", NULL, LEAT_PEER_GONE, 200}, {"/junk", NULL, LEAT_CORRUPT, 0},
        {"/switch", NULL, LEAT_CORRUPT, 0},    {"/extra", "ok", 0, 200},
    };
    struct web_server s;
    web_start(&s, talk_plain, NULL);
    begin(1, 1);
    for (int to_dst = 0; to_dst < 2; to_dst++) {
        for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
            char dst[100] = "";
            struct get g;
            get_init(&g, &s.origin, cases[i].path, to_dst ? dst : NULL, sizeof(dst));
            run(1, &g);
            if (g.rc != cases[i].rc)
                fail_msg("%s: %d, %s", cases[i].path, g.rc, g.err.message);
            assert_int_equal(g.call.status, cases[i].status);
            if (cases[i].text && to_dst) {
                assert_string_equal(dst, cases[i].text);
            } else if (cases[i].text) {
                assert_int_equal(g.call.text.len, strlen(cases[i].text));
                assert_memory_equal(g.call.text.data, cases[i].text, g.call.text.len);
            } else {
                assert_non_null(strstr(g.err.message, "127.0.0.1:"));
            }
            bytes_out_fini(&g.call.text);
        }
    }
    struct get g;
    get_init(&g, &s.origin, "/n/1", NULL, 0);
    g.refuse = LEAT_STALE;
    run(1, &g);
    assert_int_equal(g.rc, LEAT_STALE);
    assert_non_null(strstr(g.err.message, "not wanted"));
    end(&s);
}

static void test_pipelined(void **state)
{
    struct web_server s;
    static struct get g[500];
    static char dst[500][32];
    struct http_client_stats stats;
    web_start(&s, talk_plain, NULL);
    begin(2, 8);
    memset(dst, 0, sizeof(dst));
    for (int i = 0; i < 500; i++) {
        char path[32], want[32];
        (void)want;
        sprintf(path, "/n/%d", i);
        get_init(&g[i], &s.origin, path, dst[i], 31);
        g[i].call.small = true;
    }
    run(500, g);
    for (int i = 0; i < 500; i++) {
        char want[32];
        sprintf(want, "number %d", i);
        assert_int_equal(g[i].rc, 0);
        assert_string_equal(dst[i], want);
    }
    http_client_stats(client, &stats);
    assert_int_equal(s.nconns, 2);
    assert_int_equal(stats.repeated, 0);
    end(&s);
}

/* The distance of a server is what a request waits that shares its connection with no other. */
static void test_first_byte(void **state)
{
    struct web_server s;
    struct get g[3];
    char dst[3][64], path[32];
    struct http_client_stats stats;
    web_start(&s, talk_plain, NULL);
    begin(1, 8);
    for (int i = 0; i < 3; i++) {
        sprintf(path, "/late/%d", i);
        get_init(&g[i], &s.origin, path, dst[i], sizeof(dst[i]));
        g[i].call.small = true;
    }
    run(3, g);
    http_client_stats(client, &stats);
    assert_int_equal(stats.connections, 1);
    assert_int_equal(stats.first_byte_ns, 0); /* they shared it */
    for (int i = 0; i < 3; i++) {
        get_init(&g[i], &s.origin, path, dst[i], sizeof(dst[i]));
        run(1, &g[i]);
        assert_int_equal(g[i].rc, 0);
        http_client_stats(client, &stats);
        assert_true(stats.first_byte_ns >= LATE_NS);
    }
    end(&s);
}

/* Answers one request of a connection well, and hangs up: said beforehand by odd connections only. */
static void talk_once(struct web_peer *p)
{
    char path[256], text[200];
    unsigned n = 0;
    if (!web_hear(p, path))
        return;
    sscanf(path, "/n/%u", &n);
    sprintf(text, "HTTP/1.1 200 OK\r\n%sContent-Length: 4\r\n\r\n%4u",
            p->number % 2 ? "Connection: close\r\n" : "", n);
    web_say(p, text);
    if (p->number % 2)
        test_pause_us(1000);
}

static void test_hangs_up(void **state)
{
    struct web_server s;
    static struct get g[60];
    static char dst[60][8];
    web_start(&s, talk_once, NULL);
    begin(3, 8);
    for (unsigned i = 0; i < 60; i++) {
        char path[32];
        sprintf(path, "/n/%u", i);
        get_init(&g[i], &s.origin, path, dst[i], 4);
        g[i].call.small = true;
    }
    run(60, g);
    for (int i = 0; i < 60; i++) {
        assert_int_equal(g[i].rc, 0);
        assert_int_equal(atoi(dst[i]), i);
    }
    /* What must not be said twice is not: it fails, or was answered. */
    get_init(&g[0], &s.origin, "/n/5", dst[0], 4);
    g[0].call.repeatable = false;
    run(1, g);
    assert_true(g[0].rc == 0 || g[0].rc == LEAT_PEER_GONE);
    end(&s);
}

static void test_time(void **state)
{
    struct web_server s;
    struct get g[2];
    char dst[200] = "";
    struct http_client_config config = {.connections = 1, .silence_ns = 300 * NS_PER_MS};
    web_start(&s, talk_plain, NULL);
    begin(1, 1);
    get_init(&g[0], &s.origin, "/silent", dst, 100);
    get_init(&g[1], &s.origin, "/n/2", dst + 100,
             100); /* waits for the only connection, and gets a new one */
    g[0].call.deadline_ns = clock_now_ns() + 200 * NS_PER_MS;
    run(2, g);
    assert_int_equal(g[0].rc, LEAT_TIMED_OUT);
    assert_non_null(strstr(g[0].err.message, "not done after"));
    assert_int_equal(g[1].rc, 0);
    assert_string_equal(dst + 100, "number 2");
    http_client_free(client);
    assert_int_equal(http_client_new(loop, &config, &client, NULL), 0);
    get_init(&g[0], &s.origin, "/silent", dst, 100);
    run(1, g);
    assert_int_equal(g[0].rc, LEAT_TIMED_OUT);
    assert_non_null(strstr(g[0].err.message, "no data for"));
    end(&s);
}

/* What a slow server sent is taken in though it is less than large answers are looked at for, and counts as a sign of life. */
static void test_trickle(void **state)
{
    struct web_server s;
    struct get g;
    AUTO_FREE char *dst = calloc(1, BIG);
    web_start(&s, talk_plain, NULL);
    begin(1, 0);
    get_init(&g, &s.origin, "/trickle", dst, BIG);
    g.call.deadline_ns = clock_now_ns() + NS_PER_S;
    run(1, &g);
    assert_int_equal(g.rc, LEAT_TIMED_OUT);
    assert_int_equal(g.call.received, 20000);
    end(&s);
}

static void test_cancel(void **state)
{
    struct web_server s;
    struct get g[4];
    char dst[4][200] = {"", "", "", ""};
    web_start(&s, talk_plain, NULL);
    begin(1, 4);
    for (int i = 0; i < 4; i++) {
        get_init(&g[i], &s.origin, i == 1 ? "/silent" : "/n/3", dst[i], 100);
        g[i].call.small = true;
    }
    left = 4;
    for (int i = 0; i < 4; i++)
        http_call_start(client, &g[i].call);
    test_run_until(g[1].call.received != 0, loop_turn(loop, 50));
    assert_int_equal(g[0].ended, 1);
    http_call_cancel(client, &g[1].call);
    http_call_cancel(client, &g[1].call);
    memset(dst[1], 'x', sizeof(dst[1]));
    left--;
    test_run_until(!left, loop_turn(loop, 50));
    for (int i = 0; i < 4; i++) {
        assert_int_equal(g[i].ended, i != 1);
        assert_int_equal(g[i].rc, 0);
    }
    assert_string_equal(dst[3], "number 3");
    for (int i = 0; i < 200; i++)
        assert_int_equal(dst[1][i], 'x');
    /* before anything was sent */
    get_init(&g[0], &s.origin, "/n/1", dst[0], 100);
    http_call_start(client, &g[0].call);
    http_call_cancel(client, &g[0].call);
    loop_turn(loop, 10);
    assert_int_equal(g[0].ended, 0);
    /* requests under way at the client's end get an error */
    get_init(&g[1], &s.origin, "/silent", dst[1], 100);
    left = 1;
    http_call_start(client, &g[1].call);
    test_run_until(g[1].call.received != 0, loop_turn(loop, 50));
    end(&s);
    assert_int_equal(g[1].ended, 1);
    assert_int_equal(g[1].rc, -ECANCELED);
}

/* Names are looked up by threads: their answers come to the loop, and those that come too late to no client. */
static void test_names(void **state)
{
    struct get g[1];
    struct web_server s;
    char dst[100] = "";
    web_start(&s, talk_plain, NULL);
    struct http_origin origin = s.origin;
    strcpy(origin.host, "localhost");
    begin(1, 1);
    get_init(&g[0], &origin, "/n/4", dst, sizeof(dst));
    run(1, g);
    assert_int_equal(g[0].rc, 0);
    assert_string_equal(dst, "number 4");
    strcpy(origin.host, "nowhere.invalid");
    get_init(&g[0], &origin, "/n/4", dst, sizeof(dst));
    left = 1;
    assert_int_equal(http_call_start(client, &g[0].call), 0);
    loop_turn(loop, 0);
    end(&s);
    assert_int_equal(g[0].ended, 1);
    assert_true(g[0].rc < 0);
}

static void test_nobody_there(void **state)
{
    struct get g[3];
    struct web_server s;
    web_start(&s, talk_plain, NULL);
    struct http_origin gone = s.origin, nowhere = {.port = 80, .host = "no-such-host.invalid"};
    web_stop(&s);
    begin(4, 0);
    for (int i = 0; i < 2; i++)
        get_init(&g[i], &gone, "/", NULL, 0);
    get_init(&g[2], &nowhere, "/", NULL, 0);
    run(3, g);
    assert_int_equal(g[0].rc, -ECONNREFUSED);
    assert_int_equal(g[1].rc, -ECONNREFUSED);
    assert_non_null(strstr(g[0].err.message, "Connection refused"));
    assert_int_equal(g[2].rc, LEAT_NOT_FOUND);
    assert_non_null(strstr(g[2].err.message, "no-such-host.invalid"));
    end(NULL);
}

static void test_body(void **state)
{
    struct web_server s;
    struct get g;
    AUTO_FREE char *body = calloc(1, 60000);
    web_start(&s, talk_plain, NULL);
    begin(1, 0);
    get_init(&g, &s.origin, "/n/9", NULL, 0);
    snprintf(g.head, sizeof(g.head), "PUT /n/9 HTTP/1.1\r\nhost: x\r\ncontent-length: 60000\r\n\r\n");
    g.call.head_len = strlen(g.head);
    g.call.method = "PUT";
    g.call.body = body;
    g.call.body_len = 60000;
    run(1, &g);
    assert_int_equal(g.rc, 0);
    assert_memory_equal(g.call.text.data, "number 9", 8);
    bytes_out_fini(&g.call.text);
    end(&s);
}

/* --- TLS --------------------------------------------------------------------------------------------------------------- */

/* Takes the key. */
static SSL_CTX *make_server_tls_of(const char *name, EVP_PKEY *key, char *ca_path)
{
    X509 *cert = X509_new();
    X509_set_version(cert, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
    X509_gmtime_adj(X509_getm_notBefore(cert), -60);
    X509_gmtime_adj(X509_getm_notAfter(cert), 3600);
    X509_set_pubkey(cert, key);
    X509_NAME *subject = X509_get_subject_name(cert);
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, (const unsigned char *)"test", -1, -1, 0);
    X509_set_issuer_name(cert, subject);
    X509_EXTENSION *ext = X509V3_EXT_conf_nid(NULL, NULL, NID_subject_alt_name, name);
    X509_add_ext(cert, ext, -1);
    X509_EXTENSION_free(ext);
    X509_sign(cert, key, EVP_sha256());
    strcpy(ca_path, "/tmp/leat-test-ca.XXXXXX");
    FILE *f = fdopen(mkstemp(ca_path), "w");
    PEM_write_X509(f, cert);
    fclose(f);
    SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
    SSL_CTX_use_certificate(ctx, cert);
    SSL_CTX_use_PrivateKey(ctx, key);
    X509_free(cert);
    EVP_PKEY_free(key);
    return ctx;
}

static SSL_CTX *make_server_tls(const char *name, char *ca_path)
{
    return make_server_tls_of(name, EVP_EC_gen("P-256"), ca_path);
}

/* A server whose key, stolen later, would open what was recorded is not talked to. */
static void test_ephemeral_keys(void **state)
{
    static const struct {
        const char *suites;
        bool good;
    } cases[] = {{"ECDHE-RSA-AES128-GCM-SHA256", true}, {"AES128-GCM-SHA256:AES256-SHA", false}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char ca[64];
        struct web_server s;
        struct get g;
        SSL_CTX *ctx = make_server_tls_of("IP:127.0.0.1", EVP_RSA_gen(2048), ca);
        SSL_CTX_set_max_proto_version(ctx, TLS1_2_VERSION);
        assert_int_equal(SSL_CTX_set_cipher_list(ctx, cases[i].suites), 1);
        struct http_client_config config = {.connections = 1, .ca_file = ca};
        web_start(&s, talk_plain, ctx);
        begin_with(&config);
        get_init(&g, &s.origin, "/n/4", NULL, 0);
        run(1, &g);
        assert_int_equal(g.rc == 0, cases[i].good);
        bytes_out_fini(&g.call.text);
        end(&s);
        SSL_CTX_free(ctx);
        unlink(ca);
    }
}

static void test_tls(void **state)
{
    static const struct {
        const char *name;
        bool trusted, insecure;
        int rc;
    } cases[] = {
        {"IP:127.0.0.1", true, false, 0},
        {"IP:127.0.0.2,DNS:localhost", true, false, LEAT_DENIED},
        {"IP:127.0.0.1", false, false, LEAT_DENIED},
        {"DNS:x", false, true, 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char ca[64];
        struct web_server s;
        struct get g[4];
        AUTO_FREE char *dst = calloc(1, BIG);
        struct http_client_stats stats;
        SSL_CTX *ctx = make_server_tls(cases[i].name, ca);
        struct http_client_config config = {
            .connections = 1, .ca_file = cases[i].trusted ? ca : NULL, .insecure = cases[i].insecure};
        web_start(&s, talk_plain, ctx);
        begin_with(&config);
        get_init(&g[0], &s.origin, "/big", dst, BIG);
        get_init(&g[1], &s.origin, "/n/4", NULL, 0);
        get_init(&g[2], &s.origin, "/close", NULL, 0);
        get_init(&g[3], &s.origin, "/chunked", NULL, 0);
        run(4, g);
        for (int k = 0; k < 4; k++) {
            assert_int_equal(g[k].rc, cases[i].rc);
            if (cases[i].rc)
                assert_non_null(strstr(g[k].err.message, "certificate"));
            bytes_out_fini(&g[k].call.text);
        }
        http_client_stats(client, &stats);
        if (cases[i].rc == 0) {
            assert_memory_equal(dst, big, BIG);
            assert_int_equal(stats.handshakes, 2);
            assert_int_equal(stats.resumed, 1);
            get_pieces(&s.origin);
        }
        end(&s);
        SSL_CTX_free(ctx);
        unlink(ca);
    }
    struct leat_error err;
    assert_int_equal(loop_new(&loop), 0);
    struct http_client_config bad = {.ca_file = "/nonexistent/ca.pem", .tls = true};
    assert_int_equal(http_client_new(loop, &bad, &client, &err), LEAT_NOT_FOUND);
    bad.ca_file = "/proc/self/status";
    assert_int_equal(http_client_new(loop, &bad, &client, &err), LEAT_INVALID);
    loop_free(loop);
}

/* Certificates of authorities are read for TLS only. A request that needs them later, after a redirection,
 * gets their error, not that of a missing object. */
static void test_authorities_where_they_are_wanted(void **state)
{
    struct web_server s;
    struct get g[1];
    struct http_client_config config = {.connections = 1, .ca_file = "/nonexistent/ca.pem"};
    web_start(&s, talk_plain, NULL);
    begin_with(&config);
    get_init(&g[0], &s.origin, "/n/4", NULL, 0);
    run(1, g);
    assert_int_equal(g[0].rc, 0);
    bytes_out_fini(&g[0].call.text);
    struct http_origin secure = s.origin;
    secure.tls = true;
    get_init(&g[0], &secure, "/n/4", NULL, 0);
    run(1, g);
    assert_int_equal(g[0].rc, LEAT_INVALID);
    assert_int_equal(g[0].err.code, LEAT_INVALID);
    assert_non_null(strstr(g[0].err.message, "/nonexistent/ca.pem"));
    end(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_straight),
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_pipelined),
        cmocka_unit_test(test_first_byte),
        cmocka_unit_test(test_hangs_up),
        cmocka_unit_test(test_time),
        cmocka_unit_test(test_trickle),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_body),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_nobody_there),
        cmocka_unit_test(test_ephemeral_keys),
        cmocka_unit_test(test_tls),
        cmocka_unit_test(test_authorities_where_they_are_wanted),
    };
    signal(SIGPIPE, SIG_IGN);
    for (size_t k = 0; k < sizeof(big); k++)
        big[k] = (char)(k * 2654435761u >> 13);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
