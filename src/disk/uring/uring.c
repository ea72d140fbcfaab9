/* SPDX-License-Identifier: Apache-2.0 */
/*
 * uring.c: reads through io_uring, into registered buffers where possible.
 *
 * Happy path: submit() appends to `pending`, pushes as many as `depth` allows into the submission ring and
 * enters the kernel once; reap() takes completions, puts unfinished requests (short reads, pieces of large
 * ones) back in front of `pending`, calls done() for the rest, and refills the ring.
 *
 * Failure modes
 * - io_uring refused (seccomp, kernel.io_uring_disabled, an old kernel): disk_uring_new returns that error,
 *   nothing is left behind.
 * - A buffer cannot be registered (RLIMIT_MEMLOCK, table full): counted in register_failed; its reads are plain ones.
 * - The kernel takes no submission now (-EAGAIN, no memory): the entries stay in the ring, and the next reap() enters again.
 *
 * Invariants
 * 1. in_kernel <= depth <= entries of the submission ring, so there is always an entry to take.
 * 2. A request is in exactly one place: `pending`, or the ring and kernel.
 * 3. Ring and engine belong to one thread: the one that submits first (the ring is made disabled for this, and the
 *    thread that enables it is the one the kernel lets in afterwards). free() is that thread's too.
 */
#include "base/log.h"
#include "disk/engine.h"

#include <liburing.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>

#define URING_DEPTH_MAX 4096
#define URING_SLOTS     1024 /* registered pieces of at most 1 GiB; 8 bytes each in the kernel */

struct buffer {
    char *addr; /* NULL: this slot begins no buffer */
    uint64_t bytes;
    unsigned n_slots; /* consecutive slots, each but the last holding disk_piece_max */
};

struct uring {
    struct disk_engine e;
    struct io_uring ring;
    int event_fd; /* -1 until it is requested */
    bool enabled, closing, reaping;
    bool slots_made;    /* the sparse table exists */
    unsigned in_kernel; /* pushed into the ring and not completed */
    struct disk_queue pending;
    struct buffer buffers[URING_SLOTS]; /* by first slot */
    bool slot_used[URING_SLOTS];
};

static struct uring *uring_of(struct disk_engine *e)
{
    return container_of(e, struct uring, e);
}

static int enable(struct uring *u)
{
    if (u->enabled)
        return 0;
    /* Not io_uring_enable_rings: liburing 2.3 declares it and does not export it. */
    if (syscall(__NR_io_uring_register, u->ring.ring_fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0) < 0)
        return -errno;
    u->enabled = true;
    return 0;
}

/* The next piece of a request: how long, and the slot it can be read through (-1: none). */
static unsigned piece_of(const struct uring *u, const struct disk_read *req, int *ret_slot)
{
    uint64_t len = MIN(req->bytes - req->got, disk_piece_max);
    *ret_slot = -1;
    if (req->buffer < 0 || req->buffer >= URING_SLOTS || len == 0)
        return (unsigned)len;
    const struct buffer *b = &u->buffers[req->buffer];
    uintptr_t base = (uintptr_t)b->addr, at = (uintptr_t)req->dst + req->got;
    /* A buffer that was unregistered since, or does not hold all of the destination: read plainly. */
    if (!b->addr || at < base || at - base >= b->bytes || len > b->bytes - (at - base))
        return (unsigned)len;
    uint64_t in_buffer = at - base;
    *ret_slot = req->buffer + (int)(in_buffer / disk_piece_max);
    return (unsigned)MIN(len, disk_piece_max - in_buffer % disk_piece_max);
}

static void push(struct uring *u)
{
    while (u->pending.head && u->in_kernel < u->e.depth) {
        struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
        if (!sqe)
            break; /* cannot be, by invariant 1; the next push would do it */
        struct disk_read *req = disk_queue_pop(&u->pending);
        int slot;
        unsigned len = piece_of(u, req, &slot);
        void *at = (char *)req->dst + req->got;
        if (slot >= 0) {
            io_uring_prep_read_fixed(sqe, req->fd, at, len, req->offset + req->got, slot);
            atomic_fetch_add_explicit(&u->e.fixed_reads, 1, memory_order_relaxed);
        } else {
            io_uring_prep_read(sqe, req->fd, at, len, req->offset + req->got);
        }
        io_uring_sqe_set_data(sqe, req);
        req->result = len; /* the requested length, until the result is known */
        u->in_kernel++;
    }
}

