/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a sample becomes readable. A fill thread (or a peer, through the control loop) reports pieces of parts. A whole part
 * sets its CRC and counts for its sample; when all parts of the sample have counted, its state turns RESIDENT with
 * release order, after its CRCs. A failed part turns the sample FAILED, which nothing undoes.
 *
 * Invariant: crc[i, f] is written by exactly one thread, before the count of sample i that includes it.
 */
#include "pool/set/wset.h"

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "pool/source/access.h"
#include "pool/source/source.h"
#include "pool/region/region.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>

#define FAILURES_KEPT   256u
#define PLACES_ALIGN    (64 * KIB) /* the largest page of any kernel: what is mapped begins at one */
#define FAILURES_FIRST  8u
#define LIVE_HUGE_BYTES (4 * MIB)
#define SET_BYTES       (42 * KIB) /* of a set of nothing: its object, names, first failures, what is waited for */
#define REGION_BYTES    512u       /* of a region: its object, and its place in the set's table */
#define SEGMENT_TABLE                                                                                        \
    320u /* of a segment: twice its entry, as tables grow, and the part that straddles its end */
#define SEGMENT_MOST  (8 * MIB)
#define SEGMENT_LEAST (128 * KIB)
#define SEGMENT_FILES 16u
#define SEGMENTS_MOST (1u << 16) /* 20 MiB of tables */
/* About: 9 MiB of records for other nodes, and as much for each thread. */
#define SEGMENT_PARTS (256u * 1024u)
/*
 * Runs of remote sources. All of a session's 16 connections read a run at once, and the first byte of each
 * answer takes 30 ms from S3. At 80 MB/s a connection, 8 MiB would mostly wait (36 ms for what takes 6); 64
 * MiB reach two thirds of the possible rate (82 ms for 52). A server that answers in a millisecond gets no
 * more than 8 MiB: bytes are then read out of the processor's cache, and the last runs of a set end together.
 */
#define RUN_MOST         (64 * MIB)
#define RUN_BYTES_PER_NS 2u

struct piece {
    uint64_t offset, bytes;
    uint32_t crc;
};

struct straddle {
    struct straddle *next;
    uint64_t sample;
    unsigned field;
    uint64_t got_bytes;
    unsigned n, cap;
    struct piece *pieces; /* sorted by offset */
};

static bool live_is_huge(const struct wset_config *config, uint64_t bytes)
{
    return config && bytes >= LIVE_HUGE_BYTES && config->huge_dir >= 0;
}

static int live_create(struct wset *ws, struct leat_error *err)
{
    uint64_t n = ws->index.header->nsamples, bytes = live_bytes(n, ws->index.header->nfields);
    /* For many samples it is worth huge pages: made in a few milliseconds, and read at random. */
    int huge_dir = live_is_huge(ws->config, bytes) ? ws->config->huge_dir : -1;
    ws->live_fd = huge_dir >= 0 ? openat(huge_dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)
                                : memfd_create("leat-live", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (ws->live_fd < 0)
        return error_sys(err, -errno, "cannot create the table of samples");
    int rc;
    if (ftruncate(ws->live_fd, (off_t)bytes) < 0)
        return error_sys(err, -errno, "cannot size the table of %" PRIu64 " samples", n);
    do
        rc = fallocate(ws->live_fd, 0, 0, (off_t)bytes) < 0 ? -errno : 0;
    while (rc == -EINTR);
    if (rc < 0)
        return error_sys(err, rc, "no memory for the table of %" PRIu64 " samples", n);
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", ws->live_fd);
    ws->live_fd_ro = open(path, O_RDONLY | O_CLOEXEC);
    /* A memfd is born 0777: without this another user could re-open what we pass for writing. */
    if (ws->live_fd_ro < 0 || fchmod(ws->live_fd, 0400) < 0)
        return error_sys(err, -errno, "cannot re-open the table of samples read-only");
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ws->live_fd, 0);
    if (map == MAP_FAILED)
        return error_sys(err, -errno, "cannot map the table of %" PRIu64 " samples", n);
    if (huge_dir < 0)
        fcntl(ws->live_fd, F_ADD_SEALS, F_SEAL_SHRINK); /* places may follow */
    ws->live = map;
    ws->live->magic = LIVE_MAGIC;
    ws->live->nsamples = n;
    ws->live->nfields = ws->index.header->nfields;
    ws->live->state_offset = 4096;
    ws->live->crc_offset = live_crc_offset(n);
    ws->live->total_bytes = bytes;
    atomic_store(&ws->live->generation, 1);
    ws->sample_state = (_Atomic uint8_t *)((uint8_t *)map + 4096);
    ws->crc = (uint32_t *)((uint8_t *)map + ws->live->crc_offset);
    return 0;
}

