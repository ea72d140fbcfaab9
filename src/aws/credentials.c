/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of credentials.h from the places on that need another program or a network, one function a place. Each answers 1 (found), 0 (nothing here, go on) or negative (something is here, and it is
 * wrong: going on would use another identity than the user meant).
 */
#include "aws/credentials.h"

#include <ctype.h>
#include <jansson.h>
#include <stdio.h>
#include <sys/wait.h>

#include "base/secret_file.h"
#include "http/client/once.h"
#include "base/clock.h"
#include "wire/s3/s3.h"
#include "wire/s3/xml.h"

#define ENDPOINT_NS (1 * NS_PER_S) /* of this machine or container */
#define STS_NS      (10 * NS_PER_S)
#define ANSWER_MAX  (64 * KIB)

static const char *env(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static int ask(const char *method, const char *url, const char *headers, const struct bytes_out *body,
               uint64_t timeout_ns, int *ret_status, char **ret_text, struct leat_error *err)
{
    struct http_once once = {.method = method,
                             .url = url,
                             .headers = headers,
                             .body = body ? body->data : NULL,
                             .body_len = body ? body->len : 0,
                             .text_max = ANSWER_MAX,
                             .timeout_ns = timeout_ns,
                             .ca_file = env("AWS_CA_BUNDLE")};
    return http_once(&once, ret_status, ret_text, err);
}

/* --- answers ----------------------------------------------------------------------------------------------------------- */

static time_t parse_time(const char *text)
{
    int64_t t;
    char buf[40];
    snprintf(buf, sizeof(buf), "%s", text);
    char *plus = strstr(buf, "+00:00");
    if (plus)
        strcpy(plus, "Z");
    return s3_time_parse(buf, &t) ? (time_t)t : 0;
}

/* Keys in JSON: of credential_process (SessionToken) and of the endpoints (Token). */
static int take_json(struct credentials *c, const char *text, const char *source, struct leat_error *err)
{
    json_t *root = json_loads(text, 0, NULL);
    const char *access = json_string_value(json_object_get(root, "AccessKeyId"));
    const char *secret = json_string_value(json_object_get(root, "SecretAccessKey"));
    const char *token = json_string_value(json_object_get(root, "SessionToken"));
    const char *expires = json_string_value(json_object_get(root, "Expiration"));
    if (!token)
        token = json_string_value(json_object_get(root, "Token"));
    int rc = access && secret
                 ? credentials_set(c, access, secret, token, source)
                 : error_set(err, LEAT_DENIED, "%s gave no AccessKeyId and SecretAccessKey in JSON", source);
    if (rc == 1 && expires)
        c->expires = parse_time(expires);
    json_decref(root);
    return rc;
}

/* --- places ------------------------------------------------------------------------------------------------------------ */

static int run_process(struct credentials *c, const char *command, struct leat_error *err)
{
    FILE *f = popen(command, "re");
    if (!f)
        return error_sys(err, -errno, "credential_process");
    char *text = calloc(1, ANSWER_MAX + 1);
    size_t n = text ? fread(text, 1, ANSWER_MAX, f) : 0;
    int status = pclose(f), rc;
    if (!text)
        return -ENOMEM;
    if (status != 0)
        rc = error_set(err, LEAT_DENIED, "credential_process of the profile ended with status %d",
                       WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    else
        rc = take_json(c, text, "credential_process", err);
    explicit_bzero(text, n);
    free(text);
    return rc;
}

static int from_profile(struct credentials *c, const struct aws_profile *p, struct leat_error *err)
{
    if (p->process)
        return run_process(c, p->process, err);
    if (p->sso)
        return error_set(err, LEAT_UNSUPPORTED,
                         "the profile signs in by SSO, which Leat does not do by itself: run \"aws sso "
                         "login\", then \"eval $(aws configure "
                         "export-credentials --format env)\"");
    return 0;
}

struct sts {
    struct bytes_out values[3];
    char expires[40];
};

static int sts_element(void *user, const char *path, const char *text, size_t len)
{
    struct sts *s = user;
    static const char at[] = "AssumeRoleWithWebIdentityResponse/AssumeRoleWithWebIdentityResult/Credentials/";
    static const char *const names[3] = {"AccessKeyId", "SecretAccessKey", "SessionToken"};
    if (strncmp(path, at, sizeof(at) - 1) != 0)
        return 0;
    path += sizeof(at) - 1;
    for (int i = 0; i < 3; i++) {
        if (strcmp(path, names[i]) == 0) {
            bytes_out_reset(&s->values[i]);
            bytes_put(&s->values[i], text, len + 1);
        }
    }
    if (strcmp(path, "Expiration") == 0)
        snprintf(s->expires, sizeof(s->expires), "%s", text);
    return 0;
}

static int take_sts(struct credentials *c, const char *text, struct leat_error *err)
{
    struct sts s = {0};
    struct xml_reader *xml = xml_reader_new(NULL, sts_element, &s);
    int rc = xml ? xml_reader_feed(xml, text, strlen(text), true, err) : -ENOMEM;
    xml_reader_free(xml);
    if (rc == 0 && s.values[0].len && s.values[1].len)
        rc = credentials_set(c, (char *)s.values[0].data, (char *)s.values[1].data, (char *)s.values[2].data,
                             "a web identity");
    else if (rc == 0)
        rc = error_set(err, LEAT_DENIED, "STS gave no credentials for the web identity");
    if (rc == 1)
        c->expires = parse_time(s.expires);
    for (int i = 0; i < 3; i++) {
        if (s.values[i].data)
            explicit_bzero(s.values[i].data, s.values[i].len);
        bytes_out_fini(&s.values[i]);
    }
    return rc;
}

static char *read_token(const char *path)
{
    FILE *f = fopen(path, "re");
    char *text = f ? calloc(1, ANSWER_MAX + 1) : NULL;
    if (text && fread(text, 1, ANSWER_MAX, f) == 0) {
        free(text);
        text = NULL;
    }
    if (f)
        fclose(f);
    for (size_t len = text ? strlen(text) : 0; len && isspace((unsigned char)text[len - 1]);)
        text[--len] = 0;
    return text;
}

static int from_web_identity(struct credentials *c, const struct aws_profile *p, struct leat_error *err)
{
    const char *file = p->web_token_file, *role = p->role, *name = env("AWS_ROLE_SESSION_NAME");
    const char *region = env("AWS_REGION"), *endpoint = env("AWS_ENDPOINT_URL_STS");
    if (!p->found) {
        file = env("AWS_WEB_IDENTITY_TOKEN_FILE");
        role = env("AWS_ROLE_ARN");
    }
    if (!file || !role)
        return 0;
    region = region ? region : env("AWS_DEFAULT_REGION") ? env("AWS_DEFAULT_REGION") : p->region;
    char *token = read_token(file);
    if (!token)
        return error_sys(err, LEAT_DENIED, "web identity token %s", file);
    struct bytes_out url = {0}, body = {0}, headers = {0};
    if (endpoint) {
        http_put(&url, endpoint);
        while (url.len && url.data[url.len - 1] == '/')
            url.len--;
    } else {
        http_put(&url, "https://sts.");
        http_put(&url, region ? region : "us-east-1");
        http_put(&url, region && strncmp(region, "cn-", 3) == 0 ? ".amazonaws.com.cn" : ".amazonaws.com");
    }
    bytes_put(&url, "/", 2);
    /* As a body: addresses end in logs. */
    http_put(&body, "Action=AssumeRoleWithWebIdentity&RoleArn=");
    http_escape(&body, role, strlen(role), false);
    http_put(&body, "&RoleSessionName=");
    http_escape(&body, name ? name : "leat", strlen(name ? name : "leat"), false);
    http_put(&body, "&Version=2011-06-15&WebIdentityToken=");
    http_escape(&body, token, strlen(token), false);
    http_put_header(&headers, "accept", "application/xml");
    http_put_header(&headers, "content-type", "application/x-www-form-urlencoded; charset=utf-8");
    http_put_header_u64(&headers, "content-length", body.len);
    bytes_put(&headers, "", 1);
    char *text = NULL;
    int status = 0;
    int rc = url.failed || body.failed || headers.failed
                 ? -ENOMEM
                 : ask("POST", (char *)url.data, (char *)headers.data, &body, STS_NS, &status, &text, err);
    if (rc == 0 && status != 200) {
        struct s3_error e;
        s3_error_parse(text, strlen(text), &e);
        rc = error_set(err, LEAT_DENIED, "STS refused the web identity for role %.100s: %d %s %s", role,
                       status, e.code, e.message);
    } else if (rc == 0) {
        rc = take_sts(c, text, err);
    } else {
        error_prefix(err, rc, "STS");
    }
    secret_wipe(&text);
    secret_wipe(&token);
    if (body.data)
        explicit_bzero(body.data, body.len);
    bytes_out_fini(&body);
    bytes_out_fini(&headers);
    bytes_out_fini(&url);
    return rc;
}

/* Its answer is a secret, and so is what is said to it: in plain text only on this machine, or to the addresses that AWS gives it. */
static bool container_ok(const char *url)
{
    static const char *const hosts[] = {"127.",          "localhost",      "[::1]",
                                        "169.254.170.2", "169.254.170.23", "[fd00:ec2::23]"};
    if (strncasecmp(url, "https://", 8) == 0)
        return true;
    if (strncasecmp(url, "http://", 7) != 0)
        return false;
    const char *host = url + 7;
    size_t n = *host == '[' ? strcspn(host, "]/") + 1 : strcspn(host, ":/?#");
    for (size_t i = 0; i < ARRAY_LEN(hosts); i++) {
        if (i == 0 ? n <= 15 && strncmp(host, "127.", 4) == 0 && strspn(host, "0123456789.") == n
                   : strlen(hosts[i]) == n && strncasecmp(host, hosts[i], n) == 0)
            return true;
    }
    return false;
}

static int from_container(struct credentials *c, struct leat_error *err)
{
    const char *relative = env("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"),
               *full = env("AWS_CONTAINER_CREDENTIALS_FULL_URI");
    const char *token = env("AWS_CONTAINER_AUTHORIZATION_TOKEN"),
               *file = env("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
    char url[600];
    if (relative)
        snprintf(url, sizeof(url), "http://169.254.170.2%s", relative);
    else if (full)
        snprintf(url, sizeof(url), "%s", full);
    else
        return 0;
    if (!container_ok(url))
        return error_set(
            err, LEAT_DENIED,
            "AWS_CONTAINER_CREDENTIALS_FULL_URI: https, or an address of this machine or container");
    char *from_file = file ? read_token(file) : NULL, *text = NULL;
    struct bytes_out headers = {0};
    int status = 0;
    if (from_file || token)
        http_put_header(&headers, "authorization", from_file ? from_file : token);
    bytes_put(&headers, "", 1);
    int rc = headers.failed
                 ? error_set(err, LEAT_INVALID, "the container's authorization token has line ends in it")
                 : ask("GET", url, (char *)headers.data, NULL, ENDPOINT_NS, &status, &text, err);
    if (rc == 0)
        rc = status == 200
                 ? take_json(c, text, "the container's endpoint", err)
                 : error_set(err, LEAT_DENIED, "the container's credentials endpoint answered %d", status);
    secret_wipe(&text);
    secret_wipe(&from_file);
    if (headers.data)
        explicit_bzero(headers.data, headers.len);
    bytes_out_fini(&headers);
    return rc;
}

static int from_instance(struct credentials *c, struct leat_error *err)
{
    const char *disabled = env("AWS_EC2_METADATA_DISABLED"), *base = env("AWS_EC2_METADATA_SERVICE_ENDPOINT");
    static const char roles[] = "/latest/meta-data/iam/security-credentials/";
    char url[700], header[300];
    char *token = NULL, *role = NULL, *text = NULL;
    int status = 0, rc = 0;
    if (disabled && strcasecmp(disabled, "true") == 0)
        return 0;
    base = base ? base : "http://169.254.169.254";
    snprintf(url, sizeof(url), "%.300s/latest/api/token", base);
    /* Nobody there is the usual case: this is no machine of Amazon's. */
    if (ask("PUT", url, "x-aws-ec2-metadata-token-ttl-seconds: 300\r\ncontent-length: 0\r\n", NULL,
            ENDPOINT_NS, &status, &token, NULL) < 0 ||
        status != 200 || strlen(token) > 200 || strpbrk(token, "\r\n"))
        goto out;
    snprintf(header, sizeof(header), "x-aws-ec2-metadata-token: %s\r\n", token);
    snprintf(url, sizeof(url), "%.300s%s", base, roles);
    if (ask("GET", url, header, NULL, ENDPOINT_NS, &status, &role, NULL) < 0 || status != 200)
        goto out; /* no role was given to it */
    role[strcspn(role, "\r\n")] = 0;
    snprintf(url, sizeof(url), "%.300s%s%.200s", base, roles, role);
    rc = ask("GET", url, header, NULL, ENDPOINT_NS, &status, &text, err);
    if (rc == 0)
        rc = status == 200
                 ? take_json(c, text, "the instance's endpoint", err)
                 : error_set(err, LEAT_DENIED, "the instance's credentials endpoint answered %d", status);
out:
    explicit_bzero(header, sizeof(header));
    secret_wipe(&token);
    secret_wipe(&role);
    secret_wipe(&text);
    return rc;
}

int credentials_find(const char *profile, struct credentials *ret_credentials, struct leat_error *err)
{
    struct credentials c = {0};
    struct aws_profile p = {0};
    int rc = credentials_local(profile, &c, err);
    if (rc == 0 && !profile)
        rc = from_web_identity(&c, &p, err); /* of the environment: p is empty yet */
    if (rc == 0)
        rc = aws_profile_read(profile, &p, err);
    if (rc == 0)
        rc = from_profile(&c, &p, err);
    if (rc == 0)
        rc = from_web_identity(&c, &p, err);
    if (rc == 0)
        rc = from_container(&c, err);
    if (rc == 0)
        rc = from_instance(&c, err);
    aws_profile_fini(&p);
    if (rc == 0)
        return error_set(err, LEAT_DENIED,
                         "no credentials for S3: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write "
                         "~/.aws/credentials (aws configure); "
                         "a public bucket is read with LEAT_S3_ANONYMOUS=1, --no-sign-request or "
                         "storage_options={\"anon\": True}");
    if (rc < 0)
        return rc;
    *ret_credentials = c;
    return 0;
}
