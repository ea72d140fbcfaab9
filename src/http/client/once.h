/* SPDX-License-Identifier: Apache-2.0 */
/* once.h: one request, waited for, on a loop and a connection of its own: for rare requests. */
#ifndef HTTP_CLIENT_ONCE_H
#define HTTP_CLIENT_ONCE_H

#include "base/base.h"

struct http_once {
    const char *method;
    const char *url;     /* "http[s]://host[:port]/path?query"; escaped where it has to be */
    const char *headers; /* lines with their ends, beside Host and User-Agent */
    const void *body;
    size_t body_len;
    size_t text_max; /* of the answer; 0: 64 KiB */
    uint64_t timeout_ns;
    const char *ca_file; /* NULL: the system's */
    bool insecure;       /* certificates are not looked at */
};

/*
 * 0 with any status: *ret_text is its body with a NUL behind it, the caller's to free (and to wipe: what is kept of it here is wiped, and
 * so is the head that was sent). LEAT_INVALID: no such address; -ENOMEM; those of an http_call. It may be sent twice: ask only what can be.
 */
int http_once(const struct http_once *once, int *ret_status, char **ret_text, struct leat_error *err);

#endif
