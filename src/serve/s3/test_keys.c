/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "serve/s3/keys.h"

static char path[] = "/tmp/leat-keys-XXXXXX";

static int setup(void **state)
{
    int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int teardown(void **state)
{
    return unlink(path);
}

static void write_keys(const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

/* What a server has of this file. */
static int load(const char *file, struct keys **ret_keys, struct leat_error *err)
{
    struct keyring *ring;
    int rc = keyring_new(file, false, &ring, err);
    if (rc < 0)
        return rc;
    *ret_keys = keyring_get(ring);
    assert_non_null(*ret_keys);
    keyring_free(ring);
    return 0;
}

#define PAIR(id, secret) "aws_access_key_id = " id "\naws_secret_access_key = " secret "\n"

static void test_rights(void **state)
{
    struct keys *keys;
    write_keys("[default]\n" PAIR("A", "sa") "access = admin\n[maker]\n" PAIR(
        "B", "sb") "access = create\nread = a-* b\nwrite = c\n"
                   "write = d*\nregion = x\naws_session_token = t\n"
                   "[anonymous]\nread = public-*\n");
    assert_int_equal(load(path, &keys, NULL), 0);
    const struct keys_user *admin = keys_find(keys, "A"), *maker = keys_find(keys, "B"),
                           *nobody = keys_anonymous(keys);
    assert_true(admin->admin && !maker->admin && !nobody->admin);
    assert_null(keys_find(keys, "C"));
    assert_null(keys_find(keys, ""));
    assert_string_equal(maker->name, "maker");
    static const struct {
        const char *bucket, *owner;
        bool maker[3], nobody[3]; /* read, write, own */
    } cases[] = {
        {"a-1", "", {true, false, false}, {false, false, false}},
        {"b", "other", {true, false, false}, {false, false, false}},
        {"bb", "", {false, false, false}, {false, false, false}},
        {"c", "", {true, true, false}, {false, false, false}},
        {"dx", "", {true, true, false}, {false, false, false}},
        {"mine", "maker", {true, true, true}, {false, false, false}},
        {"public-a", "", {true, false, false}, {true, false, false}},
        {"x", "anonymous", {false, false, false}, {false, false, false}},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        for (enum keys_right right = KEYS_READ; right <= KEYS_OWN; right++) {
            assert_true(keys_may(keys, admin, cases[i].bucket, cases[i].owner, right));
            assert_int_equal(keys_may(keys, maker, cases[i].bucket, cases[i].owner, right),
                             cases[i].maker[right]);
            assert_int_equal(keys_may(keys, nobody, cases[i].bucket, cases[i].owner, right),
                             cases[i].nobody[right]);
        }
    }
    /* The same key again from the cache, also after others. */
    struct sigv4_key one, two, again;
    assert_int_equal(keys_signing(keys, admin, "20130524", "us-east-1", &one), 0);
    assert_int_equal(keys_signing(keys, admin, "20130525", "us-east-1", &two), 0);
    assert_int_equal(keys_signing(keys, admin, "20130526", "us-east-1", &two), 0);
    assert_int_equal(keys_signing(keys, admin, "20130524", "us-east-1", &again), 0);
    assert_memory_equal(&one.key, &again.key, sizeof(one.key));
    assert_memory_not_equal(&one.key, &two.key, sizeof(one.key));
    assert_int_equal(keys_signing(keys, maker, "20130524", "us-east-1", &two), 0);
    assert_memory_not_equal(&one.key, &two.key, sizeof(one.key));
    assert_true(keys_signing(keys, maker, "2013052x", "us-east-1", &two) < 0);
    keys_unref(keys);
}

static void test_bad_files(void **state)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"[a]\naws_access_key_id = A\n", "[a] needs"},
        {"[a]\n" PAIR("A", "s") "[b]\n" PAIR("A", "s"), "the same aws_access_key_id"},
        {"[a]\n" PAIR("A", "s") "access = god\n", "admin, create or none"},
        {"[a]\n" PAIR("A", "s") "reed = x\n", "no 'reed'"},
        {"[anonymous]\naws_access_key_id = A\n", "[anonymous] has no"},
        {"[a]\n" PAIR("", "s"), "is empty"},
        {"[a]\n" PAIR("A", "s") "aws_access_key_id = B\n", "given twice"},
        {"aws_access_key_id = A\n", "a user's name"},
        {"[a]\nnonsense\n", "line 2"},
        {"", "names no user"},
        {"# [default]\n", "names no user"},
        {"[anonymous]\naccess = none\n", "names no user"},
    };
    struct keys *keys;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct leat_error err = {0};
        write_keys(cases[i].text);
        assert_true(load(path, &keys, &err) < 0);
        if (!strstr(err.message, cases[i].says) || !strstr(err.message, path))
            fail_msg("case %zu: %s", i, err.message);
    }
    struct leat_error err = {0};
    write_keys("[a]\n" PAIR("A", "s"));
    chmod(path, 0640);
    assert_int_equal(load(path, &keys, &err), LEAT_DENIED);
    assert_non_null(strstr(err.message, "chmod 600"));
    chmod(path, 0600);
    assert_int_equal(load("/nonexistent/keys", &keys, &err), LEAT_NOT_FOUND);
    assert_int_equal(load("/tmp", &keys, &err), LEAT_INVALID);
}

