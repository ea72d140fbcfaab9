/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory this host, and the control group of this process, allow. */
#include "pool/region/memory.h"

#include "base/fdio.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>

static bool read_file(const char *path, char *buf, size_t cap)
{
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd >= 0 && fd_read_text(fd, buf, cap) == 0 && *buf;
}

/* A number out of a control file; UINT64_MAX for "max", for none, and for v1's "no limit" values. */
static uint64_t read_number(const char *dir, const char *name)
{
    char path[4200], text[64];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    if (!read_file(path, text, sizeof(text)) || text[0] < '0' || text[0] > '9')
        return UINT64_MAX;
    uint64_t v = strtoull(text, NULL, 10);
    return v >= (1ull << 60) ? UINT64_MAX : v;
}

static uint64_t stat_value(const char *dir, const char *key)
{
    char path[4200], text[8192];
    snprintf(path, sizeof(path), "%s/memory.stat", dir);
    if (!read_file(path, text, sizeof(text)))
        return 0;
    size_t len = strlen(key);
    for (char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, len) == 0 && line[len] == ' ')
            return strtoull(line + len, NULL, 10);
    }
    return 0;
}

/* Headroom of one group: limit - usage, page cache counting as free. */
static uint64_t group_headroom(const char *dir, const char *limit_name, const char *usage_name,
                               const char *cache_key)
{
    uint64_t limit = read_number(dir, limit_name);
    if (limit == UINT64_MAX)
        return UINT64_MAX;
    uint64_t used = read_number(dir, usage_name), cache = stat_value(dir, cache_key);
    used = used == UINT64_MAX ? 0 : used;
    used -= MIN(used, cache);
    return limit > used ? limit - used : 0;
}

/* The tightest of our group and all above it. */
static uint64_t groups_headroom(const char *mount, const char *group, bool v2)
{
    char dir[4200];
    snprintf(dir, sizeof(dir), "%s%s", mount, group);
    uint64_t least = UINT64_MAX;
    size_t floor = strlen(mount);
    for (;;) {
        uint64_t h =
            v2 ? group_headroom(dir, "memory.max", "memory.current", "inactive_file")
               : group_headroom(dir, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file");
        least = MIN(least, h);
        char *slash = strrchr(dir, '/');
        if (!slash || (size_t)(slash - dir) < floor)
            return least;
        *slash = 0;
    }
}

/* One of a list with commas. */
static bool has_memory(const char *controllers)
{
    for (const char *at = controllers; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, "memory", 6) == 0 && (at[6] == ',' || at[6] == 0))
            return true;
    }
    return false;
}

static uint64_t cgroup_headroom(const struct memory_paths *paths)
{
    char text[8192], v1[4200], *save;
    uint64_t least = UINT64_MAX;
    if (!read_file(paths->self_cgroup, text, sizeof(text)))
        return least;
    snprintf(v1, sizeof(v1), "%s/memory", paths->cgroup_root);
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = 0;
        controllers++;
        if (strcmp(group, "/") == 0)
            *group = 0;
        if (*controllers == 0)
            least = MIN(least, groups_headroom(paths->cgroup_root, group, true));
        else if (has_memory(controllers))
            least = MIN(least, groups_headroom(v1, group, false));
    }
    return least;
}

uint64_t memory_available(const struct memory_paths *paths)
{
    char text[4096];
    uint64_t available = 1 * GIB;
    if (read_file(paths->meminfo, text, sizeof(text))) {
        const char *at = strstr(text, "MemAvailable:");
        uint64_t kib;
        if (at && sscanf(at, "MemAvailable: %" SCNu64, &kib) == 1)
            available = kib * KIB;
    }
    return MIN(available, cgroup_headroom(paths));
}

uint64_t pool_memory_available(void)
{
    return memory_available(&(struct memory_paths){
        .meminfo = "/proc/meminfo", .self_cgroup = "/proc/self/cgroup", .cgroup_root = "/sys/fs/cgroup"});
}

uint64_t pool_default_cap(void)
{
    return MAX(align_down(pool_memory_available() / 2, 2 * MIB), 16 * MIB);
}

uint64_t pool_default_region(uint64_t cap_bytes)
{
    uint64_t region = 512 * MIB;
    while (region > 2 * MIB && cap_bytes / region < 8)
        region /= 2;
    return region;
}
