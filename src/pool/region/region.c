/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/region/region.h"

#include "base/log.h"
#include "base/budget.h"

#include <fcntl.h>
#include <inttypes.h>
#include <linux/falloc.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#ifndef MADV_POPULATE_WRITE
#    define MADV_POPULATE_WRITE 23
#endif

bool region_huge_available(void)
{
    char text[128] = "";
    AUTO_CLOSE int fd = open("/sys/kernel/mm/transparent_hugepage/shmem_enabled", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t n = read(fd, text, sizeof(text) - 1);
    text[n > 0 ? n : 0] = 0;
    return strstr(text, "[always]") || strstr(text, "[within_size]") || strstr(text, "[advise]") ||
           strstr(text, "[force]");
}

enum region_pages region_pages(const struct region_source *source, uint64_t bytes)
{
    if (!source->huge || bytes < REGION_HUGE_BYTES)
        return REGION_BASE;
    /* The tmpfs first: fallocate gives its huge pages without zeroing them, a fault through an advised mapping zeroes. */
    return source->huge_dir >= 0 ? REGION_HUGEFS : region_huge_available() ? REGION_ADVISE : REGION_BASE;
}

const char *region_pages_name(enum region_pages pages)
{
    static const char *const names[] = {"memfd", "memfd, huge pages advised",
                                        "private tmpfs with huge pages"};
    return names[pages];
}

uint64_t region_charge(const struct region_source *source, uint64_t bytes, uint64_t used_bytes)
{
    uint64_t page = region_pages(source, bytes) == REGION_BASE ? 4096 : REGION_HUGE_BYTES;
    return MIN(align_up(used_bytes, page), bytes);
}

static int file_new(struct region *r, const struct region_source *source, struct leat_error *err)
{
    r->fd = r->pages == REGION_HUGEFS ? openat(source->huge_dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)
                                      : memfd_create("leat-region", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (r->fd < 0)
        return error_sys(err, -errno, "cannot create a region of %" PRIu64 " bytes", r->bytes);
    if (ftruncate(r->fd, (off_t)r->bytes) < 0)
        return error_sys(err, -errno, "cannot size a region of %" PRIu64 " bytes", r->bytes);
    /* Sealed in size, a mapping can never run past the end of the file. A tmpfs file has no seals, but no
     * other process can ever write or truncate it: it has no name, and descriptors that leave the daemon are
     * read-only. */
    if (r->pages != REGION_HUGEFS && fcntl(r->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
        return error_sys(err, -errno, "cannot seal a region");
    return 0;
}

int region_new(const struct region_source *source, uint64_t bytes, uint64_t used_bytes, struct budget *budget,
               struct region **ret_region, struct leat_error *err)
{
    struct region *r = calloc(1, sizeof(*r));
    if (!r)
        return error_set(err, -ENOMEM, "out of memory for a region");
    r->refs = 1;
    r->bytes = bytes;
    r->used_bytes = used_bytes;
    r->pages = region_pages(source, bytes);
    r->fd = r->fd_ro = -1;
    int rc = file_new(r, source, err);
    if (rc < 0)
        goto fail;
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", r->fd);
    r->fd_ro = open(path, O_RDONLY | O_CLOEXEC);
    /* Read-only for every user, also for one that re-opens by /proc what we pass: a memfd is born 0777. */
    if (r->fd_ro < 0 || fchmod(r->fd, 0400) < 0) {
        rc = error_sys(err, -errno, "cannot re-open a region read-only");
        goto fail;
    }
    r->addr = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, r->fd, 0);
    if (r->addr == MAP_FAILED) {
        r->addr = NULL;
        rc = error_sys(err, -errno, "cannot map a region of %" PRIu64 " bytes", bytes);
        goto fail;
    }
    if (r->pages == REGION_ADVISE)
        madvise(r->addr, bytes, MADV_HUGEPAGE);
    r->budget = budget;
    *ret_region = r;
    return 0;
fail:
    region_unref(r);
    return rc;
}

int region_reserve(struct region *r, uint64_t offset, uint64_t bytes)
{
    assert(offset + bytes <= r->bytes);
    uint64_t ready = atomic_load_explicit(&r->prefault_bytes, memory_order_relaxed);
    if (offset + bytes <= ready)
        return 0;
    if (offset < ready) {
        bytes -= ready - offset;
        offset = ready;
    }
    /* fallocate never gives huge pages on `advise`: it knows no mapping. A fault through the advised one does. */
    if (r->pages == REGION_ADVISE) {
        uint64_t first = align_down(offset, 4096), end = align_up(offset + bytes, 4096);
        if (madvise(r->addr + first, MIN(end, r->bytes) - first, MADV_POPULATE_WRITE) == 0)
            return 0;
        if (errno != EINVAL)
            return errno == EFAULT ? -ENOSPC : -errno;
    }
    while (fallocate(r->fd, 0, (off_t)offset, (off_t)bytes) < 0) {
        if (errno != EINTR)
            return -errno;
    }
    return 0;
}

int region_prepare(struct region *r, uint64_t bytes)
{
    uint64_t from = atomic_load(&r->prefault_bytes), page = (uint64_t)sysconf(_SC_PAGESIZE);
    int rc = region_reserve(r, from, bytes);
    if (rc < 0)
        return rc;
    /* Memory from fallocate is cleared only when it is touched. */
    if (madvise(r->addr + from, bytes, MADV_POPULATE_WRITE) < 0) {
        if (errno != EINVAL) /* before 5.14 */
            return errno == EFAULT ? -ENOSPC : -errno;
        for (uint64_t at = from; at < from + bytes; at += page)
            *(volatile uint8_t *)(r->addr + at) = 0;
    }
    atomic_store(&r->prefault_bytes, from + bytes);
    return 0;
}

void region_trim(struct region *r, uint64_t bytes)
{
    if (bytes >= r->bytes)
        return;
    if (fallocate(r->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)bytes,
                  (off_t)(r->bytes - bytes)) < 0)
        log_warning("cannot give back the memory of a region: %s", strerror(errno));
    atomic_store(&r->prefault_bytes, MIN(atomic_load(&r->prefault_bytes), bytes));
}

struct region *region_ref(struct region *r)
{
    atomic_fetch_add(&r->refs, 1);
    return r;
}

void region_punch(struct region *r)
{
    atomic_store(&r->prefault_bytes, 0);
    if (r->fd >= 0 && fallocate(r->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)r->bytes) < 0 &&
        errno != EBADF)
        log_warning("cannot give back the memory of a region: %s", strerror(errno));
}

void region_give_up(struct region *r)
{
    if (atomic_load(&r->refs) > 1)
        return;
    net_rdma_slot_close(&r->rdma); /* or NICs would continue to read (and hold) the pages */
    atomic_store(&r->given_up, true);
    region_punch(r);
    if (r->budget)
        budget_release(r->budget, r->used_bytes);
    r->budget = NULL;
}

/* A writer that does not see given_up wrote before it was set, and that was punched out. */
void region_written(struct region *r)
{
    if (atomic_load(&r->given_up))
        region_punch(r);
}

void region_unref(struct region *r)
{
    if (!r || atomic_fetch_sub(&r->refs, 1) != 1)
        return;
    net_rdma_slot_close(&r->rdma);
    if (r->addr) {
        munmap(r->addr, r->bytes);
        region_punch(r);
    }
    if (r->fd_ro >= 0)
        close(r->fd_ro);
    if (r->fd >= 0)
        close(r->fd);
    if (r->budget)
        budget_release(r->budget, r->used_bytes);
    free(r);
}

/* linux/fs.h of 6.7; older headers do not have it. */
struct pagemap_scan {
    uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
    uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
struct pagemap_range {
    uint64_t start, end, categories;
};
#define PAGEMAP_SCAN_CALL _IOWR('f', 16, struct pagemap_scan)
#define PAGEMAP_IS_HUGE   (1u << 6)

/* 1: a huge page maps part of the range; 0: none; -errno: the kernel lacks this ioctl. */
static int scan_for_huge(const uint8_t *addr, uint64_t bytes)
{
    AUTO_CLOSE int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    struct pagemap_range found;
    struct pagemap_scan scan = {.size = sizeof(scan),
                                .start = (uintptr_t)addr,
                                .end = (uintptr_t)addr + bytes,
                                .vec = (uintptr_t)&found,
                                .vec_len = 1,
                                .max_pages = 1,
                                .category_mask = PAGEMAP_IS_HUGE,
                                .return_mask = PAGEMAP_IS_HUGE};
    int n = ioctl(fd, PAGEMAP_SCAN_CALL, &scan);
    return n < 0 ? -errno : n > 0;
}

static bool smaps_show_huge(const uint8_t *addr)
{
    FILE *f = fopen("/proc/self/smaps", "re");
    if (!f)
        return false;
    char line[512];
    bool ours = false, huge = false;
    while (fgets(line, sizeof(line), f)) {
        uint64_t from, to, kib;
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " ", &from, &to) == 2) {
            ours = from <= (uintptr_t)addr && (uintptr_t)addr < to;
        } else if (ours && sscanf(line, "ShmemPmdMapped: %" SCNu64, &kib) == 1) {
            huge = kib > 0;
            break;
        }
    }
    fclose(f);
    return huge;
}

uint64_t region_page_bytes(const struct region *r)
{
    uint64_t base = (uint64_t)sysconf(_SC_PAGESIZE);
    if (r->pages == REGION_BASE)
        return base;
    int huge = scan_for_huge(r->addr, r->bytes);
    if (huge < 0)
        huge = smaps_show_huge(r->addr);
    return huge ? REGION_HUGE_BYTES : base;
}
