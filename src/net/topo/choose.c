/* SPDX-License-Identifier: Apache-2.0 */
/*
 * choose.c: which rails a process uses, nearest first.
 *
 * Happy path: what the process belongs to (its GPU; else the nodes of its cores; else nothing) is the anchor.
 * Each NIC is fit or left out with a reason; the fit ones are put in order of distance, of the nodes'
 * distance, of rate, of name. GPUs that share their nearest NICs begin at different ones of them.
 * Failure modes: a name in `rails` that is not there is LEAT_INVALID and says what is. Nothing fit: n is 0
 * and `why` has the reason.
 * Invariant: what is pinned is a part of where the process may run, and a process that was confined from
 * outside is not pinned.
 */
#include "net/topo/topo.h"

#include "net/flow/stripe.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#define SLOW_BESIDE 4u /* a NIC below a fourth of the fastest rate has another purpose */

const char *topo_distance_name(enum topo_distance d)
{
    static const char *const names[] = {"SELF", "PIX", "PXB", "PHB", "NODE", "SYS"};
    return names[d];
}

/* --- distance --------------------------------------------------------------------------------------------------------- */

/* Distance of two nodes, where the host reports it; else 0. */
static unsigned node_distance(const struct topo *topo, int a, int b)
{
    unsigned ia = topo->nnodes, ib = topo->nnodes;
    for (unsigned i = 0; i < topo->nnodes; i++) {
        ia = topo->nodes[i].id == a ? i : ia;
        ib = topo->nodes[i].id == b ? i : ib;
    }
    return ia < topo->nnodes && ib < topo->nnodes ? topo->nodes[ia].distance[ib] : 0;
}

static bool same_node(const struct topo *topo, int a, int b)
{
    return a == b || a == TOPO_NODE_ANY || b == TOPO_NODE_ANY || topo->nnodes <= 1;
}

/* Bridges between a device and the end of what two paths have in common: the components between. */
static unsigned bridges(const char *rest)
{
    unsigned n = 0;
    for (; *rest; rest++)
        n += *rest == '/';
    return n;
}

enum topo_distance topo_distance(const struct topo *topo, const struct topo_place *a,
                                 const struct topo_place *b)
{
    if (a->pci[0] && strcmp(a->pci, b->pci) == 0)
        return TOPO_SELF;
    const char *x = a->path, *y = b->path;
    unsigned shared = 0; /* the host bridge, then PCI bridges */
    for (;;) {
        size_t nx = strcspn(x, "/"), ny = strcspn(y, "/");
        if (nx != ny || nx == 0 || !x[nx] || !y[ny] || strncmp(x, y, nx) != 0)
            break;
        x += nx + 1;
        y += ny + 1;
        shared++;
    }
    /* Two functions of one card have all of their way in common. */
    if (shared > 1)
        return MAX(bridges(x), bridges(y)) <= 1 ? TOPO_PIX : TOPO_PXB;
    if (shared == 1)
        return TOPO_PHB;
    return same_node(topo, a->node, b->node) ? TOPO_NODE : TOPO_SYS;
}

/* --- the process's GPU ------------------------------------------------------------------------------------------------ */

static bool whole_number(const char *text, size_t len, unsigned *ret)
{
    unsigned v = 0;
    for (size_t i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9' || i == 5)
            return false;
        v = v * 10 + (unsigned)(text[i] - '0');
    }
    *ret = v;
    return len > 0;
}

/* The nth GPU of a maker, or -1. */
static int nth_gpu(const struct topo *topo, bool amd, unsigned n)
{
    for (unsigned i = 0; i < topo->ngpus; i++)
        if (topo->gpus[i].amd == amd && n-- == 0)
            return (int)i;
    return -1;
}

/* One word of CUDA_VISIBLE_DEVICES: an ordinal, or the beginning of a UUID that fits one GPU alone. */
static int gpu_of_word(const struct topo *topo, bool amd, const char *word, size_t len)
{
    unsigned ordinal;
    if (whole_number(word, len, &ordinal))
        return nth_gpu(topo, amd, ordinal);
    int found = -1;
    for (unsigned i = 0; len > 4 && i < topo->ngpus; i++)
        if (topo->gpus[i].amd == amd && strncasecmp(topo->gpus[i].uuid, word, len) == 0) {
            if (found >= 0)
                return -1;
            found = (int)i;
        }
    return found;
}

