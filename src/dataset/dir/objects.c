/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dir/objects.c: a tree out of a list of objects: what dir/scan.c makes of the same tree in files, sample by sample, without a stack,
 * for a list is in the order of names already. One pass: labels are given as their folders appear, and numbered in the order of
 * the folders' names when all are known.
 *
 * Different from files: a folder without an object in it does not exist, so it has no class. The index has no folders as sources.
 */
#include "dataset/scan.h"
#include "dataset/builder_internal.h"
#include "wire/tar.h"

struct dir_objects {
    struct scan *scan;
    struct index_builder *b;
    char *root;
    int data_field;
    uint64_t nfiles, nlarge;
};

int dir_objects_new(struct scan *scan, const char *root, struct dir_objects **ret_tree)
{
    struct dir_objects *t = calloc(1, sizeof(*t));
    if (!t)
        return -ENOMEM;
    t->scan = scan;
    t->root = strdup(root);
    int rc = t->root ? index_builder_new(INDEX_KIND_DIR, root, &t->b) : -ENOMEM;
    if (rc == 0)
        rc = t->data_field = index_builder_field(t->b, "data", "", INDEX_FIELD_TABLE, 0, NULL, 0, 0);
    if (rc < 0) {
        dir_objects_free(t);
        return rc;
    }
    *ret_tree = t;
    return 0;
}

void dir_objects_free(struct dir_objects *t)
{
    if (!t)
        return;
    index_builder_free(t->b);
    free(t->root);
    free(t);
}

int dir_objects_add(struct dir_objects *t, const struct dataset_object *o, struct leat_error *err)
{
    struct index_builder *b = t->b;
    int rc = tar_path_check(o->name, err);
    if (rc < 0)
        return error_prefix(err, rc, "%s", t->root);
    if (o->bytes > INT64_MAX)
        return error_set(err, LEAT_CORRUPT, "%s/%s: the server gives it an impossible size", t->root,
                         o->name);
    struct stat st = {.st_mode = S_IFREG, .st_size = (off_t)o->bytes, .st_mtim = {.tv_sec = o->modified}};
    int64_t source = index_builder_source(b, o->name, &st);
    if (source < 0)
        return (int)source;
    index_builder_etag(b, (uint32_t)source, o->etag);
    uint64_t at = dir_place(b, (uint32_t)source, o->bytes);
    t->nfiles++;
    t->nlarge += o->bytes >= DIR_LARGE_FILE;
    index_builder_sample(b, o->name, strlen(o->name));
    index_builder_part(b, (unsigned)t->data_field, at, o->bytes);

    const char *slash = strchr(o->name, '/');
    size_t first = slash ? (size_t)(slash - o->name) : 0;
    if (slash && index_builder_field(b, "label", "<u4", INDEX_FIELD_LABEL, 0, NULL, 0, 0) < 0)
        return -ENOMEM;
    uint32_t class = index_builder_class_text(b, o->name, first);
    if (class == UINT32_MAX)
        return -ENOMEM;
    index_builder_label(b, class);
    return scan_tick(t->scan, o->bytes, err);
}

int dir_objects_end(struct dir_objects *t, struct index_builder **ret_builder, struct leat_error *err)
{
    int rc = index_builder_sort_classes(t->b);
    if (rc < 0)
        return rc;
    if (t->nlarge * 2 < t->nfiles)
        index_builder_flags(t->b, INDEX_FLAG_SMALL_FILES);
    *ret_builder = TAKE_PTR(t->b);
    return 0;
}
