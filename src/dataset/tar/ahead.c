/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tar/ahead.c: headers of shards that are reached by requests, where a read of 512 bytes takes as long as one of a MiB.
 *
 * Happy path: each of a few lanes walks one shard through a window of bytes, with the window behind it in
 * flight already. A lane requests missing bytes and yields to the next lane: so the waits of all lanes
 * overlap. Members found are kept until their shard's turn comes, for samples are numbered in the order of
 * shards.
 *
 * A window grows while headers come one after another, until it reaches over payload of a few MiB: to read that and throw it away is
 * cheaper than another round trip. Longer payload is stepped over, and the window is small again.
 *
 * Failure modes: an error in a lane is reported in the order of shards, so that the first bad shard is named
 * whichever failed first.
 */
#include "dataset/tar/ahead.h"

#include "base/array.h"

#define LANES        8u
#define WINDOWS_MAX  (16 * MIB) /* one of each lane, together; as much again is under way */
#define WINDOW_MAX   (8 * MIB)
#define WINDOW_START (512 * KIB)
#define WINDOW_SMALL (128 * KIB) /* behind a step over payload */

struct piece {
    char *buf;
    uint64_t cap, offset, bytes;
    void *read; /* under way */
};

struct row {
    uint64_t name, header_offset, data_offset, bytes;
    char type;
};

struct lane {
    bool open, over, looked;
    int rc; /* when over */
    struct leat_error err;
    unsigned number;
    struct scan_file file;
    struct tar_parser parser;
    bool between; /* archives: looks for a block that is not zero */
    struct piece now, next;
    uint64_t window;
    struct row *rows;
    char *names;
    uint64_t nrows, rows_cap, names_len, names_cap;
};

struct tar_ahead {
    struct scan *scan;
    char *const *paths;
    unsigned npaths, nlanes;
    uint64_t window_max;
    struct lane lanes[LANES];
};

static void piece_drop(struct lane *l, struct piece *p)
{
    if (p->read)
        l->file.opener->remote->cancel(l->file.opener->remote_user, p->read);
    p->read = NULL;
    p->bytes = 0;
}

static int piece_begin(struct lane *l, struct piece *p, uint64_t offset, uint64_t bytes,
                       struct leat_error *err)
{
    const struct dataset_opener *o = l->file.opener;
    bytes = MIN(bytes, (uint64_t)l->file.st.st_size - offset);
    if (bytes > p->cap) {
        free(p->buf);
        p->buf = malloc(bytes);
        p->cap = p->buf ? bytes : 0;
        if (!p->buf)
            return -ENOMEM;
    }
    p->offset = offset;
    int rc = scan_handle(&l->file, err);
    if (rc == 0)
        rc = o->remote->begin(o->remote_user, l->file.handle, p->buf, bytes, offset, &p->read, err);
    p->bytes = rc == 0 ? bytes : 0;
    return rc;
}

static int piece_behind(struct lane *l, struct leat_error *err)
{
    uint64_t at = l->now.offset + l->now.bytes;
    return at < (uint64_t)l->file.st.st_size ? piece_begin(l, &l->next, at, l->window, err) : 0;
}

static bool piece_holds(const struct piece *p, uint64_t offset, uint64_t end)
{
    return p->bytes && offset >= p->offset && end <= p->offset + p->bytes;
}

/* `want` bytes at `offset`, or as many as there are: 1 and the bytes; 0: asked for; negative. */
static int lane_data(struct tar_ahead *a, struct lane *l, uint64_t offset, uint32_t want, const char **ret_p,
                     size_t *ret_len, struct leat_error *err)
{
    uint64_t size = (uint64_t)l->file.st.st_size, end = MIN(offset + want, size);
    int rc = 0;
    *ret_p = "";
    *ret_len = 0;
    if (offset >= size)
        return 1;
    if (!piece_holds(&l->now, offset, end) && piece_holds(&l->next, offset, end)) {
        struct piece swap = l->now;
        l->now = l->next;
        l->next = swap;
        l->next.bytes = 0;
        l->window = MIN(l->window * 2, a->window_max);
        rc = piece_behind(l, err);
    } else if (!piece_holds(&l->now, offset, end)) {
        uint64_t behind = l->now.offset + l->now.bytes, gap = offset > behind ? offset - behind : 0;
        bool near = l->now.bytes && gap < a->window_max, first = l->now.bytes == 0;
        uint64_t wider = MAX(l->window, gap) * 2;
        l->window = first ? WINDOW_START : near ? MIN(wider, a->window_max) : WINDOW_SMALL;
        piece_drop(l, &l->now);
        piece_drop(l, &l->next);
        rc = piece_begin(l, &l->now, offset, MAX(l->window, (uint64_t)want), err);
        if (rc == 0 && near)
            rc = piece_behind(l, err);
    }
    if (rc < 0 || l->now.read)
        return MIN(rc, 0);
    *ret_p = l->now.buf + (offset - l->now.offset);
    *ret_len = end - offset;
    return 1;
}

static int lane_keep(struct lane *l, const struct tar_member *m)
{
    size_t len = strlen(m->path) + 1;
    int rc = array_reserve(&l->rows, &l->rows_cap, l->nrows + 1);
    if (rc == 0)
        rc = array_reserve(&l->names, &l->names_cap, l->names_len + len);
    if (rc < 0)
        return rc;
    memcpy(l->names + l->names_len, m->path, len);
    l->rows[l->nrows++] = (struct row){.name = l->names_len,
                                       .header_offset = m->header_offset,
                                       .data_offset = m->data_offset,
                                       .bytes = m->bytes,
                                       .type = m->type};
    l->names_len += len;
    return 0;
}

