/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_limit: what a socket gives on this host: request and reply over loopback TCP between two processes, and the same
 * reads by Leat's transport and data thread, so that the two stand beside each other.
 *
 *   tcp_limit [--via bare|leat|both] [--size BYTES] [--request BYTES] [--inflight BYTES] [--seconds S]
 *             [--memory MIB] [--runs N] [--sndbuf KIB]
 *
 * A request asks for --request bytes as ranges of --size bytes at random places of --memory MiB that the server has
 * touched; new ones are sent as long as no more than --inflight bytes are asked for. `bare` is a sendmsg of iovecs out
 * of that memory and a blocking recv of a whole reply: no checksum, no framing, and the kernel's socket buffers unless
 * --sndbuf says otherwise. Destinations go round a ring of 4 * inflight bytes. Prints one JSON object a line and run:
 * payload bytes/s, and CPU-seconds of both processes per GB (1e9).
 */
#include "options.h"
#include "base/clock.h"
#include "rpc/conn.h"
#include "net/net.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>

struct setup {
    uint64_t size, request, inflight, memory;
    double seconds;
    unsigned runs;
    int sndbuf; /* of the bare server's socket, bytes; 0: the kernel's choice */
    uint8_t *pool;
    uint8_t *ring;
    uint64_t ring_bytes;
};

