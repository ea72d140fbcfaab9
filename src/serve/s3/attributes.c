/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GetObjectAttributes: what is known of an object, as a document. Nothing of its bytes is read, here or at a bucket's remote.
 */
#include "serve/s3/parts.h"
#include "serve/s3/task.h"

#include <stdio.h>

enum attribute { ETAG = 1, CHECKSUM = 2, PARTS = 4, STORAGE_CLASS = 8, SIZE = 16 };

/* The names in one x-amz-object-attributes; 0: none, or one that is not known. */
static unsigned attributes_in(struct http_text list)
{
    static const char *const names[] = {"ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"};
    unsigned wanted = 0;
    for (size_t at = 0; at < list.len;) {
        struct http_text name = {list.data + at, 0};
        while (at + name.len < list.len && name.data[name.len] != ',')
            name.len++;
        at += name.len + 1;
        for (; name.len && *name.data == ' '; name.len--)
            name.data++;
        while (name.len && name.data[name.len - 1] == ' ')
            name.len--;
        unsigned i = 0;
        while (i < ARRAY_LEN(names) && !http_text_is(name, names[i]))
            i++;
        if (i == ARRAY_LEN(names))
            return 0;
        wanted |= 1u << i;
    }
    return wanted;
}

/* Some SDKs send a header for each name. */
static unsigned attributes_of(const struct http_request *req)
{
    unsigned wanted = 0;
    for (unsigned i = 0; i < req->reader->nheaders; i++) {
        struct http_text name, value;
        http_header_at(req->reader, req->head, i, &name, &value);
        if (!http_text_is_case(name, "x-amz-object-attributes"))
            continue;
        unsigned some = attributes_in(value);
        if (!some)
            return 0;
        wanted |= some;
    }
    return wanted;
}

/* A number in a header, at most `max`, which it is where it is not given. */
static unsigned number_of(struct s3_task *v, const char *name, unsigned without, unsigned max)
{
    uint64_t n = without;
    struct http_text t = s3_task_header(v, name);
    if (t.data && !http_text_u64(t, &n)) {
        char message[80];
        snprintf(message, sizeof(message), "%s: not an integer or within integer range", name);
        s3_task_fail(v, S3_INVALID_ARGUMENT, message);
    }
    return (unsigned)MIN(n, (uint64_t)max);
}

/* A page of the object's parts. */
static int find_parts(const struct s3_task *v, const void *meta, size_t len, struct s3_attributes *a)
{
    struct object_part part;
    const char *whole;
    bool full;
    enum sum_kind kind = sum_of_meta(meta, len, &whole, &full);
    a->parts_total = parts_count(meta, len);
    a->parts_after = v->parts_after;
    a->parts_max = v->parts_max;
    a->part_sum = kind == SUM_NONE ? NULL : sum_names[kind].element;
    if (a->parts_total <= v->parts_after || !v->parts_max)
        return 0;
    unsigned n = MIN(a->parts_total - v->parts_after, v->parts_max);
    struct s3_object_part *page = calloc(n, sizeof(*page));
    if (!page)
        return -ENOMEM;
    for (unsigned i = 0; i < n; i++) {
        unsigned number = v->parts_after + i + 1;
        if (!parts_find(meta, len, v->info.bytes, number, &part))
            break;
        page[a->nparts++] = (struct s3_object_part){number, part.bytes, part.sum};
    }
    a->parts = page;
    return 0;
}

static int look(struct s3_task *v, struct leat_error *err)
{
    const void *meta;
    size_t len;
    int rc = s3_task_look(v, &meta, &len, err);
    if (rc < 0)
        return rc;
    unsigned wanted = v->attributes;
    const char *class = pairs_get(meta, len, "x-amz-storage-class");
    struct s3_attributes a = {.etag = wanted & ETAG ? v->info.etag : NULL,
                              .sums = wanted & CHECKSUM ? meta : NULL,
                              .sums_len = len,
                              .storage_class = !(wanted & STORAGE_CLASS) ? NULL
                                               : class                   ? class
                                                                         : "STANDARD",
                              .bytes = wanted & SIZE ? v->info.bytes : UINT64_MAX};
    if (wanted & PARTS)
        rc = find_parts(v, meta, len, &a);
    if (rc == 0)
        s3_attributes_put(&v->out, &a);
    free((void *)a.parts);
    return rc;
}

static void answer(struct s3_task *v)
{
    char date[HTTP_DATE_BYTES];
    http_date_format((time_t)(v->info.mtime_ns / 1000000000), date);
    s3_task_send_xml_dated(v, date);
}

void op_attributes(struct s3_task *v)
{
    v->attributes = attributes_of(v->req);
    if (!v->attributes)
        s3_task_fail(
            v, S3_INVALID_ARGUMENT,
            "x-amz-object-attributes: one or more of ETag, Checksum, ObjectParts, StorageClass, ObjectSize");
    v->parts_after = number_of(v, "x-amz-part-number-marker", 0, STORE_PARTS_MAX);
    v->parts_max = number_of(v, "x-amz-max-parts", S3_LIST_MAX, S3_LIST_MAX);
    if (v->code == S3_OK)
        s3_task_run_remote(v, HTTP_PRIORITY_SHORT, look, answer);
    else
        s3_task_refuse(v);
}
