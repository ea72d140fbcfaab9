/* SPDX-License-Identifier: Apache-2.0 */
/* Documents that come with a request. Each is bounded by what its reader takes: so many parts, so many keys, a text of 8 KiB. */
#include "wire/s3/s3_server.h"
#include "wire/s3/xml.h"

#include <stdio.h>

static enum s3_code code_of(int rc)
{
    return rc == 0                  ? S3_OK
           : rc == -ENOMEM          ? S3_SLOW_DOWN
           : rc == LEAT_UNSUPPORTED ? S3_NOT_IMPLEMENTED
                                    : S3_MALFORMED_XML;
}

/* --- CompleteMultipartUpload ---------------------------------------------------------------------------------------------- */

struct complete {
    struct bytes_out parts;
    struct s3_part_named now;
    enum s3_code code; /* what is wrong with the parts, where it is more than the form of the document */
};

static bool unquote(const char **text, size_t *len)
{
    if (*len >= 2 && (*text)[0] == '"' && (*text)[*len - 1] == '"') {
        (*text)++;
        *len -= 2;
    }
    return !memchr(*text, '"', *len);
}

static int complete_start(void *user, const char *path)
{
    struct complete *c = user;
    if (!strchr(path, '/'))
        return strcmp(path, "CompleteMultipartUpload") == 0 ? 0 : LEAT_CORRUPT;
    if (strcmp(path, "CompleteMultipartUpload/Part") == 0)
        c->now = (struct s3_part_named){0};
    return 0;
}

static int complete_part(struct complete *c)
{
    unsigned n = (unsigned)(c->parts.len / sizeof(c->now));
    const struct s3_part_named *last = n ? &((struct s3_part_named *)c->parts.data)[n - 1] : NULL;
    if (!c->now.number || !c->now.etag[0] || n == S3_PARTS_MAX)
        return LEAT_CORRUPT;
    if (last && last->number >= c->now.number) {
        c->code = S3_INVALID_PART_ORDER;
        return LEAT_CORRUPT;
    }
    bytes_put(&c->parts, &c->now, sizeof(c->now));
    return c->parts.failed ? -ENOMEM : 0;
}

static int complete_end(void *user, const char *path, const char *text, size_t len)
{
    static const char part[] = "CompleteMultipartUpload/Part";
    struct complete *c = user;
    uint64_t number;
    if (strncmp(path, part, sizeof(part) - 1) != 0)
        return 0;
    path += sizeof(part) - 1;
    if (!*path)
        return complete_part(c);
    if (strcmp(path, "/PartNumber") == 0) {
        if (!http_text_u64((struct http_text){text, len}, &number) || number < 1 || number > S3_PARTS_MAX)
            return LEAT_CORRUPT;
        c->now.number = (unsigned)number;
    } else if (strcmp(path, "/ETag") == 0) {
        if (!unquote(&text, &len) || len >= sizeof(c->now.etag))
            return LEAT_CORRUPT;
        http_text_copy((struct http_text){text, len}, c->now.etag, sizeof(c->now.etag));
    } else if (strncmp(path, "/Checksum", 9) == 0) {
        if (c->now.checksum[0]) { /* two: which one is meant? */
            c->code = S3_INVALID_ARGUMENT;
            return LEAT_CORRUPT;
        }
        if (len >= sizeof(c->now.checksum) || strlen(path + 9) >= sizeof(c->now.algorithm))
            return LEAT_CORRUPT;
        http_text_copy((struct http_text){text, len}, c->now.checksum, sizeof(c->now.checksum));
        snprintf(c->now.algorithm, sizeof(c->now.algorithm), "%s", path + 9);
    }
    return 0;
}

enum s3_code s3_complete_parse(const void *body, size_t len, struct s3_part_named **ret_parts,
                               unsigned *ret_n)
{
    struct complete c = {.code = S3_OK};
    struct xml_reader *xml = xml_reader_new(complete_start, complete_end, &c);
    if (!xml)
        return S3_SLOW_DOWN;
    enum s3_code code = code_of(xml_reader_feed(xml, body, len, true, NULL));
    xml_reader_free(xml);
    if (c.code != S3_OK)
        code = c.code;
    if (code == S3_OK && c.parts.len == 0)
        code = S3_MALFORMED_XML;
    if (code != S3_OK) {
        bytes_out_fini(&c.parts);
        return code;
    }
    *ret_n = (unsigned)(c.parts.len / sizeof(c.now));
    *ret_parts = (struct s3_part_named *)c.parts.data;
    return S3_OK;
}

