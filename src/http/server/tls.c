/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tls.c: OpenSSL on a reactor's sockets. TLS 1.2 with ephemeral keys is the least, ALPN says http/1.1, sessions are resumed by reservations. Buffers of 34 KiB are given
 * back while a connection is idle. Where the kernel does TLS (module `tls`), files go by sendfile: this alone no test of ours has seen yet, as none of our
 * machines' kernels has that module.
 *
 * Failure modes: a peer that speaks something else, or stops in the middle, is one failed handshake; what OpenSSL says of it is logged for
 * debugging only, since any client can cause it. A certificate that cannot be read on reload leaves the old one.
 */
#include "http/server/server_internal.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>

#include "base/log.h"
#include "base/secret_file.h"

static const char *reason(void)
{
    unsigned long code = ERR_peek_last_error();
    const char *text = code ? ERR_reason_error_string(code) : NULL;
    ERR_clear_error();
    return text ? text : "unknown error";
}

static int choose_protocol(SSL *ssl, const unsigned char **out, unsigned char *out_len,
                           const unsigned char *in, unsigned in_len, void *arg)
{
    static const unsigned char ours[] = "\x08http/1.1";
    unsigned char *chosen;
    if (SSL_select_next_proto(&chosen, out_len, ours, sizeof(ours) - 1, in, in_len) != OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

static int readable(const char *file, const char *what, struct leat_error *err)
{
    return access(file, R_OK) < 0 ? error_sys(err, -errno, "%s %s", what, file) : 0;
}

/* Of the file that was looked at: by its name it may be another one by now. */
static int use_key(SSL_CTX *ctx, const char *cert_file, const char *key_file, struct leat_error *err)
{
    AUTO_CLOSE int fd = -1;
    int rc = secret_file_open("private key", key_file, "", true, &fd, err);
    if (rc < 0)
        return rc;
    BIO *bio = BIO_new_fd(fd, BIO_NOCLOSE);
    /* A passphrase that is none: without it OpenSSL asks for one at the terminal. */
    EVP_PKEY *key = bio ? PEM_read_bio_PrivateKey(bio, NULL, NULL, (void *)(uintptr_t) "") : NULL;
    if (!key || SSL_CTX_use_PrivateKey(ctx, key) != 1)
        rc = error_set(err, LEAT_INVALID, "%s is no private key in PEM, without a passphrase, for %s (%s)",
                       key_file, cert_file, reason());
    else if (SSL_CTX_check_private_key(ctx) != 1)
        rc =
            error_set(err, LEAT_INVALID, "the key %s is not that of the certificate %s", key_file, cert_file);
    EVP_PKEY_free(key);
    BIO_free(bio);
    return rc;
}

int server_tls_context(const char *cert_file, const char *key_file, SSL_CTX **ret_context,
                       struct leat_error *err)
{
    if (!cert_file || !key_file)
        return error_set(err, LEAT_INVALID, "TLS needs a certificate and its key, each a file in PEM");
    int rc = readable(cert_file, "certificate", err);
    if (rc < 0)
        return rc;
    SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
    if (!ctx)
        return error_set(err, -ENOMEM, "TLS: %s", reason());
    SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    /* Of TLS 1.2; 1.3 has no others. A key that is stolen later opens nothing that was recorded before. */
    SSL_CTX_set_cipher_list(ctx, "ECDHE+AESGCM:ECDHE+CHACHA20");
    SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                              SSL_MODE_RELEASE_BUFFERS | SSL_MODE_AUTO_RETRY);
    SSL_CTX_set_options(ctx, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION |
                                 SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_PRIORITIZE_CHACHA |
                                 SSL_OP_ENABLE_KTLS | SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_session_id_context(ctx, (const unsigned char *)"leat", 4);
    SSL_CTX_set_num_tickets(ctx, 1);
    SSL_CTX_set_read_ahead(ctx, 1); /* one read for a record's head and what it holds */
    SSL_CTX_set_alpn_select_cb(ctx, choose_protocol, NULL);
    ERR_clear_error();
    if (SSL_CTX_use_certificate_chain_file(ctx, cert_file) != 1)
        rc = error_set(err, LEAT_INVALID, "%s has no certificate that can be read: PEM is wanted (%s)",
                       cert_file, reason());
    else
        rc = use_key(ctx, cert_file, key_file, err);
    if (rc < 0) {
        SSL_CTX_free(ctx);
        return rc;
    }
    *ret_context = ctx;
    return 0;
}

int sconn_tls_begin(struct http_server_conn *conn)
{
    struct http_server *server = conn->reactor->server;
    pthread_mutex_lock(&server->tls_lock);
    conn->ssl = SSL_new(server->tls); /* takes a reference: a reload does not pull it away */
    pthread_mutex_unlock(&server->tls_lock);
    if (!conn->ssl || !SSL_set_fd(conn->ssl, conn->source.fd)) {
        ERR_clear_error();
        return -ENOMEM;
    }
    SSL_set_accept_state(conn->ssl);
    return 0;
}

/* The meaning of a result that is no success; `wanted` is the direction that the call waits for. */
static ssize_t trouble(struct http_server_conn *conn, int ret, int wanted)
{
    int what = SSL_get_error(conn->ssl, ret);
    if (what == SSL_ERROR_WANT_READ || what == SSL_ERROR_WANT_WRITE) {
        conn->io_other = what != wanted;
        return -EAGAIN;
    }
    if (what == SSL_ERROR_ZERO_RETURN)
        return 0;
    if (what == SSL_ERROR_SSL && conn->state == SCONN_HANDSHAKE)
        log_debug("http: a TLS handshake failed: %s", reason());
    ERR_clear_error();
    return -ECONNRESET;
}

int sconn_tls_handshake(struct http_server_conn *conn)
{
    conn->io_other = false;
    ERR_clear_error();
    int ret = SSL_do_handshake(conn->ssl);
    if (ret == 1)
        return 1;
    ssize_t rc = trouble(conn, ret, SSL_ERROR_WANT_READ);
    return rc == -EAGAIN ? 0 : -ECONNRESET;
}

ssize_t sconn_tls_read(struct http_server_conn *conn, void *buf, size_t len)
{
    size_t n = 0;
    conn->io_other = false;
    ERR_clear_error();
    int ret = SSL_read_ex(conn->ssl, buf, len, &n);
    return ret == 1 ? (ssize_t)n : trouble(conn, ret, SSL_ERROR_WANT_READ);
}

ssize_t sconn_tls_write(struct http_server_conn *conn, const void *buf, size_t len)
{
    size_t n = 0;
    conn->io_other = false;
    ERR_clear_error();
    int ret = SSL_write_ex(conn->ssl, buf, len, &n);
    if (ret == 1)
        return (ssize_t)n;
    ssize_t rc = trouble(conn, ret, SSL_ERROR_WANT_WRITE);
    return rc == 0 ? -EPIPE : rc;
}

bool sconn_tls_in_kernel(const struct http_server_conn *conn)
{
    return BIO_get_ktls_send(SSL_get_wbio(conn->ssl));
}

ssize_t sconn_tls_sendfile(struct http_server_conn *conn, int fd, uint64_t at, size_t len)
{
    conn->io_other = false;
    ERR_clear_error();
    ssize_t n = SSL_sendfile(conn->ssl, fd, (off_t)at, len, 0);
    if (n >= 0)
        return n;
    n = trouble(conn, (int)n, SSL_ERROR_WANT_WRITE);
    return n == 0 ? -EPIPE : n;
}

void sconn_tls_bye(struct http_server_conn *conn)
{
    ERR_clear_error();
    SSL_shutdown(conn->ssl);
    ERR_clear_error();
}