/* One turn of the parser over bytes that are there. 1: the shard's end. */
static int lane_feed(struct tar_ahead *a, struct lane *l, const char *p, size_t len, struct leat_error *err)
{
    struct tar_parser *parser = &l->parser;
    if (l->between) {
        for (size_t i = 0; i < len; i++)
            if (p[i]) {
                uint64_t offset = parser->offset;
                tar_parser_init(parser);
                parser->offset = offset;
                l->between = false;
                return 0;
            }
        parser->offset += TAR_BLOCK;
        return len == 0;
    }
    struct tar_member m;
    int rc = tar_parser_feed(parser, p, len, &m, err);
    if (rc < 0)
        return error_prefix(err, rc, "%s", a->paths[l->number]);
    if (rc == TAR_MEMBER)
        return lane_keep(l, &m);
    if (rc == TAR_END) {
        l->between = true;
        parser->offset = align_up(parser->offset, TAR_BLOCK);
        parser->want = TAR_BLOCK;
    }
    return 0;
}

static int lane_look(struct tar_ahead *a, struct lane *l, struct leat_error *err)
{
    enum scan_format format;
    l->looked = true;
    int rc = scan_format(a->paths[l->number], l->now.buf, l->now.bytes, -1, &format, err);
    return rc == 0 && format != SCAN_TAR ? scan_no_shard(a->paths[l->number], err) : rc;
}

/* As far as it goes with what has come. 0: waits for more; 1: over. */
static int lane_walk(struct tar_ahead *a, struct lane *l, struct leat_error *err)
{
    if (l->now.read) {
        const struct dataset_opener *o = l->file.opener;
        void *read = TAKE_PTR(l->now.read);
        int rc = o->remote->end(o->remote_user, read, err);
        if (rc < 0)
            return rc;
    }
    for (;;) {
        const char *p;
        size_t len;
        int rc = lane_data(a, l, l->parser.offset, l->parser.want, &p, &len, err);
        if (rc <= 0)
            return rc;
        if (!l->looked && len)
            rc = lane_look(a, l, err);
        if (rc >= 0)
            rc = lane_feed(a, l, p, len, err);
        if (rc != 0)
            return rc;
    }
}

static int lane_open(struct tar_ahead *a, struct lane *l, unsigned number, struct leat_error *err)
{
    const char *path = a->paths[number];
    l->open = true;
    l->over = l->looked = l->between = false;
    l->number = number;
    l->nrows = l->names_len = 0;
    l->window = WINDOW_START;
    l->now.bytes = l->next.bytes = 0;
    l->err = (struct leat_error){0};
    tar_parser_init(&l->parser);
    int rc = scan_open(a->scan, path, &l->file, err);
    if (rc == 0 && !S_ISREG(l->file.st.st_mode))
        rc = remote_no_object(path, err);
    return rc;
}

static void lane_close(struct lane *l)
{
    piece_drop(l, &l->now);
    piece_drop(l, &l->next);
    scan_close(&l->file);
    l->open = false;
}

static void lane_turn(struct tar_ahead *a, unsigned number)
{
    struct lane *l = &a->lanes[number % a->nlanes];
    int rc = l->open ? 0 : lane_open(a, l, number, &l->err);
    if (rc == 0 && !l->over)
        rc = lane_walk(a, l, &l->err);
    if (rc != 0) {
        l->over = true;
        l->rc = MIN(rc, 0);
    }
}

int tar_ahead_shard(struct tar_ahead *a, unsigned number, const struct scan_file **ret_file,
                    struct leat_error *err)
{
    struct lane *l = &a->lanes[number % a->nlanes];
    do {
        int rc = scan_poll(a->scan, err);
        if (rc < 0)
            return rc;
        for (unsigned i = number; i < number + a->nlanes && i < a->npaths; i++)
            lane_turn(a, i);
    } while (!l->over);
    if (l->rc < 0)
        return l->err.code ? error_set(err, l->rc, "%s", l->err.message) : l->rc;
    *ret_file = &l->file;
    return 0;
}

int tar_ahead_members(struct tar_ahead *a, unsigned number, tar_member_fn member, void *ctx,
                      struct leat_error *err)
{
    struct lane *l = &a->lanes[number % a->nlanes];
    int rc = 0;
    for (uint64_t i = 0; i < l->nrows && rc >= 0; i++) {
        const struct row *row = &l->rows[i];
        struct tar_member m = {.type = row->type,
                               .header_offset = row->header_offset,
                               .data_offset = row->data_offset,
                               .bytes = row->bytes};
        strcpy(m.path, l->names + row->name); /* was in one */
        rc = member(ctx, &m, err);
    }
    lane_close(l);
    return MIN(rc, 0);
}

int tar_ahead_new(struct scan *scan, char *const *paths, unsigned n, struct tar_ahead **ret_ahead)
{
    struct tar_ahead *a = calloc(1, sizeof(*a));
    if (!a)
        return -ENOMEM;
    a->scan = scan;
    a->paths = paths;
    a->npaths = n;
    a->nlanes = MIN(n, LANES);
    a->window_max = MIN(WINDOWS_MAX / a->nlanes, WINDOW_MAX);
    for (unsigned i = 0; i < LANES; i++)
        a->lanes[i].file.fd = -1;
    *ret_ahead = a;
    return 0;
}

void tar_ahead_free(struct tar_ahead *a)
{
    for (unsigned i = 0; a && i < LANES; i++) {
        struct lane *l = &a->lanes[i];
        lane_close(l);
        free(l->now.buf);
        free(l->next.buf);
        free(l->rows);
        free(l->names);
    }
    free(a);
}