/* The only visible GPU, or that of LOCAL_RANK. -1: unknown; `why` has the reason either way. */
static int gpu_from_env(const struct topo *topo, char *why, size_t cap)
{
    unsigned nvidia = 0, rank = 0, seen = 0;
    for (unsigned i = 0; i < topo->ngpus; i++)
        nvidia += !topo->gpus[i].amd;
    bool amd = nvidia == 0;
    const char *name = "CUDA_VISIBLE_DEVICES", *visible = getenv(name), *local = getenv("LOCAL_RANK");
    for (unsigned i = 0; amd && i < 2 && !visible; i++)
        visible = getenv(name = (const char *[]){"ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"}[i]);
    bool ranked = local && whole_number(local, strlen(local), &rank);
    if (topo->ngpus == 0) {
        snprintf(why, cap, "no GPU here");
        return -1;
    }
    if (!visible) {
        unsigned all = amd ? topo->ngpus : nvidia;
        int gpu = all == 1 ? nth_gpu(topo, amd, 0) : ranked ? nth_gpu(topo, amd, rank) : -1;
        if (gpu < 0)
            snprintf(why, cap, "%u GPUs are visible, and LOCAL_RANK names none of them", all);
        else
            snprintf(why, cap, all == 1 ? "the only GPU here" : "GPU %u, by LOCAL_RANK", (unsigned)gpu);
        return gpu;
    }
    const char *word = NULL, *at = visible;
    size_t len = 0;
    for (bool more = true; more && seen < 4096; seen++) { /* words are counted up to the one of this rank */
        size_t n = strcspn(at, ",");
        if (seen == 0 || (ranked && seen == rank)) {
            word = at + strspn(at, " ");
            len = strcspn(word, " ,");
        }
        more = at[n] == ',';
        at += n + more;
    }
    if (seen > 1 && (!ranked || rank >= seen)) {
        snprintf(why, cap, "%s names %u GPUs, and LOCAL_RANK names none of them", name, seen);
        return -1;
    }
    int gpu = gpu_of_word(topo, amd, word, len);
    if (gpu < 0)
        snprintf(why, cap, "%s names no GPU that /sys shows", name);
    else
        snprintf(why, cap, "GPU %d, by %s%s", gpu, name, seen > 1 ? " and LOCAL_RANK" : "");
    return gpu;
}

/* --- which NICs are fit --------------------------------------------------------------------------------------------- */

