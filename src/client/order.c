/* SPDX-License-Identifier: Apache-2.0 */
/*
 * order.c: the epoch order, perm(seed, epoch, fingerprint, kind), in O(1) memory.
 *
 *   full      position ──▶ permute over [0, n) ──▶ sample
 *   block:N   position ──▶ group of 16 slots ──▶ permute inside the group ──▶ slot, offset
 *                          slot ──▶ permute over blocks ──▶ block; sample = block * N + offset
 *             The short tail block takes a random slot like any other, so slots behind it begin N - tail earlier.
 *
 * permute() is a Feistel network over [0, a) × [0, 2^k) with a * 2^k >= n: the left half is added modulo a, the right
 * half modulo 2^k, and results past n walk on until they fall below it (cycle walking keeps it a bijection). The
 * right half is a power of two so that splitting takes no division, `a` is even so that odd permutations are
 * reached as often as even ones, and round values come down to [0, a) by a multiply-high. Sets of at most 16 elements
 * are shuffled exactly (Fisher-Yates over nibbles), because a Feistel network on so few is visibly not uniform.
 *
 * Failure modes: none after init. Invariants: pure functions of struct leat_order; nothing here knows batches or ranks.
 * docs/decisions/0021-epoch-order.md has the test results.
 */
#include "client/client.h"

#include <xxhash.h>

#if defined(__x86_64__)
#    include <immintrin.h>
#endif

#define SMALL_MAX      16u
#define ROUNDS_LARGE   8u  /* domains of 4096 and more */
#define ROUNDS_SMALL   14u /* below: few values per half, so more rounds */
#define ROUND_CONSTANT 0x9e3779b97f4a7c15ull

static inline uint64_t mix(uint64_t z)
{
    z *= 0xbf58476d1ce4e5b9ull;
    z ^= z >> 32;
    z *= 0x94d049bb133111ebull;
    return z ^ (z >> 29);
}

static inline uint64_t mul_high(uint64_t x, uint64_t y)
{
    return (uint64_t)(((unsigned __int128)x * y) >> 64);
}

/* Halves of a domain of at least n: *ret_a values times 2^*ret_shift. */
static void domain_split(uint64_t n, uint64_t *ret_a, uint64_t *ret_shift)
{
    unsigned bits = n > 1 ? 64 - (unsigned)__builtin_clzll(n - 1) : 1;
    unsigned shift = bits / 2 ? bits / 2 : 1;
    uint64_t a = ((n - 1) >> shift) + 1;
    *ret_a = a + (a & 1);
    *ret_shift = shift;
}

/* Exact: Fisher-Yates over at most 16 nibbles. */
static uint64_t permute_small(const uint64_t key[4], uint64_t tweak, unsigned n, unsigned position)
{
    uint64_t nibbles = 0xfedcba9876543210ull;
    for (unsigned i = n - 1; i > 0; i--) {
        uint64_t r = mix(mix(key[i & 3] + tweak + ROUND_CONSTANT * (i + 1)) ^ key[(i + 1) & 3]);
        unsigned j = (unsigned)mul_high(r, i + 1);
        uint64_t x = ((nibbles >> (4 * i)) ^ (nibbles >> (4 * j))) & 15;
        nibbles ^= (x << (4 * i)) ^ (i == j ? 0 : x << (4 * j));
    }
    return (nibbles >> (4 * position)) & 15;
}

/* A permutation of [0, n), n <= a << shift, chosen by key and tweak. */
static inline uint64_t permute(const uint64_t key[4], uint64_t tweak, uint64_t n, uint64_t a, unsigned shift,
                               uint64_t x)
{
    if (n <= SMALL_MAX)
        return permute_small(key, tweak, (unsigned)n, (unsigned)x);
    const uint64_t mask = (1ull << shift) - 1;
    const unsigned rounds = a << shift < 4096 ? ROUNDS_SMALL : ROUNDS_LARGE;
    do {
        uint64_t left = x >> shift, right = x & mask, step = tweak;
        for (unsigned round = 0; round < rounds; round += 2) {
            step += ROUND_CONSTANT;
            left += mul_high(mix((right + key[0]) ^ step) + key[1], a);
            left -= left >= a ? a : 0;
            right = (right + (mix((left + key[2]) ^ step) + key[3])) & mask;
        }
        x = left << shift | right;
    } while (unlikely(x >= n));
    return x;
}

#define LANES 4u

