/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mem.c: an engine over the caller's memory, for tests of what stands above disk/: no file, no kernel, no thread, and so
 * the same order every time. disk_read.fd is an index into the table (-EBADF beyond it). Reads happen in reap(), one at
 * least a call, in the order of submission.
 */
#include "disk/engine.h"

#include <sys/eventfd.h>

struct mem {
    struct disk_engine e;
    int event_fd;
    bool closing;
    struct disk_queue todo;
    unsigned n_files;
    struct disk_mem_file files[];
};

static struct mem *mem_of(struct disk_engine *e)
{
    return container_of(e, struct mem, e);
}

static int64_t read_one(const struct mem *m, const struct disk_read *req)
{
    if (req->fd < 0 || (unsigned)req->fd >= m->n_files)
        return -EBADF;
    const struct disk_mem_file *f = &m->files[req->fd];
    if (req->offset > INT64_MAX)
        return -EINVAL; /* as pread says */
    if (req->offset >= f->bytes)
        return 0;
    uint64_t n = MIN(req->bytes, f->bytes - req->offset);
    if (n > 0)
        memcpy(req->dst, (const char *)f->data + req->offset, n);
    return (int64_t)n;
}

static int mem_submit(struct disk_engine *e, struct disk_read **reqs, unsigned n)
{
    struct mem *m = mem_of(e);
    if (m->closing)
        return -ECANCELED;
    for (unsigned i = 0; i < n; i++)
        disk_queue_push(&m->todo, reqs[i]);
    e->in_flight += n;
    if (n > 0)
        disk_event_set(m->event_fd);
    return 0;
}

static int mem_reap(struct disk_engine *e, unsigned min_done)
{
    struct mem *m = mem_of(e);
    unsigned count = 0;
    while (m->todo.head && count < MAX(min_done, 1u)) {
        struct disk_read *req = disk_queue_pop(&m->todo);
        if (!m->todo.head)
            disk_event_clear(m->event_fd);
        disk_request_finish(e, req, read_one(m, req));
        count++;
    }
    return (int)count;
}

static int mem_event_fd(struct disk_engine *e)
{
    return mem_of(e)->event_fd;
}

static int mem_buffer_register(struct disk_engine *e, void *addr, uint64_t bytes)
{
    return -EOPNOTSUPP;
}

static void mem_buffer_unregister(struct disk_engine *e, int buffer) {}

static void mem_free(struct disk_engine *e)
{
    struct mem *m = mem_of(e);
    m->closing = true;
    for (struct disk_read *req; (req = disk_queue_pop(&m->todo));)
        disk_request_finish(e, req, -ECANCELED);
    close(m->event_fd);
    free(m);
}

static const struct disk_ops mem_ops = {
    .name = "mem",
    .submit = mem_submit,
    .reap = mem_reap,
    .event_fd = mem_event_fd,
    .buffer_register = mem_buffer_register,
    .buffer_unregister = mem_buffer_unregister,
    .free = mem_free,
};

int disk_mem_new(const struct disk_mem_file *files, unsigned n, struct disk_engine **ret_engine)
{
    struct mem *m = calloc(1, sizeof(*m) + n * sizeof(m->files[0]));
    if (!m)
        return -ENOMEM;
    m->e.ops = &mem_ops;
    m->e.depth = 1;
    m->n_files = n;
    if (n > 0)
        memcpy(m->files, files, n * sizeof(files[0]));
    m->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (m->event_fd < 0) {
        int r = -errno;
        free(m);
        return r;
    }
    *ret_engine = &m->e;
    return 0;
}