static void leave_out(struct topo_choice *c, const char *name, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void leave_out(struct topo_choice *c, const char *name, const char *fmt, ...)
{
    if (c->nleft_out == ARRAY_LEN(c->left_out))
        return;
    va_list args;
    va_start(args, fmt);
    snprintf(c->left_out[c->nleft_out].name, sizeof(c->left_out[0].name), "%s", name);
    vsnprintf(c->left_out[c->nleft_out++].why, sizeof(c->left_out[0].why), fmt, args);
    va_end(args);
}

static bool of_kind(const struct topo_nic *nic, enum topo_kind kind)
{
    return kind == TOPO_RDMA ? nic->device[0] != 0 : nic->netdev[0] != 0;
}

static void rail_name(const struct topo_nic *nic, enum topo_kind kind, char out[48])
{
    if (kind == TOPO_RDMA)
        topo_nic_name(nic, out);
    else
        snprintf(out, 48, "%s", nic->netdev);
}

/* IPoIB and many virtual NICs report no speed: then their port's, if it is InfiniBand's. */
static uint64_t rate_of(const struct topo_nic *nic, enum topo_kind kind)
{
    return kind == TOPO_TCP && (nic->netdev_mbps || !nic->infiniband) ? nic->netdev_mbps : nic->rate_mbps;
}

/* Why a NIC is not used unless it is named; NULL: it is fit. "": not worth a message. */
static const char *unfit(const struct topo *topo, const struct topo_nic *nic, enum topo_kind kind)
{
    if (kind == TOPO_TCP && nic->is_virtual && !nic->lowers)
        return ""; /* a soft-RoCE device on one was made to be used */
    if (kind == TOPO_TCP && nic->master[0])
        return "its bond or bridge is used";
    if (kind == TOPO_TCP ? !nic->netdev_up : !nic->up)
        return kind == TOPO_TCP ? nic->netdev_state : nic->state;
    if (kind == TOPO_TCP && topo->addresses_known && nic->naddresses == 0)
        return "it has no IP address";
    return NULL;
}

static uint64_t fastest(const struct topo *topo, enum topo_kind kind)
{
    uint64_t mbps = 0;
    for (unsigned i = 0; i < topo->nnics; i++)
        if (of_kind(&topo->nics[i], kind) && !unfit(topo, &topo->nics[i], kind))
            mbps = MAX(mbps, rate_of(&topo->nics[i], kind));
    return mbps;
}

/* --- the order -------------------------------------------------------------------------------------------------------- */

/* What a process belongs to. */
struct anchor {
    const struct topo_gpu *gpu;                    /* or NULL */
    const struct topo_node *nodes[TOPO_NODES_MAX]; /* of its cores, unless those are all nodes; */
    unsigned nnodes;                               /* 0: nothing is near or far */
};

static enum topo_distance rail_distance(const struct topo *topo, const struct anchor *anchor,
                                        const struct topo_nic *nic, unsigned *ret_hops)
{
    *ret_hops = 0;
    if (anchor->gpu) {
        *ret_hops = node_distance(topo, anchor->gpu->place.node, nic->place.node);
        return topo_distance(topo, &anchor->gpu->place, &nic->place);
    }
    enum topo_distance best = anchor->nnodes ? TOPO_SYS : TOPO_NODE;
    for (unsigned i = 0; i < anchor->nnodes; i++) {
        unsigned hops = node_distance(topo, anchor->nodes[i]->id, nic->place.node);
        *ret_hops = i == 0 ? hops : MIN(*ret_hops, hops);
        if (same_node(topo, anchor->nodes[i]->id, nic->place.node))
            best = TOPO_NODE;
    }
    return best;
}

struct candidate {
    unsigned nic, hops;
    enum topo_distance distance;
    uint64_t rate;
};

static int nearer(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->distance != y->distance)
        return x->distance < y->distance ? -1 : 1;
    if (x->hops != y->hops)
        return x->hops < y->hops ? -1 : 1;
    if (x->rate != y->rate)
        return x->rate > y->rate ? -1 : 1;
    return x->nic < y->nic ? -1 : x->nic > y->nic;
}

/* GPUs that share their nearest NICs: how many of them come before this one. */
static unsigned turn_of_gpu(const struct topo *topo, int gpu, const struct candidate *first)
{
    unsigned before = 0;
    for (int i = 0; i < gpu; i++)
        before += topo->gpus[i].amd == topo->gpus[gpu].amd &&
                  topo_distance(topo, &topo->gpus[i].place, &topo->nics[first->nic].place) == first->distance;
    return before;
}

static void rotate(struct candidate *list, unsigned n, unsigned by)
{
    for (by = n ? by % n : 0; by; by--) {
        struct candidate first = list[0];
        memmove(list, list + 1, (n - 1) * sizeof(*list));
        list[n - 1] = first;
    }
}

static void add_rail(const struct topo *topo, const struct topo_request *request, const struct anchor *anchor,
                     const struct candidate *at, struct topo_choice *c)
{
    const struct topo_nic *nic = &topo->nics[at->nic];
    struct topo_rail *rail = &c->rails[c->n++];
    bool told = anchor->gpu || anchor->nnodes;
    *rail = (struct topo_rail){.nic = (int)at->nic,
                               .distance = at->distance,
                               .penalty_ns = at->distance == TOPO_SYS ? STRIPE_NUMA_PENALTY_NS : 0,
                               .nominal_bytes_per_s = at->rate * 125000};
    rail_name(nic, request->kind, rail->name);
    const struct topo_nic *named = nic;
    for (unsigned i = 0; request->kind == TOPO_RDMA && !nic->naddresses && nic->master[0] && i < topo->nnics;
         i++)
        if (strcmp(topo->nics[i].netdev, nic->master) == 0)
            named = &topo->nics[i];
    memcpy(rail->addresses, named->addresses, sizeof(rail->addresses));
    rail->naddresses = named->naddresses;
    /* Its thread writes to where the GPU reads; a daemon's only feeds the NIC. */
    if (anchor->gpu)
        rail->pin = c->pin;
    else if (!c->confined && !topo_cpus_equal(&nic->place.cpus, &topo->online))
        rail->pin = topo_cpus_and(&nic->place.cpus, &c->allowed);
    if (!told)
        snprintf(rail->why, sizeof(rail->why), "no NIC is nearer than another");
    else if (anchor->gpu)
        snprintf(rail->why, sizeof(rail->why), "%s from GPU %d", topo_distance_name(at->distance), c->gpu);
    else
        snprintf(rail->why, sizeof(rail->why), "%s the cores allowed",
                 at->distance == TOPO_SYS ? "on another NUMA node than" : "on a NUMA node of");
}

