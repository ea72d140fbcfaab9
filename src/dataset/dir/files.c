/* SPDX-License-Identifier: Apache-2.0 */
/* dir/files.c: shared by trees of files and of objects: which files count, addresses, warnings. */
#include <fnmatch.h>
#include <stdio.h>
#include <strings.h>

#include "base/log.h"
#include "dataset/scan.h"

#define SHOWN_MAX 5u /* names in a warning */

uint64_t dir_place(struct index_builder *b, uint32_t source, uint64_t bytes)
{
    uint64_t at = bytes >= DIR_LARGE_FILE
                      ? index_builder_reserve(b, align_up(bytes, INDEX_FILE_ALIGN), INDEX_FILE_ALIGN, 0)
                      : index_builder_reserve(b, bytes, INDEX_SMALL_ALIGN, 0);
    if (bytes)
        index_builder_extent(b, &(struct index_extent){.address = at,
                                                       .bytes = bytes,
                                                       .source_bytes = bytes,
                                                       .source = source,
                                                       .kind = INDEX_EXTENT_RAW});
    return at;
}

static bool has_extension(const char *name, const char *extensions)
{
    size_t len = strlen(name);
    for (const char *e = extensions; *e; e += strspn(e, ",")) {
        size_t n = strcspn(e, ",");
        size_t dot = *e == '.' ? 0 : 1;
        if (len > n + dot && (dot == 0 || name[len - n - 1] == '.') && !strncasecmp(name + len - n, e, n))
            return true;
        e += n;
    }
    return false;
}

bool dir_wanted(const struct scan *scan, const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const struct scan_filter *f = &scan->filter;
    if (f->pattern && fnmatch(f->pattern, strchr(f->pattern, '/') ? path : name, FNM_PATHNAME))
        return false;
    return !f->extensions || has_extension(name, f->extensions);
}

void dir_leave_out(struct dir_left_out *left_out, const char *path)
{
    if (left_out->n++ >= SHOWN_MAX)
        return;
    size_t used = strlen(left_out->names);
    char shown[80];
    scan_escape(path, shown, sizeof(shown));
    snprintf(left_out->names + used, sizeof(left_out->names) - used, "%s%s", used ? ", " : "", shown);
}

void dir_report(const char *root, const struct dir_left_out *left_out, const char *what)
{
    if (left_out->n)
        log_warning("%s: %llu %s: %s%s", root, (unsigned long long)left_out->n, what, left_out->names,
                    left_out->n > SHOWN_MAX ? ", ..." : "");
}

int dir_empty(const struct scan *scan, const char *root, struct leat_error *err)
{
    char shown[300];
    scan_escape(root, shown, sizeof(shown));
    bool filtered = scan_filtered(scan);
    return error_set(err, LEAT_INVALID,
                     "the dataset is empty: there is no file in %s (hidden ones do not count)%s", shown,
                     filtered ? " that pattern= and extensions= accept" : "");
}
