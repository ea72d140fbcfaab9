/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include <pthread.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/testing.h"
#include "objects/tier/testing.h"
#include "store/testing.h"
#include "wire/s3/s3_crc.h"

/* --- the world ----------------------------------------------------------------------------------------------------------------- */

struct world world;
char world_big[WORLD_BIG];
static uint32_t big_crc;

void world_begin(void)
{
    struct leat_error err = {0};
    char path[400];
    const char *paths[] = {path};
    snprintf(path, sizeof(path), "%s/store", world.top);
    struct store_config sc = {.paths = paths, .npaths = 1, .capacity_bytes = world.capacity, .fd_cache = 16};
    if (world.fault)
        sc.io = store_fault_io(world.fault);
    if (store_new(&sc, &world.store, &err) < 0)
        fail_msg("%s", err.message);
    char jobs[400];
    snprintf(jobs, sizeof(jobs), "%s/jobs", world.top);
    if (jobs_new(&(struct jobs_config){.dir = jobs}, &world.jobs, &err) < 0)
        fail_msg("%s", err.message);
    struct tier_config tc = {.store = world.store,
                             .jobs = world.jobs,
                             .fetchers = 8,
                             .prefetchers = 6,
                             .pushers = 4,
                             .connections = 4,
                             .block_bytes = MIB,
                             .retry_ns = 20 * NS_PER_MS,
                             .budget = world.budget,
                             .retry_max_ns = world.push_queue || world.budget ? 200 * NS_PER_MS : 0,
                             .push_queue = world.push_queue};
    if (tier_new(&tc, &world.tier, &err) < 0)
        fail_msg("%s", err.message);
    jobs_begin(world.jobs);
}

void world_end(void)
{
    jobs_halt(world.jobs);
    tier_stop(world.tier);
    assert_int_equal(jobs_stop(world.jobs, TEST_WAIT_S * NS_PER_S), 0);
    tier_free(TAKE_PTR(world.tier));
    jobs_free(TAKE_PTR(world.jobs));
    store_free(TAKE_PTR(world.store));
}

int world_setup(void **state)
{
    char path[400];
    (void)state;
    world.capacity = 0;
    world.push_queue = 0;
    world.budget = NULL;
    testing_mkdir(world.top);
    snprintf(path, sizeof(path), "%s/remote", world.top);
    assert_int_equal(mkdir(path, 0777), 0);
    world_begin();
    return 0;
}

int world_group_setup(void **state)
{
    (void)state;
    testing_fill(world_big, WORLD_BIG, 1);
    big_crc = crc32c(0, world_big, WORLD_BIG);
    return 0;
}

int world_teardown(void **state)
{
    (void)state;
    if (world.store)
        world_end();
    testing_rmdir(world.top);
    return 0;
}

void world_front(const char *bucket, const char *more)
{
    struct leat_error err = {0};
    char json[600];
    if (store_bucket_get(world.store, bucket, NULL, NULL) < 0)
        assert_int_equal(store_bucket_create(world.store, bucket, 0, "{\"owner\":\"me\"}", &err), 0);
    snprintf(json, sizeof(json), "{\"uri\":\"file://%s/remote\"%s}", world.top, more);
    if (tier_bucket_set(world.tier, bucket, json, &err) < 0)
        fail_msg("%s", err.message);
}

void world_there(const char *key, const void *data, size_t len)
{
    char path[400], temp[400];
    snprintf(path, sizeof(path), "%s/remote/%s", world.top, key);
    snprintf(temp, sizeof(temp), "%s/remote-new", world.top);
    FILE *f = fopen(temp, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, len, f), len);
    fclose(f);
    assert_int_equal(rename(temp, path), 0);
}

bool world_is_there(const char *key, const char *text)
{
    char path[400], buf[200];
    snprintf(path, sizeof(path), "%s/remote/%s", world.top, key);
    FILE *f = fopen(path, "r");
    if (!f)
        return false;
    size_t n = fread(buf, 1, sizeof(buf), f);
    fclose(f);
    return n == strlen(text) && memcmp(buf, text, n) == 0;
}

bool world_is_here(const char *bucket, const char *key)
{
    return store_lookup(world.store, bucket, key, strlen(key), &(struct store_info){0}, NULL) == 0;
}

