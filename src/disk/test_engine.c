/* SPDX-License-Identifier: Apache-2.0 */
/* test_engine.c: one suite over all engines: whatever is true of a read is true of each of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/testing.h"
#include "disk/direct.h"
#include "disk/disk.h"
#include "disk/engine.h"
#include "disk/testing_fault.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#define FILE_BYTES (2 * MIB + 4096 + 77) /* ends inside a block */
#define DEPTH      4
#define GUARD      0xA5

enum kind { URING, WORKER1, WORKER4, FAULT_OVER_WORKER, FAULT_OVER_URING };

static uint8_t *content;
static int file_fd;    /* content, buffered */
static int direct_fd;  /* the same by O_DIRECT; -1 where the scratch directory has none */
static uint32_t align; /* of direct_fd */

struct fixture {
    enum kind kind;
    struct disk_engine *e;
    int fd; /* the file as this engine names it */
};

static int scratch_file(void)
{
    const char *dir = getenv("TMPDIR");
    char path[512];
    snprintf(path, sizeof(path), "%s/leat-disk-XXXXXX", dir ? dir : "/var/tmp");
    int fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0)
        unlink(path);
    return fd;
}

static int engine_make(enum kind kind, const struct disk_fault_rules *rules, struct disk_engine **ret)
{
    struct disk_engine *lower = NULL;
    int r;
    switch (kind) {
    case URING:
        return disk_uring_new(DEPTH, ret);
    case WORKER1:
        return disk_worker_new(1, ret);
    case WORKER4:
        return disk_worker_new(4, ret);
    case FAULT_OVER_URING:
        r = disk_uring_new(DEPTH, &lower);
        break;
    default:
        r = disk_worker_new(4, &lower);
    }
    if (r == 0)
        r = disk_fault_new(lower, rules, ret);
    return r;
}

static int group_setup(void **state)
{
    content = malloc(FILE_BYTES);
    assert_non_null(content);
    for (uint64_t i = 0; i < FILE_BYTES; i++)
        content[i] = (uint8_t)(i * 2654435761u >> 13);
    file_fd = scratch_file();
    assert_true(file_fd >= 0);
    assert_int_equal(write(file_fd, content, FILE_BYTES), FILE_BYTES);
    assert_int_equal(fsync(file_fd), 0);
    struct disk_file_traits traits;
    assert_int_equal(disk_file_probe(file_fd, &traits), 0);
    align = traits.direct_align;
    direct_fd = align ? disk_open_direct(file_fd) : -1;
    if (direct_fd < 0)
        print_message("# no direct I/O in the scratch directory (%s): direct tests skip\n", traits.fs);
    return 0;
}

static int group_teardown(void **state)
{
    free(content);
    close(file_fd);
    if (direct_fd >= 0)
        close(direct_fd);
    return 0;
}

static int setup_with(void **state, const struct disk_fault_rules *rules)
{
    enum kind kind = *(const enum kind *)*state;
    struct fixture *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    f->kind = kind;
    f->fd = file_fd;
    int r = engine_make(kind, rules, &f->e);
    if (r < 0 && (kind == URING || kind == FAULT_OVER_URING))
        print_message("# skipped: io_uring is refused here: %s\n", strerror(-r));
    else
        assert_int_equal(r, 0);
    *state = f;
    return 0;
}

static int setup(void **state)
{
    return setup_with(state, &(struct disk_fault_rules){0});
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    disk_engine_free(f->e);
    free(f);
    return 0;
}

#define FIXTURE(state)                                                                                       \
    struct fixture *f = *(state);                                                                            \
    if (!f->e)                                                                                               \
    skip()

/* A request that counts its endings. */
struct probe_read {
    struct disk_read r;
    unsigned done;
    int64_t result;
    uint8_t *buf; /* bytes + one guard byte on either side */
};

static unsigned order_next;

static void on_done(struct disk_read *req, int64_t result)
{
    struct probe_read *p = container_of(req, struct probe_read, r);
    p->done++;
    p->result = result;
    order_next++;
}

static void read_init(struct probe_read *p, int fd, uint64_t offset, uint64_t bytes)
{
    *p =
        (struct probe_read){.r = {.fd = fd, .offset = offset, .bytes = bytes, .buffer = -1, .done = on_done}};
    p->buf = malloc(bytes + 2);
    assert_non_null(p->buf);
    memset(p->buf, GUARD, bytes + 2);
    p->r.dst = p->buf + 1;
}

