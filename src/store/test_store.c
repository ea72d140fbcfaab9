/* SPDX-License-Identifier: Apache-2.0 */
/* Buckets, objects, conditions, lists and restarts, on a real folder. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>

#include <cmocka.h>

#include "base/crc32c.h"
#include "base/testing.h"
#include "store/internal.h"
#include "store/testing.h"

static void test_round_trip(void **state)
{
    struct testing_store *f = *state;
    static const size_t sizes[] = {
        0, 1, 4095, 4096, 65536, 1 << 20, (1 << 20) + 1, 3 * (1 << 20) + 77, 9 * (1 << 20) + 5};
    char key[32];
    for (unsigned i = 0; i < ARRAY_LEN(sizes); i++) {
        snprintf(key, sizeof(key), "size-%zu", sizes[i]);
        assert_int_equal(testing_put(f->s, "photos", key, i, sizes[i]), 0);
        assert_int_equal(testing_check(f->s, "photos", key, i, sizes[i]), 0);
    }
    for (unsigned round = 0; round < 2; round++) {
        testing_reopen(f);
        for (unsigned i = 0; i < ARRAY_LEN(sizes); i++) {
            snprintf(key, sizeof(key), "size-%zu", sizes[i]);
            assert_int_equal(testing_check(f->s, "photos", key, i, sizes[i]), 0);
        }
    }
    assert_int_equal(testing_check(f->s, "photos", "size-2", 0, 2), LEAT_NOT_FOUND);
    assert_int_equal(testing_check(f->s, "nothing", "size-1", 0, 1), STORE_NO_BUCKET);
}

/* In pieces smaller and larger than a put's buffer, and in another order than they lie. */
static void test_ways_to_write(void **state)
{
    struct testing_store *f = *state;
    enum { BYTES = 3 * MIB + 12345 };
    static const size_t pieces[] = {1, 256 * KIB, 256 * KIB - 1, MIB, 300 * KIB, 7};
    char *data = malloc(BYTES), seen[100];
    testing_fill(data, BYTES, 5);
    for (unsigned flags = 0; flags <= STORE_PUT_BUFFERED; flags++) {
        struct store_put *put;
        size_t at = 0;
        assert_int_equal(store_put_begin(f->s, "photos", "k", 1, BYTES, flags, &put, NULL), 0);
        for (unsigned i = 0; at < BYTES; i++) {
            size_t n = MIN(pieces[i % ARRAY_LEN(pieces)], BYTES - at);
            assert_int_equal(store_put_write(put, data + at, n, NULL), 0);
            at += n;
        }
        assert_int_equal(store_put_commit(put, NULL, NULL, NULL), 0);
        assert_int_equal(testing_check(f->s, "photos", "k", 5, BYTES), 0);
    }
    struct store_put *put;
    struct leat_error err;
    int fd;
    assert_int_equal(store_put_begin(f->s, "photos", "l", 1, BYTES, STORE_PUT_BUFFERED, &put, NULL), 0);
    assert_int_equal(store_put_write(put, data, 1000, NULL), 0);
    assert_int_equal(store_put_push(put, NULL), 0);
    assert_int_equal(store_put_reader(put, &fd, NULL), 0);
    assert_int_equal(store_put_ahead(put, 2 * MIB, data + 2 * MIB, BYTES - 2 * MIB, &err), 0);
    assert_int_equal(pread(fd, seen, sizeof(seen), BYTES - sizeof(seen)), sizeof(seen));
    assert_memory_equal(seen, data + BYTES - sizeof(seen), sizeof(seen));
    assert_int_equal(store_put_pushed(put), 1000);
    assert_int_equal(store_put_ahead(put, BYTES - 1, data, 2, &err), LEAT_INVALID);
    assert_int_equal(store_put_write(put, data + 1000, 2 * MIB - 1000, NULL), 0);
    assert_int_equal(store_put_adopt(put, BYTES - 2 * MIB, NULL), 0);
    assert_int_equal(store_put_pushed(put), BYTES);
    assert_int_equal(store_put_crc32c(put), crc32c(0, data, BYTES));
    assert_int_equal(store_put_commit(put, NULL, NULL, NULL), 0);
    assert_int_equal(testing_check(f->s, "photos", "l", 5, BYTES), 0);
    close(fd);
    free(data);
}

