/* SPDX-License-Identifier: Apache-2.0 */
#include "store/testing.h"

#include <fcntl.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/rng.h"
#include "store/internal.h"

void testing_mkdir(char out[256])
{
    const char *tmp = getenv("TMPDIR");
    snprintf(out, 256, "%s/leat-store-XXXXXX", tmp ? tmp : "/var/tmp");
    if (!mkdtemp(out))
        abort();
}

void testing_mkdir_fast(char out[256])
{
    snprintf(out, 256, "/dev/shm/store-test-XXXXXX");
    if (!mkdtemp(out))
        testing_mkdir(out);
}

unsigned testing_rounds(unsigned n)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return MAX(n / 4, 1u);
#else
    return n;
#endif
}

static unsigned counted;

static int count_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    counted += flag == FTW_F;
    return 0;
}

unsigned testing_count_objects(const char *dir)
{
    char objects[300];
    snprintf(objects, sizeof(objects), "%s/objects", dir);
    counted = 0;
    nftw(objects, count_one, 16, FTW_PHYS);
    return counted;
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    return remove(path);
}

void testing_rmdir(const char *dir)
{
    nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

struct store *testing_open(const char *const *paths, unsigned n, const struct store_io *io)
{
    struct store_config c = {
        .paths = paths, .npaths = n, .io = io, .no_background = true, .reserve_bytes = 1};
    struct store *s = NULL;
    struct leat_error err = {0};
    if (store_new(&c, &s, &err) < 0) {
        fprintf(stderr, "# store_new: %s\n", err.message);
        return NULL;
    }
    return s;
}

struct store *testing_open1(const char *dir)
{
    return testing_open(&dir, 1, NULL);
}

/* Millions of bytes: a check of each access for races would take most of the time of these tests. */
__attribute__((no_sanitize("thread"))) void testing_fill(void *data, size_t bytes, uint64_t seed)
{
    uint8_t *to = data;
    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t v = rng_next(&seed);
        memcpy(to + at, &v, MIN(bytes - at, (size_t)8));
    }
}

static int put_bytes(struct store *s, const char *bucket, const char *key, const void *data, size_t bytes,
                     const struct store_commit *commit, struct leat_error *err)
{
    struct store_put *put;
    int rc = store_put_begin(s, bucket, key, strlen(key), bytes, 0, &put, err);
    if (rc < 0)
        return rc;
    rc = store_put_write(put, data, bytes, err);
    if (rc < 0) {
        store_put_abort(put);
        return rc;
    }
    return store_put_commit(put, commit, NULL, err);
}

int testing_put(struct store *s, const char *bucket, const char *key, uint64_t seed, size_t bytes)
{
    AUTO_FREE uint8_t *data = malloc(bytes + 1);
    if (!data)
        return -ENOMEM;
    testing_fill(data, bytes, seed);
    return put_bytes(s, bucket, key, data, bytes, NULL, NULL);
}

void testing_put_bytes(struct store *s, const char *bucket, const char *key, const void *data, size_t bytes,
                       const struct store_commit *commit)
{
    struct leat_error err = {0};
    if (put_bytes(s, bucket, key, data, bytes, commit, &err) < 0)
        fail_msg("%s: %s", key, err.message);
}

int testing_complete(struct store *s, const char *bucket, const char *key, const char *id,
                     const struct store_part *parts, unsigned n, struct store_info *ret_info)
{
    struct store_put *put;
    int rc = store_upload_assemble(s, bucket, key, strlen(key), id, parts, n, &put, NULL);
    return rc < 0 ? rc : store_put_commit(put, NULL, ret_info, NULL);
}

int testing_check(struct store *s, const char *bucket, const char *key, uint64_t seed, size_t bytes)
{
    struct store_obj *obj;
    int rc = store_get(s, bucket, key, strlen(key), &obj, NULL);
    if (rc < 0)
        return rc;
    AUTO_FREE uint8_t *data = malloc(bytes + 1), *wanted = malloc(bytes + 1);
    if (!data || !wanted)
        rc = -ENOMEM;
    else if (obj->info.bytes != bytes)
        rc = -EILSEQ;
    if (rc == 0)
        rc = store_obj_read(s, obj, 0, data, bytes, NULL);
    store_obj_unref(obj);
    if (rc == 0) {
        testing_fill(wanted, bytes, seed);
        rc = memcmp(data, wanted, bytes) == 0 ? 0 : -EILSEQ;
    }
    return rc;
}

void testing_object_file(struct store *s, const char *bucket, const char *key, char *out, size_t cap)
{
    struct ikey k;
    struct found found;
    char name[PATH_FILE_MAX];
    uint32_t id;
    if (store_bucket_find(s, bucket, &id, NULL, NULL) < 0)
        abort();
    ikey_set(&k, id, key, strlen(key));
    if (store_find(s, &k, false, &found) < 0)
        abort();
    store_path_file_name(found.path, found.value.file, name);
    snprintf(out, cap, "%s", name);
}

void testing_flip(const char *name, off_t at)
{
    uint8_t byte;
    int fd = open(name, O_RDWR);
    if (fd < 0 || pread(fd, &byte, 1, at) != 1)
        abort();
    byte ^= 0x10;
    if (pwrite(fd, &byte, 1, at) != 1)
        abort();
    close(fd);
}

int testing_setup(void **state)
{
    struct testing_store *f = calloc(1, sizeof(*f));
    testing_mkdir(f->dir);
    f->s = testing_open1(f->dir);
    if (!f->s || store_bucket_create(f->s, "photos", 0, NULL, NULL) < 0)
        abort();
    *state = f;
    return 0;
}

int testing_teardown(void **state)
{
    struct testing_store *f = *state;
    store_free(f->s);
    testing_rmdir(f->dir);
    free(f);
    return 0;
}

void testing_reopen(struct testing_store *f)
{
    store_free(f->s);
    f->s = testing_open1(f->dir);
    if (!f->s)
        abort();
}
