/* SPDX-License-Identifier: Apache-2.0 */
/* Uploads in parts, and restarts between. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/clock.h"
#include "store/internal.h"
#include "store/testing.h"

#define KEY "dir/big object"

static int put_part(struct store *s, const char *id, unsigned number, const uint8_t *data, size_t bytes,
                    char *ret_etag)
{
    struct store_put *put;
    struct store_info info;
    static const char meta[] = "x-amz-checksum-crc32\0AAAA";
    struct store_commit c = {.meta = meta, .meta_len = sizeof(meta)};
    int rc = store_part_begin(s, "photos", KEY, strlen(KEY), id, number, bytes, 0, &put, NULL);
    if (rc < 0)
        return rc;
    rc = store_put_write(put, data, bytes, NULL);
    if (rc < 0) {
        store_put_abort(put);
        return rc;
    }
    rc = store_put_commit(put, &c, &info, NULL);
    if (rc == 0 && ret_etag)
        strcpy(ret_etag, info.etag);
    return rc;
}

static int complete(struct store *s, const char *id, struct store_part *parts, unsigned n,
                    struct store_info *info)
{
    return testing_complete(s, "photos", KEY, id, parts, n, info);
}

static int count_part(void *user, const struct store_part *p)
{
    unsigned *n = user;
    assert_string_equal(pairs_get(p->meta, p->meta_len, "x-amz-checksum-crc32"), "AAAA");
    n[0]++;
    n[1] = p->number;
    return 0;
}

static int count_upload(void *user, const struct store_upload *u)
{
    assert_int_equal(u->key_len, strlen(KEY));
    assert_memory_equal(u->key, KEY, u->key_len);
    assert_string_equal(pairs_get(u->meta, u->meta_len, "content-type"), "image/png");
    ++*(unsigned *)user;
    return 0;
}

static unsigned uploads(struct store *s)
{
    unsigned n = 0;
    bool more;
    assert_int_equal(
        store_upload_list(s, "photos", "dir", 3, NULL, 0, NULL, 10, count_upload, &n, &more, NULL), 0);
    assert_false(more);
    return n;
}

static void begin(struct store *s, char id[STORE_UPLOAD_ID_TEXT])
{
    static const char meta[] = "content-type\0image/png";
    struct store_commit c = {.meta = meta, .meta_len = sizeof(meta)};
    assert_int_equal(store_upload_begin(s, "photos", KEY, strlen(KEY), &c, id, NULL), 0);
}

static void three_parts(struct testing_store *f, size_t part_bytes, bool restart)
{
    size_t bytes = 2 * part_bytes + 12345;
    uint8_t *data = malloc(bytes);
    char id[STORE_UPLOAD_ID_TEXT];
    struct store_part parts[3] = {{.number = 2}, {.number = 5}, {.number = 9}};
    struct store_info info;
    testing_fill(data, bytes, 7);
    begin(f->s, id);
    assert_int_equal(put_part(f->s, id, 9, data + 2 * part_bytes, 12345, parts[2].etag), 0);
    assert_int_equal(put_part(f->s, id, 2, data + 1, part_bytes, NULL), 0); /* replaced below */
    assert_int_equal(put_part(f->s, id, 7, data, 10, NULL), 0);             /* not named at the end */
    if (restart)
        testing_reopen(f);
    assert_int_equal(put_part(f->s, id, 2, data, part_bytes, parts[0].etag), 0);
    assert_int_equal(put_part(f->s, id, 5, data + part_bytes, part_bytes, parts[1].etag), 0);
    assert_int_equal(uploads(f->s), 1);
    unsigned seen[2] = {0, 0};
    bool more;
    assert_int_equal(
        store_part_list(f->s, "photos", KEY, strlen(KEY), id, 2, 2, count_part, seen, &more, NULL), 0);
    assert_true(seen[0] == 2 && seen[1] == 7 && more);
    if (restart)
        testing_reopen(f);
    struct store_part wrong[2] = {parts[1], parts[0]};
    assert_int_equal(complete(f->s, id, wrong, 2, NULL), LEAT_INVALID);
    wrong[0].number = 3;
    assert_int_equal(complete(f->s, id, wrong, 1, NULL), LEAT_STALE);
    wrong[1].etag[0] ^= 1;
    assert_int_equal(complete(f->s, id, wrong + 1, 1, NULL), LEAT_STALE);
    assert_int_equal(complete(f->s, id, parts, 3, &info), 0);
    assert_string_equal(info.etag + 32, "-3");
    assert_int_equal(info.bytes, bytes);
    assert_int_equal(complete(f->s, id, parts, 3, &info), STORE_NO_UPLOAD);
    assert_int_equal(put_part(f->s, id, 1, data, 1, NULL), STORE_NO_UPLOAD);
    for (unsigned round = 0; round < 2; round++) {
        assert_int_equal(testing_check(f->s, "photos", KEY, 7, bytes), 0);
        struct store_obj *obj;
        assert_int_equal(store_get(f->s, "photos", KEY, strlen(KEY), &obj, NULL), 0);
        assert_int_equal(store_obj_check(f->s, obj, 0, bytes, NULL), 0);
        assert_string_equal(pairs_get(obj->meta, obj->meta_len, "content-type"), "image/png");
        store_obj_unref(obj);
        assert_int_equal(uploads(f->s), 0);
        struct store_status *st = calloc(1, sizeof(*st));
        store_status(f->s, st);
        assert_int_equal(st->paths[0].objects, 1);
        assert_true(st->paths[0].bytes < bytes + 4096);
        free(st);
        testing_reopen(f);
    }
    free(data);
}