/* The right bytes for its result, and not one written beside them. */
static void read_check(struct probe_read *p, int64_t result)
{
    assert_int_equal(p->done, 1);
    assert_int_equal(p->result, result);
    int64_t n = MAX(result, (int64_t)0);
    if (n > 0)
        assert_memory_equal(p->r.dst, content + p->r.offset, n);
    assert_int_equal(p->buf[0], GUARD);
    for (uint64_t i = (uint64_t)n; i <= p->r.bytes; i++)
        assert_int_equal(p->buf[1 + i], GUARD);
    free(p->buf);
    p->buf = NULL;
}

static void submit_one(struct disk_engine *e, struct probe_read *p)
{
    struct disk_read *req = &p->r;
    assert_int_equal(e->ops->submit(e, &req, 1), 0);
}

static int64_t expected(uint64_t offset, uint64_t bytes)
{
    return offset >= FILE_BYTES ? 0 : (int64_t)MIN(bytes, FILE_BYTES - offset);
}

static void test_odd_sizes(void **state)
{
    FIXTURE(state);
    static const uint64_t reads[][2] = {
        {0, 1},       {1, 1},          {4095, 2},           {511, 4097},
        {3, MIB + 5}, {0, FILE_BYTES}, {FILE_BYTES - 1, 1}, {FILE_BYTES - 77, 77},
        {12345, 0},
    };
    for (unsigned i = 0; i < ARRAY_LEN(reads); i++) {
        struct probe_read p;
        read_init(&p, f->fd, reads[i][0], reads[i][1]);
        submit_one(f->e, &p);
        assert_int_equal(p.done, 0); /* never inside submit */
        assert_int_equal(f->e->in_flight, 1);
        assert_int_equal(f->e->ops->reap(f->e, 1), 1);
        assert_int_equal(f->e->in_flight, 0);
        read_check(&p, (int64_t)reads[i][1]);
    }
    assert_int_equal(atomic_load(&f->e->reads), ARRAY_LEN(reads));
    assert_int_equal(atomic_load(&f->e->errors), 0);
}

static void test_end_of_file(void **state)
{
    FIXTURE(state);
    static const uint64_t reads[][2] = {
        {FILE_BYTES, 10},        {FILE_BYTES + MIB, 10}, {FILE_BYTES - 1, 2},
        {FILE_BYTES - 77, 4096}, {0, FILE_BYTES + 5},
    };
    for (unsigned i = 0; i < ARRAY_LEN(reads); i++) {
        struct probe_read p;
        read_init(&p, f->fd, reads[i][0], reads[i][1]);
        submit_one(f->e, &p);
        assert_int_equal(f->e->ops->reap(f->e, 1), 1);
        read_check(&p, expected(reads[i][0], reads[i][1]));
    }
    assert_int_equal(atomic_load(&f->e->errors), 0);
}

static void test_many_beyond_depth(void **state)
{
    FIXTURE(state);
    enum { N = 200 };
    struct probe_read *p = calloc(N, sizeof(*p));
    struct disk_read *reqs[N];
    assert_non_null(p);
    for (unsigned i = 0; i < N; i++) {
        read_init(&p[i], f->fd, i * 10007, 1 + i * 53);
        reqs[i] = &p[i].r;
    }
    assert_int_equal(f->e->ops->submit(f->e, reqs, N / 2), 0);
    assert_int_equal(f->e->ops->submit(f->e, reqs + N / 2, N - N / 2), 0);
    assert_int_equal(f->e->in_flight, N);
    int total = 0, n;
    do {
        n = f->e->ops->reap(f->e, 3);
        assert_true(n > 0);
        total += n;
        assert_int_equal(f->e->in_flight, N - total);
    } while (total < N);
    assert_int_equal(total, N);
    assert_int_equal(f->e->ops->reap(f->e, 1), 0); /* asks for more than there is: does not hang */
    for (unsigned i = 0; i < N; i++)
        read_check(&p[i], expected(i * 10007, 1 + i * 53));
    free(p);
}

static void test_errors_are_results(void **state)
{
    FIXTURE(state);
    struct probe_read bad, good;
    read_init(&bad, 1 << 20, 0, 100);
    read_init(&good, f->fd, 5, 100);
    submit_one(f->e, &bad);
    submit_one(f->e, &good);
    assert_int_equal(f->e->ops->reap(f->e, 2), 2);
    read_check(&bad, -EBADF);
    read_check(&good, 100);
    assert_int_equal(atomic_load(&f->e->errors), 1);
    assert_int_equal(atomic_load(&f->e->bytes), 100);
}

