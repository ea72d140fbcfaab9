/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ini.c: keys of configurations from files and options.
 *
 * Happy path: inih cuts lines into pairs; a pair's key is found in the tables, and its kind stores the value.
 * Failure modes: the first mistake of a file ends its reading, and is reported with its line; fields set before keep their values.
 */
#include "base/ini.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/setting.h"
#include "base/size.h"

#include <ini.h>

struct load {
    FILE *file;
    int (*pair)(void *, const char *, const char *, const char *, struct leat_error *);
    void *user;
    struct leat_error *err;
    int rc, lines, bad_line; /* lines read; where the first bad value is */
    bool too_long;
};

static int on_pair(void *user, const char *section, const char *name, const char *value)
{
    struct load *load = user;
    if (load->rc == 0) {
        load->rc = load->pair(load->user, section, name, value, load->err);
        load->bad_line = load->lines;
    }
    return load->rc == 0;
}

/* One line for the parser, which would take the rest of a long one for a separate line. */
static char *next_line(char *buf, int cap, void *user)
{
    struct load *load = user;
    if (load->rc < 0 || load->too_long || !fgets(buf, cap, load->file))
        return NULL;
    load->lines++;
    if (strchr(buf, '\n') || strlen(buf) + 1 < (size_t)cap)
        return buf;
    const char *first = buf + strspn(buf, " \t");
    load->too_long = *first != ';' && *first != '#';
    for (int c = 0; c != '\n' && c != EOF;)
        c = fgetc(load->file);
    return load->too_long ? NULL : buf;
}

int ini_read(FILE *file, const char *path,
             int (*pair)(void *, const char *, const char *, const char *, struct leat_error *), void *user,
             struct leat_error *err)
{
    struct load load = {.file = file, .pair = pair, .user = user, .err = err};
    int line = ini_parse_stream(next_line, &load, on_pair, &load);
    if (line < 0)
        return error_set(err, -ENOMEM, "out of memory for %s", path);
    if (ferror(file))
        return error_set(err, LEAT_NOT_FOUND, "cannot read %s: give a file", path);
    /* The first mistake: the parser continues behind a line that it does not understand. */
    if (load.rc < 0 && load.bad_line == line)
        return error_prefix(err, load.rc, "%s, line %d", path, line);
    if (line > 0)
        return error_set(err, LEAT_INVALID, "%s, line %d: give `key = value` or `[section]`", path, line);
    if (load.too_long)
        return error_set(
            err, LEAT_INVALID,
            "%s, line %d: it is too long; continue in the next line, which then begins with a space", path,
            load.lines);
    return 0;
}

/* "give same, anybody or nobody" */
static int not_one_of(const struct ini_key *key, const char *value, struct leat_error *err)
{
    char text[128] = "";
    size_t used = 0;
    for (const char *word = key->words; *word;) {
        int n = (int)strcspn(word, " ");
        const char *next = word + n + (word[n] == ' ');
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%.*s",
                                 word == key->words ? ""
                                 : *next            ? ", "
                                                    : " or ",
                                 n, word);
        word = next;
    }
    return error_set(err, LEAT_INVALID, "%s = %s: give %s", key->name, value, text);
}

/* -1: it is none of them */
static int word_index(const char *words, const char *value)
{
    size_t len = strlen(value);
    for (int i = 0; *words; i++) {
        size_t n = strcspn(words, " ");
        if (n == len && memcmp(words, value, n) == 0)
            return i;
        words += n + (words[n] == ' ');
    }
    return -1;
}

static int set_duration(uint64_t *field, const struct ini_key *key, const char *value, struct leat_error *err)
{
    uint64_t ns = UINT64_MAX;
    int rc = key->words && !strcmp(value, key->words) ? 0 : duration_parse_ns(value, &ns, err);
    if (rc < 0)
        return error_prefix(err, rc, "%s", key->name);
    if (ns < key->least)
        return error_set(err, LEAT_INVALID, "%s = %s: give at least %lluh%s%s", key->name, value,
                         key->least / (3600 * NS_PER_S), key->words ? ", or " : "",
                         key->words ? key->words : "");
    *field = ns;
    return 0;
}

