/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tar/scan.c: tar shards by WebDataset's convention (wire/archive/tar.h says how a path becomes key and field).
 *
 * Happy path: walk.c gives the members of a shard; consecutive members with one key are
 * a sample. All shards are scanned first; then keys are compared, and everything goes to the builder. A shard is one RAW
 * extent, the image of its file. Remote shards are walked by ahead.c, several at a time.
 *
 * Keys: the same key twice in a shard is an error. Many tools number each shard from the start. When a key
 * comes again in another shard, every key of the set gets its shard's name in front: "train-003/000017".
 *
 * Failure modes: LEAT_CORRUPT names shard and offset (truncated, bad checksum); LEAT_INVALID a refused path, a suffix
 * twice in a sample, a key twice; LEAT_UNSUPPORTED sparse members. Links and devices are skipped with one warning.
 */
#include <fcntl.h>
#include <stdio.h>

#include "base/array.h"
#include "base/log.h"
#include "dataset/tar/ahead.h"
#include "dataset/tar/walk.h"

struct member {
    uint64_t address, bytes;
    uint32_t field, reserved;
};

struct sample {
    uint64_t key_end, first_member, header_offset;
    uint32_t shard, reserved;
};

/* Tables of all shards. Members of sample i: [first_member of i, first_member of i + 1). */
struct shards {
    struct scan *scan;
    struct index_builder *b;
    struct tar_ahead *ahead; /* NULL: files of this machine */
    char *const *paths;
    unsigned npaths;
    struct member *members;
    struct sample *samples;
    char *keys;
    uint64_t nmembers, members_cap, nsamples, samples_cap, keys_len, keys_cap;
    uint64_t skipped; /* links and devices */
};

struct shard {
    uint32_t number;
    const char *path;
    uint64_t bytes, address;
};

static const char *last_key(const struct shards *all, size_t *ret_len)
{
    uint64_t end = all->samples[all->nsamples - 1].key_end;
    uint64_t start = all->nsamples > 1 ? all->samples[all->nsamples - 2].key_end : 0;
    *ret_len = end - start;
    return all->keys + start;
}

static int begin_sample(struct shards *all, const struct shard *s, const struct tar_member *m, size_t key_len)
{
    int rc = array_reserve(&all->samples, &all->samples_cap, all->nsamples + 1);
    if (rc == 0)
        rc = array_reserve(&all->keys, &all->keys_cap, all->keys_len + key_len);
    if (rc < 0)
        return rc;
    memcpy(all->keys + all->keys_len, m->path, key_len);
    all->keys_len += key_len;
    all->samples[all->nsamples++] = (struct sample){.key_end = all->keys_len,
                                                    .first_member = all->nmembers,
                                                    .header_offset = m->header_offset,
                                                    .shard = s->number};
    return 0;
}

static int add_member(struct shards *all, const struct shard *s, const struct tar_member *m,
                      struct leat_error *err)
{
    char field_name[TAR_PATH_MAX];
    size_t key_len, have_len = 0;
    if (!tar_sample_key(m->path, &key_len, field_name, sizeof(field_name)))
        return 0;
    bool same = all->nsamples && all->samples[all->nsamples - 1].shard == s->number;
    if (same) {
        const char *have = last_key(all, &have_len);
        same = have_len == key_len && !memcmp(have, m->path, key_len);
    }
    int rc = same ? 0 : begin_sample(all, s, m, key_len);
    if (rc == 0)
        rc = scan_tick(all->scan, m->bytes, err);
    if (rc < 0)
        return rc;
    int field = index_builder_field(all->b, field_name, "", INDEX_FIELD_TABLE, 0, NULL, 0, 0);
    char shown[160];
    scan_escape(m->path, shown, sizeof(shown));
    if (field == -E2BIG)
        return error_set(err, LEAT_UNSUPPORTED,
                         "%s: the member \"%s\" at offset %llu brings more than %u different "
                         "extensions; a sample's key ends at the first dot of its file name",
                         s->path, shown, (unsigned long long)m->header_offset, INDEX_MAX_FIELDS);
    if (field < 0)
        return field;
    for (uint64_t i = all->samples[all->nsamples - 1].first_member; i < all->nmembers; i++)
        if (all->members[i].field == (uint32_t)field)
            return error_set(err, LEAT_INVALID,
                             "%s: the member \"%s\" at offset %llu gives its sample a second \".%s\"",
                             s->path, shown, (unsigned long long)m->header_offset, field_name);
    rc = array_reserve(&all->members, &all->members_cap, all->nmembers + 1);
    if (rc < 0)
        return rc;
    all->members[all->nmembers++] =
        (struct member){.address = s->address + m->data_offset, .bytes = m->bytes, .field = (uint32_t)field};
    return 0;
}

