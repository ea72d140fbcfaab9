/* SPDX-License-Identifier: Apache-2.0 */
/*
 * snapshot.c: a path's index as one sorted file, and the moment at which a new one begins.
 *
 * Happy path: a new log begins and the changes are frozen (for that moment no thread changes anything); then snapshot and frozen changes are
 * merged into a file while everything continues, which is flushed, renamed to its name and mapped; then the older logs go.
 * Failure modes: a snapshot that cannot be written is dropped, the frozen changes stay in front, and the next
 * turn tries again: all logs are still there. A snapshot that does not parse is as if there were none.
 * Invariants: snapshot N and the logs from N on are all of the index. Before a snapshot gets its name, files
 * that were unlinked until its log began are so on the disk too (syncfs): the log that announced them is no
 * longer read.
 */
#include "store/internal.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/crc32c.h"

static void index_file(const struct path *p, const char *what, uint64_t number, char out[PATH_FILE_MAX])
{
    snprintf(out, PATH_FILE_MAX, "%s/index/%s.%016llx", p->dir, what, (unsigned long long)number);
}

int store_snapshot_load(struct path *p, const char *name, struct snapshot **ret_snapshot,
                        struct snapshot_header *ret_header, uint64_t **ret_outstanding)
{
    const struct store_io *io = p->store->io;
    int fd = io->open(io, name, O_RDONLY, 0);
    if (fd < 0)
        return fd;
    struct stat st;
    struct snapshot *s = calloc(1, sizeof(*s));
    int rc = !s                                   ? -ENOMEM
             : fstat(fd, &st) < 0                 ? -errno
             : st.st_size < SNAPSHOT_HEADER_BYTES ? LEAT_CORRUPT
                                                  : 0;
    if (rc == 0) {
        s->map_bytes = (size_t)st.st_size;
        s->map = mmap(NULL, s->map_bytes, PROT_READ, MAP_SHARED, fd, 0);
        if (s->map == MAP_FAILED) {
            rc = -errno;
            s->map = NULL;
        }
    }
    io->close(io, fd);
    const uint64_t *outstanding;
    if (rc == 0)
        rc = store_snapshot_parse(s->map, s->map_bytes, p->id, ret_header, &s->entries, &s->strings,
                                  &outstanding);
    if (rc == 0) {
        s->count = ret_header->count;
        s->clock = calloc(MAX(s->count, 1u), sizeof(*s->clock));
        *ret_outstanding = malloc(MAX(ret_header->outstanding, 1u) * sizeof(uint64_t));
        if (!s->clock || !*ret_outstanding) {
            free(*ret_outstanding);
            rc = -ENOMEM;
        }
    }
    if (rc < 0) {
        if (s && s->map)
            munmap(s->map, s->map_bytes);
        free(s ? (void *)s->clock : NULL);
        free(s);
        return rc;
    }
    if (ret_header->outstanding)
        memcpy(*ret_outstanding, outstanding, ret_header->outstanding * sizeof(uint64_t));
    *ret_snapshot = s;
    return 0;
}

/* Writes in large pieces, and checksums on the way. */
struct writer {
    const struct store_io *io;
    int fd, rc;
    uint8_t *buf;
    size_t fill;
    uint64_t at;
    uint32_t crc;
};
#define WRITER_BYTES (256 * KIB)

static void writer_flush(struct writer *w)
{
    w->crc = crc32c(w->crc, w->buf, w->fill);
    if (w->rc == 0)
        w->rc = store_io_write(w->io, w->fd, w->buf, w->fill, w->at);
    w->at += w->fill;
    w->fill = 0;
}

static void writer_put(struct writer *w, const void *data, size_t n)
{
    if (n > WRITER_BYTES - w->fill)
        writer_flush(w);
    if (n > WRITER_BYTES) {
        w->crc = crc32c(w->crc, data, n);
        if (w->rc == 0)
            w->rc = store_io_write(w->io, w->fd, data, n, w->at);
        w->at += n;
        return;
    }
    if (n)
        memcpy(w->buf + w->fill, data, n);
    w->fill += n;
}

/* snapshot and frozen are walked without the lock: neither changes, but for the bytes of their clocks, until store_index_thaw, and that is ours to call. */
static void walk_frozen(struct index_cursor *c, struct index *x)
{
    struct index view = {.changed = x->frozen, .snapshot = x->snapshot};
    store_index_seek(c, &view, "", 0);
}

static void write_body(struct writer *w, struct index *x, struct snapshot_header *h,
                       const uint64_t *outstanding)
{
    struct index_cursor c;
    uint64_t offset = 0;
    for (walk_frozen(&c, x); c.valid; store_index_next(&c)) {
        struct snapshot_entry e = {c.item.value, offset, c.item.key_len, c.item.extra_len, 0};
        writer_put(w, &e, sizeof(e));
        offset += (uint64_t)c.item.key_len + c.item.extra_len;
        h->count++;
    }
    for (walk_frozen(&c, x); c.valid; store_index_next(&c)) {
        writer_put(w, c.item.key, c.item.key_len);
        writer_put(w, c.item.extra, c.item.extra_len);
    }
    static const uint8_t zeros[8];
    writer_put(w, zeros, (8 - offset % 8) % 8);
    h->strings_bytes = align_up(offset, 8);
    writer_put(w, outstanding, h->outstanding * sizeof(uint64_t));
    writer_flush(w);
}

