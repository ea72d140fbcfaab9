/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sources elsewhere, by a store in memory that can be broken: what is built of it is what is built of the same files, and whatever
 * the store does, an index is whole or an error says which object it was.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/rng.h"
#include "dataset/index_internal.h"
#include "dataset/scan.h"
#include "failalloc.h"

#define OBJECTS 64u

struct object {
    char uri[300], etag[40];
    char *data;
    uint64_t bytes;
    int64_t modified;
};

static struct store {
    struct object objects[OBJECTS]; /* in the order of their addresses */
    unsigned n;
    /* what goes wrong */
    int list_rc, list_after; /* the list ends with it after so many objects */
    int stat_rc, put_rc;
    const char *changed; /* this one, between list and read */
    const char *short_of;
    bool no_etags, unsorted;
    /* what was asked */
    unsigned stats, lists, reads, puts, canceled;
    uint64_t bytes;
    int open, under_way;
} store;

struct fake_file {
    struct object *object;
    char etag[40];
};

struct fake_read {
    struct fake_file *file;
    char *dst;
    uint64_t bytes, offset;
};

static struct object *object_find(const char *uri)
{
    for (unsigned i = 0; i < store.n; i++)
        if (!strcmp(store.objects[i].uri, uri))
            return &store.objects[i];
    return NULL;
}

static int object_put(const char *uri, const void *data, uint64_t bytes)
{
    static unsigned serial;
    struct object *o = object_find(uri);
    char *copy = malloc(bytes + 1);
    if (!copy)
        return -ENOMEM;
    memcpy(copy, data, bytes);
    if (o) {
        free(o->data);
    } else {
        unsigned at = store.n++;
        assert_true(store.n <= OBJECTS);
        for (; at > 0 && strcmp(store.objects[at - 1].uri, uri) > 0; at--)
            store.objects[at] = store.objects[at - 1];
        o = &store.objects[at];
        *o = (struct object){.modified = 1700000000};
        snprintf(o->uri, sizeof(o->uri), "%s", uri);
    }
    o->data = copy;
    o->bytes = bytes;
    snprintf(o->etag, sizeof(o->etag), "\"e%u\"", ++serial);
    return 0;
}

static void object_remove(const char *uri)
{
    struct object *o = object_find(uri);
    assert_non_null(o);
    free(o->data);
    store.n--;
    memmove(o, o + 1, (size_t)(&store.objects[store.n] - o) * sizeof(*o));
}

static void store_fini(void)
{
    for (unsigned i = 0; i < store.n; i++)
        free(store.objects[i].data);
    store = (struct store){0};
}

static int fake_stat(void *user, const char *uri, struct dataset_stat *ret_stat, struct leat_error *err)
{
    struct object *o = object_find(uri);
    store.stats++;
    if (store.stat_rc)
        return error_set(err, store.stat_rc, "HEAD %s: 403", uri);
    if (!o)
        return error_set(err, LEAT_NOT_FOUND, "HEAD %s: 404", uri);
    *ret_stat = (struct dataset_stat){.bytes = o->bytes, .modified = o->modified};
    snprintf(ret_stat->etag, sizeof(ret_stat->etag), "%s", store.no_etags ? "" : o->etag);
    return 0;
}

