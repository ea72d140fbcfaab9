/* SPDX-License-Identifier: Apache-2.0 */
/*
 * doctor_checks.c: one function a check. Each says what is so; where that is not best, what it costs, and the line that
 * mends it. Costs are figures only where this run measured them.
 */
#include "apps/leat/doctor.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>

#include "apps/leat/cli.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "disk/disk.h"
#include "net/rdma.h"
#include "leat-config.h"

#define CAP_IPC_LOCK 14
#define REGION       (512 * MIB) /* the default */

static void check_kernel(const struct doctor *d, struct finding *f)
{
    char release[128];
    unsigned major = 0, minor = 0;
    if (doctor_read(d, "/proc/sys/kernel/osrelease", release, sizeof(release)) < 0 ||
        sscanf(release, "%u.%u", &major, &minor) != 2) {
        finding_say(f, DOCTOR_WARN, "the version of the kernel is unknown (no /proc?)");
        finding_cost(f, "most checks below are blind");
        finding_repair(f, "sudo mount -t proc proc /proc");
        return;
    }
    unsigned version = major * 1000 + minor;
    if (version < 5006) {
        finding_say(f, DOCTOR_BAD, "Linux %s", release);
        finding_cost(f, "no openat2 (5.6): a system daemon cannot open below its roots only");
        finding_repair(f, "install a kernel of 5.6 or later; 6.1 or later is best");
    } else if (version < 6001) {
        finding_say(f, DOCTOR_WARN, "Linux %s", release);
        finding_cost(
            f, "before 6.1 the kernel does not report the alignment of direct I/O: Leat finds it by trial");
        finding_repair(f, "install a kernel of 6.1 or later");
    } else {
        finding_say(f, DOCTOR_OK, "Linux %s", release);
    }
}

static void check_crc(const struct doctor *d, struct finding *f)
{
    double gb_s = 0;
    char speed[48] = "";
    if (d->measure && probe_crc(30 * NS_PER_MS, &gb_s) == 0) {
        finding_number(f, "crc32c_gb_per_s", gb_s);
        snprintf(speed, sizeof(speed), ", %.1f GB/s on one core, measured now", gb_s);
    }
    bool table = strcmp(crc32c_impl(), "table") == 0;
    finding_say(f, table ? DOCTOR_WARN : DOCTOR_OK, "CRC32C by %s%s", crc32c_impl(), speed);
    if (table) {
        finding_cost(
            f, "every byte read is checksummed: without the CPU's instructions that is what bounds a read");
        finding_repair(
            f,
            "a CPU with SSE4.2 or the ARMv8 CRC extension; in a virtual machine, pass the host's CPU model");
    }
}

static void check_memory(const struct doctor *d, struct finding *f)
{
    uint64_t total = 0, available = 0, limit, used;
    char where[4096], a[SIZE_TEXT_MAX], b[SIZE_TEXT_MAX], c[SIZE_TEXT_MAX];
    if (doctor_read_line(d, "/proc/meminfo", "MemTotal", &total) < 0)
        return;
    doctor_read_line(d, "/proc/meminfo", "MemAvailable", &available);
    doctor_cgroup_memory(d, &limit, &used, where, sizeof(where));
    finding_number(f, "total_bytes", (double)total);
    finding_number(f, "available_bytes", (double)available);
    if (limit >= total) {
        bool fits = d->pool_bytes <= available;
        finding_say(f, fits ? DOCTOR_OK : DOCTOR_BAD, "%s of %s available, no smaller control group limit",
                    size_format(available, a), size_format(total, b));
        if (!fits) {
            finding_cost(f, "a pool of %s does not fit: leatd reserves its regions and reports \"no space\"",
                         size_format(d->pool_bytes, c));
            finding_repair(f, "--pool %" PRIu64 "M", (uint64_t)(available / 2 / MIB));
        }
        return;
    }
    uint64_t left = limit > used ? limit - used : 0;
    finding_number(f, "cgroup_limit_bytes", (double)limit);
    finding_number(f, "cgroup_left_bytes", (double)left);
    bool fits = d->pool_bytes <= left && left >= 64 * MIB;
    finding_say(f, fits ? DOCTOR_WARN : DOCTOR_BAD,
                "the control group allows %s of the host's %s, %s is left", size_format(limit, a),
                size_format(total, b), size_format(left, c));
    finding_cost(f,
                 fits ? "pool, page cache and the job's own memory share it"
                      : "a pool of %s does not fit beside the job's own memory",
                 size_format(d->pool_bytes, a));
    finding_repair(f, "echo max | sudo tee %.360s", where);
}

