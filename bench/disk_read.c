/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disk_read.c: what decides how the pool fills its regions from a file: `disk_read FILE [runs]`.
 *
 * Three tables: each engine beside plain pread into memory that is there already; ways to fill a fresh memfd from the page
 * cache; direct reads into a fresh memfd. Best of `runs` (3); rates in GB/s (10^9), cost in CPU-seconds per GB of
 * this process. A cold run drops the file from the page cache (posix_fadvise) and checks that it is gone.
 */
#include "base/clock.h"
#include "disk/direct.h"
#include "disk/disk.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/stat.h>

#define BLOCK MIB
#define DEPTH 16
#ifndef MADV_POPULATE_WRITE
#    define MADV_POPULATE_WRITE 23
#endif

static int file_fd, direct_fd;
static uint64_t file_bytes;
static unsigned runs = 3;

static void die(const char *what, int code)
{
    fprintf(stderr, "disk_read: %s: %s\n", what, strerror(code < 0 ? -code : errno));
    exit(1);
}

static double cpu_s(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void make_cold(void)
{
    posix_fadvise(file_fd, 0, 0, POSIX_FADV_DONTNEED);
    int permille = disk_cached_permille(file_fd, 0, file_bytes);
    if (permille > 5)
        fprintf(stderr, "disk_read: the file is still cached (%d per mille): the cold figures are not cold\n",
                permille);
}

static void make_warm(void)
{
    static char buf[BLOCK];
    for (uint64_t at = 0; at < file_bytes; at += BLOCK)
        if (pread(file_fd, buf, BLOCK, (off_t)at) < 0)
            die("pread", 0);
}

/* Reads with an engine: DEPTH blocks in flight, each going to `base` + its offset (or % ring bytes). */
struct slot {
    struct disk_read r;
    struct stream *s;
};
struct stream {
    struct disk_engine *e;
    uint64_t next, end, ring_bytes, done;
    char *base;
    int buffer;
    int memfd; /* -1, or each block goes there from a slot's own part of base */
    struct slot slots[DEPTH];
};

static void stream_next(struct slot *slot);

static void stream_done(struct disk_read *req, int64_t result)
{
    struct slot *slot = container_of(req, struct slot, r);
    if (result < 0)
        die("read", (int)result);
    slot->s->done += (uint64_t)result;
    if (slot->s->memfd >= 0 && pwrite(slot->s->memfd, req->dst, (size_t)result, (off_t)req->offset) != result)
        die("pwrite", 0);
    if (slot->s->next < slot->s->end)
        stream_next(slot);
}

static void stream_next(struct slot *slot)
{
    struct stream *s = slot->s;
    slot->r = (struct disk_read){.fd = slot->r.fd,
                                 .offset = s->next,
                                 .dst = s->memfd >= 0 ? s->base + (uint64_t)(slot - s->slots) * BLOCK
                                                      : s->base + s->next % s->ring_bytes,
                                 .bytes = MIN((uint64_t)BLOCK, s->end - s->next),
                                 .buffer = s->buffer,
                                 .done = stream_done};
    s->next += slot->r.bytes;
    struct disk_read *req = &slot->r;
    int r = s->e->ops->submit(s->e, &req, 1);
    if (r < 0)
        die("submit", r);
}

static void stream_read(struct disk_engine *e, int fd, char *base, uint64_t ring_bytes, int buffer, int memfd)
{
    struct stream s = {
        .e = e, .end = file_bytes, .ring_bytes = ring_bytes, .base = base, .buffer = buffer, .memfd = memfd};
    for (unsigned i = 0; i < DEPTH && s.next < s.end; i++) {
        s.slots[i].s = &s;
        s.slots[i].r.fd = fd;
        stream_next(&s.slots[i]);
    }
    while (e->in_flight > 0)
        if (e->ops->reap(e, 1) < 0)
            die("reap", 0);
    if (s.done != file_bytes)
        die("short", -EIO);
}

static void pread_range(int fd, char *base, uint64_t from, uint64_t to)
{
    for (uint64_t at = from; at < to; at += BLOCK)
        if (pread(fd, base + at, MIN((uint64_t)BLOCK, to - at), (off_t)at) < 0)
            die("pread", 0);
}

static void report(const char *name, double wall, double cpu, double free_s)
{
    double gb = (double)file_bytes / 1e9;
    printf("  %-46s %7.2f GB/s  %6.3f CPU-s/GB  %6.3f s/GB to free\n", name, gb / wall, cpu / gb,
           free_s / gb);
    fflush(stdout);
}

/* Table 1: memory that is there already. */
static void table_engines(bool direct)
{
    static const struct {
        const char *label, *kind;
        unsigned depth;
        bool fixed;
    } rows[] = {{"pread in a loop", NULL, 1, false},       {"uring, registered", "uring", DEPTH, true},
                {"uring, plain", "uring", DEPTH, false},   {"worker, 1 (in reap)", "worker", 1, false},
                {"worker, 2 threads", "worker", 2, false}, {"worker, 16 threads", "worker", 16, false}};
    uint64_t ring = (uint64_t)DEPTH * 2 * BLOCK;
    char *mem = mmap(NULL, ring, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (mem == MAP_FAILED)
        die("mmap", 0);
    int fd = direct ? direct_fd : file_fd;
    printf("memory that is there, %s\n", direct ? "direct, cold" : "buffered, warm");
    for (unsigned i = 0; i < ARRAY_LEN(rows); i++) {
        double best = 1e9, best_cpu = 0;
        for (unsigned run = 0; run < runs; run++) {
            struct disk_engine *e = NULL;
            if (rows[i].kind && disk_engine_new(rows[i].kind, rows[i].depth, &e) < 0) {
                printf("  %-46s refused here\n", rows[i].label);
                break;
            }
            int buffer = rows[i].fixed ? e->ops->buffer_register(e, mem, ring) : -1;
            if (direct)
                make_cold();
            double cpu = cpu_s();
            uint64_t t = clock_now_ns();
            if (e)
                stream_read(e, fd, mem, ring, buffer, -1);
            else
                for (uint64_t at = 0; at < file_bytes; at += BLOCK)
                    if (pread(fd, mem + at % ring, BLOCK, (off_t)at) < 0)
                        die("pread", 0);
            double wall = (double)(clock_now_ns() - t) / 1e9;
            if (wall < best) {
                best = wall;
                best_cpu = cpu_s() - cpu;
            }
            disk_engine_free(e);
        }
        if (best < 1e9)
            report(rows[i].label, best, best_cpu, 0);
    }
    munmap(mem, ring);
}

/* Tables 2 and 3: a fresh memfd. */
enum way {
    PREAD,
    FALLOCATE,
    POPULATE,
    HUGE,
    HUGE_FALLOCATE,
    PWRITE,
    MAP_PWRITE,
    SENDFILE,
    SPLICE,
    COPY_RANGE,
    WAYS
};
static const char *const way_names[WAYS] = {
    "pread into fresh pages",
    "fallocate, pread",
    "MADV_POPULATE_WRITE, pread",
    "MADV_HUGEPAGE, pread",
    "MADV_HUGEPAGE, fallocate, pread",
    "pread to 1 MiB, pwrite to memfd",
    "mmap of the file, pwrite to memfd",
    "sendfile",
    "splice",
    "copy_file_range",
};

struct part {
    enum way way;
    int memfd;
    char *map;
    uint64_t from, to;
    int error;
};

static int sendfile_range(const struct part *p)
{
    char path[40];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", p->memfd);
    AUTO_CLOSE int out =
        open(path, O_RDWR | O_CLOEXEC); /* sendfile writes at the description's own position */
    if (out < 0 || lseek(out, (off_t)p->from, SEEK_SET) < 0)
        return -errno;
    off_t at = (off_t)p->from;
    while ((uint64_t)at < p->to)
        if (sendfile(out, file_fd, &at, p->to - (uint64_t)at) <= 0)
            return -errno;
    return 0;
}

static int splice_range(const struct part *p)
{
    int pipes[2];
    if (pipe2(pipes, O_CLOEXEC) < 0)
        return -errno;
    AUTO_CLOSE int in = pipes[1];
    AUTO_CLOSE int out = pipes[0];
    fcntl(in, F_SETPIPE_SZ, (int)BLOCK);
    off_t from = (off_t)p->from, to = (off_t)p->from;
    while ((uint64_t)to < p->to) {
        ssize_t n = splice(file_fd, &from, in, NULL, MIN((uint64_t)BLOCK, p->to - (uint64_t)to), 0);
        if (n <= 0)
            return -errno;
        for (ssize_t m; n > 0; n -= m)
            if ((m = splice(out, NULL, p->memfd, &to, (size_t)n, SPLICE_F_MOVE)) <= 0)
                return -errno;
    }
    return 0;
}

static int copy_range(const struct part *p)
{
    off_t from = (off_t)p->from, to = (off_t)p->from;
    while ((uint64_t)to < p->to)
        if (copy_file_range(file_fd, &from, p->memfd, &to, p->to - (uint64_t)to, 0) <= 0)
            return -errno;
    return 0;
}

static int pwrite_range(const struct part *p)
{
    AUTO_FREE char *buf = aligned_alloc(4096, BLOCK);
    if (!buf)
        return -ENOMEM;
    for (uint64_t at = p->from; at < p->to; at += BLOCK) {
        ssize_t n = pread(file_fd, buf, MIN((uint64_t)BLOCK, p->to - at), (off_t)at);
        if (n < 0 || pwrite(p->memfd, buf, (size_t)n, (off_t)at) != n)
            return -errno;
    }
    return 0;
}

static int map_pwrite_range(const struct part *p)
{
    uint64_t bytes = p->to - p->from, at = 0;
    char *src = mmap(NULL, bytes, PROT_READ, MAP_SHARED, file_fd, (off_t)p->from);
    if (src == MAP_FAILED)
        return -errno;
    for (ssize_t n; at < bytes; at += (uint64_t)n)
        if ((n = pwrite(p->memfd, src + at, MIN((uint64_t)BLOCK, bytes - at), (off_t)(p->from + at))) <= 0)
            break;
    int r = at < bytes ? -errno : 0;
    munmap(src, bytes);
    return r;
}

static void *fill(void *arg)
{
    struct part *p = arg;
    uint64_t bytes = p->to - p->from;
    if (p->way == HUGE || p->way == HUGE_FALLOCATE)
        madvise(p->map + p->from, bytes, MADV_HUGEPAGE);
    if ((p->way == FALLOCATE || p->way == HUGE_FALLOCATE) &&
        fallocate(p->memfd, 0, (off_t)p->from, (off_t)bytes) < 0)
        p->error = -errno;
    if (p->way == POPULATE && madvise(p->map + p->from, bytes, MADV_POPULATE_WRITE) < 0)
        p->error = -errno;
    if (p->error)
        return NULL;
    switch (p->way) {
    case SENDFILE:
        p->error = sendfile_range(p);
        break;
    case SPLICE:
        p->error = splice_range(p);
        break;
    case COPY_RANGE:
        p->error = copy_range(p);
        break;
    case MAP_PWRITE:
        p->error = map_pwrite_range(p);
        break;
    case PWRITE:
        p->error = pwrite_range(p);
        break;
    default:
        pread_range(file_fd, p->map, p->from, p->to);
    }
    return NULL;
}

static char *memfd_fresh(int *ret_fd)
{
    /* A tmpfs mounted with huge=always stands for a memfd where shmem_enabled allows huge pages. */
    const char *dir = getenv("LEAT_BENCH_TMPFS");
    int fd = dir ? open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600) : memfd_create("bench", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)file_bytes) < 0)
        die("memfd", 0);
    char *map = mmap(NULL, file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        die("mmap", 0);
    *ret_fd = fd;
    return map;
}

