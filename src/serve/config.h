/* SPDX-License-Identifier: Apache-2.0 */
/* config.h: what `leat serve` and leatd.conf's sections [serve] and [store] say; each value is checked where it is set. */
#ifndef SERVE_CONFIG_H
#define SERVE_CONFIG_H

#include "base/ini.h"

struct admin_pool;

struct serve_config {
    /* [store] */
    char **paths; /* NULL-terminated; none: nothing is served */
    unsigned npaths;
    uint64_t capacity_bytes;            /* of each path; 0: the file system's */
    unsigned high_percent, low_percent; /* 0: the store's defaults */
    uint64_t scrub_ns;                  /* a pass lasts so long; 0: the store's default; UINT64_MAX: off */
    uint64_t upload_age_ns; /* age of idle uploads in parts that are aborted; 0: the store's default */
    uint64_t scrub_rate;    /* bytes a second of a path, at most; 0: the store's default */
    uint64_t memory_bytes;  /* of bodies and documents under way */
    bool forget_missing;    /* a path of the store that is not among `paths` is gone for good */
    bool disks_encrypted;   /* S3's answers state it: AES256 */
    /* [serve] */
    char **listen; /* NULL-terminated */
    unsigned nlisten;
    char *keys_file;
    bool anonymous; /* everybody may do everything */
    char *tls_cert, *tls_key;
    char *admin_token_file; /* clients that send its content may administrate */
    char *region;
    char **domains; /* NULL-terminated */
    unsigned ndomains;
    unsigned threads; /* 0: the server's default */
    uint64_t grace_ns;

    /* Not of the file: a pool in the same process, and what the node is called. The caller's; NULL: none, the host's name. */
    const struct admin_pool *pool;
    const char *node_name;
};

extern const struct ini_key serve_config_keys[];

void serve_config_init(struct serve_config *c); /* ini_fini frees what was set */
/* Fills in what was not said, and checks what must fit together. Nothing to do where no path was given. */
int serve_config_finish(struct serve_config *c, struct leat_error *err);

#endif