static void check_memlock(const struct doctor *d, struct finding *f)
{
    uint64_t soft, hard, caps = 0;
    char text[64], a[SIZE_TEXT_MAX], b[SIZE_TEXT_MAX];
    if (doctor_limit(d, "Max locked memory", &soft, &hard) < 0)
        return;
    AUTO_FREE char *status = malloc(16 * KIB);
    if (status && doctor_read(d, "/proc/self/status", status, 16 * KIB) == 0) {
        const char *line = strstr(status, "CapEff:");
        if (line)
            caps = strtoull(line + 7, NULL, 16);
    }
    if (soft != UINT64_MAX)
        finding_number(f, "soft_bytes", (double)soft);
    snprintf(text, sizeof(text), "%s", soft == UINT64_MAX ? "unlimited" : size_format(soft, a));
    if (caps >> CAP_IPC_LOCK & 1) {
        finding_say(f, DOCTOR_OK, "RLIMIT_MEMLOCK is %s, CAP_IPC_LOCK lifts it", text);
        return;
    }
    if (soft >= d->pool_bytes) {
        finding_say(f, DOCTOR_OK, "RLIMIT_MEMLOCK is %s", text);
        return;
    }
    finding_say(f, DOCTOR_WARN, "RLIMIT_MEMLOCK is %s, less than a pool of %s", text,
                size_format(d->pool_bytes, b));
    finding_cost(f, "regions past it are not registered with io_uring: each read pins its pages again");
    if (hard >= d->pool_bytes)
        finding_repair(f, "ulimit -l %s", hard == UINT64_MAX ? "unlimited" : "hard");
    else
        finding_repair(f, "echo '* - memlock unlimited' | sudo tee /etc/security/limits.d/leat.conf  "
                          "(then log in again; in a unit: LimitMEMLOCK=infinity)");
}

/* The device's directory is in the tree; library and limits are this process's, as leatd's will be if it is started alike. */
static void check_rdma(const struct doctor *d, struct finding *f)
{
    char path[4200];
    struct net_rdma_report r;
    snprintf(path, sizeof(path), "%.4000s/sys/class/infiniband", d->root);
    if (d->recorded || access(path, F_OK) < 0) {
        if (!d->recorded || access(path, F_OK) < 0)
            finding_say(f, DOCTOR_OK, "no RDMA device: other hosts are read by TCP");
        return;
    }
    net_rdma_report(&r);
    finding_number(f, "ucx", r.ucx);
    if (!r.devices) {
        finding_say(f, DOCTOR_WARN, "RDMA devices, but no port of them is active");
        finding_cost(f, "other hosts are read by TCP");
        finding_repair(f, "rdma link   (cable, switch port, or on RoCE: ip link set NAME up)");
    } else if (!r.ucx) {
        finding_say(f, DOCTOR_WARN, "%.150s; %.120s", r.devices_text, r.ucx_text);
        finding_cost(f, "other hosts are read by TCP");
        finding_repair(f, r.built ? "sudo apt install libucx0"
                                  : "sudo apt install libucx-dev   (and build Leat again)");
    } else if (access("/dev/infiniband/rdma_cm", R_OK | W_OK) < 0) {
        finding_say(f, DOCTOR_WARN, "%.150s, but /dev/infiniband/rdma_cm: %s", r.devices_text,
                    strerror(errno));
        finding_cost(f, "no RDMA connection can be made: other hosts are read by TCP");
        finding_repair(
            f, "sudo modprobe rdma_ucm   (in a container: --device=/dev/infiniband --ulimit memlock=-1)");
    } else if (!r.memlock_unlimited && r.memlock_bytes < d->pool_bytes) {
        finding_say(f, DOCTOR_WARN, "%.150s, %.60s, but RLIMIT_MEMLOCK is less than the pool", r.devices_text,
                    r.ucx_text);
        finding_cost(f, "regions cannot be registered: reads by RDMA fail or go by TCP");
        finding_repair(f, "ulimit -l unlimited   (in a unit: LimitMEMLOCK=infinity)");
    } else {
        finding_say(f, DOCTOR_OK, "%.200s, %.60s", r.devices_text, r.ucx_text);
    }
}