static int take_member(struct shards *all, const struct shard *s, const struct tar_member *m,
                       struct leat_error *err)
{
    if (m->data_offset > s->bytes || m->bytes > s->bytes - m->data_offset) {
        char shown[160];
        scan_escape(m->path, shown, sizeof(shown));
        return error_set(err, LEAT_CORRUPT,
                         "%s: truncated: the member \"%s\" at offset %llu ends at byte %llu and the "
                         "file has %llu",
                         s->path, shown, (unsigned long long)m->header_offset,
                         (unsigned long long)(m->data_offset + m->bytes), (unsigned long long)s->bytes);
    }
    switch (m->type) {
    case '0':
        return add_member(all, s, m, err);
    case 'S':
        return error_set(err, LEAT_UNSUPPORTED,
                         "%s: the member at offset %llu is stored sparse; write the archive "
                         "without --sparse",
                         s->path, (unsigned long long)m->header_offset);
    case '5':
        return 0;
    default:
        all->skipped++;
        return 0;
    }
}

struct shard_here {
    struct shards *all;
    struct shard *shard;
};

static int take_here(void *ctx, const struct tar_member *m, struct leat_error *err)
{
    struct shard_here *here = ctx;
    return take_member(here->all, here->shard, m, err);
}

/* A source, and an extent that is its image. */
static int place_shard(struct shards *all, struct shard *s, const struct scan_file *file, const char *root)
{
    int64_t source = index_builder_source(all->b, scan_relative(root, s->path), &file->st);
    if (source < 0)
        return (int)source;
    index_builder_etag(all->b, (uint32_t)source, file->etag);
    s->bytes = (uint64_t)file->st.st_size;
    s->address = index_builder_reserve(all->b, align_up(s->bytes, INDEX_FILE_ALIGN), INDEX_FILE_ALIGN, 0);
    if (s->bytes)
        index_builder_extent(all->b, &(struct index_extent){.address = s->address,
                                                            .bytes = s->bytes,
                                                            .source_bytes = s->bytes,
                                                            .source = (uint32_t)source,
                                                            .kind = INDEX_EXTENT_RAW});
    return 0;
}

static int scan_shard(struct shards *all, uint32_t number, const char *root, struct leat_error *err)
{
    struct shard s = {.number = number, .path = all->paths[number]};
    struct shard_here here = {all, &s};
    if (all->ahead) {
        const struct scan_file *elsewhere;
        int rc = tar_ahead_shard(all->ahead, number, &elsewhere, err);
        if (rc == 0)
            rc = place_shard(all, &s, elsewhere, root);
        return rc < 0 ? rc : tar_ahead_members(all->ahead, number, take_here, &here, err);
    }
    AUTO_SCAN_FILE struct scan_file file = {.fd = -1};
    int rc = scan_open(all->scan, s.path, &file, err);
    if (rc < 0)
        return rc;
    if (!S_ISREG(file.st.st_mode))
        return error_set(err, LEAT_INVALID, "%s: a directory, where a tar file is expected", s.path);
    rc = place_shard(all, &s, &file, root);
    return rc < 0 ? rc : tar_walk(file.fd, 0, s.bytes, s.path, take_here, &here, err);
}

static const char *sample_key(const struct shards *all, uint64_t i, size_t *ret_len)
{
    uint64_t start = i ? all->samples[i - 1].key_end : 0;
    *ret_len = all->samples[i].key_end - start;
    return all->keys + start;
}

static int compare_keys(const struct shards *all, uint64_t i, uint64_t j)
{
    size_t a_len, b_len;
    const char *a = sample_key(all, i, &a_len), *b = sample_key(all, j, &b_len);
    int c = memcmp(a, b, MIN(a_len, b_len));
    return c ? c : a_len < b_len ? -1 : a_len > b_len;
}

static int compare_samples(const void *x, const void *y, void *arg)
{
    uint64_t i = *(const uint64_t *)x, j = *(const uint64_t *)y;
    int c = compare_keys(arg, i, j);
    return c ? c : i < j ? -1 : i > j;
}

/* Is a key used by several shards? And by one shard twice: an error. */
static int compare_all_keys(const struct shards *all, bool *ret_repeated, struct leat_error *err)
{
    uint64_t rising = 1;
    *ret_repeated = false;
    while (rising < all->nsamples && compare_keys(all, rising - 1, rising) < 0)
        rising++;
    if (rising >= all->nsamples)
        return 0;
    AUTO_FREE uint64_t *order = malloc(all->nsamples * sizeof(*order));
    if (!order)
        return -ENOMEM;
    for (uint64_t i = 0; i < all->nsamples; i++)
        order[i] = i;
    qsort_r(order, all->nsamples, sizeof(*order), compare_samples, (void *)all);
    for (uint64_t p = 1; p < all->nsamples; p++) {
        if (compare_keys(all, order[p - 1], order[p]))
            continue;
        const struct sample *a = &all->samples[order[p - 1]], *b = &all->samples[order[p]];
        if (a->shard != b->shard) {
            *ret_repeated = true;
            continue;
        }
        size_t len;
        const char *key = sample_key(all, order[p], &len);
        return error_set(err, LEAT_INVALID,
                         "%s: the key \"%.*s\" begins two samples, at offsets %llu and %llu; the "
                         "members of a sample must follow each other",
                         all->paths[a->shard], (int)MIN(len, (size_t)160), key,
                         (unsigned long long)a->header_offset, (unsigned long long)b->header_offset);
    }
    return 0;
}

