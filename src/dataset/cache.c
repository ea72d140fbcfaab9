/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache.c: existing indexes, so that no job scans unchanged data twice.
 *
 * Happy path: the files that the spec means are listed (a pattern is expanded again, a folder of shards is listed again);
 * the index beside the data, then the one in the cache, is mapped and compared: same files, same sizes and times; for a
 * tree, same times of all its folders, and of its files too if they are not many. Otherwise a scan, written to a temporary file and renamed.
 *
 * Remote data: one stat of each object, or one list of a prefix, is compared with the index as it comes:
 * sizes and ETags. The cache is looked at first, since it costs no request. A remote index that is itself the
 * source ("s3://bucket/prefix/.leat-index") is trusted: nothing is listed, and its ETags show changes when
 * objects are read.
 *
 * Failure modes: an index that is stale, of older rules for places in memory, or about other files is skipped
 * silently, for it can be made again; a damaged one is skipped with a warning. No cache (read-only home, no
 * space): the index is made in memory.
 *
 * Trust: an index is only ever used for the very files that its spec means. Another user's index is copied
 * first, so that it can neither change nor shrink while it is used, and passes index_validate. In a folder
 * that every user may write (/tmp) it is taken only from the data file's owner. A file of our own, or of
 * root, is compared with its checksum: 0.65 s for a tree of 10 million files (docs/decisions/0122).
 *
 * Not seen at first: a file inside a tree of many that is changed in place, without its folder changing. The
 * reader of that file notices it later, by the size and time in the index, and drops the index in the cache:
 * the next opening scans.
 */
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <time.h>
#include <xxhash.h>

#include "base/fdio.h"
#include "base/log.h"
#include "dataset/index_internal.h"
#include "dataset/scan.h"

#define BESIDE      ".leat-index"
#define FOREIGN_MAX (4ll << 30) /* bytes of an index of another user: some 30 million files */
#define COPY_PIECE  (1ull << 20)
#define LOOK_MAX    10000u /* files of a tree that are looked at one by one: some 10 ms on a local disk */

/* The present files of the spec. */
struct expected {
    struct scan scan;
    struct scan_paths files; /* shards or arrays, each once, in order */
    char *tree;              /* or the root of a tree */
    char *prefix;            /* or what a list begins with, "s3://bucket/prefix": shards or a tree */
    char *given;             /* or a remote index that is itself the source */
    char *beside;            /* where an index beside the data would lie; NULL: nowhere */
    uid_t owner;             /* of what it would lie beside */
    bool beside_now;         /* it is that one which is being looked at */
    char *cache_name;
};

static void expected_fini(struct expected *x)
{
    scan_paths_fini(&x->files);
    scan_fini(&x->scan);
    free(x->tree);
    free(x->prefix);
    free(x->given);
    free(x->beside);
    free(x->cache_name);
}

static int expect_file(struct expected *x, const char *path)
{
    for (unsigned i = 0; i < x->files.n && x->files.n <= INDEX_MAX_FIELDS; i++)
        if (!strcmp(x->files.items[i], path))
            return 0;
    return scan_paths_add(&x->files, path);
}

/* "…/.leat-index", or "….npy.leat-index". */
static bool names_index(const char *path)
{
    size_t len = strlen(path), end = strlen(BESIDE);
    return len > end && !strcmp(path + len - end, BESIDE);
}

/* Of its address, what it lies beside: "s3://bucket/prefix", or the one object. */
static size_t index_scope(const char *path)
{
    size_t len = strlen(path) - strlen(BESIDE);
    return len - (path[len - 1] == '/');
}