int wset_places_make(struct wset *ws)
{
    uint64_t at = align_up(ws->live->total_bytes, PLACES_ALIGN),
             bytes = MAX(ws->nregions, 1u) * sizeof(*ws->places);
    int rc;
    if (ftruncate(ws->live_fd, (off_t)(at + bytes)) < 0)
        return -errno;
    do
        rc = fallocate(ws->live_fd, 0, (off_t)at, (off_t)bytes) < 0 ? -errno : 0;
    while (rc == -EINTR);
    void *map =
        rc == 0 ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ws->live_fd, (off_t)at) : MAP_FAILED;
    if (map == MAP_FAILED)
        return rc < 0 ? rc : -errno;
    fcntl(ws->live_fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SEAL); /* of a memfd; others have none */
    ws->places = map;
    ws->live->nplaces = ws->nregions;
    ws->live->places_offset = at;
    return 0;
}

void wset_region_put(struct wset *ws, uint32_t gid, uint32_t node)
{
    atomic_store(&ws->places[gid], live_place(node, 0));
}

bool wset_region_moves(const struct wset *ws, uint32_t gid, uint32_t node, uint32_t generation)
{
    return ws->places && gid < ws->nregions && node < ws->nnodes && generation > 0 &&
           atomic_load(&ws->places[gid]) < live_place(node, generation);
}

bool wset_region_move(struct wset *ws, uint32_t gid, uint32_t node, uint32_t generation)
{
    if (!wset_region_moves(ws, gid, node, generation))
        return false;
    atomic_store(&ws->places[gid], live_place(node, generation));
    atomic_fetch_add(&ws->live->moves, 1);
    return true;
}

static uint64_t segment_of_files(const struct index_header *h)
{
    uint64_t few = h->address_end / h->nsources * SEGMENT_FILES, many = h->address_end / SEGMENTS_MOST;
    uint64_t bytes = SEGMENT_LEAST;
    while (bytes < SEGMENT_MOST && bytes < MAX(few, many))
        bytes *= 2;
    return bytes;
}

/* `bytes`, or less where other nodes would get too many parts at once. */
static uint64_t clamp_parts(const struct index_header *h, uint64_t bytes)
{
    uint64_t times = h->nsamples * h->nfields / SEGMENT_PARTS;
    while (times && bytes > SEGMENT_LEAST && bytes > h->address_end / times)
        bytes /= 2;
    return bytes;
}

uint64_t wset_segment_bytes(const struct index *index)
{
    const struct index_header *h = index->header;
    bool files = (h->flags & INDEX_FLAG_SMALL_FILES) && h->nsources;
    return clamp_parts(h, files ? segment_of_files(h) : SEGMENT_MOST);
}

uint64_t wset_run_bytes(const struct index *index, uint64_t first_byte_ns)
{
    uint64_t bytes = MIN(first_byte_ns, NS_PER_S) * RUN_BYTES_PER_NS;
    return clamp_parts(index->header, MIN(MAX(bytes, SEGMENT_MOST), RUN_MOST));
}

uint64_t wset_table_bytes(const struct index *index, bool in_memory, const struct wset_config *config)
{
    const struct index_header *h = index->header;
    uint64_t live = live_bytes(h->nsamples, h->nfields), region = config->region_bytes;
    uint64_t regions = h->address_end / region + 2,
             segments = h->address_end / MIN(wset_segment_bytes(index), region) + regions;
    return (in_memory ? align_up(index->blob_bytes, 4096) : 0) +
           align_up(live, live_is_huge(config, live) ? REGION_HUGE_BYTES : 4096) +
           h->nsamples * div_up(h->nfields, 8) + regions * REGION_BYTES + segments * SEGMENT_TABLE +
           SET_BYTES;
}

