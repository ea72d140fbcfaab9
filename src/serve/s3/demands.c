/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a request demands by x-amz- headers beyond what its operation reads: checksums, storage classes,
 * encryption, locks. Features that this server lacks are refused by name: a client that relies on one gets an
 * error, and no demand is dropped.
 */
#include "serve/s3/task.h"

#include <stdio.h>
#include <strings.h>

struct demand {
    struct http_text name, value;
    bool encrypted; /* objects of this bucket lie on encrypted disks */
    bool remote;    /* the bucket has one, which is asked for none of this */
    char *message;  /* of the refusal */
    size_t message_cap;
};

static bool named(const struct demand *d, const char *name)
{
    return http_text_is_case(d->name, name);
}

static bool begins(struct http_text t, const char *prefix)
{
    size_t n = strlen(prefix);
    return t.len >= n && strncasecmp(t.data, prefix, n) == 0;
}

static enum s3_code refuse(struct demand *d, enum s3_code code, const char *why)
{
    snprintf(d->message, d->message_cap, "%.*s: %.*s: %s", (int)MIN(d->name.len, (size_t)60), d->name.data,
             (int)MIN(d->value.len, (size_t)40), d->value.data ? d->value.data : "", why);
    return code;
}

/* --- checksums ------------------------------------------------------------------------------------------------------------- */

static const char sums_here[] =
    "this checksum is not implemented; CRC32, CRC32C, CRC64NVME, SHA1 and SHA256 are";

static bool sum_header(struct http_text name)
{
    for (unsigned k = 0; k < SUM_KINDS; k++) {
        if (http_text_is_case(name, sum_names[k].header))
            return true;
    }
    return false;
}

static enum s3_code check_sums(struct demand *d)
{
    static const char prefix[] = "x-amz-checksum-";
    if (named(d, "x-amz-checksum-algorithm") || named(d, "x-amz-sdk-checksum-algorithm"))
        return sum_by_name(d->value.data, d->value.len) == SUM_NONE ? refuse(d, S3_NOT_IMPLEMENTED, sums_here)
                                                                    : S3_OK;
    if (named(d, "x-amz-trailer"))
        return begins(d->value, prefix) && !memchr(d->value.data, ',', d->value.len) && !sum_header(d->value)
                   ? refuse(d, S3_NOT_IMPLEMENTED, sums_here)
                   : S3_OK; /* several are refused where one is read */
    bool fine = !begins(d->name, prefix) || sum_header(d->name) || named(d, "x-amz-checksum-type") ||
                named(d, "x-amz-checksum-mode");
    return fine ? S3_OK : refuse(d, S3_NOT_IMPLEMENTED, sums_here);
}

/* --- the rest -------------------------------------------------------------------------------------------------------------- */

/* An object in a class that has to be restored first would be one that no client reads: such classes are not here. */
static enum s3_code check_class(struct demand *d)
{
    static const char *const kept[] = {"STANDARD",   "REDUCED_REDUNDANCY",  "STANDARD_IA",
                                       "ONEZONE_IA", "INTELLIGENT_TIERING", "GLACIER_IR"};
    if (!named(d, "x-amz-storage-class"))
        return S3_OK;
    if (d->remote && !http_text_is(d->value, "STANDARD"))
        return refuse(d, S3_NOT_IMPLEMENTED, "the bucket's remote is not asked for it");
    for (unsigned i = 0; i < ARRAY_LEN(kept); i++) {
        if (http_text_is(d->value, kept[i]))
            return S3_OK;
    }
    if (http_text_is(d->value, "GLACIER") || http_text_is(d->value, "DEEP_ARCHIVE"))
        return refuse(d, S3_NOT_IMPLEMENTED, "nothing is archived here");
    return refuse(d, S3_INVALID_STORAGE_CLASS, "the storage class you specified is not valid");
}

