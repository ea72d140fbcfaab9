/* SPDX-License-Identifier: Apache-2.0 */
/* TLS: answers of every kind over it, sessions resumed, a certificate that changes, peers that speak something else, and unix sockets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>

#include "base/clock.h"
#include "http/server/testing.h"

#define GET(path) "GET " path " HTTP/1.1\r\nHost: x\r\n\r\n"

static char folder[] = "/tmp/leat-http-tls-XXXXXX", cert[64], key[64];

/* A certificate for `name`, valid a day. Takes the key. */
static void make_certificate_of(const char *name, EVP_PKEY *pkey)
{
    X509 *x = X509_new();
    ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
    X509_gmtime_adj(X509_getm_notBefore(x), -3600);
    X509_gmtime_adj(X509_getm_notAfter(x), 86400);
    X509_set_pubkey(x, pkey);
    X509_NAME *n = X509_get_subject_name(x);
    X509_NAME_add_entry_by_txt(n, "CN", MBSTRING_ASC, (const unsigned char *)name, -1, -1, 0);
    X509_set_issuer_name(x, n);
    assert_true(X509_sign(x, pkey, EVP_sha256()) > 0);
    FILE *f = fopen(cert, "w");
    PEM_write_X509(f, x);
    fclose(f);
    f = fopen(key, "w");
    assert_int_equal(fchmod(fileno(f), 0600), 0);
    PEM_write_PrivateKey(f, pkey, NULL, NULL, 0, NULL, NULL);
    fclose(f);
    X509_free(x);
    EVP_PKEY_free(pkey);
}

static void make_certificate(const char *name)
{
    make_certificate_of(name, EVP_EC_gen("P-256"));
}

static int set_up(void **state)
{
    signal(SIGPIPE, SIG_IGN); /* of the client here; the server's threads block it */
    assert_non_null(mkdtemp(folder));
    snprintf(cert, sizeof(cert), "%s/cert.pem", folder);
    snprintf(key, sizeof(key), "%s/key.pem", folder);
    make_certificate("first");
    return 0;
}

static int tear_down(void **state)
{
    unlink(cert);
    unlink(key);
    return rmdir(folder);
}

/* head_ns: for a handshake; 0: the usual. */
static void start_tls(struct rig *rig, uint64_t head_ns)
{
    static const struct http_listen listen[] = {{.address = "127.0.0.1:0", .tls = true}};
    struct http_server_config config = {
        .listen = listen, .nlisten = 1, .cert_file = cert, .key_file = key, .head_ns = head_ns};
    rig_start(rig, &config);
}

struct client {
    SSL_CTX *ctx;
    SSL *ssl;
    SSL_SESSION *session;
    int fd;
    int narrow; /* bytes, see rig_connect_narrow; 0: not */
};

static void client_open(struct client *c, struct rig *rig, int max_version)
{
    static const unsigned char alpn[] = "\x02h2\x08http/1.1";
    if (!c->ctx) {
        c->ctx = SSL_CTX_new(TLS_client_method());
        SSL_CTX_set_max_proto_version(c->ctx, max_version);
        SSL_CTX_set_session_cache_mode(c->ctx, SSL_SESS_CACHE_CLIENT);
        SSL_CTX_set_alpn_protos(c->ctx, alpn, sizeof(alpn) - 1);
    }
    c->fd = rig_connect_narrow(rig, c->narrow);
    c->ssl = SSL_new(c->ctx);
    SSL_set_fd(c->ssl, c->fd);
    if (c->session)
        SSL_set_session(c->ssl, c->session);
    assert_int_equal(SSL_connect(c->ssl), 1);
    const unsigned char *chosen;
    unsigned len;
    SSL_get0_alpn_selected(c->ssl, &chosen, &len);
    assert_int_equal(len, 8);
    assert_memory_equal(chosen, "http/1.1", 8);
}

/* The whole answer; returns the length of its body, which is in *ret_body. */
static size_t client_get(struct client *c, const char *text, char **ret_body)
{
    size_t have = 0, cap = 2 * MIB, head = 0, want = SIZE_MAX;
    char *buf = malloc(cap + 1);
    assert_int_equal(SSL_write(c->ssl, text, (int)strlen(text)), (int)strlen(text));
    while (have < want) {
        int n = SSL_read(c->ssl, buf + have, (int)(cap - have));
        if (n <= 0)
            break;
        have += (size_t)n;
        buf[have] = 0;
        char *end = head ? NULL : strstr(buf, "\r\n\r\n");
        if (end) {
            head = (size_t)(end - buf) + 4;
            want = head + strtoull(strstr(buf, "Content-Length: ") + 16, NULL, 10);
        }
    }
    assert_true(head > 0);
    memmove(buf, buf + head, have - head + 1);
    *ret_body = buf;
    return have - head;
}