/* done() that submits the next, and frees its own request. */
struct chain {
    struct disk_engine *e;
    int fd;
    unsigned left, done;
    uint8_t buf[64];
};
struct chain_read {
    struct disk_read r;
    struct chain *c;
};

static void chain_next(struct chain *c);

static void chain_done(struct disk_read *req, int64_t result)
{
    struct chain_read *cr = container_of(req, struct chain_read, r);
    struct chain *c = cr->c;
    assert_int_equal(result, sizeof(c->buf));
    free(cr);
    c->done++;
    if (c->left > 0)
        chain_next(c);
}

static void chain_next(struct chain *c)
{
    struct chain_read *cr = calloc(1, sizeof(*cr));
    assert_non_null(cr);
    cr->c = c;
    cr->r = (struct disk_read){.fd = c->fd,
                               .offset = 64 * c->left--,
                               .dst = c->buf,
                               .bytes = sizeof(c->buf),
                               .buffer = -1,
                               .done = chain_done};
    struct disk_read *req = &cr->r;
    assert_int_equal(c->e->ops->submit(c->e, &req, 1), 0);
}

static void test_done_submits_again(void **state)
{
    FIXTURE(state);
    struct chain c = {.e = f->e, .fd = f->fd, .left = 50};
    chain_next(&c);
    /* Driven as an event loop does it: sleep on the descriptor, reap without waiting. */
    for (unsigned turns = 0; c.done < 50 && turns < 100000; turns++) {
        struct pollfd p = {.fd = f->e->ops->event_fd(f->e), .events = POLLIN};
        assert_int_equal(poll(&p, 1, 10000), 1);
        assert_true(f->e->ops->reap(f->e, 0) >= 0);
    }
    assert_int_equal(c.done, 50);
    struct pollfd p = {.fd = f->e->ops->event_fd(f->e), .events = POLLIN};
    assert_int_equal(poll(&p, 1, 0), 0); /* nothing left: not readable */
}

static void test_direct(void **state)
{
    FIXTURE(state);
    if (direct_fd < 0)
        skip();
    uint64_t bytes = align_up(FILE_BYTES, 4096) + 4096;
    uint8_t *buf = aligned_alloc(4096, bytes);
    assert_non_null(buf);
    uint64_t last = align_down(FILE_BYTES, 4096);
    const uint64_t reads[][2] = {
        {0, 4096}, {8192, MIB}, {last, 4096}, {0, bytes}, {last + 4096, 4096}, {last - 4096, 3 * 4096},
    };
    for (unsigned i = 0; i < ARRAY_LEN(reads); i++) {
        memset(buf, GUARD, bytes);
        struct probe_read p = {.r = {.fd = direct_fd,
                                     .offset = reads[i][0],
                                     .bytes = reads[i][1],
                                     .dst = buf,
                                     .buffer = -1,
                                     .done = on_done}};
        submit_one(f->e, &p);
        assert_int_equal(f->e->ops->reap(f->e, 1), 1);
        assert_int_equal(p.result, expected(reads[i][0], reads[i][1]));
        if (p.result > 0)
            assert_memory_equal(buf, content + reads[i][0], p.result);
    }
    free(buf);
}

