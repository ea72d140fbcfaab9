/* SPDX-License-Identifier: Apache-2.0 */
/*
 * task.h: one request that is not answered at once, and functions that the operations share.
 *
 *   op_*(v) on the reactor's thread ─▶ s3_task_run(v, run, then) ─▶ run(v) on a worker ─▶ then(v) on the reactor's thread ─▶ answer_*
 *
 * `run` fails by a code of the store and err, or sets v->code (and message) itself; then the task answers with that error instead of calling
 * `then`. A task lives until its request is over and no work of it is under way. `run` touches nothing of the request: what it needs is in
 * the task.
 */
#ifndef SERVE_S3_TASK_H
#define SERVE_S3_TASK_H

#include "serve/s3/body.h"
#include "serve/s3/service.h"
#include "wire/http/http_cond.h"
#include "wire/s3/s3_server.h"
#include "wire/s3/sigv4_check.h"

struct s3_service {
    struct objects *objects;
    struct keyring *keys;
    struct http_workers *workers;
    struct http_workers *waiters; /* for remote work: a silent remote blocks only these */
    struct budget *budget;
    const struct site *site;
    struct members *members;    /* indexes of archives */
    struct budget members_room; /* memory for them */
    _Atomic unsigned pinned;    /* objects that batches hold open */
    char region[65];
    bool disks_encrypted;
    char **domains;
    uint64_t id_seed;
    _Atomic uint64_t ids;
};

#define S3_TASK_ID_TEXT 17

/* The thread that releases a task's put when its request is over. */
enum s3_task_hands { S3_TASK_REACTOR, S3_TASK_WORKER, S3_TASK_OVER };

struct s3_task {
    struct s3_service *service;
    struct http_request *req; /* NULL: over */
    struct http_ref ref;
    struct http_work work;
    bool working, answered;
    _Atomic int
        hands; /* enum s3_task_hands: S3_TASK_WORKER until `run` has ended, or, before that, S3_TASK_OVER */
    s3_task_fn *run;
    void (*then)(struct s3_task *v);

    /* The user, and the operation. */
    struct keys *keys; /* a reference */
    const struct keys_user *user;
    char id[S3_TASK_ID_TEXT];
    struct s3_call call;
    struct objects_key at; /* in `call` */
    enum sigv4_how how;
    struct s3_task_body body;

    /* Its result. */
    enum s3_code code;
    char message[256]; /* "" : the usual one */
    struct bytes_out out;
    struct store_info info;

    /* Of reading. */
    struct store_obj *obj;
    struct tier_read *read; /* it is on its way from the bucket's remote; obj is NULL then */
    struct tier_waiter waiter;
    struct http_message told; /* the waiter's: on its way to the reactor's thread while `posted` */
    bool posted;
    uint64_t first, end, sent,
        checked; /* of the object: [first, end) is asked for, checked and sent so far */
    bool idle;   /* idle: the server wants more, and nothing is checked yet */
    bool anew;   /* the local copy could not be read, so it was opened once more: the remote may have it */

    struct bundling *bundling; /* batch.c: a member of an archive, or many objects; NULL: neither */

    unsigned attributes;             /* of an object: attributes.c */
    unsigned parts_after, parts_max; /* which page of its parts */

    /* Of writing. */
    struct bytes_out meta; /* pairs of store.h */
    char if_match[STORE_ETAG_MAX + 3];
    bool if_none_match;
    char storage_class[24]; /* "": STANDARD */

    /* Of making a bucket. */
    char *remote; /* tier.h: its remote, or NULL */

    /* Of copying. */
    char from_bucket[S3_BUCKET_MAX + 1], from_key[S3_KEY_MAX + 1];
    size_t from_len;
    bool replace_meta, copy_ranged;
    uint64_t copy_first, copy_last;
    struct bytes_out conditions_text;
    struct http_conditions conditions; /* in conditions_text */