static enum s3_code check_encryption(struct demand *d)
{
    if (!named(d, "x-amz-server-side-encryption"))
        return S3_OK;
    if (!http_text_is(d->value, "AES256"))
        return refuse(d, S3_NOT_IMPLEMENTED, "keys of the request or of a key service are not implemented");
    return d->encrypted ? S3_OK
                        : refuse(d, S3_NOT_IMPLEMENTED,
                                 "this server encrypts nothing; where its disks are encrypted, "
                                 "disks_encrypted = yes of [store] states it, for buckets without a remote");
}

/* Refuses headers of missing features, with any value but `fine`. */
static enum s3_code check_others(struct demand *d)
{
    static const char *const fine[][2] = {{"x-amz-acl", "private"},
                                          {"x-amz-acl", "bucket-owner-full-control"},
                                          {"x-amz-tagging-directive", "COPY"},
                                          {"x-amz-bucket-object-lock-enabled", "false"},
                                          {"x-amz-object-ownership", "BucketOwnerEnforced"},
                                          {"x-amz-server-side-encryption", "AES256"}};
    static const char *const prefixes[] = {"x-amz-acl",
                                           "x-amz-server-side-encryption",
                                           "x-amz-copy-source-server-side-encryption",
                                           "x-amz-object-lock-",
                                           "x-amz-grant-",
                                           "x-amz-object-ownership",
                                           "x-amz-tagging",
                                           "x-amz-website-redirect-location",
                                           "x-amz-bucket-object-lock-",
                                           "x-amz-write-offset-bytes",
                                           "x-amz-if-match-",
                                           "x-amz-mfa"};
    for (unsigned i = 0; i < ARRAY_LEN(fine); i++) {
        if (named(d, fine[i][0]) && http_text_is_case(d->value, fine[i][1]))
            return S3_OK;
    }
    for (unsigned i = 0; i < ARRAY_LEN(prefixes); i++) {
        if (begins(d->name, prefixes[i]))
            return refuse(d, S3_NOT_IMPLEMENTED,
                          "ACLs, object locks, tags, keys of the request, redirections and appends are not "
                          "implemented; the keys file has the permissions");
    }
    return S3_OK;
}

static enum s3_code check(struct demand *d)
{
    static enum s3_code (*const checks[])(struct demand *) = {check_sums, check_class, check_encryption,
                                                              check_others};
    enum s3_code code = S3_OK;
    if (!begins(d->name, "x-amz-"))
        return S3_OK;
    for (unsigned i = 0; code == S3_OK && i < ARRAY_LEN(checks); i++)
        code = checks[i](d);
    return code;
}

/* Are these read from headers alone? The object of a link with the source of a copy would be an empty one. */
static bool header_only(const struct demand *d)
{
    return begins(d->name, "x-amz-copy-source") || named(d, "x-amz-trailer");
}

/* SDKs that make a link put such headers into its query, where they mean the same (s3_task_demand). */
enum s3_code demands_check(const struct s3_service *service, const struct http_request *req,
                           const struct s3_call *call, char *ret_message, size_t cap)
{
    struct demand d = {.encrypted = service_encrypts(service, call->bucket),
                       .remote = objects_remote(service->objects, call->bucket) != 0,
                       .message = ret_message,
                       .message_cap = cap};
    enum s3_code code = S3_OK;
    for (unsigned i = 0; code == S3_OK && i < req->reader->nheaders; i++) {
        http_header_at(req->reader, req->head, i, &d.name, &d.value);
        code = check(&d);
    }
    for (unsigned i = 0; code == S3_OK && i < call->nparams; i++) {
        const struct s3_param *p = &call->params[i];
        d.name = (struct http_text){call->text + p->name_at, p->name_len};
        d.value = (struct http_text){call->text + p->value_at, p->value_len};
        code = header_only(&d)
                   ? refuse(&d, S3_NOT_IMPLEMENTED, "it is read from a header, not from the query")
                   : check(&d);
    }
    return code;
}
