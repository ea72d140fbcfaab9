/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/load.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#define LIBRARY "libcuda.so.1" /* comes with NVIDIA's driver, not with the CUDA toolkit */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct cuda_symbols symbols;
static int loaded = 1; /* 1: not tried; then the result */
static char why[240];

static int load(void)
{
    const char *name = secure_getenv("LEAT_LIBCUDA");
    name = name && *name ? name : LIBRARY;
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library) {
        const char *reason = dlerror();
        snprintf(why, sizeof(why), "NVIDIA's driver library is missing: %.180s", reason ? reason : name);
        return LEAT_UNSUPPORTED;
    }
#define CUDA_SYMBOL(symbol, parameters)                                                                      \
    if (!(symbols.symbol = (__typeof__(symbols.symbol))dlsym(library, #symbol))) {                           \
        snprintf(why, sizeof(why), "%.100s has no %s: a driver of CUDA 11.0 or later is needed", name,       \
                 #symbol);                                                                                   \
        return LEAT_UNSUPPORTED;                                                                             \
    }
    CUDA_SYMBOLS(CUDA_SYMBOL)
#undef CUDA_SYMBOL
#define CUDA_SYMBOL(symbol, parameters) symbols.symbol = (__typeof__(symbols.symbol))dlsym(library, #symbol);
    CUDA_LATER_SYMBOLS(CUDA_SYMBOL)
#undef CUDA_SYMBOL
    return 0;
}

int cuda_load(const struct cuda_symbols **ret_cuda, struct leat_error *err)
{
    pthread_mutex_lock(&lock);
    if (loaded == 1)
        loaded = load();
    pthread_mutex_unlock(&lock);
    if (loaded < 0)
        return error_set(err, loaded, "%s", why);
    *ret_cuda = &symbols;
    return 0;
}
