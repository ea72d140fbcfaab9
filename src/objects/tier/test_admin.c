/* SPDX-License-Identifier: Apache-2.0 */
/* What is asked about a whole bucket: lists, jobs, settings. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include <sys/stat.h>

#include "base/testing.h"
#include "objects/tier/testing.h"

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
        if (tier_list(world.tier, bucket, &spec, name_one, &l, &more, &err) < 0)
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
    char path[400];
    world_front("bkt", ",\"mode\":\"back\",\"check\":\"always\"");
    snprintf(path, sizeof(path), "%s/remote/d", world.top);
    assert_int_equal(mkdir(path, 0777), 0);
    snprintf(path, sizeof(path), "%s/remote/e", world.top);
    assert_int_equal(mkdir(path, 0777), 0);
    static const char *const far[] = {"a", "c", "d/1", "d/2", "e/1", "f"};
    for (size_t i = 0; i < ARRAY_LEN(far); i++)
        world_there(far[i], "x", 1);
    world_get_is("bkt", "c", "x");
    assert_true(world_gets_here("bkt", "c"));
    /* In the end nothing is pushed any more, so that what is dirty stays so: a folder stands in its way. */
    assert_int_equal(world_put("bkt", "a/blocked", "x", NULL, &err), 0);
    assert_int_equal(world_put("bkt", "d/1/blocked", "x", NULL, &err), 0);
    for (unsigned max = 1; max < 9; max += max == 3 ? 5 : 1) {
        assert_string_equal(list("bkt", "", "", max), "a~ a/blocked* c d/1~ d/1/blocked* d/2~ e/1~ f~");
        assert_string_equal(list("bkt", "", "/", max), "a~ a/ c d/ e/ f~");
        assert_string_equal(list("bkt", "d/", "/", max), "d/1~ d/1/ d/2~");
        assert_string_equal(list("bkt", "d", "", max), "d/1~ d/1/blocked* d/2~");
        assert_string_equal(list("bkt", "", "1", max), "a~ a/blocked* c d/1 d/2~ e/1 f~");
        assert_string_equal(list("bkt", "zz", "", max), "");
    }
    /* What the remote has no more is not listed, though it is here: it is compared before it is served. */
    snprintf(path, sizeof(path), "%s/remote/c", world.top);
    assert_int_equal(unlink(path), 0);
    assert_string_equal(list("bkt", "c", "", 10), "");
    world_front("bkt", ",\"mode\":\"back\",\"check\":\"never\"");
    assert_string_equal(list("bkt", "c", "", 10), "c");
}

/* --- jobs ---------------------------------------------------------------------------------------------------------------------------- */

static void wait_for_end(uint64_t id, struct job_info *ret_info)
{
    test_wait_until(
        (assert_int_equal(jobs_get(world.jobs, id, ret_info), 0), ret_info->state > JOB_ABORTING));
}

static struct job_info job(struct tier_job_spec spec)
{
    struct leat_error err = {0};
    struct job_info info = {0};
    uint64_t id = 0;
    if (tier_job_start(world.tier, &spec, &id, &err) < 0)
        fail_msg("%s", err.message);
    wait_for_end(id, &info);
    return info;
}

/* done, skipped, newer, gone, failed */
static void assert_counts(const struct job_info *i, unsigned done, unsigned skipped, unsigned newer,
                          unsigned gone, unsigned failed)
{
    assert_int_equal(i->counts[JOB_ITEMS], done);
    assert_int_equal(i->counts[JOB_SKIPPED], skipped);
    assert_int_equal(i->counts[TIER_JOB_NEWER], newer);
    assert_int_equal(i->counts[TIER_JOB_GONE], gone);
    assert_int_equal(i->counts[JOB_FAILED_ITEMS], failed);
}

