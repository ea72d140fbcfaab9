/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pread_limit: the most that reading files gives: `pread_limit THREADS [huge]`, then lines of its input:
 *     warm FILE     1 MiB preads into a buffer a thread, the same one again and again       -> {"bytes", "ns"}
 *     fresh FILE    the same into memory that has to be got first: shared memory as the daemon's, fallocated   -> …, its freeing not timed
 *     resident FILE  the same into memory of the file's size that is there already, made by the first call: as a pool's that is ready
 *     direct FILE   past the page cache by 16 threads for each, into memory that is there already
 *     list DIR      takes down the files below DIR                                           -> {"files"}
 *     small         open, fstat, pread, close of each of them into a buffer a thread
 *     smallfresh    the same into a new memfd, one file behind the other
 *     smallresident  the same into memory of their size that is there already
 *     forget        gives that memory back                                              -> {}
 *     uncache PATH  drops a file, or "." what was listed, from the page cache  -> {"cached"}: per mille still there
 */
#include "base/clock.h"
#include "disk/disk.h"
#include "driver.h"

#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define BLOCK       MIB
#define THREADS_MAX 64
#define DEPTH       16
#define FDS_WALK    32

enum way { WARM, FRESH, RESIDENT, DIRECT, SMALL, SMALL_FRESH, SMALL_RESIDENT };

static unsigned nthreads;
static bool huge;
static char **paths;
static size_t npaths, cap_paths;
static uint64_t listed_bytes;

static uint8_t *resident;
static uint64_t resident_bytes;

static struct {
    enum way way;
    int fd;
    uint64_t bytes;
    uint8_t *map;
    int memfd;
    atomic_uint_fast64_t next, done, place;
    pthread_barrier_t begin; /* buffers are there */
} job;

static int take_down(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    if (kind != FTW_F)
        return 0;
    if (npaths == cap_paths) {
        cap_paths = cap_paths ? cap_paths * 2 : 1024;
        paths = realloc(paths, cap_paths * sizeof(*paths));
        if (!paths)
            bench_die("no memory");
    }
    paths[npaths++] = strdup(path);
    listed_bytes += (uint64_t)st->st_size;
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static uint64_t read_small(const char *path, uint8_t **buf, uint64_t *cap)
{
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0)
        bench_die("%s: %s", path, strerror(errno));
    uint64_t bytes = (uint64_t)st.st_size;
    uint8_t *to = *buf;
    if (job.way == SMALL_FRESH || job.way == SMALL_RESIDENT) {
        uint64_t at = atomic_fetch_add(&job.place, bytes);
        if (job.way == SMALL_FRESH && fallocate(job.memfd, 0, (off_t)at, (off_t)bytes) < 0)
            bench_die("fallocate: %s", strerror(errno));
        to = job.map + at;
    } else if (bytes > *cap) {
        free(*buf);
        *cap = align_up(bytes, MIB);
        to = *buf = malloc(*cap);
        if (!to)
            bench_die("no memory");
    }
    if (pread(fd, to, bytes, 0) != (ssize_t)bytes)
        bench_die("%s: short", path);
    return bytes;
}

static void *work(void *arg)
{
    uint64_t cap = 4 * MIB, done = 0;
    uint8_t *buf = job.way == DIRECT ? bench_memory(BLOCK, huge, NULL) : malloc(cap);
    if (!buf)
        bench_die("no memory");
    if (job.way == DIRECT)
        memset(buf, 0, BLOCK);
    pthread_barrier_wait(&job.begin);
    for (;;) {
        uint64_t at = atomic_fetch_add(&job.next, job.way >= SMALL ? 1 : BLOCK);
        if (job.way >= SMALL) {
            if (at >= npaths)
                break;
            done += read_small(paths[at], &buf, &cap);
            continue;
        }
        if (at >= job.bytes)
            break;
        uint64_t n = MIN((uint64_t)BLOCK, job.bytes - at);
        if (job.way == FRESH && fallocate(job.memfd, 0, (off_t)at, (off_t)n) < 0)
            bench_die("fallocate: %s", strerror(errno));
        uint64_t ask = job.way == DIRECT ? align_up(n, 4096) : n; /* direct reads are of whole blocks */
        if (pread(job.fd, job.way == FRESH || job.way == RESIDENT ? job.map + at : buf, ask, (off_t)at) !=
            (ssize_t)n)
            bench_die("short read");
        done += n;
    }
    atomic_fetch_add(&job.done, done);
    if (job.way == DIRECT)
        munmap(buf, 2 * MIB);
    else
        free(buf);
    return NULL;
}

static void forget(void)
{
    if (resident)
        munmap(resident, align_up(resident_bytes, 2 * MIB));
    resident = NULL;
    resident_bytes = 0;
}

