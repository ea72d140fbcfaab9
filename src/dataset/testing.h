/* SPDX-License-Identifier: Apache-2.0 */
/*
 * testing.h: remote sources for the tests of this folder: a store in memory that can be broken, and a folder
 * with the same content. Errors in it fail the running test.
 */
#ifndef DATASET_TESTING_H
#define DATASET_TESTING_H

#include "dataset/index.h"
#include "dataset/scan.h"

#define FAR_OBJECTS 64u

struct far_object {
    char uri[300], etag[40];
    char *data;
    uint64_t bytes;
    int64_t modified;
};

/* The store: its objects, its faults, and counts of requests. */
extern struct far {
    struct far_object objects[FAR_OBJECTS]; /* in the order of their addresses */
    unsigned n;
    /* faults */
    int list_rc, list_after; /* the list ends with it after so many objects */
    int stat_rc, put_rc;
    const char *changed; /* this one, between list and read */
    const char *short_of;
    bool no_etags;
    /* counts of requests */
    unsigned lists, reads, canceled;
    uint64_t bytes;
    int open, under_way;
} far;
extern const struct dataset_opener testing_opener; /* goes there */

struct far_object *far_find(const char *uri); /* NULL: not there */
/* There, with an ETag of its own; -ENOMEM. */
int far_put(const char *uri, const void *data, uint64_t bytes);
void far_remove(const char *uri);

/* Fixtures: the folder, a cache for indexes in it, and in both places arrays, a tree and shards. The end looks whether all was closed. */
int testing_setup(void **state);
int testing_teardown(void **state);
void testing_forget_cache(void);

extern char testing_folder[];
/* In both places: "x/y" is FOLDER/x/y and s3://bucket/x/y. */
void testing_add(const char *name, const void *data, uint64_t bytes);
/* An array of int32 of this shape ("(10, 3)"), with 240 bytes of payload; how long it is. */
#define TESTING_NPY_MAX 512u
size_t testing_npy(char ret[TESTING_NPY_MAX], const char *shape);
void testing_add_npy(const char *name, const char *shape);
void testing_add_tar(const char *name, const char *const *members, unsigned n);

/* An archive that grows; `data` is the caller's to free. payload NULL: zeros. */
struct testing_tar {
    char *data;
    uint64_t bytes, cap;
};
void testing_tar_member(struct testing_tar *t, const char *name, char type, uint64_t bytes,
                        const void *payload);
void testing_tar_end(struct testing_tar *t);

/* The index of `text`, in which each %s is s3://bucket, or the folder. */
int testing_build(const char *text, bool elsewhere, struct index *ret_ix, struct leat_error *err);
/* It is the same in both places, but for where the sources lie and when they were written. */
void testing_assert_same(const char *text);
/* It is not built: with this code, and a message that has `says` in it. */
void testing_refused(const char *text, int rc, const char *says);

#endif
