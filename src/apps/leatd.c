/* SPDX-License-Identifier: Apache-2.0 */
/* leatd: the node daemon. Wiring only: options and configuration in, a pool and its listeners out, signals to an orderly end. */
#include "aws/credentials.h"
#include "base/base.h"
#include "base/bytes.h"
#include "base/log.h"
#include "leat-config.h"
#include "loop/loop.h"
#include "rpc/auth.h"
#include "pool/nodes/nodes.h"
#include "daemon/config.h"
#include "pool/region/hugefs.h"
#include "pool/pool.h"
#include "pool/region/region.h"
#include "daemon/server.h"
#include "pool/source/source.h"
#include "serve/admin/pool_bridge.h"
#include "serve/config.h"
#include "serve/serve.h"
#include "wire/leat/messages.h"

#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

static const char usage_text[] =
    "leatd: keeps datasets in a pool of memory and serves them to training jobs\n"
    "\n"
    "usage: leatd [options]\n"
    "\n"
    "  -c, --config FILE        read this configuration (see leatd.conf(5)); options below win over it\n"
    "      --private            serve the user that starts it, and end after --idle-timeout without clients\n"
    "      --socket PATH        unix socket to listen on\n"
    "      --job NAME           name of the job, for status\n"
    "      --pool SIZE          most memory for datasets (512MiB, 64g); default: half of what is available\n"
    "      --region SIZE        size of a memory region, a power of two; default: 512MiB, smaller for small "
    "pools\n"
    "      --prefault SIZE      of that, memory to keep ready for the next dataset: loads several times as "
    "fast; "
    "default: 0\n"
    "      --listen HOST:PORT   serve other hosts too; needs --token-file\n"
    "      --token-file FILE    shared secret of the nodes, readable by its owner only\n"
    "      --idle-timeout TIME  a private daemon ends this long after its last client (120s)\n"
    "      --disk ENGINE        auto, uring or worker\n"
    "      --ready-fd N         write \"ok\" or \"error: ...\" there once it serves or fails\n"
    "      --check-config       read the configuration, report errors, and end\n"
    "  -h, --help               this text\n"
    "  -V, --version            version\n"
    "\n"
    "examples:\n"
    "  leatd --config /etc/leat/leatd.conf\n"
    "  leatd --private --socket /tmp/me/leatd.sock --pool 8GiB\n";

enum { OPT_PRIVATE = 256, OPT_READY, OPT_CHECK, OPT_KEYS };

/* Options that set a key of the configuration: OPT_KEYS + the place here. */
static const char *const option_keys[][2] = {
    {"daemon", "socket"}, {"daemon", "job"}, {"pool", "size"},      {"pool", "region_size"},
    {"pool", "prefault"}, {"net", "listen"}, {"net", "token_file"}, {"daemon", "idle_timeout"},
    {"disk", "engine"},   {"pool", "ready"}, {"daemon", "linger"}, /* old names */
};

static const struct option options[] = {
    {"config", required_argument, NULL, 'c'},
    {"private", no_argument, NULL, OPT_PRIVATE},
    {"socket", required_argument, NULL, OPT_KEYS},
    {"job", required_argument, NULL, OPT_KEYS + 1},
    {"pool", required_argument, NULL, OPT_KEYS + 2},
    {"region", required_argument, NULL, OPT_KEYS + 3},
    {"prefault", required_argument, NULL, OPT_KEYS + 4},
    {"ready", required_argument, NULL, OPT_KEYS + 9},
    {"listen", required_argument, NULL, OPT_KEYS + 5},
    {"token-file", required_argument, NULL, OPT_KEYS + 6},
    {"idle-timeout", required_argument, NULL, OPT_KEYS + 7},
    {"linger", required_argument, NULL, OPT_KEYS + 10},
    {"disk", required_argument, NULL, OPT_KEYS + 8},
    {"ready-fd", required_argument, NULL, OPT_READY},
    {"check-config", no_argument, NULL, OPT_CHECK},
    {"help", no_argument, NULL, 'h'},
    {"version", no_argument, NULL, 'V'},
    {0},
};

static int ready_fd = -1;

