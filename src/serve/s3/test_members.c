/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "base/budget.h"
#include "failalloc.h"
#include "serve/s3/members.h"
#include "wire/archive/tar_put.h"

#define FRONT 4096u /* an object's own header precedes it */

struct made {
    int fd;
    uint64_t at;
};

static struct made made_new(void)
{
    struct made m = {.fd = memfd_create("archive", MFD_CLOEXEC), .at = FRONT};
    assert_true(m.fd >= 0);
    return m;
}

static void put(struct made *m, const void *data, size_t len)
{
    assert_int_equal(pwrite(m->fd, data, len, (off_t)m->at), len);
    m->at += len;
}

static void put_member(struct made *m, const char *path, char type, const char *data)
{
    static char header[TAR_PUT_MAX];
    static const char zeros[TAR_BLOCK];
    struct tar_put e = {.path = path, .type = type, .bytes = strlen(data)};
    tar_put_header(&e, header);
    put(m, header, tar_put_header_bytes(&e));
    put(m, data, strlen(data));
    put(m, zeros, tar_put_padding(strlen(data)));
}

static struct members_archive archive(const struct made *m, uint64_t seq)
{
    return (struct members_archive){.bucket = "bkt",
                                    .key = "k.tar",
                                    .key_len = 5,
                                    .seq = seq,
                                    .fd = m->fd,
                                    .offset = FRONT,
                                    .bytes = m->at - FRONT};
}

static void expect(struct members *m, const struct members_archive *a, const char *path, const char *data)
{
    struct member got;
    struct leat_error err = {0};
    char buf[64] = "";
    if (members_find(m, a, path, &got, &err) < 0)
        fail_msg("%s: %s", path, err.message);
    assert_int_equal(got.bytes, strlen(data));
    assert_false(got.deflated);
    assert_int_equal(pread(a->fd, buf, got.bytes, (off_t)(a->offset + got.at)), got.bytes);
    assert_string_equal(buf, data);
}

static void test_tar(void **state)
{
    struct budget budget;
    struct members *m;
    struct members_stats stats;
    struct member got;
    struct leat_error err;
    struct made tar = made_new();
    char name[400];
    budget_init(&budget, MIB);
    assert_int_equal(members_new(&budget, &m), 0);
    put_member(&tar, "a/one.txt", '0', "first");
    put_member(&tar, "a", '5', "");
    memset(name, 'l', sizeof(name));
    name[sizeof(name) - 1] = 0;
    put_member(&tar, name, '0', "long");
    put_member(&tar, "empty", '0', "");
    put_member(&tar, "a/one.txt", '0', "second");
    put_member(&tar, "link", '2', "");
    struct members_archive a = archive(&tar, 1);
    for (int i = 0; i < 2; i++) {
        expect(m, &a, "a/one.txt", "second");
        expect(m, &a, "./a/one.txt", "second");
        expect(m, &a, name, "long");
        expect(m, &a, "empty", "");
        assert_int_equal(members_find(m, &a, "link", &got, &err), LEAT_UNSUPPORTED);
        assert_int_equal(members_find(m, &a, "a", &got, &err), LEAT_NOT_FOUND);
        assert_int_equal(members_find(m, &a, "", &got, &err), LEAT_NOT_FOUND);
        assert_int_equal(members_find(m, &a, "a/one.tx", &got, &err), LEAT_NOT_FOUND);
        assert_non_null(strstr(err.message, "\"a/one.tx\""));
    }
    members_stats(m, &stats);
    assert_true(stats.built == 1 && stats.indexes == 1 && stats.members == 5 &&
                stats.bytes == budget.used_bytes);
    /* Another version of the object is another archive. */
    put_member(&tar, "new", '0', "n");
    struct members_archive b = archive(&tar, 2);
    expect(m, &b, "new", "n");
    assert_int_equal(members_find(m, &a, "new", &got, &err), LEAT_NOT_FOUND);
    members_free(m);
    assert_int_equal(budget.used_bytes, 0);
    close(tar.fd);
}

/* Archives put end to end are one, as for the scanner: of two members of one name the last one counts. */
static void test_joined(void **state)
{
    static const char end[7 * TAR_BLOCK];
    struct budget budget;
    struct members *m;
    struct leat_error err;
    struct member got;
    struct made tar = made_new();
    budget_init(&budget, MIB);
    assert_int_equal(members_new(&budget, &m), 0);
    put_member(&tar, "one", '0', "of the first");
    put_member(&tar, "both", '0', "early");
    put(&tar, end, sizeof(end));
    put_member(&tar, "two", '0', "of the second");
    put_member(&tar, "both", '0', "late");
    put(&tar, end, sizeof(end));
    struct members_archive a = archive(&tar, 1);
    expect(m, &a, "one", "of the first");
    expect(m, &a, "two", "of the second");
    expect(m, &a, "both", "late");
    /* What is behind the object in the same descriptor is not a part of it. */
    put_member(&tar, "three", '0', "of another object");
    a.seq++;
    assert_int_equal(members_find(m, &a, "three", &got, &err), LEAT_NOT_FOUND);
    /* Behind an end mark is an archive, or nothing. */
    put(&tar, "rubbish", 7);
    struct members_archive b = archive(&tar, 3);
    assert_int_equal(members_find(m, &b, "one", &got, &err), LEAT_CORRUPT);
    members_free(m);
    assert_int_equal(budget.used_bytes, 0);
    close(tar.fd);
}