static int uring_submit(struct disk_engine *e, struct disk_read **reqs, unsigned n)
{
    struct uring *u = uring_of(e);
    if (u->closing)
        return -ECANCELED;
    int r = enable(u);
    if (r < 0)
        return r;
    for (unsigned i = 0; i < n; i++) {
        reqs[i]->got = 0;
        disk_queue_push(&u->pending, reqs[i]);
    }
    e->in_flight += n;
    push(u);
    /* When done() submits again, inside reap(), the entries go with reap's own next call into the kernel. A failure here
     * leaves them in the ring for the next reap(). */
    if (!u->reaping && io_uring_sq_ready(&u->ring) > 0)
        io_uring_submit(&u->ring);
    return 0;
}

/* One completion: continues its request, or ends it. Returns how many ended: 0 or 1. */
static unsigned complete(struct uring *u, struct disk_read *req, int res)
{
    u->in_kernel--;
    if (res < 0 && res != -EINTR) {
        disk_request_finish(&u->e, req, res);
        return 1;
    }
    if (res >= 0) {
        bool is_short = res < req->result;
        req->got += (uint64_t)res;
        if (req->got == req->bytes || res == 0 ||
            (is_short && disk_short_is_eof(req->fd, req->offset + req->got))) {
            disk_request_finish(&u->e, req, (int64_t)req->got);
            return 1;
        }
    }
    if (u->closing) {
        disk_request_finish(&u->e, req, -ECANCELED);
        return 1;
    }
    disk_queue_push_front(&u->pending, req);
    return 0;
}

static unsigned take_completions(struct uring *u)
{
    struct io_uring_cqe *cqes[64];
    struct disk_read *reqs[ARRAY_LEN(cqes)];
    int res[ARRAY_LEN(cqes)];
    unsigned count = 0, n;
    while ((n = io_uring_peek_batch_cqe(&u->ring, cqes, ARRAY_LEN(cqes))) > 0) {
        for (unsigned i = 0; i < n; i++) {
            reqs[i] = io_uring_cqe_get_data(cqes[i]);
            res[i] = cqes[i]->res;
        }
        io_uring_cq_advance(&u->ring, n); /* before done(), which may submit */
        for (unsigned i = 0; i < n; i++)
            count += complete(u, reqs[i], res[i]);
    }
    return count;
}

/* Submits what is in the ring and runs the kernel's deferred work; waits for one completion if `wait`. */
static int enter(struct uring *u, bool wait)
{
    int r;
    do {
        r = wait ? io_uring_submit_and_wait(&u->ring, 1) : io_uring_submit_and_get_events(&u->ring);
    } while (r == -EINTR);
    /* Not an error: the kernel wants its completions taken before it accepts more. */
    return r == -EBUSY || r == -EAGAIN ? 0 : MIN(r, 0);
}

static int uring_reap(struct disk_engine *e, unsigned min_done)
{
    struct uring *u = uring_of(e);
    unsigned count = 0;
    int r = 0;
    assert(!u->reaping);
    u->reaping = true;
    if (u->event_fd >= 0)
        disk_event_clear(u->event_fd); /* first: later completions signal again */
    while (e->in_flight > 0) {
        push(u);
        r = enter(u, count < min_done && io_uring_cq_ready(&u->ring) == 0);
        if (r < 0)
            break;
        count += take_completions(u);
        /* Push all that fits: for one left behind, no completion would trigger another push. */
        bool to_push = u->pending.head && u->in_kernel < e->depth;
        if (count >= min_done && !to_push && io_uring_sq_ready(&u->ring) == 0)
            break;
    }
    u->reaping = false;
    if (u->event_fd >= 0 && e->in_flight == 0)
        disk_event_clear(u->event_fd);
    return r < 0 ? r : (int)count;
}

/* Not the ring's own descriptor: with deferred task work a completion does not wake a poll of it (seen on
 * 6.18). An eventfd is signalled; it is made only on request, as each signal costs. */
static int uring_event_fd(struct disk_engine *e)
{
    struct uring *u = uring_of(e);
    if (u->event_fd >= 0)
        return u->event_fd;
    AUTO_CLOSE int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd < 0 || io_uring_register_eventfd(&u->ring, fd) < 0)
        return -1;
    if (e->in_flight > 0)
        disk_event_set(fd); /* earlier completions gave no signal */
    return u->event_fd = TAKE_FD(fd);
}

static int refuse(struct uring *u, int rc)
{
    atomic_fetch_add_explicit(&u->e.register_failed, 1, memory_order_relaxed);
    atomic_store_explicit(&u->e.register_errno, -rc, memory_order_relaxed);
    return rc;
}

static void slots_clear(struct uring *u, unsigned first, unsigned n)
{
    for (unsigned i = first; i < first + n; i++) {
        struct iovec none = {0};
        __u64 tag = 0;
        /* Reads in flight keep their pages pinned until they end; the slot is free at once. */
        io_uring_register_buffers_update_tag(&u->ring, i, &none, &tag, 1);
        u->slot_used[i] = false;
    }
}

