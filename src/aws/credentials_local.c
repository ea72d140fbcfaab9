/* SPDX-License-Identifier: Apache-2.0 */
/* credentials_local.c: credentials from the places that need neither a network nor another program: also what libleat.so looks at by itself. */
#include "aws/credentials.h"
#include "base/secret_file.h"

#include <stdio.h>

void credentials_fini(struct credentials *c)
{
    secret_wipe(&c->access_key);
    secret_wipe(&c->secret_key);
    secret_wipe(&c->token);
    *c = (struct credentials){0};
}

int credentials_set(struct credentials *c, const char *access, const char *secret, const char *token,
                    const char *source)
{
    c->access_key = strdup(access);
    c->secret_key = strdup(secret);
    c->token = token && *token ? strdup(token) : NULL;
    snprintf(c->source, sizeof(c->source), "%s", source);
    if (!c->access_key || !c->secret_key || (token && *token && !c->token)) {
        credentials_fini(c);
        return -ENOMEM;
    }
    return 1;
}

static const char *env(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static int from_environment(struct credentials *c, struct leat_error *err)
{
    const char *access = env("AWS_ACCESS_KEY_ID"), *secret = env("AWS_SECRET_ACCESS_KEY");
    if (!access && !secret)
        return 0;
    if (!access || !secret)
        return error_set(
            err, LEAT_DENIED,
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY belong together: only one of them is set");
    return credentials_set(c, access, secret, env("AWS_SESSION_TOKEN"), "the environment");
}

static int from_profile(struct credentials *c, const struct aws_profile *p, struct leat_error *err)
{
    if (p->role && !p->web_token_file)
        return error_set(err, LEAT_UNSUPPORTED,
                         "the profile takes on role %.120s, which Leat does not do by itself: add "
                         "\"credential_process = aws configure "
                         "export-credentials --profile NAME\" to a profile of its own and name that one",
                         p->role);
    if (!p->access_key != !p->secret_key)
        return error_set(
            err, LEAT_DENIED,
            "aws_access_key_id and aws_secret_access_key belong together: the profile has only one of them");
    if (p->access_key && p->secret_key)
        return credentials_set(c, p->access_key, p->secret_key, p->token, "the profile");
    return 0;
}

int credentials_local(const char *profile, struct credentials *ret_credentials, struct leat_error *err)
{
    struct credentials c = {0};
    struct aws_profile p = {0};
    /* A profile that was named comes before the environment's keys, as with AWS's tools. */
    int rc = profile ? 0 : from_environment(&c, err);
    if (rc == 0 && !profile && env("AWS_WEB_IDENTITY_TOKEN_FILE") && env("AWS_ROLE_ARN"))
        return 0; /* comes before the files, and needs a network */
    if (rc == 0)
        rc = aws_profile_read(profile, &p, err);
    if (rc == 0)
        rc = from_profile(&c, &p, err);
    aws_profile_fini(&p);
    if (rc == 1)
        *ret_credentials = c;
    return rc;
}
