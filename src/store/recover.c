/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recover.c: the index of a path at start: out of snapshot and logs, or, where they are damaged, out of the objects' own trailers.
 *
 * Happy path: map the newest snapshot, apply the logs from its number on, continue with a new log. After a crash, files that were deleted or
 * replaced are unlinked once more, and files made but never used as well: their numbers are in the log. Those that have a trailer are kept (orphans.c).
 * Failure modes: the torn end of a log is where it ends, also where whole records stand behind the first that
 * is not: pages reach the disk in any order. It is damage if one of these states that the broken one had been
 * flushed, if the next log counts more records, or if a log is missing. Then every file is looked at, and the
 * newest version of each key counts (numbers of versions only grow). Readable deletions in the logs count
 * too. Files without a readable, sound trailer go to damaged/.
 * Invariants: what was acknowledged has its record on the disk, or its file.
 */
#include "base/array.h"
#include "store/internal.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/crc32c.h"
#include "base/log.h"

struct numbers {
    uint64_t *values;
    size_t n, cap;
};

static int numbers_add(struct numbers *l, uint64_t v)
{
    if (array_reserve(&l->values, &l->cap, l->n + 1) < 0)
        return -ENOMEM;
    l->values[l->n++] = v;
    return 0;
}

static int by_number(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

struct loading {
    struct path *p;
    struct numbers logs, snapshots, unused; /* unused: files made, not known to be an object's */
    struct numbers stale;                   /* files that are no object's any more */
    uint64_t newest;                        /* number of a log or snapshot */
    struct log_header next;          /* of the log that this start makes: what it records of the one before */
    struct log_header header, known; /* of the newest log: as it is; as it should be about the one before */
    bool empty;                      /* the newest log has a header and nothing else */
    bool damaged, torn, closed;
};

static int list_index(struct loading *l)
{
    char dir[PATH_FILE_MAX];
    snprintf(dir, sizeof(dir), "%s/index", l->p->dir);
    DIR *d = opendir(dir);
    if (!d)
        return -errno;
    int rc = 0;
    for (struct dirent *e; rc == 0 && (e = readdir(d));) {
        unsigned long long n;
        if (sscanf(e->d_name, "log.%16llx", &n) == 1)
            rc = numbers_add(&l->logs, n);
        else if (sscanf(e->d_name, "snapshot.%16llx", &n) == 1)
            rc = numbers_add(&l->snapshots, n);
        else
            continue;
        l->newest = MAX(l->newest, n);
    }
    closedir(d);
    if (l->logs.n)
        qsort(l->logs.values, l->logs.n, sizeof(uint64_t), by_number);
    if (l->snapshots.n)
        qsort(l->snapshots.values, l->snapshots.n, sizeof(uint64_t), by_number);
    return rc;
}

static void seen(struct path *p, uint64_t file, uint64_t seq)
{
    p->next_file = MAX(p->next_file, file + 1);
    if (seq > atomic_load(&p->store->seq))
        atomic_store(&p->store->seq, seq);
}

static void count_snapshot(struct index *x)
{
    struct snapshot *s = x->snapshot;
    for (uint64_t i = 0; i < s->count; i++) {
        const struct index_value *v = &s->entries[i].value;
        bool hidden = x->hidden == i && /* they come first */
                      index_key_hidden(s->strings + s->entries[i].key_offset, s->entries[i].key_len);
        x->hidden += hidden ? 1 : 0;
        x->objects++;
        x->bytes += v->bytes + v->trailer_bytes;
        x->dirty += v->flags & STORE_DIRTY ? 1 : 0;
    }
}

static int load_snapshot(struct loading *l)
{
    struct path *p = l->p;
    for (size_t i = l->snapshots.n; i-- > 0;) {
        char name[PATH_FILE_MAX];
        struct snapshot_header h;
        snprintf(name, sizeof(name), "%s/index/snapshot.%016llx", p->dir,
                 (unsigned long long)l->snapshots.values[i]);
        uint64_t *outstanding;
        int rc = store_snapshot_load(p, name, &p->index.snapshot, &h, &outstanding);
        if (rc == -ENOMEM)
            return rc;
        if (rc < 0) {
            log_warning("%s is damaged", name);
            continue;
        }
        for (uint64_t k = 0; rc == 0 && k < h.outstanding; k++)
            rc = numbers_add(&l->unused, outstanding[k]);
        free(outstanding);
        p->snapshot_number = h.number;
        seen(p, h.next_file ? h.next_file - 1 : 0, h.next_seq);
        count_snapshot(&p->index);
        return rc;
    }
    return 0;
}

/* --- logs --------------------------------------------------------------------------------------------------------------- */

static int map_log(struct path *p, uint64_t number, void **ret_map, size_t *ret_bytes)
{
    const struct store_io *io = p->store->io;
    char name[PATH_FILE_MAX];
    snprintf(name, sizeof(name), "%s/index/log.%016llx", p->dir, (unsigned long long)number);
    int fd = io->open(io, name, O_RDONLY, 0);
    if (fd < 0)
        return fd;
    struct stat st;
    int rc = fstat(fd, &st) < 0 ? -errno : 0;
    *ret_map = NULL;
    *ret_bytes = 0;
    if (rc == 0 && st.st_size > 0) {
        void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
        rc = map == MAP_FAILED ? -errno : 0;
        if (rc == 0) {
            *ret_map = map;
            *ret_bytes = (size_t)st.st_size;
        }
    }
    /* A killed process may have left records that no flush has seen. The start acts on what it reads here, so
     * it must outlast a power cut. */
    if (rc == 0)
        rc = io->datasync(io, fd);
    if (rc < 0 && *ret_map)
        munmap(TAKE_PTR(*ret_map), *ret_bytes);
    io->close(io, fd);
    return rc;
}

/* Where the zeros at the end begin, or up to a block later. */
static size_t without_zeros(const uint8_t *data, size_t len)
{
    static const uint8_t zeros[4 * KIB];
    while (len >= sizeof(zeros) && memcmp(data + len - sizeof(zeros), zeros, sizeof(zeros)) == 0)
        len -= sizeof(zeros);
    return len;
}

/*
 * Whole records behind the broken one, number nth. None of them was flushed if that one was not, so none was acknowledged, and nothing was unlinked
 * for their sake: the log ends before it. One that says it was flushed is proof of damage.
 */
static void look_behind(struct loading *l, const uint8_t *data, size_t len, uint64_t number, uint64_t nth)
{
    size_t end = without_zeros(data, len); /* a record's number is not 0, so none begins beyond */
    for (size_t at = 1; !l->damaged && at < end && at + LOG_RECORD_HEAD < len; at++) {
        uint64_t n;
        memcpy(&n, data + at + 8, 8);
        struct log_record r;
        if (n <= nth || n >= nth + (1u << 20) || !store_log_record_parse(data + at, len - at, number, n, &r))
            continue;
        l->torn = true;
        l->damaged = r.unflushed < LOG_UNFLUSHED_MAX && n - MIN(n, (uint64_t)r.unflushed) > nth;
    }
}

static int remove_unused(struct loading *l, uint64_t file)
{
    for (size_t i = l->unused.n; i-- > 0;)
        if (l->unused.values[i] == file) {
            l->unused.values[i] = l->unused.values[--l->unused.n];
            break;
        }
    return 0;
}

/* The object that completed an upload, and the end of that upload, are one record. */
static int end_upload(struct loading *l, const struct log_record *r, const char *text)
{
    uint8_t id[16];
    uint32_t bucket_id;
    struct ikey k;
    struct index_value dead = {.seq = r->value.seq, .flags = INDEX_DEAD}, old;
    if (!store_upload_id_parse(text, id))
        return LEAT_CORRUPT;
    memcpy(&bucket_id, r->key, 4);
    store_upload_key(__builtin_bswap32(bucket_id), id, 0, &k);
    struct index_node *node = store_index_node_new(&l->p->index, &dead, k.bytes, k.len, NULL, 0);
    if (!node)
        return -ENOMEM;
    return store_index_apply(&l->p->index, node, &old) ? numbers_add(&l->stale, old.file) : 0;
}

static int apply_record(struct loading *l, const struct log_record *r)
{
    struct path *p = l->p;
    l->closed = r->type == LOG_CLOSE;
    if (r->type == LOG_MARK)
        return 0;
    if (r->type == LOG_CLOSE) {
        l->unused.n = l->stale.n = 0;
        return 0;
    }
    if (r->type == LOG_ALLOCATE) {
        int rc = r->value.bytes > FILES_AT_A_TIME ? LEAT_CORRUPT : 0;
        for (uint64_t i = 0; rc == 0 && i < r->value.bytes; i++) {
            rc = numbers_add(&l->unused, r->value.file + i);
            seen(p, r->value.file + i, 0);
        }
        return rc;
    }
    struct index_value value = r->value, old;
    if (r->type == LOG_DELETE)
        value.flags |= INDEX_DEAD;
    else
        seen(p, value.file, 0);
    seen(p, 0, value.seq);
    struct index_node *node =
        store_index_node_new(&p->index, &value, r->key, r->key_len, r->extra, r->extra_len);
    if (!node)
        return -ENOMEM;
    if (r->type == LOG_PUT)
        remove_unused(l, value.file);
    /* Read before: the record's bytes are the map's, the node's will be the index's. */
    const char *upload = store_extra_get(r->extra, r->extra_len, 'u');
    if (store_index_apply(&p->index, node, &old) && (r->type == LOG_DELETE || old.file != value.file)) {
        int rc = numbers_add(&l->stale, old.file);
        if (rc < 0)
            return rc;
    }
    return upload ? end_upload(l, r, upload) : 0;
}

/* How many records this log must have at least, from the next one's header. 0: unknown. */
static uint64_t records_of(struct path *p, uint64_t number, uint64_t *ret_end)
{
    const struct store_io *io = p->store->io;
    char name[PATH_FILE_MAX];
    uint8_t header[LOG_HEADER_BYTES];
    struct log_header next;
    snprintf(name, sizeof(name), "%s/index/log.%016llx", p->dir, (unsigned long long)number + 1);
    int fd = io->open(io, name, O_RDONLY, 0);
    if (fd < 0)
        return 0;
    int rc = store_io_read(io, fd, header, sizeof(header), 0);
    io->close(io, fd);
    if (rc < 0 || store_log_header_parse(header, sizeof(header), p->id, number + 1, &next) < 0)
        return 0;
    *ret_end = next.before_end;
    return next.before_records;
}

/* Short, or zeros at its end: nothing after the end shows it, but the next log does. */
static void check_end(struct loading *l, uint64_t number, uint64_t records, uint64_t end)
{
    uint64_t wanted_end = 0, wanted = records_of(l->p, number, &wanted_end);
    if (records >= wanted)
        return;
    log_error("%s: index/log.%016llx has lost its end: %llu of %llu records are there, %llu of %llu bytes",
              l->p->dir, (unsigned long long)number, (unsigned long long)records, (unsigned long long)wanted,
              (unsigned long long)end, (unsigned long long)wanted_end);
    l->damaged = true;
}

/* Calls `record` for each; damage is noted in l. */
static int read_log(struct loading *l, uint64_t number,
                    int (*record)(struct loading *l, const struct log_record *r))
{
    void *map;
    size_t bytes, at = 0;
    uint64_t nth = 0;
    struct log_header h;
    int rc = map_log(l->p, number, &map, &bytes);
    if (rc < 0)
        return rc;
    l->empty = false;
    if (store_log_header_parse(map, bytes, l->p->id, number, &h) < 0) {
        l->damaged |= bytes > LOG_HEADER_BYTES; /* else: made, and never written to */
    } else {
        struct log_record r;
        size_t n;
        at = LOG_HEADER_BYTES;
        for (; rc == 0 && (n = store_log_record_parse((uint8_t *)map + at, bytes - at, number, nth, &r)) > 0;
             at += n, nth++)
            rc = record(l, &r);
        if (rc == 0)
            look_behind(l, (uint8_t *)map + at, bytes - at, number, nth);
        l->empty = bytes == LOG_HEADER_BYTES;
        l->header = h;
        l->known = l->next;
        l->known.number = number;
    }
    if (rc == 0 && !l->damaged)
        check_end(l, number, nth, at);
    l->next = (struct log_header){.before_records = nth, .before_end = at};
    if (map)
        munmap(map, bytes);
    return rc;
}

static int replay(struct loading *l)
{
    struct path *p = l->p;
    uint64_t next = MAX(p->snapshot_number, 1u);
    for (size_t i = 0; i < l->logs.n; i++) {
        uint64_t number = l->logs.values[i];
        if (number < next)
            continue; /* in the snapshot already */
        if (number != next++) {
            l->damaged = true;
            return 0;
        }
        int rc = read_log(l, number, apply_record);
        if (rc < 0 || l->damaged)
            return rc;
    }
    /* A snapshot is made after its log, so that one is there; and there is a snapshot or the very first log. */
    l->damaged = l->newest > 0 && next == MAX(p->snapshot_number, 1u);
    return 0;
}

static bool index_key_is(const struct index_item *item, const struct ikey *k)
{
    return item->key_len == k->len && memcmp(item->key, k->bytes, k->len) == 0;
}

/* --- out of the files ----------------------------------------------------------------------------------------------------- */

/* over: its data about the remote is outdated. */
static int node_of_trailer(struct path *p, const struct trailer *t, uint32_t trailer_bytes, bool over,
                           struct index_node **ret)
{
    struct index_value v = {
        .file = t->file,
        .seq = t->seq,
        .bytes = t->bytes,
        .mtime_ns = t->mtime_ns,
        .trailer_bytes = trailer_bytes,
        .flags = over ? 0 : t->flags & STORE_DIRTY,
        .crc32c = t->crc32c,
        .parts = t->parts,
    };
    memcpy(v.etag, t->etag, sizeof(v.etag));
    uint8_t extra[INDEX_EXTRA_MAX];
    size_t len = 0;
    if (*t->etag_text)
        len = store_extra_put(extra, len, 'e', t->etag_text);
    if (over || *t->remote) /* without a tag it is compared before it is served */
        len = store_extra_put(extra, len, 'r', over ? "" : t->remote);
    struct ikey k;
    ikey_set(&k, t->bucket_id, t->key, t->key_len);
    *ret = store_index_node_new(&p->index, &v, k.bytes, k.len, extra, len);
    return *ret ? 0 : -ENOMEM;
}

/* Reads the trailer of an open file into *ret_data, freed by the caller. LEAT_CORRUPT: there is none. */
int store_trailer_read(struct path *p, int fd, uint8_t **ret_data, uint32_t *ret_bytes, struct trailer *ret)
{
    const struct store_io *io = p->store->io;
    struct stat st;
    uint8_t footer[FOOTER_BYTES];
    uint64_t bytes;
    uint32_t len;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (st.st_size < (off_t)FOOTER_BYTES)
        return LEAT_CORRUPT;
    int rc = store_io_read(io, fd, footer, sizeof(footer), (uint64_t)st.st_size - sizeof(footer));
    if (rc == 0)
        rc = store_footer_parse(footer, &len, &bytes);
    if (rc < 0)
        return rc;
    if (bytes + len > (uint64_t)st.st_size)
        return LEAT_CORRUPT;
    AUTO_FREE uint8_t *data = malloc(len);
    if (!data)
        return -ENOMEM;
    rc = store_io_read(io, fd, data, len, (uint64_t)st.st_size - len);
    if (rc == 0)
        rc = store_trailer_parse(data, len, ret);
    if (rc < 0)
        return rc;
    *ret_data = TAKE_PTR(data);
    *ret_bytes = len;
    return 0;
}

/* This file cannot be identified: it is moved to damaged/, by number. LEAT_CORRUPT, or the path is left. */
static int put_aside(struct path *p, uint64_t file, int rc)
{
    store_path_unreadable(p, file, rc, "an object that is put aside into damaged/", NULL);
    return atomic_load(&p->failed) ? STORE_UNAVAILABLE : LEAT_CORRUPT;
}

static bool is_of_one_file(int rc)
{
    return rc != LEAT_CORRUPT && rc != -ENOMEM && rc != -EMFILE && rc != -ENFILE;
}

static int adopt(struct loading *l, uint64_t file, const char *name, const char *damaged)
{
    struct path *p = l->p;
    const struct store_io *io = p->store->io;
    seen(p, file, 0);
    struct trailer t;
    AUTO_FREE uint8_t *data = NULL;
    uint32_t len;
    struct stat st = {0};
    int fd = io->open(io, name, O_RDONLY, 0);
    int rc = fd < 0 ? fd : store_trailer_read(p, fd, &data, &len, &t);
    bool empty = fd >= 0 && fstat(fd, &st) == 0 && st.st_size == 0;
    if (fd >= 0)
        io->close(io, fd);
    if (rc == 0)
        store_path_readable(p);
    if (rc == 0 && t.file != file)
        rc = LEAT_CORRUPT;
    if (rc < 0 && is_of_one_file(rc))
        rc = put_aside(p, file, rc);
    if (rc == LEAT_CORRUPT)
        return empty ? io->unlink(io, name) : io->rename(io, name, damaged);
    if (rc < 0)
        return rc;
    seen(p, file, t.seq);
    struct index_node *node;
    rc = node_of_trailer(p, &t, len, (st.st_mode & 07777) == FILE_MODE_PUSHED, &node);
    if (rc < 0)
        return rc;
    struct index_item there;
    struct index_value old;
    if (store_index_find(&p->index, index_node_key(node), node->key_len, &there) && there.value.seq > t.seq) {
        free(node);
        return numbers_add(&l->stale, file);
    }
    return store_index_apply(&p->index, node, &old) ? numbers_add(&l->stale, old.file) : 0;
}

static int scan_folder(struct loading *l, const char *folder)
{
    char dir[PATH_FILE_MAX], name[2 * PATH_FILE_MAX], damaged[2 * PATH_FILE_MAX];
    snprintf(dir, sizeof(dir), "%s/objects/%s", l->p->dir, folder);
    DIR *d = opendir(dir);
    if (!d)
        return errno == ENOTDIR ? 0 : -errno;
    int rc = 0;
    for (struct dirent *e; rc == 0 && (e = readdir(d));) {
        char *end;
        unsigned long long file = strtoull(e->d_name, &end, 16);
        if (end - e->d_name != 12 || *end)
            continue;
        snprintf(name, sizeof(name), "%s/%s", dir, e->d_name);
        snprintf(damaged, sizeof(damaged), "%s/damaged/%s", l->p->dir, e->d_name);
        rc = adopt(l, file, name, damaged);
    }
    closedir(d);
    return rc;
}

static int heed_deletion(struct loading *l, const struct log_record *r)
{
    struct path *p = l->p;
    struct index_item there;
    if (r->type == LOG_ALLOCATE)
        seen(p, r->value.file + MIN(r->value.bytes, (uint64_t)FILES_AT_A_TIME), 0);
    const char *upload = r->type == LOG_PUT ? store_extra_get(r->extra, r->extra_len, 'u') : NULL;
    if (upload)
        return end_upload(l, r, upload);
    if (r->type != LOG_DELETE)
        return 0;
    seen(p, 0, r->value.seq);
    if (!store_index_find(&p->index, r->key, r->key_len, &there) || there.value.seq > r->value.seq)
        return 0;
    struct index_value value = r->value, old;
    value.flags |= INDEX_DEAD;
    struct index_node *node = store_index_node_new(&p->index, &value, r->key, r->key_len, NULL, 0);
    if (!node)
        return -ENOMEM;
    return store_index_apply(&p->index, node, &old) ? numbers_add(&l->stale, old.file) : 0;
}

/* Do the bytes match the trailer? 0, LEAT_CORRUPT, or another error. */
static int verify_file(struct path *p, const char *name)
{
    const struct store_io *io = p->store->io;
    int fd = io->open(io, name, O_RDONLY, 0);
    if (fd < 0)
        return fd;
    struct trailer t;
    AUTO_FREE uint8_t *data = NULL, *block = malloc(STORE_BLOCK);
    uint32_t len;
    int rc = block ? store_trailer_read(p, fd, &data, &len, &t) : -ENOMEM;
    for (uint64_t i = 0; rc == 0 && i < t.ncrcs; i++) {
        size_t n = (size_t)MIN(STORE_BLOCK, t.bytes - i * STORE_BLOCK);
        rc = store_io_read(io, fd, block, n, i * STORE_BLOCK);
        if (rc == 0 && crc32c(0, block, n) != t.crcs[i])
            rc = LEAT_CORRUPT;
    }
    io->close(io, fd);
    return rc;
}

/* The newest objects may have been in flight at the crash: a trailer can reach the disk before its payload.
 * Those that are not whole go to damaged/. Keys are the cursor's only under the lock, so one is looked for at
 * a time. */
static int drop_torn(struct loading *l, bool *ret_any)
{
    const uint64_t window = 600ull * 1000000000;
    struct path *p = l->p;
    uint64_t newest = atomic_load(&p->store->seq);
    struct ikey at = {.len = 0};
    *ret_any = false;
    for (;;) {
        struct index_cursor c;
        char name[PATH_FILE_MAX], damaged[PATH_FILE_MAX];
        store_index_seek(&c, &p->index, at.bytes, at.len);
        while (c.valid && (c.item.value.seq + window < newest || index_key_is(&c.item, &at)))
            store_index_next(&c);
        if (!c.valid)
            return 0;
        memcpy(at.bytes, c.item.key, c.item.key_len);
        at.len = c.item.key_len;
        store_path_file_name(p, c.item.value.file, name);
        int rc = verify_file(p, name);
        if (rc == 0 || (rc < 0 && is_of_one_file(rc))) /* unreadable is not torn: a reader gets the error */
            continue;
        if (rc != LEAT_CORRUPT)
            return rc;
        snprintf(damaged, sizeof(damaged), "%s/damaged/%012llx", p->dir,
                 (unsigned long long)c.item.value.file);
        struct index_value dead = {.seq = c.item.value.seq, .flags = INDEX_DEAD}, old;
        struct index_node *node = store_index_node_new(&p->index, &dead, at.bytes, at.len, NULL, 0);
        if (!node)
            return -ENOMEM;
        store_index_apply(&p->index, node, &old);
        *ret_any = true;
        rc = p->store->io->rename(p->store->io, name, damaged);
        if (rc < 0)
            return rc;
    }
}

/* The version that such an object had replaced counts again. */
static int adopt_again(struct loading *l)
{
    struct path *p = l->p;
    struct numbers again = l->stale;
    l->stale = (struct numbers){0};
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < again.n; i++) {
        char name[PATH_FILE_MAX], damaged[PATH_FILE_MAX];
        store_path_file_name(p, again.values[i], name);
        snprintf(damaged, sizeof(damaged), "%s/damaged/%012llx", p->dir, (unsigned long long)again.values[i]);
        rc = adopt(l, again.values[i], name, damaged);
    }
    free(again.values);
    return rc;
}