static void test_registered_buffer(void **state)
{
    FIXTURE(state);
    const uint64_t bytes = MIB;
    uint8_t *mem = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(mem, MAP_FAILED);
    int buffer = f->e->ops->buffer_register(f->e, mem, bytes);
    if (f->kind == URING && buffer >= 0)
        assert_int_equal(atomic_load(&f->e->registered_bytes), bytes);
    /* Whether or not it was taken, an index, -1, and a wrong place for that index all read the same. */
    uint8_t elsewhere[300];
    struct probe_read p[3] = {
        {.r = {.fd = f->fd,
               .offset = 1000,
               .bytes = 65536,
               .dst = mem + 4096,
               .buffer = MAX(buffer, -1),
               .done = on_done}},
        {.r = {.fd = f->fd,
               .offset = 9,
               .bytes = 300,
               .dst = elsewhere,
               .buffer = MAX(buffer, -1),
               .done = on_done}},
        {.r = {.fd = f->fd, .offset = 77, .bytes = 100, .dst = mem, .buffer = -1, .done = on_done}},
    };
    for (unsigned i = 0; i < ARRAY_LEN(p); i++)
        submit_one(f->e, &p[i]);
    assert_int_equal(f->e->ops->reap(f->e, 3), 3);
    for (unsigned i = 0; i < ARRAY_LEN(p); i++) {
        assert_int_equal(p[i].result, p[i].r.bytes);
        assert_memory_equal(p[i].r.dst, content + p[i].r.offset, p[i].r.bytes);
    }
    if (f->kind == URING && buffer >= 0)
        assert_int_equal(atomic_load(&f->e->fixed_reads), 1);
    f->e->ops->buffer_unregister(f->e, buffer);
    assert_int_equal(atomic_load(&f->e->registered_bytes), 0);
    /* A stale index is no harm either. */
    struct probe_read late = {.r = p[0].r};
    submit_one(f->e, &late);
    assert_int_equal(f->e->ops->reap(f->e, 1), 1);
    assert_int_equal(late.result, 65536);
    munmap(mem, bytes);
}

/* What is larger than one kernel read goes in pieces, through a buffer that needs several slots as well. */
static void test_pieces(void **state)
{
    FIXTURE(state);
    disk_piece_max = 64 * KIB;
    uint64_t bytes = align_up(FILE_BYTES, 64 * KIB);
    uint8_t *mem = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(mem, MAP_FAILED);
    int buffer = f->e->ops->buffer_register(f->e, mem, bytes);
    for (unsigned shift = 0; shift < 3; shift++) {
        uint64_t at = shift * 4096, want = bytes - at;
        struct probe_read p = {
            .r = {.fd = f->fd, .dst = mem + at, .bytes = want, .buffer = MAX(buffer, -1), .done = on_done}};
        memset(mem, GUARD, bytes);
        submit_one(f->e, &p);
        assert_int_equal(f->e->ops->reap(f->e, 1), 1);
        assert_int_equal(p.done, 1);
        assert_int_equal(p.result, expected(0, want));
        assert_memory_equal(mem + at, content, p.result);
    }
    if (f->kind == URING && buffer >= 0)
        assert_true(atomic_load(&f->e->fixed_reads) >= 3 * (FILE_BYTES / (64 * KIB)));
    f->e->ops->buffer_unregister(f->e, buffer);
    int again = f->e->ops->buffer_register(f->e, mem, bytes);
    assert_int_equal(again, buffer); /* every slot came back */
    f->e->ops->buffer_unregister(f->e, again);
    disk_piece_max = GIB;
    munmap(mem, bytes);
}

/* free() with everything still in flight: each ends once, and no byte is written afterwards. */
static void test_free_in_flight(void **state)
{
    FIXTURE(state);
    enum { N = 64 };
    struct probe_read *p = calloc(N, sizeof(*p));
    struct disk_read *reqs[N];
    assert_non_null(p);
    for (unsigned i = 0; i < N; i++) {
        read_init(&p[i], f->fd, i * 4096, 64 * KIB);
        reqs[i] = &p[i].r;
    }
    assert_int_equal(f->e->ops->submit(f->e, reqs, N), 0);
    disk_engine_free(f->e);
    f->e = NULL;
    for (unsigned i = 0; i < N; i++)
        memset(p[i].buf, 0x11, 64 * KIB + 2);
    test_pause_us(20000); /* a late write would show below, or to ASan */
    for (unsigned i = 0; i < N; i++) {
        assert_int_equal(p[i].done, 1);
        assert_true(p[i].result == 64 * KIB || p[i].result == -ECANCELED);
        for (unsigned b = 0; b < 64 * KIB + 2; b++)
            if (p[i].buf[b] != 0x11)
                fail_msg("byte %u of request %u written after free", b, i);
        free(p[i].buf);
    }
    free(p);
}

/* Rules of testing_fault.h. */
static unsigned pattern(struct disk_engine *e, int fd, unsigned n, int64_t *ret_results)
{
    struct probe_read p[16];
    for (unsigned i = 0; i < n; i++) {
        read_init(&p[i], fd, i, 100);
        submit_one(e, &p[i]);
    }
    assert_int_equal(e->ops->reap(e, n), n);
    for (unsigned i = 0; i < n; i++) {
        ret_results[i] = p[i].result;
        read_check(&p[i], p[i].result);
    }
    return n;
}

