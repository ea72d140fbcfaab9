/* SPDX-License-Identifier: Apache-2.0 */
/* stored.h: inside of a session on this node's own store: between stored.c (session, addresses, lists) and read.c (reads). */
#ifndef BACKEND_STORE_STORED_H
#define BACKEND_STORE_STORED_H

#include "backend/ops.h"
#include "base/list.h"
#include "disk/disk.h"
#include "store/store.h"

#define STORED_SCHEME  "store://"
#define STORED_BOUNCES 2u /* blocks of which only a part is wanted, or whose place does not suit, at a time */
_Static_assert(STORED_BOUNCES *STORE_BLOCK + 512 * KIB <= BACKEND_STORE_BYTES, "what a session may hold");

struct stored {
    struct backend base;
    struct store *store;
    const char *engine_kind;
    unsigned depth;
    const atomic_bool *cancelled;
    struct disk_engine *engine; /* NULL: nothing was read yet */
    atomic_bool woken;
    struct list ended;                /* backend_read.node: done() is due */
    struct list ended_ops;            /* backend_op.node: the same */
    struct list waiting;              /* stored_block.node: for a bounce buffer */
    unsigned npending;                /* reads and operations */
    uint8_t *bounces[STORED_BOUNCES]; /* made when they are needed, gone when nothing is read */
    bool bounce_busy[STORED_BOUNCES];
    struct backend_stats stats;
};

struct stored_file {
    struct backend_file base;
    struct stored *session;
    char *uri;
    struct store_obj *obj; /* a reference: this version */
    int fd_direct;         /* -1: not tried; -2: there is none */
    bool refused;          /* it opened, and would not be read */
    uint32_t align;        /* of direct I/O; 0: none, or not tried */
    uint32_t memory_align; /* of direct I/O, of memory alone */
};

static inline struct stored *stored_of(struct backend *b)
{
    return container_of(b, struct stored, base);
}
static inline struct stored_file *stored_file_of(struct backend_file *f)
{
    return container_of(f, struct stored_file, base);
}
static inline bool stored_cancelled(const struct stored *s)
{
    return s->cancelled && atomic_load(s->cancelled);
}

void stored_submit(struct backend *base, struct backend_read *read);
void stored_cancel(struct backend *base, struct backend_read *read);
int stored_wait(struct backend *base, unsigned min_done, int timeout_ms);
void stored_wake(struct backend *base);
int64_t stored_pread(struct backend *base, struct backend_file *file, void *dst, uint64_t bytes,
                     uint64_t offset, struct leat_error *err);
/* done() of what has ended; how many. */
unsigned stored_deliver(struct stored *s);

#endif
