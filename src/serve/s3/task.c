/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Happy path: an operation makes its task work on a worker, comes back to the reactor's thread and answers;
 * when the last byte is with the kernel, `over` releases all.
 * Failure modes: the peer goes while a worker is busy: the task stays until the worker is done, then goes.
 * The workers' queue is full: 503. A body that breaks off: what was written of it is dropped, and nothing
 * becomes visible.
 * Invariants: a task is answered at most once; after `over` nothing touches the request.
 */
#include "serve/s3/task.h"

#include "base/log.h"

#include <stdio.h>
#include <strings.h>

/* --- life ------------------------------------------------------------------------------------------------------------------ */

void s3_task_free(struct s3_task *v)
{
    objects_unref(v->obj);
    bundling_free(v->bundling);
    objects_stream_close(v->read);
    body_fini(v);
    bytes_out_fini(&v->out);
    bytes_out_fini(&v->meta);
    if (v->remote)
        explicit_bzero(v->remote, strlen(v->remote)); /* there may be keys in it */
    free(v->remote);
    bytes_out_fini(&v->conditions_text);
    keys_unref(v->keys);
    free(v);
}

/* An abandoned put: a worker removes its file, as that may wait for the disk, and for a thread that writes
 * to it. */
struct dropped {
    struct http_work work;
    struct store_put *put;
};

static void dropped_run(struct http_work *work)
{
    objects_put_abort(TAKE_PTR(container_of(work, struct dropped, work)->put));
}

static void dropped_done(struct http_work *work, struct http_request *req)
{
    struct dropped *d = container_of(work, struct dropped, work);
    (void)req;
    objects_put_abort(d->put); /* workers that end do not run it */
    free(d);
}

static void drop_put(struct s3_task *v)
{
    struct dropped *d = v->body.put ? malloc(sizeof(*d)) : NULL;
    if (!d)
        return; /* s3_task_free does it */
    *d = (struct dropped){.work = {.run = dropped_run, .done = dropped_done}, .put = v->body.put};
    if (http_work_start(v->service->workers, v->ref, HTTP_PRIORITY_SHORT, &d->work) == 0)
        v->body.put = NULL;
    else
        free(d);
}

static void on_over(struct http_request *req, int rc)
{
    struct s3_task *v = req->user;
    (void)rc;
    v->req = NULL;
    if (v->working) {
        if (atomic_exchange(&v->hands, S3_TASK_OVER) ==
            S3_TASK_REACTOR) /* the worker is done: its message is on its way */
            drop_put(v);
        return; /* else the worker drops it */
    }
    if (get_unwait(v))
        return;
    drop_put(v);
    s3_task_free(v);
}

static void on_full(struct http_request *req, size_t got, bool last)
{
    body_full(req->user, got, last);
}

static const struct http_ops ops = {.full = on_full, .more = get_more, .over = on_over};

struct s3_task *s3_task_new(struct s3_service *service, struct http_request *req, const struct s3_call *call,
                            const struct sigv4_claim *claim, const struct sigv4_key *key, struct keys *keys,
                            const struct keys_user *user)
{
    if (budget_reserve(service->budget, sizeof(struct s3_task)) < 0)
        return NULL;
    struct s3_task *v = calloc(1, sizeof(*v));
    if (!v) {
        budget_release(service->budget, sizeof(struct s3_task));
        return NULL;
    }
    v->body.charged = sizeof(*v); /* given back by body_fini, with the rest */
    v->service = service;
    v->req = req;
    v->ref = http_request_ref(req);
    v->keys = keys_ref(keys);
    v->user = user;
    v->call = *call;
    v->at = (struct objects_key){v->call.bucket, v->call.key, v->call.key_len};
    v->how = claim->how;
    v->body.how = claim->body;
    v->body.sum = v->declared = SUM_NONE;
    memcpy(v->body.payload, claim->payload, sizeof(v->body.payload));
    memcpy(v->body.when, claim->when, sizeof(v->body.when));
    memcpy(v->body.signature, claim->signature, sizeof(v->body.signature));
    if (key)
        v->body.key = *key;
    req->ops = &ops;
    req->user = v;
    return v;
}

/* --- work ------------------------------------------------------------------------------------------------------------------ */

bool s3_task_try(struct s3_task *v, s3_task_fn *run)
{
    struct leat_error err = {0};
    int rc = run(v, &err);
    if (rc < 0)
        s3_task_fail_store(v, rc, &err);
    return v->code == S3_OK;
}

