/* SPDX-License-Identifier: Apache-2.0 */
/*
 * s3_files: reads a mounted bucket (s3fs, rclone mount) as files under http_get.h: a thread for each item under way, pread into its destination. What the
 * kernel kept of the file is dropped after each, so that no range comes out of its cache the next time.
 */
#include "http_get.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>

#define THREADS_MAX 256

static struct get_setup setup;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *mounted;

static void *reader(void *arg)
{
    (void)arg;
    for (;;) {
        pthread_mutex_lock(&lock);
        struct get_item *item = get_next();
        pthread_mutex_unlock(&lock);
        if (!item)
            return NULL;
        char path[64], file[512];
        get_path(item->number, path, sizeof(path));
        snprintf(file, sizeof(file), "%s%s", mounted, strchr(path + 1, '/'));
        AUTO_CLOSE int fd = open(file, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            get_die("%s: %s", file, strerror(errno));
        for (uint64_t got = 0; got < item->bytes;) {
            ssize_t n = pread(fd, item->dst + got, item->bytes - got, (off_t)(item->offset + got));
            if (n <= 0)
                get_die("%s at %llu: %s", file, (unsigned long long)(item->offset + got),
                        n ? strerror(errno) : "its end");
            got += (uint64_t)n;
        }
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        pthread_mutex_lock(&lock);
        get_done(item);
        pthread_mutex_unlock(&lock);
    }
}

static void run(void)
{
    pthread_t threads[THREADS_MAX];
    unsigned n = MIN(setup.inflight, (unsigned)THREADS_MAX);
    for (unsigned i = 0; i < n; i++)
        if (pthread_create(&threads[i], NULL, reader, NULL) != 0)
            get_die("no thread");
    for (unsigned i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
}

static void prepare(const struct get_setup *s)
{
    setup = *s;
    mounted = getenv("BENCH_MOUNTED");
    if (!mounted)
        get_die("BENCH_MOUNTED has to name the mounted folder");
}

int main(int argc, char **argv)
{
    return get_main(argc, argv, &(struct get_client){.prepare = prepare, .run = run});
}
