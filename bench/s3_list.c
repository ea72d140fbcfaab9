/* SPDX-License-Identifier: Apache-2.0 */
/*
 * s3_list: listing under bench/run's lines. "list" runs backend_list against the server again and again; "parse" takes the same pages apart
 * without a server, which is its limit.
 *
 *   s3_list ENDPOINT URI PAGE...     the pages are files: what the server gives, one after another
 *     list SECONDS | parse SECONDS   -> {"bytes", "ns", "samples"}: bytes of XML where parsed, keys
 */
#include "http_get.h"

#include "backend/backend.h"
#include "base/clock.h"
#include "wire/s3/s3.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

static uint64_t keys, bytes;

_Noreturn void get_die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    exit(1);
}

static int listed(void *user, const struct backend_object *object)
{
    (void)user;
    keys += object->bytes > 0;
    return 0;
}

static void parse_page(const char *page, size_t len)
{
    struct leat_error err;
    struct s3_list *l = s3_list_new();
    if (!l || s3_list_feed(l, page, len, true, &err) < 0)
        get_die("%s", l ? err.message : "no memory");
    for (size_t i = 0; i < s3_list_count(l); i++)
        keys += s3_list_at(l, i).bytes > 0;
    bytes += len;
    s3_list_free(l);
}

int main(int argc, char **argv)
{
    char line[64];
    struct leat_error err = {0};
    struct backend *b;
    if (argc < 4 ||
        backend_new(&(struct backend_config){.endpoint = argv[1], .region = "us-east-1"}, &b, &err) < 0)
        get_die("s3_list ENDPOINT URI PAGE...: %s", err.message);
    int npages = argc - 3;
    char **pages = calloc((size_t)npages, sizeof(*pages));
    size_t *lens = calloc((size_t)npages, sizeof(*lens));
    if (!pages || !lens)
        get_die("no memory");
    for (int i = 0; i < npages; i++) {
        AUTO_CLOSE int fd = open(argv[3 + i], O_RDONLY | O_CLOEXEC);
        struct stat st;
        if (fd < 0 || fstat(fd, &st) < 0)
            get_die("%s: %s", argv[3 + i], strerror(errno));
        lens[i] = (size_t)st.st_size;
        pages[i] = mmap(NULL, lens[i], PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
    }
    printf("{\"ready\": true}\n");
    fflush(stdout);
    while (fgets(line, sizeof(line), stdin)) {
        char *space = strchr(line, ' ');
        uint64_t start = clock_now_ns(), end = start + (uint64_t)(atof(space ? space : "0") * 1e9);
        keys = bytes = 0;
        do {
            if (line[0] == 'l' && backend_list(b, argv[2], true, NULL, listed, NULL, &err) < 0)
                get_die("%s", err.message);
            for (int i = 0; line[0] == 'p' && i < npages; i++)
                parse_page(pages[i], lens[i]);
        } while (clock_now_ns() < end);
        printf("{\"bytes\": %llu, \"ns\": %llu, \"samples\": %llu}\n", (unsigned long long)bytes,
               (unsigned long long)(clock_now_ns() - start), (unsigned long long)keys);
        fflush(stdout);
    }
    backend_free(b);
    return 0;
}
