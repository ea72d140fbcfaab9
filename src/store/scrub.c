/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scrub.c: reads every object again, periodically, so that damage is found while another copy is still there.
 *
 * Happy path: a thread for each path walks its index in the order of keys, reads each file past the page
 * cache, and compares it with its checksums; at a pace that makes a pass last as long as it may, in the
 * kernel's idle class of I/O. Where it is stands in PATH/scrub.
 * Failure modes: a block that does not match, or cannot be read, is read once more. Then a clean object of a bucket with a remote is
 * evicted (the next read fetches it again); others are marked, named in the log, and kept in a list. A file that cannot be read
 * is the path's matter as well (store_path_unreadable). A position that cannot be written is a pass that begins again after a restart.
 * Invariants: only the version that was read is marked or evicted. A mark is taken away only when every block of the object matched.
 */
#include "base/hex.h"
#include "store/internal.h"

#include <fcntl.h>
#include <linux/ioprio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cond.h"
#include "base/crc32c.h"
#include "base/log.h"

#define NEVER          UINT64_MAX
#define DONE           UINT64_MAX        /* as at_block: all of the object at the position */
#define OBJECT_COST    (64 * KIB)        /* in addition to its bytes: a seek or two */
#define RATE_MIN       (1 * MIB)         /* a second: small stores finish sooner, and disks rest */
#define STATE_MAX      (512 * KIB)       /* of the file */
#define FOUND_MAX      64u               /* damaged objects that are remembered */
#define FIRST_PASS_NS  (3600 * NS_PER_S) /* after a path's first start */
#define AFTER_START_NS (60 * NS_PER_S)   /* an interrupted pass continues */
#define SAVE_NS        (300 * NS_PER_S)

enum verdict { SOUND, DAMAGED, UNREADABLE, GONE, STOPPED, LATER };

struct finding {
    struct ikey key;
    uint64_t seq;
    bool unreadable;
};

struct scrub {
    struct path *p;
    pthread_t thread;
    bool has_thread;
    uint8_t *buf; /* STORE_BLOCK, aligned for direct I/O; the thread's */
    uint64_t due_ns;
    _Atomic uint64_t saved_ns;
    pthread_mutex_t saving; /* before lock: its file is written by one at a time, the latest last */
    bool idle_class;
    _Atomic uint64_t total_objects, total_bytes, total_repaired; /* since the start */
    pthread_mutex_t lock;                                        /* guards the fields below */
    pthread_cond_t wake;
    bool stop, asked, changed;
    unsigned generation;         /* of passes: what was read for another one does not count */
    int64_t next_ns;             /* when the next pass begins; 0: not known yet */
    struct store_scrub_pass now; /* begun_ns 0: none */
    struct store_scrub_pass last;
    struct ikey at; /* the last object looked at; `at_block` blocks of its version `at_seq` are done */
    uint64_t at_seq, at_block;
    struct finding found[FOUND_MAX];
    unsigned nfound;
};

/* --- what is kept -------------------------------------------------------------------------------------------------------------- */

static void put_key(FILE *f, const struct ikey *k)
{
    char text[2 * sizeof(k->bytes) + 1];
    hex_put(text, k->bytes, k->len);
    fputs(k->len ? text : "-", f);
}

static bool get_key(const char *text, struct ikey *ret)
{
    size_t n = strspn(text, "0123456789abcdef");
    ret->len = 0;
    if (n == 0)
        return *text == '-';
    if (n % 2 || n / 2 > sizeof(ret->bytes) || !hex_get(text, n / 2, ret->bytes))
        return false;
    ret->len = n / 2;
    return true;
}

#define PASS_FORMAT "%lld %lld %llu %llu %llu %llu %llu"
static void put_pass(FILE *f, const char *name, const struct store_scrub_pass *p)
{
    fprintf(f, "%s " PASS_FORMAT "\n", name, (long long)p->begun_ns, (long long)p->ended_ns,
            (unsigned long long)p->objects, (unsigned long long)p->bytes, (unsigned long long)p->damaged,
            (unsigned long long)p->repaired, (unsigned long long)p->unreadable);
}