static int fake_list(void *user, const char *uri, bool recursive,
                     int (*object)(void *ctx, const struct dataset_object *object), void *ctx,
                     struct leat_error *err)
{
    int left = store.list_after;
    store.lists++;
    for (unsigned i = 0; i < store.n; i++) {
        struct object *o = &store.objects[i];
        if (strncmp(o->uri, uri, strlen(uri)))
            continue;
        if (store.list_rc && left-- == 0)
            return error_set(err, store.list_rc, "GET %s: 500 InternalError", uri);
        const char *name = o->uri + strlen(uri);
        struct dataset_object out = {.uri = o->uri,
                                     .name = name,
                                     .bytes = o->bytes,
                                     .etag = store.no_etags ? "" : o->etag,
                                     .modified = o->modified,
                                     .prefix = !recursive && strchr(name, '/')};
        int rc = object(ctx, &out);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int fake_open(void *user, const char *uri, const char *etag, uint64_t bytes, void **ret_file,
                     struct leat_error *err)
{
    struct fake_file *f = malloc(sizeof(*f));
    if (!f)
        return -ENOMEM;
    f->object = object_find(uri);
    assert_non_null(f->object);
    assert_int_equal(bytes, f->object->bytes);
    snprintf(f->etag, sizeof(f->etag), "%s", etag);
    store.open++;
    *ret_file = f;
    return 0;
}

static void fake_close(void *user, void *file)
{
    store.open--;
    free(file);
}

static int fake_begin(void *user, void *file, void *dst, uint64_t bytes, uint64_t offset, void **ret_read,
                      struct leat_error *err)
{
    struct fake_file *f = file;
    struct fake_read *r = malloc(sizeof(*r));
    if (!r)
        return -ENOMEM;
    assert_true(bytes > 0 && offset < f->object->bytes && bytes <= f->object->bytes - offset);
    *r = (struct fake_read){f, dst, bytes, offset};
    store.reads++;
    store.bytes += bytes;
    store.under_way++;
    *ret_read = r;
    return 0;
}

static int fake_end(void *user, void *read, struct leat_error *err)
{
    struct fake_read r = *(struct fake_read *)read;
    struct object *o = r.file->object;
    free(read);
    store.under_way--;
    if (store.changed && !strcmp(store.changed, o->uri))
        return error_set(err, LEAT_STALE, "GET %s: the object changed: its ETag was %s", o->uri,
                         r.file->etag);
    if (store.short_of && !strcmp(store.short_of, o->uri))
        return error_set(err, LEAT_CORRUPT, "GET %s: 7 bytes came", o->uri);
    memcpy(r.dst, o->data + r.offset, r.bytes); /* so late that a buffer freed too early is seen */
    return 0;
}

static void fake_cancel(void *user, void *read)
{
    store.canceled++;
    store.under_way--;
    free(read);
}

static int fake_put(void *user, const char *uri, int fd, uint64_t bytes, struct leat_error *err)
{
    store.puts++;
    if (store.put_rc)
        return error_set(err, store.put_rc, "PUT %s: 403 AccessDenied", uri);
    void *data = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    assert_true(data != MAP_FAILED);
    int rc = object_put(uri, data, bytes);
    munmap(data, bytes);
    return rc;
}

static const struct dataset_remote fake = {.stat = fake_stat,
                                           .list = fake_list,
                                           .open = fake_open,
                                           .close = fake_close,
                                           .begin = fake_begin,
                                           .end = fake_end,
                                           .cancel = fake_cancel,
                                           .put = fake_put};
static const struct dataset_opener opener = {.remote = &fake};

/* --- what lies there, and the same in files ---------------------------------------------------------------------- */

static char folder[] = "/tmp/leat-test-remote-XXXXXX";

static void write_file(const char *name, const void *data, size_t len)
{
    char path[400];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    for (char *p = path + strlen(folder) + 1; (p = strchr(p, '/')); p++) {
        *p = 0;
        mkdir(path, 0755);
        *p = '/';
    }
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    assert_true(fd >= 0 && write(fd, data, len) == (ssize_t)len);
    close(fd);
}

/* In both places: "x/y" is FOLDER/x/y and s3://bucket/x/y. */
static void add(const char *name, const void *data, uint64_t bytes)
{
    char uri[300];
    snprintf(uri, sizeof(uri), "s3://bucket/%s", name);
    assert_int_equal(object_put(uri, data, bytes), 0);
    write_file(name, data, bytes);
}

static void add_npy(const char *name, const char *shape)
{
    char buf[512] = "\x93NUMPY\1\0";
    int len = snprintf(buf + 10, sizeof(buf) - 10,
                       "{'descr': '<i4', 'fortran_order': False, 'shape': %s, }\n", shape);
    buf[8] = (char)len;
    buf[9] = 0;
    add(name, buf, 10 + (uint64_t)len + 240);
}

struct tar {
    char *data;
    uint64_t bytes, cap;
};

static void tar_block(struct tar *t, const char *name, char type, uint64_t bytes, const void *payload)
{
    uint64_t need = t->bytes + 512 + align_up(bytes, 512);
    if (need > t->cap) {
        t->cap = need * 2;
        t->data = realloc(t->data, t->cap);
        assert_non_null(t->data);
    }
    char *b = t->data + t->bytes;
    memset(b, 0, need - t->bytes);
    unsigned sum = 0;
    snprintf(b, 100, "%s", name);
    snprintf(b + 124, 12, "%011llo", (unsigned long long)bytes);
    b[156] = type;
    memcpy(b + 257, "ustar", 5);
    memset(b + 148, ' ', 8);
    for (unsigned k = 0; k < 512; k++)
        sum += (uint8_t)b[k];
    snprintf(b + 148, 8, "%06o", sum);
    if (payload)
        memcpy(b + 512, payload, bytes);
    t->bytes = need;
}

static void tar_end(struct tar *t)
{
    t->data = realloc(t->data, t->bytes + 1024);
    memset(t->data + t->bytes, 0, 1024);
    t->bytes += 1024;
    t->cap = t->bytes;
}

static void add_tar(const char *name, const char *const *members, unsigned n)
{
    struct tar t = {0};
    for (unsigned i = 0; i < n; i++)
        tar_block(&t, members[i], '0', i, "abcdefgh");
    tar_end(&t);
    add(name, t.data, t.bytes);
    free(t.data);
}

static int rm(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    return remove(path);
}

static int setup(void **state)
{
    strcpy(folder + strlen(folder) - 6, "XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    char cache[400];
    snprintf(cache, sizeof(cache), "%s/.cache", folder);
    setenv("XDG_CACHE_HOME", cache, 1);
    add_npy("a.npy", "(10, 3)");
    add_npy("b.npy", "(10,)");
    add("tree/cat/1", "1", 1);
    add("tree/cat-b/2", "22", 2);
    add("tree/dog/deep/er/3", "333", 3);
    add("tree/dog/empty", "", 0);
    add("tree/z", "z", 1);
    add("tree/.hidden/x", "x", 1);
    add("tree/dog/.x", "x", 1);
    static char large[200000];
    add("tree/large", large, sizeof(large));
    add("flat/x.jpg", "12", 2);
    add("flat/y.jpg", "12", 2);
    add_tar("tars/0.tar", (const char *const[]){"b.jpg", "b.cls", "a.jpg"}, 3);
    add_tar("tars/1.tar", (const char *const[]){"b.jpg", "a.jpg"}, 2);
    add_tar("tars/2.tar", (const char *const[]){"c.jpg"}, 1);
    return 0;
}

static int teardown(void **state)
{
    assert_int_equal(store.open, 0);
    assert_int_equal(store.under_way, 0);
    store_fini();
    return nftw(folder, rm, 16, FTW_DEPTH | FTW_PHYS);
}

/* `text` with the folder for each %s, or with s3://bucket. */
static int build(const char *text, bool elsewhere, struct index *ret_ix, struct leat_error *err)
{
    const char *top = elsewhere ? "s3://bucket" : folder;
    char spelt[900];
    struct dataset_spec spec;
    snprintf(spelt, sizeof(spelt), text, top, top, top);
    int rc = dataset_spec_parse(spelt, &spec, err);
    if (rc < 0)
        return rc;
    AUTO_CLOSE int fd = memfd_create("index", MFD_CLOEXEC);
    rc = dataset_index_build(&spec, &opener, NULL, fd, err);
    if (rc == 0) {
        assert_int_equal(index_map(fd, ret_ix, NULL), 0);
        rc = index_validate(ret_ix, err);
        if (rc < 0)
            index_close(ret_ix);
        assert_true(rc == 0 || rc == -ENOMEM);
    }
    dataset_spec_free(&spec);
    return rc;
}

static void assert_same_section(const struct index *a, const struct index *b, enum index_section s)
{
    const char *p = a->blob, *q = b->blob;
    assert_int_equal(a->header->sections[s].bytes, b->header->sections[s].bytes);
    assert_memory_equal(p + a->header->sections[s].offset, q + b->header->sections[s].offset,
                        a->header->sections[s].bytes);
}

/* All but where the sources lie, and when they were written. */
static void assert_same(const char *text)
{
    static const enum index_section same[] = {INDEX_EXTENTS, INDEX_PARTS,  INDEX_LABELS,     INDEX_KEY_ENDS,
                                              INDEX_KEYS,    INDEX_SORTED, INDEX_CLASS_ENDS, INDEX_CLASSES};
    struct index here, there;
    struct leat_error err = {0};
    if (build(text, false, &here, &err) < 0 || build(text, true, &there, &err) < 0)
        fail_msg("%s: %s", text, err.message);
    for (size_t i = 0; i < ARRAY_LEN(same); i++)
        assert_same_section(&here, &there, same[i]);
    const struct index_header *a = here.header, *b = there.header;
    assert_memory_equal(a->fingerprint, b->fingerprint, sizeof(a->fingerprint));
    assert_int_equal(a->kind, b->kind);
    assert_int_equal(a->flags, b->flags);
    assert_int_equal(a->nfields, b->nfields);
    assert_int_equal(a->address_end, b->address_end);
    assert_int_equal(a->payload_bytes, b->payload_bytes);
    for (unsigned f = 0; f < a->nfields; f++)
        assert_string_equal(index_string(&here, here.fields[f].name),
                            index_string(&there, there.fields[f].name));
    for (uint64_t i = 0; i < b->nsources; i++) {
        char path[600], other[600];
        index_source_path(&there, i, path, sizeof(path));
        index_source_path(&here, i, other, sizeof(other));
        struct object *o = object_find(path);
        assert_non_null(o);
        assert_string_equal(path + strlen("s3://bucket"), other + strlen(folder));
        assert_int_equal(there.sources[i].bytes, o->bytes);
        assert_string_equal(index_string(&there, there.sources[i].etag), o->etag);
        assert_int_equal(there.sources[i].mtime_ns, o->modified * 1000000000);
    }
    index_close(&here);
    index_close(&there);
}

static void test_same_as_files(void **state)
{
    static const char *const specs[] = {
        "%s/tree",
        "%s/flat",
        "%s/tars",
        "%s/tars/{0..2}.tar",
        "%s/tars/?.tar",
        "%s/tars/[01].tar",
        "%s/tars/{0,2}.tar",
        "%s/tars/1.tar",
        "a=%s/a.npy;b=%s/b.npy",
        "%s/a.npy#rows=3",
        "%s",
        "%s/tree/",
    };
    for (size_t i = 0; i < ARRAY_LEN(specs); i++)
        assert_same(specs[i]);
    /* Nothing of a folder's marks is left. */
    object_put("s3://bucket/tree/", "", 0);
    object_put("s3://bucket/tree/dog/", "", 0);
    assert_same("%s/tree");
}

static void test_prefixes(void **state)
{
    struct index ix;
    struct leat_error err = {0};
    /* Beside shards. */
    object_put("s3://bucket/tars/.leat-index", "x", 1);
    object_put("s3://bucket/tars/0.tar.leat-index", "x", 1);
    object_put("s3://bucket/tars/0.idx", "x", 1);
    object_put("s3://bucket/tars/meta.json", "x", 1);
    object_put("s3://bucket/tars/deep/9.tar", object_find("s3://bucket/tars/2.tar")->data, 1536);
    assert_int_equal(build("%s/tars", true, &ix, &err), 0);
    assert_int_equal(ix.header->kind, INDEX_KIND_TAR);
    assert_int_equal(ix.header->nsources, 4);
    index_close(&ix);
    /* One that is no shard, behind all of them: a tree. */
    object_put("s3://bucket/tars/readme", "x", 1);
    assert_int_equal(build("%s/tars", true, &ix, &err), 0);
    assert_int_equal(ix.header->kind, INDEX_KIND_DIR);
    assert_int_equal(ix.header->nsources, 8);
    index_close(&ix);
    /* Nothing but what could lie beside shards. */
    object_put("s3://bucket/docs/0.json", "x", 1);
    assert_int_equal(build("%s/docs", true, &ix, &err), 0);
    assert_int_equal(ix.header->kind, INDEX_KIND_DIR);
    index_close(&ix);
}

static void test_addresses(void **state)
{
    struct index ix;
    struct leat_error err = {0};
    char path[600];
    struct object *a = object_find("s3://bucket/a.npy");
    object_put("s3://other/a.npy", a->data, a->bytes);
    object_put("https://host:1/a.npy?sign=/x", a->data, a->bytes);
    /* Of several places: each source has its whole address. */
    assert_int_equal(build("a=%s/a.npy;b=s3://other/a.npy;c=https://host:1/a.npy?sign=/x", false, &ix, &err),
                     0);
    assert_int_equal(ix.header->nsources, 3);
    index_source_path(&ix, 1, path, sizeof(path));
    assert_string_equal(path, "s3://other/a.npy");
    index_source_path(&ix, 2, path, sizeof(path));
    assert_string_equal(path, "https://host:1/a.npy?sign=/x");
    index_source_path(&ix, 0, path, sizeof(path));
    assert_memory_equal(path, folder, strlen(folder));
    /* Appended sets keep addresses and ETags. */
    struct index more, both;
    assert_int_equal(build("a=%s/a.npy;b=%s/a.npy;c=%s/a.npy", true, &more, &err), 0);
    AUTO_CLOSE int fd = memfd_create("index", MFD_CLOEXEC);
    assert_int_equal(index_append(&ix, &more, 1 << 20, fd, &err), 0);
    assert_int_equal(index_map(fd, &both, &err), 0);
    assert_int_equal(index_validate(&both, &err), 0);
    index_source_path(&both, 3, path, sizeof(path));
    assert_string_equal(path, "s3://bucket/a.npy");
    assert_string_equal(index_string(&both, both.sources[3].etag), object_find(path)->etag);
    index_close(&both);
    index_close(&more);
    index_close(&ix);
    /* Slashes that a path would lose. */
    struct object *t = object_find("s3://bucket/tars/2.tar");
    object_put("s3://bucket/odd//x.tar", t->data, t->bytes);
    assert_int_equal(build("%s/odd//x.tar", true, &ix, &err), 0);
    index_source_path(&ix, 0, path, sizeof(path));
    assert_string_equal(path, "s3://bucket/odd//x.tar");
    index_close(&ix);
    object_put("https://h/x-{1..2}.tar?q=*[", t->data, t->bytes); /* never asked for */
    object_put("https://h/x-1.tar?q=*[", t->data, t->bytes);
    object_put("https://h/x-2.tar?q=*[", t->data, t->bytes);
    assert_int_equal(build("https://h/x-{1..2}.tar?q=*[", false, &ix, &err), 0);
    assert_int_equal(ix.header->nsources, 2);
    index_close(&ix);
}

static void refused(const char *text, int rc, const char *says)
{
    struct index ix;
    struct leat_error err = {0};
    int got = build(text, true, &ix, &err);
    if (got != rc || err.code != rc || !strstr(err.message, says))
        fail_msg("%s: %d, \"%s\" without \"%s\"", text, got, err.message, says);
    assert_int_equal(store.open, 0);
    assert_int_equal(store.under_way, 0);
}

/* --- walking shards -------------------------------------------------------------------------------------------------- */

/* Members of all sizes and extended headers that lie across windows: as it is scanned in a file. */
static void test_walk(void **state)
{
    uint64_t rng = 7;
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned shard = 0; shard < (round == 0 ? 11u : round); shard++) {
            struct tar t = {0};
            char name[120];
            for (unsigned i = 0; t.bytes < (round == 0 ? 1u : 12u) * MIB; i++) {
                uint64_t most = rng_below(&rng, 8) ? 3000 : round == 1 ? 3 * MIB : 300000;
                if (rng_below(&rng, 3) == 0) {
                    AUTO_FREE char *pax = calloc(1, 40000);
                    int len = snprintf(pax, 40000, "%u comment=", 30000u);
                    memset(pax + len, 'x', 30000 - (size_t)len);
                    pax[29999] = '\n';
                    tar_block(&t, "pax", 'x', 30000, pax);
                }
                snprintf(name, sizeof(name), "%u/%05u.bin", shard, i);
                tar_block(&t, name, '0', rng_below(&rng, most), NULL);
                if (rng_below(&rng, 300) == 0) /* archives put end to end */
                    tar_end(&t);
            }
            tar_end(&t);
            snprintf(name, sizeof(name), "walk%u/%02u.tar", round, shard);
            add(name, t.data, t.bytes);
            free(t.data);
        }
        char spec[40];
        snprintf(spec, sizeof(spec), "%%s/walk%u", round);
        assert_same(spec);
    }
}

/* Long payload is stepped over, short is not, and a window is asked for once. */
static void test_walk_reads(void **state)
{
    struct index ix;
    struct leat_error err = {0};
    for (unsigned k = 0; k < 2; k++) {
        struct tar t = {0};
        char name[40];
        for (unsigned i = 0; i < (k ? 4u : 40u); i++) {
            snprintf(name, sizeof(name), "%u.bin", i);
            tar_block(&t, name, '0', k ? 40 * MIB : 500000, NULL);
        }
        tar_end(&t);
        snprintf(name, sizeof(name), "s3://bucket/steps/%u.tar", k);
        object_put(name, t.data, t.bytes);
        uint64_t bytes = t.bytes;
        free(t.data);
        store.reads = store.canceled = 0;
        store.bytes = 0;
        assert_int_equal(build(k ? "%s/steps/1.tar" : "%s/steps/0.tar", true, &ix, &err), 0);
        index_close(&ix);
        assert_true(store.reads < 12);
        if (k)
            assert_true(store.bytes < bytes / 20);
        else
            assert_true(store.bytes < bytes + MIB && store.canceled <= 1);
        object_remove(name);
    }
}

/* One shard breaks while windows of all are under way. */
static void test_walk_ends(void **state)
{
    struct tar t = {0};
    char name[60];
    for (unsigned i = 0; i < 400; i++) {
        snprintf(name, sizeof(name), "%u.bin", i);
        tar_block(&t, name, '0', 20000, NULL);
    }
    tar_end(&t);
    for (unsigned i = 0; i < 10; i++) {
        snprintf(name, sizeof(name), "s3://bucket/ends/%u.tar", i);
        t.data[150 * 20992 + 1] ^= i == 5 ? 0x55 : 0;
        object_put(name, t.data, t.bytes);
        t.data[150 * 20992 + 1] ^= i == 5 ? 0x55 : 0;
    }
    free(t.data);
    refused("%s/ends", LEAT_CORRUPT, "s3://bucket/ends/5.tar");
    assert_true(store.canceled > 0);
    store.changed = "s3://bucket/ends/0.tar";
    refused("%s/ends", LEAT_STALE, "s3://bucket/ends/0.tar");
}

static int stop(void *user, uint64_t samples, uint64_t bytes)
{
    return ++*(unsigned *)user == 3 ? -ECANCELED : 0;
}

/* Waiting for windows can be ended, before 4096 samples are known. */
static void test_walk_stops(void **state)
{
    struct tar t = {0};
    unsigned asked = 0;
    struct dataset_progress progress = {stop, &asked};
    struct dataset_spec spec;
    struct leat_error err = {0};
    for (unsigned i = 0; i < 10; i++)
        tar_block(&t, "x.bin", '0', MIB, NULL);
    object_put("s3://bucket/stop.tar", t.data, t.bytes);
    free(t.data);
    AUTO_CLOSE int fd = memfd_create("index", MFD_CLOEXEC);
    assert_int_equal(dataset_spec_parse("s3://bucket/stop.tar", &spec, &err), 0);
    assert_int_equal(dataset_index_build(&spec, &opener, &progress, fd, &err), -ECANCELED);
    assert_int_equal(asked, 3);
    dataset_spec_free(&spec);
}

/* --- still the same? --------------------------------------------------------------------------------------------------- */

static bool opened(const char *text, uint64_t samples)
{
    struct dataset_spec spec;
    struct leat_error err = {0};
    struct index ix;
    bool scanned;
    int fd = -1;
    assert_int_equal(dataset_spec_parse(text, &spec, &err), 0);
    if (dataset_index_open(&spec, &opener, NULL, true, &fd, &scanned, &err) < 0)
        fail_msg("%s: %s", text, err.message);
    dataset_spec_free(&spec);
    assert_int_equal(index_map(fd, &ix, &err), 0);
    assert_int_equal(ix.header->nsamples, samples);
    index_close(&ix);
    close(fd);
    return scanned;
}

static void forget_cache(void)
{
    nftw(getenv("XDG_CACHE_HOME"), rm, 16, FTW_DEPTH | FTW_PHYS);
}

static void test_freshness(void **state)
{
    static const struct {
        const char *spec;
        uint64_t samples;
        const char *one; /* of its objects */
    } sets[] = {{"s3://bucket/tree", 6, "s3://bucket/tree/cat/1"},
                {"s3://bucket/tars", 5, "s3://bucket/tars/1.tar"},
                {"s3://bucket/tars/{0..2}.tar", 5, "s3://bucket/tars/2.tar"},
                {"s3://bucket/tars/*.tar", 5, "s3://bucket/tars/1.tar"},
                {"a=s3://bucket/a.npy;b=s3://bucket/b.npy", 10, "s3://bucket/b.npy"},
                {"s3://bucket/a.npy", 10, "s3://bucket/a.npy"}};
    for (size_t i = 0; i < ARRAY_LEN(sets); i++) {
        struct object *o = object_find(sets[i].one);
        assert_true(opened(sets[i].spec, sets[i].samples));
        store.reads = 0;
        assert_false(opened(sets[i].spec, sets[i].samples));
        assert_int_equal(store.reads, 0);
        o->modified++; /* the ETag says more */
        assert_false(opened(sets[i].spec, sets[i].samples));
        object_put(o->uri, o->data, o->bytes); /* another ETag */
        assert_true(opened(sets[i].spec, sets[i].samples));
        assert_false(opened(sets[i].spec, sets[i].samples));
        store.no_etags = true; /* then times */
        assert_false(opened(sets[i].spec, sets[i].samples));
        o->modified++;
        assert_true(opened(sets[i].spec, sets[i].samples));
        store.no_etags = false;
    }
    assert_false(opened("s3://bucket/tree", 6));
    object_put("s3://bucket/tree/zz", "", 0);
    assert_true(opened("s3://bucket/tree", 7));
    object_remove("s3://bucket/tree/zz");
    assert_true(opened("s3://bucket/tree", 6));
    object_put("s3://bucket/tree/.zz", "", 0);
    assert_false(opened("s3://bucket/tree", 6));
    opened("s3://bucket/tars", 5);
    object_put("s3://bucket/tars/x.json", "", 0);
    assert_false(opened("s3://bucket/tars", 5));
    object_put("s3://bucket/tars/x.txt", "", 0); /* a tree now */
    assert_true(opened("s3://bucket/tars", 5));
    object_remove("s3://bucket/tars/x.txt");
    object_remove("s3://bucket/tars/x.json");
}

static int write_index(const char *text, bool cache_ok, char **ret_path, struct leat_error *err)
{
    struct dataset_spec spec;
    int fd = -1;
    assert_int_equal(dataset_spec_parse(text, &spec, err), 0);
    int rc = dataset_index_write(&spec, &opener, NULL, cache_ok, ret_path, &fd, err);
    dataset_spec_free(&spec);
    if (rc == 0) {
        struct index ix;
        assert_int_equal(index_map(fd, &ix, NULL), 0);
        index_close(&ix);
        close(fd);
    }
    return rc;
}

static void test_beside(void **state)
{
    static const struct {
        const char *spec, *beside;
        uint64_t samples;
    } sets[] = {{"s3://bucket/tree", "s3://bucket/tree/.leat-index", 6},
                {"s3://bucket/tree/", "s3://bucket/tree/.leat-index", 6},
                {"s3://bucket/tars", "s3://bucket/tars/.leat-index", 5},
                {"s3://bucket/a.npy", "s3://bucket/a.npy.leat-index", 10},
                {"s3://bucket/tars/0.tar", "s3://bucket/tars/0.tar.leat-index", 2}};
    struct leat_error err = {0};
    for (size_t i = 0; i < ARRAY_LEN(sets); i++) {
        char *path;
        forget_cache();
        assert_int_equal(write_index(sets[i].spec, false, &path, &err), 0);
        assert_string_equal(path, sets[i].beside);
        free(path);
        struct object *o = object_find(sets[i].beside);
        assert_non_null(o);
        assert_false(opened(sets[i].spec, sets[i].samples));
        store.reads = 0; /* kept here now */
        assert_false(opened(sets[i].spec, sets[i].samples));
        assert_int_equal(store.reads, 0);
        forget_cache();
        o->data[o->bytes / 2] ^= 0x55;
        o->data[600] ^= 0x55;
        opened(sets[i].spec, sets[i].samples); /* whatever: no error */
        forget_cache();
        object_put(o->uri, "garbage", 7);
        assert_true(opened(sets[i].spec, sets[i].samples));
    }
    /* Of something else; put there by whoever may write there. */
    forget_cache();
    char *path;
    assert_int_equal(write_index("s3://bucket/flat", false, &path, &err), 0);
    free(path);
    struct object *flat = object_find("s3://bucket/flat/.leat-index");
    object_put("s3://bucket/tree/.leat-index", flat->data, flat->bytes);
    assert_true(opened("s3://bucket/tree", 6));
    forget_cache();
    object_put("s3://bucket/flat/x.jpg", "34", 2); /* stale */
    assert_true(opened("s3://bucket/flat", 2));
    /* No right to write: the cache, if that will do. */
    store.put_rc = LEAT_DENIED;
    forget_cache();
    assert_int_equal(write_index("s3://bucket/flat", false, &path, &err), LEAT_DENIED);
    assert_non_null(strstr(err.message, "s3://bucket/flat/.leat-index"));
    store.lists = 0;
    assert_int_equal(write_index("s3://bucket/flat", true, &path, &err), 0);
    assert_int_equal(store.lists, 1);
    assert_int_equal(path[0], '/');
    free(path);
    assert_false(opened("s3://bucket/flat", 2));
    struct object *t = object_find("s3://bucket/tars/2.tar");
    object_put("http://host/x.tar", t->data, t->bytes);
    assert_int_equal(write_index("http://host/x.tar", false, &path, &err), LEAT_UNSUPPORTED);
    assert_int_equal(write_index("http://host/x.tar", true, &path, &err), 0);
    free(path);
}

/* --- what goes wrong --------------------------------------------------------------------------------------------------- */

static void test_faults(void **state)
{
    refused("%s/nothing", LEAT_NOT_FOUND, "s3://bucket/nothing");
    refused("%s/nothing/", LEAT_NOT_FOUND, "s3://bucket/nothing");
    refused("%s/tars/{0..9}.tar", LEAT_NOT_FOUND, "s3://bucket/tars/3.tar: there is no such object");
    refused("%s/tars/x*.tar", LEAT_NOT_FOUND, "s3://bucket/tars/x*.tar");
    refused("a=%s/a.npy;b=%s/nothing.npy", LEAT_NOT_FOUND,
            "s3://bucket/nothing.npy: there is no such object");
    refused("a=%s/tree", LEAT_NOT_FOUND, "s3://bucket/tree");
    refused("%s/a.npy#/x", LEAT_INVALID, "s3://bucket/a.npy");
    refused("%s/tree/cat/1", LEAT_UNSUPPORTED, "s3://bucket/tree/cat/1: not a format");
    refused("%s/{a,b}.npy", LEAT_INVALID, "s3://bucket/a.npy: a pattern means tar shards");
    refused("https://host/x.tar", LEAT_NOT_FOUND, "https://host/x.tar");
    char hdf5[600] = "";
    memcpy(hdf5 + 512, "\x89HDF\r\n\x1a\n", 8);
    object_put("s3://bucket/x.h5", hdf5, sizeof(hdf5));
    refused("%s/x.h5", LEAT_UNSUPPORTED, "s3://bucket/x.h5: HDF5 is not read over a network");
    refused("%s/x.h5#/train", LEAT_UNSUPPORTED, "leat cp");
    object_put("s3://bucket/bad/ok/x", "", 0);
    object_put("s3://bucket/bad/a\xff", "", 0);
    refused("%s/bad", LEAT_INVALID, "UTF-8");
    object_remove("s3://bucket/bad/a\xff");
    object_put("s3://bucket/bad//x", "", 0);
    refused("%s/bad", LEAT_INVALID, "absolute");
    /* Shards that are none, cut, or garbage behind a good beginning. */
    object_put("s3://bucket/badtars/0.tar", object_find("s3://bucket/tars/0.tar")->data, 3584);
    object_put("s3://bucket/badtars/1.tar", "\x1f\x8bxxxx", 6);
    refused("%s/badtars", LEAT_UNSUPPORTED, "s3://bucket/badtars/1.tar: is compressed with gzip");
    char garbage[4096];
    memset(garbage, 'x', sizeof(garbage));
    memcpy(garbage, object_find("s3://bucket/tars/0.tar")->data, 512);
    object_put("s3://bucket/badtars/1.tar", garbage, sizeof(garbage));
    refused("%s/badtars", LEAT_CORRUPT, "s3://bucket/badtars/1.tar");
    object_put("s3://bucket/badtars/1.tar", object_find("s3://bucket/tars/1.tar")->data, 1024);
    refused("%s/badtars", LEAT_CORRUPT, "s3://bucket/badtars/1.tar");
    object_put("s3://bucket/badtars/1.tar", object_find("s3://bucket/a.npy")->data, 200);
    refused("%s/badtars", LEAT_INVALID, "s3://bucket/badtars/1.tar");

    store.list_rc = LEAT_PEER_GONE;
    for (store.list_after = 0; store.list_after < 4; store.list_after++) {
        refused("%s/tree", LEAT_PEER_GONE, "s3://bucket/tree/");
        refused("%s/tars", store.list_after < 3 ? LEAT_PEER_GONE : 0, "");
        if (store.list_after == 2)
            break;
    }
    store.list_rc = 0;
    store.stat_rc = LEAT_DENIED;
    refused("%s/a.npy", LEAT_DENIED, "s3://bucket/a.npy");
    store.stat_rc = 0;
    store.changed = "s3://bucket/tars/1.tar";
    refused("%s/tars", LEAT_STALE, "s3://bucket/tars/1.tar: the object changed");
    refused("%s/tars/{0..2}.tar", LEAT_STALE, "s3://bucket/tars/1.tar: the object changed");
    store.changed = "s3://bucket/a.npy";
    refused("%s/a.npy", LEAT_STALE, "s3://bucket/a.npy: the object changed");
    store.changed = NULL;
    store.short_of = "s3://bucket/tars/0.tar";
    refused("%s/tars", LEAT_CORRUPT, "s3://bucket/tars/0.tar");
    refused("%s/tars/0.tar", LEAT_CORRUPT, "s3://bucket/tars/0.tar");
    store.short_of = NULL;

    /* Nobody brought a way there. */
    struct dataset_spec spec;
    struct leat_error err = {0};
    static const struct dataset_opener none;
    const struct dataset_opener *const without[] = {NULL, &none};
    assert_int_equal(dataset_spec_parse("s3://bucket/a.npy", &spec, &err), 0);
    for (unsigned i = 0; i < 2; i++) {
        int fd = -1;
        bool scanned;
        assert_int_equal(dataset_index_open(&spec, without[i], NULL, true, &fd, &scanned, &err),
                         LEAT_UNSUPPORTED);
        assert_non_null(strstr(err.message, "s3://bucket/a.npy"));
        assert_non_null(strstr(err.message, "copy it"));
    }
    dataset_spec_free(&spec);
}

/* An ETag that would end a header's line, or is longer than any. */
static void test_etags(void **state)
{
    static const char *const bad[] = {"\"a\r\nb\"", "\"a b\"", "\"\x01\""};
    struct index ix;
    struct leat_error err = {0};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        snprintf(object_find("s3://bucket/flat/x.jpg")->etag, 40, "%s", bad[i]);
        assert_int_equal(build("%s/flat", true, &ix, &err), 0);
        assert_string_equal(index_string(&ix, ix.sources[0].etag), "");
        /* Nor from an index that somebody wrote. */
        AUTO_FREE char *blob = malloc(ix.blob_bytes);
        memcpy(blob, ix.blob, ix.blob_bytes);
        struct index forged;
        assert_int_equal(index_open(blob, ix.blob_bytes, &forged, &err), 0);
        struct index_source *s = (struct index_source *)(uintptr_t)&forged.sources[0];
        s->etag = (uint32_t)ix.header->sections[INDEX_STRINGS].bytes;
        assert_int_equal(index_validate(&forged, &err), LEAT_CORRUPT);
        s->etag = forged.sources[1].etag;
        assert_int_equal(index_validate(&forged, &err), 0);
        ((char *)(uintptr_t)index_string(&forged, s->etag))[1] = '\n';
        assert_int_equal(index_validate(&forged, &err), LEAT_CORRUPT);
        index_close(&ix);
    }
}

