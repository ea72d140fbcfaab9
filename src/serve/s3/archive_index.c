/* SPDX-License-Identifier: Apache-2.0 */
/*
 * archive_index.c: walks an archive's headers and remembers where its members are. Its bytes show its kind,
 * not its name.
 *
 * Failure modes: those of dataset/tar/walk.h and wire/archive/zip.h; a tar whose last member is cut off is LEAT_CORRUPT. Invariant: every payload lies within
 * the archive.
 */
#include "serve/s3/archive_index.h"

#include <xxhash.h>

#include "base/array.h"
#include "base/fdio.h"
#include "dataset/tar/walk.h"
#include "wire/archive/zip.h"

#define WINDOW_BYTES (256 * KIB) /* where headers are close to each other */
#define PEEK_BYTES   (4 * KIB)   /* where they are not */
#define NEAR_BYTES   (64 * KIB)

struct walk {
    const struct archive_file *file;
    struct archive_index *index;
    uint8_t *window; /* owned */
    uint64_t cap, at, len;
    struct leat_error *err;
};

static int read_at(const struct archive_file *f, void *buf, uint64_t bytes, uint64_t offset,
                   struct leat_error *err)
{
    int64_t n = fd_read_at(f->fd, buf, bytes, f->offset + offset);
    return n == (int64_t)bytes
               ? 0
               : error_sys(err, n < 0 ? (int)n : -EIO, "the archive cannot be read at offset %llu",
                           (unsigned long long)offset);
}

/* [offset, +want), which lie within the archive. */
static int look(struct walk *w, uint64_t offset, uint64_t want, const uint8_t **ret)
{
    *ret = NULL;
    if (want == 0)
        return 0;
    if (offset < w->at || offset + want > w->at + w->len) {
        bool near = offset >= w->at && offset - w->at <= w->len + NEAR_BYTES;
        uint64_t len = MAX(want, near ? WINDOW_BYTES : PEEK_BYTES);
        if (array_reserve(&w->window, &w->cap, len) < 0)
            return -ENOMEM;
        len = MIN(len, w->file->bytes - offset);
        w->len = 0;
        int rc = read_at(w->file, w->window, len, offset, w->err);
        if (rc < 0)
            return rc;
        w->at = offset;
        w->len = len;
    }
    *ret = w->window + (offset - w->at);
    return 0;
}

/* --- tables -------------------------------------------------------------------------------------------------------- */

/* Room for `want` rows; what is there already was charged when it came. */
static int grow(struct walk *w, void *array, uint64_t *cap, uint64_t want, size_t row)
{
    if (want <= *cap)
        return 0;
    uint64_t least = MAX(want, 16ull), n = MAX(*cap * 2, least);
    int rc = w->file->charge(w->file->user, (n - *cap) * row);
    if (rc < 0)
        return rc;
    void *p = realloc(*(void **)array, n * row);
    if (!p)
        return -ENOMEM; /* what was charged goes with the index */
    *(void **)array = p;
    *cap = n;
    return 0;
}

static int add(struct walk *w, const char *path, struct archive_entry e)
{
    struct archive_index *x = w->index;
    size_t len = strlen(path) + 1;
    if (x->n >= UINT32_MAX - 1 || x->text_len + len > UINT32_MAX)
        return LEAT_NO_SPACE;
    int rc = grow(w, &x->entries, &x->cap, x->n + 1, sizeof(*x->entries));
    if (rc == 0)
        rc = grow(w, &x->text, &x->text_cap, x->text_len + len, 1);
    if (rc < 0)
        return rc;
    e.name = (uint32_t)x->text_len;
    memcpy(x->text + x->text_len, path, len);
    x->text_len += len;
    x->entries[x->n++] = e;
    return 0;
}

static uint64_t slot_of(const struct archive_index *x, const char *path)
{
    uint64_t mask = x->nslots - 1, slot = XXH3_64bits(path, strlen(path)) & mask;
    while (x->slots[slot] && strcmp(x->text + x->entries[x->slots[slot] - 1].name, path) != 0)
        slot = (slot + 1) & mask;
    return slot;
}

static int table_make(struct walk *w)
{
    struct archive_index *x = w->index;
    uint64_t n = 16;
    while (n < 2 * x->n)
        n *= 2;
    int rc = w->file->charge(w->file->user, n * sizeof(*x->slots));
    if (rc < 0)
        return rc;
    x->slots = calloc(n, sizeof(*x->slots));
    if (!x->slots)
        return -ENOMEM;
    x->nslots = n;
    for (uint64_t i = 0; i < x->n; i++)
        x->slots[slot_of(x, x->text + x->entries[i].name)] = (uint32_t)i + 1;
    return 0;
}

/* --- walking ------------------------------------------------------------------------------------------------------- */

static int take_member(void *ctx, const struct tar_member *m, struct leat_error *err)
{
    struct walk *w = ctx;
    if (m->bytes > w->file->bytes || m->data_offset > w->file->bytes - m->bytes)
        return error_set(err, LEAT_CORRUPT, "the archive ends inside the member at offset %llu",
                         (unsigned long long)m->header_offset);
    if (m->type == '5')
        return 0;
    return add(w, m->path,
               (struct archive_entry){.header_at = m->header_offset,
                                      .at = m->data_offset,
                                      .stored_bytes = m->bytes,
                                      .bytes = m->bytes,
                                      .type = m->type});
}

static int walk_tar(struct walk *w)
{
    return tar_walk(w->file->fd, w->file->offset, w->file->bytes, "the archive", take_member, w, w->err);
}

