/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which operation a request means.
 *
 * Happy path: the target's query is cut at "&", each side of "=" unescaped into one buffer; the path is unescaped into bucket and key; the method and the
 * first sub-resource of the query find the operation.
 * Failure modes: a broken escape, a NUL, bytes that are no UTF-8, and what does not fit are codes, with what was understood so far.
 * Invariants: a key is bytes, nothing more: "..", "//" and a leading "/" are part of it, and no code here makes a path of it. "+" is a plus in a
 * path, and a space in a query.
 */
#include "base/utf8.h"
#include "wire/s3/s3_server.h"
#include "wire/s3/xml.h"

#include <strings.h>

/* --- sub-resources ------------------------------------------------------------------------------------------------------ */

/* What a GET says of something that no bucket (first) or object (second) of ours has. */
static const struct subresource {
    const char *name;
    enum s3_code bucket, object; /* S3_OK: s3_default_put. By name. */
} subresources[] = {
    {"accelerate", S3_OK, S3_NOT_IMPLEMENTED},
    {"acl", S3_OK, S3_OK},
    {"analytics", S3_NOT_IMPLEMENTED, S3_NOT_IMPLEMENTED},
    {"attributes", S3_NOT_IMPLEMENTED, S3_NOT_IMPLEMENTED},
    {"cors", S3_NO_CORS, S3_NOT_IMPLEMENTED},
    {"encryption", S3_NO_ENCRYPTION, S3_NOT_IMPLEMENTED},
    {"intelligent-tiering", S3_NOT_IMPLEMENTED, S3_NOT_IMPLEMENTED},
    {"inventory", S3_NOT_IMPLEMENTED, S3_NOT_IMPLEMENTED},
    {"legal-hold", S3_NOT_IMPLEMENTED, S3_NO_OBJECT_LOCK},
    {"lifecycle", S3_NO_LIFECYCLE, S3_NOT_IMPLEMENTED},
    {"logging", S3_OK, S3_NOT_IMPLEMENTED},
    {"metrics", S3_NOT_IMPLEMENTED, S3_NOT_IMPLEMENTED},
    {"notification", S3_OK, S3_NOT_IMPLEMENTED},
    {"object-lock", S3_NO_OBJECT_LOCK, S3_NOT_IMPLEMENTED},
    {"ownershipControls", S3_NO_OWNERSHIP, S3_NOT_IMPLEMENTED},
    {"policy", S3_NO_BUCKET_POLICY, S3_NOT_IMPLEMENTED},
    {"policyStatus", S3_NO_BUCKET_POLICY, S3_NOT_IMPLEMENTED},
    {"publicAccessBlock", S3_NO_PUBLIC_ACCESS_BLOCK, S3_NOT_IMPLEMENTED},
    {"renameObject", S3_NOT_IMPLEMENTED, S3_NOT_IMPLEMENTED},
    {"replication", S3_NO_REPLICATION, S3_NOT_IMPLEMENTED},
    {"requestPayment", S3_OK, S3_NOT_IMPLEMENTED},
    {"restore", S3_NOT_IMPLEMENTED, S3_NOT_IMPLEMENTED},
    {"retention", S3_NOT_IMPLEMENTED, S3_NO_OBJECT_LOCK},
    {"select", S3_NOT_IMPLEMENTED, S3_NOT_IMPLEMENTED},
    {"session", S3_NOT_IMPLEMENTED, S3_NOT_IMPLEMENTED},
    {"tagging", S3_NO_TAGS, S3_OK},
    {"torrent", S3_NOT_IMPLEMENTED, S3_NOT_IMPLEMENTED},
    {"versioning", S3_OK, S3_NOT_IMPLEMENTED},
    {"versions", S3_NOT_IMPLEMENTED, S3_NOT_IMPLEMENTED},
    {"website", S3_NO_WEBSITE, S3_NOT_IMPLEMENTED},
};

static int by_name(const void *name, const void *subresource)
{
    return strcmp(name, ((const struct subresource *)subresource)->name);
}

static const struct subresource *subresource_of(const struct s3_call *call)
{
    for (unsigned p = 0; p < call->nparams; p++) {
        const struct subresource *found = bsearch(call->text + call->params[p].name_at, subresources,
                                                  ARRAY_LEN(subresources), sizeof(subresources[0]), by_name);
        if (found)
            return found;
    }
    return NULL;
}

