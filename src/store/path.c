/* SPDX-License-Identifier: Apache-2.0 */
/*
 * path.c: the folders of a store: their identity, and their locks against other processes.
 *
 *     PATH/lock                flock: one process
 *     PATH/leat-store          text: number of the store, of this path, its weight, and all members with the folders they were last seen in
 *     PATH/buckets/NAME        a bucket's properties, the same on each path
 *     PATH/index/              log.N, snapshot.N
 *     PATH/objects/DIR/FILE    objects; names are numbers
 *     PATH/scrub               how far the scrub is
 *     PATH/damaged/            files that a rebuild could not identify
 *     PATH/orphans/            whole objects that no record of the log names
 *
 * Happy path: lock, read leat-store, hold its numbers against those of the other paths, load the index.
 * Failure modes: an empty folder where a member was seen before is a disk that is not mounted: left, not made again. A path that gives an
 * I/O error is left. Another store's path is refused.
 * Invariants: a member path that is not given counts as failed: its objects are neither found nor not found.
 */
#include "base/hex.h"
#include "store/internal.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <openssl/rand.h>

#include "base/crc32c.h"
#include "base/log.h"

#define IDENTITY_MAX (64 * KIB)

struct identity {
    uint8_t store[16], path[16];
    uint64_t weight_mib; /* of this path; 0: from before there were weights */
    unsigned n;
    struct {
        uint8_t id[16];
        char dir[PATH_NAME_MAX];
    } members[STORE_PATHS_MAX];
};

void store_path_file_name(const struct path *p, uint64_t file, char out[PATH_FILE_MAX])
{
    snprintf(out, PATH_FILE_MAX, "%s/objects/%06llx/%012llx", p->dir,
             (unsigned long long)(file / FILES_PER_DIR), (unsigned long long)file);
}

void store_path_fail(struct path *p, const char *why)
{
    pthread_mutex_lock(&p->fail_lock);
    bool first = !atomic_load(&p->failed);
    if (first) {
        snprintf(p->error, sizeof(p->error), "%s", why);
        atomic_store(&p->failed, true);
    }
    pthread_mutex_unlock(&p->fail_lock);
    if (first)
        log_error("%s: left: %s; objects on it are unavailable until it is repaired and the daemon is "
                  "started again",
                  p->dir, why);
}

int store_path_error(struct path *p, int rc, const char *what, struct leat_error *err)
{
    if (rc == -ENOSPC || rc == -EDQUOT)
        return error_set(err, LEAT_NO_SPACE, "%s: %s: the disk is full", p->dir, what);
    if (rc == -ENOMEM || rc == -EMFILE || rc == -ENFILE)
        return error_sys(err, rc, "%s: %s", p->dir, what);
    atomic_fetch_add(&p->errors, 1);
    char why[160];
    snprintf(why, sizeof(why), "%s: %s", what, strerror(-rc));
    store_path_fail(p, why);
    return error_set(err, STORE_UNAVAILABLE, "%s: %s", p->dir, why);
}

int store_path_unreadable(struct path *p, uint64_t file, int rc, const char *text, struct leat_error *err)
{
    if (rc == -ENOMEM || rc == -EMFILE || rc == -ENFILE)
        return error_sys(err, rc, "%s: %s cannot be opened", p->dir, text);
    atomic_fetch_add(&p->errors, 1);
    pthread_mutex_lock(&p->fail_lock);
    unsigned n = atomic_load(&p->nunreadable), i = 0;
    while (i < n && p->unreadable[i] != file)
        i++;
    bool first = i == n && n < UNREADABLE_MAX;
    if (first) {
        p->unreadable[n] = file;
        atomic_store(&p->nunreadable, ++n);
    }
    pthread_mutex_unlock(&p->fail_lock);
    if (first)
        log_error("%s: %s cannot be read (file %012llx): %s", p->dir, text, (unsigned long long)file,
                  strerror(-rc));
    if (n == UNREADABLE_MAX) {
        char why[160];
        snprintf(why, sizeof(why), "%u objects in a row cannot be read: %s", n, strerror(-rc));
        store_path_fail(p, why);
    }
    return error_set(err, STORE_UNAVAILABLE,
                     "%s: %s cannot be read: %s; repair the disk, or store the object again", p->dir, text,
                     strerror(-rc));
}

