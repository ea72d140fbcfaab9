/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A range of samples becomes runs of addresses (neighbouring parts merged, widened to whole blocks where the
 * layout allows, so that direct I/O fits). Each run gets a place in the window congruent to its address
 * modulo 4096, and a fill_load brings it. When its bytes are there the fill thread checksums the samples; the
 * first checksum is what later reads are compared with.
 *
 * The window is a ring. The search for a place begins behind the last one and frees unused entries there,
 * oldest first; entries with holders, or still loading, are skipped. So finding a place costs as much as the
 * room that it frees, however many small samples are in the window. Neighbours in time are neighbours in the
 * window.
 */
#include "pool/fill/stream_window.h"

#include "base/array.h"
#include "base/crc32c.h"
#include "dataset/dataset.h"
#include "loop/loop.h"
#include "pool/fill/fill.h"
#include "pool/region/region.h"
#include "pool/set/wset.h"

#include <inttypes.h>
#include <stdio.h>

#define MERGE_GAP     4096u
#define BUCKETS_LEAST 64u
#define BUCKETS_MOST  (1u << 18)
#define SAMPLES_MOST  (1u << 20) /* in one entry: the loop walks over them */

struct place {
    struct list node; /* staging.places, by offset */
    uint64_t offset, bytes;
    struct stream_window_entry *entry;
};

struct stream_window {
    struct loop *loop;
    struct fill *fill;
    struct wset *ws;
    struct region *region;
    void (*ready)(struct wset *ws);
    struct list entries;
    struct list places;
    struct list *cursor; /* the place, or the list's head, before which the next one is tried first */
    uint64_t held_bytes;
    struct stream_window_entry **buckets; /* entries by (first, count) */
    uint64_t mask;
};

struct stream_window_load {
    struct fill_load load;
    struct stream_window_entry *entry;
    int status;
    char *message;   /* of status */
    uint64_t extent; /* index_covered */
};

uint64_t stream_window_table_bytes(uint64_t window_bytes)
{
    /* An entry, its run, its place, and the load that is under way: rounded up to what malloc takes. */
    const uint64_t each = sizeof(struct stream_window_entry) + sizeof(struct proto_run) +
                          sizeof(struct place) + sizeof(struct stream_window_load) + 4 * 16;
    static_assert(sizeof(struct stream_window_entry) + sizeof(struct proto_run) + sizeof(struct place) +
                          sizeof(struct stream_window_load) + 4 * 16 <=
                      INDEX_FILE_ALIGN / 8,
                  "a ninth of the pool's room for a window is enough for its tables");
    return window_bytes / INDEX_FILE_ALIGN * each + BUCKETS_LEAST * sizeof(void *) +
           window_bytes / (2 * INDEX_FILE_ALIGN) * sizeof(void *);
}

int stream_window_new(struct loop *loop, struct fill *fill, struct wset *ws, struct region *region,
                      void (*ready)(struct wset *ws), struct stream_window **ret_window)
{
    uint64_t buckets = BUCKETS_LEAST;
    while (buckets < BUCKETS_MOST && buckets * 4 * INDEX_FILE_ALIGN < region->bytes)
        buckets *= 2;
    struct stream_window *st = calloc(1, sizeof(*st));
    if (!st)
        return -ENOMEM;
    *st = (struct stream_window){.loop = loop, .fill = fill, .ws = ws, .region = region, .ready = ready};
    list_init(&st->entries);
    list_init(&st->places);
    st->cursor = &st->places;
    st->mask = buckets - 1;
    st->buckets = calloc(buckets, sizeof(*st->buckets));
    if (!st->buckets) {
        free(st);
        return -ENOMEM;
    }
    ws->window_free = stream_window_free;
    *ret_window = st;
    return 0;
}

const struct region *stream_window_region(const struct stream_window *st)
{
    return st->region;
}

uint64_t stream_window_bytes(const struct stream_window *st)
{
    return st->region->bytes;
}

uint64_t stream_window_held_bytes(const struct stream_window *st)
{
    return st->held_bytes;
}

static struct stream_window_entry **bucket_of(struct stream_window *st, uint64_t first, uint64_t count)
{
    uint64_t h = (first * 0x9E3779B97F4A7C15ull) ^ (count * 0xC2B2AE3D27D4EB4Full);
    return &st->buckets[(h ^ h >> 32) & st->mask];
}

static void entry_free(struct stream_window_entry *entry)
{
    struct stream_window *st = entry->window;
    for (uint32_t k = 0; k < entry->nplaces; k++) {
        struct list *node = &entry->places[k].node;
        if (st->cursor == node)
            st->cursor = node->next;
        list_remove(node);
    }
    struct stream_window_entry **at = bucket_of(st, entry->first, entry->count);
    while (*at && *at != entry)
        at = &(*at)->next_in_bucket;
    if (*at)
        *at = entry->next_in_bucket;
    list_remove(&entry->node);
    free(entry->places);
    free(entry->runs);
    free(entry->message);
    free(entry);
}

