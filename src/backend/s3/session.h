/* SPDX-License-Identifier: Apache-2.0 */
/* session.h: inside of a backend session: between session.c (requests, retries), read.c, list.c, op.c, first.c, put.c and bucket.c. */
#ifndef BACKEND_S3_SESSION_H
#define BACKEND_S3_SESSION_H

#include "backend/ops.h"
#include "http/client/http_client.h"
#include "aws/credentials.h"
#include "backend/s3/throttle.h"
#include "base/rng.h"
#include "loop/loop.h"
#include "wire/s3/s3.h"

#define REDIRECTS_MAX       8u
#define CONNECTIONS_DEFAULT 16u
#define BLOCKS_EACH         8u  /* under way for each connection */
#define CANCEL_MS           100 /* so often backend_config.cancelled is looked at */

struct s3_session;

/* Where a bucket's requests go: another region than the session's is learnt from the server once. */
struct bucket {
    struct list node;
    char name[S3_BUCKET_MAX + 1];
    struct s3_endpoint endpoint;
    struct http_origin origin;
    char host_header[340];
    struct sigv4_key key; /* of today, this region */
    unsigned generation;  /* of the credentials that key was derived from */
};

/* An address taken apart: an object of a bucket, or a file of a plain server. */
struct target {
    struct bucket *bucket;     /* NULL: a plain server */
    char *key;                 /* of the object; the path (escaped) and query of a plain server's file */
    struct http_origin origin; /* of a plain server */
    char host_header[340];
    char *uri;            /* as given */
    char *shown;          /* for messages: a query may be a secret (presigned addresses) */
    struct target *moved; /* where a plain server sent us: asked there first from then on. NULL: nowhere */
    unsigned moves;       /* of `moved` */
};
int target_parse(struct s3_session *b, const char *uri, struct target *ret_target, struct leat_error *err);
void target_fini(struct target *t);

struct s3_exchange;
/*
 * One request with its tries. The owner fills what it says, request_start does the rest: signs, sends, waits and tries again; follows a bucket
 * to its region; gets new credentials when they have expired. finished() runs once, on the session's loop, never inside request_start.
 */
struct s3_exchange {
    /* in */
    struct s3_session *b;
    struct target *target;
    struct s3_request say; /* bucket and key are filled in */
    const void *body;
    size_t body_len;
    bool of_bucket; /* the target's key is no part of the path: lists */
    bool small, repeatable;
    size_t text_max; /* of an answer that goes nowhere else; 0: 8 MiB of a bucket's, 64 KiB of an object's */
    uint64_t work_bytes; /* that the server has to handle before it answers: a longer deadline */
    uint64_t until_ns;   /* the owner's own deadline; 0: it has none */
    /* On a good answer's head (2xx), as http_call.on_head; on others it is not asked. */
    int (*on_head)(struct s3_exchange *rq, const struct http_reader *reader, const char *buf,
                   struct leat_error *err);
    struct pieces dst;
    uint64_t dst_bytes;
    int (*sink)(struct s3_exchange *rq, const void *data, size_t len);
    void (*restart)(struct s3_exchange *rq); /* before another try: forget what came. May be NULL */
    /* A good answer is all here: is it what it should be? A negative answer is one more reason to try again. May be NULL */
    int (*check)(struct s3_exchange *rq, struct leat_error *err);
    void (*finished)(struct s3_exchange *rq, int rc, const struct leat_error *err);

    /* out */
    int status;
    struct bytes_out text; /* of an answer that went nowhere else; the owner frees it */

    /* the session's */
    struct http_call call;
    struct bytes_out head;
    struct loop_timer again;
    struct list node;                      /* session.requests */
    unsigned tries, redirects, generation; /* of the credentials it was signed with */
    unsigned moves;                        /* the target's, when it was sent */
    char sent_region[65];                  /* the bucket's, when it was sent */
    char *location;                        /* of a redirection */
    bool good, renewed, skewed, returned, running;
    uint64_t deadline_ns, sent_ns, retry_after_s;
    int before; /* how the try before ended, and why; 0: there was none */
    char before_why[200];
    char region[65];
    time_t server_time;
};
void request_start(struct s3_exchange *rq);
/* finished() will not run; the destination is left alone from here on. */
void request_cancel(struct s3_exchange *rq);
void request_fini(struct s3_exchange *rq);

