/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http_bare: the limit of an HTTP client: epoll, requests that were put together beforehand, and recv straight into the destination.
 * Of an answer it looks at the status, and where its head ends; how long it is it knows already. No deadlines, no errors, no signatures.
 * With --ca the same over SSL_read, which decrypts into the destination.
 *
 * An answer's first recv is short for a large item (its head and little more, which has to be copied), and as much as is there for small ones.
 */
#include "http_get.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define BUFFER     (32 * KIB)
#define FIRST_READ 512
#define SMALL      (64 * KIB)
#define PATIENT    (256 * KIB)
#define DEPTH_MAX  64

struct conn {
    int fd;
    SSL *ssl;
    struct get_item *items[DEPTH_MAX]; /* a ring, in the order of requests */
    unsigned first, n;
    char buf[BUFFER];
    size_t at, have;
    uint64_t got; /* of the first item's payload */
    bool body;
    bool patient;
};

static struct get_setup setup;
static struct conn *conns;
static char **requests;
static size_t *request_lens;
static int epoll_fd;

static void open_conn(struct conn *c, SSL_CTX *tls)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)setup.port)};
    int one = 1;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (inet_pton(AF_INET, setup.host, &to.sin_addr) != 1 ||
        connect(c->fd, (struct sockaddr *)&to, sizeof(to)) < 0)
        get_die("%s:%u: %s", setup.host, setup.port, strerror(errno));
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (tls) {
        c->ssl = SSL_new(tls);
        if (!c->ssl || !SSL_set_fd(c->ssl, c->fd) || SSL_connect(c->ssl) != 1)
            get_die("no TLS with %s:%u", setup.host, setup.port);
    }
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->fd, &event);
}

static void prepare(const struct get_setup *s)
{
    setup = *s;
    if (setup.depth > DEPTH_MAX)
        get_die("at most %d on one connection", DEPTH_MAX);
    requests = calloc(setup.count, sizeof(*requests));
    request_lens = calloc(setup.count, sizeof(*request_lens));
    conns = calloc(setup.connections, sizeof(*conns));
    if (!requests || !request_lens || !conns)
        get_die("no memory");
    for (uint64_t i = 0; i < setup.count; i++) {
        char path[64], range[64] = "";
        get_path(i, path, sizeof(path));
        if (setup.of)
            snprintf(range, sizeof(range), "Range: bytes=%llu-%llu\r\n",
                     (unsigned long long)(i * setup.bytes), (unsigned long long)((i + 1) * setup.bytes - 1));
        int n = asprintf(&requests[i], "GET %s HTTP/1.1\r\nHost: %s:%u\r\n%s\r\n", path, setup.host,
                         setup.port, range);
        if (n < 0)
            get_die("no memory");
        request_lens[i] = (size_t)n;
    }
    SSL_CTX *tls = NULL;
    if (setup.ca_file && (!(tls = SSL_CTX_new(TLS_client_method())) ||
                          !SSL_CTX_load_verify_locations(tls, setup.ca_file, NULL)))
        get_die("%s: no CA file", setup.ca_file);
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    for (unsigned i = 0; i < setup.connections; i++)
        open_conn(&conns[i], tls);
}

/* Fills the connection up with requests, all of them in one send: they are small, the socket takes them. */
static void ask(struct conn *c)
{
    char out[DEPTH_MAX * 256];
    size_t len = 0;
    while (c->n < setup.depth) {
        struct get_item *item = get_next();
        if (!item)
            break;
        c->items[(c->first + c->n++) % DEPTH_MAX] = item;
        memcpy(out + len, requests[item->number], request_lens[item->number]);
        len += request_lens[item->number];
    }
    if (len == 0)
        return;
    ssize_t n = c->ssl ? SSL_write(c->ssl, out, (int)len) : send(c->fd, out, len, MSG_NOSIGNAL);
    if (n != (ssize_t)len)
        get_die("a request was not sent");
}

static ssize_t receive(struct conn *c, void *buf, size_t len)
{
    if (!c->ssl) {
        ssize_t n = recv(c->fd, buf, len, 0);
        return n < 0 && errno == EAGAIN ? -1 : n <= 0 ? 0 : n;
    }
    int n = SSL_read(c->ssl, buf, (int)MIN(len, (size_t)1 << 30));
    return n > 0 ? n : SSL_get_error(c->ssl, n) == SSL_ERROR_WANT_READ ? -1 : 0;
}

/* Large answers: woken when so much is there, which costs a quarter less than being woken for what comes. */
static void patience(struct conn *c, bool patient)
{
    int low = patient ? (int)PATIENT : 1;
    if (c->patient != patient && !c->ssl)
        setsockopt(c->fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof(low));
    c->patient = patient;
}

static void item_done(struct conn *c)
{
    struct get_item *item = c->items[c->first];
    c->first = (c->first + 1) % DEPTH_MAX;
    c->n--;
    c->body = false;
    c->got = 0;
    get_done(item);
}

/* Uses up the buffer as far as it goes. */
static void digest(struct conn *c)
{
    while (c->have > c->at && c->n) {
        struct get_item *item = c->items[c->first];
        if (!c->body) {
            char *end = memmem(c->buf + c->at, c->have - c->at, "\r\n\r\n", 4);
            if (!end)
                return;
            if (memcmp(c->buf + c->at, "HTTP/1.1 20", 11) != 0)
                get_die("the server said %.40s", c->buf + c->at);
            c->body = true;
            c->at = (size_t)(end + 4 - c->buf);
        }
        size_t n = MIN(c->have - c->at, item->bytes - c->got);
        memcpy(item->dst + c->got, c->buf + c->at, n);
        c->at += n;
        c->got += n;
        if (c->got == item->bytes)
            item_done(c);
        else
            return;
    }
}

static void progress(struct conn *c)
{
    bool more = true;
    while (more && c->n) {
        struct get_item *item = c->items[c->first];
        ssize_t n;
        size_t room;
        if (c->at == c->have)
            c->at = c->have = 0;
        if (c->body && item->bytes - c->got >= 4 * KIB && c->have == 0) {
            room = item->bytes - c->got;
            n = receive(c, item->dst + c->got, room);
            if (n > 0 && (c->got += (size_t)n) == item->bytes)
                item_done(c);
        } else {
            if (c->at && c->have == BUFFER) {
                memmove(c->buf, c->buf + c->at, c->have -= c->at);
                c->at = 0;
            }
            room = setup.bytes > SMALL && c->have < FIRST_READ ? FIRST_READ - c->have : BUFFER - c->have;
            n = receive(c, c->buf + c->have, room);
            if (n > 0) {
                c->have += (size_t)n;
                digest(c);
            }
        }
        if (n == 0)
            get_die("the server closed a connection");
        more = n > 0 &&
               (c->ssl || (size_t)n == room); /* less than there was room for: there is no more of it now */
    }
    patience(c, c->n && c->body && c->items[c->first]->bytes - c->got > PATIENT);
    ask(c);
}

static void run(void)
{
    struct epoll_event events[64];
    for (unsigned i = 0; i < setup.connections; i++)
        ask(&conns[i]);
    for (;;) {
        unsigned busy = 0;
        for (unsigned i = 0; i < setup.connections; i++)
            busy += conns[i].n;
        if (busy == 0)
            return;
        int n = epoll_wait(epoll_fd, events, 64, -1);
        for (int i = 0; i < n; i++)
            progress(events[i].data.ptr);
    }
}

int main(int argc, char **argv)
{
    return get_main(argc, argv, &(struct get_client){.prepare = prepare, .run = run});
}
