/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tlock.c: waits that can be cancelled: deadlines, the cancel flag of an iterator, the user's interrupt hook.
 *
 * The hook is asked with no lock held, on the thread that made the call, at most every POLL_NS: it may be as
 * costly as taking Python's interpreter lock. Waits sleep POLL_MS at most when there is a hook or a flag to
 * look at.
 */
#include "client/client.h"

#include "base/clock.h"

#define POLL_NS (40 * NS_PER_MS)

bool client_cancelled(const struct leat_client *client, const struct client_rpc_how *how, uint64_t *poll_ns)
{
    if (how->cancel)
        return *how->cancel;
    if (!client->interrupt)
        return false;
    uint64_t now_ns = clock_now_ns(), due_ns = *poll_ns;
    if (due_ns && now_ns < due_ns)
        return false;
    *poll_ns = now_ns + POLL_NS;
    return due_ns && client->interrupt(client->interrupt_user); /* not at once: most waits are over soon */
}

int client_cancelled_error(struct leat_error *err)
{
    return error_set(err, LEAT_CANCELED, "cancelled by the caller");
}

static bool looks(const struct leat_client *client, const struct client_rpc_how *how)
{
    return how->cancel || client->interrupt;
}

int client_sleep_ms(const struct leat_client *client, const struct client_rpc_how *how)
{
    int ms = clock_poll_ms(how->deadline_ns);
    return looks(client, how) && (ms < 0 || ms > POLL_MS) ? POLL_MS : ms;
}

uint64_t client_sleep_until(const struct leat_client *client, const struct client_rpc_how *how)
{
    if (!looks(client, how))
        return how->deadline_ns;
    uint64_t until = clock_now_ns() + POLL_MS * NS_PER_MS;
    return how->deadline_ns && how->deadline_ns < until ? how->deadline_ns : until;
}

/* --- turns ------------------------------------------------------------------------------------------------------- */

void tlock_init(struct tlock *turn)
{
    *turn = (struct tlock){0};
    pthread_mutex_init(&turn->lock, NULL);
    cond_init(&turn->changed);
}

void tlock_fini(struct tlock *turn)
{
    pthread_cond_destroy(&turn->changed);
    pthread_mutex_destroy(&turn->lock);
}

int tlock_take(struct tlock *turn, const struct leat_client *client, const struct client_rpc_how *how,
               const char *what, struct leat_error *err)
{
    int rc = 0;
    uint64_t poll_ns = 0;
    pthread_mutex_lock(&turn->lock);
    while (turn->taken && !rc) {
        if (pthread_equal(turn->owner, pthread_self()))
            rc = error_set(err, LEAT_BUSY,
                           "%s: this thread is at it already (called from an interrupt hook?)", what);
        else if (how->deadline_ns && clock_now_ns() >= how->deadline_ns)
            rc = error_set(err, LEAT_TIMED_OUT, "%s: another thread was at it past the deadline", what);
        if (rc)
            break;
        cond_wait_until(&turn->changed, &turn->lock, client_sleep_until(client, how));
        pthread_mutex_unlock(&turn->lock);
        if (client_cancelled(client, how, &poll_ns))
            rc = client_cancelled_error(err);
        pthread_mutex_lock(&turn->lock);
    }
    if (!rc) {
        turn->taken = true;
        turn->owner = pthread_self();
    } else {
        pthread_cond_signal(&turn->changed); /* a wake-up that this thread may have used up */
    }
    pthread_mutex_unlock(&turn->lock);
    return rc;
}

void tlock_give(struct tlock *turn)
{
    pthread_mutex_lock(&turn->lock);
    turn->taken = false;
    pthread_cond_signal(&turn->changed);
    pthread_mutex_unlock(&turn->lock);
}
