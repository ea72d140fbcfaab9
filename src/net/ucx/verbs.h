/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verbs.h: two rights that a daemon denies UCX: to register memory as writable, and to write to an address
 * that a message names.
 *
 * UCX registers host memory with all rights, whatever it is asked for (1.13 to 1.22), and its emulation of
 * one-sided operations writes where a message says. This module prevents both in programs that export
 * ibv_reg_mr and ibv_reg_mr_iova2 (leatd): the dynamic linker then gives UCX those for libibverbs's own
 * (docs/decisions/0060-rdma-connections.md).
 */
#ifndef NET_UCX_VERBS_H
#define NET_UCX_VERBS_H

#include "base/base.h"

/* What UCX registers on this thread from now on, until ucx_reading_end, may only be read from outside. */
void ucx_reading_begin(void);
/* Whether it registered something: false where UCX took another way. Harmless twice, with the same result. */
bool ucx_reading_end(void);
/* Drops messages that ask UCX to read, write or count at an address, in the whole process. Call it before the
 * first worker is made. False: this UCX has no such handlers that we know. */
bool ucx_refuse_emulation(void);

#endif