static int set(const struct ini_part *part, const struct ini_key *key, const char *value, bool one_word,
               struct leat_error *err)
{
    void *field = (char *)part->into + key->at;
    void *length = (char *)part->into + key->length_at;
    int word = key->words ? word_index(key->words, value) : 0;
    if (key->set)
        return key->set(part->into, value, err);
    if (word < 0 && key->kind != INI_DURATION)
        return not_one_of(key, value, err);
    switch (key->kind) {
    case INI_BOOL:
        if (!key->words)
            return setting_bool(field, key->name, value, err);
        *(bool *)field = word;
        return 0;
    case INI_ENUM:
        *(unsigned *)field = (unsigned)word;
        return 0;
    case INI_COUNT:
        return setting_count(field, key->name, value, (unsigned)key->least, (unsigned)key->most, err);
    case INI_BYTES:
        return setting_bytes(field, key->name, value, key->least, err);
    case INI_DURATION:
        return set_duration(field, key, value, err);
    case INI_LIST:
        return one_word ? setting_add_word(field, length, value, err)
                        : setting_add_words(field, length, value, err);
    default:
        return setting_text(field, value, err);
    }
}

/* No such key: the message lists the sections, or the keys of the section. */
static int unknown(const struct ini_part *parts, const char *section, const char *name,
                   struct leat_error *err)
{
    char keys[LEAT_ERROR_MESSAGE_MAX] = "", sections[128] = "";
    const char *last = "";
    for (const struct ini_part *p = parts; p->keys; p++) {
        for (const struct ini_key *k = p->keys; k->name; k++) {
            size_t in_keys = strlen(keys), in_sections = strlen(sections);
            if (!strcmp(k->section, section))
                snprintf(keys + in_keys, sizeof(keys) - in_keys, " %s", k->name);
            if (strcmp(k->section, last))
                snprintf(sections + in_sections, sizeof(sections) - in_sections, "%s%s", *last ? ", " : "",
                         k->section);
            last = k->section;
        }
    }
    return *keys ? error_set(err, LEAT_INVALID, "[%s] has no key '%s': it has%s", section, name, keys)
                 : error_set(err, LEAT_INVALID, "no section [%s]: there are %s", section, sections);
}

static int find_and_set(struct ini_part *parts, const char *section, const char *name, const char *value,
                        bool one_word, struct leat_error *err)
{
    for (struct ini_part *p = parts; p->keys; p++) {
        for (const struct ini_key *k = p->keys; k->name; k++) {
            bool old = k->old_name && !strcmp(k->old_name, name);
            uint64_t bit = 1ull << (k - p->keys);
            if (strcmp(k->section, section) || (strcmp(k->name, name) && !old))
                continue;
            if (old && !(p->warned & bit))
                log_warning("[%s] %s is now called %s: the old name works in this release only", section,
                            name, k->name);
            p->warned |= old ? bit : 0;
            return set(p, k, value, one_word, err);
        }
    }
    return unknown(parts, section, name, err);
}

int ini_set(struct ini_part *parts, const char *section, const char *name, const char *value,
            struct leat_error *err)
{
    return find_and_set(parts, section, name, value, true, err);
}

static int set_pair(void *parts, const char *section, const char *name, const char *value,
                    struct leat_error *err)
{
    if (strstr(value, " #") || strstr(value, "\t#"))
        return error_set(err, LEAT_INVALID,
                         "%s: a comment behind a value begins with ; (one that begins with # has a line of "
                         "its own)",
                         name);
    return find_and_set(parts, section, name, value, false, err);
}

int ini_load(struct ini_part *parts, const char *path, struct leat_error *err)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return error_set(err, LEAT_NOT_FOUND, "cannot read the configuration %s: %s", path, strerror(errno));
    int rc = ini_read(file, path, set_pair, parts, err);
    fclose(file);
    return rc;
}

void ini_fini(const struct ini_key *keys, void *from)
{
    for (const struct ini_key *k = keys; k->name; k++) {
        void *field = (char *)from + k->at;
        if (k->kind == INI_TEXT)
            free(*(char **)field);
        else if (k->kind == INI_LIST)
            setting_words_free(*(char ***)field);
    }
}
