/* SPDX-License-Identifier: Apache-2.0 */
/*
 * testing_io.c: recorded and failing file operations, and the disk after a power cut.
 *
 * A file is a number here, its name an entry in a table; the recorder keeps the table as it is now, replay builds one of its own
 * out of those events that the cut left.
 */
#include "store/testing_io.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/rng.h"

#define NAME_MAX_BYTES 700u
#define FDS            4096u

enum event_type { CREATE, MKDIR, WRITE, TRUNCATE, RENAME, UNLINK, RMDIR, DATASYNC, SYNCDIR, SYNCFS };
struct event {
    enum event_type type;
    uint32_t file;
    char *name, *to; /* below root */
    uint64_t offset, bytes;
    uint8_t *data; /* NULL: zeros */
};

struct name {
    char *text;
    uint32_t file; /* 0: a folder */
};
struct names {
    struct name *v;
    size_t n, cap;
};

struct store_fault {
    struct store_io io;
    pthread_mutex_t lock;
    char root[256];
    struct event *events;
    size_t n, cap;
    struct names now;
    uint32_t files, fds[FDS];
    uint64_t calls, fail_nth;
    int fail_code;
    bool fail_on, shorten, odd, no_bytes;
    char unreadable[16];
    int read_code; /* 0: all can be read */
    enum { HOLD_NOTHING, HOLD_NEXT, HOLDS } hold;
    const char *hold_what;
    pthread_cond_t held;
    uint64_t capacity, used;
};

static struct store_fault *fault_of(const struct store_io *io)
{
    return container_of(io, struct store_fault, io);
}

static void *grown(void *v, size_t n, size_t *cap, size_t size)
{
    if (n < *cap)
        return v;
    *cap = *cap * 2 + 64;
    v = realloc(v, *cap * size);
    if (!v)
        abort();
    return v;
}

static struct name *names_find(struct names *t, const char *text)
{
    for (size_t i = t->n; i-- > 0;)
        if (strcmp(t->v[i].text, text) == 0)
            return &t->v[i];
    return NULL;
}

static void names_put(struct names *t, const char *text, uint32_t file)
{
    struct name *there = names_find(t, text);
    if (there) {
        there->file = file;
        return;
    }
    t->v = grown(t->v, t->n, &t->cap, sizeof(*t->v));
    t->v[t->n++] = (struct name){strdup(text), file};
}

static void names_remove(struct names *t, const char *text)
{
    struct name *there = names_find(t, text);
    if (!there)
        return;
    free(there->text);
    *there = t->v[--t->n];
}

static void names_fini(struct names *t)
{
    for (size_t i = 0; i < t->n; i++)
        free(t->v[i].text);
    free(t->v);
}

/* The name below root, "" for root itself; NULL: not there. */
static const char *below(const struct store_fault *f, const char *path)
{
    size_t n = strlen(f->root);
    if (strncmp(path, f->root, n) != 0)
        return NULL;
    return path[n] == '/' ? path + n + 1 : path + n;
}

/* lock is held. */
static struct event *record(struct store_fault *f, enum event_type type, uint32_t file, const char *name)
{
    f->events = grown(f->events, f->n, &f->cap, sizeof(*f->events));
    f->events[f->n] = (struct event){.type = type, .file = file, .name = name ? strdup(name) : NULL};
    return &f->events[f->n++];
}

/* Is it this call's turn to fail? lock is taken, and held when 0 is returned. */
static int enter(struct store_fault *f)
{
    pthread_mutex_lock(&f->lock);
    f->calls++;
    bool fails = f->fail_nth && (f->calls == f->fail_nth || (f->fail_on && f->calls >= f->fail_nth));
    if (!fails)
        return 0;
    int rc = f->fail_code;
    pthread_mutex_unlock(&f->lock);
    return rc;
}

static int leave(struct store_fault *f, int rc)
{
    pthread_mutex_unlock(&f->lock);
    return rc;
}

/* lock is held. */
static int read_fault(const struct store_fault *f, const char *name)
{
    size_t n = strlen(name), end = strlen(f->unreadable);
    return f->read_code && n >= end && strcmp(name + n - end, f->unreadable) == 0 ? f->read_code : 0;
}