/* The word in brackets. */
static bool chosen_word(const char *text, char *out, size_t cap)
{
    const char *open = strchr(text, '['), *close = open ? strchr(open, ']') : NULL;
    if (!close)
        return false;
    snprintf(out, cap, "%.*s", (int)(close - open - 1), open + 1);
    return true;
}

#define SHMEM_ENABLED  "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
#define SHMEM_PMD_FILE "/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/shmem_enabled"

static void check_huge_pages(const struct doctor *d, struct finding *f)
{
    char text[200], word[32] = "", pmd[32] = "inherit";
    if (doctor_read(d, SHMEM_ENABLED, text, sizeof(text)) < 0 || !chosen_word(text, word, sizeof(word))) {
        finding_say(f, DOCTOR_WARN, "this kernel has no huge pages for shared memory");
        finding_cost(f, "the pool is mapped with small pages: more TLB misses in every gather");
        finding_repair(f, "a kernel with CONFIG_TRANSPARENT_HUGEPAGE=y");
        return;
    }
    if (doctor_read(d, SHMEM_PMD_FILE, text, sizeof(text)) == 0)
        chosen_word(text, pmd, sizeof(pmd));
    /* Since 6.11 each size has a switch of its own, which says "inherit" to follow the old one. */
    const char *rule = strcmp(pmd, "inherit") == 0 || strcmp(pmd, "never") == 0 ? word : pmd;
    bool usable = strcmp(rule, "always") == 0 || strcmp(rule, "advise") == 0 ||
                  strcmp(rule, "within_size") == 0 || strcmp(rule, "force") == 0;
    double plain = 0, huge = 0, share = 0, ignored;
    char speed[120] = "";
    /* Past the last cache where there is room for it. */
    uint64_t bytes = d->spare_bytes >= 2 * GIB ? 256 * MIB : 64 * MIB;
    enum probe_memory with_huge = usable ? PROBE_MEMFD_HUGE : PROBE_PRIVATE_HUGE;
    if (d->measure && d->spare_bytes >= 256 * MIB &&
        probe_gather(PROBE_MEMFD_PLAIN, bytes, 350 * NS_PER_MS, &plain, &ignored) == 0 &&
        probe_gather(with_huge, bytes, 350 * NS_PER_MS, &huge, &share) == 0) {
        finding_number(f, "small_pages_gb_per_s", plain);
        finding_number(f, "huge_share", share);
        if (share > 0.5) {
            finding_number(f, "huge_pages_gb_per_s", huge);
            snprintf(speed, sizeof(speed), "; measured now: %.1f GB/s, with huge pages %.1f", plain, huge);
        } else if (usable) {
            usable = false; /* allowed, and yet not given: memory in pieces */
            finding_say(f, DOCTOR_WARN, "allowed (%s), but the kernel gave none for %" PRIu64 " MiB", rule,
                        (uint64_t)(bytes / MIB));
            finding_cost(
                f, "memory is fragmented: the pool gets small pages, %.1f GB/s on one core, measured now",
                plain);
            finding_repair(f, "echo 1 | sudo tee /proc/sys/vm/compact_memory");
            return;
        }
    }
    if (usable) {
        finding_say(f, DOCTOR_OK, "allowed for shared memory (%s)%s", rule, speed);
        return;
    }
    /* The daemon does not depend on the switch where it may make a tmpfs of its own (docs/decisions/0030). */
    if (probe_hugefs(d) == 0) {
        finding_say(f, DOCTOR_OK, "in a private tmpfs of leatd's own (shmem_enabled is %s)%s", rule, speed);
        return;
    }
    finding_say(f, DOCTOR_WARN, "not for shared memory (shmem_enabled is %s)", rule);
    finding_cost(f, "the pool gets 4 KiB pages: more TLB misses in every gather%s", speed);
    finding_repair(f, "echo advise | sudo tee " SHMEM_ENABLED);
}

