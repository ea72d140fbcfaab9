/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ListObjects, V1 and V2; ListObjectVersions, which has one version of each object, called "null", as in S3
 * for a bucket without versioning.
 *
 * A page of a list is written by a worker into memory: at most 1,000 entries, each of a key of 1,024 bytes
 * that may take three times as much where it is escaped, so 4 MiB in the worst case; that much is charged to
 * the budget beforehand for a long list.
 *
 * Invariants: a token says where a page ended, in hex: "k" and a key, or "p" and a common prefix, below which
 * the next page has nothing.
 */
#include "base/hex.h"
#include "serve/s3/task.h"

struct listing {
    struct s3_task *v;
    struct s3_page page;
    struct objects_bucket bucket;
    struct bytes_out entries, last; /* last: key or prefix of the newest entry */
    bool last_is_prefix;
    char token[2 * S3_KEY_MAX + 2];
    char after[S3_KEY_MAX + 1]; /* out of a token */
    size_t after_len;
    bool after_prefix;
};

/* --- tokens -------------------------------------------------------------------------------------------------------------------------- */

static void make_token(struct listing *l)
{
    size_t n = MIN(l->last.len, (size_t)S3_KEY_MAX);
    l->token[0] = l->last_is_prefix ? 'p' : 'k';
    hex_put(l->token + 1, l->last.data, n);
    l->page.next = l->token;
    l->page.next_len = 1 + 2 * n;
}

static bool read_token(struct listing *l, const char *token, size_t len)
{
    if (len < 3 || len % 2 == 0 || len > 2 * S3_KEY_MAX + 1 || (token[0] != 'k' && token[0] != 'p'))
        return false;
    l->after_len = len / 2;
    l->after_prefix = token[0] == 'p';
    return hex_get(token + 1, l->after_len, l->after);
}

/* --- what is asked for --------------------------------------------------------------------------------------------------------------- */

static bool starts(const char *text, size_t len, const char *with, size_t with_len)
{
    return len >= with_len && (with_len == 0 || memcmp(text, with, with_len) == 0); /* NULL: no prefix */
}

/* V1's marker may be a common prefix that it was given as NextMarker; a key-marker, too. */
static bool marks_prefix(const struct s3_page *p)
{
    const char *rest = p->after + p->prefix_len;
    if (!p->delimiter_len || p->after_len < p->prefix_len + p->delimiter_len ||
        !starts(p->after, p->after_len, p->prefix, p->prefix_len))
        return false;
    const char *found = memmem(rest, p->after_len - p->prefix_len, p->delimiter, p->delimiter_len);
    return found && found + p->delimiter_len == p->after + p->after_len;
}

static bool parameters(struct listing *l)
{
    struct s3_task *v = l->v;
    struct s3_page *p = &l->page;
    uint64_t max = S3_LIST_MAX;
    size_t max_len;
    const char *encoding = s3_call_param(&v->call, "encoding-type", NULL);
    const char *keys = s3_call_param(&v->call, "max-keys", &max_len);
    const char *owners = s3_call_param(&v->call, "fetch-owner", NULL);
    p->v2 = v->call.op == S3_OP_LIST_OBJECTS_V2;
    p->versions = v->call.op == S3_OP_LIST_VERSIONS;
    p->bucket = v->call.bucket;
    p->prefix = s3_call_param(&v->call, "prefix", &p->prefix_len);
    p->delimiter = s3_call_param(&v->call, "delimiter", &p->delimiter_len);
    p->after = s3_call_param(&v->call,
                             p->v2         ? "start-after"
                             : p->versions ? "key-marker"
                                           : "marker",
                             &p->after_len);
    p->version_marker = p->versions ? s3_call_param(&v->call, "version-id-marker", NULL) : NULL;
    p->token = p->v2 ? s3_call_param(&v->call, "continuation-token", &p->token_len) : NULL;
    p->url = encoding && strcmp(encoding, "url") == 0;
    p->owners = !p->v2 || (owners && strcmp(owners, "true") == 0);
    if (encoding && !p->url)
        return s3_task_fail(v, S3_INVALID_ARGUMENT, "Invalid Encoding Method specified in Request");
    if (keys && *keys && !http_text_u64((struct http_text){keys, max_len}, &max))
        return s3_task_fail(v, S3_INVALID_ARGUMENT,
                            "Provided max-keys not an integer or within integer range");
    if (p->version_marker && *p->version_marker && !p->after_len)
        return s3_task_fail(v, S3_INVALID_ARGUMENT,
                            "A version-id marker cannot be specified without a key marker.");
    if (p->token && !read_token(l, p->token, p->token_len))
        return s3_task_fail(v, S3_INVALID_ARGUMENT, "The continuation token provided is incorrect");
    p->max_keys = (unsigned)MIN(max, (uint64_t)S3_LIST_MAX);
    return true;
}