/* --- by hand ---------------------------------------------------------------------------------------------------------- */

/* Whether `word` means this NIC: its netdev, DEVICE:PORT, or DEVICE. */
static bool is_named(const struct topo_nic *nic, const char *word)
{
    char name[48];
    return strcmp(nic->netdev, word) == 0 || strcmp(nic->device, word) == 0 ||
           strcmp(topo_nic_name(nic, name), word) == 0;
}

static int unknown_name(const struct topo *topo, const char *word, struct leat_error *err)
{
    char there[300] = "";
    size_t at = 0;
    for (unsigned i = 0; i < topo->nnics && at < sizeof(there) - 50; i++) {
        char name[48];
        if (!topo->nics[i].is_virtual || topo->nics[i].lowers)
            at +=
                (size_t)snprintf(there + at, sizeof(there) - at, " %s", topo_nic_name(&topo->nics[i], name));
    }
    return error_set(err, LEAT_INVALID, "rails: there is no NIC %s here; there is%s", word,
                     at ? there : " none");
}

static int take_word(const struct topo *topo, const struct topo_request *request, const struct anchor *anchor,
                     const char *word, struct topo_choice *c, struct leat_error *err)
{
    bool found = false;
    for (unsigned i = 0; i < topo->nnics; i++) {
        const struct topo_nic *nic = &topo->nics[i];
        struct candidate at = {.nic = i, .rate = rate_of(nic, request->kind)};
        bool twice = false;
        if (!is_named(nic, word))
            continue;
        found = true;
        for (unsigned k = 0; k < c->n; k++)
            twice = twice || c->rails[k].nic == (int)i;
        if (twice)
            continue;
        if (!of_kind(nic, request->kind)) {
            leave_out(c, word, request->kind == TOPO_RDMA ? "it has no RDMA" : "it has no network interface");
            continue;
        }
        if (c->n == TOPO_RAILS_MAX)
            return error_set(err, LEAT_INVALID, "rails: at most %u can be named", TOPO_RAILS_MAX);
        at.distance = rail_distance(topo, anchor, nic, &at.hops);
        add_rail(topo, request, anchor, &at, c);
    }
    if (found)
        return 0;
    if (topo->nnics)
        return unknown_name(topo, word, err);
    if (c->n == TOPO_RAILS_MAX)
        return error_set(err, LEAT_INVALID, "rails: at most %u can be named", TOPO_RAILS_MAX);
    struct topo_rail *rail = &c->rails[c->n++]; /* no /sys: the name in `rails` is all that is known */
    *rail = (struct topo_rail){.nic = -1, .distance = TOPO_NODE};
    snprintf(rail->name, sizeof(rail->name), "%s", word);
    snprintf(rail->why, sizeof(rail->why), "named by hand; /sys has nothing about it");
    return 0;
}

static int choose_named(const struct topo *topo, const struct topo_request *request,
                        const struct anchor *anchor, const char *list, struct topo_choice *c,
                        struct leat_error *err)
{
    c->by_hand = true;
    int rc = 0;
    for (const char *at = list; !rc && *at;) {
        char word[48];
        size_t len = strcspn(at, ", \t");
        if (len >= sizeof(word))
            return error_set(err, LEAT_INVALID,
                             "rails: %.60s…: give names as mlx5_0:1 or eth0, with commas between", at);
        snprintf(word, sizeof(word), "%.*s", (int)len, at);
        if (len)
            rc = take_word(topo, request, anchor, word, c, err);
        at += len + (at[len] != 0);
    }
    c->use = c->n;
    return rc;
}