static bool get_pass(const char *text, struct store_scrub_pass *ret)
{
    long long begun, ended;
    unsigned long long n[5];
    if (sscanf(text, PASS_FORMAT, &begun, &ended, &n[0], &n[1], &n[2], &n[3], &n[4]) != 7)
        return false;
    *ret = (struct store_scrub_pass){begun, ended, n[0], n[1], n[2], n[3], n[4]};
    return true;
}

/* As text; the caller frees. lock is held. */
static char *state_text(struct scrub *sc, size_t *ret_len)
{
    char *text = NULL;
    FILE *f = open_memstream(&text, ret_len);
    if (!f)
        return NULL;
    fprintf(f, "leat-scrub 1\nnext %lld %d\n", (long long)sc->next_ns, sc->asked);
    put_pass(f, "now", &sc->now);
    put_pass(f, "last", &sc->last);
    fprintf(f, "at %llu %llu ", (unsigned long long)sc->at_seq, (unsigned long long)sc->at_block);
    put_key(f, &sc->at);
    for (unsigned i = 0; i < sc->nfound; i++) {
        fprintf(f, "\nfound %llu %d ", (unsigned long long)sc->found[i].seq, sc->found[i].unreadable);
        put_key(f, &sc->found[i].key);
    }
    fputc('\n', f);
    fflush(f);
    fprintf(f, "crc %08x\n", crc32c(0, text, *ret_len));
    if (fclose(f) == 0)
        return text;
    free(text);
    return NULL;
}

/* Only the position: a failed write is tried again later. */
static void save(struct scrub *sc)
{
    struct path *p = sc->p;
    size_t len = 0;
    pthread_mutex_lock(&sc->saving);
    pthread_mutex_lock(&sc->lock);
    AUTO_FREE char *text = sc->changed && !atomic_load(&p->failed) ? state_text(sc, &len) : NULL;
    sc->changed = false;
    pthread_mutex_unlock(&sc->lock);
    sc->saved_ns = clock_now_ns();
    if (text)
        store_io_replace(p->store->io, p->dir, "scrub", text, len, NULL);
    pthread_mutex_unlock(&sc->saving);
}

/* text has a NUL behind it. */
static bool parse(struct scrub *sc, char *text)
{
    char *crc = strstr(text, "\ncrc "), *save = NULL;
    unsigned sum, n = 0;
    if (!crc || sscanf(crc, "\ncrc %8x", &sum) != 1 || sum != crc32c(0, text, (size_t)(crc + 1 - text)) ||
        strncmp(text, "leat-scrub 1\n", 13) != 0)
        return false;
    *crc = 0;
    bool good = true;
    for (char *line = strtok_r(text, "\n", &save); line && good; line = strtok_r(NULL, "\n", &save)) {
        unsigned long long seq, number;
        long long next;
        int flag, at = 0;
        if (sscanf(line, "next %lld %d", &next, &flag) == 2) {
            sc->next_ns = next;
            sc->asked = flag;
        } else if (strncmp(line, "now ", 4) == 0) {
            good = get_pass(line + 4, &sc->now);
        } else if (strncmp(line, "last ", 5) == 0) {
            good = get_pass(line + 5, &sc->last);
        } else if (sscanf(line, "at %llu %llu %n", &seq, &number, &at) == 2 && at) {
            sc->at_seq = seq;
            sc->at_block = number;
            good = get_key(line + at, &sc->at);
        } else if (sscanf(line, "found %llu %d %n", &seq, &flag, &at) == 2 && at && n < FOUND_MAX) {
            sc->found[n].seq = seq;
            sc->found[n].unreadable = flag;
            good = get_key(line + at, &sc->found[n].key) && sc->found[n].key.len > 4;
            sc->nfound = n += good;
        }
    }
    return good;
}

static int load(struct scrub *sc)
{
    const struct store_io *io = sc->p->store->io;
    char name[PATH_FILE_MAX];
    snprintf(name, sizeof(name), "%s/scrub", sc->p->dir);
    AUTO_FREE char *text = calloc(1, STATE_MAX + 1);
    if (!text)
        return -ENOMEM;
    int fd = io->open(io, name, O_RDONLY, 0);
    if (fd < 0)
        return 0;
    int rc = store_io_read(io, fd, text, STATE_MAX, 0);
    io->close(io, fd);
    if ((rc < 0 && rc != -ENODATA) || !parse(sc, text)) {
        log_warning("%s is damaged: a pass begins again", name);
        sc->now = sc->last = (struct store_scrub_pass){0};
        sc->at.len = sc->nfound = 0;
        sc->next_ns = 0;
        sc->asked = false;
    }
    return 0;
}

