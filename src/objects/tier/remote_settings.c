/* SPDX-License-Identifier: Apache-2.0 */
/* remote_settings.c: a bucket's property "remote", read and written; and what is kept of an object there and here, from the one form to the other. */
#include "base/secret_file.h"
#include "objects/tier/tier_internal.h"

#include <jansson.h>
#include <stdio.h>
#include <strings.h>

#include "wire/json_whole.h"
#include "wire/s3/s3.h"

#define AGE_MAX     (365ll * 86400)
#define TIMEOUT_MAX 3600ll

void tier_remote_fini(struct tier_remote *r)
{
    char **all[] = {&r->uri,     &r->base_key, &r->endpoint,   &r->region,     &r->style,
                    &r->ca_file, &r->profile,  &r->access_key, &r->secret_key, &r->token};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        secret_wipe(all[i]);
}

enum kind { TEXT, TRUTH, NUMBER };
static const struct {
    const char *name;
    enum kind kind;
    size_t at; /* in struct tier_remote; 0: looked at by itself */
} known[] = {
    {"uri", TEXT, 0},
    {"mode", TEXT, 0},
    {"check", TEXT, 0},
    {"endpoint", TEXT, offsetof(struct tier_remote, endpoint)},
    {"region", TEXT, offsetof(struct tier_remote, region)},
    {"style", TEXT, offsetof(struct tier_remote, style)},
    {"ca_file", TEXT, offsetof(struct tier_remote, ca_file)},
    {"profile", TEXT, offsetof(struct tier_remote, profile)},
    {"access_key", TEXT, offsetof(struct tier_remote, access_key)},
    {"secret_key", TEXT, offsetof(struct tier_remote, secret_key)},
    {"token", TEXT, offsetof(struct tier_remote, token)},
    {"anonymous", TRUTH, offsetof(struct tier_remote, anonymous)},
    {"insecure", TRUTH, offsetof(struct tier_remote, insecure)},
    {"age_s", NUMBER, offsetof(struct tier_remote, age_s)},
    {"timeout_s", NUMBER, offsetof(struct tier_remote, timeout_s)},
};

static int take(struct tier_remote *r, const char *name, json_t *value, struct leat_error *err)
{
    size_t i = 0;
    while (i < ARRAY_LEN(known) && strcmp(known[i].name, name) != 0)
        i++;
    if (i == ARRAY_LEN(known))
        return error_set(
            err, LEAT_INVALID,
            "remote: there is no setting \"%.60s\"; there are uri, endpoint, region, style, ca_file, "
            "profile, access_key, secret_key, token, anonymous, insecure, mode, check, age_s and "
            "timeout_s",
            name);
    void *to = (char *)r + known[i].at;
    if (known[i].kind == TEXT && !json_is_string(value))
        return error_set(err, LEAT_INVALID, "remote: %s is a text", name);
    if (known[i].kind == TRUTH && !json_is_boolean(value))
        return error_set(err, LEAT_INVALID, "remote: %s is true or false", name);
    long long max = strcmp(name, "age_s") == 0 ? AGE_MAX : TIMEOUT_MAX;
    if (known[i].kind == NUMBER &&
        (!json_is_integer(value) || json_integer_value(value) < 1 || json_integer_value(value) > max))
        return error_set(err, LEAT_INVALID, "remote: %s is a number of seconds, from 1 to %lld", name, max);
    if (known[i].at == 0)
        return 0;
    if (known[i].kind == TRUTH)
        *(bool *)to = json_is_true(value);
    else if (known[i].kind == NUMBER)
        *(uint64_t *)to = (uint64_t)json_integer_value(value);
    else if (*json_string_value(value) && !(*(char **)to = strdup(json_string_value(value))))
        return -ENOMEM;
    return 0;
}

/* `allowed`: the names as a message says them. */
static int choose(const char *what, const char *value, const char *const *names, unsigned n,
                  const char *allowed, int *ret, struct leat_error *err)
{
    for (unsigned i = 0; value && i < n; i++) {
        if (strcmp(value, names[i]) == 0) {
            *ret = (int)i;
            return 0;
        }
    }
    return value ? error_set(err, LEAT_INVALID, "remote: %s is %s, not \"%.40s\"", what, allowed, value) : 0;
}

