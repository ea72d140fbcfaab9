/* SPDX-License-Identifier: Apache-2.0 */
/* settings.h: a profile of AWS's shared files (~/.aws/credentials and ~/.aws/config), and the settings that are no secrets. */
#ifndef AWS_SETTINGS_H
#define AWS_SETTINGS_H

#include "base/base.h"

struct aws_profile {
    bool found;
    /* owned; NULL where nothing is said */
    char *access_key, *secret_key, *token, *process, *region, *endpoint, *style, *ca_file, *role, *source,
        *web_token_file, *sso;
};
/* name NULL: AWS_PROFILE, or "default", which may be missing. LEAT_NOT_FOUND: a name that was given and is nowhere; else a file's errno. */
int aws_profile_read(const char *name, struct aws_profile *ret_profile, struct leat_error *err);
void aws_profile_fini(struct aws_profile *p); /* wipes */

/* What a profile or the environment says beside keys. */
struct aws_settings {
    char *region, *endpoint, *style, *ca_file; /* owned; NULL where nothing is said */
};
/* The environment wins over the files. */
int aws_settings_find(const char *profile, struct aws_settings *ret_settings, struct leat_error *err);
void aws_settings_fini(struct aws_settings *s);

#endif