static void work_run(struct http_work *work)
{
    struct s3_task *v = container_of(work, struct s3_task, work);
    s3_task_try(v, v->run);
    if (atomic_exchange(&v->hands, S3_TASK_REACTOR) == S3_TASK_OVER)
        objects_put_abort(TAKE_PTR(v->body.put));
}

static void work_done(struct http_work *work, struct http_request *req)
{
    struct s3_task *v = container_of(work, struct s3_task, work);
    v->working = false;
    if (!req || !v->req) {
        v->req = NULL;
        s3_task_free(v);
        return;
    }
    if (work->cancelled)
        s3_task_fail(v, S3_UNAVAILABLE, "This server ends.");
    if (v->code != S3_OK)
        s3_task_refuse(v);
    else if (v->then)
        v->then(v);
}

static void work_by(struct s3_task *v, struct http_workers *workers, enum http_priority priority,
                    uint64_t party, s3_task_fn *run, void (*then)(struct s3_task *v))
{
    v->work = (struct http_work){.run = work_run, .done = work_done, .party = party};
    v->run = run;
    v->then = then;
    v->working = true;
    atomic_store(&v->hands, S3_TASK_WORKER);
    if (http_work_start(workers, v->ref, priority, &v->work) == 0)
        return;
    v->working = false;
    s3_task_fail(v, S3_SLOW_DOWN, NULL);
    s3_task_refuse(v);
}

void s3_task_run(struct s3_task *v, enum http_priority priority, s3_task_fn *run,
                 void (*then)(struct s3_task *v))
{
    work_by(v, v->service->workers, priority, 0, run, then);
}

/* The remote that it has to do with; 0: none. */
static uint64_t remote_of(const struct s3_task *v)
{
    uint64_t remote = objects_remote(v->service->objects, v->call.bucket);
    return remote || !v->from_bucket[0] ? remote : objects_remote(v->service->objects, v->from_bucket);
}

void s3_task_run_remote(struct s3_task *v, enum http_priority priority, s3_task_fn *run,
                        void (*then)(struct s3_task *v))
{
    uint64_t remote = remote_of(v);
    work_by(v, remote ? v->service->waiters : v->service->workers, priority, remote, run, then);
}

int s3_task_look(struct s3_task *v, const void **ret_meta, size_t *ret_len, struct leat_error *err)
{
    int rc = objects_open(v->service->objects, &v->at, true, &v->obj, &v->read, err);
    if (rc == 0 && v->read)
        rc = objects_stream_wait(v->read, err);
    if (rc < 0)
        return rc;
    const struct store_obj *view = v->obj ? v->obj : &v->read->view;
    v->info = view->info;
    *ret_meta = view->meta;
    *ret_len = view->meta_len;
    return 0;
}

/* --- failures -------------------------------------------------------------------------------------------------------------- */

bool s3_task_fail(struct s3_task *v, enum s3_code code, const char *message)
{
    if (v->code == S3_OK) {
        v->code = code;
        snprintf(v->message, sizeof(v->message), "%.255s", message ? message : "");
    }
    return false;
}

enum s3_code code_of_store(int rc)
{
    switch (rc) {
    case 0:
        return S3_OK;
    case STORE_NO_BUCKET:
        return S3_NO_SUCH_BUCKET;
    case STORE_NO_UPLOAD:
        return S3_NO_SUCH_UPLOAD;
    case STORE_EXISTS:
        return S3_BUCKET_EXISTS;
    case STORE_NOT_EMPTY:
        return S3_BUCKET_NOT_EMPTY;
    case STORE_PRECONDITION:
        return S3_PRECONDITION_FAILED;
    case LEAT_NOT_FOUND:
        return S3_NO_SUCH_KEY;
    case LEAT_NO_SPACE:
        return S3_STORAGE_FULL;
    case LEAT_INVALID:
        return S3_INVALID_ARGUMENT;
    case LEAT_STALE:
        return S3_INVALID_PART;
    case LEAT_BUSY: /* memory for bodies is taken */
    case -ENOMEM:
        return S3_SLOW_DOWN;
    case LEAT_TIMED_OUT:
        return S3_REMOTE_TIMEOUT;
    case TIER_REFUSED:
        return S3_REMOTE_REFUSED;
    case LEAT_PEER_GONE:
    case TIER_DOWN:
    case STORE_UNAVAILABLE: /* neither there nor not there */
        return S3_UNAVAILABLE;
    default:
        return S3_INTERNAL;
    }
}

/*
 * What the client is to hear beyond the code's own sentence, or NULL: its own mistake, or which remote fails. The address, the path and what the
 * remote said are for administrators; others may ask them.
 */