static int rebuild(struct loading *l)
{
    struct path *p = l->p;
    log_warning("%s: its index is damaged or missing; rebuilding it from the objects", p->dir);
    store_index_fini(&p->index);
    int rc = store_index_init(&p->index);
    if (rc < 0)
        return rc;
    l->unused.n = l->stale.n = 0;
    char dir[PATH_FILE_MAX];
    snprintf(dir, sizeof(dir), "%s/objects", p->dir);
    DIR *d = opendir(dir);
    if (!d)
        return -errno;
    for (struct dirent *e; rc == 0 && (e = readdir(d));)
        if (strlen(e->d_name) == 6 && strspn(e->d_name, "0123456789abcdef") == 6)
            rc = scan_folder(l, e->d_name);
    closedir(d);
    for (bool torn = true; rc == 0 && torn;) {
        rc = drop_torn(l, &torn);
        if (rc == 0 && torn)
            rc = adopt_again(l);
    }
    for (size_t i = 0; rc >= 0 && i < l->logs.n; i++)
        rc = read_log(l, l->logs.values[i], heed_deletion);
    return rc;
}

/* --- together ------------------------------------------------------------------------------------------------------------- */

static void unlink_file(struct path *p, uint64_t file)
{
    char name[PATH_FILE_MAX];
    store_path_file_name(p, file, name);
    p->store->io->unlink(p->store->io, name);
}

