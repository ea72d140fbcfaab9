/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_samples SAMPLES: reads samples from stdin, each as u64 length and its bytes, until a length of 0, checks number, length and CRC (driver.h), and that
 * none comes twice. Prints how many came. For readers in Python, which have no CRC32C of their own.
 */
#include "driver.h"

#include <stdio.h>

int main(int argc, char **argv)
{
    uint64_t samples = argc == 2 ? strtoull(argv[1], NULL, 10) : 0, bytes, cap = 0, came = 0;
    AUTO_FREE uint8_t *seen = calloc(samples + 1, 1);
    uint8_t *buf = NULL;
    if (!samples || !seen)
        bench_die("needs SAMPLES");
    while (fread(&bytes, sizeof(bytes), 1, stdin) == 1 && bytes) {
        if (bytes < BENCH_HEAD || bytes > GIB)
            bench_die("a sample of %llu bytes", (unsigned long long)bytes);
        if (bytes > cap) {
            free(buf);
            buf = malloc(cap = bytes);
        }
        if (!buf || fread(buf, 1, bytes, stdin) != bytes)
            bench_die("a sample ends early");
        uint64_t index;
        memcpy(&index, buf, sizeof(index));
        if (index >= samples || seen[index]++)
            bench_die("sample %llu came twice, or is none", (unsigned long long)index);
        bench_sample_check(buf, bytes, index);
        came++;
    }
    free(buf);
    printf("%llu\n", (unsigned long long)came);
    return 0;
}