/* backend.h's session of S3 and plain web servers. */
struct s3_session {
    struct backend base;
    struct backend_config config;
    char *profile;
    struct loop *loop;
    struct http_client *http;
    struct aws_settings settings;
    struct credentials credentials;
    bool timeout_given, have_credentials, refused; /* refused: a server said that they have expired */
    unsigned generation;                           /* of them */
    int64_t skew_s;                                /* the servers' clock, less ours */
    uint64_t renew_ns;  /* not before this are credentials looked for again that still hold */
    int no_credentials; /* why there were none, a moment ago */
    struct leat_error why_none;
    struct list buckets, requests;
    struct list asking;     /* backend_read.node: of which some bytes were not asked for yet, in order */
    struct list asked;      /* ... all were */
    uint64_t waiting_bytes; /* of all reads, not asked for yet */
    uint64_t asked_bytes;   /* of all blocks under way */
    struct list ended_ops;  /* backend_op.node: of what could not be begun: done() is due */
    unsigned npending;      /* reads and operations that are not over */
    unsigned nblocks, nsmall, max_blocks;
    struct throttle *throttle; /* of blocks under way: goes down when a server says slow down */
    struct list free_blocks;
    struct loop_timer pump;
    bool woken;     /* backend_wake */
    bool ending;    /* s3_free */
    uint64_t ended; /* reads and operations */
    uint64_t rng;
    struct backend_stats stats;
};

/* Credentials that hold for some minutes more. 0 also for an anonymous session. */
int session_credentials(struct s3_session *b, struct leat_error *err);
/* Runs the loop until *over (0), or until the user cancels (-ECANCELED: the caller cancels the request). */
int session_run(struct s3_session *b, const bool *over, struct leat_error *err);

static inline struct s3_session *session_of(struct backend *b)
{
    return container_of(b, struct s3_session, base);
}

/* Facts about an object in an answer's head, beside its length. */
#define S3_HEADER_NAME_MAX 256u
void s3_stat_headers(const struct http_reader *reader, const char *buf, struct backend_stat *stat);

/* backend_ops, by file. */
int s3_list(struct backend *base, const char *uri, bool recursive, const char *after,
            int (*object)(void *user, const struct backend_object *object), void *user,
            struct leat_error *err);
void s3_op_submit(struct backend *base, struct backend_op *op);
void s3_op_cancel(struct backend *base, struct backend_op *op);
int s3_op_run(struct backend *base, struct backend_op *op, struct leat_error *err);
/* done() of one that was under way, as the last thing. */
void s3_op_over(struct s3_session *b, struct backend_op *op, int rc, const struct leat_error *err);
/* put.c. An error: it is not begun. */
int s3_copy_start(struct s3_session *b, struct backend_op *op, struct leat_error *err);
void s3_copy_cancel(struct backend_op *op);
int s3_first(struct backend *base, const char *uri, void *dst, uint64_t room, bool sum,
             struct backend_stat *ret_stat, uint64_t *ret_bytes, struct leat_error *err);
int s3_open(struct backend *base, const char *uri, const char *etag, uint64_t bytes,
            struct backend_file **ret_file, struct leat_error *err);
void s3_close(struct backend_file *file);
void s3_expect_all(struct backend_file *file);
void s3_expect_modified(struct backend_file *file, int64_t modified);
void s3_submit(struct backend *base, struct backend_read *read);
void s3_cancel(struct backend *base, struct backend_read *read);
/* The session's timer `pump`. */
void s3_pump_now(struct loop_timer *timer);
int s3_wait(struct backend *base, unsigned min_done, int timeout_ms);
void s3_wake(struct backend *base);
int64_t s3_pread(struct backend *base, struct backend_file *file, void *dst, uint64_t bytes, uint64_t offset,
                 struct leat_error *err);
int s3_put(struct backend *base, const char *uri, int fd, uint64_t offset, uint64_t bytes,
           const char *headers, char *ret_etag, struct leat_error *err);
int s3_bucket_create(struct backend *base, const char *uri, const char *remote, struct leat_error *err);
void s3_free(struct backend *base);

#endif
