/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load.c: libucp at run time.
 *
 * What its libraries do to a process as they are loaded is kept from happening, or undone. They write jumps to themselves into libc's
 * mmap, munmap, madvise and others, for a cache of registrations that we do not use, while other threads may be running
 * through there: UCX_MEM_EVENTS=n. They take the program's signal handlers for crashes (Python's faulthandler's, for one):
 * UCX_HANDLE_ERRORS=none, and handlers are put back. They log on stdout: a handler of ours takes that.
 *
 * Constructors can be told by the environment alone, which is not ours to change: setenv moves it under the feet of other threads. For
 * the time of dlopen `environ` is a longer copy instead, which stays allocated, so that whoever reads meanwhile reads
 * one or the other.
 *
 * Failure modes: a library or a symbol that is not there is remembered, and answered again without trying anew.
 */
#include "net/ucx/symbols.h"

#include "base/log.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>

#define LIBRARY "libucp.so.0"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ucx_symbols symbols;
static int loaded = 1; /* 1: not tried; then what to answer */
static pid_t loaded_by;
static char why[200];

/* UCX's enum ucs_log_level, and what its handlers return for "the next one need not look": 1.6 and later. */
enum { UCS_FATAL, UCS_ERROR, UCS_WARN, UCS_DIAG };
#define UCS_STOP 0
typedef int (*ucs_handler_fn)(const char *file, unsigned line, const char *function, int level,
                              const void *component, const char *format, va_list args);

/* All of it is detail: what matters comes back as a status and is reported where it is decided. */
static int on_log(const char *file, unsigned line, const char *function, int level, const void *component,
                  const char *format, va_list args)
{
    char text[400];
    if (level > UCS_DIAG)
        return UCS_STOP;
    vsnprintf(text, sizeof(text), format, args);
    if (level == UCS_FATAL)
        log_error("UCX: %s", text);
    else
        log_debug("UCX: %s (%s:%u)", text, file, line);
    return UCS_STOP;
}

static void save_signals(struct sigaction saved[NSIG])
{
    for (int s = 1; s < NSIG; s++)
        if (sigaction(s, NULL, &saved[s]) < 0)
            saved[s].sa_handler = SIG_ERR;
}

static void restore_signals(const struct sigaction saved[NSIG])
{
    for (int s = 1; s < NSIG; s++) {
        struct sigaction now;
        if (saved[s].sa_handler != SIG_ERR && sigaction(s, NULL, &now) == 0 &&
            now.sa_handler != saved[s].sa_handler)
            sigaction(s, &saved[s], NULL);
    }
}

/* NULL: no memory. */
static char **longer_environ(void)
{
    static char events[] = "UCX_MEM_EVENTS=n", errors[] = "UCX_HANDLE_ERRORS=none";
    char *const more[] = {events, errors};
    size_t n = 0, at = ARRAY_LEN(more);
    while (environ && environ[n])
        n++;
    char **made = calloc(n + ARRAY_LEN(more) + 1, sizeof(*made));
    if (!made)
        return NULL;
    memcpy(made, more, sizeof(more)); /* the first one of a name counts */
    for (size_t i = 0; i < n; i++)
        made[at++] = environ[i];
    return made;
}

static void *open_library(const char *name)
{
    static char **ours; /* never freed */
    char **theirs = environ;
    struct sigaction saved[NSIG];
    if (!ours && !(ours = longer_environ()))
        return NULL;
    save_signals(saved);
    __atomic_store_n(&environ, ours, __ATOMIC_RELEASE);
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    __atomic_store_n(&environ, theirs, __ATOMIC_RELEASE);
    restore_signals(saved);
    return library;
}

static int load(void)
{
    const char *name = secure_getenv("LEAT_LIBUCP");
    name = name ? name : LIBRARY;
    void *library = open_library(name);
    if (!library) {
        const char *reason = dlerror();
        snprintf(why, sizeof(why), "%s is not there: %s (Debian: apt install libucx0)", name,
                 reason ? reason : "unknown");
        return LEAT_UNSUPPORTED;
    }
#define UCX_SYMBOL(symbol)                                                                                   \
    if (!(symbols.symbol = (__typeof__(symbols.symbol))dlsym(library, #symbol))) {                           \
        snprintf(why, sizeof(why), "%s has no %s: UCX 1.13 or later is needed", name, #symbol);              \
        return LEAT_UNSUPPORTED;                                                                             \
    }
    UCX_SYMBOLS(UCX_SYMBOL)
#undef UCX_SYMBOL
    void (*push_handler)(ucs_handler_fn) = (void (*)(ucs_handler_fn))dlsym(library, "ucs_log_push_handler");
    if (push_handler)
        push_handler(on_log);
    log_debug("UCX %s is loaded", symbols.ucp_get_version_string());
    return 0;
}

int ucx_load(const struct ucx_symbols **ret_ucx, struct leat_error *err)
{
    pthread_mutex_lock(&lock);
    if (loaded == 1) {
        loaded = load();
        loaded_by = getpid();
    }
    bool forked = loaded == 0 && getpid() != loaded_by;
    pthread_mutex_unlock(&lock);
    /* The thread by which UCX learns of connections stayed with the parent, and UCX does not know. */
    if (forked)
        return error_set(
            err, LEAT_UNSUPPORTED,
            "RDMA was in use before this process was forked off: start it by spawn to have it here");
    if (loaded < 0)
        return error_set(err, loaded, "%s", why);
    *ret_ucx = &symbols;
    return 0;
}

int ucx_errno(ucs_status_t status)
{
    switch (status) {
    case UCS_OK:
        return 0;
    case UCS_ERR_NO_MEMORY:
        return -ENOMEM;
    case UCS_ERR_INVALID_PARAM:
    case UCS_ERR_INVALID_ADDR:
        return LEAT_INVALID;
    case UCS_ERR_TIMED_OUT:
    case UCS_ERR_ENDPOINT_TIMEOUT:
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_CANCELED:
    case UCS_ERR_UNREACHABLE:
    case UCS_ERR_REJECTED:
    case UCS_ERR_NOT_CONNECTED:
        return LEAT_PEER_GONE;
    case UCS_ERR_UNSUPPORTED:
    case UCS_ERR_NO_DEVICE:
    case UCS_ERR_NO_ELEM:
        return LEAT_UNSUPPORTED;
    default:
        return LEAT_PEER_GONE; /* a transfer that failed in another way: the endpoint is of no more use */
    }
}
