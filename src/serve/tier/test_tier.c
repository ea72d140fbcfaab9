/* SPDX-License-Identifier: Apache-2.0 */
/* The cold tier over a real store, in front of a folder, and of an S3 server that follows a script (slow, changing, lying, gone). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "backend/testing.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "serve/tier/tier.h"
#include "wire/s3.h"

#define BIG (5 * MIB + 77)

static char big[BIG], top[64];
static struct store *store;
static struct tier *tier;
static uint64_t capacity;

/* --- the world ----------------------------------------------------------------------------------------------------------------- */

static int removed(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st, (void)flag, (void)ftw;
    return remove(path);
}

static void begin(void)
{
    struct leat_error err = {0};
    char path[200];
    const char *paths[] = {path};
    snprintf(path, sizeof(path), "%s/store", top);
    struct store_config sc = {.paths = paths, .npaths = 1, .capacity_bytes = capacity, .fd_cache = 16};
    if (store_new(&sc, &store, &err) < 0)
        fail_msg("%s", err.message);
    struct tier_config tc = {.store = store,
                             .fetchers = 4,
                             .prefetchers = 3,
                             .pushers = 2,
                             .connections = 4,
                             .block_bytes = MIB,
                             .retry_ns = 20 * NS_PER_MS};
    if (tier_new(&tc, &tier, &err) < 0)
        fail_msg("%s", err.message);
}

static void end(void)
{
    tier_free(TAKE_PTR(tier));
    store_free(TAKE_PTR(store));
}

static int setup(void **state)
{
    char path[200];
    (void)state;
    capacity = 0;
    strcpy(top, "/tmp/test_tier.XXXXXX");
    assert_non_null(mkdtemp(top));
    snprintf(path, sizeof(path), "%s/remote", top);
    assert_int_equal(mkdir(path, 0777), 0);
    begin();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    if (store)
        end();
    nftw(top, removed, 16, FTW_DEPTH | FTW_PHYS);
    return 0;
}

/* A bucket in front of the folder; `more`: further settings, ", \"check\": ...". */
static void front(const char *bucket, const char *more)
{
    struct leat_error err = {0};
    char json[600];
    if (store_bucket_get(store, bucket, NULL, NULL) < 0)
        assert_int_equal(store_bucket_create(store, bucket, 0, "{\"owner\":\"me\"}", &err), 0);
    snprintf(json, sizeof(json), "{\"uri\":\"file://%s/remote\"%s}", top, more);
    if (tier_bucket_set(tier, bucket, json, &err) < 0)
        fail_msg("%s", err.message);
}

static void there(const char *key, const void *data, size_t len)
{
    char path[300], temp[300];
    snprintf(path, sizeof(path), "%s/remote/%s", top, key);
    snprintf(temp, sizeof(temp), "%s/remote-new", top);
    FILE *f = fopen(temp, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, len, f), len);
    fclose(f);
    assert_int_equal(rename(temp, path), 0);
}

static bool is_there(const char *key, const char *text)
{
    char path[300], buf[200];
    snprintf(path, sizeof(path), "%s/remote/%s", top, key);
    FILE *f = fopen(path, "r");
    if (!f)
        return false;
    size_t n = fread(buf, 1, sizeof(buf), f);
    fclose(f);
    return n == strlen(text) && memcmp(buf, text, n) == 0;
}

static bool is_here(const char *bucket, const char *key)
{
    return store_lookup(store, bucket, key, strlen(key), &(struct store_info){0}, NULL) == 0;
}

/* What a fetch leaves behind a moment after its readers have all of it. */
static bool gets_here(const char *bucket, const char *key)
{
    for (unsigned i = 0; i < 6000; i++) {
        struct tier_stats s;
        tier_stats(tier, &s);
        if (s.fetching == 0 && s.fetch_waiting == 0)
            return is_here(bucket, key);
        usleep(10000);
    }
    return false;
}

static int get(const char *bucket, const char *key, char *dst, size_t cap, size_t *ret_len,
               struct leat_error *err)
{
    struct tier_read *r;
    int rc = tier_open(tier, bucket, key, strlen(key), 0, &r, err);
    if (rc < 0)
        return rc;
    rc = tier_read_wait(r, 0, 0, err);
    *ret_len = rc == 0 ? r->info.bytes : 0;
    if (rc == 0 && r->info.bytes)
        rc = tier_read_wait(r, 0, r->info.bytes, err);
    if (rc == 0) {
        assert_true(r->info.bytes <= cap);
        for (size_t at = 0; at < *ret_len;) {
            ssize_t n = pread(r->fd, dst + at, *ret_len - at, (off_t)(r->offset + at));
            assert_true(n > 0);
            at += (size_t)n;
        }
    }
    tier_read_close(r);
    return rc;
}

static void get_is(const char *bucket, const char *key, const char *text)
{
    struct leat_error err = {0};
    char buf[200];
    size_t n;
    if (get(bucket, key, buf, sizeof(buf), &n, &err) < 0)
        fail_msg("%s: %s", key, err.message);
    assert_int_equal(n, strlen(text));
    assert_memory_equal(buf, text, n);
}

static int put(const char *bucket, const char *key, const char *text, const struct store_commit *commit,
               struct leat_error *err)
{
    static const struct store_commit plain = {0};
    struct store_put *p;
    int rc = tier_put_begin(tier, bucket, key, strlen(key), strlen(text), 0, &p, err);
    if (rc < 0)
        return rc;
    assert_int_equal(store_put_write(p, text, strlen(text), NULL), 0);
    return tier_put_commit(tier, bucket, key, strlen(key), p, commit ? commit : &plain, NULL, err);
}

