/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bucket.c: buckets and their properties: few, all in memory; each two small files of the same content on every path, NAME and NAME#copy.
 *
 *     | magic: 8 | version of the format u32 | id, flags u32 | created, version u64 | deleted u8 | name | props | CRC32C |
 *
 * Happy path: a change is written to all paths (another name, flush, rename), then seen. At start the highest
 * version of each counts.
 * Failure modes: a path that is not there misses a change, and learns it when it is back; so a deletion
 * leaves a mark while a path is away. A refused change that has its name on some path would be in force after
 * the next start. So the state in force is written over it, and nothing is stored before. A damaged copy is
 * written again from another one. Where all are damaged, the bucket is neither there nor not there:
 * STORE_BUCKET_DAMAGED, until store_bucket_restore makes it again, with the id that its objects have.
 * Invariants: ids are never used twice, also not after a deletion: they follow the clock, and are above those of descriptions and of the index.
 */
#include "store/internal.h"

#include <dirent.h>
#include <fcntl.h>

#include "base/crc32c.h"
#include "base/log.h"

static const char bucket_magic[8] = "leatbkt1";

bool store_bucket_name_ok(const char *name)
{
    size_t n = strlen(name);
    if (n < 3 || n > STORE_BUCKET_MAX || name[0] == '-' || name[0] == '.' || name[n - 1] == '-' ||
        name[n - 1] == '.')
        return false;
    return strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789.-") == n && !strstr(name, "..");
}

void store_bucket_fini(struct store_bucket *b)
{
    free(b->props);
    b->props = NULL;
}

int store_bucket_check_key(const void *key, size_t key_len, struct leat_error *err)
{
    if (key_len >= 1 && key_len <= STORE_KEY_MAX)
        return 0;
    return error_set(err, LEAT_INVALID, "a key has 1 to %u bytes; this one has %zu", STORE_KEY_MAX, key_len);
}

