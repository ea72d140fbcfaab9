/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "http/client/testing.h"

ssize_t web_read(struct web_peer *p, void *buf, size_t len)
{
    return p->ssl ? SSL_read(p->ssl, buf, (int)len) : read(p->fd, buf, len);
}

void web_say_bytes(struct web_peer *p, const void *data, size_t len)
{
    for (size_t at = 0; at < len;) {
        ssize_t n = p->ssl ? SSL_write(p->ssl, (const char *)data + at, (int)(len - at))
                           : send(p->fd, (const char *)data + at, len - at, MSG_NOSIGNAL);
        if (n <= 0)
            return;
        at += (size_t)n;
    }
}

void web_say(struct web_peer *p, const char *text)
{
    web_say_bytes(p, text, strlen(text));
}

/* The next request's path, or false at the end of the connection. Bodies are expected only with a
 * Content-Length. */
bool web_hear(struct web_peer *p, char path[256])
{
    for (;;) {
        char *end = memmem(p->buf, p->have, "\r\n\r\n", 4);
        if (end) {
            size_t len = (size_t)(end + 4 - p->buf);
            char *body = memmem(p->buf, len, "content-length: ", 16);
            size_t want = body ? strtoul(body + 16, NULL, 10) : 0;
            if (p->have >= len + want) {
                sscanf(p->buf, "%*s %255s", path);
                assert_true(len < sizeof(p->head));
                memcpy(p->head, p->buf, len);
                p->head[len] = 0;
                memmove(p->buf, p->buf + len + want, p->have - len - want);
                p->have -= len + want;
                return true;
            }
        }
        ssize_t n = web_read(p, p->buf + p->have, sizeof(p->buf) - p->have);
        if (n <= 0)
            return false;
        p->have += (size_t)n;
    }
}

bool web_header(const struct web_peer *p, const char *name, char *ret, size_t cap)
{
    char want[100];
    snprintf(want, sizeof(want), "\r\n%s: ", name);
    const char *at = strcasestr(p->head, want);
    if (!at)
        return false;
    at += strlen(want);
    snprintf(ret, cap, "%.*s", (int)strcspn(at, "\r"), at);
    return true;
}

struct seat {
    struct web_server *s;
    int fd;
    unsigned number;
};

static void *peer_main(void *arg)
{
    struct seat *seat = arg;
    struct web_peer *p = calloc(1, sizeof(*p));
    p->fd = seat->fd;
    p->server = seat->s;
    p->number = seat->number;
    if (seat->s->tls) {
        p->ssl = SSL_new(seat->s->tls);
        SSL_set_fd(p->ssl, p->fd);
        if (SSL_accept(p->ssl) != 1)
            goto out;
    }
    seat->s->talk(p);
    if (p->ssl)
        SSL_shutdown(p->ssl);
out:
    shutdown(p->fd, SHUT_RDWR);
    SSL_free(p->ssl);
    free(p);
    free(seat);
    return NULL;
}

static void *server_main(void *arg)
{
    struct web_server *s = arg;
    for (;;) {
        int fd = accept(s->fd, NULL, NULL);
        if (fd < 0)
            return NULL;
        assert_true(s->npeers < WEB_CONNECTIONS_MAX);
        struct seat *seat = malloc(sizeof(*seat));
        *seat = (struct seat){s, fd, s->nconns++};
        s->fds[s->npeers] = fd;
        pthread_create(&s->peers[s->npeers++], NULL, peer_main, seat);
    }
}

void web_start(struct web_server *s, void (*talk)(struct web_peer *p), SSL_CTX *tls)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(addr);
    void *user = s->user;
    memset(s, 0, sizeof(*s));
    s->user = user;
    s->talk = talk;
    s->tls = tls;
    s->fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(s->fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
    assert_int_equal(listen(s->fd, 128), 0);
    getsockname(s->fd, (struct sockaddr *)&addr, &len);
    s->origin.port = ntohs(addr.sin_port);
    s->origin.tls = tls != NULL;
    strcpy(s->origin.host, "127.0.0.1");
    pthread_create(&s->thread, NULL, server_main, s);
}

void web_stop(struct web_server *s)
{
    shutdown(s->fd, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    for (unsigned i = 0; i < s->npeers; i++)
        shutdown(s->fds[i], SHUT_RDWR);
    for (unsigned i = 0; i < s->npeers; i++) {
        pthread_join(s->peers[i], NULL);
        close(s->fds[i]);
    }
    close(s->fd);
}

pid_t web_fork(void (*talk)(struct web_peer *p), uint16_t *ret_port)
{
    static struct web_server server;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        web_start(&server, talk, NULL);
        if (write(ends[1], &server.origin.port, sizeof(*ret_port)) != sizeof(*ret_port))
            _exit(1);
        for (;;)
            pause();
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], ret_port, sizeof(*ret_port)), sizeof(*ret_port));
    close(ends[0]);
    return child;
}

void web_reap(pid_t child)
{
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
}