static uint32_t flags_of(const char *bucket, const char *key)
{
    struct store_info info = {0};
    assert_int_equal(store_lookup(store, bucket, key, strlen(key), &info, NULL), 0);
    return info.flags;
}

static void wait_pushed(void)
{
    struct tier_stats s;
    for (unsigned i = 0; i < 6000; i++) {
        tier_stats(tier, &s);
        if (s.push_waiting == 0)
            return;
        usleep(10000);
    }
    fail_msg("still waiting: %s", s.push_error);
}

/* --- an S3 server ------------------------------------------------------------------------------------------------------------------ */

static struct web_server web;
static struct {
    _Atomic unsigned heads, gets, version;
    _Atomic uint64_t bytes;    /* sent */
    _Atomic uint64_t allowed;  /* bytes of the object that may be answered yet */
    _Atomic unsigned status;   /* of each answer; 0: as it should be */
    _Atomic bool hang_up, lie; /* connections end; its checksum is wrong */
} remote;

static uint64_t object_byte_limit(void)
{
    return atomic_load(&remote.allowed);
}

static void talk(struct web_peer *p)
{
    char path[256], range[80], head[500], sum[S3_SUM_TEXT];
    while (web_hear(p, path)) {
        unsigned long long first = 0, last = BIG - 1;
        bool is_head = strncmp(p->head, "HEAD", 4) == 0;
        bool ranged = web_header(p, "range", range, sizeof(range));
        if (remote.hang_up)
            return;
        is_head ? remote.heads++ : remote.gets++;
        if (remote.status) {
            snprintf(head, sizeof(head), "HTTP/1.1 %u Status\r\nContent-Length: 0\r\n\r\n", remote.status);
            web_say(p, head);
            continue;
        }
        if (ranged)
            sscanf(range, "bytes=%llu-%llu", &first, &last);
        s3_sum_format(crc32c(0, big, BIG) ^ remote.lie, 4, sum);
        snprintf(head, sizeof(head),
                 "HTTP/1.1 %s\r\nContent-Length: %llu\r\nETag: \"v%u\"\r\nContent-Range: bytes "
                 "%llu-%llu/%llu\r\nContent-Type: test/big\r\nx-amz-meta-colour: blue\r\n%s%s\r\n\r\n",
                 ranged ? "206 Partial Content" : "200 OK", last - first + 1, (unsigned)remote.version, first,
                 last, (unsigned long long)BIG,
                 ranged ? "X-None: " : "x-amz-checksum-crc32c: ", ranged ? "" : sum);
        for (unsigned i = 0; !is_head && last >= object_byte_limit() && !remote.hang_up && i < 6000; i++)
            usleep(10000);
        if (remote.hang_up)
            return;
        web_say(p, head);
        if (!is_head) {
            web_say_bytes(p, big + first, last - first + 1);
            remote.bytes += last - first + 1;
        }
    }
}

static void web_front(const char *bucket, const char *more)
{
    struct leat_error err = {0};
    char json[600];
    memset(&remote, 0, sizeof(remote));
    remote.allowed = UINT64_MAX;
    remote.version = 1;
    web_start(&web, talk, NULL);
    assert_int_equal(store_bucket_create(store, bucket, 0, NULL, &err), 0);
    snprintf(json, sizeof(json),
             "{\"uri\":\"s3://away/pre\",\"endpoint\":\"http://127.0.0.1:%u\",\"anonymous\":true%s}",
             web.origin.port, more);
    if (tier_bucket_set(tier, bucket, json, &err) < 0)
        fail_msg("%s", err.message);
}

/* --- reading ------------------------------------------------------------------------------------------------------------------------- */

static void test_read_through(void **state)
{
    (void)state;
    struct leat_error err = {0};
    struct tier_read *r;
    char *back = malloc(BIG);
    size_t n;
    front("bkt", "");
    there("small", "hello", 5);
    there("big", big, BIG);
    there("empty", "", 0);
    get_is("bkt", "small", "hello");
    assert_true(gets_here("bkt", "small"));
    assert_int_equal(flags_of("bkt", "small"), 0);
    there("small", "other", 5); /* never compared */
    get_is("bkt", "small", "hello");
    assert_int_equal(get("bkt", "big", back, BIG, &n, &err), 0);
    assert_int_equal(n, BIG);
    assert_memory_equal(back, big, BIG);
    get_is("bkt", "empty", "");
    assert_true(gets_here("bkt", "big"));
    assert_int_equal(tier_open(tier, "bkt", "big", 3, 0, &r, &err), 0);
    assert_int_equal(tier_read_head(r, NULL, &err), 0);
    assert_non_null(r->obj);
    assert_int_equal(store_obj_check(store, r->obj, 0, BIG, &err), 0);
    tier_read_close(r);
    assert_int_equal(get("bkt", "nothing", back, BIG, &n, &err), LEAT_NOT_FOUND);
    assert_int_equal(get("bkt", "no/thing/../x", back, BIG, &n, &err), LEAT_NOT_FOUND);
    assert_int_equal(tier_open(tier, "bkt", "a\0b", 3, 0, &r, &err), 0);
    assert_int_equal(tier_read_wait(r, 0, 0, &err), LEAT_INVALID);
    tier_read_close(r);
    /* HEAD fetches nothing. */
    there("head", "12345", 5);
    assert_int_equal(tier_open(tier, "bkt", "head", 4, TIER_HEAD, &r, &err), 0);
    assert_int_equal(tier_read_wait(r, 0, 0, &err), 0);
    assert_int_equal(r->info.bytes, 5);
    tier_read_close(r);
    assert_false(gets_here("bkt", "head"));
    free(back);
}