/* The kernel's idle class, or, for a pass that a client waits for, the least of the ordinary one. Schedulers without classes ignore it. */
static void set_class(struct scrub *sc, bool idle)
{
    if (sc->idle_class == idle)
        return;
    sc->idle_class = idle;
    syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0,
            idle ? IOPRIO_PRIO_VALUE(IOPRIO_CLASS_IDLE, 0) : IOPRIO_PRIO_VALUE(IOPRIO_CLASS_BE, 7));
}

/* --- findings ------------------------------------------------------------------------------------------------------------------ */

static bool same_key(const struct ikey *a, const struct ikey *b)
{
    return a->len == b->len && memcmp(a->bytes, b->bytes, a->len) == 0;
}

/* lock is held. */
static void unnote(struct scrub *sc, const struct ikey *k)
{
    for (unsigned i = sc->nfound; i-- > 0;)
        if (same_key(&sc->found[i].key, k)) {
            memmove(&sc->found[i], &sc->found[i + 1], (sc->nfound - i - 1) * sizeof(sc->found[0]));
            sc->nfound--;
            sc->changed = true;
        }
}

static void note(struct scrub *sc, const struct ikey *k, uint64_t seq, bool unreadable)
{
    pthread_mutex_lock(&sc->lock);
    unnote(sc, k);
    if (sc->nfound == FOUND_MAX) /* the oldest goes; the index and the log still have it */
        memmove(&sc->found[0], &sc->found[1], --sc->nfound * sizeof(sc->found[0]));
    sc->found[sc->nfound++] = (struct finding){*k, seq, unreadable};
    sc->changed = true;
    pthread_mutex_unlock(&sc->lock);
}

void store_scrub_note(struct path *p, const struct ikey *k, uint64_t seq)
{
    if (p->scrub)
        note(p->scrub, k, seq, false);
}

/* Is this version still what the path has? ret_flags: of now. */
static bool is_current(struct path *p, const struct ikey *k, uint64_t seq, uint32_t *ret_flags)
{
    struct index_item item;
    pthread_rwlock_rdlock(&p->index.lock);
    bool current = store_index_find(&p->index, k->bytes, k->len, &item) && item.value.seq == seq;
    if (current)
        *ret_flags = item.value.flags;
    pthread_rwlock_unlock(&p->index.lock);
    return current;
}

static uint32_t bucket_of(const struct ikey *k)
{
    uint32_t big;
    memcpy(&big, k->bytes, 4);
    return __builtin_bswap32(big);
}

static const char *name_of(struct store *s, const struct ikey *k, char out[KEY_TEXT_MAX])
{
    char bucket[STORE_BUCKET_MAX + 1] = "(a bucket that is gone)";
    if (bucket_of(k) == 0)
        return "a part of an upload";
    store_bucket_is_remote(s, bucket_of(k), bucket);
    return store_key_text(bucket, k->bytes + 4, k->len - 4, out);
}

int store_damaged(struct store *s, int (*object)(void *user, const struct store_damage *damage), void *user)
{
    AUTO_FREE struct finding *found = malloc(FOUND_MAX * sizeof(*found));
    if (!found)
        return -ENOMEM;
    int rc = 0;
    for (unsigned i = 0; i < s->npaths && rc == 0; i++) {
        struct scrub *sc = s->paths[i]->scrub;
        if (!sc)
            continue;
        pthread_mutex_lock(&sc->lock);
        unsigned n = sc->nfound;
        memcpy(found, sc->found, n * sizeof(*found));
        pthread_mutex_unlock(&sc->lock);
        for (unsigned k = 0; k < n && rc == 0; k++) {
            struct store_damage d = {.path = sc->p->dir,
                                     .key = found[k].key.bytes + 4,
                                     .key_len = found[k].key.len - 4,
                                     .unreadable = found[k].unreadable};
            uint32_t flags;
            if (!is_current(sc->p, &found[k].key, found[k].seq, &flags) ||
                (!d.unreadable && !(flags & STORE_CORRUPT)) || bucket_of(&found[k].key) == 0)
                continue;
            store_bucket_is_remote(s, bucket_of(&found[k].key), d.bucket);
            rc = object(user, &d);
        }
    }
    return rc;
}

