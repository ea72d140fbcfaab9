/* SPDX-License-Identifier: Apache-2.0 */
/* A folder as a bucket: order of lists, what is no object, what cannot be one, changes under a reader, kill -9 under a writer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "backend/backend.h"
#include "backend/dir/dir.h"
#include "base/testing.h"
#include "base/testing_pieces.h"
#include "store/testing.h"

#define BIG (9 * MIB + 123) /* three blocks of a read */

static char top[256], folder[300], big[BIG];

static void path_of(char out[400], const char *name)
{
    snprintf(out, 400, "%s/root/%s", top, name);
}

static const char *uri_of(const char *key)
{
    static char uri[2000];
    snprintf(uri, sizeof(uri), "%s/%s", folder, key);
    return uri;
}

static void write_file(const char *name, const void *data, size_t len)
{
    char path[400];
    path_of(path, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, len, f), len);
    fclose(f);
}

static int setup(void **state)
{
    char path[400];
    testing_mkdir(top);
    path_of(path, "");
    assert_int_equal(mkdir(path, 0777), 0);
    snprintf(folder, sizeof(folder), "file://%s/root", top);
    struct backend *b;
    struct leat_error err = {0};
    if (backend_new(&(struct backend_config){.folder = folder}, &b, &err) < 0)
        fail_msg("%s", err.message);
    *state = b;
    return 0;
}

static int teardown(void **state)
{
    backend_free(*state);
    testing_rmdir(top);
    return 0;
}

static int put(struct backend *b, const char *key, const void *data, size_t len, const char *headers,
               char *ret_etag, struct leat_error *err)
{
    FILE *f = tmpfile();
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, len, f), len);
    fflush(f);
    int rc = backend_put(b, uri_of(key), fileno(f), 0, len, headers, ret_etag, err);
    fclose(f);
    return rc;
}

static void put_ok(struct backend *b, const char *key, const char *text)
{
    struct leat_error err = {0};
    if (put(b, key, text, strlen(text), NULL, NULL, &err) < 0)
        fail_msg("%s: %s", key, err.message);
}

struct names {
    char text[4000];
    unsigned n, end_after;
};

static int keep(void *user, const struct backend_object *o)
{
    struct names *l = user;
    size_t at = strlen(l->text);
    snprintf(l->text + at, sizeof(l->text) - at, "%s%s", l->n ? " " : "",
             strrchr(o->uri, '\n') ? "?" : o->name);
    assert_true(o->prefix || (o->etag[0] == '"' && o->modified > 0));
    return ++l->n == l->end_after ? -EINTR : 0;
}

static const char *list(struct backend *b, const char *prefix, bool recursive)
{
    static struct names l;
    struct leat_error err = {0};
    l = (struct names){0};
    if (backend_list(b, uri_of(prefix), recursive, NULL, keep, &l, &err) < 0)
        fail_msg("%s", err.message);
    return l.text;
}