struct range {
    uint64_t offset, bytes;
};

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static double cpu_s(int who)
{
    struct rusage u;
    getrusage(who, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static uint64_t rng(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

static uint64_t place(const struct setup *s, uint64_t *state)
{
    return rng(state) % (s->memory / s->size) * s->size;
}

static void pair(int fds[2])
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    int on = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(listener, 1) < 0 ||
        getsockname(listener, (struct sockaddr *)&a, &len) < 0 ||
        connect(fds[0], (struct sockaddr *)&a, len) < 0 || (fds[1] = accept(listener, NULL, NULL)) < 0)
        die("loopback connection");
    close(listener);
    setsockopt(fds[0], IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(fds[1], IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

static void send_all(int fd, const void *buf, size_t bytes)
{
    while (bytes) {
        ssize_t n = send(fd, buf, bytes, MSG_NOSIGNAL);
        if (n <= 0)
            exit(0); /* the other side is through */
        buf = (const char *)buf + n;
        bytes -= (size_t)n;
    }
}

static bool recv_all(int fd, void *buf, size_t bytes)
{
    while (bytes) {
        ssize_t n = recv(fd, buf, bytes, MSG_WAITALL);
        if (n <= 0)
            return false;
        buf = (char *)buf + n;
        bytes -= (size_t)n;
    }
    return true;
}

/* --- bare -------------------------------------------------------------------------------------------------------- */

static void bare_serve(const struct setup *s, int fd)
{
    uint64_t n = s->request / s->size;
    if (s->sndbuf)
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &s->sndbuf, sizeof(s->sndbuf));
    struct range *ranges = malloc(n * sizeof(*ranges));
    struct iovec *all = malloc(n * sizeof(*all));
    while (recv_all(fd, ranges, n * sizeof(*ranges))) {
        struct iovec *iov = all;
        uint64_t left = n;
        for (uint64_t i = 0; i < n; i++)
            iov[i] = (struct iovec){s->pool + ranges[i].offset, ranges[i].bytes};
        while (left) {
            struct msghdr msg = {.msg_iov = iov, .msg_iovlen = MIN(left, 1024ull)};
            ssize_t sent = sendmsg(fd, &msg, MSG_NOSIGNAL);
            if (sent <= 0)
                return;
            while (left && (size_t)sent >= iov->iov_len) {
                sent -= (ssize_t)iov->iov_len;
                iov++;
                left--;
            }
            if (sent) {
                iov->iov_base = (char *)iov->iov_base + sent;
                iov->iov_len -= (size_t)sent;
            }
        }
    }
}

static uint64_t bare_client(const struct setup *s, int fd, uint64_t *ret_ns)
{
    uint64_t n = s->request / s->size, state = 88172645463325252ull, asked = 0, got = 0, at = 0;
    uint64_t start = clock_now_ns(), end = start + (uint64_t)(s->seconds * 1e9);
    struct range *ranges = malloc(n * sizeof(*ranges));
    while (clock_now_ns() < end) {
        while (asked + s->request - got <= s->inflight) {
            for (uint64_t i = 0; i < n; i++)
                ranges[i] = (struct range){place(s, &state), s->size};
            send_all(fd, ranges, n * sizeof(*ranges));
            asked += s->request;
        }
        if (!recv_all(fd, s->ring + at, s->request))
            die("recv");
        got += s->request;
        at = at + 2 * s->request <= s->ring_bytes ? at + s->request : 0;
    }
    *ret_ns = clock_now_ns() - start;
    free(ranges);
    return got;
}

/* --- leat -------------------------------------------------------------------------------------------------------- */

struct target {
    struct net_serve_target base;
    const struct setup *setup;
};

static void *resolve(struct net_serve_target *t, uint32_t gid, uint64_t offset, uint64_t bytes, bool write,
                     int *status)
{
    const struct setup *s = container_of(t, struct target, base)->setup;
    *status = LEAT_INVALID;
    return gid == 0 && offset <= s->memory && bytes <= s->memory - offset ? s->pool + offset : NULL;
}

static void unref(struct net_serve_target *t)
{
    exit(0); /* the client is through */
}

static void leat_serve(const struct setup *s, int fd)
{
    struct net_server *server;
    struct target target = {{resolve, NULL, unref}, s};
    if (net_server_new(1, &server) < 0 || net_server_add(server, fd, &target.base) < 0)
        die("net_server");
    for (;;)
        pause();
}

static uint64_t leat_client(const struct setup *s, int fd, uint64_t *ret_ns)
{
    uint64_t n = s->request / s->size, state = 88172645463325252ull, asked = 0, got = 0, at = 0;
    unsigned nops = (unsigned)(s->inflight / s->request), nfree = nops;
    struct net_ctx *ctx;
    struct net_endpoint *ep;
    struct net_peer peer = {.connected_fd = fd};
    struct net_op *ops = calloc(nops, sizeof(*ops)), **free_ops = calloc(nops, sizeof(*free_ops));
    if (net_tcp_new(&ctx) < 0 || ctx->ops->connect(ctx, &peer, 0, &ep, NULL) < 0)
        die("net_tcp");
    for (unsigned i = 0; i < nops; i++) {
        ops[i].reads = calloc(n, sizeof(struct net_read));
        ops[i].n = (uint32_t)n;
        free_ops[i] = &ops[i];
    }
    uint64_t start = clock_now_ns(), end = start + (uint64_t)(s->seconds * 1e9);
    while (clock_now_ns() < end) {
        while (nfree) {
            struct net_op *op = free_ops[--nfree];
            for (uint64_t i = 0; i < n; i++)
                op->reads[i] = (struct net_read){.bytes = (uint32_t)s->size,
                                                 .offset = place(s, &state),
                                                 .dst = s->ring + at + i * s->size};
            at = at + 2 * s->request <= s->ring_bytes ? at + s->request : 0;
            if (ctx->ops->submit(ep, op) < 0)
                die("submit");
            asked += s->request;
        }
        struct net_event events[16];
        int k = ctx->ops->poll(ctx, events, 16, -1);
        for (int i = 0; i < k; i++) {
            if (events[i].kind == NET_DONE) {
                got += s->request;
                if (events[i].op->status < 0) {
                    fprintf(stderr, "read: %s\n", strerror(-events[i].op->status));
                    exit(1);
                }
            } else {
                free_ops[nfree++] = events[i].op;
            }
        }
    }
    *ret_ns = clock_now_ns() - start;
    ctx->ops->disconnect(ctx, ep);
    net_free(ctx);
    return got;
}

/* --- runs -------------------------------------------------------------------------------------------------------- */

static void run(const struct setup *s, bool leat)
{
    int fds[2];
    uint64_t ns;
    pair(fds);
    double cpu = cpu_s(RUSAGE_SELF) + cpu_s(RUSAGE_CHILDREN);
    pid_t pid = fork();
    if (pid < 0)
        die("fork");
    if (pid == 0) {
        close(fds[0]);
        if (leat)
            leat_serve(s, fds[1]);
        else
            bare_serve(s, fds[1]);
        _exit(0);
    }
    close(fds[1]);
    uint64_t bytes = leat ? leat_client(s, fds[0], &ns) : bare_client(s, fds[0], &ns);
    if (!leat)
        close(fds[0]);
    waitpid(pid, NULL, 0);
    cpu = cpu_s(RUSAGE_SELF) + cpu_s(RUSAGE_CHILDREN) - cpu;
    printf("{\"via\": \"%s\", \"size\": %llu, \"request\": %llu, \"inflight\": %llu, \"bytes_per_s\": %.0f, "
           "\"cpu_s_per_gb\": %.4f}\n",
           leat ? "leat" : "bare", (unsigned long long)s->size, (unsigned long long)s->request,
           (unsigned long long)s->inflight, (double)bytes / ((double)ns / 1e9), cpu / ((double)bytes / 1e9));
    fflush(stdout);
}

int main(int argc, char **argv)
{
    struct setup s = {.size = 64 * KIB, .request = MIB, .inflight = 4 * MIB, .runs = 1};
    const char *via = "both", *seconds = "2";
    uint64_t memory_mib = 256;
    unsigned sndbuf_kib = 0;
    bench_options_take(argc, argv,
                       (const struct bench_option[]){{"via", .text = &via},
                                                     {"size", .number = &s.size},
                                                     {"request", .number = &s.request},
                                                     {"inflight", .number = &s.inflight},
                                                     {"seconds", .text = &seconds},
                                                     {"memory", .number = &memory_mib},
                                                     {"runs", .count = &s.runs},
                                                     {"sndbuf", .count = &sndbuf_kib},
                                                     {0}});
    s.seconds = strtod(seconds, NULL);
    s.memory = memory_mib * MIB;
    s.sndbuf = (int)sndbuf_kib * 1024;
    if (s.size == 0 || s.size > s.memory || s.size > UINT32_MAX) {
        fprintf(stderr, "tcp_limit: --size must be between 1 and the memory's size\n");
        return 2;
    }
    s.request = MAX(s.request / s.size, 1ull) * s.size;
    s.inflight = MAX(s.inflight, s.request);
    s.ring_bytes = 4 * s.inflight;
    s.pool = mmap(NULL, s.memory, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    s.ring = mmap(NULL, s.ring_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (s.pool == MAP_FAILED || s.ring == MAP_FAILED)
        die("mmap");
    memset(s.pool, 0x5a, s.memory);
    memset(s.ring, 0, s.ring_bytes);
    signal(SIGPIPE, SIG_IGN);
    for (unsigned i = 0; i < s.runs; i++) {
        if (strcmp(via, "leat") != 0)
            run(&s, false);
        if (strcmp(via, "bare") != 0)
            run(&s, true);
    }
    return 0;
}
