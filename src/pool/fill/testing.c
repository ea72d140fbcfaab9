/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/fill/testing.h"

#include <setjmp.h>
#include <stdarg.h>

#include "http/client/testing.h"
#include "base/crc32c.h"
#include "base/testing.h"
#include "pool/fill/fill.h"
#include "pool/source/source.h"
#include "pool/set/testing.h"
#include "pool/set/wset.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <cmocka.h>

struct script script;

static void say_error(struct web_peer *p, int status, const char *code, const char *message)
{
    char body[400], head[200];
    snprintf(body, sizeof(body), "<Error><Code>%s</Code><Message>%s</Message></Error>", code, message);
    snprintf(head, sizeof(head), "HTTP/1.1 %d No\r\nContent-Length: %zu\r\n\r\n", status, strlen(body));
    web_say(p, head);
    web_say(p, body);
}

static bool take_one(_Atomic unsigned *n)
{
    unsigned left = atomic_load(n);
    while (left && !atomic_compare_exchange_weak(n, &left, left - 1)) {
    }
    return left > 0;
}

static void talk(struct web_peer *p)
{
    char path[256], text[400];
    while (web_hear(p, path)) {
        unsigned number = 0;
        unsigned long long bytes = 0, first = 0, last;
        const char *name = strrchr(path, '/') + 1;
        atomic_fetch_add(&script.requests, 1);
        test_pause_us(script.late_us);
        if (sscanf(name, "o-%u-%llu", &number, &bytes) != 2) {
            say_error(p, 404, "NoSuchKey", "nothing here");
            continue;
        }
        if (script.elsewhere && web_header(p, "host", text, sizeof(text)) && strncmp(text, "127.", 4) == 0) {
            char head[400];
            snprintf(head, sizeof(head),
                     "HTTP/1.1 302 Found\r\nLocation: http://localhost%s%s\r\nContent-Length: 0\r\n\r\n",
                     strchr(text, ':'), path);
            web_say(p, head);
            continue;
        }
        if (script.stall) {
            atomic_fetch_add(&script.stalled, 1);
            while (web_read(p, p->buf, sizeof(p->buf)) > 0) {
            }
            return;
        }
        test_wait_until(script.requests >= script.gather);
        if (take_one(&script.busy)) {
            say_error(p, 503, "SlowDown", "please reduce your request rate");
            continue;
        }
        if (script.refuse || script.expired) {
            say_error(p, 403, script.refuse ? "SignatureDoesNotMatch" : "ExpiredToken", "as the script says");
            continue;
        }
        bool other = script.changed && number == script.changed;
        if (other && web_header(p, "if-match", text, sizeof(text)) && strcmp(text, "\"v2\"") != 0) {
            say_error(p, 412, "PreconditionFailed", "changed");
            continue;
        }
        char tag[100];
        snprintf(tag, sizeof(tag), "%s", other ? "\"v2\"" : ETAG);
        if (script.weak)
            snprintf(tag, sizeof(tag), WEAK "\r\nLast-Modified: Sun, 06 Nov 1994 08:49:%s GMT",
                     other ? "38" : "37");
        last = bytes - 1;
        bool range =
            web_header(p, "range", text, sizeof(text)) && sscanf(text, "bytes=%llu-%llu", &first, &last) == 2;
        uint64_t n = last - first + 1, say = take_one(&script.half) ? n / 2 : n;
        if (range)
            snprintf(text, sizeof(text),
                     "HTTP/1.1 206 Partial\r\nETag: %s\r\nContent-Length: %llu\r\nContent-Range: bytes "
                     "%llu-%llu/%llu\r\n\r\n",
                     tag, (unsigned long long)n, first, last, bytes);
        else
            snprintf(text, sizeof(text), "HTTP/1.1 200 OK\r\nETag: %s\r\nContent-Length: %llu\r\n\r\n", tag,
                     (unsigned long long)n);
        uint8_t *body = malloc(n ? n : 1);
        testing_bytes(number, first, body, n);
        web_say(p, text);
        web_say_bytes(p, body, say);
        free(body);
        if (say < n)
            return;
    }
}

/* No local file is in the page cache. */
ssize_t preadv2(int fd, const struct iovec *iov, int n, off_t offset, int flags)
{
    errno = EAGAIN;
    return -1;
}

struct web_server server;

int index_of(const char *root, unsigned n, uint64_t (*bytes_of)(unsigned i))
{
    struct index_builder *b;
    assert_int_equal(index_builder_new(INDEX_KIND_DIR, root, &b), 0);
    int field = index_builder_field(b, "data", "", INDEX_FIELD_TABLE, 0, NULL, 0, 0);
    for (unsigned i = 0; i < n; i++) {
        char name[64];
        uint64_t bytes = bytes_of(i);
        struct stat st = {.st_mode = S_IFREG, .st_size = (off_t)bytes, .st_mtim = {.tv_sec = WRITTEN}};
        snprintf(name, sizeof(name), "o-%u-%llu", i, (unsigned long long)bytes);
        uint32_t source = (uint32_t)index_builder_source(b, name, &st);
        index_builder_etag(b, source, script.weak ? (i % 2 ? "" : WEAK) : ETAG);
        struct index_extent e = {
            .bytes = bytes, .source_bytes = bytes, .source = source, .kind = INDEX_EXTENT_RAW};
        e.address = index_builder_reserve(b, bytes, INDEX_SMALL_ALIGN, 0);
        index_builder_extent(b, &e);
        index_builder_sample(b, name, strlen(name));
        index_builder_part(b, (unsigned)field, e.address, bytes);
    }
    return testing_index_of(b);
}

int index_here(unsigned n, uint64_t (*bytes_of)(unsigned i))
{
    char root[64];
    snprintf(root, sizeof(root), "http://127.0.0.1:%u/d", server.origin.port);
    return index_of(root, n, bytes_of);
}

static const struct source_opener opener;
static void advanced(struct wset *ws) {}

struct fill *fill_of(unsigned threads, uint64_t segment)
{
    struct fill *fill;
    struct leat_error err = {0};
    struct fill_config config = {.threads = threads,
                                 .disk_engine = "worker",
                                 .segment_bytes = segment,
                                 .opener = &opener,
                                 .advanced = advanced};
    if (fill_new(&config, &fill, &err) < 0)
        fail_msg("%s", err.message);
    return fill;
}

void check_sample(const struct wset *ws, unsigned i)
{
    struct index_part part = {0};
    struct leat_error err;
    if (wset_sample_state(ws, i) != LIVE_RESIDENT) {
        wset_failure_get((struct wset *)(uintptr_t)ws, i, &err);
        fail_msg("sample %u: %s", i, err.message);
    }
    assert_true(index_part(&ws->index, i, 0, &part));
    uint8_t *got = malloc(part.bytes + 1);
    testing_part(ws, i, 0, got);
    testing_check_bytes(got, i, 0, part.bytes);
    assert_int_equal(ws->crc[i], crc32c(0, got, part.bytes));
    free(got);
}

uint64_t mixed(unsigned i)
{
    return i % 50 == 7 ? 3 * MIB + i : 1 + (i * 977) % 9000;
}
uint64_t tiny(unsigned i)
{
    return 1 + i % 200;
}
uint64_t large(unsigned i)
{
    return 5 * MIB + i;
}

void begin(void)
{
    memset(&script, 0, sizeof(script));
    web_start(&server, talk, NULL);
}

void wait_stalled(void)
{
    test_wait_until(script.stalled);
}