/* A document that is empty but for its root, or nearly so. */
static const struct {
    const char *subject, *root, *inside;
} defaults[] = {
    {"accelerate", "AccelerateConfiguration", ""},
    {"logging", "BucketLoggingStatus", ""},
    {"notification", "NotificationConfiguration", ""},
    {"requestPayment", "RequestPaymentConfiguration", "<Payer>BucketOwner</Payer>"},
    {"tagging", "Tagging", "<TagSet></TagSet>"},
    {"versioning", "VersioningConfiguration", ""},
};

static void put_acl(struct bytes_out *out, const char *owner)
{
    http_put(out, "<AccessControlPolicy xmlns=\"" S3_NAMESPACE "\"><Owner>");
    s3_element(out, "ID", owner, strlen(owner));
    s3_element(out, "DisplayName", owner, strlen(owner));
    http_put(out, "</Owner><AccessControlList><Grant><Grantee "
                  "xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" xsi:type=\"CanonicalUser\">");
    s3_element(out, "ID", owner, strlen(owner));
    s3_element(out, "DisplayName", owner, strlen(owner));
    http_put(out, "</Grantee><Permission>FULL_CONTROL</Permission></Grant></AccessControlList>"
                  "</AccessControlPolicy>");
}

bool s3_default_put(struct bytes_out *out, const struct s3_call *call, const char *owner)
{
    if (call->code != S3_OK)
        return false;
    http_put(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    if (strcmp(call->subject, "acl") == 0) {
        put_acl(out, owner);
        return true;
    }
    for (unsigned i = 0; i < ARRAY_LEN(defaults); i++) {
        if (strcmp(call->subject, defaults[i].subject) != 0)
            continue;
        http_put(out, "<");
        http_put(out, defaults[i].root);
        http_put(out, " xmlns=\"" S3_NAMESPACE "\">");
        http_put(out, defaults[i].inside);
        http_put(out, "</");
        http_put(out, defaults[i].root);
        http_put(out, ">");
        return true;
    }
    return false;
}

/* --- where: bucket and key ----------------------------------------------------------------------------------------------- */

/* The bucket in front of a domain, or an empty text. The port and the case of the host do not matter. */
static struct http_text bucket_of_host(struct http_text host, const char *const *domains)
{
    size_t len = 0;
    while (len < host.len && host.data[len] != ':')
        len++;
    for (; domains && *domains; domains++) {
        size_t n = strlen(*domains);
        if (len > n + 1 && host.data[len - n - 1] == '.' &&
            strncasecmp(host.data + len - n, *domains, n) == 0)
            return (struct http_text){host.data, len - n - 1};
    }
    return (struct http_text){0};
}

/* Unescaped into out with a NUL behind it; false: broken, a NUL inside, or more than cap - 1 bytes (then *ret_len is cap). */
static bool unescape(struct http_text text, bool plus, char *out, size_t cap, size_t *ret_len)
{
    size_t n = 0;
    *ret_len = 0;
    for (size_t i = 0; i < text.len; i++) {
        char c = text.data[i];
        if (c == '%') {
            int byte = http_escaped_byte(text.data + i, text.len - i);
            if (byte <= 0)
                return false;
            c = (char)byte;
            i += 2;
        } else if (plus && c == '+') {
            c = ' ';
        }
        if (!c)
            return false;
        if (n + 1 >= cap) {
            *ret_len = cap;
            return false;
        }
        out[n++] = c;
    }
    out[n] = 0;
    *ret_len = n;
    return true;
}

static enum s3_code parse_bucket(struct http_text text, char out[S3_BUCKET_MAX + 1])
{
    size_t len;
    if (!unescape(text, false, out, S3_BUCKET_MAX + 1, &len)) {
        out[0] = 0;
        return S3_INVALID_BUCKET;
    }
    return S3_OK;
}

static enum s3_code parse_key(struct http_text text, char out[S3_KEY_MAX + 1], size_t *ret_len)
{
    if (unescape(text, false, out, S3_KEY_MAX + 1, ret_len))
        return utf8_valid(out) ? S3_OK : S3_INVALID_URI;
    enum s3_code code = *ret_len > S3_KEY_MAX ? S3_KEY_TOO_LONG : S3_INVALID_URI;
    *ret_len = 0;
    out[0] = 0;
    return code;
}

static enum s3_code parse_path(struct s3_call *call, struct http_text path, struct http_text host,
                               const char *const *domains)
{
    if (path.len == 0 || path.data[0] != '/')
        return S3_INVALID_URI;
    path.data++;
    path.len--;
    struct http_text bucket = bucket_of_host(host, domains);
    bool in_host = bucket.len > 0;
    if (!in_host) {
        const char *slash = path.len ? memchr(path.data, '/', path.len) : NULL;
        bucket = (struct http_text){path.data, slash ? (size_t)(slash - path.data) : path.len};
        size_t skip = MIN(bucket.len + 1, path.len);
        path.data += skip;
        path.len -= skip;
    }
    enum s3_code code = parse_bucket(bucket, call->bucket);
    if (code != S3_OK)
        return code;
    for (char *c = call->bucket; in_host && *c; c++)
        *c = (char)(*c >= 'A' && *c <= 'Z' ? *c | 0x20 : *c); /* names of hosts have no case */
    call->has_key = path.len > 0;
    if (call->has_key && !call->bucket[0])
        return S3_INVALID_BUCKET; /* "//key" */
    return parse_key(path, call->key, &call->key_len);
}

static enum s3_code parse_query(struct s3_call *call, struct http_text query)
{
    size_t used = 0;
    for (size_t at = 0; at < query.len;) {
        const char *amp = memchr(query.data + at, '&', query.len - at);
        size_t end = amp ? (size_t)(amp - query.data) : query.len;
        if (end > at) {
            const char *eq = memchr(query.data + at, '=', end - at);
            size_t name_end = eq ? (size_t)(eq - query.data) : end, n;
            struct http_text name = {query.data + at, name_end - at};
            struct http_text value = {eq ? eq + 1 : NULL, eq ? end - name_end - 1 : 0};
            if (call->nparams == S3_QUERY_PARAMS)
                return S3_INVALID_ARGUMENT;
            struct s3_param *p = &call->params[call->nparams];
            if (!unescape(name, true, call->text + used, sizeof(call->text) - used, &n))
                return S3_INVALID_URI;
            p->name_at = (uint16_t)used;
            p->name_len = (uint16_t)n;
            used += n + 1;
            if (used >= sizeof(call->text) ||
                !unescape(value, true, call->text + used, sizeof(call->text) - used, &n))
                return S3_INVALID_URI;
            p->value_at = (uint16_t)used;
            p->value_len = (uint16_t)n;
            used += n + 1;
            call->nparams++;
            if (used >= sizeof(call->text))
                return S3_INVALID_URI;
            if (!utf8_valid(call->text + p->value_at))
                return S3_INVALID_ARGUMENT;
        }
        at = end + 1;
    }
    return S3_OK;
}

const char *s3_call_param(const struct s3_call *call, const char *name, size_t *ret_len)
{
    for (unsigned i = 0; i < call->nparams; i++) {
        const char *here = call->text + call->params[i].name_at;
        if (*here == *name && strcmp(here, name) == 0) {
            if (ret_len)
                *ret_len = call->params[i].value_len;
            return call->text + call->params[i].value_at;
        }
    }
    return NULL;
}

static bool has(const struct s3_call *call, const char *name)
{
    return s3_call_param(call, name, NULL) != NULL;
}

/* --- which operation ------------------------------------------------------------------------------------------------------ */

/*
 * A sub-resource that is unknown, or not with this method: "?name" of a request that changes something. To do what is done without it
 * would be another thing: neither DELETE /bucket?newSetting nor DELETE /bucket?uploads takes a bucket away.
 */
static bool unknown_subresource(const struct s3_call *call, bool post)
{
    static const char *const posted[] = {"uploads", "delete", "batch"};
    for (unsigned p = 0; p < call->nparams; p++) {
        const char *name = call->text + call->params[p].name_at;
        bool ours = call->params[p].value_len > 0 || strcmp(name, "versionId") == 0;
        for (unsigned i = 0; i < ARRAY_LEN(posted); i++) {
            if (strcmp(name, posted[i]) == 0)
                ours = post;
        }
        if (strcmp(name, "uploadId") == 0)
            ours = call->has_key;
        if (!ours)
            return true;
    }
    return false;
}

static enum s3_op service_op(struct s3_call *call, const char *method)
{
    if (strcmp(method, "GET") == 0)
        return S3_OP_LIST_BUCKETS;
    call->code = S3_METHOD_NOT_ALLOWED;
    return S3_OP_NONE;
}

static enum s3_op bucket_op(struct s3_call *call, const char *method)
{
    if (strcmp(method, "GET") == 0) {
        if (has(call, "location"))
            return S3_OP_GET_LOCATION;
        if (has(call, "uploads"))
            return S3_OP_LIST_UPLOADS;
        const char *type = s3_call_param(call, "list-type", NULL);
        return type && strcmp(type, "2") == 0 ? S3_OP_LIST_OBJECTS_V2 : S3_OP_LIST_OBJECTS;
    }
    if (strcmp(method, "HEAD") == 0)
        return S3_OP_HEAD_BUCKET;
    if (strcmp(method, "PUT") == 0)
        return S3_OP_CREATE_BUCKET;
    if (strcmp(method, "DELETE") == 0)
        return S3_OP_DELETE_BUCKET;
    bool post = strcmp(method, "POST") == 0;
    if (post && has(call, "delete"))
        return S3_OP_DELETE_OBJECTS;
    if (post && has(call, "batch"))
        return S3_OP_BATCH;
    call->code = post ? S3_NOT_IMPLEMENTED : S3_METHOD_NOT_ALLOWED; /* POST: a browser's form */
    return S3_OP_NONE;
}

static enum s3_op object_op(struct s3_call *call, const char *method, bool copy)
{
    bool upload = has(call, "uploadId");
    if (strcmp(method, "GET") == 0)
        return upload ? S3_OP_LIST_PARTS : S3_OP_GET_OBJECT;
    if (strcmp(method, "HEAD") == 0)
        return S3_OP_HEAD_OBJECT;
    if (strcmp(method, "PUT") == 0 && upload)
        return copy ? S3_OP_UPLOAD_PART_COPY : S3_OP_UPLOAD_PART;
    if (strcmp(method, "PUT") == 0)
        return copy ? S3_OP_COPY_OBJECT : S3_OP_PUT_OBJECT;
    if (strcmp(method, "DELETE") == 0)
        return upload ? S3_OP_ABORT_UPLOAD : S3_OP_DELETE_OBJECT;
    bool post = strcmp(method, "POST") == 0;
    if (post && has(call, "uploads"))
        return S3_OP_CREATE_UPLOAD;
    if (post && upload)
        return S3_OP_COMPLETE_UPLOAD;
    call->code = S3_METHOD_NOT_ALLOWED;
    return S3_OP_NONE;
}

/* The sub-resources that are an operation of their own. */
static enum s3_op read_op(const struct s3_call *call, const struct subresource *sub)
{
    if (!call->has_key && strcmp(sub->name, "versions") == 0)
        return S3_OP_LIST_VERSIONS;
    if (call->has_key && strcmp(sub->name, "attributes") == 0)
        return S3_OP_GET_ATTRIBUTES;
    return S3_OP_NONE;
}

static bool other_version(const struct s3_call *call)
{
    const char *version = s3_call_param(call, "versionId", NULL);
    return version && strcmp(version, "null") != 0 && *version;
}

static enum s3_op find_op(struct s3_call *call, const char *method, bool copy)
{
    const struct subresource *sub = call->bucket[0] ? subresource_of(call) : NULL;
    enum s3_op op = sub && strcmp(method, "GET") == 0 ? read_op(call, sub) : S3_OP_NONE;
    if (sub)
        call->subject = sub->name;
    if (sub && op == S3_OP_NONE) {
        call->code = call->has_key ? sub->object : sub->bucket;
        if (strcmp(method, "GET") == 0 && call->code != S3_NOT_IMPLEMENTED)
            return S3_OP_DEFAULT_READ;
        call->code = S3_NOT_IMPLEMENTED;
        return S3_OP_NONE;
    }
    if (other_version(call)) {
        call->code = S3_NO_SUCH_VERSION;
        return S3_OP_NONE;
    }
    if (op != S3_OP_NONE)
        return op;
    if (!call->bucket[0])
        return service_op(call, method);
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0 &&
        unknown_subresource(call, strcmp(method, "POST") == 0)) {
        call->code = S3_NOT_IMPLEMENTED;
        return S3_OP_NONE;
    }
    if (strcmp(method, "PUT") == 0 && has(call, "partNumber") && !has(call, "uploadId")) {
        call->code = S3_INVALID_ARGUMENT; /* a part of nothing, and not the whole object */
        return S3_OP_NONE;
    }
    return call->has_key ? object_op(call, method, copy) : bucket_op(call, method);
}

