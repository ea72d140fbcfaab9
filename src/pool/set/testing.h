/* SPDX-License-Identifier: Apache-2.0 */
/* testing.h: datasets and working sets for tests of pool and its subfolders. Errors fail the running test. */
#ifndef POOL_SET_TESTING_H
#define POOL_SET_TESTING_H

#include "base/base.h"
#include "dataset/index.h"
#include "disk/testing_fault.h"

struct fill;
struct fill_config;
struct wset;

/* A folder of its own on a real file system ($TMPDIR or /tmp), and its end with all that is in it. */
const char *testing_folder(void);
void testing_folder_remove(void);

/* Byte k of the content with this seed. */
static inline uint8_t testing_byte(uint32_t seed, uint64_t k)
{
    return (uint8_t)(((k + seed * 40503u) * 2654435761u + (k >> 8)) >> 13);
}
/* Bytes [first, first + n) of it. */
void testing_bytes(uint32_t seed, uint64_t first, void *dst, uint64_t n);
/* Fails the test, and names the first byte, where `got` differs from these. */
void testing_check_bytes(const void *got, uint32_t seed, uint64_t first, uint64_t n);
/* Content with a seed, after `head` (may be NULL); folders on the way are made. Durable, and out of the page cache. */
void testing_file(const char *name, const char *head, size_t head_bytes, uint32_t seed, uint64_t bytes);
/* rows x row_bytes of u1; row i is bytes [i * row_bytes, ...) of the content. */
void testing_npy(const char *name, uint32_t seed, uint64_t rows, uint64_t row_bytes);
struct testing_member {
    const char *name;
    uint32_t seed;
    uint64_t bytes;
};
void testing_tar(const char *name, const struct testing_member *members, unsigned n);
/* Into the page cache, where its file system has one. */
void testing_warm(const char *name);
/* Out of the page cache again. */
void testing_cool(const char *name);

/* The index of a source inside the folder ("a.npy", "image=a.npy;label=b.npy", "tree"), in a memfd. */
int testing_index(const char *spec);
/* What was put together, in a memfd; the builder is freed. */
int testing_index_of(struct index_builder *b);
/* A working set of it with all its regions on this host; one reference. The pool is NULL. */
struct wset *testing_wset(int index_fd, uint64_t region_bytes);
/* Its bytes, as they lie in the regions, out in one piece. */
void testing_part(const struct wset *ws, uint64_t i, unsigned f, uint8_t *dst);
/* disk_engine_fn: workers, over which testing_rules are. */
extern struct disk_fault_rules testing_rules;
int testing_faulty_engine(unsigned depth, struct disk_engine **ret_engine);
/* Waits until only the caller holds it. */
void testing_wait_alone(const struct wset *ws);

#endif
