/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Samples that a client waits for go first: those that fill_urgent() was called with, in its order. Those of other
 * nodes (fill_urgent_there) are a queue of their own, and both take turns, so neither waits for all of the other.
 * Each node has a share of it, which another honest one does not take.
 *
 * A batch of a shuffled epoch is files from all over a folder. So a sample that is a file of its own is read
 * alone, some at a time, and its segment is TODO again afterwards: the thread that takes all of it leaves out
 * what is there. Other samples come with their whole segments.
 *
 * Invariant: a segment has one thread inside at a time. A file whose segment is busy with other files stays
 * in the queue.
 */
#include "pool/fill/fill_internal.h"
#include "pool/set/wset.h"

/* Samples that are waited for at a time: in SET_BYTES of wset.c. */
#define URGENT_MAX 1024u

enum verdict {
    NOTHING, /* all there, or being read */
    BUSY,    /* its segment is read in part: later */
    ALONE,
    WHOLE,
    OTHERS, /* not together with what was picked */
};

int fill_urgent_plan(struct wset *ws)
{
    ws->urgent.samples = malloc(URGENT_MAX * sizeof(*ws->urgent.samples));
    return ws->urgent.samples ? 0 : -ENOMEM;
}

/* Only a set that another node waits for has it. It is in SET_BYTES of wset.c, so that a full pool does not lack it. */
int fill_urgent_there_plan(struct wset_urgent *ret)
{
    struct wset_urgent q = {.samples = malloc(PROTO_URGENT_MAX * sizeof(*q.samples)),
                            .from = malloc(PROTO_URGENT_MAX * sizeof(*q.from))};
    if (!q.samples || !q.from) {
        free(q.samples);
        free(q.from);
        return -ENOMEM;
    }
    *ret = q;
    return 0;
}

