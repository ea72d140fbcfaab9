/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One range of addresses into memory. The range is walked extent by extent; raw extents become reads:
 *
 *   small file      open, read, statx, close in this thread, as the opening is what costs; one that the page cache lacks is
 *                   left open and read ahead by the kernel while the next ones are opened
 *   cold and large  direct I/O through the engine, many in flight (fill_large.c)
 *   warm            the page cache has it: pread copies; no second copy of the file in memory
 *   chunk           stored bytes through filters to rows (dataset/)
 *   remote          many at a time (fill_remote.c)
 *
 * A source that is not what was indexed (size or mtime) spoils its samples: LEAT_STALE.
 * Failures: each bad range is noted with its reason and the rest continues.
 */
#include "base/fdio.h"
#include "pool/fill/fill_internal.h"

#include "base/ledger.h"
#include "disk/direct.h"
#include "pool/region/region.h"
#include "pool/source/source.h"
#include "pool/set/wset.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/uio.h>

#define SMALL_BYTES    (256 * KIB)
#define BOUNCED_LEAST  (1 * MIB)   /* of an extent; of many small ones the kernel reads the next ahead */
#define PIECE_BYTES    (256 * KIB) /* of a cached file, before it is checksummed: the same */
#define WARM_PERMILLE  500         /* from here on by the page cache */
#define THERE_PERMILLE 990         /* what is missing does not need many reads in flight */

void fill_bad_add(struct fill_thread *t, uint64_t begin, uint64_t end, int rc, const char *fmt, ...)
{
    if (t->nbad == RANGES_BAD_MAX) {
        struct fill_bad *last = &t->bad[RANGES_BAD_MAX - 1];
        last->begin = MIN(last->begin, begin);
        last->end = MAX(last->end, end);
        return;
    }
    struct fill_bad *bad = &t->bad[t->nbad];
    bad->begin = begin;
    bad->end = end;
    bad->code = rc;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(bad->message, sizeof(bad->message), fmt, ap);
    va_end(ap);
    /* Pieces of one file, one behind the other, that fail alike are one. */
    if (t->nbad > 0 && bad[-1].end == begin && bad[-1].code == rc && !strcmp(bad[-1].message, bad->message))
        bad[-1].end = end;
    else
        t->nbad++;
}

const struct fill_bad *fill_bad_in(const struct fill_thread *t, uint64_t begin, uint64_t end)
{
    for (unsigned k = 0; k < t->nbad; k++) {
        if (t->bad[k].begin < end && begin < t->bad[k].end)
            return &t->bad[k];
    }
    return NULL;
}

static void source_close(struct fill_source *s)
{
    if (s->serial) {
        close(s->fd);
        if (s->fd_direct >= 0)
            close(s->fd_direct);
    }
    s->serial = 0;
}

void fill_sources_close(struct fill_thread *t)
{
    for (unsigned k = 0; k < SOURCES_CACHED; k++)
        source_close(&t->sources[k]);
}

/* A path for messages: of a long one its end, which identifies it better. */
static const char *shown(const char *path, char buf[96])
{
    size_t len = strlen(path);
    if (len < 96)
        return memcpy(buf, path, len + 1);
    memcpy(buf, "...", 3);
    memcpy(buf + 3, path + len - 92, 93);
    return buf;
}

static const char *source_shown(const struct index *index, uint64_t number, char buf[96])
{
    char full[2 * 4096];
    int len = index_source_path(index, number, full, sizeof(full));
    return len < 0 || (size_t)len >= sizeof(full) ? "a source" : shown(full, buf);
}

/*
 * 0, or LEAT_STALE when the file is not the one that was scanned: the next opening then scans again. A
 * network file system must ask its server (one round trip): fstat alone may return attributes from the open,
 * or up to a minute old.
 */
static int source_check(const struct wset *ws, uint64_t number, int fd, char *why, size_t why_cap)
{
    const struct index *index = &ws->index;
    const struct index_source *source = &index->sources[number];
    struct statx st;
    char name[96];
    if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, STATX_SIZE | STATX_MTIME, &st) < 0) {
        int rc = -errno;
        snprintf(why, why_cap, "%s: %s", source_shown(index, number, name), strerror(-rc));
        return rc;
    }
    int64_t mtime_ns = (int64_t)st.stx_mtime.tv_sec * 1000000000 + st.stx_mtime.tv_nsec;
    if (st.stx_size == source->bytes && mtime_ns == source->mtime_ns)
        return 0;
    snprintf(why, why_cap,
             "%s changed after it was indexed (%" PRIu64 " bytes then, %" PRIu64
             " now): open the dataset again",
             source_shown(index, number, name), source->bytes, (uint64_t)st.stx_size);
    dataset_index_forget(ws->spec);
    return LEAT_STALE;
}

