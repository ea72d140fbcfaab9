/* SPDX-License-Identifier: Apache-2.0 */
/* What a store may answer: a page of a list, an error, an upload; and what a user may write as an address. */
#include "wire/s3/s3.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t objects(const struct s3_list *l)
{
    for (size_t i = 0; i < s3_list_count(l); i++) {
        struct s3_object o = s3_list_at(l, i);
        if (o.key_len == 0 || o.key_len > S3_KEY_MAX || strlen(o.key) != o.key_len || strlen(o.etag) > 150)
            abort();
    }
    return s3_list_count(l);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t n = 0, pieces = 0;
    struct s3_error e;
    char id[32];
    bool retry;
    struct s3_list *l = s3_list_new();
    int rc = l ? s3_list_feed(l, data, size, true, NULL) : 0;
    if (l && rc == 0)
        n = objects(l);
    s3_list_free(l);
    l = s3_list_new();
    int rc_pieces = 0;
    for (size_t at = 0; l && rc_pieces == 0 && at <= size; at += 7)
        rc_pieces = s3_list_feed(l, data + MIN(at, size), MIN((size_t)7, size - at), at + 7 > size, NULL);
    if (l && rc_pieces == 0)
        pieces = objects(l);
    s3_list_free(l);
    if ((rc == 0) != (rc_pieces == 0) || (rc == 0 && n != pieces))
        abort();
    s3_error_parse(data, size, &e);
    s3_error_class(500, e.code, &retry);
    s3_upload_id_parse(data, size, id, sizeof(id), NULL);
    s3_completed_parse(data, size, id, sizeof(id));

    char *text = strndup((const char *)data, size);
    struct s3_uri uri;
    struct s3_endpoint endpoint;
    char host[320], header[340];
    if (text && s3_uri_parse(text, &uri, NULL) == 0 && (!*uri.bucket || strlen(uri.key) > S3_KEY_MAX))
        abort();
    if (text && s3_endpoint_parse(text, NULL, "virtual", &endpoint, NULL) == 0)
        s3_endpoint_host(&endpoint, "bucket", host, header);
    free(text);
    return 0;
}
