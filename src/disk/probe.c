/* SPDX-License-Identifier: Apache-2.0 */
/*
 * probe.c: properties of reads from a file: its file system, whether and how aligned direct I/O works, and
 * how much of it the page cache holds.
 *
 * Failure modes: a kernel without STATX_DIOALIGN (before 6.1) or a file system that does not fill it:
 * O_DIRECT is tried by opening the file again, and 4096 is assumed, never 512. A kernel without cachestat
 * (before 6.5): mincore, which is believed only where the kernel answers truly: for a process that owns the
 * file or may write it.
 */
#include "disk/direct.h"
#include "disk/disk.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

#define DIRECT_ALIGN_GUESS 4096
#define OVERLAY_MAGIC      0x794C7630

uint32_t disk_memory_align;

/* statfs(2), linux/magic.h; spelled out because old headers lack some. */
static const struct fs_kind {
    uint32_t magic;
    const char *name;
    bool network;
    bool never_direct; /* accepts O_DIRECT and reads buffered, or is memory itself */
} fs_kinds[] = {
    {0x0000EF53, "ext4", false, false},     {0x58465342, "xfs", false, false},
    {0x9123683E, "btrfs", false, false},    {0x2FC12FC1, "zfs", false, false},
    {0xF2F52010, "f2fs", false, false},     {0xCA451A4E, "bcachefs", false, false},
    {0x01021994, "tmpfs", false, true},     {0x858458F6, "ramfs", false, true},
    {0x958458F6, "hugetlbfs", false, true}, {OVERLAY_MAGIC, "overlay", false, false},
    {0x00006969, "nfs", true, false},       {0xFF534D42, "cifs", true, false},
    {0xFE534D42, "cifs", true, false},      {0x65735546, "fuse", true, false},
    {0x01021997, "9p", true, false},        {0x0BD00BD0, "lustre", true, false},
    {0x00C36400, "ceph", true, false},      {0x47504653, "gpfs", true, false},
    {0x19830326, "beegfs", true, false},    {0x73717368, "squashfs", false, false},
};

/* virtiofs shares FUSE's magic; the mount table distinguishes them. */
static bool is_virtiofs(int fd)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return false;
    FILE *f = fopen("/proc/self/mountinfo", "re");
    if (!f)
        return false;
    bool found = false;
    AUTO_FREE char *line = NULL;
    size_t cap = 0;
    while (!found && getline(&line, &cap, f) > 0) {
        unsigned maj, min;
        const char *type = strstr(line, " - "); /* separates the optional fields from the type */
        found = type && sscanf(line, "%*u %*u %u:%u", &maj, &min) == 2 && makedev(maj, min) == st.st_dev &&
                strncmp(type + 3, "virtiofs ", 9) == 0;
    }
    fclose(f);
    return found;
}

/* The alignments that statx reports (0: no direct I/O here); false where it reports none. */
static bool direct_align_statx(int fd, struct disk_file_traits *ret_traits)
{
#ifdef STATX_TYPE
    struct statx stx = {0};
    const unsigned dioalign =
        0x2000; /* STATX_DIOALIGN; two fields behind stx_mnt_id, which old headers lack */
    if (statx(fd, "", AT_EMPTY_PATH, dioalign, &stx) < 0 || !(stx.stx_mask & dioalign))
        return false;
    uint32_t mem, offset;
    memcpy(&mem, (const char *)&stx + 0x98, sizeof(mem));
    memcpy(&offset, (const char *)&stx + 0x9c, sizeof(offset));
    ret_traits->direct_align = mem && offset ? MAX(mem, offset) : 0;
    ret_traits->direct_memory_align = mem && offset ? mem : 0;
    return true;
#else
    return false;
#endif
}