    /* Of uploads. */
    unsigned part;          /* its number; 0: a whole object */
    enum sum_kind declared; /* the algorithm that the upload was begun with, or SUM_NONE */
    bool declared_full;     /* of all bytes; else a checksum of the parts' checksums */
    const char *sum_type;   /* CreateMultipartUpload: "FULL_OBJECT" or "COMPOSITE" */
    enum sum_kind expected; /* CompleteMultipartUpload: of the whole */
    char expected_value[SUM_TEXT + 8], expected_type[16]; /* "" : not said */
    bool expects_bytes;
    uint64_t expected_bytes;
    char upload[STORE_UPLOAD_ID_TEXT];
    char host[300];
};

/* --- task.c ------------------------------------------------------------------------------------------------------------- */

/* NULL: the budget or the heap has no memory; nothing was answered. Takes a reference to keys of its own. */
struct s3_task *s3_task_new(struct s3_service *service, struct http_request *req, const struct s3_call *call,
                            const struct sigv4_claim *claim, const struct sigv4_key *key, struct keys *keys,
                            const struct keys_user *user);
/* See above; long: it may take more than some milliseconds. then NULL: nothing. */
void s3_task_run(struct s3_task *v, enum http_priority priority, s3_task_fn *run,
                 void (*then)(struct s3_task *v));
/* The same for a run that, in a bucket in front of another, may wait for that one; `priority` is for other buckets. */
void s3_task_run_remote(struct s3_task *v, enum http_priority priority, s3_task_fn *run,
                        void (*then)(struct s3_task *v));
/* `run` here and now. False: it failed, and v->code is set. */
bool s3_task_try(struct s3_task *v, s3_task_fn *run);
/*
 * The facts of its object, here or at the bucket's remote: v->info, and its meta, which stays until the task
 * is freed. Nothing is fetched. On a worker, once.
 */
int s3_task_look(struct s3_task *v, const void **ret_meta, size_t *ret_len, struct leat_error *err);
/* On a worker or the service: remembers the first failure. message may be NULL. Returns false: a run that returns it has told all. */
bool s3_task_fail(struct s3_task *v, enum s3_code code, const char *message);
/* The same for a code of the store; what is the server's fault is logged. */
void s3_task_fail_store(struct s3_task *v, int rc, const struct leat_error *err);
/* Answers with v->code. */
void s3_task_refuse(struct s3_task *v);
/* Begins an answer: with the request's id. */
struct bytes_out *s3_task_answer(struct s3_task *v, unsigned status);
/* 200 and v->out as XML. */
void s3_task_send_xml(struct s3_task *v);
void s3_task_send_xml_dated(struct s3_task *v, const char *modified); /* with Last-Modified, unless NULL */
/* Charges the memory of a list's answer, for as many entries as the parameter says, or S3_LIST_MAX. False:
 * there is no room; v->code is set. */
bool s3_task_charge_list(struct s3_task *v, const char *max_name);
/* A head alone, 200 or 204. */
void s3_task_send_empty(struct s3_task *v, unsigned status);
/* The request's header; data NULL: none. Reactor's thread, before the answer. */
struct http_text s3_task_header(const struct s3_task *v, const char *name);
/* The same, or the query's parameter of that name, where SDKs that make a link put it. */
struct http_text s3_task_demand(const struct s3_task *v, const char *name);
/* May the user do this with that bucket? S3_OK, or the error to answer. [reactor's thread or a worker] */
enum s3_code s3_task_may(struct s3_service *service, struct keys *keys, const struct keys_user *user,
                         const char *bucket, enum keys_right right);
/*
 * The header or parameter `name` has the bucket's owner that the client expects, as the id in ListBuckets
 * ("anonymous": of buckets without an owner). True if it is right or absent, and if there is no such bucket,
 * as another check reports that.
 */
bool s3_task_expected_owner(struct s3_service *service, const struct http_request *req,
                            const struct s3_call *call, const char *name, const char *bucket);