static const char *told_of(const struct s3_task *v, enum s3_code code, int rc, const char *why)
{
    if (rc == LEAT_CORRUPT)
        return "The object is damaged on the server's disk, and there is no other copy of it: store it "
               "again, "
               "or "
               "delete it.";
    if (rc == STORE_BUCKET_DAMAGED)
        return "The bucket's description is damaged on the server's disk; an administrator can create it "
               "again.";
    if (rc == STORE_UNAVAILABLE)
        return "A disk of the server has failed; its log has the cause. Store the object again, or try "
               "later when the disk is repaired.";
    bool remote = code == S3_UNAVAILABLE || code == S3_REMOTE_REFUSED || code == S3_REMOTE_TIMEOUT;
    if (!*why || !(remote || code == S3_INVALID_ARGUMENT))
        return NULL;
    if (v->user->admin || !(remote || remote_of(v)))
        return why;
    return code == S3_UNAVAILABLE        ? "The bucket's remote did not answer."
           : code == S3_INVALID_ARGUMENT ? "This cannot be done in a bucket with a remote; "
                                           "the server's log has the reason."
                                         : NULL;
}

void s3_task_fail_store(struct s3_task *v, int rc, const struct leat_error *err)
{
    enum s3_code code = code_of_store(rc);
    const char *why = err && err->message[0] ? err->message : "";
    const char *told = told_of(v, code, rc, why);
    bool ours =
        s3_code_status(code) >= 500 && code != S3_SLOW_DOWN; /* load is no error, and would fill a log */
    if (ours || (code == S3_INVALID_ARGUMENT && *why && told != why))
        log_warning_limited("s3: %s in %s: %s", s3_op_name(v->call.op), v->call.bucket,
                            *why ? why : strerror(-rc));
    s3_task_fail(v, code, told);
}

static struct http_text resource_of(const struct http_request *req)
{
    return req->path; /* escaped as it came, so it is plain text */
}

struct bytes_out *service_answer(struct http_request *req, unsigned status, const char id[S3_TASK_ID_TEXT])
{
    struct bytes_out *headers = http_respond(req, status);
    http_put_header(headers, "x-amz-request-id", id);
    /* An object that is a page must not act as one of ours: what it may ask here, unsigned, another may not (0127). */
    http_put_header(headers, "Content-Security-Policy", "sandbox");
    http_put_header(headers, "X-Content-Type-Options", "nosniff");
    return headers;
}

static void put_error(struct http_request *req, enum s3_code code, const char *message, const char *region,
                      const uint64_t *of_bytes, const char *id)
{
    struct bytes_out *headers = service_answer(req, s3_code_status(code), id), body = {0};
    struct http_text resource = resource_of(req);
    if (code == S3_SLOW_DOWN || code == S3_UNAVAILABLE)
        http_put_header(headers, "Retry-After", "1");
    if (region)
        http_put_header(headers, "x-amz-bucket-region", region);
    if (of_bytes) { /* RFC 9110, 15.5.17: what could have been asked for */
        char text[32];
        snprintf(text, sizeof(text), "bytes */%llu", (unsigned long long)*of_bytes);
        http_put_header(headers, "Content-Range", text);
    }
    if (code == S3_NOT_MODIFIED) {
        http_send_head(req, HTTP_BODY_UNKNOWN);
        return;
    }
    http_put_header(headers, "Content-Type", "application/xml");
    s3_error_put(&body, code, message, resource.data, resource.len, id, region);
    http_send_copy(req, body.data, body.failed ? 0 : body.len);
    bytes_out_fini(&body);
}

void service_refuse(struct http_request *req, enum s3_code code, const char *message, const char *region,
                    const char id[S3_TASK_ID_TEXT])
{
    put_error(req, code, message && *message ? message : NULL, region, NULL, id);
}

void service_refuse_range(struct http_request *req, uint64_t bytes, const char id[S3_TASK_ID_TEXT])
{
    put_error(req, S3_INVALID_RANGE, NULL, NULL, &bytes, id);
}

void s3_task_refuse(struct s3_task *v)
{
    if (v->answered) { /* the head is gone: a body that is too short is all that can be said */
        http_abort(v->req);
        return;
    }
    v->answered = true;
    put_error(v->req, v->code, v->message[0] ? v->message : NULL, NULL, NULL, v->id);
}

bool service_encrypts(const struct s3_service *service, const char *bucket)
{
    return service->disks_encrypted && !objects_remote(service->objects, bucket);
}

/* --- answers --------------------------------------------------------------------------------------------------------------- */

