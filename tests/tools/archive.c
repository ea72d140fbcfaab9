/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leat-archive list FILE.zip | cat FILE.zip MEMBER | tar: our reader of ZIP and our writer of tar headers, for a test that compares them
 * with Python's zipfile and tarfile. `tar` reads lines "PATH TYPE BYTES MTIME [KEY VALUE]...", fields ended by tabs, and writes the archive
 * without its payload: holes stand in its place. Exit status 1 with one line on stderr: what is wrong.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>

#include "wire/archive/tar_put.h"
#include "wire/archive/zip.h"

static int wanted(int fd, void *buf, uint64_t bytes, uint64_t offset)
{
    return pread(fd, buf, bytes, (off_t)offset) == (ssize_t)bytes ? 0 : -EIO;
}

/* Small steps on purpose: a stream gives the same whatever its pieces are. */
static int write_payload(int fd, const struct zip_member *m, uint64_t at, struct leat_error *err)
{
    struct zip_stream *s = NULL;
    char in[509], out[251];
    uint64_t left = m->stored_bytes;
    size_t used, made;
    int rc = zip_stream_new(m, &s);
    while (rc == 0) {
        size_t n = MIN(left, sizeof(in));
        rc = wanted(fd, in, n, at);
        if (rc == 0)
            rc = zip_stream_feed(s, in, n, &used, out, sizeof(out), &made, err);
        if (rc < 0)
            break;
        fwrite(out, 1, made, stdout);
        at += used;
        left -= used;
    }
    zip_stream_free(s);
    return rc;
}

static int each_member(int fd, uint64_t bytes, const char *member, struct leat_error *err)
{
    static char buf[ZIP_WANT_MAX];
    static struct zip_member m, found;
    struct zip_parser p;
    bool have = false;
    int rc = zip_parser_init(&p, bytes, err);
    while (rc >= 0 && rc != ZIP_END) {
        rc = wanted(fd, buf, p.want, p.offset);
        if (rc == 0)
            rc = zip_parser_feed(&p, buf, p.want, &m, err);
        if (rc != ZIP_MEMBER)
            continue;
        if (!member)
            printf("%s\t%d\t%d\t%d\t%u\t%" PRIu64 "\t%" PRIu64 "\t%" PRId64 "\n", m.path, m.directory,
                   m.encrypted, m.method, m.crc, m.bytes, m.stored_bytes, m.mtime);
        else if (!strcmp(m.path, member)) {
            found = m;
            have = true;
        }
    }
    if (rc < 0 || !member)
        return MIN(rc, 0);
    uint64_t at = 0;
    if (!have)
        return error_set(err, LEAT_NOT_FOUND, "no such member");
    rc = zip_member_readable(&found, err);
    if (rc == 0)
        rc = wanted(fd, buf, ZIP_LOCAL_BYTES, found.header_offset);
    if (rc == 0)
        rc = zip_data_offset(&found, buf, p.directory_offset, &at, err);
    return rc < 0 ? rc : write_payload(fd, &found, at, err);
}

static int write_tar(struct leat_error *err)
{
    static char line[64 * 1024], header[TAR_PUT_MAX];
    while (fgets(line, sizeof(line), stdin)) {
        char *rest = line, *field[4 + 2 * TAR_PUT_RECORDS];
        unsigned n = 0;
        line[strcspn(line, "\n")] = 0;
        while (n < ARRAY_LEN(field) && rest)
            field[n++] = strsep(&rest, "\t");
        if (n < 4)
            return error_set(err, LEAT_INVALID, "a line with %u fields", n);
        struct tar_put e = {.path = field[0],
                            .type = *field[1],
                            .bytes = strtoull(field[2], NULL, 10),
                            .mtime = strtoll(field[3], NULL, 10)};
        for (unsigned i = 4; i + 1 < n; i += 2) {
            e.records[e.nrecords].key = field[i];
            e.records[e.nrecords++].value = field[i + 1];
        }
        size_t len = tar_put_header_bytes(&e);
        if (len == 0)
            return error_set(err, LEAT_INVALID, "does not fit a header");
        if (len > sizeof(header) || tar_put_bytes(&e) != len + e.bytes + tar_put_padding(e.bytes))
            abort();
        tar_put_header(&e, header);
        if (write(1, header, len) != (ssize_t)len || lseek(1, (off_t)(tar_put_bytes(&e) - len), SEEK_CUR) < 0)
            return -errno;
    }
    off_t end = lseek(1, TAR_END_BYTES, SEEK_CUR);
    return end < 0 || ftruncate(1, end) < 0 ? -errno : 0;
}

int main(int argc, char **argv)
{
    struct leat_error err = {0};
    struct stat st;
    AUTO_CLOSE int fd = argc > 2 ? open(argv[2], O_RDONLY | O_CLOEXEC) : -1;
    int rc = -EINVAL;
    if (argc == 2 && !strcmp(argv[1], "tar"))
        rc = write_tar(&err);
    else if (fd >= 0 && fstat(fd, &st) == 0 && (argc == 3 || argc == 4))
        rc = each_member(fd, (uint64_t)st.st_size, argc == 4 ? argv[3] : NULL, &err);
    if (rc < 0)
        fprintf(stderr, "%s: %s\n", leat_strerror(rc), err.message);
    return rc < 0;
}