struct reader {
    pthread_t thread;
    int rc;
    bool same;
};

static void *reader_main(void *arg)
{
    struct reader *me = arg;
    char *back = malloc(BIG);
    size_t n;
    me->rc = get("bkt", "k", back, BIG, &n, NULL);
    me->same = me->rc == 0 && n == BIG && memcmp(back, big, BIG) == 0;
    free(back);
    return NULL;
}

/* Many readers, one fetch; what is there may be read while the rest is still awaited. */
static void test_single_flight(void **state)
{
    (void)state;
    struct reader readers[12];
    struct tier_read *r;
    struct leat_error err;
    web_front("bkt", "");
    remote.allowed = 2 * MIB;
    for (size_t i = 0; i < ARRAY_LEN(readers); i++)
        assert_int_equal(pthread_create(&readers[i].thread, NULL, reader_main, &readers[i]), 0);
    assert_int_equal(tier_open(tier, "bkt", "k", 1, 0, &r, &err), 0);
    assert_int_equal(tier_read_wait(r, 0, 100 * KIB, &err), 0);
    assert_int_equal(r->info.bytes, BIG);
    assert_string_equal(r->info.etag, "v1");
    assert_string_equal(store_meta_get(r->meta, r->meta_len, "content-type"), "test/big");
    assert_string_equal(store_meta_get(r->meta, r->meta_len, "x-amz-meta-colour"), "blue");
    char first[1000];
    assert_int_equal(pread(r->fd, first, sizeof(first), (off_t)r->offset), sizeof(first));
    assert_memory_equal(first, big, sizeof(first));
    assert_int_equal(tier_read_ready(r, BIG - 1, NULL, &err), TIER_WAIT);
    assert_false(is_here("bkt", "k"));
    atomic_store(&remote.allowed, UINT64_MAX);
    for (size_t i = 0; i < ARRAY_LEN(readers); i++) {
        pthread_join(readers[i].thread, NULL);
        assert_int_equal(readers[i].rc, 0);
        assert_true(readers[i].same);
    }
    tier_read_close(r);
    assert_true(gets_here("bkt", "k"));
    assert_int_equal(remote.heads, 1);
    assert_int_equal(remote.bytes, BIG);
    struct store_obj *obj;
    assert_int_equal(store_get(store, "bkt", "k", 1, &obj, NULL), 0);
    assert_string_equal(obj->remote, "\"v1\"");
    assert_string_equal(obj->info.etag, "v1");
    assert_int_equal(obj->crc32c, crc32c(0, big, BIG));
    store_obj_unref(obj);
    end();
    web_stop(&web);
}

static void told(struct tier_waiter *w)
{
    atomic_bool *flag = (atomic_bool *)(w + 1);
    atomic_store(flag, true);
}

/* A reader that is told, instead of waiting; one that goes away; one whose remote dies. */
static void test_waiters(void **state)
{
    (void)state;
    struct {
        struct tier_waiter w;
        atomic_bool told;
    } one = {.w.ready = told}, two = {.w.ready = told};
    struct tier_read *r, *other;
    struct leat_error err = {0};
    web_front("bkt", "");
    remote.allowed = 2 * MIB;
    assert_int_equal(tier_open(tier, "bkt", "k", 1, 0, &r, &err), 0);
    assert_int_equal(tier_open(tier, "bkt", "k", 1, 0, &other, &err), 0);
    while (tier_read_head(r, &one.w, &err) == TIER_WAIT) {
        while (!atomic_load(&one.told))
            usleep(1000);
        one.told = false;
    }
    while (tier_read_ready(other, BIG - 1, &two.w, &err) != TIER_WAIT)
        usleep(1000);
    tier_read_unwait(other, &two.w);
    tier_read_close(other);
    two.told = false;
    int64_t n;
    atomic_store(&remote.hang_up, true);
    atomic_store(&remote.allowed, UINT64_MAX);
    while ((n = tier_read_ready(r, BIG - 1, &one.w, &err)) == TIER_WAIT) {
        while (!atomic_load(&one.told))
            usleep(1000);
        one.told = false;
    }
    assert_int_equal(n, TIER_DOWN);
    assert_non_null(strstr(err.message, "the remote of bucket bkt: "));
    assert_non_null(strstr(err.message, "s3://away/pre/k"));
    assert_false(two.told);
    assert_true(tier_read_ready(r, 0, NULL, &err) > 0); /* what came is of one version */
    tier_read_close(r);
    assert_false(gets_here("bkt", "k"));
    /* It is back. */
    atomic_store(&remote.hang_up, false);
    struct reader again = {0};
    reader_main(&again);
    assert_true(again.same);
    end();
    web_stop(&web);
}

