/* SPDX-License-Identifier: Apache-2.0 */
/*
 * journal.c: the table of jobs as bytes, and the file that has them.
 *
 *   leat-jobs 1\n, then records: u32 bytes of the body, u32 CRC32C of those four and the body, the body
 *   'H'  next id                                                     first, once
 *   'J'  a job: state, times, counts, kind, subject, error, spec     ids grow
 *   'S'  the state of a job from here on
 *
 * Happy path: a record is appended and flushed at each change. A rewrite makes a new file beside, flushes it, renames it, flushes the folder.
 * Failure modes: a record that is cut short or does not match its sum ends what is read: what stands behind it is lost, and reported. Where a
 * write or a flush failed the file is not appended to any more: the next change rewrites it.
 * Invariants: a file that has the name is whole up to its last flush. What is parsed may be any bytes.
 */
#include "jobs/jobs_internal.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/crc32c.h"

static const char magic[] = "leat-jobs 1\n";
#define MAGIC_BYTES (sizeof(magic) - 1)
#define FRAME_BYTES 8u
#define BODY_MAX    (JOB_SPEC_MAX + 4 * KIB)
#define JOBS_MAX    1024u /* in a file; the writer has far fewer */
#define COUNTS_MAX  32u   /* later versions may have more of them than this one */

/* --- bytes ------------------------------------------------------------------------------------------------------------------ */

static size_t record_begin(struct bytes_out *out)
{
    size_t at = out->len;
    bytes_put_u32(out, 0);
    bytes_put_u32(out, 0);
    return at;
}

static uint32_t sum(const uint8_t *frame, size_t body)
{
    return crc32c(crc32c(0, frame, 4), frame + FRAME_BYTES, body);
}

static void put_le32(uint8_t *at, uint32_t v)
{
    for (unsigned i = 0; i < 4; i++)
        at[i] = (uint8_t)(v >> 8 * i);
}

static void record_end(struct bytes_out *out, size_t at)
{
    if (out->failed)
        return;
    size_t body = out->len - at - FRAME_BYTES;
    put_le32(out->data + at, (uint32_t)body);
    put_le32(out->data + at + 4, sum(out->data + at, body));
}

static void put_state(const struct job *job, uint64_t now_ns, struct bytes_out *out)
{
    int64_t age_ns = job_has_ended(job) ? (int64_t)now_ns - job->ended_at_ns : 0;
    bytes_put_u64(out, job->id);
    bytes_put_u8(out, (uint8_t)job->state);
    bytes_put_u32(out, job->restarts);
    bytes_put_u64(out, (uint64_t)job->ended_ns);
    bytes_put_u64(out, (uint64_t)MAX(age_ns, (int64_t)0) / NS_PER_S);
    bytes_put_u8(out, JOB_COUNTS);
    for (unsigned i = 0; i < JOB_COUNTS; i++)
        bytes_put_u64(out, atomic_load_explicit(&job->counts[i], memory_order_relaxed));
    bytes_put_str(out, job->error);
}

void job_put_state(const struct job *job, uint64_t now_ns, struct bytes_out *out)
{
    size_t at = record_begin(out);
    bytes_put_u8(out, 'S');
    put_state(job, now_ns, out);
    record_end(out, at);
}

void job_put(const struct job *job, uint64_t now_ns, struct bytes_out *out)
{
    size_t at = record_begin(out);
    bytes_put_u8(out, 'J');
    put_state(job, now_ns, out);
    bytes_put_u64(out, (uint64_t)job->began_ns);
    bytes_put_str(out, job->kind);
    bytes_put_str(out, job->subject);
    bytes_put_u32(out, (uint32_t)job->spec_len);
    bytes_put(out, job->spec, job->spec_len);
    record_end(out, at);
}

void jobs_table_put(const struct jobs_table *t, uint64_t now_ns, struct bytes_out *out)
{
    bytes_put(out, magic, MAGIC_BYTES);
    size_t at = record_begin(out);
    bytes_put_u8(out, 'H');
    bytes_put_u64(out, t->next_id);
    record_end(out, at);
    for (struct list *node = t->all.prev; node != &t->all; node = node->prev)
        job_put(container_of(node, struct job, node), now_ns, out);
}

