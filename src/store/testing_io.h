/* SPDX-License-Identifier: Apache-2.0 */
/*
 * testing_io.h: the store's files, really there in a folder, with each call recorded; calls that fail on demand; and what a power cut would have
 * left of it all. For tests. Any thread.
 *
 * What a cut leaves: a write counts when its file was flushed after it, a name when its folder was; of what was not, any subset may have
 * reached the disk, in pages of 4 KiB. A rename is one step. That is what POSIX allows, and more than file systems do.
 */
#ifndef STORE_TESTING_IO_H
#define STORE_TESTING_IO_H

#include "store/io.h"

struct store_fault;

int store_fault_new(const char *root, struct store_fault **ret_fault);
void store_fault_free(struct store_fault *f);
const struct store_io *store_fault_io(struct store_fault *f);

/* Call number `nth` from now on (1: the next) fails with `code`; 0: none. Those that only read or close are not counted. */
void store_fault_fail(struct store_fault *f, uint64_t nth, int rc);
/* From then on all such calls fail with `code`: a disk that died, or is full. */
void store_fault_fail_from(struct store_fault *f, uint64_t nth, int rc);
uint64_t store_fault_calls(struct store_fault *f); /* since the last of these two */
/* Opening and reading files whose name ends with this (at most 12 characters, such as an object's number) fails with `code`; those open already
 * too. NULL: none; "": all. */
void store_fault_unreadable(struct store_fault *f, const char *name_end, int rc);
/* Every other write is EINTR, the rest write a part only. */
void store_fault_short(struct store_fault *f, bool on);
/* The next flush of a file whose name has `what` in it ("objects/", "index/log") waits until store_fault_release; others continue.
 * store_fault_holds: it does. */
void store_fault_hold(struct store_fault *f, const char *what);
bool store_fault_holds(struct store_fault *f);
void store_fault_release(struct store_fault *f);
/* A file system of so many bytes, as space() tells it; writes past it are -ENOSPC. 0: as it is. */
void store_fault_capacity(struct store_fault *f, uint64_t bytes);

/* From then on the bytes that are written are not recorded: for tests that replay nothing. */
void store_fault_no_bytes(struct store_fault *f);
/* Events recorded so far. */
uint64_t store_fault_events(struct store_fault *f);
/* Makes in `dir` (empty) what a cut behind the first `prefix` events leaves. seed 0: nothing but what was
 * flushed; 1: everything; else a random subset. 0 or -errno. */
int store_fault_replay(struct store_fault *f, uint64_t prefix, uint64_t seed, const char *dir);

#endif
