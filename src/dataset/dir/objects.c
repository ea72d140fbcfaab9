/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dir/objects.c: a tree out of a list of objects: equal to the result of dir/scan.c for the same tree in
 * files, sample by sample. A list comes in the order of whole names, so it is sorted first.
 *
 * Different from files: a folder without an object in it does not exist, so it has no class. The index has no folders as sources.
 */
#include "dataset/builder_internal.h"
#include "dataset/scan.h"
#include "wire/archive/tar.h"

static size_t class_length(const char *name)
{
    const char *slash = strchr(name, '/');
    return slash ? (size_t)(slash - name) : 0;
}

/* By class, then by folder, then by name; parts of a path compare as strings of their own. */
static int compare_objects(const void *x, const void *y)
{
    const char *a = ((const struct dataset_object *)x)->name, *b = ((const struct dataset_object *)y)->name;
    size_t a_class = class_length(a), b_class = class_length(b);
    int c = index_key_compare(a, a_class, b, b_class);
    if (c)
        return c;
    const char *a_slash = strrchr(a, '/'), *b_slash = strrchr(b, '/');
    size_t a_folder = a_slash ? (size_t)(a_slash - a) : 0, b_folder = b_slash ? (size_t)(b_slash - b) : 0;
    c = index_key_compare(a, a_folder, b, b_folder);
    return c ? c : strcmp(a + a_folder, b + b_folder);
}

/* `label`: of its class; UINT32_MAX: it has none. */
static int add_object(struct scan *scan, struct index_builder *b, const char *root,
                      const struct dataset_object *o, uint32_t label, struct leat_error *err)
{
    int rc = tar_path_check(o->name, err);
    if (rc < 0)
        return error_prefix(err, rc, "%s", root);
    if (o->bytes > INT64_MAX)
        return error_set(err, LEAT_CORRUPT, "%s/%s: the server gives it an impossible size", root, o->name);
    struct stat st = {.st_mode = S_IFREG, .st_size = (off_t)o->bytes, .st_mtim = {.tv_sec = o->modified}};
    int64_t source = index_builder_source(b, o->name, &st);
    if (source < 0)
        return (int)source;
    index_builder_etag(b, (uint32_t)source, o->etag);
    uint64_t at = dir_place(b, (uint32_t)source, o->bytes);
    index_builder_sample(b, o->name, strlen(o->name));
    index_builder_part(b, 0, at, o->bytes);
    if (label != UINT32_MAX) {
        index_builder_field(b, "label", "<u4", INDEX_FIELD_LABEL, 0, NULL, 0, 0);
        index_builder_label(b, label);
    }
    return scan_tick(scan, o->bytes, err);
}

/* Those in a class folder, or those beside (or instead of) them. Returns how many there were, or an error. */
static int64_t add_objects(struct scan *scan, struct index_builder *b, const char *root,
                           const struct dataset_object *objects, uint64_t n, bool in_folders,
                           struct leat_error *err)
{
    int64_t added = 0, large = 0;
    for (uint64_t i = 0; i < n; i++) {
        size_t len = class_length(objects[i].name);
        uint32_t label = UINT32_MAX;
        if ((strchr(objects[i].name, '/') != NULL) != in_folders)
            continue;
        /* No class has an empty name; tar_path_check refuses such a path if the filter accepts it. */
        if (len > 0 && (label = index_builder_class_text(b, objects[i].name, len)) == UINT32_MAX)
            return -ENOMEM;
        if (!dir_wanted(scan, objects[i].name))
            continue;
        int rc = add_object(scan, b, root, &objects[i], label, err);
        if (rc < 0)
            return rc;
        added++;
        large += objects[i].bytes >= DIR_LARGE_FILE;
    }
    if (large * 2 < added)
        index_builder_flags(b, INDEX_FLAG_SMALL_FILES);
    return added;
}

int dir_objects(struct scan *scan, const char *root, struct dataset_object *objects, uint64_t n,
                struct index_builder **ret_builder, struct leat_error *err)
{
    struct index_builder *b;
    if (index_builder_new(INDEX_KIND_DIR, root, &b) < 0)
        return -ENOMEM;
    qsort(objects, n, sizeof(*objects), compare_objects);
    int64_t added = index_builder_field(b, "data", "", INDEX_FIELD_TABLE, 0, NULL, 0, 0);
    if (added >= 0)
        added = add_objects(scan, b, root, objects, n, true, err);
    struct dir_left_out beside = {0};
    for (uint64_t i = 0; added > 0 && i < n; i++)
        if (!strchr(objects[i].name, '/') && dir_wanted(scan, objects[i].name))
            dir_leave_out(&beside, objects[i].name);
    dir_report(root, &beside, DIR_BESIDE);
    if (added == 0)
        added = add_objects(scan, b, root, objects, n, false, err);
    if (added <= 0) {
        index_builder_free(b);
        return added < 0 ? (int)added : dir_empty(scan, root, err);
    }
    *ret_builder = b;
    return 0;
}