static void test_round(void **state)
{
    struct backend *b = *state;
    struct backend_stat stat;
    struct backend_file *f;
    struct leat_error err = {0};
    char etag[BACKEND_ETAG_MAX], *back = malloc(BIG);
    assert_int_equal(put(b, "deep/er/big.bin", big, BIG, "content-type:x/y\nx-amz-meta-a:b c\n", etag, &err),
                     0);
    assert_int_equal(backend_stat_object(b, uri_of("deep/er/big.bin"), &stat, NULL), 0);
    assert_string_equal(stat.etag, etag);
    assert_int_equal(stat.bytes, BIG);
    if (*stat.headers) /* a file system without attributes of this kind keeps none */
        assert_string_equal(stat.headers, "content-type:x/y\nx-amz-meta-a:b c\n");
    assert_int_equal(backend_open(b, uri_of("deep/er/big.bin"), etag, BIG, &f, NULL), 0);
    assert_int_equal(backend_pread(b, f, back, BIG, 0, NULL), BIG);
    assert_memory_equal(back, big, BIG);
    assert_int_equal(backend_pread(b, f, back, 1000, BIG - 7, NULL), 7);
    assert_int_equal(backend_pread(b, f, back, 1000, BIG, NULL), 0);
    backend_close(f);
    assert_int_equal(put(b, "empty", "", 0, NULL, NULL, NULL), 0);
    assert_int_equal(backend_stat_object(b, uri_of("empty"), &stat, NULL), 0);
    assert_int_equal(stat.bytes, 0);
    assert_string_equal(list(b, "", true), "deep/er/big.bin empty");
    assert_int_equal(backend_delete(b, uri_of("deep/er/big.bin"), NULL), 0);
    assert_int_equal(backend_delete(b, uri_of("deep/er/big.bin"), NULL), 0);
    assert_int_equal(backend_stat_object(b, uri_of("deep/er/big.bin"), &stat, &err), LEAT_NOT_FOUND);
    assert_non_null(strstr(err.message, "deep/er/big.bin"));
    assert_string_equal(list(b, "", false), "empty"); /* its folders are gone with it */
    free(back);
}

static void test_list(void **state)
{
    struct backend *b = *state;
    static const char *const keys[] = {"b",    "a/x", "a.txt",   "a-b",      "a0",   "a/sub/z",
                                       "a/su", "A",   "a/sub.y", "\xc3\xa4", "z/1/2"};
    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        put_ok(b, keys[i], keys[i]);
    assert_string_equal(list(b, "", true), "A a-b a.txt a/su a/sub.y a/sub/z a/x a0 b z/1/2 \xc3\xa4");
    assert_string_equal(list(b, "", false), "A a-b a.txt a/ a0 b z/ \xc3\xa4");
    assert_string_equal(list(b, "a", false), "-b .txt / 0"); /* what follows the prefix, as with S3 */
    assert_string_equal(list(b, "a/", true), "su sub.y sub/z x");
    assert_string_equal(list(b, "a/", false), "su sub.y sub/ x");
    assert_string_equal(list(b, "a/su", true), " b.y b/z");
    assert_string_equal(list(b, "a/sub/z", true), "");
    assert_string_equal(list(b, "z/1/", true), "2");
    assert_string_equal(list(b, "nothing/here", true), "");
    assert_string_equal(list(b, "a//x", true), "");
    assert_string_equal(list(b, "../", true), "");
    assert_string_equal(list(b, "a/../", true), "");
    struct names after = {0};
    assert_int_equal(backend_list(b, uri_of(""), true, "a/sub.y", keep, &after, NULL), 0);
    assert_string_equal(after.text, "a/sub/z a/x a0 b z/1/2 \xc3\xa4");
    after = (struct names){0};
    assert_int_equal(backend_list(b, uri_of(""), false, "a.txt", keep, &after, NULL), 0);
    assert_string_equal(after.text, "a/ a0 b z/ \xc3\xa4");
    struct names l = {.end_after = 3};
    struct leat_error err = {0};
    assert_int_equal(backend_list(b, uri_of(""), true, NULL, keep, &l, &err), -EINTR);
    assert_int_equal(l.n, 3);
    assert_int_equal(backend_list(b, "file:///elsewhere/", true, NULL, keep, &l, &err), LEAT_INVALID);
}

