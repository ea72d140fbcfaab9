/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote.c: remote sources: their objects, and whether these are shards or a tree.
 *
 * Happy path: an address is requested once (remote_stat), or is known from a list; scan_open makes a file of
 * it, and its ETag pins all reads. A prefix is listed once. Its objects are kept until their kind is known:
 * shards, or a tree when any object is none.
 *
 * Failure modes: those of the requests, which name the object; LEAT_UNSUPPORTED where the caller has no
 * remote; LEAT_NOT_FOUND a prefix with nothing below it; LEAT_STALE, from a read: the object changed after it
 * was listed.
 */
#include <fnmatch.h>
#include <stdio.h>
#include <sys/mman.h>
#include <xxhash.h>

#include "base/array.h"
#include "dataset/scan.h"

#define LEARN_LEAST 3u    /* so many objects are worth a list */
#define LEARN_EXTRA 1000u /* unrequested keys: then stats are cheaper */
#define LIST_TICK   1000u /* objects between two checks whether the caller still waits */
#define FETCH_HEAD  MIB   /* of an object is looked at before the rest is fetched */

struct scan_object {
    char *uri; /* owned; behind its NUL stands the ETag */
    uint64_t bytes;
    int64_t modified;
    bool missing;
};

void scan_fini(struct scan *scan)
{
    for (uint64_t i = 0; i < scan->objects.n; i++)
        free(scan->objects.items[i].uri);
    free(scan->objects.items);
    free(scan->objects.slots);
    scan->objects = (struct scan_objects){0};
    free(TAKE_PTR(scan->filter.pattern));
    free(TAKE_PTR(scan->filter.extensions));
}

/* --- what is known ----------------------------------------------------------------------------------------------- */

/* The slot of this address, or the free one where it belongs. */
static uint64_t object_slot(const struct scan_objects *o, const char *uri)
{
    uint64_t mask = o->nslots - 1;
    uint64_t slot = XXH3_64bits(uri, strlen(uri)) & mask;
    while (o->slots[slot] && strcmp(o->items[o->slots[slot] - 1].uri, uri))
        slot = (slot + 1) & mask;
    return slot;
}

static int objects_grow(struct scan_objects *o)
{
    if (array_reserve(&o->items, &o->cap, o->n + 1) < 0)
        return -ENOMEM;
    if (o->n * 2 < o->nslots)
        return 0;
    uint64_t n = MAX(o->nslots * 2, 64ull);
    uint32_t *slots = calloc(n, sizeof(*slots));
    if (!slots)
        return -ENOMEM;
    free(o->slots);
    o->slots = slots;
    o->nslots = n;
    for (uint64_t i = 0; i < o->n; i++)
        slots[object_slot(o, o->items[i].uri)] = (uint32_t)i + 1;
    return 0;
}

/* A known object stays as it is. */
static int object_learn(struct scan *scan, const struct dataset_object *object, bool missing)
{
    struct scan_objects *o = &scan->objects;
    int rc = objects_grow(o);
    if (rc < 0)
        return rc;
    uint64_t slot = object_slot(o, object->uri);
    if (o->slots[slot])
        return 0;
    size_t uri = strlen(object->uri) + 1, etag = strlen(object->etag) + 1;
    if (etag > DATASET_ETAG_MAX)
        etag = 1;
    struct scan_object new = {
        .uri = malloc(uri + etag), .bytes = object->bytes, .modified = object->modified, .missing = missing};
    if (!new.uri)
        return -ENOMEM;
    memcpy(new.uri, object->uri, uri);
    memcpy(new.uri + uri, etag > 1 ? object->etag : "", etag);
    o->items[o->n] = new;
    o->slots[slot] = (uint32_t)++o->n;
    return 0;
}

static const struct scan_object *object_known(const struct scan *scan, const char *uri)
{
    const struct scan_objects *o = &scan->objects;
    uint32_t at = o->nslots ? o->slots[object_slot(o, uri)] : 0;
    return at ? &o->items[at - 1] : NULL;
}

