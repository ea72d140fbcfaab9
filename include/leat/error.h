/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leat/error.h: how every function of the library reports failure.
 *
 * A function that can fail returns 0, or a negative errno value out of the short list below, and fills a
 * struct leat_error if the caller passes one. The message is one sentence for a person: what was given, what
 * is allowed, what to do next. Nothing is kept in thread-local state.
 */
#ifndef LEAT_ERROR_H
#define LEAT_ERROR_H

#include <errno.h>

#if defined(__GNUC__)
#    pragma GCC visibility push(default)
#endif
#ifdef __cplusplus
extern "C" {
#endif

/* The conditions a caller is expected to tell apart; anything else is -EIO, -ENOMEM or another plain errno. */
/* clang-format off */
#define LEAT_NOT_FOUND   (-ENOENT)     /* no such working set, key, index or source */
#define LEAT_STALE       (-ESTALE)     /* the working set was dropped or replaced, or its source changed */
#define LEAT_PEER_GONE   (-ECONNRESET) /* the daemon that holds the bytes died or closed the connection */
#define LEAT_TIMED_OUT   (-ETIMEDOUT)  /* the deadline passed; the destination is in quarantine until quiesced */
#define LEAT_CORRUPT     (-EBADMSG)    /* a checksum did not match, or a file is not what its header says */
#define LEAT_NO_SPACE    (-ENOSPC)     /* the pool's (or the view's) cap would be exceeded */
#define LEAT_DENIED      (-EACCES)     /* the caller may not use this working set, or read this source */
#define LEAT_INVALID     (-EINVAL)     /* an argument, URI or file that is not allowed */
#define LEAT_BUSY        (-EBUSY)      /* every slot of a view is held; leases delay a drop; a program writes the file */
#define LEAT_UNSUPPORTED (-EOPNOTSUPP) /* a well-formed input that Leat does not read (Fortran order, ...) */
#define LEAT_CANCELED    (-ECANCELED)  /* a progress callback, or the interrupt hook, cancelled the call */
/* clang-format on */

#define LEAT_ERROR_MESSAGE_MAX 480

/* Its size never changes. The library fills it on failure only: the caller need not set anything before a
 * call. */
struct leat_error {
    int code;                             /* 0, or the negative errno value that was returned */
    unsigned reserved[7];                 /* 0; what later releases add */
    char message[LEAT_ERROR_MESSAGE_MAX]; /* UTF-8, NUL-terminated, no trailing full stop or newline */
};

/* A short name of a code ("not found", "peer gone", ...): for logs and for scripts. Never NULL; any thread. */
const char *leat_strerror(int code);

#ifdef __cplusplus
}
#endif
#if defined(__GNUC__)
#    pragma GCC visibility pop
#endif
#endif
