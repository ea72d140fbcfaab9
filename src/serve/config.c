/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/config.h"

#include "base/clock.h"
#include "base/setting.h"
#include "base/size.h"

#include <arpa/inet.h>
#include <stdio.h>

void serve_config_init(struct serve_config *c)
{
    *c = (struct serve_config){.memory_bytes = 256 * MIB, .grace_ns = 10 * NS_PER_S};
}

void serve_config_fini(struct serve_config *c)
{
    setting_words_free(c->paths);
    setting_words_free(c->listen);
    setting_words_free(c->domains);
    free(c->keys_file);
    free(c->tls_cert);
    free(c->tls_key);
    free(c->admin_token_file);
    free(c->region);
}

static int set_period(uint64_t *ret_s, const char *key, const char *value, const char *or_off,
                      struct leat_error *err)
{
    uint64_t ns = 0;
    int rc = duration_parse_ns(value, &ns, err);
    if (rc == 0 && ns < 3600 * NS_PER_S)
        rc = error_set(err, LEAT_INVALID, "%.40s: an hour at least, as 30d%s", value, or_off);
    if (rc < 0)
        return error_prefix(err, rc, "%s", key);
    *ret_s = ns / NS_PER_S;
    return 0;
}

static int set_scrub(struct serve_config *c, const char *value, struct leat_error *err)
{
    if (strcmp(value, "off"))
        return set_period(&c->scrub_s, "scrub", value, "; or off", err);
    c->scrub_s = UINT64_MAX;
    return 0;
}

static int set_store(struct serve_config *c, const char *key, const char *value, struct leat_error *err)
{
    if (!strcmp(key, "paths"))
        return setting_add_words(&c->paths, &c->npaths, value, err);
    if (!strcmp(key, "capacity"))
        return setting_bytes(&c->capacity_bytes, key, value, 64 * MIB, err);
    if (!strcmp(key, "memory"))
        return setting_bytes(&c->memory_bytes, key, value, 32 * MIB, err);
    if (!strcmp(key, "scrub"))
        return set_scrub(c, value, err);
    if (!strcmp(key, "upload_age"))
        return set_period(&c->upload_age_s, key, value, "", err);
    if (!strcmp(key, "forget_missing"))
        return setting_bool(&c->forget_missing, key, value, err);
    if (!strcmp(key, "disks_encrypted"))
        return setting_bool(&c->disks_encrypted, key, value, err);
    if (!strcmp(key, "scrub_rate"))
        return setting_bytes(&c->scrub_rate, key, value, 64 * KIB, err);
    return setting_count(!strcmp(key, "high") ? &c->high_percent : &c->low_percent, key, value, 1, 99, err);
}

static int set_serve(struct serve_config *c, const char *key, const char *value, struct leat_error *err)
{
    const struct {
        const char *key;
        char **field;
    } texts[] = {{"keys_file", &c->keys_file},
                 {"tls_cert", &c->tls_cert},
                 {"tls_key", &c->tls_key},
                 {"admin_token_file", &c->admin_token_file}};
    for (unsigned i = 0; i < ARRAY_LEN(texts); i++) {
        if (!strcmp(key, texts[i].key))
            return setting_text(texts[i].field, value, err);
    }
    if (!strcmp(key, "listen"))
        return setting_add_words(&c->listen, &c->nlisten, value, err);
    if (!strcmp(key, "domains"))
        return setting_add_words(&c->domains, &c->ndomains, value, err);
    if (!strcmp(key, "threads"))
        return setting_count(&c->threads, key, value, 1, 256, err);
    if (!strcmp(key, "region")) {
        size_t n = strspn(value, "abcdefghijklmnopqrstuvwxyz0123456789-");
        if (n == 0 || value[n] || n > 64)
            return error_set(err, LEAT_INVALID, "region = %.80s: a-z, digits and \"-\", as us-east-1", value);
        return setting_text(&c->region, value, err);
    }
    if (!strcmp(key, "grace")) {
        int rc = duration_parse_ns(value, &c->grace_ns, err);
        return rc < 0 ? error_prefix(err, rc, "grace") : 0;
    }
    return setting_bool(&c->anonymous, key, value, err);
}