static int uring_buffer_register(struct disk_engine *e, void *addr, uint64_t bytes)
{
    struct uring *u = uring_of(e);
    uint64_t need = div_up(bytes, disk_piece_max);
    if (!addr || bytes == 0)
        return -EINVAL;
    if (need > URING_SLOTS)
        return refuse(u, -ENOSPC);
    if (!u->slots_made) {
        int r = io_uring_register_buffers_sparse(&u->ring, URING_SLOTS);
        if (r < 0)
            return refuse(u, r);
        u->slots_made = true;
    }
    unsigned first = 0, run = 0;
    while (run < need && first + run < URING_SLOTS) {
        if (!u->slot_used[first + run]) {
            run++;
        } else {
            first += run + 1;
            run = 0;
        }
    }
    if (run < need)
        return refuse(u, -ENOSPC);
    for (unsigned i = 0; i < need; i++) {
        struct iovec iov = {.iov_base = (char *)addr + i * disk_piece_max,
                            .iov_len = MIN(bytes - i * disk_piece_max, disk_piece_max)};
        __u64 tag = 0;
        int r = io_uring_register_buffers_update_tag(&u->ring, first + i, &iov, &tag, 1);
        if (r != 1) {
            slots_clear(u, first, i);
            return refuse(u, r < 0 ? r : -EIO);
        }
        u->slot_used[first + i] = true;
    }
    u->buffers[first] = (struct buffer){.addr = addr, .bytes = bytes, .n_slots = (unsigned)need};
    atomic_fetch_add_explicit(&e->registered_bytes, bytes, memory_order_relaxed);
    return (int)first;
}

static void uring_buffer_unregister(struct disk_engine *e, int buffer)
{
    struct uring *u = uring_of(e);
    if (buffer < 0)
        return; /* a buffer that could not be registered */
    assert(buffer < URING_SLOTS && u->buffers[buffer].addr);
    struct buffer b = u->buffers[buffer];
    u->buffers[buffer] = (struct buffer){0};
    slots_clear(u, (unsigned)buffer, b.n_slots);
    atomic_fetch_sub_explicit(&e->registered_bytes, b.bytes, memory_order_relaxed);
}

static void uring_free(struct disk_engine *e)
{
    struct uring *u = uring_of(e);
    u->closing = true;
    for (struct disk_read *req; (req = disk_queue_pop(&u->pending));)
        disk_request_finish(e, req, -ECANCELED);
    while (u->in_kernel > 0) {
        int r = enter(u, io_uring_cq_ready(&u->ring) == 0);
        if (r < 0) {
            /* -EEXIST: another thread's ring, a bug of the caller. The kernel may still write to the buffers,
             * so the process cannot continue. */
            log_error("disk engine: cannot wait for %u reads in flight: %s", u->in_kernel, strerror(-r));
            abort();
        }
        take_completions(u);
    }
    assert(e->in_flight == 0);
    io_uring_queue_exit(&u->ring);
    if (u->event_fd >= 0)
        close(u->event_fd);
    free(u);
}

static const struct disk_ops uring_ops = {
    .name = "uring",
    .submit = uring_submit,
    .reap = uring_reap,
    .event_fd = uring_event_fd,
    .buffer_register = uring_buffer_register,
    .buffer_unregister = uring_buffer_unregister,
    .free = uring_free,
};

/* The best ring that this kernel makes. DEFER_TASKRUN (6.1) runs completions in our own calls, never as an
 * interruption of other work; COOP_TASKRUN (5.19) is the next best. */
static int ring_make(struct uring *u, unsigned depth)
{
    static const unsigned tries[] = {
        IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG |
            IORING_SETUP_R_DISABLED,
        IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG |
            IORING_SETUP_R_DISABLED,
        IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
        0,
    };
    int r = -EINVAL;
    for (unsigned i = 0; i < ARRAY_LEN(tries) && r == -EINVAL; i++) {
        struct io_uring_params params = {.flags = tries[i]};
        r = io_uring_queue_init_params(depth, &u->ring, &params);
        if (r == 0)
            u->enabled = !(tries[i] & IORING_SETUP_R_DISABLED);
    }
    return r;
}

int disk_uring_new(unsigned depth, struct disk_engine **ret_engine)
{
    if (depth == 0 || depth > URING_DEPTH_MAX)
        return -EINVAL;
    struct uring *u = calloc(1, sizeof(*u));
    if (!u)
        return -ENOMEM;
    u->e.ops = &uring_ops;
    u->event_fd = -1;
    u->e.depth = depth;
    int r = ring_make(u, depth);
    if (r < 0) {
        free(u);
        return r;
    }
    io_uring_ring_dontfork(&u->ring); /* a forked child must not touch our ring */
    *ret_engine = &u->e;
    return 0;
}