void store_path_readable(struct path *p)
{
    if (atomic_load_explicit(&p->nunreadable, memory_order_relaxed) == 0)
        return;
    pthread_mutex_lock(&p->fail_lock);
    atomic_store(&p->nunreadable, 0);
    pthread_mutex_unlock(&p->fail_lock);
}

/* --- identity ----------------------------------------------------------------------------------------------------------- */

static int identity_write(struct path *p, const struct identity *id)
{
    AUTO_FREE char *text = malloc(IDENTITY_MAX);
    if (!text)
        return -ENOMEM;
    char a[33], b[33];
    hex_put(a, id->store, 16);
    hex_put(b, id->path, 16);
    int n = snprintf(text, IDENTITY_MAX, "leat-store 1\nstore %s\npath %s\n", a, b);
    if (id->weight_mib)
        n +=
            snprintf(text + n, IDENTITY_MAX - (size_t)n, "weight %llu\n", (unsigned long long)id->weight_mib);
    for (unsigned i = 0; i < id->n; i++) {
        hex_put(a, id->members[i].id, 16);
        n += snprintf(text + n, IDENTITY_MAX - (size_t)n, "member %s %s\n", a, id->members[i].dir);
    }
    n += snprintf(text + n, IDENTITY_MAX - (size_t)n, "crc %08x\n", crc32c(0, text, (size_t)n));
    return store_io_replace(p->store->io, p->dir, "leat-store", text, (size_t)n, NULL);
}

/* `text` has a NUL behind it. */
static int identity_parse(char *text, struct identity *ret)
{
    char *crc = strstr(text, "\ncrc ");
    unsigned sum;
    if (!crc || sscanf(crc, "\ncrc %8x", &sum) != 1 || sum != crc32c(0, text, (size_t)(crc + 1 - text)) ||
        strncmp(text, "leat-store 1\n", 13) != 0)
        return LEAT_CORRUPT;
    *crc = 0;
    struct identity id = {0};
    char *save = NULL;
    bool store = false, path = false;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        if (strncmp(line, "store ", 6) == 0)
            store = hex_get(line + 6, 16, id.store);
        else if (strncmp(line, "path ", 5) == 0)
            path = hex_get(line + 5, 16, id.path);
        else if (strncmp(line, "weight ", 7) == 0)
            id.weight_mib = strtoull(line + 7, NULL, 10);
        else if (strncmp(line, "member ", 7) == 0 && strlen(line) > 40 && id.n < STORE_PATHS_MAX &&
                 hex_get(line + 7, 16, id.members[id.n].id))
            snprintf(id.members[id.n++].dir, PATH_NAME_MAX, "%s", line + 40);
    }
    *ret = id;
    return store && path ? 0 : LEAT_CORRUPT;
}

/* -ENOENT: the folder has none. */
static int identity_read(struct path *p, struct identity *ret)
{
    char name[PATH_FILE_MAX];
    snprintf(name, sizeof(name), "%s/leat-store", p->dir);
    const struct store_io *io = p->store->io;
    int fd = io->open(io, name, O_RDONLY, 0);
    if (fd < 0)
        return fd;
    AUTO_FREE char *text = calloc(1, IDENTITY_MAX + 1);
    int rc = text ? store_io_read(io, fd, text, IDENTITY_MAX, 0) : -ENOMEM;
    io->close(io, fd);
    if (rc < 0 && rc != -ENODATA)
        return rc;
    return identity_parse(text, ret);
}

/* --- opening ------------------------------------------------------------------------------------------------------------ */

static int path_new(struct store *s, const char *dir, struct path **ret, struct leat_error *err)
{
    if (!*dir || strlen(dir) >= PATH_NAME_MAX || strchr(dir, '\n'))
        return error_set(err, LEAT_INVALID, "'%s' cannot be a path of a store: 1 to %u bytes, no new lines",
                         dir, PATH_NAME_MAX - 1);
    struct path *p = calloc(1, sizeof(*p));
    if (!p)
        return error_set(err, -ENOMEM, "no memory for a path");
    p->store = s;
    p->lock_fd = p->log.fd = -1;
    p->next_file = 1;
    snprintf(p->dir, sizeof(p->dir), "%s", dir);
    if (store_index_init(&p->index) < 0) {
        free(p);
        return error_set(err, -ENOMEM, "no memory for an index");
    }
    pthread_rwlockattr_t attr;
    pthread_rwlockattr_init(&attr);
    pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&p->commits, &attr);
    pthread_rwlockattr_destroy(&attr);
    pthread_mutex_init(&p->fail_lock, NULL);
    pthread_mutex_init(&p->files_lock, NULL);
    pthread_mutex_init(&p->log.lock, NULL);
    pthread_mutex_init(&p->log.sync_lock, NULL);
    pthread_cond_init(&p->log.synced_cond, NULL);
    *ret = p;
    return 0;
}

