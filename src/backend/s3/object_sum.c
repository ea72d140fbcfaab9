/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/s3/object_sum.h"

static int head_arrived(struct s3_exchange *rq, const struct http_reader *reader, const char *buf,
                        struct leat_error *err)
{
    struct object_sum *w = container_of(rq, struct object_sum, head);
    w->crc = s3_crc_of(reader, buf);
    w->state = w->crc.kind == S3_CRC_NONE ? WHOLE_GIVEN_UP : WHOLE_TOLD;
    return 0;
}

static void head_over(struct s3_exchange *rq, int rc, const struct leat_error *err)
{
    struct object_sum *w = container_of(rq, struct object_sum, head);
    if (rc < 0) /* the bytes are good for all that is known; what is wrong with the object its blocks say */
        w->state = WHOLE_GIVEN_UP;
    w->over = true;
    w->settled(w->user);
}

int object_sum_new(struct s3_session *b, struct target *target, const char *etag, uint64_t bytes,
                   void (*settled)(void *user), void *user, struct object_sum **ret_whole)
{
    static const struct s3_header checked = {"x-amz-checksum-mode", "ENABLED"};
    struct object_sum *w = malloc(sizeof(*w));
    if (!w)
        return -ENOMEM;
    w->state = WHOLE_ASKING;
    w->bytes = bytes;
    w->crc.kind = S3_CRC_NONE;
    w->over = false;
    w->nruns = 0;
    w->settled = settled;
    w->user = user;
    w->head = (struct s3_exchange){
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

void object_sum_free(struct object_sum *w)
{
    if (!w)
        return;
    if (!w->over) /* else its session may be gone */
        request_cancel(&w->head);
    request_fini(&w->head);
    free(w);
}

/* b follows a. */
static void join(struct object_sum_run *a, const struct object_sum_run *b)
{
    s3_crcs_join(&a->crcs, &b->crcs, b->end - b->begin);
    a->end = b->end;
}

void s3_crcs_add_pieces(struct s3_crcs *crcs, enum s3_crc_kind kind, struct pieces place, uint64_t bytes)
{
    char *at;
    for (uint64_t n; (n = pieces_next(&place, bytes, &at)); bytes -= n)
        s3_crcs_add(crcs, kind, at, n);
}

void object_sum_add(struct object_sum *w, uint64_t offset, struct pieces place, uint64_t bytes)
{
    if (w->state == WHOLE_GIVEN_UP)
        return;
    struct object_sum_run run = {.begin = offset, .end = offset + bytes};
    s3_crcs_add_pieces(&run.crcs, w->crc.kind, place, bytes);
    unsigned at = w->nruns;
    while (at > 0 && w->runs[at - 1].begin >= run.end)
        at--;
    struct object_sum_run *before = at > 0 ? &w->runs[at - 1] : NULL,
                          *after = at < w->nruns ? &w->runs[at] : NULL;
    if (before && before->end > run.begin) {
        w->state = WHOLE_GIVEN_UP; /* the same bytes twice: not what this is for */
    } else if (before && before->end == run.begin) {
        join(before, &run);
        if (after && before->end == after->begin) {
            join(before, after);
            memmove(after, after + 1, (--w->nruns - at) * sizeof(run));
        }
    } else if (after && run.end == after->begin) {
        join(&run, after);
        *after = run;
    } else if (w->nruns == OBJECT_SUM_RUNS_MAX) {
        w->state = WHOLE_GIVEN_UP;
    } else {
        memmove(&w->runs[at + 1], &w->runs[at], (w->nruns++ - at) * sizeof(run));
        w->runs[at] = run;
    }
}

bool object_sum_covered(const struct object_sum *w)
{
    return w->nruns == 1 && w->runs[0].begin == 0 && w->runs[0].end == w->bytes;
}

int object_sum_verdict(struct object_sum *w, struct leat_error *err)
{
    if (w->state != WHOLE_TOLD)
        return 0;
    if (w->runs[0].crcs.of[w->crc.kind] == w->crc.value)
        return 1;
    return error_set(err, LEAT_CORRUPT, "all of the object does not match the server's %s",
                     s3_crc_name(w->crc.kind));
}
