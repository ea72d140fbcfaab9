/* SPDX-License-Identifier: Apache-2.0 */
/*
 * topo.h: which NICs and GPUs this host has, how far they are from each other, and which NICs suit a process
 * best.
 *
 *   topo_read (files -> what there is)  ->  topo_choose (a process -> rails, nearest first)  ->  topo_pin (a thread -> its cores)
 *
 * Everything comes out of /sys (and, for the UUIDs of GPUs, /proc/driver/nvidia) through a table of three
 * functions, so that a recorded tree answers as the host did. Links are never followed, only read: a tree
 * cannot lead anywhere else. Policy, and why not hwloc: docs/decisions/0052-topology.md.
 */
#ifndef NET_TOPO_H
#define NET_TOPO_H

#include <netinet/in.h>
#include <pthread.h>

#include "base/base.h"

/* --- cores: cpus.c ------------------------------------------------------------------------------------------------ */

#define TOPO_CPUS_MAX 8192u /* a CPU above it is not there, for us */
struct topo_cpus {
    uint64_t bits[TOPO_CPUS_MAX / 64];
};
/* "0-3,8" as the kernel writes it; "" is none. LEAT_INVALID, *ret untouched. */
int topo_cpus_parse(const char *text, struct topo_cpus *ret_cpus);
/* Cut off with "..." where `cap` is too small. Returns out. */
const char *topo_cpus_format(const struct topo_cpus *cpus, char *out, size_t cap);
bool topo_cpus_empty(const struct topo_cpus *cpus);
bool topo_cpus_equal(const struct topo_cpus *a, const struct topo_cpus *b);
struct topo_cpus topo_cpus_and(const struct topo_cpus *a, const struct topo_cpus *b);
struct topo_cpus topo_cpus_or(const struct topo_cpus *a, const struct topo_cpus *b);
unsigned topo_cpus_count(const struct topo_cpus *cpus);
/* Where the process (its first thread) may run. 0 or -errno. */
int topo_cpus_allowed(struct topo_cpus *ret_cpus);
/* Confines a thread to those of `cpus` that it may run on. With none in common, or all of them, it stays as
 * it is. Never widens. Returns whether it did something. */
bool topo_pin(pthread_t thread, const struct topo_cpus *cpus);

/* --- where facts come from: files.c, text.c ------------------------------------------------------------------------ */

#define TOPO_TEXT_MAX 4096u /* of one file: sysfs gives no more than a page */
#define TOPO_NAME_MAX 64u
struct topo_files {
    void *ctx;
    /* A regular file's first cap - 1 bytes, NUL-terminated, without white space at the end. 0 or -errno. */
    int (*text)(void *ctx, const char *path, char *out, size_t cap);
    /* A link's target. 0 or -errno. */
    int (*link)(void *ctx, const char *path, char *out, size_t cap);
    /* Names in a folder, until `each` returns false. 0 or -errno. */
    int (*list)(void *ctx, const char *path, bool (*each)(void *arg, const char *name), void *arg);
};
/* The tree below a folder ("/" is this host). The caller closes. */
struct topo_dir {
    int fd;
};
int topo_dir_open(const char *root, struct topo_dir *ret_dir, struct topo_files *ret_files,
                  struct leat_error *err);
void topo_dir_close(struct topo_dir *dir);
/* A tree in one text: lines `/path = contents` (\n, \\ and \xNN stand for bytes) and `/path -> target`; # begins a comment. */
struct topo_text;
int topo_text_new(const char *text, size_t len, struct topo_text **ret_tree, struct topo_files *ret_files,
                  struct leat_error *err);
void topo_text_free(struct topo_text *tree); /* NULL is fine */

/* --- what there is: read.c ----------------------------------------------------------------------------------------- */

#define TOPO_NICS_MAX  512u /* physical ones first; what is above is counted in `left_out` */
#define TOPO_GPUS_MAX  64u
#define TOPO_NODES_MAX 64u
#define TOPO_ADDRESSES 4u
#define TOPO_NODE_ANY  (-1) /* one node, or a virtual machine that does not report it */

struct topo_place {
    char pci[20];          /* "0000:07:00.0"; "": not on PCI */
    char path[256];        /* "pci0000:00/0000:00:01.1/0000:07:00.0" */
    int node;              /* or TOPO_NODE_ANY */
    struct topo_cpus cpus; /* the cores next to it; empty: unknown */
};

/* A link of a NIC: an RDMA port with its netdev, or either alone. */
struct topo_nic {
    char netdev[32]; /* "eth0"; "": none */
    char device[32]; /* "mlx5_0"; "": no RDMA */
    unsigned port;   /* of the device, from 1 */
    char master[32]; /* the bond or bridge that has its addresses; "": none */
    bool is_virtual; /* bridges, tunnels, loopback: used only if named */
    unsigned lowers; /* physical netdevs below it: it is a bond or bridge */
    bool up,
        netdev_up; /* the port (a netdev's own where there is no RDMA), its netdev: IPoIB may be down where the port is up */
    bool infiniband;
    char state[32], netdev_state[32]; /* "ACTIVE", "DOWN: Polling", "up", "no carrier" */
    uint64_t rate_mbps, netdev_mbps;  /* 0: unknown; soft-RoCE has one where its netdev has none */
    struct topo_place place;
    unsigned pcie_gts10, pcie_width, pcie_max_gts10, pcie_max_width; /* speed in 0.1 GT/s; 0: unknown */
    uint8_t gids[4][16];
    unsigned ngids;
    struct sockaddr_in6
        addresses[TOPO_ADDRESSES]; /* of its netdev, of either family; filled by topo_addresses */
    unsigned naddresses;
};

