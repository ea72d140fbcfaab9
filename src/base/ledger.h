/* SPDX-License-Identifier: Apache-2.0 */
/* ledger.h: the copy ledger: bytes of sample payload that this process copied in user space, by reason.
 * Invariant 11: a payload byte is copied as few times as its path allows, and every copy is counted here. */
#ifndef BASE_LEDGER_H
#define BASE_LEDGER_H

#include <stdatomic.h>
#include <stdint.h>

enum ledger_reason {
    LEDGER_GATHER, /* pool region to view, shared memory: the one copy of that path */
    LEDGER_BOUNCE, /* through a buffer of ours because a destination could not be reached directly */
    LEDGER_DECODE, /* a filter's output moved to its place (HDF5 chunks) */
    LEDGER_USER,   /* handed out as a private copy (ws[i]) */
    LEDGER_REASONS
};

extern _Atomic uint64_t ledger_bytes[LEDGER_REASONS];
extern const char *const ledger_names[LEDGER_REASONS];

static inline void ledger_add(enum ledger_reason reason, uint64_t bytes)
{
    atomic_fetch_add_explicit(&ledger_bytes[reason], bytes, memory_order_relaxed);
}

#endif
