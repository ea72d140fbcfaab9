/* SPDX-License-Identifier: Apache-2.0 */
#include "base/setting.h"

#include "base/size.h"

int setting_text(char **field, const char *value, struct leat_error *err)
{
    char *copy = strdup(value);
    if (!copy)
        return error_set(err, -ENOMEM, "out of memory");
    free(*field);
    *field = copy;
    return 0;
}

int setting_bool(bool *field, const char *key, const char *value, struct leat_error *err)
{
    bool yes = !strcmp(value, "yes") || !strcmp(value, "on") || !strcmp(value, "true") || !strcmp(value, "1");
    bool no = !strcmp(value, "no") || !strcmp(value, "off") || !strcmp(value, "false") || !strcmp(value, "0");
    if (!yes && !no)
        return error_set(err, LEAT_INVALID, "%s = %s: give yes or no", key, value);
    *field = yes;
    return 0;
}

int setting_count(unsigned *field, const char *key, const char *value, unsigned least, unsigned most,
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

int setting_bytes(uint64_t *field, const char *key, const char *value, uint64_t least, struct leat_error *err)
{
    char text[SIZE_TEXT_MAX];
    uint64_t bytes;
    int rc = size_parse(value, &bytes, err);
    if (rc < 0)
        return error_prefix(err, rc, "%s", key);
    if (bytes < least)
        return error_set(err, LEAT_INVALID, "%s = %s: give at least %s", key, value,
                         size_format(least, text));
    *field = bytes;
    return 0;
}

int setting_add_word(char ***words, unsigned *n, const char *word, struct leat_error *err)
{
    char *copy = strdup(word), **more = copy ? realloc(*words, (*n + 2) * sizeof(*more)) : NULL;
    if (!more) {
        free(copy);
        return error_set(err, -ENOMEM, "out of memory");
    }
    *words = more;
    more[(*n)++] = copy;
    more[*n] = NULL;
    return 0;
}

int setting_add_words(char ***words, unsigned *n, const char *value, struct leat_error *err)
{
    AUTO_FREE char *copy = strdup(value);
    char *save = NULL;
    int rc = copy ? 0 : error_set(err, -ENOMEM, "out of memory");
    for (char *word = copy ? strtok_r(copy, ", \t", &save) : NULL; word && rc == 0;
         word = strtok_r(NULL, ", \t", &save))
        rc = setting_add_word(words, n, word, err);
    return rc;
}

void setting_words_free(char **words)
{
    for (char **w = words; w && *w; w++)
        free(*w);
    free(words);
}
