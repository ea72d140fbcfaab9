/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert_source.c: what is to be converted, as a list of files.
 *
 * Happy path: src/dataset says what the source is and where its bytes lie. A folder's files come in the order of their samples' keys (so that a
 * sample's files follow each other), empty folders too; members of shards are read from their headers once more, as an index
 * knows fields, not names, and in their own order; a row of an array becomes a .npy file.
 * Failure modes: those of the scanners; the same path twice; arrays whose bytes do not lie in a file as they are (HDF5's chunks).
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "apps/leat/convert.h"
#include "base/array.h"
#include "dataset/dataset.h"
#include "dataset/index.h"
#include "dataset/tar/walk.h"

static void index_fini(struct index *index)
{
    if (index->blob)
        index_close(index);
}

static int add_file(struct convert_list *list, const char *path)
{
    int rc = array_reserve(&list->files, &list->files_cap, list->nfiles + 1);
    if (rc < 0)
        return rc;
    list->files[list->nfiles] = strdup(path);
    return list->files[list->nfiles] ? (list->nfiles++, 0) : -ENOMEM;
}

/* An item of the last file. Its path is copied. */
static struct convert_item *add_item(struct convert_list *list, const char *path, size_t len)
{
    if (array_reserve(&list->items, &list->cap, list->n + 1) < 0)
        return NULL;
    struct convert_item *item = &list->items[list->n];
    *item = (struct convert_item){.path = strndup(path, len), .file = (uint32_t)(list->nfiles - 1)};
    if (!item->path)
        return NULL;
    list->n++;
    return item;
}

size_t convert_key_len(const char *path)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    return (size_t)(base - path) + strcspn(base, ".");
}

/* --- a folder ---------------------------------------------------------------------------------------------------- */

static int add_label(struct convert_list *list, const char *key, uint32_t label)
{
    char path[TAR_PATH_MAX + 8];
    int len = snprintf(path, sizeof(path), "%.*s.cls", (int)convert_key_len(key), key);
    struct convert_item *item = add_item(list, path, (size_t)len);
    if (!item)
        return -ENOMEM;
    item->head_bytes = (uint32_t)snprintf(item->text, sizeof(item->text), "%" PRIu32, label);
    return 0;
}

static int read_folder(struct convert_list *list, const struct index *ix, bool labels, struct leat_error *err)
{
    char path[2 * TAR_PATH_MAX], scratch[24];
    const char *root = index_string(ix, ix->header->root);
    int data = index_field_find(ix, "data");
    if (labels && !ix->labels)
        return error_set(err, LEAT_INVALID, "%s: no labels: none of its files lies in a folder", root);
    for (uint64_t i = 0; i < ix->header->nsamples; i++) {
        size_t len;
        const char *key = index_key(ix, i, scratch, &len);
        struct index_part part;
        if (data < 0 || !index_part(ix, i, (unsigned)data, &part))
            continue;
        snprintf(path, sizeof(path), "%s/%.*s", strcmp(root, "/") ? root : "", (int)len, key);
        int rc = add_file(list, path);
        struct convert_item *item = rc == 0 ? add_item(list, key, len) : NULL;
        if (!item)
            return -ENOMEM;
        item->bytes = part.bytes;
        if (labels && add_label(list, list->items[list->n - 1].path, ix->labels[i]) < 0)
            return -ENOMEM;
    }
    for (uint64_t s = 0; s < ix->header->nsources; s++) {
        const char *name = index_string(ix, ix->sources[s].path);
        size_t len = strlen(name);
        if (len < 2 || name[len - 1] != '/' || strcmp(name, "./") == 0)
            continue; /* a file, or the root itself */
        if (index_source_absent(ix, &ix->sources[s])) {
            list->left_out++; /* a link that leads nowhere; as a folder it would be a class */
            continue;
        }
        struct convert_item *item = add_item(list, name, len);
        if (!item)
            return -ENOMEM;
        item->folder = true;
    }
    return 0;
}

/* --- tar shards -------------------------------------------------------------------------------------------------- */

static int take_member(void *ctx, const struct tar_member *m, struct leat_error *err)
{
    struct convert_list *list = ctx;
    (void)err;
    if (m->type != '0' && m->type != '5') {
        list->left_out++;
        return 0;
    }
    char path[TAR_PATH_MAX + 1];
    size_t len = strlen(m->path);
    memcpy(path, m->path, len + 1);
    if (m->type == '5' && len && path[len - 1] != '/') {
        path[len++] = '/';
        path[len] = '\0';
    }
    struct convert_item *item = add_item(list, path, len);
    if (!item)
        return -ENOMEM;
    item->folder = m->type == '5';
    item->offset = m->data_offset;
    item->bytes = item->folder ? 0 : m->bytes;
    return 0;
}

static int read_shard(struct convert_list *list, const char *path, struct leat_error *err)
{
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0)
        return error_sys(err, -errno, "%s", path);
    return add_file(list, path) < 0 ? -ENOMEM
                                    : tar_walk(fd, 0, (uint64_t)st.st_size, path, take_member, list, err);
}