/* sd_notify(3): what Type=notify of the unit waits for. */
static void tell_systemd(void)
{
    static const char ready[] = "READY=1";
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    size_t len = path ? strlen(path) : 0;
    if (len < 2 || len >= sizeof(un.sun_path) || (path[0] != '/' && path[0] != '@'))
        return;
    memcpy(un.sun_path, path, len);
    if (path[0] == '@')
        un.sun_path[0] = 0;
    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    socklen_t un_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
    if (fd < 0 ||
        sendto(fd, ready, sizeof(ready) - 1, MSG_NOSIGNAL, (const struct sockaddr *)&un, un_len) < 0)
        log_warning("cannot notify systemd of the start: %s", strerror(errno));
}

static void tell_ready(const struct leat_error *err)
{
    if (!err)
        tell_systemd();
    if (ready_fd < 0)
        return;
    char line[LEAT_ERROR_MESSAGE_MAX + 16];
    int n = err ? snprintf(line, sizeof(line), "error: %s\n", err->message)
                : snprintf(line, sizeof(line), "ok\n");
    if (write(ready_fd, line, (size_t)n) < 0)
        log_warning("cannot notify the starting process: %s", strerror(errno));
    close(TAKE_FD(ready_fd));
}

static void on_signal(struct loop_source *source, uint32_t events)
{
    struct signalfd_siginfo info;
    if (read(source->fd, &info, sizeof(info)) == sizeof(info)) {
        log_info("signal %u: ending", info.ssi_signo);
        loop_stop(source->loop);
    }
}

static int signals_watch(struct loop_source *s, struct loop *loop)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigprocmask(SIG_BLOCK, &set, NULL);
    s->fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (s->fd < 0)
        return -errno;
    s->events = EPOLLIN;
    s->progress = on_signal;
    return loop_add(loop, s);
}

static int parse(int argc, char **argv, struct ini_part *parts, bool *ret_check, struct leat_error *err)
{
    int c, rc = 0;
    *ret_check = false;
    /* The file first, whatever its place, so that options win over it. */
    while (rc == 0 && (c = getopt_long(argc, argv, "c:hV", options, NULL)) != -1) {
        if (c == 'c')
            rc = ini_load(parts, optarg, err);
        else if (c == OPT_READY)
            ready_fd = atoi(optarg);
        else if (c == '?')
            return error_set(err, LEAT_INVALID, "see leatd --help");
    }
    optind = 1;
    while (rc == 0 && (c = getopt_long(argc, argv, "c:hV", options, NULL)) != -1) {
        const char *const *key = c >= OPT_KEYS ? option_keys[c - OPT_KEYS] : NULL;
        if (c == 'h' || c == 'V') {
            fputs(c == 'h' ? usage_text : "leatd " LEAT_VERSION "\n", stdout);
            exit(0);
        } else if (c == OPT_PRIVATE)
            rc = ini_set(parts, "daemon", "mode", "private", err);
        else if (key)
            rc = ini_set(parts, key[0], key[1], optarg, err);
        *ret_check |= c == OPT_CHECK;
    }
    if (rc == 0 && optind < argc)
        rc = error_set(err, LEAT_INVALID, "unexpected argument '%s': see leatd --help", argv[optind]);
    return rc;
}

static struct pool_config pool_settings(const struct config *config, int huge_dir)
{
    return (struct pool_config){
        .cap_bytes = config->pool_bytes,
        .region_bytes = config->region_bytes,
        .prefault_bytes = config->prefault_bytes,
        .pages = {.huge = config->huge_pages, .huge_dir = huge_dir},
        .fill_threads = config->disk_threads,
        .data_threads = config->data_threads,
        .disk_depth = config->disk_depth,
        .disk_engine = config->disk_engine,
        .opener = {.system = config->system, .roots = config->roots},
        .s3 = config->s3,
        .rdma = {.net = {.rails = config->rails, .tls = config->rdma_tls}, .users = config->rdma_users},
        .limits = config->limits,
    };
}

