/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding and starting the daemon. The program that is started is this one: called with --private it plays leatd as LEAT_TEST_DAEMON
 * says, notes its process number in the folder, and ends by itself after a few seconds.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/testing.h"
#include "client/client.h"
#include "client/connect.h"
#include "client/fake_daemon.h"

static struct leat_error err;
static char runtime[64], program[PATH_ROOM];

/* --- the daemon's side ------------------------------------------------------------------------------------------------- */

static void say(const char *text)
{
    if (write(3, text, strlen(text)) < 0)
        _exit(9);
}

/* Which start this is: 1 for the first in this folder. */
static unsigned note_start(const char *socket)
{
    char note[PATH_ROOM], line[16];
    snprintf(note, sizeof(note), "%s.pids", socket);
    FILE *f = fopen(note, "a+");
    unsigned lines = 1;
    while (f && fgets(line, sizeof(line), f))
        lines++;
    if (!f || fprintf(f, "%d\n", (int)getpid()) < 0 || fclose(f))
        _exit(9);
    return lines;
}

static int play_daemon(int argc, char **argv)
{
    const char *mode = getenv("LEAT_TEST_DAEMON"), *socket = NULL;
    alarm(20);
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], "--socket") == 0)
            socket = argv[i + 1];
    if (!mode || !socket)
        return 3;
    unsigned start = note_start(socket);
    /* "unlucky": killed before it listens, then after it reported that, then spared */
    bool unlucky = strcmp(mode, "unlucky") == 0;
    if (strcmp(mode, "die") == 0 || (unlucky && start == 1))
        raise(SIGKILL);
    if (unlucky && start == 2) {
        say("ok\n");
        raise(SIGKILL);
    }
    if (strcmp(mode, "error") == 0) {
        say("error: the pool does not fit\n");
        return 1;
    }
    if (strcmp(mode, "fds") == 0) { /* what did it inherit? */
        char line[64];
        unsigned open_fds = 0;
        for (int fd = 4; fd < 1000; fd++)
            open_fds += fcntl(fd, F_GETFD) >= 0;
        snprintf(line, sizeof(line), "error: %u descriptors, session %d\n", open_fds,
                 getsid(0) != getppid() && getsid(0) > 1);
        say(line);
        return 1;
    }
    unlink(socket);
    fake_start(&(struct fake_options){.path = socket});
    say("ok\n");
    close(3);
    pause();
    return 0;
}

/* --- names and folders --------------------------------------------------------------------------------------------------- */

static void test_job_names(void **state)
{
    char job[CONNECT_JOB_MAX + 1], other[CONNECT_JOB_MAX + 1];
    connect_job("run-7.a_B", job);
    assert_string_equal(job, "run-7.a_B");
    connect_job("a/b", job);
    assert_null(strchr(job, '/'));
    connect_job("a b", other);
    assert_string_not_equal(job, other); /* the hash differs where the letters do not */
    connect_job("..", job);
    assert_int_not_equal(job[0], '.');
    connect_job("0123456789012345678901234567890123456789012345678901234567890123456789", job);
    assert_true(strlen(job) <= CONNECT_JOB_MAX);
    connect_job("\xff\xfe", job);
    assert_int_equal(strncmp(job, "job-", 4), 0);
    unsetenv("LEAT_JOB");
    unsetenv("SLURM_JOB_ID");
    setenv("TORCHELASTIC_RUN_ID", "elastic", 1);
    connect_job(NULL, job);
    assert_string_equal(job, "elastic");
    unsetenv("TORCHELASTIC_RUN_ID");
    connect_job("", job);
    assert_int_equal(strncmp(job, "session-", 8), 0);
}

