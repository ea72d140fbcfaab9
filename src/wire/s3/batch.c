/* SPDX-License-Identifier: Apache-2.0 */
/*
 * batch.c: the list is taken apart by braces and quotes alone; each element is then a document of its own, which jansson reads.
 *
 * Failure modes: LEAT_INVALID and LEAT_NO_SPACE with the element's number. Invariant: no text of an entry has a NUL in it or is longer than
 * its limit, and a key is never empty.
 */
#include "wire/s3/batch.h"

#include <jansson.h>

#include "base/array.h"
#include "base/bytes.h"
#include "wire/http/http_cond.h"

struct parsing {
    struct batch_entry *entries; /* texts are offsets + 1 in `text` while it grows */
    unsigned n, cap;
    struct bytes_out text;
    struct leat_error *err;
};

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* The bytes of the object that begins here, 0: it has no end. */
static size_t object_len(const char *s, size_t len)
{
    size_t depth = 0;
    bool quoted = false;
    for (size_t i = 0; i < len; i++) {
        if (quoted) {
            if (s[i] == '\\')
                i++;
            else if (s[i] == '"')
                quoted = false;
        } else if (s[i] == '"') {
            quoted = true;
        } else if (s[i] == '{' || s[i] == '[') {
            depth++;
        } else if ((s[i] == '}' || s[i] == ']') && --depth == 0) {
            return i + 1;
        }
    }
    return 0;
}

bool batch_entry_part(const struct batch_entry *e, uint64_t bytes, uint64_t *ret_first, uint64_t *ret_count)
{
    uint64_t first = 0, last = bytes - 1;
    if (e->range &&
        http_range((struct http_text){e->range, strlen(e->range)}, bytes, &first, &last) != HTTP_RANGE_PART)
        return false;
    *ret_first = first;
    *ret_count = last - first + 1;
    return true;
}

static bool is_range(const char *text)
{
    uint64_t first, last;
    return http_range((struct http_text){text, strlen(text)}, 1, &first, &last) != HTTP_RANGE_NONE;
}

static int element_error(const struct parsing *p, const char *why, const char *what)
{
    return error_set(p->err, LEAT_INVALID, "element %u: %s%.100s", p->n + 1, why, what);
}

/* A string of at most `most` bytes; its offset + 1 goes where the pointer will stand. */
static int keep_text(struct parsing *p, const char *name, json_t *value, size_t most, const char **ret_at)
{
    size_t len = json_is_string(value) ? json_string_length(value) : 0;
    if (!json_is_string(value))
        return element_error(p, "this is to be a string: ", name);
    if (len > most || memchr(json_string_value(value), 0, len))
        return element_error(p, "too long, or with a NUL in it: ", name);
    *ret_at = (const char *)(uintptr_t)(p->text.len + 1);
    bytes_put(&p->text, json_string_value(value), len);
    bytes_put_u8(&p->text, 0);
    return p->text.failed ? error_set(p->err, -ENOMEM, "out of memory") : 0;
}

static int read_element(struct parsing *p, json_t *object, struct batch_entry *e)
{
    const char *name;
    json_t *value;
    int rc = 0;
    json_object_foreach(object, name, value)
    {
        if (!strcmp(name, "key"))
            rc = keep_text(p, name, value, BATCH_KEY_MAX, &e->key);
        else if (!strcmp(name, "archpath"))
            rc = keep_text(p, name, value, BATCH_MEMBER_MAX, &e->member);
        else if (!strcmp(name, "opaque"))
            rc = keep_text(p, name, value, BATCH_OPAQUE_MAX, &e->opaque);
        else if (!strcmp(name, "range"))
            rc = keep_text(p, name, value, BATCH_RANGE_MAX, &e->range);
        else
            rc = element_error(p, "there are key, archpath, range and opaque, and not ", name);
        if (rc == 0 && !strcmp(name, "range") && !is_range(json_string_value(value)))
            rc =
                element_error(p, "a range is \"bytes=FIRST-LAST\", \"bytes=FIRST-\" or \"bytes=-COUNT\"", "");
        if (rc < 0)
            return rc;
    }
    json_t *key = json_object_get(object, "key");
    if (!key || json_string_length(key) == 0)
        return element_error(p, "it has no key", "");
    json_t *member = json_object_get(object, "archpath");
    if (member && json_string_length(member) == 0)
        return element_error(p, "its archpath is empty", "");
    return 0;
}