void store_path_close(struct path *p)
{
    if (!p)
        return;
    const struct store_io *io = p->store->io;
    store_files_close(p);
    store_log_close(p);
    if (p->lock_fd >= 0)
        io->close(io, p->lock_fd);
    store_index_fini(&p->index);
    free(p->frozen_outstanding);
    pthread_rwlock_destroy(&p->commits);
    pthread_mutex_destroy(&p->fail_lock);
    pthread_mutex_destroy(&p->files_lock);
    pthread_mutex_destroy(&p->log.lock);
    pthread_mutex_destroy(&p->log.sync_lock);
    pthread_cond_destroy(&p->log.synced_cond);
    free(p);
}

static const char *const folders[] = {"buckets", "index", "objects", "damaged", "orphans"};

/* 1: nothing in it, or only what a first start that was cut short has left; 0: something; or -errno. */
static int folder_is_empty(const char *dir, bool ours)
{
    DIR *d = opendir(dir);
    if (!d)
        return -errno;
    int empty = 1;
    for (struct dirent *e; empty == 1 && (e = readdir(d));) {
        const char *name = e->d_name;
        bool folder = false;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
            continue;
        for (unsigned i = 0; ours && i < ARRAY_LEN(folders); i++)
            folder |= strcmp(name, folders[i]) == 0;
        if (folder) {
            char sub[PATH_FILE_MAX];
            snprintf(sub, sizeof(sub), "%s/%s", dir, name);
            empty = folder_is_empty(sub, false);
        } else {
            empty = ours && (strcmp(name, "lock") == 0 || strcmp(name, "lost+found") == 0 ||
                             strncmp(name, "leat-store#", 11) == 0);
        }
    }
    closedir(d);
    return empty;
}

static int lock_path(struct path *p, struct leat_error *err)
{
    const struct store_io *io = p->store->io;
    char name[PATH_FILE_MAX];
    snprintf(name, sizeof(name), "%s/lock", p->dir);
    p->lock_fd = io->open(io, name, O_RDWR | O_CREAT, 0600);
    if (p->lock_fd < 0)
        return p->lock_fd;
    if (flock(p->lock_fd, LOCK_EX | LOCK_NB) == 0)
        return 0;
    if (errno != EWOULDBLOCK)
        return -errno;
    return error_set(err, LEAT_BUSY, "%s is in use by another process: a path belongs to one leatd at a time",
                     p->dir);
}

static int make_folders(struct path *p)
{
    const struct store_io *io = p->store->io;
    char name[PATH_FILE_MAX];
    for (unsigned i = 0; i < ARRAY_LEN(folders); i++) {
        snprintf(name, sizeof(name), "%s/%s", p->dir, folders[i]);
        int rc = io->mkdir(io, name, 0700);
        if (rc < 0 && rc != -EEXIST)
            return rc;
    }
    return io->syncdir(io, p->dir);
}

static uint64_t device_of(const char *dir)
{
    struct stat st;
    return stat(dir, &st) == 0 ? (uint64_t)st.st_dev : 0;
}

