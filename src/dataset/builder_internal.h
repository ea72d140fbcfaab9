/* SPDX-License-Identifier: Apache-2.0 */
/* builder_internal.h: the tables that index_builder.c collects and index_finish.c writes. */
#ifndef DATASET_BUILDER_INTERNAL_H
#define DATASET_BUILDER_INTERNAL_H

#include "dataset/index_internal.h"

/* A growing array of equal rows. */
struct table {
    char *data;
    uint64_t len, cap; /* rows */
};

/* Sample-major already, as samples come one after another; spread into columns at the end, when all fields are known. */
struct builder_part {
    uint64_t sample;
    uint64_t address, bytes;
    uint32_t field, reserved;
};

struct index_builder {
    struct index_header header; /* kind, counts and address_end as they grow */
    struct table fields, sources, extents, parts, labels, key_ends, keys, class_ends, classes, chunks, shapes,
        strings;
    uint32_t *class_slots; /* hash table: class number + 1, 0 = free */
    uint64_t nclass_slots; /* a power of two */
    bool keyed;
    int failed; /* the first failure; finish reports it */
};

/* index_builder_class of a name without a NUL at its end. */
uint32_t index_builder_class_text(struct index_builder *b, const char *name, size_t len);

#endif
