/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keys.h: users and permissions. A file in the form of AWS's shared credentials, so that AWS's tools read it as well: a section a user, with
 * the user's permissions.
 *
 *   [default]                              [team]                              [anonymous]
 *   aws_access_key_id = LEATQ3...          aws_access_key_id = LEATX9...       read = public-*
 *   aws_secret_access_key = ...            aws_secret_access_key = ...
 *   access = admin                         access = create
 *                                          read = shared train-*
 *                                          write = scratch
 *
 * admin: everything. create: may make buckets, and owns those; the owner of a bucket may do everything in it. write includes read. Names of buckets may have
 * "*" in them. [anonymous] has no key: the rights of every request.
 *
 * Any thread; a table never changes, and is replaced as a whole. Nothing here logs a secret.
 */
#ifndef SERVE_S3_KEYS_H
#define SERVE_S3_KEYS_H

#include "base/base.h"
#include "wire/s3/sigv4.h"

#define KEYS_NAME_MAX  64u
#define KEYS_USERS_MAX 4096u

enum keys_right { KEYS_READ, KEYS_WRITE, KEYS_OWN /* delete the bucket */ };

struct keys_user {
    char name[KEYS_NAME_MAX + 1]; /* of the section; also the name of a bucket's owner */
    char *access, *secret;        /* NULL: anonymous */
    bool admin, create;
    char **read, **write; /* NULL-terminated, or NULL */
    unsigned nread, nwrite;
    struct keys_derived { /* under the table's lock */
        struct sigv4_key key;
        char region[65];
    } derived[2]; /* of today, and of yesterday or tomorrow, as clocks differ */
};

struct keys;
/* No user has a key; `open`: every request is allowed. */
int keys_none(bool open, struct keys **ret_keys);
struct keys *keys_ref(struct keys *keys);
void keys_unref(struct keys *keys); /* NULL is fine */
/* Makes the file, with one administrator "default", and its folder. -EEXIST: there is one. */
int keys_create(const char *path, struct leat_error *err);

/* NULL: no such key. Valid as long as the table. */
const struct keys_user *keys_find(const struct keys *keys, const char *access);
/* By the name of the section; NULL: no user with a key has this name. */
const struct keys_user *keys_named(const struct keys *keys, const char *name);
const struct keys_user *keys_anonymous(const struct keys *keys);
/* The signing key of a user for a claim's date; kept for the next time. */
int keys_signing(struct keys *keys, const struct keys_user *user, const char date[9], const char *region,
                 struct sigv4_key *ret_key);
/* owner: the name of the bucket's, or "" (unknown; then only the file counts). It includes the rights of
 * [anonymous]. */
bool keys_may(const struct keys *keys, const struct keys_user *user, const char *bucket, const char *owner,
              enum keys_right right);

/* The current table, replaced when the file changes. */
struct keyring;
/* path NULL: no user has a key, and `open` says whether every request is allowed. LEAT_NOT_FOUND,
 * LEAT_DENIED (others may read the file), LEAT_INVALID with the line. */
int keyring_new(const char *path, bool open, struct keyring **ret_ring, struct leat_error *err);
void keyring_free(struct keyring *ring);
struct keys *keyring_get(struct keyring *ring); /* with a reference */
/* Reads the file again if it has changed; 1: it had. On failure the old table stays. */
int keyring_check(struct keyring *ring, struct leat_error *err);

#endif