/* 0 and ret_fresh, or an error that ends store_new; a path that cannot be read is left instead, and that is 0 as well. */
static int open_one(struct path *p, struct identity *ret_id, bool *ret_fresh, struct leat_error *err)
{
    const struct store_io *io = p->store->io;
    int rc = io->mkdir(io, p->dir, 0700);
    *ret_fresh = false;
    if (rc == 0) {
        char parent[PATH_NAME_MAX + 4]; /* a name that ends with a slash has one more to go up */
        snprintf(parent, sizeof(parent), "%s/..", p->dir);
        rc = io->syncdir(io, parent);
    }
    if (rc == 0 || rc == -EEXIST)
        rc = lock_path(p, err);
    if (rc == LEAT_BUSY)
        return rc;
    if (rc == 0)
        rc = identity_read(p, ret_id);
    if (rc == -ENOENT && p->lock_fd >= 0) {
        rc = folder_is_empty(p->dir, true);
        if (rc == 0)
            return error_set(err, LEAT_INVALID, "%s is not empty, and holds no store: give an empty folder",
                             p->dir);
        *ret_fresh = rc > 0;
        rc = MIN(rc, 0);
    }
    if (rc == LEAT_CORRUPT)
        return error_set(err, LEAT_INVALID,
                         "%s/leat-store is damaged: copy it from a backup, or take the path away", p->dir);
    if (rc == -ENOMEM)
        return error_set(err, rc, "no memory to open %s", p->dir);
    p->device = device_of(p->dir);
    if (rc < 0) {
        char why[160];
        snprintf(why, sizeof(why), "it cannot be opened: %s", strerror(-rc));
        store_path_fail(p, why);
    }
    return 0;
}

struct opening {
    struct identity id; /* all members known */
    bool known;
    bool fresh[STORE_PATHS_MAX];
};

static int member_index(const struct identity *id, const uint8_t path_id[16])
{
    for (unsigned i = 0; i < id->n; i++)
        if (memcmp(id->members[i].id, path_id, 16) == 0)
            return (int)i;
    return -1;
}

static int merge_identity(struct store *s, struct opening *o, struct path *p, const struct identity *id,
                          struct leat_error *err)
{
    if (!o->known) {
        memcpy(o->id.store, id->store, 16);
        o->known = true;
    } else if (memcmp(o->id.store, id->store, 16) != 0) {
        return error_set(err, LEAT_INVALID,
                         "%s belongs to another store than %s: paths of two stores cannot be mixed", p->dir,
                         s->paths[0]->dir);
    }
    memcpy(p->id, id->path, 16);
    p->weight_mib = id->weight_mib;
    for (unsigned i = 0; i < p->number; i++)
        if (memcmp(s->paths[i]->id, p->id, 16) == 0)
            return error_set(err, LEAT_INVALID, "%s is a copy of %s, or the same folder", p->dir,
                             s->paths[i]->dir);
    for (unsigned i = 0; i < id->n; i++)
        if (member_index(&o->id, id->members[i].id) < 0 && o->id.n < STORE_PATHS_MAX)
            o->id.members[o->id.n++] = id->members[i];
    return 0;
}

/* A path that joins, unless a member was seen in this folder before: then its disk is not there. */
static void join(struct opening *o, struct path *p)
{
    for (unsigned i = 0; i < o->id.n; i++)
        if (strcmp(o->id.members[i].dir, p->dir) == 0) {
            memcpy(p->id, o->id.members[i].id, 16);
            store_path_fail(p, "the folder is empty, but the store has a path there: is its disk mounted?");
            return;
        }
    RAND_bytes(p->id, sizeof(p->id));
}

/* Members that were not given: kept as failed, unless they are to be forgotten. */
static int absent_members(struct store *s, struct opening *o, bool forget, struct leat_error *err)
{
    for (unsigned i = 0; i < o->id.n;) {
        bool given = false;
        for (unsigned k = 0; k < s->npaths; k++)
            given |=
                memcmp(s->paths[k]->id, o->id.members[i].id, 16) == 0 ||
                (atomic_load(&s->paths[k]->failed) && strcmp(s->paths[k]->dir, o->id.members[i].dir) == 0);
        if (!given && forget) {
            o->id.members[i] = o->id.members[--o->id.n];
            continue;
        }
        if (!given && s->npaths < STORE_PATHS_MAX) {
            struct path *p;
            int rc = path_new(s, o->id.members[i].dir, &p, err);
            if (rc < 0)
                return rc;
            p->number = s->npaths;
            s->paths[s->npaths++] = p;
            memcpy(p->id, o->id.members[i].id, 16);
            store_path_fail(
                p,
                "it belongs to the store, but was not given: give it, or have it forgotten (forget_missing)");
        }
        i++;
    }
    return 0;
}

