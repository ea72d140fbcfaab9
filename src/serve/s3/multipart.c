/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Multipart uploads: made, listed, completed, aborted. Parts themselves are put.c's and copy.c's.
 *
 * Happy path: at the end the client names the parts; each is compared with what is stored (ETag, checksum,
 * size), a checksum of the whole is made of theirs, and the store puts the object together in one step.
 * Failure modes: a part that is missing or another one is InvalidPart, one that is too small EntityTooSmall;
 * the upload stays as it was. An answer that was lost: the same request again finds the object with the ETag
 * that its parts give, and succeeds.
 */
#include "base/hex.h"
#include "serve/s3/parts.h"
#include "serve/s3/task.h"

#include <libdeflate.h>
#include <stdio.h>
#include <strings.h>

#include "base/crc32c.h"
#include "wire/s3/s3_crc.h"

#define COMPLETE_MAX (8 * MIB)

/* --- CreateMultipartUpload ---------------------------------------------------------------------------------------------------------------- */

/* The checksum that the whole object shall have: "leat-sum" is "CRC32 FULL_OBJECT". */
static bool read_algorithm(struct s3_task *v)
{
    struct http_text name = s3_task_demand(v, "x-amz-checksum-algorithm"),
                     type = s3_task_demand(v, "x-amz-checksum-type");
    char text[40];
    if (!name.data && type.data)
        s3_task_fail(
            v, S3_INVALID_REQUEST,
            "The x-amz-checksum-type header can only be used with the x-amz-checksum-algorithm header.");
    if (!name.data)
        return v->code == S3_OK;
    enum sum_kind kind = sum_by_name(name.data, name.len);
    bool full = type.data ? http_text_is_case(type, "full_object") : kind == SUM_CRC64;
    if (kind == SUM_NONE || (type.data && !full && !http_text_is_case(type, "composite")) ||
        (full && kind >= SUM_SHA1) || (!full && kind == SUM_CRC64))
        return s3_task_fail(
            v, S3_INVALID_REQUEST,
            "Checksum algorithm and type do not go together: CRC32, CRC32C, CRC64NVME of FULL_OBJECT; CRC32, "
            "CRC32C, SHA1, SHA256 COMPOSITE");
    v->body.sum = kind;
    int n = snprintf(text, sizeof(text), "%s %s", sum_names[kind].name, full ? "FULL_OBJECT" : "COMPOSITE");
    meta_put(&v->meta, "leat-sum", 8, text, (size_t)n);
    v->sum_type = full ? "FULL_OBJECT" : "COMPOSITE";
    return true;
}

static int create(struct s3_task *v, struct leat_error *err)
{
    struct store_commit c = {.meta = v->meta.data, .meta_len = v->meta.len};
    int rc = objects_upload_begin(v->service->objects, &v->at, &c, v->upload, err);
    if (rc == 0)
        s3_created_upload_put(&v->out, v->call.bucket, v->call.key, v->call.key_len, v->upload);
    return rc;
}

static void created(struct s3_task *v)
{
    struct bytes_out *headers = s3_task_answer(v, 200);
    http_put_header(headers, "Content-Type", "application/xml");
    if (v->body.sum != SUM_NONE) {
        http_put_header(headers, "x-amz-checksum-algorithm", sum_names[v->body.sum].name);
        http_put_header(headers, "x-amz-checksum-type", v->sum_type);
    }
    http_send_copy(v->req, v->out.data, v->out.len);
}

void op_create_upload(struct s3_task *v)
{
    if (put_read_headers(v) && read_algorithm(v))
        s3_task_run(v, HTTP_PRIORITY_SHORT, create, created);
    else
        s3_task_refuse(v);
}

/* --- the upload that is meant ---------------------------------------------------------------------------------------------------------------- */

static bool read_upload(struct s3_task *v)
{
    size_t len;
    const char *id = s3_call_param(&v->call, "uploadId", &len);
    if (!id || len >= sizeof(v->upload))
        return s3_task_fail(v, S3_NO_SUCH_UPLOAD, NULL);
    memcpy(v->upload, id, len + 1);
    return true;
}

/* "CRC32 FULL_OBJECT" of the upload's meta. */
static enum sum_kind algorithm_of(const struct store_upload *upload, bool *ret_full)
{
    const char *text = pairs_get(upload->meta, upload->meta_len, "leat-sum");
    size_t n = text ? strcspn(text, " ") : 0;
    *ret_full = text && strcmp(text + n, " FULL_OBJECT") == 0;
    return text ? sum_by_name(text, n) : SUM_NONE;
}

