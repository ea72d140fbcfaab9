/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_fill FOLDER BUCKET OBJECTS BYTES: a store with so many objects, made without a wait for the disk at
 * each: what a restart and a list find. Not for data worth keeping.
 */
#include <stdio.h>

#include "store/io.h"
#include "store/store.h"

static int no_sync(const struct store_io *io, int fd)
{
    return 0;
}

static int no_sync_path(const struct store_io *io, const char *path)
{
    return 0;
}

static void check(int rc, const char *what, const struct leat_error *err)
{
    if (rc >= 0)
        return;
    fprintf(stderr, "store_fill: %s: %s\n", what, err->message);
    exit(1);
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: store_fill FOLDER BUCKET OBJECTS BYTES\n");
        return 2;
    }
    struct store_io io = store_io_real;
    io.datasync = no_sync;
    io.syncdir = no_sync_path;
    const char *paths[] = {argv[1]};
    struct store_config config = {.paths = paths, .npaths = 1, .io = &io};
    struct leat_error err = {0};
    struct store *store;
    uint64_t objects = strtoull(argv[3], NULL, 10), bytes = strtoull(argv[4], NULL, 10);
    AUTO_FREE char *data = calloc(1, bytes + 1);
    check(store_new(&config, &store, &err), argv[1], &err);
    check(store_bucket_create(store, argv[2], 0, NULL, &err), argv[2], &err);
    for (uint64_t i = 0; data && i < objects; i++) {
        char key[64];
        struct store_put *put;
        struct store_commit commit = {.etag = "d41d8cd98f00b204e9800998ecf8427e"};
        int n = snprintf(key, sizeof(key), "train/shard-%05llu/sample-%08llu.jpg",
                         (unsigned long long)i / 1000, (unsigned long long)i);
        check(store_put_begin(store, argv[2], key, (size_t)n, bytes, STORE_PUT_NO_MD5, &put, &err), key,
              &err);
        check(store_put_write(put, data, bytes, &err), key, &err);
        check(store_put_commit(put, &commit, NULL, &err), key, &err);
    }
    store_free(store);
    return 0;
}