/* An object that changes while it is fetched; one whose checksum is another; remotes that refuse. */
static void test_bad_remotes(void **state)
{
    (void)state;
    struct tier_read *r;
    struct leat_error err = {0};
    struct reader me = {0};
    web_front("bkt", "");
    remote.allowed = 2 * MIB;
    assert_int_equal(tier_open(tier, "bkt", "k", 1, 0, &r, &err), 0);
    assert_int_equal(tier_read_wait(r, 0, 1000, &err), 0);
    atomic_store(&remote.version, 2);
    atomic_store(&remote.allowed, UINT64_MAX);
    /* What was asked for already was answered as version 1; what is asked for now is refused as changed. */
    int rc = tier_read_wait(r, 0, BIG, &err);
    if (rc != 0)
        assert_int_equal(rc, LEAT_STALE);
    tier_read_close(r);
    assert_int_equal(gets_here("bkt", "k"), rc == 0);
    if (rc == 0)
        assert_int_equal(store_evict(store, "bkt", "k", 1, NULL), 0);

    atomic_store(&remote.lie, true);
    assert_int_equal(tier_open(tier, "bkt", "k", 1, 0, &r, &err), 0);
    assert_int_equal(tier_read_wait(r, 0, BIG, &err), LEAT_CORRUPT);
    assert_non_null(strstr(err.message, "CRC32C"));
    assert_int_equal(tier_read_ready(r, BIG - 1, NULL, &err), LEAT_CORRUPT); /* the end never arrives */
    tier_read_close(r);
    assert_false(gets_here("bkt", "k"));
    atomic_store(&remote.lie, false);

    static const struct {
        unsigned status;
        int rc;
    } refusals[] = {{403, TIER_REFUSED}, {404, LEAT_NOT_FOUND}, {500, TIER_DOWN}};
    for (size_t i = 0; i < ARRAY_LEN(refusals); i++) {
        atomic_store(&remote.status, refusals[i].status);
        reader_main(&me);
        assert_int_equal(me.rc, refusals[i].rc);
    }
    atomic_store(&remote.status, 0);
    reader_main(&me);
    assert_true(me.same);
    assert_true(gets_here("bkt", "k"));
    /* Here, it is served whatever the remote is like. */
    atomic_store(&remote.hang_up, true);
    reader_main(&me);
    assert_true(me.same);
    end();
    web_stop(&web);
}

static void test_check(void **state)
{
    (void)state;
    struct leat_error err = {0};
    char buf[100];
    size_t n;
    front("always", ",\"check\":\"always\"");
    front("age", ",\"check\":\"age\",\"age_s\":3600");
    there("k", "one", 3);
    get_is("always", "k", "one");
    get_is("age", "k", "one");
    assert_true(gets_here("always", "k") && is_here("age", "k"));
    get_is("always", "k", "one");
    there("k", "two!", 4);
    get_is("always", "k", "two!");
    get_is("age", "k", "one"); /* not so soon */
    end();
    begin(); /* after a restart nobody knows when it was compared */
    get_is("age", "k", "two!");
    /* The remote cannot be asked: what is here is served. */
    char a[200], b[200];
    snprintf(a, sizeof(a), "%s/remote", top);
    snprintf(b, sizeof(b), "%s/gone", top);
    assert_true(gets_here("always", "k"));
    end();
    assert_int_equal(rename(a, b), 0);
    begin();
    get_is("always", "k", "two!");
    assert_int_equal(get("always", "other", buf, sizeof(buf), &n, &err), TIER_DOWN);
    end();
    assert_int_equal(rename(b, a), 0);
    begin();
    /* Gone there: gone here. */
    snprintf(a, sizeof(a), "%s/remote/k", top);
    assert_int_equal(unlink(a), 0);
    assert_int_equal(get("always", "k", buf, sizeof(buf), &n, &err), LEAT_NOT_FOUND);
    assert_false(gets_here("always", "k"));
}

/* A store that is full: what the remote has makes room, what it has not stays. */
static void test_full(void **state)
{
    (void)state;
    char key[20], *back = malloc(BIG);
    size_t n;
    struct leat_error err = {0};
    end();
    capacity = 3 * BIG + MIB;
    begin();
    front("bkt", "");
    front("dirty", ",\"mode\":\"back\"");
    for (unsigned i = 0; i < 6; i++) {
        snprintf(key, sizeof(key), "big%u", i);
        there(key, big, BIG);
    }
    for (unsigned i = 0; i < 6; i++) {
        snprintf(key, sizeof(key), "big%u", i);
        if (get("bkt", key, back, BIG, &n, &err) < 0)
            fail_msg("%s: %s", key, err.message);
        assert_memory_equal(back, big, BIG);
        assert_true(gets_here("bkt", key));
    }
    assert_false(is_here("bkt", "big0") && is_here("bkt", "big1") && is_here("bkt", "big2"));
    free(back);
}

/* --- writing ------------------------------------------------------------------------------------------------------------------------- */

