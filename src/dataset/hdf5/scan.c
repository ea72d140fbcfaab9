/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hdf5/scan.c: asks a short-lived child where an HDF5 file's arrays lie (leat-hdf5-table.c), and uses nothing
 * that the parser of its answer did not check (table.c).
 *
 * Happy path: spawn with the file as standard input and a pipe as output, read to the end, reap, parse.
 * Failure modes: LEAT_TIMED_OUT after a minute without a byte, or ten in all (the child is killed).
 * LEAT_CORRUPT when it died of a signal or of its limits. -ENOENT with the tried names when it is not
 * installed. Otherwise its own error.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "dataset/hdf5/table.h"
#include "dataset/scan.h"
#include "leat-config.h"

#define PROGRAM     "leat-hdf5-table"

#define WHOLE_IDLES 10 /* as many times idle_ns may the child take in all, whatever it sends */

uint64_t hdf5_idle_ns = 60 * NS_PER_S; /* without a byte from the child; tests lower it */

static bool is_program(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

/* In `folder` itself, or in the build tree whose root is `folder` or above it. */
static bool look_near(const char *file, char *path, size_t cap)
{
    char folder[PATH_MAX];
    snprintf(folder, sizeof(folder), "%s", file);
    for (int up = 0; up < 6; up++) {
        char *slash = strrchr(folder, '/');
        if (!slash || slash == folder)
            return false;
        *slash = 0;
        /* Of the folders above only a build tree and an installation's libexec are ours to look at. */
        for (int i = up ? 1 : 0; i < (up == 1 ? 3 : 2); i++) {
            int n = i == 0   ? snprintf(path, cap, "%s/" PROGRAM, folder)
                    : i == 1 ? snprintf(path, cap, "%s/src/dataset/hdf5/" PROGRAM, folder)
                             : snprintf(path, cap, "%s/libexec/leat/" PROGRAM, folder);
            if ((size_t)n < cap && is_program(path))
                return true;
        }
    }
    return false;
}

/* $LEAT_LIBEXEC; beside the library or the program that runs (or its build tree); where it was installed. */
static int find_program(char *path, size_t cap, struct leat_error *err)
{
    const char *env = secure_getenv("LEAT_LIBEXEC");
    if (env && *env) {
        snprintf(path, cap, "%s/" PROGRAM, env);
        if (is_program(path))
            return 0;
    }
    Dl_info self;
    if (dladdr((void *)(uintptr_t)hdf5_scan, &self) && self.dli_fname) {
        AUTO_FREE char *real = realpath(self.dli_fname, NULL);
        if (real && look_near(real, path, cap))
            return 0;
    }
    char exe[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
    if (n > 0) {
        exe[n] = 0;
        if (look_near(exe, path, cap))
            return 0;
    }
    snprintf(path, cap, "%s/" PROGRAM, LEAT_LIBEXECDIR);
    if (is_program(path))
        return 0;
    return error_set(err, LEAT_UNSUPPORTED,
                     "reading HDF5 needs the program " PROGRAM ", which is not in %s; install it, or "
                     "set LEAT_LIBEXEC to its folder",
                     LEAT_LIBEXECDIR);
}

static int spawn_child(const char *program, const char *inner, int file_fd, int out_fd, pid_t *ret_pid)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    char *argv[] = {(char *)(uintptr_t)PROGRAM, (char *)(uintptr_t)inner, NULL};
    const char *library_path = secure_getenv("LD_LIBRARY_PATH");
    AUTO_FREE char *keep = NULL;
    if (library_path && asprintf(&keep, "LD_LIBRARY_PATH=%s", library_path) < 0)
        return -ENOMEM;
    char *envp[] = {(char *)(uintptr_t) "LC_ALL=C", keep, NULL};
    if (posix_spawn_file_actions_init(&actions) != 0)
        return -ENOMEM;
    if (posix_spawnattr_init(&attr) != 0) {
        posix_spawn_file_actions_destroy(&actions);
        return -ENOMEM;
    }
    int rc = posix_spawn_file_actions_adddup2(&actions, file_fd, STDIN_FILENO);
    rc = rc ? rc : posix_spawn_file_actions_adddup2(&actions, out_fd, STDOUT_FILENO);
    rc = rc ? rc : posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    rc = rc ? rc : posix_spawnattr_setsigmask(&attr, &none);
    rc = rc ? rc : posix_spawnattr_setsigdefault(&attr, &all);
    rc = rc ? rc : posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    rc = rc ? rc : posix_spawn(ret_pid, program, &actions, &attr, argv, envp);
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&actions);
    return -rc;
}

