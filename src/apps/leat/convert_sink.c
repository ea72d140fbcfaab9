/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert_sink.c: writes a list of files as tar shards, as a folder, or as one array.
 *
 * Archives are POSIX pax: a plain header where the path is ASCII of at most 100 bytes, else a pax record
 * before it. Times and owners are 0, so that the same input gives the same bytes. A sample's files stay in
 * one shard.
 * Failure modes: a source that is shorter than its listing said, or was written during the conversion; a full
 * disk; for arrays a file that is no .npy, or of another shape than the first. The
 * caller removes a partial output.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>

#include "apps/leat/convert.h"
#include "base/fdio.h"
#include "wire/archive/npy.h"
#include "wire/archive/tar_put.h"

#define BUFFER (1u << 20)

/* One file under work, and the source that was read last. */
struct writer {
    struct convert_sink *sink;
    const struct convert_list *list;
    int out;
    const char *out_name;
    uint64_t out_bytes;
    int in;
    uint32_t in_file;
    char *buffer;
    struct leat_error *err;
};

static int put(struct writer *w, const void *data, size_t bytes)
{
    int rc = fd_write(w->out, data, bytes);
    if (rc < 0)
        return error_sys(w->err, rc, "%s", w->out_name);
    w->out_bytes += bytes;
    return 0;
}

static int tell(struct writer *w)
{
    struct leat_progress report = {.size = sizeof(report),
                                   .stage = CLI_STAGE_CONVERT,
                                   .samples_done = w->sink->files_done,
                                   .samples_total = w->list->n,
                                   .bytes_done = w->sink->bytes_done,
                                   .bytes_total = w->list->bytes};
    return progress_report(&report, w->sink->progress);
}

static int open_source(struct writer *w, const struct convert_item *item)
{
    if (w->in >= 0 && w->in_file == item->file)
        return 0;
    if (w->in >= 0)
        close(w->in);
    const char *path = w->list->files[item->file];
    w->in = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    w->in_file = item->file;
    struct stat st;
    if (w->in < 0 || fstat(w->in, &st) < 0)
        return error_sys(w->err, -errno, "%s", path);
    if (!S_ISREG(st.st_mode) || (w->list->from == CONVERT_DIR && (uint64_t)st.st_size != item->bytes))
        return error_set(w->err, LEAT_STALE, "%s has changed while it was converted", path);
    return 0;
}

/* `skip` bytes of the item are left out. */
static int copy(struct writer *w, const struct convert_item *item, uint64_t skip)
{
    int rc = item->head_bytes > skip ? put(w, item->head + skip, item->head_bytes - skip) : 0;
    skip -= MIN(skip, (uint64_t)item->head_bytes);
    w->sink->bytes_done += item->head_bytes;
    if (rc == 0 && item->bytes && !item->text[0])
        rc = open_source(w, item);
    for (uint64_t done = skip; rc == 0 && done < item->bytes;) {
        int64_t n =
            fd_read_at(w->in, w->buffer, MIN((uint64_t)BUFFER, item->bytes - done), item->offset + done);
        if (n < 0)
            return error_sys(w->err, (int)n, "%s", w->list->files[item->file]);
        if (n == 0)
            return error_set(w->err, LEAT_STALE, "%s has become shorter while it was converted",
                             w->list->files[item->file]);
        rc = put(w, w->buffer, (size_t)n);
        done += (uint64_t)n;
        w->sink->bytes_done += (uint64_t)n;
        if (rc == 0)
            rc = tell(w);
    }
    w->sink->files_done++;
    return rc ? rc : tell(w);
}

static int open_out(struct writer *w, int folder, const char *name)
{
    w->out = openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    w->out_name = folder == AT_FDCWD ? w->sink->shown : name;
    w->out_bytes = 0;
    return w->out < 0 ? error_sys(w->err, -errno, "%s", w->out_name) : 0;
}

/* Errors of close() count: NFS reports a full disk there. */
static int close_out(struct writer *w, bool keep_safe)
{
    int rc = keep_safe && fsync(w->out) < 0 ? -errno : 0;
    if (close(w->out) < 0 && rc == 0)
        rc = -errno;
    w->out = -1;
    return rc < 0 ? error_sys(w->err, rc, "%s", w->out_name) : 0;
}

/* --- tar --------------------------------------------------------------------------------------------------------- */

static int put_padding(struct writer *w)
{
    static const char zeros[TAR_BLOCK];
    return put(w, zeros, (size_t)(align_up(w->out_bytes, TAR_BLOCK) - w->out_bytes));
}

static struct tar_put tar_entry(const struct convert_item *item)
{
    return (struct tar_put){
        .path = item->path, .type = item->folder ? '5' : '0', .bytes = item->bytes + item->head_bytes};
}

