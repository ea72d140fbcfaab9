/* SPDX-License-Identifier: Apache-2.0 */
/* text.c: a tree in one text, in which tests keep the trees of other hosts. Paths imply their folders. */
#include "net/topo/topo.h"

#include "base/hex.h"

#define LINES_MAX 100000u

struct entry {
    char *path, *value; /* inside `copy` */
    bool is_link;
};

struct topo_text {
    char *copy;
    unsigned n;
    struct entry *entries; /* by path */
};

/* In place. */
static void unescape(char *s)
{
    char *out = s, byte;
    for (; *s; s++) {
        if (s[0] == '\\' && s[1] == 'n') {
            *out++ = '\n';
            s++;
        } else if (s[0] == '\\' && s[1] == '\\') {
            *out++ = '\\';
            s++;
        } else if (s[0] == '\\' && s[1] == 'x' && hex_get(s + 2, 1, &byte) && byte) {
            *out++ = byte;
            s += 3;
        } else {
            *out++ = *s;
        }
    }
    *out = '\0';
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct entry *)a)->path, ((const struct entry *)b)->path);
}

static const struct entry *find(const struct topo_text *tree, const char *path)
{
    const struct entry key = {.path = (char *)(uintptr_t)path};
    return tree->n ? bsearch(&key, tree->entries, tree->n, sizeof(key), by_path) : NULL;
}

static int copy_out(const char *value, char *out, size_t cap)
{
    size_t len = strnlen(value, cap - 1);
    memcpy(out, value, len);
    while (len && strchr(" \t\n", out[len - 1]))
        len--;
    out[len] = '\0';
    return 0;
}

static int tree_text(void *ctx, const char *path, char *out, size_t cap)
{
    const struct entry *e = find(ctx, path);
    return !e ? -ENOENT : e->is_link ? -ELOOP : copy_out(e->value, out, cap);
}

static int tree_link(void *ctx, const char *path, char *out, size_t cap)
{
    const struct entry *e = find(ctx, path);
    return !e                        ? -ENOENT
           : !e->is_link             ? -EINVAL
           : strlen(e->value) >= cap ? -ENAMETOOLONG
                                     : copy_out(e->value, out, cap);
}

static int tree_list(void *ctx, const char *path, bool (*each)(void *arg, const char *name), void *arg)
{
    const struct topo_text *tree = ctx;
    size_t len = strlen(path);
    unsigned low = 0, high = tree->n;
    while (low < high) { /* the first that is not below `path` */
        unsigned mid = (low + high) / 2;
        if (strcmp(tree->entries[mid].path, path) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    char last[256] = "";
    bool any = false;
    for (unsigned i = low; i < tree->n && strncmp(tree->entries[i].path, path, len) == 0; i++) {
        const char *rest = tree->entries[i].path + len;
        if (*rest != '/')
            continue; /* "/a-b" stands between "/a" and "/a/c" */
        size_t name = strcspn(++rest, "/");
        any = true;
        if (name == 0 || name >= sizeof(last) || (strncmp(last, rest, name) == 0 && last[name] == '\0'))
            continue;
        memcpy(last, rest, name);
        last[name] = '\0';
        if (!each(arg, last))
            break;
    }
    return any ? 0 : -ENOENT;
}

/* A line into an entry; false: a comment or empty. */
static int parse_line(char *line, struct entry *ret)
{
    if (*line == '\0' || *line == '#')
        return 0;
    char *equals = strstr(line, " = "), *arrow = strstr(line, " -> ");
    bool is_link = arrow && (!equals || arrow < equals);
    char *at = is_link ? arrow : equals;
    if (*line != '/' || !at)
        return LEAT_INVALID;
    *at = '\0';
    *ret = (struct entry){.path = line, .value = at + (is_link ? 4 : 3), .is_link = is_link};
    unescape(ret->path);
    unescape(ret->value);
    return 1;
}

int topo_text_new(const char *text, size_t len, struct topo_text **ret_tree, struct topo_files *ret_files,
                  struct leat_error *err)
{
    struct topo_text *tree = calloc(1, sizeof(*tree));
    unsigned lines = 1;
    for (size_t i = 0; i < len && lines <= LINES_MAX; i++)
        lines += text[i] == '\n';
    if (tree) {
        tree->copy = strndup(text, len);
        tree->entries = calloc(lines, sizeof(*tree->entries));
    }
    if (!tree || !tree->copy || !tree->entries) {
        topo_text_free(tree);
        return error_set(err, -ENOMEM, "out of memory");
    }
    char *rest = tree->copy;
    for (unsigned i = 1; rest && i <= lines; i++) {
        char *line = strsep(&rest, "\n");
        int rc = i > LINES_MAX ? LEAT_INVALID : parse_line(line, &tree->entries[tree->n]);
        if (rc == LEAT_INVALID) {
            topo_text_free(tree);
            return error_set(err, LEAT_INVALID,
                             "line %u of a recorded tree: `/path = text` or `/path -> target` is wanted", i);
        }
        tree->n += rc == 1;
    }
    qsort(tree->entries, tree->n, sizeof(*tree->entries), by_path);
    *ret_tree = tree;
    *ret_files = (struct topo_files){.ctx = tree, .text = tree_text, .link = tree_link, .list = tree_list};
    return 0;
}

void topo_text_free(struct topo_text *tree)
{
    if (!tree)
        return;
    free(tree->entries);
    free(tree->copy);
    free(tree);
}
