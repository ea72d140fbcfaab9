/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cp.c: `leat cp`: files and folders of this machine, objects and prefixes of S3, files of web servers.
 *
 * Happy path: the source becomes objects or files, one after the other as a list or a walk brings them, and
 * each is given to cp_get.c (it goes to this machine) or cp_put.c (it goes to S3). Nothing waits for the end
 * of a list.
 * Failure modes: a failure of one object is reported, and the others are copied; the exit code is the first
 * failure's. A failure of all of them (the bucket, the credentials, the disk) ends it.
 */
#include <fcntl.h>
#include <fts.h>
#include <stdio.h>
#include <sys/stat.h>

#include "apps/leat/remote.h"
#include "wire/address.h"

/* After so many remote failures and no success the bucket or the credentials are wrong: stop. */
#define HOPELESS 8u

void cp_failed(struct cp *cp, int rc, bool here, const struct leat_error *err)
{
    pthread_mutex_lock(&cp->lock);
    if (cp->given_up) { /* what other threads were at */
        pthread_mutex_unlock(&cp->lock);
        return;
    }
    cp->failed++;
    cp->failed_here += here;
    cp->rc = cp->rc ? cp->rc : rc;
    if (cp->progress.drawn)
        fputs("\r\033[K", stderr);
    cli_error(cp->cli, 0, "%s", err && err->message[0] ? err->message : leat_strerror(rc));
    if (!here && cp->failed - cp->failed_here == HOPELESS && !cp->files && !cp->skipped &&
        (rc == LEAT_DENIED || rc == LEAT_NOT_FOUND)) {
        cli_error(cp->cli, 0, "the first %u failed: stopped", HOPELESS);
        cp->given_up = true;
        atomic_store(&cp->cancelled, true);
    }
    pthread_mutex_unlock(&cp->lock);
}

int cp_progress(struct cp *cp)
{
    pthread_mutex_lock(&cp->lock);
    struct leat_progress report = {
        .size = sizeof(report),
        .stage = CLI_STAGE_COPY,
        .samples_done = cp->files,
        .samples_total = cp->planned ? cp->planned_files : 0,
        .bytes_done = cp->bytes_done,
        .bytes_total = cp->planned ? cp->planned_bytes : 0,
    };
    int rc = progress_report(&report, &cp->progress);
    pthread_mutex_unlock(&cp->lock);
    if (rc < 0)
        atomic_store(&cp->cancelled, true);
    return atomic_load(&cp->cancelled) ? -ECANCELED : rc;
}

/* --- names ------------------------------------------------------------------------------------------------------------- */

static bool is_s3(const char *text)
{
    return address_of(text) == ADDRESS_S3;
}

static bool ends_with_slash(const char *text)
{
    size_t len = strlen(text);
    return len && text[len - 1] == '/';
}

/* "s3://bucket" and "s3://bucket/": all of a bucket. */
static bool is_bucket(const char *uri)
{
    const char *slash = strchr(uri + 5, '/');
    return !slash || !slash[1];
}

/* The last part of a path or address, without a query. Caller frees; NULL: there is none, or no memory. */
static char *last_part(const char *text)
{
    size_t len = is_s3(text) || !backend_uri(text) ? strlen(text) : strcspn(text, "?#");
    while (len > 1 && text[len - 1] == '/' && !backend_uri(text))
        len--;
    size_t at = len;
    while (at && text[at - 1] != '/')
        at--;
    return len > at ? strndup(text + at, len - at) : NULL;
}

static char *join(const char *a, const char *b)
{
    char *out = NULL;
    return asprintf(&out, "%s%s%s", a, ends_with_slash(a) ? "" : "/", b) < 0 ? NULL : out;
}

