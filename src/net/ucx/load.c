/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load.c: libucp at run time.
 *
 * Three things that its libraries do to a process as they are loaded are undone or kept from it: signal handlers for crashes (they
 * would take the place of the program's, Python's faulthandler for one), a log on stdout, and hooks in mmap, munmap and madvise
 * by rewriting libc's code. Those serve a cache of registrations; we register once and by hand. Only the environment can
 * say so early enough, for as long as the loading takes; what a user has set there stays. Failure modes: a library or a symbol
 * that is not there is remembered, and answered again without trying anew.
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

static const char *const no_hooks[][2] = {{"UCX_MEM_EVENTS", "n"}, {"UCX_MEM_MMAP_HOOK_MODE", "none"}};

/* Returns which of them were set, as a mask. */
static unsigned say_no_hooks(void)
{
    unsigned set = 0;
    for (unsigned i = 0; i < ARRAY_LEN(no_hooks); i++)
        if (!getenv(no_hooks[i][0]) && setenv(no_hooks[i][0], no_hooks[i][1], 0) == 0)
            set |= 1u << i;
    return set;
}

static int load(void)
{
    const char *name = secure_getenv("LEAT_LIBUCP");
    struct sigaction saved[NSIG];
    name = name ? name : LIBRARY;
    save_signals(saved);
    unsigned said = say_no_hooks();
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    for (unsigned i = 0; i < ARRAY_LEN(no_hooks); i++)
        if (said >> i & 1)
            unsetenv(no_hooks[i][0]);
    restore_signals(saved);
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
    if (loaded == 1)
        loaded = load();
    pthread_mutex_unlock(&lock);
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
