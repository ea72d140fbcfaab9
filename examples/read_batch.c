/* SPDX-License-Identifier: Apache-2.0 */
/*
 * read_batch.c: one epoch of a dataset in shuffled batches, and how fast it came.
 *
 *     cc read_batch.c $(pkg-config --cflags --libs leat) -o read_batch && ./read_batch photos/ 64
 */
#include <leat/leat.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static struct leat_error err;

static void must(int rc)
{
    if (rc < 0) {
        fprintf(stderr, "read_batch: %s: %s\n", leat_strerror(rc), err.message);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    struct leat_client *client;
    struct leat_ws *ws;
    struct leat_view *view;
    struct leat_iter *epoch;
    struct leat_batch *batch;
    struct timespec start, end;
    unsigned long long samples = 0, bytes = 0;

    if (argc < 2) {
        fprintf(stderr, "usage: read_batch DATASET [BATCH_SIZE]\n");
        return 2;
    }
    must(leat_connect(NULL, &client, &err)); /* starts a daemon for this job unless one runs */
    must(leat_open(client, argv[1], NULL, &ws, &err));
    must(leat_load(ws,
                   &(struct leat_view_options){.size = sizeof(struct leat_view_options),
                                               .batch_size = argc > 2 ? (unsigned)atoi(argv[2]) : 64},
                   &view, &err));
    must(leat_iterate(
        view,
        &(struct leat_iter_options){.size = sizeof(struct leat_iter_options), .seed = 1, .keep_tail = 1},
        &epoch, &err));

    timespec_get(&start, TIME_UTC);
    for (;;) {
        must(leat_next(epoch, 0, &batch, &err)); /* bytes are here, and their checksums matched */
        if (!batch)
            break;
        for (unsigned f = 0; f < leat_ws_fields(ws); f++) {
            uint64_t n;
            leat_batch_data(batch, f, &n); /* train on it */
            bytes += n;
        }
        samples += leat_batch_size(batch);
        leat_batch_release(batch);
    }
    timespec_get(&end, TIME_UTC);

    double s = (double)(end.tv_sec - start.tv_sec) + (double)(end.tv_nsec - start.tv_nsec) / 1e9;
    printf("%llu samples, %.1f MB in %.3f s: %.0f samples/s, %.2f GB/s\n", samples, (double)bytes / 1e6, s,
           (double)samples / s, (double)bytes / s / 1e9);
    leat_iter_close(epoch);
    leat_view_close(view);
    leat_close(ws);
    leat_disconnect(client);
    return 0;
}
