/* SPDX-License-Identifier: Apache-2.0 */
/*
 * failalloc.h: runs a function again and again with its 1st, 2nd, 3rd, ... allocation failing, until a run needs
 * no more allocations than were let through. After every run
 *   - the function must have said -ENOMEM if an allocation was refused, and 0 in the last run;
 *   - as many allocations are live as before it (nothing leaked, nothing of the caller's freed).
 *
 *     static int load(void *ctx) { ...; return rc; }    // leaves nothing behind, succeed or fail
 *     failalloc_run(load, &fixture);                    // fails the cmocka test with the number of the allocation
 *
 * Seen are the calls of our own objects (`ld --wrap`): malloc, calloc, realloc, reallocarray, aligned_alloc,
 * posix_memalign, strdup, strndup, asprintf, vasprintf, free. What a shared library allocates for itself is neither
 * failed nor counted. Calls of all threads count alike, so run one thing at a time.
 */
#ifndef FAILALLOC_H
#define FAILALLOC_H

#include <stddef.h>

/* Returns how many allocations the successful run made. */
unsigned failalloc_run(int (*fn)(void *ctx), void *ctx);

/* The parts of it, for tests with an order of their own. Allocation number `nth` from now on fails (once), counted from
 * 1; 0: none. */
void failalloc_arm(unsigned nth);
/* Disarms; returns how many allocations were asked for since failalloc_arm. */
unsigned failalloc_disarm(void);
/* Blocks allocated by wrapped calls and not yet freed. */
size_t failalloc_live(void);

#endif
