/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A range of samples becomes runs of addresses (neighbouring parts merged, widened to whole blocks where the layout allows, so
 * that direct I/O fits), each run gets a place in the window congruent to its address modulo 4096, and a fill_load brings it.
 * When its bytes are there the fill thread checksums the samples: the first time that is what later reads are compared with.
 *
 * Places are found first-fit over the runs sorted by offset; when nothing fits, the least recently used entry that nobody
 * holds goes, until something does.
 */
#include "pool/staging.h"

#include "base/crc32c.h"
#include "base/log.h"
#include "loop/loop.h"
#include "pool/fill.h"
#include "pool/region.h"
#include "pool/wset.h"

#include <inttypes.h>
#include <stdio.h>

#define MERGE_GAP 4096u

struct place {
    uint64_t offset, bytes;
    struct staging_entry *entry;
};

struct staging {
    struct loop *loop;
    struct fill *fill;
    struct wset *ws;
    struct region *region;
    void (*ready)(struct wset *ws);
    struct list entries;  /* least recently used first */
    struct place *places; /* by offset */
    unsigned nplaces, places_cap;
    uint64_t held_bytes;
};

struct staging_load {
    struct fill_load load;
    struct staging_entry *entry;
    int status;
    char message[200];
};

int staging_new(struct loop *loop, struct fill *fill, struct wset *ws, struct region *region,
                void (*ready)(struct wset *ws), struct staging **ret_staging)
{
    struct staging *st = calloc(1, sizeof(*st));
    if (!st)
        return -ENOMEM;
    *st = (struct staging){.loop = loop, .fill = fill, .ws = ws, .region = region, .ready = ready};
    list_init(&st->entries);
    *ret_staging = st;
    return 0;
}

const struct region *staging_region(const struct staging *st)
{
    return st->region;
}

uint64_t staging_window_bytes(const struct staging *st)
{
    return st->region->bytes;
}

uint64_t staging_held_bytes(const struct staging *st)
{
    return st->held_bytes;
}

static void entry_free(struct staging_entry *entry)
{
    struct staging *st = entry->staging;
    unsigned kept = 0;
    for (unsigned k = 0; k < st->nplaces; k++) {
        if (st->places[k].entry != entry)
            st->places[kept++] = st->places[k];
    }
    st->nplaces = kept;
    list_remove(&entry->node);
    free(entry->runs);
    free(entry);
}

void staging_free(struct staging *st)
{
    if (!st)
        return;
    list_for_each_safe (node, &st->entries) {
        struct staging_entry *entry = container_of(node, struct staging_entry, node);
        assert(entry->loading == 0);
        entry_free(entry);
    }
    region_unref(st->region);
    free(st->places);
    free(st);
}

static int place_find(struct staging *st, uint64_t address, uint64_t bytes, struct staging_entry *entry,
                      uint64_t *ret_offset)
{
    uint64_t phase = address % INDEX_FILE_ALIGN, at = phase;
    unsigned k = 0;
    for (; k < st->nplaces; k++) {
        if (st->places[k].offset >= at + bytes)
            break;
        at = align_up(st->places[k].offset + st->places[k].bytes, INDEX_FILE_ALIGN) + phase;
    }
    if (at + bytes > st->region->bytes)
        return -EAGAIN;
    if (st->nplaces == st->places_cap) {
        unsigned cap = st->places_cap ? st->places_cap * 2 : 64;
        struct place *more = realloc(st->places, cap * sizeof(*more));
        if (!more)
            return -ENOMEM;
        st->places = more;
        st->places_cap = cap;
    }
    memmove(&st->places[k + 1], &st->places[k], (st->nplaces - k) * sizeof(*st->places));
    st->places[k] = (struct place){at, bytes, entry};
    st->nplaces++;
    *ret_offset = at;
    return 0;
}

static bool evict_one(struct staging *st, const struct staging_entry *keep)
{
    list_for_each (node, &st->entries) {
        struct staging_entry *entry = container_of(node, struct staging_entry, node);
        if (entry != keep && entry->refs == 0 && entry->loading == 0) {
            entry_free(entry);
            return true;
        }
    }
    return false;
}

static int run_order(const void *a, const void *b)
{
    const struct proto_run *x = a, *y = b;
    return x->address < y->address ? -1 : x->address > y->address;
}

/* Whole blocks where the run lies inside a large extent: direct I/O then lands in place. */
static void run_widen(const struct wset *ws, struct proto_run *run)
{
    const struct index *index = &ws->index;
    uint64_t first = index_extent_at(index, run->address), end = run->address + run->bytes;
    uint64_t last = index_extent_at(index, end - 1);
    if (first >= index->header->nextents || last >= index->header->nextents)
        return;
    const struct index_extent *a = &index->extents[first], *z = &index->extents[last];
    if (a->bytes >= 32 * INDEX_FILE_ALIGN)
        run->address = MAX(align_down(run->address, INDEX_FILE_ALIGN), MIN(a->address, run->address));
    uint64_t up = align_up(end, INDEX_FILE_ALIGN);
    if (z->bytes >= 32 * INDEX_FILE_ALIGN &&
        (up <= z->address + z->bytes || last + 1 == index->header->nextents ||
         index->extents[last + 1].address >= up))
        end = up;
    run->bytes = end - run->address;
}

