/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/config.h"

#include "base/clock.h"
#include "base/setting.h"

void serve_config_init(struct serve_config *c)
{
    *c = (struct serve_config){.memory_bytes = 256 * MIB, .grace_ns = 10 * NS_PER_S};
}

static int set_region(void *into, const char *value, struct leat_error *err)
{
    struct serve_config *c = into;
    size_t n = strspn(value, "abcdefghijklmnopqrstuvwxyz0123456789-");
    if (n == 0 || value[n] || n > 64)
        return error_set(err, LEAT_INVALID, "region = %.80s: a-z, digits and \"-\", as us-east-1", value);
    return setting_text(&c->region, value, err);
}

#define KEY(...)   INI_KEY(struct serve_config, __VA_ARGS__)
#define WORDS(...) INI_WORDS(struct serve_config, __VA_ARGS__)
#define HOUR_NS    (3600 * NS_PER_S)

const struct ini_key serve_config_keys[] = {
    WORDS("serve", "listen", listen, nlisten),
    KEY("serve", "keys_file", TEXT, keys_file),
    KEY("serve", "anonymous", BOOL, anonymous),
    KEY("serve", "tls_cert", TEXT, tls_cert),
    KEY("serve", "tls_key", TEXT, tls_key),
    KEY("serve", "admin_token_file", TEXT, admin_token_file),
    KEY("serve", "region", TEXT, region, .set = set_region),
    WORDS("serve", "domains", domains, ndomains),
    KEY("serve", "threads", COUNT, threads, .least = 1, .most = 256),
    KEY("serve", "drain_timeout", DURATION, grace_ns, .old_name = "grace"),
    WORDS("store", "paths", paths, npaths),
    KEY("store", "capacity", BYTES, capacity_bytes, .least = 64 * MIB),
    KEY("store", "high", COUNT, high_percent, .least = 1, .most = 99),
    KEY("store", "low", COUNT, low_percent, .least = 1, .most = 99),
    KEY("store", "memory", BYTES, memory_bytes, .least = 32 * MIB),
    KEY("store", "scrub", DURATION, scrub_ns, .least = HOUR_NS, .words = "off"),
    KEY("store", "scrub_rate", BYTES, scrub_rate, .least = 64 * KIB),
    KEY("store", "upload_age", DURATION, upload_age_ns, .least = HOUR_NS),
    KEY("store", "forget_missing", BOOL, forget_missing),
    KEY("store", "disks_encrypted", BOOL, disks_encrypted),
    {0},
};

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
        return error_set(
            err, LEAT_INVALID,
            "anonymous = yes and keys_file exclude each other: permissions without a key stand in "
            "the file, under "
            "[anonymous]");
    if (!c->anonymous && !c->keys_file)
        return error_set(err, LEAT_INVALID,
                         "[serve] needs keys_file = FILE (make one: leat serve --keys FILE --new-keys), or "
                         "anonymous = yes: "
                         "then every process that reaches it may do everything");
    for (unsigned i = 0; i < c->nlisten; i++) {
        if (c->anonymous && !is_local(c->listen[i]))
            return error_set(err, LEAT_INVALID,
                             "listen = %s: other machines reach it, and no key is needed: "
                             "every process could read "
                             "and delete everything. Give a keys file, or listen on 127.0.0.1",
                             c->listen[i]);
    }
    return 0;
}