static struct server_config server_settings(const struct config *config, void *token, size_t token_len)
{
    return (struct server_config){
        .socket = config->socket,
        .listen = config->listen,
        .token = token,
        .token_len = token_len,
        .node_name = config->node_name,
        .linger_ns = config->system ? 0 : config->linger_ns,
        .program = "leatd " LEAT_VERSION,
    };
}

struct daemon {
    struct loop *loop;
    struct loop_source signals;
    struct pool *pool;
    struct server *server;
    struct cluster *cluster;
    struct serve *serve;
    struct pool_bridge *bridge;
    void *token;
    size_t token_len;
};

/* A token that is here is looked at; one that is not may be on the host that this configuration is for. */
static int check_token(const struct config *config, struct leat_error *err)
{
    void *token;
    size_t len;
    if (config->token_file && access(config->token_file, F_OK) == 0) {
        int rc = net_token_load(config->token_file, &token, &len, err);
        if (rc < 0)
            return rc;
        net_token_free(token, len);
    }
    printf("nothing is wrong\n");
    return 0;
}

/*
 * LEAT_DENIED when the configuration wants a network and this process may have none, as the systemd unit has it. Without this check only
 * the listeners would fail; names of S3 endpoints would look unknown.
 */
static int network_check(const struct config *config, const struct serve_config *listeners,
                         struct leat_error *err)
{
    bool wanted = config->listen || config->nnodes || config->s3.allowed;
    for (unsigned i = 0; i < listeners->nlisten; i++)
        wanted |= strncmp(listeners->listen[i], "unix:", 5) != 0;
    AUTO_CLOSE int v4 = wanted ? socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0) : -1;
    if (!wanted || v4 >= 0 || errno != EAFNOSUPPORT)
        return 0;
    AUTO_CLOSE int v6 = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (v6 >= 0)
        return 0;
    return error_set(err, LEAT_DENIED,
                     "the configuration names addresses of a network, and this process may open no network "
                     "socket: the systemd unit allows it in a drop-in (leatd(8), NETWORK)");
}

/* Whatever it answers, daemon_end is next, or behind a run. */
static int daemon_begin(struct daemon *d, const struct config *config, const struct serve_config *listeners,
                        int huge_dir, struct leat_error *err)
{
    int rc = loop_new(&d->loop);
    if (rc < 0)
        return error_sys(err, rc, "cannot start the loop");
    rc = signals_watch(&d->signals, d->loop);
    if (rc < 0)
        return error_sys(err, rc, "cannot watch signals");
    if (config->system && (rc = source_check_system(err)) < 0)
        return rc;
    rc = network_check(config, listeners, err);
    if (rc < 0)
        return rc;
    if (config->token_file && (rc = net_token_load(config->token_file, &d->token, &d->token_len, err)) < 0)
        return rc;
    struct pool_config pc = pool_settings(config, huge_dir);
    rc = pool_new(d->loop, &pc, &d->pool, err);
    if (rc < 0)
        return rc;
    struct server_config sc = server_settings(config, d->token, d->token_len);
    rc = server_new(d->loop, d->pool, &sc, &d->server, err);
    if (rc < 0)
        return rc;
    struct cluster_config cc = {.nodes = config->nodes,
                                .nnodes = config->nnodes,
                                .self = config->listen,
                                .token = d->token,
                                .token_len = d->token_len};
    if (config->nnodes && (rc = cluster_new(d->loop, d->pool, &cc, &d->cluster, err)) < 0)
        return rc;
    if (!listeners->npaths)
        return 0;
    rc = pool_bridge_new(d->loop, d->server, &d->bridge);
    if (rc < 0)
        return error_set(err, rc, "out of memory");
    struct serve_config with_pool = *listeners;
    with_pool.pool = pool_bridge_pool(d->bridge);
    with_pool.node_name = config->node_name;
    rc = serve_new(&with_pool, &d->serve, err);
    if (rc < 0)
        return rc;
    pool_store(d->pool, serve_store(d->serve), serve_may_read, d->serve);
    return 0;
}

