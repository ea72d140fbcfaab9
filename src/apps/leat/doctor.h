/* SPDX-License-Identifier: Apache-2.0 */
/*
 * doctor.h: checks of the host. A check looks (files below `root`, probes of the running kernel) and fills one finding.
 * With LEAT_DOCTOR_ROOT set, files come from a recorded tree and probes from its probe/NAME files: what one host said
 * becomes a test on another. A probe that was not recorded leaves its check out.
 */
#ifndef APPS_LEAT_DOCTOR_H
#define APPS_LEAT_DOCTOR_H

#include "base/base.h"

enum doctor_status { DOCTOR_OK, DOCTOR_WARN, DOCTOR_BAD, DOCTOR_SKIPPED };

struct doctor {
    const char *root; /* "" or a recorded tree */
    bool recorded;
    bool measure;
    const char *path;     /* NULL: no PATH was given */
    uint64_t pool_bytes;  /* to judge by; asked for, or what a daemon would take here */
    uint64_t spare_bytes; /* half of what is free: measurements stay far below it */
};

struct finding {
    const char *name;
    enum doctor_status status;
    char found[300]; /* what is so */
    char cost[300];  /* what it costs; empty when ok */
    char mend[400];  /* the exact line; empty when there is none */
    struct {
        const char *key;
        double value;
    } numbers[6]; /* for --json, and measured ones */
    unsigned nnumbers;
};

struct doctor_check {
    const char *name;
    void (*look)(const struct doctor *d, struct finding *f);
};
extern const struct doctor_check doctor_checks[]; /* ended by name NULL */

void finding_say(struct finding *f, enum doctor_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void finding_cost(struct finding *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void finding_repair(struct finding *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void finding_number(struct finding *f, const char *key, double value);

/* First `cap` - 1 bytes of root + path, NUL-terminated, without trailing newlines. 0 or -errno. */
int doctor_read(const struct doctor *d, const char *path, char *out, size_t cap);
int doctor_read_u64(const struct doctor *d, const char *path, uint64_t *ret); /* "max" is UINT64_MAX */
/* "Name:   123 kB" in a proc file, in bytes when kB stands behind it. 0 or -ENOENT. */
int doctor_read_line(const struct doctor *d, const char *path, const char *name, uint64_t *ret);
/* A soft and hard limit of this process by its name in /proc/self/limits; UINT64_MAX is unlimited. */
int doctor_limit(const struct doctor *d, const char *name, uint64_t *ret_soft, uint64_t *ret_hard);
/* The smallest memory limit of this process's control groups (v1 and v2, walking up), UINT64_MAX: none.
 * *ret_used is what that group uses; `where` gets the limit's file. */
void doctor_cgroup_memory(const struct doctor *d, uint64_t *ret_limit, uint64_t *ret_used, char *where,
                          size_t cap);

/* doctor_probe.c: the running kernel. 0 or -errno; -ENODATA when a recorded tree does not have it. */
int probe_io_uring(const struct doctor *d);
int probe_memfd(const struct doctor *d);
int probe_hugefs(const struct doctor *d);
/* GB/s of copying 64 KiB pieces, at random, out of `bytes` of pool-like memory, at most `budget_ns`; the share of it that huge pages
 * hold goes to *ret_huge. kind: a memfd as a region is, with or without huge pages advised; private memory, advised. */
enum probe_memory { PROBE_MEMFD_PLAIN, PROBE_MEMFD_HUGE, PROBE_PRIVATE_HUGE };
int probe_gather(enum probe_memory kind, uint64_t bytes, uint64_t budget_ns, double *ret_gb_s,
                 double *ret_huge);
int probe_crc(uint64_t budget_ns, double *ret_gb_s);
/* GB/s of direct, sequential 1 MiB reads of fd by one thread. */
int probe_direct_read(int fd, uint64_t budget_ns, double *ret_gb_s);

/* doctor_net.c */
void check_ports(const struct doctor *d, struct finding *f);
void check_slots(const struct doctor *d, struct finding *f);
void check_nodes(const struct doctor *d, struct finding *f);
void check_gpu_rdma(const struct doctor *d, struct finding *f);

#endif
