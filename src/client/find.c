/* SPDX-License-Identifier: Apache-2.0 */
/*
 * find.c: names and places: the job, its folder, the leatd to run.
 *
 * Folders are opened step by step without following links, and must be ours and closed to others: in /tmp
 * another user may have made the name before us. Failure modes: LEAT_DENIED for such a folder; a runtime
 * directory that is missing or whose path is too long for sun_path falls back to /tmp.
 */
#include "client/connect.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <xxhash.h>

#include "base/clock.h"
#include "leat-config.h"
#include "leat/leat.h"
#include "rpc/conn.h"

#define SOCKET_NAME  "/leatd.sock"
#define OTHERS_NAMED 4  /* in a message */
#define LINKS_MAX    40 /* as in the kernel */

static bool plain(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
}

void connect_job(const char *job, char ret_job[CONNECT_JOB_MAX + 1])
{
    static const char *const variables[] = {"LEAT_JOB", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"};
    char session[32];
    for (unsigned i = 0; (!job || !*job) && i < ARRAY_LEN(variables); i++)
        job = getenv(variables[i]);
    if (!job || !*job) {
        snprintf(session, sizeof(session), "session-%d", (int)getsid(0));
        job = session;
    }
    size_t len = strlen(job), bad = 0;
    for (size_t i = 0; i < len; i++)
        bad += !plain(job[i]);
    if (!bad && len <= CONNECT_JOB_MAX && job[0] != '.') {
        memcpy(ret_job, job, len + 1);
        return;
    }
    char start[20];
    size_t n = 0;
    for (size_t i = 0; i < len && n < sizeof(start) - 1; i++)
        if (plain(job[i]) && !(n == 0 && job[i] == '.'))
            start[n++] = job[i];
    start[n] = 0;
    snprintf(ret_job, CONNECT_JOB_MAX + 1, "%s-%016llx", n ? start : "job",
             (unsigned long long)XXH3_64bits(job, len));
}

/* Opens folder `name` of `dir`, made when asked, and looks whose it is. */
static int open_own(int dir, const char *name, const char *shown, bool make, int *ret_fd,
                    struct leat_error *err)
{
    if (make && mkdirat(dir, name, 0700) < 0 && errno != EEXIST)
        return error_sys(err, errno == EPERM ? LEAT_DENIED : -errno, "cannot make %s", shown);
    AUTO_CLOSE int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && (errno == ENOTDIR || errno == ELOOP))
        return error_set(err, LEAT_DENIED, "%s is not a folder of its own; remove it", shown);
    if (fd < 0)
        return error_sys(err, errno == EPERM ? LEAT_DENIED : -errno, "cannot open %s", shown);
    struct stat st;
    if (fstat(fd, &st) < 0)
        return error_sys(err, -errno, "cannot look at %s", shown);
    if (st.st_uid != geteuid())
        return error_set(err, LEAT_DENIED,
                         "%s belongs to uid %u; set XDG_RUNTIME_DIR to a folder of your own", shown,
                         (unsigned)st.st_uid);
    if (st.st_mode & 022)
        return error_set(err, LEAT_DENIED, "%s may be written by others (mode %04o); chmod 700 it", shown,
                         (unsigned)st.st_mode & 07777);
    *ret_fd = TAKE_FD(fd);
    return 0;
}

static int open_pair(int dir, const char *base, const char *base_path, const char *job, bool make,
                     struct leat_error *err)
{
    char shown[PATH_ROOM];
    AUTO_CLOSE int base_fd = -1;
    AUTO_CLOSE int job_fd = -1;
    int rc = open_own(dir, base, base_path, make, &base_fd, err);
    if (rc)
        return rc;
    snprintf(shown, sizeof(shown), "%s/%s", base_path, job);
    return open_own(base_fd, job, shown, make, &job_fd, err);
}