static void test_fault_rules(void **state)
{
    enum kind kind = *(const enum kind *)*state;
    struct disk_engine *e;
    int64_t got[16];
    if (kind == FAULT_OVER_URING && (engine_make(URING, NULL, &e) < 0))
        skip();
    else if (kind == FAULT_OVER_URING)
        disk_engine_free(e);

    struct disk_fault_rules rules = {.fail_nth = 3, .fail_code = -ENOSPC, .short_nth = 5, .fail_every = 8};
    assert_int_equal(engine_make(kind, &rules, &e), 0);
    pattern(e, file_fd, 16, got);
    for (unsigned nth = 1; nth <= 16; nth++)
        assert_int_equal(got[nth - 1], nth == 3 || nth % 8 == 0 ? -ENOSPC : nth == 5 ? 50 : 100);
    assert_int_equal(atomic_load(&e->errors), 3);
    disk_engine_free(e);

    /* The default code is EIO; a delay loses nothing and shows on the descriptor. */
    rules = (struct disk_fault_rules){.fail_nth = 1, .delay_ns = 3000000};
    assert_int_equal(engine_make(kind, &rules, &e), 0);
    struct probe_read p[2];
    for (unsigned i = 0; i < 2; i++) {
        read_init(&p[i], file_fd, 0, 100);
        submit_one(e, &p[i]);
    }
    unsigned before = order_next;
    for (unsigned turns = 0; e->in_flight > 0 && turns < 1000; turns++) {
        struct pollfd pfd = {.fd = e->ops->event_fd(e), .events = POLLIN};
        assert_int_equal(poll(&pfd, 1, 10000), 1);
        assert_true(e->ops->reap(e, 0) >= 0);
    }
    assert_int_equal(order_next, before + 2);
    read_check(&p[0], -EIO);
    read_check(&p[1], 100);

    /* Freed while they are held back: they end, once. */
    read_init(&p[0], file_fd, 0, 100);
    submit_one(e, &p[0]);
    disk_engine_free(e);
    assert_int_equal(p[0].done, 1);
    free(p[0].buf);
}

/* In a child of a user with RLIMIT_MEMLOCK: exit code 0 if registration was refused and counted; reads work. */
static int memlock_child(void)
{
    struct disk_engine *e;
    struct rlimit limit = {MIB / 2, MIB / 2}; /* the ring itself is charged too, since 6.14 */
    if (setrlimit(RLIMIT_MEMLOCK, &limit) < 0 || (geteuid() == 0 && setresuid(65534, 65534, 65534) < 0))
        return 77;
    if (disk_uring_new(DEPTH, &e) < 0)
        return 77;
    void *mem = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (mem == MAP_FAILED || e->ops->buffer_register(e, mem, MIB) != -ENOMEM)
        return 1;
    if (atomic_load(&e->register_failed) != 1 || atomic_load(&e->register_errno) != ENOMEM)
        return 2;
    struct probe_read p = {.r = {.fd = file_fd, .dst = mem, .bytes = MIB, .buffer = -1, .done = on_done}};
    struct disk_read *req = &p.r;
    if (e->ops->submit(e, &req, 1) < 0 || e->ops->reap(e, 1) != 1 || p.result != MIB ||
        memcmp(mem, content, MIB) != 0)
        return 3;
    disk_engine_free(e);
    return 0;
}