static int expect_source(struct expected *x, const struct dataset_source *source, bool single,
                         struct leat_error *err)
{
    AUTO_FREE char *path = NULL, *inner = NULL;
    uint64_t rows;
    int rc = scan_split_inner(&x->scan, source->uri, &path, &inner, &rows, err);
    if (rc < 0)
        return rc;
    int there = single && !inner && !rows && shards_is_pattern(path) ? scan_exists(&x->scan, path) : 1;
    if (there < 0)
        return there;
    if (there == 0)
        return shards_expand(&x->scan, path, &x->files, err);
    AUTO_SCAN_FILE struct scan_file file = {.fd = -1};
    rc = scan_open(&x->scan, path, &file, err);
    if (rc < 0)
        return rc;
    bool folder = S_ISDIR(file.st.st_mode);
    x->owner = file.st.st_uid;
    size_t len = strlen(path);
    if (file.fd < 0 && single && !inner && !rows && !source->field && names_index(path)) {
        if (folder)
            return error_set(err, LEAT_NOT_FOUND,
                             "%.300s: there is no such index; \"leat index %.*s\" makes it", path,
                             (int)index_scope(path), path);
        x->given = TAKE_PTR(path);
        return 0;
    }
    if (folder && len > 1 && path[len - 1] == '/' && file.fd < 0)
        path[len - 1] = 0; /* "s3://bucket/prefix/" */
    bool query = file.fd < 0 && !dataset_has_lists(path) && strchr(path, '?');
    if (single && !inner && !rows && !source->field && !query && !scan_filtered(&x->scan) &&
        asprintf(&x->beside, folder ? "%s/" BESIDE : "%s" BESIDE, path) < 0) {
        x->beside = NULL;
        return -ENOMEM;
    }
    if (!folder)
        return expect_file(x, path);
    if (file.fd < 0 && (!single || inner || rows || source->field))
        return remote_no_object(path, err);
    if (file.fd < 0) {
        x->prefix = TAKE_PTR(path);
        return 0;
    }
    rc = scan_filtered(&x->scan) ? 0 : shards_in_directory(&x->scan, path, file.fd, &x->files, err);
    if (rc != 0)
        return MIN(rc, 0);
    x->tree = TAKE_PTR(path);
    return 0;
}

static int expect_name(const struct dataset_spec *spec, struct expected *x)
{
    AUTO_FREE char *canonical = dataset_spec_format(spec);
    if (!canonical)
        return -ENOMEM;
    XXH128_hash_t h = XXH3_128bits(canonical, strlen(canonical));
    if (asprintf(&x->cache_name, "%016llx%016llx", (unsigned long long)h.high64,
                 (unsigned long long)h.low64) < 0) {
        x->cache_name = NULL;
        return -ENOMEM;
    }
    return 0;
}

static int expect(const struct dataset_spec *spec, const struct dataset_opener *opener,
                  const struct dataset_progress *progress, struct expected *x, struct leat_error *err)
{
    *x = (struct expected){.scan = {.opener = opener, .progress = progress}};
    int rc = spec->n ? 0 : error_set(err, LEAT_INVALID, "a dataset needs a source");
    for (unsigned i = 0; i < spec->n && rc == 0; i++)
        rc = expect_source(x, &spec->sources[i], spec->n == 1, err);
    if (rc == 0)
        rc = expect_name(spec, x);
    if (rc < 0)
        expected_fini(x);
    return rc;
}