static void client_close(struct client *c)
{
    if (c->session)
        SSL_SESSION_free(c->session);
    c->session = SSL_get1_session(c->ssl);
    SSL_shutdown(c->ssl);
    SSL_free(c->ssl);
    close(c->fd);
}

static void client_fini(struct client *c)
{
    SSL_SESSION_free(c->session);
    SSL_CTX_free(c->ctx);
}

static void test_answers(void **state)
{
    static const int versions[] = {TLS1_2_VERSION, TLS1_3_VERSION};
    struct rig rig;
    start_tls(&rig, 0);
    for (unsigned v = 0; v < ARRAY_LEN(versions); v++) {
        struct client c = {0};
        client_open(&c, &rig, versions[v]);
        for (unsigned round = 0; round < 3; round++) {
            char *body;
            assert_int_equal(client_get(&c, GET("/hello"), &body), 5);
            assert_string_equal(body, "hello");
            free(body);
            assert_int_equal(client_get(&c, GET("/file"), &body), 1000000);
            assert_true(body[0] == 'a' && body[22] == 'a' + 22);
            assert_memory_equal(body + 23, body, 1000000 - 23); /* it repeats */
            free(body);
            assert_int_equal(client_get(&c, GET("/mixed"), &body), 100);
            assert_memory_equal(body, "head-klmnopqrst-tailhead-", 25);
            free(body);
            assert_int_equal(client_get(&c, GET("/flow?n=30"), &body), 300000);
            free(body);
            assert_int_equal(client_get(&c, GET("/late"), &body), 4);
            free(body);
            assert_int_equal(
                client_get(
                    &c,
                    "PUT /into?size=7 HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\n01234567890123456789",
                    &body),
                20);
            assert_string_equal(body, "01234567890123456789");
            free(body);
        }
        client_close(&c);
        client_fini(&c);
    }
    rig_stop(&rig);
}

/* Is the file's first page in memory? Asked without touching it: a read, also one that does not wait, would fetch it. */
static bool in_memory(int fd)
{
    unsigned char page = 0;
    void *at = mmap(NULL, 1, PROT_READ, MAP_SHARED, fd, 0);
    assert_true(at != MAP_FAILED);
    assert_int_equal(mincore(at, 1, &page), 0);
    munmap(at, 1);
    return page & 1;
}

/* Does the file system say what it has at hand? overlayfs does not: reactors read from it and wait. */
static bool can_say(int fd)
{
    char byte;
    struct iovec iov = {&byte, 1};
    return preadv2(fd, &iov, 1, 0, RWF_NOWAIT) >= 0 || errno == EAGAIN;
}

/*
 * A file whose bytes are not in memory is read by a worker, also where it stands behind a head that is to share its record. Some rounds, as a fast disk
 * may have them there before they are missed.
 */
static void test_cold_file(void **state)
{
    struct rig rig;
    struct client c = {0};
    struct http_workers_stats stats = {0};
    char *body;
    start_tls(&rig, 0);
    client_open(&c, &rig, TLS1_3_VERSION);
    bool may = can_say(rig.file);
    for (unsigned round = 0; round < 200 && may && !stats.done; round++) {
        assert_int_equal(fdatasync(rig.file), 0);
        posix_fadvise(rig.file, 0, 0, POSIX_FADV_DONTNEED);
        may = !in_memory(rig.file);
        assert_int_equal(client_get(&c, GET("/mixed"), &body), 100);
        assert_memory_equal(body, "head-klmnopqrst-tailhead-", 25);
        free(body);
        http_workers_stats(rig.workers, &stats);
    }
    client_close(&c);
    client_fini(&c);
    rig_stop(&rig);
    if (!may) {
        print_message("# the file system of /tmp cannot report cold files, or has none\n");
        skip();
    }
    assert_true(stats.done > 0);
}

/* A body larger than records and buffers, with pauses between its pieces: what OpenSSL holds is not forgotten. */
static void test_large_body(void **state)
{
    struct rig rig;
    struct client c = {0};
    char *body, *text = malloc(3 * MIB), want[32];
    start_tls(&rig, 0);
    client_open(&c, &rig, TLS1_3_VERSION);
    int n = sprintf(text, "PUT /slow HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000\r\n\r\n");
    memset(text + n, 'b', 3000000);
    text[n + 3000000] = 0;
    assert_int_equal(client_get(&c, text, &body), 7);
    snprintf(want, sizeof(want), "%u", 3000000);
    assert_string_equal(body, want);
    free(body);
    free(text);
    client_close(&c);
    client_fini(&c);
    rig_stop(&rig);
}

