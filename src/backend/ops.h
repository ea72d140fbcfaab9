/* SPDX-License-Identifier: Apache-2.0 */
/* ops.h: what an implementation of backend.h fills in; each operation is what backend.h says of the function of its name. */
#ifndef BACKEND_OPS_H
#define BACKEND_OPS_H

#include "backend/backend.h"

struct backend_ops {
    const char *name;
    int (*list)(struct backend *b, const char *uri, bool recursive, const char *after,
                int (*object)(void *user, const struct backend_object *object), void *user,
                struct leat_error *err);
    void (*op_submit)(struct backend *b, struct backend_op *op);
    void (*op_cancel)(struct backend *b, struct backend_op *op);
    /* Submitted and waited for; where it needs no thread of the session's, done at once. */
    int (*op_run)(struct backend *b, struct backend_op *op, struct leat_error *err);
    int (*first)(struct backend *b, const char *uri, void *dst, uint64_t room, bool whole,
                 struct backend_stat *ret_stat, uint64_t *ret_bytes,
                 struct leat_error *err); /* NULL: stat costs nothing */
    int (*open)(struct backend *b, const char *uri, const char *etag, uint64_t bytes,
                struct backend_file **ret_file, struct leat_error *err);
    void (*close)(struct backend_file *file);
    void (*expect_all)(struct backend_file *file); /* NULL: there is nothing to compare with */
    void (*expect_modified)(struct backend_file *file, int64_t modified); /* NULL: ETags say it */
    void (*submit)(struct backend *b, struct backend_read *read);
    void (*cancel)(struct backend *b, struct backend_read *read);
    int (*wait)(struct backend *b, unsigned min_done, int timeout_ms);
    void (*wake)(struct backend *b);
    int64_t (*pread)(struct backend *b, struct backend_file *file, void *dst, uint64_t bytes, uint64_t offset,
                     struct leat_error *err);
    int (*put)(struct backend *b, const char *uri, int fd, uint64_t offset, uint64_t bytes,
               const char *headers, char *ret_etag, struct leat_error *err);
    int (*bucket_create)(struct backend *b, const char *uri, const char *remote,
                         struct leat_error *err); /* NULL: it cannot */
    void (*stats)(const struct backend *b, struct backend_stats *ret_stats);
    void (*free)(struct backend *b);
};

/* The first member of a session, and of its handles, which may outlive it. */
struct backend {
    const struct backend_ops *ops;
};
struct backend_file {
    const struct backend_ops *ops;
};

static inline struct pieces backend_read_place(const struct backend_read *read)
{
    return read->dst ? pieces_one(read->dst, read->bytes) : pieces_of(read->pieces, read->npieces);
}

/*
 * An address as messages show it: without what stands before an @ or behind a ?, which may be secret
 * (presigned addresses). Returns out, which is cut where `cap` bytes do not suffice; strlen(uri) + 4 always do.
 */
char *backend_uri_shown(const char *uri, char *out, size_t cap);
#define BACKEND_SHOWN 301u /* a buffer of as many bytes as a message has of it */
/* For implementations: it ended with this, and done() is due. */
void backend_op_ended(struct backend_op *op, int rc, const struct leat_error *err, struct list *ended);
/* done() of those that are in the list now; how many. *pending is one less for each, before its done(). */
unsigned backend_ops_deliver(struct list *ended, unsigned *pending);

int backend_s3_new(const struct backend_config *config, struct backend **ret_backend, struct leat_error *err);
int backend_dir_new(const struct backend_config *config, struct backend **ret_backend,
                    struct leat_error *err);
int backend_stored_new(const struct backend_config *config, struct backend **ret_backend,
                       struct leat_error *err);

#endif