/* Not checked yet: the caller checks before it relies on the file or, better, once it has read. */
static int source_open_number(struct wset *ws, uint64_t number, const struct source_opener *opener,
                              struct fill_counters *counters, char *why, size_t why_cap)
{
    const struct index *index = &ws->index;
    char full[2 * 4096], name[96];
    int len = index_source_path(index, number, full, sizeof(full));
    if (len < 0 || (size_t)len >= sizeof(full)) {
        snprintf(why, why_cap, "its path is too long");
        return -ENAMETOOLONG;
    }
    struct source_caller caller = {ws->owner_uid, ws->owner_gid, ws->owner_groups};
    int fd = source_open(opener, &caller, full, O_NONBLOCK); /* what is a pipe by now must not hold us up */
    atomic_fetch_add_explicit(&counters->files_opened, 1, memory_order_relaxed);
    if (fd < 0) {
        snprintf(why, why_cap, "cannot open %s: %s", shown(full, name), strerror(-fd));
    }
    return fd;
}

/* The file of an extent, for range `r` of it. NULL: noted as bad, and why. */
static struct fill_source *source_get(struct fill_thread *t, struct wset *ws, const struct index_extent *e,
                                      const struct fill_range *r, const struct source_opener *opener,
                                      struct fill_counters *counters)
{
    char why[180];
    struct fill_source *victim = &t->sources[0];
    for (unsigned k = 0; k < SOURCES_CACHED; k++) {
        struct fill_source *s = &t->sources[k];
        if (s->serial == ws->serial && s->source == e->source) {
            s->used = ++t->clock;
            return s;
        }
        if (!s->serial || (victim->serial && s->used < victim->used))
            victim = s;
    }
    AUTO_CLOSE int fd = source_open_number(ws, e->source, opener, counters, why, sizeof(why));
    int rc = fd < 0 ? fd : source_check(ws, e->source, fd, why, sizeof(why));
    if (rc < 0) {
        fill_bad_add(t, r->begin, r->end, rc, "%s", why);
        return NULL;
    }
    source_close(victim);
    *victim = (struct fill_source){
        .serial = ws->serial, .source = e->source, .fd = TAKE_FD(fd), .fd_direct = -1, .used = ++t->clock};
    disk_file_probe(victim->fd, &victim->traits);
    return victim;
}