static void test_folders(void **state)
{
    char folder[PATH_ROOM], path[PATH_ROOM];
    struct stat st;
    assert_int_equal(connect_folder("absent", false, folder, &err), -ENOENT);
    assert_int_equal(connect_folder("fresh", true, folder, &err), 0);
    snprintf(path, sizeof(path), "%s/leat/fresh", runtime);
    assert_string_equal(folder, path);
    assert_int_equal(stat(folder, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    chmod(folder, 0777);
    assert_int_equal(connect_folder("fresh", true, folder, &err), LEAT_DENIED);
    assert_non_null(strstr(err.message, "chmod 700"));
    chmod(folder, 0700);
    if (geteuid() == 0) { /* another user's */
        assert_int_equal(chown(folder, 12345, 12345), 0);
        assert_int_equal(connect_folder("fresh", true, folder, &err), LEAT_DENIED);
        assert_non_null(strstr(err.message, "12345"));
        assert_int_equal(chown(folder, 0, 0), 0);
    }
    rmdir(folder);
    snprintf(path, sizeof(path), "%s/leat/link", runtime);
    assert_int_equal(symlink("/tmp", path), 0);
    assert_int_equal(connect_folder("link", true, folder, &err), LEAT_DENIED);
    unlink(path);

    /* Too long for a socket: /tmp instead. */
    char longer[140];
    memset(longer, 'x', sizeof(longer));
    longer[0] = '/';
    longer[sizeof(longer) - 1] = 0;
    setenv("XDG_RUNTIME_DIR", longer, 1);
    assert_int_equal(connect_folder("leat-test-long", true, folder, &err), 0);
    assert_int_equal(strncmp(folder, "/tmp/leat-", 10), 0);
    assert_true(strlen(folder) + strlen("/leatd.sock") < 108);
    rmdir(folder);
    setenv("XDG_RUNTIME_DIR", runtime, 1);
}

/* A path of this host only: over TCP nothing would say whose daemon it is, and keys would go in the clear. */
static void test_sockets_that_are_none(void **state)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(at);
    AUTO_CLOSE int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&at, len), 0);
    assert_int_equal(listen(listener, 8), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &len), 0);
    char address[32];
    snprintf(address, sizeof(address), "127.0.0.1:%d", ntohs(at.sin_port));
    const char *const given[] = {address, "leatd.sock", "./leatd.sock"};
    struct leat_client *client;
    for (unsigned i = 0; i < ARRAY_LEN(given); i++) {
        struct leat_client_options o = {
            .size = sizeof(o), .socket = given[i], .timeout_ns = 200000000, .flags = LEAT_CONNECT_NO_START};
        assert_int_equal(leat_connect(&o, &client, &err), LEAT_INVALID);
        assert_non_null(strstr(err.message, "absolute path"));
        assert_non_null(strstr(err.message, given[i]));
    }
    assert_int_equal(accept(listener, NULL, NULL), -1);
    assert_int_equal(errno, EAGAIN);
}

/* --- starting ------------------------------------------------------------------------------------------------------------------ */

static unsigned read_pids(const char *job, pid_t *ret_last)
{
    char path[PATH_ROOM];
    int pid, n = 0;
    snprintf(path, sizeof(path), "%s/leat/%s/leatd.sock.pids", runtime, job);
    FILE *f = fopen(path, "r");
    while (f && fscanf(f, "%d", &pid) == 1) {
        *ret_last = pid;
        n++;
    }
    if (f)
        fclose(f);
    return (unsigned)n;
}

static int try_connect(const char *mode, const char *job)
{
    struct leat_client *client;
    struct leat_client_options o = {.size = sizeof(o), .job = job};
    setenv("LEAT_TEST_DAEMON", mode, 1);
    int rc = leat_connect(&o, &client, &err);
    if (!rc)
        leat_disconnect(client);
    return rc;
}

