/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A range of a large file through the disk engine, many reads in flight. By direct I/O they take whole blocks of the file:
 *
 *   file      │ block 0 │ block 1 │ block 2 │ block 3 │
 *   wanted          └───────────────────────┘
 *   read        bounce    in place  in place  bounce
 *
 * A block goes straight to its place where the memory there is aligned as the disk asks, and nothing else of
 * the set lies in the block. Otherwise it goes to a bounce buffer of the thread, a slot a read, and the
 * wanted bytes are copied out. So the first and the last block of a range may be bounced. All blocks are,
 * where rows are placed at borders of pages and the disk wants more than the file's header leaves
 * (docs/decisions/0111). The few blocks of a streamed sample are bounced by one read where one of them has to
 * be. Through the page cache a block is a byte, and all is in place.
 * Failure mode: a file that opens for direct I/O and then refuses the reads (EINVAL, EOPNOTSUPP: FUSE, overlays, network file systems) is read through the
 * page cache from there on, for as long as the thread has it open.
 *
 * Invariants: a read is busy from its submission until done(); a slot of the bounce buffer is that of the read with its number.
 */
#include "pool/fill/fill_internal.h"

#include "base/log.h"
#include "pool/set/wset.h"

#define READ_BYTES (1 * MIB)
#define READS_MAX  16u
#define SLOTS      4u
#define SHORT      (32 * KIB) /* up to here one read and a copy cost less than up to three reads */

_Static_assert(FILL_BOUNCE_BYTES / SLOTS % FILL_DIRECT_ALIGN_MAX == 0,
               "slots hold whole blocks, and begin where direct reads may");

struct large;

struct large_read {
    struct disk_read disk;
    struct large *large;
    bool busy, bounced;
};

/* Offsets are the file's. */
struct large {
    struct fill_thread *thread;
    const struct index *index;
    uint64_t source;
    int fd;
    uint64_t align;
    uint64_t begin, end;           /* what is wanted */
    uint64_t address;              /* of begin */
    uint8_t *dst;                  /* of begin */
    bool suits;                    /* blocks have their places where the disk can read to */
    uint64_t room_begin, room_end; /* nothing else lies in its place up to there */
    uint64_t next;                 /* from here on nothing was begun */
    uint8_t *slots;                /* NULL: none was needed yet */
    uint64_t slot_bytes;
    bool failed;
    bool direct, refused; /* refused: nothing more is begun, and all of it is read otherwise */
    unsigned nbusy;
    struct large_read reads[READS_MAX];
};

/* Wanted bytes of [from, to) have not come. */
static void missing(struct large *l, uint64_t from, uint64_t to, int rc)
{
    char why[180];
    uint64_t begin = MAX(from, l->begin), end = MIN(to, l->end);
    fill_read_error(l->thread, l->index, l->source, rc, why, sizeof(why));
    fill_bad_add(l->thread, l->address + (begin - l->begin), l->address + (end - l->begin), rc, "%s", why);
    l->failed = true;
}

/* The wanted bytes of a slot to their place. */
static int bounce_out(const struct large *l, const struct disk_read *d)
{
    uint64_t begin = MAX(d->offset, l->begin), end = MIN(d->offset + d->bytes, l->end);
    l->thread->bad_offset = UINT64_MAX; /* what fails now is not the read */
    return fill_bounce_out(l->thread, (const uint8_t *)d->dst + (begin - d->offset),
                           l->address + (begin - l->begin), end - begin);
}

static void submit_more(struct large *l);

static void read_done(struct disk_read *d, int64_t result)
{
    struct large_read *read = container_of(d, struct large_read, disk);
    struct large *l = read->large;
    int64_t need = (int64_t)(MIN(d->offset + d->bytes, l->end) - d->offset);
    l->thread->bad_offset = d->offset;
    if (l->direct && (result == -EINVAL || result == -EOPNOTSUPP)) {
        l->refused = true;
        l->next = l->end;
        read->busy = false;
        l->nbusy--;
        return;
    }
    int rc = result < 0 ? (int)result : result < need ? LEAT_STALE : read->bounced ? bounce_out(l, d) : 0;
    if (rc < 0)
        missing(l, d->offset, d->offset + d->bytes, rc);
    read->busy = false;
    l->nbusy--;
    submit_more(l);
}

/* The next blocks that one read takes, [l->next, returned), and whether in their place. */
static uint64_t next_piece(const struct large *l, bool *ret_in_place)
{
    uint64_t from = l->next, last = align_up(l->end, l->align), to;
    *ret_in_place = l->suits && from >= l->room_begin && from + l->align <= l->room_end;
    if (!*ret_in_place)
        return MIN(from + (l->suits ? l->align : l->slot_bytes),
                   last); /* only blocks at the ends lack the room */
    to = MIN(from + READ_BYTES, last);
    return to <= l->room_end ? to : from + align_down(l->room_end - from, l->align);
}

static struct large_read *read_free(struct large *l, bool in_place)
{
    for (unsigned k = 0; k < (in_place ? READS_MAX : SLOTS); k++) {
        struct large_read *read = &l->reads[in_place ? READS_MAX - 1 - k : k];
        if (!read->busy)
            return read;
    }
    return NULL;
}