static int tables_charge(struct wset *ws, int index_fd, struct leat_error *err)
{
    /* Seals are for memory: memfds and tmpfs know them, other file systems do not. */
    uint64_t bytes = wset_table_bytes(&ws->index, fcntl(index_fd, F_GET_SEALS) >= 0, ws->config);
    return ws->config->owner->charge(ws, bytes, err);
}

int wset_new(const struct wset_config *config, int index_fd, bool trusted, struct wset **ret_ws,
             struct leat_error *err)
{
    struct wset *ws = calloc(1, sizeof(*ws));
    if (!ws)
        return error_set(err, -ENOMEM, "out of memory for a working set");
    list_init(&ws->node);
    list_init(&ws->waiters);
    list_init(&ws->fill_node);
    static _Atomic uint64_t serials;
    ws->serial = atomic_fetch_add(&serials, 1) + 1;
    ws->refs = 1;
    ws->index_fd = ws->live_fd = ws->live_fd_ro = -1;
    if (config) {
        ws->config = config;
        ws->pool = config->pool;
        config->owner->born(ws->pool);
    }
    pthread_mutex_init(&ws->straddle_lock, NULL);
    pthread_mutex_init(&ws->failure_lock, NULL);
    int rc = index_map(index_fd, &ws->index, err);
    /* First: to read a memfd with holes makes their memory, so it has to be ours to give. */
    if (rc == 0 && config)
        rc = tables_charge(ws, index_fd, err);
    if (rc == 0 && !trusted)
        rc = index_validate(&ws->index, err);
    for (uint64_t k = 0; rc == 0 && k < ws->index.header->nsources && !(ws->remote && ws->local); k++)
        *(index_source_is_remote(&ws->index, k) ? &ws->remote : &ws->local) = true;
    if (rc == 0)
        rc = live_create(ws, err);
    if (rc == 0) {
        uint64_t n = ws->index.header->nsamples;
        ws->mask_bytes = (unsigned)div_up(ws->index.header->nfields, 8);
        ws->parts_done = calloc(n ? n : 1, MAX(ws->mask_bytes, 1u));
        ws->name = strdup("");
        ws->spec = strdup("");
        if (!ws->parts_done || !ws->name || !ws->spec)
            rc = error_set(err, -ENOMEM, "out of memory for a working set of %" PRIu64 " samples", n);
        else if (getrandom(ws->uuid, sizeof(ws->uuid), 0) != sizeof(ws->uuid))
            rc = error_set(err, -EIO, "the kernel gives no random bytes");
    }
    if (rc < 0) {
        wset_unref(ws);
        return rc;
    }
    ws->index_fd = index_fd;
    ws->pinned_end = UINT64_MAX;
    ws->version = 1;
    *ret_ws = ws;
    return 0;
}

#define P(phase) (1u << WSET_##phase)
/* PREPARING may become ORPHANED at once: its node can go while the set is prepared. LIVE at once: a set of one node, or a replica. */
static const uint32_t wset_moves[WSET_PHASES] = {
    [WSET_NEW] = P(PREPARING) | P(LIVE),
    [WSET_PREPARING] = P(PREPARED) | P(ORPHANED) | P(ENDED) | P(REVOKED),
    [WSET_PREPARED] = P(ORPHANED) | P(LIVE) | P(ENDED) | P(REVOKED),
    [WSET_ORPHANED] = P(PREPARED) | P(LIVE) | P(ENDED) | P(REVOKED),
    [WSET_LIVE] = P(SUPERSEDED) | P(ENDED) | P(REVOKED),
    [WSET_SUPERSEDED] = P(ENDED) | P(REVOKED),
};
#undef P

void wset_move(struct wset *ws, enum wset_phase to)
{
    static const char *const names[WSET_PHASES] = {"NEW",  "PREPARING",  "PREPARED", "ORPHANED",
                                                   "LIVE", "SUPERSEDED", "ENDED",    "REVOKED"};
    enum wset_phase from = atomic_load(&ws->phase);
    assert(to < WSET_PHASES && (wset_moves[from] >> to & 1));
    log_debug("set %s: %s -> %s", ws->name[0] ? ws->name : ws->spec, names[from], names[to]);
    atomic_store(&ws->phase, to);
}

struct wset *wset_ref(struct wset *ws)
{
    atomic_fetch_add(&ws->refs, 1);
    return ws;
}