/* Everything but the id, from behind it. False: not what this version writes. */
static bool get_state(struct bytes_in *in, struct job *job, uint64_t now_ns)
{
    unsigned state = bytes_get_u8(in);
    job->restarts = bytes_get_u32(in);
    job->ended_ns = (int64_t)bytes_get_u64(in);
    uint64_t age_s = MIN(bytes_get_u64(in), (uint64_t)JOBS_ENDED_S);
    unsigned n = bytes_get_u8(in);
    for (unsigned i = 0; i < n && n <= COUNTS_MAX; i++) {
        uint64_t count = bytes_get_u64(in);
        if (i < JOB_COUNTS)
            atomic_store(&job->counts[i], count);
    }
    AUTO_FREE char *error = bytes_get_str(in, sizeof(job->error) - 1);
    if (in->bad || state >= JOB_STATES || n > COUNTS_MAX)
        return false;
    job->state = (enum job_state)state;
    job->ended_at_ns = (int64_t)now_ns - (int64_t)(age_s * NS_PER_S);
    snprintf(job->error, sizeof(job->error), "%s", error);
    return true;
}

static bool get_job(struct bytes_in *in, struct job *job, uint64_t now_ns)
{
    if (!get_state(in, job, now_ns) || job->state == JOB_FORGOTTEN)
        return false;
    job->began_ns = (int64_t)bytes_get_u64(in);
    AUTO_FREE char *kind = bytes_get_str(in, JOB_KIND_MAX);
    job->subject = bytes_get_str(in, JOB_SUBJECT_MAX);
    job->spec_len = bytes_get_u32(in);
    const void *spec = bytes_get(in, job->spec_len);
    if (bytes_in_done(in) < 0 || job->spec_len > JOB_SPEC_MAX)
        return false;
    snprintf(job->kind, sizeof(job->kind), "%s", kind);
    if (job_has_ended(job)) {
        job->spec_len = 0;
        return true;
    }
    job->spec = malloc(MAX(job->spec_len, (size_t)1));
    if (job->spec && job->spec_len)
        memcpy(job->spec, spec, job->spec_len);
    return job->spec != NULL;
}

static bool read_job(struct jobs_table *t, uint64_t id, struct bytes_in *in, uint64_t now_ns)
{
    const struct job *newest = list_first(&t->all, struct job, node);
    struct job *job = t->n < JOBS_MAX && (!newest || newest->id < id) ? calloc(1, sizeof(*job)) : NULL;
    if (!job)
        return false;
    job->id = id;
    if (!get_job(in, job, now_ns)) {
        job_free(job);
        return false;
    }
    job->durable = true;
    jobs_insert(t, job);
    return true;
}

static bool read_state(struct jobs_table *t, uint64_t id, struct bytes_in *in, uint64_t now_ns)
{
    struct job now = {.id = id}, *job = jobs_table_find(t, id);
    if (!job || !get_state(in, &now, now_ns) || bytes_in_done(in) < 0 || !job_may_move(job, now.state))
        return false;
    if (now.state != job->state)
        job_move(t, job, now.state);
    job->restarts = now.restarts;
    job->ended_ns = now.ended_ns;
    job->ended_at_ns = now.ended_at_ns;
    for (unsigned i = 0; i < JOB_COUNTS; i++)
        atomic_store(&job->counts[i], atomic_load(&now.counts[i]));
    memcpy(job->error, now.error, sizeof(job->error));
    if (job->state == JOB_FORGOTTEN) {
        list_remove(&job->node);
        t->n--;
        job_free(job);
    }
    return true;
}

static bool read_record(struct jobs_table *t, const uint8_t *body, size_t len, bool first, uint64_t now_ns)
{
    struct bytes_in in = bytes_in_of(body, len);
    unsigned type = bytes_get_u8(&in);
    uint64_t id = bytes_get_u64(&in);
    if (in.bad || id == 0 || id > INT64_MAX - (type != 'H') || first != (type == 'H'))
        return false;
    if (first) {
        t->next_id = id;
        return bytes_in_done(&in) == 0;
    }
    return type == 'J' ? read_job(t, id, &in, now_ns) : type == 'S' && read_state(t, id, &in, now_ns);
}

