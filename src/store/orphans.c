/* SPDX-License-Identifier: Apache-2.0 */
/*
 * orphans.c: files with a whole trailer that no record of the log names.
 *
 * They are either PUTs that ended between trailer and record (by a kill or a power cut) and were never
 * acknowledged. Or they are objects whose records the log has lost. A start cannot tell the two apart, so it
 * neither shows nor deletes them: they are moved to orphans/, named in the log of the daemon, and counted. A
 * kill leaves as many as there were PUTs in that short moment; so that they do not pile up, they go after 30
 * days, which is logged, too.
 */
#include "store/internal.h"

#include <dirent.h>
#include <sys/stat.h>

#include "base/log.h"

static void name_of(const struct path *p, uint64_t file, char out[PATH_FILE_MAX])
{
    snprintf(out, PATH_FILE_MAX, "%s/orphans/%012llx", p->dir, (unsigned long long)file);
}

void store_orphan_keep(struct path *p, uint64_t file, const struct trailer *t)
{
    char from[PATH_FILE_MAX], to[PATH_FILE_MAX], text[KEY_TEXT_MAX] = "an object that cannot be read";
    store_path_file_name(p, file, from);
    name_of(p, file, to);
    if (t)
        store_key_text(t->bucket, t->key, t->key_len, text);
    int rc = p->store->io->rename(p->store->io, from, to);
    if (rc < 0) {
        log_error("%s: %s (file %012llx) is named by no record of the index log, and cannot be moved to "
                  "orphans/: %s",
                  p->dir, text, (unsigned long long)file, strerror(-rc));
        return;
    }
    if (atomic_fetch_add(&p->orphans, 1) == 0)
        p->orphans_since_ns = store_wall_ns();
    log_warning(
        "%s: %s is named by no record of the index log: moved to orphans/%012llx, %llu bytes; it was never "
        "acknowledged, or its record was lost; it is kept for 30 days",
        p->dir, text, (unsigned long long)file, (unsigned long long)(t ? t->bytes : 0));
}

void store_orphans_age(struct path *p, int64_t before_ns, uint64_t *ret_highest)
{
    char dir[PATH_FILE_MAX], name[PATH_FILE_MAX];
    uint64_t n = 0, highest = 0;
    int64_t since = INT64_MAX;
    snprintf(dir, sizeof(dir), "%s/orphans", p->dir);
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        char *end;
        unsigned long long file = strtoull(e->d_name, &end, 16);
        struct stat st;
        if (end - e->d_name != 12 || *end)
            continue;
        name_of(p, file, name);
        if (stat(name, &st) < 0)
            continue;
        int64_t moved = (int64_t)st.st_ctim.tv_sec * 1000000000 + st.st_ctim.tv_nsec;
        if (moved < before_ns && p->store->io->unlink(p->store->io, name) == 0) {
            log_info("%s: orphans/%s is deleted: no record has named it for 30 days", p->dir, e->d_name);
            continue;
        }
        since = MIN(since, moved);
        highest = MAX(highest, file);
        n++;
    }
    if (d)
        closedir(d);
    p->orphans_since_ns = since;
    atomic_store(&p->orphans, n);
    if (ret_highest)
        *ret_highest = highest;
}