/* --- arrays ------------------------------------------------------------------------------------------------------ */

/* Rows as .npy files: "000123.npy", or "000123.image.npy" where there are several arrays. */
static int read_arrays(struct convert_list *list, const struct index *ix, struct leat_error *err)
{
    uint64_t n = ix->header->nsamples;
    unsigned nfields = ix->header->nfields, digits = 6;
    for (uint64_t most = 1000000; n > most && digits < 20; most *= 10)
        digits++;
    uint64_t first_file = list->nfiles;
    char path[2 * TAR_PATH_MAX];
    for (uint64_t s = 0; s < ix->header->nsources; s++) {
        index_source_path(ix, s, path, sizeof(path));
        if (add_file(list, path) < 0)
            return -ENOMEM;
    }
    uint32_t head_bytes[64] = {0};
    for (unsigned f = 0; f < nfields; f++) {
        const struct index_field *field = &ix->fields[f];
        list->row_heads[f] =
            convert_npy_head(index_string(ix, field->dtype), field->shape, field->ndim, &head_bytes[f]);
        if (!list->row_heads[f])
            return -ENOMEM;
    }
    for (uint64_t i = 0; i < n; i++) {
        for (unsigned f = 0; f < nfields; f++) {
            const struct index_field *field = &ix->fields[f];
            uint64_t address = field->address + i * field->stride;
            uint64_t e = index_extent_at(ix, address);
            const struct index_extent *extent = e < ix->header->nextents ? &ix->extents[e] : NULL;
            if (field->kind != INDEX_FIELD_UNIFORM || !extent || extent->kind != INDEX_EXTENT_RAW ||
                extent->source >= ix->header->nsources || address < extent->address ||
                address + field->stride > extent->address + extent->bytes)
                return error_set(
                    err, LEAT_UNSUPPORTED,
                    "%s: its bytes do not lie in the file as they are (chunks, filters): read it with "
                    "h5py and numpy.save it",
                    index_string(ix, field->name));
            int len = nfields == 1 ? snprintf(path, sizeof(path), "%0*" PRIu64 ".npy", (int)digits, i)
                                   : snprintf(path, sizeof(path), "%0*" PRIu64 ".%s.npy", (int)digits, i,
                                              index_string(ix, field->name));
            struct convert_item *item = add_item(list, path, (size_t)len);
            if (!item)
                return -ENOMEM;
            item->file = (uint32_t)(first_file + extent->source);
            item->offset = extent->source_offset + (address - extent->address);
            item->bytes = field->stride;
            item->head = list->row_heads[f];
            item->head_bytes = head_bytes[f];
        }
    }
    return 0;
}

/* --- all of them ------------------------------------------------------------------------------------------------- */

static int compare_keys(const struct convert_item *a, const struct convert_item *b)
{
    size_t la = convert_key_len(a->path), lb = convert_key_len(b->path);
    int c = memcmp(a->path, b->path, MIN(la, lb));
    return c ? c : la < lb ? -1 : la > lb;
}

/* By key, then by path: all files of a sample together. */
static int compare_items(const void *x, const void *y)
{
    const struct convert_item *a = x, *b = y;
    int c = compare_keys(a, b);
    return c ? c : strcmp(a->path, b->path);
}

static int compare_paths(const void *x, const void *y)
{
    return strcmp((*(const struct convert_item *const *)x)->path,
                  (*(const struct convert_item *const *)y)->path);
}

