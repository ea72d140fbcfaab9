/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote.h: the commands that speak to S3 and web servers by themselves, without a daemon: ls of s3://..., cp.
 *
 *   remote.c   the options they share, in the habit of the AWS CLI; leat ls s3://...
 *   cp.c       what is copied where; cp_get.c downloads over one session, cp_put.c uploads over several
 */
#ifndef APPS_LEAT_REMOTE_H
#define APPS_LEAT_REMOTE_H

#include <pthread.h>

#include "apps/leat/cli.h"
#include "backend/backend.h"

/* Rows of a command's options; remote_option takes them. */
#define REMOTE_OPTIONS                                                                                       \
    {360, "endpoint-url", "URL", "the S3 server (default: AWS_ENDPOINT_URL_S3, the profile's, or AWS)"},     \
        {361, "region", "NAME", "its region (default: AWS_REGION, the profile's, or us-east-1)"},            \
        {362, "profile", "NAME", "of ~/.aws/config and ~/.aws/credentials (default: AWS_PROFILE)"},          \
        {363, "no-sign-request", NULL, "without credentials: public buckets"},                               \
        {364, "no-verify-ssl", NULL, "do not check certificates"},                                           \
    {                                                                                                        \
        365, "ca-bundle", "FILE", "certificates to trust (default: AWS_CA_BUNDLE, or the system's)"          \
    }

/* True: it was one of REMOTE_OPTIONS. Its argument is kept, not copied. */
bool remote_option(struct backend_config *config, const struct cli_given *option);
/* --timeout, and no end by SIGPIPE, as in `leat ls ... | head`. */
void remote_begin(const struct cli *cli, struct backend_config *config);
int remote_list(struct cli *cli, const struct backend_config *config, const char *uri, bool full,
                bool recursive, uint64_t limit); /* an enum cli_exit */
/* "2026-11-21 18:45:34", of this place; 16 blanks and more where it is not known. */
void remote_time(int64_t t, char out[24]);

/* --- leat cp ----------------------------------------------------------------------------------------------------------- */

#define CLI_STAGE_COPY 101 /* of struct leat_progress */

struct cp {
    struct cli *cli;
    struct backend_config config;
    bool recursive, update;
    atomic_bool cancelled;
    struct progress progress;
    /* what was done; under `lock` where several threads work */
    pthread_mutex_t lock;
    uint64_t files, bytes, skipped, failed, failed_here, left_out, planned_files, planned_bytes, bytes_done;
    bool planned;  /* all of it is known */
    int rc;        /* the first failure of an object */
    bool given_up; /* as nothing but failures came */
};

/* One object failed: said at once, and kept for the exit code. `here`: for what is on this machine, which says nothing of the other side.
 * Any thread. */
void cp_failed(struct cp *cp, int rc, bool here, const struct leat_error *err);
/* Shows how far it is. -ECANCELED: Ctrl-C. The thread that began. */
int cp_progress(struct cp *cp);

/* A name below the target that stays there: relative, nothing empty, "." or ".." in it. */
bool cp_name_ok(const char *name);

/* cp_get.c: into a folder of this machine. */
struct cp_get;
/* `folder` is kept, not copied. */
int cp_get_begin(struct cp *cp, const char *folder, struct cp_get **ret_get, struct leat_error *err);
struct backend *cp_get_session(struct cp_get *get);
/* Begins the copy, which ends by itself; cp_failed takes failures of the object. Negative: no further copy
 * is possible. */
int cp_get_add(struct cp_get *get, const struct backend_object *object, const char *name,
               struct leat_error *err);
/* Waits for all; `keep` false: cancels copies under way. */
void cp_get_end(struct cp_get *get, bool keep);

/* An object to standard output, in order. */
int cp_get_print(struct cp *cp, struct backend *b, const struct backend_object *object,
                 struct leat_error *err);

/* cp_put.c: to S3, each object by one of several threads with a session of its own. */
struct cp_put;
int cp_put_begin(struct cp *cp, struct cp_put **ret_put, struct leat_error *err);
/* From a file of this machine (path), or from another object. Waits where the queue is full. -ECANCELED, -ENOMEM. */
int cp_put_file(struct cp_put *put, const char *path, const char *uri);
int cp_put_object(struct cp_put *put, const struct backend_object *object, const char *uri);
void cp_put_end(struct cp_put *put);

#endif