void stream_window_free(struct stream_window *st)
{
    if (!st)
        return;
    list_for_each_safe (node, &st->entries) {
        struct stream_window_entry *entry = container_of(node, struct stream_window_entry, node);
        assert(entry->loading == 0);
        entry_free(entry);
    }
    region_unref(st->region);
    free(st->buckets);
    free(st);
}

/* -EAGAIN: all the room is held or being filled. */
static int place_find(struct stream_window *st, uint64_t address, uint64_t bytes,
                      struct stream_window_entry *entry, uint64_t *ret_offset)
{
    uint64_t phase = address % INDEX_FILE_ALIGN;
    bool wrapped = false;
    for (struct list *next = st->cursor;;) {
        struct list *prev = next->prev;
        struct place *before = prev == &st->places ? NULL : container_of(prev, struct place, node);
        struct place *after = next == &st->places ? NULL : container_of(next, struct place, node);
        uint64_t at = (before ? align_up(before->offset + before->bytes, INDEX_FILE_ALIGN) : 0) + phase;
        if (at + bytes <= (after ? after->offset : st->region->bytes)) {
            struct place *place = &entry->places[entry->nplaces++];
            *place = (struct place){.offset = at, .bytes = bytes, .entry = entry};
            list_add_before(next, &place->node);
            st->cursor = next;
            *ret_offset = at;
            return 0;
        }
        if (!after) {
            if (wrapped)
                return -EAGAIN;
            wrapped = true;
            next = st->places.next;
        } else if (after->entry->refs == 0 && after->entry->loading == 0) {
            st->cursor = next; /* moves on with the places that go */
            entry_free(after->entry);
            next = st->cursor;
        } else {
            next = next->next;
        }
    }
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

/* LEAT_NO_SPACE: more than the window holds. */
static int entry_parts(const struct stream_window *st, const struct stream_window_entry *entry,
                       struct proto_run **ret_runs, uint32_t *ret_n)
{
    const struct index *index = &st->ws->index;
    AUTO_FREE struct proto_run *runs = NULL;
    uint32_t n = 0, cap = 0;
    uint64_t total = 0;
    struct index_part part;
    if (entry->count > SAMPLES_MOST)
        return LEAT_NO_SPACE;
    for (uint64_t i = entry->first; i < entry->first + entry->count; i++) {
        for (unsigned f = 0; f < index->header->nfields; f++) {
            if (!index_part(index, i, f, &part) || part.bytes == 0)
                continue;
            total += part.bytes;
            if (total > st->region->bytes)
                return LEAT_NO_SPACE;
            if (array_reserve(&runs, &cap, n + 1) < 0)
                return -ENOMEM;
            runs[n++] =
                (struct proto_run){.address = part.address, .bytes = part.bytes, .gid = PROTO_STREAM_WINDOW};
        }
    }
    *ret_runs = TAKE_PTR(runs);
    *ret_n = n;
    return 0;
}

static int entry_runs(struct stream_window *st, struct stream_window_entry *entry)
{
    struct wset *ws = st->ws;
    struct proto_run *runs = NULL;
    uint32_t n = 0;
    int rc = entry_parts(st, entry, &runs, &n);
    if (rc < 0)
        return rc;
    if (n > 0)
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
    /* The sorting took more than is kept. */
    struct proto_run *less = kept ? realloc(runs, kept * sizeof(*runs)) : NULL;
    entry->runs = less ? less : runs;
    entry->nruns = kept;
    entry->places = calloc(kept ? kept : 1, sizeof(*entry->places));
    return entry->places ? 0 : -ENOMEM;
}

/* Fill thread: every part that lies whole in the run is checksummed; parts of samples outside the entry too (they were read). */
static void check_part(void *user, uint64_t i, unsigned f, const struct index_part *part, uint64_t offset,
                       uint64_t bytes)
{
    struct stream_window_load *sl = user;
    struct fill_load *load = &sl->load;
    if (i < sl->entry->first || i >= sl->entry->first + sl->entry->count || bytes != part->bytes ||
        sl->status < 0)
        return;
    if (!index_covered(&load->ws->index, part->address, bytes, &sl->extent)) {
        sl->status = LEAT_CORRUPT;
        sl->message = strdup(INDEX_DAMAGED);
        dataset_index_forget(load->ws->spec);
        return;
    }
    uint32_t crc = crc32c(0, load->dst + (part->address - load->address), bytes);
    if (wset_streamed(load->ws, i, f, crc) < 0) {
        char why[120];
        sl->status = LEAT_CORRUPT;
        snprintf(why, sizeof(why),
                 "sample %" PRIu64 " reads differently than the first time: its source changed or is damaged",
                 i);
        sl->message = strdup(why);
    }
}

static void entry_hold(struct stream_window_entry *entry)
{
    if (entry->refs++ == 0)
        entry->window->held_bytes += entry->bytes;
}

static void load_ended(void *arg)
{
    struct stream_window_load *sl = arg;
    struct stream_window_entry *entry = sl->entry;
    struct wset *ws = sl->load.ws;
    if (sl->status < 0 && entry->code == 0) {
        entry->code = sl->status;
        entry->message = TAKE_PTR(sl->message);
    }
    if (--entry->loading == 0) {
        entry->state = entry->code ? STREAM_WINDOW_FAILED : STREAM_WINDOW_READY;
        /* Its readers may release it in ready(): it stays until that is over. */
        entry_hold(entry);
        entry->window->ready(ws);
        stream_window_put(entry);
    }
    free(sl->message);
    free(sl);
    wset_unref(ws);
}

static void load_done(struct fill_load *load, int status, const char *message)
{
    struct stream_window_load *sl = container_of(load, struct stream_window_load, load);
    sl->status = status;
    sl->message = status < 0 ? strdup(message) : NULL;
    if (status == 0)
        wset_parts_in(load->ws, load->address, load->address + load->bytes, check_part, sl);
    struct loop *loop = sl->entry->window->loop;
    while (loop_post(loop, load_ended, sl) < 0)
        usleep(10000); /* out of memory: its readers are still there, and so are we */
}

static int run_load(struct stream_window *st, struct stream_window_entry *entry, const struct proto_run *run)
{
    struct stream_window_load *sl = calloc(1, sizeof(*sl));
    if (!sl)
        return -ENOMEM;
    sl->entry = entry;
    sl->load = (struct fill_load){.ws = wset_ref(st->ws),
                                  .address = run->address,
                                  .bytes = run->bytes,
                                  .dst = st->region->addr + run->offset,
                                  .region = st->region,
                                  .done = load_done};
    entry->loading++;
    fill_load(st->fill, &sl->load);
    return 0;
}

int stream_window_get(struct stream_window *st, uint64_t first, uint64_t count,
                      struct stream_window_entry **ret_entry)
{
    struct stream_window_entry **bucket = bucket_of(st, first, count);
    for (struct stream_window_entry *entry = *bucket; entry; entry = entry->next_in_bucket) {
        if (entry->first == first && entry->count == count && entry->state != STREAM_WINDOW_FAILED) {
            entry_hold(entry);
            *ret_entry = entry;
            return 0;
        }
    }
    struct stream_window_entry *entry = calloc(1, sizeof(*entry));
    if (!entry)
        return -ENOMEM;
    *entry = (struct stream_window_entry){.window = st, .first = first, .count = count, .refs = 1};
    list_init(&entry->node);
    int rc = entry_runs(st, entry);
    uint64_t bytes = 0;
    for (uint32_t k = 0; rc == 0 && k < entry->nruns; k++)
        bytes += entry->runs[k].bytes;
    entry->bytes = bytes + entry->nruns * INDEX_FILE_ALIGN;
    if (rc == 0 && entry->bytes > st->region->bytes)
        rc = LEAT_NO_SPACE;
    for (uint32_t k = 0; rc == 0 && k < entry->nruns; k++)
        rc = place_find(st, entry->runs[k].address, entry->runs[k].bytes, entry, &entry->runs[k].offset);
    if (rc < 0) {
        entry_free(entry);
        return rc;
    }
    list_push_back(&st->entries, &entry->node);
    entry->next_in_bucket = *bucket_of(st, first, count);
    *bucket_of(st, first, count) = entry;
    st->held_bytes += entry->bytes;
    /* Incremented until every load is queued: the first may end before the last is begun. */
    entry->loading = 1;
    for (uint32_t k = 0; k < entry->nruns && rc == 0; k++)
        rc = run_load(st, entry, &entry->runs[k]);
    if (rc < 0) {
        entry->code = rc;
    }
    if (--entry->loading == 0)
        entry->state = entry->code ? STREAM_WINDOW_FAILED : STREAM_WINDOW_READY;
    *ret_entry = entry;
    return 0;
}

void stream_window_put(struct stream_window_entry *entry)
{
    assert(entry->refs > 0);
    if (--entry->refs > 0)
        return;
    entry->window->held_bytes -= entry->bytes;
    /* One without bytes takes no room, so nothing would ever push it out. */
    if (entry->state == STREAM_WINDOW_FAILED || (entry->nruns == 0 && entry->loading == 0))
        entry_free(entry);
}