/* Index of the first that is not below; buckets_lock is held. */
static unsigned position(struct store *s, const char *name)
{
    unsigned low = 0, high = s->nbuckets;
    while (low < high) {
        unsigned mid = (low + high) / 2;
        if (strcmp(s->buckets[mid]->b.name, name) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static struct bucket *lookup(struct store *s, const char *name)
{
    unsigned at = position(s, name);
    return at < s->nbuckets && strcmp(s->buckets[at]->b.name, name) == 0 ? s->buckets[at] : NULL;
}

static bool is_damaged(struct store *s, const char *name)
{
    bool damaged = false;
    pthread_mutex_lock(&s->buckets_lock);
    for (unsigned i = 0; i < s->ndamaged; i++)
        damaged |= strcmp(s->damaged[i], name) == 0;
    pthread_mutex_unlock(&s->buckets_lock);
    return damaged;
}

static int damaged_bucket(struct store *s, const char *name, struct leat_error *err)
{
    return error_set(
        err, STORE_BUCKET_DAMAGED,
        "all copies of the description of bucket '%.63s' are damaged (%s/buckets/%.63s): restore one "
        "from a backup and start again, or have an administrator create the bucket again, which "
        "keeps its objects",
        name, s->paths[0]->dir, name);
}

static int no_bucket(struct store *s, const char *name, struct leat_error *err)
{
    if (is_damaged(s, name))
        return damaged_bucket(s, name, err);
    return error_set(err, STORE_NO_BUCKET, "there is no bucket '%.63s'", name);
}

/* --- on the disk ---------------------------------------------------------------------------------------------------------- */

static int encode(const struct store_bucket *b, bool deleted, struct bytes_out *out)
{
    bytes_put(out, bucket_magic, sizeof(bucket_magic));
    bytes_put_u32(out, 1);
    bytes_put_u32(out, b->id);
    bytes_put_u32(out, b->flags);
    bytes_put_u64(out, (uint64_t)b->created_ns);
    bytes_put_u64(out, b->version);
    bytes_put_u8(out, deleted);
    bytes_put_str(out, b->name);
    bytes_put_str(out, b->props);
    if (!out->failed)
        bytes_put_u32(out, crc32c(0, out->data, out->len));
    return out->failed ? -ENOMEM : 0;
}

int store_bucket_parse(const void *data, size_t len, struct store_bucket *ret, bool *ret_deleted)
{
    struct bytes_in in = bytes_in_of(data, len);
    const void *magic = bytes_get(&in, sizeof(bucket_magic));
    if (len < 12 || !magic || memcmp(magic, bucket_magic, sizeof(bucket_magic)) != 0 ||
        bytes_get_u32(&in) != 1)
        return LEAT_CORRUPT;
    uint32_t crc;
    memcpy(&crc, (const uint8_t *)data + len - 4, 4);
    if (crc != crc32c(0, data, len - 4))
        return LEAT_CORRUPT;
    struct store_bucket b = {.id = bytes_get_u32(&in), .flags = bytes_get_u32(&in)};
    b.created_ns = (int64_t)bytes_get_u64(&in);
    b.version = bytes_get_u64(&in);
    b.remote_id = 1;
    *ret_deleted = bytes_get_u8(&in);
    char name[STORE_BUCKET_MAX + 1];
    uint32_t name_len = bytes_get_u32(&in);
    const char *text = bytes_get(&in, name_len);
    if (!text || name_len > STORE_BUCKET_MAX)
        return LEAT_CORRUPT;
    snprintf(name, sizeof(name), "%.*s", (int)name_len, text);
    uint32_t props_len = bytes_get_u32(&in);
    const char *props = bytes_get(&in, props_len);
    bytes_get_u32(&in);
    if (bytes_in_done(&in) < 0 || strlen(name) != name_len || !store_bucket_name_ok(name) ||
        props_len > STORE_PROPS_MAX || memchr(props, 0, props_len))
        return LEAT_CORRUPT;
    b.props = strndup(props, props_len); /* lack of memory is no damage: the bucket is there */
    if (!b.props)
        return -ENOMEM;
    b.props_len = props_len;
    memcpy(b.name, name, name_len + 1);
    *ret = b;
    return 0;
}

/* Names of buckets have no #, so one that is under way or a copy is never taken for another bucket. */
#define COPIES        2u
#define COPY_SUFFIX   "#copy"
#define COPY_NAME_MAX (STORE_BUCKET_MAX + sizeof(COPY_SUFFIX))
static void copy_name(const char *bucket, unsigned copy, char out[COPY_NAME_MAX])
{
    snprintf(out, COPY_NAME_MAX, "%.*s%s", (int)STORE_BUCKET_MAX, bucket, copy ? COPY_SUFFIX : "");
}

/* Both copies on one path. *ret_named: the next start may read it. */
static int write_one(struct store *s, struct path *p, const char *name, const struct bytes_out *out,
                     bool *ret_named, struct leat_error *err)
{
    char dir[PATH_FILE_MAX], file[COPY_NAME_MAX];
    int rc = 0;
    *ret_named = false;
    snprintf(dir, sizeof(dir), "%s/buckets", p->dir);
    for (unsigned copy = 0; rc == 0 && copy < COPIES; copy++) {
        bool named;
        copy_name(name, copy, file);
        rc = store_io_replace(s->io, dir, file, out->data, out->len, &named);
        *ret_named |= named;
    }
    return rc == 0 ? 0 : store_path_error(p, rc, "a bucket cannot be written", err);
}

/* Bits of paths: those that have it durably; those that may have it, as far as the next start can tell. */
struct written {
    uint64_t good, taken;
};

/* Writes to all paths that are in order; a failing one is left. At least one must have it. `over`: replaces a
 * refused change, so that lack of room on one path is no reason to skip the others. */
static int write_all(struct store *s, const struct store_bucket *b, bool deleted, bool over,
                     struct written *ret, struct leat_error *err)
{
    struct bytes_out out = {0};
    int rc = encode(b, deleted, &out);
    int last = STORE_UNAVAILABLE;
    *ret = (struct written){0};
    for (unsigned i = 0; rc == 0 && i < s->npaths; i++) {
        struct path *p = s->paths[i];
        if (atomic_load(&p->failed))
            continue;
        bool named;
        int now = write_one(s, p, b->name, &out, &named, err);
        ret->good |= now == 0 ? 1ull << i : 0;
        if (named || atomic_load(&p->failed)) /* a path that failed just now may have it */
            ret->taken |= 1ull << i;
        if (now < 0)
            last = now;
        if (last == LEAT_NO_SPACE && !over)
            break;
    }
    bytes_out_fini(&out);
    if (rc < 0)
        return error_set(err, rc, "no memory for a bucket");
    if (last == LEAT_NO_SPACE)
        return last;
    if (ret->good)
        return 0;
    if (last == STORE_UNAVAILABLE)
        error_set(err, last, "no disk of the store is in order");
    return last;
}

static uint64_t failed_paths(struct store *s)
{
    uint64_t bits = 0;
    for (unsigned i = 0; i < s->npaths; i++)
        bits |= atomic_load(&s->paths[i]->failed) ? 1ull << i : 0;
    return bits;
}

/* Writes the state in force over a refused change that is on the paths `astray`. Returns the bits of paths
 * that it did not reach. A path that has failed has an older version, once another has this one. */
static uint64_t write_over(struct store *s, struct store_bucket *again, bool deleted, uint64_t astray,
                           bool quiet)
{
    struct leat_error err = {0};
    struct written w;
    again->version = store_next_seq(s);
    write_all(s, again, deleted, true, &w, &err);
    uint64_t left = w.good ? astray & ~w.good & ~failed_paths(s) : astray;
    if (left && !quiet)
        log_error("a refused change of bucket '%s' cannot be undone%s: %s", again->name,
                  deleted ? "" : "; nothing is stored in it until it can", err.message);
    return left;
}

/* After a change or deletion that was refused. buckets_write is held. */
static void take_back(struct store *s, struct bucket *b, uint64_t astray)
{
    struct store_bucket again = b->b;
    if (!astray)
        return;
    astray = write_over(s, &again, false, astray, b->astray != 0);
    pthread_mutex_lock(&s->buckets_lock);
    b->b.version = again.version; /* also if no path has it: later versions are above all that paths have */
    b->astray = astray;
    pthread_mutex_unlock(&s->buckets_lock);
}

void store_buckets_tick(struct store *s)
{
    if (pthread_mutex_trylock(&s->buckets_write) != 0)
        return;                                /* a thread that changes one may wait for its commits: later */
    for (unsigned i = 0; i < s->nbuckets; i++) /* only the holder of buckets_write changes them */
        take_back(s, s->buckets[i], s->buckets[i]->astray);
    pthread_mutex_unlock(&s->buckets_write);
}

static int unlink_all(struct store *s, const char *name)
{
    char file[PATH_FILE_MAX + COPY_NAME_MAX], dir[PATH_FILE_MAX], copied[COPY_NAME_MAX];
    int first = 0;
    for (unsigned i = 0; i < s->npaths; i++) {
        int rc = 0;
        snprintf(dir, sizeof(dir), "%s/buckets", s->paths[i]->dir);
        for (unsigned copy = COPIES; rc == 0 && copy-- > 0;) {
            copy_name(name, copy, copied);
            snprintf(file, sizeof(file), "%s/%s", dir, copied);
            rc = s->io->unlink(s->io, file);
            rc = rc == -ENOENT ? 0 : rc;
        }
        if (rc == 0)
            rc = s->io->syncdir(s->io, dir);
        first = first ? first : rc;
    }
    return first;
}

/* --- in memory ------------------------------------------------------------------------------------------------------------ */

static int insert(struct store *s, struct bucket *b)
{
    struct bucket **buckets = realloc(s->buckets, (s->nbuckets + 1) * sizeof(*buckets));
    if (!buckets)
        return -ENOMEM;
    s->buckets = buckets;
    unsigned at = position(s, b->b.name);
    memmove(&buckets[at + 1], &buckets[at], (s->nbuckets - at) * sizeof(*buckets));
    buckets[at] = b;
    s->nbuckets++;
    return 0;
}

static void drop(struct store *s, struct bucket *b)
{
    unsigned at = position(s, b->b.name);
    memmove(&s->buckets[at], &s->buckets[at + 1], (s->nbuckets - at - 1) * sizeof(*s->buckets));
    s->nbuckets--;
    store_bucket_fini(&b->b);
    free(b);
}

static int note_damaged(struct store *s, const char *name)
{
    if (is_damaged(s, name))
        return 0;
    char(*damaged)[STORE_BUCKET_MAX + 1] = realloc(s->damaged, (s->ndamaged + 1) * sizeof(*damaged));
    if (!damaged)
        return -ENOMEM;
    s->damaged = damaged;
    snprintf(damaged[s->ndamaged++], sizeof(*damaged), "%s", name);
    return 0;
}

static void forget_damaged(struct store *s, const char *name)
{
    for (unsigned i = 0; i < s->ndamaged; i++)
        if (strcmp(s->damaged[i], name) == 0)
            memcpy(s->damaged[i], s->damaged[--s->ndamaged], sizeof(s->damaged[i]));
}

/* LEAT_CORRUPT: damaged, or it cannot be read. */
static int read_one(struct store *s, const char *file, struct store_bucket *ret, bool *ret_deleted)
{
    const size_t max = STORE_PROPS_MAX + 512;
    AUTO_FREE uint8_t *data = malloc(max);
    int fd = data ? s->io->open(s->io, file, O_RDONLY, 0) : -ENOMEM;
    int64_t n = fd < 0 ? fd : s->io->pread(s->io, fd, data, max, 0);
    if (fd >= 0)
        s->io->close(s->io, fd);
    if (n < 0)
        return n == -ENOMEM || n == -EMFILE || n == -ENFILE ? (int)n : LEAT_CORRUPT;
    return store_bucket_parse(data, (size_t)n, ret, ret_deleted);
}

/* One copy on one path. The highest version of all that are sound counts. */
static int load_one(struct store *s, unsigned path, const char *name, unsigned copy)
{
    char file[PATH_FILE_MAX + COPY_NAME_MAX], copied[COPY_NAME_MAX];
    copy_name(name, copy, copied);
    snprintf(file, sizeof(file), "%s/buckets/%s", s->paths[path]->dir, copied);
    struct bucket *b = calloc(1, sizeof(*b));
    bool deleted = false;
    int rc = b ? read_one(s, file, &b->b, &deleted) : -ENOMEM;
    if (rc == 0 && strcmp(b->b.name, name) != 0) {
        store_bucket_fini(&b->b);
        rc = LEAT_CORRUPT;
    }
    if (rc < 0) {
        free(b);
        if (rc != LEAT_CORRUPT)
            return rc;
        log_warning("%s is damaged", file);
        return note_damaged(s, name);
    }
    b->deleting = deleted; /* until all paths were read */
    s->last_bucket_id = MAX(s->last_bucket_id, b->b.id);
    b->has[copy] = 1ull << path;
    struct bucket *there = lookup(s, b->b.name);
    if (there && there->b.version >= b->b.version) {
        there->has[copy] |= there->b.version == b->b.version ? b->has[copy] : 0;
        store_bucket_fini(&b->b);
        free(b);
        return 0;
    }
    if (there)
        drop(s, there);
    rc = insert(s, b);
    if (rc < 0) {
        store_bucket_fini(&b->b);
        free(b);
    }
    return rc;
}

/* For each bucket that has a file there: spread writes a missing copy again. */
static int load_folder(struct store *s, unsigned path, DIR *d)
{
    int rc = 0;
    for (struct dirent *e; rc == 0 && (e = readdir(d));) {
        char name[STORE_BUCKET_MAX + 1];
        size_t len = strcspn(e->d_name, "#"); /* one under way has another suffix */
        unsigned copy = e->d_name[len] ? 1 : 0;
        snprintf(name, sizeof(name), "%.*s", (int)MIN(len, (size_t)STORE_BUCKET_MAX), e->d_name);
        if (len <= STORE_BUCKET_MAX && store_bucket_name_ok(name) &&
            strcmp(e->d_name + len, copy ? COPY_SUFFIX : "") == 0)
            rc = load_one(s, path, name, copy);
    }
    return rc;
}

/* Writes a bucket to paths that lack it, as they were away or joined later: a path that is the only one left
 * must know the buckets of its objects. A path that cannot take it now gets it with the next start. */
static int spread(struct store *s, const struct bucket *b)
{
    struct bytes_out out = {0};
    struct leat_error err = {0};
    bool named;
    int rc = encode(&b->b, b->deleting, &out);
    for (unsigned i = 0; rc == 0 && i < s->npaths; i++)
        if (!(b->has[0] & b->has[1] & 1ull << i) && !atomic_load(&s->paths[i]->failed) &&
            write_one(s, s->paths[i], b->b.name, &out, &named, &err) < 0)
            log_warning("%s does not know bucket '%s': %s", s->paths[i]->dir, b->b.name, err.message);
    bytes_out_fini(&out);
    return rc;
}

/* Reports damaged copies: those with a good copy were written again; of the rest nothing is known. */
static void report_damaged(struct store *s)
{
    struct leat_error err = {0};
    for (unsigned i = s->ndamaged; i-- > 0;) {
        const char *name = s->damaged[i];
        if (lookup(s, name)) {
            log_warning("a damaged copy of the description of bucket '%s' was repaired from another copy",
                        name);
            forget_damaged(s, name);
        } else {
            damaged_bucket(s, name, &err);
            log_error("%s", err.message);
        }
    }
}

/* Of the buckets that have keys in this index: objects, or, hidden, uploads. 0: there is none. */
static uint32_t highest_id(struct index *x, bool hidden)
{
    struct index_cursor c;
    struct ikey k;
    uint32_t id = 0, big;
    while (id < UINT32_MAX) {
        big = __builtin_bswap32(id + 1);
        ikey_set(&k, hidden ? 0 : id + 1, &big, hidden ? sizeof(big) : 0);
        store_index_seek(&c, x, k.bytes, k.len);
        if (!c.valid || index_key_hidden(c.item.key, c.item.key_len) != hidden)
            break;
        memcpy(&big, c.item.key + (hidden ? 4 : 0), sizeof(big));
        id = __builtin_bswap32(big);
    }
    return id;
}

/* A bucket whose descriptions are all damaged has its id only in the index: no other bucket may get it. */
static void note_ids(struct store *s, struct path *p)
{
    pthread_rwlock_rdlock(&p->index.lock);
    for (unsigned hidden = 0; hidden < 2; hidden++)
        s->last_bucket_id = MAX(s->last_bucket_id, highest_id(&p->index, hidden));
    pthread_rwlock_unlock(&p->index.lock);
}

int store_buckets_load(struct store *s, struct leat_error *err)
{
    static_assert(STORE_PATHS_MAX <= 64, "a bit for each");
    for (unsigned i = 0; i < s->npaths; i++) {
        char dir[PATH_FILE_MAX];
        snprintf(dir, sizeof(dir), "%s/buckets", s->paths[i]->dir);
        DIR *d = atomic_load(&s->paths[i]->failed) ? NULL : opendir(dir);
        /* A creation that was killed before its last flush is there from now on: objects will be stored in it. */
        int rc = d ? s->io->syncdir(s->io, dir) : 0;
        if (d && rc == 0)
            rc = load_folder(s, i, d);
        if (d)
            closedir(d);
        if (rc < 0)
            return error_sys(err, rc, "%s: buckets cannot be read", s->paths[i]->dir);
        if (s->paths[i]->loaded)
            note_ids(s, s->paths[i]);
    }
    for (unsigned i = 0; i < s->nbuckets; i++)
        if (spread(s, s->buckets[i]) < 0)
            return error_set(err, -ENOMEM, "no memory for a bucket");
    report_damaged(s);
    for (unsigned i = s->nbuckets; i-- > 0;)
        if (s->buckets[i]->deleting)
            drop(s, s->buckets[i]);
    return 0;
}

void store_buckets_free(struct store *s)
{
    while (s->nbuckets > 0)
        drop(s, s->buckets[s->nbuckets - 1]);
    free(s->buckets);
    free(s->damaged);
}

int store_bucket_find(struct store *s, const char *name, uint32_t *ret_id, uint32_t *ret_flags,
                      struct leat_error *err)
{
    pthread_mutex_lock(&s->buckets_lock);
    struct bucket *b = lookup(s, name);
    if (b && ret_id)
        *ret_id = b->b.id;
    if (b && ret_flags)
        *ret_flags = b->b.flags;
    pthread_mutex_unlock(&s->buckets_lock);
    return b ? 0 : no_bucket(s, name, err);
}

static int enter(struct store *s, const char *name, uint32_t id, bool stores, bool *ret_remote,
                 uint64_t *ret_remote_id, struct leat_error *err)
{
    struct bucket *b;
    pthread_mutex_lock(&s->buckets_lock);
    while ((b = lookup(s, name)) && b->changing)
        pthread_cond_wait(&s->buckets_cond, &s->buckets_lock);
    bool is = b && b->b.id == id && !b->deleting, good = is && !(stores && b->astray);
    if (good) {
        b->commits++;
        if (ret_remote)
            *ret_remote = b->b.flags & STORE_BUCKET_REMOTE;
        if (ret_remote_id)
            *ret_remote_id = b->b.remote_id;
    }
    pthread_mutex_unlock(&s->buckets_lock);
    if (is && !good)
        return error_set(
            err, STORE_UNAVAILABLE,
            "bucket '%.63s' cannot be written on all disks: nothing is stored in it until it can", name);
    return good ? 0 : no_bucket(s, name, err);
}

int store_bucket_enter(struct store *s, const char *name, uint32_t id, bool *ret_remote,
                       uint64_t *ret_remote_id, struct leat_error *err)
{
    return enter(s, name, id, true, ret_remote, ret_remote_id, err);
}

int store_bucket_stay(struct store *s, const char *name, uint32_t id, uint64_t *ret_remote_id,
                      struct leat_error *err)
{
    return enter(s, name, id, false, NULL, ret_remote_id, err);
}

void store_bucket_leave(struct store *s, const char *name)
{
    pthread_mutex_lock(&s->buckets_lock);
    struct bucket *b = lookup(s, name);
    assert(b && b->commits > 0);
    if (--b->commits == 0)
        pthread_cond_broadcast(&s->buckets_cond);
    pthread_mutex_unlock(&s->buckets_lock);
}

bool store_bucket_is_remote(struct store *s, uint32_t id, char ret_name[STORE_BUCKET_MAX + 1])
{
    bool remote = false;
    pthread_mutex_lock(&s->buckets_lock);
    for (unsigned i = 0; i < s->nbuckets; i++)
        if (s->buckets[i]->b.id == id) {
            remote = s->buckets[i]->b.flags & STORE_BUCKET_REMOTE;
            snprintf(ret_name, STORE_BUCKET_MAX + 1, "%s", s->buckets[i]->b.name);
        }
    pthread_mutex_unlock(&s->buckets_lock);
    return remote;
}

/* --- calls ---------------------------------------------------------------------------------------------------------------- */

static int check_props(const char *props, struct leat_error *err)
{
    if (!props || strlen(props) <= STORE_PROPS_MAX)
        return 0;
    return error_set(err, LEAT_INVALID, "properties of %zu bytes; at most %u", strlen(props),
                     STORE_PROPS_MAX);
}

/* A path that was not read since the start may hold any bucket. */
static bool any_blind(struct store *s)
{
    for (unsigned i = 0; i < s->npaths; i++)
        if (!s->paths[i]->loaded)
            return true;
    return false;
}

static int bucket_new(const char *name, uint32_t flags, const char *props, struct bucket **ret,
                      struct leat_error *err)
{
    if (!store_bucket_name_ok(name))
        return error_set(err, LEAT_INVALID,
                         "'%.80s' cannot name a bucket: 3 to 63 small letters, digits, dots and hyphens",
                         name);
    int rc = check_props(props, err);
    if (rc < 0)
        return rc;
    struct bucket *b = calloc(1, sizeof(*b));
    if (b)
        b->b.props = strdup(props ? props : "{}");
    if (!b || !b->b.props) {
        free(b);
        return error_set(err, -ENOMEM, "no memory for a bucket");
    }
    snprintf(b->b.name, sizeof(b->b.name), "%s", name);
    b->b.flags = flags;
    b->b.created_ns = store_wall_ns();
    b->b.props_len = strlen(b->b.props);
    *ret = b;
    return 0;
}

/* buckets_write is held. id 0: a new one. */
static int may_create(struct store *s, struct bucket *b, uint32_t id, struct leat_error *err)
{
    const char *name = b->b.name;
    b->b.version = store_next_seq(s); /* above that of a deletion's mark */
    b->b.remote_id = b->b.version;    /* no other bucket's, nor that of one of this name before */
    pthread_mutex_lock(&s->buckets_lock);
    uint32_t next = (uint32_t)(b->b.created_ns / 1000000000 - 1600000000);
    for (unsigned i = 0; i < s->nbuckets; i++)
        next = MAX(next, s->buckets[i]->b.id + 1);
    next = MAX(next, s->last_bucket_id + 1);
    b->b.id = id ? id : next;
    s->last_bucket_id = MAX(s->last_bucket_id, b->b.id);
    int rc = lookup(s, name) ? error_set(err, STORE_EXISTS, "there is a bucket '%s' already", name)
             : any_blind(s)
                 ? error_set(err, STORE_UNAVAILABLE,
                             "a path of the store has failed; it may have a bucket '%s', whose objects "
                             "would be lost with a new one: repair it, or set forget_missing, and "
                             "start again",
                             name)
                 : 0;
    pthread_mutex_unlock(&s->buckets_lock);
    return rc;
}

/* Changes are rare: they hold buckets_write, so that no thread waits for a disk under buckets_lock. */
static int create(struct store *s, const char *name, uint32_t flags, const char *props, bool restore,
                  struct leat_error *err)
{
    struct bucket *b = NULL;
    struct written w = {0};
    int rc = bucket_new(name, flags, props, &b, err);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&s->buckets_write);
    bool damaged = is_damaged(s, name);
    if (damaged && !restore)
        rc = damaged_bucket(s, name, err);
    if (rc == 0)
        rc = may_create(s, b, damaged ? store_bucket_lost_id(s, name) : 0, err);
    if (rc == 0)
        rc = write_all(s, &b->b, false, false, &w, err);
    if (rc == 0) {
        pthread_mutex_lock(&s->buckets_lock);
        rc = insert(s, b);
        if (rc == 0)
            forget_damaged(s, name);
        pthread_mutex_unlock(&s->buckets_lock);
    }
    if (rc < 0 && w.taken && !damaged) /* a half-restored bucket is better than none */
        write_over(s, &b->b, true, w.taken, false);
    pthread_mutex_unlock(&s->buckets_write);
    if (rc < 0) {
        store_bucket_fini(&b->b);
        free(b);
    }
    return rc;
}

int store_bucket_create(struct store *s, const char *name, uint32_t flags, const char *props,
                        struct leat_error *err)
{
    return create(s, name, flags, props, false, err);
}

int store_bucket_restore(struct store *s, const char *name, const char *props, struct leat_error *err)
{
    return create(s, name, 0, props, true, err);
}

/* Objects of this bucket; of those, with flags other than 0, only such as have one of them. */
static bool has_objects(struct store *s, uint32_t id, uint32_t flags)
{
    struct ikey k;
    ikey_set(&k, id, "", 0);
    bool any = false;
    for (unsigned i = 0; i < s->npaths && !any; i++) {
        struct path *p = s->paths[i];
        struct index_cursor c;
        pthread_rwlock_rdlock(&p->index.lock);
        for (store_index_seek(&c, &p->index, k.bytes, k.len);
             !any && c.valid && memcmp(c.item.key, k.bytes, 4) == 0; store_index_next(&c))
            any = flags == 0 || (c.item.value.flags & flags) != 0;
        pthread_rwlock_unlock(&p->index.lock);
    }
    return any;
}

/* *ret_touched: where it may be gone, or marked as deleted, if this failed. */
static int delete_empty(struct store *s, struct bucket *b, uint64_t *ret_touched, struct leat_error *err)
{
    *ret_touched = 0;
    if (any_blind(s))
        return error_set(err, STORE_UNAVAILABLE,
                         "a path of the store has failed; it may hold objects of '%s'", b->b.name);
    if (has_objects(s, b->b.id, 0))
        return error_set(err, STORE_NOT_EMPTY, "bucket '%s' is not empty: delete its objects first",
                         b->b.name);
    int rc = store_uploads_abort(s, b->b.id, err); /* none begins any more, and none is completed */
    if (rc < 0)
        return rc;
    if (failed_paths(s)) {
        struct store_bucket mark = b->b;
        struct written w;
        mark.version = store_next_seq(s);
        rc = write_all(s, &mark, true, false, &w, err);
        *ret_touched = w.taken;
        return rc;
    }
    *ret_touched = UINT64_MAX >> (64 - s->npaths);
    rc = unlink_all(s, b->b.name);
    return rc < 0 ? error_sys(err, rc, "bucket '%s' cannot be deleted", b->b.name) : 0;
}

int store_bucket_delete(struct store *s, const char *name, struct leat_error *err)
{
    pthread_mutex_lock(&s->buckets_write);
    pthread_mutex_lock(&s->buckets_lock);
    struct bucket *b = lookup(s, name);
    if (b) {
        b->deleting = true; /* no commit begins any more; wait for those under way */
        while (b->commits > 0)
            pthread_cond_wait(&s->buckets_cond, &s->buckets_lock);
    }
    pthread_mutex_unlock(&s->buckets_lock);
    uint64_t touched = 0;
    int rc = b ? delete_empty(s, b, &touched, err) : no_bucket(s, name, err);
    if (b && rc < 0)
        take_back(s, b, touched | b->astray); /* what is gone is written again */
    pthread_mutex_lock(&s->buckets_lock);
    if (b && rc == 0)
        drop(s, b);
    else if (b)
        b->deleting = false;
    pthread_mutex_unlock(&s->buckets_lock);
    pthread_mutex_unlock(&s->buckets_write);
    return rc;
}

static int copy_bucket(const struct store_bucket *b, struct store_bucket *ret)
{
    char *props = strdup(b->props);
    if (!props)
        return -ENOMEM;
    *ret = *b;
    ret->props = props;
    return 0;
}

int store_bucket_get(struct store *s, const char *name, struct store_bucket *ret_bucket,
                     struct leat_error *err)
{
    int rc = 0;
    pthread_mutex_lock(&s->buckets_lock);
    struct bucket *b = lookup(s, name);
    if (b && ret_bucket)
        rc = copy_bucket(&b->b, ret_bucket);
    pthread_mutex_unlock(&s->buckets_lock);
    if (rc < 0)
        return error_set(err, rc, "no memory for a bucket's properties");
    return b ? 0 : no_bucket(s, name, err);
}

/* buckets_write is held. props NULL: as they are. */
static int change(struct store *s, const char *name, uint64_t if_version, uint32_t flags, uint64_t remote_id,
                  const char *props, struct leat_error *err)
{
    struct store_bucket b = {0};
    struct written w;
    int rc = store_bucket_get(s, name, &b, err);
    if (rc == 0 && if_version && b.version != if_version)
        rc = error_set(err, STORE_PRECONDITION, "bucket '%s' was changed by someone else", name);
    if (rc == 0 && props) {
        free(b.props);
        b.props = strdup(props);
        b.props_len = strlen(props);
        rc = b.props ? 0 : error_set(err, -ENOMEM, "no memory for a bucket's properties");
    }
    if (rc == 0) {
        b.flags = flags;
        b.remote_id = remote_id;
        b.version++;
        struct bucket *is = lookup(s, name);
        rc = write_all(s, &b, false, false, &w, err);
        if (rc < 0)
            take_back(s, is, w.taken | is->astray);
    }
    if (rc == 0) {
        pthread_mutex_lock(&s->buckets_lock);
        struct bucket *there = lookup(s, name);
        char *old = there->b.props;
        there->b = b;
        there->astray &= ~w.good & ~failed_paths(s);
        b.props = old;
        pthread_mutex_unlock(&s->buckets_lock);
    }
    store_bucket_fini(&b);
    return rc;
}

int store_bucket_set(struct store *s, const char *name, uint64_t if_version, const char *props,
                     struct leat_error *err)
{
    int rc = check_props(props, err);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&s->buckets_write);
    struct bucket *b = lookup(s, name); /* only the holder of buckets_write changes them */
    rc = b ? change(s, name, if_version, b->b.flags, b->b.remote_id, props, err) : no_bucket(s, name, err);
    pthread_mutex_unlock(&s->buckets_write);
    return rc;
}

/* No commit into it is under way. */
static int check_remote_id(struct store *s, const struct bucket *b, enum store_remote remote_id,
                           struct leat_error *err)
{
    if (remote_id != STORE_REMOTE_SAME && any_blind(s))
        return error_set(err, STORE_UNAVAILABLE,
                         "a path of the store has failed; it may hold objects of '%s'", b->b.name);
    if (remote_id == STORE_REMOTE_OTHER && (has_objects(s, b->b.id, 0) || store_uploads_any(s, b->b.id)))
        return error_set(err, STORE_NOT_EMPTY,
                         "bucket %s has objects or uploads: only an empty bucket can get another remote",
                         b->b.name);
    if (remote_id == STORE_REMOTE_NONE && has_objects(s, b->b.id, STORE_DIRTY))
        return error_set(err, LEAT_BUSY,
                         "bucket %s: its remote has not got all of it yet: wait until nothing is dirty",
                         b->b.name);
    return 0;
}

int store_bucket_remote(struct store *s, const char *name, uint64_t if_version, enum store_remote remote_id,
                        const char *props, uint64_t *ret_remote_id, struct leat_error *err)
{
    int rc = check_props(props, err);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&s->buckets_write);
    pthread_mutex_lock(&s->buckets_lock);
    struct bucket *b = lookup(s, name);
    if (b) {
        b->changing = true;
        while (b->commits > 0)
            pthread_cond_wait(&s->buckets_cond, &s->buckets_lock);
    }
    pthread_mutex_unlock(&s->buckets_lock);
    rc = b ? check_remote_id(s, b, remote_id, err) : no_bucket(s, name, err);
    if (rc == 0) {
        uint32_t flags = remote_id == STORE_REMOTE_NONE ? b->b.flags & ~(uint32_t)STORE_BUCKET_REMOTE
                                                        : b->b.flags | STORE_BUCKET_REMOTE;
        uint64_t number = remote_id == STORE_REMOTE_SAME ? b->b.remote_id : store_next_seq(s);
        rc = change(s, name, if_version, flags, number, props, err);
        *ret_remote_id = number;
    }
    pthread_mutex_lock(&s->buckets_lock);
    if (b)
        b->changing = false;
    pthread_cond_broadcast(&s->buckets_cond);
    pthread_mutex_unlock(&s->buckets_lock);
    pthread_mutex_unlock(&s->buckets_write);
    return rc;
}

int store_bucket_list(struct store *s, int (*bucket)(void *user, const struct store_bucket *bucket),
                      void *user)
{
    int rc = 0;
    pthread_mutex_lock(&s->buckets_lock);
    for (unsigned i = 0; rc == 0 && i < s->nbuckets; i++)
        rc = bucket(user, &s->buckets[i]->b);
    pthread_mutex_unlock(&s->buckets_lock);
    return rc;
}