static int write_snapshot(struct path *p, const char *tmp, struct snapshot_header *h,
                          const uint64_t *outstanding)
{
    const struct store_io *io = p->store->io;
    struct writer w = {.io = io, .at = SNAPSHOT_HEADER_BYTES, .buf = malloc(WRITER_BYTES)};
    if (!w.buf)
        return -ENOMEM;
    w.fd = io->open(io, tmp, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (w.fd < 0) {
        free(w.buf);
        return w.fd;
    }
    write_body(&w, &p->index, h, outstanding);
    h->body_crc = w.crc;
    uint8_t header[SNAPSHOT_HEADER_BYTES];
    store_snapshot_header_put(header, p->id, h);
    if (w.rc == 0)
        w.rc = store_io_write(io, w.fd, header, sizeof(header), 0);
    if (w.rc == 0)
        w.rc = io->datasync(io, w.fd);
    io->close(io, w.fd);
    free(w.buf);
    return w.rc;
}

/* Marks of recent use are carried over to the new entries. */
static void carry_clock(struct index *x, struct snapshot *fresh)
{
    struct index_cursor c;
    uint64_t i = 0;
    for (walk_frozen(&c, x); c.valid && i < fresh->count; store_index_next(&c), i++)
        atomic_init(&fresh->clock[i], atomic_load_explicit(c.item.clock, memory_order_relaxed));
}

/* A new log, and all changes until now frozen. The header describes that moment. */
static int begin(struct path *p, struct snapshot_header *h, uint64_t **ret_outstanding)
{
    struct index_list *fresh = store_index_list_new();
    int fd = -1,
        rc = fresh ? store_log_create(p, &(struct log_header){.number = p->log.number + 1}, &fd) : -ENOMEM;
    if (rc < 0) {
        store_index_list_free(fresh);
        return rc;
    }
    pthread_rwlock_wrlock(&p->commits);
    /* The index of a path that has failed may have keys of unknown state. */
    rc = atomic_load(&p->failed) ? -EIO : store_files_outstanding(p, ret_outstanding, &h->outstanding);
    if (rc == 0) {
        h->number = p->log.number + 1;
        h->next_file = p->next_file;
        h->next_seq = atomic_load(&p->store->seq);
        store_index_freeze(&p->index, fresh);
        fd = store_log_switch(p, fd, h->number);
    } else {
        store_index_list_free(fresh);
    }
    pthread_rwlock_unlock(&p->commits);
    if (fd >= 0)
        p->store->io->close(p->store->io, fd);
    return rc;
}

static void remove_older(struct path *p, uint64_t snapshot_before, uint64_t number)
{
    char name[PATH_FILE_MAX];
    for (uint64_t n = p->log.first; n < number; n++) {
        index_file(p, "log", n, name);
        p->store->io->unlink(p->store->io, name);
    }
    p->log.first = number;
    if (snapshot_before) {
        index_file(p, "snapshot", snapshot_before, name);
        p->store->io->unlink(p->store->io, name);
    }
}

bool store_path_wants_compaction(struct path *p)
{
    pthread_rwlock_rdlock(&p->index.lock);
    uint64_t changes = p->index.changed->count, all = p->index.objects;
    bool frozen = p->index.frozen;
    pthread_rwlock_unlock(&p->index.lock);
    pthread_mutex_lock(&p->log.lock);
    bool long_log = p->log.end > 64 * MIB || p->log.number - p->log.first > 8;
    pthread_mutex_unlock(&p->log.lock);
    return frozen || long_log || changes > MAX(all / 16, 32768u);
}

int store_path_compact(struct path *p)
{
    const struct store_io *io = p->store->io;
    char tmp[PATH_FILE_MAX], name[PATH_FILE_MAX], dir[PATH_FILE_MAX];
    struct snapshot *fresh;
    int rc = p->frozen_outstanding ? 0 : begin(p, &p->frozen_header, &p->frozen_outstanding);
    if (rc < 0)
        return rc;
    struct snapshot_header *h = &p->frozen_header, check;
    snprintf(dir, sizeof(dir), "%s/index", p->dir);
    index_file(p, "snapshot", h->number, name);
    snprintf(tmp, sizeof(tmp), "%s/index/tmp", p->dir);
    h->count = 0;
    rc = write_snapshot(p, tmp, h, p->frozen_outstanding);
    if (rc == 0)
        rc = io->syncfs(io, p->dir);
    if (rc == 0)
        rc = io->rename(io, tmp, name);
    if (rc == 0)
        rc = io->syncdir(io, dir);
    uint64_t *outstanding;
    if (rc == 0)
        rc = store_snapshot_load(p, name, &fresh, &check, &outstanding);
    if (rc < 0) {
        io->unlink(io, tmp);
        return rc;
    }
    free(outstanding);
    carry_clock(&p->index, fresh);
    store_index_thaw(&p->index, fresh);
    free(TAKE_PTR(p->frozen_outstanding));
    uint64_t before = p->snapshot_number;
    p->snapshot_number = h->number;
    remove_older(p, before, h->number);
    return 0;
}
