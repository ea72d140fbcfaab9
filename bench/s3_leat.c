/* SPDX-License-Identifier: Apache-2.0 */
/*
 * s3_leat: Leat's client for S3 under http_get.h: one session, `inflight` reads under way. Small objects are opened, read and closed, each
 * time; the large one is opened once, as a data set's shard is. Every request is signed, and pinned to the ETag of the first answer.
 */
#include "http_get.h"

#include "backend/backend.h"

#include <stdio.h>

struct flight {
    struct backend_read read;
    struct backend_file *file;
    struct get_item *item;
};

static struct get_setup setup;
static struct backend *session;
static struct backend_file *large;
static struct flight *flights;
static unsigned under_way;

static void open_object(uint64_t number, struct backend_file **ret_file)
{
    char path[64], uri[80];
    struct leat_error err;
    get_path(number, path, sizeof(path));
    snprintf(uri, sizeof(uri), "s3:/%s", path);
    if (backend_open(session, uri, NULL, setup.of ? setup.of : setup.bytes, ret_file, &err) < 0)
        get_die("%s", err.message);
}

static void prepare(const struct get_setup *s)
{
    char endpoint[64];
    struct leat_error err = {0};
    setup = *s;
    snprintf(endpoint, sizeof(endpoint), "%s://%s:%u", setup.ca_file ? "https" : "http", setup.host,
             setup.port);
    struct backend_config config = {.connections = setup.connections,
                                    .block_bytes = setup.block,
                                    .endpoint = endpoint,
                                    .region = "us-east-1",
                                    .ca_file = setup.ca_file};
    flights = calloc(setup.inflight, sizeof(*flights));
    if (!flights || backend_new(&config, &session, &err) < 0)
        get_die("%s", err.message);
    if (setup.of)
        open_object(0, &large);
}

static bool begin(void);

static void landed(struct backend_read *read, int rc, const struct leat_error *err)
{
    struct flight *f = container_of(read, struct flight, read);
    if (rc < 0)
        get_die("%s", err->message);
    if (f->file != large)
        backend_close(f->file);
    under_way--;
    get_done(f->item);
    begin();
}

static bool begin(void)
{
    struct get_item *item = get_next();
    if (!item)
        return false;
    struct flight *f = &flights[item->index];
    f->item = item;
    f->file = large;
    if (!large)
        open_object(item->number, &f->file);
    f->read = (struct backend_read){
        .file = f->file, .offset = item->offset, .bytes = item->bytes, .dst = item->dst, .done = landed};
    under_way++;
    backend_submit(session, &f->read);
    return true;
}

static void run(void)
{
    while (begin())
        ;
    while (under_way) {
        int rc = backend_wait(session, 1, -1);
        if (rc < 0)
            get_die("waiting: %s", strerror(-rc));
    }
}

int main(int argc, char **argv)
{
    return get_main(argc, argv, &(struct get_client){.prepare = prepare, .run = run});
}