static void choose_all(const struct topo *topo, const struct topo_request *request,
                       const struct anchor *anchor, struct topo_choice *c)
{
    struct candidate fit[TOPO_NICS_MAX];
    unsigned n = 0, near = 0;
    uint64_t best = fastest(topo, request->kind);
    for (unsigned i = 0; i < topo->nnics; i++) {
        const struct topo_nic *nic = &topo->nics[i];
        if (!of_kind(nic, request->kind))
            continue;
        char name[48];
        rail_name(nic, request->kind, name);
        const char *why = unfit(topo, nic, request->kind);
        struct candidate at = {.nic = i, .rate = rate_of(nic, request->kind)};
        at.distance = rail_distance(topo, anchor, nic, &at.hops);
        if (why && why[0])
            leave_out(c, name, "%s", why);
        else if (!why && at.rate && at.rate < best / SLOW_BESIDE)
            leave_out(c, name, "%" PRIu64 " Mb/s, and there is one of %" PRIu64, at.rate, best);
        else if (!why)
            fit[n++] = at;
    }
    if (n)
        qsort(fit, n, sizeof(fit[0]), nearer);
    while (near < n && fit[near].distance == fit[0].distance && fit[near].hops == fit[0].hops &&
           fit[near].rate == fit[0].rate)
        near++;
    if (n && c->gpu >= 0)
        rotate(fit, near, turn_of_gpu(topo, c->gpu, &fit[0]));
    for (unsigned i = 0; i < n && c->n < TOPO_RAILS_MAX; i++)
        add_rail(topo, request, anchor, &fit[i], c);
    /* Where there are several GPUs, the far NICs are near to others of them. */
    c->use = anchor->gpu && topo->ngpus > 1 ? MIN(near, c->n) : c->n;
}

/* --- all -------------------------------------------------------------------------------------------------------------- */

static int find_anchor(const struct topo *topo, const struct topo_request *request, struct anchor *anchor,
                       struct topo_choice *c, struct leat_error *err)
{
    char gpu_why[100] = "";
    c->gpu = -1;
    int rc = 0;
    if (request->cpus)
        c->allowed = *request->cpus;
    else
        rc = topo_cpus_allowed(&c->allowed);
    if (rc)
        return error_sys(err, rc, "cannot find which cores the process may run on");
    struct topo_cpus here = topo_cpus_and(&c->allowed, &topo->online);
    /* Also where the host does not report its cores: nothing to pin by. */
    c->confined = topo_cpus_empty(&topo->online) || !topo_cpus_equal(&here, &topo->online);
    if (request->whole_host) {
        snprintf(c->why, sizeof(c->why), "for the whole host");
        return 0;
    }
    if (request->gpu >= (int)topo->ngpus)
        return error_set(err, LEAT_INVALID, "there is no GPU %d: %u are here", request->gpu, topo->ngpus);
    c->gpu = request->gpu == TOPO_GPU_FROM_ENV ? gpu_from_env(topo, gpu_why, sizeof(gpu_why))
                                               : MAX(request->gpu, -1);
    if (c->gpu >= 0) {
        anchor->gpu = &topo->gpus[c->gpu];
        if (!c->confined && !topo_cpus_equal(&anchor->gpu->place.cpus, &topo->online))
            c->pin = topo_cpus_and(&anchor->gpu->place.cpus, &c->allowed);
        snprintf(c->why, sizeof(c->why), "%s", gpu_why[0] ? gpu_why : "by the GPU requested");
        return 0;
    }
    unsigned with_cores = 0;
    for (unsigned i = 0; i < topo->nnodes; i++) {
        struct topo_cpus both = topo_cpus_and(&topo->nodes[i].cpus, &here);
        with_cores += !topo_cpus_empty(&topo->nodes[i].cpus);
        if (!topo_cpus_empty(&both))
            anchor->nodes[anchor->nnodes++] = &topo->nodes[i];
    }
    if (anchor->nnodes == with_cores)
        anchor->nnodes = 0; /* on all of them */
    snprintf(c->why, sizeof(c->why), "%s%s%s", gpu_why, gpu_why[0] ? "; " : "",
             anchor->nnodes ? "by the cores allowed" : "the cores allowed are on every NUMA node");
    return 0;
}

int topo_choose(const struct topo *topo, const struct topo_request *request, struct topo_choice *ret_choice,
                struct leat_error *err)
{
    struct topo_choice c = {0};
    struct anchor anchor = {0};
    const char *list = request->rails && request->rails[0] ? request->rails : secure_getenv("LEAT_RAILS");
    int rc = find_anchor(topo, request, &anchor, &c, err);
    if (rc)
        return rc;
    if (list && list[strspn(list, ", \t")])
        rc = choose_named(topo, request, &anchor, list, &c, err);
    else
        choose_all(topo, request, &anchor, &c);
    if (rc)
        return rc;
    *ret_choice = c;
    return 0;
}
