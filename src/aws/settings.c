/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AWS's two files, and what the environment says beside keys. The files are INI with sections [NAME] (credentials) and [default], [profile NAME]
 * (config); nested settings ("s3 =" with indented lines) are read for addressing_style. Lines have no length limit: session tokens are long.
 */
#include <ctype.h>
#include <stdio.h>

#include "aws/settings.h"

#include "base/secret_file.h"

#define FILE_MAX_BYTES (1 * MIB)

static char *trim(char *s)
{
    while (isspace((unsigned char)*s))
        s++;
    size_t len = strlen(s);
    while (len && isspace((unsigned char)s[len - 1]))
        s[--len] = 0;
    return s;
}

static bool section_is(char *line, const char *profile, bool config)
{
    char *end = strchr(line, ']');
    if (!end)
        return false;
    *end = 0;
    char *name = trim(line + 1);
    if (config && strcmp(profile, "default") != 0) {
        if (strncmp(name, "profile", 7) != 0 || !isspace((unsigned char)name[7]))
            return false;
        name = trim(name + 7);
    }
    return strcmp(name, profile) == 0;
}

static int take(struct aws_profile *p, const char *name, const char *value)
{
    static const struct {
        const char *name;
        size_t at;
    } known[] = {
        {"aws_access_key_id", offsetof(struct aws_profile, access_key)},
        {"aws_secret_access_key", offsetof(struct aws_profile, secret_key)},
        {"aws_session_token", offsetof(struct aws_profile, token)},
        {"credential_process", offsetof(struct aws_profile, process)},
        {"region", offsetof(struct aws_profile, region)},
        {"endpoint_url", offsetof(struct aws_profile, endpoint)},
        {"s3.endpoint_url", offsetof(struct aws_profile, endpoint)},
        {"s3.addressing_style", offsetof(struct aws_profile, style)},
        {"ca_bundle", offsetof(struct aws_profile, ca_file)},
        {"role_arn", offsetof(struct aws_profile, role)},
        {"source_profile", offsetof(struct aws_profile, source)},
        {"web_identity_token_file", offsetof(struct aws_profile, web_token_file)},
        {"sso_start_url", offsetof(struct aws_profile, sso)},
        {"sso_session", offsetof(struct aws_profile, sso)},
    };
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        char **to = (char **)((char *)p + known[i].at);
        if (strcmp(known[i].name, name) != 0 || *to || !*value)
            continue;
        *to = strdup(value);
        return *to ? 0 : -ENOMEM;
    }
    return 0;
}

static int read_file(struct aws_profile *p, const char *path, const char *profile, bool config,
                     struct leat_error *err)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return errno == ENOENT || errno == ENOTDIR ? 0 : error_sys(err, -errno, "%s", path);
    char *line = NULL, inner[64] = "";
    size_t cap = 0, total = 0;
    ssize_t n;
    bool ours = false;
    int rc = 0;
    while (rc == 0 && (n = getline(&line, &cap, f)) >= 0) {
        total += (size_t)n;
        if (total > FILE_MAX_BYTES) {
            rc = error_set(err, LEAT_INVALID, "%s: a file of AWS settings has at most 1 MiB", path);
            break;
        }
        bool indented = line[0] == ' ' || line[0] == '\t';
        char *text = trim(line);
        if (!*text || *text == '#' || *text == ';')
            continue;
        if (*text == '[') {
            ours = section_is(text, profile, config);
            p->found |= ours;
            inner[0] = 0;
            continue;
        }
        char *eq = strchr(text, '=');
        if (!ours || !eq)
            continue;
        *eq = 0;
        char *name = trim(text), *value = trim(eq + 1), full[160];
        if (!indented)
            snprintf(inner, sizeof(inner), "%s", *value ? "" : name);
        if (indented && inner[0])
            snprintf(full, sizeof(full), "%.60s.%.90s", inner, name);
        else
            snprintf(full, sizeof(full), "%.150s", name);
        rc = take(p, full, value);
    }
    if (line)
        explicit_bzero(line, cap);
    free(line);
    fclose(f);
    return rc;
}

static char *file_path(const char *variable, const char *below_home)
{
    const char *given = getenv(variable), *home = getenv("HOME");
    char *path = NULL;
    if (given && *given)
        return strdup(given);
    if (!home || !*home)
        return strdup("/nonexistent");
    return asprintf(&path, "%s/.aws/%s", home, below_home) < 0 ? NULL : path;
}

int aws_profile_read(const char *name, struct aws_profile *ret_profile, struct leat_error *err)
{
    struct aws_profile p = {0};
    const char *from = getenv("AWS_PROFILE");
    bool named = (name && *name) || (from && *from);
    name = name && *name ? name : from && *from ? from : "default";
    AUTO_FREE char *credentials = file_path("AWS_SHARED_CREDENTIALS_FILE", "credentials");
    AUTO_FREE char *config = file_path("AWS_CONFIG_FILE", "config");
    int rc = credentials && config ? 0 : -ENOMEM;
    if (rc == 0)
        rc = read_file(&p, credentials, name, false, err);
    if (rc == 0)
        rc = read_file(&p, config, name, true, err);
    if (rc == 0 && named && !p.found)
        rc = error_set(err, LEAT_NOT_FOUND, "profile \"%.100s\" is neither in %s nor in %s", name,
                       credentials, config);
    if (rc < 0) {
        aws_profile_fini(&p);
        return rc;
    }
    *ret_profile = p;
    return 0;
}

void aws_profile_fini(struct aws_profile *p)
{
    char **all[] = {&p->access_key, &p->secret_key, &p->token, &p->process, &p->region,         &p->endpoint,
                    &p->style,      &p->ca_file,    &p->role,  &p->source,  &p->web_token_file, &p->sso};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        secret_wipe(all[i]);
}

static int pick(char **to, char **from, const char *const *variables)
{
    for (; *variables; variables++) {
        const char *value = getenv(*variables);
        if (value && *value) {
            *to = strdup(value);
            return *to ? 0 : -ENOMEM;
        }
    }
    *to = TAKE_PTR(*from);
    return 0;
}

int aws_settings_find(const char *profile, struct aws_settings *ret_settings, struct leat_error *err)
{
    struct aws_profile p;
    int rc = aws_profile_read(profile, &p, err);
    if (rc < 0)
        return rc;
    struct aws_settings s = {0};
    rc = pick(&s.region, &p.region, (const char *const[]){"AWS_REGION", "AWS_DEFAULT_REGION", NULL});
    if (rc == 0)
        rc = pick(&s.endpoint, &p.endpoint,
                  (const char *const[]){"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", NULL});
    if (rc == 0)
        rc = pick(&s.style, &p.style, (const char *const[]){"AWS_S3_ADDRESSING_STYLE", NULL});
    if (rc == 0)
        rc = pick(&s.ca_file, &p.ca_file, (const char *const[]){"AWS_CA_BUNDLE", NULL});
    aws_profile_fini(&p);
    if (rc < 0)
        aws_settings_fini(&s);
    else
        *ret_settings = s;
    return rc;
}

void aws_settings_fini(struct aws_settings *s)
{
    free(s->region);
    free(s->endpoint);
    free(s->style);
    free(s->ca_file);
    *s = (struct aws_settings){0};
}
