/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert.c: `leat convert`: a folder, tar shards and arrays into each other.
 *
 * Happy path: the source becomes a list of files (convert_source.c), the list is written beside the destination under a hidden name
 * (convert_sink.c), and that takes the destination's name when all of it is there.
 * Failure modes: on any error, and on Ctrl-C, what was written is removed; kill -9 leaves the hidden name. The destination is never
 * half there: it does not exist, is the old one, or the new one.
 * Invariant: the same source gives the same bytes.
 */
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>

#include "apps/leat/convert.h"

#define SHARD_BYTES GIB

struct request {
    const char *to, *field;
    uint64_t shard_bytes, shard_count;
    bool labels, force;
    char *source, *destination; /* owned */
};

static void request_fini(struct request *request)
{
    free(request->source);
    free(request->destination);
}

static bool ends_with(const char *text, const char *end)
{
    size_t len = strlen(text), n = strlen(end);
    return len > n && strcmp(text + len - n, end) == 0;
}

static enum convert_format format_of(const char *name)
{
    return strcmp(name, "dir") == 0   ? CONVERT_DIR
           : strcmp(name, "tar") == 0 ? CONVERT_TAR
           : strcmp(name, "npy") == 0 ? CONVERT_NPY
                                      : CONVERT_NONE;
}

static int parse_count(const char *text, uint64_t *ret)
{
    char *end;
    errno = 0;
    *ret = strtoull(text, &end, 10);
    return *text >= '1' && *text <= '9' && !*end && !errno && *ret <= 1000000 ? 0 : -EINVAL;
}

/* An enum cli_exit, or -1: go on. */
static int take_options(struct cli *cli, struct request *request)
{
    for (const struct cli_given *o = cli->given; o->id; o++) {
        if (o->id == 340 && format_of(o->arg) == CONVERT_NONE)
            return cli_usage_error(cli, "--to %s: it is one of dir, tar, npy", o->arg);
        if (o->id == 341 && cli_parse_size(o->arg, &request->shard_bytes) < 0)
            return cli_usage_error(cli, "--shard-size %s: give a size as 1GiB", o->arg);
        if (o->id == 342 && parse_count(o->arg, &request->shard_count) < 0)
            return cli_usage_error(cli, "--shard-count %s: give a whole number of shards", o->arg);
        if (o->id == 340)
            request->to = o->arg;
        request->field = o->id == 343 ? o->arg + (o->arg[0] == '.') : request->field;
        request->labels |= o->id == 344;
        request->force |= o->id == 345;
    }
    if (request->shard_bytes && request->shard_count)
        return cli_usage_error(cli, "--shard-size and --shard-count: give one of them");
    request->source = cli_join_sources(cli, cli->noperands - 1, cli->operands);
    request->destination = strdup(cli->operands[cli->noperands - 1]);
    if (!request->source || !request->destination)
        return CLI_USAGE;
    size_t len = strlen(request->destination);
    while (len > 1 && request->destination[len - 1] == '/')
        request->destination[--len] = '\0';
    if (len == 0 || strcmp(request->destination, "/") == 0)
        return cli_usage_error(cli, "the destination's name is empty");
    return -1;
}

/* A folder of shards called x.zip would be no zip: such a name is a slip, or a wish. */
static bool is_foreign(const char *name)
{
    static const char *const ends[] = {".zip", ".npz", ".gz", ".tgz",  ".bz2",
                                       ".xz",  ".zst", ".h5", ".hdf5", ".parquet"};
    for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
        if (ends_with(name, ends[i]))
            return true;
    }
    return false;
}

/* Chooses the form of the destination. A negative code with the message set. */
static int decide(const struct request *request, const struct convert_list *list, struct convert_sink *sink,
                  struct leat_error *err)
{
    const char *to = request->destination;
    bool shards = request->shard_bytes || request->shard_count;
    if (!request->to && is_foreign(to))
        return error_set(
            err, LEAT_UNSUPPORTED,
            "%s: .npy, one .tar, or a folder of shards or files is written: give a name of these, or "
            "give the format with --to",
            to);
    sink->format = request->to                 ? format_of(request->to)
                   : ends_with(to, ".npy")     ? CONVERT_NPY
                   : ends_with(to, ".tar")     ? CONVERT_TAR
                   : list->from == CONVERT_TAR ? (shards ? CONVERT_TAR : CONVERT_DIR)
                                               : CONVERT_TAR;
    sink->single = sink->format == CONVERT_TAR && ends_with(to, ".tar");
    sink->shard_count = request->shard_count;
    sink->shard_bytes = request->shard_bytes ? request->shard_bytes : sink->single ? UINT64_MAX : SHARD_BYTES;
    if (sink->format == list->from && sink->format != CONVERT_TAR)
        return error_set(err, LEAT_INVALID, "it is %s already: give another format with --to",
                         list->from == CONVERT_DIR ? "a folder" : "an array");
    if (shards && sink->format != CONVERT_TAR)
        return error_set(err, LEAT_INVALID, "--shard-size and --shard-count are of tar shards");
    if (shards && sink->single)
        return error_set(err, LEAT_INVALID, "several shards make a folder: name it without .tar");
    if (request->shard_count > list->samples)
        return error_set(err, LEAT_INVALID, "%" PRIu64 " shards of %" PRIu64 " samples: give fewer",
                         request->shard_count, list->samples);
    if (request->labels && (list->from != CONVERT_DIR || sink->format != CONVERT_TAR))
        return error_set(err, LEAT_INVALID, "--labels is for a folder that becomes tar shards");
    return 0;
}

