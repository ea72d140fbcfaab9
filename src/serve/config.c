/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/config.h"

#include "base/clock.h"
#include "base/size.h"

#include <arpa/inet.h>
#include <stdio.h>

void serve_config_init(struct serve_config *c)
{
    *c = (struct serve_config){.memory_bytes = 256 * MIB, .grace_ns = 10 * NS_PER_S};
}

static void words_free(char **words)
{
    for (char **w = words; w && *w; w++)
        free(*w);
    free(words);
}

void serve_config_fini(struct serve_config *c)
{
    words_free(c->paths);
    words_free(c->listen);
    words_free(c->domains);
    free(c->keys_file);
    free(c->tls_cert);
    free(c->tls_key);
    free(c->admin_token_file);
    free(c->region);
}

static int set_text(char **field, const char *value, struct leat_error *err)
{
    char *copy = strdup(value);
    if (!copy)
        return error_set(err, -ENOMEM, "out of memory");
    free(*field);
    *field = copy;
    return 0;
}

static int add_word(char ***words, unsigned *n, const char *word, struct leat_error *err)
{
    char **more = realloc(*words, (*n + 2) * sizeof(*more));
    if (!more)
        return error_set(err, -ENOMEM, "out of memory");
    *words = more;
    more[*n] = strdup(word);
    if (!more[*n])
        return error_set(err, -ENOMEM, "out of memory");
    more[++*n] = NULL;
    return 0;
}

static int add_words(char ***words, unsigned *n, const char *value, struct leat_error *err)
{
    AUTO_FREE char *copy = strdup(value);
    char *save = NULL;
    int rc = copy ? 0 : error_set(err, -ENOMEM, "out of memory");
    for (char *word = copy ? strtok_r(copy, ", \t", &save) : NULL; word && rc == 0;
         word = strtok_r(NULL, ", \t", &save))
        rc = add_word(words, n, word, err);
    return rc;
}

static int set_number(unsigned *field, const char *key, const char *value, unsigned least, unsigned most,
                      struct leat_error *err)
{
    char *end;
    errno = 0;
    unsigned long v = strtoul(value, &end, 10);
    if (*end || end == value || errno || v < least || v > most)
        return error_set(err, LEAT_INVALID, "%s = %s: give a whole number from %u to %u", key, value, least,
                         most);
    *field = (unsigned)v;
    return 0;
}

static int set_bytes(uint64_t *field, const char *key, const char *value, uint64_t least,
                     struct leat_error *err)
{
    char text[SIZE_TEXT_MAX];
    int rc = size_parse(value, field, err);
    if (rc < 0)
        return error_prefix(err, rc, "%s", key);
    if (*field < least)
        return error_set(err, LEAT_INVALID, "%s = %s: give at least %s", key, value,
                         size_format(least, text));
    return 0;
}

static int set_store(struct serve_config *c, const char *key, const char *value, struct leat_error *err)
{
    if (!strcmp(key, "paths"))
        return add_words(&c->paths, &c->npaths, value, err);
    if (!strcmp(key, "capacity"))
        return set_bytes(&c->capacity_bytes, key, value, 64 * MIB, err);
    if (!strcmp(key, "memory"))
        return set_bytes(&c->memory_bytes, key, value, 32 * MIB, err);
    return set_number(!strcmp(key, "high") ? &c->high_percent : &c->low_percent, key, value, 1, 99, err);
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
            return set_text(texts[i].field, value, err);
    }
    if (!strcmp(key, "listen"))
        return add_words(&c->listen, &c->nlisten, value, err);
    if (!strcmp(key, "domains"))
        return add_words(&c->domains, &c->ndomains, value, err);
    if (!strcmp(key, "threads"))
        return set_number(&c->threads, key, value, 1, 256, err);
    if (!strcmp(key, "region")) {
        size_t n = strspn(value, "abcdefghijklmnopqrstuvwxyz0123456789-");
        if (n == 0 || value[n] || n > 64)
            return error_set(err, LEAT_INVALID, "region = %.80s: a-z, digits and \"-\", as us-east-1", value);
        return set_text(&c->region, value, err);
    }
    if (!strcmp(key, "grace")) {
        int rc = duration_parse_ns(value, &c->grace_ns, err);
        return rc < 0 ? error_prefix(err, rc, "grace") : 0;
    }
    c->anonymous =
        !strcmp(value, "yes") || !strcmp(value, "on") || !strcmp(value, "true") || !strcmp(value, "1");
    bool no = !strcmp(value, "no") || !strcmp(value, "off") || !strcmp(value, "false") || !strcmp(value, "0");
    return c->anonymous || no ? 0 : error_set(err, LEAT_INVALID, "%s = %s: give yes or no", key, value);
}

static const struct {
    const char *section, *keys; /* keys: separated by spaces, with one at either end */
    int (*set)(struct serve_config *, const char *key, const char *value, struct leat_error *);
} sections[] = {
    {"serve", " listen keys_file anonymous tls_cert tls_key admin_token_file region domains threads grace ",
     set_serve},
    {"store", " paths capacity high low memory ", set_store},
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
        return add_word(&c->paths, &c->npaths, value, err);
    if (!strcmp(key, "listen"))
        return add_word(&c->listen, &c->nlisten, value, err);
    if (!strcmp(key, "domains"))
        return add_word(&c->domains, &c->ndomains, value, err);
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
    int rc = c->nlisten ? 0 : add_words(&c->listen, &c->nlisten, "127.0.0.1:9000", err);
    if (rc == 0 && !c->region)
        rc = set_text(&c->region, "us-east-1", err);
    if (rc == 0 && !c->ndomains)
        rc = add_words(&c->domains, &c->ndomains, "localhost", err);
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
