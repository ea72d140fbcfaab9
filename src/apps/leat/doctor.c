/* SPDX-License-Identifier: Apache-2.0 */
/* doctor.c: runs the checks of doctor_checks.c and prints what they found; reading of /proc and /sys for them. */
#include "apps/leat/doctor.h"

#include <fcntl.h>
#include <stdarg.h>

#include "apps/leat/cli.h"
#include "base/fdio.h"

int doctor_read(const struct doctor *d, const char *path, char *out, size_t cap)
{
    char full[4096 + 256];
    if ((size_t)snprintf(full, sizeof(full), "%s%s", d->root, path) >= sizeof(full))
        return -ENAMETOOLONG;
    AUTO_CLOSE int fd = open(full, O_RDONLY | O_CLOEXEC);
    return fd < 0 ? -errno : fd_read_text(fd, out, cap);
}

int doctor_read_u64(const struct doctor *d, const char *path, uint64_t *ret)
{
    char text[64], *end;
    int rc = doctor_read(d, path, text, sizeof(text));
    if (rc < 0)
        return rc;
    if (strcmp(text, "max") == 0) {
        *ret = UINT64_MAX;
        return 0;
    }
    errno = 0;
    uint64_t v = strtoull(text, &end, 10);
    if (end == text || *end || errno)
        return -EINVAL;
    *ret = v;
    return 0;
}

/* The line of a file that begins with `name`, copied behind it to `out`. */
static int find_line(const struct doctor *d, const char *path, const char *name, char *out, size_t cap)
{
    AUTO_FREE char *text = malloc(16 * KIB);
    if (!text)
        return -ENOMEM;
    int rc = doctor_read(d, path, text, 16 * KIB);
    if (rc < 0)
        return rc;
    char *save = NULL;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        if (strncmp(line, name, strlen(name)) == 0) {
            snprintf(out, cap, "%s", line + strlen(name));
            return 0;
        }
    }
    return -ENOENT;
}

int doctor_read_line(const struct doctor *d, const char *path, const char *name, uint64_t *ret)
{
    char rest[256], *end;
    int rc = find_line(d, path, name, rest, sizeof(rest));
    if (rc < 0)
        return rc;
    char *at = rest + strspn(rest, ": \t");
    uint64_t v = strtoull(at, &end, 10);
    if (end == at)
        return -EINVAL;
    bool kib = strstr(end, "kB") != NULL;
    if (kib && mul_overflows(v, 1024, &v))
        return -EINVAL;
    *ret = v;
    return 0;
}

int doctor_limit(const struct doctor *d, const char *name, uint64_t *ret_soft, uint64_t *ret_hard)
{
    char rest[256], soft[32], hard[32];
    int rc = find_line(d, "/proc/self/limits", name, rest, sizeof(rest));
    if (rc < 0)
        return rc;
    if (sscanf(rest, " %31s %31s", soft, hard) != 2)
        return -EINVAL;
    *ret_soft = strcmp(soft, "unlimited") == 0 ? UINT64_MAX : strtoull(soft, NULL, 10);
    *ret_hard = strcmp(hard, "unlimited") == 0 ? UINT64_MAX : strtoull(hard, NULL, 10);
    return 0;
}

/* One hierarchy: from the group up to the mount's top, the smallest limit. Groups that are not there (a control group
 * namespace) are passed over. */
static void cgroup_walk(const struct doctor *d, const char *mount, char *group, const char *limit_file,
                        const char *used_file, uint64_t *limit, uint64_t *used, char *where, size_t cap)
{
    for (;;) {
        char path[4096];
        uint64_t v;
        snprintf(path, sizeof(path), "%s%s/%s", mount, strcmp(group, "/") == 0 ? "" : group, limit_file);
        /* v1 says "no limit" by a number near 2^63. */
        if (doctor_read_u64(d, path, &v) == 0 && v < (1ull << 62) && v < *limit) {
            *limit = v;
            snprintf(where, cap, "%s", path);
            snprintf(path, sizeof(path), "%s%s/%s", mount, strcmp(group, "/") == 0 ? "" : group, used_file);
            if (doctor_read_u64(d, path, used) < 0)
                *used = 0;
        }
        char *slash = strrchr(group, '/');
        if (!slash || strcmp(group, "/") == 0 || group[0] == '\0')
            return;
        *slash = '\0';
        if (group[0] == '\0')
            strcpy(group, "/");
    }
}

void doctor_cgroup_memory(const struct doctor *d, uint64_t *ret_limit, uint64_t *ret_used, char *where,
                          size_t cap)
{
    *ret_limit = UINT64_MAX;
    *ret_used = 0;
    where[0] = '\0';
    AUTO_FREE char *text = malloc(16 * KIB);
    if (!text || doctor_read(d, "/proc/self/cgroup", text, 16 * KIB) < 0)
        return;
    char *save = NULL;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        /* "0::/a/b" is v2; "4:memory:/a/b" v1. */
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = '\0';
        controllers++;
        char copy[2048];
        if (*controllers == '\0') {
            static const char *const mounts[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
            for (size_t i = 0; i < ARRAY_LEN(mounts); i++) {
                snprintf(copy, sizeof(copy), "%s", group);
                cgroup_walk(d, mounts[i], copy, "memory.max", "memory.current", ret_limit, ret_used, where,
                            cap);
            }
        } else if (strcmp(controllers, "memory") == 0 || strstr(controllers, "memory,") ||
                   strstr(controllers, ",memory")) {
            snprintf(copy, sizeof(copy), "%s", group);
            cgroup_walk(d, "/sys/fs/cgroup/memory", copy, "memory.limit_in_bytes", "memory.usage_in_bytes",
                        ret_limit, ret_used, where, cap);
        }
    }
}

