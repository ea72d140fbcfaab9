/* SPDX-License-Identifier: Apache-2.0 */
/*
 * testing.c: the store is an array of objects in the order of their addresses. Reads are done at their end, so late that a buffer
 * that was freed too early is seen.
 */
#include "dataset/testing.h"

#include <setjmp.h>
#include <stdarg.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "dataset/index_internal.h"

struct far far;

struct fake_file {
    struct far_object *object;
    char etag[40];
};

struct fake_read {
    struct fake_file *file;
    char *dst;
    uint64_t bytes, offset;
};

struct far_object *far_find(const char *uri)
{
    for (unsigned i = 0; i < far.n; i++)
        if (!strcmp(far.objects[i].uri, uri))
            return &far.objects[i];
    return NULL;
}

int far_put(const char *uri, const void *data, uint64_t bytes)
{
    static unsigned serial;
    struct far_object *o = far_find(uri);
    char *copy = malloc(bytes + 1);
    if (!copy)
        return -ENOMEM;
    memcpy(copy, data, bytes);
    if (o) {
        free(o->data);
    } else {
        unsigned at = far.n++;
        assert_true(far.n <= FAR_OBJECTS);
        for (; at > 0 && strcmp(far.objects[at - 1].uri, uri) > 0; at--)
            far.objects[at] = far.objects[at - 1];
        o = &far.objects[at];
        *o = (struct far_object){.modified = 1700000000};
        snprintf(o->uri, sizeof(o->uri), "%s", uri);
    }
    o->data = copy;
    o->bytes = bytes;
    snprintf(o->etag, sizeof(o->etag), "\"e%u\"", ++serial);
    return 0;
}

void far_remove(const char *uri)
{
    struct far_object *o = far_find(uri);
    assert_non_null(o);
    free(o->data);
    far.n--;
    memmove(o, o + 1, (size_t)(&far.objects[far.n] - o) * sizeof(*o));
}

static void far_fini(void)
{
    for (unsigned i = 0; i < far.n; i++)
        free(far.objects[i].data);
    far = (struct far){0};
}

static int fake_stat(void *user, const char *uri, struct dataset_stat *ret_stat, struct leat_error *err)
{
    struct far_object *o = far_find(uri);
    if (far.stat_rc)
        return error_set(err, far.stat_rc, "HEAD %s: 403", uri);
    if (!o)
        return error_set(err, LEAT_NOT_FOUND, "HEAD %s: 404", uri);
    *ret_stat = (struct dataset_stat){.bytes = o->bytes, .modified = o->modified};
    snprintf(ret_stat->etag, sizeof(ret_stat->etag), "%s", far.no_etags ? "" : o->etag);
    return 0;
}