static int build_one(void *ctx)
{
    struct index ix;
    struct leat_error err = {0};
    int rc = build(ctx, true, &ix, &err);
    if (rc == 0)
        index_close(&ix);
    assert_int_equal(store.open, 0);
    assert_int_equal(store.under_way, 0);
    return rc;
}

static int open_one(void *ctx)
{
    struct dataset_spec spec;
    struct leat_error err = {0};
    bool scanned;
    int fd = -1;
    int rc = dataset_spec_parse(ctx, &spec, &err);
    if (rc < 0)
        return rc;
    rc = dataset_index_open(&spec, &opener, NULL, false, &fd, &scanned, &err);
    dataset_spec_free(&spec);
    if (fd >= 0)
        close(fd);
    assert_int_equal(store.open, 0);
    assert_int_equal(store.under_way, 0);
    return rc;
}

static void test_allocations(void **state)
{
    static const char *const specs[] = {
        "%s/tree",       "%s/tars",       "%s/tars/{0..2}.tar",
        "%s/tars/?.tar", "%s/tars/0.tar", "a=%s/a.npy#rows=3;b=%s/b.npy#rows=3"};
    struct leat_error err = {0};
    char *path;
    for (size_t i = 0; i < ARRAY_LEN(specs); i++)
        assert_true(failalloc_run(build_one, (void *)(uintptr_t)specs[i]) > 10);
    assert_int_equal(write_index("s3://bucket/tree", false, &path, &err), 0);
    free(path);
    /* An index that cannot be looked at is made anew: so this one may come out well. */
    for (unsigned nth = 1, n = 1; n >= nth; nth++) {
        size_t before = failalloc_live();
        failalloc_arm(nth);
        int rc = open_one((void *)(uintptr_t) "s3://bucket/tree");
        n = failalloc_disarm();
        assert_true(rc == 0 || rc == -ENOMEM);
        assert_int_equal(failalloc_live(), before);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_same_as_files, setup, teardown),
        cmocka_unit_test_setup_teardown(test_prefixes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_addresses, setup, teardown),
        cmocka_unit_test_setup_teardown(test_walk, setup, teardown),
        cmocka_unit_test_setup_teardown(test_walk_reads, setup, teardown),
        cmocka_unit_test_setup_teardown(test_walk_ends, setup, teardown),
        cmocka_unit_test_setup_teardown(test_walk_stops, setup, teardown),
        cmocka_unit_test_setup_teardown(test_freshness, setup, teardown),
        cmocka_unit_test_setup_teardown(test_beside, setup, teardown),
        cmocka_unit_test_setup_teardown(test_faults, setup, teardown),
        cmocka_unit_test_setup_teardown(test_etags, setup, teardown),
        cmocka_unit_test_setup_teardown(test_allocations, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