static int64_t timespec_ns(struct timespec ts)
{
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* Does another process open the files? */
static bool guarded(const struct expected *x)
{
    return x->scan.opener && x->scan.opener->open;
}

/* An ETag says more than a time, which has seconds only. */
static bool object_unchanged(const struct index *ix, const struct index_source *s, uint64_t bytes,
                             const char *etag, int64_t modified)
{
    if (bytes != s->bytes)
        return false;
    const char *had = index_string(ix, s->etag);
    return *had && *etag ? !strcmp(had, etag) : s->mtime_ns == modified * 1000000000;
}

/* Is source i a folder of a tree? Folders are behind the files: the search ends at the first that is none. */
static const char *folder_path(const struct index *ix, uint64_t i)
{
    const char *path = index_string(ix, ix->sources[i].path);
    size_t len = strlen(path);
    return len && path[len - 1] == '/' ? path : NULL;
}

/* Would a scan leave out this link, "cat/x/", which cannot be opened for `rc`? In the root, "cat/", a denied one denies the set. */
static bool still_absent(const char *name, int rc)
{
    return rc == LEAT_NOT_FOUND || rc == LEAT_INVALID || (rc == LEAT_DENIED && strchr(name, '/')[1]);
}

/*
 * In the cache times are compared that a user cannot set. So a file of the same size and time in the place of
 * the old one is noticed. An index beside the data may have been copied together with the data.
 *
 * Opened, not only looked at, when another process opens for us: so that a cached index reveals no more than
 * a scan would.
 */
static bool source_unchanged(struct expected *x, const struct index *ix, uint64_t i)
{
    char path[PATH_MAX];
    struct stat st;
    const struct index_source *s = &ix->sources[i];
    if ((size_t)index_source_path(ix, i, path, sizeof(path)) >= sizeof(path))
        return false;
    if (dataset_is_remote(path)) {
        struct dataset_stat now;
        return remote_stat(&x->scan, path, &now, NULL) == 0 &&
               object_unchanged(ix, s, now.bytes, now.etag, now.modified);
    }
    bool absent = index_source_absent(ix, s);
    if (absent)
        path[strlen(path) - 1] = 0;
    if (guarded(x)) {
        AUTO_SCAN_FILE struct scan_file file = {.fd = -1};
        int rc = scan_open(&x->scan, path, &file, NULL);
        if (rc < 0)
            return absent && still_absent(index_string(ix, s->path), rc);
        st = file.st;
    } else if (stat(path, &st) < 0) {
        return absent && still_absent(index_string(ix, s->path), scan_error(-errno, path, NULL));
    }
    const struct index_header *h = ix->header;
    bool settled = h->root_mtime_ns && !strcmp(index_string(ix, s->path), "./");
    if (timespec_ns(st.st_mtim) != (settled ? h->root_mtime_ns : s->mtime_ns))
        return false;
    return S_ISDIR(st.st_mode) ||
           ((uint64_t)st.st_size == s->bytes && (x->beside_now || timespec_ns(st.st_ctim) == s->ctime_ns));
}

static bool tree_unchanged(struct expected *x, const struct index *ix)
{
    if (ix->header->kind != INDEX_KIND_DIR || strcmp(index_string(ix, ix->header->root), x->tree))
        return false;
    uint64_t i = ix->header->nsources;
    for (; i > 0 && folder_path(ix, i - 1); i--)
        if (!source_unchanged(x, ix, i - 1))
            return false;
    for (uint64_t file = 0; file < i && i <= LOOK_MAX; file++)
        if (!source_unchanged(x, ix, file))
            return false;
    return i < ix->header->nsources;
}

static bool files_unchanged(struct expected *x, const struct index *ix)
{
    if (ix->header->nsources != x->files.n)
        return false;
    for (uint64_t i = 0; i < x->files.n; i++) {
        char path[PATH_MAX];
        if ((size_t)index_source_path(ix, i, path, sizeof(path)) >= sizeof(path) ||
            strcmp(path, x->files.items[i]) || !source_unchanged(x, ix, i))
            return false;
    }
    return true;
}

struct listed {
    const struct scan *scan;
    const struct index *ix;
    uint64_t next; /* of a tree: place in the order of keys, as a list has it; of shards: source */
    uint64_t nclasses;
    bool shard, other; /* there is one; there is an object that is neither a shard nor beside one */
    size_t class_len;  /* of the last class folder */
    char class_name[1024];
};

static bool has_class(const struct index *ix, const char *name, size_t len)
{
    uint64_t lo = 0, hi = ix->header->nclasses;
    while (lo < hi) {
        uint64_t mid = lo + (hi - lo) / 2;
        size_t have_len;
        const char *have = index_class(ix, (uint32_t)mid, &have_len);
        int c = index_key_compare(have, have_len, name, len);
        if (c == 0)
            return true;
        lo = c < 0 ? mid + 1 : lo;
        hi = c < 0 ? hi : mid;
    }
    return false;
}

/* Is the class folder of this name one of the index? All names of a folder follow each other. */
static bool listed_class(struct listed *l, const char *name)
{
    size_t len = strcspn(name, "/");
    if (len == 0 || !name[len] || (l->nclasses && len == l->class_len && !memcmp(l->class_name, name, len)))
        return true;
    if (len > sizeof(l->class_name) || !has_class(l->ix, name, len))
        return false;
    memcpy(l->class_name, name, len);
    l->class_len = len;
    l->nclasses++;
    return true;
}

/* -ECANCELED: the list differs from the index. */
static int listed_object(void *ctx, const struct dataset_object *o)
{
    struct listed *l = ctx;
    const struct index *ix = l->ix;
    if (o->prefix || dataset_left_out(o->name))
        return 0;
    bool tree = ix->header->kind == INDEX_KIND_DIR, shard = shards_is_one(o->name);
    l->shard |= shard;
    l->other |= !shard && !shards_beside(o->name);
    if (!tree && !shard)
        return l->other ? -ECANCELED : 0;
    if (tree && !listed_class(l, o->name))
        return -ECANCELED;
    if (tree && (!dir_wanted(l->scan, o->name) || (ix->labels && !strchr(o->name, '/'))))
        return 0;
    if (l->next >= (tree ? ix->header->nsamples : ix->header->nsources))
        return -ECANCELED;
    uint64_t source = tree ? index_sorted(ix, l->next) : l->next;
    char path[PATH_MAX];
    if (source >= ix->header->nsources ||
        (size_t)index_source_path(ix, source, path, sizeof(path)) >= sizeof(path) || strcmp(path, o->uri) ||
        !object_unchanged(ix, &ix->sources[source], o->bytes, o->etag, o->modified))
        return -ECANCELED;
    l->next++;
    return 0;
}

/* A tree all of whose objects a scan would now take for shards is outdated. */
static bool prefix_unchanged(struct expected *x, const struct index *ix)
{
    struct listed l = {.scan = &x->scan, .ix = ix};
    bool tar = ix->header->kind == INDEX_KIND_TAR;
    if (!tar && ix->header->kind != INDEX_KIND_DIR)
        return false;
    if (remote_list_below(&x->scan, x->prefix, listed_object, &l, NULL) < 0 || l.next != ix->header->nsources)
        return false;
    bool tree = scan_filtered(&x->scan) || l.other || !l.shard;
    return tar ? !tree : tree && l.nclasses == ix->header->nclasses;
}

static bool all_unchanged(struct expected *x, const struct index *ix)
{
    return x->prefix ? prefix_unchanged(x, ix) : x->tree ? tree_unchanged(x, ix) : files_unchanged(x, ix);
}

/* An index of older rules is right, and slower to read: a new one is made, and kept in the cache. */
static bool laid_out_as_now(const struct index *ix, const char *path)
{
    bool now = ix->header->layout >= index_layout(ix->header->kind);
    if (!now)
        log_info(
            "%s: an older Leat made this index, and gave samples other places in memory: it is passed over, "
            "and another made",
            path);
    return now;
}

/* The same file, read-only. */
static int reopen(int fd)
{
    char path[40];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    int again = open(path, O_RDONLY | O_CLOEXEC);
    return again < 0 ? -errno : again;
}

/* For good: otherwise a client with the descriptor could open it again for writing, for a memfd has no mode
 * to speak of. */
static int seal(int fd)
{
    return fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0 ? -errno : 0;
}

/* The beginning of an index of another user, which is `bytes` long. */
static bool foreign_sound(const void *head, uint64_t bytes)
{
    struct index_header h;
    if (bytes < sizeof(h) || bytes > FOREIGN_MAX)
        return false;
    memcpy(&h, head, sizeof(h));
    return h.magic == INDEX_MAGIC && h.header_crc == index_header_crc(&h) && h.total_bytes == bytes;
}

/* A sealed copy in memory: the checked bytes are the used ones. */
static int copy_foreign(int from, const struct stat *st)
{
    struct index_header h;
    if (fd_read_at(from, &h, sizeof(h), 0) != (int64_t)sizeof(h) || !foreign_sound(&h, (uint64_t)st->st_size))
        return LEAT_CORRUPT;
    AUTO_CLOSE int fd = memfd_create("leat-index", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    AUTO_FREE char *buf = malloc(COPY_PIECE);
    if (fd < 0 || !buf)
        return -ENOMEM;
    for (uint64_t at = 0; at < h.total_bytes;) {
        int64_t n = fd_read_at(from, buf, MIN(COPY_PIECE, h.total_bytes - at), at);
        if (n <= 0 || pwrite(fd, buf, (size_t)n, (off_t)at) != (ssize_t)n)
            return -EIO;
        at += (uint64_t)n;
    }
    int rc = seal(fd);
    return rc < 0 ? rc : reopen(fd);
}

/* May a file of this owner beside the data be looked at? A user that may write the data's folder may as well
 * change the data, unless every user may. */
static bool may_lie_beside(struct expected *x, const char *path, uid_t uid)
{
    AUTO_SCAN_FILE struct scan_file file = {.fd = -1};
    const char *slash = strrchr(path, '/');
    AUTO_FREE char *folder = strndup(path, (size_t)MAX(slash - path, (ptrdiff_t)1));
    if (uid == x->owner)
        return true;
    return folder && scan_open(&x->scan, folder, &file, NULL) == 0 && !(file.st.st_mode & S_IWOTH);
}

/* Maps an index that matches its checksums. Another one is logged and skipped: the caller scans. */
static int map_sound(int fd, const char *path, struct index *ret_index)
{
    struct index ix;
    struct leat_error why = {0};
    int rc = index_map(fd, &ix, &why);
    if (rc == 0 && (rc = index_check_body(fd, &ix, &why)) < 0)
        index_close(&ix);
    if (rc < 0)
        log_warning("%s is passed over, and the data scanned: %s", path, why.message);
    else
        *ret_index = ix;
    return rc;
}

/* A descriptor of the index at `path`, or -1 when there is none that can be used. */
static int open_candidate(struct expected *x, const char *path, bool beside)
{
    AUTO_CLOSE int fd = -1;
    struct stat st;
    if (beside && guarded(x)) {
        AUTO_SCAN_FILE struct scan_file file = {.fd = -1};
        if (scan_open(&x->scan, path, &file, NULL) < 0)
            return -1;
        fd = TAKE_FD(file.fd);
    } else {
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    }
    struct index ix;
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return -1;
    bool foreign = st.st_uid != geteuid() && st.st_uid != 0;
    if (foreign) {
        if (!beside || !may_lie_beside(x, path, st.st_uid))
            return -1;
        int copy = copy_foreign(fd, &st);
        close(fd);
        fd = copy < 0 ? -1 : copy;
    }
    if (fd < 0 || map_sound(fd, path, &ix) < 0)
        return -1;
    x->beside_now = beside;
    bool good = all_unchanged(x, &ix) && laid_out_as_now(&ix, path);
    if (good && foreign)
        good = index_validate(&ix, NULL) == 0;
    index_close(&ix);
    return good ? TAKE_FD(fd) : -1;
}

/* The index beside remote data: of unknown origin. -1: none that can be used. */
static int fetch_candidate(struct expected *x)
{
    AUTO_CLOSE int fd = -1;
    struct index ix;
    if (remote_fetch(&x->scan, x->beside, foreign_sound, &fd, NULL) < 0 || seal(fd) < 0 ||
        map_sound(fd, x->beside, &ix) < 0)
        return -1;
    x->beside_now = true;
    bool good = index_validate(&ix, NULL) == 0 && all_unchanged(x, &ix) && laid_out_as_now(&ix, x->beside);
    index_close(&ix);
    int again = good ? reopen(fd) : -1;
    return MAX(again, -1);
}

/* The index that was named instead of data. It is trusted, except for the place of its data: these must lie
 * beside it, since a caller that lends credentials for one place has not lent them for all. */
static int fetch_given(struct expected *x, int *ret_fd, struct leat_error *err)
{
    AUTO_CLOSE int fd = -1;
    struct index ix;
    int rc = remote_fetch(&x->scan, x->given, foreign_sound, &fd, err);
    if (rc == 0 && (rc = seal(fd)) < 0)
        error_sys(err, rc, "%.300s: the index cannot be kept", x->given);
    if (rc < 0)
        return rc;
    rc = index_map(fd, &ix, err);
    if (rc < 0)
        return error_prefix(err, rc, "%.300s", x->given);
    size_t scope = index_scope(x->given);
    bool folder = x->given[scope] == '/';
    rc = index_check_body(fd, &ix, err);
    if (rc == 0)
        rc = index_validate(&ix, err);
    if (rc < 0)
        error_prefix(err, rc, "%.300s", x->given);
    for (uint64_t i = 0; rc == 0 && i < ix.header->nsources; i++) {
        char path[PATH_MAX];
        if ((size_t)index_source_path(&ix, i, path, sizeof(path)) >= sizeof(path) ||
            strncmp(path, x->given, scope) != 0 || path[scope] != (folder ? '/' : 0))
            rc = error_set(err, LEAT_INVALID,
                           "%.300s: an index of data in another place (%.300s): it was moved here, "
                           "perhaps; \"leat index %.*s\" makes a new one",
                           x->given, path, (int)scope, x->given);
    }
    index_close(&ix);
    int again = rc < 0 ? rc : reopen(fd);
    if (rc == 0 && again < 0)
        return error_sys(err, again, "%.300s: the index cannot be read back", x->given);
    if (rc == 0)
        *ret_fd = again;
    return rc;
}

/* Makes each missing folder of the path, 0700. */
static int make_folders(char *path)
{
    for (char *p = path + 1;; p++) {
        if (*p && *p != '/')
            continue;
        char keep = *p;
        *p = 0;
        int rc = mkdir(path, 0700) < 0 && errno != EEXIST ? -errno : 0;
        *p = keep;
        if (rc < 0 || !keep)
            return rc;
    }
}

/* In $XDG_CACHE_HOME/leat/index, which must be this user's: another user could replace names in it. */
static int cache_path(const struct expected *x, bool make, char **ret_path)
{
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    AUTO_FREE char *path = NULL;
    bool use_xdg = xdg && xdg[0] == '/';
    if (!use_xdg && (!home || home[0] != '/'))
        return -ENOENT;
    if (asprintf(&path, use_xdg ? "%s/leat/index" : "%s/.cache/leat/index", use_xdg ? xdg : home) < 0)
        return -ENOMEM;
    int rc = make ? make_folders(path) : 0;
    struct stat st;
    if (rc == 0 && stat(path, &st) < 0)
        rc = -errno;
    if (rc < 0)
        return rc;
    if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 022))
        return -EACCES;
    char *full;
    if (asprintf(&full, "%s/%s", path, x->cache_name) < 0)
        return -ENOMEM;
    *ret_path = full;
    return 0;
}

