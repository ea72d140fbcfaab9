/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http_get.h: what all measured HTTP clients have in common: what to ask for and where it goes, the clock, the conversation with
 * bench/run (driver.h's lines). A client keeps `inflight` items under way and differs in how it does that, in nothing else.
 *
 * What is asked for, in a permutation made from a seed, again and again: ranges of one large object ("data"), or small objects ("o/000000" …) whole.
 * Destinations are slots of one ring of memory, touched, taken in turn: as cold for all of them.
 *
 *     run SECONDS     -> {"bytes", "ns", "samples", "p50_us", "p99_us"}; time runs until the last answer is here
 *     verify          -> {"verified": items}: each item of the permutation once, compared to the file
 */
#ifndef BENCH_HTTP_GET_H
#define BENCH_HTTP_GET_H

#include "base/base.h"

struct get_setup {
    const char *host; /* a numeric address */
    unsigned port;
    const char *ca_file; /* not NULL: TLS */
    const char *bucket;  /* a folder below the server's root */
    const char *root;    /* the same files, for verify */
    uint64_t bytes;      /* of an item */
    uint64_t of;         /* bytes of "data"; 0: small objects */
    uint64_t count;      /* items */
    unsigned connections;
    unsigned depth;    /* on one connection at a time */
    unsigned inflight; /* connections * depth; fewer, to see what one read of leat's takes */
    uint64_t block;    /* of leat's requests; 0: its own choice */
    bool sign;         /* libcurl: requests are signed as ours are */
};

struct get_item {
    uint64_t number, offset, bytes;
    uint8_t *dst;
    unsigned index; /* below inflight: for what a client keeps of it */
    uint64_t began_ns;
    uint32_t slot;
    struct get_item *free_next;
};

struct get_client {
    void (*prepare)(const struct get_setup *setup);
    /* Takes items with get_next until it gives NULL, keeping `inflight` of them under way, and gives back each with get_done. */
    void (*run)(void);
};

int get_main(int argc, char **argv, const struct get_client *client);

/* NULL: no more of them in this run. Never more than `inflight` are out. */
struct get_item *get_next(void);
/* Its bytes are at dst. */
void get_done(struct get_item *item);
/* "/bucket/data" or "/bucket/o/000123". */
void get_path(uint64_t number, char *ret, size_t cap);

_Noreturn void get_die(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
