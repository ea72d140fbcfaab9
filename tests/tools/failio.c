/* SPDX-License-Identifier: Apache-2.0 */
/*
 * failio.so, for LD_PRELOAD: a disk with a bad block, and memory that runs out.
 *
 *   FAILIO_PATH=a.npy FAILIO_OFFSET=1000000 LD_PRELOAD=failio.so leatd ...       reads that cover the offset give EIO
 *   FAILIO_FULL=leat-region FAILIO_FULL_NTH=3 ...                                the 3rd fallocate of such a file, and all behind it: ENOSPC
 *   FAILIO_DISK=/srv/store-a/ ...                                                 reads, writes and flushes of files there give EIO
 *   FAILIO_GATE=/tmp/fifo                                                         a write of 512 KiB and more adds a byte to /tmp/fifo.seen, and waits for one
 *                                                                                 from the FIFO
 *   FAILIO_OFF=/tmp/off                                                           while this file exists nothing fails
 *
 * A file is meant when its name (as /proc/self/fd has it; "/memfd:leat-region (deleted)", and "/#" of a nameless file in a tmpfs)
 * contains the text. pread, preadv2, pwrite, fsync, fdatasync and fallocate fail: io_uring passes this by, so the engine is to be
 * `worker`, and huge pages off where the memfd is meant.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static int meant(int fd, const char *text)
{
    char link[64], name[4096];
    const char *off = getenv("FAILIO_OFF");
    int saved = errno;
    if (!text || (off && access(off, F_OK) == 0)) {
        errno = saved;
        return 0;
    }
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, name, sizeof(name) - 1);
    errno = saved;
    name[n > 0 ? n : 0] = 0;
    return strstr(name, text) != NULL;
}

/* What may be read before the bad block: -1 all of it, else so many bytes. */
static ssize_t good_bytes(int fd, size_t bytes, off_t offset)
{
    const char *at = getenv("FAILIO_OFFSET");
    off_t bad = at ? atoll(at) : 0;
    if (bad < offset || (size_t)(bad - offset) >= bytes || !meant(fd, getenv("FAILIO_PATH")))
        return -1;
    return (ssize_t)((bad - offset) / 4096 * 4096);
}

#pragma GCC visibility push(default) /* what LD_PRELOAD is to find */

#define REAL(name)                                                                                           \
    static __typeof__(&name) real;                                                                           \
    if (!real)                                                                                               \
    *(void **)&real = dlsym(RTLD_NEXT, #name)

static int dead(int fd)
{
    if (!meant(fd, getenv("FAILIO_DISK")))
        return 0;
    errno = EIO;
    return 1;
}

static void pass_gate(size_t bytes)
{
    const char *name = getenv("FAILIO_GATE");
    char byte = 'x', seen[4096];
    int gate = name && bytes >= 512 * 1024 ? open(name, O_RDWR | O_CLOEXEC) : -1;
    if (gate >= 0) {
        snprintf(seen, sizeof(seen), "%s.seen", name);
        int fd = open(seen, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        if (fd < 0 || write(fd, &byte, 1) != 1 || close(fd) < 0)
            abort();
        while (read(gate, &byte, 1) < 0 && errno == EINTR)
            ;
        close(gate);
    }
}

ssize_t pwrite64(int fd, const void *buf, size_t bytes, off_t offset)
{
    REAL(pwrite64);
    pass_gate(bytes);
    return dead(fd) ? -1 : real(fd, buf, bytes, offset);
}

int fsync(int fd)
{
    REAL(fsync);
    return dead(fd) ? -1 : real(fd);
}

int fdatasync(int fd)
{
    REAL(fdatasync);
    return dead(fd) ? -1 : real(fd);
}

ssize_t pread64(int fd, void *buf, size_t bytes, off_t offset)
{
    REAL(pread64);
    if (dead(fd))
        return -1;
    ssize_t good = good_bytes(fd, bytes, offset);
    if (good == 0) {
        errno = EIO;
        return -1;
    }
    return real(fd, buf, good < 0 ? bytes : (size_t)good, offset);
}

/* pread64 where _FORTIFY_SOURCE knows how large the buffer is. */
ssize_t __pread64_chk(int fd, void *buf, size_t bytes, off_t offset, size_t size);
ssize_t __pread64_chk(int fd, void *buf, size_t bytes, off_t offset, size_t size)
{
    if (bytes > size)
        abort();
    return pread64(fd, buf, bytes, offset);
}

ssize_t preadv64v2(int fd, const struct iovec *iov, int n, off_t offset, int flags)
{
    REAL(preadv64v2);
    if (dead(fd))
        return -1;
    if (n > 0 && good_bytes(fd, iov[0].iov_len, offset) >= 0) {
        errno = EIO;
        return -1;
    }
    return real(fd, iov, n, offset, flags);
}

int fallocate64(int fd, int mode, off_t offset, off_t bytes)
{
    static _Atomic long seen;
    REAL(fallocate64);
    const char *nth = getenv("FAILIO_FULL_NTH");
    if (mode == 0 && meant(fd, getenv("FAILIO_FULL")) &&
        atomic_fetch_add(&seen, 1) + 1 >= (nth ? atol(nth) : 1)) {
        errno = ENOSPC;
        return -1;
    }
    return real(fd, mode, offset, bytes);
}