static int fault_open(const struct store_io *io, const char *path, int flags, unsigned mode)
{
    struct store_fault *f = fault_of(io);
    bool writes = flags & O_CREAT;
    int rc = writes ? enter(f) : 0;
    if (rc < 0)
        return rc;
    if (!writes)
        pthread_mutex_lock(&f->lock);
    int fd = writes ? 0 : read_fault(f, path);
    if (fd == 0)
        fd = store_io_real.open(io, path, flags, mode);
    const char *name = below(f, path);
    if (fd < 0 || fd >= (int)FDS || !name)
        return leave(f, fd);
    struct name *there = names_find(&f->now, name);
    uint32_t file = there ? there->file : 0;
    if (!there && writes) {
        file = ++f->files;
        names_put(&f->now, name, file);
        record(f, CREATE, file, name);
    } else if (there && flags & O_TRUNC) {
        record(f, TRUNCATE, file, NULL);
    }
    f->fds[fd] = file;
    return leave(f, fd);
}

static int fault_close(const struct store_io *io, int fd)
{
    return store_io_real.close(io, fd);
}

static bool all_zeros(const uint8_t *p, uint64_t n)
{
    return n == 0 || (*p == 0 && memcmp(p, p + 1, n - 1) == 0);
}

static int64_t fault_pwrite(const struct store_io *io, int fd, const void *data, size_t n, uint64_t offset)
{
    struct store_fault *f = fault_of(io);
    int rc = enter(f);
    if (rc < 0)
        return rc;
    if (f->shorten) {
        f->odd = !f->odd;
        if (f->odd)
            return leave(f, -EINTR);
        n = n / 2 + 1;
    }
    if (f->capacity) {
        struct stat st;
        uint64_t end = offset + n, size = fstat(fd, &st) == 0 ? (uint64_t)st.st_size : 0;
        uint64_t more = end > size ? end - size : 0;
        if (f->used + more > f->capacity)
            return leave(f, -ENOSPC);
        f->used += more;
    }
    int64_t got = store_io_real.pwrite(io, fd, data, n, offset);
    if (got > 0) {
        struct event *e = record(f, WRITE, f->fds[fd], NULL);
        e->offset = offset;
        e->bytes = (uint64_t)got;
        if (!f->no_bytes && !all_zeros(data, (uint64_t)got)) {
            e->data = malloc((size_t)got);
            if (!e->data)
                abort();
            memcpy(e->data, data, (size_t)got);
        }
    }
    pthread_mutex_unlock(&f->lock);
    return got;
}

static int64_t fault_pread(const struct store_io *io, int fd, void *dst, size_t n, uint64_t offset)
{
    struct store_fault *f = fault_of(io);
    int rc = 0;
    pthread_mutex_lock(&f->lock);
    for (size_t i = 0; f->read_code && fd < (int)FDS && i < f->now.n; i++)
        if (f->now.v[i].file && f->now.v[i].file == f->fds[fd])
            rc = read_fault(f, f->now.v[i].text);
    pthread_mutex_unlock(&f->lock);
    return rc < 0 ? rc : store_io_real.pread(io, fd, dst, n, offset);
}

/* By reading and writing, which is recorded. */
static int64_t fault_copy(const struct store_io *io, int from, uint64_t from_offset, int to,
                          uint64_t to_offset, uint64_t n)
{
    AUTO_FREE uint8_t *buf = malloc(64 * KIB);
    if (!buf)
        return -ENOMEM;
    int64_t got = store_io_real.pread(io, from, buf, MIN(n, 64 * KIB), from_offset);
    return got > 0 ? fault_pwrite(io, to, buf, (size_t)got, to_offset) : got;
}

static int fault_truncate(const struct store_io *io, int fd, uint64_t bytes)
{
    struct store_fault *f = fault_of(io);
    int rc = enter(f);
    if (rc < 0)
        return rc;
    rc = store_io_real.truncate(io, fd, bytes);
    if (rc == 0)
        record(f, TRUNCATE, f->fds[fd], NULL)->bytes = bytes;
    return leave(f, rc);
}

static int fault_allocate(const struct store_io *io, int fd, uint64_t bytes)
{
    struct store_fault *f = fault_of(io);
    int rc = enter(f);
    if (rc < 0)
        return rc;
    return leave(f, f->capacity && f->used + bytes > f->capacity ? -ENOSPC : 0);
}