static void test_no_archive(void **state)
{
    static const struct {
        const char *bytes;
        size_t len;
        int rc;
        const char *why;
    } cases[] = {
        {"", 0, LEAT_INVALID, "neither"},
        {"hello", 5, LEAT_INVALID, "neither"},
        {"\x1f\x8b\x08\0\0\0", 6, LEAT_UNSUPPORTED, "compressed"},
        {"PK\3\4", 4, LEAT_CORRUPT, "ZIP"},
    };
    struct budget budget;
    struct members *m;
    budget_init(&budget, MIB);
    assert_int_equal(members_new(&budget, &m), 0);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct made file = made_new();
        struct member got;
        struct leat_error err = {0};
        put(&file, cases[i].bytes, cases[i].len);
        struct members_archive a = archive(&file, 1);
        assert_int_equal(members_find(m, &a, "x", &got, &err), cases[i].rc);
        assert_non_null(strstr(err.message, cases[i].why));
        close(file.fd);
    }
    struct made cut = made_new();
    struct member got;
    put_member(&cut, "x", '0', "some bytes");
    struct members_archive a = archive(&cut, 1);
    a.bytes -= TAR_BLOCK;
    assert_int_equal(members_find(m, &a, "x", &got, NULL), LEAT_CORRUPT);
    a.bytes += TAR_BLOCK;
    expect(m, &a, "x", "some bytes");
    close(cut.fd);
    members_free(m);
    assert_int_equal(budget.used_bytes, 0);
}

/* Indexes go when others need the room; one that is larger than the room is refused. */
static void test_cap(void **state)
{
    struct budget budget;
    struct members *m;
    struct members_stats stats;
    struct member got;
    struct made small = made_new(), large = made_new();
    char name[32];
    budget_init(&budget, 64 * KIB);
    assert_int_equal(members_new(&budget, &m), 0);
    for (unsigned i = 0; i < 100; i++) {
        snprintf(name, sizeof(name), "m%u", i);
        put_member(&small, name, '0', name);
    }
    for (unsigned i = 0; i < 3000; i++) {
        snprintf(name, sizeof(name), "m%u", i);
        put_member(&large, name, '0', "");
    }
    for (uint64_t seq = 1; seq <= 50; seq++) {
        struct members_archive a = archive(&small, seq);
        expect(m, &a, "m77", "m77");
        assert_true(budget.peak_bytes <= budget.cap_bytes);
    }
    struct members_archive a = archive(&large, 99);
    assert_int_equal(members_find(m, &a, "m1", &got, NULL), LEAT_NO_SPACE);
    a = archive(&small, 50);
    expect(m, &a, "m99", "m99");
    members_stats(m, &stats);
    assert_true(stats.evicted > 40 && stats.indexes >= 1 && stats.bytes == budget.used_bytes);
    members_free(m);
    assert_int_equal(budget.used_bytes, 0);
    close(small.fd);
    close(large.fd);
}

struct crowd {
    struct members *m;
    const struct made *tar;
    unsigned number;
};

static void *ask_often(void *arg)
{
    struct crowd *c = arg;
    char name[32];
    for (unsigned i = 0; i < 300; i++) {
        struct members_archive a = archive(c->tar, 1 + (i + c->number) % 7);
        struct member got;
        snprintf(name, sizeof(name), "m%u", (i * 7 + c->number) % 60);
        int rc = members_find(c->m, &a, name, &got, NULL);
        if (rc != LEAT_BUSY && (rc < 0 || got.bytes != strlen(name)))
            return (void *)1;
    }
    return NULL;
}

static void test_many_at_once(void **state)
{
    struct budget budget;
    struct members *m;
    struct made tar = made_new();
    char name[32];
    budget_init(&budget, 24 * KIB); /* room for a few of the seven */
    assert_int_equal(members_new(&budget, &m), 0);
    for (unsigned i = 0; i < 60; i++) {
        snprintf(name, sizeof(name), "m%u", i);
        put_member(&tar, name, '0', name);
    }
    pthread_t threads[4];
    struct crowd crowds[4];
    for (unsigned i = 0; i < 4; i++) {
        crowds[i] = (struct crowd){m, &tar, i};
        assert_int_equal(pthread_create(&threads[i], NULL, ask_often, &crowds[i]), 0);
    }
    for (unsigned i = 0; i < 4; i++) {
        void *bad;
        pthread_join(threads[i], &bad);
        assert_null(bad);
    }
    members_free(m);
    assert_int_equal(budget.used_bytes, 0);
    close(tar.fd);
}

static int find_once(void *ctx)
{
    struct budget budget;
    struct members *m = NULL;
    struct member got;
    budget_init(&budget, MIB);
    int rc = members_new(&budget, &m);
    struct members_archive a = archive(ctx, 1);
    if (rc == 0)
        rc = members_find(m, &a, "x", &got, NULL);
    members_free(m);
    assert_int_equal(budget.used_bytes, 0);
    return rc;
}

static void test_no_memory(void **state)
{
    struct made tar = made_new();
    put_member(&tar, "x", '0', "y");
    failalloc_run(find_once, &tar);
    close(tar.fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tar), cmocka_unit_test(test_joined),       cmocka_unit_test(test_no_archive),
        cmocka_unit_test(test_cap), cmocka_unit_test(test_many_at_once), cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
