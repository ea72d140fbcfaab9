/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.c: the index log of a path: appended, and flushed for several at once.
 *
 * Happy path: store_log_append writes a record at the end; store_log_sync returns when it is on the disk. One of those who wait flushes, for all that was
 * appended until then; the others sleep, and one of them takes over.
 * Failure modes: a record that could not be written whole is overwritten by the next one (it parses as none). After a failed flush the
 * path is left: nobody knows what is on the disk (the kernel reports it once, and forgets).
 * Invariants: records stand in the order of their numbers; zeros are behind the last. Each says how many before it were not known to be on the disk, so
 * that a start can tell a record that never got there from one that rotted (recover.c).
 */
#include "store/internal.h"

#include <fcntl.h>

#include "base/log.h"

#define AHEAD (256 * KIB)

int store_log_create(struct path *p, uint64_t number, int *ret_fd)
{
    const struct store_io *io = p->store->io;
    char name[PATH_FILE_MAX], dir[PATH_NAME_MAX + 8];
    snprintf(dir, sizeof(dir), "%s/index", p->dir);
    snprintf(name, sizeof(name), "%s/log.%016llx", dir, (unsigned long long)number);
    int fd = io->open(io, name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0)
        return fd;
    uint8_t header[LOG_HEADER_BYTES];
    store_log_header_put(header, p->id, number);
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

/* Everyone's records are flushed by now: commits is held alone. Returns the descriptor of the log before. */
int store_log_switch(struct path *p, int fd, uint64_t number)
{
    struct store_log *log = &p->log;
    pthread_mutex_lock(&log->lock);
    pthread_mutex_lock(&log->sync_lock);
    int old = log->fd;
    log->fd = fd;
    log->number = number;
    log->nth = log->marked = log->synced_nth = 0;
    log->end = log->zeroed = log->synced = LOG_HEADER_BYTES;
    pthread_mutex_unlock(&log->sync_lock);
    pthread_mutex_unlock(&log->lock);
    return old;
}

int store_log_start(struct path *p, uint64_t number, struct leat_error *err)
{
    int fd, rc = store_log_create(p, number, &fd);
    if (rc < 0)
        return error_sys(err, rc, "%s: cannot make a log", p->dir);
    store_log_switch(p, fd, number);
    return 0;
}

/* Zeros ahead of the records, so that fdatasync has only data to flush. Where there is no room for them, the record alone may still fit. */
static void zero_ahead(struct path *p, uint64_t until)
{
    static const uint8_t zeros[16 * KIB];
    struct store_log *log = &p->log;
    if (until <= log->zeroed)
        return;
    /* Records may stand behind what was zeroed, from when there was no room for zeros: they are not gone over. */
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
