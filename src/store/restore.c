/* SPDX-License-Identifier: Apache-2.0 */
/*
 * restore.c: finds the id of a bucket whose description is lost: an id in the index that no bucket has, of
 * objects whose trailers have the bucket's name.
 */
#include <fcntl.h>

#include "store/internal.h"

static bool has_id(struct store *s, uint32_t id)
{
    bool has = false;
    pthread_mutex_lock(&s->buckets_lock);
    for (unsigned i = 0; i < s->nbuckets; i++)
        has |= s->buckets[i]->b.id == id;
    pthread_mutex_unlock(&s->buckets_lock);
    return has;
}

/* Does its trailer name the bucket? */
static bool is_of_bucket(struct path *p, uint64_t file, const char *bucket)
{
    char name[PATH_FILE_MAX];
    struct trailer t;
    AUTO_FREE uint8_t *data = NULL;
    uint32_t len;
    store_path_file_name(p, file, name);
    int fd = p->store->io->open(p->store->io, name, O_RDONLY, 0);
    if (fd < 0)
        return false;
    bool is = store_trailer_read(p, fd, &data, &len, &t) == 0 && strcmp(t.bucket, bucket) == 0;
    p->store->io->close(p->store->io, fd);
    return is;
}

/* The first objects of the first bucket whose id is `id` or more: their files. 0: there is none. */
static unsigned some_files(struct path *p, uint32_t *id, uint64_t *files, unsigned max)
{
    struct index_cursor c;
    struct ikey k;
    unsigned n = 0;
    uint32_t big;
    ikey_set(&k, *id, "", 0);
    pthread_rwlock_rdlock(&p->index.lock);
    for (store_index_seek(&c, &p->index, k.bytes, k.len); c.valid && n < max; store_index_next(&c)) {
        memcpy(&big, c.item.key, 4);
        if (n > 0 && __builtin_bswap32(big) != *id)
            break;
        *id = __builtin_bswap32(big);
        files[n++] = c.item.value.file;
    }
    pthread_rwlock_unlock(&p->index.lock);
    return n;
}

uint32_t store_bucket_lost_id(struct store *s, const char *name)
{
    enum { TRIES = 16 }; /* some of them may be damaged, too */
    uint64_t files[TRIES];
    uint32_t found = 0;
    for (unsigned i = 0; i < s->npaths; i++) {
        uint32_t id = 1; /* 0: parts of uploads */
        for (unsigned n; (n = some_files(s->paths[i], &id, files, TRIES)) > 0 && id < UINT32_MAX; id++)
            for (unsigned k = 0; k < n && id > found && !has_id(s, id); k++)
                if (is_of_bucket(s->paths[i], files[k], name))
                    found = id;
    }
    return found;
}
