/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verbs.h: what UCX does not do for a daemon: to register for reading alone, and to write to no address that a message names.
 *
 * UCX registers host memory with every right there is, whatever it is asked for (1.13 to 1.22), and its emulation of one-sided operations
 * writes where a message says. Both are kept from it here, in programs that export ibv_reg_mr and ibv_reg_mr_iova2 (leatd): the
 * dynamic linker then gives UCX those for libibverbs's own (docs/decisions/0060-rdma-connections.md).
 */
#ifndef NET_UCX_VERBS_H
#define NET_UCX_VERBS_H

#include "base/base.h"

/* What this thread has UCX register from now on, until ucx_reading_end, may be read from outside, and nothing else. */
void ucx_reading_begin(void);
/* Whether there was something: false where UCX found its own way. Harmless twice, and answers the same. */
bool ucx_reading_end(void);
/* Messages that ask UCX to read, write or count at an address are dropped, in the whole process. Before the first worker is made. False:
 * this UCX has no such handlers that we know. */
bool ucx_refuse_emulation(void);

#endif