static int entry_runs(struct wset *ws, struct staging_entry *entry)
{
    unsigned nfields = ws->index.header->nfields;
    struct proto_run *runs = calloc(entry->count * nfields + 1, sizeof(*runs));
    if (!runs)
        return -ENOMEM;
    uint32_t n = 0;
    struct index_part part;
    for (uint64_t i = entry->first; i < entry->first + entry->count; i++) {
        for (unsigned f = 0; f < nfields; f++) {
            if (index_part(&ws->index, i, f, &part) && part.bytes > 0)
                runs[n++] =
                    (struct proto_run){.address = part.address, .bytes = part.bytes, .gid = PROTO_STAGING};
        }
    }
    qsort(runs, n, sizeof(*runs), run_order);
    uint32_t kept = 0;
    for (uint32_t k = 0; k < n; k++) {
        run_widen(ws, &runs[k]);
        struct proto_run *last = kept ? &runs[kept - 1] : NULL;
        if (last && runs[k].address <= last->address + last->bytes + MERGE_GAP) {
            uint64_t end = MAX(runs[k].address + runs[k].bytes, last->address + last->bytes);
            last->bytes = end - last->address;
        } else {
            runs[kept++] = runs[k];
        }
    }
    entry->runs = runs;
    entry->nruns = kept;
    return 0;
}

/* Fill thread: every part that lies whole in the run is checksummed; parts of samples outside the entry too (they were read). */
static void check_part(void *user, uint64_t i, unsigned f, const struct index_part *part, uint64_t offset,
                       uint64_t bytes)
{
    struct staging_load *sl = user;
    struct fill_load *load = &sl->load;
    if (i < sl->entry->first || i >= sl->entry->first + sl->entry->count || bytes != part->bytes ||
        sl->status < 0)
        return;
    uint32_t crc = crc32c(0, load->dst + (part->address - load->address), bytes);
    if (wset_streamed(load->ws, i, f, crc) < 0) {
        sl->status = LEAT_CORRUPT;
        snprintf(sl->message, sizeof(sl->message),
                 "sample %" PRIu64 " reads differently than the first time: its source changed or is damaged",
                 i);
    }
}

static void load_ended(void *arg)
{
    struct staging_load *sl = arg;
    struct staging_entry *entry = sl->entry;
    struct wset *ws = sl->load.ws;
    if (sl->status < 0 && entry->code == 0) {
        entry->code = sl->status;
        snprintf(entry->message, sizeof(entry->message), "%s", sl->message);
    }
    if (--entry->loading == 0) {
        entry->state = entry->code ? STAGING_FAILED : STAGING_READY;
        entry->staging->ready(ws);
        if (entry->refs == 0 && entry->state == STAGING_FAILED)
            entry_free(entry);
    }
    free(sl);
    wset_unref(ws);
}

static void load_done(struct fill_load *load, int status, const char *message)
{
    struct staging_load *sl = container_of(load, struct staging_load, load);
    sl->status = status;
    snprintf(sl->message, sizeof(sl->message), "%s", message);
    if (status == 0)
        wset_parts_in(load->ws, load->address, load->address + load->bytes, check_part, sl);
    if (loop_post(sl->entry->staging->loop, load_ended, sl) < 0)
        log_error("out of memory: a streamed range is lost to its readers");
}

static int run_load(struct staging *st, struct staging_entry *entry, const struct proto_run *run)
{
    struct staging_load *sl = calloc(1, sizeof(*sl));
    if (!sl)
        return -ENOMEM;
    sl->entry = entry;
    sl->load = (struct fill_load){.ws = wset_ref(st->ws),
                                  .address = run->address,
                                  .bytes = run->bytes,
                                  .dst = st->region->addr + run->offset,
                                  .done = load_done};
    entry->loading++;
    fill_load(st->fill, &sl->load);
    return 0;
}

int staging_get(struct staging *st, uint64_t first, uint64_t count, struct staging_entry **ret_entry)
{
    list_for_each (node, &st->entries) {
        struct staging_entry *entry = container_of(node, struct staging_entry, node);
        if (entry->first == first && entry->count == count && entry->state != STAGING_FAILED) {
            if (entry->refs++ == 0)
                st->held_bytes += entry->bytes;
            list_remove(node);
            list_push_back(&st->entries, node);
            *ret_entry = entry;
            return 0;
        }
    }
    struct staging_entry *entry = calloc(1, sizeof(*entry));
    if (!entry)
        return -ENOMEM;
    *entry = (struct staging_entry){.staging = st, .first = first, .count = count, .refs = 1};
    list_init(&entry->node);
    int code = entry_runs(st->ws, entry);
    uint64_t total = 0;
    for (uint32_t k = 0; code == 0 && k < entry->nruns; k++) {
        total += entry->runs[k].bytes + INDEX_FILE_ALIGN;
        if (total > st->region->bytes)
            code = LEAT_NO_SPACE;
        while (code == 0 && (code = place_find(st, entry->runs[k].address, entry->runs[k].bytes, entry,
                                               &entry->runs[k].offset)) == -EAGAIN) {
            if (!evict_one(st, entry))
                break;
            code = 0;
        }
    }
    entry->bytes = total;
    list_push_back(&st->entries, &entry->node);
    if (code < 0) {
        entry_free(entry);
        return code;
    }
    st->held_bytes += total;
    /* Held up until every load is queued: the first may end before the last is begun. */
    entry->loading = 1;
    for (uint32_t k = 0; k < entry->nruns && code == 0; k++)
        code = run_load(st, entry, &entry->runs[k]);
    if (code < 0) {
        entry->code = code;
        snprintf(entry->message, sizeof(entry->message), "out of memory while loading");
    }
    if (--entry->loading == 0)
        entry->state = entry->code ? STAGING_FAILED : STAGING_READY;
    *ret_entry = entry;
    return 0;
}

void staging_put(struct staging_entry *entry)
{
    assert(entry->refs > 0);
    if (--entry->refs > 0)
        return;
    entry->staging->held_bytes -= entry->bytes;
    if (entry->state == STAGING_FAILED)
        entry_free(entry);
}
