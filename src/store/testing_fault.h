/* SPDX-License-Identifier: Apache-2.0 */
/* testing_fault.h: a store on one path whose I/O fails, is held or is lost as a test wants, with one object in its bucket "photos". */
#ifndef STORE_TESTING_FAULT_H
#define STORE_TESTING_FAULT_H

#include <stdlib.h>

#include "store/testing_io.h"
#include "store/internal.h"
#include "store/testing.h"

struct fixture {
    char dir[256];
    const char *path;
    struct store_fault *fault;
    struct store *s;
};

static int setup_with(void **state, const char *key, size_t bytes)
{
    struct fixture *f = calloc(1, sizeof(*f));
    testing_mkdir_fast(f->dir);
    f->path = f->dir;
    assert_int_equal(store_fault_new(f->dir, &f->fault), 0);
    f->s = testing_open(&f->path, 1, store_fault_io(f->fault));
    assert_non_null(f->s);
    assert_int_equal(store_bucket_create(f->s, "photos", 0, NULL, NULL), 0);
    assert_int_equal(testing_put(f->s, "photos", key, 1, bytes), 0);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    store_free(f->s);
    store_fault_free(f->fault);
    testing_rmdir(f->dir);
    free(f);
    return 0;
}

static void reopen(struct fixture *f)
{
    store_free(f->s);
    f->s = testing_open(&f->path, 1, store_fault_io(f->fault));
    assert_non_null(f->s);
}

#endif
