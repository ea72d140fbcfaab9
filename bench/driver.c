/* SPDX-License-Identifier: Apache-2.0 */
/* driver.c: see driver.h. Latencies are kept per batch in a fixed array, so that the timed loop allocates nothing. */
#include "driver.h"
#include "options.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/rng.h"
#include "pool/region/hugefs.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>

#define EPOCHS       3 /* permutations made ahead; runs go through them again and again */
#define LATENCIES    (1u << 20)
#define ORDER_SEED   0x5eed
#define CONSUMER_MAX 64

_Noreturn void bench_die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s: ", program_invocation_short_name);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

void bench_sample_fill(uint8_t *at, uint64_t bytes, uint64_t seed, uint64_t index)
{
    uint64_t state = rng_seed(seed, index);
    for (uint64_t i = BENCH_HEAD; i < bytes; i += 8) {
        uint64_t v = rng_next(&state);
        memcpy(at + i, &v, MIN((uint64_t)8, bytes - i));
    }
    uint32_t crc = crc32c(0, at + BENCH_HEAD, bytes - BENCH_HEAD), len = (uint32_t)bytes;
    memcpy(at, &index, 8);
    memcpy(at + 8, &crc, 4);
    memcpy(at + 12, &len, 4);
}

void bench_sample_check(const uint8_t *at, uint64_t bytes, uint64_t index)
{
    uint64_t found;
    uint32_t crc, len;
    memcpy(&found, at, 8);
    memcpy(&crc, at + 8, 4);
    memcpy(&len, at + 12, 4);
    if (found != index || len != bytes)
        bench_die("sample %llu came as sample %llu of %u bytes", (unsigned long long)index,
                  (unsigned long long)found, len);
    if (crc32c(0, at + BENCH_HEAD, bytes - BENCH_HEAD) != crc)
        bench_die("sample %llu is damaged", (unsigned long long)index);
}

uint64_t bench_npy_data(int fd)
{
    uint8_t head[10];
    if (pread(fd, head, sizeof(head), 0) != sizeof(head) || memcmp(head, "\x93NUMPY\x01", 7) != 0)
        bench_die("not a .npy of version 1");
    return 10u + head[8] + 256u * head[9];
}

uint8_t *bench_memory(uint64_t bytes, bool huge, int *ret_fd)
{
    static int huge_dir = -1;
    uint64_t room = align_up(bytes, 2 * MIB);
    if (huge && huge_dir < 0 && (huge_dir = hugefs_open()) < 0)
        bench_die("no tmpfs with huge pages here: %s", strerror(-huge_dir));
    int fd = huge ? openat(huge_dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)
                  : memfd_create("bench", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)room) < 0)
        bench_die("no shared memory: %s", strerror(errno));
    uint8_t *map = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        bench_die("mmap: %s", strerror(errno));
    if (ret_fd)
        *ret_fd = fd;
    else
        close(fd);
    return map;
}

