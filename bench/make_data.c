/* SPDX-License-Identifier: Apache-2.0 */
/*
 * make_data: datasets out of a seed, every sample carrying its index and CRC (driver.h).
 *
 *   make_data npy FILE SAMPLES BYTES SEED             uint8 (SAMPLES, BYTES)
 *   make_data files DIR FILES MEAN SIGMA SEED         lognormal sizes with that mean, 1,024 files a folder
 *
 * `files` prints the sum of the sizes. File i is DIR/d%03u/f%06u.bin and holds sample i.
 */
#include "base/rng.h"
#include "driver.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <sys/stat.h>

#define LARGEST (64 * MIB)

static void write_all(int fd, const void *buf, size_t bytes, const char *path)
{
    for (ssize_t n; bytes; bytes -= (size_t)n) {
        n = write(fd, buf, bytes);
        if (n <= 0)
            bench_die("%s: %s", path, strerror(errno));
        buf = (const char *)buf + n;
    }
}

static void make_npy(const char *path, uint64_t samples, uint64_t bytes, uint64_t seed)
{
    AUTO_CLOSE int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    uint64_t per = MAX(4 * MIB / bytes, 1ul);
    AUTO_FREE uint8_t *buf = malloc(per * bytes);
    char head[128];
    if (fd < 0 || !buf)
        bench_die("%s: %s", path, strerror(errno));
    memset(head, ' ', sizeof(head));
    memcpy(head, "\x93NUMPY\x01\x00\x76\x00", 10);
    int n = snprintf(head + 10, sizeof(head) - 10,
                     "{'descr': '|u1', 'fortran_order': False, 'shape': (%llu, %llu), }",
                     (unsigned long long)samples, (unsigned long long)bytes);
    head[10 + n] = ' ';
    head[127] = '\n';
    write_all(fd, head, sizeof(head), path);
    for (uint64_t i = 0; i < samples; i += per) {
        uint64_t k = MIN(per, samples - i);
        for (uint64_t j = 0; j < k; j++)
            bench_sample_fill(buf + j * bytes, bytes, seed, i + j);
        write_all(fd, buf, k * bytes, path);
    }
    fsync(fd); /* what is dirty cannot be made cold */
}

static double uniform(uint64_t *state)
{
    return ((double)(rng_next(state) >> 11) + 0.5) / 9007199254740992.0;
}

static void make_files(const char *dir, uint64_t files, double mean, double sigma, uint64_t seed)
{
    AUTO_FREE uint8_t *buf = malloc(LARGEST);
    uint64_t state = rng_seed(seed, files), sum = 0;
    char path[4096];
    if (!buf)
        bench_die("no memory");
    mkdir(dir, 0755);
    for (uint64_t i = 0; i < files; i++) {
        /* Box and Muller; a lognormal's mean is exp(mu + sigma^2 / 2). */
        double z = sqrt(-2 * log(uniform(&state))) * cos(2 * M_PI * uniform(&state));
        double size = exp(log(mean) - sigma * sigma / 2 + sigma * z);
        uint64_t bytes = (uint64_t)MIN(MAX(size, (double)BENCH_HEAD), (double)LARGEST);
        snprintf(path, sizeof(path), "%s/d%03llu", dir, (unsigned long long)(i / 1024));
        if (i % 1024 == 0 && mkdir(path, 0755) < 0 && errno != EEXIST)
            bench_die("%s: %s", path, strerror(errno));
        snprintf(path, sizeof(path), "%s/d%03llu/f%06llu.bin", dir, (unsigned long long)(i / 1024),
                 (unsigned long long)i);
        AUTO_CLOSE int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        if (fd < 0)
            bench_die("%s: %s", path, strerror(errno));
        bench_sample_fill(buf, bytes, seed, i);
        write_all(fd, buf, bytes, path);
        sum += bytes;
    }
    sync();
    printf("%llu\n", (unsigned long long)sum);
}

int main(int argc, char **argv)
{
    if (argc == 6 && strcmp(argv[1], "npy") == 0)
        make_npy(argv[2], strtoull(argv[3], NULL, 10), strtoull(argv[4], NULL, 10),
                 strtoull(argv[5], NULL, 10));
    else if (argc == 7 && strcmp(argv[1], "files") == 0)
        make_files(argv[2], strtoull(argv[3], NULL, 10), atof(argv[4]), atof(argv[5]),
                   strtoull(argv[6], NULL, 10));
    else
        bench_die("npy FILE SAMPLES BYTES SEED, or files DIR FILES MEAN SIGMA SEED");
    return 0;
}