/* An object, or part of one. */
static bool makes_object(enum s3_op op)
{
    return op == S3_OP_PUT_OBJECT || op == S3_OP_COPY_OBJECT || op == S3_OP_CREATE_UPLOAD ||
           op == S3_OP_UPLOAD_PART || op == S3_OP_UPLOAD_PART_COPY || op == S3_OP_COMPLETE_UPLOAD;
}

struct bytes_out *s3_task_answer(struct s3_task *v, unsigned status)
{
    v->answered = true;
    struct bytes_out *headers = service_answer(v->req, status, v->id);
    if (makes_object(v->call.op) && service_encrypts(v->service, v->call.bucket))
        http_put_header(headers, "x-amz-server-side-encryption", "AES256");
    return headers;
}

void s3_task_send_xml(struct s3_task *v)
{
    s3_task_send_xml_dated(v, NULL);
}

void s3_task_send_xml_dated(struct s3_task *v, const char *modified)
{
    if (v->out.failed) {
        s3_task_fail(v, S3_SLOW_DOWN, NULL);
        s3_task_refuse(v);
        return;
    }
    struct bytes_out *headers = s3_task_answer(v, 200);
    http_put_header(headers, "Content-Type", "application/xml");
    if (modified)
        http_put_header(headers, "Last-Modified", modified);
    struct http_piece piece = {.data = v->out.data, .bytes = v->out.len};
    http_send(v->req, v->out.len, &piece, 1, true);
}

/* Of a list's entry: a key of 1,024 bytes that takes three times as much where it is escaped, and what stands beside it. */
#define LIST_ENTRY_BYTES (4 * KIB)

bool s3_task_charge_list(struct s3_task *v, const char *max_name)
{
    size_t len;
    uint64_t max = S3_LIST_MAX;
    const char *text = s3_call_param(&v->call, max_name, &len);
    if (text)
        http_text_u64((struct http_text){text, len}, &max);
    uint64_t bytes = (MIN(max, (uint64_t)S3_LIST_MAX) + 1) * LIST_ENTRY_BYTES;
    if (budget_reserve(v->service->budget, bytes) < 0)
        return s3_task_fail(v, S3_SLOW_DOWN, NULL);
    v->body.charged += bytes;
    return true;
}

void s3_task_send_empty(struct s3_task *v, unsigned status)
{
    s3_task_answer(v, status);
    http_send_copy(v->req, NULL, 0);
}

struct http_text s3_task_header(const struct s3_task *v, const char *name)
{
    return http_header(v->req->reader, v->req->head, name);
}

static struct http_text demand_of(const struct http_request *req, const struct s3_call *call,
                                  const char *name)
{
    struct http_text t = http_header(req->reader, req->head, name);
    for (unsigned i = 0; !t.data && i < call->nparams; i++) {
        const struct s3_param *p = &call->params[i];
        if (strcasecmp(call->text + p->name_at, name) == 0)
            t = (struct http_text){call->text + p->value_at, p->value_len};
    }
    return t;
}

struct http_text s3_task_demand(const struct s3_task *v, const char *name)
{
    return demand_of(v->req, &v->call, name);
}

void etag_header(struct bytes_out *headers, const char *etag)
{
    char quoted[STORE_ETAG_MAX + 3] = "\"";
    char *end = mempcpy(quoted + 1, etag, strnlen(etag, STORE_ETAG_MAX));
    memcpy(end, "\"", 2);
    http_put_header(headers, "ETag", quoted);
}

enum s3_code s3_task_may(struct s3_service *service, struct keys *keys, const struct keys_user *user,
                         const char *bucket, enum keys_right right)
{
    struct objects_bucket b;
    if (keys_may(keys, user, bucket, "", right))
        return S3_OK;
    if (!user->access)
        return S3_ACCESS_DENIED;
    int rc = objects_bucket_get(service->objects, bucket, &b, NULL);
    if (rc == STORE_NO_BUCKET && user->create) /* a user who may make it may learn that it does not exist */
        return S3_NO_SUCH_BUCKET;
    if (rc == STORE_BUCKET_DAMAGED) /* whose it is cannot be said */
        return S3_INTERNAL;
    return rc == 0 && keys_may(keys, user, bucket, b.owner, right) ? S3_OK : S3_ACCESS_DENIED;
}

bool s3_task_expected_owner(struct s3_service *service, const struct http_request *req,
                            const struct s3_call *call, const char *name, const char *bucket)
{
    struct objects_bucket b;
    struct http_text expected = demand_of(req, call, name);
    if (!expected.data || objects_bucket_get(service->objects, bucket, &b, NULL) < 0)
        return true;
    return http_text_is(expected, b.owner[0] ? b.owner : "anonymous");
}