static void wait_where_held(struct store_fault *f, uint32_t file)
{
    pthread_mutex_lock(&f->lock);
    bool is = false;
    for (size_t i = 0; f->hold == HOLD_NEXT && i < f->now.n; i++)
        is |= file && f->now.v[i].file == file && strstr(f->now.v[i].text, f->hold_what);
    if (is)
        f->hold = HOLDS;
    while (is && f->hold == HOLDS)
        pthread_cond_wait(&f->held, &f->lock); /* waits: for store_fault_release */
    pthread_mutex_unlock(&f->lock);
}

static int fault_datasync(const struct store_io *io, int fd)
{
    struct store_fault *f = fault_of(io);
    wait_where_held(f, f->fds[fd]);
    int rc = enter(f);
    if (rc < 0)
        return rc;
    record(f, DATASYNC, f->fds[fd], NULL);
    return leave(f, 0);
}

static int fault_syncdir(const struct store_io *io, const char *path)
{
    struct store_fault *f = fault_of(io);
    int rc = enter(f);
    if (rc < 0)
        return rc;
    record(f, SYNCDIR, 0, below(f, path));
    return leave(f, 0);
}

static int fault_syncfs(const struct store_io *io, const char *path)
{
    struct store_fault *f = fault_of(io);
    int rc = enter(f);
    if (rc < 0)
        return rc;
    record(f, SYNCFS, 0, NULL);
    return leave(f, 0);
}

static int fault_rename(const struct store_io *io, const char *from, const char *to)
{
    struct store_fault *f = fault_of(io);
    int rc = enter(f);
    if (rc < 0)
        return rc;
    rc = store_io_real.rename(io, from, to);
    struct name *there = rc == 0 ? names_find(&f->now, below(f, from)) : NULL;
    if (there) {
        uint32_t file = there->file;
        names_remove(&f->now, below(f, from));
        names_put(&f->now, below(f, to), file);
        record(f, RENAME, file, below(f, from))->to = strdup(below(f, to));
    }
    return leave(f, rc);
}

static int fault_unlink(const struct store_io *io, const char *path)
{
    struct store_fault *f = fault_of(io);
    int rc = enter(f);
    if (rc < 0)
        return rc;
    struct stat st;
    uint64_t bytes = stat(path, &st) == 0 ? (uint64_t)st.st_size : 0;
    rc = store_io_real.unlink(io, path);
    struct name *there = rc == 0 ? names_find(&f->now, below(f, path)) : NULL;
    if (there) {
        record(f, UNLINK, there->file, below(f, path));
        names_remove(&f->now, below(f, path));
        f->used -= MIN(f->used, bytes);
    }
    return leave(f, rc);
}

/* Not recorded: a cut takes every change of modes back. */
static int fault_chmod(const struct store_io *io, const char *path, unsigned mode)
{
    struct store_fault *f = fault_of(io);
    int rc = enter(f);
    return rc < 0 ? rc : leave(f, store_io_real.chmod(io, path, mode));
}

static int fault_mkdir(const struct store_io *io, const char *path, unsigned mode)
{
    struct store_fault *f = fault_of(io);
    int rc = enter(f);
    if (rc < 0)
        return rc;
    rc = store_io_real.mkdir(io, path, mode);
    if (rc == 0 && *below(f, path)) {
        names_put(&f->now, below(f, path), 0);
        record(f, MKDIR, 0, below(f, path));
    }
    return leave(f, rc);
}

static int fault_rmdir(const struct store_io *io, const char *path)
{
    struct store_fault *f = fault_of(io);
    int rc = enter(f);
    if (rc < 0)
        return rc;
    rc = store_io_real.rmdir(io, path);
    if (rc == 0) {
        names_remove(&f->now, below(f, path));
        record(f, RMDIR, 0, below(f, path));
    }
    return leave(f, rc);
}

static int fault_space(const struct store_io *io, const char *path, uint64_t *ret_free, uint64_t *ret_total)
{
    struct store_fault *f = fault_of(io);
    pthread_mutex_lock(&f->lock);
    uint64_t capacity = f->capacity, used = f->used;
    pthread_mutex_unlock(&f->lock);
    if (!capacity)
        return store_io_real.space(io, path, ret_free, ret_total);
    *ret_total = capacity;
    *ret_free = capacity - MIN(capacity, used);
    return 0;
}

static const struct store_io fault_io = {
    .open = fault_open,
    .close = fault_close,
    .pwrite = fault_pwrite,
    .pread = fault_pread,
    .copy = fault_copy,
    .truncate = fault_truncate,
    .allocate = fault_allocate,
    .datasync = fault_datasync,
    .syncdir = fault_syncdir,
    .syncfs = fault_syncfs,
    .rename = fault_rename,
    .unlink = fault_unlink,
    .chmod = fault_chmod,
    .mkdir = fault_mkdir,
    .rmdir = fault_rmdir,
    .space = fault_space,
};

