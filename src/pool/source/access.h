/* SPDX-License-Identifier: Apache-2.0 */
/*
 * access.h: the settings and identity with which a remote source is read. What a client found in its own
 * environment comes with its OPEN, stays with the set that was opened, and is wiped with its last reference.
 * Reasons: docs/decisions/. Any thread.
 *
 * Never in a log, a status or a message; to another host only sealed with the cluster's token.
 */
#ifndef POOL_SOURCE_ACCESS_H
#define POOL_SOURCE_ACCESS_H

#include "base/base.h"
#include "base/bytes.h"
#include "wire/leat/messages.h"

struct access;
struct backend;
struct store;

/* This node's own store, as a place that sets are loaded from ("store://bucket/prefix"). */
struct access_store {
    struct store *store; /* NULL: this daemon has none */
    /* May this user of this host read the bucket? NULL: only the daemon's user, and root. Any thread. */
    bool (*may_read)(void *user, uint32_t uid, const char *bucket);
    void *user;
    const char *disk_engine;
    unsigned disk_depth;
};

/* [s3] of leatd.conf. Strings are the caller's, and outlive the pool. */
struct access_config {
    char **
        allowed; /* hosts that may be asked: "host", "*.domain" or "*"; NULL-terminated. NULL: in a system daemon none, else any */
    unsigned nallowed;
    /* What a set is read with whose opener brought no credentials: a system daemon has none of its own unless `own`. */
    bool own, anonymous;
    char *endpoint, *region, *style, *ca_file, *profile;
    unsigned connections; /* of each fill thread to one host; 0: 16 */
};

/*
 * Takes the contents of m (m is empty afterwards, also on failure). `renew`: this process may look again for
 * credentials that a user's tools would find (PROTO_ACCESS_FOUND), as it is the same user's; else openers of
 * the set must bring new ones.
 */
int access_new(struct proto_access *m, bool renew, struct access **ret_access);
/* As the user of this process: from its configuration, environment and files; keys when they are needed. */
int access_own(const struct access_config *config, struct access **ret_access, struct leat_error *err);
/* To the store; `config` outlives it. */
int access_stored(const struct access_store *config, struct access **ret_access, struct leat_error *err);
/* May this user read these objects of it? LEAT_DENIED, LEAT_UNSUPPORTED (there is no store); what to do. */
int access_store_check(const struct access_store *config, uint32_t uid, const char *uri,
                       struct leat_error *err);
bool access_is_store(const struct access *access);
bool access_store_uri(const char *uri); /* "store://..." */
/* Does it identify the requester: by keys, or as anonymous? */
bool access_signed(struct access *access);
/*
 * May this be read by this daemon? `system`: only hosts that are allowed, and no file that the opener named. LEAT_DENIED, and what the
 * administrator would have to say. Sessions follow no redirection to other hosts then.
 */
int access_check(const struct access_config *config, bool system, struct access *access, const char *uri,
                 struct leat_error *err);
struct access *access_ref(struct access *access);
void access_unref(struct access *access); /* NULL is fine */

/* The same service, as far as settings tell: an address means the same object. NULL equals none. */
bool access_same(const struct access *a, const struct access *b);
/* ... and the same identity. */
bool access_equal(struct access *a, struct access *b);
/* For another node: proto_access. The caller wipes it. */
int access_put(struct access *access, struct bytes_out *out);
/* Another one each time its keys change. */
unsigned access_version(const struct access *access);
/* Its keys are about to expire, and may be looked for here (access_renew). */
bool access_due(struct access *access);
/* Looks for new keys where that is allowed, at most every half minute. Blocks: for a thread of its own. */
void access_renew(struct access *access);
bool access_expired(struct access *access);
/* When; 0: never, or not known. */
int64_t access_expires(struct access *access);
/* A client opened the same again: its credentials are fresher. */
void access_freshen(struct access *access, struct access *from);

/* A session with these settings, which asks here whenever it needs credentials: `access` must outlive it. NULL: plain http(s), and S3 as
 * anybody. `cancelled`: as in struct backend_config. LEAT_INVALID: a setting. */
int access_backend(struct access *access, unsigned connections, const atomic_bool *cancelled,
                   struct backend **ret_backend, struct leat_error *err);

#endif