static void check_io_uring(const struct doctor *d, struct finding *f)
{
    int rc = probe_io_uring(d);
    uint64_t disabled = 0;
    bool known = doctor_read_u64(d, "/proc/sys/kernel/io_uring_disabled", &disabled) == 0;
    if (rc == -ENODATA)
        return;
    if (rc == 0) {
        finding_say(f, DOCTOR_OK, "io_uring works");
        return;
    }
    finding_cost(f, "reads go through a pool of threads with pread: more CPU time for each");
    if (rc == -EPERM && known && disabled) {
        finding_say(f, DOCTOR_WARN, "io_uring is switched off (kernel.io_uring_disabled is %" PRIu64 ")",
                    disabled);
        finding_repair(f, "sudo sysctl -w kernel.io_uring_disabled=0");
    } else if (rc == -EPERM || rc == -EACCES) {
        finding_say(f, DOCTOR_WARN, "io_uring is refused by this container's seccomp filter");
        finding_repair(
            f, "docker run --security-opt seccomp=unconfined ...  (or a profile that allows io_uring_setup, "
               "io_uring_enter, io_uring_register)");
    } else if (rc == -ENOSYS) {
        finding_say(f, DOCTOR_WARN, "this kernel, or its sandbox, has no io_uring");
        finding_repair(f, "a kernel with CONFIG_IO_URING=y; under gVisor, another runtime");
    } else if (rc == -ENOMEM) {
        finding_say(f, DOCTOR_WARN, "io_uring is refused: RLIMIT_MEMLOCK is used up");
        finding_repair(f, "ulimit -l unlimited");
    } else {
        finding_say(f, DOCTOR_WARN, "io_uring is refused: %s", strerror(-rc));
    }
}

static void check_memfd(const struct doctor *d, struct finding *f)
{
    int rc = probe_memfd(d);
    uint64_t noexec = 0;
    doctor_read_u64(d, "/proc/sys/vm/memfd_noexec", &noexec);
    if (rc == -ENODATA)
        return;
    if (rc == 0) {
        finding_say(f, DOCTOR_OK, "memfd works; the size of /dev/shm does not matter");
        return;
    }
    finding_say(f, DOCTOR_BAD, "memfd_create: %s", strerror(-rc));
    finding_cost(f, "no pool: regions are memfds");
    if (noexec == 2)
        finding_repair(f, "sudo sysctl -w vm.memfd_noexec=1");
    else
        finding_repair(f, "allow memfd_create and fallocate in the sandbox");
}

static void check_overcommit(const struct doctor *d, struct finding *f)
{
    uint64_t mode, limit = 0, committed = 0;
    char a[SIZE_TEXT_MAX], b[SIZE_TEXT_MAX];
    if (doctor_read_u64(d, "/proc/sys/vm/overcommit_memory", &mode) < 0)
        return;
    if (mode != 2) {
        finding_say(f, DOCTOR_OK, "vm.overcommit_memory is %" PRIu64, mode);
        return;
    }
    doctor_read_line(d, "/proc/meminfo", "CommitLimit", &limit);
    doctor_read_line(d, "/proc/meminfo", "Committed_AS", &committed);
    uint64_t left = limit > committed ? limit - committed : 0;
    finding_number(f, "commit_left_bytes", (double)left);
    if (left >= d->pool_bytes) {
        finding_say(f, DOCTOR_OK, "strict (vm.overcommit_memory is 2), %s may still be committed",
                    size_format(left, a));
        return;
    }
    finding_say(f, DOCTOR_WARN, "strict (vm.overcommit_memory is 2): %s may still be committed, a pool is %s",
                size_format(left, a), size_format(d->pool_bytes, b));
    finding_cost(f, "regions past that are refused although memory is free");
    finding_repair(f, "sudo sysctl -w vm.overcommit_memory=0");
}