int store_fault_new(const char *root, struct store_fault **ret_fault)
{
    struct store_fault *f = calloc(1, sizeof(*f));
    if (!f)
        return -ENOMEM;
    f->io = fault_io;
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->held, NULL);
    snprintf(f->root, sizeof(f->root), "%s", root);
    *ret_fault = f;
    return 0;
}

void store_fault_free(struct store_fault *f)
{
    if (!f)
        return;
    for (size_t i = 0; i < f->n; i++) {
        free(f->events[i].name);
        free(f->events[i].to);
        free(f->events[i].data);
    }
    free(f->events);
    names_fini(&f->now);
    pthread_cond_destroy(&f->held);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

const struct store_io *store_fault_io(struct store_fault *f)
{
    return &f->io;
}

static void arm(struct store_fault *f, uint64_t nth, int rc, bool on)
{
    pthread_mutex_lock(&f->lock);
    f->calls = 0;
    f->fail_nth = nth;
    f->fail_code = rc;
    f->fail_on = on;
    pthread_mutex_unlock(&f->lock);
}

void store_fault_fail(struct store_fault *f, uint64_t nth, int rc)
{
    arm(f, nth, rc, false);
}

void store_fault_unreadable(struct store_fault *f, const char *name_end, int rc)
{
    pthread_mutex_lock(&f->lock);
    snprintf(f->unreadable, sizeof(f->unreadable), "%s", name_end ? name_end : "");
    f->read_code = name_end ? rc : 0;
    pthread_mutex_unlock(&f->lock);
}

void store_fault_fail_from(struct store_fault *f, uint64_t nth, int rc)
{
    arm(f, nth, rc, true);
}

uint64_t store_fault_calls(struct store_fault *f)
{
    pthread_mutex_lock(&f->lock);
    uint64_t calls = f->calls;
    pthread_mutex_unlock(&f->lock);
    return calls;
}

void store_fault_hold(struct store_fault *f, const char *what)
{
    pthread_mutex_lock(&f->lock);
    f->hold_what = what;
    f->hold = HOLD_NEXT;
    pthread_mutex_unlock(&f->lock);
}

bool store_fault_holds(struct store_fault *f)
{
    pthread_mutex_lock(&f->lock);
    bool holds = f->hold == HOLDS;
    pthread_mutex_unlock(&f->lock);
    return holds;
}

void store_fault_release(struct store_fault *f)
{
    pthread_mutex_lock(&f->lock);
    f->hold = HOLD_NOTHING;
    pthread_cond_broadcast(&f->held);
    pthread_mutex_unlock(&f->lock);
}

void store_fault_short(struct store_fault *f, bool on)
{
    pthread_mutex_lock(&f->lock);
    f->shorten = on;
    pthread_mutex_unlock(&f->lock);
}

void store_fault_no_bytes(struct store_fault *f)
{
    pthread_mutex_lock(&f->lock);
    f->no_bytes = true;
    pthread_mutex_unlock(&f->lock);
}

void store_fault_capacity(struct store_fault *f, uint64_t bytes)
{
    pthread_mutex_lock(&f->lock);
    f->capacity = bytes;
    pthread_mutex_unlock(&f->lock);
}

uint64_t store_fault_events(struct store_fault *f)
{
    pthread_mutex_lock(&f->lock);
    uint64_t n = f->n;
    pthread_mutex_unlock(&f->lock);
    return n;
}

/* --- after the cut -------------------------------------------------------------------------------------------------------- */

struct content {
    uint8_t *data;
    uint64_t bytes, cap;
};

struct disk {
    struct names names;
    struct content *files; /* by number */
};

static void folder_of(const char *name, char out[NAME_MAX_BYTES])
{
    const char *slash = strrchr(name, '/');
    snprintf(out, NAME_MAX_BYTES, "%.*s", slash ? (int)(slash - name) : 0, name);
}

/* Did a flush of what the event changed come before the cut? */
static bool flushed(const struct store_fault *f, size_t at, uint64_t prefix)
{
    const struct event *e = &f->events[at];
    char folder[NAME_MAX_BYTES] = "";
    if (e->name)
        folder_of(e->name, folder);
    for (size_t i = at + 1; i < prefix; i++) {
        const struct event *s = &f->events[i];
        if (s->type == SYNCFS || (s->type == DATASYNC && !e->name && s->file == e->file) ||
            (s->type == SYNCDIR && e->name && strcmp(s->name, folder) == 0))
            return true;
    }
    return false;
}

static void resize(struct content *c, uint64_t bytes)
{
    if (bytes > c->cap) { /* not to the byte: most files grow page by page */
        c->cap = bytes + c->cap;
        c->data = realloc(c->data, c->cap);
        if (!c->data)
            abort();
    }
    if (bytes > c->bytes)
        memset(c->data + c->bytes, 0, bytes - c->bytes);
    c->bytes = bytes;
}

static bool chance(uint64_t *rng, uint64_t seed)
{
    return seed == 1 || (seed > 1 && rng_next(rng) & 1);
}

/* Page by page, where it is not known to be on the disk. */
static void replay_write(struct content *c, const struct event *e, bool sure, uint64_t seed, uint64_t *rng)
{
    for (uint64_t at = 0, n; at < e->bytes; at += n) {
        n = MIN(4096 - (e->offset + at) % 4096, e->bytes - at);
        if (!sure && !chance(rng, seed))
            continue;
        uint64_t end = e->offset + at + n;
        if (end > c->bytes)
            resize(c, end);
        if (e->data)
            memcpy(c->data + e->offset + at, e->data + at, n);
        else
            memset(c->data + e->offset + at, 0, n);
    }
}

static void replay_event(struct disk *d, const struct event *e, bool sure, uint64_t seed, uint64_t *rng)
{
    if (e->type == WRITE) {
        replay_write(&d->files[e->file], e, sure, seed, rng);
        return;
    }
    if (!sure && !chance(rng, seed))
        return;
    if (e->type == TRUNCATE) {
        resize(&d->files[e->file], e->bytes);
    } else if (e->type == CREATE || e->type == MKDIR) {
        names_put(&d->names, e->name, e->file);
    } else if (e->type == UNLINK || e->type == RMDIR) {
        struct name *there = names_find(&d->names, e->name);
        if (there && there->file == e->file)
            names_remove(&d->names, e->name);
    } else if (e->type == RENAME) {
        struct name *there = names_find(&d->names, e->name);
        if (there && there->file == e->file)
            names_remove(&d->names, e->name);
        names_put(&d->names, e->to, e->file);
    }
}

static int by_text(const void *a, const void *b)
{
    return strcmp(((const struct name *)a)->text, ((const struct name *)b)->text);
}

/* Folders sort before what is in them; what lies in one that is not there is not there either. */
static int write_disk(struct disk *d, const char *dir)
{
    char path[NAME_MAX_BYTES + 300];
    if (d->names.n)
        qsort(d->names.v, d->names.n, sizeof(*d->names.v), by_text);
    for (size_t i = 0; i < d->names.n; i++) {
        const struct name *n = &d->names.v[i];
        snprintf(path, sizeof(path), "%s/%s", dir, n->text);
        if (n->file == 0) {
            mkdir(path, 0700);
            continue;
        }
        AUTO_CLOSE int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        if (fd < 0)
            continue;
        const struct content *c = &d->files[n->file];
        uint64_t bytes = c->bytes; /* without the zeros at its end */
        while (bytes >= 4 * KIB && all_zeros(c->data + bytes - 4 * KIB, 4 * KIB))
            bytes -= 4 * KIB;
        int rc = store_io_write(&store_io_real, fd, c->data, bytes, 0);
        if (rc == 0)
            rc = store_io_real.truncate(&store_io_real, fd, c->bytes);
        if (rc < 0)
            return rc;
    }
    return 0;
}

int store_fault_replay(struct store_fault *f, uint64_t prefix, uint64_t seed, const char *dir)
{
    if (f->no_bytes)
        return -EINVAL;
    struct disk d = {.files = calloc(f->files + 1, sizeof(struct content))};
    uint64_t rng = seed;
    if (!d.files)
        return -ENOMEM;
    for (size_t i = 0; i < prefix; i++)
        if (f->events[i].type < DATASYNC)
            replay_event(&d, &f->events[i], flushed(f, i, prefix), seed, &rng);
    int rc = write_disk(&d, dir);
    for (uint32_t i = 0; i <= f->files; i++)
        free(d.files[i].data);
    free(d.files);
    names_fini(&d.names);
    return rc;
}