static int note_algorithm(void *user, const struct store_upload *upload)
{
    struct s3_task *v = user;
    v->declared = algorithm_of(upload, &v->declared_full);
    return 0;
}

bool upload_read_part(struct s3_task *v)
{
    uint64_t number;
    struct leat_error err = {0};
    const char *part = s3_call_param(&v->call, "partNumber", NULL);
    if (!part || !http_text_u64((struct http_text){part, strlen(part)}, &number) || number < 1 ||
        number > STORE_PARTS_MAX)
        return s3_task_fail(v, S3_INVALID_ARGUMENT,
                            "Part number must be an integer between 1 and 10000, inclusive");
    v->part = (unsigned)number;
    if (!read_upload(v))
        return false;
    int rc = objects_upload_get(v->service->objects, &v->at, v->upload, note_algorithm, v, &err);
    if (rc < 0)
        s3_task_fail_store(v, rc, &err);
    return rc == 0;
}

static int abort_upload(struct s3_task *v, struct leat_error *err)
{
    return objects_upload_abort(v->service->objects, &v->at, v->upload, err);
}

static void aborted(struct s3_task *v)
{
    s3_task_send_empty(v, 204);
}

void op_abort_upload(struct s3_task *v)
{
    if (read_upload(v))
        s3_task_run(v, HTTP_PRIORITY_SHORT, abort_upload, aborted);
    else
        s3_task_refuse(v);
}

/* --- CompleteMultipartUpload ------------------------------------------------------------------------------------------------------------------ */

/* A part as it is stored. */
struct stored {
    uint64_t bytes;
    char etag[STORE_ETAG_MAX + 1];
    enum sum_kind sum;
    char value[SUM_TEXT];
};

struct completion {
    struct s3_task *v;
    struct stored *stored; /* by number - 1 */
    struct s3_part_named *named;
    unsigned n;
    struct store_part *parts;
    struct bytes_out meta; /* of the object */
    enum sum_kind sum;
    bool full;
    char value[SUM_TEXT + 8]; /* of the whole */
};

static int note_part(void *user, const struct store_part *part)
{
    struct completion *c = user;
    struct stored *s = &c->stored[part->number - 1];
    s->bytes = part->bytes;
    memcpy(s->etag, part->etag, sizeof(s->etag));
    const char *value;
    bool full;
    s->sum = sum_of_meta(part->meta, part->meta_len, &value, &full);
    if (s->sum != SUM_NONE)
        snprintf(s->value, sizeof(s->value), "%s", value);
    return 0;
}

static int note_upload(void *user, const struct store_upload *upload)
{
    struct completion *c = user;
    c->sum = algorithm_of(upload, &c->full);
    for (struct pair p = {0}; pairs_next(upload->meta, upload->meta_len, &p);)
        if (strcmp(p.name, "leat-sum") != 0)
            meta_put(&c->meta, p.name, strlen(p.name), p.value, strlen(p.value));
    return 0;
}

/*
 * A named part was not found: there is none, or another request completes the upload at this moment and its
 * parts are on their way out. The store waits for that end, and reports which.
 */
static int why_missing(struct completion *c, struct leat_error *err)
{
    struct s3_task *v = c->v;
    for (unsigned i = 0; i < c->n; i++) {
        c->parts[i].number = c->named[i].number;
        snprintf(c->parts[i].etag, sizeof(c->parts[i].etag), "%s", c->named[i].etag);
    }
    int rc = objects_upload_check(v->service->objects, &v->at, v->upload, c->parts, c->n, err);
    return rc == 0 ? LEAT_STALE : rc; /* 0: it has come since, and is not what was looked at */
}

static bool all_there(const struct completion *c)
{
    for (unsigned i = 0; i < c->n; i++)
        if (strcmp(c->stored[c->named[i].number - 1].etag, c->named[i].etag) != 0)
            return false;
    return true;
}