/* A sum over the names that a scan would see in a folder, in any order. */
static int sum_names(const char *path, uint64_t *ret_sum)
{
    DIR *dir = opendir(path);
    if (!dir)
        return -errno;
    uint64_t sum = 0;
    errno = 0;
    for (struct dirent *d; (d = readdir(dir)); errno = 0)
        if (d->d_name[0] != '.')
            sum += XXH3_64bits(d->d_name, strlen(d->d_name));
    int rc = -errno;
    closedir(dir);
    *ret_sum = sum;
    return rc;
}

/* The time of the root that the index has. */
static int64_t root_time(int fd)
{
    struct index ix;
    if (index_map(fd, &ix, NULL) < 0)
        return -1;
    int64_t mtime_ns = -1;
    for (uint64_t i = ix.header->nsources; i > 0 && folder_path(&ix, i - 1) && mtime_ns < 0; i--)
        if (!strcmp(folder_path(&ix, i - 1), "./"))
            mtime_ns = ix.sources[i - 1].mtime_ns;
    index_close(&ix);
    return mtime_ns;
}

/* A sum over the names in the tree's root, if they are those that the index of `fd` was made of. */
static bool root_scanned(int fd, const char *tree, uint64_t *ret_names)
{
    struct stat st;
    return sum_names(tree, ret_names) == 0 && stat(tree, &st) == 0 &&
           timespec_ns(st.st_mtim) == root_time(fd);
}

