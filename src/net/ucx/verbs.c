/* SPDX-License-Identifier: Apache-2.0 */
/* verbs.c: registration for reading alone. See verbs.h. */
#include "net/ucx/verbs.h"

#include <dlfcn.h>

/* libibverbs's, as its ABI has them. */
enum { LOCAL_WRITE = 1, REMOTE_WRITE = 2, REMOTE_ATOMIC = 8, MW_BIND = 16 };
struct ibv_mr;
struct ibv_pd;
typedef struct ibv_mr *(*reg_mr_fn)(struct ibv_pd *pd, void *addr, size_t length, int access);
typedef struct ibv_mr *(*reg_mr_iova2_fn)(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                                          unsigned access);

#define EXPORTED __attribute__((visibility("default"), used))
EXPORTED struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access);
EXPORTED struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                                         unsigned access);

static _Thread_local bool reading;
static _Thread_local unsigned masked;

void ucx_reading_begin(void)
{
    reading = true;
    masked = 0;
}

bool ucx_reading_end(void)
{
    reading = false;
    return masked > 0;
}

/* UCX loaded the library, but not globally. */
static void *real(const char *name)
{
    void *library = dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_NOLOAD);
    void *function = library ? dlsym(library, name) : NULL;
    if (library)
        dlclose(library); /* it stays: UCX has it */
    return function;
}

static unsigned rights(unsigned access)
{
    if (!reading)
        return access;
    masked++;
    return access & ~(unsigned)(LOCAL_WRITE | REMOTE_WRITE | REMOTE_ATOMIC | MW_BIND);
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
    reg_mr_fn reg_mr = (reg_mr_fn)real("ibv_reg_mr");
    if (!reg_mr) {
        errno = ENOSYS;
        return NULL;
    }
    return reg_mr(pd, addr, length, (int)rights((unsigned)access));
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned access)
{
    reg_mr_iova2_fn reg_mr = (reg_mr_iova2_fn)real("ibv_reg_mr_iova2");
    if (!reg_mr) {
        errno = ENOSYS;
        return NULL;
    }
    return reg_mr(pd, addr, length, iova, rights(access));
}