void wset_unref(struct wset *ws)
{
    if (!ws || atomic_fetch_sub(&ws->refs, 1) != 1)
        return;
    assert(list_empty(&ws->waiters) && list_empty(&ws->fill_node));
    if (ws->window)
        ws->window_free(ws->window);
    access_unref(ws->access);
    source_groups_unref(ws->owner_groups);
    for (uint32_t g = 0; g < ws->nregions; g++)
        region_unref(ws->regions[g].region);
    wset_unref(ws->replaces);
    free(ws->regions);
    free(ws->nodes);
    set_nodes_fini(&ws->peers);
    for (unsigned h = 0; h < ARRAY_LEN(ws->straddles); h++) {
        for (struct straddle *s = ws->straddles[h], *next; s; s = next) {
            next = s->next;
            free(s->pieces);
            free(s);
        }
    }
    free(ws->failures);
    free(ws->segments);
    free(ws->wanted);
    free(ws->urgent.samples);
    free(ws->urgent_there.samples);
    free(ws->urgent_there.from);
    free((void *)ws->parts_done);
    free((void *)ws->crc_known);
    free(ws->name);
    free(ws->spec);
    if (ws->places)
        munmap(ws->places, MAX(ws->live->nplaces, 1u) * sizeof(*ws->places));
    if (ws->live)
        munmap(ws->live, ws->live->total_bytes);
    index_close(&ws->index);
    for (unsigned i = 0; i < 3; i++) {
        int fd = (int[]){ws->live_fd, ws->live_fd_ro, ws->index_fd}[i];
        if (fd >= 0)
            close(fd);
    }
    pthread_mutex_destroy(&ws->straddle_lock);
    pthread_mutex_destroy(&ws->failure_lock);
    if (ws->config)
        ws->config->owner->gone(ws);
    free(ws);
}

void wset_note_pages(struct wset *ws, const struct region *region)
{
    uint32_t page = (uint32_t)region_page_bytes(region), was = atomic_load(&ws->live->page_bytes);
    while ((was == 0 || page < was) && !atomic_compare_exchange_weak(&ws->live->page_bytes, &was, page))
        ;
}

uint8_t *wset_address(const struct wset *ws, uint64_t address, uint64_t bytes)
{
    uint64_t gid = address / ws->region_bytes, offset = address % ws->region_bytes;
    if (gid >= ws->nregions || bytes > ws->region_bytes - offset || !ws->regions[gid].region)
        return NULL;
    return ws->regions[gid].region->addr + offset;
}

bool wset_allows(const struct wset *ws, uint32_t uid, uint32_t gid)
{
    if (uid == ws->owner_uid || uid == 0)
        return true;
    return (ws->mode & 0004) || ((ws->mode & 0040) && gid == ws->owner_gid);
}

bool wset_written(struct wset *ws)
{
    if (!wset_is_revoked(ws))
        return false;
    for (uint32_t g = 0; g < ws->nregions; g++) {
        if (ws->regions[g].region)
            region_written(ws->regions[g].region);
    }
    return true;
}

unsigned wset_parts_of(const struct wset *ws, uint64_t i)
{
    struct index_part part;
    unsigned n = 0;
    for (unsigned f = 0; f < ws->index.header->nfields; f++)
        n += index_part(&ws->index, i, f, &part) && part.bytes > 0;
    return n;
}

void wset_pin(struct wset *ws, uint64_t end)
{
    ws->pinned_end = end;
    struct index_part part;
    for (uint64_t i = 0; i < ws->index.header->nsamples; i++) {
        for (unsigned f = 0; f < ws->index.header->nfields; f++) {
            if (index_part(&ws->index, i, f, &part) && part.address + part.bytes > end) {
                atomic_store(&ws->sample_state[i], LIVE_STREAMED);
                ws->streamed_samples++;
                break;
            }
        }
    }
}

bool wset_part_known(const struct wset *ws, uint64_t i, unsigned f)
{
    return atomic_load(&ws->parts_done[i * ws->mask_bytes + f / 8]) & (1u << f % 8);
}

uint32_t wset_part_crc(const struct wset *ws, uint64_t i, unsigned f)
{
    return __atomic_load_n(&ws->crc[i * ws->index.header->nfields + f], __ATOMIC_RELAXED);
}

static void sample_resident(struct wset *ws, uint64_t i);