/* --- Delete --------------------------------------------------------------------------------------------------------------- */

static int delete_start(void *user, const char *path)
{
    struct s3_delete *d = user;
    if (!strchr(path, '/'))
        return strcmp(path, "Delete") == 0 ? 0 : LEAT_CORRUPT;
    if (strcmp(path, "Delete/Object") == 0) {
        if (d->n == S3_LIST_MAX)
            return LEAT_CORRUPT;
        d->keys[d->n] = (struct s3_delete_key){0};
    }
    return 0;
}

static int delete_end(void *user, const char *path, const char *text, size_t len)
{
    struct s3_delete *d = user;
    if (strcmp(path, "Delete/Quiet") == 0) {
        d->quiet = strcmp(text, "true") == 0;
    } else if (strcmp(path, "Delete/Object/Key") == 0) {
        d->keys[d->n].key_at = (uint32_t)d->texts.len;
        d->keys[d->n].key_len = (uint32_t)len;
        bytes_put(&d->texts, text, len + 1);
    } else if (strcmp(path, "Delete/Object/VersionId") == 0) {
        d->keys[d->n].version_at = (uint32_t)d->texts.len;
        d->keys[d->n].version_len = (uint32_t)len;
        bytes_put(&d->texts, text, len + 1);
    } else if (strcmp(path, "Delete/Object/ETag") == 0 || strcmp(path, "Delete/Object/Size") == 0 ||
               strcmp(path, "Delete/Object/LastModifiedTime") == 0) {
        return LEAT_UNSUPPORTED; /* "only if it is that one": better not at all than whatever it is */
    } else if (strcmp(path, "Delete/Object") == 0) {
        if (d->keys[d->n].key_len == 0)
            return LEAT_CORRUPT;
        d->n++;
    }
    return d->texts.failed ? -ENOMEM : 0;
}

void s3_delete_free(struct s3_delete *d)
{
    if (!d)
        return;
    bytes_out_fini(&d->texts);
    free(d);
}

enum s3_code s3_delete_parse(const void *body, size_t len, struct s3_delete **ret_delete)
{
    struct s3_delete *d = calloc(1, sizeof(*d));
    struct xml_reader *xml = d ? xml_reader_new(delete_start, delete_end, d) : NULL;
    enum s3_code code = xml ? code_of(xml_reader_feed(xml, body, len, true, NULL)) : S3_SLOW_DOWN;
    xml_reader_free(xml);
    if (code == S3_OK && d->n == 0)
        code = S3_MALFORMED_XML;
    if (code == S3_OK)
        *ret_delete = d;
    else
        s3_delete_free(d);
    return code;
}

/* --- CreateBucketConfiguration ---------------------------------------------------------------------------------------------- */

static int create_start(void *user, const char *path)
{
    (void)user;
    return strchr(path, '/') || strcmp(path, "CreateBucketConfiguration") == 0 ? 0 : LEAT_CORRUPT;
}

static int create_end(void *user, const char *path, const char *text, size_t len)
{
    if (strcmp(path, "CreateBucketConfiguration/LocationConstraint") == 0) {
        if (len > 64)
            return LEAT_CORRUPT;
        memcpy(user, text, len + 1);
    } else if (strchr(path, '/')) {
        return LEAT_UNSUPPORTED; /* tags, or a bucket of another kind */
    }
    return 0;
}

enum s3_code s3_create_bucket_parse(const void *body, size_t len, char ret_location[65])
{
    ret_location[0] = 0;
    if (len == 0)
        return S3_OK;
    struct xml_reader *xml = xml_reader_new(create_start, create_end, ret_location);
    if (!xml)
        return S3_SLOW_DOWN;
    enum s3_code code = code_of(xml_reader_feed(xml, body, len, true, NULL));
    xml_reader_free(xml);
    return code;
}