static void test_through(void **state)
{
    (void)state;
    struct leat_error err = {0};
    char path[200], away[200];
    front("bkt", "");
    assert_int_equal(put("bkt", "k", "one", NULL, &err), 0);
    assert_true(is_there("k", "one"));
    assert_int_equal(flags_of("bkt", "k"), 0);
    get_is("bkt", "k", "one");
    assert_int_equal(store_evict(store, "bkt", "k", 1, &err), 0);
    get_is("bkt", "k", "one");
    assert_true(gets_here("bkt", "k"));
    /* Conditions are about what is there. */
    assert_int_equal(store_evict(store, "bkt", "k", 1, &err), 0);
    struct store_commit none = {.if_none_match = true}, match = {.if_match = "wrong"},
                        any = {.if_match = "*"};
    assert_int_equal(put("bkt", "k", "two", &none, &err), STORE_PRECONDITION);
    assert_int_equal(put("bkt", "k", "two", &match, &err), STORE_PRECONDITION);
    assert_int_equal(put("bkt", "new", "two", &any, &err), STORE_PRECONDITION);
    assert_true(is_there("k", "one"));
    assert_int_equal(put("bkt", "k", "two", &any, &err), 0);
    assert_int_equal(put("bkt", "new", "two", &none, &err), 0);
    assert_true(is_there("k", "two") && is_there("new", "two"));
    /* A push that fails leaves what was. */
    snprintf(path, sizeof(path), "%s/remote/new", top);
    snprintf(away, sizeof(away), "%s/away", top);
    assert_int_equal(put("bkt", "new/below", "x", NULL, &err), LEAT_INVALID);
    assert_non_null(strstr(err.message, "cannot both be"));
    assert_false(is_here("bkt", "new/below"));
    end();
    snprintf(path, sizeof(path), "%s/remote", top);
    assert_int_equal(rename(path, away), 0);
    begin();
    assert_int_equal(put("bkt", "k", "three", NULL, &err), TIER_DOWN);
    assert_non_null(strstr(err.message, "the remote of bucket bkt"));
    get_is("bkt", "k", "two");
    assert_int_equal(put("bkt", "fresh", "x", NULL, &err), TIER_DOWN);
    assert_false(is_here("bkt", "fresh"));
    assert_int_equal(tier_delete(tier, "bkt", "k", 1, &err), TIER_DOWN);
    get_is("bkt", "k", "two");
    end();
    assert_int_equal(rename(away, path), 0);
    begin();
    assert_int_equal(tier_delete(tier, "bkt", "k", 1, &err), 0);
    assert_false(is_here("bkt", "k") || is_there("k", "two"));
    /* Only there. */
    there("far", "x", 1);
    assert_int_equal(tier_delete(tier, "bkt", "far", 3, &err), 0);
    assert_false(is_there("far", "x"));
}

static void test_back(void **state)
{
    (void)state;
    struct leat_error err = {0};
    char path[200], away[200];
    front("bkt", ",\"mode\":\"back\"");
    assert_int_equal(put("bkt", "k", "one", NULL, &err), 0);
    get_is("bkt", "k", "one");
    wait_pushed();
    assert_true(is_there("k", "one"));
    assert_int_equal(flags_of("bkt", "k"), 0);
    /* The remote is away: dirty, served, not evicted; tried again after a restart. */
    end();
    snprintf(path, sizeof(path), "%s/remote", top);
    snprintf(away, sizeof(away), "%s/away", top);
    assert_int_equal(rename(path, away), 0);
    begin();
    assert_int_equal(put("bkt", "k", "two", NULL, &err), 0);
    assert_int_equal(put("bkt", "l", "more", NULL, &err), 0);
    get_is("bkt", "k", "two");
    assert_int_equal(flags_of("bkt", "k"), STORE_DIRTY);
    assert_int_equal(store_evict(store, "bkt", "k", 1, &err), LEAT_BUSY);
    assert_int_equal(tier_bucket_set(tier, "bkt", NULL, &err), LEAT_BUSY);
    struct tier_stats s;
    for (unsigned i = 0; i < 6000 && (tier_stats(tier, &s), s.push_failed < 2); i++)
        usleep(10000);
    assert_true(s.push_error[0] != 0 && s.push_waiting == 2);
    end();
    assert_int_equal(rename(away, path), 0);
    begin();
    wait_pushed();
    assert_true(is_there("k", "two") && is_there("l", "more"));
    assert_int_equal(flags_of("bkt", "k"), 0);
    assert_int_equal(store_evict(store, "bkt", "k", 1, &err), 0);
    get_is("bkt", "k", "two");
    /* Written again and again: the last one is what is there. */
    for (unsigned i = 0; i < 50; i++) {
        char text[20];
        snprintf(text, sizeof(text), "round %u", i);
        assert_int_equal(put("bkt", "k", text, NULL, &err), 0);
    }
    wait_pushed();
    assert_true(is_there("k", "round 49"));
    assert_int_equal(flags_of("bkt", "k"), 0);
}

/* --- lists --------------------------------------------------------------------------------------------------------------------------- */

struct names {
    char text[2000];
    char last[100];
    bool last_prefix;
};

static int name_one(void *user, const struct store_entry *e)
{
    struct names *l = user;
    size_t at = strlen(l->text);
    snprintf(l->text + at, sizeof(l->text) - at, "%s%.*s%s", at ? " " : "", (int)e->key_len,
             (const char *)e->key,
             e->prefix                   ? ""
             : e->flags & STORE_DIRTY    ? "*"
             : e->flags & TIER_ELSEWHERE ? "~"
                                         : "");
    snprintf(l->last, sizeof(l->last), "%.*s", (int)e->key_len, (const char *)e->key);
    l->last_prefix = e->prefix;
    assert_true(e->prefix || *e->etag);
    return 0;
}

static const char *list(const char *bucket, const char *prefix, const char *delimiter, unsigned max)
{
    static struct names l;
    struct leat_error err = {0};
    bool more = true;
    struct store_list_spec spec = {.prefix = prefix,
                                   .prefix_len = strlen(prefix),
                                   .delimiter = delimiter,
                                   .delimiter_len = strlen(delimiter),
                                   .max = max};
    l = (struct names){0};
    char after[100];
    while (more) {
        if (tier_list(tier, bucket, &spec, name_one, &l, &more, &err) < 0)
            fail_msg("%s", err.message);
        strcpy(after, l.last);
        spec.after = after;
        spec.after_len = strlen(after);
        spec.after_prefix = l.last_prefix;
    }
    return l.text;
}