static bool sample_is_done(const struct wset *ws, uint64_t i)
{
    struct index_part part;
    for (unsigned f = 0; f < ws->index.header->nfields; f++) {
        if (index_part(&ws->index, i, f, &part) && part.bytes > 0 && !wset_part_known(ws, i, f))
            return false;
    }
    return true;
}

/* Are some of its bytes on this node; are some on one that is lost? */
static bool sample_is_on(const struct wset *ws, uint64_t i, uint32_t node, bool *ret_lost)
{
    bool there = false;
    *ret_lost = false;
    struct index_part part;
    for (unsigned f = 0; f < ws->index.header->nfields; f++) {
        if (!index_part(&ws->index, i, f, &part) || part.bytes == 0)
            continue;
        uint64_t first = part.address / ws->region_bytes,
                 last = (part.address + part.bytes - 1) / ws->region_bytes;
        for (uint64_t g = first; g <= last && g < ws->nregions; g++) {
            uint32_t at = wset_region_node(ws, (uint32_t)g);
            there = there || at == node;
            *ret_lost = *ret_lost || (at < ws->peers.n && ws->peers.at[at].lost);
        }
    }
    return there;
}

static void sample_resident(struct wset *ws, uint64_t i)
{
    uint8_t expected = LIVE_ABSENT;
    if (atomic_compare_exchange_strong_explicit(&ws->sample_state[i], &expected, LIVE_RESIDENT,
                                                memory_order_release, memory_order_relaxed))
        atomic_fetch_add_explicit(&ws->live->resident_samples, 1, memory_order_relaxed);
}

/* From any state; but a streamed sample is read from its source, and needs no failed bytes. */
static void sample_failed(struct wset *ws, uint64_t i)
{
    uint8_t was = atomic_load(&ws->sample_state[i]);
    do {
        if (was == LIVE_FAILED || was == LIVE_STREAMED)
            return;
    } while (!atomic_compare_exchange_weak(&ws->sample_state[i], &was, LIVE_FAILED));
    if (was == LIVE_RESIDENT)
        atomic_fetch_sub(&ws->live->resident_samples, 1);
    if (was == LIVE_LOST)
        atomic_fetch_sub(&ws->live->lost_samples, 1);
    atomic_fetch_add(&ws->live->failed_samples, 1);
}

/* Fill threads and peers report pieces concurrently: states move by exchange only. */
void wset_node_lost(struct wset *ws, uint32_t node)
{
    bool lost;
    set_nodes_lose(&ws->peers, node);
    ws->losses++;
    for (uint64_t i = 0; i < ws->index.header->nsamples; i++) {
        uint8_t was = wset_sample_state(ws, i);
        if ((was != LIVE_RESIDENT && was != LIVE_ABSENT) || !sample_is_on(ws, i, node, &lost))
            continue;
        while ((was == LIVE_RESIDENT || was == LIVE_ABSENT) &&
               !atomic_compare_exchange_weak(&ws->sample_state[i], &was, LIVE_LOST))
            ;
        if (was == LIVE_RESIDENT)
            atomic_fetch_sub(&ws->live->resident_samples, 1);
        if (was == LIVE_RESIDENT || was == LIVE_ABSENT)
            atomic_fetch_add(&ws->live->lost_samples, 1);
    }
}

void wset_node_back(struct wset *ws, uint32_t node)
{
    bool lost;
    set_nodes_regain(&ws->peers, node);
    for (uint64_t i = 0; i < ws->index.header->nsamples; i++) {
        uint8_t expected = LIVE_LOST;
        if (wset_sample_state(ws, i) != LIVE_LOST)
            continue;
        if (!sample_is_on(ws, i, node, &lost) || lost ||
            !atomic_compare_exchange_strong(&ws->sample_state[i], &expected, LIVE_ABSENT))
            continue;
        atomic_fetch_sub(&ws->live->lost_samples, 1);
        /* After the exchange: a thread that sets the last bit from here on sees ABSENT */
        if (sample_is_done(ws, i))
            sample_resident(ws, i);
    }
}

bool wset_complete(const struct wset *ws)
{
    return atomic_load(&ws->live->resident_samples) + atomic_load(&ws->live->failed_samples) +
               atomic_load(&ws->live->lost_samples) + ws->streamed_samples >=
           ws->index.header->nsamples;
}

bool wset_is_loaded(const struct wset *ws)
{
    return ws->loaded || wset_complete(ws);
}

