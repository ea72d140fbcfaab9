/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files.c: new files, with names that are on the disk before anything is written to them.
 *
 * Happy path: 64 empty files are made, their folder is flushed once, and each PUT takes one. So a PUT waits for its data and for the log,
 * never for a folder. The numbers were announced in the log: what a crash leaves unused is found by them and unlinked.
 * Failure modes: no room, a dead disk: the error of store_path_error; files made until then stay outstanding
 * until the next start.
 * Invariants: a number that was made is spare, busy, or in the index; none is given out twice.
 */
#include "store/internal.h"

#include <fcntl.h>

static int busy_room(struct path *p)
{
    if (p->nbusy + FILES_AT_A_TIME < p->busy_cap)
        return 0;
    size_t cap = p->busy_cap * 2 + 2 * FILES_AT_A_TIME;
    uint64_t *busy = realloc(p->busy, cap * sizeof(*busy));
    if (!busy)
        return -ENOMEM;
    p->busy = busy;
    p->busy_cap = cap;
    return 0;
}

static int make_folder(struct path *p, const char *dir)
{
    const struct store_io *io = p->store->io;
    int rc = io->mkdir(io, dir, 0700);
    if (rc < 0 && rc != -EEXIST)
        return rc;
    if (rc == -EEXIST &&
        p->folder_synced) /* by this process: one before may have been killed before the flush */
        return 0;
    char objects[PATH_FILE_MAX];
    snprintf(objects, sizeof(objects), "%s/objects", p->dir);
    rc = io->syncdir(io, objects);
    p->folder_synced = rc == 0;
    return rc;
}

/* Makes spare files. files_lock and commits (shared) are held. */
static int refill(struct path *p, struct leat_error *err)
{
    const struct store_io *io = p->store->io;
    if (busy_room(p) < 0)
        return error_set(err, -ENOMEM, "no memory for a list of files");
    uint64_t first = p->next_file, end;
    unsigned n = (unsigned)MIN((uint64_t)FILES_AT_A_TIME, FILES_PER_DIR - first % FILES_PER_DIR);
    char dir[PATH_FILE_MAX], name[PATH_FILE_MAX];
    snprintf(dir, sizeof(dir), "%s/objects/%06llx", p->dir, (unsigned long long)(first / FILES_PER_DIR));
    struct log_record r = {.type = LOG_ALLOCATE, .value = {.file = first, .bytes = n}};
    int rc = store_log_append(p, &r, &end, err);
    if (rc < 0)
        return rc;
    p->next_file += n;
    if (first % FILES_PER_DIR == 0)
        p->folder_synced = false;
    rc = make_folder(p, dir);
    for (unsigned i = 0; rc >= 0 && i < n; i++) {
        store_path_file_name(p, first + i, name);
        int fd = io->open(io, name, O_RDWR | O_CREAT | O_TRUNC, FILE_MODE);
        rc = fd < 0 ? fd : 0;
        if (fd >= 0)
            p->spare[p->nspare++] = (struct spare_file){first + i, fd};
    }
    if (rc >= 0)
        rc = io->syncdir(io, dir);
    if (rc >= 0)
        return 0;
    while (p->nspare > 0) { /* their names may not be on the disk */
        struct spare_file *f = &p->spare[--p->nspare];
        io->close(io, f->fd);
        store_path_file_name(p, f->id, name);
        io->unlink(io, name);
    }
    return store_path_error(p, rc, "a file cannot be made", err);
}

int store_file_take(struct path *p, struct spare_file *ret_file, struct leat_error *err)
{
    int rc = 0;
    pthread_rwlock_rdlock(&p->commits);
    pthread_mutex_lock(&p->files_lock);
    if (p->nspare == 0)
        rc = refill(p, err);
    if (rc == 0 && busy_room(p) < 0)
        rc = error_set(err, -ENOMEM, "no memory for a list of files");
    if (rc == 0) {
        *ret_file = p->spare[--p->nspare];
        p->busy[p->nbusy++] = ret_file->id;
    }
    pthread_mutex_unlock(&p->files_lock);
    pthread_rwlock_unlock(&p->commits);
    return rc;
}

void store_file_settled(struct path *p, uint64_t id)
{
    pthread_mutex_lock(&p->files_lock);
    for (size_t i = p->nbusy; i-- > 0;)
        if (p->busy[i] == id) {
            p->busy[i] = p->busy[--p->nbusy];
            break;
        }
    pthread_mutex_unlock(&p->files_lock);
}

/* On a path that was left it is unknown whether a record of it is on the disk: the next start finds that out, and unlinks it if not. */
void store_file_drop(struct path *p, uint64_t id)
{
    char name[PATH_FILE_MAX];
    store_path_file_name(p, id, name);
    if (!atomic_load(&p->failed))
        p->store->io->unlink(p->store->io, name);
    store_file_settled(p, id);
}

/* commits is held alone. */
int store_files_outstanding(struct path *p, uint64_t **ret_ids, uint64_t *ret_n)
{
    pthread_mutex_lock(&p->files_lock);
    uint64_t n = p->nspare + p->nbusy;
    uint64_t *ids = malloc(MAX(n, 1u) * sizeof(*ids));
    if (ids) {
        for (unsigned i = 0; i < p->nspare; i++)
            ids[i] = p->spare[i].id;
        if (p->nbusy)
            memcpy(ids + p->nspare, p->busy, p->nbusy * sizeof(*ids));
    }
    pthread_mutex_unlock(&p->files_lock);
    if (!ids)
        return -ENOMEM;
    *ret_ids = ids;
    *ret_n = n;
    return 0;
}

void store_files_close(struct path *p)
{
    char name[PATH_FILE_MAX];
    for (; p->nspare > 0; p->nspare--) {
        p->store->io->close(p->store->io, p->spare[p->nspare - 1].fd);
        if (!atomic_load(&p->failed)) {
            store_path_file_name(p, p->spare[p->nspare - 1].id, name);
            p->store->io->unlink(p->store->io, name);
        }
    }
    free(p->busy);
    p->busy = NULL;
}