/* --- the pace ------------------------------------------------------------------------------------------------------------------ */

/* Bytes a second. lock is held. */
static uint64_t rate(struct scrub *sc)
{
    struct store *s = sc->p->store;
    if (sc->asked || s->scrub_period_s == NEVER)
        return s->scrub_rate;
    pthread_rwlock_rdlock(&sc->p->index.lock);
    uint64_t cost = sc->p->index.bytes + sc->p->index.objects * OBJECT_COST;
    pthread_rwlock_unlock(&sc->p->index.lock);
    return MIN(MAX(cost / s->scrub_period_s, RATE_MIN), s->scrub_rate);
}

/* lock is held. */
static void sleep_until(struct scrub *sc, uint64_t when_ns)
{
    uint64_t now = clock_now_ns();
    if (when_ns <= now)
        return;
    cond_wait_until(&sc->wake, &sc->lock, MIN(when_ns, now + 3600 * NS_PER_S));
}

/* So much was read: waits until more may be. false: this pass ends. */
static bool pace(struct scrub *sc, unsigned generation, uint64_t cost)
{
    if (!sc->has_thread)
        return true;
    if (clock_now_ns() - sc->saved_ns > SAVE_NS)
        save(sc);
    pthread_mutex_lock(&sc->lock);
    uint64_t now = clock_now_ns();
    bool asked = sc->asked;
    /* An allowance from more than a second ago is lost: no burst follows a pause. */
    sc->due_ns = MAX(sc->due_ns, now - NS_PER_S) + (uint64_t)((double)cost / (double)rate(sc) * 1e9);
    while (!sc->stop && sc->generation == generation && sc->asked == asked && clock_now_ns() < sc->due_ns)
        sleep_until(sc, sc->due_ns);
    if (sc->asked != asked)
        sc->due_ns = 0;
    bool on = !sc->stop && sc->generation == generation;
    pthread_mutex_unlock(&sc->lock);
    return on;
}

/* --- one object ---------------------------------------------------------------------------------------------------------------- */

struct subject {
    struct ikey key;
    struct index_value value;
    uint64_t block; /* the first that is not done */
    unsigned generation;
};

/* lock is held. */
static void end_pass(struct scrub *sc)
{
    sc->now.ended_ns = store_wall_ns();
    sc->last = sc->now;
    sc->now = (struct store_scrub_pass){0};
    sc->asked = false;
    sc->changed = true;
    struct store_scrub_pass *l = &sc->last;
    log_info("%s: scrub: %llu objects were read; %llu damaged, %llu unreadable, %llu of them mended",
             sc->p->dir, (unsigned long long)l->objects, (unsigned long long)l->damaged,
             (unsigned long long)l->unreadable, (unsigned long long)l->repaired);
}

/* The next object of the pass. false: there is none, and the pass has ended, under the same lock: another may
 * begin at any time. */
static bool next_subject(struct scrub *sc, struct subject *ret)
{
    struct index_cursor c;
    struct path *p = sc->p;
    pthread_mutex_lock(&sc->lock);
    pthread_rwlock_rdlock(&p->index.lock);
    store_index_seek(&c, &p->index, sc->at.bytes, sc->at.len);
    bool same = c.valid && c.item.key_len == sc->at.len && memcmp(c.item.key, sc->at.bytes, sc->at.len) == 0;
    if (same && sc->at_block == DONE) {
        store_index_next(&c);
        same = false;
    }
    bool any = c.valid;
    if (any) {
        memcpy(ret->key.bytes, c.item.key, c.item.key_len);
        ret->key.len = c.item.key_len;
        ret->value = c.item.value;
        /* One that is marked is read from its beginning: what was read before may be what was found damaged since. */
        bool goes_on = same && sc->at_seq == c.item.value.seq && !(c.item.value.flags & STORE_CORRUPT);
        ret->block = goes_on ? sc->at_block : 0;
        ret->generation = sc->generation;
    }
    pthread_rwlock_unlock(&p->index.lock);
    if (!any)
        end_pass(sc);
    pthread_mutex_unlock(&sc->lock);
    return any;
}

