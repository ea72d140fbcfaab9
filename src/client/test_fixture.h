/* SPDX-License-Identifier: Apache-2.0 */
/* test_fixture.h: what the suites of the client share: a set that a small daemon in the same process (fake_daemon.h) serves. */
#ifndef CLIENT_TEST_FIXTURE_H
#define CLIENT_TEST_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>

#include "client/client.h"
#include "client/fake_daemon.h"

#include <cmocka.h>

struct fixture {
    struct fake_daemon *daemon;
    struct leat_client *client;
    struct leat_ws *ws;
};

#define FD_EVENT(number) ((struct leat_event){.size = sizeof(struct leat_event), .fd = (number)})

void fixture_open(struct fixture *x, struct fake_options options);
void fixture_close(struct fixture *x);
struct leat_view *fixture_load(struct leat_ws *ws, unsigned batch, unsigned slots);
void fixture_check_batch(struct leat_batch *batch);
void fixture_read_all(struct leat_ws *ws);
void fixture_batches_by(struct leat_ws *ws, const char *transport);
void fixture_batches_all(struct leat_ws *ws);

#endif