/* --- findings ------------------------------------------------------------------------------------------------ */

void finding_say(struct finding *f, enum doctor_status status, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    f->status = status;
    vsnprintf(f->found, sizeof(f->found), fmt, args);
    va_end(args);
}

void finding_cost(struct finding *f, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(f->cost, sizeof(f->cost), fmt, args);
    va_end(args);
}

void finding_repair(struct finding *f, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(f->mend, sizeof(f->mend), fmt, args);
    va_end(args);
}

void finding_number(struct finding *f, const char *key, double value)
{
    if (f->nnumbers < ARRAY_LEN(f->numbers)) {
        f->numbers[f->nnumbers].key = key;
        f->numbers[f->nnumbers++].value = value;
    }
}

/* The pool of a daemon without a configuration: half of the memory that is available or that the control
 * group leaves. */
static uint64_t default_pool(const struct doctor *d)
{
    uint64_t available = 0, limit, used;
    char where[4096];
    doctor_read_line(d, "/proc/meminfo", "MemAvailable", &available);
    doctor_cgroup_memory(d, &limit, &used, where, sizeof(where));
    uint64_t left = limit == UINT64_MAX ? UINT64_MAX : limit > used ? limit - used : 0;
    return MIN(available, left) / 2;
}

static const char *const status_words[] = {"ok", "warn", "bad", "skipped"};

static void print_finding(struct cli_json *j, const struct cli *cli, const struct finding *f)
{
    if (cli->json) {
        json_open(j, NULL, '{');
        json_text(j, "name", f->name);
        json_text(j, "status", status_words[f->status]);
        json_text(j, "found", f->found);
        json_text(j, "cost", *f->cost ? f->cost : NULL);
        json_text(j, "mend", *f->mend ? f->mend : NULL);
        json_open(j, "numbers", '{');
        for (unsigned i = 0; i < f->nnumbers; i++)
            json_double(j, f->numbers[i].key, f->numbers[i].value);
        json_close(j, '}');
        json_close(j, '}');
        return;
    }
    if (f->status == DOCTOR_SKIPPED || (cli->quiet && f->status == DOCTOR_OK))
        return;
    printf("%-5s %-14s %s\n", status_words[f->status], f->name, f->found);
    if (*f->cost)
        printf("%20s costs: %s\n", "", f->cost);
    if (*f->mend)
        printf("%20s mend:  %s\n", "", f->mend);
}

int cmd_doctor(struct cli *cli)
{
    struct doctor d = {.measure = true};
    bool strict = false;
    for (const struct cli_given *o = cli->given; o->id; o++) {
        if (o->id == 300 && cli_parse_size(o->arg, &d.pool_bytes) < 0)
            return cli_usage_error(cli, "--pool %s: give a size, as 512M or 4G", o->arg);
        d.measure = d.measure && o->id != 310;
        strict = strict || o->id == 311;
    }
    d.path = cli->noperands ? cli->operands[0] : NULL;
    d.root = getenv("LEAT_DOCTOR_ROOT");
    d.recorded = d.root && *d.root;
    if (!d.recorded)
        d.root = "";
    else
        d.measure = false;
    if (d.path && access(d.path, F_OK) < 0) {
        int rc = -errno;
        return cli_error(cli, cli_exit_of(rc), "%s: %s", d.path, strerror(-rc));
    }
    d.spare_bytes = default_pool(&d);
    if (d.pool_bytes == 0)
        d.pool_bytes = d.spare_bytes;

    struct cli_json j = {0};
    if (cli->json) {
        json_begin(&j, stdout, false);
        json_u64(&j, "pool_bytes", d.pool_bytes);
        json_open(&j, "checks", '[');
    }
    unsigned counts[4] = {0};
    for (const struct doctor_check *c = doctor_checks; c->name; c++) {
        struct finding f = {.name = c->name, .status = DOCTOR_SKIPPED};
        c->look(&d, &f);
        counts[f.status]++;
        print_finding(&j, cli, &f);
        fflush(stdout);
    }
    bool failed = counts[DOCTOR_BAD] || (strict && counts[DOCTOR_WARN]);
    if (cli->json) {
        json_close(&j, ']');
        for (unsigned i = 0; i < ARRAY_LEN(counts); i++)
            json_u64(&j, status_words[i], counts[i]);
        json_close(&j, '}');
    } else if (!cli->quiet) {
        char pool[SIZE_TEXT_MAX];
        printf("%u ok, %u warn, %u bad; judged against a pool of %s\n", counts[DOCTOR_OK],
               counts[DOCTOR_WARN], counts[DOCTOR_BAD], size_format(d.pool_bytes, pool));
    }
    return failed ? CLI_FAILURE : CLI_OK;
}