/* permute() of LANES positions from x on: one alone waits for each of its multiplications. */
static void permute_lanes(const uint64_t key[4], uint64_t n, uint64_t a, unsigned shift, uint64_t x,
                          uint64_t *ret_ids)
{
    const uint64_t mask = (1ull << shift) - 1, k0 = key[0], k1 = key[1], k2 = key[2], k3 = key[3];
    const unsigned rounds = a << shift < 4096 ? ROUNDS_SMALL : ROUNDS_LARGE;
    uint64_t left[LANES], right[LANES], step = 0;
    for (unsigned l = 0; l < LANES; l++) {
        left[l] = (x + l) >> shift;
        right[l] = (x + l) & mask;
    }
    for (unsigned round = 0; round < rounds; round += 2) {
        step += ROUND_CONSTANT;
#pragma GCC unroll 4
        for (unsigned l = 0; l < LANES; l++) {
            left[l] += mul_high(mix((right[l] + k0) ^ step) + k1, a);
            left[l] -= left[l] >= a ? a : 0;
        }
#pragma GCC unroll 4
        for (unsigned l = 0; l < LANES; l++)
            right[l] = (right[l] + (mix((left[l] + k2) ^ step) + k3)) & mask;
    }
    for (unsigned l = 0; l < LANES; l++) {
        ret_ids[l] = left[l] << shift | right[l];
        if (unlikely(ret_ids[l] >= n))
            ret_ids[l] = permute(key, 0, n, a, shift, ret_ids[l]);
    }
}

#if defined(__x86_64__)
#    define VECS 4u
#    define WIDE (8 * VECS)
typedef uint64_t wide_vec __attribute__((vector_size(64)));

#    define WIDE_MIX(z)                                                                                      \
        do {                                                                                                 \
            (z) *= 0xbf58476d1ce4e5b9ull;                                                                    \
            (z) ^= (z) >> 32;                                                                                \
            (z) *= 0x94d049bb133111ebull;                                                                    \
            (z) ^= (z) >> 29;                                                                                \
        } while (0)

/* permute_lanes() of WIDE positions: several vectors, as each waits long for its multiplications. */
__attribute__((target("avx512f,avx512dq"))) static void
permute_wide(const uint64_t key[4], uint64_t n, uint64_t a, unsigned shift, uint64_t x, uint64_t *ret_ids)
{
    const uint64_t mask = (1ull << shift) - 1, k0 = key[0], k1 = key[1], k2 = key[2], k3 = key[3];
    const unsigned rounds = a << shift < 4096 ? ROUNDS_SMALL : ROUNDS_LARGE;
    const wide_vec from = x + (wide_vec){0, 1, 2, 3, 4, 5, 6, 7};
    /* Below 2^32, as n is at most 2^56 and its halves alike: two short products make a mul_high(). */
    const __m512i factor = _mm512_set1_epi64((long long)a);
    wide_vec left[VECS], right[VECS];
    uint64_t step = 0;
    for (unsigned v = 0; v < VECS; v++) {
        left[v] = (from + 8 * v) >> shift;
        right[v] = (from + 8 * v) & mask;
    }
    for (unsigned round = 0; round < rounds; round += 2) {
        step += ROUND_CONSTANT;
#    pragma GCC unroll 4
        for (unsigned v = 0; v < VECS; v++) {
            wide_vec z = (right[v] + k0) ^ step;
            WIDE_MIX(z);
            z += k1;
            wide_vec low = (wide_vec)_mm512_mul_epu32((__m512i)z, factor);
            wide_vec high = (wide_vec)_mm512_mul_epu32((__m512i)(z >> 32), factor);
            left[v] += (high + (low >> 32)) >> 32;
            left[v] = (wide_vec)_mm512_min_epu64((__m512i)left[v], (__m512i)(left[v] - a)); /* modulo a */
        }
#    pragma GCC unroll 4
        for (unsigned v = 0; v < VECS; v++) {
            wide_vec z = (left[v] + k2) ^ step;
            WIDE_MIX(z);
            right[v] = (right[v] + z + k3) & mask;
        }
    }
    for (unsigned v = 0; v < VECS; v++) {
        wide_vec ids = left[v] << shift | right[v];
        memcpy(ret_ids + 8 * v, &ids, sizeof(ids));
    }
    for (unsigned l = 0; l < WIDE; l++)
        if (unlikely(ret_ids[l] >= n))
            ret_ids[l] = permute(key, 0, n, a, shift, ret_ids[l]);
}

