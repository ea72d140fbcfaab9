/* SPDX-License-Identifier: Apache-2.0 */
/* What S3 answers: pages of a list, errors, multipart. Keys of a list come URL-encoded where that was asked for (encoding-type=url). */
#include <stdio.h>

#include "wire/http/http.h"
#include "wire/s3/s3.h"
#include "wire/s3/xml.h"

/* --- lists ------------------------------------------------------------------------------------------------------------- */

/* An object as it stands in the page; its texts follow each other in `texts`, each with a NUL. */
struct listed {
    size_t key, key_len, etag;
    uint64_t bytes;
    int64_t modified;
    bool prefix, has_key;
};

struct s3_list {
    struct xml_reader *xml;
    bool root, truncated, encoded;
    struct listed now;
    struct bytes_out texts, page;
    char *next;
    const char *why;
};

static int list_fail(struct s3_list *l, const char *why)
{
    l->why = why;
    return LEAT_CORRUPT;
}

static size_t put_text(struct s3_list *l, const char *text, size_t len)
{
    size_t at = l->texts.len;
    bytes_put(&l->texts, text, len + 1);
    return at;
}

static int list_start(void *user, const char *path)
{
    struct s3_list *l = user;
    if (!strchr(path, '/') && strcmp(path, "ListBucketResult") != 0)
        return list_fail(l, "this is no list of objects");
    l->root = true;
    bool prefix = strcmp(path, "ListBucketResult/CommonPrefixes") == 0;
    if (prefix || strcmp(path, "ListBucketResult/Contents") == 0)
        l->now = (struct listed){.prefix = prefix}; /* texts[0] is "" */
    return 0;
}

static int list_end(void *user, const char *path, const char *text, size_t len)
{
    struct s3_list *l = user;
    static const char root[] = "ListBucketResult/";
    if (strncmp(path, root, sizeof(root) - 1) != 0)
        return 0;
    path += sizeof(root) - 1;
    if (strcmp(path, "Contents/Key") == 0 || strcmp(path, "CommonPrefixes/Prefix") == 0) {
        if (len == 0 || len > 3 * S3_KEY_MAX)
            return list_fail(l, "a key that is empty, or too long");
        l->now.key = put_text(l, text, len);
        l->now.has_key = true;
    } else if (strcmp(path, "Contents/Size") == 0) {
        if (!http_text_u64((struct http_text){text, len}, &l->now.bytes))
            return list_fail(l, "a size that is no number");
    } else if (strcmp(path, "Contents/ETag") == 0) {
        if (len > 150)
            return list_fail(l, "an ETag too long");
        l->now.etag = put_text(l, text, len);
    } else if (strcmp(path, "Contents/LastModified") == 0) {
        if (!s3_time_parse(text, &l->now.modified))
            l->now.modified = 0;
    } else if (strcmp(path, "Contents") == 0 || strcmp(path, "CommonPrefixes") == 0) {
        if (!l->now.has_key)
            return list_fail(l, "an object without a key");
        if (l->page.len / sizeof(l->now) == S3_PAGE_MAX)
            return list_fail(l, "a page of too many objects");
        bytes_put(&l->page, &l->now, sizeof(l->now));
    } else if (strcmp(path, "IsTruncated") == 0) {
        l->truncated = strcmp(text, "true") == 0;
    } else if (strcmp(path, "EncodingType") == 0) {
        l->encoded = strcmp(text, "url") == 0;
    } else if (strcmp(path, "NextContinuationToken") == 0) {
        free(l->next);
        l->next = strdup(text);
        if (!l->next)
            return -ENOMEM;
    }
    return l->texts.failed || l->page.failed ? -ENOMEM : 0;
}

struct s3_list *s3_list_new(void)
{
    struct s3_list *l = calloc(1, sizeof(*l));
    if (!l)
        return NULL;
    l->xml = xml_reader_new(list_start, list_end, l);
    bytes_put(&l->texts, "", 1);
    if (!l->xml || l->texts.failed) {
        s3_list_free(l);
        return NULL;
    }
    return l;
}

void s3_list_free(struct s3_list *l)
{
    if (!l)
        return;
    xml_reader_free(l->xml);
    bytes_out_fini(&l->texts);
    bytes_out_fini(&l->page);
    free(l->next);
    free(l);
}

/* Keys as they are, in place. */
static int list_decode(struct s3_list *l)
{
    struct listed *page = (struct listed *)l->page.data;
    for (size_t i = 0; i < s3_list_count(l); i++) {
        char *key = (char *)l->texts.data + page[i].key;
        size_t len = strlen(key);
        if (l->encoded) {
            /* "+" is a space here: some stores use an encoder of forms. One that is meant is %2B. */
            for (char *plus = key; (plus = strchr(plus, '+'));)
                *plus = ' ';
            if (!http_unescape(key, len, &len))
                return list_fail(l, "a key with a broken escape");
            key[len] = 0;
        }
        if (len == 0 || len > S3_KEY_MAX || memchr(key, 0, len))
            return list_fail(l, "a key that is too long, or has a NUL in it");
        page[i].key_len = len;
    }
    return 0;
}

