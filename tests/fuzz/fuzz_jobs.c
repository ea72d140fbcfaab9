/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The journal of jobs. What is read of it can be written, and that is read again as the same. Each input is tried as it is, and with its sums made
 * right: else no change of a record is ever looked into.
 */
#include "base/clock.h"
#include "base/crc32c.h"
#include "jobs/jobs_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MAGIC_BYTES 12u
#define FRAME_BYTES 8u
#define NOW         (100000 * NS_PER_S)

static void repair(uint8_t *data, size_t size)
{
    for (size_t at = MAGIC_BYTES, body; at + FRAME_BYTES <= size; at += FRAME_BYTES + body) {
        struct bytes_in in = bytes_in_of(data + at, FRAME_BYTES);
        body = bytes_get_u32(&in);
        if (body > size - at - FRAME_BYTES)
            return;
        uint32_t sum = crc32c(crc32c(0, data + at, 4), data + at + FRAME_BYTES, body);
        for (unsigned i = 0; i < 4; i++)
            data[at + 4 + i] = (uint8_t)(sum >> 8 * i);
    }
}

static void check(const struct jobs_table *t)
{
    uint64_t before = UINT64_MAX;
    unsigned n = 0, running = 0;
    list_for_each (node, &t->all) {
        const struct job *job = container_of(node, struct job, node);
        if (job->id >= before || job->id >= t->next_id || job->state >= JOB_FORGOTTEN ||
            strlen(job->kind) > JOB_KIND_MAX || strlen(job->subject) > JOB_SUBJECT_MAX ||
            job->spec_len > JOB_SPEC_MAX || !job_has_ended(job) != (job->spec != NULL))
            abort();
        before = job->id;
        running += !job_has_ended(job);
        n++;
    }
    if (n != t->n || running != t->running)
        abort();
}

static void run(const uint8_t *data, size_t size)
{
    struct jobs_table t, again;
    AUTO_BYTES struct bytes_out first = {0}, second = {0};
    size_t good;
    jobs_table_init(&t);
    jobs_table_init(&again);
    jobs_table_read(&t, data, size, NOW, &good);
    if (good > size)
        abort();
    check(&t);
    jobs_table_put(&t, NOW, &first);
    if (jobs_table_read(&again, first.data, first.len, NOW, &good) != JOURNAL_WHOLE)
        abort();
    check(&again);
    jobs_table_put(&again, NOW, &second);
    if (first.len != second.len || memcmp(first.data, second.data, first.len) != 0)
        abort();
    struct job *job;
    while ((job = list_first(&t.all, struct job, node)) && !job_has_ended(job))
        if (!jobs_restart_step(&t, job, size % 2, 0, NOW, 1))
            break;
        else if (!jobs_end_step(&t, job, 0, "", false, NOW, 1))
            abort();
    jobs_table_fini(&t);
    jobs_table_fini(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    run(data, size);
    if (size <= MAGIC_BYTES)
        return 0;
    uint8_t *repaired = malloc(size);
    if (!repaired)
        return 0;
    memcpy(repaired, data, size);
    repair(repaired, size);
    run(repaired, size);
    free(repaired);
    return 0;
}