static void test_resumed(void **state)
{
    struct rig rig;
    struct client c = {0};
    struct http_server_stats stats;
    start_tls(&rig, 0);
    for (unsigned i = 0; i < 4; i++) {
        char *body;
        client_open(&c, &rig, TLS1_3_VERSION);
        assert_int_equal(SSL_session_reused(c.ssl), i > 0);
        client_get(&c, GET("/hello"), &body);
        free(body);
        client_close(&c);
    }
    http_server_stats(rig.server, &stats);
    assert_int_equal(stats.handshakes, 4);
    assert_int_equal(stats.resumed, 3);
    client_fini(&c);
    rig_stop(&rig);
}

static void name_of(struct client *c, char *out)
{
    X509 *x = SSL_get1_peer_certificate(c->ssl);
    X509_NAME_get_text_by_NID(X509_get_subject_name(x), NID_commonName, out, 16);
    X509_free(x);
}

/* A key that is stolen later opens nothing that was recorded before: each connection has keys of its own. */
static void test_ephemeral_keys(void **state)
{
    static const struct {
        const char *suites;
        bool good;
    } cases[] = {
        {"ECDHE-RSA-AES128-GCM-SHA256", true}, {"ECDHE-RSA-AES256-GCM-SHA384", true},
        {"ECDHE-RSA-CHACHA20-POLY1305", true}, {"ECDHE-RSA-AES128-SHA256", false},
        {"AES128-GCM-SHA256", false},          {"AES256-SHA", false},
        {"DHE-RSA-AES128-GCM-SHA256", false},  {"ALL:!ECDHE", false},
    };
    struct rig rig;
    make_certificate_of("first", EVP_RSA_gen(2048));
    start_tls(&rig, 0);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
        SSL_CTX_set_max_proto_version(ctx, TLS1_2_VERSION);
        assert_int_equal(SSL_CTX_set_cipher_list(ctx, cases[i].suites), 1);
        SSL *ssl = SSL_new(ctx);
        AUTO_CLOSE int fd = rig_connect(&rig);
        SSL_set_fd(ssl, fd);
        if ((SSL_connect(ssl) == 1) != cases[i].good)
            fail_msg("%s", cases[i].suites);
        SSL_free(ssl);
        SSL_CTX_free(ctx);
    }
    rig_stop(&rig);
    make_certificate("first");
}

static void test_reload(void **state)
{
    struct rig rig;
    struct client old = {0}, new = {0};
    struct leat_error err;
    char name[16], *body;
    start_tls(&rig, 0);
    client_open(&old, &rig, TLS1_3_VERSION);
    name_of(&old, name);
    assert_string_equal(name, "first");
    make_certificate("second");
    assert_int_equal(http_server_reload_tls(rig.server, &err), 0);
    client_open(&new, &rig, TLS1_3_VERSION);
    name_of(&new, name);
    assert_string_equal(name, "second");
    assert_int_equal(client_get(&old, GET("/hello"), &body), 5); /* continues */
    free(body);
    client_close(&new);
    /* One that cannot be used leaves what there was. */
    assert_int_equal(truncate(cert, 20), 0);
    assert_int_equal(http_server_reload_tls(rig.server, &err), LEAT_INVALID);
    assert_non_null(strstr(err.message, cert));
    client_open(&new, &rig, TLS1_3_VERSION);
    name_of(&new, name);
    assert_string_equal(name, "second");
    client_close(&new);
    client_close(&old);
    client_fini(&old);
    client_fini(&new);
    make_certificate("first");
    rig_stop(&rig);
}

static void test_garbage(void **state)
{
    struct rig rig;
    struct http_server_stats stats;
    start_tls(&rig, 0);
    uint32_t random = 12345;
    for (unsigned i = 0; i < 200; i++) {
        struct stream s = {.fd = rig_connect(&rig)};
        char bytes[300];
        for (unsigned k = 0; k < sizeof(bytes); k++)
            bytes[k] = (char)((random = random * 1664525 + 1013904223) >> 24);
        if (i % 2)
            memcpy(bytes, "\x16\x03\x01\x01\x20\x01\x00\x01\x1c\x03\x03", 11); /* as a hello begins */
        i % 5 ? rig_send(s.fd, bytes, 1 + i) : rig_say(s.fd, GET("/hello"));
        shutdown(s.fd, SHUT_WR);
        while (!stream_ended(&s))
            s.have = 0; /* an alert, or nothing */
        stream_fini(&s);
    }
    http_server_stats(rig.server, &stats);
    assert_int_equal(stats.handshakes, 0);
    assert_int_equal(stats.handshakes_failed, 200);
    assert_int_equal(stats.requests, 0);
    struct client c = {0};
    char *body;
    client_open(&c, &rig, TLS1_3_VERSION);
    assert_int_equal(client_get(&c, GET("/hello"), &body), 5);
    free(body);
    client_close(&c);
    client_fini(&c);
    rig_stop(&rig);
}

