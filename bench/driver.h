/* SPDX-License-Identifier: Apache-2.0 */
/*
 * driver.h: what all measured readers have in common, so that they differ in how they read and in nothing else: the
 * samples, the shared permutation, the consumers, the clock, and the conversation with bench/run.
 *
 * A program says {"ready": …} on a line, then answers each line of its input with a line:
 *     verify          reads every sample once, untimed, and checks its index and CRC  -> {"verified": samples}
 *     run SECONDS     every consumer reads batches until the time is over             -> {"bytes", "ns", "samples", "batches", "p50_us", "p99_us"}
 *     mode NAME       what the program offers beside its normal way                   -> {"mode": NAME}
 * The end of its input ends it. What goes wrong is said on stderr and ends it with status 1.
 *
 *   sample   0  u64 index       8  u32 CRC32C of the bytes from 16 on
 *           16  random bytes …  12  u32 bytes of the sample
 */
#ifndef BENCH_DRIVER_H
#define BENCH_DRIVER_H

#include "base/base.h"

#define BENCH_HEAD 16

/* Fills a sample; the same for (seed, index, bytes) everywhere. bytes >= 16. */
void bench_sample_fill(uint8_t *at, uint64_t bytes, uint64_t seed, uint64_t index);
/* Exits with a message when it is not sample `index`. */
void bench_sample_check(const uint8_t *at, uint64_t bytes, uint64_t index);

struct bench_setup {
    uint64_t samples, sample_bytes; /* all of one size */
    unsigned batch, slots, consumers;
    unsigned first_consumer, all_consumers; /* this process runs [first, first + consumers) of all */
    bool huge;                              /* --pages huge: as the daemon's */
    bool spread;                            /* each consumer stays on a CPU, and they share them out */
    const char *file;                       /* the .npy */
    const char *orders;                     /* u64 numbers of three epochs' permutations; NULL: made here */
    char **args;                            /* what is left of the command line */
    int nargs;
};

struct bench_reader {
    /* Before the consumers start. */
    void (*prepare)(const struct bench_setup *setup);
    /* One consumer's own state. */
    void *(*consumer)(const struct bench_setup *setup, unsigned consumer);
    /* Samples `ids` one after another at *ret_data, valid until the next call. Exits on failure. */
    void (*read)(void *consumer, const uint64_t *ids, unsigned n, const uint8_t **ret_data);
    int (*mode)(const char *name); /* may be NULL; 0 or -EINVAL */
    void (*finish)(void);          /* may be NULL */
};

/* Parses --file --samples --bytes --batch --slots --consumers --first --all --orders --spread, then serves stdin. Returns main's status. */
int bench_main(int argc, char **argv, const struct bench_reader *reader);

_Noreturn void bench_die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Where the samples begin in a .npy of version 1. */
uint64_t bench_npy_data(int fd);
/* Shared memory of the kind that the daemon has, mapped and untouched: with --pages huge from a tmpfs of its kind, else a memfd.
 * *ret_fd (may be NULL) stays open, else the mapping alone keeps it. */
uint8_t *bench_memory(uint64_t bytes, bool huge, int *ret_fd);
/* The file's samples in such memory, from a page's border on. */
uint8_t *bench_load_npy(const struct bench_setup *setup);
/* A consumer's ring of batch buffers, touched: private memory with huge pages advised, as a view's. */
uint8_t *bench_ring(uint64_t bytes);

#endif
