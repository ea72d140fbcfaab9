/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/s3/whole.h"

#include "base/crc32c.h"
#include "base/crc64.h"

static int head_arrived(struct request *rq, const struct http_reader *reader, const char *buf,
                        struct leat_error *err)
{
    struct whole *w = container_of(rq, struct whole, head);
    uint64_t sum;
    w->kind = WHOLE_NONE;
    if (s3_sum_parse(http_header(reader, buf, "x-amz-checksum-crc32c"), 4, &sum))
        w->kind = WHOLE_CRC32C;
    else if (s3_sum_parse(http_header(reader, buf, "x-amz-checksum-crc64nvme"), 8, &sum))
        w->kind = WHOLE_CRC64;
    w->sum = w->kind == WHOLE_NONE ? 0 : sum;
    return 0;
}

static void head_over(struct request *rq, int rc, const struct leat_error *err)
{
    struct whole *w = container_of(rq, struct whole, head);
    if (rc < 0) /* the bytes are good for all that is known; what is wrong with the object its blocks say */
        w->kind = WHOLE_NONE;
    w->over = true;
    w->settled(w->user);
}

int whole_new(struct session *b, struct target *target, const char *etag, uint64_t bytes,
              void (*settled)(void *user), void *user, struct whole **ret_whole)
{
    static const struct s3_header checked = {"x-amz-checksum-mode", "ENABLED"};
    struct whole *w = malloc(sizeof(*w));
    if (!w)
        return -ENOMEM;
    w->kind = WHOLE_ASKING;
    w->bytes = bytes;
    w->sum = 0;
    w->over = false;
    w->nruns = 0;
    w->settled = settled;
    w->user = user;
    w->head = (struct request){
        .b = b,
        .target = target,
        .say = {.method = "HEAD", .if_match = *etag ? etag : NULL, .headers = &checked, .nheaders = 1},
        .small = true,
        .repeatable = true,
        .on_head = head_arrived,
        .finished = head_over};
    request_start(&w->head);
    *ret_whole = w;
    return 0;
}

void whole_free(struct whole *w)
{
    if (!w)
        return;
    if (!w->over) /* else its session may be gone */
        request_cancel(&w->head);
    request_fini(&w->head);
    free(w);
}

/* b follows a. */
static void join(struct whole_run *a, const struct whole_run *b)
{
    uint64_t bytes = b->end - b->begin;
    a->crc = crc32c_combine(a->crc, b->crc, bytes);
    a->crc64 = crc64nvme_combine(a->crc64, b->crc64, bytes);
    a->end = b->end;
}

void whole_add(struct whole *w, uint64_t offset, const void *data, uint64_t bytes)
{
    if (w->kind == WHOLE_NONE)
        return;
    struct whole_run run = {.begin = offset, .end = offset + bytes};
    if (w->kind != WHOLE_CRC64)
        run.crc = crc32c(0, data, bytes);
    if (w->kind != WHOLE_CRC32C)
        run.crc64 = crc64nvme(0, data, bytes);
    unsigned at = w->nruns;
    while (at > 0 && w->runs[at - 1].begin >= run.end)
        at--;
    struct whole_run *before = at > 0 ? &w->runs[at - 1] : NULL, *after = at < w->nruns ? &w->runs[at] : NULL;
    if (before && before->end > run.begin) {
        w->kind = WHOLE_NONE; /* the same bytes twice: not what this is for */
    } else if (before && before->end == run.begin) {
        join(before, &run);
        if (after && before->end == after->begin) {
            join(before, after);
            memmove(after, after + 1, (--w->nruns - at) * sizeof(run));
        }
    } else if (after && run.end == after->begin) {
        join(&run, after);
        *after = run;
    } else if (w->nruns == WHOLE_RUNS_MAX) {
        w->kind = WHOLE_NONE;
    } else {
        memmove(&w->runs[at + 1], &w->runs[at], (w->nruns++ - at) * sizeof(run));
        w->runs[at] = run;
    }
}

bool whole_covered(const struct whole *w)
{
    return w->nruns == 1 && w->runs[0].begin == 0 && w->runs[0].end == w->bytes;
}

int whole_verdict(struct whole *w, struct leat_error *err)
{
    bool crc64 = w->kind == WHOLE_CRC64;
    if (w->kind != WHOLE_CRC32C && !crc64)
        return 0;
    if ((crc64 ? w->runs[0].crc64 : w->runs[0].crc) == w->sum)
        return 1;
    return error_set(err, LEAT_CORRUPT, "all of the object does not match the server's %s",
                     crc64 ? "CRC64NVME" : "CRC32C");
}
