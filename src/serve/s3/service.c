/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Happy path: a request is routed, its signature checked, its right to do so looked up, all on the reactor's thread; an object that is open already is
 * answered there and then, the rest becomes a task.
 * Failure modes: each refusal is an <Error> document with its code; nothing is done, and no body is read.
 * Invariants: no operation begins before the claim was checked and the right was given; secrets, signatures and queries are in no log.
 */
#include "serve/s3/service.h"

#include "serve/s3/members.h"
#include "serve/s3/task.h"

#include <openssl/rand.h>
#include <stdio.h>

#define MEMBERS_BYTES (64 * MIB) /* of indexes of archives: a million members with short names */

int s3_service_new(const struct s3_service_config *config, struct s3_service **ret_service)
{
    struct s3_service *service = calloc(1, sizeof(*service));
    unsigned n = 0;
    if (!service)
        return -ENOMEM;
    service->objects = config->objects;
    service->keys = config->keys;
    service->workers = config->workers;
    service->waiters = config->waiters;
    service->budget = config->budget;
    service->site = config->site;
    service->disks_encrypted = config->disks_encrypted;
    snprintf(service->region, sizeof(service->region), "%s", config->region ? config->region : "us-east-1");
    RAND_bytes((uint8_t *)&service->id_seed, sizeof(service->id_seed));
    while (config->domains && config->domains[n])
        n++;
    service->domains = calloc(n + 1, sizeof(char *));
    for (unsigned i = 0; service->domains && i < n; i++) {
        service->domains[i] = strdup(config->domains[i]);
        if (!service->domains[i])
            n = UINT32_MAX - 1; /* ends the loop */
    }
    budget_init(&service->members_room, MEMBERS_BYTES);
    if (!service->domains || n == UINT32_MAX - 1 ||
        members_new(&service->members_room, &service->members) < 0) {
        s3_service_free(service);
        return -ENOMEM;
    }
    *ret_service = service;
    return 0;
}

void s3_service_free(struct s3_service *service)
{
    if (!service)
        return;
    for (char **d = service->domains; d && *d; d++)
        free(*d);
    free(service->domains);
    members_free(service->members);
    free(service);
}

/* An unpredictable sequence of numbers: splitmix64 over a counter and a random start. */
static void make_id(struct s3_service *service, char out[S3_TASK_ID_TEXT])
{
    static const char hex[] = "0123456789ABCDEF";
    uint64_t x = service->id_seed +
                 0x9e3779b97f4a7c15 * atomic_fetch_add_explicit(&service->ids, 1, memory_order_relaxed);
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    x ^= x >> 31;
    for (unsigned i = 0; i < 16; i++)
        out[i] = hex[x >> (60 - 4 * i) & 15];
    out[16] = 0;
}

/* --- authentication -------------------------------------------------------------------------------------------------------- */

static enum s3_code identify(struct s3_service *service, struct http_request *req, const struct s3_call *call,
                             struct keys *keys, struct sigv4_claim *claim, struct sigv4_key *ret_key,
                             const struct keys_user **ret_user, bool *ret_other_region)
{
    enum s3_code code =
        sigv4_claim_parse(claim, req->reader, req->head, call, service->region, time(NULL), ret_other_region);
    if (code != S3_OK)
        return code;
    *ret_user = keys_anonymous(keys);
    if (claim->how == SIGV4_ANONYMOUS)
        return S3_OK;
    if (claim->token.data)
        return S3_INVALID_TOKEN;
    *ret_user = keys_find(keys, claim->access_key);
    if (!*ret_user)
        return S3_INVALID_ACCESS_KEY;
    if (keys_signing(keys, *ret_user, claim->date, service->region, ret_key) < 0)
        return S3_INTERNAL;
    return sigv4_claim_check(claim, ret_key, req->reader, req->head);
}

/* --- what ------------------------------------------------------------------------------------------------------------------ */

enum need { NEED_READ, NEED_WRITE, NEED_OWN, NEED_CREATE, NEED_KEY };

static const struct operation {
    void (*begin)(struct s3_task *v);
    enum need need;
} operations[] = {
    [S3_OP_LIST_BUCKETS] = {op_list_buckets, NEED_KEY},
    [S3_OP_CREATE_BUCKET] = {op_create_bucket, NEED_CREATE},
    [S3_OP_HEAD_BUCKET] = {op_head_bucket, NEED_READ},
    [S3_OP_DELETE_BUCKET] = {op_delete_bucket, NEED_OWN},
    [S3_OP_GET_LOCATION] = {op_location, NEED_READ},
    [S3_OP_LIST_OBJECTS] = {op_list, NEED_READ},
    [S3_OP_LIST_OBJECTS_V2] = {op_list, NEED_READ},
    [S3_OP_LIST_VERSIONS] = {op_list, NEED_READ},
    [S3_OP_LIST_UPLOADS] = {op_list_uploads, NEED_WRITE},
    [S3_OP_DELETE_OBJECTS] = {op_delete_many, NEED_WRITE},
    [S3_OP_BATCH] = {op_batch, NEED_READ},
    [S3_OP_GET_OBJECT] = {op_get, NEED_READ},
    [S3_OP_HEAD_OBJECT] = {op_get, NEED_READ},
    [S3_OP_GET_ATTRIBUTES] = {op_attributes, NEED_READ},
    [S3_OP_PUT_OBJECT] = {op_put, NEED_WRITE},
    [S3_OP_COPY_OBJECT] = {op_copy, NEED_WRITE},
    [S3_OP_DELETE_OBJECT] = {op_delete, NEED_WRITE},
    [S3_OP_CREATE_UPLOAD] = {op_create_upload, NEED_WRITE},
    [S3_OP_UPLOAD_PART] = {op_upload_part, NEED_WRITE},
    [S3_OP_UPLOAD_PART_COPY] = {op_copy, NEED_WRITE},
    [S3_OP_COMPLETE_UPLOAD] = {op_complete_upload, NEED_WRITE},
    [S3_OP_ABORT_UPLOAD] = {op_abort_upload, NEED_WRITE},
    [S3_OP_LIST_PARTS] = {op_list_parts, NEED_WRITE},
    [S3_OP_DEFAULT_READ] = {op_default_read, NEED_READ},
};

