/* SPDX-License-Identifier: Apache-2.0 */
/* Long lists, cut in ranges: the same keys in the same order as one stream gives, whatever the names are and whatever the server makes of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "backend/s3/list_cut.h"
#include "http/client/testing.h"
#include "base/clock.h"
#include "base/rng.h"
#include "base/testing.h"

#define KEYS_MAX 20000u

/* What is wrong with the server. */
enum trouble {
    NONE,
    AFTER_IGNORED,   /* start-after begins at the first key */
    AFTER_INCLUDED,  /* ... at that key, not behind it */
    AFTER_REFUSED,   /* ... is 501 */
    AFTER_DENIED,    /* ... is 403 but for folders */
    FOLDERS_IGNORED, /* delimiter is */
    FOLDERS_MADE_UP, /* names that are not there, in no order */
    BY_LENGTH,       /* an order of its own */
    LONG_ANSWERS,    /* pages that come ahead are larger than can be expected */
    CHANGING,        /* keys come and go */
    TROUBLES,
};

static struct {
    char *keys[KEYS_MAX];
    unsigned n, page;
    enum trouble trouble;
    pthread_mutex_t lock; /* of the keys, while they change */
    uint64_t rng;
    unsigned wait_us;
    bool uneven;      /* some answers take 6 ms, most none */
    size_t odd_bytes; /* in the last answer that was too long */
    size_t fat;       /* bytes that each answer has for nothing */
    bool direct;      /* what lies in the prefix directly is asked for, and names of folders */
    bool apart;       /* names of folders stand behind the keys of their page, as with Amazon */
    bool slow;        /* answers come in pieces */
    _Atomic unsigned requests, inside, peak;
} at;
static struct web_server server;

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int by_length(const void *a, const void *b)
{
    size_t x = strlen(*(char *const *)a), y = strlen(*(char *const *)b);
    return x < y ? -1 : x > y ? 1 : by_name(a, b);
}

static int order(const char *a, const char *b)
{
    return at.trouble == BY_LENGTH ? by_length(&a, &b) : strcmp(a, b);
}

/* A parameter of the request that was heard last; false: there is none. */
static bool param(const struct web_peer *p, const char *name, char *ret)
{
    char want[40];
    const char *end = strchr(p->head, '\r'), *from;
    snprintf(want, sizeof(want), "&%s=", name);
    from = strstr(p->head, want);
    if (!from || from > end) {
        want[0] = '?';
        from = strstr(p->head, want);
    }
    if (!from || from > end)
        return false;
    from += strlen(want);
    size_t len = strcspn(from, "& ");
    memcpy(ret, from, len);
    assert_true(http_unescape(ret, len, &len));
    ret[len] = 0;
    return true;
}

static void put_key(struct bytes_out *out, const char *key, size_t len)
{
    http_escape(out, key, len, true);
}

/* One key comes or goes; those without a "!" stay. */
static void change(void)
{
    char name[64];
    uint64_t i = rng_below(&at.rng, at.n);
    if (strchr(at.keys[i], '!')) {
        free(at.keys[i]);
        at.keys[i] = at.keys[--at.n];
    } else if (at.n < KEYS_MAX) {
        snprintf(name, sizeof(name), "%.40s!%llu", at.keys[i], (unsigned long long)rng_below(&at.rng, 1000));
        at.keys[at.n++] = strdup(name);
    }
    qsort(at.keys, at.n, sizeof(at.keys[0]), by_name);
}

