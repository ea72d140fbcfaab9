/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.c: the index log of a path: appended, and flushed for several at once.
 *
 * Happy path: store_log_append writes a record at the end; store_log_sync returns when it is on the disk. One
 * of the waiting threads flushes what was appended until then; the others sleep, and one of them takes over.
 * Failure modes: a record that could not be written whole is overwritten by the next one (it parses as none).
 * After a failed flush the path is left: the content of the disk is unknown (the kernel reports it once, and
 * forgets). A log's header says how many records the one before has on the disk, as far as that is known: at
 * a start, at a clean end (which leaves the next one, empty), and where a snapshot begins. So the loss of a
 * log's end is detected.
 * Invariants: records are in the order of their numbers; zeros are behind the last. Each has the number of
 * earlier ones that were not known to be on the disk. So a start can tell a record that never got there from
 * one that rotted (recover.c).
 */
#include "store/internal.h"

#include <fcntl.h>

#include "base/log.h"

#define AHEAD (256 * KIB)

int store_log_create(struct path *p, const struct log_header *h, int *ret_fd)
{
    const struct store_io *io = p->store->io;
    char name[PATH_FILE_MAX], dir[PATH_NAME_MAX + 8];
    snprintf(dir, sizeof(dir), "%s/index", p->dir);
    snprintf(name, sizeof(name), "%s/log.%016llx", dir, (unsigned long long)h->number);
    int fd = io->open(io, name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0)
        return fd;
    uint8_t header[LOG_HEADER_BYTES];
    store_log_header_put(header, p->id, h);
    int rc = store_io_write(io, fd, header, sizeof(header), 0);
    if (rc == 0)
        rc = io->datasync(io, fd);
    if (rc == 0)
        rc = io->syncdir(io, dir);
    if (rc < 0) {
        io->close(io, fd);
        io->unlink(io, name);
        return rc;
    }
    *ret_fd = fd;
    return 0;
}

/* Puts the known length of the log before into the new one's header, flushed with its first records. Without
 * it a lost end is found only by its files. */
static void note_before(struct path *p, int fd, uint64_t number)
{
    const struct store_log *log = &p->log;
    uint8_t header[LOG_HEADER_BYTES];
    struct log_header h = {.number = number, .before_records = log->synced_nth, .before_end = log->synced};
    store_log_header_put(header, p->id, &h);
    if (store_io_write(p->store->io, fd, header, sizeof(header), 0) < 0)
        log_debug("%s: a log's header cannot be written", p->dir);
}

/* All records are flushed by now: commits is held exclusively. Returns the descriptor of the log before. */
int store_log_switch(struct path *p, int fd, uint64_t number)
{
    struct store_log *log = &p->log;
    pthread_mutex_lock(&log->lock);
    pthread_mutex_lock(&log->sync_lock);
    int old = log->fd;
    if (old >= 0)
        note_before(p, fd, number);
    log->fd = fd;
    log->number = number;
    log->nth = log->marked = log->synced_nth = 0;
    log->end = log->zeroed = log->synced = LOG_HEADER_BYTES;
    pthread_mutex_unlock(&log->sync_lock);
    pthread_mutex_unlock(&log->lock);
    return old;
}

int store_log_start(struct path *p, const struct log_header *h, struct leat_error *err)
{
    int fd, rc = store_log_create(p, h, &fd);
    if (rc < 0)
        return error_sys(err, rc, "%s: cannot make a log", p->dir);
    store_log_switch(p, fd, h->number);
    return 0;
}

int store_log_resume(struct path *p, uint64_t number, const struct log_header *h, struct leat_error *err)
{
    const struct store_io *io = p->store->io;
    char name[PATH_FILE_MAX];
    uint8_t header[LOG_HEADER_BYTES];
    snprintf(name, sizeof(name), "%s/index/log.%016llx", p->dir, (unsigned long long)number);
    int fd = io->open(io, name, O_RDWR, 0);
    if (fd < 0)
        return error_sys(err, fd, "%s: cannot open a log", p->dir);
    int rc = 0;
    if (h) {
        store_log_header_put(header, p->id, h);
        rc = store_io_write(io, fd, header, sizeof(header), 0);
        if (rc == 0)
            rc = io->datasync(io, fd);
    }
    if (rc < 0) {
        io->close(io, fd);
        return error_sys(err, rc, "%s: cannot write a log's header", p->dir);
    }
    store_log_switch(p, fd, number);
    return 0;
}