void wset_inherit(struct wset *ws, struct wset *old)
{
    uint64_t n = old->index.header->nsamples, nfields = old->index.header->nfields;
    memcpy(ws->crc, old->crc, n * nfields * sizeof(*ws->crc));
    for (uint64_t k = 0; k < n * ws->mask_bytes; k++)
        atomic_store_explicit(&ws->parts_done[k], atomic_load(&old->parts_done[k]), memory_order_relaxed);
    for (uint64_t i = 0; i < n; i++)
        atomic_store_explicit(&ws->sample_state[i], wset_sample_state(old, i), memory_order_release);
    atomic_store(&ws->live->resident_samples, atomic_load(&old->live->resident_samples));
    atomic_store(&ws->live->resident_bytes, atomic_load(&old->live->resident_bytes));
    atomic_store(&ws->live->failed_samples, atomic_load(&old->live->failed_samples));
    pthread_mutex_lock(&old->failure_lock);
    for (unsigned k = 0; k < old->nfailures; k++)
        wset_failure(ws, old->failures[k].sample, old->failures[k].code, old->failures[k].message);
    pthread_mutex_unlock(&old->failure_lock);
}

void wset_failure(struct wset *ws, uint64_t sample, int rc, const char *message)
{
    pthread_mutex_lock(&ws->failure_lock);
    if (ws->nfailures == ws->failures_cap && ws->nfailures < FAILURES_KEPT) {
        /* The first are in SET_BYTES; more only as far as the pool has room for them. */
        unsigned cap = ws->failures_cap ? ws->failures_cap * 2 : FAILURES_FIRST;
        bool paid =
            cap == FAILURES_FIRST || !ws->config ||
            ws->config->owner->charge(ws, (cap - ws->failures_cap) * sizeof(*ws->failures), NULL) == 0;
        struct wset_failure *more = paid ? realloc(ws->failures, cap * sizeof(*more)) : NULL;
        if (more) {
            ws->failures = more;
            ws->failures_cap = cap;
        }
    }
    if (ws->nfailures < ws->failures_cap) {
        struct wset_failure *f = &ws->failures[ws->nfailures++];
        f->sample = sample;
        f->code = rc;
        snprintf(f->message, sizeof(f->message), "%s", message);
    }
    pthread_mutex_unlock(&ws->failure_lock);
}

bool wset_failed_transient(struct wset *ws)
{
    if (atomic_load(&ws->live->failed_samples) == 0)
        return false;
    pthread_mutex_lock(&ws->failure_lock);
    bool corrupt = ws->nfailures > 0;
    for (unsigned k = 0; k < ws->nfailures && corrupt; k++)
        corrupt = ws->failures[k].code == LEAT_CORRUPT;
    pthread_mutex_unlock(&ws->failure_lock);
    return !corrupt;
}

int wset_failure_get(struct wset *ws, uint64_t sample, struct leat_error *err)
{
    char scratch[24];
    size_t len;
    const char *key = index_key(&ws->index, sample, scratch, &len);
    char why[400] = "it could not be loaded (see the daemon's log)";
    pthread_mutex_lock(&ws->failure_lock);
    /* More failed than are kept: a reason that those share is likely its reason, too. */
    int rc = ws->nfailures ? ws->failures[0].code : -EIO;
    for (unsigned k = 0; k < ws->nfailures; k++) {
        rc = ws->failures[k].code == rc ? rc : -EIO;
        if (ws->failures[k].sample == sample) {
            rc = ws->failures[k].code;
            snprintf(why, sizeof(why), "%s", ws->failures[k].message);
            break;
        }
    }
    pthread_mutex_unlock(&ws->failure_lock);
    return error_set(err, rc, "sample %" PRIu64 " (%.*s): %s", sample, (int)MIN(len, (size_t)120), key, why);
}

int wset_failure_any(struct wset *ws, struct leat_error *err)
{
    uint64_t failed = atomic_load(&ws->live->failed_samples), total = ws->index.header->nsamples;
    pthread_mutex_lock(&ws->failure_lock);
    bool known = ws->nfailures > 0;
    uint64_t sample = known ? ws->failures[0].sample : 0;
    pthread_mutex_unlock(&ws->failure_lock);
    if (!known)
        return error_set(err, -EIO, "%" PRIu64 " of %" PRIu64 " samples could not be loaded", failed, total);
    int rc = wset_failure_get(ws, sample, err);
    return error_prefix(err, rc, "%" PRIu64 " of %" PRIu64 " samples could not be loaded", failed, total);
}

