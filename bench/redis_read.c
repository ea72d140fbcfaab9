/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_read: the same reads out of a Redis server over its unix socket: MGET of up to 64 keys (a batch of 256 sends four at once),
 * each value copied from hiredis's reply into the batch. `redis_read [driver's options] SOCKET|HOST:PORT fill|keep`: fill puts the samples into the server first.
 */
#include "driver.h"

#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <stdio.h>

#define KEYS 64
#define SETS 32 /* sent before their answers are read */

static const char *socket_path;
static uint64_t sample_bytes;

struct reader {
    redisContext *redis;
    uint8_t *ring;
    unsigned slot, slots;
    uint64_t slot_bytes;
};

static redisContext *dial(void)
{
    const char *colon = strrchr(socket_path, ':');
    AUTO_FREE char *host = colon ? strndup(socket_path, (size_t)(colon - socket_path)) : NULL;
    redisContext *redis = colon ? redisConnect(host, atoi(colon + 1)) : redisConnectUnix(socket_path);
    if (!redis || redis->err)
        bench_die("redis: %s", redis ? redis->errstr : "no memory");
    return redis;
}

static redisReply *answer(redisContext *redis)
{
    void *reply = NULL;
    if (redisGetReply(redis, &reply) != REDIS_OK || ((redisReply *)reply)->type == REDIS_REPLY_ERROR)
        bench_die("redis: %s", reply ? ((redisReply *)reply)->str : redis->errstr);
    return reply;
}

static void fill(const struct bench_setup *setup)
{
    AUTO_CLOSE int fd = open(setup->file, O_RDONLY | O_CLOEXEC);
    AUTO_FREE uint8_t *buf = malloc(sample_bytes);
    uint64_t from = bench_npy_data(fd);
    redisContext *redis = dial();
    for (uint64_t i = 0; buf && i < setup->samples; i++) {
        if (pread(fd, buf, sample_bytes, (off_t)(from + i * sample_bytes)) != (ssize_t)sample_bytes)
            bench_die("%s: short", setup->file);
        redisAppendCommand(redis, "SET s%llu %b", (unsigned long long)i, buf, (size_t)sample_bytes);
        if (i % SETS == SETS - 1 || i + 1 == setup->samples)
            for (uint64_t k = 0; k <= i % SETS; k++)
                freeReplyObject(answer(redis));
    }
    redisFree(redis);
}

static void prepare(const struct bench_setup *setup)
{
    if (setup->nargs != 2)
        bench_die("needs SOCKET|HOST:PORT fill|keep");
    socket_path = setup->args[0];
    sample_bytes = setup->sample_bytes;
    if (strcmp(setup->args[1], "fill") == 0)
        fill(setup);
}

static void *consumer(const struct bench_setup *setup, unsigned number)
{
    struct reader *r = calloc(1, sizeof(*r));
    if (!r)
        bench_die("no memory");
    r->redis = dial();
    r->slots = setup->slots;
    r->slot_bytes = setup->batch * sample_bytes;
    r->ring = bench_ring(r->slots * r->slot_bytes);
    return r;
}

static void read_batch(void *arg, const uint64_t *ids, unsigned n, const uint8_t **ret_data)
{
    struct reader *r = arg;
    uint8_t *to = r->ring + r->slot_bytes * (r->slot++ % r->slots);
    *ret_data = to;
    for (unsigned first = 0; first < n; first += KEYS) {
        char keys[KEYS][24];
        const char *argv[KEYS + 1] = {"MGET"};
        size_t lens[KEYS + 1] = {4};
        unsigned k = MIN(n - first, (unsigned)KEYS);
        for (unsigned i = 0; i < k; i++) {
            lens[i + 1] =
                (size_t)snprintf(keys[i], sizeof(keys[i]), "s%llu", (unsigned long long)ids[first + i]);
            argv[i + 1] = keys[i];
        }
        redisAppendCommandArgv(r->redis, (int)k + 1, argv, lens);
    }
    for (unsigned first = 0; first < n; first += KEYS) {
        redisReply *reply = answer(r->redis);
        for (size_t i = 0; i < reply->elements; i++, to += sample_bytes) {
            if (reply->element[i]->len != sample_bytes)
                bench_die("a value of %zu bytes", reply->element[i]->len);
            memcpy(to, reply->element[i]->str, sample_bytes);
        }
        freeReplyObject(reply);
    }
}

int main(int argc, char **argv)
{
    return bench_main(argc, argv,
                      &(struct bench_reader){.prepare = prepare, .consumer = consumer, .read = read_batch});
}
