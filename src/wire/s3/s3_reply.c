/* SPDX-License-Identifier: Apache-2.0 */
#include "base/pairs.h"
/* The documents that a server of S3 answers with. Numbers and times are written by hand: a page of a list has thousands. */
#include "wire/s3/s3_server.h"
#include "wire/s3/sigv4.h"
#include "wire/s3/xml.h"

void s3_time_format(int64_t seconds, char out[S3_TIME_TEXT])
{
    char t[SIGV4_TIME];
    sigv4_time((time_t)seconds, t);
    const char text[S3_TIME_TEXT] = {t[0],  t[1], t[2], t[3],  '-', t[4],  t[5],  '-', t[6],
                                     t[7],  'T',  t[9], t[10], ':', t[11], t[12], ':', t[13],
                                     t[14], '.',  '0',  '0',   '0', 'Z',   0};
    memcpy(out, text, S3_TIME_TEXT);
}

static void open_tag(struct bytes_out *out, const char *name)
{
    size_t n = strlen(name);
    uint8_t *to = bytes_room(out, n + 2);
    if (!to)
        return;
    to[0] = '<';
    memcpy(to + 1, name, n);
    to[n + 1] = '>';
}

static void close_tag(struct bytes_out *out, const char *name)
{
    bytes_put(out, "</", 2);
    http_put(out, name);
    bytes_put(out, ">", 1);
}

void s3_element(struct bytes_out *out, const char *name, const char *text, size_t len)
{
    open_tag(out, name);
    xml_put_text(out, text, len);
    close_tag(out, name);
}

void s3_element_u64(struct bytes_out *out, const char *name, uint64_t v)
{
    char digits[24];
    size_t at = sizeof(digits);
    do
        digits[--at] = (char)('0' + v % 10);
    while (v /= 10);
    s3_element(out, name, digits + at, sizeof(digits) - at);
}

void s3_element_key(struct bytes_out *out, bool url, const char *name, const char *text, size_t len)
{
    if (!url) {
        s3_element(out, name, text, len);
        return;
    }
    open_tag(out, name);
    http_escape(out, text, len, true);
    close_tag(out, name);
}

static void put_text(struct bytes_out *out, const char *name, const char *text)
{
    s3_element(out, name, text, strlen(text));
}

static void put_etag(struct bytes_out *out, const char *etag)
{
    http_put(out, "<ETag>&quot;");
    xml_put_text(out, etag, strlen(etag));
    http_put(out, "&quot;</ETag>");
}

static void put_time(struct bytes_out *out, const char *name, int64_t seconds)
{
    char text[S3_TIME_TEXT];
    s3_time_format(seconds, text);
    s3_element(out, name, text, S3_TIME_TEXT - 1);
}

static void put_owner(struct bytes_out *out, const char *owner)
{
    http_put(out, "<Owner>");
    put_text(out, "ID", owner);
    put_text(out, "DisplayName", owner);
    http_put(out, "</Owner>");
}

