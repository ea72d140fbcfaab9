/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spawn.c: starts a private leatd. Two forks, so that init adopts it and no zombie is left; between fork and exec only
 * async-signal-safe calls, because the caller may have threads.
 *
 *   parent ── fork ─▶ child: setsid ── fork ─▶ daemon: 0,1 = /dev/null, 2 = leatd.log, 3 = ready pipe, rest closed, exec
 *     └ waits for the child, then reads one line from the ready pipe: "ok", or "error: text"
 *
 * Failure modes: exec fails (said on the pipe), the daemon dies before its line (end of file: the log's name is in the
 * message), or it says nothing until the deadline.
 */
#include "client/connect.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "leat/leat.h"

#define READY_FD 3
#define POLL_MS  50

/* Out of the way of 0..3, which the child fills. */
static int moved_up(int fd)
{
    int up = fcntl(fd, F_DUPFD_CLOEXEC, 16);
    int saved = errno;
    close(fd);
    errno = saved;
    return up;
}

static void close_from(unsigned first)
{
    if (syscall(SYS_close_range, first, ~0u, 0) == 0)
        return;
    for (unsigned fd = first; fd < 65536; fd++) /* kernels before 5.9 */
        close((int)fd);
}

_Noreturn static void become_daemon(const char *path, char *const argv[], int null, int log, int ready,
                                    const char *cannot)
{
    struct sigaction fallback = {.sa_handler = SIG_DFL};
    for (int s = 1; s < NSIG; s++)
        sigaction(s, &fallback, NULL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (dup2(null, 0) < 0 || dup2(null, 1) < 0 || dup2(log, 2) < 0 || dup2(ready, READY_FD) < 0)
        _exit(127);
    close_from(READY_FD + 1);
    if (chdir("/") == 0)
        execv(path, argv);
    if (write(READY_FD, cannot, strlen(cannot)) < 0)
        _exit(126);
    _exit(127);
}

/* The line that leatd writes when it listens, or cannot. */
static int read_ready(int fd, const struct connect_spawn *what, const char *log_path, uint64_t deadline_ns,
                      struct leat_error *err)
{
    char line[LEAT_ERROR_MESSAGE_MAX];
    size_t len = 0;
    while (len < sizeof(line) - 1 && !memchr(line, '\n', len)) {
        struct pollfd pfd = {.fd = fd, .events = POLLIN};
        int left = clock_poll_ms(deadline_ns);
        int n = poll(&pfd, 1, what->interrupt && (left < 0 || left > POLL_MS) ? POLL_MS : left);
        bool again = (n == 0 && left != 0) || (n < 0 && errno == EINTR);
        if (again && what->interrupt && what->interrupt(what->interrupt_user))
            return error_set(err, LEAT_CANCELED, "cancelled by the caller while leatd was starting");
        if (again)
            continue;
        if (n == 0)
            return error_set(err, LEAT_TIMED_OUT, "leatd did not come up in time; see %s", log_path);
        ssize_t got = n < 0 ? -1 : read(fd, line + len, sizeof(line) - 1 - len);
        if (got < 0 && errno != EINTR)
            return error_sys(err, -errno, "cannot read from leatd");
        if (got == 0)
            break;
        len += got > 0 ? (size_t)got : 0;
    }
    line[len] = 0;
    line[strcspn(line, "\n")] = 0;
    if (strcmp(line, "ok") == 0)
        return 0;
    if (strncmp(line, "error: ", 7) == 0)
        return error_set(err, -EIO, "leatd did not start: %s", line + 7);
    return error_set(err, LEAT_PEER_GONE, "leatd ended before it listened; see %s", log_path);
}

int connect_spawn(const struct connect_spawn *what, uint64_t deadline_ns, struct leat_error *err)
{
    char path[PATH_ROOM], log_path[PATH_ROOM], cannot[PATH_ROOM + 64], pool[24], region[24];
    int rc = connect_find_leatd(path, err);
    if (rc)
        return rc;
    snprintf(log_path, sizeof(log_path), "%.3000s/leatd.log", what->folder);
    snprintf(cannot, sizeof(cannot), "error: cannot run %.3000s\n", path);
    snprintf(pool, sizeof(pool), "%llu", (unsigned long long)what->pool_bytes);
    snprintf(region, sizeof(region), "%llu", (unsigned long long)what->region_bytes);
    const char *argv[16] = {path,    "--private", "--socket",   what->socket,
                            "--job", what->job,   "--ready-fd", "3"};
    unsigned n = 8;
    if (what->pool_bytes) {
        argv[n++] = "--pool";
        argv[n++] = pool;
    }
    if (what->region_bytes) {
        argv[n++] = "--region";
        argv[n++] = region;
    }

    int pipe_fds[2];
    if (pipe2(pipe_fds, O_CLOEXEC) < 0)
        return error_sys(err, -errno, "cannot make a pipe");
    AUTO_CLOSE int hear = pipe_fds[0];
    AUTO_CLOSE int ready = moved_up(pipe_fds[1]);
    AUTO_CLOSE int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    AUTO_CLOSE int log =
        open(log_path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (null >= 0)
        null = moved_up(null);
    if (log >= 0)
        log = moved_up(log);
    if (ready < 0 || null < 0 || log < 0)
        return error_sys(err, -errno, "cannot open what leatd needs in %s", what->folder);

    pid_t child = fork();
    if (child < 0)
        return error_sys(err, -errno, "cannot fork to start leatd");
    if (child == 0) {
        setsid();
        pid_t daemon_pid = fork();
        if (daemon_pid == 0)
            become_daemon(path, (char *const *)(uintptr_t)argv, null, log, ready, cannot);
        _exit(daemon_pid < 0);
    }
    int status;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    close(TAKE_FD(ready)); /* so that its death is an end of file */
    return read_ready(hear, what, log_path, deadline_ns, err);
}