static void check_descriptors(const struct doctor *d, struct finding *f)
{
    uint64_t soft, hard;
    if (doctor_limit(d, "Max open files", &soft, &hard) < 0)
        return;
    /* Two a region, one a client, and the source files that are being read. */
    uint64_t need = MAX(2 * div_up(d->pool_bytes, REGION) + 1024, (uint64_t)4096);
    /* leatd raises its own soft limit: the hard one counts. */
    if (hard == UINT64_MAX) {
        finding_say(f, DOCTOR_OK, "unlimited");
        return;
    }
    finding_number(f, "hard", (double)hard);
    if (hard >= need) {
        finding_say(f, DOCTOR_OK, "%" PRIu64 " file descriptors", hard);
        return;
    }
    finding_say(f, hard < 256 ? DOCTOR_BAD : DOCTOR_WARN,
                "%" PRIu64 " file descriptors, %" PRIu64 " are wanted", hard, need);
    finding_cost(f, "two are held for each region, one for each client, some for files being read: many "
                    "clients are refused");
    finding_repair(f, "echo '* - nofile 65536' | sudo tee /etc/security/limits.d/leat-nofile.conf  "
                      "(then log in again; in a unit: LimitNOFILE=65536)");
}

static void check_leatd(const struct doctor *d, struct finding *f)
{
    if (d->recorded)
        return;
    char path[4096];
    const char *named = getenv("LEAT_LEATD");
    if (named && *named) {
        bool there = access(named, X_OK) == 0;
        finding_say(f, there ? DOCTOR_OK : DOCTOR_BAD, "LEAT_LEATD names %s%s", named,
                    there ? "" : ", which cannot be executed");
        if (!there)
            finding_repair(f, "unset LEAT_LEATD");
        return;
    }
    ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 16);
    if (n > 0) {
        path[n] = '\0';
        char *slash = strrchr(path, '/');
        strcpy(slash ? slash + 1 : path, "leatd");
        if (access(path, X_OK) == 0) {
            finding_say(f, DOCTOR_OK, "%s", path);
            return;
        }
    }
    char *search = NULL;
    const char *env = getenv("PATH");
    if (asprintf(&search, "%s:%s", LEAT_BINDIR, env ? env : "") < 0)
        return;
    char *save = NULL;
    for (char *dir = strtok_r(search, ":", &save); dir; dir = strtok_r(NULL, ":", &save)) {
        snprintf(path, sizeof(path), "%s/leatd", dir);
        if (access(path, X_OK) == 0) {
            finding_say(f, DOCTOR_OK, "%s", path);
            free(search);
            return;
        }
    }
    free(search);
    finding_say(f, DOCTOR_BAD, "leatd is neither in " LEAT_BINDIR " nor on PATH");
    finding_cost(f, "no daemon can be started: leat.open() works only where one runs already");
    finding_repair(f, "export LEAT_LEATD=/path/to/leatd");
}

/* The daemon's socket lies in $XDG_RUNTIME_DIR/leat/JOB, or in /tmp/leat-UID/JOB where the former cannot be written; the
 * library refuses a folder that others could have made or may write. */
static void check_runtime_dir(const struct doctor *d, struct finding *f)
{
    if (d->recorded)
        return;
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    bool use = runtime && runtime[0] == '/' && strlen(runtime) < 80 && access(runtime, W_OK | X_OK) == 0;
    char path[128];
    if (use)
        snprintf(path, sizeof(path), "%s/leat", runtime);
    else
        snprintf(path, sizeof(path), "/tmp/leat-%u", (unsigned)geteuid());
    const char *why = use                     ? ""
                      : !runtime || !*runtime ? " (XDG_RUNTIME_DIR is not set)"
                                              : " (XDG_RUNTIME_DIR cannot be used)";
    struct stat st = {0};
    const char *what = NULL;
    if (lstat(path, &st) < 0) {
        if (errno != ENOENT || (!use && access("/tmp", W_OK | X_OK) < 0))
            what = strerror(errno);
    } else if (!S_ISDIR(st.st_mode)) {
        what = "it is not a folder";
    } else if (st.st_uid != geteuid()) {
        what = "it belongs to another user";
    } else if (st.st_mode & 0022) {
        what = "others may write in it";
    }
    if (!what) {
        finding_say(f, DOCTOR_OK, "sockets lie in %s%s", path, why);
        return;
    }
    finding_say(f, DOCTOR_BAD, "sockets would lie in %s%s: %s", path, why, what);
    finding_cost(f, "the library refuses it: no private daemon can be started or found");
    if (S_ISDIR(st.st_mode) && st.st_uid == geteuid())
        finding_repair(f, "chmod 700 %s", path);
    else
        finding_repair(f, "export XDG_RUNTIME_DIR=$(mktemp -d)");
}