static int daemon_run(struct daemon *d, const struct config *config, struct leat_error *err)
{
    for (unsigned i = 0; d->serve && serve_endpoint(d->serve, i); i++)
        log_info("serving S3 at %s", serve_endpoint(d->serve, i));
    tell_ready(NULL);
    log_info("serving on %s%s%s", config->socket, config->listen ? " and " : "",
             config->listen ? config->listen : "");
    int rc = loop_run(d->loop);
    return rc < 0 ? error_sys(err, rc, "the loop failed") : 0;
}

static void daemon_end(struct daemon *d, int rc)
{
    pool_bridge_close(d->bridge); /* what listeners still ask of the pool ends */
    server_free(d->server);
    if (pool_stop(d->pool) < 0) {
        log_warning(
            "a source does not answer (a network file system that hangs?): ending without waiting for it");
        _exit(rc < 0);
    }
    serve_free(d->serve); /* sets were read from its store */
    cluster_free(d->cluster);
    pool_free(d->pool);
    net_token_free(d->token, d->token_len);
    if (d->signals.fd >= 0)
        close(d->signals.fd);
    loop_free(d->loop);
    pool_bridge_free(d->bridge);
}

static int serve(const struct config *config, const struct serve_config *listeners, struct leat_error *err)
{
    struct daemon d = {.signals.fd = -1};
    /* Before there are threads: it may have to fork. */
    AUTO_CLOSE int huge_dir = config->huge_pages ? hugefs_open() : -1;
    int rc = daemon_begin(&d, config, listeners, huge_dir, err);
    if (rc == 0)
        rc = daemon_run(&d, config, err);
    daemon_end(&d, rc);
    return rc;
}

/*
 * `leatd --find-credentials [PROFILE]`, for libleat.so, which has neither TLS nor an XML parser: S3's
 * credentials as our initial environment has them, or the reason why there are none, to a pipe. Not for
 * people.
 */
static int find_credentials(const char *profile)
{
    struct credentials c = {0};
    struct leat_error err = {0};
    AUTO_BYTES struct bytes_out out = {0};
    struct stat st;
    if (fstat(STDOUT_FILENO, &st) < 0 || !S_ISFIFO(st.st_mode)) {
        fprintf(stderr, "leatd: --find-credentials writes keys to a program, not to be seen\n");
        return 1;
    }
    int rc = credentials_find(profile, &c, &err);
    proto_found_put(&out, &(struct proto_found){rc});
    if (rc < 0) {
        proto_error_text_put(&out, err.message);
    } else {
        struct proto_access m = {.access_key = TAKE_PTR(c.access_key),
                                 .secret_key = TAKE_PTR(c.secret_key),
                                 .token = TAKE_PTR(c.token),
                                 .expires = (int64_t)c.expires};
        proto_access_put(&out, &m);
        proto_access_fini(&m);
    }
    rc = out.failed ||
         write(STDOUT_FILENO, out.data, out.len) != (ssize_t)out.len; /* less than a pipe holds */
    if (out.data)
        explicit_bzero(out.data, out.len);
    return rc;
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN); /* the starting process may exit before we can report why we do not serve */
    log_set_output(STDERR_FILENO, "leatd");
    if (argc >= 2 && argc <= 3 && strcmp(argv[1], "--find-credentials") == 0)
        return find_credentials(argc == 3 ? argv[2] : NULL);
    struct leat_error err = {0};
    struct config config;
    struct serve_config listeners;
    bool check;
    config_init(&config);
    serve_config_init(&listeners);
    struct ini_part parts[] = {
        {.keys = config_keys, .into = &config}, {.keys = serve_config_keys, .into = &listeners}, {0}};
    /* Descriptors: a region is one or two, and so is a client. */
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    umask(077);
    int rc = parse(argc, argv, parts, &check, &err);
    if (rc == 0)
        rc = config_finish(&config, &err);
    if (rc == 0)
        rc = serve_config_finish(&listeners, &err);
    if (rc == 0 && check)
        rc = check_token(&config, &err);
    else if (rc == 0)
        rc = serve(&config, &listeners, &err);
    if (rc < 0) {
        tell_ready(&err);
        fprintf(stderr, "leatd: %s\n", err.message);
    }
    ini_fini(serve_config_keys, &listeners);
    ini_fini(config_keys, &config);
    return rc < 0;
}