int s3_list_feed(struct s3_list *l, const void *data, size_t len, bool last, struct leat_error *err)
{
    int rc = xml_reader_feed(l->xml, data, len, last, err);
    if (rc == 0 && last && l->truncated && !l->next)
        rc = list_fail(l, "a truncated list has no token to continue");
    if (rc == 0 && last)
        rc = list_decode(l);
    if (rc == LEAT_CORRUPT && l->why)
        return error_set(err, rc, "list of objects: %s", l->why);
    return rc;
}

size_t s3_list_count(const struct s3_list *l)
{
    return l->page.len / sizeof(struct listed);
}

struct s3_object s3_list_at(const struct s3_list *l, size_t i)
{
    const struct listed *o = (const struct listed *)l->page.data + i;
    return (struct s3_object){
        .key = (const char *)l->texts.data + o->key,
        .key_len = o->key_len,
        .bytes = o->bytes,
        .etag = (const char *)l->texts.data + o->etag,
        .modified = o->modified,
        .prefix = o->prefix,
    };
}

const char *s3_list_next(const struct s3_list *l)
{
    return l->truncated ? l->next : NULL;
}

/* --- errors ------------------------------------------------------------------------------------------------------------ */

static int error_end(void *user, const char *path, const char *text, size_t len)
{
    struct s3_error *e = user;
    struct http_text t = {text, len};
    if (strncmp(path, "Error/", 6) != 0) {
        if (strcmp(path, "ErrorResponse/Error/Code") == 0) /* STS */
            http_text_copy(t, e->code, sizeof(e->code));
        else if (strcmp(path, "ErrorResponse/Error/Message") == 0)
            http_text_copy(t, e->message, sizeof(e->message));
        return 0;
    }
    path += 6;
    if (strcmp(path, "Code") == 0)
        http_text_copy(t, e->code, sizeof(e->code));
    else if (strcmp(path, "Message") == 0)
        http_text_copy(t, e->message, sizeof(e->message));
    else if (strcmp(path, "Region") == 0)
        http_text_copy(t, e->region, sizeof(e->region));
    else if (strcmp(path, "Endpoint") == 0)
        http_text_copy(t, e->endpoint, sizeof(e->endpoint));
    else if (strcmp(path, "RequestId") == 0)
        http_text_copy(t, e->request_id, sizeof(e->request_id));
    return 0;
}

/* For a message on a terminal and in a log: one line, nothing that moves a cursor. */
static void make_plain(char *s)
{
    for (; *s; s++) {
        if ((unsigned char)*s < 0x20 || (unsigned char)*s == 0x7f)
            *s = ' ';
    }
}

void s3_error_parse(const void *body, size_t len, struct s3_error *ret_error)
{
    *ret_error = (struct s3_error){0};
    struct xml_reader *xml = xml_reader_new(NULL, error_end, ret_error);
    if (!xml)
        return;
    xml_reader_feed(xml, body, len, true, NULL);
    xml_reader_free(xml);
    make_plain(ret_error->code);
    make_plain(ret_error->message);
    make_plain(ret_error->region);
    make_plain(ret_error->endpoint);
    make_plain(ret_error->request_id);
}

int s3_error_class(int status, const char *code, bool *ret_retry)
{
    static const struct {
        const char *code;
        int rc;
        bool retry;
    } known[] = {
        {"AccessDenied", LEAT_DENIED, false},
        {"AllAccessDisabled", LEAT_DENIED, false},
        {"AuthorizationHeaderMalformed", LEAT_DENIED, false},
        {"BadDigest", LEAT_CORRUPT, true},
        {"EntityTooLarge", LEAT_INVALID, false},
        {"ExpiredToken", LEAT_DENIED, false},
        {"ExpiredTokenException", LEAT_DENIED, false},
        {"IncompleteBody", LEAT_PEER_GONE, true},
        {"InternalError", -EIO, true},
        {"InvalidAccessKeyId", LEAT_DENIED, false},
        {"InvalidBucketName", LEAT_INVALID, false},
        {"InvalidRange", LEAT_STALE, false},
        {"InvalidToken", LEAT_DENIED, false},
        {"NoSuchBucket", LEAT_NOT_FOUND, false},
        {"NoSuchKey", LEAT_NOT_FOUND, false},
        {"NoSuchUpload", LEAT_NOT_FOUND, false},
        {"OperationAborted", LEAT_BUSY, true}, /* 409: another one is under way */
        {"PreconditionFailed", LEAT_STALE, false},
        {"RequestTimeTooSkewed", LEAT_DENIED, false},
        {"RequestTimeout", LEAT_TIMED_OUT, true},
        {"RequestTimeoutException", LEAT_TIMED_OUT, true},
        {"ServiceUnavailable", LEAT_BUSY, true},
        {"SignatureDoesNotMatch", LEAT_DENIED, false},
        {"SlowDown", LEAT_BUSY, true},
        {"ThrottlingException", LEAT_BUSY, true},
        {"TooManyRequests", LEAT_BUSY, true},
    };
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        if (strcmp(known[i].code, code) == 0) {
            *ret_retry = known[i].retry;
            return known[i].rc;
        }
    }
    *ret_retry =
        status == 408 || status == 425 || status == 429 ||
        (status >= 500 && status != 501 && status != 505); /* also what proxies make up: 507, 520 ... */
    switch (status) {
    case 401:
    case 403:
        return LEAT_DENIED;
    case 404:
    case 410:
        return LEAT_NOT_FOUND;
    case 408:
    case 504:
        return LEAT_TIMED_OUT;
    case 412:
    case 416:
        return LEAT_STALE;
    case 429:
    case 503:
        return LEAT_BUSY;
    case 400:
    case 405:
        return LEAT_INVALID;
    case 501:
        return LEAT_UNSUPPORTED;
    default:
        return -EIO;
    }
}

