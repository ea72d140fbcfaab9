/* SPDX-License-Identifier: Apache-2.0 */
/*
 * uri.c: one source of a dataset, as a user writes it, to a path or an address.
 *
 *   images.npy, /data/x            a path as it stands: no character has a meaning, "%20" is three of them
 *   file:///data/a%20b             RFC 8089: absolute, percent-encoded (RFC 3986, 2.1), host empty or localhost
 *   file:/data/x                   the same without an authority
 *   s3://bucket/a b.npy            an object or a prefix: the key stands as it is, nothing is unescaped
 *   https://host/a%20b.npy         as it stands; http:// too
 *   store://bucket/a b.npy         what the daemon's own store holds: as s3://
 *   gs://…, C:\…, file://host/…    refused, each with what to write instead
 *
 * In a file URI "#" parts a dataset within an HDF5 file, as it does in a path, and "*", "{", "}", "[" and "]" stand for
 * themselves, since patterns need them; other characters that RFC 3986 does not allow must be encoded. Bytes above 127
 * may stand as they are. Failure modes: all of them are the user's, LEAT_INVALID or LEAT_UNSUPPORTED.
 */
#include <ctype.h>
#include <strings.h>

#include "dataset/scan.h"
#include "wire/address.h"
#include "wire/s3/s3.h"

#define ADDRESS_MAX 4000u /* of an address with patterns in it; what a source's path may have is PATH_MAX */

#define SHOWN(len)  ((int)MIN((len), (size_t)200))

static int refuse(struct leat_error *err, const char *text, size_t len, const char *why)
{
    return error_set(err, LEAT_INVALID, "%.*s: %s", SHOWN(len), text, why);
}

static int hex(char c)
{
    return isdigit((unsigned char)c) ? c - '0' : isxdigit((unsigned char)c) ? (c | 32) - 'a' + 10 : -1;
}

static bool drive(const char *path, size_t len)
{
    return len >= 2 && isalpha((unsigned char)path[0]) && (path[1] == ':' || path[1] == '|') &&
           (len == 2 || path[2] == '/' || path[2] == '\\');
}

/* One character at *at, which moves on. -1: *ret_why. */
static int next_char(const char **at, const char *end, const char **ret_why)
{
    unsigned char c = (unsigned char)*(*at)++;
    if (c == '?') {
        *ret_why = "a file URI has no query; write %3F for a question mark in a name";
        return -1;
    }
    if (c <= ' ' || c == 127 || strchr("\"<>\\^`|", c)) {
        *ret_why =
            "a character that a URI cannot hold as it is: encode it (a space is %20), or give a plain path";
        return -1;
    }
    if (c != '%')
        return c;
    int high = *at < end ? hex((*at)[0]) : -1, low = high >= 0 && *at + 1 < end ? hex((*at)[1]) : -1;
    if (low < 0) {
        *ret_why = "behind % two hexadecimal digits are needed; a % in a name is %25, or give a plain path";
        return -1;
    }
    *at += 2;
    c = (unsigned char)(high << 4 | low);
    if (c == 0 || c == '/') {
        *ret_why = c ? "%2F: no file's name has a slash in it" : "%00: no file's name has a NUL in it";
        return -1;
    }
    return c;
}

static int file_path(const char *text, size_t len, char **ret_path, struct leat_error *err)
{
    const char *at = text + strlen("file:"), *end = text + len, *why;
    if (end - at >= 2 && at[0] == '/' && at[1] == '/') {
        const char *host = at + 2;
        at = memchr(host, '/', (size_t)(end - host));
        size_t host_len = (size_t)((at ? at : end) - host);
        if (host_len && !(host_len == 9 && strncasecmp(host, "localhost", 9) == 0))
            return error_set(
                err, LEAT_INVALID,
                "%.*s: \"%.*s\" stands where a host is named, and only this host's files are read: "
                "file:///PATH for an absolute path, no file:// for a relative one",
                SHOWN(len), text, (int)MIN(host_len, (size_t)100), host);
    }
    if (!at || at == end || *at != '/')
        return refuse(err, text, len,
                      "a file URI needs an absolute path (file:///PATH); give a relative one without file:");
    AUTO_FREE char *path = malloc((size_t)(end - at) + 1);
    if (!path)
        return error_set(err, -ENOMEM, "out of memory");
    size_t used = 0;
    while (at < end) {
        int c = next_char(&at, end, &why);
        if (c < 0)
            return refuse(err, text, len, why);
        path[used++] = (char)c;
    }
    path[used] = 0;
    if (drive(path + 1, used - 1))
        return refuse(err, text, len, "a path of Windows; there are no drives here");
    *ret_path = TAKE_PTR(path);
    return 0;
}