static void test_jobs(void **state)
{
    (void)state;
    struct leat_error err = {0};
    struct job_info i;
    char key[400];
    world_front("bkt", "");
    snprintf(key, sizeof(key), "%s/remote/x", world.top);
    assert_int_equal(mkdir(key, 0777), 0);
    for (unsigned n = 0; n < 200; n++) {
        snprintf(key, sizeof(key), "x/%03u", n);
        world_there(key, key, 5);
    }
    world_there("y", "y", 1);
    world_get_is("bkt", "x/007", "x/007");
    assert_true(world_gets_here("bkt", "x/007"));
    i = job((struct tier_job_spec){.kind = TIER_PREFETCH, .bucket = "bkt", .prefix = "x/"});
    assert_int_equal(i.state, JOB_DONE);
    assert_string_equal(i.subject, "bkt/x/");
    assert_true(i.durable && i.counts[JOB_TOTAL_KNOWN] && i.counts[JOB_ITEMS_TOTAL] == 200);
    assert_counts(&i, 199, 1, 0, 0, 0);
    assert_int_equal(i.counts[JOB_BYTES], 199 * 5);
    assert_false(world_is_here("bkt", "y"));
    world_get_is("bkt", "x/100", "x/100");
    /* Compared: one newer, one gone; nothing changes here. */
    world_there("x/000", "newer", 5);
    snprintf(key, sizeof(key), "%s/remote/x/001", world.top);
    assert_int_equal(unlink(key), 0);
    i = job((struct tier_job_spec){.kind = TIER_CHECK, .bucket = "bkt"});
    assert_int_equal(i.counts[JOB_ITEMS_TOTAL], 200);
    assert_counts(&i, 199, 0, 1, 1, 0);
    world_get_is("bkt", "x/000", "x/000");
    assert_true(world_is_here("bkt", "x/001"));
    i = job((struct tier_job_spec){.kind = TIER_CHECK, .bucket = "bkt", .update = true});
    assert_counts(&i, 199, 0, 1, 1, 0);
    world_get_is("bkt", "x/000", "newer");
    assert_false(world_is_here("bkt", "x/001"));
    /* Some, by name. */
    const char *const keys[] = {"x/002", "y", "nothing"};
    i = job((struct tier_job_spec){.kind = TIER_EVICT, .bucket = "bkt", .keys = keys, .nkeys = 3});
    assert_counts(&i, 1, 2, 0, 0, 0);
    assert_int_equal(i.counts[JOB_BYTES], 5);
    i = job((struct tier_job_spec){.kind = TIER_PREFETCH, .bucket = "bkt", .keys = keys, .nkeys = 3});
    assert_counts(&i, 2, 0, 0, 1, 0);
    i = job((struct tier_job_spec){.kind = TIER_EVICT, .bucket = "bkt", .prefix = "x/"});
    assert_int_equal(i.counts[JOB_ITEMS], 199);
    assert_false(world_is_here("bkt", "x/150"));
    assert_true(world_is_here("bkt", "y"));
    world_get_is("bkt", "x/150", "x/150");
    struct job_info *all;
    unsigned n = 0;
    assert_int_equal(jobs_list(world.jobs, &all, &n), 0);
    assert_int_equal(n, 6);
    free(all);
    assert_int_equal(jobs_get(world.jobs, 999, &i), LEAT_NOT_FOUND);
    uint64_t id;
    assert_int_equal(tier_job_start(world.tier, &(struct tier_job_spec){.bucket = "none"}, &id, &err),
                     LEAT_INVALID);
}