/* Each named part, which is there, against what the client says of it. */
static bool match(struct completion *c)
{
    struct s3_task *v = c->v;
    bool same = true; /* algorithm of all */
    uint64_t bytes = 0;
    for (unsigned i = 0; i < c->n; i++) {
        const struct s3_part_named *p = &c->named[i];
        const struct stored *s = &c->stored[p->number - 1];
        if (p->checksum[0] && sum_by_name(p->algorithm, strlen(p->algorithm)) == SUM_NONE)
            return s3_task_fail(v, S3_NOT_IMPLEMENTED,
                                "A part is named with a checksum that is not implemented.");
        if (p->checksum[0] && (s->sum == SUM_NONE || strcasecmp(p->algorithm, sum_names[s->sum].name) != 0 ||
                               strcmp(p->checksum, s->value) != 0))
            return s3_task_fail(v, S3_INVALID_PART, NULL);
        if (i + 1 < c->n && s->bytes < S3_PART_MIN)
            return s3_task_fail(v, S3_ENTITY_TOO_SMALL, NULL);
        bytes += s->bytes;
        same &= s->sum == c->stored[c->named[0].number - 1].sum;
        c->parts[i].number = p->number;
        memcpy(c->parts[i].etag, s->etag, sizeof(s->etag));
    }
    if (v->expects_bytes && v->expected_bytes != bytes)
        return s3_task_fail(v, S3_INVALID_REQUEST,
                            "The parts are of another size in all than x-amz-mp-object-size says.");
    enum sum_kind theirs = same ? c->stored[c->named[0].number - 1].sum : SUM_NONE;
    if (c->sum == SUM_NONE && theirs != SUM_NONE)
        c->full = theirs == SUM_CRC64;
    else if (c->sum != theirs)
        theirs = SUM_NONE;
    c->sum = theirs;
    return true;
}

static uint64_t combine(enum sum_kind kind, uint64_t a, uint64_t b, uint64_t b_bytes)
{
    enum s3_crc_kind crc = kind == SUM_CRC64 ? S3_CRC64NVME : kind == SUM_CRC32 ? S3_CRC32 : S3_CRC32C;
    return s3_crc_join(crc, a, b, b_bytes);
}

/* A checksum of checksums, and how many: "base64-5". */
static bool composite(struct completion *c)
{
    const struct sum_name *name = &sum_names[c->sum];
    struct bytes_out all = {0};
    uint8_t raw[32], sum[EVP_MAX_MD_SIZE];
    bool good = true;
    for (unsigned i = 0; good && i < c->n; i++) {
        const char *value = c->stored[c->named[i].number - 1].value;
        good = sum_parse(value, strlen(value), name->bytes, raw);
        bytes_put(&all, raw, name->bytes);
    }
    good = good && !all.failed;
    if (good && c->sum >= SUM_SHA1) {
        good = EVP_Digest(all.data, all.len, sum, NULL, c->sum == SUM_SHA1 ? EVP_sha1() : EVP_sha256(),
                          NULL) == 1;
    } else if (good) {
        uint32_t crc =
            c->sum == SUM_CRC32 ? libdeflate_crc32(0, all.data, all.len) : crc32c(0, all.data, all.len);
        for (unsigned i = 0; i < 4; i++)
            sum[i] = (uint8_t)(crc >> (24 - 8 * i));
    }
    if (good) {
        sum_format(sum, name->bytes, c->value);
        snprintf(c->value + strlen(c->value), sizeof(c->value) - strlen(c->value), "-%u", c->n);
    }
    bytes_out_fini(&all);
    return good;
}

static bool full_object(struct completion *c)
{
    unsigned bytes = sum_names[c->sum].bytes;
    uint64_t crc = 0;
    uint8_t raw[32];
    for (unsigned i = 0; i < c->n; i++) {
        const struct stored *s = &c->stored[c->named[i].number - 1];
        uint64_t one = 0;
        if (!sum_parse(s->value, strlen(s->value), bytes, raw))
            return false;
        for (unsigned k = 0; k < bytes; k++)
            one = one << 8 | raw[k];
        crc = i ? combine(c->sum, crc, one, s->bytes) : one;
    }
    for (unsigned k = 0; k < bytes; k++)
        raw[k] = (uint8_t)(crc >> (8 * (bytes - 1 - k)));
    sum_format(raw, bytes, c->value);
    return true;
}