static int add_element(struct parsing *p, const char *s, size_t len)
{
    if (p->n == BATCH_ENTRIES_MAX)
        return error_set(p->err, LEAT_NO_SPACE, "a batch has at most %u elements", BATCH_ENTRIES_MAX);
    if (len > BATCH_ELEMENT_MAX)
        return error_set(p->err, LEAT_NO_SPACE, "element %u: longer than %llu bytes", p->n + 1,
                         BATCH_ELEMENT_MAX);
    if (array_reserve(&p->entries, &p->cap, p->n + 1) < 0)
        return error_set(p->err, -ENOMEM, "out of memory");
    json_error_t why;
    json_t *object = json_loadb(s, len, JSON_REJECT_DUPLICATES, &why);
    if (!object)
        return json_error_code(&why) == json_error_out_of_memory ? error_set(p->err, -ENOMEM, "out of memory")
                                                                 : element_error(p, "", why.text);
    p->entries[p->n] = (struct batch_entry){0};
    int rc = read_element(p, object, &p->entries[p->n]);
    json_decref(object);
    p->n += rc == 0;
    return rc;
}

static int all_elements(struct parsing *p, const char *s, size_t len)
{
    size_t i = 0;
    bool list = false, comma = false;
    while (i < len && is_blank(s[i]))
        i++;
    if (i < len && s[i] == '[') {
        list = true;
        i++;
    }
    for (;; i++) {
        while (i < len && is_blank(s[i]))
            i++;
        if (i == len || (list && s[i] == ']' && !comma))
            break;
        if (s[i] != '{')
            return element_error(p,
                                 list ? "a list of objects is wanted: [{\"key\": \"...\"}, ...]"
                                      : "an object a line is wanted: {\"key\": \"...\"}",
                                 "");
        size_t n = object_len(s + i, len - i);
        if (n == 0)
            return element_error(p, "it has no end", "");
        int rc = add_element(p, s + i, n);
        if (rc < 0)
            return rc;
        i += n;
        while (i < len && is_blank(s[i]))
            i++;
        comma = i < len && s[i] == ',';
        if (list ? i == len || (!comma && s[i] != ']') : comma)
            return element_error(p, "behind it: ", list ? "a comma or ] is wanted" : "no comma is wanted");
        if (!list || !comma)
            i--; /* stays for the next turn */
    }
    if (list && i == len)
        return error_set(p->err, LEAT_INVALID, "the list has no end");
    for (i += list; i < len; i++)
        if (!is_blank(s[i]))
            return error_set(p->err, LEAT_INVALID, "something stands behind the list");
    return p->n ? 0 : error_set(p->err, LEAT_INVALID, "the batch names nothing");
}

int batch_request_parse(const char *json, size_t len, struct batch_request *ret_request,
                        struct leat_error *err)
{
    struct parsing p = {.err = err};
    if (len > BATCH_BYTES_MAX)
        return error_set(err, LEAT_NO_SPACE, "a batch request has at most %llu bytes", BATCH_BYTES_MAX);
    int rc = all_elements(&p, json, len);
    if (rc < 0) {
        free(p.entries);
        bytes_out_fini(&p.text);
        return rc;
    }
    char *text = (char *)p.text.data;
    for (unsigned i = 0; i < p.n; i++) {
        const char **at[] = {&p.entries[i].key, &p.entries[i].member, &p.entries[i].range,
                             &p.entries[i].opaque};
        for (unsigned k = 0; k < ARRAY_LEN(at); k++)
            if (*at[k])
                *at[k] = text + ((uintptr_t)*at[k] - 1);
    }
    *ret_request = (struct batch_request){.entries = p.entries, .n = p.n, .text = text};
    return 0;
}

void batch_request_fini(struct batch_request *r)
{
    free(r->entries);
    free(r->text);
    *r = (struct batch_request){0};
}
