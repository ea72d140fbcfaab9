/* SPDX-License-Identifier: Apache-2.0 */
/*
 * OpenSSL on a socket of ours. Certificates are checked against the system's authorities (or ca_file) and the name that was asked for;
 * TLS 1.2 is the least. Sessions are kept for an origin, so that the second connection costs no asymmetric work.
 */
#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/stat.h>

#include "http/client/client_internal.h"
#include "base/clock.h"

static const char *reason(void)
{
    unsigned long code = ERR_peek_last_error();
    const char *text = code ? ERR_reason_error_string(code) : NULL;
    ERR_clear_error();
    return text ? text : "unknown error";
}

static int keep_session(SSL *ssl, SSL_SESSION *session)
{
    struct http_conn *conn = SSL_get_app_data(ssl);
    if (conn->pool->session)
        SSL_SESSION_free(conn->pool->session);
    conn->pool->session = session;
    return 1; /* ours now */
}

static int context_new(const struct http_client_config *config, SSL_CTX **ret_context, struct leat_error *err)
{
    static const unsigned char alpn[] = "\x08http/1.1";
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    if (!ctx)
        return error_set(err, -ENOMEM, "TLS: %s", reason());
    SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    /* Of TLS 1.2; 1.3 has no others. A server's key that is stolen later opens nothing that was recorded before. */
    SSL_CTX_set_cipher_list(ctx, "ECDHE+AESGCM:ECDHE+CHACHA20");
    SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                              SSL_MODE_AUTO_RETRY | SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_options(ctx, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION | SSL_OP_ENABLE_KTLS);
    SSL_CTX_set_alpn_protos(ctx, alpn, sizeof(alpn) - 1);
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
    SSL_CTX_sess_set_new_cb(ctx, keep_session);
    SSL_CTX_set_verify(ctx, config->insecure ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, NULL);
    if (config->ca_file && !config->insecure) {
        if (access(config->ca_file, R_OK) < 0) {
            int rc = -errno;
            SSL_CTX_free(ctx);
            return error_sys(err, rc, "CA file %s", config->ca_file);
        }
        if (!SSL_CTX_load_verify_locations(ctx, config->ca_file, NULL)) {
            SSL_CTX_free(ctx);
            return error_set(err, LEAT_INVALID,
                             "CA file %s has no certificate that can be read: PEM is wanted (%s)",
                             config->ca_file, reason());
        }
    } else {
        SSL_CTX_set_default_verify_paths(ctx);
    }
    *ret_context = ctx;
    return 0;
}

/* The system's authorities take 40 ms of CPU to read: once for all sessions of a process, and again when they may have changed. */
#define SHARED_NS (600 * NS_PER_S)

static struct {
    pthread_mutex_t lock;
    SSL_CTX *context;
    char *ca_file; /* NULL: the system's */
    bool insecure;
    struct timespec changed; /* ca_file */
    uint64_t made_ns;
} shared = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool shared_is(const char *ca_file, bool insecure, const struct timespec *changed)
{
    return shared.context && shared.insecure == insecure && clock_now_ns() - shared.made_ns < SHARED_NS &&
           (ca_file ? shared.ca_file && strcmp(shared.ca_file, ca_file) == 0 : !shared.ca_file) &&
           changed->tv_sec == shared.changed.tv_sec && changed->tv_nsec == shared.changed.tv_nsec;
}

int tls_context(const struct http_client_config *config, SSL_CTX **ret_context, struct leat_error *err)
{
    const char *ca_file = config->insecure ? NULL : config->ca_file;
    struct stat st = {0};
    int rc = 0;
    if (ca_file && stat(ca_file, &st) < 0)
        return error_sys(err, -errno, "CA file %s", ca_file);
    pthread_mutex_lock(&shared.lock);
    if (!shared_is(ca_file, config->insecure, &st.st_mtim)) {
        SSL_CTX *context = NULL;
        char *name = ca_file ? strdup(ca_file) : NULL;
        rc = ca_file && !name ? -ENOMEM : context_new(config, &context, err);
        if (rc == 0) {
            SSL_CTX_free(shared.context);
            free(shared.ca_file);
            shared.context = context;
            shared.ca_file = TAKE_PTR(name);
            shared.insecure = config->insecure;
            shared.changed = st.st_mtim;
            shared.made_ns = clock_now_ns();
        }
        free(name);
    }
    if (rc == 0) {
        SSL_CTX_up_ref(shared.context);
        *ret_context = shared.context;
    }
    pthread_mutex_unlock(&shared.lock);
    return rc;
}

void tls_quiet_enter(struct tls_quiet *q)
{
    sigset_t pipe, pending;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    sigemptyset(&pending);
    q->pending = sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, &q->before);
}

void tls_quiet_leave(const struct tls_quiet *q)
{
    static const struct timespec now = {0};
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    if (sigismember(&q->before, SIGPIPE))
        return; /* an outer one takes it away, or the code that blocked it wants it */
    if (!q->pending)
        sigtimedwait(&pipe, NULL, &now);
    pthread_sigmask(SIG_SETMASK, &q->before, NULL);
}