/* The whole's checksum into its meta, and compared with what the client expects. */
static bool whole_sum(struct completion *c)
{
    struct s3_task *v = c->v;
    const char *type = c->full ? "FULL_OBJECT" : "COMPOSITE";
    if (v->expected_type[0] && c->sum != SUM_NONE && strcasecmp(v->expected_type, type) != 0) {
        char message[140];
        snprintf(message, sizeof(message),
                 "The upload was created using the %s checksum mode. The complete request must use the same "
                 "checksum mode.",
                 type);
        return s3_task_fail(v, S3_INVALID_REQUEST, message);
    }
    if (v->expected != SUM_NONE && v->expected != c->sum)
        return s3_task_fail(
            v, S3_INVALID_REQUEST,
            "The checksum that this request has cannot be compared: not all parts came with one of its "
            "kind.");
    if (c->sum == SUM_NONE)
        return true;
    if (!(c->full ? full_object(c) : composite(c)))
        return s3_task_fail(v, S3_INTERNAL, NULL);
    if (v->expected == c->sum && strncmp(v->expected_value, c->value, strcspn(c->value, "-")) != 0)
        return s3_task_fail(v, S3_CHECKSUM_MISMATCH, NULL);
    meta_put(&c->meta, sum_names[c->sum].header, strlen(sum_names[c->sum].header), c->value,
             strlen(c->value));
    meta_put(&c->meta, "x-amz-checksum-type", 19, type, strlen(type));
    return true;
}

/* Where parts begin, for GET with partNumber: short where all but the last are of one size, left out where it would be long, or longer than the rest
 * of the metadata leaves room for: an upload that was begun can be completed. */
static void put_layout(struct completion *c)
{
    char text[2048];
    uint64_t first = c->stored[c->named[0].number - 1].bytes;
    bool even = true;
    size_t used = 0;
    for (unsigned i = 0; i < c->n; i++) {
        uint64_t bytes = c->stored[c->named[i].number - 1].bytes;
        even &= i + 1 < c->n ? bytes == first : bytes <= first;
        if (used < sizeof(text))
            used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%llu", i ? "," : "",
                                     (unsigned long long)bytes);
    }
    if (even)
        used = (size_t)snprintf(text, sizeof(text), "%u:%llu", c->n, (unsigned long long)first);
    if (used < sizeof(text) && c->meta.len + sizeof("leat-parts") + used + 1 <= STORE_META_MAX)
        meta_put(&c->meta, "leat-parts", 10, text, used);
}

/* The parts' own checksums, for clients that read part by part, or ask for an object's attributes. */
static void put_part_sums(struct completion *c)
{
    struct bytes_out text = {0};
    for (unsigned i = 0; c->sum != SUM_NONE && i < c->n && text.len < PARTS_SUMS_MAX; i++) {
        http_put(&text, i ? "," : "");
        http_put(&text, c->stored[c->named[i].number - 1].value);
    }
    if (text.len && text.len < PARTS_SUMS_MAX && !text.failed &&
        c->meta.len + sizeof("leat-part-sums") + text.len + 1 <= STORE_META_MAX)
        meta_put(&c->meta, "leat-part-sums", 14, (const char *)text.data, text.len);
    bytes_out_fini(&text);
}

static void say_completed(struct completion *c, const char *etag)
{
    struct s3_task *v = c->v;
    struct bytes_out location = {0};
    http_put(&location, v->host);
    http_put(&location, "/");
    http_put(&location, v->call.bucket);
    http_put(&location, "/");
    http_escape(&location, v->call.key, v->call.key_len, true);
    bytes_put(&location, "", 1);
    bool sum = c->sum != SUM_NONE && c->value[0];
    s3_completed_put(&v->out, location.failed ? "" : (const char *)location.data, v->call.bucket, v->call.key,
                     v->call.key_len, etag, sum ? sum_names[c->sum].element : NULL, c->value,
                     c->full ? "FULL_OBJECT" : "COMPOSITE");
    bytes_out_fini(&location);
}

/* "MD5 of the parts' MD5s-N": what the object's ETag is if these are its parts. */
static bool etag_of(const struct completion *c, char out[48])
{
    struct bytes_out all = {0};
    uint8_t sum[16];
    bool good = true;
    for (unsigned i = 0; good && i < c->n; i++) {
        const char *hex = c->named[i].etag;
        good = strlen(hex) == 32 && hex_get(hex, 16, sum);
        bytes_put(&all, sum, 16);
    }
    good = good && !all.failed && EVP_Digest(all.data, all.len, sum, NULL, EVP_md5(), NULL) == 1;
    bytes_out_fini(&all);
    if (good) {
        hex_put(out, sum, 16);
        snprintf(out + 32, 16, "-%u", c->n);
    }
    return good;
}