/* Touched, so that every page is there and cleared. */
static uint8_t *memory_there(uint64_t bytes)
{
    if (bytes > resident_bytes) {
        AUTO_CLOSE int memfd = -1;
        forget();
        resident = bench_memory(bytes, huge, &memfd);
        resident_bytes = bytes;
        if (fallocate(memfd, 0, 0, (off_t)bytes) < 0)
            bench_die("fallocate: %s", strerror(errno));
        memset(resident, 0, bytes);
    }
    return resident;
}

static void run(enum way way, const char *path)
{
    struct stat st;
    job.way = way;
    job.next = job.done = job.place = 0;
    job.bytes = listed_bytes;
    job.fd = job.memfd = -1;
    if (way < SMALL) {
        job.fd = open(path, O_RDONLY | O_CLOEXEC | (way == DIRECT ? O_DIRECT : 0));
        if (job.fd < 0 || fstat(job.fd, &st) < 0)
            bench_die("%s: %s", path, strerror(errno));
        job.bytes = (uint64_t)st.st_size;
    }
    if (way == RESIDENT || way == SMALL_RESIDENT)
        job.map = memory_there(job.bytes);
    uint64_t start = clock_now_ns();
    bool fresh = way == FRESH || way == SMALL_FRESH;
    if (fresh) {
        job.map = bench_memory(job.bytes, huge, &job.memfd);
    }
    pthread_t threads[THREADS_MAX * DEPTH];
    unsigned n = way == DIRECT ? nthreads * DEPTH : nthreads;
    pthread_barrier_init(&job.begin, NULL, n + 1);
    for (unsigned i = 0; i < n; i++)
        if (pthread_create(&threads[i], NULL, work, NULL) != 0)
            bench_die("no thread");
    if (!fresh) /* getting fresh memory belongs to it */
        start = clock_now_ns();
    pthread_barrier_wait(&job.begin);
    for (unsigned i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    uint64_t ns = clock_now_ns() - start;
    if (fresh) {
        munmap(job.map, align_up(job.bytes, 2 * MIB));
        close(job.memfd);
    }
    if (job.fd >= 0)
        close(job.fd);
    printf("{\"bytes\": %llu, \"ns\": %llu}\n", (unsigned long long)job.done, (unsigned long long)ns);
}

static uint64_t uncache(const char *path)
{
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0 || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) != 0)
        bench_die("%s: cannot be made cold", path);
    return (uint64_t)st.st_size * (uint64_t)MAX(disk_cached_permille(fd, 0, (uint64_t)st.st_size), 0) / 1000;
}

int main(int argc, char **argv)
{
    char line[4200];
    nthreads = argc > 1 ? (unsigned)atoi(argv[1]) : 0;
    huge = argc > 2 && strcmp(argv[2], "huge") == 0;
    if (nthreads == 0 || nthreads > THREADS_MAX)
        bench_die("THREADS: 1 to %d", THREADS_MAX);
    printf("{\"ready\": true, \"pid\": %d}\n", getpid());
    fflush(stdout);
    while (fgets(line, sizeof(line), stdin)) {
        line[strcspn(line, "\n")] = 0;
        if (strncmp(line, "warm ", 5) == 0) {
            run(WARM, line + 5);
        } else if (strncmp(line, "fresh ", 6) == 0) {
            run(FRESH, line + 6);
        } else if (strncmp(line, "resident ", 9) == 0) {
            run(RESIDENT, line + 9);
        } else if (strcmp(line, "forget") == 0) {
            forget();
            printf("{}\n");
        } else if (strncmp(line, "direct ", 7) == 0) {
            run(DIRECT, line + 7);
        } else if (strncmp(line, "list ", 5) == 0) {
            npaths = listed_bytes = 0;
            if (nftw(line + 5, take_down, FDS_WALK, FTW_PHYS) != 0)
                bench_die("%s: %s", line + 5, strerror(errno));
            qsort(paths, npaths, sizeof(*paths), by_name);
            printf("{\"files\": %zu}\n", npaths);
        } else if (strcmp(line, "small") == 0) {
            run(SMALL, NULL);
        } else if (strcmp(line, "smallfresh") == 0 || strcmp(line, "smallresident") == 0) {
            run(line[5] == 'f' ? SMALL_FRESH : SMALL_RESIDENT, NULL);
        } else if (strncmp(line, "uncache ", 8) == 0) {
            uint64_t cached = 0, of = 1;
            if (strcmp(line + 8, ".") == 0) {
                for (size_t i = 0; i < npaths; i++)
                    cached += uncache(paths[i]);
                of = MAX(listed_bytes, 1ul);
            } else {
                struct stat st;
                cached = uncache(line + 8);
                of = stat(line + 8, &st) == 0 ? (uint64_t)MAX(st.st_size, 1l) : 1;
            }
            printf("{\"cached\": %llu}\n", (unsigned long long)(cached * 1000 / of));
        } else {
            bench_die("what is '%s'?", line);
        }
        fflush(stdout);
    }
    return 0;
}
