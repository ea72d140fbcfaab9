/* SPDX-License-Identifier: Apache-2.0 */
/*
 * warm.c: files that are not in the page cache are fetched by a worker, since sendfile and pread would wait for the disk, and with them all
 * connections of the reactor.
 *
 * Happy path: one preadv2(RWF_NOWAIT) of the last byte of the next megabyte says that it is there. Where it is not, a worker reads it
 * ahead and waits for it; then the conn continues.
 * Failure modes: no worker is free, or the file system does not know RWF_NOWAIT: the reactor reads, as it would have without this. A
 * request that ends during it leaves the worker a descriptor of its own, so that it never reads another request's.
 */
#include "http/server/server_internal.h"

#include <fcntl.h>
#include <sys/uio.h>

#define WINDOW MIB

struct warming {
    struct http_work work;
    int fd;
    uint64_t at, bytes;
    struct exchange *ex; /* reactor's thread; NULL once it was forgotten */
};

static void run(struct http_work *work)
{
    struct warming *w = container_of(work, struct warming, work);
    char byte;
    readahead(w->fd, (off64_t)w->at, w->bytes);
    for (uint64_t done = 0; done < w->bytes; done += 64 * KIB) {
        ssize_t n = pread(w->fd, &byte, 1, (off_t)(w->at + done));
        (void)n; /* the thread that sends it meets the error */
    }
    ssize_t n = pread(w->fd, &byte, 1, (off_t)(w->at + w->bytes - 1));
    (void)n;
}

static void done(struct http_work *work, struct http_request *req)
{
    struct warming *w = container_of(work, struct warming, work);
    if (w->ex) {
        w->ex->warming = NULL;
        w->ex->warm_until = w->at + w->bytes;
        exchange_wake(w->ex);
    }
    close(w->fd);
    free(w);
}

static bool start(struct exchange *ex, const struct http_piece *piece, uint64_t bytes)
{
    struct http_workers *workers = ex->conn->reactor->server->config.workers;
    AUTO_FREE struct warming *w = calloc(1, sizeof(*w));
    AUTO_CLOSE int fd = fcntl(piece->fd, F_DUPFD_CLOEXEC, 0);
    if (!w || fd < 0)
        return false;
    *w = (struct warming){
        .work = {.run = run, .done = done}, .fd = fd, .at = piece->at, .bytes = bytes, .ex = ex};
    if (http_work_start(workers, http_request_ref(&ex->req), HTTP_PRIORITY_LONG, &w->work) < 0)
        return false;
    TAKE_FD(fd);
    ex->warming = TAKE_PTR(w);
    return true;
}

bool warm_ready(struct exchange *ex, const struct http_piece *piece)
{
    if (ex->warming)
        return false;
    if (!ex->conn->reactor->server->config.workers || piece->at < ex->warm_until)
        return true;
    uint64_t bytes = MIN(piece->bytes, (uint64_t)WINDOW);
    char byte;
    struct iovec iov = {&byte, 1};
    ssize_t n = preadv2(piece->fd, &iov, 1, (off_t)(piece->at + bytes - 1), RWF_NOWAIT);
    if (n < 0 && errno == EAGAIN && start(ex, piece, bytes))
        return false;
    ex->warm_until = piece->at + bytes;
    return true;
}

void warm_forget(struct exchange *ex)
{
    if (ex->warming)
        ex->warming->ex = NULL;
    ex->warming = NULL;
}