/* The upload is not there (any more): was it this very request that completed it? Then it is answered as the first one was. */
static bool completed_before(struct completion *c)
{
    struct s3_task *v = c->v;
    const void *meta;
    size_t meta_len;
    const char *value = "";
    char etag[48];
    if (!etag_of(c, etag) || s3_task_look(v, &meta, &meta_len, NULL) < 0 || strcmp(v->info.etag, etag) != 0)
        return false;
    c->sum = sum_of_meta(meta, meta_len, &value, &c->full);
    snprintf(c->value, sizeof(c->value), "%s", value);
    say_completed(c, etag);
    return true;
}

static int put_together(struct completion *c, struct leat_error *err)
{
    struct s3_task *v = c->v;
    struct objects *o = v->service->objects;
    bool more;
    int rc = objects_upload_get(o, &v->at, v->upload, note_upload, c, err);
    if (rc == 0)
        rc = objects_part_list(o, &v->at, v->upload, 0, STORE_PARTS_MAX, note_part, c, &more, err);
    if (rc == 0 && !all_there(c))
        rc = why_missing(c, err);
    if (rc == STORE_NO_UPLOAD && completed_before(c))
        return 0;
    if (rc < 0)
        return rc;
    if (!match(c) || !whole_sum(c))
        return 0;
    put_layout(c);
    put_part_sums(c);
    if (c->meta.failed)
        return -ENOMEM;
    struct store_commit commit = {.meta = c->meta.data,
                                  .meta_len = c->meta.len,
                                  .if_none_match = v->if_none_match,
                                  .if_match = v->if_match[0] ? v->if_match : NULL};
    rc = objects_upload_complete(o, &v->at, v->upload, c->parts, c->n, &commit, &v->info, err);
    if (rc == STORE_NO_UPLOAD && completed_before(c)) /* by another request, just now */
        return 0;
    if (rc == 0)
        say_completed(c, v->info.etag);
    return rc;
}

static int complete(struct s3_task *v, struct leat_error *err)
{
    struct completion c = {.v = v, .sum = SUM_NONE};
    enum s3_code code = s3_complete_parse(v->body.document.data, v->body.document.len, &c.named, &c.n);
    if (code != S3_OK)
        return s3_task_fail(v, code, NULL);
    c.stored = calloc(STORE_PARTS_MAX, sizeof(*c.stored));
    c.parts = calloc(c.n, sizeof(*c.parts));
    int rc = c.stored && c.parts ? put_together(&c, err) : -ENOMEM;
    bytes_out_fini(&c.meta);
    free(c.stored);
    free(c.parts);
    free(c.named);
    return rc;
}

/* Base64, and behind that of a checksum of checksums "-N". */
static void check_expected(struct s3_task *v, unsigned kind)
{
    uint8_t raw[32];
    char message[100];
    if (sum_parse(v->expected_value, strcspn(v->expected_value, "-"), sum_names[kind].bytes, raw))
        return;
    snprintf(message, sizeof(message), "Value for %s header is invalid.", sum_names[kind].header);
    s3_task_fail(v, S3_INVALID_REQUEST, message);
}

/* Checksums in the head are of the object to be, not of this document. */
static bool read_expected(struct s3_task *v)
{
    struct http_text bytes = s3_task_demand(v, "x-amz-mp-object-size");
    v->expects_bytes = bytes.data != NULL;
    v->expected = SUM_NONE;
    for (unsigned k = 0; k < SUM_KINDS; k++) {
        struct http_text t = sum_demand(v, (enum sum_kind)k);
        if (t.data && v->expected != SUM_NONE)
            s3_task_fail(
                v, S3_INVALID_REQUEST,
                "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.");
        if (t.data) {
            v->expected = (enum sum_kind)k;
            http_text_copy(t, v->expected_value, sizeof(v->expected_value));
            check_expected(v, k);
        }
    }
    http_text_copy(s3_task_demand(v, "x-amz-checksum-type"), v->expected_type, sizeof(v->expected_type));
    if (bytes.data && !http_text_u64(bytes, &v->expected_bytes))
        s3_task_fail(v, S3_INVALID_ARGUMENT, "x-amz-mp-object-size is a number of bytes");
    return v->code == S3_OK;
}