/* Setting a bit twice (a host that was asked again) changes nothing; the last bit makes it resident. */
static void part_complete(struct wset *ws, uint64_t i, unsigned f, uint64_t bytes, uint32_t crc)
{
    if (wset_part_known(ws, i, f))
        return;
    /* A FETCH of the same sample may store the same value concurrently. */
    __atomic_store_n(&ws->crc[i * ws->index.header->nfields + f], crc, __ATOMIC_RELAXED);
    atomic_fetch_add_explicit(&ws->live->resident_bytes, bytes, memory_order_relaxed);
    atomic_fetch_or(&ws->parts_done[i * ws->mask_bytes + f / 8], (uint8_t)(1u << f % 8));
    if (sample_is_done(ws, i))
        sample_resident(ws, i);
}

static uint32_t pieces_crc(const struct straddle *s)
{
    uint32_t crc = s->pieces[0].crc;
    for (unsigned k = 1; k < s->n; k++)
        crc = crc32c_combine(crc, s->pieces[k].crc, s->pieces[k].bytes);
    return crc;
}

/* Adds a piece; *ret_whole when the part is whole and its CRC is in *ret_crc. A piece that comes twice (a host that was asked
 * again) or overlaps another is ignored. */
static int straddle_add(struct wset *ws, uint64_t i, unsigned f, uint64_t total, const struct piece *piece,
                        bool *ret_whole, uint32_t *ret_crc)
{
    unsigned h = (unsigned)((i * 31 + f) % ARRAY_LEN(ws->straddles));
    struct straddle **at = &ws->straddles[h];
    while (*at && ((*at)->sample != i || (*at)->field != f))
        at = &(*at)->next;
    struct straddle *s = *at;
    if (!s) {
        s = calloc(1, sizeof(*s));
        if (!s)
            return -ENOMEM;
        s->sample = i;
        s->field = f;
        *at = s;
    }
    if (s->n == s->cap) {
        unsigned cap = s->cap ? s->cap * 2 : 4;
        struct piece *more = realloc(s->pieces, cap * sizeof(*more));
        if (!more)
            return -ENOMEM;
        s->pieces = more;
        s->cap = cap;
    }
    unsigned k = s->n;
    while (k > 0 && s->pieces[k - 1].offset > piece->offset)
        k--;
    if ((k > 0 && s->pieces[k - 1].offset + s->pieces[k - 1].bytes > piece->offset) ||
        (k < s->n && piece->offset + piece->bytes > s->pieces[k].offset))
        return 0;
    memmove(&s->pieces[k + 1], &s->pieces[k], (s->n - k) * sizeof(*s->pieces));
    s->pieces[k] = *piece;
    s->n++;
    s->got_bytes += piece->bytes;
    if (s->got_bytes == total) {
        *ret_whole = true;
        *ret_crc = pieces_crc(s);
        *at = s->next;
        free(s->pieces);
        free(s);
    }
    return 0;
}

void wset_piece(struct wset *ws, uint64_t i, unsigned f, uint64_t offset, uint64_t bytes, uint32_t crc,
                int status)
{
    struct index_part part;
    if (i >= ws->index.header->nsamples || f >= ws->index.header->nfields ||
        !index_part(&ws->index, i, f, &part) || offset > part.bytes || bytes > part.bytes - offset)
        return; /* from a peer: not trusted */
    if (status < 0) {
        sample_failed(ws, i);
        return;
    }
    if (bytes == 0)
        return;
    if (bytes == part.bytes) {
        part_complete(ws, i, f, bytes, crc);
        return;
    }
    if (wset_part_known(ws, i, f) || bytes == 0)
        return;
    bool whole = false;
    uint32_t whole_crc = 0;
    pthread_mutex_lock(&ws->straddle_lock);
    int rc = straddle_add(ws, i, f, part.bytes, &(struct piece){offset, bytes, crc}, &whole, &whole_crc);
    /* Under the lock: in between it would be neither in pieces nor known, and seem to be missing (wset_part_missing). */
    if (whole)
        part_complete(ws, i, f, part.bytes, whole_crc);
    pthread_mutex_unlock(&ws->straddle_lock);
    if (rc < 0) {
        wset_failure(ws, i, rc, "out of memory while it was put together");
        sample_failed(ws, i);
    }
}