static int commit_text(struct store *s, const char *key, const char *text, const struct store_commit *c,
                       struct store_info *ret_info)
{
    struct store_put *put;
    assert_int_equal(store_put_begin(s, "photos", key, strlen(key), STORE_UNKNOWN_BYTES, 0, &put, NULL), 0);
    assert_int_equal(store_put_write(put, text, strlen(text), NULL), 0);
    return store_put_commit(put, c, ret_info, NULL);
}

static void test_what_is_kept(void **state)
{
    struct testing_store *f = *state;
    struct store_info info, again;
    static const char meta[] = "content-type\0text/plain\0x-amz-meta-who\0me";
    struct store_commit c = {.meta = meta,
                             .meta_len = sizeof(meta),
                             .remote = "\"abc\"",
                             .flags = STORE_DIRTY,
                             .mtime_ns = 1234567890123456789};
    assert_int_equal(commit_text(f->s, "a", "hello world", &c, &info), 0);
    assert_string_equal(info.etag, "5eb63bbbe01eeed093cb22bb8f5acdc3");
    struct store_commit text = {.etag = "W/odd one", .remote = ""};
    assert_int_equal(commit_text(f->s, "b", "hello", &text, NULL), 0);
    for (unsigned round = 0; round < 3; round++) {
        assert_int_equal(store_lookup(f->s, "photos", "a", 1, &again, NULL), 0);
        assert_true(again.bytes == info.bytes && again.seq == info.seq && again.mtime_ns == info.mtime_ns);
        assert_int_equal(again.flags, info.flags);
        assert_string_equal(again.etag, info.etag);
        struct store_obj *obj;
        assert_int_equal(store_get(f->s, "photos", "a", 1, &obj, NULL), 0);
        assert_int_equal(obj->crc32c, crc32c(0, "hello world", 11));
        assert_int_equal(obj->info.mtime_ns, 1234567890123456789);
        assert_int_equal(obj->info.flags, STORE_DIRTY);
        assert_string_equal(obj->remote, "\"abc\"");
        assert_string_equal(pairs_get(obj->meta, obj->meta_len, "x-amz-meta-who"), "me");
        assert_null(pairs_get(obj->meta, obj->meta_len, "x-amz-meta-wh"));
        store_obj_unref(obj);
        assert_int_equal(store_lookup(f->s, "photos", "b", 1, &again, NULL), 0);
        assert_string_equal(again.etag, "W/odd one");
        if (round == 1) /* by way of a snapshot */
            assert_int_equal(store_path_compact(f->s->paths[0]), 0);
        testing_reopen(f);
    }
    struct store_bucket b;
    assert_int_equal(store_bucket_get(f->s, "photos", &b, NULL), 0);
    assert_int_equal(store_mark_clean(f->s, "photos", "a", 1, info.seq + 1, 0, "x", NULL), LEAT_STALE);
    assert_int_equal(store_mark_clean(f->s, "photos", "a", 1, info.seq, b.remote_id + 1, "x", NULL),
                     LEAT_STALE);
    assert_int_equal(store_mark_clean(f->s, "photos", "a", 1, info.seq, b.remote_id, "version-7", NULL), 0);
    store_bucket_fini(&b);
    for (unsigned round = 0; round < 2; round++) {
        struct store_obj *obj;
        assert_int_equal(store_get(f->s, "photos", "a", 1, &obj, NULL), 0);
        assert_int_equal(obj->info.flags, 0);
        assert_string_equal(obj->remote, "version-7");
        store_obj_unref(obj);
        testing_reopen(f);
    }
}