bool dataset_is_remote(const char *uri)
{
    return address_is_remote(address_of(uri));
}

bool dataset_has_lists(const char *uri)
{
    return address_has_lists(address_of(uri));
}

/* As it stands, but for the scheme's letters, and for "s3://bucket#pattern=*.jpg": no bucket's name has a "#" in it. */
static int address(const char *text, size_t len, char **ret_path, struct leat_error *err)
{
    AUTO_FREE char *copy = malloc(len + 2);
    struct s3_uri parsed;
    if (!copy)
        return error_set(err, -ENOMEM, "out of memory");
    memcpy(copy, text, len);
    copy[len] = 0;
    char *end = strstr(copy, "//") + 2;
    end += strcspn(end, "/#");
    if (dataset_has_lists(copy) && *end == '#') {
        memmove(end + 1, end, strlen(end) + 1);
        *end = '/';
    }
    for (char *c = copy; *c != ':'; c++)
        *c = (char)tolower((unsigned char)*c);
    if (len > ADDRESS_MAX)
        return refuse(err, text, len, "an address of more than 4000 bytes");
    if (s3_uri_is(copy)) {
        int rc = s3_uri_parse(copy, &parsed, err);
        if (rc < 0)
            return rc;
    } else if (address_of(copy) == ADDRESS_STORE) {
        size_t bucket_len = strcspn(copy + 8, "/");
        if (bucket_len < 3 || bucket_len > 63)
            return refuse(
                err, text, len,
                "what lies in the store is store://BUCKET/PREFIX, and a bucket's name has 3 to 63 letters");
    } else {
        const char *host = strstr(copy, "//") + 2;
        size_t host_len = strcspn(host, "/?#");
        if (host_len == 0 || !host[host_len])
            return refuse(err, text, len, "an address needs a host and a file: https://HOST/PATH");
        if (copy[len - 1] == '/')
            return refuse(err, text, len,
                          "a folder of a web server, which has no lists; name the files, or tar shards as in "
                          "x-{000..099}.tar");
        for (const char *c = host; *c; c++)
            if ((unsigned char)*c <= ' ' || *c == 127)
                return refuse(err, text, len, "spaces and other odd bytes have to be percent-encoded");
    }
    for (const char *c = strstr(copy, "//") + 2; *(c += strcspn(c, "/")); c++)
        if (strncmp(c, "/..", 3) == 0 && (c[3] == '/' || c[3] == 0))
            return refuse(err, text, len, "an address with \"..\" in it; write it without");
    *ret_path = TAKE_PTR(copy);
    return 0;
}

int spec_source_path(const char *text, size_t len, char **ret_path, struct leat_error *err)
{
    size_t scheme = 0;
    while (scheme < len && (isalnum((unsigned char)text[scheme]) || strchr("+.-", text[scheme])))
        scheme++;
    if (len >= 5 && strncasecmp(text, "file:", 5) == 0)
        return file_path(text, len, ret_path, err);
    if (drive(text, len) || (len >= 2 && text[0] == '\\' && text[1] == '\\'))
        return refuse(err, text, len, "a path of Windows; put ./ in front if a file is called so");
    if (isalpha((unsigned char)text[0]) && len - scheme >= 3 && strncmp(text + scheme, "://", 3) == 0) {
        if (address_of(text) == ADDRESS_SET)
            return refuse(err, text, len,
                          "names a set in the pool, and a source is needed: a path or a file:// URI");
        if (dataset_is_remote(text))
            return address(text, len, ret_path, err);
        bool google = len >= 5 && strncasecmp(text, "gs://", 5) == 0;
        return error_set(
            err, LEAT_UNSUPPORTED,
            "%.*s: datasets are paths, file:// URIs, s3://, http://, https:// or store:// addresses or "
            "leat://NAME%s",
            SHOWN(len), text,
            google ? "; a bucket of Google's is s3://BUCKET at the endpoint https://storage.googleapis.com"
                   : "");
    }
    *ret_path = strndup(text, len);
    return *ret_path ? 0 : error_set(err, -ENOMEM, "out of memory");
}
