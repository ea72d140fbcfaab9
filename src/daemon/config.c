/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/config.h"

#include "base/log.h"
#include "base/setting.h"
#include "base/size.h"
#include "rpc/addresses.h"
#include "pool/nodes/nodes.h"
#include "pool/pool.h"
#include "pool/region/memory.h"

#include <ini.h>
#include <inttypes.h>
#include <stdio.h>

#define LINGER_NS (120ull * 1000000000)

void config_init(struct config *config)
{
    *config = (struct config){.huge_pages = true, .linger_ns = LINGER_NS, .disk_depth = 16};
}

void config_fini(struct config *config)
{
    free(config->socket);
    free(config->job);
    free(config->node_name);
    free(config->listen);
    free(config->token_file);
    free(config->disk_engine);
    free(config->rails);
    free(config->rdma_tls);
    free(config->s3.endpoint);
    free(config->s3.region);
    free(config->s3.style);
    free(config->s3.ca_file);
    free(config->s3.profile);
    setting_words_free(config->s3.allowed);
    setting_words_free(config->roots);
    setting_words_free(config->nodes);
}

/*
 * Nodes stand apart by white space, with or without a comma before it; a comma alone joins the addresses of one node.
 */
static int add_nodes(struct config *c, const char *value, struct leat_error *err)
{
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

static int set_pool(struct config *c, const char *key, const char *value, struct leat_error *err)
{
    if (!strcmp(key, "huge_pages"))
        return setting_bool(&c->huge_pages, key, value, err);
    uint64_t bytes;
    int rc = size_parse(value, &bytes, err);
    if (rc < 0)
        return error_prefix(err, rc, "%s", key);
    if (!strcmp(key, "size")) {
        if (bytes < 1 * MIB)
            return error_set(err, LEAT_INVALID, "size = %s: a pool has at least 1MiB", value);
        c->pool_bytes = bytes;
        return 0;
    }
    if (!strcmp(key, "ready")) {
        c->prefault_bytes = bytes;
        return 0;
    }
    if (bytes < 64 * KIB || (bytes & (bytes - 1)))
        return error_set(err, LEAT_INVALID, "region_size = %s: give a power of two of at least 64KiB", value);
    c->region_bytes = bytes;
    return 0;
}

static int set_mode(struct config *c, const char *value, struct leat_error *err)
{
    if (strcmp(value, "private") && strcmp(value, "system"))
        return error_set(err, LEAT_INVALID, "mode = %s: give private or system", value);
    c->system = !strcmp(value, "system");
    return 0;
}

static int set_daemon(struct config *c, const char *key, const char *value, struct leat_error *err)
{
    if (!strcmp(key, "mode"))
        return set_mode(c, value, err);
    if (!strcmp(key, "socket"))
        return setting_text(&c->socket, value, err);
    if (!strcmp(key, "job"))
        return setting_text(&c->job, value, err);
    if (!strcmp(key, "node_name"))
        return setting_text(&c->node_name, value, err);
    if (!strcmp(key, "roots"))
        return setting_add_words(&c->roots, &c->nroots, value, err);
    int rc = duration_parse_ns(value, &c->linger_ns, err);
    return rc < 0 ? error_prefix(err, rc, "linger") : 0;
}

static int set_rdma_users(struct config *c, const char *value, struct leat_error *err)
{
    static const char *const names[] = {
        [RDMA_SAME_USER] = "same", [RDMA_NOBODY] = "nobody", [RDMA_ANYBODY] = "anybody"};
    for (unsigned i = 0; i < ARRAY_LEN(names); i++)
        if (!strcmp(value, names[i])) {
            c->rdma_users = (enum pool_rdma_users)i;
            return 0;
        }
    return error_set(err, LEAT_INVALID, "rdma_users = %s: give same, anybody or nobody", value);
}

static int set_net(struct config *c, const char *key, const char *value, struct leat_error *err)
{
    if (!strcmp(key, "listen")) {
        int rc = net_addresses_check("listen", value, err);
        return rc ? rc : setting_text(&c->listen, value, err);
    }
    if (!strcmp(key, "token_file"))
        return setting_text(&c->token_file, value, err);
    if (!strcmp(key, "nodes"))
        return add_nodes(c, value, err);
    if (!strcmp(key, "rails"))
        return setting_text(&c->rails, value, err);
    if (!strcmp(key, "rdma_tls"))
        return setting_text(&c->rdma_tls, value, err);
    if (!strcmp(key, "rdma_users"))
        return set_rdma_users(c, value, err);
    return setting_count(&c->data_threads, key, value, 1, 256, err);
}

static int set_disk(struct config *c, const char *key, const char *value, struct leat_error *err)
{
    if (!strcmp(key, "threads"))
        return setting_count(&c->disk_threads, key, value, 1, 256, err);
    if (!strcmp(key, "depth"))
        return setting_count(&c->disk_depth, key, value, 1, 1024, err);
    if (strcmp(value, "auto") && strcmp(value, "uring") && strcmp(value, "worker"))
        return error_set(err, LEAT_INVALID, "engine = %s: give auto, uring or worker", value);
    return setting_text(&c->disk_engine, value, err);
}

static int set_s3(struct config *c, const char *key, const char *value, struct leat_error *err)
{
    const struct {
        const char *key;
        char **field;
    } strings[] = {{"endpoint", &c->s3.endpoint},
                   {"region", &c->s3.region},
                   {"ca_file", &c->s3.ca_file},
                   {"profile", &c->s3.profile}};
    for (unsigned k = 0; k < ARRAY_LEN(strings); k++) {
        if (!strcmp(key, strings[k].key))
            return setting_text(strings[k].field, value, err);
    }
    if (!strcmp(key, "allowed"))
        return setting_add_words(&c->s3.allowed, &c->s3.nallowed, value, err);
    if (!strcmp(key, "own_credentials"))
        return setting_bool(&c->s3.own, key, value, err);
    if (!strcmp(key, "anonymous"))
        return setting_bool(&c->s3.anonymous, key, value, err);
    if (!strcmp(key, "connections"))
        return setting_count(&c->s3.connections, key, value, 1, 256, err);
    if (strcmp(value, "path") && strcmp(value, "virtual") && strcmp(value, "auto"))
        return error_set(err, LEAT_INVALID, "style = %s: give path, virtual or auto", value);
    return setting_text(&c->s3.style, value, err);
}

static int set_limits(struct config *c, const char *key, const char *value, struct leat_error *err)
{
    const struct {
        const char *key;
        unsigned *field;
    } keys[] = {{"connections", &c->limits.connections},
                {"user_connections", &c->limits.user_connections},
                {"user_data_connections", &c->limits.user_data},
                {"sets", &c->limits.sets},
                {"user_sets", &c->limits.user_sets},
                {"user_creates", &c->limits.user_creates},
                {"handshakes", &c->limits.handshakes}};
    if (!strcmp(key, "user_buffers")) /* one message has to fit */
        return setting_bytes(&c->limits.user_buffers_bytes, key, value, PROTO_BODY_MAX, err);
    for (unsigned k = 0; k < ARRAY_LEN(keys); k++) {
        if (!strcmp(key, keys[k].key))
            return setting_count(keys[k].field, key, value, 1, 1000000, err);
    }
    return -ENOENT; /* not in the table of sections */
}

static int set_log(struct config *c, const char *key, const char *value, struct leat_error *err)
{
    enum log_level level;
    if (log_parse_level(value, &level) < 0)
        return error_set(err, LEAT_INVALID, "level = %s: give error, warning, info or debug", value);
    log_set_level(level);
    return 0;
}

static const struct {
    const char *section, *keys; /* keys: separated by spaces, with one at either end */
    int (*set)(struct config *, const char *key, const char *value, struct leat_error *);
} sections[] = {
    {"pool", " size region_size ready huge_pages ", set_pool},
    {"daemon", " mode socket job node_name roots linger ", set_daemon},
    {"net", " listen token_file nodes data_threads rails rdma_users rdma_tls ", set_net},
    {"disk", " engine threads depth ", set_disk},
    {"s3", " allowed own_credentials endpoint region style profile ca_file anonymous connections ", set_s3},
    {"limits",
     " connections user_connections user_data_connections user_buffers sets user_sets user_creates "
     "handshakes ",
     set_limits},
    {"log", " level ", set_log},
};

int config_set(struct config *config, const char *section, const char *key, const char *value,
               struct leat_error *err)
{
    char padded[128];
    snprintf(padded, sizeof(padded), " %s ", strchr(key, ' ') ? "" : key); /* "size region_size" is no key */
    for (unsigned k = 0; k < ARRAY_LEN(sections); k++) {
        if (strcmp(section, sections[k].section))
            continue;
        if (!strstr(sections[k].keys, padded))
            return error_set(err, LEAT_INVALID, "[%s] has no key '%s': it has%s", section, key,
                             sections[k].keys);
        return sections[k].set(config, key, value, err);
    }
    int rc = config->more ? config->more(config->more_user, section, key, value, err) : -ENOENT;
    if (rc != -ENOENT)
        return rc;
    return error_set(err, LEAT_INVALID,
                     "no section [%s]: there are pool, daemon, net, disk, s3, limits, log%s", section,
                     config->more ? ", serve, store" : "");
}

struct load {
    struct config *config;
    struct leat_error *err;
    FILE *file;
    int code, lines, bad_line; /* lines read; where the first bad value stands */
    bool too_long;
};

static int on_pair(void *user, const char *section, const char *key, const char *value)
{
    struct load *load = user;
    if (load->code == 0) {
        bool comment = strstr(value, " #") || strstr(value, "\t#");
        load->code = comment ? error_set(load->err, LEAT_INVALID,
                                         "%s: a comment behind a value begins with ; (one that begins with # "
                                         "has a line of its own)",
                                         key)
                             : config_set(load->config, section, key, value, load->err);
        load->bad_line = load->lines;
    }
    return load->code == 0;
}

/* One line for the parser, which would take the rest of a long one for a line of its own. */
static char *next_line(char *buf, int cap, void *user)
{
    struct load *load = user;
    if (load->code < 0 || load->too_long || !fgets(buf, cap, load->file))
        return NULL;
    load->lines++;
    if (strchr(buf, '\n') || strlen(buf) + 1 < (size_t)cap)
        return buf;
    const char *first = buf + strspn(buf, " \t");
    load->too_long = *first != ';' && *first != '#';
    for (int c = 0; c != '\n' && c != EOF;)
        c = fgetc(load->file);
    return load->too_long ? NULL : buf;
}

int config_load(struct config *config, const char *path, struct leat_error *err)
{
    struct leat_error scratch = {0};
    struct load load = {.config = config, .err = err ? err : &scratch, .file = fopen(path, "re")};
    if (!load.file)
        return error_set(err, LEAT_NOT_FOUND, "cannot read the configuration %s: %s", path, strerror(errno));
    int line = ini_parse_stream(next_line, &load, on_pair, &load);
    bool unreadable = ferror(load.file);
    fclose(load.file);
    if (line < 0)
        return error_set(err, -ENOMEM, "out of memory for the configuration %s", path);
    if (unreadable)
        return error_set(err, LEAT_NOT_FOUND, "cannot read the configuration %s: give a file", path);
    /* The first thing that is wrong: the parser goes on behind a line that it does not understand. */
    if (load.code < 0 && load.bad_line == line)
        return error_prefix(err, load.code, "%s, line %d", path, line);
    if (line > 0)
        return error_set(err, LEAT_INVALID, "%s, line %d: give `key = value` or `[section]`", path, line);
    if (load.too_long)
        return error_set(
            err, LEAT_INVALID,
            "%s, line %d: it is too long; go on in the next line, which then begins with a space", path,
            load.lines);
    return 0;
}

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
            "ready = %s is more than the pool's size, %s: it is part of the pool; give less, or 0", ready,
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