static double memfd_drop(int fd, char *map)
{
    uint64_t t = clock_now_ns();
    munmap(map, file_bytes);
    close(fd);
    return (double)(clock_now_ns() - t) / 1e9;
}

static void table_warm(unsigned n_threads)
{
    printf("a fresh memfd from the page cache, %u thread%s\n", n_threads, n_threads > 1 ? "s" : "");
    for (enum way way = 0; way < WAYS; way++) {
        double best = 1e9, best_cpu = 0, best_free = 0;
        int error = 0;
        for (unsigned run = 0; run < runs && !error; run++) {
            int fd;
            char *map = memfd_fresh(&fd);
            struct part parts[16];
            pthread_t threads[16];
            double cpu = cpu_s();
            uint64_t t = clock_now_ns();
            for (unsigned i = 0; i < n_threads; i++) {
                uint64_t step = align_up(file_bytes / n_threads, 2 * MIB);
                parts[i] = (struct part){.way = way,
                                         .memfd = fd,
                                         .map = map,
                                         .from = MIN(i * step, file_bytes),
                                         .to = MIN((i + 1) * step, file_bytes)};
                if (pthread_create(&threads[i], NULL, fill, &parts[i]))
                    die("thread", -EAGAIN);
            }
            for (unsigned i = 0; i < n_threads; i++) {
                pthread_join(threads[i], NULL);
                error = parts[i].error ? parts[i].error : error;
            }
            double wall = (double)(clock_now_ns() - t) / 1e9;
            cpu = cpu_s() - cpu;
            double free_s = memfd_drop(fd, map);
            if (wall < best) {
                best = wall;
                best_cpu = cpu;
                best_free = free_s;
            }
        }
        if (error)
            printf("  %-46s %s\n", way_names[way], strerror(-error));
        else
            report(way_names[way], best, best_cpu, best_free);
    }
}

