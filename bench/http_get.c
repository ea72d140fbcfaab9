/* SPDX-License-Identifier: Apache-2.0 */
/* http_get.c: see http_get.h. The timed part allocates nothing. */
#include "http_get.h"
#include "options.h"
#include "base/clock.h"
#include "base/rng.h"

#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define RING_BYTES (64 * MIB) /* more than the CPU's cache for one core */
#define LATENCIES  (1u << 20)

static struct get_setup setup = {.host = "127.0.0.1", .connections = 16, .depth = 1};
static struct get_item *items, *free_items;
static uint32_t *order, *slots,
    *lat_us; /* a permutation; free slots, first in, first out; in tenths of a microsecond */
static uint64_t nslots, slot_head, slot_tail;
static uint8_t *ring;
static uint64_t step, left, end_ns, done, out; /* left: items of this run, where it is not limited by time */
static bool verifying;

_Noreturn void get_die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s: ", program_invocation_short_name);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

void get_path(uint64_t number, char *ret, size_t cap)
{
    if (setup.of)
        snprintf(ret, cap, "/%s/data", setup.bucket);
    else
        snprintf(ret, cap, "/%s/o/%06u", setup.bucket, (unsigned)number);
}

struct get_item *get_next(void)
{
    struct get_item *item = free_items;
    if (!item)
        return NULL;
    uint64_t now = clock_now_ns();
    if (verifying ? left == 0 : now >= end_ns)
        return NULL;
    left -= verifying;
    free_items = item->free_next;
    item->number = order[step++ % setup.count];
    item->offset = setup.of ? item->number * setup.bytes : 0;
    item->bytes = setup.bytes;
    item->slot = slots[slot_head++ % nslots];
    item->dst = ring + item->slot * setup.bytes;
    item->began_ns = now;
    out++;
    return item;
}

static void compare(const struct get_item *item)
{
    char path[64], file[512];
    get_path(item->number, path, sizeof(path));
    snprintf(file, sizeof(file), "%s%s", setup.root, path);
    AUTO_CLOSE int fd = open(file, O_RDONLY | O_CLOEXEC);
    AUTO_FREE uint8_t *want = malloc(item->bytes);
    if (fd < 0 || !want || pread(fd, want, item->bytes, (off_t)item->offset) != (ssize_t)item->bytes)
        get_die("%s: cannot be read here", file);
    if (memcmp(want, item->dst, item->bytes) != 0)
        get_die("%s at %llu: other bytes came", path, (unsigned long long)item->offset);
    memset(item->dst, 0, item->bytes); /* so that the next one in this slot has to be written */
}

void get_done(struct get_item *item)
{
    if (verifying)
        compare(item);
    else
        lat_us[done % LATENCIES] =
            (uint32_t)MIN((clock_now_ns() - item->began_ns) / 100, (uint64_t)UINT32_MAX);
    slots[slot_tail++ % nslots] = item->slot;
    item->free_next = free_items;
    free_items = item;
    done++;
    out--;
}

static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void answer(char *line, const struct get_client *client)
{
    line[strcspn(line, "\n")] = 0;
    done = out = 0;
    verifying = strcmp(line, "verify") == 0;
    left = setup.count;
    uint64_t start = clock_now_ns();
    if (!verifying && strncmp(line, "run ", 4) != 0)
        get_die("what is '%s'?", line);
    end_ns = verifying ? 0 : start + (uint64_t)(atof(line + 4) * 1e9);
    client->run();
    uint64_t ns = clock_now_ns() - start, kept = MIN(done, (uint64_t)LATENCIES);
    if (out)
        get_die("%llu items never came", (unsigned long long)out);
    if (verifying) {
        printf("{\"verified\": %llu}\n", (unsigned long long)done);
    } else {
        qsort(lat_us, kept, sizeof(*lat_us), by_value);
        printf("{\"bytes\": %llu, \"ns\": %llu, \"samples\": %llu, \"p50_us\": %.1f, \"p99_us\": %.1f}\n",
               (unsigned long long)(done * setup.bytes), (unsigned long long)ns, (unsigned long long)done,
               kept ? lat_us[kept / 2] / 10.0 : 0, kept ? lat_us[kept * 99 / 100] / 10.0 : 0);
    }
    fflush(stdout);
}

static void parse(int argc, char **argv)
{
    bench_options_take(argc, argv,
                       (const struct bench_option[]){{"host", .text = &setup.host},
                                                     {"ca", .text = &setup.ca_file},
                                                     {"bucket", .text = &setup.bucket},
                                                     {"root", .text = &setup.root},
                                                     {"port", .count = &setup.port},
                                                     {"bytes", .number = &setup.bytes},
                                                     {"of", .number = &setup.of},
                                                     {"objects", .number = &setup.count},
                                                     {"block", .number = &setup.block},
                                                     {"depth", .count = &setup.depth},
                                                     {"connections", .count = &setup.connections},
                                                     {"inflight", .count = &setup.inflight},
                                                     {"sign", .flag = &setup.sign},
                                                     {0}});
    if (setup.of && setup.bytes)
        setup.count = setup.of / setup.bytes;
    setup.inflight = setup.inflight ? setup.inflight : setup.connections * setup.depth;
    if (!setup.port || !setup.bucket || !setup.root || !setup.bytes || !setup.count || !setup.inflight)
        get_die("needs --port, --bucket, --root, --bytes, and --of or --objects");
}

int get_main(int argc, char **argv, const struct get_client *client)
{
    signal(SIGPIPE, SIG_IGN);
    parse(argc, argv);
    nslots = MAX(RING_BYTES / setup.bytes, (uint64_t)setup.inflight * 2);
    order = calloc(setup.count, sizeof(*order));
    slots = calloc(nslots, sizeof(*slots));
    lat_us = calloc(LATENCIES, sizeof(*lat_us));
    items = calloc(setup.inflight, sizeof(*items));
    ring = mmap(NULL, nslots * setup.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!order || !slots || !lat_us || !items || ring == MAP_FAILED)
        get_die("no memory");
    madvise(ring, nslots * setup.bytes, MADV_HUGEPAGE); /* as a view's */
    memset(ring, 0, nslots * setup.bytes);
    uint64_t state = rng_seed(0x5eed, 0);
    for (uint64_t i = 0; i < setup.count; i++)
        order[i] = (uint32_t)i;
    for (uint64_t i = setup.count; i > 1; i--) {
        uint64_t j = rng_below(&state, i);
        uint32_t was = order[i - 1];
        order[i - 1] = order[j];
        order[j] = was;
    }
    for (uint64_t i = 0; i < nslots; i++)
        slots[i] = (uint32_t)i;
    slot_tail = nslots;
    for (unsigned i = setup.inflight; i-- > 0;) {
        items[i].index = i;
        items[i].free_next = free_items;
        free_items = &items[i];
    }
    client->prepare(&setup);
    printf("{\"ready\": true, \"pid\": %d}\n", getpid());
    fflush(stdout);
    char line[256];
    while (fgets(line, sizeof(line), stdin))
        answer(line, client);
    return 0;
}