static bool has_wide(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq");
}
#else
#    define WIDE         LANES
#    define permute_wide permute_lanes
static bool has_wide(void)
{
    return false;
}
#endif

/* The inverse: which position permute() sends to y. Walks the same cycle backwards. */
static uint64_t unpermute(const uint64_t key[4], uint64_t tweak, uint64_t n, uint64_t a, unsigned shift,
                          uint64_t y)
{
    if (n <= SMALL_MAX) {
        uint64_t x = 0;
        while (permute_small(key, tweak, (unsigned)n, (unsigned)x) != y)
            x++;
        return x;
    }
    const uint64_t mask = (1ull << shift) - 1;
    const unsigned rounds = a << shift < 4096 ? ROUNDS_SMALL : ROUNDS_LARGE;
    do {
        uint64_t left = y >> shift, right = y & mask, step = tweak + ROUND_CONSTANT * (rounds / 2);
        for (unsigned round = 0; round < rounds; round += 2) {
            right = (right - (mix((left + key[2]) ^ step) + key[3])) & mask;
            uint64_t take = mul_high(mix((right + key[0]) ^ step) + key[1], a);
            left = left >= take ? left - take : left + a - take;
            step -= ROUND_CONSTANT;
        }
        y = left << shift | right;
    } while (y >= n);
    return y;
}

/* --- block order -------------------------------------------------------------------------------------------- */

/* The group a position is in; blocks[] is filled by group_blocks when a caller will ask for many positions. */
struct group {
    uint64_t number, start, length; /* positions [start, start + length) */
    uint64_t tail_at;               /* offset of the tail block inside the group; UINT64_MAX: not here */
    uint64_t blocks[LEAT_ORDER_GROUP];
    bool have_blocks;
};

static uint64_t tail_bytes(const struct leat_order *o) /* samples of the last block, 1..block */
{
    return o->n - (o->nblocks - 1) * o->block;
}

static uint64_t slot_block(const struct leat_order *o, uint64_t slot)
{
    return permute(o->key, 0, o->nblocks, o->ga, (unsigned)o->gb, slot);
}

static void group_find(const struct leat_order *o, uint64_t position, struct group *ret)
{
    const uint64_t whole = o->block * LEAT_ORDER_GROUP, missing = o->block - tail_bytes(o);
    const uint64_t tail_group = o->tail_slot / LEAT_ORDER_GROUP;
    /* The tail's group is shorter by what the tail block lacks, so later groups begin that much earlier. */
    uint64_t number = position / whole;
    if (number >= tail_group && position >= (tail_group + 1) * whole - missing)
        number = (position + missing) / whole;
    uint64_t first = number * LEAT_ORDER_GROUP, end = MIN(first + LEAT_ORDER_GROUP, o->nblocks);
    ret->number = number;
    ret->start = number * whole - (number > tail_group ? missing : 0);
    ret->length = (end - first) * o->block - (number == tail_group ? missing : 0);
    ret->tail_at = number == tail_group ? (o->tail_slot - first) * o->block : UINT64_MAX;
    ret->have_blocks = false;
}

static void group_blocks(const struct leat_order *o, struct group *g)
{
    uint64_t first = g->number * LEAT_ORDER_GROUP;
    for (uint64_t i = 0; i < LEAT_ORDER_GROUP && first + i < o->nblocks; i++)
        g->blocks[i] = slot_block(o, first + i);
    g->have_blocks = true;
}

static inline uint64_t divide(uint64_t x, uint64_t by)
{
    return (x | by) >> 32 ? x / by : (uint32_t)x / (uint32_t)by;
}

static uint64_t group_sample(const struct leat_order *o, const struct group *g, uint64_t position)
{
    /* The domain is that of a whole group for every group: a short last one only walks longer. */
    uint64_t tweak = mix(g->number + 1) | 1;
    uint64_t q = permute(o->key, tweak, g->length, o->a, (unsigned)o->b, position - g->start);
    if (g->tail_at != UINT64_MAX && q >= g->tail_at + tail_bytes(o))
        q += o->block - tail_bytes(o);
    uint64_t slot = divide(q, o->block);
    uint64_t block = g->have_blocks ? g->blocks[slot] : slot_block(o, g->number * LEAT_ORDER_GROUP + slot);
    return block * o->block + (q - slot * o->block);
}

