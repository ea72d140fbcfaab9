/* SPDX-License-Identifier: Apache-2.0 */
/* doctor_probe.c: asks the running kernel, and measures for a fraction of a second. */
#include "apps/leat/doctor.h"

#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "pool/region/hugefs.h"

/* probe/NAME of a recorded tree holds 0 or a negative errno value. */
static int recorded(const struct doctor *d, const char *name)
{
    char path[64], text[32];
    snprintf(path, sizeof(path), "/probe/%s", name);
    if (doctor_read(d, path, text, sizeof(text)) < 0)
        return -ENODATA;
    return atoi(text);
}

int probe_io_uring(const struct doctor *d)
{
    if (d->recorded)
        return recorded(d, "io_uring");
    struct io_uring_params params = {0};
    int fd = (int)syscall(SYS_io_uring_setup, 4, &params);
    if (fd < 0)
        return -errno;
    close(fd);
    return 0;
}

int probe_hugefs(const struct doctor *d)
{
    if (d->recorded)
        return recorded(d, "hugefs");
    AUTO_CLOSE int dir = hugefs_open();
    return dir < 0 ? dir : 0;
}

int probe_memfd(const struct doctor *d)
{
    if (d->recorded)
        return recorded(d, "memfd");
    AUTO_CLOSE int fd = memfd_create("leat-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -errno;
    return fallocate(fd, 0, 0, 4096) < 0 ? -errno : 0;
}

/* Share of the mapping at `addr` held by huge pages, from smaps; negative when the kernel does not say. */
static double huge_share(const void *addr, uint64_t bytes)
{
    FILE *in = fopen("/proc/self/smaps", "re");
    if (!in)
        return -1;
    char line[256];
    bool here = false;
    uint64_t kib = 0;
    while (fgets(line, sizeof(line), in)) {
        unsigned long lo, hi, n;
        if (sscanf(line, "%lx-%lx ", &lo, &hi) == 2)
            here = lo <= (uintptr_t)addr && (uintptr_t)addr < hi;
        else if (here && (sscanf(line, "AnonHugePages: %lu", &n) == 1 ||
                          sscanf(line, "ShmemPmdMapped: %lu", &n) == 1))
            kib += n;
    }
    fclose(in);
    return (double)kib * 1024 / (double)bytes;
}

#define PIECE (64 * KIB)

int probe_gather(enum probe_memory kind, uint64_t bytes, uint64_t budget_ns, double *ret_gb_s,
                 double *ret_huge)
{
    uint64_t start = clock_now_ns(), end = start + budget_ns;
    AUTO_CLOSE int fd = -1;
    if (kind != PROBE_PRIVATE_HUGE) {
        fd = memfd_create("leat-doctor", MFD_CLOEXEC);
        if (fd < 0 || ftruncate(fd, (off_t)bytes) < 0)
            return -errno;
    }
    /* Huge pages want an aligned address: over-map, and take the aligned part. */
    uint64_t align = 2 * MIB;
    uint8_t *map = mmap(NULL, bytes + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    AUTO_FREE uint8_t *dst = NULL;
    int rc = -ENOMEM;
    if (map == MAP_FAILED)
        return rc;
    uint8_t *src = (uint8_t *)align_up((uintptr_t)map, align);
    int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    if (mmap(src, bytes, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, 0) == MAP_FAILED)
        goto unmap;
    madvise(src, bytes, kind == PROBE_MEMFD_PLAIN ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
    dst = malloc(16 * PIECE);
    if (!dst)
        goto unmap;
    memset(dst, 1, 16 * PIECE);
    for (uint64_t at = 0; at < bytes; at += 4096)
        src[at] = 1;
    *ret_huge = huge_share(src, bytes);

    /* The best of many short windows: what neighbours take away is not the memory's doing. */
    uint64_t seed = 0x9e3779b97f4a7c15ull, now = clock_now_ns();
    double best = 0;
    do {
        uint64_t first = now, copied = 0;
        while (now - first < 5 * NS_PER_MS) {
            for (unsigned i = 0; i < 16; i++) {
                seed = seed * 6364136223846793005ull + 1442695040888963407ull;
                uint64_t at = (seed >> 33) % (bytes / PIECE) * PIECE;
                memcpy(dst + i % 16 * PIECE, src + at, PIECE);
                __asm__ volatile("" : : "r"(dst) : "memory");
            }
            copied += 16 * PIECE;
            now = clock_now_ns();
        }
        best = MAX(best, (double)copied / (double)(now - first));
    } while (now < end);
    *ret_gb_s = best;
    rc = 0;
unmap:
    munmap(map, bytes + align);
    return rc;
}

int probe_crc(uint64_t budget_ns, double *ret_gb_s)
{
    AUTO_FREE uint8_t *data = malloc(PIECE);
    if (!data)
        return -ENOMEM;
    memset(data, 7, PIECE);
    uint64_t start = clock_now_ns(), now = start, done = 0;
    uint32_t crc = 0;
    while (now - start < budget_ns) {
        for (unsigned i = 0; i < 8; i++)
            crc = crc32c(crc, data, PIECE);
        done += 8 * PIECE;
        now = clock_now_ns();
    }
    __asm__ volatile("" : : "r"(crc));
    *ret_gb_s = now > start ? (double)done / (double)(now - start) : 0;
    return 0;
}

int probe_direct_read(int fd, uint64_t budget_ns, double *ret_gb_s)
{
    void *buf;
    if (posix_memalign(&buf, 4096, MIB))
        return -ENOMEM;
    uint64_t start = clock_now_ns(), now = start, done = 0;
    int rc = 0;
    while (now - start < budget_ns) {
        ssize_t n = pread(fd, buf, MIB, (off_t)done);
        if (n < 0) {
            rc = -errno;
            break;
        }
        done += (uint64_t)n;
        now = clock_now_ns();
        if ((uint64_t)n < MIB)
            break;
    }
    free(buf);
    *ret_gb_s = now > start ? (double)done / (double)(now - start) : 0;
    return rc < 0 ? rc : done < MIB ? -ENODATA : 0;
}
