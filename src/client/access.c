/* SPDX-License-Identifier: Apache-2.0 */
/*
 * access.c: how to read a remote source: settings and credentials from this process's own environment, for the daemon that reads it.
 *
 *   settings      AWS's variables and files; what the program gave wins
 *   credentials   given by the program; else the environment's keys, or the profile's: here
 *                 else `leatd --find-credentials` asks, with this environment: a program to run, a container's or an instance's endpoint.
 *                 So libleat.so needs no TLS.
 *
 * Failure modes: no credentials are found: the daemon may have its own, so the open is requested all the same. Only its refusal makes the
 * reason known (access_refused). Invariants: secrets are wiped once they are sent.
 */
#include "client/client.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <strings.h>
#include <sys/wait.h>

#include "aws/credentials.h"
#include "base/clock.h"
#include "client/connect.h"
#include "dataset/dataset.h"
#include "wire/address.h"

#define FIND_NS        (30 * NS_PER_S) /* a credential_process may wait for a person */
#define FIND_BYTES_MAX (64 * KIB)

extern char **environ;

static bool env_is_true(const char *name)
{
    const char *v = getenv(name);
    return v && *v && strcmp(v, "0") != 0 && strcmp(v, "false") != 0 && strcmp(v, "no") != 0;
}

/* The program's options win; `found` is taken or freed. */
static int pick(char **to, const char *given, char *found)
{
    *to = found;
    if (!given)
        return 0;
    free(found);
    *to = strdup(given);
    return *to ? 0 : -ENOMEM;
}

static int settings(const struct leat_s3_options *o, struct proto_access *m, struct leat_error *err)
{
    struct aws_settings s;
    int rc = aws_settings_find(o->profile, &s, err);
    if (rc)
        return rc;
    int bad = pick(&m->endpoint, o->endpoint, TAKE_PTR(s.endpoint));
    bad |= pick(&m->region, o->region, TAKE_PTR(s.region));
    bad |= pick(&m->style, o->style, TAKE_PTR(s.style));
    bad |= pick(&m->ca_file, o->ca_file, TAKE_PTR(s.ca_file));
    bad |= pick(&m->profile, o->profile, NULL);
    aws_settings_fini(&s);
    if (o->flags & LEAT_S3_ANONYMOUS || (!o->access_key && env_is_true("LEAT_S3_ANONYMOUS")))
        m->flags |= PROTO_ACCESS_ANONYMOUS;
    if (o->flags & LEAT_S3_INSECURE || env_is_true("LEAT_S3_INSECURE"))
        m->flags |= PROTO_ACCESS_INSECURE;
    return bad ? error_set(err, -ENOMEM, "out of memory") : 0;
}

/* --- found by leatd ------------------------------------------------------------------------------------------------ */

static int find_spawn(const char *path, const char *profile, int out, pid_t *ret_pid)
{
    const char *argv[4] = {path, "--find-credentials", profile};
    posix_spawn_file_actions_t actions;
    if (posix_spawn_file_actions_init(&actions))
        return -ENOMEM;
    int rc = -posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    if (!rc)
        rc = -posix_spawn_file_actions_adddup2(&actions, out, 1);
    if (!rc)
        rc = -posix_spawn(ret_pid, path, &actions, NULL, (char *const *)(uintptr_t)argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    return rc;
}

static int find_hear(int fd, uint8_t *buf, size_t *len)
{
    uint64_t deadline_ns = clock_now_ns() + FIND_NS;
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int n = poll(&p, 1, clock_poll_ms(deadline_ns));
        if (n == 0)
            return LEAT_TIMED_OUT;
        ssize_t got = n < 0 ? -1 : read(fd, buf + *len, FIND_BYTES_MAX - *len);
        if (got < 0 && errno != EINTR)
            return -errno;
        if (got == 0)
            return 0;
        *len += got > 0 ? (size_t)got : 0;
        if (*len == FIND_BYTES_MAX)
            return LEAT_CORRUPT;
    }
}

/* Its output: i32 status, then a proto_access with nothing but keys, or the message. */
static int find_take(const uint8_t *buf, size_t len, struct proto_access *m, struct leat_error *err)
{
    struct bytes_in in = bytes_in_of(buf, len);
    struct proto_found head;
    struct proto_access found = {0};
    if (proto_found_next(&in, &head) < 0)
        return error_set(err, -EIO, "leatd --find-credentials ended without a word");
    if (head.status < 0) {
        AUTO_FREE char *message = proto_error_text(buf + in.pos, bytes_left(&in));
        return error_set(err, head.status, "%s", message ? message : "no credentials");
    }
    int rc = proto_access_next(&in, &found);
    if (rc < 0)
        return error_set(err, rc, "leatd --find-credentials: an answer that cannot be read");
    m->access_key = TAKE_PTR(found.access_key);
    m->secret_key = TAKE_PTR(found.secret_key);
    m->token = TAKE_PTR(found.token);
    m->expires = found.expires;
    proto_access_fini(&found);
    return 0;
}