/* An unused name beside the destination. Caller frees; NULL: out of memory. */
static char *hidden_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    int folder = slash ? (int)(slash - path) + 1 : 0;
    char *name = NULL;
    for (unsigned i = 0; i < 10000; i++) {
        struct stat st;
        if (asprintf(&name, "%.*s.%.200s.leat-%d.%u.tmp", folder, path, path + folder, (int)getpid(), i) < 0)
            return NULL;
        if (lstat(name, &st) < 0)
            return name;
        free(name);
    }
    return NULL;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

static void remove_all(const char *path)
{
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* --force must not remove what it reads. */
static int check_apart(const struct convert_list *list, const char *destination, struct leat_error *err)
{
    AUTO_FREE char *real = realpath(destination, NULL);
    size_t len = real ? strlen(real) : 0;
    for (uint64_t i = 0; real && i < list->nfiles; i++) {
        AUTO_FREE char *source = realpath(list->files[i], NULL);
        if (source && strncmp(source, real, len) == 0 && (source[len] == '/' || source[len] == '\0'))
            return error_set(err, LEAT_INVALID, "%s lies in %s, which would be replaced", list->files[i],
                             destination);
    }
    return 0;
}

static int exists(const char *path, struct leat_error *err)
{
    return error_set(err, LEAT_INVALID, "%s is there already: --force replaces it", path);
}

/* The new one takes the name at once; an old one is removed afterwards. */
static int take_name(const char *hidden, const char *destination, bool force, struct leat_error *err)
{
    if (renameat2(AT_FDCWD, hidden, AT_FDCWD, destination, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno == EEXIST && !force)
        return exists(destination, err);
    struct stat st;
    if (errno == EINVAL && lstat(destination, &st) < 0) /* a file system without the flag */
        return rename(hidden, destination) < 0 ? error_sys(err, -errno, "%s", destination) : 0;
    if (!force)
        return errno == EINVAL ? exists(destination, err) : error_sys(err, -errno, "%s", destination);
    if (renameat2(AT_FDCWD, hidden, AT_FDCWD, destination, RENAME_EXCHANGE) < 0)
        return error_sys(err, -errno, "%s", destination);
    remove_all(hidden);
    return 0;
}

static void print_result(const struct cli *cli, const struct request *request,
                         const struct convert_list *list, const struct convert_sink *sink, double seconds)
{
    static const char *const formats[] = {"", "dir", "tar", "npy"};
    char count[32], files[32], bytes[SIZE_TEXT_MAX], took[16];
    if (cli->json) {
        struct cli_json j;
        json_result_begin(&j, cli);
        json_str(&j, "source", request->source, strlen(request->source));
        json_str(&j, "destination", request->destination, strlen(request->destination));
        json_text(&j, "from", formats[list->from]);
        json_text(&j, "to", formats[sink->format]);
        json_u64(&j, "samples", list->samples);
        json_u64(&j, "files", list->n);
        json_u64(&j, "bytes", list->bytes);
        json_u64(&j, "shards", sink->shards);
        json_u64(&j, "left_out", list->left_out);
        json_u64(&j, "without_extension", sink->format == CONVERT_TAR ? list->nameless : 0);
        json_result_end(&j, seconds);
        return;
    }
    if (cli->quiet)
        return;
    printf("%s: %s samples, %s files, %s", request->destination, cli_count(list->samples, count),
           cli_count(list->n, files), size_format(list->bytes, bytes));
    if (sink->format == CONVERT_TAR)
        printf(", %" PRIu64 " shard%s", sink->shards, sink->shards == 1 ? "" : "s");
    printf("; %s\n", cli_duration(seconds, took));
    if (list->left_out)
        printf("left out: %s links or devices\n", cli_count(list->left_out, count));
    if (sink->format == CONVERT_TAR && list->nameless)
        printf(
            "files without an extension: %s; they are in the shards, but readers of shards leave them out\n",
            cli_count(list->nameless, count));
}

static int convert(struct cli *cli, const struct request *request, struct convert_list *list,
                   struct convert_sink *sink)
{
    struct leat_error *err = &cli->err;
    struct stat st;
    if (lstat(request->destination, &st) == 0 && !request->force)
        return exists(request->destination, err);
    int rc = convert_list_read(list, request->source, request->labels, request->field, sink->progress, err);
    if (rc == 0)
        rc = decide(request, list, sink, err);
    if (rc == 0)
        rc = check_apart(list, request->destination, err);
    if (rc < 0)
        return rc;
    AUTO_FREE char *hidden = hidden_name(request->destination);
    if (!hidden)
        return -ENOMEM;
    sink->path = hidden;
    sink->shown = request->destination;
    rc = convert_sink_write(sink, list, err);
    if (rc == 0)
        rc = take_name(hidden, request->destination, request->force, err);
    if (rc < 0)
        remove_all(hidden);
    return rc;
}

int cmd_convert(struct cli *cli)
{
    __attribute__((cleanup(request_fini))) struct request request = {0};
    int rc = take_options(cli, &request);
    if (rc >= 0)
        return rc;
    struct progress progress;
    struct convert_list list = {0};
    struct convert_sink sink = {.progress = &progress};
    progress_begin(&progress, cli);
    rc = convert(cli, &request, &list, &sink);
    double seconds = progress_seconds(&progress);
    progress_end(&progress);
    if (rc == 0)
        print_result(cli, &request, &list, &sink, seconds);
    convert_list_free(&list);
    return rc < 0 ? cli_fail(cli, rc) : CLI_OK;
}
