/* SPDX-License-Identifier: Apache-2.0 */
/* options.h: long options of a benchmark's program, each into the variable that its row names. */
#ifndef BENCH_OPTIONS_H
#define BENCH_OPTIONS_H

#include <getopt.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#define BENCH_OPTIONS_MAX 16u

/* One of these is not NULL. */
struct bench_option {
    const char *name; /* NULL: the end */
    const char **text;
    uint64_t *number;
    unsigned *count;
    bool *flag; /* takes no argument */
};

/* What is no option begins at argv[optind]. Exits with 2 for one that is not known. */
static inline void bench_options_take(int argc, char **argv, const struct bench_option *options)
{
    struct option longs[BENCH_OPTIONS_MAX + 1] = {0};
    for (unsigned i = 0; options[i].name && i < BENCH_OPTIONS_MAX; i++)
        longs[i] = (struct option){options[i].name, options[i].flag ? no_argument : required_argument, NULL,
                                   256 + (int)i};
    for (int c; (c = getopt_long(argc, argv, "+", longs, NULL)) != -1;) {
        if (c < 256)
            exit(2);
        const struct bench_option *o = &options[c - 256];
        if (o->text)
            *o->text = optarg;
        else if (o->number)
            *o->number = strtoull(optarg, NULL, 0);
        else if (o->count)
            *o->count = (unsigned)strtoul(optarg, NULL, 0);
        else
            *o->flag = true;
    }
}

#endif
