/* SPDX-License-Identifier: Apache-2.0 */
/* cpus.c: lists of CPUs as the kernel writes them, and confining a thread to one. */
#include "net/topo/topo.h"

#include <sched.h>
#include <stdio.h>

#define SET_SIZE sizeof(struct topo_cpus)
_Static_assert(sizeof(unsigned long) == 8, "a cpu_set_t is read as words of 64 bits");

static bool has(const struct topo_cpus *cpus, unsigned i)
{
    return cpus->bits[i / 64] >> (i % 64) & 1;
}

/* Digits, at most seven of them. */
static bool number(const char **at, unsigned *ret)
{
    unsigned v = 0, digits = 0;
    for (; **at >= '0' && **at <= '9'; (*at)++, digits++) {
        if (digits == 7)
            return false;
        v = v * 10 + (unsigned)(**at - '0');
    }
    *ret = v;
    return digits > 0;
}

int topo_cpus_parse(const char *text, struct topo_cpus *ret_cpus)
{
    struct topo_cpus cpus = {0};
    const char *at = text + strspn(text, " ");
    while (*at && *at != '\n') {
        unsigned from, to;
        if (!number(&at, &from))
            return LEAT_INVALID;
        to = from;
        if (*at == '-') {
            at++;
            if (!number(&at, &to) || to < from)
                return LEAT_INVALID;
        }
        for (unsigned i = from; i <= to && i < TOPO_CPUS_MAX; i++)
            cpus.bits[i / 64] |= 1ull << (i % 64);
        if (*at == ',')
            at++;
        else if (*at && *at != '\n')
            return LEAT_INVALID;
    }
    *ret_cpus = cpus;
    return 0;
}

const char *topo_cpus_format(const struct topo_cpus *cpus, char *out, size_t cap)
{
    size_t at = 0;
    out[0] = '\0';
    for (unsigned i = 0; i < TOPO_CPUS_MAX; i++) {
        if (!has(cpus, i))
            continue;
        unsigned from = i;
        while (i + 1 < TOPO_CPUS_MAX && has(cpus, i + 1))
            i++;
        char item[32];
        int len = from == i ? snprintf(item, sizeof(item), "%s%u", at ? "," : "", from)
                            : snprintf(item, sizeof(item), "%s%u-%u", at ? "," : "", from, i);
        if (at + (size_t)len + 4 > cap) { /* room for the dots */
            snprintf(out + at, cap - at, "...");
            break;
        }
        memcpy(out + at, item, (size_t)len + 1);
        at += (size_t)len;
    }
    return out;
}

bool topo_cpus_empty(const struct topo_cpus *cpus)
{
    return topo_cpus_count(cpus) == 0;
}

bool topo_cpus_equal(const struct topo_cpus *a, const struct topo_cpus *b)
{
    return memcmp(a, b, SET_SIZE) == 0;
}

struct topo_cpus topo_cpus_and(const struct topo_cpus *a, const struct topo_cpus *b)
{
    struct topo_cpus out;
    for (unsigned i = 0; i < ARRAY_LEN(out.bits); i++)
        out.bits[i] = a->bits[i] & b->bits[i];
    return out;
}

struct topo_cpus topo_cpus_or(const struct topo_cpus *a, const struct topo_cpus *b)
{
    struct topo_cpus out;
    for (unsigned i = 0; i < ARRAY_LEN(out.bits); i++)
        out.bits[i] = a->bits[i] | b->bits[i];
    return out;
}

unsigned topo_cpus_count(const struct topo_cpus *cpus)
{
    unsigned n = 0;
    for (unsigned i = 0; i < ARRAY_LEN(cpus->bits); i++)
        n += (unsigned)__builtin_popcountll(cpus->bits[i]);
    return n;
}

int topo_cpus_allowed(struct topo_cpus *ret_cpus)
{
    struct topo_cpus cpus = {0};
    if (sched_getaffinity(getpid(), SET_SIZE, (cpu_set_t *)(void *)&cpus) < 0)
        return -errno;
    *ret_cpus = cpus;
    return 0;
}

bool topo_pin(pthread_t thread, const struct topo_cpus *cpus)
{
    struct topo_cpus now = {0};
    if (pthread_getaffinity_np(thread, SET_SIZE, (cpu_set_t *)(void *)&now) != 0)
        return false;
    struct topo_cpus both = topo_cpus_and(&now, cpus);
    if (topo_cpus_empty(&both) || topo_cpus_equal(&both, &now))
        return false;
    return pthread_setaffinity_np(thread, SET_SIZE, (cpu_set_t *)(void *)&both) == 0;
}
