/* SPDX-License-Identifier: Apache-2.0 */
/*
 * credit_tables.c: hands the processes of one user the table by which they share what this host may have in flight
 * (net/flow/credit.h), each with a slot of its own; takes the slot back when the process is gone, whatever it had in flight.
 *
 * Each user has a table of its own, since every process of the user can write it: one that spoils it harms no
 * other user.
 * Failure modes: no slot is left, or no memory: LEAT_BUSY or -ENOMEM, and the client limits itself alone.
 */
#include "daemon/server_internal.h"

#include "net/flow/credit.h"

#include <jansson.h>

struct credits {
    struct list node; /* server.credits */
    uint32_t uid;
    int fd;
    struct credit_table *table;
    struct client *slots[CREDIT_SLOTS];
    unsigned nclients;
};

static void credits_free(struct credits *t)
{
    list_remove(&t->node);
    credit_table_unmap(t->table);
    close(t->fd);
    free(t);
}

static struct credits *credits_of(struct server *s, uint32_t uid, int *ret_code)
{
    list_for_each (node, &s->credits) {
        struct credits *t = container_of(node, struct credits, node);
        if (t->uid == uid)
            return t;
    }
    struct credits *t = calloc(1, sizeof(*t));
    *ret_code = t ? credit_table_new(&t->fd, &t->table) : -ENOMEM;
    if (*ret_code < 0) {
        free(t);
        return NULL;
    }
    t->uid = uid;
    list_init(&t->node);
    list_push_back(&s->credits, &t->node);
    return t;
}

int requests_credits(struct client *c, struct conn_message *m, struct leat_error *err)
{
    int rc = 0;
    if (m->frame.body_bytes)
        return LEAT_CORRUPT;
    struct credits *t = c->credits ? c->credits : credits_of(c->server, c->uid, &rc);
    if (!t)
        return error_sys(err, rc, "no table of credits");
    if (!c->credits) {
        unsigned slot = 0;
        while (slot < CREDIT_SLOTS && t->slots[slot])
            slot++;
        if (slot == CREDIT_SLOTS)
            return error_set(err, LEAT_BUSY, "%u processes of this user share the network's credit already",
                             slot);
        credit_slot_clear(t->table, slot);
        credit_slot_begin(t->table, slot);
        t->slots[slot] = c;
        t->nclients++;
        c->credits = t;
        c->credit_slot = slot;
    }
    AUTO_BYTES struct bytes_out body = {0};
    proto_credits_put(&body, &(struct proto_credits){c->credit_slot});
    return requests_reply(c, m, &body, &t->fd, 1);
}

void credits_client_gone(struct client *c)
{
    struct credits *t = TAKE_PTR(c->credits);
    if (!t)
        return;
    t->slots[c->credit_slot] = NULL;
    credit_slot_clear(t->table, c->credit_slot);
    if (--t->nclients == 0)
        credits_free(t);
}

json_t *credits_json(const struct list *credits, uint32_t uid)
{
    json_t *all = json_array();
    list_for_each (node, credits) {
        const struct credits *t = container_of(node, struct credits, node);
        if (uid != 0 && t->uid != uid)
            continue;
        for (unsigned i = 0; i < CREDIT_RAILS; i++) {
            const struct credit_rail *r = &t->table->rails[i];
            uint64_t in_flight = 0;
            for (unsigned k = 0; k < CREDIT_SLOTS; k++)
                in_flight += atomic_load(&r->slots[k].in_flight_bytes);
            if (!atomic_load(&r->delivered_bytes) && !in_flight)
                continue;
            json_array_append_new(
                all, json_pack("{s:I, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}",         //
                               "uid", (json_int_t)t->uid, "rail", (int)i,                         //
                               "processes", (int)t->nclients,                                     //
                               "limit_bytes", (json_int_t)atomic_load(&r->limit_bytes),           //
                               "in_flight_bytes", (json_int_t)in_flight,                          //
                               "peak_bytes", (json_int_t)atomic_load(&r->peak_bytes),             //
                               "rate_bytes_per_s", (json_int_t)atomic_load(&r->rate_bytes_per_s), //
                               "delay_ns", (json_int_t)atomic_load(&r->base_ns),                  //
                               "ceiling_bytes", (json_int_t)atomic_load(&r->ceiling_bytes),       //
                               "delivered_bytes", (json_int_t)atomic_load(&r->delivered_bytes),   //
                               "lost_segments", (json_int_t)atomic_load(&r->lost_segments)));
        }
    }
    return all;
}
