/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crc32c_copy: the shared-memory gather as the hot path runs it: random samples out of a pool much larger than the
 * caches, copied and checksummed into a ring. Prints GB/s (10^9 bytes a second) for memcpy, for memcpy followed by
 * a checksum, and for every implementation, each with and without asking for the next sample early.
 *
 *     crc32c_copy [seconds a cell, default 0.3] [most threads, default 2]
 */
#include "base/base.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/rng.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>

#define POOL_BYTES   (2 * GIB)
#define RING_BYTES   (64 * MIB)
#define MOST_THREADS 16

typedef uint32_t (*copy_fn)(uint32_t, void *restrict, const void *restrict, size_t, const void *, size_t);

static uint8_t *pool, *ring;

struct job {
    copy_fn copy;
    bool ahead;
    size_t sample_bytes, ring_at, ring_bytes;
    uint64_t seed, for_ns;
    size_t done_bytes;
    uint32_t crc; /* kept, so that nothing is optimized away */
    pthread_t thread;
};

static uint32_t copy_only(uint32_t crc, void *restrict dst, const void *restrict src, size_t bytes,
                          const void *next, size_t next_bytes)
{
    memcpy(dst, src, bytes);
    return crc;
}

static uint32_t copy_then_crc(uint32_t crc, void *restrict dst, const void *restrict src, size_t bytes,
                              const void *next, size_t next_bytes)
{
    memcpy(dst, src, bytes);
    return crc32c(crc, dst, bytes);
}

static void *gather(void *arg)
{
    struct job *job = arg;
    size_t stride = align_up(job->sample_bytes, 4096), at = 0, done = 0;
    uint64_t samples = POOL_BYTES / stride, start = clock_now_ns(), now;
    const uint8_t *src = pool + rng_below(&job->seed, samples) * stride;
    do {
        for (size_t i = 0; i < 16 * MIB / job->sample_bytes; i++) {
            const uint8_t *next = pool + rng_below(&job->seed, samples) * stride;
            if (at + stride > job->ring_bytes)
                at = 0;
            job->crc ^= job->copy(0, ring + job->ring_at + at, src, job->sample_bytes, next,
                                  job->ahead ? MIN(job->sample_bytes, (size_t)CRC32C_AHEAD) : 0);
            at += stride;
            done += job->sample_bytes;
            src = next;
        }
        now = clock_now_ns();
    } while (now - start < job->for_ns);
    job->done_bytes = done;
    return NULL;
}

static double run(copy_fn copy, bool ahead, size_t sample_bytes, unsigned threads, double seconds)
{
    struct job jobs[MOST_THREADS];
    size_t sum = 0;
    uint64_t start = clock_now_ns();
    for (unsigned i = 0; i < threads; i++) {
        size_t part = align_down(RING_BYTES / threads, 4096);
        jobs[i] = (struct job){.copy = copy,
                               .ahead = ahead,
                               .sample_bytes = sample_bytes,
                               .ring_at = i * part,
                               .ring_bytes = part,
                               .seed = i + 1,
                               .for_ns = (uint64_t)(seconds * 1e9)};
        if (pthread_create(&jobs[i].thread, NULL, gather, &jobs[i]) != 0)
            exit(1);
    }
    for (unsigned i = 0; i < threads; i++) {
        pthread_join(jobs[i].thread, NULL);
        sum += jobs[i].done_bytes;
    }
    return (double)sum / (double)(clock_now_ns() - start);
}

/* The best of three: on a shared machine the others' load is the larger error. */
static double best(copy_fn copy, bool ahead, size_t sample_bytes, unsigned threads, double seconds)
{
    double most = 0;
    for (unsigned i = 0; i < 3; i++) {
        double gb_s = run(copy, ahead, sample_bytes, threads, seconds / 3);
        most = MAX(most, gb_s);
    }
    return most;
}

static void row(const char *name, copy_fn copy, unsigned threads, double seconds)
{
    static const size_t sizes[] = {4096, 65536, 150000, MIB};
    for (unsigned ahead = 0; ahead < 2; ahead++) {
        printf("%u thread(s)  %-12s %-6s", threads, name, ahead ? "+next" : "");
        for (unsigned i = 0; i < ARRAY_LEN(sizes); i++)
            printf("  %zu: %6.2f", sizes[i], best(copy, ahead, sizes[i], threads, seconds));
        printf("\n");
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? atof(argv[1]) : 0.3;
    unsigned most = argc > 2 ? (unsigned)atoi(argv[2]) : 2;
    /* Shared memory with small pages: what a pool segment is unless the host is set up for more. */
    pool = mmap(NULL, POOL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ring = mmap(NULL, RING_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (pool == MAP_FAILED || ring == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    uint64_t seed = 1;
    for (size_t i = 0; i < POOL_BYTES; i += 8)
        memcpy(pool + i, &(uint64_t){rng_next(&seed)}, 8);
    memset(ring, 1, RING_BYTES);
    printf("crc32c in use: %s\n", crc32c_impl());
    for (unsigned threads = 1; threads <= MIN(most, (unsigned)MOST_THREADS); threads *= 2) {
        const struct crc32c_impl *impls;
        unsigned n = crc32c_impls(&impls);
        row("memcpy", copy_only, threads, seconds);
        row("memcpy, crc", copy_then_crc, threads, seconds);
        for (unsigned i = 0; i < n; i++)
            row(impls[i].name, impls[i].copy, threads, seconds);
    }
    return 0;
}
