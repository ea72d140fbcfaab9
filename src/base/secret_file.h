/* SPDX-License-Identifier: Apache-2.0 */
/* secret_file.h: files that hold a secret (a token, a private key, keys of S3): one rule for owner and mode; and its end. Any thread. */
#ifndef BASE_SECRET_FILE_H
#define BASE_SECRET_FILE_H

#include "base/base.h"

/*
 * Opens it for reading: a regular file of this user or root which no other user may read or write. what: "token file", for messages. hint:
 * what to do instead, as "; make one with ...", or "". roots_group: the group of a file of root's may read it, as distributions keep keys
 * of TLS (Debian's ssl-cert). LEAT_NOT_FOUND, LEAT_INVALID, LEAT_DENIED.
 */
int secret_file_open(const char *what, const char *path, const char *hint, bool roots_group, int *ret_fd,
                     struct leat_error *err);

/* The secret in memory: overwritten and freed, and NULL then. */
static inline void secret_wipe(char **text)
{
    if (*text)
        explicit_bzero(*text, strlen(*text));
    free(*text);
    *text = NULL;
}

#endif