unsigned order_group(const struct leat_order *order, uint64_t position, uint64_t *ret_start,
                     uint64_t *ret_end, uint64_t ret_blocks[LEAT_ORDER_GROUP])
{
    struct group g;
    group_find(order, position, &g);
    group_blocks(order, &g);
    memcpy(ret_blocks, g.blocks, sizeof(g.blocks));
    *ret_start = g.start;
    *ret_end = g.start + g.length;
    return (unsigned)MIN((uint64_t)LEAT_ORDER_GROUP, order->nblocks - g.number * LEAT_ORDER_GROUP);
}

/* --- public ------------------------------------------------------------------------------------------------- */

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

int leat_order_init(struct leat_order *order, uint64_t n, uint64_t seed, uint64_t epoch, uint64_t block,
                    const char *fingerprint, struct leat_error *err)
{
    struct {
        uint64_t seed, epoch, block;
        uint8_t fingerprint[16];
    } from = {.seed = seed, .epoch = epoch, .block = block};

    if (!order)
        return error_set(err, LEAT_INVALID, "order is NULL");
    if (n == 0)
        return error_set(err, LEAT_INVALID, "an epoch order needs at least one sample");
    if (n > 1ull << 56)
        return error_set(err, LEAT_INVALID, "an epoch order of %llu samples: at most 2^56 are possible",
                         (unsigned long long)n);
    for (unsigned i = 0; fingerprint && i < 16; i++) {
        int high = hex_value(fingerprint[2 * i]), low = high < 0 ? -1 : hex_value(fingerprint[2 * i + 1]);
        if (low < 0 || (i == 15 && fingerprint[32]))
            return error_set(err, LEAT_INVALID, "a fingerprint is 32 hexadecimal digits");
        from.fingerprint[i] = (uint8_t)(high << 4 | low);
    }
    if (block != LEAT_ORDER_SEQUENTIAL && block >= n)
        block = 0; /* one block of everything mixes like a full shuffle; only the key differs */

    struct leat_order o = {.n = n, .seed = seed, .epoch = epoch, .block = block};
    XXH128_hash_t h0 = XXH3_128bits_withSeed(&from, sizeof(from), 0);
    XXH128_hash_t h1 = XXH3_128bits_withSeed(&from, sizeof(from), 1);
    o.key[0] = h0.low64;
    o.key[1] = h0.high64;
    o.key[2] = h1.low64;
    o.key[3] = h1.high64;
    if (block == 0) {
        domain_split(n, &o.a, &o.b);
    } else if (block != LEAT_ORDER_SEQUENTIAL) {
        o.nblocks = div_up(n, block);
        domain_split(o.nblocks, &o.ga, &o.gb);
        domain_split(MIN(n, block * LEAT_ORDER_GROUP), &o.a, &o.b);
        o.tail_slot = unpermute(o.key, 0, o.nblocks, o.ga, (unsigned)o.gb, o.nblocks - 1);
    }
    *order = o;
    return 0;
}

uint64_t leat_order_at(const struct leat_order *order, uint64_t position)
{
    if (unlikely(position >= order->n))
        return UINT64_MAX;
    if (order->block == LEAT_ORDER_SEQUENTIAL)
        return position;
    if (order->block == 0)
        return permute(order->key, 0, order->n, order->a, (unsigned)order->b, position);
    struct group g;
    group_find(order, position, &g);
    return group_sample(order, &g, position);
}

int leat_order_fill(const struct leat_order *order, uint64_t first, unsigned count, uint64_t *ret_ids)
{
    if (first > order->n || count > order->n - first)
        return LEAT_INVALID;
    if (order->block == 0 || order->block == LEAT_ORDER_SEQUENTIAL) {
        const bool lanes = !order->block && order->n > SMALL_MAX, wide = lanes && has_wide();
        unsigned i = 0;
        for (; wide && count - i >= WIDE; i += WIDE)
            permute_wide(order->key, order->n, order->a, (unsigned)order->b, first + i, ret_ids + i);
        for (; lanes && count - i >= LANES; i += LANES)
            permute_lanes(order->key, order->n, order->a, (unsigned)order->b, first + i, ret_ids + i);
        for (; i < count; i++)
            ret_ids[i] = leat_order_at(order, first + i);
        return 0;
    }
    struct group g = {.length = 0};
    for (unsigned i = 0; i < count; i++) {
        uint64_t position = first + i;
        if (position - g.start >= g.length) {
            group_find(order, position, &g);
            if (count - i >= LEAT_ORDER_GROUP)
                group_blocks(order, &g);
        }
        ret_ids[i] = group_sample(order, &g, position);
    }
    return 0;
}
