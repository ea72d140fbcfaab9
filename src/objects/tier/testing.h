/* SPDX-License-Identifier: Apache-2.0 */
/*
 * testing.h: what the cold tier's tests share: a store and a tier over it, a folder that stands for a remote,
 * and an S3 server with scripted behaviour. An error in here fails the test that runs.
 */
#ifndef OBJECTS_TIER_TESTING_H
#define OBJECTS_TIER_TESTING_H

#include <pthread.h>

#include "http/client/testing.h"
#include "objects/tier/tier.h"
#include "store/testing_io.h"

#define WORLD_BIG (5 * MIB + 77)

extern struct world {
    char top[256]; /* a folder of the test's own: the store, and "remote" */
    struct store *store;
    struct jobs *jobs;
    struct tier *tier;
    uint64_t capacity;         /* of the store, from the next world_begin on */
    unsigned push_queue;       /* of the tier; 0: as it comes */
    struct budget *budget;     /* of the tier; NULL: its own */
    struct store_fault *fault; /* its files, where they are not to be the real ones; the same */
} world;
extern char world_big[WORLD_BIG]; /* bytes of the S3 server's one object */

/* Fixtures of cmocka: of all tests of a program, and of each. */
int world_group_setup(void **state);
int world_setup(void **state);
int world_teardown(void **state);
/* A restart is an end and a beginning. */
void world_begin(void);
void world_end(void);

/* --- in front of a folder ------------------------------------------------------------------------------------------------------ */

/* A bucket in front of it; `more`: further settings, ", \"check\": ...". */
void world_front(const char *bucket, const char *more);
/* An object at the remote: made, or looked at. */
void world_there(const char *key, const void *data, size_t len);
bool world_is_there(const char *key, const char *text);

bool world_is_here(const char *bucket, const char *key);
/* The same, a moment after readers had all of it: when no fetch is under way. */
bool world_gets_here(const char *bucket, const char *key);
int world_get(const char *bucket, const char *key, char *dst, size_t cap, size_t *ret_len,
              struct leat_error *err);
void world_get_is(const char *bucket, const char *key, const char *text);
/* commit NULL: a plain one. */
int world_put(const char *bucket, const char *key, const char *text, const struct store_commit *commit,
              struct leat_error *err);
uint32_t world_flags(const char *bucket, const char *key);
/* Until nothing is dirty. */
void world_wait_pushed(void);

/* --- in front of an S3 server, whose every key is world_big; but of "small..." its first 1,000 bytes, of "empty" none ---------------------------------------------------------------------- */

extern struct web_server world_web;
/* Its script, and the requests that it got. */
extern struct world_far {
    _Atomic unsigned heads, gets, puts, deletes; /* that it has heard */
    _Atomic unsigned version; /* of the object; a PUT makes the next one, though its bytes are not kept */
    atomic_bool hold_heads, hold_puts, hold_deletes; /* are not to be answered yet */
    atomic_bool gone;                                /* by a DELETE, until the next PUT */
    _Atomic unsigned put_status;                     /* of each PUT's answer; 0: it is taken */
    _Atomic uint64_t bytes;                          /* sent */
    _Atomic uint64_t allowed;                        /* bytes of the object that may be answered yet */
    _Atomic uint64_t held_from, held_to;             /* nor these */
    _Atomic unsigned status;                         /* of each answer; 0: as it should be */
    _Atomic bool hang_up, lie;                       /* connections end; its checksum is wrong */
    _Atomic bool
        no_etags; /* nor checksums: Last-Modified says the version; from the second on its bytes are zeros */
    _Atomic unsigned changes; /* so often there is a new version when the beginning of one is answered */
} world_far;
/* Starts it, with a bucket that caches it. The caller also calls world_end and web_stop(&world_web). */
void world_web_front(const char *bucket, const char *more);
/* Other settings for it. */
void world_web_settings(const char *bucket, const char *more);

/* Until it has heard one of what `count`, one of its first four, counts. */
void world_far_hears(const _Atomic unsigned *count);

/* Reads "bkt/k" and compares. */
struct world_reader {
    pthread_t thread;
    int rc;
    bool same;
};
void *world_reader_main(void *reader);

#endif