static void table_cold(bool direct)
{
    static const struct {
        const char *label;
        enum way way;
        const char *kind;
        bool fixed;
    } rows[] = {
        {"uring, fresh pages", PREAD, "uring", false},
        {"uring, fallocate", FALLOCATE, "uring", false},
        {"uring, MADV_POPULATE_WRITE", POPULATE, "uring", false},
        {"uring, registered (this populates)", PREAD, "uring", true},
        {"uring, fallocate, registered", FALLOCATE, "uring", true},
        {"uring, MADV_HUGEPAGE", HUGE, "uring", false},
        {"uring, MADV_HUGEPAGE, registered", HUGE, "uring", true},
        {"uring, registered 16 MiB, pwrite to memfd", PWRITE, "uring", true},
        {"worker 16, fresh pages", PREAD, "worker", false},
        {"worker 16, fallocate", FALLOCATE, "worker", false},
    };
    printf("a fresh memfd from a cold file, %s, depth %d, 1 MiB\n", direct ? "direct" : "buffered", DEPTH);
    for (unsigned i = 0; i < ARRAY_LEN(rows); i++) {
        double best = 1e9, best_cpu = 0, best_free = 0;
        for (unsigned run = 0; run < runs; run++) {
            struct disk_engine *e;
            int fd, buffer = -1;
            if (disk_engine_new(rows[i].kind, DEPTH, &e) < 0)
                break;
            char *map = memfd_fresh(&fd);
            make_cold();
            double cpu = cpu_s();
            uint64_t t = clock_now_ns();
            if (rows[i].way == HUGE)
                madvise(map, file_bytes, MADV_HUGEPAGE);
            if (rows[i].way == FALLOCATE && fallocate(fd, 0, 0, (off_t)file_bytes) < 0)
                die("fallocate", 0);
            if (rows[i].way == POPULATE)
                madvise(map, file_bytes, MADV_POPULATE_WRITE);
            char *base = map;
            if (rows[i].way == PWRITE && (base = aligned_alloc(2 * MIB, DEPTH * BLOCK)) == NULL)
                die("memory", -ENOMEM);
            uint64_t base_bytes = rows[i].way == PWRITE ? DEPTH * BLOCK : file_bytes;
            if (rows[i].fixed && (buffer = e->ops->buffer_register(e, base, base_bytes)) < 0)
                printf("  registration refused: %s\n", strerror(-buffer));
            stream_read(e, direct ? direct_fd : file_fd, base, base_bytes, buffer,
                        rows[i].way == PWRITE ? fd : -1);
            double wall = (double)(clock_now_ns() - t) / 1e9;
            cpu = cpu_s() - cpu;
            disk_engine_free(e);
            if (base != map)
                free(base);
            double free_s = memfd_drop(fd, map);
            if (wall < best) {
                best = wall;
                best_cpu = cpu;
                best_free = free_s;
            }
        }
        if (best < 1e9)
            report(rows[i].label, best, best_cpu, best_free);
        else
            printf("  %-46s refused here\n", rows[i].label);
    }
}

int main(int argc, char **argv)
{
    if (argc < 2 || argc > 3) {
        fprintf(stderr,
                "usage: disk_read FILE [runs]: FILE is read whole, 256 MiB to 2 GiB is a good size\n");
        return 2;
    }
    if (argc > 2)
        runs = (unsigned)MAX(atoi(argv[2]), 1);
    struct stat st;
    file_fd = open(argv[1], O_RDONLY | O_CLOEXEC);
    if (file_fd < 0 || fstat(file_fd, &st) < 0)
        die(argv[1], 0);
    file_bytes = align_down((uint64_t)st.st_size, BLOCK);
    struct disk_file_traits traits;
    if (file_bytes == 0 || disk_file_probe(file_fd, &traits) < 0)
        die(argv[1], -EINVAL);
    direct_fd = traits.direct_align ? disk_open_direct(file_fd) : -1;
    printf("%s: %s, %.2f GB, direct alignment %u\n", argv[1], traits.fs, (double)file_bytes / 1e9,
           traits.direct_align);
    if (direct_fd >= 0) {
        table_engines(true);
        table_cold(true);
    }
    make_warm();
    table_engines(false);
    table_warm(1);
    table_warm(2);
    return 0;
}
