/* SPDX-License-Identifier: Apache-2.0 */
/* testing.h: a folder for a test of jobs, under $TMPDIR or /var/tmp. What goes wrong fails the test that runs. */
#ifndef JOBS_TESTING_H
#define JOBS_TESTING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <sys/stat.h>

#include "base/base.h"

static inline void folder_make(char out[256])
{
    const char *top = getenv("TMPDIR");
    snprintf(out, 256, "%.200s/leat-jobs-XXXXXX", top ? top : "/var/tmp");
    assert_non_null(mkdtemp(out));
}

static inline int folder_unlink(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static inline void folder_remove(const char *dir)
{
    assert_int_equal(nftw(dir, folder_unlink, 16, FTW_DEPTH | FTW_PHYS), 0);
}

static inline void file_write(const char *dir, const char *name, const void *data, size_t len)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

static inline bool file_is(const char *dir, const char *name, unsigned mode)
{
    char path[PATH_MAX];
    struct stat st;
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return lstat(path, &st) == 0 && (st.st_mode & 07777) == mode;
}

#endif
