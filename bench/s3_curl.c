/* SPDX-License-Identifier: Apache-2.0 */
/*
 * s3_curl: libcurl's multi interface under http_get.h, driven by its socket actions and epoll (what costs it least): HTTP/1.1, as many handles as
 * items under way, connections kept, each piece that it hands over copied to its destination. With --sign its own AWS_SIGV4.
 */
#include "http_get.h"

#include "base/clock.h"

#include <curl/curl.h>
#include <stdio.h>
#include <sys/epoll.h>

struct flight {
    CURL *easy;
    struct get_item *item;
    uint64_t got;
};

static struct get_setup setup;
static CURLM *multi;
static struct flight *flights;
static int epoll_fd;
static uint64_t timer_ns; /* 0: none */
static unsigned under_way;

static size_t on_data(char *data, size_t size, size_t n, void *user)
{
    struct flight *f = user;
    n *= size;
    if (n > f->item->bytes - f->got)
        get_die("more bytes than were asked for");
    memcpy(f->item->dst + f->got, data, n);
    f->got += n;
    return n;
}

static int on_socket(CURL *easy, curl_socket_t fd, int what, void *user, void *known)
{
    (void)easy;
    (void)user;
    struct epoll_event event = {.data.fd = fd};
    if (what == CURL_POLL_REMOVE) {
        epoll_ctl(epoll_fd, EPOLL_CTL_DEL, fd, &event);
        curl_multi_assign(multi, fd, NULL);
        return 0;
    }
    event.events = (what & CURL_POLL_IN ? EPOLLIN : 0u) | (what & CURL_POLL_OUT ? EPOLLOUT : 0u);
    epoll_ctl(epoll_fd, known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event);
    curl_multi_assign(multi, fd, multi);
    return 0;
}

static int on_timer(CURLM *m, long ms, void *user)
{
    (void)m;
    (void)user;
    timer_ns = ms < 0 ? 0 : clock_now_ns() + (uint64_t)ms * NS_PER_MS;
    return 0;
}

static void prepare(const struct get_setup *s)
{
    setup = *s;
    curl_global_init(CURL_GLOBAL_ALL);
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    multi = curl_multi_init();
    flights = calloc(setup.inflight, sizeof(*flights));
    if (!multi || !flights)
        get_die("no memory");
    curl_multi_setopt(multi, CURLMOPT_SOCKETFUNCTION, on_socket);
    curl_multi_setopt(multi, CURLMOPT_TIMERFUNCTION, on_timer);
    curl_multi_setopt(multi, CURLMOPT_MAX_TOTAL_CONNECTIONS, (long)setup.connections);
    curl_multi_setopt(multi, CURLMOPT_MAXCONNECTS, (long)setup.connections);
    for (unsigned i = 0; i < setup.inflight; i++) {
        CURL *e = flights[i].easy = curl_easy_init();
        if (!e)
            get_die("no memory");
        curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, on_data);
        curl_easy_setopt(e, CURLOPT_WRITEDATA, &flights[i]);
        curl_easy_setopt(e, CURLOPT_PRIVATE, &flights[i]);
        curl_easy_setopt(e, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
        curl_easy_setopt(e, CURLOPT_BUFFERSIZE, 512L * 1024);
        curl_easy_setopt(e, CURLOPT_FAILONERROR, 1L);
        curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
        if (setup.ca_file)
            curl_easy_setopt(e, CURLOPT_CAINFO, setup.ca_file);
        if (setup.sign) {
            curl_easy_setopt(e, CURLOPT_AWS_SIGV4, "aws:amz:us-east-1:s3");
            curl_easy_setopt(e, CURLOPT_USERPWD, "key:secret");
        }
    }
}

static bool begin(void)
{
    char path[64], url[160], range[64];
    struct get_item *item = get_next();
    if (!item)
        return false;
    struct flight *f = &flights[item->index];
    f->item = item;
    f->got = 0;
    get_path(item->number, path, sizeof(path));
    snprintf(url, sizeof(url), "%s://%s:%u%s", setup.ca_file ? "https" : "http", setup.host, setup.port,
             path);
    curl_easy_setopt(f->easy, CURLOPT_URL, url);
    if (setup.of) {
        snprintf(range, sizeof(range), "%llu-%llu", (unsigned long long)item->offset,
                 (unsigned long long)(item->offset + item->bytes - 1));
        curl_easy_setopt(f->easy, CURLOPT_RANGE, range);
    }
    under_way++;
    curl_multi_add_handle(multi, f->easy);
    return true;
}

static void reap(void)
{
    int more;
    CURLMsg *msg;
    while ((msg = curl_multi_info_read(multi, &more))) {
        struct flight *f;
        CURLcode rc = msg->data.result;
        curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, &f);
        if (rc != CURLE_OK || f->got != f->item->bytes)
            get_die("%s, after %llu bytes", curl_easy_strerror(rc), (unsigned long long)f->got);
        curl_multi_remove_handle(multi, f->easy);
        under_way--;
        get_done(f->item);
        begin();
    }
}

static void run(void)
{
    struct epoll_event events[64];
    int running;
    while (begin())
        ;
    while (under_way) {
        uint64_t now = clock_now_ns();
        int ms = timer_ns == 0 ? 1000 : timer_ns <= now ? 0 : (int)((timer_ns - now) / NS_PER_MS) + 1;
        int n = epoll_wait(epoll_fd, events, 64, ms);
        if (timer_ns && clock_now_ns() >= timer_ns) {
            timer_ns = 0;
            curl_multi_socket_action(multi, CURL_SOCKET_TIMEOUT, 0, &running);
        }
        for (int i = 0; i < n; i++) {
            int what = (events[i].events & EPOLLIN ? CURL_CSELECT_IN : 0) |
                       (events[i].events & EPOLLOUT ? CURL_CSELECT_OUT : 0);
            curl_multi_socket_action(multi, events[i].data.fd, what ? what : CURL_CSELECT_ERR, &running);
        }
        reap();
    }
}

int main(int argc, char **argv)
{
    return get_main(argc, argv, &(struct get_client){.prepare = prepare, .run = run});
}