bool s3_call_parse(struct s3_call *call, const char *method, struct http_text target, struct http_text host,
                   const char *const *domains, bool copy)
{
    call->op = S3_OP_NONE;
    call->code = S3_OK;
    call->subject = "";
    call->has_key = false;
    call->key_len = 0;
    call->nparams = 0;
    call->bucket[0] = call->key[0] = 0;
    const char *mark = target.len ? memchr(target.data, '?', target.len) : NULL;
    call->path_len = mark ? (size_t)(mark - target.data) : target.len;
    struct http_text query = {mark ? mark + 1 : NULL, mark ? target.len - call->path_len - 1 : 0};
    enum s3_code code = parse_path(call, (struct http_text){target.data, call->path_len}, host, domains);
    if (code == S3_OK)
        code = parse_query(call, query);
    if (code == S3_OK) {
        call->op = find_op(call, method, copy);
        return call->op != S3_OP_NONE;
    }
    call->code = code;
    return false;
}

enum s3_code s3_copy_source_parse(struct http_text value, char ret_bucket[S3_BUCKET_MAX + 1],
                                  char ret_key[S3_KEY_MAX + 1], size_t *ret_key_len)
{
    static const char version[] = "?versionId=";
    const char *mark = value.len ? memchr(value.data, '?', value.len) : NULL;
    if (mark) {
        struct http_text rest = {mark, value.len - (size_t)(mark - value.data)};
        if (rest.len < sizeof(version) - 1 || memcmp(rest.data, version, sizeof(version) - 1) != 0)
            return S3_INVALID_ARGUMENT;
        rest.data += sizeof(version) - 1;
        rest.len -= sizeof(version) - 1;
        if (!http_text_is(rest, "null"))
            return S3_NO_SUCH_VERSION;
        value.len = (size_t)(mark - value.data);
    }
    if (value.len && value.data[0] == '/') {
        value.data++;
        value.len--;
    }
    /* All of it may be escaped, the slash between bucket and key too. */
    char both[S3_BUCKET_MAX + 1 + S3_KEY_MAX + 1];
    size_t len;
    if (!unescape(value, false, both, sizeof(both), &len) || !utf8_valid(both))
        return S3_INVALID_ARGUMENT;
    char *slash = strchr(both, '/');
    size_t bucket = slash ? (size_t)(slash - both) : 0;
    if (bucket == 0 || bucket > S3_BUCKET_MAX || bucket + 1 == len)
        return S3_INVALID_ARGUMENT;
    *ret_key_len = len - bucket - 1;
    if (*ret_key_len > S3_KEY_MAX)
        return S3_KEY_TOO_LONG;
    memcpy(ret_bucket, both, bucket);
    ret_bucket[bucket] = 0;
    memcpy(ret_key, slash + 1, *ret_key_len + 1);
    return S3_OK;
}