int connect_folder(const char *job, bool make, char ret_folder[PATH_ROOM], struct leat_error *err)
{
    const size_t room = sizeof(((struct sockaddr_un *)0)->sun_path);
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    char base[PATH_ROOM];
    if (runtime && runtime[0] == '/' &&
        strlen(runtime) + strlen("/leat/") + strlen(job) + strlen(SOCKET_NAME) < room) {
        AUTO_CLOSE int dir = open(runtime, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (dir >= 0) {
            snprintf(base, sizeof(base), "%s/leat", runtime);
            snprintf(ret_folder, PATH_ROOM, "%s/leat/%s", runtime, job);
            int rc = open_pair(dir, "leat", base, job, make, err);
            if (rc != -EROFS && rc != LEAT_DENIED)
                return rc;
            /* A runtime directory that this user may not write (sudo, containers) is as good as none. */
            if (access(runtime, W_OK) == 0)
                return rc;
        }
    }
    AUTO_CLOSE int tmp = open("/tmp", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (tmp < 0)
        return error_sys(err, -errno, "cannot open /tmp");
    char name[32];
    snprintf(name, sizeof(name), "leat-%u", (unsigned)geteuid());
    snprintf(base, sizeof(base), "/tmp/%s", name);
    snprintf(ret_folder, PATH_ROOM, "/tmp/%s/%s", name, job);
    return open_pair(tmp, name, base, job, make, err);
}

/* path: where the link `step` leads, and `rest` behind it. */
static int follow_link(const char *step, const char *rest, char path[PATH_ROOM])
{
    char target[PATH_ROOM];
    ssize_t n = readlink(step, target, sizeof(target) - 1);
    if (n <= 0)
        return -errno;
    target[n] = 0;
    int folder = target[0] == '/' ? 0 : (int)(strrchr(step, '/') + 1 - step);
    int len = snprintf(path, PATH_ROOM, "%.*s%s%s", folder, step, target, rest);
    return len < 0 || len >= PATH_ROOM ? -ENAMETOOLONG : 0;
}

/*
 * Follows `socket` step by step, links too, and looks at each folder: 0 when none but root, this user and `daemon` can have put anything
 * there. In a sticky folder, such as /tmp, all may make names, but not in the place of a folder of root's or ours; a link could have been moved
 * there. The owner of "/" is as good as root: in a user namespace root outside has no number. 1: others can; -errno. ret_step: the step that ended it.
 */
static int check_steps(const char *socket, uid_t daemon, char ret_step[PATH_ROOM])
{
    char path[PATH_ROOM], rest[PATH_ROOM];
    struct stat st;
    uid_t root = 0;
    unsigned links = 0;
    bool shared = false; /* the folder before */
    if ((size_t)snprintf(path, sizeof(path), "%s", socket) >= sizeof(path))
        return -ENAMETOOLONG;
    for (char *end = path; end;) {
        /* "/" is a step, too. */
        snprintf(ret_step, PATH_ROOM, "%.*s", end == path ? 1 : (int)(end - path), path);
        snprintf(rest, sizeof(rest), "%s", end);
        if (lstat(ret_step, &st) < 0)
            return -errno;
        if (!ret_step[1])
            root = st.st_uid;
        bool is_folder = S_ISDIR(st.st_mode),
             ours = st.st_uid == root || st.st_uid == 0 || st.st_uid == geteuid();
        if (shared && !(is_folder && ours))
            return 1;
        shared = is_folder && (st.st_mode & 022);
        if (is_folder && ((!ours && st.st_uid != daemon) || (shared && !(st.st_mode & S_ISVTX))))
            return 1;
        if (!S_ISLNK(st.st_mode)) {
            end = *end ? end + 1 + strcspn(end + 1, "/") : NULL;
            continue;
        }
        /* Its folder was in order, so the link is. From its target on it begins again. */
        int rc = ++links > LINKS_MAX ? -ELOOP : follow_link(ret_step, rest, path);
        if (rc)
            return rc;
        end = path;
    }
    return 0;
}

int connect_check_daemon(int fd, const char *socket, struct leat_error *err)
{
    struct ucred peer;
    socklen_t len = sizeof(peer);
    char step[PATH_ROOM] = "/";
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0)
        return error_sys(err, -errno, "cannot find the process that listens at %s", socket);
    if (peer.uid == geteuid() || peer.uid == 0)
        return 0;
    int rc = check_steps(socket, peer.uid, step);
    if (rc == 0)
        return 0;
    if (rc < 0)
        return error_sys(err, rc,
                         "cannot look at %s, on the way to the daemon at %s, which runs as user %u: data and "
                         "keys would go there",
                         step, socket, (unsigned)peer.uid);
    return error_set(
        err, LEAT_DENIED,
        "the daemon at %s runs as user %u, neither this user nor root: data and keys would go "
        "there. Each folder of its path must be one that only root, this user or user %u can make or change, "
        "and %s is not. Move the socket, as to /run/leat, or run this as user %u",
        socket, (unsigned)peer.uid, (unsigned)peer.uid, step, (unsigned)peer.uid);
}

static bool answers(const char *socket)
{
    AUTO_CLOSE int fd = -1;
    return net_dial(socket, clock_now_ns() + NS_PER_S / 10, &fd, NULL) == 0;
}

void connect_others(const char *folder, char *ret_text, size_t room)
{
    char base[PATH_ROOM], path[PATH_ROOM + NAME_MAX + sizeof(SOCKET_NAME) + 1];
    snprintf(base, sizeof(base), "%s", folder);
    char *own = strrchr(base, '/');
    *own++ = 0;
    unsigned found = 0;
    size_t len = 0;
    DIR *dir = opendir(base);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        snprintf(path, sizeof(path), "%s/%s" SOCKET_NAME, base, e->d_name);
        if (e->d_name[0] == '.' || strcmp(e->d_name, own) == 0 || access(path, F_OK) < 0 || !answers(path))
            continue;
        if (++found <= OTHERS_NAMED)
            len += (size_t)snprintf(ret_text + len, room - len, "%s%.*s",
                                    found > 1 ? ", " : "; there are those of: ", CONNECT_JOB_MAX, e->d_name);
    }
    if (dir)
        closedir(dir);
    if (!found)
        snprintf(ret_text, room, "; `leat preload` and leat.open() start one");
    else
        snprintf(ret_text + len, room - len, "%s (give --job=NAME, or set LEAT_JOB)",
                 found > OTHERS_NAMED ? ", ..." : "");
}