static enum s3_code permit(struct s3_service *service, const struct s3_call *call, struct keys *keys,
                           const struct keys_user *user)
{
    switch (operations[call->op].need) {
    case NEED_KEY:
        return user->access || user->admin ? S3_OK : S3_ACCESS_DENIED;
    case NEED_CREATE:
        return user->create ? S3_OK : S3_ACCESS_DENIED;
    case NEED_OWN:
        return s3_task_may(service, keys, user, call->bucket, KEYS_OWN);
    case NEED_WRITE:
        return s3_task_may(service, keys, user, call->bucket, KEYS_WRITE);
    case NEED_READ:
        break;
    }
    return s3_task_may(service, keys, user, call->bucket, KEYS_READ);
}

/* Does it change something, or send a document? Then its demands are checked. */
static bool demands(const struct s3_call *call)
{
    return (operations[call->op].need != NEED_READ && call->op != S3_OP_LIST_BUCKETS) ||
           call->op == S3_OP_BATCH;
}

/* May a request without a signature be answered? Reads change nothing, and neither does what only fetches by POST. */
static bool unsigned_is_fine(const struct s3_service *service, const struct http_request *req,
                             const struct s3_call *call, char why[SITE_WHY_MAX])
{
    bool reads = req->is_head || strcmp(req->method, "GET") == 0 || call->op == S3_OP_BATCH;
    return site_admits(service->site, req, !reads, why);
}

void s3_service_request(struct s3_service *service, struct http_request *req)
{
    struct s3_call call;
    struct sigv4_claim claim;
    struct sigv4_key key;
    char id[S3_TASK_ID_TEXT];
    const struct keys_user *user = NULL;
    char message[SITE_WHY_MAX] = "";
    bool other_region = false;
    make_id(service, id);
    /*
     * The server does not wait for an empty body, so it sends no "100 Continue". botocore before 1.29 or so
     * then takes the status of this answer for that of the next request on the connection, and waits a minute
     * for the rest of it: let it have none.
     */
    if (req->reader->expects_continue && req->body_bytes == 0)
        http_close_after(req);
    bool copy = http_header(req->reader, req->head, "x-amz-copy-source").data != NULL;
    struct http_text host = http_header(req->reader, req->head, "host");
    bool understood =
        s3_call_parse(&call, req->method, req->target, host, (const char *const *)service->domains, copy);
    if (!understood && call.code != S3_METHOD_NOT_ALLOWED && call.code != S3_NOT_IMPLEMENTED) {
        service_refuse(req, call.code, NULL, NULL, id);
        return;
    }
    struct keys *keys = keyring_get(service->keys);
    enum s3_code code = identify(service, req, &call, keys, &claim, &key, &user, &other_region);
    bool is_signed = claim.how != SIGV4_ANONYMOUS;
    snprintf(message, sizeof(message), "%s", claim.why);
    if (code == S3_OK && !is_signed && !unsigned_is_fine(service, req, &call, message))
        code = S3_ACCESS_DENIED;
    if (code == S3_OK && understood)
        code = permit(service, &call, keys, user);
    if (code == S3_OK && understood && call.bucket[0] && call.op != S3_OP_CREATE_BUCKET &&
        !s3_task_expected_owner(service, req, &call, "x-amz-expected-bucket-owner", call.bucket))
        code = S3_ACCESS_DENIED;
    if (code == S3_OK && !understood)
        code = call.code;
    if (code == S3_OK && demands(&call))
        code = demands_check(service, req, &call, message, sizeof(message));
    if (code != S3_OK) {
        service_refuse(req, code, message, other_region ? service->region : NULL, id);
    } else if (!get_at_once(service, req, &call, is_signed, id)) {
        struct s3_task *v = s3_task_new(service, req, &call, &claim, is_signed ? &key : NULL, keys, user);
        if (v) {
            memcpy(v->id, id, sizeof(v->id));
            operations[call.op].begin(v);
        } else {
            service_refuse(req, S3_SLOW_DOWN, NULL, NULL, id);
        }
    }
    if (is_signed)
        sigv4_key_wipe(&key);
    keys_unref(keys);
}

void s3_service_refuse(struct s3_service *service, const struct http_refusal *refusal,
                       struct bytes_out *headers, struct bytes_out *body)
{
    char id[S3_TASK_ID_TEXT];
    enum s3_code code = refusal->status == 411   ? S3_MISSING_LENGTH
                        : refusal->status == 408 ? S3_REQUEST_TIMEOUT
                        : refusal->status == 501 ? S3_NOT_IMPLEMENTED
                        : refusal->status == 503 ? S3_SLOW_DOWN
                                                 : S3_INVALID_REQUEST;
    make_id(service, id);
    http_put_header(headers, "Content-Type", "application/xml");
    http_put_header(headers, "x-amz-request-id", id);
    s3_error_put(body, code, refusal->message, refusal->target.data, 0, id, NULL);
}