static int fake_list(void *user, const char *uri, bool recursive,
                     int (*object)(void *ctx, const struct dataset_object *object), void *ctx,
                     struct leat_error *err)
{
    int left = far.list_after;
    far.lists++;
    for (unsigned i = 0; i < far.n; i++) {
        struct far_object *o = &far.objects[i];
        if (strncmp(o->uri, uri, strlen(uri)))
            continue;
        if (far.list_rc && left-- == 0)
            return error_set(err, far.list_rc, "GET %s: 500 InternalError", uri);
        const char *name = o->uri + strlen(uri);
        struct dataset_object out = {.uri = o->uri,
                                     .name = name,
                                     .bytes = o->bytes,
                                     .etag = far.no_etags ? "" : o->etag,
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
    f->object = far_find(uri);
    assert_non_null(f->object);
    assert_int_equal(bytes, f->object->bytes);
    snprintf(f->etag, sizeof(f->etag), "%s", etag);
    far.open++;
    *ret_file = f;
    return 0;
}

static void fake_close(void *user, void *file)
{
    far.open--;
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
    far.reads++;
    far.bytes += bytes;
    far.under_way++;
    *ret_read = r;
    return 0;
}

static int fake_end(void *user, void *read, struct leat_error *err)
{
    struct fake_read r = *(struct fake_read *)read;
    struct far_object *o = r.file->object;
    free(read);
    far.under_way--;
    if (far.changed && !strcmp(far.changed, o->uri))
        return error_set(err, LEAT_STALE, "GET %s: the object changed: its ETag was %s", o->uri,
                         r.file->etag);
    if (far.short_of && !strcmp(far.short_of, o->uri))
        return error_set(err, LEAT_CORRUPT, "GET %s: 7 bytes came", o->uri);
    memcpy(r.dst, o->data + r.offset, r.bytes);
    return 0;
}

static void fake_cancel(void *user, void *read)
{
    far.canceled++;
    far.under_way--;
    free(read);
}

static int fake_put(void *user, const char *uri, int fd, uint64_t bytes, struct leat_error *err)
{
    if (far.put_rc)
        return error_set(err, far.put_rc, "PUT %s: 403 AccessDenied", uri);
    void *data = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    assert_true(data != MAP_FAILED);
    int rc = far_put(uri, data, bytes);
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
const struct dataset_opener testing_opener = {.remote = &fake};

/* --- what lies there, and the same in files ---------------------------------------------------------------------- */

char testing_folder[] = "/tmp/leat-test-remote-XXXXXX";

static void write_file(const char *name, const void *data, size_t len)
{
    char path[400];
    snprintf(path, sizeof(path), "%s/%s", testing_folder, name);
    for (char *p = path + strlen(testing_folder) + 1; (p = strchr(p, '/')); p++) {
        *p = 0;
        mkdir(path, 0755);
        *p = '/';
    }
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    assert_true(fd >= 0 && write(fd, data, len) == (ssize_t)len);
    close(fd);
}

void testing_add(const char *name, const void *data, uint64_t bytes)
{
    char uri[300];
    snprintf(uri, sizeof(uri), "s3://bucket/%s", name);
    assert_int_equal(far_put(uri, data, bytes), 0);
    write_file(name, data, bytes);
}

size_t testing_npy(char ret[TESTING_NPY_MAX], const char *shape)
{
    memset(ret, 0, TESTING_NPY_MAX);
    memcpy(ret, "\x93NUMPY\1\0", 8);
    int len = snprintf(ret + 10, TESTING_NPY_MAX - 10,
                       "{'descr': '<i4', 'fortran_order': False, 'shape': %s, }\n", shape);
    ret[8] = (char)len;
    ret[9] = 0;
    return 10 + (size_t)len + 240;
}

void testing_add_npy(const char *name, const char *shape)
{
    char buf[TESTING_NPY_MAX];
    size_t bytes = testing_npy(buf, shape);
    testing_add(name, buf, bytes);
}

void testing_tar_member(struct testing_tar *t, const char *name, char type, uint64_t bytes,
                        const void *payload)
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

void testing_tar_end(struct testing_tar *t)
{
    t->data = realloc(t->data, t->bytes + 1024);
    memset(t->data + t->bytes, 0, 1024);
    t->bytes += 1024;
    t->cap = t->bytes;
}

void testing_add_tar(const char *name, const char *const *members, unsigned n)
{
    struct testing_tar t = {0};
    for (unsigned i = 0; i < n; i++)
        testing_tar_member(&t, members[i], '0', i, "abcdefgh");
    testing_tar_end(&t);
    testing_add(name, t.data, t.bytes);
    free(t.data);
}

static int rm(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    return remove(path);
}

int testing_setup(void **state)
{
    strcpy(testing_folder + strlen(testing_folder) - 6, "XXXXXX");
    if (!mkdtemp(testing_folder))
        return -1;
    char cache[400];
    snprintf(cache, sizeof(cache), "%s/.cache", testing_folder);
    setenv("XDG_CACHE_HOME", cache, 1);
    testing_add_npy("a.npy", "(10, 3)");
    testing_add_npy("b.npy", "(10,)");
    testing_add("tree/cat/1", "1", 1);
    testing_add("tree/cat-b/2", "22", 2);
    testing_add("tree/dog/deep/er/3", "333", 3);
    testing_add("tree/dog/empty", "", 0);
    testing_add("tree/z", "z", 1);
    testing_add("tree/.hidden/x", "x", 1);
    testing_add("tree/dog/.x", "x", 1);
    static char large[200000];
    testing_add("tree/dog/large", large, sizeof(large));
    testing_add("flat/x.jpg", "12", 2);
    testing_add("flat/y.jpg", "12", 2);
    testing_add_tar("tars/0.tar", (const char *const[]){"b.jpg", "b.cls", "a.jpg"}, 3);
    testing_add_tar("tars/1.tar", (const char *const[]){"b.jpg", "a.jpg"}, 2);
    testing_add_tar("tars/2.tar", (const char *const[]){"c.jpg"}, 1);
    return 0;
}

int testing_teardown(void **state)
{
    assert_int_equal(far.open, 0);
    assert_int_equal(far.under_way, 0);
    far_fini();
    return nftw(testing_folder, rm, 16, FTW_DEPTH | FTW_PHYS);
}

void testing_forget_cache(void)
{
    nftw(getenv("XDG_CACHE_HOME"), rm, 16, FTW_DEPTH | FTW_PHYS);
}

int testing_build(const char *text, bool elsewhere, struct index *ret_ix, struct leat_error *err)
{
    const char *top = elsewhere ? "s3://bucket" : testing_folder;
    char spelt[900];
    struct dataset_spec spec;
    snprintf(spelt, sizeof(spelt), text, top, top, top);
    int rc = dataset_spec_parse(spelt, &spec, err);
    if (rc < 0)
        return rc;
    AUTO_CLOSE int fd = memfd_create("index", MFD_CLOEXEC);
    rc = dataset_index_build(&spec, &testing_opener, NULL, fd, err);
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

void testing_assert_same(const char *text)
{
    static const enum index_section same[] = {INDEX_EXTENTS, INDEX_PARTS,  INDEX_LABELS,     INDEX_KEY_ENDS,
                                              INDEX_KEYS,    INDEX_SORTED, INDEX_CLASS_ENDS, INDEX_CLASSES};
    struct index here, there;
    struct leat_error err = {0};
    if (testing_build(text, false, &here, &err) < 0 || testing_build(text, true, &there, &err) < 0)
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
        struct far_object *o = far_find(path);
        assert_non_null(o);
        assert_string_equal(path + strlen("s3://bucket"), other + strlen(testing_folder));
        assert_int_equal(there.sources[i].bytes, o->bytes);
        assert_string_equal(index_string(&there, there.sources[i].etag), o->etag);
        assert_int_equal(there.sources[i].mtime_ns, o->modified * 1000000000);
    }
    index_close(&here);
    index_close(&there);
}
void testing_refused(const char *text, int rc, const char *says)
{
    struct index ix;
    struct leat_error err = {0};
    int got = testing_build(text, true, &ix, &err);
    if (got != rc || err.code != rc || !strstr(err.message, says))
        fail_msg("%s: %d, \"%s\" without \"%s\"", text, got, err.message, says);
    assert_int_equal(far.open, 0);
    assert_int_equal(far.under_way, 0);
}