/* "dir/train-003.tar" -> "train-003". */
static const char *shard_stem(const char *path, size_t *ret_len)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    size_t len = strlen(base);
    *ret_len = len > 4 && !strcmp(base + len - 4, ".tar") ? len - 4 : len;
    return base;
}

static int compare_stems(const void *x, const void *y)
{
    size_t a_len, b_len;
    const char *a = shard_stem(*(char *const *)x, &a_len), *b = shard_stem(*(char *const *)y, &b_len);
    int c = memcmp(a, b, MIN(a_len, b_len));
    return c ? c : a_len < b_len ? -1 : a_len > b_len;
}

static int check_stems(const struct shards *all, struct leat_error *err)
{
    AUTO_FREE char **paths = malloc(all->npaths * sizeof(*paths));
    if (!paths)
        return -ENOMEM;
    memcpy(paths, all->paths, all->npaths * sizeof(*paths));
    qsort(paths, all->npaths, sizeof(*paths), compare_stems);
    for (unsigned i = 1; i < all->npaths; i++) {
        size_t len;
        const char *stem = shard_stem(paths[i], &len);
        if (compare_stems(&paths[i - 1], &paths[i]) == 0)
            return error_set(err, LEAT_INVALID,
                             "%s and %s hold samples of the same keys and have the same name \"%.*s\", so "
                             "nothing tells them apart; rename one",
                             paths[i - 1], paths[i], (int)len, stem);
        /* The name becomes part of the key. */
        int rc = tar_path_check(stem, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int feed_builder(struct shards *all, bool with_shard, struct leat_error *err)
{
    char key[2 * TAR_PATH_MAX];
    int rc = with_shard ? check_stems(all, err) : 0;
    for (uint64_t i = 0; i < all->nsamples && rc == 0; i++) {
        size_t stem_len = 0, len;
        const char *stem = shard_stem(all->paths[all->samples[i].shard], &stem_len);
        const char *k = sample_key(all, i, &len);
        int n = with_shard ? snprintf(key, sizeof(key), "%.*s/%.*s", (int)stem_len, stem, (int)len, k) : 0;
        rc = with_shard ? index_builder_sample(all->b, key, (size_t)n) : index_builder_sample(all->b, k, len);
        uint64_t end = i + 1 < all->nsamples ? all->samples[i + 1].first_member : all->nmembers;
        for (uint64_t m = all->samples[i].first_member; m < end && rc == 0; m++)
            rc = index_builder_part(all->b, all->members[m].field, all->members[m].address,
                                    all->members[m].bytes);
    }
    return rc;
}

static int scan_all(struct shards *all, const char *root, struct leat_error *err)
{
    for (uint32_t i = 0; i < all->npaths; i++) {
        int rc = scan_shard(all, i, root, err);
        if (rc < 0)
            return rc;
    }
    if (all->skipped)
        log_warning_limited(
            "%s: %llu members that are neither files nor folders (links, devices) are left out", root,
            (unsigned long long)all->skipped);
    if (all->nsamples == 0)
        return error_set(err, LEAT_INVALID,
                         "the dataset is empty: no member of %s%s is named like \"key.extension\"",
                         all->paths[0], all->npaths > 1 ? " and the other shards" : "");
    bool repeated;
    int rc = compare_all_keys(all, &repeated, err);
    return rc < 0 ? rc : feed_builder(all, repeated, err);
}

int tar_scan(struct scan *scan, char *const *paths, unsigned n, struct index_builder **ret_builder,
             struct leat_error *err)
{
    AUTO_FREE char *root = scan_common_root(paths, n);
    struct shards all = {.scan = scan, .paths = paths, .npaths = n};
    if (!root || index_builder_new(INDEX_KIND_TAR, root, &all.b) < 0)
        return -ENOMEM;
    int rc = dataset_is_remote(paths[0]) ? tar_ahead_new(scan, paths, n, &all.ahead) : 0;
    if (rc == 0)
        rc = scan_all(&all, root, err);
    tar_ahead_free(all.ahead);
    free(all.members);
    free(all.samples);
    free(all.keys);
    if (rc < 0) {
        index_builder_free(all.b);
        return rc;
    }
    *ret_builder = all.b;
    return 0;
}