/* One that stops in the middle is closed at its deadline. */
static void test_half_a_handshake(void **state)
{
    struct rig rig;
    struct http_server_stats stats;
    start_tls(&rig, 200 * NS_PER_MS);
    struct stream s = {.fd = rig_connect(&rig)};
    rig_send(s.fd, "\x16\x03\x01\x01\x20", 5);
    assert_true(stream_ended(&s));
    stream_fini(&s);
    http_server_stats(rig.server, &stats);
    assert_int_equal(stats.timeouts, 1);
    rig_stop(&rig);
}

static void refused(const struct http_listen *listen, const char *cert_file, const char *key_file, int code,
                    const char *word)
{
    struct http_server *server;
    struct leat_error err = {0};
    struct http_server_config config = {
        .listen = listen, .nlisten = 1, .cert_file = cert_file, .key_file = key_file};
    int rc = http_server_new(&config, &server, &err);
    if (rc != code || !strstr(err.message, word))
        fail_msg("%s: %d, %s", listen->address, rc, err.message);
}

static void test_what_cannot_be(void **state)
{
    static const struct http_listen tls = {.address = "127.0.0.1:0", .tls = true};
    static const char *const addresses[] = {
        "",         "9000",      "localhost",     "127.0.0.1:",   "127.0.0.1:x",    "127.0.0.1:70000",
        "::1:9000", "[::1:9000", "unix:relative", "127.0.0.1:-1", "127.0.0.1:9000x"};
    char missing[80];
    refused(&tls, NULL, NULL, LEAT_INVALID, "PEM");
    snprintf(missing, sizeof(missing), "%s/none.pem", folder);
    refused(&tls, missing, key, -ENOENT, missing);
    refused(&tls, cert, missing, LEAT_NOT_FOUND, missing);
    refused(&tls, cert, cert, LEAT_DENIED, "chmod 600"); /* others may read it */
    assert_int_equal(chmod(cert, 0600), 0);
    refused(&tls, cert, cert, LEAT_INVALID, "private key");
    for (mode_t mode = geteuid() ? 0640 : 0644; mode <= 0644; mode += 4) { /* root's own may be its group's */
        assert_int_equal(chmod(key, mode), 0);
        refused(&tls, cert, key, LEAT_DENIED, "chmod 600");
    }
    if (geteuid() == 0) {
        assert_int_equal(chown(key, 12345, 12345), 0);
        assert_int_equal(chmod(key, 0600), 0);
        refused(&tls, cert, key, LEAT_DENIED, "belongs to user 12345");
        assert_int_equal(chown(key, 0, 0), 0);
    }
    assert_int_equal(chmod(key, 0600), 0);
    refused(&tls, key, key, LEAT_INVALID, "certificate");
    for (unsigned i = 0; i < ARRAY_LEN(addresses); i++) {
        struct http_listen listen = {.address = addresses[i]};
        refused(&listen, NULL, NULL, LEAT_INVALID, addresses[i]);
    }
    struct rig rig;
    rig_start(&rig, NULL);
    struct http_listen taken = {.address = http_server_address(rig.server, 0)};
    refused(&taken, NULL, NULL, -EADDRINUSE, taken.address);
    rig_stop(&rig);
}

/* --- unix sockets -------------------------------------------------------------------------------------------------------- */

