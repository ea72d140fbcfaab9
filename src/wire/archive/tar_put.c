/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tar_put.c: one header block for values that fit ustar; for the rest a member of type 'x' in front of it,
 * whose payload is records "LEN KEY=VALUE\n". A name is in the plain header as far as it goes: a reader
 * without pax sees a cut one.
 */
#include "wire/archive/tar_put.h"

#include <stdio.h>

#define SIZE_MAX_USTAR  077777777777ull /* eleven octal digits: 8 GiB - 1 */
#define MTIME_MAX_USTAR 077777777777ll

/* Where the parts stand in a block: POSIX.1-2017 pax, "ustar Interchange Format". */
enum {
    AT_NAME = 0,
    AT_MODE = 100,
    AT_UID = 108,
    AT_GID = 116,
    AT_SIZE = 124,
    AT_MTIME = 136,
    AT_CHECKSUM = 148,
    AT_TYPE = 156,
    AT_MAGIC = 257,
    NAME_BYTES = 100
};

/* Of "LEN KEY=VALUE\n", where LEN counts its own digits. */
static size_t record_bytes(const char *key, size_t value_len)
{
    size_t rest = strlen(key) + value_len + 3, len = rest + 1;
    for (;;) {
        size_t digits = 1;
        for (size_t n = len; n >= 10; n /= 10)
            digits++;
        if (rest + digits == len)
            return len;
        len = rest + digits;
    }
}

static char *record_put(char *at, const char *key, const char *value)
{
    size_t value_len = strlen(value);
    int n = sprintf(at, "%zu %s=", record_bytes(key, value_len), key);
    memcpy(at + n, value, value_len);
    at[(size_t)n + value_len] = '\n';
    return at + (size_t)n + value_len + 1;
}

/* A name that every reader understands alike: printable ASCII, and no longer than the header's field. */
static bool path_fits(const char *path)
{
    size_t len = strlen(path);
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)path[i] < 0x20 || (unsigned char)path[i] >= 0x7f)
            return false;
    return len <= NAME_BYTES;
}

/* Payload of the pax header; 0: none is needed. */
static size_t pax_bytes(const struct tar_put *e, char size[24], char mtime[24])
{
    size_t n = 0;
    if (!path_fits(e->path))
        n += record_bytes("path", strlen(e->path));
    if (e->bytes > SIZE_MAX_USTAR)
        n += record_bytes("size", (size_t)sprintf(size, "%llu", (unsigned long long)e->bytes));
    if (e->mtime > MTIME_MAX_USTAR)
        n += record_bytes("mtime", (size_t)sprintf(mtime, "%lld", (long long)e->mtime));
    for (unsigned i = 0; i < e->nrecords; i++)
        n += record_bytes(e->records[i].key, strlen(e->records[i].value));
    return n;
}

size_t tar_put_header_bytes(const struct tar_put *e)
{
    char size[24], mtime[24];
    bool sound = e->nrecords <= TAR_PUT_RECORDS && *e->path && strlen(e->path) < TAR_PATH_MAX;
    for (unsigned i = 0; sound && i < e->nrecords; i++)
        sound = strlen(e->records[i].key) + strlen(e->records[i].value) < TAR_PATH_MAX;
    if (!sound || e->bytes > INT64_MAX - TAR_PUT_MAX)
        return 0;
    size_t pax = pax_bytes(e, size, mtime);
    return TAR_BLOCK + (pax ? TAR_BLOCK + align_up(pax, TAR_BLOCK) : 0);
}

uint64_t tar_put_bytes(const struct tar_put *e)
{
    uint64_t header = tar_put_header_bytes(e);
    return header ? header + align_up(e->bytes, TAR_BLOCK) : 0;
}

static void octal(char *field, size_t len, uint64_t n)
{
    snprintf(field, len, "%0*llo", (int)len - 1, (unsigned long long)n);
}

/* A block of zeros becomes a header; name and prefix are there already. */
static void block_finish(char *block, char type, unsigned mode, uint64_t bytes, int64_t mtime)
{
    octal(block + AT_MODE, 8, mode);
    octal(block + AT_UID, 8, 0);
    octal(block + AT_GID, 8, 0);
    octal(block + AT_SIZE, 12, bytes > SIZE_MAX_USTAR ? 0 : bytes);
    octal(block + AT_MTIME, 12, (uint64_t)MAX(0, MIN(mtime, (int64_t)MTIME_MAX_USTAR)));
    block[AT_TYPE] = type;
    memcpy(block + AT_MAGIC,
           "ustar\0"
           "00",
           8);
    memset(block + AT_CHECKSUM, ' ', 8);
    unsigned sum = 0;
    for (size_t i = 0; i < TAR_BLOCK; i++)
        sum += (uint8_t)block[i];
    octal(block + AT_CHECKSUM, 7, sum & 0777777); /* six digits, NUL, and the last blank stays */
}

static char *pax_put(const struct tar_put *e, char *at, size_t pax, const char *size, const char *mtime)
{
    char *end = at + TAR_BLOCK + align_up(pax, TAR_BLOCK);
    strcpy(at + AT_NAME, "././@PaxHeader"); /* as Python has it: no real file has this name */
    block_finish(at, 'x', 0644, pax, 0);
    char *p = at + TAR_BLOCK;
    if (!path_fits(e->path))
        p = record_put(p, "path", e->path);
    if (e->bytes > SIZE_MAX_USTAR)
        p = record_put(p, "size", size);
    if (e->mtime > MTIME_MAX_USTAR)
        p = record_put(p, "mtime", mtime);
    for (unsigned i = 0; i < e->nrecords; i++)
        p = record_put(p, e->records[i].key, e->records[i].value);
    assert(p == at + TAR_BLOCK + pax);
    return end;
}

void tar_put_header(const struct tar_put *e, void *buf)
{
    char size[24], mtime[24], *at = buf;
    size_t len = strlen(e->path), pax = pax_bytes(e, size, mtime);
    memset(buf, 0, tar_put_header_bytes(e));
    if (pax)
        at = pax_put(e, at, pax, size, mtime);
    memcpy(at + AT_NAME, e->path, MIN(len, (size_t)NAME_BYTES));
    unsigned mode = e->mode ? e->mode & 07777 : e->type == '5' ? 0755 : 0644;
    block_finish(at, e->type, mode, e->bytes, e->mtime);
}