static void test_blocks_on_blocks(void **state)
{
    three_parts(*state, 2 * MIB, false);
}

static void test_odd_sizes(void **state)
{
    three_parts(*state, MIB + 4097, true);
}

static void test_abort(void **state)
{
    struct testing_store *f = *state;
    char id[STORE_UPLOAD_ID_TEXT];
    struct store_put *put;
    begin(f->s, id);
    assert_int_equal(put_part(f->s, id, 1, (const uint8_t *)"x", 1, NULL), 0);
    assert_int_equal(store_part_begin(f->s, "photos", KEY, strlen(KEY), id, 2, 1, 0, &put, NULL), 0);
    assert_int_equal(store_put_write(put, "y", 1, NULL), 0);
    assert_int_equal(store_part_begin(f->s, "photos", "other", 5, id, 2, 1, 0, &put, NULL), STORE_NO_UPLOAD);
    assert_int_equal(store_upload_abort(f->s, "photos", KEY, strlen(KEY), "0123", NULL), STORE_NO_UPLOAD);
    assert_int_equal(store_upload_abort(f->s, "photos", KEY, strlen(KEY), id, NULL), 0);
    assert_int_equal(store_put_commit(put, NULL, NULL, NULL), STORE_NO_UPLOAD); /* came too late */
    testing_reopen(f);
    assert_int_equal(uploads(f->s), 0);
    assert_int_equal(store_bucket_delete(f->s, "photos", NULL), 0);
    struct store_status *st = calloc(1, sizeof(*st));
    store_status(f->s, st);
    assert_int_equal(st->paths[0].bytes, 0);
    free(st);
}

static uint64_t objects(struct store *s)
{
    struct store_status *st = calloc(1, sizeof(*st));
    store_status(s, st);
    uint64_t n = st->paths[0].objects;
    free(st);
    return n;
}

/* Uploads and parts do not count as objects, whatever the index was loaded from. */
/* Uploads that are open keep no bucket: they go with it, at once and for good. */
static void test_bucket_takes_its_uploads(void **state)
{
    struct testing_store *f = *state;
    char id[2][STORE_UPLOAD_ID_TEXT];
    struct store_put *late;
    begin(f->s, id[0]);
    begin(f->s, id[1]);
    assert_int_equal(put_part(f->s, id[0], 1, (const uint8_t *)"x", 1, NULL), 0);
    assert_int_equal(store_part_begin(f->s, "photos", KEY, strlen(KEY), id[1], 1, 1, 0, &late, NULL), 0);
    assert_int_equal(store_put_write(late, "y", 1, NULL), 0);
    assert_int_equal(testing_put(f->s, "photos", "object", 1, 10), 0);
    assert_int_equal(store_bucket_delete(f->s, "photos", NULL), STORE_NOT_EMPTY);
    assert_int_equal(uploads(f->s), 2); /* a refusal takes nothing */
    assert_int_equal(store_delete(f->s, "photos", "object", 6, 0, NULL), 0);
    assert_int_equal(store_bucket_delete(f->s, "photos", NULL), 0);
    assert_int_equal(store_put_commit(late, NULL, NULL, NULL), STORE_NO_BUCKET);
    testing_reopen(f);
    assert_int_equal(testing_count_objects(f->dir), 0);
    assert_int_equal(store_bucket_create(f->s, "photos", 0, NULL, NULL), 0);
    assert_int_equal(uploads(f->s), 0);
    assert_int_equal(put_part(f->s, id[0], 1, (const uint8_t *)"x", 1, NULL), STORE_NO_UPLOAD);
}

static void test_counts(void **state)
{
    struct testing_store *f = *state;
    char id[STORE_UPLOAD_ID_TEXT], other[STORE_UPLOAD_ID_TEXT];
    struct store_part part = {.number = 2};
    assert_int_equal(testing_put(f->s, "photos", "plain", 1, 100), 0);
    begin(f->s, id);
    begin(f->s, other);
    for (unsigned i = 0; i < 2; i++) { /* the first ones are replaced */
        assert_int_equal(put_part(f->s, id, 2, (const uint8_t *)"x", 1, part.etag), 0);
        assert_int_equal(put_part(f->s, other, 1, (const uint8_t *)"x", 1, NULL), 0);
    }
    for (unsigned round = 0; round < 3; round++) { /* as it came, from the log, from a snapshot */
        assert_int_equal(objects(f->s), 1);
        assert_int_equal(f->s->paths[0]->index.hidden, 4);
        if (round == 1)
            assert_int_equal(store_path_compact(f->s->paths[0]), 0);
        testing_reopen(f);
    }
    assert_int_equal(complete(f->s, id, &part, 1, NULL), 0);
    assert_int_equal(store_upload_abort(f->s, "photos", KEY, strlen(KEY), other, NULL), 0);
    assert_int_equal(objects(f->s), 2);
    assert_int_equal(f->s->paths[0]->index.hidden, 0);
}