static void test_memlock_refused(void **state)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(memlock_child());
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) {
        print_message("# skipped: io_uring is refused here, or the limit cannot be set\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void test_probe(void **state)
{
    struct disk_file_traits t;
    assert_int_equal(disk_file_probe(-1, &t), -EBADF);
    assert_int_equal(disk_open_direct(1 << 20), -EBADF);
    AUTO_CLOSE int mem = memfd_create("test", MFD_CLOEXEC);
    assert_int_equal(disk_file_probe(mem, &t), 0);
    assert_string_equal(t.fs, "tmpfs");
    assert_int_equal(t.direct_align, 0); /* although the kernel accepts the flag */
    assert_false(t.network);
    assert_int_equal(disk_file_probe(file_fd, &t), 0);
    assert_true((t.direct_align & (t.direct_align - 1)) == 0);
}

static void test_cached(void **state)
{
    assert_int_equal(disk_cached_permille(-1, 0, 1), -EBADF);
    assert_int_equal(disk_cached_permille(file_fd, FILE_BYTES, 100), 1000); /* nothing to read */
    assert_int_equal(disk_cached_permille(file_fd, 0, 0), 1000);
    uint8_t byte;
    struct disk_file_traits t;
    assert_int_equal(disk_file_probe(file_fd, &t), 0);
    posix_fadvise(file_fd, 0, 0, POSIX_FADV_DONTNEED);
    int cold = disk_cached_permille(file_fd, 0, FILE_BYTES);
    if (cold > 0 || (strcmp(t.fs, "ext4") != 0 && strcmp(t.fs, "overlay") != 0)) {
        print_message("# skipped: %s does not drop its cache on advice, or does not tell (%d)\n", t.fs, cold);
        skip();
    }
    assert_int_equal(disk_cached_permille(file_fd, 0, UINT64_MAX), 0); /* asking brought nothing in */
    posix_fadvise(file_fd, 0, 0, POSIX_FADV_RANDOM);
    for (uint64_t at = 0; at < MIB; at += 4096)
        assert_int_equal(pread(file_fd, &byte, 1, (off_t)at), 1);
    posix_fadvise(file_fd, 0, 0, POSIX_FADV_NORMAL);
    assert_int_equal(disk_cached_permille(file_fd, 0, MIB), 1000);
    assert_int_equal(disk_cached_permille(file_fd, 5, 2 * MIB - 5), 500);
    assert_int_equal(disk_cached_permille(file_fd, MIB, MIB), 0);
}

static void test_choice(void **state)
{
    struct disk_engine *e;
    assert_int_equal(disk_engine_new("floppy", 4, &e), -EINVAL);
    assert_int_equal(disk_engine_new("worker", 0, &e), -EINVAL);
    unsetenv("LEAT_DISK");
    assert_int_equal(disk_engine_new("auto", 4, &e), 0);
    const char *automatic = e->ops->name;
    disk_engine_free(e);
    int r = disk_uring_new(4, &e);
    assert_string_equal(automatic, r == 0 ? "uring" : "worker");
    if (r == 0)
        disk_engine_free(e);
    setenv("LEAT_DISK", "worker", 1);
    assert_int_equal(disk_engine_new("auto", 4, &e), 0);
    assert_string_equal(e->ops->name, "worker");
    assert_int_equal(e->depth, 4);
    disk_engine_free(e);
    setenv("LEAT_DISK", "nonsense", 1);
    assert_int_equal(disk_engine_new("auto", 4, &e), -EINVAL);
    assert_int_equal(disk_engine_new("worker", 4, &e), 0); /* what is asked for by name is not overridden */
    disk_engine_free(e);
    unsetenv("LEAT_DISK");
    disk_engine_free(NULL);
}

static const enum kind kinds[] = {URING, WORKER1, WORKER4, FAULT_OVER_WORKER, FAULT_OVER_URING};
#define EACH(test, kind, name)                                                                               \
    {                                                                                                        \
        "disk " name ": " #test, test, setup, teardown, (void *)&kinds[kind]                                 \
    }
#define ALL(kind, name)                                                                                      \
    EACH(test_odd_sizes, kind, name), EACH(test_end_of_file, kind, name),                                    \
        EACH(test_many_beyond_depth, kind, name), EACH(test_errors_are_results, kind, name),                 \
        EACH(test_done_submits_again, kind, name), EACH(test_direct, kind, name),                            \
        EACH(test_registered_buffer, kind, name), EACH(test_pieces, kind, name),                             \
        EACH(test_free_in_flight, kind, name)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ALL(URING, "uring"),
        ALL(WORKER1, "worker(1)"),
        ALL(WORKER4, "worker(4)"),
        ALL(FAULT_OVER_WORKER, "fault/worker"),
        ALL(FAULT_OVER_URING, "fault/uring"),
        {"fault rules over worker", test_fault_rules, NULL, NULL, (void *)&kinds[FAULT_OVER_WORKER]},
        {"fault rules over uring", test_fault_rules, NULL, NULL, (void *)&kinds[FAULT_OVER_URING]},
        cmocka_unit_test(test_memlock_refused),
        cmocka_unit_test(test_probe),
        cmocka_unit_test(test_cached),
        cmocka_unit_test(test_choice),
    };
    return cmocka_run_group_tests_name("disk_engine", tests, group_setup, group_teardown);
}