bool s3_bucket_valid(const char *name)
{
    size_t len = strlen(name), dots = 0;
    if (len < 3 || len > 63)
        return false;
    bool digits = true;
    for (size_t i = 0; i < len; i++) {
        char c = name[i];
        bool alnum = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
        if (!alnum && (i == 0 || i + 1 == len || (c != '-' && c != '.') || (c == '.' && name[i - 1] == '.')))
            return false;
        dots += c == '.';
        digits &= c == '.' || (c >= '0' && c <= '9');
    }
    return !(digits && dots == 3); /* an address */
}

const char *s3_op_name(enum s3_op op)
{
    static const char *const names[] = {
        [S3_OP_NONE] = "None",
        [S3_OP_LIST_BUCKETS] = "ListBuckets",
        [S3_OP_CREATE_BUCKET] = "CreateBucket",
        [S3_OP_HEAD_BUCKET] = "HeadBucket",
        [S3_OP_DELETE_BUCKET] = "DeleteBucket",
        [S3_OP_GET_LOCATION] = "GetBucketLocation",
        [S3_OP_LIST_OBJECTS] = "ListObjects",
        [S3_OP_LIST_OBJECTS_V2] = "ListObjectsV2",
        [S3_OP_LIST_VERSIONS] = "ListObjectVersions",
        [S3_OP_LIST_UPLOADS] = "ListMultipartUploads",
        [S3_OP_DELETE_OBJECTS] = "DeleteObjects",
        [S3_OP_BATCH] = "Batch",
        [S3_OP_GET_OBJECT] = "GetObject",
        [S3_OP_HEAD_OBJECT] = "HeadObject",
        [S3_OP_GET_ATTRIBUTES] = "GetObjectAttributes",
        [S3_OP_PUT_OBJECT] = "PutObject",
        [S3_OP_COPY_OBJECT] = "CopyObject",
        [S3_OP_DELETE_OBJECT] = "DeleteObject",
        [S3_OP_CREATE_UPLOAD] = "CreateMultipartUpload",
        [S3_OP_UPLOAD_PART] = "UploadPart",
        [S3_OP_UPLOAD_PART_COPY] = "UploadPartCopy",
        [S3_OP_COMPLETE_UPLOAD] = "CompleteMultipartUpload",
        [S3_OP_ABORT_UPLOAD] = "AbortMultipartUpload",
        [S3_OP_LIST_PARTS] = "ListParts",
        [S3_OP_DEFAULT_READ] = "GetSetting",
    };
    return names[op];
}
