/* SPDX-License-Identifier: Apache-2.0 */
/* config.h: leatd's configuration: an INI file and options of the same settings, each checked when set. */
#ifndef DAEMON_CONFIG_H
#define DAEMON_CONFIG_H

#include "base/ini.h"
#include "pool/source/access.h"
#include "pool/rdma.h"
#include "pool/limits.h"

struct config {
    /* [pool] */
    uint64_t pool_bytes, region_bytes; /* 0 until config_finish: chosen from the host's memory */
    uint64_t prefault_bytes;           /* 0: none */
    bool huge_pages;
    /* [daemon] */
    bool system;
    char *socket, *job, *node_name;
    uint64_t linger_ns;
    char **roots; /* NULL-terminated */
    unsigned nroots;
    /* [net] */
    char *listen, *token_file;
    char **nodes; /* static list, NULL-terminated */
    unsigned nnodes;
    unsigned data_threads;
    char *rails, *rdma_tls;
    enum pool_rdma_users rdma_users;
    /* [disk] */
    char *disk_engine;
    unsigned disk_threads, disk_depth;
    /* [s3] */
    struct access_config s3;
    /* [limits] */
    struct limits limits; /* 0: the default */
};

extern const struct ini_key config_keys[];

void config_init(struct config *config); /* ini_fini frees what was set */
/* Fills in defaults, and checks settings that must fit together. */
int config_finish(struct config *config, struct leat_error *err);

#endif