static int pread_all(struct fill_thread *t, int fd, uint8_t *dst, uint64_t bytes, uint64_t offset)
{
    while (bytes > 0) {
        ssize_t n = pread(fd, dst, MIN(bytes, (uint64_t)1 << 30), (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            t->bad_offset = offset;
            return n < 0 ? -errno : LEAT_STALE;
        }
        dst += n;
        offset += (uint64_t)n;
        bytes -= (uint64_t)n;
    }
    return 0;
}

static uint8_t *target_address(const struct fill_thread *t, uint64_t address)
{
    return t->target.addr + (address - t->target_begin);
}

uint8_t *fill_bounce(struct fill_thread *t)
{
    if (!t->bounce)
        t->bounce = aligned_alloc(FILL_DIRECT_ALIGN_MAX, FILL_BOUNCE_BYTES);
    return t->bounce;
}

/* May copies go by the target's descriptor? */
static bool bounces(struct fill_thread *t)
{
    return t->target.fd >= 0 && fill_bounce(t);
}

int fill_bounce_out(struct fill_thread *t, const uint8_t *src, uint64_t address, uint64_t bytes)
{
    ledger_add(LEDGER_BOUNCE, bytes);
    if (t->target.fd >= 0)
        return fd_write_at(t->target.fd, src, bytes, t->target.offset + (address - t->target_begin));
    memcpy(target_address(t, address), src, bytes);
    return 0;
}

/* Bytes of the file at `offset` to [begin, end), the file being in the page cache or about to be. */
static int read_copy(struct fill_thread *t, int fd, uint64_t offset, uint64_t begin, uint64_t end)
{
    t->bad_offset = UINT64_MAX;
    if (!bounces(t))
        return pread_all(t, fd, target_address(t, begin), end - begin, offset);
    while (begin < end) {
        uint64_t bytes = MIN(end - begin, PIECE_BYTES);
        int rc = pread_all(t, fd, t->bounce, bytes, offset);
        if (rc == 0)
            rc = fill_bounce_out(t, t->bounce, begin, bytes);
        if (rc < 0)
            return rc;
        begin += bytes;
        offset += bytes;
    }
    return 0;
}

void fill_read_error(const struct fill_thread *t, const struct index *index, uint64_t source, int rc,
                     char *why, size_t cap)
{
    char name[96];
    source_shown(index, source, name);
    if (rc == LEAT_STALE)
        snprintf(why, cap, "%s became shorter while it was read", name);
    else if (t->bad_offset != UINT64_MAX)
        snprintf(why, cap, "cannot read %s at offset %" PRIu64 ": %s", name, t->bad_offset, strerror(-rc));
    else
        snprintf(why, cap, "cannot put %s into memory: %s", name, strerror(-rc));
}

/* A small file has been read, or `rc` has the reason why not. It is compared with what was indexed only now:
 * changes before or during the read show. Closes it. */
static void small_end(struct fill_thread *t, const struct fill_ahead *a, int rc,
                      struct fill_counters *counters)
{
    char why[180];
    int changed = source_check(a->ws, a->source, a->fd, why, sizeof(why));
    close(a->fd);
    if (changed < 0)
        fill_bad_add(t, a->begin, a->end, changed, "%s", why);
    else if (rc < 0) {
        fill_read_error(t, &a->ws->index, a->source, rc, why, sizeof(why));
        fill_bad_add(t, a->begin, a->end, rc, "%s", why);
    } else
        atomic_fetch_add_explicit(&counters->bytes_buffered, a->end - a->begin, memory_order_relaxed);
}

static void read_ahead_finish(struct fill_thread *t, struct fill_counters *counters)
{
    struct fill_ahead a = t->ahead[0];
    memmove(t->ahead, t->ahead + 1, --t->nahead * sizeof(*t->ahead));
    small_end(t, &a, read_copy(t, a.fd, a.source_offset, a.begin, a.end), counters);
}

/* The whole of it without waiting for a disk: true when it is there. */
static bool read_cached(struct fill_thread *t, int fd, uint64_t offset, uint64_t begin, uint64_t bytes)
{
    bool bounce = bounces(t);
    struct iovec iov = {bounce ? t->bounce : target_address(t, begin), bytes};
    if (bounce && bytes > FILL_BOUNCE_BYTES)
        return false;
    return preadv2(fd, &iov, 1, (off_t)offset, RWF_NOWAIT) == (ssize_t)bytes &&
           (!bounce || fill_bounce_out(t, t->bounce, begin, bytes) == 0);
}

static void read_small(struct fill_thread *t, struct wset *ws, const struct index_extent *e,
                       const struct fill_range *r, const struct source_opener *opener,
                       struct fill_counters *counters)
{
    char why[180];
    uint64_t offset = e->source_offset + (r->begin - e->address), bytes = r->end - r->begin;
    int fd = source_open_number(ws, e->source, opener, counters, why, sizeof(why));
    if (fd < 0) {
        fill_bad_add(t, r->begin, r->end, fd, "%s", why);
        return;
    }
    struct fill_ahead a = {
        .ws = ws, .source = e->source, .fd = fd, .begin = r->begin, .end = r->end, .source_offset = offset};
    if (read_cached(t, fd, offset, r->begin, bytes)) {
        small_end(t, &a, 0, counters);
        return;
    }
    if (t->nahead == AHEAD_MAX)
        read_ahead_finish(t, counters);
    posix_fadvise(fd, (off_t)offset, (off_t)bytes, POSIX_FADV_WILLNEED);
    t->ahead[t->nahead++] = a;
}

/* The reads of a large file are over: with an error, or for good unless it was rewritten in place since. */
static void read_raw_end(struct fill_thread *t, struct wset *ws, const struct index_extent *e,
                         const struct fill_source *s, const struct fill_range *r, int rc,
                         _Atomic uint64_t *counter)
{
    char why[180] = "";
    if (rc < 0)
        fill_read_error(t, &ws->index, e->source, rc, why, sizeof(why));
    else
        rc = source_check(ws, e->source, s->fd, why, sizeof(why));
    if (rc < 0)
        fill_bad_add(t, r->begin, r->end, rc, "%s", why);
    else
        atomic_fetch_add_explicit(counter, r->end - r->begin, memory_order_relaxed);
}

/* Not while small files below are still to be read: they report at the range's end, remote ones at once. */
static void arrived(struct fill_thread *t, uint64_t address)
{
    if (t->arrived && t->nahead == 0 && !fill_remote_busy(t))
        t->arrived(t->arrived_user, address);
}

/* A large file in the page cache, piece by piece: each is compared with what was indexed, and handed on while
 * it is in the CPU's cache. Of a network file system all at once, as comparing takes a round trip. */
static void read_warm(struct fill_thread *t, struct wset *ws, const struct index_extent *e,
                      const struct fill_source *s, const struct fill_range *r, struct fill_counters *counters)
{
    uint64_t step = s->traits.network ? r->end - r->begin : PIECE_BYTES;
    for (struct fill_range piece = *r; piece.begin < r->end; piece.begin = piece.end) {
        piece.end = MIN(r->end, piece.begin + step);
        int rc = read_copy(t, s->fd, e->source_offset + (piece.begin - e->address), piece.begin, piece.end);
        read_raw_end(t, ws, e, s, &piece, rc, &counters->bytes_buffered);
        arrived(t, piece.end);
    }
}

static void read_raw(struct fill_thread *t, struct wset *ws, uint64_t extent, const struct index_extent *e,
                     const struct fill_range *whole, const struct fill_range *r,
                     const struct source_opener *opener, struct fill_counters *counters)
{
    struct fill_source *s = source_get(t, ws, e, r, opener, counters);
    if (!s)
        return;
    uint64_t offset = e->source_offset + (r->begin - e->address), align = s->traits.direct_align;
    int cached = disk_cached_permille(s->fd, offset, r->end - r->begin);
    bool warm = cached >= WARM_PERMILLE;
    if (cached >= THERE_PERMILLE || (warm && bounces(t))) {
        read_warm(t, ws, e, s, r, counters);
        return;
    }
    bool direct = !warm && align && align <= FILL_DIRECT_ALIGN_MAX &&
                  (offset % align == r->begin % align || e->bytes >= BOUNCED_LEAST);
    if (direct && s->fd_direct < 0) {
        s->fd_direct = disk_open_direct(s->fd);
        direct = s->fd_direct >= 0;
    }
    bool read = fill_large(t, &ws->index, extent, s, direct, whole, r);
    /* Not only when idle: a reader that sees the set complete finds little charged for reading it. */
    if (t->wide && fill_all_begun(t, ws))
        fill_wide_give(t);
    direct = direct && s->traits.direct_align; /* else it was refused */
    if (read)
        read_raw_end(t, ws, e, s, r, 0, direct ? &counters->bytes_direct : &counters->bytes_buffered);
}

static void read_chunk(struct fill_thread *t, struct wset *ws, const struct index_extent *e,
                       const struct fill_range *r, const struct source_opener *opener,
                       struct fill_counters *counters)
{
    char why[180];
    struct fill_source *s = source_get(t, ws, e, r, opener, counters);
    if (!s)
        return;
    bool whole = r->begin == e->address && r->end == e->address + e->bytes;
    uint8_t *dst = r->dst;
    if (!whole) {
        if (t->band_cap < e->bytes) {
            free(t->band);
            t->band = malloc(e->bytes);
            t->band_cap = t->band ? e->bytes : 0;
        }
        dst = t->band;
    }
    struct leat_error err = {0};
    int rc = dst ? dataset_extent_decode(&ws->index, e, s->fd, dst, &t->scratch, &err) : -ENOMEM;
    bool changed = rc == 0 && (rc = source_check(ws, e->source, s->fd, why, sizeof(why))) < 0;
    if (rc < 0) {
        char name[96];
        source_shown(&ws->index, e->source, name);
        if (changed)
            fill_bad_add(t, r->begin, r->end, rc, "%s", why);
        else
            fill_bad_add(t, r->begin, r->end, rc, "%s: %.100s", name,
                         err.message[0] ? err.message : strerror(-rc));
        return;
    }
    if (!whole) {
        memcpy(r->dst, dst + (r->begin - e->address), r->end - r->begin);
        ledger_add(LEDGER_DECODE, r->end - r->begin);
    }
    atomic_fetch_add_explicit(&counters->bytes_decoded, r->end - r->begin, memory_order_relaxed);
}

/* Read alone, because a client waited for it, before the rest of its segment. A load reads into other memory. */
static bool is_there(const struct fill_thread *t, const struct wset *ws, const struct index_extent *e)
{
    const struct index *index = &ws->index;
    if (t->loading || index->header->kind != INDEX_KIND_DIR)
        return false;
    for (unsigned f = 0; f < index->header->nfields; f++) {
        struct index_part part;
        uint64_t i = index_sample_at(index, f, e->address);
        if (i < index->header->nsamples && index_part(index, i, f, &part) && part.address == e->address)
            return part.bytes == e->bytes && wset_part_known(ws, i, f);
    }
    return false;
}

unsigned fill_read_range(struct fill_thread *t, struct wset *ws, uint64_t address, uint64_t bytes,
                         const struct fill_target *target, const struct source_opener *opener,
                         struct fill_counters *counters)
{
    const struct index *index = &ws->index;
    struct fill_range whole = {address, address + bytes, target->addr};
    t->nbad = 0;
    t->target = *target;
    t->target_begin = address;
    for (uint64_t k = index_extent_at(index, address); k < index->header->nextents; k++) {
        const struct index_extent extent = index->extents[k], *e = &extent;
        if (!index_extent_sound(index, e)) {
            fill_bad_add(t, address, whole.end, LEAT_CORRUPT, INDEX_DAMAGED);
            dataset_index_forget(ws->spec);
            break;
        }
        if (e->address >= whole.end)
            break;
        struct fill_range r = {MAX(e->address, address), MIN(e->address + e->bytes, whole.end), NULL};
        if (r.begin >= r.end)
            continue;
        r.dst = target_address(t, r.begin);
        if (is_there(t, ws, e)) {
            arrived(t, r.end);
            continue;
        }
        if (e->kind == INDEX_EXTENT_ZERO)
            memset(r.dst, 0, r.end - r.begin);
        else if (ws->remote && index_source_is_remote(index, e->source))
            fill_remote_add(t, ws, e, r.begin, r.end, r.dst, counters);
        else if (e->kind == INDEX_EXTENT_CHUNK)
            read_chunk(t, ws, e, &r, opener, counters);
        else if (index->sources[e->source].bytes < SMALL_BYTES)
            read_small(t, ws, e, &r, opener, counters);
        else
            read_raw(t, ws, k, e, &whole, &r, opener, counters);
        arrived(t, r.end);
    }
    while (t->nahead > 0) /* before the wait, which reports everything below what it waits for */
        read_ahead_finish(t, counters);
    fill_remote_finish(t, ws, whole.end, counters);
    return t->nbad;
}

void fill_read_files(struct fill_thread *t, const struct fill_pick *p, struct region *region,
                     const struct source_opener *opener, struct fill_counters *counters)
{
    struct wset *ws = p->ws;
    const struct index *index = &ws->index;
    uint64_t first = align_down(ws->segments[p->files[0].segment].address, ws->region_bytes), end = 0;
    struct fill_range files[FILL_FILES_MAX], rooms[FILL_FILES_MAX];
    int reserved[FILL_FILES_MAX];
    for (unsigned k = 0; k < p->nfiles; k++) {
        const struct wset_segment *s = &ws->segments[p->files[k].segment];
        uint64_t from = p->files[k].part.address, to = from + p->files[k].part.bytes;
        uint8_t *dst = region->addr + (from - first);
        files[k] = (struct fill_range){from, to, dst};
        /* Direct reads take the room behind it, too. */
        rooms[k] = (struct fill_range){from, MIN(align_up(to, INDEX_FILE_ALIGN), s->address + s->bytes), dst};
        reserved[k] = region_reserve(region, from - first, rooms[k].end - from);
        end = MAX(end, rooms[k].end - first);
    }
    bool small_pages = region->pages == REGION_BASE && end > atomic_load(&region->prefault_bytes);
    t->nbad = 0;
    t->target = (struct fill_target){region->addr, small_pages ? region->fd : -1, 0};
    t->target_begin = first;
    for (unsigned k = 0; k < p->nfiles; k++) {
        const struct index_extent *e = &p->files[k].extent;
        if (reserved[k] < 0)
            fill_bad_add(t, files[k].begin, files[k].end, LEAT_NO_SPACE, "no memory for it in the pool (%s)",
                         strerror(-reserved[k]));
        else if (index->sources[e->source].bytes < SMALL_BYTES)
            read_small(t, ws, e, &files[k], opener, counters);
        else
            read_raw(t, ws, p->files[k].number, e, &rooms[k], &files[k], opener, counters);
    }
    while (t->nahead > 0)
        read_ahead_finish(t, counters);
}