bool world_gets_here(const char *bucket, const char *key)
{
    struct tier_stats s;
    test_wait_until((tier_stats(world.tier, &s), s.fetching == 0 && s.fetch_waiting == 0));
    return world_is_here(bucket, key);
}

int world_get(const char *bucket, const char *key, char *dst, size_t cap, size_t *ret_len,
              struct leat_error *err)
{
    struct tier_read *r;
    int rc = tier_open(world.tier, bucket, key, strlen(key), 0, &r, err);
    if (rc < 0)
        return rc;
    rc = tier_read_wait(r, 0, 0, err);
    *ret_len = rc == 0 ? r->view.info.bytes : 0;
    if (rc == 0 && r->view.info.bytes)
        rc = tier_read_wait(r, 0, r->view.info.bytes, err);
    if (rc == 0) {
        assert_true(r->view.info.bytes <= cap);
        for (size_t at = 0; at < *ret_len;) {
            ssize_t n = pread(r->view.fd, dst + at, *ret_len - at, (off_t)(r->view.offset + at));
            assert_true(n > 0);
            at += (size_t)n;
        }
    }
    tier_read_close(r);
    return rc;
}

void world_get_is(const char *bucket, const char *key, const char *text)
{
    struct leat_error err = {0};
    char buf[200];
    size_t n;
    if (world_get(bucket, key, buf, sizeof(buf), &n, &err) < 0)
        fail_msg("%s: %s", key, err.message);
    assert_int_equal(n, strlen(text));
    assert_memory_equal(buf, text, n);
}

int world_put(const char *bucket, const char *key, const char *text, const struct store_commit *commit,
              struct leat_error *err)
{
    static const struct store_commit plain = {0};
    struct store_put *p;
    int rc = tier_put_begin(world.tier, bucket, key, strlen(key), strlen(text), 0, &p, err);
    if (rc < 0)
        return rc;
    assert_int_equal(store_put_write(p, text, strlen(text), NULL), 0);
    return tier_put_commit(world.tier, bucket, key, strlen(key), p, commit ? commit : &plain, NULL, err);
}

uint32_t world_flags(const char *bucket, const char *key)
{
    struct store_info info = {0};
    assert_int_equal(store_lookup(world.store, bucket, key, strlen(key), &info, NULL), 0);
    return info.flags;
}

void world_wait_pushed(void)
{
    struct tier_stats s;
    AUTO_FREE struct store_status *status = malloc(sizeof(*status));
    assert_non_null(status);
    test_wait_until((store_status(world.store, status), tier_stats(world.tier, &s),
                     status->paths[0].dirty == 0 && s.push_waiting == 0));
}

/* --- an S3 server ------------------------------------------------------------------------------------------------------------------ */

struct web_server world_web;
struct world_far world_far;

/* Is [first, last] not to be answered yet? */
static bool held(uint64_t first, uint64_t last)
{
    uint64_t from = atomic_load(&world_far.held_from), to = atomic_load(&world_far.held_to);
    return last + 1 > atomic_load(&world_far.allowed) || (first < to && last >= from);
}

static void wait_for(const atomic_bool *holds)
{
    test_wait_until(!atomic_load(holds) || world_far.hang_up);
}

static void answer_put(struct web_peer *p)
{
    char head[200];
    world_far.puts++;
    wait_for(&world_far.hold_puts);
    if (world_far.put_status) {
        snprintf(head, sizeof(head), "HTTP/1.1 %u Status\r\nContent-Length: 0\r\n\r\n", world_far.put_status);
    } else {
        world_far.gone = false;
        snprintf(head, sizeof(head), "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nETag: \"v%u\"\r\n\r\n",
                 (unsigned)++world_far.version);
    }
    web_say(p, head);
}