static void test_list(void **state)
{
    (void)state;
    struct leat_error err;
    char path[200];
    front("bkt", ",\"mode\":\"back\",\"check\":\"always\"");
    snprintf(path, sizeof(path), "%s/remote/d", top);
    assert_int_equal(mkdir(path, 0777), 0);
    snprintf(path, sizeof(path), "%s/remote/e", top);
    assert_int_equal(mkdir(path, 0777), 0);
    static const char *const far[] = {"a", "c", "d/1", "d/2", "e/1", "f"};
    for (size_t i = 0; i < ARRAY_LEN(far); i++)
        there(far[i], "x", 1);
    get_is("bkt", "c", "x");
    assert_true(gets_here("bkt", "c"));
    /* In the end nothing is pushed any more, so that what is dirty stays so: a folder stands in its way. */
    assert_int_equal(put("bkt", "a/blocked", "x", NULL, &err), 0);
    assert_int_equal(put("bkt", "d/1/blocked", "x", NULL, &err), 0);
    for (unsigned max = 1; max < 9; max += max == 3 ? 5 : 1) {
        assert_string_equal(list("bkt", "", "", max), "a~ a/blocked* c d/1~ d/1/blocked* d/2~ e/1~ f~");
        assert_string_equal(list("bkt", "", "/", max), "a~ a/ c d/ e/ f~");
        assert_string_equal(list("bkt", "d/", "/", max), "d/1~ d/1/ d/2~");
        assert_string_equal(list("bkt", "d", "", max), "d/1~ d/1/blocked* d/2~");
        assert_string_equal(list("bkt", "", "1", max), "a~ a/blocked* c d/1 d/2~ e/1 f~");
        assert_string_equal(list("bkt", "zz", "", max), "");
    }
    /* What the remote has no more is not listed, though it is here: it is compared before it is served. */
    snprintf(path, sizeof(path), "%s/remote/c", top);
    assert_int_equal(unlink(path), 0);
    assert_string_equal(list("bkt", "c", "", 10), "");
    front("bkt", ",\"mode\":\"back\",\"check\":\"never\"");
    assert_string_equal(list("bkt", "c", "", 10), "c");
}

/* --- jobs ---------------------------------------------------------------------------------------------------------------------------- */

static struct tier_job_info job(struct tier_job_spec spec)
{
    struct leat_error err = {0};
    struct tier_job_info info = {0};
    uint64_t id = 0;
    if (tier_job_start(tier, &spec, &id, &err) < 0)
        fail_msg("%s", err.message);
    do {
        usleep(2000);
        assert_int_equal(tier_job_get(tier, id, &info), 0);
    } while (info.state == TIER_JOB_RUNNING);
    return info;
}

static int count_one(void *user, const struct tier_job_info *info)
{
    (void)info;
    ++*(unsigned *)user;
    return 0;
}

static void test_jobs(void **state)
{
    (void)state;
    struct leat_error err = {0};
    struct tier_job_info i;
    char key[100];
    front("bkt", "");
    snprintf(key, sizeof(key), "%s/remote/x", top);
    assert_int_equal(mkdir(key, 0777), 0);
    for (unsigned n = 0; n < 200; n++) {
        snprintf(key, sizeof(key), "x/%03u", n);
        there(key, key, 5);
    }
    there("y", "y", 1);
    get_is("bkt", "x/007", "x/007");
    assert_true(gets_here("bkt", "x/007"));
    i = job((struct tier_job_spec){.kind = TIER_PREFETCH, .bucket = "bkt", .prefix = "x/"});
    assert_int_equal(i.state, TIER_JOB_DONE);
    assert_true(i.listed && i.objects == 200 && i.done == 199 && i.skipped == 1 && i.failed == 0);
    assert_int_equal(i.bytes, 199 * 5);
    assert_false(is_here("bkt", "y"));
    get_is("bkt", "x/100", "x/100");
    /* Compared: one newer, one gone; nothing changes here. */
    there("x/000", "newer", 5);
    snprintf(key, sizeof(key), "%s/remote/x/001", top);
    assert_int_equal(unlink(key), 0);
    i = job((struct tier_job_spec){.kind = TIER_CHECK, .bucket = "bkt"});
    assert_int_equal(i.objects, 200);
    assert_true(i.newer == 1 && i.gone == 1 && i.failed == 0);
    get_is("bkt", "x/000", "x/000");
    assert_true(is_here("bkt", "x/001"));
    i = job((struct tier_job_spec){.kind = TIER_CHECK, .bucket = "bkt", .update = true});
    assert_true(i.newer == 1 && i.gone == 1);
    get_is("bkt", "x/000", "newer");
    assert_false(is_here("bkt", "x/001"));
    /* Some, by name. */
    const char *const keys[] = {"x/002", "y", "nothing"};
    i = job((struct tier_job_spec){.kind = TIER_EVICT, .bucket = "bkt", .keys = keys, .nkeys = 3});
    assert_true(i.done == 1 && i.skipped == 2 && i.bytes == 5);
    i = job((struct tier_job_spec){.kind = TIER_PREFETCH, .bucket = "bkt", .keys = keys, .nkeys = 3});
    assert_true(i.done == 2 && i.gone == 1 && i.failed == 0);
    i = job((struct tier_job_spec){.kind = TIER_EVICT, .bucket = "bkt", .prefix = "x/"});
    assert_int_equal(i.done, 199);
    assert_false(is_here("bkt", "x/150"));
    assert_true(is_here("bkt", "y"));
    get_is("bkt", "x/150", "x/150");
    unsigned n = 0;
    assert_int_equal(tier_job_list(tier, count_one, &n), 0);
    assert_int_equal(n, 6);
    assert_int_equal(tier_job_get(tier, 999, &i), LEAT_NOT_FOUND);
    uint64_t id;
    assert_int_equal(tier_job_start(tier, &(struct tier_job_spec){.bucket = "none"}, &id, &err),
                     LEAT_INVALID);
}

