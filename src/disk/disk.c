/* SPDX-License-Identifier: Apache-2.0 */
/* disk.c: the choice of an engine, and code that the engines share (engine.h). */
#include "base/log.h"
#include "disk/engine.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/stat.h>

uint64_t disk_piece_max = GIB;

static void log_choice_once(const char *name, const char *why, int rc)
{
    static atomic_flag logged = ATOMIC_FLAG_INIT;
    if (atomic_flag_test_and_set(&logged))
        return;
    if (rc)
        log_info("disk engine: %s, because io_uring is refused here: %s", name, strerror(-rc));
    else
        log_info("disk engine: %s (%s)", name, why);
}

int disk_engine_new(const char *kind, unsigned depth, struct disk_engine **ret_engine)
{
    const char *why = "asked for";
    if (strcmp(kind, "auto") == 0) {
        const char *env = getenv("LEAT_DISK");
        why = "auto";
        if (env && env[0] && strcmp(env, "auto") != 0) {
            kind = env;
            why = "LEAT_DISK";
        }
    }
    int r;
    if (strcmp(kind, "uring") == 0) {
        r = disk_uring_new(depth, ret_engine);
    } else if (strcmp(kind, "worker") == 0) {
        r = disk_worker_new(depth, ret_engine);
    } else if (strcmp(kind, "auto") == 0) {
        int uring = disk_uring_new(depth, ret_engine);
        r = uring < 0 ? disk_worker_new(depth, ret_engine) : 0;
        if (r == 0 && uring < 0) {
            log_choice_once("worker", NULL, uring);
            return 0;
        }
    } else {
        log_error("disk engine \"%s\" (%s) is not known: use uring, worker or auto", kind, why);
        return -EINVAL;
    }
    if (r == 0)
        log_choice_once((*ret_engine)->ops->name, why, 0);
    return r;
}

void disk_engine_free(struct disk_engine *e)
{
    if (e)
        e->ops->free(e);
}

void disk_request_finish(struct disk_engine *e, struct disk_read *req, int64_t result)
{
    assert(e->in_flight > 0);
    e->in_flight--;
    atomic_fetch_add_explicit(&e->reads, 1, memory_order_relaxed);
    if (result < 0)
        atomic_fetch_add_explicit(&e->errors, 1, memory_order_relaxed);
    else
        atomic_fetch_add_explicit(&e->bytes, (uint64_t)result, memory_order_relaxed);
    req->result = result;
    req->done(req, result);
}

bool disk_short_is_eof(int fd, uint64_t next)
{
    struct stat st;
    /* In /proc and the like a size of 0 means nothing; there the read that returns 0 is the end. */
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0 && next >= (uint64_t)st.st_size)
        return true;
    /* Short, unaligned and yet not at the size we see: the file is being changed. Reading cannot continue
     * directly from here; the requester sees a short result and checks the file again. */
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && (flags & O_DIRECT) && next % 512 != 0;
}

int64_t disk_pread_all(const struct disk_read *req)
{
    uint64_t got = 0;
    do {
        uint64_t want = MIN(req->bytes - got, disk_piece_max);
        ssize_t n = pread(req->fd, (char *)req->dst + got, want, (off_t)(req->offset + got));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        got += (uint64_t)n;
        if (n == 0 || ((uint64_t)n < want && disk_short_is_eof(req->fd, req->offset + got)))
            break;
    } while (got < req->bytes);
    return (int64_t)got;
}

void disk_event_set(int event_fd)
{
    /* Fails only when the counter is full, and then it is readable anyway. */
    if (eventfd_write(event_fd, 1) < 0)
        return;
}

void disk_event_clear(int event_fd)
{
    eventfd_t count;
    if (eventfd_read(event_fd, &count) < 0)
        return; /* EAGAIN: it was clear */
}