void store_log_end(struct path *p)
{
    struct store_log *log = &p->log;
    struct log_record r = {.type = LOG_CLOSE};
    struct log_header next = {.number = log->number + 1};
    int fd;
    if (store_log_append(p, &r, &next.before_end, NULL) < 0 || store_log_sync(p, next.before_end, NULL) < 0)
        return;
    next.before_records = log->nth;
    if (store_log_create(p, &next, &fd) == 0)
        p->store->io->close(p->store->io, fd);
}

/* Zeros ahead of the records, so that fdatasync has only data to flush. Where there is no room for them, the record alone may still fit. */
static void zero_ahead(struct path *p, uint64_t until)
{
    static const uint8_t zeros[16 * KIB];
    struct store_log *log = &p->log;
    if (until <= log->zeroed)
        return;
    /* Records from when there was no room for more zeros lie behind these: they are not overwritten. */
    uint64_t at = MAX(log->zeroed, log->end), end = align_up(until, AHEAD);
    for (; at < end; at += MIN(end - at, sizeof(zeros)))
        if (store_io_write(p->store->io, log->fd, zeros, MIN(end - at, sizeof(zeros)), at) < 0)
            return;
    log->zeroed = end;
}

static uint64_t synced_records(struct store_log *log)
{
    pthread_mutex_lock(&log->sync_lock);
    uint64_t nth = log->synced_nth;
    pthread_mutex_unlock(&log->sync_lock);
    return nth;
}

int store_log_append(struct path *p, const struct log_record *r, uint64_t *ret_end, struct leat_error *err)
{
    struct store_log *log = &p->log;
    struct log_record marked = *r;
    uint8_t record[LOG_RECORD_MAX];
    pthread_mutex_lock(&log->lock);
    if (atomic_load(&p->failed)) {
        pthread_mutex_unlock(&log->lock);
        return error_set(err, STORE_UNAVAILABLE, "%s has failed", p->dir);
    }
    marked.unflushed = (uint8_t)MIN(log->nth - synced_records(log), (uint64_t)LOG_UNFLUSHED_MAX);
    size_t bytes = store_log_record_put(record, log->number, log->nth, &marked);
    zero_ahead(p, log->end + bytes);
    int rc = store_io_write(p->store->io, log->fd, record, bytes, log->end);
    if (rc == 0) {
        if (marked.unflushed < LOG_UNFLUSHED_MAX)
            log->marked = log->nth - marked.unflushed;
        log->end += bytes;
        log->nth++;
        *ret_end = log->end;
    }
    pthread_mutex_unlock(&log->lock);
    return rc < 0 ? store_path_error(p, rc, "the index log cannot be written", err) : 0;
}

int store_log_sync(struct path *p, uint64_t end, struct leat_error *err)
{
    struct store_log *log = &p->log;
    pthread_mutex_lock(&log->sync_lock);
    while (log->synced < end && log->sync_rc == 0) {
        if (log->syncing) {
            pthread_cond_wait(&log->synced_cond, &log->sync_lock);
            continue;
        }
        log->syncing = true;
        pthread_mutex_unlock(&log->sync_lock);

        pthread_mutex_lock(&log->lock);
        uint64_t until = log->end, nth = log->nth;
        int fd = log->fd;
        pthread_mutex_unlock(&log->lock);
        int rc = p->store->io->datasync(p->store->io, fd);
        atomic_fetch_add(&p->store->flushes, 1);

        pthread_mutex_lock(&log->sync_lock);
        log->syncing = false;
        if (rc < 0) {
            log->sync_rc = rc;
        } else {
            log->synced = MAX(log->synced, until);
            log->synced_nth = MAX(log->synced_nth, nth);
        }
        pthread_cond_broadcast(&log->synced_cond);
    }
    int rc = log->synced < end ? log->sync_rc : 0;
    pthread_mutex_unlock(&log->sync_lock);
    if (rc == 0)
        return 0;
    char why[64];
    snprintf(why, sizeof(why), "its index log cannot be flushed: %s", strerror(-rc));
    store_path_fail(p, why);
    return error_set(err, STORE_UNAVAILABLE, "%s: %s", p->dir, why);
}

void store_log_mark(struct path *p)
{
    struct store_log *log = &p->log;
    pthread_mutex_lock(&log->lock);
    uint64_t synced = synced_records(log);
    bool due = log->marked < synced && log->nth - synced < LOG_UNFLUSHED_MAX;
    pthread_mutex_unlock(&log->lock);
    struct log_record mark = {.type = LOG_MARK};
    uint64_t end;
    if (due)
        store_log_append(p, &mark, &end, NULL);
}

void store_log_close(struct path *p)
{
    if (p->log.fd >= 0)
        p->store->io->close(p->store->io, p->log.fd);
    p->log.fd = -1;
}