/*
 * An index that takes its name in a tree touches the tree's root, and must not be stale by that: with the same names in it, the root's new
 * time is as good. One write of eight bytes, so that at any moment the index is whole. Where it fails the index is stale.
 */
static void settle_root_time(int fd, const char *tree, uint64_t names)
{
    struct stat st;
    uint64_t names_now;
    AUTO_CLOSE int dir = open(tree, O_PATH | O_DIRECTORY | O_CLOEXEC);
    scan_wait_tick(); /* what comes in this tick would not show later */
    if (dir < 0 || scan_stat_folder(dir, &st) < 0 || sum_names(tree, &names_now) < 0 || names_now != names)
        return;
    int64_t now_ns = timespec_ns(st.st_mtim);
    ssize_t n = pwrite(fd, &now_ns, sizeof(now_ns), offsetof(struct index_header, root_mtime_ns));
    (void)n;
}

static int copy_index(int from, int fd)
{
    struct stat st;
    if (fstat(from, &st) < 0)
        return -errno;
    for (off_t at = 0; at < st.st_size;)
        if (sendfile(fd, from, &at, (size_t)(st.st_size - at)) <= 0 && errno != EINTR)
            return errno ? -errno : -EIO;
    return 0;
}

/* Scans into a temporary file beside `path` and renames it there; `from`: an index that was made already, or -1. *ret_made: the file
 * could be made at all, so that a failure is the scan's own. */