/* Past the page cache, where possible: the disk is read, not memory's copy of it. */
static int open_direct(const struct store_io *io, const char *name)
{
    int fd = io->open(io, name, O_RDONLY | O_DIRECT, 0);
    return fd == -EINVAL || fd == -EOPNOTSUPP ? io->open(io, name, O_RDONLY, 0) : fd;
}

/* n bytes at the start of a block, in whole pages as direct I/O wants them; behind them is a trailer, or the end. */
static int read_block(struct scrub *sc, int fd, uint64_t n, uint64_t offset)
{
    const struct store_io *io = sc->p->store->io;
    for (uint64_t got = 0; got < n;) {
        int64_t now = io->pread(io, fd, sc->buf + got, align_up(n, 4096) - got, offset + got);
        if (now == -EINTR)
            continue;
        if (now <= 0)
            return now < 0 ? (int)now : -ENODATA;
        got += (uint64_t)now;
    }
    return 0;
}

static enum verdict of_error(int rc)
{
    if (rc == LEAT_CORRUPT || rc == -ENODATA || rc == -ENOENT)
        return DAMAGED;
    return rc == -ENOMEM || rc == -EMFILE || rc == -ENFILE ? LATER : UNREADABLE;
}

/* So much of the object is done, and this much was added to the pass by it. */
static void advance(struct scrub *sc, const struct subject *o, uint64_t block,
                    const struct store_scrub_pass *add)
{
    atomic_fetch_add(&sc->total_objects, add->objects);
    atomic_fetch_add(&sc->total_bytes, add->bytes);
    atomic_fetch_add(&sc->total_repaired, add->repaired);
    pthread_mutex_lock(&sc->lock);
    if (sc->generation == o->generation) {
        sc->at = o->key;
        sc->at_seq = o->value.seq;
        sc->at_block = block;
        sc->now.objects += add->objects;
        sc->now.bytes += add->bytes;
        sc->now.damaged += add->damaged;
        sc->now.repaired += add->repaired;
        sc->now.unreadable += add->unreadable;
        sc->changed = true;
    }
    pthread_mutex_unlock(&sc->lock);
}

static enum verdict verify_blocks(struct scrub *sc, struct subject *o, const struct trailer *t, int fd,
                                  uint64_t *ret_block)
{
    uint32_t flags;
    for (uint64_t b = o->block; b < t->ncrcs; b++) {
        uint64_t n = MIN(STORE_BLOCK, t->bytes - b * STORE_BLOCK);
        int rc = LEAT_CORRUPT;
        *ret_block = b;
        for (unsigned tries = 0; rc < 0 && tries < 2; tries++) {
            rc = read_block(sc, fd, n, b * STORE_BLOCK);
            if (rc == 0 && crc32c(0, sc->buf, n) != t->crcs[b])
                rc = LEAT_CORRUPT;
        }
        if (rc < 0)
            return of_error(rc);
        if (b + 1 == t->ncrcs)
            break;
        o->block = b + 1;
        advance(sc, o, o->block, &(struct store_scrub_pass){.bytes = n});
        if (!pace(sc, o->generation, n))
            return STOPPED;
        if (!is_current(sc->p, &o->key, o->value.seq, &flags)) /* its file would be kept for nothing */
            return GONE;
    }
    return SOUND;
}