static void begin(struct bytes_out *out, const char *root)
{
    http_put(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<");
    http_put(out, root);
    http_put(out, " xmlns=\"" S3_NAMESPACE "\">");
}

/* --- lists ---------------------------------------------------------------------------------------------------------------- */

void s3_buckets_begin(struct bytes_out *out, const char *owner)
{
    begin(out, "ListAllMyBucketsResult");
    put_owner(out, owner);
    http_put(out, "<Buckets>");
}

void s3_buckets_put(struct bytes_out *out, const char *name, int64_t created)
{
    http_put(out, "<Bucket>");
    put_text(out, "Name", name);
    put_time(out, "CreationDate", created);
    http_put(out, "</Bucket>");
}

void s3_buckets_end(struct bytes_out *out)
{
    http_put(out, "</Buckets></ListAllMyBucketsResult>");
}

static const char *root_of(const struct s3_page *p)
{
    return p->versions ? "ListVersionsResult" : "ListBucketResult";
}

void s3_page_begin(struct bytes_out *out, const struct s3_page *p)
{
    begin(out, root_of(p));
    put_text(out, "Name", p->bucket);
    s3_element_key(out, p->url, "Prefix", p->prefix ? p->prefix : "", p->prefix_len);
    if (p->versions)
        put_text(out, "VersionIdMarker", p->version_marker ? p->version_marker : "");
    if (!p->v2)
        s3_element_key(out, p->url, p->versions ? "KeyMarker" : "Marker", p->after ? p->after : "",
                       p->after_len);
    else if (p->after)
        s3_element_key(out, p->url, "StartAfter", p->after, p->after_len);
    if (p->v2 && p->token)
        s3_element(out, "ContinuationToken", p->token, p->token_len);
    s3_element_u64(out, "MaxKeys", p->max_keys);
    if (p->delimiter_len) /* an empty one delimits nothing */
        s3_element_key(out, p->url, "Delimiter", p->delimiter, p->delimiter_len);
    if (p->url)
        put_text(out, "EncodingType", "url");
}

void s3_page_object(struct bytes_out *out, const struct s3_page *p, const char *key, size_t len,
                    uint64_t bytes, const char *etag, int64_t modified, const char *owner)
{
    const char *element = p->versions ? "Version" : "Contents";
    open_tag(out, element);
    s3_element_key(out, p->url, "Key", key, len);
    if (p->versions)
        http_put(out, "<VersionId>null</VersionId><IsLatest>true</IsLatest>");
    put_time(out, "LastModified", modified);
    put_etag(out, etag);
    s3_element_u64(out, "Size", bytes);
    if (p->owners)
        put_owner(out, owner);
    http_put(out, "<StorageClass>STANDARD</StorageClass>");
    close_tag(out, element);
}

void s3_page_prefix(struct bytes_out *out, const struct s3_page *p, const char *prefix, size_t len)
{
    http_put(out, "<CommonPrefixes>");
    s3_element_key(out, p->url, "Prefix", prefix, len);
    http_put(out, "</CommonPrefixes>");
}

void s3_page_end(struct bytes_out *out, const struct s3_page *p)
{
    if (p->v2)
        s3_element_u64(out, "KeyCount", p->count);
    put_text(out, "IsTruncated", p->truncated ? "true" : "false");
    if (p->truncated && p->v2)
        s3_element(out, "NextContinuationToken", p->next, p->next_len);
    else if (p->truncated)
        s3_element_key(out, p->url, p->versions ? "NextKeyMarker" : "NextMarker", p->next, p->next_len);
    if (p->truncated && p->versions && !p->next_is_prefix)
        put_text(out, "NextVersionIdMarker", "null");
    close_tag(out, root_of(p));
}

/* --- the rest ------------------------------------------------------------------------------------------------------------- */

void s3_copied_put(struct bytes_out *out, const char *kind, const char *etag, int64_t modified,
                   const char *checksum, const char *value)
{
    begin(out, kind);
    put_time(out, "LastModified", modified);
    put_etag(out, etag);
    if (checksum)
        put_text(out, checksum, value);
    if (checksum && strcmp(kind, "CopyObjectResult") == 0)
        put_text(out, "ChecksumType", "FULL_OBJECT");
    close_tag(out, kind);
}

void s3_created_upload_put(struct bytes_out *out, const char *bucket, const char *key, size_t key_len,
                           const char *id)
{
    begin(out, "InitiateMultipartUploadResult");
    put_text(out, "Bucket", bucket);
    s3_element(out, "Key", key, key_len);
    put_text(out, "UploadId", id);
    http_put(out, "</InitiateMultipartUploadResult>");
}

void s3_completed_put(struct bytes_out *out, const char *location, const char *bucket, const char *key,
                      size_t key_len, const char *etag, const char *checksum, const char *value,
                      const char *type)
{
    begin(out, "CompleteMultipartUploadResult");
    put_text(out, "Location", location);
    put_text(out, "Bucket", bucket);
    s3_element(out, "Key", key, key_len);
    put_etag(out, etag);
    if (checksum) {
        put_text(out, checksum, value);
        put_text(out, "ChecksumType", type);
    }
    http_put(out, "</CompleteMultipartUploadResult>");
}

void s3_location_put(struct bytes_out *out, const char *region)
{
    begin(out, "LocationConstraint");
    if (strcmp(region, "us-east-1") != 0) /* which has none, for old times' sake */
        xml_put_text(out, region, strlen(region));
    http_put(out, "</LocationConstraint>");
}

static void put_sums(struct bytes_out *out, const char *sums, size_t len)
{
    static const char *const names[][2] = {
        {"x-amz-checksum-crc32", "ChecksumCRC32"},         {"x-amz-checksum-crc32c", "ChecksumCRC32C"},
        {"x-amz-checksum-crc64nvme", "ChecksumCRC64NVME"}, {"x-amz-checksum-sha1", "ChecksumSHA1"},
        {"x-amz-checksum-sha256", "ChecksumSHA256"},       {"x-amz-checksum-type", "ChecksumType"}};
    bool any = false;
    for (struct pair p = {0}; pairs_next(sums, len, &p);) {
        for (size_t i = 0; i < ARRAY_LEN(names); i++) {
            if (strcmp(p.name, names[i][0]) != 0)
                continue;
            if (!any)
                http_put(out, "<Checksum>");
            any = true;
            put_text(out, names[i][1], p.value);
        }
    }
    if (any)
        http_put(out, "</Checksum>");
}

static void put_parts(struct bytes_out *out, const struct s3_attributes *a)
{
    unsigned last = a->nparts ? a->parts[a->nparts - 1].number : a->parts_after;
    bool more = a->nparts && last < a->parts_total;
    http_put(out, "<ObjectParts>");
    s3_element_u64(out, "PartsCount", a->parts_total);
    s3_element_u64(out, "PartNumberMarker", a->parts_after);
    s3_element_u64(out, "NextPartNumberMarker", last);
    s3_element_u64(out, "MaxParts", a->parts_max);
    put_text(out, "IsTruncated", more ? "true" : "false");
    for (unsigned i = 0; i < a->nparts; i++) {
        const struct s3_object_part *p = &a->parts[i];
        http_put(out, "<Part>");
        s3_element_u64(out, "PartNumber", p->number);
        s3_element_u64(out, "Size", p->bytes);
        if (a->part_sum && p->sum.data)
            s3_element(out, a->part_sum, p->sum.data, p->sum.len);
        http_put(out, "</Part>");
    }
    http_put(out, "</ObjectParts>");
}

void s3_attributes_put(struct bytes_out *out, const struct s3_attributes *a)
{
    begin(out, "GetObjectAttributesResponse");
    if (a->etag)
        put_text(out, "ETag", a->etag);
    if (a->sums)
        put_sums(out, a->sums, a->sums_len);
    if (a->parts_total)
        put_parts(out, a);
    if (a->storage_class)
        put_text(out, "StorageClass", a->storage_class);
    if (a->bytes != UINT64_MAX)
        s3_element_u64(out, "ObjectSize", a->bytes);
    http_put(out, "</GetObjectAttributesResponse>");
}

void s3_encryption_put(struct bytes_out *out)
{
    begin(out, "ServerSideEncryptionConfiguration");
    http_put(out, "<Rule><ApplyServerSideEncryptionByDefault><SSEAlgorithm>AES256</SSEAlgorithm>"
                  "</ApplyServerSideEncryptionByDefault><BucketKeyEnabled>false</BucketKeyEnabled></Rule>"
                  "</ServerSideEncryptionConfiguration>");
}

void s3_deleted_begin(struct bytes_out *out)
{
    begin(out, "DeleteResult");
}

void s3_deleted_key(struct bytes_out *out, const char *key, size_t len, enum s3_code code)
{
    const char *element = code == S3_OK ? "Deleted" : "Error";
    open_tag(out, element);
    s3_element(out, "Key", key, len);
    if (code != S3_OK) {
        put_text(out, "Code", s3_code_name(code));
        put_text(out, "Message", s3_code_message(code));
    }
    close_tag(out, element);
}

void s3_deleted_end(struct bytes_out *out)
{
    http_put(out, "</DeleteResult>");
}