static void test_conditions(void **state)
{
    struct testing_store *f = *state;
    struct store_info info;
    struct store_commit none = {.if_none_match = true}, any = {.if_match = "*"}, seq = {.if_seq = 1};
    assert_int_equal(commit_text(f->s, "k", "one", &any, NULL), LEAT_NOT_FOUND);
    assert_int_equal(commit_text(f->s, "k", "one", &seq, NULL), STORE_PRECONDITION);
    assert_int_equal(commit_text(f->s, "k", "one", &none, &info), 0);
    assert_int_equal(commit_text(f->s, "k", "two", &none, NULL), STORE_PRECONDITION);
    assert_int_equal(commit_text(f->s, "k", "two", &seq, NULL), STORE_PRECONDITION);
    struct store_commit match = {.if_match = info.etag, .if_seq = info.seq};
    assert_int_equal(commit_text(f->s, "k", "two", &match, NULL), 0);
    assert_int_equal(commit_text(f->s, "k", "three", &match, NULL), STORE_PRECONDITION);
    struct store_put *put;
    assert_int_equal(store_put_begin(f->s, "photos", "k", 1, 5, 0, &put, NULL), 0);
    assert_int_equal(store_put_write(put, "four", 4, NULL), 0);
    assert_int_equal(store_put_commit(put, NULL, NULL, NULL), LEAT_INVALID); /* one is missing */
    assert_int_equal(store_put_begin(f->s, "photos", "k", 1, 3, 0, &put, NULL), 0);
    assert_int_equal(store_put_write(put, "four", 4, NULL), LEAT_INVALID);
    store_put_abort(put);
    assert_int_equal(store_delete(f->s, "photos", "k", 1, info.seq, NULL), STORE_PRECONDITION);
    assert_int_equal(store_delete(f->s, "photos", "k", 1, 0, NULL), 0);
    assert_int_equal(store_delete(f->s, "photos", "k", 1, 0, NULL), LEAT_NOT_FOUND);
    testing_reopen(f);
    assert_int_equal(store_lookup(f->s, "photos", "k", 1, &info, NULL), LEAT_NOT_FOUND);
    assert_int_equal(store_put_begin(f->s, "photos", "", 0, 3, 0, &put, NULL), LEAT_INVALID);
    char long_key[1025];
    memset(long_key, 0xff, sizeof(long_key));
    assert_int_equal(store_put_begin(f->s, "photos", long_key, 1025, 3, 0, &put, NULL), LEAT_INVALID);
    assert_int_equal(store_put_begin(f->s, "photos", long_key, 1024, 3, 0, &put, NULL), 0);
    store_put_abort(put);
}

/* A holder of an object reads it to its end, whatever becomes of the key. */
static void test_pinned(void **state)
{
    struct testing_store *f = *state;
    struct store_obj *obj;
    char buf[5];
    assert_int_equal(commit_text(f->s, "k", "first", NULL, NULL), 0);
    assert_int_equal(store_get_cached(f->s, "photos", "k", 1, &obj, NULL), STORE_AGAIN);
    assert_int_equal(store_get(f->s, "photos", "k", 1, &obj, NULL), 0);
    store_obj_unref(obj);
    assert_int_equal(store_get_cached(f->s, "photos", "k", 1, &obj, NULL), 0);
    assert_int_equal(commit_text(f->s, "k", "other", NULL, NULL), 0);
    assert_int_equal(store_delete(f->s, "photos", "k", 1, 0, NULL), 0);
    assert_int_equal(pread(obj->fd, buf, 5, (off_t)obj->offset), 5);
    assert_memory_equal(buf, "first", 5);
    assert_int_equal(store_obj_read(f->s, obj, 1, buf, 4, NULL), 0);
    assert_memory_equal(buf, "irst", 4);
    store_obj_unref(obj);
    struct store_status *st = calloc(1, sizeof(*st));
    store_status(f->s, st);
    assert_int_equal(st->open_objects, 0);
    assert_int_equal(st->paths[0].objects, 0);
    assert_int_equal(st->paths[0].bytes, 0);
    assert_int_equal(st->buffer_bytes, 0);
    free(st);
}

