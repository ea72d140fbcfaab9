/* SPDX-License-Identifier: Apache-2.0 */
/* testing.h: objects on a server that follows a script, as sources of sets; and fills of them. Errors in here
 * fail the running test. */
#ifndef POOL_FILL_TESTING_H
#define POOL_FILL_TESTING_H

#include "http/client/testing.h"
#include "pool/fill/fill.h"
#include "pool/set/testing.h"
#include "pool/set/wset.h"

/* Objects are called "KIND-NUMBER-BYTES", and have the content of their number. */
#define ETAG    "\"v1\""
#define WEAK    "W/\"v\""
#define WRITTEN 784111777

/* What the server does. */
struct script {
    _Atomic unsigned busy;    /* so many requests are answered 503 first */
    _Atomic unsigned half;    /* so many get half of the body and an end */
    _Atomic unsigned changed; /* this object has another ETag now */
    _Atomic bool weak;        /* no ETags but weak ones, and times */
    _Atomic bool stall, refuse, expired, elsewhere;
    _Atomic unsigned late_us; /* each answer begins so much later */
    _Atomic unsigned requests, stalled;
    _Atomic unsigned gather; /* nothing is answered until so many requests are there */
};
extern struct script script;
extern struct web_server server;

/* A tree of objects, one a sample. */
int index_of(const char *root, unsigned n, uint64_t (*bytes_of)(unsigned i));
/* The same, below the server. */
int index_here(unsigned n, uint64_t (*bytes_of)(unsigned i));
/* 0: segments of the usual size. */
struct fill *fill_of(unsigned threads, uint64_t segment);
/* It is resident, and has its bytes and checksum. */
void check_sample(const struct wset *ws, unsigned i);
/* Lengths of object i. */
uint64_t mixed(unsigned i);
uint64_t tiny(unsigned i);
uint64_t large(unsigned i);
/* Starts the server, with an empty script. */
void begin(void);
/* Until a request is there that gets no answer. */
void wait_stalled(void);

#endif
