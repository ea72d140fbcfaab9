/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_bare: the most that loopback TCP gives the same consumers: each has a connection of its own to a server process with a
 * thread a connection; a batch is one request of {offset, bytes} and one reply, sent by sendmsg out of the samples' memory and
 * received by recvs into the batch. No framing, no checksum, no deadline. (tcp_limit asks the same of our transport alone.)
 *
 *   tcp_bare [driver's options]                     both sides here, over loopback
 *   tcp_bare [driver's options] serve ADDRESS PORT  the server alone, until it is ended
 *   tcp_bare [driver's options] read ADDRESS[,ADDRESS...] PORT  the consumers alone. Of several servers each is asked for the samples
 *                                                   whose number it stands for (modulo), all at once, and then received from in turn
 *
 * Samples lie in the best places there are: in the servers' memory on borders of their size where that is a power of two, and in a
 * batch those of one server side by side. `read ... ordered` has them in the batch in its order, as Leat does, so that a reply is
 * scattered over it.
 */
#include "driver.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define IOVS 1024 /* IOV_MAX */
/* The best of those tried: with the kernel's own sizes a batch of 4 MiB takes half as long again, as what is sent ahead falls
 * out of the cache before it is received. */
#define CHUNK  (256 * KIB)
#define SNDBUF (384 * 1024)

struct range {
    uint64_t offset, bytes;
};

#define SERVERS 16

struct client {
    int fds[SERVERS];
    struct range *ranges;
    struct iovec *to; /* where a server's samples go */
    uint8_t *ring;
    unsigned slot, slots;
    uint64_t slot_bytes;
};

static struct bench_setup setup;
static int listener = -1;
static struct sockaddr_in address, addresses[SERVERS]; /* to listen on; to read from */
static unsigned nservers = 1;
static bool ordered;
static pid_t server_pid;

static bool receive_all(int fd, void *buf, size_t bytes)
{
    for (ssize_t n; bytes; bytes -= (size_t)n) {
        n = recv(fd, buf, MIN(bytes, (size_t)CHUNK), 0);
        if (n <= 0)
            return false;
        buf = (char *)buf + n;
    }
    return true;
}

/* What is left of msg's iovecs behind `done` bytes. */
static void advance(struct msghdr *msg, size_t done)
{
    for (; msg->msg_iovlen && done >= msg->msg_iov->iov_len; msg->msg_iov++, msg->msg_iovlen--)
        done -= msg->msg_iov->iov_len;
    if (done) {
        msg->msg_iov->iov_base = (char *)msg->msg_iov->iov_base + done;
        msg->msg_iov->iov_len -= done;
    }
}

/* A chunk at a time, too. */
static bool scatter_all(int fd, struct iovec *to, unsigned n)
{
    struct msghdr msg = {.msg_iov = to};
    for (unsigned left = n; left; left -= n - (unsigned)msg.msg_iovlen, n = left) {
        size_t bytes = 0;
        for (n = 0; n < left && n < IOVS && bytes < CHUNK; n++)
            bytes += msg.msg_iov[n].iov_len;
        msg.msg_iovlen = n;
        ssize_t got = recvmsg(fd, &msg, 0);
        if (got <= 0)
            return false;
        advance(&msg, (size_t)got);
    }
    return true;
}

static bool send_ranges(int fd, const uint8_t *pool, const struct range *ranges, unsigned n)
{
    struct iovec iov[IOVS];
    for (unsigned first = 0; first < n; first += IOVS) {
        unsigned k = MIN(n - first, (unsigned)IOVS);
        for (unsigned i = 0; i < k; i++)
            iov[i] = (struct iovec){(void *)(pool + ranges[first + i].offset), ranges[first + i].bytes};
        struct msghdr msg = {.msg_iov = iov, .msg_iovlen = k};
        while (msg.msg_iovlen) {
            ssize_t sent = sendmsg(fd, &msg, MSG_NOSIGNAL);
            if (sent <= 0)
                return false;
            advance(&msg, (size_t)sent);
        }
    }
    return true;
}

struct serving {
    int fd;
    const uint8_t *pool;
};

static void *serve(void *arg)
{
    struct serving *s = arg;
    struct range *ranges = calloc(setup.batch, sizeof(*ranges));
    uint64_t n;
    while (ranges && receive_all(s->fd, &n, sizeof(n)) && n <= setup.batch &&
           receive_all(s->fd, ranges, n * sizeof(*ranges)) &&
           send_ranges(s->fd, s->pool, ranges, (unsigned)n))
        ;
    close(s->fd);
    return NULL;
}

static void listen_there(void)
{
    socklen_t len = sizeof(address);
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    if (bind(listener, (struct sockaddr *)&address, sizeof(address)) < 0 || listen(listener, 64) < 0 ||
        getsockname(listener, (struct sockaddr *)&address, &len) < 0)
        bench_die("listen: %s", strerror(errno));
}

static _Noreturn void server(void)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const uint8_t *pool = bench_load_npy(&setup);
    if (listener < 0) /* only now: loading takes CPU time from other measured programs */
        listen_there();
    for (;;) {
        struct serving *s = malloc(sizeof(*s));
        pthread_t thread;
        int on = 1;
        if (!s || (s->fd = accept(listener, NULL, NULL)) < 0)
            _exit(1);
        s->pool = pool;
        setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
        setsockopt(s->fd, SOL_SOCKET, SO_SNDBUF, &(int){SNDBUF}, sizeof(int));
        if (pthread_create(&thread, NULL, serve, s) != 0)
            _exit(1);
    }
}

static void parse_addresses(char *list, const char *port)
{
    char *rest = NULL;
    nservers = 0;
    for (char *one = strtok_r(list, ",", &rest); one; one = strtok_r(NULL, ",", &rest)) {
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
        if (nservers == SERVERS || inet_pton(AF_INET, one, &a.sin_addr) != 1)
            bench_die("'%s' is no address, or one too many", one);
        addresses[nservers++] = a;
    }
    if (!nservers)
        bench_die("no address");
    address = addresses[0];
}

static void prepare(const struct bench_setup *s)
{
    setup = *s;
    address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (setup.nargs) {
        ordered = setup.nargs == 4 && strcmp(setup.args[3], "ordered") == 0;
        if (setup.nargs != 3 && !ordered)
            bench_die("needs serve|read ADDRESS PORT, and ordered or not, or nothing");
        parse_addresses(setup.args[1], setup.args[2]);
        if (strcmp(setup.args[0], "serve") == 0)
            server();
        return;
    }
    listen_there();
    addresses[0] = address;
    server_pid = fork();
    if (server_pid < 0)
        bench_die("fork: %s", strerror(errno));
    if (server_pid == 0)
        server();
}

static void *consumer(const struct bench_setup *s, unsigned number)
{
    struct client *c = calloc(1, sizeof(*c));
    int on = 1;
    if (!c || !(c->ranges = calloc(setup.batch + 1u, sizeof(*c->ranges))) ||
        !(c->to = calloc(setup.batch + 1u, sizeof(*c->to))))
        bench_die("no memory");
    for (unsigned k = 0; k < nservers; k++) {
        c->fds[k] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(c->fds[k], (struct sockaddr *)&addresses[k], sizeof(addresses[k])) < 0)
            bench_die("connect: %s", strerror(errno));
        setsockopt(c->fds[k], IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    }
    c->slots = setup.slots;
    c->slot_bytes = align_up(setup.batch * setup.sample_bytes, 2 * MIB);
    c->ring = bench_ring(c->slots * c->slot_bytes);
    return c;
}

/* Asks server k for its samples. Returns how many. */
static unsigned ask(struct client *c, unsigned k, const uint64_t *ids, unsigned n)
{
    unsigned asked = 0;
    for (unsigned i = 0; i < n; i++)
        if (ids[i] % nservers == k)
            c->ranges[asked++] = (struct range){ids[i] * setup.sample_bytes, setup.sample_bytes};
    uint64_t head = asked;
    struct iovec iov[2] = {{&head, sizeof(head)}, {c->ranges, asked * sizeof(*c->ranges)}};
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};
    if (asked && sendmsg(c->fds[k], &msg, MSG_NOSIGNAL) != (ssize_t)(iov[0].iov_len + iov[1].iov_len))
        bench_die("the server is gone");
    return asked;
}

/* Server k's samples, each where its number stands in the batch. */
static bool take_ordered(struct client *c, unsigned k, const uint64_t *ids, unsigned n, uint8_t *batch)
{
    unsigned to = 0;
    for (unsigned i = 0; i < n; i++) {
        uint8_t *at = batch + i * setup.sample_bytes;
        struct iovec *last = to ? &c->to[to - 1] : NULL;
        if (ids[i] % nservers != k)
            continue;
        if (last && (uint8_t *)last->iov_base + last->iov_len == at &&
            last->iov_len + setup.sample_bytes <= CHUNK)
            last->iov_len += setup.sample_bytes;
        else
            c->to[to++] = (struct iovec){at, setup.sample_bytes};
    }
    return scatter_all(c->fds[k], c->to, to);
}

static void read_batch(void *arg, const uint64_t *ids, unsigned n, const uint8_t **ret_data)
{
    struct client *c = arg;
    uint8_t *batch = c->ring + c->slot_bytes * (c->slot++ % c->slots), *at = batch;
    unsigned asked[SERVERS];
    for (unsigned k = 0; k < nservers; k++)
        asked[k] = ask(c, k, ids, n);
    for (unsigned k = 0; k < nservers; at += asked[k++] * setup.sample_bytes)
        if (ordered ? !take_ordered(c, k, ids, n, batch)
                    : !receive_all(c->fds[k], at, asked[k] * setup.sample_bytes))
            bench_die("the server is gone");
    *ret_data = batch;
}

static void finish(void)
{
    if (!server_pid)
        return;
    kill(server_pid, SIGKILL);
    waitpid(server_pid, NULL, 0);
}

int main(int argc, char **argv)
{
    return bench_main(argc, argv,
                      &(struct bench_reader){
                          .prepare = prepare, .consumer = consumer, .read = read_batch, .finish = finish});
}
