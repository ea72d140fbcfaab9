/* SPDX-License-Identifier: Apache-2.0 */
/*
 * connect.c: finds the daemon of this host, user and job, or starts one, and shakes hands.
 *
 *   socket path ──▶ connect ──▶ HELLO ──▶ welcome
 *        └ refused ──▶ flock leatd.lock ──▶ connect again ──▶ spawn leatd ──▶ "ok" on its ready pipe ──▶ connect
 *
 * Failure modes: a socket left by a killed daemon refuses connections like a missing one, and the daemon started in its
 * place takes it over; the lock dies with its holder; a daemon that cannot start says why on the ready pipe, one that
 * says nothing costs START_NS. A daemon that goes between any two steps (killed, stopped, or through with waiting) is
 * looked for again, ATTEMPTS times in all. A folder that is not ours, or that others may write, is refused, and so is another user's
 * daemon (connect_check_daemon).
 * Invariants: the lock's descriptor never reaches the daemon; nothing of the caller's is open in it but the log.
 */
#include "client/client.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/un.h>

#include "base/clock.h"
#include "client/connect.h"
#include "leat-config.h"

#define START_NS           (10 * NS_PER_S)
#define DEFAULT_TIMEOUT_NS (30 * NS_PER_S)
#define ATTEMPTS           3 /* one that dies each time is sick, not unlucky */

const char *leat_version(void)
{
    return LEAT_VERSION;
}

/* --- fork -------------------------------------------------------------------------------------------------------- */

static unsigned fork_count;

static void on_fork_child(void)
{
    fork_count++;
    view_forget_orphans();
}

static void install_fork_handler(void)
{
    pthread_atfork(NULL, NULL, on_fork_child);
}

unsigned client_fork_count(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install_fork_handler);
    return fork_count;
}

bool client_forked(const struct leat_client *client)
{
    return client->fork_count != fork_count;
}

int client_forked_error(struct leat_error *err)
{
    return error_set(
        err, LEAT_INVALID,
        "this handle was opened before fork(); a child process opens its own (leat_connect, leat_open)");
}

int leat_forked(const struct leat_client *client)
{
    return client && client_forked(client);
}

/* --- handshake ----------------------------------------------------------------------------------------------------- */

static int shake_hands(struct leat_client *c, uint64_t deadline_ns, struct leat_error *err)
{
    struct proto_hello hello = {.version_min = PROTO_VERSION_MIN,
                                .version_max = PROTO_VERSION,
                                .role = PROTO_ROLE_CONTROL,
                                .pid = (uint32_t)getpid(),
                                .acting_uid = (uint32_t)getuid(),
                                .acting_gid = (uint32_t)getgid()};
    snprintf(hello.program, sizeof(hello.program), "libleat " LEAT_VERSION);
    AUTO_BYTES struct bytes_out body = {0};
    struct net_reply reply;
    proto_hello_put(&body, &hello);
    int rc = client_rpc_call(c, PROTO_HELLO, &body, NULL, 0,
                             &(struct client_rpc_how){.deadline_ns = deadline_ns}, &reply, err);
    if (rc)
        return error_prefix(err, rc,
                            "handshake with the daemon at %s (libleat " LEAT_VERSION ", protocol %d to %d)",
                            c->socket, PROTO_VERSION_MIN, PROTO_VERSION);
    uint8_t spoken = reply.frame.version;
    rc = proto_welcome_get(reply.body.data, reply.body.len, &c->welcome);
    net_reply_fini(&reply);
    if (rc == 0)
        spoken = c->welcome.version;
    if (rc || !proto_version_common(spoken, spoken))
        return error_set(err, LEAT_INVALID,
                         "the daemon at %s speaks protocol %u, libleat " LEAT_VERSION
                         " speaks %d to %d: stop it (leat stop) or install the same release of both",
                         c->socket, spoken, PROTO_VERSION_MIN, PROTO_VERSION);
    c->version = spoken;
    return 0;
}

/* --- starting -------------------------------------------------------------------------------------------------------- */

static int take_lock(const char *folder, const struct leat_client_options *o, uint64_t deadline_ns,
                     int *ret_fd, struct leat_error *err)
{
    char path[PATH_ROOM];
    snprintf(path, sizeof(path), "%.4000s/leatd.lock", folder);
    AUTO_CLOSE int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return error_sys(err, -errno, "cannot open %s", path);
    /* Asked again and again rather than waited for: a holder that is stopped must not stop us past the deadline. */
    for (uint64_t pause_us = 200; flock(fd, LOCK_EX | LOCK_NB) < 0; pause_us = MIN(pause_us * 2, 10000ull)) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return error_sys(err, -errno, "cannot lock %s", path);
        if (deadline_ns && clock_now_ns() >= deadline_ns)
            return error_set(err, LEAT_TIMED_OUT,
                             "another process is starting the daemon and does not finish (lock %s)", path);
        if (pause_us >= 10000 && o->interrupt && o->interrupt(o->interrupt_user))
            return client_cancelled_error(err);
        usleep((useconds_t)pause_us);
    }
    *ret_fd = TAKE_FD(fd);
    return 0;
}

static bool nobody_there(int rc)
{
    return rc == -ECONNREFUSED || rc == -ENOENT || rc == LEAT_NOT_FOUND;
}

