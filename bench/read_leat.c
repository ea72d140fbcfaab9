/* SPDX-License-Identifier: Apache-2.0 */
/*
 * read_leat: ReadBatch as a training process calls it: leat_read_batch into the view's ring, then release. Every
 * consumer is a thread with a view of its own.
 *
 *   read_leat [driver's options] SOCKET URI TRANSPORT [INFLIGHT]      TRANSPORT: shm, tcp or best
 */
#include "driver.h"
#include "leat/leat.h"

#include <stdio.h>

static struct leat_client *client;
static struct leat_ws *ws;
static const char *transport;
static uint64_t inflight_bytes; /* 0: measured by the library */

struct reader {
    struct leat_view *view;
    struct leat_batch *held;
};

static void check(int code, const char *what, const struct leat_error *err)
{
    if (code < 0)
        bench_die("%s: %s (%s)", what, err->message, leat_strerror(code));
}

static void prepare(const struct bench_setup *setup)
{
    struct leat_error err = {0};
    if (setup->nargs != 3 && setup->nargs != 4)
        bench_die("needs SOCKET URI TRANSPORT [INFLIGHT]");
    inflight_bytes = setup->nargs == 4 ? strtoull(setup->args[3], NULL, 10) : 0;
    transport = strcmp(setup->args[2], "best") == 0 ? NULL : setup->args[2];
    struct leat_client_options co = {
        .size = sizeof(co), .socket = setup->args[0], .flags = LEAT_CONNECT_NO_START};
    check(leat_connect(&co, &client, &err), "connect", &err);
    struct leat_open_options oo = {.size = sizeof(oo), .flags = LEAT_OPEN_WAIT};
    check(leat_open(client, setup->args[1], &oo, &ws, &err), "open", &err);
    if (leat_ws_length(ws) != setup->samples)
        bench_die("%llu samples, not %llu", (unsigned long long)leat_ws_length(ws),
                  (unsigned long long)setup->samples);
}

static void *consumer(const struct bench_setup *setup, unsigned number)
{
    struct leat_error err = {0};
    struct reader *r = calloc(1, sizeof(*r));
    if (!r)
        bench_die("no memory");
    struct leat_view_options vo = {.size = sizeof(vo),
                                   .batch_size = setup->batch,
                                   .slots = setup->slots,
                                   .transport = transport,
                                   .inflight_bytes = inflight_bytes};
    check(leat_load(ws, &vo, &r->view, &err), "load", &err);
    return r;
}

static void read_batch(void *arg, const uint64_t *ids, unsigned n, const uint8_t **ret_data)
{
    struct reader *r = arg;
    struct leat_error err;
    if (r->held)
        leat_batch_release(r->held);
    r->held = NULL;
    check(leat_read_batch(r->view, ids, n, 0, &r->held, &err), "read", &err);
    *ret_data = leat_batch_data(r->held, 0, NULL);
}

int main(int argc, char **argv)
{
    return bench_main(argc, argv,
                      &(struct bench_reader){.prepare = prepare, .consumer = consumer, .read = read_batch});
}