/* ret_block: what is damaged, DONE for what is no block. */
static enum verdict verify(struct scrub *sc, struct subject *o, uint64_t *ret_block)
{
    struct path *p = sc->p;
    const struct store_io *io = p->store->io;
    char name[PATH_FILE_MAX];
    struct trailer t;
    AUTO_FREE uint8_t *data = NULL;
    uint32_t len;
    struct stat st;
    *ret_block = DONE;
    store_path_file_name(p, o->value.file, name);
    int fd = io->open(io, name, O_RDONLY, 0);
    /* The trailer from the disk as well; it is in memory where the object is open. */
    if (fd >= 0 && fstat(fd, &st) == 0) {
        uint64_t tail = MIN((uint64_t)st.st_size, (uint64_t)o->value.trailer_bytes);
        posix_fadvise(fd, (off_t)align_down((uint64_t)st.st_size - tail, 4096), 0, POSIX_FADV_DONTNEED);
    }
    int rc = fd < 0 ? fd : store_trailer_read(p, fd, &data, &len, &t);
    if (fd >= 0)
        io->close(io, fd);
    if (rc == 0 && !store_trailer_belongs(&t, &o->value, &o->key))
        rc = LEAT_CORRUPT;
    fd = rc == 0 ? open_direct(io, name) : rc;
    if (fd < 0)
        return of_error(fd);
    enum verdict verdict = verify_blocks(sc, o, &t, fd, ret_block);
    io->close(io, fd);
    return verdict;
}

/* --- what follows -------------------------------------------------------------------------------------------------------------- */

/* The remote has it: the copy here goes, and is fetched again. */
static bool mend(struct scrub *sc, const struct subject *o)
{
    set_class(sc, false); /* the log's flush is shared with PUTs, which would wait for an idle disk */
    return store_give_up(sc->p->store, &o->key, o->value.seq);
}

static void found_bad(struct scrub *sc, struct subject *o, enum verdict verdict, uint64_t block,
                      struct store_scrub_pass *add)
{
    struct path *p = sc->p;
    uint32_t flags;
    char text[KEY_TEXT_MAX], where[40] = "its trailer";
    const char *name = name_of(p->store, &o->key, text);
    struct found newest;
    if (store_find(p->store, &o->key, false, &newest) < 0 || newest.value.seq != o->value.seq)
        return; /* replaced or deleted since; or long ago, on another path that was away then */
    flags = newest.value.flags;
    if (verdict == UNREADABLE) {
        add->unreadable++;
        store_path_unreadable(p, o->value.file, -EIO, name, NULL);
    } else {
        add->damaged++;
        atomic_fetch_add(&p->corrupt, !(flags & STORE_CORRUPT));
    }
    if (atomic_load(&p->failed))
        return;
    if (block != DONE)
        snprintf(where, sizeof(where), "block %llu", (unsigned long long)block);
    if (mend(sc, o)) {
        add->repaired++;
        log_warning("%s: scrub: %s of %s is %s (file %012llx): evicted, the remote has it", p->dir, where,
                    name, verdict == UNREADABLE ? "unreadable" : "damaged",
                    (unsigned long long)o->value.file);
        return;
    }
    if (verdict == DAMAGED)
        log_error("%s: scrub: %s of %s is damaged (file %012llx), and there is no other copy: store it again",
                  p->dir, where, name, (unsigned long long)o->value.file);
    if (verdict == DAMAGED && !(flags & STORE_CORRUPT))
        store_flag(p->store, &o->key, o->value.seq, 0, STORE_CORRUPT, NULL, false, NULL);
    store_open_forget(p->store, p, o->value.file);
    note(sc, &o->key, o->value.seq, verdict == UNREADABLE);
}

/* A controller or a cable, not the disk: it may be read again. */
static void found_sound(struct scrub *sc, struct subject *o)
{
    struct path *p = sc->p;
    char text[KEY_TEXT_MAX];
    uint32_t flags;
    store_path_readable(p);
    if (!(o->value.flags & STORE_CORRUPT) && is_current(p, &o->key, o->value.seq, &flags) &&
        flags & STORE_CORRUPT)
        return; /* a reader has found damage behind the position: the next pass reads that */
    if (o->value.flags & STORE_CORRUPT &&
        store_flag(p->store, &o->key, o->value.seq, STORE_CORRUPT, 0, NULL, false, NULL) == 0)
        log_info("%s: scrub: %s was marked as damaged, and is whole", p->dir,
                 name_of(p->store, &o->key, text));
    pthread_mutex_lock(&sc->lock);
    unnote(sc, &o->key);
    pthread_mutex_unlock(&sc->lock);
}