/* "s3://bucket/prefix" to "s3://bucket/prefix/", and "prefix/". */
static int take_uri(struct tier_remote *r, const char *uri, struct leat_error *err)
{
    struct s3_uri parsed = {.key = ""};
    int rc = 0;
    if (!uri)
        return error_set(err, LEAT_INVALID,
                         "remote: it needs a uri: \"s3://BUCKET/PREFIX\" or \"file:///FOLDER\"");
    r->folder = strncasecmp(uri, "file:///", 8) == 0;
    if (!r->folder && !s3_uri_is(uri))
        return error_set(err, LEAT_INVALID,
                         "remote: \"%.200s\": the uri is s3://BUCKET/PREFIX or file:///FOLDER", uri);
    if (!r->folder)
        rc = s3_uri_parse(uri, &parsed, err);
    if (rc < 0)
        return rc;
    size_t n = strlen(uri);
    const char *slash = n && uri[n - 1] == '/' ? "" : "/";
    if (asprintf(&r->uri, "%s%s", uri, slash) < 0)
        r->uri = NULL;
    if (asprintf(&r->base_key, "%s%s", parsed.key, *parsed.key ? slash : "") < 0)
        r->base_key = NULL;
    return r->uri && r->base_key ? 0 : -ENOMEM;
}

static int check(const struct tier_remote *r, struct leat_error *err)
{
    struct s3_endpoint e;
    if (!r->access_key != !r->secret_key)
        return error_set(err, LEAT_INVALID, "remote: access_key and secret_key belong together");
    if (r->anonymous + (r->access_key != NULL) + (r->profile != NULL) > 1)
        return error_set(err, LEAT_INVALID,
                         "remote: give one of anonymous, profile, and access_key with secret_key");
    if (r->folder)
        return r->endpoint || r->access_key || r->profile
                   ? error_set(err, LEAT_INVALID, "remote: a folder has no endpoint and asks for no keys")
                   : 0;
    return s3_endpoint_parse(r->endpoint, r->region, r->style, &e, err);
}

int tier_remote_parse(const char *json, struct tier_remote *ret_remote, struct leat_error *err)
{
    static const char *const modes[] = {"through", "back"}, *const checks[] = {"never", "age", "always"};
    struct tier_remote r = {.age_s = 60, .timeout_s = 30};
    json_error_t why;
    json_t *root = json_loads(json, JSON_REJECT_DUPLICATES, &why), *value;
    const char *name;
    int rc = 0, mode = TIER_THROUGH, policy = TIER_NEVER;
    if (!json_is_object(root)) {
        const char *near = root ? NULL : strstr(why.text, " near "); /* what follows may be a key */
        json_decref(root);
        return error_set(err, LEAT_INVALID, "remote: a JSON object, like {\"uri\": \"s3://BUCKET\"}%s%.*s",
                         root ? "" : ": ", near ? (int)(near - why.text) : 100, root ? "" : why.text);
    }
    json_object_foreach(root, name, value)
    {
        rc = take(&r, name, value, err);
        if (rc < 0)
            break;
    }
    if (rc == 0)
        rc = take_uri(&r, json_string_value(json_object_get(root, "uri")), err);
    if (rc == 0)
        rc = choose("mode", json_string_value(json_object_get(root, "mode")), modes, 2,
                    "\"through\" or \"back\"", &mode, err);
    if (rc == 0)
        rc = choose("check", json_string_value(json_object_get(root, "check")), checks, 3,
                    "\"never\", \"age\" or \"always\"", &policy, err);
    if (rc == 0)
        rc = check(&r, err);
    json_decref(root);
    if (rc < 0) {
        tier_remote_fini(&r);
        return rc;
    }
    r.mode = (enum tier_mode)mode;
    r.check = (enum tier_check_policy)policy;
    *ret_remote = r;
    return 0;
}

int tier_remote_guess(const char *json, struct tier_remote *ret_remote)
{
    json_t *root = json ? json_loads(json, 0, NULL) : NULL;
    const char *endpoint = json_string_value(json_object_get(root, "endpoint"));
    struct tier_remote r = {.check = TIER_ALWAYS, .age_s = 60, .timeout_s = 30};
    int rc = take_uri(&r, json_string_value(json_object_get(root, "uri")), NULL);
    r.uri = r.uri ? r.uri : strdup("");
    r.base_key = r.base_key ? r.base_key : strdup("");
    r.endpoint = endpoint && *endpoint ? strdup(endpoint) : NULL;
    bool good = rc != -ENOMEM && r.uri && r.base_key && (!endpoint || !*endpoint || r.endpoint);
    json_decref(root);
    if (!good) {
        tier_remote_fini(&r);
        return -ENOMEM;
    }
    *ret_remote = r;
    return 0;
}