static int walk_zip(struct walk *w)
{
    struct zip_parser p;
    struct zip_member *m = malloc(sizeof(*m));
    int rc = m ? zip_parser_init(&p, w->file->bytes, w->err) : -ENOMEM;
    w->index->zip = true;
    while (rc >= 0 && rc != ZIP_END) {
        const uint8_t *buf;
        rc = look(w, p.offset, p.want, &buf);
        if (rc == 0)
            rc = zip_parser_feed(&p, buf, p.want, m, w->err);
        if (rc != ZIP_MEMBER || m->directory)
            continue;
        rc = add(w, m->path,
                 (struct archive_entry){.header_at = m->header_offset,
                                        .stored_bytes = m->stored_bytes,
                                        .bytes = m->bytes,
                                        .crc = m->crc,
                                        .method = m->method,
                                        .encrypted = m->encrypted,
                                        .type = '0'});
    }
    free(m);
    if (rc >= 0)
        w->index->limit = p.directory_offset;
    return MIN(rc, 0);
}

/* A tar begins with a header, or with its end; a ZIP archive has its own end. */
static int walk_any(struct walk *w)
{
    static const uint8_t gzip[2] = {0x1f, 0x8b}, zstd[4] = {0x28, 0xb5, 0x2f, 0xfd};
    uint64_t bytes = w->file->bytes, n = MIN(bytes, (uint64_t)TAR_BLOCK);
    const uint8_t *head = NULL;
    int rc = look(w, 0, n, &head);
    if (rc < 0)
        return rc;
    if (n >= sizeof(zstd) &&
        (!memcmp(head, gzip, sizeof(gzip)) || !memcmp(head, zstd, sizeof(zstd)) || !memcmp(head, "BZh", 3) ||
         !memcmp(head,
                 "\xfd"
                 "7zX",
                 4)))
        return error_set(
            w->err, LEAT_UNSUPPORTED,
            "a compressed archive: its members cannot be found by name. Store it as plain tar or ZIP");
    if (n >= 4 && !memcmp(head, "PK", 2) && (head[2] == 3 || head[2] == 5))
        return walk_zip(w);
    struct tar_parser *p = malloc(sizeof(*p));
    struct tar_member *m = malloc(sizeof(*m));
    static const uint8_t zeros[TAR_BLOCK];
    bool tar = false, blank = n == TAR_BLOCK && !memcmp(head, zeros, TAR_BLOCK);
    if (p && m) {
        tar_parser_init(p);
        tar = n == TAR_BLOCK && !blank && tar_parser_feed(p, head, n, m, NULL) != LEAT_CORRUPT;
    }
    rc = p && m ? 0 : -ENOMEM;
    free(p);
    free(m);
    if (rc < 0 || tar)
        return rc < 0 ? rc : walk_tar(w);
    /* Perhaps a program, or zeros, in front of a ZIP archive. */
    struct leat_error why = {0}, *err = w->err;
    w->err = &why;
    rc = walk_zip(w);
    w->err = err;
    if (rc == LEAT_CORRUPT && w->index->n == 0 && blank) {
        w->index->zip = false;
        return walk_tar(w);
    }
    if (rc == LEAT_CORRUPT && w->index->n == 0)
        return error_set(err, LEAT_INVALID, "it is neither a tar nor a ZIP archive");
    if (rc < 0 && err)
        *err = why;
    return rc;
}

int archive_index_build(const struct archive_file *file, struct archive_index *ret_index,
                        struct leat_error *err)
{
    struct walk w = {.file = file, .index = ret_index, .err = err};
    *ret_index = (struct archive_index){0};
    int rc = walk_any(&w);
    if (rc == 0)
        rc = table_make(&w);
    free(w.window);
    return rc;
}

void archive_index_fini(struct archive_index *x)
{
    free(x->entries);
    free(x->text);
    free(x->slots);
    *x = (struct archive_index){0};
}

/* --- asking -------------------------------------------------------------------------------------------------------- */

static int find_zip(const struct archive_index *x, const struct archive_file *file,
                    const struct archive_entry *e, struct member *ret, struct leat_error *err)
{
    uint8_t local[ZIP_LOCAL_BYTES];
    struct zip_member *m = calloc(1, sizeof(*m));
    if (!m)
        return error_set(err, -ENOMEM, "out of memory");
    m->method = e->method;
    m->encrypted = e->encrypted;
    m->stored_bytes = e->stored_bytes;
    m->header_offset = e->header_at;
    int rc = zip_member_readable(m, err);
    if (rc == 0)
        rc = read_at(file, local, sizeof(local), e->header_at, err);
    if (rc == 0)
        rc = zip_data_offset(m, local, x->limit, &ret->at, err);
    free(m);
    return rc;
}

int archive_index_find(const struct archive_index *x, const struct archive_file *file, const char *path,
                       struct member *ret_member, struct leat_error *err)
{
    while (path[0] == '.' && path[1] == '/')
        path += 2;
    uint32_t at = x->nslots ? x->slots[slot_of(x, path)] : 0;
    if (at == 0)
        return error_set(err, LEAT_NOT_FOUND, "the archive has no member \"%.200s\"", path);
    const struct archive_entry *e = &x->entries[at - 1];
    if (e->type != '0')
        return error_set(
            err, LEAT_UNSUPPORTED,
            "the member \"%.200s\" is a link, a device or a sparse file: only plain files are given", path);
    struct member m = {.at = e->at,
                       .header_at = e->header_at,
                       .stored_bytes = e->stored_bytes,
                       .bytes = e->bytes,
                       .deflated = x->zip && e->method == ZIP_DEFLATED,
                       .crc = e->crc,
                       .has_crc = x->zip};
    int rc = x->zip ? find_zip(x, file, e, &m, err) : 0;
    if (rc < 0)
        return error_prefix(err, rc, "the member \"%.200s\"", path);
    *ret_member = m;
    return 0;
}