/* A job with a slow remote ends soon after its cancellation, and readers do not wait behind it. */
static void test_job_cancel(void **state)
{
    (void)state;
    struct leat_error err = {0};
    char names[60][8];
    const char *keys[60];
    uint64_t id;
    struct job_info info;
    struct world_reader me = {0};
    world_web_front("bkt", "");
    world_far.allowed = 0;
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        snprintf(names[i], sizeof(names[i]), "p%zu", i);
        keys[i] = names[i];
    }
    struct tier_job_spec spec = {
        .kind = TIER_PREFETCH, .bucket = "bkt", .keys = keys, .nkeys = ARRAY_LEN(keys)};
    assert_int_equal(tier_job_start(world.tier, &spec, &id, &err), 0);
    test_wait_until(world_far.gets >= 3);
    struct tier_read *r; /* its HEAD is answered, though all who prefetch wait */
    assert_int_equal(tier_open(world.tier, "bkt", "k", 1, TIER_HEAD, &r, &err), 0);
    assert_int_equal(tier_read_wait(r, 0, 0, &err), 0);
    tier_read_close(r);
    assert_int_equal(jobs_abort(world.jobs, id), 0);
    atomic_store(&world_far.allowed, UINT64_MAX);
    wait_for_end(id, &info);
    assert_int_equal(info.state, JOB_CANCELLED);
    world_reader_main(&me);
    assert_true(me.same);
    world_end();
    web_stop(&world_web);
}

/* A restart in the middle: it continues, brings the rest, and skips what is here. */
static void test_job_continues(void **state)
{
    (void)state;
    struct leat_error err = {0};
    struct job_info info;
    const char *const keys[] = {"small-1", "small-2", "p1", "p2"};
    uint64_t id;
    world_web_front("bkt", "");
    world_far.allowed = 0;
    struct tier_job_spec spec = {
        .kind = TIER_PREFETCH, .bucket = "bkt", .keys = keys, .nkeys = ARRAY_LEN(keys)};
    assert_int_equal(tier_job_start(world.tier, &spec, &id, &err), 0);
    test_wait_until(world_far.gets >= 2);
    world_end();
    atomic_store(&world_far.allowed, UINT64_MAX);
    world_begin();
    wait_for_end(id, &info);
    assert_int_equal(info.state, JOB_DONE);
    assert_int_equal(info.restarts, 1);
    assert_int_equal(info.counts[JOB_ITEMS] + info.counts[JOB_SKIPPED], 4);
    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        assert_true(world_is_here("bkt", keys[i]));
    world_end();
    web_stop(&world_web);
}