void tls_bye(struct http_conn *conn)
{
    struct tls_quiet quiet;
    tls_quiet_enter(&quiet);
    SSL_shutdown(conn->ssl);
    ERR_clear_error();
    tls_quiet_leave(&quiet);
}

int tls_begin(struct http_conn *conn, struct leat_error *err)
{
    const char *host = conn->pool->origin.host;
    unsigned char address[16];
    bool numeric = inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1;
    struct http_client *client = conn->pool->client;
    int rc = client->tls ? 0 : tls_context(&client->config, &client->tls, err);
    if (rc == LEAT_NOT_FOUND && err) /* which would say that what was asked for is not there */
        err->code = LEAT_INVALID;
    if (rc < 0)
        return rc == LEAT_NOT_FOUND ? LEAT_INVALID : rc;
    SSL *ssl = conn->ssl = SSL_new(client->tls);
    if (!ssl || !SSL_set_fd(ssl, conn->source.fd))
        return error_set(err, -ENOMEM, "TLS: %s", reason());
    SSL_set_app_data(ssl, conn);
    int ok = numeric ? X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host)
                     : SSL_set1_host(ssl, host) && SSL_set_tlsext_host_name(ssl, host);
    if (!ok)
        return error_set(err, LEAT_INVALID, "TLS: no certificate can be for \"%s\" (%s)", host, reason());
    if (conn->pool->session)
        SSL_set_session(ssl, conn->pool->session);
    SSL_set_connect_state(ssl);
    return 0;
}

/* Handles the result of an OpenSSL call that did not succeed. */
static ssize_t trouble(struct http_conn *conn, int ret, const char *doing, struct leat_error *err)
{
    int saved = errno;
    switch (SSL_get_error(conn->ssl, ret)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
        return -EAGAIN;
    case SSL_ERROR_ZERO_RETURN:
        return 0;
    case SSL_ERROR_SYSCALL:
        ERR_clear_error();
        if (saved == 0)
            return error_set(err, LEAT_PEER_GONE, "TLS: the connection ended without notice while %s", doing);
        return error_set(err, saved == ECONNRESET || saved == EPIPE ? LEAT_PEER_GONE : -saved,
                         "TLS: %s while %s", strerror(saved), doing);
    default:
        break;
    }
    long verify = SSL_get_verify_result(conn->ssl);
    if (verify != X509_V_OK && SSL_get_verify_mode(conn->ssl) != SSL_VERIFY_NONE) {
        ERR_clear_error();
        return error_set(err, LEAT_DENIED, "TLS: the certificate of %s is not trusted: %s",
                         conn->pool->origin.host, X509_verify_cert_error_string(verify));
    }
    unsigned long code = ERR_peek_last_error();
    if (ERR_GET_LIB(code) == ERR_LIB_SSL && ERR_GET_REASON(code) == SSL_R_UNEXPECTED_EOF_WHILE_READING) {
        ERR_clear_error();
        return error_set(err, LEAT_PEER_GONE, "TLS: the connection ended without notice while %s", doing);
    }
    return error_set(err, -EPROTO, "TLS: %s while %s", reason(), doing);
}

int tls_handshake(struct http_conn *conn, uint32_t *ret_events, struct leat_error *err)
{
    ERR_clear_error();
    errno = 0;
    int ret = SSL_do_handshake(conn->ssl);
    if (ret == 1) {
        struct http_client_stats *stats = &conn->pool->client->stats;
        stats->handshakes++;
        stats->resumed += SSL_session_reused(conn->ssl) == 1;
        return 1;
    }
    bool write = SSL_get_error(conn->ssl, ret) == SSL_ERROR_WANT_WRITE;
    ssize_t rc = trouble(conn, ret, "shaking hands", err);
    if (rc == -EAGAIN) {
        *ret_events = write ? EPOLLOUT : EPOLLIN;
        return 0;
    }
    return rc < 0 ? (int)rc : error_set(err, LEAT_PEER_GONE, "TLS: closed while shaking hands");
}

ssize_t tls_read(struct http_conn *conn, void *buf, size_t len, struct leat_error *err)
{
    size_t n = 0;
    ERR_clear_error();
    errno = 0;
    int ret = SSL_read_ex(conn->ssl, buf, len, &n);
    return ret == 1 ? (ssize_t)n : trouble(conn, ret, "receiving", err);
}

ssize_t tls_write(struct http_conn *conn, const void *buf, size_t len, struct leat_error *err)
{
    size_t n = 0;
    struct tls_quiet quiet;
    tls_quiet_enter(&quiet);
    ERR_clear_error();
    errno = 0;
    int ret = SSL_write_ex(conn->ssl, buf, len, &n);
    ssize_t rc = ret == 1 ? (ssize_t)n : trouble(conn, ret, "sending", err);
    tls_quiet_leave(&quiet);
    return rc;
}