void wset_pieces(struct wset *ws, uint64_t i, unsigned f,
                 void (*fn)(void *user, uint64_t i, unsigned f, uint64_t offset, uint64_t bytes,
                            uint32_t crc),
                 void *user)
{
    struct index_part part;
    if (!index_part(&ws->index, i, f, &part) || part.bytes == 0)
        return;
    pthread_mutex_lock(&ws->straddle_lock);
    /* Read under the lock: pieces become a part under it, or the part was known before. */
    bool known = wset_part_known(ws, i, f);
    const struct straddle *s = known ? NULL : ws->straddles[(i * 31 + f) % ARRAY_LEN(ws->straddles)];
    while (s && (s->sample != i || s->field != f))
        s = s->next;
    for (unsigned k = 0; s && k < s->n; k++)
        fn(user, i, f, s->pieces[k].offset, s->pieces[k].bytes, s->pieces[k].crc);
    pthread_mutex_unlock(&ws->straddle_lock);
    if (known)
        fn(user, i, f, 0, part.bytes, wset_part_crc(ws, i, f));
}

/* Of the addresses [begin, end), how many this host fills. */
static uint64_t filled_here(const struct wset *ws, uint64_t begin, uint64_t end)
{
    uint64_t bytes = 0;
    for (begin = MAX(begin, ws->first_new_address); begin < end;) {
        uint64_t gid = begin / ws->region_bytes, stop = MIN(end, (gid + 1) * ws->region_bytes);
        if (gid < ws->nregions && ws->regions[gid].region)
            bytes += stop - begin;
        begin = stop;
    }
    return bytes;
}

struct missing {
    const struct wset *ws;
    uint64_t address, bytes;
};

static void missing_less(void *user, uint64_t i, unsigned f, uint64_t offset, uint64_t bytes, uint32_t crc)
{
    struct missing *m = user;
    m->bytes -= filled_here(m->ws, m->address + offset, m->address + offset + bytes);
}

bool wset_part_missing(struct wset *ws, uint64_t i, unsigned f)
{
    struct index_part part;
    if (!index_part(&ws->index, i, f, &part) || part.bytes == 0 || wset_part_known(ws, i, f))
        return false;
    struct missing m = {ws, part.address, filled_here(ws, part.address, part.address + part.bytes)};
    if (m.bytes)
        wset_pieces(ws, i, f, missing_less, &m);
    return m.bytes > 0;
}

int wset_streamed(struct wset *ws, uint64_t i, unsigned f, uint32_t crc)
{
    uint64_t at = i * ws->index.header->nfields + f;
    bool known = (ws->crc_known && atomic_load_explicit(&ws->crc_known[at], memory_order_acquire)) ||
                 wset_part_known(ws, i, f);
    if (!known) {
        __atomic_store_n(&ws->crc[at], crc, __ATOMIC_RELAXED);
        if (ws->crc_known)
            atomic_store_explicit(&ws->crc_known[at], 1, memory_order_release);
        return 0;
    }
    return wset_part_crc(ws, i, f) == crc ? 0 : LEAT_CORRUPT;
}

void wset_parts_in(const struct wset *ws, uint64_t begin, uint64_t end, wset_part_fn fn, void *user)
{
    const struct index *index = &ws->index;
    for (unsigned f = 0; f < index->header->nfields; f++) {
        if (index->fields[f].kind == INDEX_FIELD_LABEL)
            continue;
        struct index_part part;
        for (uint64_t i = index_sample_at(index, f, begin); i < index->header->nsamples; i++) {
            if (!index_part(index, i, f, &part))
                continue;
            if (part.address >= end)
                break;
            uint64_t from = MAX(part.address, begin), to = MIN(part.address + part.bytes, end);
            if (from < to)
                fn(user, i, f, &part, from - part.address, to - from);
        }
    }
}

void wset_settle_empty(struct wset *ws)
{
    for (uint64_t i = 0; i < ws->index.header->nsamples; i++) {
        if (wset_sample_state(ws, i) == LIVE_ABSENT && wset_parts_of(ws, i) == 0)
            sample_resident(ws, i);
    }
}