char *tier_remote_of(const char *props)
{
    json_t *root = json_loads(props, 0, NULL), *remote = json_object_get(root, "remote");
    char *text = json_whole(remote);
    json_decref(root);
    return text;
}

int tier_remote_into(const char *props, const char *json, char **ret_props)
{
    json_t *root = json_loads(props, 0, NULL);
    if (!json_is_object(root)) {
        json_decref(root);
        root = json_object();
    }
    int bad = json ? json_object_set_new(root, "remote", json_loads(json, 0, NULL)) : 0;
    if (!json)
        json_object_del(root, "remote");
    *ret_props = root && bad == 0 ? json_whole(root) : NULL;
    json_decref(root);
    return *ret_props ? 0 : -ENOMEM;
}

char *tier_remote_shown(const char *json)
{
    json_t *root = json_loads(json, 0, NULL);
    json_object_del(root, "secret_key");
    json_object_del(root, "token");
    char *text = json_whole(root);
    json_decref(root);
    return text;
}

/* --- an object's ------------------------------------------------------------------------------------------------------------- */

int tier_meta_of(const struct backend_stat *stat, void **ret_meta, size_t *ret_len)
{
    struct bytes_out out = {0};
    char sum[S3_CRC_TEXT];
    AUTO_FREE char *lines = strdup(stat->headers);
    char *at = lines;
    struct backend_header h;
    while (backend_header_next(&at, &h)) {
        bytes_put(&out, h.name, strlen(h.name) + 1);
        bytes_put(&out, h.value, strlen(h.value) + 1);
    }
    if (stat->crc.kind != S3_CRC_NONE) {
        const char *name = s3_crc_header(stat->crc.kind);
        s3_crc_format(stat->crc, sum);
        bytes_put(&out, name, strlen(name) + 1);
        bytes_put(&out, sum, strlen(sum) + 1);
    }
    if (!lines || out.failed) {
        bytes_out_fini(&out);
        return -ENOMEM;
    }
    *ret_meta = out.data;
    *ret_len = out.len;
    return 0;
}

struct lines {
    char *text;
    size_t len;
    unsigned n;
};

/* The end of the line of this name, if there is one. */
static char *find_line(const struct lines *l, const char *name)
{
    size_t n = strlen(name);
    for (char *at = l->text; *at; at = strchr(at, '\n') + 1)
        if (strncmp(at, name, n) == 0 && at[n] == ':')
            return strchr(at, '\n');
    return NULL;
}

/* A name that comes twice is one header, as HTTP has it: "a", then "b" is "a,b". */
static int add_line(struct lines *l, const char *name, const char *value)
{
    if (!backend_header_kept(name) || strpbrk(value, "\r\n"))
        return 0;
    char *end = find_line(l, name);
    size_t value_len = strlen(value), n = end ? value_len + 1 : strlen(name) + value_len + 2;
    if (l->len + n >= BACKEND_HEADERS_MAX || (!end && l->n == BACKEND_HEADERS))
        return LEAT_INVALID;
    if (end) {
        memmove(end + n, end, l->len - (size_t)(end - l->text) + 1);
        *end = ',';
        memcpy(end + 1, value, value_len);
    } else {
        sprintf(l->text + l->len, "%s:%s\n", name, value);
        l->n++;
    }
    l->len += n;
    return 0;
}

int tier_headers_of(const void *meta, size_t meta_len, char ret_headers[BACKEND_HEADERS_MAX])
{
    struct lines l = {.text = ret_headers};
    ret_headers[0] = 0;
    int rc = 0;
    for (struct pair p = {0}; rc == 0 && pairs_next(meta, meta_len, &p);)
        rc = add_line(&l, p.name, p.value);
    return rc;
}

void tier_tag_of(const struct backend_stat *stat, char ret_tag[BACKEND_ETAG_MAX])
{
    if (*stat->etag)
        snprintf(ret_tag, BACKEND_ETAG_MAX, "%s", stat->etag);
    else /* a server without ETags */
        snprintf(ret_tag, BACKEND_ETAG_MAX, "\"%llx-%llx\"", (unsigned long long)stat->modified,
                 (unsigned long long)stat->bytes);
}

void tier_etag_of(const char *tag, char ret_etag[STORE_ETAG_MAX + 1])
{
    size_t n = strlen(tag);
    if (n >= 2 && tag[0] == '"' && tag[n - 1] == '"') {
        tag++;
        n -= 2;
    }
    n = MIN(n, (size_t)STORE_ETAG_MAX);
    memcpy(ret_etag, tag, n);
    ret_etag[n] = 0;
}