/* Another version's settings, found at the start: such a bucket is no plain one, and what was asked of its remote fails. */
static void test_wrong_settings(void **state)
{
    (void)state;
    struct leat_error err = {0};
    struct store_list_spec all = {.max = 10};
    struct tier_job_spec spec = {.kind = TIER_CHECK, .bucket = "bkt"};
    char props[500], buf[10];
    size_t n;
    uint64_t id;
    world_there("far", "far", 3);
    world_there("file", "file", 4);
    world_front("bkt", ",\"mode\":\"back\"");
    world_get_is("bkt", "file", "file");
    assert_true(world_gets_here("bkt", "file"));
    assert_int_equal(world_put("bkt", "file/dirty", "dirty", NULL, &err), 0); /* cannot be there */
    snprintf(props, sizeof(props), "{\"remote\":{\"uri\":\"file://%s/remote\",\"mode\":\"sideways\"}}",
             world.top);
    assert_int_equal(store_bucket_set(world.store, "bkt", 0, props, &err), 0);
    world_end();
    world_begin();
    assert_int_equal(world_put("bkt", "new", "new", NULL, &err), TIER_REFUSED);
    assert_non_null(strstr(err.message, "sideways"));
    assert_int_equal(world_get("bkt", "far", buf, sizeof(buf), &n, &err), TIER_REFUSED);
    assert_int_equal(world_get("bkt", "nowhere", buf, sizeof(buf), &n, &err), TIER_REFUSED);
    assert_int_equal(tier_delete(world.tier, "bkt", "file", 4, &err), TIER_REFUSED);
    assert_int_equal(tier_list(world.tier, "bkt", &all, NULL, NULL, &(bool){0}, &err), TIER_REFUSED);
    assert_int_equal(tier_job_start(world.tier, &spec, &id, &err), 0);
    world_get_is("bkt", "file", "file");
    world_get_is("bkt", "file/dirty", "dirty");
    assert_false(world_is_here("bkt", "new") || world_is_there("new", "new"));
    /* Others for the same place mend it. */
    world_front("bkt", ",\"mode\":\"back\"");
    world_get_is("bkt", "far", "far");
    assert_int_equal(unlink(strcat(strcpy(props, world.top), "/remote/file")), 0);
    world_wait_pushed();
    assert_true(world_is_there("file/dirty", "dirty"));
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
        {"{\"uri\":\"s3://b\",\"access_key\":\"A\",\"secret_key\":\"S\",\"anonymous\":true}", "give one of"},
        {"{\"uri\":\"file:///x\",\"endpoint\":\"http://h\"}", "a folder has no endpoint"},
        {"{\"uri\":\"s3://b\",\"endpoint\":\"ftp://h\"}", ""},
    };
    struct leat_error err = {0};
    struct store_bucket is;
    char *json;
    assert_int_equal(store_bucket_create(world.store, "bkt", 0, "{\"owner\":\"me\"}", &err), 0);
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        assert_int_equal(tier_bucket_set(world.tier, "bkt", wrong[i].json, &err), LEAT_INVALID);
        if (!strstr(err.message, wrong[i].says))
            fail_msg("%s: %s", wrong[i].json, err.message);
    }
    assert_true(tier_bucket_remote(world.tier, "bkt") == 0);
    assert_int_equal(tier_bucket_get(world.tier, "bkt", &json, &err), LEAT_NOT_FOUND);
    assert_int_equal(tier_bucket_set(world.tier, "none", "{\"uri\":\"s3://b\"}", &err), STORE_NO_BUCKET);
    assert_int_equal(tier_bucket_set(world.tier, "bkt",
                                     "{\"uri\":\"s3://b\",\"access_key\":\"AK\",\"secret_key\":\"hidden\"}",
                                     &err),
                     0);
    assert_true(tier_bucket_remote(world.tier, "bkt") != 0);
    assert_int_equal(tier_bucket_get(world.tier, "bkt", &json, &err), 0);
    assert_non_null(strstr(json, "AK"));
    assert_null(strstr(json, "hidden"));
    free(json);
    assert_int_equal(store_bucket_get(world.store, "bkt", &is, &err), 0);
    assert_non_null(strstr(is.props, "\"owner\":\"me\""));
    assert_true(is.flags & STORE_BUCKET_REMOTE);
    store_bucket_fini(&is);
    world_end();
    world_begin();
    assert_true(tier_bucket_remote(world.tier, "bkt") != 0);
    assert_int_equal(tier_bucket_set(world.tier, "bkt", NULL, &err), 0);
    assert_true(tier_bucket_remote(world.tier, "bkt") == 0);
    assert_int_equal(store_bucket_get(world.store, "bkt", &is, &err), 0);
    assert_false(is.flags & STORE_BUCKET_REMOTE);
    store_bucket_fini(&is);
    /* Its objects are nowhere else: they are not to be taken for a remote's. */
    assert_int_equal(world_put("bkt", "mine", "x", NULL, &err), 0);
    assert_int_equal(tier_bucket_set(world.tier, "bkt", "{\"uri\":\"s3://b\"}", &err), STORE_NOT_EMPTY);
    assert_true(tier_bucket_remote(world.tier, "bkt") == 0);
    world_front("other", "");
    assert_int_equal(world_put("other", "k", "x", NULL, &err), 0);
    world_front("other", ",\"check\":\"always\"");
    assert_int_equal(tier_bucket_set(world.tier, "other", "{\"uri\":\"s3://b\"}", &err), STORE_NOT_EMPTY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_list, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_jobs, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_job_cancel, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_job_continues, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_wrong_settings, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_settings, world_setup, world_teardown),
    };
    return cmocka_run_group_tests(tests, world_group_setup, NULL);
}
