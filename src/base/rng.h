/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rng.h: small deterministic random numbers, not for secrets. An epoch's order must be the same on every
 * machine and in every version, so the values are part of the contract and tested against fixed ones.
 *
 * splitmix64: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014, with the
 * constants of Vigna's public-domain splitmix64.c (2015; Stafford's mix 13). Reducing to a range: Lemire, "Fast
 * Random Integer Generation in an Interval", ACM TOMACS 2019.
 */
#ifndef BASE_RNG_H
#define BASE_RNG_H

#include <stdint.h>

/* A bijection of 64 bits in which every bit of the input moves about half of the output's. mix(0) is 0. */
static inline uint64_t rng_mix64(uint64_t v)
{
    v = (v ^ (v >> 30)) * 0xbf58476d1ce4e5b9ull;
    v = (v ^ (v >> 27)) * 0x94d049bb133111ebull;
    return v ^ (v >> 31);
}

/* The next number of the sequence; any start value of *state will do. */
static inline uint64_t rng_next(uint64_t *state)
{
    return rng_mix64(*state += 0x9e3779b97f4a7c15ull);
}

/* A start value out of several, order-sensitive: rng_seed(rng_seed(seed, epoch), rank). */
static inline uint64_t rng_seed(uint64_t seed, uint64_t with)
{
    return rng_mix64(rng_mix64(seed + 0x9e3779b97f4a7c15ull) ^ with);
}

/* Uniform in [0, bound), without bias; bound > 0. */
static inline uint64_t rng_below(uint64_t *state, uint64_t bound)
{
    unsigned __int128 wide = (unsigned __int128)rng_next(state) * bound;
    if ((uint64_t)wide < bound) {
        uint64_t least = -bound % bound;
        while ((uint64_t)wide < least)
            wide = (unsigned __int128)rng_next(state) * bound;
    }
    return (uint64_t)(wide >> 64);
}

#endif