uint8_t *bench_load_npy(const struct bench_setup *setup)
{
    uint64_t bytes = setup->samples * setup->sample_bytes;
    AUTO_CLOSE int memory = -1;
    AUTO_CLOSE int fd = open(setup->file, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        bench_die("%s: %s", setup->file, strerror(errno));
    uint64_t from = bench_npy_data(fd);
    uint8_t *samples = bench_memory(bytes, setup->huge, &memory);
    if (fallocate(memory, 0, 0, (off_t)bytes) < 0) /* as the daemon does: whole huge pages */
        bench_die("no memory for %s: %s", setup->file, strerror(errno));
    for (uint64_t at = 0; at < bytes;) {
        ssize_t n = pread(fd, samples + at, MIN(bytes - at, 16 * MIB), (off_t)(from + at));
        if (n <= 0)
            bench_die("%s: shorter than said", setup->file);
        at += (uint64_t)n;
    }
    return samples;
}

uint8_t *bench_ring(uint64_t bytes)
{
    uint8_t *ring =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (ring == MAP_FAILED)
        bench_die("no memory for the ring");
    madvise(ring, bytes, MADV_HUGEPAGE);
    memset(ring, 0, bytes);
    return ring;
}

/* --- consumers ------------------------------------------------------------------------------------------------- */

struct consumer {
    void *state;
    unsigned number; /* of all */
    uint64_t step;   /* continues from run to run */
    uint64_t bytes, samples, batches;
    uint32_t *lat_us;
    pthread_t thread;
};

static struct bench_setup setup = {.batch = 64, .slots = 4, .consumers = 2};
static const struct bench_reader *reader;
static uint64_t *orders; /* EPOCHS permutations */
static struct consumer consumers[CONSUMER_MAX];
static pthread_barrier_t barrier;
static uint64_t run_ns;
static bool verifying;

static void read_orders(const char *path, uint64_t n)
{
    FILE *f = fopen(path, "rb");
    if (!f || fread(orders, n * sizeof(*orders), EPOCHS, f) != EPOCHS)
        bench_die("%s: no %u orders of %llu samples", path, EPOCHS, (unsigned long long)n);
    fclose(f);
}

static void make_orders(void)
{
    uint64_t n = setup.samples;
    orders = malloc(EPOCHS * n * sizeof(*orders));
    if (!orders)
        bench_die("no memory for %llu numbers", (unsigned long long)n);
    if (setup.orders) {
        read_orders(setup.orders, n);
        return;
    }
    for (unsigned e = 0; e < EPOCHS; e++) {
        uint64_t *order = orders + e * n, state = rng_seed(ORDER_SEED, e);
        for (uint64_t i = 0; i < n; i++)
            order[i] = i;
        for (uint64_t i = n; i > 1; i--) {
            uint64_t j = rng_below(&state, i), was = order[i - 1];
            order[i - 1] = order[j];
            order[j] = was;
        }
    }
}

/* Step s of all: the samples of consumer r are the r-th batch in it. Whole steps only; an epoch's tail is left out. */
static const uint64_t *batch_of(const struct consumer *c, uint64_t step)
{
    uint64_t group = (uint64_t)setup.batch * setup.all_consumers, steps = setup.samples / group;
    return orders + step / steps % EPOCHS * setup.samples + step % steps * group +
           (uint64_t)c->number * setup.batch;
}

static void consume_for(struct consumer *c)
{
    uint64_t start = clock_now_ns(), now = start;
    while (now - start < run_ns) {
        const uint8_t *data;
        uint64_t before = now;
        reader->read(c->state, batch_of(c, c->step++), setup.batch, &data);
        now = clock_now_ns();
        c->lat_us[c->batches++ % LATENCIES] = (uint32_t)MIN((now - before) / 100, (uint64_t)UINT32_MAX);
    }
    c->samples = c->batches * setup.batch;
    c->bytes = c->samples * setup.sample_bytes;
}

/* This process's share of one permutation, tail included. */
static void verify_share(struct consumer *c)
{
    for (uint64_t at = (uint64_t)c->number * setup.batch; at < setup.samples;
         at += (uint64_t)setup.batch * setup.all_consumers) {
        const uint8_t *data;
        unsigned n = (unsigned)MIN((uint64_t)setup.batch, setup.samples - at);
        reader->read(c->state, orders + at, n, &data);
        for (unsigned i = 0; i < n; i++)
            bench_sample_check(data + i * setup.sample_bytes, setup.sample_bytes, orders[at + i]);
        c->samples += n;
    }
}

/* Consumer k on the k-th CPU of those there are, and so on. */
static void stay_on_one_cpu(unsigned k)
{
    cpu_set_t may, one;
    if (sched_getaffinity(0, sizeof(may), &may) < 0 || !CPU_COUNT(&may))
        bench_die("which CPUs are there? %s", strerror(errno));
    int cpu = -1;
    for (unsigned left = k % (unsigned)CPU_COUNT(&may) + 1; left; left -= CPU_ISSET(cpu, &may) != 0)
        cpu++;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    if (sched_setaffinity(0, sizeof(one), &one) < 0)
        bench_die("cannot stay on CPU %d: %s", cpu, strerror(errno));
}

static void *consumer_main(void *arg)
{
    struct consumer *c = arg;
    if (setup.spread)
        stay_on_one_cpu(c->number);
    if (!c->state)
        c->state = reader->consumer(&setup, c->number);
    for (;;) {
        pthread_barrier_wait(&barrier);
        c->bytes = c->samples = c->batches = 0;
        if (verifying)
            verify_share(c);
        else
            consume_for(c);
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void report_run(uint64_t ns)
{
    uint64_t bytes = 0, samples = 0, batches = 0, kept = 0;
    for (unsigned i = 0; i < setup.consumers; i++) {
        bytes += consumers[i].bytes;
        samples += consumers[i].samples;
        batches += consumers[i].batches;
        kept += MIN(consumers[i].batches, (uint64_t)LATENCIES);
    }
    uint32_t *all = malloc(MAX(kept, 1ul) * sizeof(*all));
    if (!all)
        bench_die("no memory");
    uint64_t n = 0;
    for (unsigned i = 0; i < setup.consumers; i++) {
        uint64_t some = MIN(consumers[i].batches, (uint64_t)LATENCIES);
        memcpy(all + n, consumers[i].lat_us, some * sizeof(*all));
        n += some;
    }
    qsort(all, n, sizeof(*all), by_value);
    printf("{\"bytes\": %llu, \"ns\": %llu, \"samples\": %llu, \"batches\": %llu, \"p50_us\": %.1f, "
           "\"p99_us\": %.1f}\n",
           (unsigned long long)bytes, (unsigned long long)ns, (unsigned long long)samples,
           (unsigned long long)batches, n ? all[n / 2] / 10.0 : 0, n ? all[n * 99 / 100] / 10.0 : 0);
    free(all);
}

static void answer(char *line)
{
    line[strcspn(line, "\n")] = 0;
    if (strncmp(line, "run ", 4) == 0 || strcmp(line, "verify") == 0) {
        verifying = line[0] == 'v';
        run_ns = verifying ? 0 : (uint64_t)(atof(line + 4) * 1e9);
        uint64_t start = clock_now_ns();
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier);
        uint64_t ns = clock_now_ns() - start, samples = 0;
        for (unsigned i = 0; i < setup.consumers; i++)
            samples += consumers[i].samples;
        if (verifying)
            printf("{\"verified\": %llu}\n", (unsigned long long)samples);
        else
            report_run(ns);
    } else if (strncmp(line, "mode ", 5) == 0 && reader->mode && reader->mode(line + 5) == 0) {
        printf("{\"mode\": \"%s\"}\n", line + 5);
    } else {
        bench_die("what is '%s'?", line);
    }
    fflush(stdout);
}

static void parse(int argc, char **argv)
{
    const char *pages = "";
    unsigned spread = 0;
    bench_options_take(argc, argv,
                       (const struct bench_option[]){{"file", .text = &setup.file},
                                                     {"orders", .text = &setup.orders},
                                                     {"pages", .text = &pages},
                                                     {"samples", .number = &setup.samples},
                                                     {"bytes", .number = &setup.sample_bytes},
                                                     {"batch", .count = &setup.batch},
                                                     {"slots", .count = &setup.slots},
                                                     {"consumers", .count = &setup.consumers},
                                                     {"first", .count = &setup.first_consumer},
                                                     {"all", .count = &setup.all_consumers},
                                                     {"spread", .count = &spread},
                                                     {0}});
    setup.huge = strcmp(pages, "huge") == 0;
    setup.spread = spread != 0;
    setup.all_consumers = MAX(setup.all_consumers, setup.consumers);
    setup.args = argv + optind;
    setup.nargs = argc - optind;
    if (!setup.file || setup.sample_bytes < BENCH_HEAD || setup.consumers == 0 || setup.batch == 0 ||
        setup.slots == 0 || setup.consumers > CONSUMER_MAX ||
        setup.samples < (uint64_t)setup.batch * setup.all_consumers)
        bench_die("needs --file, --samples (at least a batch a consumer) and --bytes (at least %d)",
                  BENCH_HEAD);
}

int bench_main(int argc, char **argv, const struct bench_reader *r)
{
    reader = r;
    parse(argc, argv);
    make_orders();
    if (reader->prepare)
        reader->prepare(&setup);
    pthread_barrier_init(&barrier, NULL, setup.consumers + 1);
    for (unsigned i = 0; i < setup.consumers; i++) {
        struct consumer *c = &consumers[i];
        c->number = setup.first_consumer + i;
        c->lat_us = calloc(LATENCIES, sizeof(*c->lat_us));
        if (!c->lat_us || pthread_create(&c->thread, NULL, consumer_main, c) != 0)
            bench_die("cannot start a consumer");
    }
    printf("{\"ready\": true, \"pid\": %d}\n", getpid());
    fflush(stdout);
    char line[256];
    while (fgets(line, sizeof(line), stdin))
        answer(line);
    if (reader->finish)
        reader->finish();
    fflush(stdout);
    _exit(0); /* the consumers wait at the barrier for ever */
}
