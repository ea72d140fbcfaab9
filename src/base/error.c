/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"
#include "base/utf8.h"

#include <stdarg.h>
#include <stdio.h>

const char *leat_strerror(int rc)
{
    switch (rc) {
    case 0:
        return "ok";
    case LEAT_NOT_FOUND:
        return "not found";
    case LEAT_STALE:
        return "stale";
    case LEAT_PEER_GONE:
        return "peer gone";
    case LEAT_TIMED_OUT:
        return "timed out";
    case LEAT_CORRUPT:
        return "corrupt";
    case LEAT_NO_SPACE:
        return "no space";
    case LEAT_DENIED:
        return "denied";
    case LEAT_INVALID:
        return "invalid";
    case LEAT_BUSY:
        return "busy";
    case LEAT_UNSUPPORTED:
        return "unsupported";
    case LEAT_CANCELED:
        return "canceled";
    case -ENOMEM:
        return "out of memory";
    case -EIO:
        return "input/output error";
    default:
        return "error";
    }
}

static int set_va(struct leat_error *err, int rc, const char *fmt, va_list ap)
{
    assert(rc < 0);
    if (err) {
        err->code = rc;
        memset(err->reserved, 0, sizeof(err->reserved));
        /* Names of files and sets are in messages, which reach another user's terminal. */
        char text[LEAT_ERROR_MESSAGE_MAX];
        vsnprintf(text, sizeof(text), fmt, ap);
        utf8_show(text, strlen(text), err->message, sizeof(err->message));
    }
    return rc;
}

int error_set(struct leat_error *err, int rc, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    set_va(err, rc, fmt, ap);
    va_end(ap);
    return rc;
}

int error_sys(struct leat_error *err, int rc, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    set_va(err, rc, fmt, ap);
    va_end(ap);
    if (err) {
        size_t used = strlen(err->message);
        snprintf(err->message + used, sizeof(err->message) - used, ": %s", strerror(-rc));
    }
    return rc;
}

int error_prefix(struct leat_error *err, int rc, const char *fmt, ...)
{
    assert(rc < 0);
    if (!err)
        return rc;
    char inner[LEAT_ERROR_MESSAGE_MAX];
    snprintf(inner, sizeof(inner), "%s", err->code == rc && err->message[0] ? err->message : strerror(-rc));
    va_list ap;
    va_start(ap, fmt);
    set_va(err, rc, fmt, ap);
    va_end(ap);
    size_t used = strlen(err->message);
    snprintf(err->message + used, sizeof(err->message) - used, ": %s", inner);
    return rc;
}