void op_complete_upload(struct s3_task *v)
{
    struct http_text host = s3_task_header(v, "host");
    snprintf(v->host, sizeof(v->host), "%s://%.*s", v->req->tls ? "https" : "http",
             (int)MIN(host.len, (size_t)250), host.data ? host.data : "");
    if (read_upload(v) && put_read_headers(v) && read_expected(v) && body_begin(v, COMPLETE_MAX)) {
        if (budget_reserve(v->service->budget, STORE_PARTS_MAX * sizeof(struct stored)) == 0) {
            v->body.charged += STORE_PARTS_MAX * sizeof(struct stored);
            body_receive(v, complete, s3_task_send_xml);
            return;
        }
        s3_task_fail(v, S3_SLOW_DOWN, NULL);
    }
    s3_task_refuse(v);
}

/* --- ListParts ---------------------------------------------------------------------------------------------------------------------------------- */

struct part_listing {
    struct bytes_out out;
    unsigned last;
};

static int put_part(void *user, const struct store_part *part)
{
    struct part_listing *l = user;
    char time[S3_TIME_TEXT], etag[STORE_ETAG_MAX + 3];
    s3_time_format(part->mtime_ns / 1000000000, time);
    int n = snprintf(etag, sizeof(etag), "\"%s\"", part->etag);
    http_put(&l->out, "<Part>");
    s3_element_u64(&l->out, "PartNumber", part->number);
    s3_element(&l->out, "LastModified", time, S3_TIME_TEXT - 1);
    s3_element(&l->out, "ETag", etag, (size_t)n);
    s3_element_u64(&l->out, "Size", part->bytes);
    for (unsigned k = 0; k < SUM_KINDS; k++) {
        const char *value = pairs_get(part->meta, part->meta_len, sum_names[k].header);
        if (value)
            s3_element(&l->out, sum_names[k].element, value, strlen(value));
    }
    http_put(&l->out, "</Part>");
    l->last = part->number;
    return 0;
}

/* A number of the query, at most `max`, which it is where it is not given. Text that is no number would
 * give a wrong page. */
static unsigned number_of(struct s3_task *v, const char *name, unsigned without, unsigned max)
{
    size_t len;
    uint64_t n = without;
    const char *text = s3_call_param(&v->call, name, &len);
    if (text && len && !http_text_u64((struct http_text){text, len}, &n)) {
        char message[80];
        snprintf(message, sizeof(message), "Provided %s not an integer or within integer range", name);
        s3_task_fail(v, S3_INVALID_ARGUMENT, message);
    }
    return (unsigned)MIN(n, (uint64_t)max);
}

static const char *class_of(const struct store_upload *upload)
{
    const char *class = pairs_get(upload->meta, upload->meta_len, "x-amz-storage-class");
    return class ? class : "STANDARD";
}

static int note_class(void *user, const struct store_upload *upload)
{
    struct s3_task *v = user;
    snprintf(v->storage_class, sizeof(v->storage_class), "%s", class_of(upload));
    return 0;
}

static int list_parts(struct s3_task *v, struct leat_error *err)
{
    struct part_listing l = {.last = 0};
    unsigned after = number_of(v, "part-number-marker", 0, STORE_PARTS_MAX);
    unsigned max = number_of(v, "max-parts", S3_LIST_MAX, S3_LIST_MAX);
    bool more = false;
    if (v->code != S3_OK)
        return 0;
    struct objects *o = v->service->objects;
    int rc = objects_upload_get(o, &v->at, v->upload, note_class, v, err);
    if (rc == 0)
        rc = objects_part_list(o, &v->at, v->upload, after, max, put_part, &l, &more, err);
    if (rc < 0) {
        bytes_out_fini(&l.out);
        return rc;
    }
    more = more && max; /* else a client that requests no part requests the rest for ever */
    struct bytes_out *out = &v->out;
    http_put(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ListPartsResult xmlns=\"" S3_NAMESPACE "\">");
    s3_element(out, "Bucket", v->call.bucket, strlen(v->call.bucket));
    s3_element(out, "Key", v->call.key, v->call.key_len);
    s3_element(out, "UploadId", v->upload, strlen(v->upload));
    s3_element_u64(out, "PartNumberMarker", after);
    if (more)
        s3_element_u64(out, "NextPartNumberMarker", l.last);
    s3_element_u64(out, "MaxParts", max);
    http_put(out, more ? "<IsTruncated>true</IsTruncated>" : "<IsTruncated>false</IsTruncated>");
    bytes_put(out, l.out.data ? l.out.data : (const uint8_t *)"", l.out.len);
    s3_element(out, "StorageClass", v->storage_class, strlen(v->storage_class));
    http_put(out, "</ListPartsResult>");
    out->failed |= l.out.failed;
    bytes_out_fini(&l.out);
    return 0;
}

