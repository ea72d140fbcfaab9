/* SPDX-License-Identifier: Apache-2.0 */
/* walk.c: headers are read through a small window, payload is stepped over. */
#include "dataset/tar/walk.h"

#include "base/array.h"
#include "base/fdio.h"
#include "dataset/scan.h"

#define WINDOW_BYTES (64 * 1024u)
#define WINDOW_SHORT 4096u
#define LARGE_MEMBER (32 * 1024u) /* past these the next header is not in the window: read little */

struct walk {
    int fd;
    const char *path;
    uint64_t from, bytes; /* of the descriptor; other offsets count from `from` */
    char *window;
    uint64_t window_offset, window_len, window_cap;
};

/* `want` bytes at `offset`, or as many as the file has. */
static int window_get(struct walk *s, uint64_t offset, uint32_t want, uint64_t ahead, const char **ret_p,
                      size_t *ret_len)
{
    if (offset < s->window_offset || offset - s->window_offset + want > s->window_len) {
        uint64_t left = s->bytes - MIN(offset, s->bytes), bytes = MAX(ahead, (uint64_t)want);
        bytes = MIN(bytes, left);
        int rc = array_reserve(&s->window, &s->window_cap, bytes);
        if (rc < 0)
            return rc;
        int64_t n = fd_read_at(s->fd, s->window, bytes, s->from + offset);
        if (n < 0)
            return (int)n;
        s->window_offset = offset;
        s->window_len = (uint64_t)n;
    }
    *ret_p = s->window + (offset - s->window_offset);
    *ret_len = MIN((uint64_t)want, s->window_len - (offset - s->window_offset));
    return 0;
}

/* After an end mark: the next block that is not zero (archives that were put end to end), or the end of the file. */
static int find_next_archive(struct walk *s, uint64_t *offset)
{
    for (*offset = align_up(*offset, TAR_BLOCK); *offset < s->bytes;) {
        const char *p;
        size_t len;
        /* A file of some KiB may claim to be a TiB, all hole. */
        off_t data = lseek(s->fd, (off_t)(s->from + *offset), SEEK_DATA);
        if (data < 0 && errno == ENXIO)
            break;
        if (data > (off_t)(s->from + *offset))
            *offset = align_down((uint64_t)data - s->from, TAR_BLOCK);
        int rc = window_get(s, *offset, WINDOW_BYTES, WINDOW_BYTES, &p, &len);
        if (rc < 0)
            return rc;
        if (len == 0)
            break;
        for (size_t i = 0; i < len; i++)
            if (p[i]) {
                *offset += align_down(i, TAR_BLOCK);
                return 1;
            }
        *offset += len;
    }
    return 0;
}

static int members(struct walk *s, tar_member_fn member, void *ctx, struct leat_error *err)
{
    struct tar_parser parser;
    struct tar_member m = {0};
    tar_parser_init(&parser);
    for (;;) {
        const char *p;
        size_t len;
        int rc = window_get(s, parser.offset, parser.want,
                            m.bytes > LARGE_MEMBER ? WINDOW_SHORT : WINDOW_BYTES, &p, &len);
        if (rc < 0)
            return scan_error(rc, s->path, err);
        rc = tar_parser_feed(&parser, p, len, &m, err);
        if (rc < 0)
            return error_prefix(err, rc, "%s", s->path);
        if (rc == TAR_MEMBER) {
            rc = member(ctx, &m, err);
            if (rc < 0)
                return rc;
        } else if (rc == TAR_END) {
            uint64_t offset = parser.offset;
            rc = find_next_archive(s, &offset);
            if (rc <= 0)
                return rc < 0 ? scan_error(rc, s->path, err) : 0;
            tar_parser_init(&parser);
            parser.offset = offset;
        }
    }
}

int tar_walk(int fd, uint64_t from, uint64_t bytes, const char *path, tar_member_fn member, void *ctx,
             struct leat_error *err)
{
    struct walk w = {.fd = fd, .path = path, .from = from, .bytes = bytes};
    int rc = members(&w, member, ctx, err);
    free(w.window);
    return rc;
}