static void test_buckets(void **state)
{
    struct testing_store *f = *state;
    struct store_bucket b;
    assert_int_equal(store_bucket_create(f->s, "photos", 0, NULL, NULL), STORE_EXISTS);
    static const char *const bad[] = {"", "ab", "Upper", "-x-", "a..b", "a/b", "../x", "x.", "a_b"};
    for (unsigned i = 0; i < ARRAY_LEN(bad); i++)
        assert_int_equal(store_bucket_create(f->s, bad[i], 0, NULL, NULL), LEAT_INVALID);
    assert_int_equal(store_bucket_create(f->s, "x.tmp", STORE_BUCKET_REMOTE, "{\"uri\": \"s3://x\"}", NULL),
                     0);
    assert_int_equal(store_bucket_get(f->s, "x.tmp", &b, NULL), 0);
    uint64_t version = b.version, remote_id;
    uint32_t id = b.id;
    store_bucket_fini(&b);
    assert_int_equal(store_bucket_set(f->s, "x.tmp", version + 1, "{}", NULL), STORE_PRECONDITION);
    assert_int_equal(store_bucket_remote(f->s, "x.tmp", version, STORE_REMOTE_NONE, "{2}", &remote_id, NULL),
                     0);
    testing_reopen(f);
    assert_int_equal(store_bucket_get(f->s, "x.tmp", &b, NULL), 0);
    assert_string_equal(b.props, "{2}");
    assert_int_equal(b.version, version + 1);
    assert_int_equal(b.flags, 0);
    store_bucket_fini(&b);
    assert_int_equal(testing_put(f->s, "x.tmp", "k", 1, 10), 0);
    assert_int_equal(store_bucket_delete(f->s, "x.tmp", NULL), STORE_NOT_EMPTY);
    assert_int_equal(store_delete(f->s, "x.tmp", "k", 1, 0, NULL), 0);
    struct store_put *put;
    assert_int_equal(store_put_begin(f->s, "x.tmp", "k", 1, 0, 0, &put, NULL), 0);
    assert_int_equal(store_bucket_delete(f->s, "x.tmp", NULL), 0);
    assert_int_equal(store_bucket_delete(f->s, "x.tmp", NULL), STORE_NO_BUCKET);
    assert_int_equal(store_bucket_create(f->s, "x.tmp", 0, NULL, NULL), 0);
    assert_int_equal(store_put_commit(put, NULL, NULL, NULL), STORE_NO_BUCKET); /* begun in the one before */
    assert_int_equal(store_bucket_get(f->s, "x.tmp", &b, NULL), 0);
    assert_true(b.id > id);
    store_bucket_fini(&b);
    testing_reopen(f);
    assert_int_equal(store_bucket_get(f->s, "x.tmp", NULL, NULL), 0);
}

/* --- lists ------------------------------------------------------------------------------------------------------------ */

struct listed {
    char text[4096];
    char last[64];
    bool last_prefix;
};

static int append(void *user, const struct store_entry *e)
{
    struct listed *l = user;
    size_t n = strlen(l->text);
    snprintf(l->text + n, sizeof(l->text) - n, "%.*s%s ", (int)e->key_len, (const char *)e->key,
             e->prefix ? "*" : "");
    snprintf(l->last, sizeof(l->last), "%.*s", (int)e->key_len, (const char *)e->key);
    l->last_prefix = e->prefix;
    return 0;
}

static const char *list(struct store *s, const char *prefix, const char *delimiter, unsigned max)
{
    static struct listed l;
    bool more = true;
    l.text[0] = 0;
    for (bool first = true; more; first = false) { /* page by page */
        struct store_list_spec spec = {.prefix = prefix,
                                       .prefix_len = strlen(prefix),
                                       .delimiter = delimiter,
                                       .delimiter_len = strlen(delimiter),
                                       .max = max};
        if (!first) {
            spec.after = l.last;
            spec.after_len = strlen(l.last);
            spec.after_prefix = l.last_prefix;
        }
        assert_int_equal(store_list(s, "photos", &spec, append, &l, &more, NULL), 0);
    }
    return l.text;
}

static void test_lists(void **state)
{
    struct testing_store *f = *state;
    static const char *const keys[] = {"a/2", "\xff\xff", "a", "b/x", "a/b/3", "gone", "a0", "a/1", "b/~"};
    for (unsigned i = 0; i < ARRAY_LEN(keys); i++)
        assert_int_equal(testing_put(f->s, "photos", keys[i], i, i), 0);
    assert_int_equal(store_bucket_create(f->s, "photos2", 0, NULL, NULL), 0);
    assert_int_equal(testing_put(f->s, "photos2", "a/0", 1, 1), 0);
    assert_int_equal(store_delete(f->s, "photos", "gone", 4, 0, NULL), 0);
    const char *all = "a a/1 a/2 a/b/3 a0 b/x b/~ \xff\xff ";
    for (unsigned round = 0; round < 4; round++) {
        for (unsigned max = 1; max < 9; max += 3) {
            assert_string_equal(list(f->s, "", "", max), all);
            assert_string_equal(list(f->s, "", "/", max), "a a/* a0 b/* \xff\xff ");
            assert_string_equal(list(f->s, "a/", "/", max), "a/1 a/2 a/b/* ");
            assert_string_equal(list(f->s, "a", "/", max), "a a/* a0 ");
            assert_string_equal(list(f->s, "\xff", "\xff", max), "\xff\xff* ");
            assert_string_equal(list(f->s, "c", "/", max), "");
        }
        if (round == 0) /* a snapshot, and changes in front of it */
            assert_int_equal(store_path_compact(f->s->paths[0]), 0);
        if (round == 1) {
            assert_int_equal(store_delete(f->s, "photos", "a/2", 3, 0, NULL), 0);
            assert_int_equal(testing_put(f->s, "photos", "a/2", 1, 1), 0);
            assert_int_equal(testing_put(f->s, "photos", "gone", 1, 1), 0);
            assert_int_equal(store_delete(f->s, "photos", "gone", 4, 0, NULL), 0);
        }
        if (round == 2)
            testing_reopen(f);
    }
}