static const struct {
    const char *section, *keys; /* keys: separated by spaces, with one at either end */
    int (*set)(struct serve_config *, const char *key, const char *value, struct leat_error *);
} sections[] = {
    {"serve", " listen keys_file anonymous tls_cert tls_key admin_token_file region domains threads grace ",
     set_serve},
    {"store", " paths capacity high low memory scrub scrub_rate upload_age forget_missing disks_encrypted ",
     set_store},
};

int serve_config_set(struct serve_config *c, const char *section, const char *key, const char *value,
                     struct leat_error *err)
{
    char padded[128];
    snprintf(padded, sizeof(padded), " %s ", strchr(key, ' ') ? "" : key);
    for (unsigned k = 0; k < ARRAY_LEN(sections); k++) {
        if (strcmp(section, sections[k].section))
            continue;
        if (!strstr(sections[k].keys, padded))
            return error_set(err, LEAT_INVALID, "[%s] has no key '%s': it has%s", section, key,
                             sections[k].keys);
        return sections[k].set(c, key, value, err);
    }
    return -ENOENT;
}

int serve_config_add(struct serve_config *c, const char *section, const char *key, const char *value,
                     struct leat_error *err)
{
    if (!strcmp(key, "paths"))
        return setting_add_word(&c->paths, &c->npaths, value, err);
    if (!strcmp(key, "listen"))
        return setting_add_word(&c->listen, &c->nlisten, value, err);
    if (!strcmp(key, "domains"))
        return setting_add_word(&c->domains, &c->ndomains, value, err);
    return serve_config_set(c, section, key, value, err);
}

/* An address that only this machine reaches. */
static bool is_local(const char *address)
{
    return strncmp(address, "unix:", 5) == 0 || strncmp(address, "127.", 4) == 0 ||
           strncmp(address, "[::1]:", 6) == 0 || strncmp(address, "localhost:", 10) == 0;
}

int serve_config_finish(struct serve_config *c, struct leat_error *err)
{
    if (!c->npaths) {
        if (c->nlisten || c->keys_file || c->anonymous)
            return error_set(err, LEAT_INVALID, "[serve] needs [store] paths = DIR ...: where objects lie");
        return 0;
    }
    int rc = c->nlisten ? 0 : setting_add_words(&c->listen, &c->nlisten, "127.0.0.1:9000", err);
    if (rc == 0 && !c->region)
        rc = setting_text(&c->region, "us-east-1", err);
    if (rc == 0 && !c->ndomains)
        rc = setting_add_words(&c->domains, &c->ndomains, "localhost", err);
    if (rc < 0)
        return rc;
    if (!c->tls_cert != !c->tls_key)
        return error_set(err, LEAT_INVALID,
                         "tls_cert and tls_key go together: a certificate and its private key, PEM");
    if (c->high_percent && c->low_percent && c->low_percent >= c->high_percent)
        return error_set(err, LEAT_INVALID, "low = %u is not below high = %u", c->low_percent,
                         c->high_percent);
    if (c->anonymous && c->keys_file)
        return error_set(err, LEAT_INVALID,
                         "anonymous = yes and keys_file exclude each other: what everybody may do stands in "
                         "the file, under "
                         "[anonymous]");
    if (!c->anonymous && !c->keys_file)
        return error_set(err, LEAT_INVALID,
                         "[serve] needs keys_file = FILE (make one: leat serve --keys FILE --new-keys), or "
                         "anonymous = yes: "
                         "then everybody who reaches it may do everything");
    for (unsigned i = 0; i < c->nlisten; i++) {
        if (c->anonymous && !is_local(c->listen[i]))
            return error_set(err, LEAT_INVALID,
                             "listen = %s: others than this machine reach it, and nobody needs a key: "
                             "everybody could read "
                             "and delete everything. Give a keys file, or listen on 127.0.0.1",
                             c->listen[i]);
    }
    return 0;
}