static int none_runs(const char *job, const char *folder, struct leat_error *err)
{
    char others[300];
    connect_others(folder, others, sizeof(others));
    return error_set(err, LEAT_NOT_FOUND, "no leatd runs for job %s of this user%s", job, others);
}

static int find_or_start(const struct leat_client_options *o, const char *socket, const char *folder,
                         const char *job, uint64_t deadline_ns, int *ret_fd, struct leat_error *err)
{
    int rc = net_dial(socket, deadline_ns, ret_fd, err);
    if (rc == 0 || !nobody_there(rc))
        return rc;
    if (folder && (o->flags & LEAT_CONNECT_NO_START))
        return none_runs(job, folder, err);
    if (!folder)
        return error_set(err, LEAT_NOT_FOUND,
                         "no leatd listens at %s, which was given and so none is started", socket);

    AUTO_CLOSE int lock = -1;
    rc = take_lock(folder, o, deadline_ns, &lock, err);
    if (rc)
        return rc;
    rc = net_dial(socket, deadline_ns, ret_fd, err);
    if (rc == 0 || !nobody_there(rc))
        return rc;
    const struct connect_spawn spawn = {.socket = socket,
                                        .folder = folder,
                                        .job = job,
                                        .pool_bytes = o->pool_bytes,
                                        .region_bytes = o->region_bytes,
                                        .interrupt = o->interrupt,
                                        .interrupt_user = o->interrupt_user};
    rc = connect_spawn(&spawn, clock_now_ns() + START_NS, err);
    if (rc)
        return rc;
    rc = net_dial(socket, deadline_ns, ret_fd, err);
    return rc ? error_prefix(err, nobody_there(rc) ? LEAT_PEER_GONE : rc,
                             "the daemon was started and does not answer")
              : 0;
}

/* LEAT_PEER_GONE: the daemon went in the midst of it. */
static int find_and_greet(const struct leat_client_options *o, const char *socket, const char *folder,
                          const char *job, uint64_t timeout_ns, uint64_t deadline_ns,
                          struct leat_client **ret_client, struct leat_error *err)
{
    int fd;
    int rc = find_or_start(o, socket, folder, job, deadline_ns, &fd, err);
    if (rc)
        return rc;
    rc = connect_check_daemon(fd, socket, err);
    if (rc) {
        close(fd);
        return rc;
    }
    struct leat_client *c;
    rc = client_new(fd, socket, timeout_ns, &c);
    if (rc) {
        close(fd);
        return error_set(err, rc, "out of memory");
    }
    c->interrupt = o->interrupt;
    c->interrupt_user = o->interrupt_user;
    snprintf(c->job, sizeof(c->job), "%s", job);
    rc = shake_hands(c, deadline_ns, err);
    if (rc) {
        client_unref(c);
        return rc;
    }
    *ret_client = c;
    return 0;
}

int leat_connect(const struct leat_client_options *options, struct leat_client **ret_client,
                 struct leat_error *err)
{
    struct leat_client_options o;
    if (!ret_client)
        return error_set(err, LEAT_INVALID, "ret_client is NULL");
    int rc = options_take("leat_client_options", options, offsetof(struct leat_client_options, socket), &o,
                          sizeof(o), err);
    if (!rc)
        rc = options_flags("leat_client_options", o.flags, LEAT_CONNECT_NO_START, err);
    if (rc)
        return rc;
    client_fork_count();

    char socket[PATH_ROOM], folder[PATH_ROOM], job[CONNECT_JOB_MAX + 1];
    const char *given = o.socket ? o.socket : getenv("LEAT_SOCKET");
    connect_job(o.job, job);
    if (given && *given) {
        if (given[0] != '/')
            return error_set(
                err, LEAT_INVALID,
                "socket '%s': clients talk to a daemon of their host, at a unix socket; give its "
                "absolute path, as /run/leat/leatd.sock",
                given);
        if (strlen(given) >= sizeof(((struct sockaddr_un *)0)->sun_path))
            return error_set(err, LEAT_INVALID, "socket path of %zu bytes: at most %zu are possible",
                             strlen(given), sizeof(((struct sockaddr_un *)0)->sun_path) - 1);
        snprintf(socket, sizeof(socket), "%s", given);
    } else {
        rc = connect_folder(job, !(o.flags & LEAT_CONNECT_NO_START), folder, err);
        if (rc == -ENOENT && (o.flags & LEAT_CONNECT_NO_START))
            return none_runs(job, folder, err);
        if (rc)
            return rc;
        snprintf(socket, sizeof(socket), "%.200s/leatd.sock", folder);
        given = NULL;
    }

    uint64_t timeout_ns = o.timeout_ns ? o.timeout_ns : DEFAULT_TIMEOUT_NS;
    uint64_t deadline_ns = 0;
    if (timeout_ns != UINT64_MAX && add_overflows(clock_now_ns(), timeout_ns, &deadline_ns))
        deadline_ns = 0;
    rc = LEAT_PEER_GONE;
    for (unsigned i = 0; i < ATTEMPTS && rc == LEAT_PEER_GONE; i++)
        rc = find_and_greet(&o, socket, given ? NULL : folder, job, timeout_ns, deadline_ns, ret_client, err);
    return rc;
}

void leat_disconnect(struct leat_client *client)
{
    if (client && !client_forked(client))
        client_unref(client);
}

const char *leat_client_socket(const struct leat_client *client)
{
    return client->socket;
}