/* A file to try: the path itself, or the first regular file of the folder that is 1 MiB or more, else any. -1: none. */
static int sample_file(const char *path, char *name, size_t cap)
{
    struct stat st;
    if (stat(path, &st) == 0 && S_ISREG(st.st_mode)) {
        snprintf(name, cap, "%s", path);
        return open(path, O_RDONLY | O_CLOEXEC);
    }
    DIR *dir = opendir(path);
    if (!dir)
        return -1;
    AUTO_CLOSE int best = -1;
    struct dirent *e;
    for (unsigned seen = 0; seen < 1000 && (e = readdir(dir)); seen++) {
        if (e->d_name[0] == '.' || (e->d_type != DT_REG && e->d_type != DT_UNKNOWN))
            continue;
        AUTO_CLOSE int fd = openat(dirfd(dir), e->d_name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
            continue;
        if (best < 0 || st.st_size >= (off_t)MIB) {
            if (best >= 0)
                close(best);
            best = TAKE_FD(fd);
            snprintf(name, cap, "%s/%s", path, e->d_name);
            if (st.st_size >= (off_t)MIB)
                break;
        }
    }
    closedir(dir);
    return TAKE_FD(best);
}

static void check_path(const struct doctor *d, struct finding *f)
{
    if (!d->path || d->recorded)
        return;
    char name[4096] = "";
    AUTO_CLOSE int fd = sample_file(d->path, name, sizeof(name));
    if (fd < 0) {
        finding_say(f, access(d->path, R_OK) < 0 ? DOCTOR_BAD : DOCTOR_WARN, "%.200s: %s", d->path,
                    access(d->path, R_OK) < 0 ? strerror(errno) : "no file directly in it to try");
        return;
    }
    struct disk_file_traits traits;
    int rc = disk_file_probe(fd, &traits);
    if (rc < 0) {
        finding_say(f, DOCTOR_BAD, "%.200s: %s", name, strerror(-rc));
        return;
    }
    if (traits.direct_align == 0) {
        finding_say(f, DOCTOR_WARN, "%.200s: %s, without direct I/O", name, traits.fs);
        finding_cost(
            f, strcmp(traits.fs, "tmpfs") == 0
                   ? "nothing much: the data is in memory already, and once more in the pool"
                   : "reads go through the page cache: one copy more, and memory taken beside the pool");
        return;
    }
    char speed[64] = "";
    double gb_s;
    AUTO_FREE char *link = NULL;
    if (d->measure && asprintf(&link, "/proc/self/fd/%d", fd) > 0) {
        AUTO_CLOSE int direct = open(link, O_RDONLY | O_CLOEXEC | O_DIRECT);
        if (direct >= 0 && probe_direct_read(direct, 200 * NS_PER_MS, &gb_s) == 0) {
            finding_number(f, "direct_read_gb_per_s", gb_s);
            snprintf(speed, sizeof(speed), ", %.2f GB/s by one thread, measured now", gb_s);
        }
    }
    finding_number(f, "direct_align_bytes", traits.direct_align);
    finding_say(f, DOCTOR_OK, "%.160s: %s, direct I/O in steps of %u%s", name, traits.fs, traits.direct_align,
                speed);
}

const struct doctor_check doctor_checks[] = {
    {"kernel", check_kernel},
    {"memory", check_memory},
    {"huge pages", check_huge_pages},
    {"memlock", check_memlock},
    {"rdma", check_rdma},
    {"io_uring", check_io_uring},
    {"memfd", check_memfd},
    {"overcommit", check_overcommit},
    {"descriptors", check_descriptors},
    {"checksum", check_crc},
    {"ports", check_ports},
    {"slots", check_slots},
    {"nodes", check_nodes},
    {"gpu rdma", check_gpu_rdma},
    {"leatd", check_leatd},
    {"runtime folder", check_runtime_dir},
    {"path", check_path},
    {0},
};