/* Spare files, and files being written, go. One with a trailer may be an object whose record the log has
 * lost; so may one that cannot be read. */
static void drop_unused(struct path *p, uint64_t file)
{
    const struct store_io *io = p->store->io;
    char name[PATH_FILE_MAX];
    struct trailer t;
    AUTO_FREE uint8_t *data = NULL;
    uint32_t len;
    store_path_file_name(p, file, name);
    int fd = io->open(io, name, O_RDONLY, 0);
    if (fd == -ENOENT)
        return;
    int rc = fd < 0 ? fd : store_trailer_read(p, fd, &data, &len, &t);
    if (fd >= 0)
        io->close(io, fd);
    if (rc == LEAT_CORRUPT || (rc == 0 && t.file != file))
        unlink_file(p, file);
    else
        store_orphan_keep(p, file, rc == 0 ? &t : NULL);
}

static void drop_files(struct loading *l)
{
    for (size_t i = 0; i < l->unused.n; i++)
        drop_unused(l->p, l->unused.values[i]);
    for (size_t i = 0; i < l->stale.n; i++)
        unlink_file(l->p, l->stale.values[i]);
}

/* Files that no record announces in the rest of a log: they belong to records that were not flushed. Folders
 * are made in order, so most starts look at one. */
static int find_unannounced(struct loading *l)
{
    struct path *p = l->p;
    int rc = 0;
    for (uint64_t folder = p->next_file / FILES_PER_DIR; rc == 0; folder++) {
        char dir[PATH_FILE_MAX];
        snprintf(dir, sizeof(dir), "%s/objects/%06llx", p->dir, (unsigned long long)folder);
        DIR *d = opendir(dir);
        if (!d)
            return errno == ENOENT ? 0 : -errno;
        for (struct dirent *e; rc == 0 && (e = readdir(d));) {
            unsigned long long file;
            if (sscanf(e->d_name, "%12llx", &file) == 1 && file >= p->next_file)
                rc = numbers_add(&l->unused, file);
        }
        closedir(d);
    }
    return rc;
}