static void test_delete_many(void **state)
{
    struct testing_store *f = *state;
    struct store_key keys[5] = {{"a", 1}, {"b", 1}, {"nothing", 7}, {"c", 1}, {"a", 1}};
    int codes[5];
    assert_int_equal(testing_put(f->s, "photos", "a", 1, 10), 0);
    assert_int_equal(testing_put(f->s, "photos", "b", 1, 10), 0);
    assert_int_equal(testing_put(f->s, "photos", "c", 1, 10), 0);
    struct store_status *st = calloc(2, sizeof(*st));
    store_status(f->s, st);
    assert_int_equal(store_delete_many(f->s, "photos", keys, 5, codes, NULL), 0);
    store_status(f->s, st + 1);
    assert_int_equal(st[1].flushes, st[0].flushes + 1);
    free(st);
    static const int wanted[5] = {0, 0, LEAT_NOT_FOUND, 0, 0}; /* named twice: both are in time */
    assert_memory_equal(codes, wanted, sizeof(wanted));
    testing_reopen(f);
    assert_string_equal(list(f->s, "", "", 10), "");
}

/* --- replaced while it is opened ---------------------------------------------------------------------------------------------- */

static struct store *replace_in;

static int64_t replacing_pread(const struct store_io *io, int fd, void *dst, size_t n, uint64_t offset)
{
    struct store *s = n == 5000 ? TAKE_PTR(replace_in) : NULL; /* the payload, to be verified */
    if (s)
        assert_int_equal(testing_put(s, "photos", "k", 2, 100), 0);
    return store_io_real.pread(io, fd, dst, n, offset);
}

/* The reader that opened it reads it; but its file goes from the disk when the reader is done. */
static void test_replaced_while_opened(void **state)
{
    struct testing_store *f = *state;
    struct store_io io = store_io_real;
    const char *path = f->dir;
    io.pread = replacing_pread;
    store_free(f->s);
    f->s = testing_open(&path, 1, &io);
    assert_non_null(f->s);
    assert_int_equal(testing_put(f->s, "photos", "k", 1, 5000), 0);
    replace_in = f->s;
    assert_int_equal(testing_check(f->s, "photos", "k", 1, 5000), 0);
    assert_null(replace_in);
    assert_int_equal(f->s->open.count, 0);
    assert_int_equal(testing_check(f->s, "photos", "k", 2, 100), 0);
    assert_int_equal(f->s->open.count, 1);
    testing_reopen(f);
}

/* Which thread closes what: the last close of a large deleted file is not its reader's, which may be an event
 * loop. */
static pthread_t closer;
static _Atomic int watched = -1;

/* All of it before the file is closed: from then on the number may be another file's, which another thread closes. */
static int watched_close(const struct store_io *io, int fd)
{
    if (fd == watched) {
        closer = pthread_self();
        watched = -1;
    }
    return store_io_real.close(io, fd);
}