static void begin_pass(struct scrub *sc)
{
    uint64_t period = sc->p->store->scrub_period_s;
    int64_t now = store_wall_ns();
    sc->now = (struct store_scrub_pass){.begun_ns = now};
    sc->at.len = 0;
    sc->at_seq = sc->at_block = 0;
    sc->next_ns = period == NEVER ? INT64_MAX : now + (int64_t)(period * NS_PER_S);
    sc->generation++;
    sc->changed = true;
}

/* One object. false: the pass is over, or has to wait. */
static bool step(struct scrub *sc)
{
    struct store *s = sc->p->store;
    struct subject o;
    uint64_t block;
    if (!next_subject(sc, &o)) {
        save(sc);
        return false;
    }
    if (budget_reserve(s->budget, STORE_BLOCK) < 0)
        return false;
    enum verdict verdict = verify(sc, &o, &block);
    budget_release(s->budget, STORE_BLOCK);
    if (verdict == STOPPED || verdict == LATER)
        return false;
    uint64_t rest = o.value.bytes - MIN(o.block * STORE_BLOCK,
                                        o.value.bytes); /* blocks before were counted, and waited for */
    struct store_scrub_pass add = {.objects = 1, .bytes = rest + o.value.trailer_bytes};
    if (verdict == SOUND)
        found_sound(sc, &o);
    else if (verdict != GONE)
        found_bad(sc, &o, verdict, block, &add);
    if (atomic_load(&sc->p->failed))
        return false;
    advance(sc, &o, DONE, &add);
    return pace(sc, o.generation, OBJECT_COST + MIN(rest, STORE_BLOCK));
}

static int buffer(struct scrub *sc)
{
    void *buf;
    if (!sc->buf && posix_memalign(&buf, 4096, STORE_BLOCK) == 0)
        sc->buf = buf;
    return sc->buf ? 0 : -ENOMEM;
}

/* When the next pass begins, where that is not set yet, or it was for another period, or by a clock that was wrong. */
static void first_pass(struct scrub *sc)
{
    uint64_t period = sc->p->store->scrub_period_s;
    int64_t now = store_wall_ns(), latest = period == NEVER ? INT64_MAX : now + (int64_t)(period * NS_PER_S);
    if (sc->next_ns > 0 && sc->next_ns <= latest)
        return;
    sc->next_ns = MIN(now + (int64_t)FIRST_PASS_NS, latest);
    sc->changed = true;
}

static void *run(void *arg)
{
    struct scrub *sc = arg;
    uint64_t start = clock_now_ns();
    sc->saved_ns = start;
    pthread_mutex_lock(&sc->lock);
    first_pass(sc);
    while (!sc->stop) {
        bool never = sc->p->store->scrub_period_s == NEVER && !sc->asked, asked = sc->asked;
        int64_t wall = store_wall_ns();
        if (!sc->now.begun_ns && !never && wall >= sc->next_ns)
            begin_pass(sc);
        if (!sc->now.begun_ns || never || atomic_load(&sc->p->failed)) {
            sleep_until(sc, clock_now_ns() + (never || sc->next_ns <= wall ? 3600 * NS_PER_S
                                                                           : (uint64_t)(sc->next_ns - wall)));
            continue;
        }
        if (!asked && clock_now_ns() < start + AFTER_START_NS) {
            sleep_until(sc, start + AFTER_START_NS);
            continue;
        }
        pthread_mutex_unlock(&sc->lock);
        set_class(sc, !asked);
        bool on = buffer(sc) == 0 && step(sc);
        pthread_mutex_lock(&sc->lock);
        if (!on && !sc->stop && sc->now.begun_ns && sc->asked == asked)
            sleep_until(sc, clock_now_ns() + NS_PER_S); /* no memory, or no descriptors */
    }
    pthread_mutex_unlock(&sc->lock);
    return NULL;
}

/* --- from outside -------------------------------------------------------------------------------------------------------------- */

int store_scrub_new(struct path *p, struct leat_error *err)
{
    struct scrub *sc = calloc(1, sizeof(*sc));
    if (sc)
        sc->p = p;
    if (!sc || load(sc) < 0) {
        free(sc);
        return error_set(err, -ENOMEM, "no memory for the scrub of %s", p->dir);
    }
    pthread_mutex_init(&sc->saving, NULL);
    pthread_mutex_init(&sc->lock, NULL);
    cond_init(&sc->wake);
    p->scrub = sc;
    return 0;
}