/* --- a page -------------------------------------------------------------------------------------------------------------------------- */

static int put_entry(void *user, const struct store_entry *e)
{
    struct listing *l = user;
    struct bytes_out *out = &l->entries;
    l->page.count++;
    if (e->prefix)
        s3_page_prefix(out, &l->page, e->key, e->key_len);
    else
        s3_page_object(out, &l->page, e->key, e->key_len, e->bytes, e->etag, e->mtime_ns / 1000000000,
                       l->bucket.owner);
    if (l->page.count >= l->page.max_keys) {
        bytes_out_reset(&l->last);
        bytes_put(&l->last, e->key, e->key_len);
        l->last_is_prefix = e->prefix;
    }
    return 0;
}

static int entries(struct listing *l, struct leat_error *err)
{
    struct s3_task *v = l->v;
    struct s3_page *p = &l->page;
    struct store_list_spec spec = {
        .prefix = p->prefix,
        .prefix_len = p->prefix_len,
        .after = p->token ? l->after : p->after,
        .after_len = p->token ? l->after_len : p->after_len,
        .after_prefix = p->token ? l->after_prefix : p->after && !p->v2 && marks_prefix(p),
        .delimiter = p->delimiter_len ? p->delimiter : NULL,
        .delimiter_len = p->delimiter_len,
        .max = p->max_keys,
    };
    if (!spec.after_len)
        spec.after = NULL;
    bool more = false;
    int rc = objects_bucket_get(v->service->objects, v->call.bucket, &l->bucket, NULL);
    if (rc == 0 && p->max_keys)
        rc = objects_list(v->service->objects, v->call.bucket, &spec, put_entry, l, &more, err);
    p->truncated = more;
    return rc;
}

static int list(struct s3_task *v, struct leat_error *err)
{
    struct listing *l = calloc(1, sizeof(*l));
    if (!l)
        return -ENOMEM;
    l->v = v;
    int rc = parameters(l) ? entries(l, err) : 0;
    if (rc == 0 && v->code == S3_OK) {
        if (l->page.truncated && l->page.v2) {
            make_token(l);
        } else if (l->page.truncated) {
            l->page.next = (const char *)l->last.data;
            l->page.next_len = l->last.len;
            l->page.next_is_prefix = l->last_is_prefix;
        }
        s3_page_begin(&v->out, &l->page);
        bytes_put(&v->out, l->entries.data ? l->entries.data : (const uint8_t *)"", l->entries.len);
        s3_page_end(&v->out, &l->page);
        v->out.failed |= l->entries.failed || l->last.failed;
    }
    bytes_out_fini(&l->entries);
    bytes_out_fini(&l->last);
    free(l);
    return rc;
}

void op_list(struct s3_task *v)
{
    if (s3_task_charge_list(v, "max-keys"))
        s3_task_run_remote(v, HTTP_PRIORITY_SHORT, list, s3_task_send_xml);
    else
        s3_task_refuse(v);
}