/* A job in front of a remote that is slow ends soon when it is told to, and readers do not wait behind it. */
static void test_job_cancel(void **state)
{
    (void)state;
    struct leat_error err = {0};
    char names[60][8];
    const char *keys[60];
    uint64_t id;
    struct tier_job_info info;
    struct reader me = {0};
    web_front("bkt", "");
    remote.allowed = 0;
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        snprintf(names[i], sizeof(names[i]), "p%zu", i);
        keys[i] = names[i];
    }
    struct tier_job_spec spec = {
        .kind = TIER_PREFETCH, .bucket = "bkt", .keys = keys, .nkeys = ARRAY_LEN(keys)};
    assert_int_equal(tier_job_start(tier, &spec, &id, &err), 0);
    while (remote.gets < 3)
        usleep(2000);
    struct tier_read *r; /* its HEAD is answered, though all who prefetch wait */
    assert_int_equal(tier_open(tier, "bkt", "k", 1, TIER_HEAD, &r, &err), 0);
    assert_int_equal(tier_read_wait(r, 0, 0, &err), 0);
    tier_read_close(r);
    assert_int_equal(tier_job_cancel(tier, id), 0);
    atomic_store(&remote.allowed, UINT64_MAX);
    do {
        usleep(2000);
        assert_int_equal(tier_job_get(tier, id, &info), 0);
    } while (info.state == TIER_JOB_RUNNING);
    assert_int_equal(info.state, TIER_JOB_CANCELLED);
    reader_main(&me);
    assert_true(me.same);
    end();
    web_stop(&web);
}

/* --- settings -------------------------------------------------------------------------------------------------------------------------- */

static void test_settings(void **state)
{
    (void)state;
    static const struct {
        const char *json, *says;
    } wrong[] = {
        {"", "JSON object"},
        {"[]", "JSON object"},
        {"{}", "needs a uri"},
        {"{\"uri\":\"gs://x\"}", "s3://BUCKET/PREFIX or file:///FOLDER"},
        {"{\"uri\":\"s3://\"}", "s3://"},
        {"{\"uri\":\"s3://b\",\"colour\":1}", "no setting \"colour\""},
        {"{\"uri\":7}", "uri is a text"},
        {"{\"uri\":\"s3://b\",\"mode\":\"both\"}", "\"through\" or \"back\""},
        {"{\"uri\":\"s3://b\",\"check\":\"now\"}", "\"never\", \"age\" or \"always\""},
        {"{\"uri\":\"s3://b\",\"age_s\":0}", "number of seconds"},
        {"{\"uri\":\"s3://b\",\"age_s\":1.5}", "number of seconds"},
        {"{\"uri\":\"s3://b\",\"insecure\":\"yes\"}", "true or false"},
        {"{\"uri\":\"s3://b\",\"access_key\":\"A\"}", "belong together"},
        {"{\"uri\":\"s3://b\",\"access_key\":\"A\",\"secret_key\":\"S\",\"anonymous\":true}", "who we are"},
        {"{\"uri\":\"file:///x\",\"endpoint\":\"http://h\"}", "a folder has no endpoint"},
        {"{\"uri\":\"s3://b\",\"endpoint\":\"ftp://h\"}", ""},
    };
    struct leat_error err = {0};
    struct store_bucket is;
    char *json;
    assert_int_equal(store_bucket_create(store, "bkt", 0, "{\"owner\":\"me\"}", &err), 0);
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        assert_int_equal(tier_bucket_set(tier, "bkt", wrong[i].json, &err), LEAT_INVALID);
        if (!strstr(err.message, wrong[i].says))
            fail_msg("%s: %s", wrong[i].json, err.message);
    }
    assert_false(tier_bucket_is(tier, "bkt"));
    assert_int_equal(tier_bucket_get(tier, "bkt", &json, &err), LEAT_NOT_FOUND);
    assert_int_equal(tier_bucket_set(tier, "none", "{\"uri\":\"s3://b\"}", &err), STORE_NO_BUCKET);
    assert_int_equal(tier_bucket_set(tier, "bkt",
                                     "{\"uri\":\"s3://b\",\"access_key\":\"AK\",\"secret_key\":\"hidden\"}",
                                     &err),
                     0);
    assert_true(tier_bucket_is(tier, "bkt"));
    assert_int_equal(tier_bucket_get(tier, "bkt", &json, &err), 0);
    assert_non_null(strstr(json, "AK"));
    assert_null(strstr(json, "hidden"));
    free(json);
    assert_int_equal(store_bucket_get(store, "bkt", &is, &err), 0);
    assert_non_null(strstr(is.props, "\"owner\":\"me\""));
    assert_true(is.flags & STORE_BUCKET_REMOTE);
    store_bucket_fini(&is);
    end();
    begin();
    assert_true(tier_bucket_is(tier, "bkt"));
    assert_int_equal(tier_bucket_set(tier, "bkt", NULL, &err), 0);
    assert_false(tier_bucket_is(tier, "bkt"));
    assert_int_equal(store_bucket_get(store, "bkt", &is, &err), 0);
    assert_false(is.flags & STORE_BUCKET_REMOTE);
    store_bucket_fini(&is);
    /* Its objects are nowhere else: they are not to be taken for a remote's. */
    assert_int_equal(put("bkt", "mine", "x", NULL, &err), 0);
    assert_int_equal(tier_bucket_set(tier, "bkt", "{\"uri\":\"s3://b\"}", &err), STORE_NOT_EMPTY);
    assert_false(tier_bucket_is(tier, "bkt"));
    front("other", "");
    assert_int_equal(put("other", "k", "x", NULL, &err), 0);
    front("other", ",\"check\":\"always\"");
    assert_int_equal(tier_bucket_set(tier, "other", "{\"uri\":\"s3://b\"}", &err), STORE_NOT_EMPTY);
}