static void talk(struct web_peer *p)
{
    static const char zeros[WORLD_BIG];
    char path[256], range[80], head[500], says[100], sum[S3_CRC_TEXT];
    while (web_hear(p, path)) {
        unsigned long long bytes = strstr(path, "/small") ? 1000 : strstr(path, "/empty") ? 0 : WORLD_BIG;
        unsigned long long first = 0, last = bytes - 1;
        bool is_head = strncmp(p->head, "HEAD", 4) == 0;
        bool ranged = web_header(p, "range", range, sizeof(range));
        if (world_far.hang_up)
            return;
        if (strncmp(p->head, "PUT", 3) == 0) {
            answer_put(p);
            continue;
        }
        if (strncmp(p->head, "DELETE", 6) == 0) {
            world_far.deletes++;
            wait_for(&world_far.hold_deletes);
            world_far.gone = true;
            web_say(p, "HTTP/1.1 204 Gone\r\n\r\n");
            continue;
        }
        is_head ? world_far.heads++ : world_far.gets++;
        if (is_head)
            wait_for(&world_far.hold_heads);
        unsigned status = world_far.gone ? 404 : world_far.status;
        if (status) {
            snprintf(head, sizeof(head), "HTTP/1.1 %u Status\r\nContent-Length: 0\r\n\r\n", status);
            web_say(p, head);
            continue;
        }
        if (ranged && bytes == 0) {
            web_say(p, "HTTP/1.1 416 No\r\nContent-Length: 0\r\nContent-Range: bytes */0\r\n\r\n");
            continue;
        }
        if (ranged)
            sscanf(range, "bytes=%llu-%llu", &first, &last);
        last = MIN(last + 1, bytes) - 1;
        unsigned version = world_far.version;
        snprintf(says, sizeof(says),
                 world_far.no_etags ? "Last-Modified: Thu, 01 Jan 2026 00:00:%02u GMT" : "ETag: \"v%u\"",
                 version);
        uint32_t crc = bytes == WORLD_BIG ? big_crc : crc32c(0, world_big, bytes);
        s3_crc_format((struct s3_crc){S3_CRC32C, crc ^ world_far.lie}, sum);
        snprintf(head, sizeof(head),
                 "HTTP/1.1 %s\r\nContent-Length: %llu\r\n%s\r\nContent-Range: bytes "
                 "%llu-%llu/%llu\r\nContent-Type: test/big\r\nx-amz-meta-colour: blue\r\n%s%s\r\n\r\n",
                 ranged ? "206 Partial Content" : "200 OK", last + 1 - first, says, first, last, bytes,
                 ranged || world_far.no_etags ? "X-None: " : "x-amz-checksum-crc32c: ",
                 ranged || world_far.no_etags ? "" : sum);
        test_wait_until(is_head || !held(first, last) || world_far.hang_up);
        if (world_far.hang_up)
            return;
        if (!is_head && first == 0 && world_far.changes > 0) {
            world_far.changes--;
            world_far.version++;
        }
        web_say(p, head);
        if (!is_head) {
            web_say_bytes(p, (world_far.no_etags && version > 1 ? zeros : world_big) + first,
                          last + 1 - first);
            world_far.bytes += last + 1 - first;
        }
    }
}

void world_far_hears(const _Atomic unsigned *count)
{
    test_wait_until(*count != 0);
}

void world_web_settings(const char *bucket, const char *more)
{
    struct leat_error err = {0};
    char json[600];
    snprintf(json, sizeof(json),
             "{\"uri\":\"s3://away/pre\",\"endpoint\":\"http://127.0.0.1:%u\",\"anonymous\":true%s%s}",
             world_web.origin.port, strstr(more, "timeout_s") ? "" : ",\"timeout_s\":300", more);
    if (tier_bucket_set(world.tier, bucket, json, &err) < 0)
        fail_msg("%s", err.message);
}

void world_web_front(const char *bucket, const char *more)
{
    memset(&world_far, 0, sizeof(world_far));
    world_far.allowed = UINT64_MAX;
    world_far.version = 1;
    web_start(&world_web, talk, NULL);
    assert_int_equal(store_bucket_create(world.store, bucket, 0, NULL, NULL), 0);
    world_web_settings(bucket, more);
}

void *world_reader_main(void *arg)
{
    struct world_reader *me = arg;
    char *back = malloc(WORLD_BIG);
    size_t n;
    me->rc = world_get("bkt", "k", back, WORLD_BIG, &n, NULL);
    me->same = me->rc == 0 && n == WORLD_BIG && memcmp(back, world_big, WORLD_BIG) == 0;
    free(back);
    return NULL;
}
