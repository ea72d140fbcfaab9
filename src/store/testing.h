/* SPDX-License-Identifier: Apache-2.0 */
/* testing.h: what the store's tests share: a folder of their own, objects whose bytes follow from a number. */
#ifndef STORE_TESTING_H
#define STORE_TESTING_H

#include "store/store.h"

/* A new empty folder under $TMPDIR or /var/tmp; removed with all in it by testing_rmdir. */
void testing_mkdir(char out[256]);
/* The same, in memory where there is /dev/shm: for tests that flush much. */
void testing_mkdir_fast(char out[256]);
/* n, or fewer in sanitized programs. */
unsigned testing_rounds(unsigned n);
/* Files in DIR/objects. */
unsigned testing_count_objects(const char *dir);
void testing_rmdir(const char *dir);
struct store *testing_open(const char *const *paths, unsigned n, const struct store_io *io);
struct store *testing_open1(const char *dir);
/* `bytes` bytes that follow from `seed`. */
void testing_fill(void *data, size_t bytes, uint64_t seed);
/* 0, or the put's error. */
int testing_put(struct store *s, const char *bucket, const char *key, uint64_t seed, size_t bytes);
/* These bytes; `commit` may be NULL. Errors fail the test. */
void testing_put_bytes(struct store *s, const char *bucket, const char *key, const void *data, size_t bytes,
                       const struct store_commit *commit);
/* The upload's parts made its object. */
int testing_complete(struct store *s, const char *bucket, const char *key, const char *id,
                     const struct store_part *parts, unsigned n, struct store_info *ret_info);
/* Reads all of it: 0 and it is what testing_put stored with that seed; -EILSEQ: other bytes; else get's error. */
int testing_check(struct store *s, const char *bucket, const char *key, uint64_t seed, size_t bytes);

/* Where the object lies, at most `cap` bytes with its NUL; it has to be there. */
void testing_object_file(struct store *s, const char *bucket, const char *key, char *out, size_t cap);
/* Flips one bit of a file. */
void testing_flip(const char *name, off_t at);

/* A fixture of cmocka: a store on a real folder, with a bucket "photos". */
struct testing_store {
    char dir[256];
    struct store *s;
};
int testing_setup(void **state);
int testing_teardown(void **state);
/* As after a restart. */
void testing_reopen(struct testing_store *f);

#endif