static int find_elsewhere(struct proto_access *m, struct leat_error *err)
{
    char path[PATH_ROOM];
    int fds[2], rc = connect_find_leatd(path, err);
    if (rc)
        return rc;
    if (pipe2(fds, O_CLOEXEC) < 0)
        return error_sys(err, -errno, "cannot make a pipe");
    AUTO_CLOSE int hear = fds[0];
    AUTO_CLOSE int say = fds[1];
    uint8_t *buf = calloc(1, FIND_BYTES_MAX);
    pid_t pid = -1;
    size_t len = 0;
    rc = buf ? find_spawn(path, m->profile, say, &pid) : -ENOMEM;
    close(TAKE_FD(say));
    if (!rc)
        rc = find_hear(hear, buf, &len);
    if (pid > 0) {
        if (rc)
            kill(pid, SIGKILL);
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    rc = rc ? error_sys(err, rc, "looking for S3 credentials by %.200s", path) : find_take(buf, len, m, err);
    if (buf)
        explicit_bzero(buf, len);
    free(buf);
    return rc;
}

/* --- all of it ----------------------------------------------------------------------------------------------------- */

static int keys_given(const struct leat_s3_options *o, struct proto_access *m, struct leat_error *err)
{
    if (!o->access_key || !o->secret_key)
        return error_set(err, LEAT_INVALID, "leat_s3_options: access_key and secret_key belong together");
    m->access_key = strdup(o->access_key);
    m->secret_key = strdup(o->secret_key);
    m->token = o->token ? strdup(o->token) : NULL;
    return m->access_key && m->secret_key && (m->token || !o->token)
               ? 0
               : error_set(err, -ENOMEM, "out of memory");
}

static int keys_found(struct proto_access *m, struct leat_error *ret_why, struct leat_error *err)
{
    struct credentials c = {0};
    m->flags |= PROTO_ACCESS_FOUND;
    int rc = credentials_local(m->profile, &c, err);
    if (rc > 0) {
        m->access_key = TAKE_PTR(c.access_key);
        m->secret_key = TAKE_PTR(c.secret_key);
        m->token = TAKE_PTR(c.token);
        m->expires = (int64_t)c.expires;
        credentials_fini(&c);
        return 0;
    }
    if (rc == 0 && find_elsewhere(m, ret_why) == 0)
        memset(ret_why, 0, sizeof(*ret_why));
    return rc;
}

/* 1: an object of S3, 2: of a web server, 3: both; 0: neither, as what the daemon's own store holds. */
static int kinds(const char *uri, unsigned *ret_kinds, struct leat_error *err)
{
    struct dataset_spec spec;
    int rc = dataset_spec_parse(uri, &spec, err);
    if (rc)
        return rc;
    *ret_kinds = 0;
    for (unsigned i = 0; i < spec.n; i++)
        if (dataset_is_remote(spec.sources[i].uri) && strncasecmp(spec.sources[i].uri, "store:", 6) != 0)
            *ret_kinds |= strncasecmp(spec.sources[i].uri, "s3:", 3) == 0 ? 1 : 2;
    dataset_spec_free(&spec);
    return 0;
}

int access_find(const char *uri, const struct leat_s3_options *given, struct proto_open *open,
                struct leat_error *ret_why, struct leat_error *err)
{
    struct leat_s3_options o;
    unsigned kind = 0;
    memset(ret_why, 0, sizeof(*ret_why));
    int rc = options_take("leat_s3_options", given, offsetof(struct leat_s3_options, endpoint), &o, sizeof(o),
                          err);
    if (!rc)
        rc = options_flags("leat_s3_options", o.flags, LEAT_S3_ANONYMOUS | LEAT_S3_INSECURE, err);
    if (!rc && address_of(uri) != ADDRESS_SET)
        rc = kinds(uri, &kind, err);
    if (rc || !kind)
        return rc;
    struct proto_access m = {0};
    rc = settings(&o, &m, err);
    bool keys = kind & 1 && !(m.flags & PROTO_ACCESS_ANONYMOUS);
    if (!rc && keys && (o.access_key || o.secret_key))
        rc = keys_given(&o, &m, err);
    else if (!rc && keys)
        rc = keys_found(&m, ret_why, err);
    if (rc) {
        proto_access_fini(&m);
        return error_prefix(err, rc, "%.200s", uri);
    }
    open->access = m;
    open->has_access = true;
    return 0;
}

int access_refused(int rc, const struct leat_error *why, const char *uri, struct leat_error *err)
{
    return rc == LEAT_DENIED && why->code < 0 ? error_set(err, why->code, "%.150s: %s", uri, why->message)
                                              : rc;
}
