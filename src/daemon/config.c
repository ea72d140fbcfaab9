/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/config.h"

#include "base/log.h"
#include "base/setting.h"
#include "base/size.h"
#include "rpc/addresses.h"
#include "pool/nodes/nodes.h"
#include "pool/pool.h"
#include "pool/region/memory.h"

#define LINGER_NS (120ull * 1000000000)

void config_init(struct config *config)
{
    *config = (struct config){.huge_pages = true, .linger_ns = LINGER_NS, .disk_depth = 16};
}

/* Nodes stand apart by white space, with or without a comma before it; a comma alone joins the addresses of
 * one node. */
static int set_nodes(void *into, const char *value, struct leat_error *err)
{
    struct config *c = into;
    AUTO_FREE char *copy = strdup(value);
    if (!copy)
        return error_set(err, -ENOMEM, "out of memory");
    char *save;
    for (char *word = strtok_r(copy, " \t", &save); word; word = strtok_r(NULL, " \t", &save)) {
        size_t len = strlen(word);
        if (len && word[len - 1] == ',')
            word[len - 1] = 0;
        int rc = *word ? net_addresses_check("nodes", word, err) : 0;
        if (rc == 0 && *word)
            rc = setting_add_word(&c->nodes, &c->nnodes, word, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int set_region_size(void *into, const char *value, struct leat_error *err)
{
    struct config *config = into;
    uint64_t bytes;
    int rc = setting_bytes(&bytes, "region_size", value, 0, err);
    if (rc < 0)
        return rc;
    if (bytes < 64 * KIB || (bytes & (bytes - 1)))
        return error_set(err, LEAT_INVALID, "region_size = %s: give a power of two of at least 64KiB", value);
    config->region_bytes = bytes;
    return 0;
}

static int set_listen(void *into, const char *value, struct leat_error *err)
{
    struct config *config = into;
    int rc = net_addresses_check("listen", value, err);
    return rc < 0 ? rc : setting_text(&config->listen, value, err);
}

static int set_level(void *into, const char *value, struct leat_error *err)
{
    enum log_level level;
    if (log_parse_level(value, &level) < 0)
        return error_set(err, LEAT_INVALID, "level = %s: give error, warning, info or debug", value);
    log_set_level(level);
    return 0;
}

#define KEY(...)            INI_KEY(struct config, __VA_ARGS__)
#define WORDS(...)          INI_WORDS(struct config, __VA_ARGS__)
#define COUNT(s, n, f, max) KEY(s, n, COUNT, f, .least = 1, .most = max)
#define LIMIT(n, f)         COUNT("limits", n, limits.f, 1000000)

const struct ini_key config_keys[] = {
    KEY("pool", "size", BYTES, pool_bytes, .least = 1 * MIB),
    KEY("pool", "region_size", BYTES, region_bytes, .set = set_region_size),
    KEY("pool", "prefault", BYTES, prefault_bytes, .old_name = "ready"),
    KEY("pool", "huge_pages", BOOL, huge_pages),
    KEY("daemon", "mode", BOOL, system, .words = "private system"),
    KEY("daemon", "socket", TEXT, socket),
    KEY("daemon", "job", TEXT, job),
    KEY("daemon", "node_name", TEXT, node_name),
    WORDS("daemon", "roots", roots, nroots),
    KEY("daemon", "idle_timeout", DURATION, linger_ns, .old_name = "linger"),
    KEY("net", "listen", TEXT, listen, .set = set_listen),
    KEY("net", "token_file", TEXT, token_file),
    WORDS("net", "nodes", nodes, nnodes, .set = set_nodes),
    COUNT("net", "data_threads", data_threads, 256),
    KEY("net", "rails", TEXT, rails),
    KEY("net", "rdma_users", ENUM, rdma_users, .words = "same nobody anybody"), /* enum pool_rdma_users */
    KEY("net", "rdma_tls", TEXT, rdma_tls),
    KEY("disk", "engine", TEXT, disk_engine, .words = "auto uring worker"),
    COUNT("disk", "threads", disk_threads, 256),
    COUNT("disk", "depth", disk_depth, 1024),
    WORDS("s3", "allowed_hosts", s3.allowed, s3.nallowed, .old_name = "allowed"),
    KEY("s3", "own_credentials", BOOL, s3.own),
    KEY("s3", "endpoint", TEXT, s3.endpoint),
    KEY("s3", "region", TEXT, s3.region),
    KEY("s3", "style", TEXT, s3.style, .words = "path virtual auto"),
    KEY("s3", "profile", TEXT, s3.profile),
    KEY("s3", "ca_file", TEXT, s3.ca_file),
    KEY("s3", "anonymous", BOOL, s3.anonymous),
    COUNT("s3", "connections", s3.connections, 256),
    LIMIT("connections", connections),
    LIMIT("user_connections", user_connections),
    LIMIT("user_data_connections", user_data),
    KEY("limits", "user_buffers", BYTES, limits.user_buffers_bytes, .least = PROTO_BODY_MAX), /* a message */
    LIMIT("sets", sets),
    LIMIT("user_sets", user_sets),
    LIMIT("user_creates", user_creates),
    LIMIT("handshakes", handshakes),
    {.section = "log", .name = "level", .kind = INI_SET, .set = set_level},
    {0},
};

/* Every address is one node's, and one node is this one, with the addresses that it listens on. */
static int check_nodes(const struct config *c, struct leat_error *err)
{
    const char *self = NULL;
    char one[NET_ADDRESS_BYTES];
    if (c->nnodes > CLUSTER_NODES_MAX)
        return error_set(
            err, LEAT_INVALID,
            "nodes names %u nodes, and at most %u keep sets together: give each %u hosts a list of "
            "their own",
            c->nnodes, CLUSTER_NODES_MAX, CLUSTER_NODES_MAX);
    for (unsigned n = 0; n < c->nnodes; n++) {
        for (unsigned k = 0; k < net_addresses_count(c->nodes[n]); k++) {
            net_addresses_at(c->nodes[n], k, one);
            for (unsigned m = 0; m < n; m++)
                if (net_addresses_find(c->nodes[m], one) >= 0)
                    return error_set(err, LEAT_INVALID, "nodes: %s is an address of both %s and %s", one,
                                     c->nodes[m], c->nodes[n]);
            if (net_addresses_find(c->listen, one) >= 0)
                self = c->nodes[n];
        }
    }
    if (!self)
        return error_set(err, LEAT_INVALID,
                         "nodes does not contain listen = %s: write it there as the other nodes do",
                         c->listen);
    if (strcmp(self, c->listen) != 0)
        return error_set(
            err, LEAT_INVALID,
            "nodes has this node as %s, but listen = %s: write the same addresses in the same order, "
            "and a space, not a comma, between nodes",
            self, c->listen);
    return 0;
}

int config_finish(struct config *c, struct leat_error *err)
{
    unsigned cpus = (unsigned)MAX(sysconf(_SC_NPROCESSORS_ONLN), 1L);
    if (!c->pool_bytes)
        c->pool_bytes = pool_default_cap();
    if (!c->region_bytes)
        c->region_bytes = pool_default_region(c->pool_bytes);
    if (c->prefault_bytes > c->pool_bytes) {
        char ready[32], pool[32];
        size_format(c->prefault_bytes, ready);
        size_format(c->pool_bytes, pool);
        return error_set(
            err, LEAT_INVALID,
            "prefault = %s is more than the pool's size, %s: it is part of the pool; give less, or 0", ready,
            pool);
    }
    /* More than CPUs where those are few: while one thread checksums, another's reads keep the disk busy. */
    if (!c->disk_threads)
        c->disk_threads = MIN(MAX(cpus, 4u), 8u);
    if (!c->data_threads)
        c->data_threads = MIN(cpus, 4u);
    if (!c->disk_engine && setting_text(&c->disk_engine, "auto", err) < 0)
        return -ENOMEM;
    if (!c->node_name) {
        char host[256] = "localhost";
        gethostname(host, sizeof(host) - 1);
        if (setting_text(&c->node_name, c->listen ? c->listen : host, err) < 0)
            return -ENOMEM;
    }
    if (!c->socket) {
        if (!c->system)
            return error_set(
                err, LEAT_INVALID,
                "a private daemon needs --socket PATH (programs that use libleat start it themselves)");
        if (setting_text(&c->socket, "/run/leat/leatd.sock", err) < 0)
            return -ENOMEM;
    }
    if (c->system && c->nroots == 0)
        return error_set(err, LEAT_INVALID,
                         "a system daemon needs roots = /path ...: it reads only below them");
    for (unsigned k = 0; k < c->nroots; k++) {
        size_t len = strlen(c->roots[k]);
        if (c->roots[k][0] != '/')
            return error_set(err, LEAT_INVALID, "roots = %s: give an absolute path", c->roots[k]);
        while (len > 1 && c->roots[k][len - 1] == '/')
            c->roots[k][--len] = 0;
    }
    if (c->listen && !c->token_file)
        return error_set(err, LEAT_INVALID,
                         "listen = %s needs token_file: make one with `head -c 32 /dev/urandom | base64 > "
                         "FILE; chmod 600 FILE`",
                         c->listen);
    if (c->nnodes && !c->listen)
        return error_set(err, LEAT_INVALID,
                         "nodes needs listen = the address by which the other nodes reach this one");
    return c->nnodes ? check_nodes(c, err) : 0;
}
