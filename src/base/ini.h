/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ini.h: INI files, and tables of the keys of a configuration. One thread at a time for a configuration. Errors are LEAT_INVALID with what
 * was given and what is allowed, LEAT_NOT_FOUND for a file that cannot be read, -ENOMEM.
 */
#ifndef BASE_INI_H
#define BASE_INI_H

#include "base/base.h"

#include <stdio.h>

enum ini_kind {
    INI_TEXT, /* char *; with `words`: one of these */
    INI_BOOL, /* bool; yes, on, true, 1 or no, off, false, 0; with `words`: two, of which the second is true */
    INI_ENUM,     /* unsigned: the place in `words` */
    INI_COUNT,    /* unsigned, from least to most */
    INI_BYTES,    /* uint64_t, `least` or more (base/size.h) */
    INI_DURATION, /* uint64_t ns, `least` whole hours or more; `words`: one word that means UINT64_MAX */
    INI_LIST, /* char **, ended by NULL, and an unsigned for its length; each mention of the key adds to it */
    INI_SET,  /* only `set` knows the field */
};

struct ini_key {
    const char *section, *name;
    const char *old_name; /* still accepted, with a warning; NULL: none */
    enum ini_kind kind;
    size_t at, length_at; /* offsets of the field and of a list's length */
    uint64_t least, most;
    const char *words; /* separated by spaces */
    /* Checks and stores a value instead of the kind; NULL: the kind does. */
    int (*set)(void *into, const char *value, struct leat_error *err);
};

/* Initializers: INI_KEY(struct config, "disk", "depth", COUNT, disk_depth, .least = 1, .most = 1024) */
#define INI_KEY(type, section_, name_, kind_, field, ...)                                                    \
    {                                                                                                        \
        .section = section_, .name = name_, .kind = INI_##kind_,                                             \
        .at = offsetof(type, field) __VA_OPT__(, ) __VA_ARGS__                                               \
    }
#define INI_WORDS(type, section_, name_, field, length, ...)                                                 \
    INI_KEY(type, section_, name_, LIST, field,                                                              \
            .length_at = offsetof(type, length) __VA_OPT__(, ) __VA_ARGS__)

/* Keys of one struct: at most 64. Arrays of parts end with one without keys. */
struct ini_part {
    const struct ini_key *keys; /* ended by one without a name */
    void *into;
    uint64_t warned; /* bit k: key k came by its old name */
};

/* Reads a file. A comment behind a value begins with ";". Errors name the file and the line. */
int ini_load(struct ini_part *parts, const char *path, struct leat_error *err);
/* One value, as of a command line: that of a list is one of its words, whatever characters it has. */
int ini_set(struct ini_part *parts, const char *section, const char *name, const char *value,
            struct leat_error *err);
/* Frees texts and lists; the struct needs an init function before it is used again. */
void ini_fini(const struct ini_key *keys, void *from);

/* Calls `pair` for each pair of a file, until one fails. `path` is for messages, which name the line. */
int ini_read(FILE *file, const char *path,
             int (*pair)(void *user, const char *section, const char *name, const char *value,
                         struct leat_error *err),
             void *user, struct leat_error *err);

#endif