/* What a path may hold, when it joins: its file system, shared with the paths there, or the store's limit for each path. From then on it stays. */
static void weigh(struct store *s, struct path *p)
{
    uint64_t free_bytes, total;
    unsigned sharing = 0;
    for (unsigned i = 0; i < s->npaths; i++)
        sharing += s->paths[i] == p || (p->device && s->paths[i]->device == p->device);
    if (p->weight_mib || s->io->space(s->io, p->dir, &free_bytes, &total) < 0)
        return;
    total /= sharing;
    if (s->capacity_bytes)
        total = MIN(total, s->capacity_bytes);
    p->weight_mib = MAX(total / MIB, 1u);
}

static int write_identities(struct store *s, struct opening *o)
{
    for (unsigned i = 0; i < s->npaths; i++) {
        struct path *p = s->paths[i];
        int at = member_index(&o->id, p->id);
        if (atomic_load(&p->failed))
            continue;
        if (at < 0 && o->id.n < STORE_PATHS_MAX)
            at = (int)o->id.n++;
        if (at >= 0) {
            memcpy(o->id.members[at].id, p->id, 16);
            snprintf(o->id.members[at].dir, PATH_NAME_MAX, "%s", p->dir);
        }
    }
    for (unsigned i = 0; i < s->npaths; i++) {
        struct path *p = s->paths[i];
        struct identity id = o->id;
        if (atomic_load(&p->failed))
            continue;
        memcpy(id.path, p->id, 16);
        weigh(s, p);
        id.weight_mib = p->weight_mib;
        int rc = make_folders(p);
        struct identity *now = malloc(sizeof(*now));
        if (!now)
            return -ENOMEM;
        if (rc == 0 && (identity_read(p, now) < 0 || memcmp(now, &id, sizeof(id)) != 0))
            rc = identity_write(p, &id);
        free(now);
        if (rc == -ENOMEM)
            return rc;
        if (rc < 0)
            store_path_fail(p, strerror(-rc));
    }
    return 0;
}

static int load_all(struct store *s, struct leat_error *err)
{
    unsigned good = 0;
    for (unsigned i = 0; i < s->npaths; i++) {
        struct path *p = s->paths[i];
        if (atomic_load(&p->failed))
            continue;
        struct leat_error why = {0};
        int rc = store_path_load(p, &why);
        if (rc == -ENOMEM)
            return error_set(err, rc, "%s", why.message);
        if (rc < 0)
            store_path_fail(p, why.message);
        else
            good++;
    }
    if (good > 0)
        return 0;
    return error_set(err, STORE_UNAVAILABLE, "%s: %s (no path of the store can be used)", s->paths[0]->dir,
                     s->paths[0]->error);
}

int store_paths_open(struct store *s, const struct store_config *config, struct leat_error *err)
{
    if (config->npaths == 0 || config->npaths > STORE_PATHS_MAX)
        return error_set(err, LEAT_INVALID, "a store has 1 to %u paths; %u were given", STORE_PATHS_MAX,
                         config->npaths);
    AUTO_FREE struct opening *o = calloc(1, sizeof(*o));
    AUTO_FREE struct identity *id = malloc(sizeof(*id));
    s->paths = calloc(STORE_PATHS_MAX, sizeof(struct path *));
    if (!s->paths || !o || !id)
        return error_set(err, -ENOMEM, "no memory for the paths of a store");
    for (unsigned i = 0; i < config->npaths; i++) {
        int rc = path_new(s, config->paths[i], &s->paths[i], err);
        if (rc < 0)
            return rc;
        s->paths[i]->number = i;
        s->npaths = i + 1;
        rc = open_one(s->paths[i], id, &o->fresh[i], err);
        if (rc == 0 && !o->fresh[i] && !atomic_load(&s->paths[i]->failed))
            rc = merge_identity(s, o, s->paths[i], id, err);
        if (rc < 0)
            return rc;
    }
    if (!o->known)
        RAND_bytes(o->id.store, sizeof(o->id.store));
    memcpy(s->id, o->id.store, 16);
    for (unsigned i = 0; i < config->npaths; i++)
        if (o->fresh[i])
            join(o, s->paths[i]);
    int rc = absent_members(s, o, config->forget_missing, err);
    if (rc < 0)
        return rc;
    rc = write_identities(s, o);
    if (rc < 0)
        return error_set(err, rc, "no memory for the paths of a store");
    return load_all(s, err);
}
