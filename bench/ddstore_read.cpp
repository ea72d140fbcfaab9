// SPDX-License-Identifier: Apache-2.0
/*
 * ddstore_read: the same reads through DDStore (github.com/ORNL/DDStore) with its MPI back end: every rank is a consumer and
 * holds an equal part of the samples; a batch is DDStore::get of one sample at a time, as its examples do. Built by
 * harness/ddstore.py against a checkout that is not ours to ship; run by mpirun.
 * Speaks as driver.h says; rank 0 answers for all.
 */
#include "ddstore.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <unistd.h>
#include <vector>

static int rank_of, ranks;

[[noreturn]] static void die(const char *what)
{
    fprintf(stderr, "ddstore_read: %s\n", what);
    MPI_Abort(MPI_COMM_WORLD, 1);
    _exit(1);
}

static uint32_t crc32c_bytes(const uint8_t *at, size_t bytes)
{
    static uint32_t table[256];
    if (!table[1])
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t v = i;
            for (int k = 0; k < 8; k++)
                v = v & 1 ? v >> 1 ^ 0x82f63b78u : v >> 1;
            table[i] = v;
        }
    uint32_t crc = ~0u;
    while (bytes--)
        crc = table[(crc ^ *at++) & 255] ^ crc >> 8;
    return ~crc;
}

static void check(const uint8_t *at, uint64_t bytes, uint64_t index)
{
    uint64_t found;
    uint32_t crc;
    memcpy(&found, at, 8);
    memcpy(&crc, at + 8, 4);
    if (found != index || crc != crc32c_bytes(at + 16, bytes - 16))
        die("a wrong sample");
}

static uint64_t now_ns()
{
    return (uint64_t)std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

/* Rank 0's input, broadcast to all. Waiting ranks sleep: a rank that spins would slow down the measured program. */
static bool next_line(char *line, int cap)
{
    MPI_Request request;
    int done = 0;
    memset(line, 0, (size_t)cap);
    if (rank_of == 0 && !fgets(line, cap, stdin))
        line[0] = 0;
    MPI_Ibcast(line, cap, MPI_CHAR, 0, MPI_COMM_WORLD, &request);
    while (MPI_Test(&request, &done, MPI_STATUS_IGNORE), !done)
        usleep(1000);
    return line[0] != 0;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_of);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 5)
        die("needs FILE SAMPLES BYTES BATCH");
    const long samples = atol(argv[2]), bytes = atol(argv[3]), batch = atol(argv[4]);
    const long slots = 4, share = samples / ranks, mine = rank_of + 1 < ranks ? share : samples - share * (ranks - 1);
    std::vector<char> part((size_t)(mine * bytes));
    FILE *file = fopen(argv[1], "rb");
    uint8_t head[10];
    if (!file || fread(head, 1, 10, file) != 10 ||
        fseek(file, 10 + head[8] + 256 * head[9] + rank_of * share * bytes, SEEK_SET) != 0 ||
        fread(part.data(), 1, part.size(), file) != part.size())
        die("cannot read the file");
    fclose(file);
    DDStore store(MPI_COMM_WORLD);
    store.add<char>("samples", part.data(), mine, (int)bytes);
    std::vector<char>().swap(part);

    std::vector<std::vector<long>> orders(3, std::vector<long>((size_t)samples));
    for (unsigned e = 0; e < 3; e++) {
        std::mt19937_64 random(e);
        for (long i = 0; i < samples; i++)
            orders[e][(size_t)i] = i;
        std::shuffle(orders[e].begin(), orders[e].end(), random);
    }
    std::vector<char> ring((size_t)(slots * batch * bytes));
    const long steps = samples / (batch * ranks);
    long step = 0, slot = 0;
    auto read_batch = [&](const long *ids, long n) {
        char *to = ring.data() + slot++ % slots * batch * bytes;
        for (long i = 0; i < n; i++)
            store.get<char>("samples", ids[i], 1, to + i * bytes);
        return (const uint8_t *)to;
    };

    if (rank_of == 0) {
        printf("{\"ready\": true}\n");
        fflush(stdout);
    }
    char line[256];
    while (next_line(line, sizeof(line))) {
        MPI_Barrier(MPI_COMM_WORLD);
        unsigned long long sums[2] = {0, 0}, all[2];
        uint64_t start = now_ns(), now = start;
        std::vector<uint64_t> latency;
        if (line[0] == 'v') {
            for (long at = rank_of * batch; at < samples; at += batch * ranks) {
                long n = std::min(batch, samples - at);
                const uint8_t *data = read_batch(&orders[0][(size_t)at], n);
                for (long i = 0; i < n; i++)
                    check(data + i * bytes, (uint64_t)bytes, (uint64_t)orders[0][(size_t)(at + i)]);
                sums[0] += (unsigned long long)n;
            }
        } else {
            const uint64_t for_ns = (uint64_t)(atof(line + 4) * 1e9);
            while (now - start < for_ns) {
                uint64_t before = now;
                read_batch(&orders[(size_t)(step / steps % 3)][(size_t)((step % steps * ranks + rank_of) * batch)], batch);
                step++;
                now = now_ns();
                latency.push_back(now - before);
                sums[0] += (unsigned long long)batch;
            }
            sums[1] = latency.size();
        }
        MPI_Reduce(sums, all, 2, MPI_UNSIGNED_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
        uint64_t ns = now_ns() - start;
        std::sort(latency.begin(), latency.end());
        if (rank_of == 0 && line[0] == 'v')
            printf("{\"verified\": %llu}\n", all[0]);
        else if (rank_of == 0)
            printf("{\"bytes\": %llu, \"ns\": %llu, \"samples\": %llu, \"batches\": %llu, \"p50_us\": %.1f, \"p99_us\": %.1f}\n",
                   all[0] * (unsigned long long)bytes, (unsigned long long)ns, all[0], all[1],
                   (double)latency[latency.size() / 2] / 1e3, (double)latency[latency.size() * 99 / 100] / 1e3);
        fflush(stdout);
    }
    store.free();
    MPI_Finalize();
    return 0;
}