static int scan_to_file(const struct dataset_spec *spec, struct expected *x, const char *path, mode_t mode,
                        int from, int *ret_fd, bool *ret_made, struct leat_error *err)
{
    AUTO_FREE char *temporary = NULL;
    const char *slash = strrchr(path, '/');
    static _Atomic unsigned serial;
    if (asprintf(&temporary, "%.*s.leat-index.%d.%u.tmp", (int)(slash - path + 1), path, (int)getpid(),
                 atomic_fetch_add(&serial, 1)) < 0)
        return -ENOMEM;
    AUTO_CLOSE int fd = open(temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
    *ret_made = fd >= 0;
    if (fd < 0)
        return error_sys(err, -errno, "%s: the index cannot be written", path);
    int rc = from >= 0 ? copy_index(from, fd) : scan_build(&x->scan, spec, fd, err);
    if (rc < 0 && from >= 0)
        error_sys(err, rc, "%s: the index cannot be written", path);
    /* Or the name could outlive a power cut and the content not: zeros in the middle would go unnoticed, and
     * labels are read from there. */
    if (rc == 0 && fdatasync(fd) < 0)
        rc = error_sys(err, -errno, "%s: the index cannot be written", path);
    uint64_t names = 0;
    bool inside = x->tree && strlen(x->tree) == (size_t)(slash - path) &&
                  !strncmp(x->tree, path, (size_t)(slash - path));
    bool settle = rc == 0 && inside && root_scanned(fd, x->tree, &names);
    int again = rc < 0 ? rc : reopen(fd);
    if (rc == 0 && again < 0)
        rc = error_sys(err, again, "%s: the index cannot be read back", path);
    if (rc == 0 && rename(temporary, path) < 0) {
        rc = error_sys(err, -errno, "%s: the index cannot be put there", path);
        close(again);
    }
    if (rc < 0) {
        unlink(temporary);
        return rc;
    }
    if (settle)
        settle_root_time(fd, x->tree, names);
    *ret_fd = again;
    return 0;
}

/* So that it is not fetched every time. Failures are ignored. */
static void keep_fetched(const struct dataset_spec *spec, struct expected *x, int from)
{
    AUTO_FREE char *path = NULL;
    AUTO_CLOSE int fd = -1;
    bool made;
    if (cache_path(x, true, &path) == 0)
        scan_to_file(spec, x, path, 0600, from, &fd, &made, NULL);
}

static int scan_to_memory(const struct dataset_spec *spec, struct expected *x, int *ret_fd,
                          struct leat_error *err)
{
    AUTO_CLOSE int fd = memfd_create("leat-index", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return error_sys(err, -errno, "no memory for the index");
    int rc = scan_build(&x->scan, spec, fd, err);
    if (rc < 0)
        return rc;
    rc = seal(fd);
    int again = rc < 0 ? rc : reopen(fd);
    if (again < 0)
        return error_sys(err, again, "the index cannot be read back");
    *ret_fd = again;
    return 0;
}

/* Is this an error of the place that is written to? Then memory will do. */
static bool is_write_trouble(int rc)
{
    return rc == -ENOSPC || rc == -EDQUOT || rc == -EFBIG || rc == -EROFS || rc == -EIO;
}

int dataset_index_open(const struct dataset_spec *spec, const struct dataset_opener *opener,
                       const struct dataset_progress *progress, bool keep, int *ret_fd, bool *ret_scanned,
                       struct leat_error *err)
{
    struct expected x;
    int rc = expect(spec, opener, progress, &x, err);
    if (rc < 0)
        return scan_fail(rc, err);
    if (x.given) {
        rc = fetch_given(&x, ret_fd, err);
        expected_fini(&x);
        *ret_scanned = false;
        return scan_fail(rc, err);
    }
    AUTO_FREE char *cached = NULL;
    bool elsewhere = x.beside && dataset_is_remote(x.beside);
    int fd = x.beside && !elsewhere ? open_candidate(&x, x.beside, true) : -1;
    if (fd < 0 && cache_path(&x, false, &cached) == 0)
        fd = open_candidate(&x, cached, false);
    if (fd < 0 && elsewhere && (fd = fetch_candidate(&x)) >= 0 && keep)
        keep_fetched(spec, &x, fd);
    bool scanned = fd < 0;
    if (scanned) {
        bool made = false;
        free(TAKE_PTR(cached));
        rc = keep ? cache_path(&x, true, &cached) : -EROFS;
        if (rc == 0)
            rc = scan_to_file(spec, &x, cached, 0600, -1, &fd, &made, err);
        if (rc < 0 && (!made || is_write_trouble(rc)))
            rc = scan_to_memory(spec, &x, &fd, err);
    }
    expected_fini(&x);
    if (rc < 0)
        return scan_fail(rc, err);
    *ret_fd = fd;
    *ret_scanned = scanned;
    return 0;
}

void dataset_index_forget(const char *text)
{
    struct dataset_spec spec;
    if (dataset_spec_parse(text, &spec, NULL) < 0)
        return;
    struct expected x = {0};
    AUTO_FREE char *path = NULL;
    if (expect_name(&spec, &x) == 0 && cache_path(&x, false, &path) == 0)
        unlink(path);
    expected_fini(&x);
    dataset_spec_free(&spec);
}

/* Beside remote data. */
static int put_beside(struct expected *x, int fd, struct leat_error *err)
{
    const struct dataset_opener *o = x->scan.opener;
    struct stat st;
    if (!dataset_has_lists(x->beside))
        return error_set(err, LEAT_UNSUPPORTED,
                         "%.300s: a plain web server is read only; the index can only lie in the cache",
                         x->beside);
    if (fstat(fd, &st) < 0)
        return error_sys(err, -errno, "the index cannot be looked at");
    return o->remote->put(o->remote_user, x->beside, fd, (uint64_t)st.st_size, err);
}

int dataset_index_write(const struct dataset_spec *spec, const struct dataset_opener *opener,
                        const struct dataset_progress *progress, bool cache_ok, char **ret_path, int *ret_fd,
                        struct leat_error *err)
{
    struct expected x;
    int rc = expect(spec, opener, progress, &x, err);
    if (rc < 0)
        return scan_fail(rc, err);
    AUTO_FREE char *path = NULL;
    AUTO_CLOSE int fd = -1, memory = -1;
    bool made = false;
    rc = error_set(err, LEAT_INVALID,
                   "there is no one place beside several sources or a pattern; their index can only lie "
                   "in the cache");
    if (x.beside && dataset_is_remote(x.beside)) {
        rc = scan_to_memory(spec, &x, &memory, err);
        made = rc < 0;
        if (rc == 0)
            rc = put_beside(&x, memory, err);
        if (rc == 0)
            fd = TAKE_FD(memory);
        path = TAKE_PTR(x.beside);
    } else if (x.beside) {
        path = TAKE_PTR(x.beside);
        rc = scan_to_file(spec, &x, path, 0666, -1, &fd, &made, err);
    }
    if (rc < 0 && !made && cache_ok) {
        free(TAKE_PTR(path));
        rc = cache_path(&x, true, &path);
        rc = rc < 0
                 ? error_sys(err, rc,
                             "neither the data's folder nor the cache ($XDG_CACHE_HOME/leat/index, else "
                             "~/.cache/leat/index) can be written; set XDG_CACHE_HOME to a folder of yours")
                 : scan_to_file(spec, &x, path, 0600, memory, &fd, &made, err);
    }
    expected_fini(&x);
    if (rc == 0) {
        *ret_path = TAKE_PTR(path);
        *ret_fd = TAKE_FD(fd);
    }
    return scan_fail(rc, err);
}