static int reach(const struct scan *scan, const char *uri, struct leat_error *err)
{
    if (scan->opener && scan->opener->remote)
        return 0;
    return error_set(err, LEAT_UNSUPPORTED,
                     "%.300s: remote data cannot be read from here; copy it to a disk of this machine "
                     "first (leat cp, aws s3 cp, curl)",
                     uri);
}

/* What follows the scheme. */
static const char *bucket_of(const char *uri)
{
    return strstr(uri, "//") + 2;
}

int remote_stat(struct scan *scan, const char *uri, struct dataset_stat *ret_stat, struct leat_error *err)
{
    int rc = reach(scan, uri, err);
    if (rc < 0)
        return rc;
    const struct scan_object *known = object_known(scan, uri);
    struct dataset_stat stat = {0};
    struct leat_error why = {0};
    if (!known && dataset_has_lists(uri) && (uri[strlen(uri) - 1] == '/' || !strchr(bucket_of(uri), '/')))
        rc = LEAT_NOT_FOUND; /* a prefix, or a bucket: no object has such a name, but for marks of folders */
    else if (!known)
        rc = scan->opener->remote->stat(scan->opener->remote_user, uri, &stat, &why);
    if (!known && (rc == 0 || rc == LEAT_NOT_FOUND)) {
        struct dataset_object found = {
            .uri = uri, .bytes = stat.bytes, .etag = stat.etag, .modified = stat.modified};
        int learnt = object_learn(scan, &found, rc != 0);
        if (learnt < 0)
            return learnt;
        known = object_known(scan, uri);
    }
    if (known && known->missing)
        return error_set(err, LEAT_NOT_FOUND, "%.300s: there is no such object%s%s", uri,
                         why.message[0] ? ": " : "", why.message);
    if (rc < 0)
        return why.message[0] ? error_set(err, rc, "%s", why.message) : error_sys(err, rc, "%.300s", uri);
    *ret_stat = (struct dataset_stat){.bytes = known->bytes, .modified = known->modified};
    strcpy(ret_stat->etag, known->uri + strlen(known->uri) + 1); /* was measured */
    return 0;
}

int remote_no_object(const char *uri, struct leat_error *err)
{
    return error_set(err, LEAT_NOT_FOUND, "%.300s: there is no such object", uri);
}

/* --- names --------------------------------------------------------------------------------------------------------- */

char *remote_join(const char *root, const char *name)
{
    char *out;
    size_t len = strlen(root);
    return asprintf(&out, "%s%s%s", root, len && root[len - 1] == '/' ? "" : "/", name) < 0 ? NULL : out;
}

bool dataset_left_out(const char *name)
{
    size_t len = strlen(name);
    return len == 0 || name[0] == '.' || strstr(name, "/.") || name[len - 1] == '/';
}

/* --- patterns ------------------------------------------------------------------------------------------------------ */

struct learning {
    struct scan *scan;
    uint64_t most;
};

static int learn_one(void *ctx, const struct dataset_object *object)
{
    struct learning *l = ctx;
    if (l->most-- == 0)
        return -E2BIG;
    return object->prefix ? 0 : object_learn(l->scan, object, false);
}

int remote_learn(struct scan *scan, const char *pattern, const struct scan_paths *paths)
{
    size_t len = strcspn(pattern, "{*?[");
    const char *bucket_end = strchr(bucket_of(pattern), '/');
    if (!dataset_has_lists(pattern) || !bucket_end || pattern + len <= bucket_end || paths->n < LEARN_LEAST ||
        reach(scan, pattern, NULL) < 0)
        return 0;
    for (unsigned i = 0; i < paths->n; i++)
        if (shards_is_pattern(paths->items[i]))
            return 0; /* is listed anyway */
    AUTO_FREE char *start = strndup(pattern, len);
    struct learning l = {.scan = scan, .most = paths->n + LEARN_EXTRA};
    int rc = start ? scan->opener->remote->list(scan->opener->remote_user, start, true, learn_one, &l, NULL)
                   : -ENOMEM;
    return rc == -ENOMEM ? rc : 0;
}

