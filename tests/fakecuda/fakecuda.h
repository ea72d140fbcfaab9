/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fakecuda.h: controls of the fake libcuda for tests, beside the driver's own calls. Found by dlsym; from
 * Python by ctypes.
 *
 * Device memory is memory of this process that faults when the CPU touches it, filled with 0xA5; copies run
 * on a thread for each stream, in order, after a delay, and read the host's memory when they run, so that a
 * buffer written too early is seen. Host memory that is copied from must be pinned. A kernel that is launched
 * is crc_kernel.c's, whatever the module says, as the host runs it. Two devices. In a child of fork() nothing
 * works.
 *
 * $FAKECUDA_DEVICES: how many there are. $FAKECUDA_NIC: "1": device memory stays open, as a NIC of this host
 * must be able to pin it; "no": the driver says that no NIC reaches it.
 */
#ifndef FAKECUDA_H
#define FAKECUDA_H

#include <stddef.h>

#pragma GCC visibility push(default)

struct fakecuda_stat {
    unsigned long pinned, pinned_bytes, allocated, allocated_bytes, streams, events, contexts; /* alive */
    unsigned long modules;
    unsigned long copies, copied_bytes, launches, flushes, refused,
        wrong; /* wrong: calls that a real driver would not have survived */
    int depth; /* contexts pushed by this thread */
    int held;  /* calls that were held so far */
};
void fakecuda_stat(struct fakecuda_stat *ret);
/* Each copy and each fill takes at least this long. */
void fakecuda_delay(unsigned us);
/* While 1 no stream moves. */
void fakecuda_freeze(int frozen);
/* Call number `nth` from now of `name` says `result`. nth 0: none; ~0: all of them. */
void fakecuda_fail(const char *name, unsigned nth, int result);
/* 719 from everything from now on, and nothing is copied any more, until 0. */
void fakecuda_lose(int lost);
/* A CUDA graph is captured on `stream`, in the global mode: events recorded there belong to it. A query of
 * one, or an unsafe call of any thread during the capture, ends it (`wrong`). */
void fakecuda_capture(void *stream, int on);
/* Calls of `name` do not return before `go` is non-zero; NULL: they do. */
void fakecuda_hold(const char *name, const volatile int *go);
/* The next `n` launches that read `at` of device memory find another byte there than there is. */
void fakecuda_stale(unsigned long long at, unsigned n);
/* A kernel on `stream` that reads [from, +bytes) of device memory into `to` once `go` is non-zero. */
void fakecuda_kernel(void *stream, void *to, unsigned long long from, size_t bytes, const volatile int *go);

#pragma GCC visibility pop

#endif