enum journal_verdict jobs_table_read(struct jobs_table *t, const void *data, size_t len, uint64_t now_ns,
                                     size_t *ret_good)
{
    const uint8_t *at = data;
    size_t pos = MAGIC_BYTES;
    *ret_good = 0;
    if (len < MAGIC_BYTES || memcmp(at, magic, MAGIC_BYTES) != 0)
        return JOURNAL_FOREIGN;
    for (bool first = true; len - pos >= FRAME_BYTES; first = false) {
        struct bytes_in frame = bytes_in_of(at + pos, FRAME_BYTES);
        size_t body = bytes_get_u32(&frame);
        if (body > BODY_MAX || body > len - pos - FRAME_BYTES ||
            bytes_get_u32(&frame) != sum(at + pos, body) ||
            !read_record(t, at + pos + FRAME_BYTES, body, first, now_ns))
            break;
        pos += FRAME_BYTES + body;
    }
    *ret_good = pos;
    return pos == len && pos > MAGIC_BYTES ? JOURNAL_WHOLE : JOURNAL_DAMAGED;
}

/* --- files ------------------------------------------------------------------------------------------------------------------- */

static int name_in(const char *dir, const char *name, char out[PATH_MAX])
{
    return (size_t)snprintf(out, PATH_MAX, "%s/%s", dir, name) < PATH_MAX ? 0 : -ENAMETOOLONG;
}

static int sync_folder(const char *dir)
{
    AUTO_CLOSE int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 || fsync(fd) < 0 ? -errno : 0;
}

static int make_folder(const char *dir)
{
    char parent[PATH_MAX];
    if (mkdir(dir, 0700) < 0)
        return errno == EEXIST ? 0 : -errno;
    int rc = name_in(dir, "..", parent);
    return rc < 0 ? rc : sync_folder(parent);
}

static int write_all(int fd, const uint8_t *data, size_t len, uint64_t offset)
{
    while (len) {
        ssize_t n = pwrite(fd, data, len, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        data += n;
        len -= (size_t)n;
        offset += (uint64_t)n;
    }
    return fdatasync(fd) < 0 ? -errno : 0;
}

int journal_load(const char *dir, uint8_t **ret_data, size_t *ret_len)
{
    char name[PATH_MAX];
    struct stat st;
    int rc = name_in(dir, "journal", name);
    AUTO_CLOSE int fd = rc == 0 ? open(name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC) : -1;
    if (fd < 0)
        return rc < 0 ? rc : -errno;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode) || st.st_size > (off_t)JOURNAL_MAX)
        return -EFBIG;
    AUTO_FREE uint8_t *data = malloc((size_t)st.st_size + 1);
    size_t len = 0;
    if (!data)
        return -ENOMEM;
    while (len < (size_t)st.st_size) {
        ssize_t n = pread(fd, data + len, (size_t)st.st_size - len, (off_t)len);
        if (n < 0 && errno != EINTR)
            return -errno;
        if (n == 0)
            break;
        len += n > 0 ? (size_t)n : 0;
    }
    *ret_data = TAKE_PTR(data);
    *ret_len = len;
    return 0;
}

void journal_drop(struct journal *j)
{
    if (j->fd >= 0)
        close(TAKE_FD(j->fd));
    j->bytes = 0;
}

int journal_append(struct journal *j, const void *data, size_t len)
{
    if (j->fd < 0)
        return -EBADF;
    int rc = write_all(j->fd, data, len, j->bytes);
    if (rc < 0)
        journal_drop(j);
    else
        j->bytes += len;
    return rc;
}

int journal_rewrite(struct journal *j, const void *data, size_t len)
{
    char name[PATH_MAX], next[PATH_MAX];
    int rc = name_in(j->dir, "journal", name);
    if (rc == 0)
        rc = name_in(j->dir, "journal#tmp", next);
    if (rc == 0)
        rc = make_folder(j->dir);
    if (rc < 0)
        return rc;
    AUTO_CLOSE int fd = open(next, O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    rc = write_all(fd, data, len, 0);
    if (rc == 0 && rename(next, name) < 0)
        rc = -errno;
    if (rc < 0) {
        unlink(next);
        return rc;
    }
    journal_drop(j);
    rc = sync_folder(j->dir);
    if (rc < 0)
        return rc;
    j->fd = TAKE_FD(fd);
    j->bytes = len;
    return 0;
}

int journal_keep(const char *dir)
{
    char name[PATH_MAX], kept[PATH_MAX];
    int rc = name_in(dir, "journal", name);
    if (rc == 0)
        rc = name_in(dir, "journal.unread", kept);
    if (rc < 0)
        return rc;
    unlink(kept);
    return link(name, kept) < 0 ? -errno : 0;
}

int journal_remove(const char *dir)
{
    char name[PATH_MAX];
    int rc = name_in(dir, "journal", name);
    return rc < 0 ? rc : unlink(name) < 0 ? -errno : sync_folder(dir);
}