struct wildcard {
    struct scan *scan;
    const char *name; /* of the last component */
    struct scan_paths *out;
};

static int wildcard_one(void *ctx, const struct dataset_object *object)
{
    struct wildcard *w = ctx;
    const char *name = strrchr(object->uri, '/') + 1;
    if (object->prefix || *name == '.' || !*name || fnmatch(w->name, name, FNM_PERIOD))
        return 0;
    int rc = object_learn(w->scan, object, false);
    return rc < 0 ? rc : scan_paths_add(w->out, object->uri);
}

int remote_wildcard(struct scan *scan, const char *pattern, struct scan_paths *out, struct leat_error *err)
{
    struct wildcard w = {.scan = scan, .name = strrchr(pattern, '/') + 1, .out = out};
    AUTO_FREE char *start = strndup(pattern, strcspn(pattern, "*?["));
    unsigned before = out->n;
    if (!start)
        return -ENOMEM;
    int rc = reach(scan, pattern, err);
    if (rc == 0)
        rc = scan->opener->remote->list(scan->opener->remote_user, start, false, wildcard_one, &w, err);
    if (rc == 0 && out->n > before)
        qsort(out->items + before, out->n - before, sizeof(*out->items), shards_compare);
    return rc;
}

/* --- a prefix ------------------------------------------------------------------------------------------------------ */

/* Objects seen before their kind is known. */
struct pending {
    uint64_t bytes, text; /* name, NUL, ETag, NUL */
    int64_t modified;
};

struct prefix {
    struct scan *scan;
    const char *root;
    bool tree; /* some object is neither a shard nor beside one */
    struct pending *pending;
    char *text;
    uint64_t n, cap, text_len, text_cap, nshards;
    struct leat_error *err;
};

static int prefix_keep(struct prefix *p, const struct dataset_object *o)
{
    size_t name = strlen(o->name) + 1, etag = strlen(o->etag) + 1;
    int rc = array_reserve(&p->pending, &p->cap, p->n + 1);
    if (rc == 0)
        rc = array_reserve(&p->text, &p->text_cap, p->text_len + name + etag);
    if (rc < 0)
        return rc;
    memcpy(p->text + p->text_len, o->name, name);
    memcpy(p->text + p->text_len + name, o->etag, etag);
    p->pending[p->n++] = (struct pending){.bytes = o->bytes, .text = p->text_len, .modified = o->modified};
    p->text_len += name + etag;
    p->nshards += shards_is_one(o->name);
    return 0;
}

static struct dataset_object pending_object(const struct prefix *p, uint64_t i)
{
    const char *name = p->text + p->pending[i].text;
    return (struct dataset_object){.name = name,
                                   .bytes = p->pending[i].bytes,
                                   .etag = name + strlen(name) + 1,
                                   .modified = p->pending[i].modified};
}

static int prefix_tree(struct prefix *p, struct index_builder **ret_builder)
{
    AUTO_FREE struct dataset_object *objects = calloc(p->n, sizeof(*objects));
    if (!objects)
        return -ENOMEM;
    for (uint64_t i = 0; i < p->n; i++)
        objects[i] = pending_object(p, i);
    return dir_objects(p->scan, p->root, objects, p->n, ret_builder, p->err);
}

static int prefix_object(void *ctx, const struct dataset_object *o)
{
    struct prefix *p = ctx;
    if (o->prefix || dataset_left_out(o->name))
        return 0;
    if (!shards_is_one(o->name) && !shards_beside(o->name))
        p->tree = true;
    int rc = prefix_keep(p, o);
    return rc < 0 || p->n % LIST_TICK ? rc : scan_poll(p->scan, p->err);
}