/* As many reads as there may be. */
static void submit_more(struct large *l)
{
    struct fill_thread *t = l->thread;
    struct disk_read *batch[READS_MAX];
    uint64_t began = l->next;
    unsigned n = 0;
    int rc = 0;
    while (l->next < l->end && rc == 0) {
        bool in_place;
        uint64_t to = next_piece(l, &in_place);
        struct large_read *read = read_free(l, in_place);
        if (!in_place && !l->slots && !(l->slots = fill_bounce(t)))
            rc = -ENOMEM;
        if (!read || rc < 0)
            break;
        *read = (struct large_read){
            .disk = {.fd = l->fd,
                     .offset = l->next,
                     .dst = in_place ? l->dst + (ptrdiff_t)(l->next - l->begin)
                                     : l->slots + (size_t)(read - l->reads) * l->slot_bytes,
                     .bytes = to - l->next,
                     .buffer = -1,
                     .done = read_done},
            .large = l,
            .busy = true,
            .bounced = !in_place,
        };
        batch[n++] = &read->disk;
        l->next = to;
    }
    if (n > 0 && rc == 0)
        rc = t->engine->ops->submit(t->engine, batch, n);
    if (rc == 0) {
        l->nbusy += n;
        return;
    }
    for (unsigned k = 0; k < n; k++)
        container_of(batch[k], struct large_read, disk)->busy = false;
    t->bad_offset = began;
    missing(l, began, l->end, rc);
    l->next = l->end;
}

/* Is the range so short that one read brings it, and not all of it in place? */
static bool is_short(const struct large *l)
{
    uint64_t first = align_down(l->begin, l->align), last = align_up(l->end, l->align);
    return last - first <= SHORT && (first < l->room_begin || last > l->room_end);
}

/* In the file's terms, how far reads may reach over [r->begin, r->end): to the ends of the range, and to the neighbours of the extent. */
static void room_find(struct large *l, uint64_t extent, const struct fill_range *whole,
                      const struct fill_range *r)
{
    const struct index_extent *e = &l->index->extents[extent];
    uint64_t low = whole->begin, high = whole->end;
    if (extent > 0) /* our own index is not trusted here: it may be damaged, and claim anything */
        low = MIN(MAX(low, e[-1].address + e[-1].bytes), r->begin);
    if (extent + 1 < l->index->header->nextents)
        high = MAX(MIN(high, e[1].address), r->end);
    l->room_begin = l->begin - MIN(r->begin - low, l->begin);
    l->room_end = l->end + (high - r->end);
}

/* Where all of a long range is bounced: as much in flight as the pool has room for. Loads are short, and come
 * one by one. */
static void slots_choose(struct large *l)
{
    uint64_t bytes;
    l->slot_bytes = FILL_BOUNCE_BYTES / SLOTS;
    if (l->suits || l->thread->loading || l->end - l->begin <= FILL_BOUNCE_BYTES)
        return;
    l->slots = fill_wide(l->thread, &bytes);
    if (l->slots)
        l->slot_bytes = bytes / SLOTS;
}

bool fill_large(struct fill_thread *t, const struct index *index, uint64_t extent, struct fill_source *source,
                bool direct, const struct fill_range *whole, const struct fill_range *r)
{
    const struct index_extent *e = &index->extents[extent];
    uint64_t offset = e->source_offset + (r->begin - e->address);
    uint64_t align = direct ? source->traits.direct_align : 1;
    struct large l = {
        .thread = t,
        .index = index,
        .source = e->source,
        .fd = direct ? source->fd_direct : source->fd,
        .align = align,
        .begin = offset,
        .end = offset + (r->end - r->begin),
        .address = r->begin,
        .dst = r->dst,
        .direct = direct,
        .suits = !direct || ((uintptr_t)r->dst - offset) % source->traits.direct_memory_align == 0,
        .next = align_down(offset, align),
    };
    const unsigned nbad = t->nbad;
    const struct fill_range last =
        nbad ? (struct fill_range){t->bad[nbad - 1].begin, t->bad[nbad - 1].end, NULL}
             : (struct fill_range){0};
    room_find(&l, extent, whole, r);
    l.suits = l.suits && !is_short(&l);
    slots_choose(&l);
    submit_more(&l);
    while (l.nbusy > 0) {
        int reaped = t->engine->ops->reap(t->engine, 1);
        if (reaped < 0) {
            log_error("disk engine %s failed: %s", t->engine->ops->name, strerror(-reaped));
            abort(); /* reads are out, and their buffers cannot be given back */
        }
    }
    if (!l.refused)
        return !l.failed;
    /* All of it is read again: what failed here, which may have made the last bad range longer, is bad no more. */
    t->nbad = nbad;
    if (nbad) {
        t->bad[nbad - 1].begin = last.begin;
        t->bad[nbad - 1].end = last.end;
    }
    close(source->fd_direct);
    source->fd_direct = -1;
    source->traits.direct_align = 0;
    return fill_large(t, index, extent, source, false, whole, r);
}