int store_scrub_run(struct path *p, struct leat_error *err)
{
    struct scrub *sc = p->scrub;
    sc->has_thread = true; /* before it looks */
    int rc = -pthread_create(&sc->thread, NULL, run, sc);
    sc->has_thread = rc == 0;
    return rc < 0 ? error_sys(err, rc, "the thread of a scrub cannot be started") : 0;
}

void store_scrub_end(struct path *p)
{
    struct scrub *sc = p->scrub;
    if (!sc)
        return;
    if (sc->has_thread) {
        pthread_mutex_lock(&sc->lock);
        sc->stop = true;
        pthread_cond_signal(&sc->wake);
        pthread_mutex_unlock(&sc->lock);
        pthread_join(sc->thread, NULL);
    }
    save(sc);
    pthread_mutex_destroy(&sc->lock);
    pthread_mutex_destroy(&sc->saving);
    pthread_cond_destroy(&sc->wake);
    free(sc->buf);
    free(sc);
    p->scrub = NULL;
}

void store_scrub_resume(struct store *s, int64_t since_ns)
{
    for (unsigned i = 0; i < s->npaths; i++) {
        struct scrub *sc = s->paths[i]->scrub;
        if (!sc || atomic_load(&s->paths[i]->failed))
            continue;
        pthread_mutex_lock(&sc->lock);
        bool ended = sc->last.begun_ns >= since_ns, under_way = sc->now.begun_ns >= since_ns;
        if (!under_way && !ended)
            begin_pass(sc);
        sc->asked |= under_way || !ended;
        pthread_cond_signal(&sc->wake);
        pthread_mutex_unlock(&sc->lock);
    }
}

void store_scrub_start(struct store *s)
{
    store_scrub_resume(s, INT64_MAX);
}

void store_scrub_stop(struct store *s)
{
    for (unsigned i = 0; i < s->npaths; i++) {
        struct scrub *sc = s->paths[i]->scrub;
        if (!sc)
            continue;
        pthread_mutex_lock(&sc->lock);
        sc->changed |= sc->asked || (s->scrub_period_s == NEVER && sc->now.begun_ns);
        sc->asked = false;
        if (s->scrub_period_s == NEVER) {
            sc->now = (struct store_scrub_pass){0};
            sc->generation++;
        }
        pthread_cond_signal(&sc->wake);
        pthread_mutex_unlock(&sc->lock);
        save(sc); /* a kill now does not bring it back */
    }
}

void store_scrub_some(struct store *s, unsigned objects)
{
    for (unsigned i = 0; i < s->npaths; i++) {
        struct scrub *sc = s->paths[i]->scrub;
        if (!sc || !sc->now.begun_ns || buffer(sc) < 0)
            continue;
        for (unsigned n = 0; n < objects && step(sc); n++)
            ;
    }
}

void store_scrub_status(struct path *p, struct store_scrub_status *ret)
{
    struct scrub *sc = p->scrub;
    *ret = (struct store_scrub_status){.state = STORE_SCRUB_OFF};
    if (!sc)
        return;
    pthread_mutex_lock(&sc->lock);
    bool never = p->store->scrub_period_s == NEVER && !sc->asked;
    ret->state = sc->now.begun_ns && !never ? STORE_SCRUB_RUNNING
                 : never                    ? STORE_SCRUB_OFF
                                            : STORE_SCRUB_WAITING;
    if (atomic_load(&p->failed))
        ret->state = STORE_SCRUB_OFF;
    ret->asked = sc->asked;
    ret->now = sc->now;
    ret->last = sc->last;
    ret->next_ns = never || sc->next_ns == INT64_MAX ? 0 : sc->next_ns;
    pthread_mutex_unlock(&sc->lock);
    ret->total_objects = atomic_load(&sc->total_objects);
    ret->total_bytes = atomic_load(&sc->total_bytes);
    ret->total_repaired = atomic_load(&sc->total_repaired);
    pthread_rwlock_rdlock(&p->index.lock);
    ret->of_objects = p->index.objects;
    ret->of_bytes = p->index.bytes;
    pthread_rwlock_unlock(&p->index.lock);
}