static int prefix_shards(struct prefix *p, struct index_builder **ret_builder)
{
    struct scan_paths paths = {0};
    int rc = 0;
    for (uint64_t i = 0; i < p->n && rc == 0; i++) {
        struct dataset_object o = pending_object(p, i);
        if (!shards_is_one(o.name))
            continue;
        AUTO_FREE char *uri = remote_join(p->root, o.name);
        o.uri = uri;
        rc = uri ? object_learn(p->scan, &o, false) : -ENOMEM;
        if (rc == 0)
            rc = scan_paths_add(&paths, uri);
    }
    if (rc == -E2BIG)
        rc = error_set(p->err, LEAT_INVALID, "%.300s: more than 1000000 shards", p->root);
    if (rc == 0)
        rc = tar_scan(p->scan, paths.items, paths.n, ret_builder, p->err);
    scan_paths_fini(&paths);
    return rc;
}

int remote_list_below(struct scan *scan, const char *root,
                      int (*object)(void *ctx, const struct dataset_object *object), void *ctx,
                      struct leat_error *err)
{
    AUTO_FREE char *start = remote_join(root, "");
    if (!start)
        return -ENOMEM;
    int rc = reach(scan, root, err);
    return rc < 0 ? rc : scan->opener->remote->list(scan->opener->remote_user, start, true, object, ctx, err);
}

int remote_scan_prefix(struct scan *scan, const char *root, struct index_builder **ret_builder,
                       struct leat_error *err)
{
    struct prefix p = {.scan = scan, .tree = scan_filtered(scan), .err = err};
    AUTO_FREE char *trimmed = strdup(root);
    if (!trimmed)
        return -ENOMEM;
    if (trimmed[strlen(trimmed) - 1] == '/')
        trimmed[strlen(trimmed) - 1] = 0;
    p.root = trimmed;
    int rc = remote_list_below(scan, trimmed, prefix_object, &p, err);
    if (rc == 0 && !p.n)
        rc = error_set(err, LEAT_NOT_FOUND,
                       "%.300s: there is no such object, and none below it (hidden ones do not count)", root);
    if (rc == 0 && !p.tree && p.nshards)
        rc = prefix_shards(&p, ret_builder);
    else if (rc == 0)
        rc = prefix_tree(&p, ret_builder);
    free(p.pending);
    free(p.text);
    return rc;
}

/* --- all of an object ---------------------------------------------------------------------------------------------- */

static int fetch_into(struct scan_file *file, char *at, uint64_t bytes,
                      bool (*sound)(const void *head, uint64_t bytes), struct leat_error *err)
{
    uint64_t head = MIN(bytes, FETCH_HEAD);
    int64_t n = scan_file_pread(file, at, head, 0, err);
    if (n >= 0 && !sound(at, bytes))
        return error_set(err, LEAT_CORRUPT, "%.300s: not what it should be", file->uri);
    if (n >= 0)
        n = scan_file_pread(file, at + head, bytes - head, head, err);
    return (int)MIN(n, (int64_t)0);
}

int remote_fetch(struct scan *scan, const char *uri, bool (*sound)(const void *head, uint64_t bytes),
                 int *ret_fd, struct leat_error *err)
{
    AUTO_SCAN_FILE struct scan_file file = {.fd = -1};
    int rc = scan_open(scan, uri, &file, err);
    if (rc < 0)
        return rc;
    uint64_t bytes = (uint64_t)file.st.st_size;
    if (!S_ISREG(file.st.st_mode) || bytes == 0)
        return remote_no_object(uri, err);
    AUTO_CLOSE int fd = memfd_create("leat-index", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) < 0)
        return error_sys(err, -errno, "no memory for %.300s", uri);
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        return error_sys(err, -errno, "no memory for %.300s", uri);
    rc = fetch_into(&file, at, bytes, sound, err);
    munmap(at, bytes);
    if (rc == 0)
        *ret_fd = TAKE_FD(fd);
    return rc;
}