/* Nothing leads out, and nothing but regular files is there. */
static void test_outside(void **state)
{
    struct backend *b = *state;
    struct backend_stat stat;
    struct backend_file *f;
    struct leat_error err;
    char path[400], target[400];
    snprintf(path, sizeof(path), "%s/secret", top);
    FILE *secret = fopen(path, "w");
    fputs("secret", secret);
    fclose(secret);
    put_ok(b, "in/file", "x");
    snprintf(target, sizeof(target), "%s", top);
    path_of(path, "link");
    assert_int_equal(symlink("../secret", path), 0);
    path_of(path, "dirlink");
    assert_int_equal(symlink(target, path), 0);
    path_of(path, "loop");
    assert_int_equal(symlink(".", path), 0);
    path_of(path, "inside");
    assert_int_equal(symlink("in/file", path), 0);
    path_of(path, "pipe");
    assert_int_equal(mkfifo(path, 0666), 0);
    write_file(DIR_TEMP "1", "half", 4);
    assert_string_equal(list(b, "", true), "in/file");

    assert_int_equal(backend_stat_object(b, uri_of("link"), &stat, &err), LEAT_DENIED);
    assert_non_null(strstr(err.message, "links are not followed"));
    assert_int_equal(backend_open(b, uri_of("dirlink/secret"), NULL, 0, &f, &err), LEAT_DENIED);
    assert_int_equal(backend_open(b, uri_of("inside"), NULL, 0, &f, &err), LEAT_DENIED);
    assert_int_equal(backend_open(b, uri_of("../secret"), NULL, 0, &f, &err), LEAT_NOT_FOUND);
    assert_int_equal(backend_open(b, uri_of("in/../../secret"), NULL, 0, &f, &err), LEAT_NOT_FOUND);
    assert_int_equal(backend_open(b, uri_of("pipe"), NULL, 0, &f, &err), LEAT_NOT_FOUND);
    assert_int_equal(backend_open(b, uri_of("in"), NULL, 0, &f, &err), LEAT_NOT_FOUND);
    assert_int_equal(backend_open(b, uri_of("in/file/below"), NULL, 0, &f, &err), LEAT_NOT_FOUND);
    assert_int_equal(put(b, "dirlink/new", "x", 1, NULL, NULL, &err), LEAT_DENIED);
    assert_int_equal(put(b, "../new", "x", 1, NULL, NULL, &err), LEAT_INVALID);
    assert_int_equal(backend_delete(b, uri_of("../secret"), NULL), 0);
    assert_int_equal(backend_delete(b, uri_of("dirlink/secret"), NULL), 0);
    assert_int_equal(backend_delete(b, uri_of("link"), NULL), 0);
    snprintf(path, sizeof(path), "%s/secret", top);
    assert_int_equal(access(path, F_OK), 0);
}

static void test_keys(void **state)
{
    struct backend *b = *state;
    static char longest[1100], part[300];
    struct leat_error err;
    memset(part, 'p', 256);
    memset(longest, 'k', 1025);
    for (size_t i = 100; i < 1025; i += 100)
        longest[i] = '/';
    const char *const wrong[] = {"a//b", "a/", "/a", ".", "..", "a/./b", "a/..", part, longest, DIR_TEMP "x"};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        err.message[0] = 0;
        assert_int_equal(put(b, wrong[i], "x", 1, NULL, NULL, &err), LEAT_INVALID);
        assert_non_null(strstr(err.message, "cannot be stored in a folder: "));
    }
    longest[1024] = 0;
    put_ok(b, longest, "x");
    put_ok(b, ".hidden", "x");
    put_ok(b, "odd \"'\\%2F*\n\x7f name", "x");
    part[255] = 0;
    put_ok(b, part, "x");
    assert_int_equal(backend_delete(b, uri_of(longest), NULL), 0);
    /* One of the two. */
    put_ok(b, "both", "x");
    assert_int_equal(put(b, "both/below", "x", 1, NULL, NULL, &err), LEAT_INVALID);
    assert_non_null(strstr(err.message, "cannot both be"));
    put_ok(b, "two/below", "x");
    assert_int_equal(put(b, "two", "x", 1, NULL, NULL, &err), LEAT_INVALID);
    assert_non_null(strstr(err.message, "cannot both be"));
    assert_int_equal(backend_delete(b, uri_of("two/below"), NULL), 0);
    put_ok(b, "two", "x");
}

static unsigned ended;
static int last_rc;

static void done(struct backend_read *read, int rc, const struct leat_error *err)
{
    (void)read;
    assert_true(rc == 0 || err->message[0]);
    last_rc = rc;
    ended++;
}