/* The first key that is not before this one: to look at all of them for each page takes most of a test's time. */
static unsigned first_from(const char *key)
{
    unsigned low = 0, high = *key ? at.n : 0;
    while (low < high) {
        unsigned middle = low + (high - low) / 2;
        if (order(at.keys[middle], key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* So many bytes or a few more that mean nothing, in long elements. */
static void put_odd(struct bytes_out *out, size_t bytes)
{
    char dots[1000];
    memset(dots, '.', sizeof(dots));
    for (size_t most = out->len + bytes; out->len < most;) {
        http_put(out, "<Odd>");
        bytes_put(out, dots, sizeof(dots));
        http_put(out, "</Odd>");
    }
}

static void say_page(struct web_peer *p, struct bytes_out *out)
{
    char prefix[1100] = "", after[1100] = "", token[1100], last[1100] = "";
    bool go_on = param(p, "continuation-token", token), folders = param(p, "delimiter", last);
    bool begins = !go_on && param(p, "start-after", after);
    param(p, "prefix", prefix);
    last[0] = 0;
    if (go_on) { /* "T" and the key, which is escaped in there */
        size_t len = strlen(token + 1);
        assert_true(http_unescape(token + 1, len, &len));
        memcpy(after, token + 1, len);
        after[len] = 0;
    }
    if (begins && at.trouble == AFTER_IGNORED)
        after[0] = 0;
    size_t prefix_len = strlen(prefix);
    bool more = false, made_up = folders && at.trouble == FOLDERS_MADE_UP;
    folders &= at.trouble != FOLDERS_IGNORED;
    struct bytes_out names = {0};
    http_put(out, "<ListBucketResult><EncodingType>url</EncodingType>");
    for (unsigned i = first_from(after), n = 0; i < at.n; i++) {
        const char *key = at.keys[i];
        int behind = *after ? order(key, after) : 1;
        if (strncmp(key, prefix, prefix_len) != 0 ||
            behind < (begins && at.trouble == AFTER_INCLUDED ? 0 : 1))
            continue;
        const char *slash = folders ? strchr(key + prefix_len, '/') : NULL;
        size_t len = slash ? (size_t)(slash + 1 - key) : strlen(key);
        if (slash && strncmp(last, key, len) == 0 && last[len] == 0)
            continue; /* reported already */
        if (slash && strncmp(after, key, len) == 0 && go_on)
            continue;
        if (n == at.page) {
            more = true;
            break;
        }
        n++;
        struct bytes_out *to = slash && at.apart ? &names : out;
        http_put(to, slash ? "<CommonPrefixes><Prefix>" : "<Contents><Key>");
        put_key(to, key, len);
        http_put(to, slash ? "</Prefix></CommonPrefixes>" : "</Key><Size>1</Size></Contents>");
        memcpy(last, key, len);
        last[len] = 0;
    }
    bytes_put(out, names.data, names.len);
    bytes_out_fini(&names);
    if (made_up) {
        for (int i = 0; i < 20; i++) {
            char name[40];
            snprintf(name, sizeof(name), "%c%llu/", (int)('a' + rng_below(&at.rng, 26)),
                     (unsigned long long)rng_below(&at.rng, 100));
            http_put(out, "<CommonPrefixes><Prefix>");
            put_key(out, name, strlen(name));
            http_put(out, "</Prefix></CommonPrefixes>");
        }
    }
    if (more) {
        http_put(out, "<IsTruncated>true</IsTruncated><NextContinuationToken>T");
        put_key(out, last, strlen(last));
        http_put(out, "</NextContinuationToken>");
    }
    if ((begins || go_on) && at.trouble == LONG_ANSWERS && at.odd_bytes < MIB && rng_below(&at.rng, 3) == 0) {
        at.odd_bytes += at.odd_bytes / 3 + 80 * KIB;
        put_odd(out, at.odd_bytes);
    }
    put_odd(out, at.fat);
    http_put(out, "</ListBucketResult>");
}

static void talk(struct web_peer *p)
{
    char path[256], head[200], text[1100];
    while (web_hear(p, path)) {
        struct bytes_out out = {0}, all = {0};
        const char *status = "200 OK";
        unsigned now = ++at.inside, peak = at.peak;
        at.requests++;
        while (now > peak && !atomic_compare_exchange_weak(&at.peak, &peak, now))
            ;
        if (at.wait_us)
            test_pause_us(at.wait_us);
        if (at.uneven && random() % 4 == 0)
            test_pause_us((unsigned)random() % 6000);
        pthread_mutex_lock(&at.lock);
        if (at.trouble == CHANGING)
            change();
        bool begins = param(p, "start-after", text);
        if (begins && at.trouble == AFTER_REFUSED)
            status = "501 Not Implemented";
        else if (begins && at.trouble == AFTER_DENIED && !param(p, "delimiter", text))
            status = "403 Forbidden";
        else
            say_page(p, &out);
        pthread_mutex_unlock(&at.lock);
        snprintf(head, sizeof(head), "HTTP/1.1 %s\r\nContent-Length: %zu\r\n\r\n", status, out.len);
        http_put(&all, head); /* in one piece, or TCP waits for the head to be acknowledged */
        bytes_put(&all, out.data, out.len);
        at.inside--;
        size_t piece = at.slow ? 64 * KIB : all.len;
        for (size_t said = 0; said < all.len; said += piece) {
            web_say_bytes(p, all.data + said, MIN(piece, all.len - said));
            if (at.slow)
                test_pause_us(500);
        }
        bytes_out_fini(&all);
        bytes_out_fini(&out);
    }
}

/* --- the client -------------------------------------------------------------------------------------------------------- */

struct got {
    char *keys[KEYS_MAX + 100];
    unsigned n, stop;
};

static int keep(void *user, const struct backend_object *o)
{
    struct got *got = user;
    assert_true(got->n < ARRAY_LEN(got->keys));
    got->keys[got->n++] = strdup(o->uri + strlen("s3://bucket/"));
    return got->n == got->stop ? -EINTR : 0;
}

static void got_fini(struct got *got)
{
    for (unsigned i = 0; i < got->n; i++)
        free(got->keys[i]);
    got->n = 0;
}

static void add(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void add(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    assert_true(at.n < KEYS_MAX);
    assert_true(vasprintf(&at.keys[at.n++], format, args) > 0);
    va_end(args);
}

static void forget(void)
{
    while (at.n)
        free(at.keys[--at.n]);
}

/* Sorts, and leaves out what is there twice. */
static void settle(void)
{
    qsort(at.keys, at.n, sizeof(at.keys[0]), at.trouble == BY_LENGTH ? by_length : by_name);
    unsigned n = 0;
    for (unsigned i = 0; i < at.n; i++) {
        if (n && strcmp(at.keys[n - 1], at.keys[i]) == 0)
            free(at.keys[i]);
        else
            at.keys[n++] = at.keys[i];
    }
    at.n = n;
}

static int list(const char *prefix, const char *after, struct got *got, struct leat_error *err)
{
    static char url[64];
    struct backend *b;
    char uri[1200];
    web_start(&server, talk, NULL);
    snprintf(url, sizeof(url), "http://127.0.0.1:%u", server.origin.port);
    struct backend_config config = {
        .endpoint = url, .region = "us-east-1", .anonymous = true, .given = true, .tries = 2};
    assert_int_equal(backend_new(&config, &b, err), 0);
    snprintf(uri, sizeof(uri), "s3://bucket/%s", prefix);
    at.requests = at.peak = 0;
    at.odd_bytes = 0;
    int rc = backend_list(b, uri, !at.direct, after, keep, got, err);
    backend_free(b);
    web_stop(&server);
    return rc;
}

static struct got got;

/* All of it, in the server's order. */
static void expect(const char *prefix, const char *after)
{
    struct leat_error err = {0};
    int rc = list(prefix, after, &got, &err);
    if (rc < 0)
        fail_msg("trouble %d: %s", at.trouble, err.message);
    unsigned n = 0;
    for (unsigned i = 0; i < at.n; i++) {
        if (strncmp(at.keys[i], prefix, strlen(prefix)) != 0 || (after && order(at.keys[i], after) <= 0))
            continue;
        if (n >= got.n || strcmp(got.keys[n], at.keys[i]) != 0)
            fail_msg("trouble %d, prefix \"%s\": key %u is \"%s\" where \"%s\" is due", at.trouble, prefix, n,
                     n < got.n ? got.keys[n] : "(none)", at.keys[i]);
        n++;
    }
    assert_int_equal(got.n, n);
    got_fini(&got);
}

/* Names that are next to each other in odd ways, folders of all sizes, folders in folders, numbers. */
static void random_keys(unsigned most)
{
    static const char *const parts[] = {"a",    "a-b", "a0",       "a.", "b",
                                        "%2F",  "+ &", "\xc3\xa9", "zz", "t",
                                        "<x>'", "T",   "a ",       "~",  "\xf0\x9f\x98\x80"};
    while (at.n < most) {
        char folder[200] = "";
        for (uint64_t depth = rng_below(&at.rng, 4); depth; depth--) {
            strcat(folder, parts[rng_below(&at.rng, ARRAY_LEN(parts))]);
            strcat(folder, "/");
        }
        uint64_t n = 1 + rng_below(&at.rng, rng_below(&at.rng, 3) ? 10 : 200), kind = rng_below(&at.rng, 4);
        if (*folder && rng_below(&at.rng, 4) == 0)
            add("%s", folder); /* what marks a folder */
        for (uint64_t i = 0; i < n && at.n < most; i++) {
            if (kind == 0)
                add("%s%06llu.jpg", folder, (unsigned long long)i);
            else if (kind == 1)
                add("%s%llu", folder, (unsigned long long)i);
            else if (kind == 2)
                add("%s%08llx", folder, (unsigned long long)rng_next(&at.rng) & 0xffffffff);
            else
                add("%s%s", folder, parts[rng_below(&at.rng, ARRAY_LEN(parts))]);
        }
    }
}

/* What lies in a prefix directly, and names of folders, each once; in order, where the server has one between them. */
static void expect_direct(const char *prefix)
{
    struct leat_error err = {0};
    char name[1200];
    const char *last = "";
    unsigned n = 0;
    if (list(prefix, NULL, &got, &err) < 0)
        fail_msg("trouble %d: %s", at.trouble, err.message);
    if (at.apart)
        qsort(got.keys, got.n, sizeof(got.keys[0]), by_name);
    for (unsigned i = 0; i < at.n; i++) {
        const char *slash = strncmp(at.keys[i], prefix, strlen(prefix)) == 0
                                ? strchr(at.keys[i] + strlen(prefix), '/')
                                : at.keys[i];
        if (slash == at.keys[i])
            continue;
        snprintf(name, sizeof(name), "%.*s", (int)(slash ? slash + 1 - at.keys[i] : 1100), at.keys[i]);
        if (strcmp(name, last) == 0)
            continue;
        if (n >= got.n || strcmp(got.keys[n], name) != 0)
            fail_msg("trouble %d, prefix \"%s\": %u is \"%s\" where \"%s\" is due", at.trouble, prefix, n,
                     n < got.n ? got.keys[n] : "(none)", name);
        last = got.keys[n++];
    }
    assert_int_equal(got.n, n);
    got_fini(&got);
}

static int begin(void **state)
{
    (void)state;
    at.direct = at.apart = false;
    forget();
    got_fini(&got);
    got.stop = 0;
    at.wait_us = 0;
    at.fat = 0;
    at.slow = false;
    at.uneven = false;
    return 0;
}

static void test_exact(void **state)
{
    static const char *const prefixes[] = {"", "a", "a/", "a-b/", "t/", "none/", "\xc3\xa9"};
    for (unsigned round = 0; round < 40; round += test_seeds(4) < 4 && round < 20 ? 4 : 1) {
        at.rng = 1000 + round;
        at.trouble = round < 20 ? NONE : round % CHANGING;
        at.page = 3 + (unsigned)rng_below(&at.rng, 40);
        random_keys(200 + (unsigned)rng_below(&at.rng, 2000));
        settle();
        for (unsigned i = 0; i < ARRAY_LEN(prefixes); i++)
            expect(prefixes[i], NULL);
        AUTO_FREE char *after = strdup(at.keys[rng_below(&at.rng, at.n)]);
        if (at.trouble != AFTER_IGNORED && at.trouble != AFTER_INCLUDED && at.trouble != AFTER_REFUSED &&
            at.trouble != AFTER_DENIED)
            expect("", after); /* which such servers cannot do page by page either */
        forget();
    }
}

/* A folder of many keys, with few folders among them or many, or none. */
static void test_direct(void **state)
{
    static const char *const prefixes[] = {"", "a", "a/", "t/"};
    static const enum trouble all[] = {NONE,          AFTER_IGNORED, AFTER_INCLUDED,
                                       AFTER_REFUSED, AFTER_DENIED,  LONG_ANSWERS};
    (void)state;
    at.direct = true;
    for (unsigned round = 0; round < 60; round += test_seeds(4) < 4 ? 5 : 1) { /* 5: each trouble once */
        at.rng = 3000 + round;
        at.apart = round % 2;
        at.trouble = round < 30 ? NONE : all[round % ARRAY_LEN(all)];
        at.page = 3 + (unsigned)rng_below(&at.rng, 40);
        random_keys((unsigned)rng_below(&at.rng, 500));
        const char *in = prefixes[rng_below(&at.rng, ARRAY_LEN(prefixes))];
        uint64_t every = 2 + rng_below(&at.rng, 400);
        for (unsigned i = 0; i < 2000; i++)
            add(rng_below(&at.rng, every) ? "%s%06u" : "%s%06u/x", in, i * 3);
        settle();
        for (unsigned i = 0; i < ARRAY_LEN(prefixes); i++)
            expect_direct(prefixes[i]);
        forget();
    }
}

/* An order of its own, and answers that come in any: while the stream behind a seam is waited for, the one before it is cut again. */
static void test_uneven(void **state)
{
    (void)state;
    at.trouble = BY_LENGTH;
    at.uneven = true;
    for (unsigned round = 0; round < test_seeds(100); round++) {
        at.rng = 1000 + round;
        at.page = 3 + (unsigned)rng_below(&at.rng, 20);
        random_keys(100 + (unsigned)rng_below(&at.rng, 1500));
        settle();
        expect("", NULL);
        forget();
    }
}

/* What was there all the time is there once, in order; so is no key that never was. */
static void test_changing(void **state)
{
    for (unsigned round = 0; round < test_seeds(20); round++) {
        struct leat_error err = {0};
        at.rng = 2000 + round;
        at.trouble = CHANGING;
        at.page = 5 + (unsigned)rng_below(&at.rng, 40);
        random_keys(1500);
        settle();
        int rc = list("", NULL, &got, &err);
        if (rc < 0)
            fail_msg("%s", err.message);
        unsigned n = 0;
        for (unsigned i = 0; i < got.n; i++)
            assert_true(i == 0 || strcmp(got.keys[i - 1], got.keys[i]) < 0);
        for (unsigned i = 0; i < at.n; i++) {
            if (strchr(at.keys[i], '!'))
                continue;
            while (n < got.n && strcmp(got.keys[n], at.keys[i]) < 0)
                assert_non_null(strchr(got.keys[n++], '!'));
            assert_true(n < got.n);
            assert_string_equal(got.keys[n++], at.keys[i]);
        }
        got_fini(&got);
        forget();
    }
}

/* Many at a time, and few in vain: what a list costs beside one that is asked for page by page. */
static void test_cost(void **state)
{
    at.trouble = NONE;
    at.page = 100;
    at.wait_us = 3000;
    for (unsigned kind = 0; kind < 4; kind++) {
        for (unsigned i = 0; i < 12000; i++) {
            if (kind == 0)
                add("train/n%05u/%05u.jpg", i / 60 * 7, i); /* as ImageNet is, in small */
            else if (kind == 1)
                add("%08u.jpg", i * 3);
            else if (kind == 2)
                add("%05u/%u", i / 3, i); /* folders that are worth no request each */
            else
                add("x/%c/%08x", i % 2 ? 'a' : 'b', i * 77777); /* two long ones */
        }
        settle();
        expect("", NULL);
        print_message("kind %u: %u requests, %u at a time\n", kind, at.requests, at.peak);
        assert_true(at.peak >= 8 && at.peak <= 17); /* and the question where to cut */
        assert_true(at.requests >= 120 && at.requests <= 240);
        forget();
    }
    at.direct = true; /* and with a folder here and there */
    for (unsigned i = 0; i < 12000; i++)
        add(i % 3000 == 5 ? "d/%08u/x" : "d/%08u.jpg", i * 3);
    settle();
    expect_direct("d/");
    print_message("in a folder: %u requests, %u at a time\n", at.requests, at.peak);
    assert_true(at.peak >= 8 && at.requests >= 120 && at.requests <= 240);
    at.direct = false;
    forget();
    /* Small sets are one request; a caller that stops soon has caused few. */
    for (unsigned i = 0; i < 100; i++)
        add("%u/%u", i / 10, i);
    settle();
    expect("", NULL);
    assert_int_equal(at.requests, 1);
    forget();
    for (unsigned i = 0; i < 10000; i++)
        add("%03u/%05u", i / 50, i);
    settle();
    got.stop = 150;
    assert_int_equal(list("", NULL, &got, NULL), -EINTR);
    assert_true(at.requests <= 20); /* of 100; three pages were taken up when it stops */
}

/* Where cuts fail each time, they end. */
static void test_fallback(void **state)
{
    static const enum trouble all[] = {AFTER_IGNORED, AFTER_REFUSED, AFTER_DENIED, FOLDERS_MADE_UP};
    at.page = 100;
    for (unsigned kind = 0; kind < ARRAY_LEN(all); kind++) {
        at.trouble = all[kind];
        for (unsigned i = 0; i < 12000; i++)
            add("%03u/%05u", i / 60, i);
        settle();
        expect("", NULL);
        print_message("trouble %d: %u requests\n", at.trouble, at.requests);
        assert_true(at.requests < 300);
        forget();
    }
}

/* Of large pages so many are asked for as 16 MiB hold, each with the room that it may need. */
static void test_memory(void **state)
{
    at.trouble = NONE;
    at.page = 100;
    at.wait_us = 20000;
    at.fat = 2 * MIB;
    for (unsigned i = 0; i < 2000; i++)
        add("%03u/%05u", i / 60, i);
    settle();
    expect("", NULL);
    print_message("%u at a time\n", at.peak);
    assert_true(at.peak >= 3 && at.peak <= 8);
}

/* A callback that waits for something else, longer than a request may take: the page requested ahead
 * arrives during that. */
struct pausing {
    struct backend *b;
    unsigned seen;
};

static int pause_once(void *user, const struct backend_object *o)
{
    struct pausing *p = user;
    for (unsigned i = 0; p->seen == 0 && i < 175; i++) { /* 3.5 s, of 2 that a request has */
        test_pause_us(20000);
        if (backend_wait(p->b, 1, 0) < 0)
            return -EIO;
    }
    p->seen++;
    return 0;
}

static void test_pause(void **state)
{
    struct backend *b;
    struct backend_stats stats;
    struct leat_error err = {0};
    char url[64];
    at.trouble = NONE;
    at.page = 10;
    at.fat = 4 * MIB; /* more than sockets hold */
    at.slow = true;
    for (unsigned i = 0; i < 20; i++)
        add("%02u", i);
    web_start(&server, talk, NULL);
    snprintf(url, sizeof(url), "http://127.0.0.1:%u", server.origin.port);
    struct backend_config config = {
        .endpoint = url, .region = "us-east-1", .anonymous = true, .given = true, .timeout_ns = 2 * NS_PER_S};
    assert_int_equal(backend_new(&config, &b, &err), 0);
    struct pausing pausing = {.b = b};
    int rc = backend_list(b, "s3://bucket/", true, NULL, pause_once, &pausing, &err);
    if (rc < 0)
        fail_msg("%s", err.message);
    assert_int_equal(pausing.seen, 20);
    backend_stats(b, &stats);
    assert_int_equal(stats.retries, 0);
    backend_free(b);
    web_stop(&server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_exact, begin),  cmocka_unit_test_setup(test_changing, begin),
        cmocka_unit_test_setup(test_cost, begin),   cmocka_unit_test_setup(test_fallback, begin),
        cmocka_unit_test_setup(test_memory, begin), cmocka_unit_test_setup(test_uneven, begin),
        cmocka_unit_test_setup(test_direct, begin), cmocka_unit_test_setup(test_pause, begin),
    };
    pthread_mutex_init(&at.lock, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
