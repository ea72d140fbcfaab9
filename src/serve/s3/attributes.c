/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GetObjectAttributes: what is known of an object, as a document. Nothing of its bytes is read, here or at a bucket's remote.
 */
#include "serve/s3/visit.h"

#include <stdio.h>

enum attribute { ETAG = 1, CHECKSUM = 2, PARTS = 4, STORAGE_CLASS = 8, SIZE = 16 };

/* The names in x-amz-object-attributes; 0: none, or one that is not known. */
static unsigned attributes_of(struct http_text list)
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

/* "leat-parts", as get.c has it; 0: it was put in one. */
static unsigned parts_of(const void *meta, size_t len)
{
    const char *text = store_meta_get(meta, len, "leat-parts");
    if (!text)
        return 0;
    if (strchr(text, ':'))
        return (unsigned)strtoul(text, NULL, 10);
    unsigned n = 1;
    while ((text = strchr(text, ',')) && text++)
        n++;
    return n;
}

static void look(struct visit *v)
{
    struct leat_error err = {0};
    int rc = objects_open(v->door->objects, v->call.bucket, v->call.key, v->call.key_len, true, &v->obj,
                          &v->read, &err);
    if (rc == 0 && v->read)
        rc = tier_read_wait(v->read, 0, 0, &err);
    if (rc < 0) {
        visit_fail_store(v, rc, &err);
        return;
    }
    v->info = v->obj ? v->obj->info : v->read->info;
    unsigned wanted = v->attributes;
    const void *meta = v->obj ? v->obj->meta : v->read->meta;
    size_t len = v->obj ? v->obj->meta_len : v->read->meta_len;
    struct s3_attributes a = {.etag = wanted & ETAG ? v->info.etag : NULL,
                              .sums = wanted & CHECKSUM ? meta : NULL,
                              .sums_len = len,
                              .parts = wanted & PARTS ? parts_of(meta, len) : 0,
                              .storage_class = wanted & STORAGE_CLASS,
                              .bytes = wanted & SIZE ? v->info.bytes : UINT64_MAX};
    s3_attributes_put(&v->out, &a);
}

static void answer(struct visit *v)
{
    char date[HTTP_DATE_BYTES];
    http_date_format((time_t)(v->info.mtime_ns / 1000000000), date);
    visit_send_xml_dated(v, date);
}

void op_attributes(struct visit *v)
{
    v->attributes = attributes_of(visit_header(v, "x-amz-object-attributes"));
    if (!v->attributes)
        visit_fail(
            v, S3_INVALID_ARGUMENT,
            "x-amz-object-attributes: one or more of ETag, Checksum, ObjectParts, StorageClass, ObjectSize");
    if (v->code == S3_OK)
        visit_work_afar(v, HTTP_LANE_SHORT, look, answer);
    else
        visit_refuse(v);
}