/* --- kill -9 -------------------------------------------------------------------------------------------------------------------------- */

/* Writes in both modes and reads through, until it is killed; says each acknowledged round. */
static void child_main(int out)
{
    struct leat_error err;
    begin();
    for (unsigned i = 0;; i++) {
        char text[5000], key[20];
        memset(text, 'a' + (int)(i % 26), sizeof(text) - 1);
        text[sizeof(text) - 1] = 0;
        memcpy(text, &(unsigned){'0' + i % 10}, 1);
        snprintf(key, sizeof(key), "k%u", i % 5);
        char buf[100], name[20];
        size_t n;
        snprintf(name, sizeof(name), "far%u", i % 40);
        if (put("back", key, text, NULL, &err) < 0 || put("through", key, text, NULL, &err) < 0 ||
            get("far", name, buf, sizeof(buf), &n, &err) < 0)
            _exit(1);
        store_evict(store, "far", name, strlen(name), NULL);
        if (write(out, &i, sizeof(i)) != sizeof(i))
            _exit(1);
    }
}

static void check_after_kill(unsigned acknowledged)
{
    char buf[6000];
    size_t n;
    struct leat_error err = {0};
    wait_pushed();
    for (unsigned k = 0; k < 5; k++) {
        char key[20];
        snprintf(key, sizeof(key), "k%u", k);
        static const char *const buckets[] = {"back", "through"};
        for (unsigned b = 0; b < 2; b++) {
            int rc = get(buckets[b], key, buf, sizeof(buf), &n, &err);
            if (rc == LEAT_NOT_FOUND && acknowledged < 5)
                continue;
            if (rc < 0)
                fail_msg("%s/%s: %s", buckets[b], key, err.message);
            assert_int_equal(n, 4999);
            for (size_t i = 2; i < n; i++)
                assert_int_equal(buf[i], buf[1]);
            if (b == 0)
                assert_int_equal(flags_of("back", key), 0);
        }
    }
    for (unsigned k = 0; k < 40; k++) {
        char name[20];
        snprintf(name, sizeof(name), "far%u", k);
        get_is("far", name, name);
    }
}

static void test_kill(void **state)
{
    (void)state;
    char path[300];
    char more[400];
    /* Three folders. */
    static const char *const buckets[] = {"back", "through", "far"};
    struct leat_error err;
    for (unsigned i = 0; i < 3; i++) {
        snprintf(path, sizeof(path), "%s/remote-%s", top, buckets[i]);
        assert_int_equal(mkdir(path, 0777), 0);
        snprintf(more, sizeof(more), "{\"uri\":\"file://%s\",\"mode\":\"%s\"}", path,
                 i == 0 ? "back" : "through");
        assert_int_equal(store_bucket_create(store, buckets[i], 0, NULL, &err), 0);
        assert_int_equal(tier_bucket_set(tier, buckets[i], more, &err), 0);
    }
    for (unsigned k = 0; k < 40; k++) {
        snprintf(path, sizeof(path), "%s/remote-far/far%u", top, k);
        FILE *f = fopen(path, "w");
        fprintf(f, "far%u", k);
        fclose(f);
    }
    end();
    for (unsigned round = 0; round < 8; round++) {
        int pipes[2];
        unsigned last = 0, got;
        assert_int_equal(pipe(pipes), 0);
        pid_t child = fork();
        if (child == 0) {
            close(pipes[0]);
            child_main(pipes[1]);
        }
        close(pipes[1]);
        for (unsigned i = 0; i <= round && read(pipes[0], &got, sizeof(got)) == sizeof(got); i++)
            last = got;
        usleep(round * 700);
        kill(child, SIGKILL);
        int status;
        waitpid(child, &status, 0);
        assert_true(WIFSIGNALED(status));
        while (read(pipes[0], &got, sizeof(got)) == sizeof(got))
            last = got;
        close(pipes[0]);
        begin();
        check_after_kill(last);
        end();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_read_through, setup, teardown),
        cmocka_unit_test_setup_teardown(test_single_flight, setup, teardown),
        cmocka_unit_test_setup_teardown(test_waiters, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_remotes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_check, setup, teardown),
        cmocka_unit_test_setup_teardown(test_full, setup, teardown),
        cmocka_unit_test_setup_teardown(test_through, setup, teardown),
        cmocka_unit_test_setup_teardown(test_back, setup, teardown),
        cmocka_unit_test_setup_teardown(test_list, setup, teardown),
        cmocka_unit_test_setup_teardown(test_jobs, setup, teardown),
        cmocka_unit_test_setup_teardown(test_job_cancel, setup, teardown),
        cmocka_unit_test_setup_teardown(test_settings, setup, teardown),
        cmocka_unit_test_setup_teardown(test_kill, setup, teardown),
    };
    for (size_t i = 0; i < BIG; i++)
        big[i] = (char)(i * 2654435761u >> 13);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