/* --- the binary --------------------------------------------------------------------------------------------------- */

static bool runnable(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

static bool beside_library(char ret_path[PATH_ROOM])
{
    static const char *const places[] = {
        "/../bin/leatd",  "/../libexec/leat/leatd", "/src/apps/leatd",      "/leatd",
        "/bin/leatd",     "/../../bin/leatd", /* lib/x86_64-linux-gnu */
        "/../apps/leatd", "/../src/apps/leatd",     "/../../src/apps/leatd"};
    Dl_info info;
    if (!dladdr((void *)(uintptr_t)connect_find_leatd, &info) || !info.dli_fname)
        return false;
    AUTO_FREE char *library = realpath(info.dli_fname, NULL);
    char *slash = library ? strrchr(library, '/') : NULL;
    if (!slash)
        return false;
    *slash = 0;
    for (unsigned i = 0; i < ARRAY_LEN(places); i++) {
        snprintf(ret_path, PATH_ROOM, "%s%s", library, places[i]);
        if (runnable(ret_path))
            return true;
    }
    return false;
}

static bool on_path(char ret_path[PATH_ROOM])
{
    const char *path = getenv("PATH");
    while (path && *path) {
        size_t len = strcspn(path, ":");
        if (len && len < PATH_ROOM - 16 && path[0] == '/') {
            snprintf(ret_path, PATH_ROOM, "%.*s/leatd", (int)len, path);
            if (runnable(ret_path))
                return true;
        }
        path += len + (path[len] == ':');
    }
    return false;
}

int connect_find_leatd(char ret_path[PATH_ROOM], struct leat_error *err)
{
    const char *given = getenv("LEAT_LEATD");
    if (given && *given) {
        AUTO_FREE char *real = realpath(given, NULL);
        if (!real || strlen(real) >= PATH_ROOM || !runnable(real))
            return error_set(err, LEAT_NOT_FOUND, "LEAT_LEATD=%s is not a program", given);
        strcpy(ret_path, real);
        return 0;
    }
    if (beside_library(ret_path))
        return 0;
    static const char *const configured[] = {LEAT_BINDIR "/leatd", LEAT_LIBEXECDIR "/leatd"};
    for (unsigned i = 0; i < ARRAY_LEN(configured); i++) {
        snprintf(ret_path, PATH_ROOM, "%s", configured[i]);
        if (runnable(ret_path))
            return 0;
    }
    if (on_path(ret_path))
        return 0;
    return error_set(err, LEAT_NOT_FOUND,
                     "leatd was found neither beside the library nor in " LEAT_BINDIR
                     " nor on PATH; set LEAT_LEATD");
}