/* The first segment that ends above `address`, or nsegments. */
static uint32_t segment_at(const struct wset *ws, uint64_t address)
{
    uint32_t low = 0, high = ws->nsegments;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (ws->segments[mid].address + ws->segments[mid].bytes <= address)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* Is this part of a sample a file that is read alone, and in segment s? */
static bool is_alone(const struct wset *ws, const struct index_part *part, uint32_t s,
                     struct fill_file *ret_file)
{
    const struct index *index = &ws->index;
    const struct wset_segment *in = &ws->segments[s];
    if (index->header->kind != INDEX_KIND_DIR || ws->remote || part->address < in->address ||
        part->address + part->bytes > in->address + in->bytes)
        return false;
    uint64_t k = index_extent_at(index, part->address);
    if (k >= index->header->nextents)
        return false;
    ret_file->number = k;
    ret_file->extent = index->extents[k]; /* a copy, as the file of the index may change */
    const struct index_extent *e = &ret_file->extent;
    return e->kind == INDEX_EXTENT_RAW && e->address == part->address && e->bytes == part->bytes &&
           index_extent_sound(index, e);
}

static bool was_picked(const struct fill_pick *p, uint64_t i)
{
    unsigned k = 0;
    while (k < p->nfiles && p->files[k].sample != i)
        k++;
    return k < p->nfiles;
}

static bool is_inside(const struct fill_pick *p, uint32_t s)
{
    unsigned k = 0;
    while (k < p->nfiles && p->files[k].segment != s)
        k++;
    return k < p->nfiles;
}

/* The work for a part of a sample; *ret_file: where, of ALONE and WHOLE. */
static enum verdict look_at(const struct wset *ws, uint64_t i, unsigned f, const struct index_part *part,
                            const struct fill_pick *p, struct fill_file *ret_file)
{
    enum verdict verdict = NOTHING;
    uint32_t s = segment_at(ws, part->address);
    if (wset_part_known(ws, i, f) || was_picked(p, i))
        return NOTHING;
    for (; s < ws->nsegments && ws->segments[s].address < part->address + part->bytes; s++) {
        uint8_t state = ws->segments[s].state;
        bool ours = state == SEGMENT_PARTLY && is_inside(p, s);
        if (state == SEGMENT_PARTLY && !ours)
            verdict = BUSY;
        if (state != SEGMENT_TODO && !ours)
            continue;
        *ret_file = (struct fill_file){.sample = i, .part = *part, .field = f, .segment = s};
        uint64_t first = p->nfiles ? ws->segments[p->files[0].segment].address : part->address;
        bool together = first / ws->region_bytes == part->address / ws->region_bytes;
        if (is_alone(ws, part, s, ret_file))
            return together ? ALONE : OTHERS;
        return p->nfiles ? OTHERS : WHOLE;
    }
    return verdict;
}

static enum verdict look_at_sample(const struct wset *ws, uint64_t i, const struct fill_pick *p,
                                   struct fill_file *ret_file)
{
    enum verdict verdict = NOTHING;
    struct index_part part;
    for (unsigned f = 0; f < ws->index.header->nfields; f++) {
        if (!index_part(&ws->index, i, f, &part) || part.bytes == 0)
            continue;
        enum verdict v = look_at(ws, i, f, &part, p, ret_file);
        if (v > BUSY)
            return v;
        verdict = MAX(verdict, v);
    }
    return verdict;
}

void fill_urgent_add(struct wset *ws, uint64_t i)
{
    struct fill_file file;
    struct wset_urgent *q = &ws->urgent;
    if (q->samples && q->n < URGENT_MAX && look_at_sample(ws, i, &(struct fill_pick){0}, &file) != NOTHING)
        q->samples[q->n++] = i;
}

static bool is_queued(const struct wset_urgent *q, uint64_t i)
{
    for (uint32_t k = 0; k < q->n; k++) {
        if (q->samples[k] == i)
            return true;
    }
    return false;
}

void fill_urgent_there_add(struct wset *ws, const uint64_t *samples, uint32_t n, uint8_t from, uint32_t share)
{
    struct fill_file file;
    struct wset_urgent *q = &ws->urgent_there;
    uint32_t its = 0;
    for (uint32_t k = 0; k < q->n; k++)
        its += q->from[k] == from;
    /* What is asked for again because it is not there yet takes no second place. */
    for (uint32_t k = 0; q->samples && k < n && its < share && q->n < PROTO_URGENT_MAX; k++) {
        if (is_queued(q, samples[k]) ||
            look_at_sample(ws, samples[k], &(struct fill_pick){0}, &file) == NOTHING)
            continue;
        q->from[q->n] = from;
        q->samples[q->n++] = samples[k];
        its++;
    }
}

static void queue_keep(struct wset_urgent *q, uint32_t *kept, uint32_t at)
{
    q->samples[*kept] = q->samples[at];
    if (q->from)
        q->from[*kept] = q->from[at];
    ++*kept;
}

static bool queue_pick(struct wset *ws, struct wset_urgent *q, unsigned threads, struct fill_pick *p)
{
    /* A share of them, so that the last ones are spread over threads. */
    unsigned most = MIN(MAX(q->n / threads, 1u), FILL_FILES_MAX);
    uint32_t kept = 0, at = 0;
    bool whole = false;
    for (; at < q->n && p->nfiles < most && !whole; at++) {
        struct fill_file file;
        enum verdict v = look_at_sample(ws, q->samples[at], p, &file);
        if (v == ALONE) {
            ws->segments[file.segment].state = SEGMENT_PARTLY;
            p->files[p->nfiles++] = file;
            continue;
        }
        if (v == WHOLE) {
            ws->segments[file.segment].state = SEGMENT_TAKEN;
            p->segment = file.segment;
            whole = true;
        }
        if (v != NOTHING) /* also of WHOLE: it may have more segments */
            queue_keep(q, &kept, at);
    }
    while (kept < at && at < q->n)
        queue_keep(q, &kept, at++);
    q->n = kept < at ? kept : q->n;
    return whole || p->nfiles > 0;
}

bool fill_urgent_pick(struct wset *ws, unsigned threads, struct fill_pick *p)
{
    for (unsigned k = 0; k < 2; k++) {
        bool there = ws->urgent_turn != (k > 0);
        if (!queue_pick(ws, there ? &ws->urgent_there : &ws->urgent, threads, p))
            continue;
        ws->urgent_turn = !there;
        return true;
    }
    return false;
}