void op_list_parts(struct s3_task *v)
{
    if (read_upload(v) && s3_task_charge_list(v, "max-parts"))
        s3_task_run(v, HTTP_PRIORITY_SHORT, list_parts, s3_task_send_xml);
    else
        s3_task_refuse(v);
}

/* --- ListMultipartUploads -------------------------------------------------------------------------------------------------------------------------- */

struct upload_listing {
    struct bytes_out out, last;
    char id[STORE_UPLOAD_ID_TEXT];
    bool url;
};

static int put_upload(void *user, const struct store_upload *upload)
{
    struct upload_listing *l = user;
    char time[S3_TIME_TEXT];
    s3_time_format(upload->begun_ns / 1000000000, time);
    http_put(&l->out, "<Upload>");
    s3_element_key(&l->out, l->url, "Key", upload->key, upload->key_len);
    s3_element(&l->out, "UploadId", upload->id, strlen(upload->id));
    s3_element(&l->out, "Initiated", time, S3_TIME_TEXT - 1);
    const char *class = class_of(upload);
    s3_element(&l->out, "StorageClass", class, strlen(class));
    http_put(&l->out, "</Upload>");
    bytes_out_reset(&l->last);
    bytes_put(&l->last, upload->key, upload->key_len);
    memcpy(l->id, upload->id, sizeof(l->id));
    return 0;
}

static int list_uploads(struct s3_task *v, struct leat_error *err)
{
    const char *encoding = s3_call_param(&v->call, "encoding-type", NULL);
    const char *delimiter = s3_call_param(&v->call, "delimiter", NULL);
    struct upload_listing l = {.url = encoding && strcmp(encoding, "url") == 0};
    size_t prefix_len = 0, after_len = 0;
    const char *prefix = s3_call_param(&v->call, "prefix", &prefix_len);
    const char *after = s3_call_param(&v->call, "key-marker", &after_len);
    const char *id = s3_call_param(&v->call, "upload-id-marker", NULL);
    unsigned max = number_of(v, "max-uploads", S3_LIST_MAX, S3_LIST_MAX);
    bool more = false;
    if (encoding && !l.url)
        s3_task_fail(v, S3_INVALID_ARGUMENT, "Invalid Encoding Method specified in Request");
    else if (delimiter && *delimiter)
        s3_task_fail(v, S3_NOT_IMPLEMENTED, "Uploads are listed one by one: a delimiter is not implemented.");
    if (v->code != S3_OK)
        return 0;
    int rc =
        objects_upload_list(v->service->objects, v->call.bucket, prefix, prefix_len, after_len ? after : NULL,
                            after_len, after_len && id && *id ? id : NULL, max, put_upload, &l, &more, err);
    more = more && max;
    struct bytes_out *out = &v->out;
    http_put(out,
             "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ListMultipartUploadsResult xmlns=\"" S3_NAMESPACE
             "\">");
    s3_element(out, "Bucket", v->call.bucket, strlen(v->call.bucket));
    s3_element_key(out, l.url, "KeyMarker", after ? after : "", after_len);
    s3_element(out, "UploadIdMarker", id ? id : "", id ? strlen(id) : 0);
    if (more) {
        s3_element_key(out, l.url, "NextKeyMarker", (const char *)l.last.data, l.last.len);
        s3_element(out, "NextUploadIdMarker", l.id, strlen(l.id));
    }
    s3_element_key(out, l.url, "Prefix", prefix ? prefix : "", prefix_len);
    if (l.url)
        http_put(out, "<EncodingType>url</EncodingType>");
    s3_element_u64(out, "MaxUploads", max);
    http_put(out, more ? "<IsTruncated>true</IsTruncated>" : "<IsTruncated>false</IsTruncated>");
    bytes_put(out, l.out.data ? l.out.data : (const uint8_t *)"", l.out.len);
    http_put(out, "</ListMultipartUploadsResult>");
    out->failed |= l.out.failed || l.last.failed;
    bytes_out_fini(&l.out);
    bytes_out_fini(&l.last);
    return rc;
}

void op_list_uploads(struct s3_task *v)
{
    if (s3_task_charge_list(v, "max-uploads"))
        s3_task_run(v, HTTP_PRIORITY_SHORT, list_uploads, s3_task_send_xml);
    else
        s3_task_refuse(v);
}