static void test_ring(void **state)
{
    struct keyring *ring;
    struct leat_error err = {0};
    write_keys("[a]\n" PAIR("A", "s"));
    assert_int_equal(keyring_new(path, false, &ring, NULL), 0);
    struct keys *old = keyring_get(ring);
    assert_int_equal(keyring_check(ring, NULL), 0);
    write_keys("[a]\n" PAIR("A", "s") "[b]\n" PAIR("B", "s"));
    assert_int_equal(keyring_check(ring, NULL), 1);
    struct keys *now = keyring_get(ring);
    assert_null(keys_find(old, "B"));
    assert_non_null(keys_find(now, "B"));
    keys_unref(old);
    keys_unref(now);
    write_keys("[a]\nbroken\n");
    assert_int_equal(keyring_check(ring, &err), LEAT_INVALID);
    assert_int_equal(keyring_check(ring, &err), 0); /* said once */
    now = keyring_get(ring);
    assert_non_null(keys_find(now, "B"));
    keys_unref(now);
    keyring_free(ring);
}

static void test_fresh(void **state)
{
    char dir[] = "/tmp/leat-keys-XXXXXX", file[80], below[80];
    struct leat_error err = {0};
    struct stat st;
    struct keys *keys;
    assert_non_null(mkdtemp(dir));
    snprintf(below, sizeof(below), "%s/new", dir);
    snprintf(file, sizeof(file), "%s/new/keys", dir);
    assert_int_equal(keys_create(file, NULL), 0);
    assert_int_equal(stat(file, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(keys_create(file, &err), -EEXIST);
    assert_non_null(strstr(err.message, "without --new-keys"));
    assert_int_equal(load(file, &keys, NULL), 0);
    const struct keys_user *only = keys_named(keys, "default");
    assert_true(only && only->admin);
    assert_int_equal(strlen(only->access), 20);
    assert_int_equal(strlen(only->secret), 40);
    keys_unref(keys);
    unlink(file);
    /* A disk that is full: the next try begins again. */
    struct rlimit before, none;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    none = (struct rlimit){.rlim_cur = 0, .rlim_max = before.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    int rc = keys_create(file, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(rc, -EIO);
    assert_int_equal(access(file, F_OK), -1);
    assert_int_equal(keys_create(file, NULL), 0);
    unlink(file);
    rmdir(below);
    rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rights),
        cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_ring),
        cmocka_unit_test(test_fresh),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