/* Everything up to the end of the pipe. */
static int read_all(int fd, struct bytes_out *out, struct leat_error *err)
{
    AUTO_FREE char *buf = malloc(64 * KIB);
    if (!buf)
        return -ENOMEM;
    uint64_t end = clock_now_ns() + WHOLE_IDLES * hdf5_idle_ns;
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int ready = poll(&p, 1, clock_poll_ms(MIN(end, clock_now_ns() + hdf5_idle_ns)));
        if (ready < 0 && errno == EINTR && clock_now_ns() < end)
            continue;
        if (ready == 0 || clock_now_ns() >= end)
            return error_set(err, LEAT_TIMED_OUT, "libhdf5 found no end in it within %llu s",
                             (unsigned long long)(hdf5_idle_ns / NS_PER_S));
        ssize_t n = ready < 0 ? -1 : read(fd, buf, 64 * KIB);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            return 0;
        bytes_put(out, buf, (size_t)n);
        if (out->failed)
            return -ENOMEM;
        if (out->len > HDF5_TABLE_MAX)
            return error_set(err, LEAT_UNSUPPORTED,
                             "it has too many chunks; rewrite it with larger ones "
                             "(`h5repack -l CHUNK=...`)");
    }
}

static int ask_child(const char *inner, int file_fd, struct bytes_out *out, struct leat_error *err)
{
    char program[PATH_MAX];
    int rc = find_program(program, sizeof(program), err);
    if (rc < 0)
        return rc;
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    AUTO_CLOSE int from = ends[0];
    /* In a process without standard streams the pipe may have got their numbers, which the child's are put on. */
    if (ends[1] <= STDERR_FILENO) {
        int high = fcntl(ends[1], F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
        rc = high < 0 ? -errno : 0;
        close(ends[1]);
        if (rc < 0)
            return rc;
        ends[1] = high;
    }
    pid_t pid;
    rc = spawn_child(program, inner, file_fd, ends[1], &pid);
    close(ends[1]);
    if (rc < 0)
        return error_sys(err, rc, "%s cannot be run", program);
    rc = read_all(from, out, err);
    if (rc < 0)
        kill(pid, SIGKILL);
    int status = 0;
    pid_t reaped;
    do
        reaped = waitpid(pid, &status, 0);
    while (reaped < 0 && errno == EINTR);
    if (rc < 0)
        return rc;
    /* Where the process ignores SIGCHLD the kernel reaps, and only the table shows the result. */
    if (reaped == pid && WIFSIGNALED(status))
        return error_set(err, LEAT_CORRUPT, "it is damaged, or asks too much: libhdf5 ended with signal %d",
                         WTERMSIG(status));
    if (reaped == pid && WEXITSTATUS(status) != 0)
        return error_set(err, LEAT_CORRUPT, "it cannot be read: " PROGRAM " ended with status %d",
                         WEXITSTATUS(status));
    return 0;
}

static int place(struct scan_array *a, struct index_builder *b, uint32_t source, uint64_t *ret_address,
                 struct leat_error *err)
{
    return hdf5_place(a->format, MAX(a->rows, (uint64_t)1), b, source, ret_address, err);
}

static void fini(void *format)
{
    struct hdf5_dataset *d = format;
    if (!d)
        return;
    free(d->name);
    free(d->fill);
    free(d->chunks);
}

/* Moves a dataset of the table into an array. */
static int add_array(struct scan_arrays *arrays, const char *path, const char *field, const struct stat *st,
                     struct hdf5_dataset *d)
{
    struct scan_array *a = scan_arrays_add(arrays);
    if (!a)
        return -ENOMEM;
    a->field = strdup(field ? field : d->name);
    a->path = strdup(path);
    if (asprintf(&a->shown, "%s#%s", path, d->name) < 0)
        a->shown = NULL;
    a->format = malloc(sizeof(*d));
    if (!a->field || !a->path || !a->shown || !a->format)
        return -ENOMEM;
    memcpy(a->format, d, sizeof(*d));
    *d = (struct hdf5_dataset){0};
    a->format_fini = fini;
    d = a->format;
    a->st = *st;
    memcpy(a->dtype, d->dtype, sizeof(a->dtype));
    a->ndim = d->ndim;
    memcpy(a->shape, d->dims, sizeof(a->shape));
    a->itemsize = d->itemsize;
    a->place = place;
    return 0;
}

int hdf5_scan(struct scan *scan, const char *path, const char *inner, const char *field, int fd,
              const struct stat *st, struct scan_arrays *arrays, struct leat_error *err)
{
    struct bytes_out out = {0};
    struct hdf5_table table = {0};
    struct leat_error local = {0};
    int rc = ask_child(inner, fd, &out, &local);
    if (rc == 0)
        rc = hdf5_table_parse(out.data, out.len, (uint64_t)st->st_size, &table, &local);
    bytes_out_fini(&out);
    if (rc == 0 && table.n == 0)
        rc = error_set(&local, LEAT_INVALID, "there is no array in it");
    if (rc == 0 && field && table.n > 1)
        rc = error_set(&local, LEAT_INVALID,
                       "it holds %u datasets, and one is wanted as \"%s\"; name it, as in "
                       "\"%s=x.h5#/images\"",
                       table.n, field, field);
    for (unsigned i = 0; i < table.n && rc == 0; i++)
        rc = add_array(arrays, path, field, st, &table.datasets[i]);
    hdf5_table_fini(&table);
    if (rc == 0 || rc == -ENOMEM)
        return rc;
    char shown[200], message[400];
    scan_escape(path, shown, sizeof(shown));
    scan_escape(local.code ? local.message : strerror(-rc), message, sizeof(message));
    return error_set(err, rc, "%s: %.*s", shown, (int)sizeof(message), message);
}
