/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cp_put.c: files and objects to S3. A session uploads one object at a time, so several threads have one each
 * and take jobs from one queue.
 *
 * Failure modes: a failed object is reported and counted, the others continue. Ctrl-C aborts uploads in
 * parts, so that no invisible parts are left that cost money. S3 shows an object when all of it is there,
 * never a part.
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "apps/leat/remote.h"
#include "base/clock.h"
#include "base/cond.h"
#include "base/fdio.h"

#define THREADS     8u
#define QUEUE_MAX   256u
#define CONNECTIONS 4u /* of a session: an upload has four parts under way at most */
#define COPY_BYTES  (8 * MIB)

struct job {
    struct list node;
    char *path; /* of a file; NULL: an object */
    char *from, *to;
    uint64_t bytes;
    int64_t modified;
    char etag[BACKEND_ETAG_MAX];
    bool unreadable; /* the file */
};

struct cp_put {
    struct cp *cp;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct list jobs;
    unsigned njobs, nthreads, running; /* jobs waiting; threads; jobs that a thread has */
    bool ending;
    pthread_t threads[THREADS];
};

static void job_free(struct job *job)
{
    free(job->path);
    free(job->from);
    free(job->to);
    free(job);
}

/* Is what would be written there already? Size and time, or the same ETag. */
static bool is_there(struct cp *cp, struct backend *b, const struct job *job, uint64_t bytes,
                     int64_t modified)
{
    struct backend_stat there;
    if (!cp->update || backend_stat_object(b, job->to, &there, NULL) < 0 || there.bytes != bytes)
        return false;
    return (job->etag[0] && strcmp(job->etag, there.etag) == 0) ||
           (modified > 0 && there.modified >= modified);
}

static void copied(struct cp *cp, uint64_t bytes)
{
    pthread_mutex_lock(&cp->lock);
    cp->files++;
    cp->bytes += bytes;
    cp->bytes_done += bytes;
    pthread_mutex_unlock(&cp->lock);
}

static int put(struct cp *cp, struct backend *b, const struct job *job, int fd, uint64_t bytes,
               struct leat_error *err)
{
    int rc = backend_put(b, job->to, fd, 0, bytes, NULL, NULL, err);
    if (rc == 0)
        copied(cp, bytes);
    return rc;
}

static void skip(struct cp *cp, uint64_t bytes)
{
    pthread_mutex_lock(&cp->lock);
    cp->skipped++;
    cp->planned_files--;
    cp->planned_bytes -= MIN(bytes, cp->planned_bytes);
    pthread_mutex_unlock(&cp->lock);
}

static int put_file(struct cp *cp, struct backend *b, struct job *job, struct leat_error *err)
{
    struct stat st;
    AUTO_CLOSE int fd = open(job->path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    job->unreadable = fd < 0 || fstat(fd, &st) < 0;
    if (job->unreadable)
        return error_sys(err, -errno, "%s", job->path);
    if (!S_ISREG(st.st_mode))
        return error_set(err, LEAT_INVALID, "%s: not a file", job->path);
    if (is_there(cp, b, job, (uint64_t)st.st_size, st.st_mtime)) {
        skip(cp, (uint64_t)st.st_size);
        return 0;
    }
    return put(cp, b, job, fd, (uint64_t)st.st_size, err);
}

/* A file without a name. */
static int temporary(struct leat_error *err)
{
    const char *folder = getenv("TMPDIR");
    char path[4096];
    folder = folder && *folder ? folder : "/tmp";
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0 && snprintf(path, sizeof(path), "%s/leat-XXXXXX", folder) < (int)sizeof(path)) {
        fd = mkostemp(path, O_CLOEXEC);
        if (fd >= 0)
            unlink(path);
    }
    return fd < 0 ? error_sys(err, -errno, "a temporary file in %s (TMPDIR)", folder) : fd;
}

static int put_object(struct cp *cp, struct backend *b, const struct job *job, struct leat_error *err)
{
    struct backend_file *from = NULL;
    if (is_there(cp, b, job, job->bytes, job->modified)) {
        skip(cp, job->bytes);
        return 0;
    }
    /* By the server, from one of its buckets to another. Where it does not, or may not (it wants to read
     * tags as well), through here; also where it thinks that the object changed: Swift compares the ETag
     * of an object in parts with another one, and reading is conclusive. */
    int rc = backend_copy(b, job->from, job->etag, job->bytes, job->to, err);
    if (rc == 0)
        copied(cp, job->bytes);
    if (rc != LEAT_UNSUPPORTED && rc != LEAT_DENIED && rc != LEAT_STALE)
        return rc;
    AUTO_CLOSE int fd = temporary(err);
    AUTO_FREE char *buf = malloc(COPY_BYTES);
    rc = fd < 0 ? fd : buf ? backend_open(b, job->from, job->etag, job->bytes, &from, err) : -ENOMEM;
    if (rc == 0)
        backend_expect_all(from);
    for (uint64_t at = 0; rc == 0 && at < job->bytes;) {
        int64_t n = atomic_load(&cp->cancelled)
                        ? -ECANCELED
                        : backend_pread(b, from, buf, MIN(COPY_BYTES, job->bytes - at), at, err);
        int wrote = n > 0 ? fd_write_at(fd, buf, (uint64_t)n, at) : 0;
        if (wrote < 0)
            n = error_sys(err, wrote, "writing a temporary file");
        rc = n < 0 ? (int)n : n == 0 ? error_set(err, LEAT_STALE, "%.300s became shorter", job->from) : 0;
        at += n > 0 ? (uint64_t)n : 0;
    }
    backend_close(from);
    return rc < 0 ? rc : put(cp, b, job, fd, job->bytes, err);
}