static void test_reads(void **state)
{
    struct backend *b = *state;
    struct backend_file *f;
    struct backend_read reads[12];
    char *back = malloc(12 * BIG);
    assert_int_equal(put(b, "big", big, BIG, NULL, NULL, NULL), 0);
    assert_int_equal(backend_open(b, uri_of("big"), NULL, 0, &f, NULL), 0);
    ended = 0;
    last_rc = 0;
    for (unsigned i = 0; i < ARRAY_LEN(reads); i++) {
        reads[i] = (struct backend_read){
            .file = f, .offset = i, .bytes = BIG - i, .dst = back + i * BIG, .done = done};
        backend_submit(b, &reads[i]);
    }
    backend_cancel(b, &reads[5]);
    backend_wake(b);
    test_run_until(ended >= ARRAY_LEN(reads) - 1, assert_true(backend_wait(b, 100, 60000) >= 0));
    assert_int_equal(last_rc, 0);
    for (unsigned i = 0; i < ARRAY_LEN(reads); i++) {
        if (i != 5)
            assert_memory_equal(back + i * BIG, big + i, BIG - i);
    }
    assert_int_equal(backend_wait(b, 1, -1), 0); /* none is left */
    for (unsigned i = 0; i < ARRAY_LEN(reads); i++)
        backend_submit(b, &reads[i]);
    backend_free(b);
    assert_int_equal(ended, 2 * ARRAY_LEN(reads) - 1);
    backend_close(f);
    free(back);
    assert_int_equal(backend_new(&(struct backend_config){.folder = folder}, (struct backend **)state, NULL),
                     0);
}

/* Pieces that end in the middle of blocks, and that one call does not take. */
static void test_pieces(void **state)
{
    static const uint64_t mosts[] = {BIG, 3 * MIB, 70001, 9000};
    struct backend *b = *state;
    struct backend_file *f;
    struct test_pieces t[ARRAY_LEN(mosts)];
    struct backend_read reads[ARRAY_LEN(mosts)];
    assert_int_equal(put(b, "big", big, BIG, NULL, NULL, NULL), 0);
    assert_int_equal(backend_open(b, uri_of("big"), NULL, 0, &f, NULL), 0);
    for (unsigned round = 0; round < 2; round++) {
        ended = 0;
        last_rc = 0;
        for (unsigned i = 0; i < ARRAY_LEN(mosts); i++) {
            test_pieces_make(&t[i], BIG - i, mosts[i], i);
            reads[i] = (struct backend_read){.file = f,
                                             .offset = i,
                                             .bytes = BIG - i,
                                             .pieces = t[i].iov,
                                             .npieces = t[i].n,
                                             .done = done};
            backend_submit(b, &reads[i]);
        }
        for (unsigned i = 0; i < ARRAY_LEN(mosts) && round; i++) { /* nothing comes after that */
            backend_cancel(b, &reads[i]);
            memset(t[i].memory, TEST_GUARD, t[i].memory_bytes);
        }
        test_run_until(round || ended == ARRAY_LEN(mosts), assert_true(backend_wait(b, 100, 60000) >= 0));
        assert_int_equal(last_rc, 0);
        for (unsigned i = 0; i < ARRAY_LEN(mosts); i++) {
            test_pieces_check(&t[i], round ? NULL : big + i);
            test_pieces_free(&t[i]);
        }
    }
    assert_int_equal(ended, 0);
    backend_close(f);
}

#define OPS 64u

static int op_rc[OPS];
static unsigned op_ends[OPS];

static void op_done(struct backend_op *op, int rc, const struct leat_error *err)
{
    unsigned k = (unsigned)(uintptr_t)op->user;
    assert_true(rc == 0 || strstr(err->message, op->uri) || rc == LEAT_UNSUPPORTED);
    op_rc[k] = rc;
    op_ends[k]++;
    ended++;
}

