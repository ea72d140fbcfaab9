/* SPDX-License-Identifier: Apache-2.0 */
/* testing.h: an HTTP server that follows a script, a thread a connection, over real sockets. An error in
 * it fails the test that runs. */
#ifndef HTTP_CLIENT_TESTING_H
#define HTTP_CLIENT_TESTING_H

#include "http/client/http_client.h"
#include "base/base.h"

#include <openssl/ssl.h>
#include <pthread.h>

#define WEB_CONNECTIONS_MAX 1024u

struct web_server;

struct web_peer {
    int fd;
    SSL *ssl;
    struct web_server *server;
    unsigned number; /* of the connection, from 0 */
    char buf[65536];
    size_t have;
    char head[16384]; /* of the request that was heard last */
};
ssize_t web_read(struct web_peer *p, void *buf, size_t len);
void web_say_bytes(struct web_peer *p, const void *data, size_t len);
void web_say(struct web_peer *p, const char *text);
/* The next request's path, or false at the end of the connection. A body announced by Content-Length is
 * skipped. */
bool web_hear(struct web_peer *p, char path[256]);
/* A header's value ("if-match"), or false. */
bool web_header(const struct web_peer *p, const char *name, char *ret, size_t cap);

struct web_server {
    int fd;
    struct http_origin origin;
    void (*talk)(struct web_peer *p);
    SSL_CTX *tls;
    void *user; /* the test's */
    pthread_t thread;
    _Atomic unsigned nconns;
    pthread_t peers[WEB_CONNECTIONS_MAX];
    unsigned npeers;
    int fds[WEB_CONNECTIONS_MAX];
};
/* talk() runs a connection, which ends when it returns. tls NULL: plain. */
void web_start(struct web_server *s, void (*talk)(struct web_peer *p), SSL_CTX *tls);
void web_stop(struct web_server *s);
/* The same in a process of its own, plain, where a test counts what this process holds: ended with the test's, or by web_reap. */
pid_t web_fork(void (*talk)(struct web_peer *p), uint16_t *ret_port);
void web_reap(pid_t child);

#endif
