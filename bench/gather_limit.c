/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gather_limit: the most that a read from shared memory can give: samples copied out of a memfd into a ring of batches,
 * checksummed on the way (mode crc, the default) or by plain memcpy (mode memcpy). No index, no daemon, no states, no checks.
 */
#include "base/crc32c.h"
#include "driver.h"

#include <sys/mman.h>

static const uint8_t *pool;
static uint64_t bytes;
static bool plain;

struct gather {
    uint8_t *ring;
    unsigned slot, slots;
    uint64_t slot_bytes;
    uint32_t crc; /* kept, so that nothing is optimized away */
};

static void prepare(const struct bench_setup *setup)
{
    pool = bench_load_npy(setup);
    bytes = setup->sample_bytes;
}

static void *consumer(const struct bench_setup *setup, unsigned number)
{
    struct gather *g = calloc(1, sizeof(*g));
    if (!g)
        bench_die("no memory");
    g->slots = setup->slots;
    g->slot_bytes = align_up((uint64_t)setup->batch * bytes, 2 * MIB);
    g->ring = bench_ring(g->slots * g->slot_bytes);
    return g;
}

static void read_batch(void *arg, const uint64_t *ids, unsigned n, const uint8_t **ret_data)
{
    struct gather *g = arg;
    uint8_t *to = g->ring + g->slot_bytes * (g->slot++ % g->slots);
    *ret_data = to;
    if (plain) {
        for (unsigned i = 0; i < n; i++)
            memcpy(to + i * bytes, pool + ids[i] * bytes, bytes);
        return;
    }
    for (unsigned i = 0; i < n; i++) {
        const uint8_t *next = i + 1 < n ? pool + ids[i + 1] * bytes : NULL;
        g->crc ^= crc32c_copy_ahead(0, to + i * bytes, pool + ids[i] * bytes, bytes, next, bytes);
    }
}

static int mode(const char *name)
{
    if (strcmp(name, "crc") != 0 && strcmp(name, "memcpy") != 0)
        return -EINVAL;
    plain = name[0] == 'm';
    return 0;
}

int main(int argc, char **argv)
{
    return bench_main(
        argc, argv,
        &(struct bench_reader){.prepare = prepare, .consumer = consumer, .read = read_batch, .mode = mode});
}