static bool has_objects(struct path *p)
{
    char dir[PATH_FILE_MAX];
    snprintf(dir, sizeof(dir), "%s/objects", p->dir);
    DIR *d = opendir(dir);
    bool any = false;
    for (struct dirent *e; d && !any && (e = readdir(d));)
        any = e->d_name[0] != '.';
    if (d)
        closedir(d);
    return any;
}

static int load(struct loading *l, struct leat_error *err)
{
    struct path *p = l->p;
    int rc = list_index(l);
    if (rc == 0)
        rc = load_snapshot(l);
    if (rc == 0)
        rc = replay(l);
    bool rebuilt = rc == 0 && (l->damaged || (l->newest == 0 && has_objects(p)));
    if (rebuilt)
        rc = rebuild(l);
    else if (rc == 0)
        rc = find_unannounced(l);
    if (rc == 0 && rebuilt) /* objects that were not flushed yet are in it, and what they replaced goes now */
        rc = p->store->io->syncfs(p->store->io, p->dir);
    if (rc < 0)
        return error_sys(err, rc, "%s: its index cannot be loaded", p->dir);
    drop_files(l);
    uint64_t highest;
    store_orphans_age(p, store_wall_ns() - ORPHAN_AGE_NS, &highest);
    seen(p, highest, 0); /* their numbers are not given out again */
    p->log.first = l->logs.n ? MAX(l->logs.values[0], 1u) : 1;
    l->next.number = l->newest + 1;
    bool resumes = l->empty && !rebuilt && l->logs.values[l->logs.n - 1] == l->newest;
    /* A snapshot that was cut off while it began left a header without data about the log before. */
    bool says = l->header.before_records || !l->known.before_records;
    rc = resumes ? store_log_resume(p, l->newest, says ? NULL : &l->known, err)
                 : store_log_start(p, &l->next, err);
    if (rc < 0)
        return rc;
    p->loaded = true;
    p->rebuilt = rebuilt;
    p->torn = l->torn && !rebuilt;
    if (rebuilt)
        rc = store_path_compact(p);
    return rc < 0 ? error_sys(err, rc, "%s: its index cannot be written", p->dir) : 0;
}

int store_path_load(struct path *p, struct leat_error *err)
{
    struct loading l = {.p = p};
    int rc = load(&l, err);
    free(l.logs.values);
    free(l.snapshots.values);
    free(l.unused.values);
    free(l.stale.values);
    return rc;
}
