/* SPDX-License-Identifier: Apache-2.0 */
/* What one element of an epoch order costs: ns an element, best of five, for a few sizes and kinds. */
#include <leat/leat.h>
#include <stdio.h>
#include <time.h>

static double measure(uint64_t n, uint64_t block)
{
    static uint64_t ids[256];
    struct leat_order order;
    double best = 1e9;
    if (leat_order_init(&order, n, 1, 1, block, NULL, NULL))
        return -1;
    for (int round = 0; round < 5; round++) {
        struct timespec a, z;
        unsigned done = 0;
        clock_gettime(CLOCK_MONOTONIC, &a);
        for (uint64_t p = 0; done < 1000000; p = (p + 256) % (n - 256), done += 256)
            leat_order_fill(&order, p, 256, ids);
        clock_gettime(CLOCK_MONOTONIC, &z);
        double ns = ((double)(z.tv_sec - a.tv_sec) * 1e9 + (double)(z.tv_nsec - a.tv_nsec)) / done;
        best = ns < best ? ns : best;
    }
    return best;
}

int main(void)
{
    static const uint64_t sizes[] = {1000, 60000, 1281167, 10000000, 1ull << 40};
    printf("%16s %12s %12s %12s\n", "samples", "full", "block:64", "block:1000");
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        printf("%16llu %9.1f ns %9.1f ns %9.1f ns\n", (unsigned long long)sizes[i], measure(sizes[i], 0),
               measure(sizes[i], 64), measure(sizes[i], 1000));
    return 0;
}
