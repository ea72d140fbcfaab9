/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load.c: libucp at run time.
 *
 * Side effects of loading its libraries are prevented or undone. They write jumps to themselves into libc's
 * mmap, munmap, madvise and others, while other threads may be running there. This serves a cache of
 * registrations that we do not use: UCX_MEM_EVENTS=n. They take the program's signal handlers for crashes
 * (Python's faulthandler's, for one): UCX_HANDLE_ERRORS=none, and handlers are put back. They log on stdout:
 * a handler of ours takes that.
 *
 * Constructors read settings from the environment only, which is not ours to change: setenv moves it under
 * the feet of other threads. During dlopen `environ` is a longer copy with our settings first, afterwards
 * that copy without them. The original is not put back: a concurrent setenv in another thread frees it, and
 * its change is in the copy. We free nothing that `environ` ever pointed to. When setenv has put a new
 * environment in place of the copy, our settings are unset in that.
 *
 * Failure modes: a library or a symbol that is not there is remembered; later calls fail the same way.
 */
#include "net/ucx/symbols.h"
#include "net/ucx/verbs.h"

#include "base/log.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>

#define LIBRARY "libucp.so.0"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ucx_symbols symbols;
static int loaded = 1; /* 1: not tried; then the result */
static pid_t loaded_by;
static void *library;
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

/* The first one of a name counts. */
static char events[] = "UCX_MEM_EVENTS=n", errors[] = "UCX_HANDLE_ERRORS=none";
#define MORE 2

/* A copy of `from` behind our settings. NULL: no memory. */
static char **longer_environ(char *const *from)
{
    size_t n = 0;
    while (from && from[n])
        n++;
    char **made = calloc(n + MORE + 1, sizeof(*made));
    if (!made)
        return NULL;
    made[0] = events;
    made[1] = errors;
    for (size_t i = 0; i < n; i++)
        made[MORE + i] = from[i];
    return made;
}

/* The program's own value for what `setting` sets, or NULL. */
static const char *own_value(char *const *env, const char *setting)
{
    size_t len = strcspn(setting, "=") + 1;
    for (; *env; env++)
        if (strncmp(*env, setting, len) == 0)
            return *env + len;
    return NULL;
}

/* Another thread has replaced our environment by its own, with our settings in it: `setting` goes, and the
 * program's own value of that name comes back. By libc's functions, which take its lock. */
static void take_out(const char *setting, const char *own)
{
    char name[40];
    const char *value = strchr(setting, '=') + 1;
    snprintf(name, sizeof(name), "%.*s", (int)(value - 1 - setting), setting);
    if (getenv(name) != value)
        return;
    unsetenv(name);
    if (own)
        setenv(name, own, 1);
}

static bool swap_environ(char **from, char **to)
{
    return __atomic_compare_exchange_n(&environ, &from, to, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

static void *open_library(const char *name)
{
    static char **ours; /* never freed: another thread may be reading the environment */
    const char *own_events, *own_errors;
    struct sigaction saved[NSIG];
    char **theirs;
    do {
        theirs = __atomic_load_n(&environ, __ATOMIC_ACQUIRE);
        free(ours);
        if (!(ours = longer_environ(theirs)))
            return NULL;
        own_events = own_value(ours + MORE, events);
        own_errors = own_value(ours + MORE, errors);
    } while (!swap_environ(theirs, ours));
    save_signals(saved);
    void *opened = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    restore_signals(saved);
    if (ours[0] != events || ours[1] != errors || !swap_environ(ours, ours + MORE)) {
        take_out(events, own_events);
        take_out(errors, own_errors);
    }
    return opened;
}

static int load(void)
{
    const char *name = secure_getenv("LEAT_LIBUCP");
    name = name ? name : LIBRARY;
    library = open_library(name);
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
    /* UCX's thread that accepts connections stayed with the parent, and UCX does not notice. */
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

/* --- without emulation ------------------------------------------------------------------------------------------------------ */

/* UCX's ucp_am_handler_t: 1.13 to 1.22. */
typedef ucs_status_t (*am_fn)(void *arg, void *data, size_t length, unsigned flags);
struct am_handler {
    uint64_t features;
    am_fn cb;
    void (*tracer)(void);
    uint32_t flags;
    am_fn proxy_cb;
};

static ucs_status_t drop_message(void *arg, void *data, size_t length, unsigned flags)
{
    static _Atomic bool told;
    if (!atomic_exchange(&told, true))
        log_warning_limited(
            "UCX message of an authenticated client ignored: it asks to emulate a read or a write");
    return UCS_OK;
}

/* Whether `function` lies in the library of `handler`, as UCX's own does. */
static bool is_of_ucx(const void *function, const void *handler)
{
    Dl_info a, b;
    return dladdr(function, &a) && dladdr(handler, &b) && a.dli_fbase == b.dli_fbase;
}

bool ucx_refuse_emulation(void)
{
    static const char *const names[] = {"ucp_am_handler_UCP_AM_ID_PUT", "ucp_am_handler_UCP_AM_ID_GET_REQ",
                                        "ucp_am_handler_UCP_AM_ID_ATOMIC_REQ"};
    bool all = true;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < ARRAY_LEN(names); i++) {
        struct am_handler *handler = library ? dlsym(library, names[i]) : NULL;
        if (handler && handler->cb == drop_message)
            continue;
        if (!handler || !is_of_ucx((const void *)handler->cb, handler) ||
            !is_of_ucx((const void *)handler->tracer, handler) ||
            (handler->proxy_cb && !is_of_ucx((const void *)handler->proxy_cb, handler))) {
            all = false;
            continue;
        }
        handler->cb = drop_message;
        if (handler->proxy_cb)
            handler->proxy_cb = drop_message;
    }
    pthread_mutex_unlock(&lock);
    return all;
}
