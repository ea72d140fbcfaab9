/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spec.c: the text that names a dataset. "image=a.npy;label=b.npy" is several named sources; anything that does not
 * begin with a name and "=" is one path, file URI or address (uri.c). Paths become absolute, by text alone: symbolic
 * links stay, so that moving a "current" link is noticed as a change and not as another dataset.
 */
#include <ctype.h>
#include <stdio.h>

#include "dataset/scan.h"

#define NAME_MAX_BYTES 255u

/* Length of "name" in "name=...", 0 if the text does not begin so. */
static size_t field_prefix(const char *s)
{
    size_t n = 0;
    if (!isalpha((unsigned char)s[0]) && s[0] != '_')
        return 0;
    while (isalnum((unsigned char)s[n]) || s[n] == '_' || s[n] == '.' || s[n] == '-')
        n++;
    return s[n] == '=' ? n : 0;
}

char *spec_absolute(const char *path, size_t len)
{
    if (dataset_is_remote(path))
        return strndup(path, len);
    AUTO_FREE char *cwd = len && path[0] == '/' ? strdup("") : getcwd(NULL, 0);
    if (!cwd)
        return NULL;
    char *out = malloc(strlen(cwd) + len + 3);
    if (!out)
        return NULL;
    size_t used = (size_t)sprintf(out, "%s", cwd);
    if (used == 1)
        used = 0; /* "/" */
    for (size_t i = 0; i < len;) {
        size_t n = 0;
        while (i + n < len && path[i + n] != '/')
            n++;
        if (n && !(n == 1 && path[i] == '.')) {
            out[used++] = '/';
            memcpy(out + used, path + i, n);
            used += n;
        }
        i += n + 1;
    }
    if (used == 0)
        out[used++] = '/';
    out[used] = 0;
    return out;
}

static int add_source(struct dataset_spec *spec, const char *field, size_t field_len, const char *path,
                      size_t path_len, struct leat_error *err)
{
    if (path_len == 0)
        return error_set(err, LEAT_INVALID, "a dataset's path is empty");
    AUTO_FREE char *plain = NULL;
    int rc = spec_source_path(path, path_len, &plain, err);
    if (rc < 0)
        return rc;
    if (spec->n == INDEX_MAX_FIELDS)
        return error_set(err, LEAT_INVALID, "more than %u sources", INDEX_MAX_FIELDS);
    struct dataset_source *sources =
        realloc((void *)(uintptr_t)spec->sources, (spec->n + 1) * sizeof(struct dataset_source));
    if (!sources)
        return error_set(err, -ENOMEM, "out of memory");
    spec->sources = sources;
    struct dataset_source *s = &sources[spec->n++];
    s->field = field_len ? strndup(field, field_len) : NULL;
    s->uri = spec_absolute(plain, strlen(plain));
    if (!s->uri || (field_len && !s->field))
        return error_set(err, -ENOMEM, "out of memory");
    if (field_len && strchr(s->uri, ';')) /* the canonical form has no way to write it */
        return error_set(err, LEAT_INVALID, "%.200s: a path of several cannot have a semicolon in it",
                         s->uri);
    return 0;
}

static int parse_named(const char *text, struct dataset_spec *spec, struct leat_error *err)
{
    while (*text) {
        size_t name = field_prefix(text), len = strcspn(text, ";");
        if (name == 0)
            return error_set(err, LEAT_INVALID,
                             "\"%.*s\": several sources must each have a name, as in "
                             "\"image=a.npy;label=b.npy\"",
                             (int)MIN(len, (size_t)200), text);
        for (unsigned i = 0; i < spec->n; i++)
            if (strlen(spec->sources[i].field) == name && !strncmp(spec->sources[i].field, text, name))
                return error_set(err, LEAT_INVALID, "two sources have the name \"%.*s\"",
                                 (int)MIN(name, (size_t)200), text);
        int rc = add_source(spec, text, name, text + name + 1, len - name - 1, err);
        if (rc < 0)
            return rc;
        text += len;
        text += *text == ';';
    }
    return 0;
}

int dataset_spec_parse(const char *text, struct dataset_spec *ret_spec, struct leat_error *err)
{
    struct dataset_spec spec = {0};
    int rc;
    if (field_prefix(text))
        rc = parse_named(text, &spec, err);
    else
        rc = add_source(&spec, NULL, 0, text, strlen(text), err);
    if (rc < 0) {
        dataset_spec_free(&spec);
        return rc;
    }
    *ret_spec = spec;
    return 0;
}

int dataset_name_check(const char *name, struct leat_error *err)
{
    size_t len = strlen(name);
    bool good = len > 0 && len <= NAME_MAX_BYTES && !strpbrk(name, "/=") && strcmp(name, ".") != 0 &&
                strcmp(name, "..") != 0;
    for (size_t k = 0; k < len; k++)
        good = good && (unsigned char)name[k] >= 0x20 && name[k] != 0x7f;
    return good ? 0
                : error_set(err, LEAT_INVALID,
                            "a set's name has 1 to %u bytes, no / or = in it, as paths have, and no control "
                            "characters: choose another",
                            NAME_MAX_BYTES);
}

void dataset_spec_free(struct dataset_spec *spec)
{
    for (unsigned i = 0; i < spec->n; i++) {
        free((void *)(uintptr_t)spec->sources[i].field);
        free((void *)(uintptr_t)spec->sources[i].uri);
    }
    free((void *)(uintptr_t)spec->sources);
    *spec = (struct dataset_spec){0};
}

char *dataset_spec_format(const struct dataset_spec *spec)
{
    char *out = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&out, &len);
    if (!f)
        return NULL;
    for (unsigned i = 0; i < spec->n; i++) {
        const struct dataset_source *s = &spec->sources[i];
        AUTO_FREE char *path = spec_absolute(s->uri, strlen(s->uri));
        if (!path) {
            fclose(f);
            free(out);
            return NULL;
        }
        fprintf(f, "%s%s%s%s", i ? ";" : "", s->field ? s->field : "", s->field ? "=" : "", path);
    }
    bool failed = ferror(f) != 0;
    if (fclose(f) != 0 || failed) {
        free(out);
        return NULL;
    }
    return out;
}