int disk_file_probe(int fd, struct disk_file_traits *ret_traits)
{
    struct statfs sfs;
    struct stat st;
    if (fstatfs(fd, &sfs) < 0 || fstat(fd, &st) < 0)
        return -errno;
    struct disk_file_traits traits = {.fs = "other"};
    bool never_direct = !S_ISREG(st.st_mode) && !S_ISBLK(st.st_mode);
    for (unsigned i = 0; i < ARRAY_LEN(fs_kinds); i++) {
        if (fs_kinds[i].magic != (uint32_t)sfs.f_type)
            continue;
        traits.fs = fs_kinds[i].name;
        traits.network = fs_kinds[i].network;
        never_direct |= fs_kinds[i].never_direct;
    }
    if (strcmp(traits.fs, "fuse") == 0 && is_virtiofs(fd))
        traits.fs = "virtiofs";
    if (!never_direct && !direct_align_statx(fd, &traits)) {
        AUTO_CLOSE int direct = disk_open_direct(fd);
        traits.direct_align = traits.direct_memory_align = direct >= 0 ? DIRECT_ALIGN_GUESS : 0;
    }
    if (disk_memory_align && traits.direct_align) {
        traits.direct_memory_align = disk_memory_align;
        traits.direct_align = MAX(traits.direct_align, disk_memory_align);
    }
    *ret_traits = traits;
    return 0;
}

/* cachestat(2), Linux 6.5; older glibc has no wrapper. */
struct cache_range {
    uint64_t off, len;
};
struct cache_stat {
    uint64_t nr_cache, nr_dirty, nr_writeback, nr_evicted, nr_recently_evicted;
};
#ifndef __NR_cachestat
#    define __NR_cachestat 451 /* the same on every architecture */
#endif

static int cached_by_cachestat(int fd, uint64_t start, uint64_t bytes, uint64_t *ret_pages)
{
    struct cache_range range = {start, bytes};
    struct cache_stat stat = {0};
    if (syscall(__NR_cachestat, fd, &range, &stat, 0) < 0)
        return -errno;
    *ret_pages = stat.nr_cache;
    return 0;
}

static int cached_by_mincore(int fd, const struct stat *st, uint64_t start, uint64_t bytes,
                             uint64_t *ret_pages)
{
    char path[40];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    /* For other processes mincore answers "all of it" (CVE-2019-5489). */
    if (geteuid() != 0 && geteuid() != st->st_uid && faccessat(AT_FDCWD, path, W_OK, AT_EACCESS) < 0)
        return -EPERM;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), pages = div_up(bytes, page), cached = 0;
    void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, (off_t)start);
    if (map == MAP_FAILED)
        return -errno;
    int r = 0;
    unsigned char vec[4096];
    for (uint64_t at = 0; at < pages && r == 0; at += sizeof(vec)) {
        uint64_t n = MIN(pages - at, (uint64_t)sizeof(vec));
        if (mincore((char *)map + at * page, n * page, vec) < 0)
            r = -errno;
        for (uint64_t i = 0; i < n && r == 0; i++)
            cached += vec[i] & 1;
    }
    munmap(map, bytes);
    *ret_pages = cached;
    return r;
}

/* Is this a file of overlayfs? Its pages belong to the file below, while cachestat (up to Linux 6.18 at
 * least) looks at the upper one, which has none. */
static bool is_overlay(int fd)
{
    struct statfs sfs;
    return fstatfs(fd, &sfs) == 0 && (uint32_t)sfs.f_type == OVERLAY_MAGIC;
}

int disk_cached_permille(int fd, uint64_t offset, uint64_t bytes)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode))
        return -EOPNOTSUPP;
    uint64_t size = (uint64_t)st.st_size;
    if (offset >= size || bytes == 0)
        return 1000; /* nothing that would have to be read */
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t start = align_down(offset, page), end = offset + MIN(bytes, size - offset), pages, cached = 0;
    pages = div_up(end - start, page);
    int r = cached_by_cachestat(fd, start, end - start, &cached);
    if (r == -ENOSYS ||
        (r == -EPERM && geteuid() == 0) || /* root is refused only by a seccomp filter that knows no 451 */
        (r == 0 && !cached && is_overlay(fd)))
        r = cached_by_mincore(fd, &st, start, end - start, &cached);
    if (r < 0)
        return r;
    return (int)(MIN(cached, pages) * 1000 / pages);
}