static void test_start_fails(void **state)
{
    assert_int_equal(try_connect("error", "sick"), -EIO);
    assert_non_null(strstr(err.message, "the pool does not fit"));
    pid_t pid;
    unsigned starts = read_pids("sick", &pid);
    assert_int_equal(try_connect("die", "sick"), LEAT_PEER_GONE);
    assert_non_null(strstr(err.message, "leatd.log"));
    assert_int_equal(read_pids("sick", &pid), starts + 3); /* it was given its chances, and no more */
    int fds[40];
    for (unsigned i = 0; i < ARRAY_LEN(fds); i++)
        fds[i] = open("/dev/null", O_RDONLY); /* not close-on-exec: still not the daemon's */
    assert_int_equal(try_connect("fds", "sick"), -EIO);
    assert_non_null(strstr(err.message, "0 descriptors, session 1"));
    for (unsigned i = 0; i < ARRAY_LEN(fds); i++)
        close(fds[i]);
    setenv("LEAT_LEATD", "/nonexistent/leatd", 1);
    assert_int_equal(try_connect("ok", "sick"), LEAT_NOT_FOUND);
    setenv("LEAT_LEATD", program, 1);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no zombie, no child */
    assert_int_equal(errno, ECHILD);
}

/* The daemon is killed while it starts, and the next between its word and our call: each is started again. */
static void test_killed_between_the_steps(void **state)
{
    pid_t pid = 0;
    assert_int_equal(try_connect("unlucky", "unlucky"), 0);
    assert_int_equal(read_pids("unlucky", &pid), 3);
    kill(pid, SIGKILL);
}

/* Eight ranks at once: one daemon. It is killed; the next to come starts another. */
static void test_eight_at_once(void **state)
{
    pid_t ranks[8], daemon_pid = 0;
    for (unsigned i = 0; i < 8; i++) {
        ranks[i] = fork();
        if (ranks[i] == 0)
            _exit(try_connect("ok", "eight") ? 1 : 0);
    }
    for (unsigned i = 0; i < 8; i++) {
        int status;
        assert_int_equal(waitpid(ranks[i], &status, 0), ranks[i]);
        assert_int_equal(status, 0);
    }
    assert_int_equal(read_pids("eight", &daemon_pid), 1);
    struct pollfd gone = {.fd = (int)syscall(SYS_pidfd_open, daemon_pid, 0), .events = POLLIN};
    assert_true(gone.fd >= 0);
    kill(daemon_pid, SIGKILL);
    test_wait_until(poll(&gone, 1, 0) == 1);
    close(gone.fd);
    assert_int_equal(try_connect("ok", "eight"), 0); /* its socket is still there, and refuses */
    assert_int_equal(read_pids("eight", &daemon_pid), 2);
    kill(daemon_pid, SIGKILL);
}

static int teardown(void **state)
{
    static const char *const names[] = {"sick", "eight", "unlucky"};
    static const char *const files[] = {"leatd.lock", "leatd.log", "leatd.sock", "leatd.sock.pids"};
    char path[PATH_ROOM];
    for (unsigned i = 0; i < ARRAY_LEN(names); i++) {
        for (unsigned k = 0; k < ARRAY_LEN(files); k++) {
            snprintf(path, sizeof(path), "%s/leat/%s/%s", runtime, names[i], files[k]);
            unlink(path);
        }
        snprintf(path, sizeof(path), "%s/leat/%s", runtime, names[i]);
        rmdir(path);
    }
    snprintf(path, sizeof(path), "%s/leat", runtime);
    rmdir(path);
    return rmdir(runtime);
}

static int setup(void **state)
{
    strcpy(runtime, "/tmp/leat-test-XXXXXX");
    if (!mkdtemp(runtime) || !realpath("/proc/self/exe", program))
        return -1;
    unsetenv("LEAT_SOCKET");
    setenv("XDG_RUNTIME_DIR", runtime, 1);
    setenv("LEAT_LEATD", program, 1);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--private") == 0)
        return play_daemon(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_job_names),     cmocka_unit_test(test_folders),
        cmocka_unit_test(test_start_fails),   cmocka_unit_test(test_killed_between_the_steps),
        cmocka_unit_test(test_eight_at_once), cmocka_unit_test(test_sockets_that_are_none),
    };
    return cmocka_run_group_tests_name("client_connect", tests, setup, teardown);
}
