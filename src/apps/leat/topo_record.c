/* SPDX-License-Identifier: Apache-2.0 */
/*
 * topo_record.c: a tar archive of what was read: small text files and links, nothing else, by construction. A second reading of a
 * path is left out.
 */
#include "apps/leat/topo.h"
#include "base/array.h"

#include <stdio.h>

struct topo_record {
    struct topo_files under;
    char *path;
    FILE *out;
    char **seen;
    unsigned nseen, cap;
    int failed; /* the errno value of what failed first */
};

static bool first_time(struct topo_record *r, const char *path)
{
    for (unsigned i = 0; i < r->nseen; i++)
        if (strcmp(r->seen[i], path) == 0)
            return false;
    if (array_reserve(&r->seen, &r->cap, r->nseen + 1) < 0 || !(r->seen[r->nseen] = strdup(path)))
        return !(r->failed = ENOMEM);
    r->nseen++;
    return true;
}

/* A header, and what belongs to it. Names longer than its 100 bytes were given before, by an entry of their own. */
static void put_block(struct topo_record *r, char type, const char *name, const char *link, const char *data,
                      size_t size)
{
    struct {
        char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], sum[8], type, link[100], magic[8],
            rest[247];
    } h = {.type = type};
    _Static_assert(sizeof(h) == 512, "a tar header is a block");
    static const char zeros[512];
    memcpy(h.name, name, strnlen(name, sizeof(h.name)));
    memcpy(h.link, link, strnlen(link, sizeof(h.link)));
    memcpy(h.mode, "0000644", 7);
    memcpy(h.uid, "0000000", 7);
    memcpy(h.gid, "0000000", 7);
    snprintf(h.size, sizeof(h.size), "%011o", (unsigned)size);
    memcpy(h.mtime, "00000000000", 11);
    memcpy(h.magic, "ustar  ", 8); /* GNU's: its long names are understood everywhere */
    memset(h.sum, ' ', 8);
    unsigned sum = 0;
    for (size_t i = 0; i < sizeof(h); i++)
        sum += ((const unsigned char *)&h)[i];
    snprintf(h.sum, sizeof(h.sum), "%06o", sum);
    fwrite(&h, 1, sizeof(h), r->out);
    fwrite(data, 1, size, r->out);
    fwrite(zeros, 1, (512 - size % 512) % 512, r->out);
    if (!r->failed && ferror(r->out))
        r->failed = errno;
}

static void put(struct topo_record *r, const char *path, bool is_link, const char *data)
{
    if (!first_time(r, path))
        return;
    const char *name = path + 1, *target = is_link ? data : "";
    if (strlen(name) > 100)
        put_block(r, 'L', "././@LongLink", "", name, strlen(name) + 1);
    if (strlen(target) > 100)
        put_block(r, 'K', "././@LongLink", "", target, strlen(target) + 1);
    put_block(r, is_link ? '2' : '0', name, target, is_link ? "" : data, is_link ? 0 : strlen(data));
}

static int record_text(void *ctx, const char *path, char *out, size_t cap)
{
    struct topo_record *r = ctx;
    int rc = r->under.text(r->under.ctx, path, out, cap);
    if (rc == 0)
        put(r, path, false, out);
    return rc;
}

static int record_link(void *ctx, const char *path, char *out, size_t cap)
{
    struct topo_record *r = ctx;
    int rc = r->under.link(r->under.ctx, path, out, cap);
    if (rc == 0)
        put(r, path, true, out);
    return rc;
}

static int record_list(void *ctx, const char *path, bool (*each)(void *arg, const char *name), void *arg)
{
    struct topo_record *r = ctx;
    return r->under.list(r->under.ctx, path, each, arg);
}

int topo_record_new(const char *path, const struct topo_files *under, struct topo_record **ret_record,
                    struct topo_files *ret_files, struct leat_error *err)
{
    struct topo_record *r = calloc(1, sizeof(*r));
    if (!r || !(r->path = strdup(path))) {
        free(r);
        return error_set(err, -ENOMEM, "out of memory");
    }
    r->out = fopen(path, "wxe");
    if (!r->out) {
        int rc = error_sys(err, -errno, "%s", path);
        free(TAKE_PTR(r->path)); /* not ours: it is not taken away */
        topo_record_free(r);
        return rc;
    }
    r->under = *under;
    *ret_record = r;
    *ret_files = (struct topo_files){.ctx = r, .text = record_text, .link = record_link, .list = record_list};
    return 0;
}

unsigned topo_record_count(const struct topo_record *record)
{
    return record->nseen;
}

int topo_record_finish(struct topo_record *r, struct leat_error *err)
{
    static const char zeros[1024];
    fwrite(zeros, 1, sizeof(zeros), r->out);
    if (!r->failed && (fflush(r->out) != 0 || ferror(r->out)))
        r->failed = errno ? errno : EIO;
    int rc = r->failed ? error_sys(err, -r->failed, "%s", r->path) : 0;
    if (!rc)
        free(TAKE_PTR(r->path)); /* it stays */
    topo_record_free(r);
    return rc;
}

void topo_record_free(struct topo_record *r)
{
    if (!r)
        return;
    if (r->out)
        fclose(r->out);
    if (r->path)
        unlink(r->path);
    for (unsigned i = 0; i < r->nseen; i++)
        free(r->seen[i]);
    free(r->seen);
    free(r->path);
    free(r);
}