static int put_member(struct writer *w, const struct convert_item *item)
{
    struct tar_put entry = tar_entry(item);
    char header[TAR_PUT_MAX];
    size_t len = tar_put_header_bytes(&entry);
    if (len == 0)
        return error_set(w->err, LEAT_INVALID, "\"%.100s...\": too long for a path", item->path);
    tar_put_header(&entry, header);
    int rc = put(w, header, len);
    if (rc == 0)
        rc = item->folder ? (w->sink->files_done++, tell(w)) : copy(w, item, 0);
    return rc ? rc : put_padding(w);
}

static int end_shard(struct writer *w)
{
    static const char zeros[TAR_END_BYTES];
    int rc = put(w, zeros, sizeof(zeros));
    return rc ? rc : close_out(w, true);
}

/* Bytes of the sample that begins at item i in an archive; *ret_end is the item after it. */
static uint64_t sample_bytes(const struct convert_list *list, uint64_t i, uint64_t *ret_end)
{
    const struct convert_item *first = &list->items[i];
    size_t key = convert_key_len(first->path);
    uint64_t bytes = 0;
    do {
        const struct convert_item *item = &list->items[i];
        struct tar_put entry = tar_entry(item);
        bytes += tar_put_bytes(&entry);
        i++;
    } while (i < list->n && convert_key_len(list->items[i].path) == key &&
             memcmp(list->items[i].path, first->path, key) == 0);
    *ret_end = i;
    return bytes;
}

static int write_shards(struct writer *w, int folder)
{
    const struct convert_list *list = w->list;
    struct convert_sink *sink = w->sink;
    char name[32];
    uint64_t samples = 0;
    int rc = 0;
    for (uint64_t i = 0, end; i < list->n && rc == 0; i = end) {
        uint64_t bytes = sample_bytes(list, i, &end);
        bool full = w->out_bytes + bytes + TAR_END_BYTES > sink->shard_bytes;
        if (sink->shard_count) /* folders belong to no sample */
            full = !list->items[i].folder && samples++ * sink->shard_count / list->samples >= sink->shards;
        if (w->out >= 0 && full && !sink->single)
            rc = end_shard(w);
        if (rc == 0 && w->out < 0) {
            snprintf(name, sizeof(name), "shard-%06" PRIu64 ".tar", sink->shards++);
            rc = open_out(w, sink->single ? AT_FDCWD : folder, sink->single ? sink->path : name);
        }
        for (; i < end && rc == 0; i++)
            rc = put_member(w, &list->items[i]);
    }
    return rc ? rc : end_shard(w);
}

/* --- a folder ---------------------------------------------------------------------------------------------------- */