/* Drops folders that something lies in; a path that comes twice is an error. */
static int settle(struct convert_list *list, struct leat_error *err)
{
    AUTO_FREE struct convert_item **order = malloc((list->n + 1) * sizeof(struct convert_item *));
    if (!order)
        return -ENOMEM;
    for (uint64_t i = 0; i < list->n; i++)
        order[i] = &list->items[i];
    qsort(order, list->n, sizeof(struct convert_item *), compare_paths);
    for (uint64_t i = 0; i + 1 < list->n; i++) {
        struct convert_item *item = order[i], *next = order[i + 1];
        if (strcmp(item->path, next->path) == 0) {
            /* Folders may; and each file of a sample has brought the sample's class. */
            if (!item->folder && (!item->text[0] || strcmp(item->text, next->text) != 0))
                return error_set(err, LEAT_INVALID,
                                 "\"%.300s\" comes twice; convert the shards one by one, or rename it",
                                 item->path);
            item->path[0] = '\0';
        } else if (item->folder && strncmp(item->path, next->path, strlen(item->path)) == 0) {
            item->path[0] = '\0';
        }
    }
    uint64_t kept = 0;
    for (uint64_t i = 0; i < list->n; i++) {
        if (list->items[i].path[0])
            list->items[kept++] = list->items[i];
        else
            free(list->items[i].path);
    }
    list->n = kept;
    return 0;
}

static int read_index(struct convert_list *list, const struct index *ix, bool labels, struct leat_error *err)
{
    switch (ix->header->kind) {
    case INDEX_KIND_DIR:
        list->from = CONVERT_DIR;
        return read_folder(list, ix, labels, err);
    case INDEX_KIND_ARRAY:
        list->from = CONVERT_NPY;
        return read_arrays(list, ix, err);
    default:
        break;
    }
    list->from = CONVERT_TAR;
    for (uint64_t s = 0; s < ix->header->nsources; s++) {
        char path[2 * TAR_PATH_MAX];
        index_source_path(ix, s, path, sizeof(path));
        if (path[0] && path[strlen(path) - 1] == '/')
            continue;
        int rc = read_shard(list, path, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* The extension is all behind the key's dot, as a sample's field is. A label stays with its file, which stands before it. */
static int filter(struct convert_list *list, const char *uri, const char *field, struct leat_error *err)
{
    uint64_t kept = 0;
    bool keep = false;
    for (uint64_t i = 0; i < list->n; i++) {
        const char *path = list->items[i].path, *dot = path + convert_key_len(path);
        if (!list->items[i].text[0])
            keep = !list->items[i].folder && *dot == '.' && strcasecmp(dot + 1, field) == 0;
        if (keep)
            list->items[kept++] = list->items[i];
        else
            free(list->items[i].path);
    }
    list->n = kept;
    return kept ? 0 : error_set(err, LEAT_INVALID, "%s: no file with the extension .%s", uri, field);
}

int convert_list_read(struct convert_list *list, const char *uri, bool labels, const char *field,
                      struct progress *progress, struct leat_error *err)
{
    struct dataset_spec spec;
    struct dataset_progress scan = {.report = progress_scan, .user = progress};
    AUTO_CLOSE int fd = memfd_create("leat-convert", MFD_CLOEXEC);
    if (fd < 0)
        return error_sys(err, -errno, "memfd_create");
    int rc = dataset_spec_parse(uri, &spec, err);
    if (rc < 0)
        return rc;
    spec.all_files = !labels; /* files are copied, whatever they are to a training job */
    rc = dataset_index_build(&spec, NULL, &scan, fd, err);
    dataset_spec_free(&spec);
    __attribute__((cleanup(index_fini))) struct index ix = {0};
    if (rc == 0)
        rc = index_map(fd, &ix, err);
    if (rc == 0)
        rc = read_index(list, &ix, labels, err);
    if (rc == 0 && field)
        rc = filter(list, uri, field, err);
    if (rc == 0)
        rc = settle(list, err);
    if (rc < 0)
        return rc;
    if (list->from == CONVERT_DIR && list->n)
        qsort(list->items, list->n, sizeof(*list->items), compare_items);
    const struct convert_item *before = NULL;
    for (uint64_t i = 0; i < list->n; i++) {
        struct convert_item *item = &list->items[i];
        if (item->text[0])
            item->head = item->text; /* it lies where it stays only now */
        if (item->folder)
            continue;
        list->bytes += item->bytes + item->head_bytes;
        list->samples += !before || compare_keys(before, item) != 0;
        list->nameless += item->path[convert_key_len(item->path)] != '.';
        before = item;
    }
    return 0;
}

void convert_list_free(struct convert_list *list)
{
    for (uint64_t i = 0; i < list->n; i++)
        free(list->items[i].path);
    for (uint64_t i = 0; i < list->nfiles; i++)
        free(list->files[i]);
    for (size_t i = 0; i < ARRAY_LEN(list->row_heads); i++)
        free(list->row_heads[i]);
    free(list->items);
    free(list->files);
}