/* Side by side: every second key is missing; some are cancelled, late, or not to be had here. */
static void test_ops(void **state)
{
    struct backend *b = *state;
    struct backend_op ops[OPS];
    struct backend_stat stats[OPS];
    char uris[OPS][400];
    for (unsigned round = 0; round < 3; round++) {
        ended = 0;
        memset(op_ends, 0, sizeof(op_ends));
        for (unsigned k = 0; k < OPS; k++) {
            snprintf(uris[k], sizeof(uris[k]), "%s/f/%u", folder, k);
            if (k % 2 == 0)
                put_ok(b, uris[k] + strlen(folder) + 1, uris[k]);
            ops[k] = (struct backend_op){.kind = round == 1 ? BACKEND_DELETE : BACKEND_STAT,
                                         .uri = uris[k],
                                         .stat = &stats[k],
                                         .deadline_ns = k == 8 ? 1 : 0,
                                         .done = op_done,
                                         .user = (void *)(uintptr_t)k};
            if (k == 10)
                ops[k].kind = BACKEND_COPY, ops[k].from = uris[k];
            backend_op_submit(b, &ops[k]);
        }
        for (unsigned k = 3; k < OPS; k += 30)
            backend_op_cancel(b, &ops[k]);
        if (round == 2) { /* the session ends first */
            backend_free(b);
            assert_int_equal(backend_new(&(struct backend_config){.folder = folder}, &b, NULL), 0);
            *state = b;
        }
        test_run_until(ended == OPS - 3, assert_true(backend_wait(b, 1, 1000) >= 0));
        for (unsigned k = 0; k < OPS && round < 2; k++) {
            bool cancelled = k % 30 == 3, none = k % 2 && round == 0;
            assert_int_equal(op_ends[k], !cancelled);
            if (!cancelled)
                assert_int_equal(op_rc[k], k == 8    ? LEAT_TIMED_OUT
                                           : k == 10 ? LEAT_UNSUPPORTED
                                           : none    ? LEAT_NOT_FOUND
                                                     : 0);
            if (!cancelled && op_rc[k] == 0 && round == 0)
                assert_int_equal(stats[k].bytes, strlen(uris[k]));
        }
        if (round == 1) /* what was deleted is gone */
            assert_string_equal(list(b, "", true), "f/10 f/8");
    }
}

