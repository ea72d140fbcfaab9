/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http_far: makes a server on this host a distant one, where the kernel has no netem: a relay whose connections behave as a path of that round trip.
 * Bytes come half of it later; what may be in flight towards the client begins with ten segments, doubles with each round trip up to what a
 * Linux server's buffer allows, and begins again after 300 ms of silence (slow start, as the kernel does it). Nothing is lost. With MBIT all that comes
 * from the server shares one link of so many Mbit/s, first come, first served.
 *
 *   http_far LISTEN TARGET RTT_MS [MBIT]       ports of 127.0.0.1; runs until it is ended
 */
#include "base/base.h"
#include "base/clock.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>

#define PIECES     8192u
#define PIECE_MAX  (128 * KIB)
#define WINDOW     14480u /* ten segments */
#define WINDOW_MAX (4 * MIB)
#define IDLE_NS    (300 * NS_PER_MS)

struct piece {
    uint64_t sent_ns;
    size_t len, at;
    char *data;
};

/* One direction. Pieces [head, arrived) are there, and wait for their acknowledgement; [arrived, tail) are on their way. */
struct way {
    int from, to;
    struct piece pieces[PIECES];
    unsigned head, arrived, tail;
    uint64_t window, in_flight, idle_ns;
    bool ended, on_link;
};

static uint64_t rtt_ns;
static double ns_per_byte;         /* of the link; 0: there is none */
static _Atomic uint64_t link_free; /* when all that was given to it has left */

/* When these bytes have left. */
static uint64_t link_send(uint64_t now, size_t bytes)
{
    uint64_t free_ns = atomic_load(&link_free), end;
    do {
        end = MAX(free_ns, now) + (uint64_t)((double)bytes * ns_per_byte);
    } while (!atomic_compare_exchange_weak(&link_free, &free_ns, end));
    return end;
}

static struct sockaddr_in target;

static bool way_open(const struct way *w)
{
    return !w->ended && w->in_flight < w->window && w->tail - w->head < PIECES;
}

static void way_take(struct way *w, uint64_t now)
{
    if (w->in_flight == 0 && now - w->idle_ns > IDLE_NS)
        w->window = MIN(w->window, (uint64_t)WINDOW);
    size_t room = (size_t)MIN(w->window - w->in_flight, PIECE_MAX);
    char *data = malloc(room);
    ssize_t n = data ? recv(w->from, data, room, MSG_DONTWAIT) : -1;
    if (n <= 0) {
        w->ended = n == 0 || (errno != EAGAIN && errno != EINTR);
        free(data);
        return;
    }
    if (w->on_link && ns_per_byte > 0)
        now = link_send(now, (size_t)n);
    w->pieces[w->tail++ % PIECES] = (struct piece){.sent_ns = now, .len = (size_t)n, .data = data};
    w->in_flight += (uint64_t)n;
}

/* What is due. Returns when the next thing is. */
static uint64_t way_move(struct way *w, uint64_t now)
{
    uint64_t next = now + NS_PER_S;
    for (; w->arrived != w->tail; w->arrived++) {
        struct piece *p = &w->pieces[w->arrived % PIECES];
        if (now < p->sent_ns + rtt_ns / 2) {
            next = MIN(next, p->sent_ns + rtt_ns / 2);
            break;
        }
        ssize_t n = send(w->to, p->data + p->at, p->len - p->at, MSG_NOSIGNAL | MSG_DONTWAIT);
        p->at += n > 0 ? (size_t)n : 0;
        if (p->at < p->len) {
            next = MIN(next, now + NS_PER_MS / 5); /* the client does not take it yet */
            break;
        }
        free(p->data);
    }
    for (; w->head != w->arrived; w->head++) {
        const struct piece *p = &w->pieces[w->head % PIECES];
        if (now < p->sent_ns + rtt_ns)
            return MIN(next, p->sent_ns + rtt_ns);
        w->in_flight -= p->len;
        w->window = MIN(w->window + p->len, WINDOW_MAX);
        w->idle_ns = now;
    }
    return next;
}

static void *relay(void *arg)
{
    int client = (int)(intptr_t)arg, server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    struct way *ways = calloc(2, sizeof(*ways));
    struct timespec pause = {.tv_nsec = (long)rtt_ns}; /* the handshake */
    nanosleep(&pause, NULL);
    if (!ways || connect(server, (struct sockaddr *)&target, sizeof(target)) < 0)
        goto out;
    setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    ways[0] = (struct way){.from = client, .to = server, .window = WINDOW_MAX, .idle_ns = clock_now_ns()};
    ways[1] = (struct way){
        .from = server, .to = client, .window = WINDOW, .idle_ns = clock_now_ns(), .on_link = true};
    for (;;) {
        uint64_t now = clock_now_ns(), next = way_move(&ways[0], now);
        next = MIN(next, way_move(&ways[1], now));
        if ((ways[0].ended && ways[0].head == ways[0].tail) ||
            (ways[1].ended && ways[1].head == ways[1].tail))
            break;
        struct pollfd fds[2] = {{.fd = client, .events = way_open(&ways[0]) ? POLLIN : 0},
                                {.fd = server, .events = way_open(&ways[1]) ? POLLIN : 0}};
        uint64_t wait = MIN(next - now, NS_PER_S - 1);
        struct timespec until = {.tv_nsec = (long)wait};
        if (ppoll(fds, 2, &until, NULL) <= 0)
            continue;
        now = clock_now_ns();
        for (int i = 0; i < 2; i++)
            if (fds[i].revents && way_open(&ways[i]))
                way_take(&ways[i], now);
            else if (fds[i].revents & (POLLERR | POLLHUP))
                ways[i].ended = true;
    }
    for (int i = 0; i < 2; i++)
        for (; ways[i].arrived != ways[i].tail; ways[i].arrived++)
            free(ways[i].pieces[ways[i].arrived % PIECES].data);
out:
    free(ways);
    close(client);
    close(server);
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc != 4 && argc != 5) {
        fprintf(stderr, "http_far LISTEN TARGET RTT_MS [MBIT]\n");
        return 2;
    }
    struct sockaddr_in here = {.sin_family = AF_INET,
                               .sin_port = htons((uint16_t)atoi(argv[1])),
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    target = here;
    target.sin_port = htons((uint16_t)atoi(argv[2]));
    rtt_ns = (uint64_t)(atof(argv[3]) * 1e6);
    ns_per_byte = argc == 5 ? 8e3 / atof(argv[4]) : 0;
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (bind(fd, (struct sockaddr *)&here, sizeof(here)) < 0 || listen(fd, 128) < 0) {
        perror("http_far");
        return 1;
    }
    for (;;) {
        pthread_t thread;
        int client = accept(fd, NULL, NULL);
        if (client >= 0 && pthread_create(&thread, NULL, relay, (void *)(intptr_t)client) == 0)
            pthread_detach(thread);
    }
}