static void test_large_files_are_closed_elsewhere(void **state)
{
    struct testing_store *f = *state;
    static struct store_io io; /* the store has it still when a failed assertion has left this function */
    const char *dir = f->dir;
    struct store_config c = {.paths = &dir, .npaths = 1, .io = &io, .fd_cache = 4};
    io = store_io_real;
    io.close = watched_close;
    store_free(TAKE_PTR(f->s));
    assert_int_equal(store_new(&c, &f->s, NULL), 0);
    for (unsigned round = 0; round < 3;
         round++) { /* large and gone; small and gone; large, and replaced by another */
        struct store_obj *obj;
        assert_int_equal(testing_put(f->s, "photos", "k", 1, round == 1 ? 5000 : 3 * MIB), 0);
        assert_int_equal(store_get(f->s, "photos", "k", 1, &obj, NULL), 0);
        if (round == 2)
            assert_int_equal(testing_put(f->s, "photos", "k", 2, 10), 0);
        else
            assert_int_equal(store_delete(f->s, "photos", "k", 1, 0, NULL), 0);
        watched = obj->fd;
        store_obj_unref(obj);
        test_wait_until(watched < 0);
        assert_int_equal(watched, -1);
        assert_int_equal(pthread_equal(closer, pthread_self()) != 0, round == 1);
    }
    /* One that is left at the end is closed then. */
    struct store_obj *obj;
    assert_int_equal(testing_put(f->s, "photos", "k", 1, 3 * MIB), 0);
    assert_int_equal(store_get(f->s, "photos", "k", 1, &obj, NULL), 0);
    assert_int_equal(store_delete(f->s, "photos", "k", 1, 0, NULL), 0);
    watched = obj->fd;
    store_obj_unref(obj);
    store_free(TAKE_PTR(f->s));
    assert_int_equal(watched, -1);
    testing_reopen(f);
}

/* A small object's bytes stay in memory with it while it is open, within a cap; the disk is not asked for them again. */
static void test_small_ones_stay_in_memory(void **state)
{
    struct testing_store *f = *state;
    static const size_t sizes[] = {0, 1, 4096, STORE_BODY_MAX, STORE_BODY_MAX + 1};
    struct budget *room = &f->s->open.bodies;
    struct store_obj *objs[ARRAY_LEN(sizes)];
    uint64_t kept = 0;
    char key[32], data[STORE_BODY_MAX];
    for (unsigned i = 0; i < ARRAY_LEN(sizes); i++) {
        bool small = sizes[i] > 0 && sizes[i] <= STORE_BODY_MAX;
        snprintf(key, sizeof(key), "size-%zu", sizes[i]);
        assert_int_equal(testing_put(f->s, "photos", key, i, sizes[i]), 0);
        assert_int_equal(store_get(f->s, "photos", key, strlen(key), &objs[i], NULL), 0);
        assert_true(store_obj_checked(objs[i], 0, sizes[i]));
        assert_int_equal(objs[i]->body != NULL, small);
        testing_fill(data, small ? sizes[i] : 0, i);
        if (small)
            assert_memory_equal(objs[i]->body, data, sizes[i]);
        kept += small ? sizes[i] : 0;
        assert_int_equal(room->used_bytes, kept);
    }
    /* A replaced object stays as it was for its holder, and its memory goes when the holder is done. */
    assert_int_equal(testing_put(f->s, "photos", "size-4096", 9, 100), 0);
    testing_fill(data, 4096, 2);
    assert_memory_equal(objs[2]->body, data, 4096);
    for (unsigned i = 0; i < ARRAY_LEN(sizes); i++)
        store_obj_unref(objs[i]);
    assert_int_equal(room->used_bytes, kept - 4096);
    assert_int_equal(testing_check(f->s, "photos", "size-4096", 9, 100), 0);
    /* Where there is no room, they are read from the disk like others. */
    room->cap_bytes = room->used_bytes + 10;
    assert_int_equal(testing_put(f->s, "photos", "late", 5, 11), 0);
    assert_int_equal(store_get(f->s, "photos", "late", 4, &objs[0], NULL), 0);
    assert_null(objs[0]->body);
    assert_true(store_obj_checked(objs[0], 0, 11));
    store_obj_unref(objs[0]);
    assert_int_equal(testing_check(f->s, "photos", "late", 5, 11), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_small_ones_stay_in_memory, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_replaced_while_opened, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_large_files_are_closed_elsewhere, testing_setup,
                                        testing_teardown),
        cmocka_unit_test_setup_teardown(test_round_trip, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_ways_to_write, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_what_is_kept, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_conditions, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_pinned, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_buckets, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_lists, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_delete_many, testing_setup, testing_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