/* Do objects of this bucket lie only on disks that were stated to be encrypted? */
bool service_encrypts(const struct s3_service *service, const char *bucket);
void etag_header(struct bytes_out *headers, const char *etag);
void s3_task_free(struct s3_task *v); /* over, and no worker has it */

/* Begins an answer: with the request's id, and headers that keep a browser from running an object. */
struct bytes_out *service_answer(struct http_request *req, unsigned status, const char id[S3_TASK_ID_TEXT]);
/* An error for a request without a task. */
void service_refuse(struct http_request *req, enum s3_code code, const char *message, const char *region,
                    const char id[S3_TASK_ID_TEXT]);
/* InvalidRange, of something of so many bytes. */
void service_refuse_range(struct http_request *req, uint64_t bytes, const char id[S3_TASK_ID_TEXT]);
enum s3_code code_of_store(int rc);

/* --- the operations: called on the reactor's thread with a fresh task ------------------------------------------------------- */

void op_get(struct s3_task *v);          /* and HEAD */
void get_more(struct http_request *req); /* http_ops.more */
/* The task is over: no more messages about its object. True: one is on its way, and the task ends when it
 * arrives. */
bool get_unwait(struct s3_task *v);
/* Answers at once if all of the object is at hand; false: call op_get. */
bool get_at_once(struct s3_service *service, struct http_request *req, const struct s3_call *call,
                 bool is_signed, const char id[S3_TASK_ID_TEXT]);
/* batch.c: with ?archpath; POST /bucket?batch; the next instalment of either. */
void op_member(struct s3_task *v);
void op_batch(struct s3_task *v);
void bundling_more(struct s3_task *v);
void bundling_free(struct bundling *bundling);
void op_attributes(struct s3_task *v);
void op_put(struct s3_task *v);
void op_copy(struct s3_task *v);
void op_delete(struct s3_task *v);
void op_delete_many(struct s3_task *v);
void op_list_buckets(struct s3_task *v);
void op_create_bucket(struct s3_task *v);
void op_head_bucket(struct s3_task *v);
void op_delete_bucket(struct s3_task *v);
void op_location(struct s3_task *v);
void op_default_read(struct s3_task *v);
void op_list(struct s3_task *v);
void op_list_uploads(struct s3_task *v);
void op_create_upload(struct s3_task *v);
void op_upload_part(struct s3_task *v);
void op_list_parts(struct s3_task *v);
void op_complete_upload(struct s3_task *v);
void op_abort_upload(struct s3_task *v);

/* demands.c: S3_OK, or the error for x-amz- headers that demand a missing feature; *ret_message: a
 * sentence for the client. */
enum s3_code demands_check(const struct s3_service *service, const struct http_request *req,
                           const struct s3_call *call, char *ret_message, size_t cap);
/* put.c: a PUT's meta and conditions, from its headers. False: v->code is set. */
bool put_read_headers(struct s3_task *v);
/* Begins v->body.put, of that many bytes: an object, or part v->part of an upload. */
int put_begin(struct s3_task *v, uint64_t bytes, struct leat_error *err);
/* Commits it with its checksum, meta and conditions; v->info is its own then. */
int put_commit(struct s3_task *v, struct leat_error *err);
/* The storage class that was asked for, into v->meta. */
void put_class(struct s3_task *v);
/* multipart.c: v->upload and v->part from the query, and v->declared of that upload. False: v->code is set. */
bool upload_read_part(struct s3_task *v);
/* The algorithm of a part, or of the object to be, is not its upload's. Returns false. */
bool sum_mismatch(struct s3_task *v, enum sum_kind actual);
/* The checksum of an object or a part: its text, and whether it is of all bytes; SUM_NONE: none. */
enum sum_kind sum_of_meta(const void *meta, size_t len, const char **ret_value, bool *ret_full);
/* The checksum of this kind that the request says its body or object has. */
struct http_text sum_demand(const struct s3_task *v, enum sum_kind kind);
/* Pairs of store.h. */
void meta_put(struct bytes_out *meta, const char *name, size_t name_len, const char *value, size_t value_len);

#endif