struct topo_gpu {
    bool amd;
    char uuid[48]; /* "GPU-…"; "": its driver does not report it */
    struct topo_place place;
};

struct topo_node {
    int id;
    struct topo_cpus cpus;
    uint8_t distance[TOPO_NODES_MAX]; /* to nodes[i]; 10 is itself, 0 unknown */
};

struct topo {
    struct topo_nic *nics; /* in natural order of names, RDMA first */
    unsigned nnics;
    struct topo_gpu *gpus; /* in order of PCI addresses: CUDA_DEVICE_ORDER=PCI_BUS_ID */
    unsigned ngpus;
    struct topo_node *nodes;
    unsigned nnodes;
    struct topo_cpus online;
    unsigned left_out;
    bool addresses_known;
};

/* What is missing is left empty; -ENOMEM is the only failure. */
int topo_read(const struct topo_files *files, struct topo **ret_topo, struct leat_error *err);
void topo_free(struct topo *topo); /* NULL is fine */
/* This host's IP addresses, from the kernel: not for a recorded tree. 0 or -errno. */
int topo_addresses(struct topo *topo);
/* This host, read when first asked and kept; NULL: it could not be. Any thread. */
const struct topo *topo_host(void);
/* Mb/s that its slot carries now, and could; 0: unknown. */
uint64_t topo_pcie_mbps(unsigned gts10, unsigned width);
/* "mlx5_0:1", else its netdev. */
const char *topo_nic_name(const struct topo_nic *nic, char out[48]);

/* --- choosing: choose.c ------------------------------------------------------------------------------------------- */

/* nvidia-smi's and UCX's words, nearest first. */
enum topo_distance {
    TOPO_SELF, /* the same device */
    TOPO_PIX,  /* one PCIe switch between them */
    TOPO_PXB,  /* several switches, no host bridge */
    TOPO_PHB,  /* one host bridge */
    TOPO_NODE, /* host bridges of one NUMA node; or nodes are unknown */
    TOPO_SYS,  /* another NUMA node */
};
const char *topo_distance_name(enum topo_distance d);
enum topo_distance topo_distance(const struct topo *topo, const struct topo_place *a,
                                 const struct topo_place *b);

#define TOPO_RAILS_MAX 16u
/* CUDA_VISIBLE_DEVICES (or AMD's), with LOCAL_RANK where several are visible. */
#define TOPO_GPU_FROM_ENV (-1)
#define TOPO_GPU_NONE     (-2)

enum topo_kind { TOPO_TCP, TOPO_RDMA };
struct topo_request {
    enum topo_kind kind;
    const char
        *rails; /* "mlx5_0:1,eth2": these, in this order; NULL or "": $LEAT_RAILS, else all that are fit */
    bool whole_host; /* a daemon: it serves every process here and belongs to no GPU and no cores */
    int gpu;         /* index, TOPO_GPU_FROM_ENV, TOPO_GPU_NONE */
    const struct topo_cpus *cpus; /* NULL: those that this process may run on */
};

struct topo_rail {
    char name[48]; /* what the kind calls it: "mlx5_0:1", "eth0" */
    int nic;       /* of topo->nics; -1: a configured name on a host without /sys */
    enum topo_distance distance;
    uint64_t penalty_ns;          /* for stripe.h */
    uint64_t nominal_bytes_per_s; /* for stripe.h; 0: unknown */
    struct topo_cpus pin;         /* for its threads, by topo_pin; empty: leave them */
    struct sockaddr_in6
        addresses[TOPO_ADDRESSES]; /* of its netdev (RDMA: else of the bond above it), of either family */
    unsigned naddresses;
    char why[96];
};

struct topo_choice {
    struct topo_rail rails[TOPO_RAILS_MAX];
    unsigned n;    /* all that are fit, nearest first */
    unsigned use;  /* the first so many carry the bytes; the rest stand by, for when those are down */
    bool by_hand;  /* `rails` named them */
    int gpu;       /* index, or -1 */
    bool confined; /* to a part of the host's cores already: nothing is pinned */
    struct topo_cpus allowed;
    struct topo_cpus
        pin; /* for threads that belong to no rail but to the destination: next to the GPU. Empty: leave them */
    char why[160];
    struct {
        char name[48], why[96];
    } left_out[32];
    unsigned nleft_out;
};
/* None fit is no error: n is 0. LEAT_INVALID: `rails` names what is not there, or too many. Reads the
 * environment and the process's affinity unless the request gives them; else pure. */
int topo_choose(const struct topo *topo, const struct topo_request *request, struct topo_choice *ret_choice,
                struct leat_error *err);
/* For transports: the host as it is now, with its addresses. The caller frees the choice. 0 or -errno. */
int topo_choose_here(const struct topo_request *request, struct topo_choice **ret_choice,
                     struct leat_error *err);
/* By topo_host: a daemon's thread that serves one rail (by name), a client's that fills the GPU's views. No-ops where that is not
 * known, the process is confined, there is one node, or LEAT_PIN=0 is set. They read the environment: from the thread that starts
 * the other. */
void topo_pin_to_rail(pthread_t thread, const char *rail);
void topo_pin_to_gpu(pthread_t thread);

#endif