static void test_unix_socket(void **state)
{
    char path[80], address[96];
    struct rig rig;
    struct stat st;
    snprintf(path, sizeof(path), "%s/http.sock", folder);
    snprintf(address, sizeof(address), "unix:%s", path);
    struct http_listen listen = {.address = address};
    struct http_server_config config = {.listen = &listen, .nlisten = 1, .reactors = 2};
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    memcpy(un.sun_path, path, strlen(path) + 1);
    /* A stale socket of an ended process is no obstacle. */
    int stale = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(stale, (struct sockaddr *)&un, sizeof(un)), 0);
    close(stale);
    rig_start(&rig, &config);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    refused(&listen, NULL, NULL, -EADDRINUSE, "another process");
    for (unsigned i = 0; i < 3; i++) {
        struct stream s = {.fd = socket(AF_UNIX, SOCK_STREAM, 0)};
        struct answer a;
        assert_int_equal(connect(s.fd, (struct sockaddr *)&un, sizeof(un)), 0);
        rig_say(s.fd, GET("/file"));
        assert_true(stream_answer(&s, "GET", &a));
        assert_int_equal(a.body_len, 1000000);
        answer_fini(&a);
        stream_fini(&s);
    }
    rig_stop(&rig);
    assert_int_equal(stat(path, &st), -1);
    FILE *f = fopen(path, "w");
    fclose(f);
    refused(&listen, NULL, NULL, -EADDRINUSE, "no socket");
    unlink(path);
}

/* What OpenSSL has for the peer, as far as it goes; true: all of it. `held` is what does not fit. */
struct held {
    char data[64 * KIB];
    size_t at, have;
};
static bool push(struct client *c, struct held *held)
{
    for (;;) {
        if (held->at == held->have) {
            int n = BIO_read(SSL_get_wbio(c->ssl), held->data, sizeof(held->data));
            if (n <= 0)
                return true;
            held->at = 0;
            held->have = (size_t)n;
        }
        ssize_t n = send(c->fd, held->data + held->at, held->have - held->at, MSG_DONTWAIT);
        if (n < 0)
            return false;
        held->at += (size_t)n;
    }
}

/* The buffers of connections are those of the socket that listens, here for all that listen in this process:
 * millions of bytes else, and each key costs both sides a lot. */
static void narrow_listener(void)
{
    static const int bytes = 4096;
    for (int fd = 3; fd < 100; fd++) {
        int listens = 0;
        socklen_t len = sizeof(listens);
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len) < 0 || !listens)
            continue;
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
    }
}

/*
 * A peer that asks for new keys, and does not take the answers, until nothing fits into the socket any more:
 * reading, TLS waits for room to write. When there is room again the connection continues. (Through memory:
 * OpenSSL's own client would not read while it cannot write.)
 */
static void test_keys_updated(void **state)
{
    struct rig rig;
    struct client c = {.narrow = 4096};
    struct held *held = calloc(1, sizeof(*held));
    char in[16 * KIB], answer[4096];
    int n;
    size_t have = 0;
    start_tls(&rig, 0);
    narrow_listener();
    client_open(&c, &rig, TLS1_3_VERSION);
    setsockopt(c.fd, SOL_SOCKET, SO_SNDBUF, &c.narrow, sizeof(c.narrow));
    SSL_set_bio(c.ssl, BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
    struct pollfd out = {.fd = c.fd, .events = POLLOUT}, any = {.fd = c.fd};
    for (unsigned sent = 0;; sent++) {
        assert_true(sent < 10000000);
        assert_int_equal(SSL_key_update(c.ssl, SSL_KEY_UPDATE_REQUESTED), 1);
        assert_int_equal(SSL_do_handshake(c.ssl), 1);
        if (!push(&c, held) && poll(&out, 1, 2000) == 0)
            break /* the server does not read on */;
    }
    assert_true(SSL_write(c.ssl, GET("/hello"), sizeof(GET("/hello")) - 1) > 0);
    while (have < 5 || memcmp(answer + have - 5, "hello", 5) != 0) {
        any.events = push(&c, held) ? POLLIN : POLLIN | POLLOUT;
        assert_int_equal(poll(&any, 1, (int)(PATIENCE_NS / NS_PER_MS)), 1);
        ssize_t got = recv(c.fd, in, sizeof(in), MSG_DONTWAIT);
        assert_true(got != 0);
        if (got > 0)
            assert_int_equal(BIO_write(SSL_get_rbio(c.ssl), in, (int)got), got);
        while ((n = SSL_read(c.ssl, answer + have, (int)(sizeof(answer) - have))) > 0)
            have += (size_t)n;
    }
    free(held);
    SSL_free(c.ssl);
    close(c.fd);
    client_fini(&c);
    rig_stop(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers),        cmocka_unit_test(test_cold_file),
        cmocka_unit_test(test_large_body),     cmocka_unit_test(test_resumed),
        cmocka_unit_test(test_ephemeral_keys), cmocka_unit_test(test_reload),
        cmocka_unit_test(test_garbage),        cmocka_unit_test(test_half_a_handshake),
        cmocka_unit_test(test_what_cannot_be), cmocka_unit_test(test_unix_socket),
        cmocka_unit_test(test_keys_updated),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