/* A file that is replaced is read to its end as it was; one that is written to, or shortened, is stale. */
static void test_change(void **state)
{
    struct backend *b = *state;
    struct backend_file *f, *g;
    struct backend_stat stat;
    struct leat_error err = {0};
    char etag[BACKEND_ETAG_MAX], back[16], path[400];
    assert_int_equal(put(b, "k", "old bytes", 9, NULL, etag, NULL), 0);
    assert_int_equal(backend_open(b, uri_of("k"), etag, 9, &f, NULL), 0);
    put_ok(b, "k", "new");
    assert_int_equal(backend_pread(b, f, back, 9, 0, NULL), 9);
    assert_memory_equal(back, "old bytes", 9);
    assert_int_equal(backend_open(b, uri_of("k"), etag, 9, &g, &err), LEAT_STALE);
    backend_close(f);
    assert_int_equal(backend_stat_object(b, uri_of("k"), &stat, NULL), 0);
    assert_int_equal(backend_open(b, uri_of("k"), stat.etag, 3, &f, NULL), 0);
    path_of(path, "k");
    assert_int_equal(truncate(path, 2), 0);
    assert_int_equal(backend_pread(b, f, back, 3, 0, &err), LEAT_STALE);
    struct backend_read read = {.file = f, .bytes = 3, .dst = back, .done = done};
    last_rc = 0;
    backend_submit(b, &read);
    assert_int_equal(backend_wait(b, 1, 60000), 1);
    assert_int_equal(last_rc, LEAT_STALE);
    backend_close(f);
    /* Other bytes, as many. */
    assert_int_equal(backend_open(b, uri_of("k"), NULL, 2, &f, NULL), 0);
    write_file("k", "xy", 2);
    struct timespec times[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    assert_int_equal(backend_pread(b, f, back, 2, 0, &err), LEAT_STALE);
    assert_non_null(strstr(err.message, "changed while it was read"));
    backend_close(f);
}

/* Writers that are killed: the key has one of the versions, whole, and lists show nothing else. */
static void test_kill(void **state)
{
    struct backend *b = *state;
    enum { BYTES = 300000 };
    char *back = malloc(BYTES);
    put_ok(b, "first", "x");
    for (unsigned round = 0; round < 15; round++) {
        int pipes[2];
        assert_int_equal(pipe(pipes), 0);
        pid_t child = fork();
        if (child == 0) {
            FILE *f = tmpfile();
            for (unsigned char fill = 0;; fill++) {
                char *text = malloc(BYTES);
                memset(text, 'a' + fill % 26, BYTES);
                if (pwrite(fileno(f), text, BYTES, 0) != BYTES ||
                    backend_put(b, uri_of("some/key"), fileno(f), 0, BYTES, NULL, NULL, NULL) < 0 ||
                    write(pipes[1], "x", 1) != 1)
                    _exit(1);
                free(text);
            }
        }
        assert_int_equal(read(pipes[0], back, 1), 1);
        test_pause_us(round * 300);
        kill(child, SIGKILL);
        int status;
        waitpid(child, &status, 0);
        assert_true(WIFSIGNALED(status));
        close(pipes[0]);
        close(pipes[1]);
        struct backend_file *f;
        assert_int_equal(backend_open(b, uri_of("some/key"), NULL, BYTES, &f, NULL), 0);
        assert_int_equal(backend_pread(b, f, back, BYTES, 0, NULL), BYTES);
        for (unsigned i = 1; i < BYTES; i++)
            assert_int_equal(back[i], back[0]);
        backend_close(f);
        assert_string_equal(list(b, "", true), "first some/key");
    }
    free(back);
}

static void test_config(void **state)
{
    (void)state;
    struct backend *b;
    struct leat_error err;
    char text[400], path[400];
    assert_int_equal(backend_new(&(struct backend_config){.folder = "/srv"}, &b, &err), LEAT_INVALID);
    assert_int_equal(backend_new(&(struct backend_config){.folder = "file:///%zz"}, &b, &err), LEAT_INVALID);
    assert_int_equal(backend_new(&(struct backend_config){.folder = "file:///no/such"}, &b, &err), -ENOENT);
    assert_non_null(strstr(err.message, "/no/such"));
    path_of(path, "with space");
    assert_int_equal(mkdir(path, 0777), 0);
    snprintf(text, sizeof(text), "%s/with%%20space/", folder);
    assert_int_equal(backend_new(&(struct backend_config){.folder = text}, &b, &err), 0);
    write_file("with space/k", "x", 1);
    struct names l = {0};
    assert_int_equal(backend_list(b, text, true, NULL, keep, &l, NULL), 0);
    assert_string_equal(l.text, "k");
    backend_free(b);
    atomic_bool cancelled = true;
    assert_int_equal(
        backend_new(&(struct backend_config){.folder = folder, .cancelled = &cancelled}, &b, NULL), 0);
    assert_int_equal(backend_list(b, folder, true, NULL, keep, &l, &err), -ECANCELED);
    backend_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_round, setup, teardown),
        cmocka_unit_test_setup_teardown(test_list, setup, teardown),
        cmocka_unit_test_setup_teardown(test_outside, setup, teardown),
        cmocka_unit_test_setup_teardown(test_keys, setup, teardown),
        cmocka_unit_test_setup_teardown(test_reads, setup, teardown),
        cmocka_unit_test_setup_teardown(test_pieces, setup, teardown),
        cmocka_unit_test_setup_teardown(test_ops, setup, teardown),
        cmocka_unit_test_setup_teardown(test_change, setup, teardown),
        cmocka_unit_test_setup_teardown(test_kill, setup, teardown),
        cmocka_unit_test_setup_teardown(test_config, setup, teardown),
    };
    testing_fill(big, BIG, 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