/* --- multipart --------------------------------------------------------------------------------------------------------- */

struct upload {
    char *id;
    size_t cap;
    bool found;
};

static int upload_end(void *user, const char *path, const char *text, size_t len)
{
    struct upload *u = user;
    if (strcmp(path, "InitiateMultipartUploadResult/UploadId") == 0) {
        if (len == 0 || len >= u->cap)
            return LEAT_CORRUPT;
        memcpy(u->id, text, len + 1);
        u->found = true;
    }
    return 0;
}

int s3_upload_id_parse(const void *body, size_t len, char *ret_id, size_t cap, struct leat_error *err)
{
    struct upload u = {.id = ret_id, .cap = cap};
    struct xml_reader *xml = xml_reader_new(NULL, upload_end, &u);
    if (!xml)
        return -ENOMEM;
    int rc = xml_reader_feed(xml, body, len, true, err);
    xml_reader_free(xml);
    if (rc == 0 && !u.found)
        rc = LEAT_CORRUPT;
    return rc == LEAT_CORRUPT ? error_set(err, rc, "the answer to CreateMultipartUpload has no upload id")
                              : rc;
}

static int completed_end(void *user, const char *path, const char *text, size_t len)
{
    struct upload *u = user;
    static const char *const said[] = {"CompleteMultipartUploadResult/ETag", "CopyObjectResult/ETag",
                                       "CopyPartResult/ETag"};
    bool known = false;
    for (size_t k = 0; k < ARRAY_LEN(said); k++)
        known = known || strcmp(path, said[k]) == 0;
    if (known && len < u->cap) {
        memcpy(u->id, text, len + 1);
        u->found = true;
    }
    return 0;
}

int s3_completed_parse(const void *body, size_t len, char *ret_etag, size_t cap)
{
    struct upload u = {.id = ret_etag, .cap = cap};
    struct xml_reader *xml = xml_reader_new(NULL, completed_end, &u);
    int rc = xml ? xml_reader_feed(xml, body, len, true, NULL) : -ENOMEM;
    if (rc < 0 || !u.found)
        ret_etag[0] = 0;
    xml_reader_free(xml);
    return rc == -ENOMEM ? rc : 0;
}

void s3_complete_put(struct bytes_out *out, char *const *etags, unsigned n)
{
    char number[64];
    http_put(out, "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
    for (unsigned i = 0; i < n; i++) {
        snprintf(number, sizeof(number), "<Part><PartNumber>%u</PartNumber><ETag>", i + 1);
        http_put(out, number);
        xml_put_text(out, etags[i], strlen(etags[i]));
        http_put(out, "</ETag></Part>");
    }
    http_put(out, "</CompleteMultipartUpload>");
}

/* The number that `n` digits make. */
static int number_of(const char *text, unsigned n)
{
    int v = 0;
    for (unsigned i = 0; i < n; i++)
        v = 10 * v + (text[i] - '0');
    return v;
}

/* By hand: sscanf and timegm were a fifth of what a list of a million keys cost. */
bool s3_time_parse(const char *text, int64_t *ret)
{
    static const char form[] = "dddd-dd-ddTdd:dd:dd";
    static const int before[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
    for (unsigned i = 0; i < sizeof(form) - 1; i++)
        if (form[i] == 'd' ? text[i] < '0' || text[i] > '9' : text[i] != form[i]) /* also where text ends */
            return false;
    const int year = number_of(text, 4), month = number_of(text + 5, 2), day = number_of(text + 8, 2),
              hour = number_of(text + 11, 2), minute = number_of(text + 14, 2),
              second = number_of(text + 17, 2);
    text += sizeof(form) - 1;
    if (*text == '.')
        text += 1 + strspn(text + 1, "0123456789");
    if (strcmp(text, "Z") != 0 || year < 1970 || month < 1 || month > 12 || day < 1 || day > 31 ||
        hour > 23 || minute > 59 || second > 60)
        return false;
    const int past = year - (month < 3); /* leap days up to the end of this year have been */
    int64_t days =
        365ll * (year - 1970) + past / 4 - past / 100 + past / 400 - 477 + before[month - 1] + day - 1;
    *ret = ((days * 24 + hour) * 60 + minute) * 60 + second;
    return true;
}