/* Abandoned uploads do not take all memory; what is there stays, and what ends makes room. */
static void test_room(void **state)
{
    struct testing_store *f = *state;
    char ids[6][STORE_UPLOAD_ID_TEXT], one_more[STORE_UPLOAD_ID_TEXT];
    struct leat_error err = {0};
    begin(f->s, ids[0]);
    uint64_t each = f->s->uploads_room.used_bytes;
    assert_true(each >= sizeof(struct store_upload) && f->s->budget->used_bytes >= each);
    f->s->uploads_room.cap_bytes = 6 * each;
    for (unsigned i = 1; i < 6; i++)
        begin(f->s, ids[i]);
    assert_int_equal(store_upload_begin(f->s, "photos", KEY, strlen(KEY), NULL, one_more, &err), LEAT_BUSY);
    assert_non_null(strstr(err.message, "complete or abort"));
    assert_int_equal(uploads(f->s), 6);
    assert_int_equal(store_upload_abort(f->s, "photos", KEY, strlen(KEY), ids[3], NULL), 0);
    begin(f->s, ids[3]);
    testing_reopen(f);
    assert_int_equal(f->s->uploads_room.used_bytes, 6 * each);
    for (unsigned i = 0; i < 6; i++) {
        assert_int_equal(put_part(f->s, ids[i], 1, (const uint8_t *)"x", 1, NULL), 0);
        assert_int_equal(store_upload_abort(f->s, "photos", KEY, strlen(KEY), ids[i], NULL), 0);
    }
    assert_int_equal(f->s->uploads_room.used_bytes, 0);
}

/* Uploads that were begun, or had their last part, before a moment are aborted; those touched later stay. A
 * restart knows the same times. */
static void give_up_old(struct testing_store *f, bool restart)
{
    char slow[STORE_UPLOAD_ID_TEXT], left[STORE_UPLOAD_ID_TEXT], young[STORE_UPLOAD_ID_TEXT];
    struct store_part part = {.number = 2};
    struct store_put *late = NULL;
    begin(f->s, slow);
    begin(f->s, left);
    assert_int_equal(put_part(f->s, slow, 1, (const uint8_t *)"x", 1, NULL), 0);
    assert_int_equal(put_part(f->s, left, 1, (const uint8_t *)"x", 1, NULL), 0);
    store_uploads_age(f->s, store_wall_ns() - 3600 * (int64_t)NS_PER_S);
    assert_int_equal(uploads(f->s), 2);

    int64_t then = store_wall_ns();
    begin(f->s, young);
    assert_int_equal(put_part(f->s, slow, 2, (const uint8_t *)"y", 1, part.etag), 0);
    if (restart)
        testing_reopen(f);
    assert_int_equal(store_part_begin(f->s, "photos", KEY, strlen(KEY), left, 2, 1, 0, &late, NULL), 0);
    assert_int_equal(store_put_write(late, "y", 1, NULL), 0);
    store_uploads_age(f->s, then);
    assert_int_equal(uploads(f->s), 2);
    assert_int_equal(store_put_commit(late, NULL, NULL, NULL), STORE_NO_UPLOAD);
    assert_int_equal(put_part(f->s, young, 1, (const uint8_t *)"z", 1, NULL), 0);
    assert_int_equal(complete(f->s, slow, &part, 1, NULL), 0);

    store_uploads_age(f->s, store_wall_ns() + 1);
    assert_int_equal(uploads(f->s), 0);
    testing_reopen(f);
    assert_int_equal(uploads(f->s), 0);
    assert_int_equal(testing_count_objects(f->dir), 1);
}

static void test_age(void **state)
{
    give_up_old(*state, false);
}

static void test_age_over_restart(void **state)
{
    give_up_old(*state, true);
}

/* The age of the configuration, in the store's own turns. */
static void test_age_of_turns(void **state)
{
    struct testing_store *f = *state;
    char id[STORE_UPLOAD_ID_TEXT];
    begin(f->s, id);
    store_tick(f->s);
    assert_int_equal(uploads(f->s), 1); /* a week, without another wish */
    f->s->upload_age_ns = 1;
    store_tick(f->s);
    assert_int_equal(uploads(f->s), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_blocks_on_blocks, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_odd_sizes, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_abort, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_bucket_takes_its_uploads, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_counts, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_room, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_age, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_age_over_restart, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_age_of_turns, testing_setup, testing_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