static struct job *take(struct cp_put *p)
{
    pthread_mutex_lock(&p->lock);
    while (p->njobs == 0 && !p->ending)
        pthread_cond_wait(&p->changed, &p->lock);
    struct job *job = list_first(&p->jobs, struct job, node);
    if (job) {
        list_remove(&job->node);
        p->njobs--;
        p->running++;
        pthread_cond_broadcast(&p->changed);
    }
    pthread_mutex_unlock(&p->lock);
    return job;
}

static void *work(void *arg)
{
    struct cp_put *p = arg;
    struct cp *cp = p->cp;
    struct backend_config config = cp->config;
    struct backend *b = NULL;
    struct job *job;
    config.connections = CONNECTIONS;
    config.cancelled = &cp->cancelled;
    while ((job = take(p))) {
        struct leat_error err = {0};
        int rc = atomic_load(&cp->cancelled) ? -ECANCELED : b ? 0 : backend_new(&config, &b, &err);
        if (rc == 0)
            rc = job->path ? put_file(cp, b, job, &err) : put_object(cp, b, job, &err);
        if (rc < 0 && !atomic_load(&cp->cancelled))
            cp_failed(cp, rc, job->unreadable, &err);
        job_free(job);
        pthread_mutex_lock(&p->lock);
        p->running--;
        pthread_cond_broadcast(&p->changed);
        pthread_mutex_unlock(&p->lock);
    }
    backend_free(b);
    return NULL;
}

int cp_put_begin(struct cp *cp, struct cp_put **ret_put, struct leat_error *err)
{
    struct cp_put *p = calloc(1, sizeof(*p));
    struct backend *tried;
    if (!p)
        return -ENOMEM;
    p->cp = cp;
    list_init(&p->jobs);
    pthread_mutex_init(&p->lock, NULL);
    cond_init(&p->changed);
    int rc = backend_new(&cp->config, &tried, err); /* what is wrong with the settings is said once */
    if (rc == 0)
        backend_free(tried);
    for (; rc == 0 && p->nthreads < THREADS; p->nthreads++) {
        int code = pthread_create(&p->threads[p->nthreads], NULL, work, p);
        if (code) {
            rc = p->nthreads ? 0 : error_sys(err, -code, "threads");
            break;
        }
    }
    if (rc < 0) {
        cp_put_end(p);
        return rc;
    }
    *ret_put = p;
    return 0;
}

/* Until cond; the progress bar continues. The lock is held. */
static void wait_a_moment(struct cp_put *p)
{
    cond_wait_until(&p->changed, &p->lock, clock_now_ns() + 100 * NS_PER_MS);
    pthread_mutex_unlock(&p->lock);
    cp_progress(p->cp);
    pthread_mutex_lock(&p->lock);
}

static int add(struct cp_put *p, struct job *job)
{
    struct cp *cp = p->cp;
    pthread_mutex_lock(&cp->lock);
    cp->planned_files++;
    cp->planned_bytes += job->bytes;
    pthread_mutex_unlock(&cp->lock);
    pthread_mutex_lock(&p->lock);
    while (p->njobs >= QUEUE_MAX && !atomic_load(&cp->cancelled))
        wait_a_moment(p);
    list_push_back(&p->jobs, &job->node);
    p->njobs++;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    return atomic_load(&cp->cancelled) ? -ECANCELED : 0;
}

int cp_put_file(struct cp_put *p, const char *path, const char *uri)
{
    struct job *job = calloc(1, sizeof(*job));
    struct stat st;
    if (!job)
        return -ENOMEM;
    list_init(&job->node);
    job->path = strdup(path);
    job->to = strdup(uri);
    job->bytes = stat(path, &st) == 0 ? (uint64_t)st.st_size : 0;
    if (!job->path || !job->to) {
        job_free(job);
        return -ENOMEM;
    }
    return add(p, job);
}

int cp_put_object(struct cp_put *p, const struct backend_object *o, const char *uri)
{
    struct job *job = calloc(1, sizeof(*job));
    if (!job)
        return -ENOMEM;
    list_init(&job->node);
    job->from = strdup(o->uri);
    job->to = strdup(uri);
    job->bytes = o->bytes;
    job->modified = o->modified;
    snprintf(job->etag, sizeof(job->etag), "%s", o->etag);
    if (!job->from || !job->to) {
        job_free(job);
        return -ENOMEM;
    }
    return add(p, job);
}

void cp_put_end(struct cp_put *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    while (p->nthreads && (p->njobs || p->running))
        wait_a_moment(p);
    p->ending = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    for (unsigned i = 0; i < p->nthreads; i++)
        pthread_join(p->threads[i], NULL);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    free(p);
}