/* Makes the folders that lead to a path (all of it, if it ends with "/"). */
static int make_folders(struct writer *w, int folder, char *path)
{
    for (char *slash = strchr(path, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        int rc = mkdirat(folder, path, 0777) < 0 && errno != EEXIST ? -errno : 0;
        if (rc < 0)
            error_sys(w->err, rc, "%s", path);
        *slash = '/';
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int write_folder(struct writer *w, int folder)
{
    char before[TAR_PATH_MAX] = "";
    for (uint64_t i = 0; i < w->list->n; i++) {
        const struct convert_item *item = &w->list->items[i];
        const char *slash = strrchr(item->path, '/');
        size_t len = slash ? (size_t)(slash - item->path) + 1 : 0;
        int rc = 0;
        if (len >= sizeof(before))
            return error_set(w->err, LEAT_INVALID, "\"%.100s...\": too long for a path", item->path);
        if (len && (strncmp(before, item->path, len) != 0 || before[len])) {
            memcpy(before, item->path, len);
            before[len] = '\0';
            rc = make_folders(w, folder, before);
        }
        if (rc == 0 && item->folder) {
            w->sink->files_done++;
            continue;
        }
        if (rc == 0)
            rc = open_out(w, folder, item->path);
        if (rc == 0)
            rc = copy(w, item, 0);
        if (rc == 0)
            rc = close_out(w, false);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* --- an array ---------------------------------------------------------------------------------------------------- */

char *convert_npy_head(const char *dtype, const uint64_t *shape, unsigned ndim, uint32_t *ret_bytes)
{
    char text[1024], first[24] = "";
    int len = snprintf(text, sizeof(text), "{'descr': '%s', 'fortran_order': False, 'shape': (", dtype);
    for (unsigned d = 0; d < ndim; d++)
        len += snprintf(text + len, sizeof(text) - (size_t)len, "%s%" PRIu64 "%s", d ? " " : "", shape[d],
                        d + 1 < ndim || ndim == 1 ? "," : "");
    len += snprintf(text + len, sizeof(text) - (size_t)len, "), }");
    if (ndim) /* NumPy leaves room for the first number to grow */
        len += 21 - snprintf(first, sizeof(first), "%" PRIu64, shape[0]);
    uint32_t bytes = (uint32_t)align_down((uint64_t)len + 11 + 64, 64);
    char *head = malloc(bytes);
    if (!head)
        return NULL;
    memset(head, ' ', bytes);
    memcpy(head, "\x93NUMPY\x01", 8);
    head[8] = (char)((bytes - 10) & 0xff);
    head[9] = (char)((bytes - 10) >> 8);
    memcpy(head + 10, text, strlen(text));
    head[bytes - 1] = '\n';
    *ret_bytes = bytes;
    return head;
}

static int parse_item(struct writer *w, const struct convert_item *item, struct npy_header *ret_header)
{
    uint8_t head[12];
    size_t n = 0;
    int rc = open_source(w, item);
    while (rc == 0 && n < MIN(sizeof(head), item->bytes)) {
        ssize_t got = pread(w->in, head + n, MIN(sizeof(head), item->bytes) - n, (off_t)(item->offset + n));
        if (got <= 0)
            return got < 0 ? error_sys(w->err, -errno, "%s", item->path)
                           : error_set(w->err, LEAT_STALE, "%s has become shorter", item->path);
        n += (size_t)got;
    }
    if (rc < 0)
        return rc;
    uint64_t want = npy_header_bytes(head, n, w->err);
    if (want == 0)
        return error_prefix(w->err, w->err->code, "\"%.300s\"", item->path);
    want = MIN(want, item->bytes);
    AUTO_FREE char *all = malloc(want);
    if (!all)
        return -ENOMEM;
    ssize_t got = pread(w->in, all, want, (off_t)item->offset);
    if (got < 0)
        return error_sys(w->err, -errno, "%s", item->path);
    rc = npy_parse(all, (size_t)got, ret_header, w->err);
    if (rc == 0 && ret_header->data_offset + ret_header->data_bytes != item->bytes)
        rc = error_set(w->err, LEAT_CORRUPT,
                       "its header has a length of %" PRIu64 " bytes, and it has %" PRIu64,
                       ret_header->data_offset + ret_header->data_bytes, item->bytes);
    return rc < 0 ? error_prefix(w->err, rc, "\"%.300s\"", item->path) : 0;
}

static int write_array(struct writer *w)
{
    struct npy_header first = {0}, h;
    const struct convert_list *list = w->list;
    uint64_t n = 0;
    for (uint64_t i = 0; i < list->n; i++)
        n += !list->items[i].folder;
    int rc = open_out(w, AT_FDCWD, w->sink->path);
    bool begun = false;
    for (uint64_t i = 0; i < list->n && rc == 0; i++) {
        const struct convert_item *item = &list->items[i];
        if (item->folder)
            continue;
        rc = parse_item(w, item, &h);
        if (rc == 0 && !begun) {
            first = h;
            uint64_t shape[NPY_MAX_DIMS + 1] = {n};
            memcpy(shape + 1, h.shape, h.ndim * sizeof(*shape));
            uint32_t bytes;
            AUTO_FREE char *head = convert_npy_head(h.dtype, shape, h.ndim + 1, &bytes);
            if (h.ndim >= NPY_MAX_DIMS)
                return error_set(w->err, LEAT_UNSUPPORTED, "\"%.300s\" has %u dimensions", item->path,
                                 h.ndim);
            rc = head ? put(w, head, bytes) : -ENOMEM;
            begun = true;
        }
        if (rc == 0 && (h.ndim != first.ndim || strcmp(h.dtype, first.dtype) != 0 ||
                        memcmp(h.shape, first.shape, h.ndim * sizeof(*h.shape)) != 0))
            return error_set(w->err, LEAT_INVALID,
                             "\"%.300s\" has another shape or dtype than \"%.300s\": an array takes samples "
                             "that are alike",
                             item->path, list->items[0].path);
        if (rc == 0)
            rc = copy(w, item, h.data_offset);
    }
    return rc ? rc : close_out(w, true);
}

int convert_sink_write(struct convert_sink *sink, const struct convert_list *list, struct leat_error *err)
{
    struct writer w = {.sink = sink, .list = list, .out = -1, .in = -1, .err = err, .buffer = malloc(BUFFER)};
    AUTO_CLOSE int folder = -1;
    int rc = w.buffer ? 0 : -ENOMEM;
    if (rc == 0 && !sink->single && sink->format != CONVERT_NPY) {
        if (mkdir(sink->path, 0777) < 0 ||
            (folder = open(sink->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
            rc = error_sys(err, -errno, "%s", sink->shown);
    }
    if (rc == 0)
        rc = sink->format == CONVERT_TAR   ? write_shards(&w, folder)
             : sink->format == CONVERT_DIR ? write_folder(&w, folder)
                                           : write_array(&w);
    if (w.out >= 0)
        close(w.out);
    if (w.in >= 0)
        close(w.in);
    free(w.buffer);
    return rc;
}