/* mkdir -p */
static int make_folder(const char *path, struct leat_error *err)
{
    AUTO_FREE char *at = strdup(path);
    if (!at)
        return -ENOMEM;
    for (char *slash = at + (*at == '/'); (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = 0;
        if (mkdir(at, 0777) < 0 && errno != EEXIST)
            return error_sys(err, -errno, "%s", at);
    }
    return mkdir(at, 0777) < 0 && errno != EEXIST ? error_sys(err, -errno, "%s", at) : 0;
}

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* --- to this machine --------------------------------------------------------------------------------------------------- */

/* An object of a recursive list, on its way to a folder or another prefix. */
struct pass {
    struct cp *cp;
    struct cp_get *get;
    struct cp_put *put;
    const char *to; /* of put, with a slash at its end */
    uint64_t seen;
    struct leat_error *err;
};

static int pass_on(void *user, const struct backend_object *o)
{
    struct pass *pass = user;
    pass->seen++;
    if (o->prefix || (ends_with_slash(o->uri) && o->bytes == 0)) /* a folder's marker */
        return 0;
    if (pass->get)
        return cp_get_add(pass->get, o, o->name, pass->err);
    AUTO_FREE char *uri = join(pass->to, o->name);
    return uri ? cp_put_object(pass->put, o, uri) : -ENOMEM;
}

/* All that begins with `from`, which is a bucket or becomes a folder by a slash at its end. */
static int pass_all(struct backend *b, const char *from, struct pass *pass)
{
    AUTO_FREE char *prefix = is_bucket(from) || ends_with_slash(from) ? strdup(from) : join(from, "");
    int rc = prefix ? backend_list(b, prefix, true, NULL, pass_on, pass, pass->err) : -ENOMEM;
    if (rc == 0 && !pass->seen)
        rc = error_set(pass->err, LEAT_NOT_FOUND, "%.300s: nothing is there", from);
    return rc;
}

static int one_is_enough(void *user, const struct backend_object *o)
{
    *(bool *)user = true;
    return -ECANCELED;
}

/* There is no such object: what else may have been meant. */
static int not_an_object(struct backend *b, const char *uri, struct leat_error *err)
{
    AUTO_FREE char *prefix = join(uri, "");
    bool below = false;
    struct leat_error ignored;
    if (prefix)
        (void)backend_list(b, prefix, false, NULL, one_is_enough, &below, &ignored);
    if (below)
        return error_set(err, LEAT_NOT_FOUND,
                         "%.300s is no object, but there are some below it: copy them with -r", uri);
    if (strpbrk(uri, "*?"))
        return error_set(err, LEAT_NOT_FOUND,
                         "%.300s: no such object, and cp takes no patterns: name objects, or copy all below "
                         "a prefix with -r",
                         uri);
    return LEAT_NOT_FOUND;
}

/* One object, of S3 or a web server. */
static int stat_one(struct backend *b, const char *uri, struct backend_stat *stat, struct backend_object *ret,
                    struct leat_error *err)
{
    int rc = backend_stat_object(b, uri, stat, err);
    *ret = (struct backend_object){
        .uri = uri, .name = uri, .bytes = stat->bytes, .etag = stat->etag, .modified = stat->modified};
    return rc == LEAT_NOT_FOUND && is_s3(uri) ? not_an_object(b, uri, err) : rc;
}

static int print(struct cp *cp, const char *from, struct leat_error *err)
{
    struct backend *b = NULL;
    struct backend_stat stat;
    struct backend_object o;
    struct backend_config config = cp->config;
    config.cancelled = progress_interrupted();
    int rc = backend_new(&config, &b, err);
    if (rc == 0)
        rc = stat_one(b, from, &stat, &o, err);
    if (rc == 0)
        rc = cp_get_print(cp, b, &o, err);
    backend_free(b);
    return rc;
}

static int download(struct cp *cp, const char *from, const char *to, bool into, struct leat_error *err)
{
    AUTO_FREE char *name = into ? last_part(from) : last_part(to);
    AUTO_FREE char *folder = strdup(to);
    struct cp_get *get = NULL;
    int rc = folder ? 0 : -ENOMEM;
    if (rc == 0 && !cp->recursive) {
        if (!name || !cp_name_ok(name))
            return error_set(err, LEAT_INVALID, "%.300s: it has no name that a file could have: give one",
                             into ? from : to);
        if (!into) { /* the folder of the file */
            size_t len = strlen(folder);
            while (len && folder[len - 1] == '/')
                len--;
            while (len && folder[len - 1] != '/')
                len--;
            folder[len] = 0;
        }
    }
    const char *where = rc == 0 && *folder ? folder : ".";
    bool made = !is_folder(where);
    if (rc == 0 && (into || cp->recursive))
        rc = make_folder(where, err);
    if (rc == 0)
        rc = cp_get_begin(cp, where, &get, err);
    if (rc == 0 && cp->recursive) {
        struct pass pass = {.cp = cp, .get = get, .err = err};
        rc = pass_all(cp_get_session(get), from, &pass);
    } else if (rc == 0) {
        struct backend_stat stat;
        struct backend_object o;
        rc = stat_one(cp_get_session(get), from, &stat, &o, err);
        cp->planned = true;
        if (rc == 0)
            rc = cp_get_add(get, &o, name, err);
    }
    cp->planned |= rc == 0;
    cp_get_end(get, rc == 0);
    if (rc == LEAT_NOT_FOUND && made)
        (void)rmdir(where); /* if it is empty */
    return rc == 0 && atomic_load(&cp->cancelled) ? -ECANCELED : rc;
}

/* --- to S3 ------------------------------------------------------------------------------------------------------------- */

static int upload_tree(struct cp *cp, struct cp_put *put, const char *from, const char *to,
                       struct leat_error *err)
{
    char *roots[] = {(char *)from, NULL};
    FTS *walk = fts_open(roots, FTS_LOGICAL | FTS_NOCHDIR, NULL);
    size_t skip = strlen(from);
    while (skip && from[skip - 1] == '/')
        skip--;
    int rc = walk ? 0 : error_sys(err, -errno, "%s", from);
    FTSENT *e;
    while (rc == 0 && (errno = 0, e = fts_read(walk))) {
        const char *name = e->fts_path + skip;
        name += strspn(name, "/");
        struct leat_error local;
        AUTO_FREE char *uri = NULL;
        int bad = e->fts_errno ? -e->fts_errno : -ENOENT; /* a link to nothing has none */
        switch (e->fts_info) {
        case FTS_F:
            uri = join(to, name);
            rc = uri ? cp_put_file(put, e->fts_path, uri) : -ENOMEM;
            break;
        case FTS_DNR:
        case FTS_NS:
        case FTS_ERR:
        case FTS_SLNONE:
            cp_failed(cp, bad, true, (error_sys(&local, bad, "%s", e->fts_path), &local));
            break;
        case FTS_DC: /* a link to a folder above */
        case FTS_DEFAULT:
            cp->left_out++;
            break;
        default:
            break;
        }
    }
    if (rc == 0 && errno)
        rc = error_sys(err, -errno, "%s", from);
    if (walk)
        fts_close(walk);
    return rc;
}

static int upload(struct cp *cp, const char *from, const char *to, bool into, struct leat_error *err)
{
    AUTO_FREE char *name = into && !cp->recursive ? last_part(from) : NULL;
    AUTO_FREE char *uri = into && !cp->recursive ? (name ? join(to, name) : NULL) : strdup(to);
    struct cp_put *put = NULL;
    if (!uri)
        return name ? -ENOMEM : error_set(err, LEAT_INVALID, "%.300s: it has no name: give one", from);
    bool object = backend_uri(from);
    if (!object && access(from, R_OK) < 0)
        return error_sys(err, -errno, "%s", from);
    if (!object && !cp->recursive && is_folder(from))
        return error_set(err, LEAT_INVALID, "%.300s is a folder: copy it with -r", from);
    int rc = cp_put_begin(cp, &put, err);
    if (rc < 0)
        return rc;
    if (!object && !cp->recursive)
        rc = cp_put_file(put, from, uri);
    else if (!object)
        rc = upload_tree(cp, put, from, uri, err);
    else {
        struct backend *b = NULL;
        rc = backend_new(&cp->config, &b, err);
        if (rc == 0 && cp->recursive) {
            struct pass pass = {.cp = cp, .put = put, .to = uri, .err = err};
            rc = pass_all(b, from, &pass);
        } else if (rc == 0) {
            struct backend_stat stat;
            struct backend_object o;
            rc = stat_one(b, from, &stat, &o, err);
            if (rc == 0)
                rc = cp_put_object(put, &o, uri);
        }
        backend_free(b);
    }
    cp->planned = true;
    if (rc < 0)
        atomic_store(&cp->cancelled, true);
    cp_put_end(put);
    return rc == 0 && atomic_load(&cp->cancelled) ? -ECANCELED : rc;
}

/* --- the command ------------------------------------------------------------------------------------------------------- */

static void print_result(const struct cp *cp, const char *to, double seconds)
{
    char count[32], bytes[SIZE_TEXT_MAX], took[16];
    if (cp->cli->json) {
        struct cli_json j;
        json_result_begin(&j, cp->cli);
        json_str(&j, "destination", to, strlen(to));
        json_u64(&j, "files", cp->files);
        json_u64(&j, "bytes", cp->bytes);
        json_u64(&j, "skipped", cp->skipped);
        json_u64(&j, "failed", cp->failed);
        json_u64(&j, "left_out", cp->left_out);
        json_result_end(&j, seconds);
        return;
    }
    if (cp->cli->quiet)
        return;
    printf("%s: %s file%s, %s; %s\n", to, cli_count(cp->files, count), cp->files == 1 ? "" : "s",
           size_format(cp->bytes, bytes), cli_duration(seconds, took));
    if (cp->skipped)
        printf("the same already: %s\n", cli_count(cp->skipped, count));
    if (cp->left_out)
        printf("left out: %s links, pipes or devices\n", cli_count(cp->left_out, count));
    if (cp->failed)
        printf("failed: %s\n", cli_count(cp->failed, count));
}

static int copy(struct cp *cp, char **sources, int n, const char *to)
{
    if (strcmp(to, "-") == 0)
        return print(cp, sources[0], &cp->cli->err);
    bool into = ends_with_slash(to) || (is_s3(to) ? is_bucket(to) : is_folder(to));
    int rc = 0;
    for (int i = 0; i < n && rc == 0; i++)
        rc = is_s3(to) ? upload(cp, sources[i], to, into, &cp->cli->err)
                       : download(cp, sources[i], to, into, &cp->cli->err);
    return rc;
}

/* An enum cli_exit, or -1: continue. */
static int check(const struct cp *cp, char **operands, int n)
{
    const char *to = operands[n - 1];
    bool print = strcmp(to, "-") == 0;
    if (print && (n > 2 || cp->recursive || cp->cli->json))
        return cli_usage_error(
            cp->cli, "- is standard output: one object, without -r and --json (./- is a file of this name)");
    if (!is_s3(to) && backend_uri(to))
        return cli_usage_error(cp->cli, "%s: a web server is read only", to);
    for (int i = 0; i < n - 1; i++) {
        const char *from = operands[i];
        if (strcmp(from, "-") == 0)
            return cli_usage_error(cp->cli,
                                   "- as a source: standard input is not copied, as its length is not known; "
                                   "write it to a file first (./- is a file of this name)");
        if (!backend_uri(from) && !is_s3(to))
            return cli_usage_error(cp->cli, "%s and %s are both of this machine: cp does that", from, to);
        if (cp->recursive && backend_uri(from) && !is_s3(from))
            return cli_usage_error(cp->cli, "%s: a web server has no lists, so -r has nothing to follow",
                                   from);
        if (!cp->recursive && is_s3(from) && (is_bucket(from) || ends_with_slash(from)))
            return cli_usage_error(cp->cli, "%s: all that begins with it is copied by -r", from);
    }
    if (n > 2 && !ends_with_slash(to) && !(is_s3(to) ? is_bucket(to) : is_folder(to)))
        return cli_usage_error(cp->cli, "%s: several sources go into a folder, or a prefix with / at its end",
                               to);
    return -1;
}

int cmd_cp(struct cli *cli)
{
    struct cp cp = {.cli = cli, .lock = PTHREAD_MUTEX_INITIALIZER};
    for (const struct cli_given *o = cli->given; o->id; o++) {
        remote_option(&cp.config, o);
        cp.recursive |= o->id == 'r';
        cp.update |= o->id == 370;
    }
    int n = cli->noperands, rc = check(&cp, cli->operands, n);
    if (rc >= 0)
        return rc;
    const char *to = cli->operands[n - 1];
    remote_begin(cli, &cp.config);
    cp.config.identity = "cp";
    progress_begin(&cp.progress, cli);
    rc = copy(&cp, cli->operands, n - 1, to);
    double seconds = progress_seconds(&cp.progress);
    progress_end(&cp.progress);
    if (rc < 0 && !(rc == -ECANCELED && cp.given_up))
        return cli_fail(cli, rc);
    if (strcmp(to, "-") != 0)
        print_result(&cp, to, seconds);
    return cp.rc < 0 ? cli_exit_of(cp.rc) : CLI_OK;
}
