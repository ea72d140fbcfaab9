/* SPDX-License-Identifier: Apache-2.0 */
/*
 * credentials.h: who we are to S3, found where AWS's own tools look, in their order:
 *
 *   1. AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN
 *   2. a web identity (AWS_WEB_IDENTITY_TOKEN_FILE, AWS_ROLE_ARN), as in Kubernetes
 *   3. the profile (AWS_PROFILE, or "default") in ~/.aws/credentials, then in ~/.aws/config (AWS_SHARED_CREDENTIALS_FILE, AWS_CONFIG_FILE);
 *      also its credential_process, and a web identity of its own
 *   4. the container's endpoint (AWS_CONTAINER_CREDENTIALS_RELATIVE_URI or _FULL_URI)
 *   5. the instance's endpoint, version 2 (unless AWS_EC2_METADATA_DISABLED=true)
 *
 * A profile that names a role (role_arn, source_profile) or SSO is refused with what to do. Nothing of this is ever logged.
 */
#ifndef AWS_CREDENTIALS_H
#define AWS_CREDENTIALS_H

#include <time.h>

#include "base/base.h"
#include "aws/settings.h"

struct credentials {
    char *access_key, *secret_key; /* owned; wiped when freed */
    char *token;                   /* or NULL */
    time_t expires;                /* 0: never */
    char source[64];               /* where they were found, for messages */
};
void credentials_fini(struct credentials *c);
/* Copies them: 1, or -ENOMEM. */
int credentials_set(struct credentials *c, const char *access, const char *secret, const char *token,
                    const char *source);
/* The environment and the profile, as far as they need neither a network nor another program. 1: found; 0: not there; credentials_find goes on from
 * here. */
int credentials_local(const char *profile, struct credentials *ret_credentials, struct leat_error *err);

/*
 * Looks through the list above. Blocks: a process may be run, an endpoint of this machine asked (1 s each). LEAT_NOT_FOUND: nowhere;
 * the message says where was looked, and how to go on.
 */
int credentials_find(const char *profile, struct credentials *ret_credentials, struct leat_error *err);

#endif
