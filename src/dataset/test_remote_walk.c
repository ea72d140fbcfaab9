/* SPDX-License-Identifier: Apache-2.0 */
/* Remote shards are walked by windows: what is read of them, and how the walk ends. */
#include <setjmp.h>
#include <stdarg.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "base/rng.h"
#include "dataset/testing.h"

/* Members of all sizes and extended headers that lie across windows: as it is scanned in a file. */
static void test_walk(void **state)
{
    uint64_t rng = 7;
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned shard = 0; shard < (round == 0 ? 11u : round); shard++) {
            struct testing_tar t = {0};
            char name[120];
            for (unsigned i = 0; t.bytes < (round == 0 ? 1u : 12u) * MIB; i++) {
                uint64_t most = rng_below(&rng, 8) ? 3000 : round == 1 ? 3 * MIB : 300000;
                if (rng_below(&rng, 3) == 0) {
                    AUTO_FREE char *pax = calloc(1, 40000);
                    int len = snprintf(pax, 40000, "%u comment=", 30000u);
                    memset(pax + len, 'x', 30000 - (size_t)len);
                    pax[29999] = '\n';
                    testing_tar_member(&t, "pax", 'x', 30000, pax);
                }
                snprintf(name, sizeof(name), "%u/%05u.bin", shard, i);
                testing_tar_member(&t, name, '0', rng_below(&rng, most), NULL);
                if (rng_below(&rng, 300) == 0) /* archives put end to end */
                    testing_tar_end(&t);
            }
            testing_tar_end(&t);
            snprintf(name, sizeof(name), "walk%u/%02u.tar", round, shard);
            testing_add(name, t.data, t.bytes);
            free(t.data);
        }
        char spec[40];
        snprintf(spec, sizeof(spec), "%%s/walk%u", round);
        testing_assert_same(spec);
    }
}

/* Long payload is stepped over, short is not, and a window is asked for once. */
static void test_walk_reads(void **state)
{
    struct index ix;
    struct leat_error err = {0};
    for (unsigned k = 0; k < 2; k++) {
        struct testing_tar t = {0};
        char name[40];
        for (unsigned i = 0; i < (k ? 4u : 40u); i++) {
            snprintf(name, sizeof(name), "%u.bin", i);
            testing_tar_member(&t, name, '0', k ? 40 * MIB : 500000, NULL);
        }
        testing_tar_end(&t);
        snprintf(name, sizeof(name), "s3://bucket/steps/%u.tar", k);
        far_put(name, t.data, t.bytes);
        uint64_t bytes = t.bytes;
        free(t.data);
        far.reads = far.canceled = 0;
        far.bytes = 0;
        assert_int_equal(testing_build(k ? "%s/steps/1.tar" : "%s/steps/0.tar", true, &ix, &err), 0);
        index_close(&ix);
        assert_true(far.reads < 12);
        if (k)
            assert_true(far.bytes < bytes / 20);
        else
            assert_true(far.bytes < bytes + MIB && far.canceled <= 1);
        far_remove(name);
    }
}

/* One shard breaks while windows of all are under way. */
static void test_walk_ends(void **state)
{
    struct testing_tar t = {0};
    char name[60];
    for (unsigned i = 0; i < 400; i++) {
        snprintf(name, sizeof(name), "%u.bin", i);
        testing_tar_member(&t, name, '0', 20000, NULL);
    }
    testing_tar_end(&t);
    for (unsigned i = 0; i < 10; i++) {
        snprintf(name, sizeof(name), "s3://bucket/ends/%u.tar", i);
        t.data[150 * 20992 + 1] ^= i == 5 ? 0x55 : 0;
        far_put(name, t.data, t.bytes);
        t.data[150 * 20992 + 1] ^= i == 5 ? 0x55 : 0;
    }
    free(t.data);
    testing_refused("%s/ends", LEAT_CORRUPT, "s3://bucket/ends/5.tar");
    assert_true(far.canceled > 0);
    far.changed = "s3://bucket/ends/0.tar";
    testing_refused("%s/ends", LEAT_STALE, "s3://bucket/ends/0.tar");
}

static int stop(void *user, uint64_t samples, uint64_t bytes)
{
    return ++*(unsigned *)user == 3 ? -ECANCELED : 0;
}

/* Waiting for windows can be ended, before 4096 samples are known. */
static void test_walk_stops(void **state)
{
    struct testing_tar t = {0};
    unsigned asked = 0;
    struct dataset_progress progress = {stop, &asked};
    struct dataset_spec spec;
    struct leat_error err = {0};
    for (unsigned i = 0; i < 10; i++)
        testing_tar_member(&t, "x.bin", '0', MIB, NULL);
    far_put("s3://bucket/stop.tar", t.data, t.bytes);
    free(t.data);
    AUTO_CLOSE int fd = memfd_create("index", MFD_CLOEXEC);
    assert_int_equal(dataset_spec_parse("s3://bucket/stop.tar", &spec, &err), 0);
    assert_int_equal(dataset_index_build(&spec, &testing_opener, &progress, fd, &err), -ECANCELED);
    assert_int_equal(asked, 3);
    dataset_spec_free(&spec);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_walk, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_walk_reads, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_walk_ends, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_walk_stops, testing_setup, testing_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
