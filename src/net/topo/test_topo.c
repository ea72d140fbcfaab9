/* SPDX-License-Identifier: Apache-2.0 */
/* test_topo.c: real hosts, out of tests/topo/, and malformed trees. */
#include "net/topo/topo.h"

#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "failalloc.h"
#include "net/flow/stripe.h"

static struct topo *topo_of(const char *text, size_t len)
{
    struct topo_text *tree;
    struct topo_files files;
    struct topo *topo;
    assert_int_equal(topo_text_new(text, len, &tree, &files, NULL), 0);
    assert_int_equal(topo_read(&files, &topo, NULL), 0);
    topo_text_free(tree);
    return topo;
}

static struct topo *load(const char *name)
{
    static char text[256 * 1024];
    char path[500];
    snprintf(path, sizeof(path), "%s/%s.tree", TOPO_TREES, name);
    FILE *in = fopen(path, "re");
    assert_non_null(in);
    size_t len = fread(text, 1, sizeof(text), in);
    fclose(in);
    assert_in_range(len, 1, sizeof(text) - 1);
    return topo_of(text, len);
}

static struct topo_cpus cpus_of(const char *list)
{
    struct topo_cpus cpus;
    assert_int_equal(topo_cpus_parse(list, &cpus), 0);
    return cpus;
}

static void is_cpus(const struct topo_cpus *cpus, const char *list)
{
    char text[TOPO_TEXT_MAX];
    assert_string_equal(topo_cpus_format(cpus, text, sizeof(text)), list);
}

static const struct topo_nic *nic_of(const struct topo *topo, const char *name)
{
    char text[48];
    for (unsigned i = 0; i < topo->nnics; i++)
        if (strcmp(topo_nic_name(&topo->nics[i], text), name) == 0)
            return &topo->nics[i];
    fail_msg("no NIC %s", name);
    return NULL;
}

static void clean_env(void)
{
    static const char *const names[] = {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
                                        "LOCAL_RANK", "LEAT_RAILS"};
    for (unsigned i = 0; i < ARRAY_LEN(names); i++)
        unsetenv(names[i]);
}

/* "a b | c": what is used, then what stands by. cpus NULL: all. */
static const struct topo_choice *choose(const struct topo *topo, enum topo_kind kind, int gpu,
                                        const char *cpus, const char *rails, char out[400])
{
    static struct topo_choice c;
    struct topo_cpus allowed = cpus ? cpus_of(cpus) : topo->online;
    const struct topo_request request = {.kind = kind, .gpu = gpu, .cpus = &allowed, .rails = rails};
    struct leat_error err = {0};
    if (topo_choose(topo, &request, &c, &err) != 0)
        fail_msg("%s", err.message);
    size_t at = 0;
    out[0] = '\0';
    for (unsigned i = 0; i < c.n; i++)
        at += (size_t)snprintf(out + at, 400 - at, "%s%s%s", i ? " " : "", i == c.use ? "| " : "",
                               c.rails[i].name);
    return &c;
}

/* --- lists of cores ----------------------------------------------------------------------------------------------- */

static void lists_of_cores(void **state)
{
    static const char *const good[][2] = {{"", ""},           {"0", "0"},        {"0-3,8\n", "0-3,8"},
                                          {"8,0-3", "0-3,8"}, {"0,1,2", "0-2"},  {"8190-9000", "8190-8191"},
                                          {"9000", ""},       {"63-64", "63-64"}};
    static const char *const bad[] = {"x",    "1-",       "-1",  "3-1", "1;2",
                                      "1--2", "99999999", "1 2", "0x1", "1-99999999"};
    for (unsigned i = 0; i < ARRAY_LEN(good); i++) {
        struct topo_cpus cpus = cpus_of(good[i][0]);
        is_cpus(&cpus, good[i][1]);
    }
    struct topo_cpus kept = cpus_of("5");
    for (unsigned i = 0; i < ARRAY_LEN(bad); i++)
        assert_int_equal(topo_cpus_parse(bad[i], &kept), LEAT_INVALID);
    is_cpus(&kept, "5");
    char small[12];
    struct topo_cpus many = cpus_of("0,2,4,6,8,10");
    assert_string_equal(topo_cpus_format(&many, small, sizeof(small)), "0,2,4,6...");
}

static void pinning_never_widens(void **state)
{
    struct topo_cpus now, all = cpus_of("0-8191"), elsewhere = cpus_of("8000-8191"), back;
    assert_int_equal(topo_cpus_allowed(&now), 0);
    assert_false(topo_pin(pthread_self(), &all));
    assert_false(topo_pin(pthread_self(), &elsewhere));
    assert_false(topo_pin(pthread_self(), &(struct topo_cpus){0}));
    assert_int_equal(topo_cpus_allowed(&back), 0);
    assert_true(topo_cpus_equal(&now, &back));
    if (topo_cpus_count(&now) < 2)
        skip();
    struct topo_cpus one = {0};
    for (unsigned i = 0; topo_cpus_empty(&one); i++)
        one.bits[i / 64] = now.bits[i / 64] & (1ull << (i % 64));
    assert_true(topo_pin(pthread_self(), &one));
    assert_false(topo_pin(pthread_self(), &all));
    assert_int_equal(topo_cpus_allowed(&back), 0); /* the test's thread is the first */
    assert_true(topo_cpus_equal(&one, &back));
    assert_int_equal(sched_setaffinity(0, sizeof(now), (cpu_set_t *)(void *)&now), 0);
}

static void threads_of_this_host(void **state)
{
    struct topo_cpus before, after;
    assert_int_equal(topo_cpus_allowed(&before), 0);
    setenv("LEAT_PIN", "0", 1);
    topo_pin_to_gpu(pthread_self());
    topo_pin_to_rail(pthread_self(), "lo");
    assert_int_equal(topo_cpus_allowed(&after), 0);
    assert_true(topo_cpus_equal(&before, &after));
    unsetenv("LEAT_PIN");
    topo_pin_to_rail(pthread_self(), "no such:1");
    topo_pin_to_rail(pthread_self(), "lo"); /* it is virtual: on no node */
    assert_int_equal(topo_cpus_allowed(&after), 0);
    assert_true(topo_cpus_equal(&before, &after));
    const struct topo *topo = topo_host();
    assert_non_null(topo);
    assert_ptr_equal(topo, topo_host());
    for (unsigned i = 0; i < topo->nnics; i++)
        if (strcmp(topo->nics[i].netdev, "lo") == 0)
            assert_true(topo->nics[i].naddresses > 0 || !topo->nics[i].netdev_up);
}

static void the_choice_here(void **state)
{
    const struct topo_request request = {.kind = TOPO_TCP, .gpu = TOPO_GPU_FROM_ENV};
    const struct topo_request bad = {
        .kind = TOPO_TCP, .gpu = TOPO_GPU_FROM_ENV, .rails = "a-name-that-is-longer-than-that-of-any-device"};
    struct topo_choice *choice = NULL;
    assert_int_equal(topo_choose_here(&request, &choice, NULL), 0);
    for (unsigned i = 0; i < choice->n; i++)
        assert_in_range(choice->rails[i].naddresses, 1, TOPO_ADDRESSES);
    free(choice);
    choice = NULL;
    if (topo_host()->nnics)
        assert_int_equal(topo_choose_here(&bad, &choice, NULL), LEAT_INVALID);
    assert_null(choice);
}

/* --- hosts ------------------------------------------------------------------------------------------------------------ */

static void a_dgx_a100(void **state)
{
    struct topo *topo = load("dgx_a100");
    char got[400];
    assert_int_equal(topo->ngpus, 8);
    assert_int_equal(topo->nnodes, 8);
    const struct topo_nic *nic = nic_of(topo, "mlx5_5:1");
    assert_string_equal(nic->netdev, "ib5");
    assert_string_equal(nic->state, "ACTIVE");
    assert_true(nic->up && nic->infiniband);
    assert_int_equal(nic->rate_mbps, 200000);
    assert_int_equal(nic->place.node, 7);
    assert_int_equal(nic->ngids, 1);
    assert_int_equal(topo_pcie_mbps(nic->pcie_gts10, nic->pcie_width), 252061);
    is_cpus(&nic->place.cpus, "112-127,240-255");
    assert_string_equal(topo->gpus[3].uuid, "GPU-aaaaaaa3-0000-1111-2222-333333333333");
    /* Each GPU with each NIC of its own pair of switches, of another, and of the Ethernet ones. */
    for (int g = 0; g < 8; g++)
        for (int n = 0; n < 10; n++) {
            char name[16];
            snprintf(name, sizeof(name), "mlx5_%d:1", n);
            enum topo_distance want = n == g ? TOPO_PIX : n / 2 == g / 2 ? TOPO_PXB : TOPO_SYS;
            assert_int_equal(topo_distance(topo, &topo->gpus[g].place, &nic_of(topo, name)->place), want);
        }
    assert_int_equal(topo_distance(topo, &topo->gpus[0].place, &topo->gpus[0].place), TOPO_SELF);
    const struct topo_choice *c = choose(topo, TOPO_RDMA, 2, NULL, NULL, got);
    assert_string_equal(
        got, "mlx5_2:1 | mlx5_3:1 mlx5_0:1 mlx5_1:1 mlx5_8:1 mlx5_4:1 mlx5_5:1 mlx5_6:1 mlx5_7:1 mlx5_9:1");
    assert_int_equal(c->rails[0].penalty_ns, 0);
    assert_int_equal(c->rails[0].nominal_bytes_per_s, 25000000000);
    assert_int_equal(c->rails[2].penalty_ns, STRIPE_NUMA_PENALTY_NS);
    is_cpus(&c->rails[2].pin, "16-31,144-159"); /* the GPU's, not those of the far NIC */
    is_cpus(&c->pin, "16-31,144-159");
    /* A process on one node's cores: its NICs, then the socket's others, then the other socket's. */
    c = choose(topo, TOPO_RDMA, TOPO_GPU_NONE, "112-127", NULL, got);
    assert_string_equal(
        got, "mlx5_4:1 mlx5_5:1 mlx5_6:1 mlx5_7:1 mlx5_9:1 mlx5_0:1 mlx5_1:1 mlx5_2:1 mlx5_3:1 mlx5_8:1");
    assert_true(c->confined);
    is_cpus(&c->rails[0].pin, "");
    assert_int_equal(c->rails[1].penalty_ns, 0);
    assert_int_equal(c->rails[2].penalty_ns, STRIPE_NUMA_PENALTY_NS);
    /* A process that uses a GPU and was confined by Slurm stays where it was put. */
    c = choose(topo, TOPO_RDMA, 2, "16-31", NULL, got);
    assert_true(c->confined);
    is_cpus(&c->pin, "");
    is_cpus(&c->rails[0].pin, "");
    assert_string_equal(c->rails[0].name, "mlx5_2:1");
    topo_free(topo);
}

static void a_dgx_h100(void **state)
{
    struct topo *topo = load("dgx_h100");
    char got[400];
    choose(topo, TOPO_RDMA, 0, NULL, NULL, got);
    assert_memory_equal(got, "mlx5_0:1 | ", 11);
    choose(topo, TOPO_TCP, 0, NULL, NULL, got);
    assert_memory_equal(got, "ibp24s0 | ", 10);
    assert_string_equal(nic_of(topo, "mlx5_5:1")->state, "DOWN: Polling");
    /* Its own NIC is down: those of its node, the first of them not the one that others begin with. */
    const struct topo_choice *c = choose(topo, TOPO_RDMA, 5, NULL, NULL, got);
    assert_string_equal(got,
                        "mlx5_4:1 mlx5_6:1 mlx5_7:1 mlx5_9:1 | mlx5_0:1 mlx5_1:1 mlx5_2:1 mlx5_3:1 mlx5_8:1");
    assert_int_equal(c->nleft_out, 1);
    assert_string_equal(c->left_out[0].name, "mlx5_5:1");
    assert_string_equal(c->left_out[0].why, "DOWN: Polling");
    const struct topo_nic *narrow = nic_of(topo, "mlx5_9:1");
    assert_int_equal(narrow->pcie_width, 8);
    assert_int_equal(narrow->pcie_max_width, 16);
    assert_true(topo_pcie_mbps(narrow->pcie_gts10, narrow->pcie_width) < narrow->rate_mbps);
    topo_free(topo);
}

static void distances(void **state)
{
    static const struct {
        const char *a, *b;
        int node_a, node_b;
        enum topo_distance want;
    } cases[] = {
        {"pci0000:00/0000:00:01.0/0000:01:00.0", "pci0000:00/0000:00:01.0/0000:01:00.1", 0, 0,
         TOPO_PIX}, /* one card */
        {"pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0",
         "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0", 0, 0, TOPO_PIX},
        {"pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0",
         "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0/0000:05:00.0", 0, 0, TOPO_PXB},
        {"pci0000:00/0000:00:01.0/0000:01:00.0", "pci0000:00/0000:00:02.0/0000:02:00.0", 0, 0, TOPO_PHB},
        {"pci0000:00/0000:00:01.0", "pci0000:00/0000:00:02.0", 0, 0,
         TOPO_PHB}, /* as a virtual machine has them */
        {"pci0000:00/0000:00:01.0/0000:01:00.0", "pci0000:40/0000:40:01.0/0000:41:00.0", 0, 0, TOPO_NODE},
        {"pci0000:00/0000:00:01.0/0000:01:00.0", "pci0000:40/0000:40:01.0/0000:41:00.0", 0, 1, TOPO_SYS},
        {"pci0000:00/0000:00:01.0/0000:01:00.0", "pci0000:40/0000:40:01.0/0000:41:00.0", 0, TOPO_NODE_ANY,
         TOPO_NODE},
        {"pci0000:0/0000:00:01.0", "pci0000:00/0000:00:01.1", 0, 1,
         TOPO_SYS}, /* a name that begins the other */
        {"", "", 0, 1, TOPO_SYS},
        {"", "", TOPO_NODE_ANY, TOPO_NODE_ANY, TOPO_NODE},
    };
    const struct topo two = {.nnodes = 2}, one = {.nnodes = 1};
    for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
        struct topo_place a = {.node = cases[i].node_a}, b = {.node = cases[i].node_b};
        strcpy(a.path, cases[i].a);
        strcpy(b.path, cases[i].b);
        assert_int_equal(topo_distance(&two, &a, &b), cases[i].want);
        assert_int_equal(topo_distance(&two, &b, &a), cases[i].want);
        assert_int_equal(topo_distance(&one, &a, &b), MIN((int)cases[i].want, (int)TOPO_NODE));
    }
}

static void gpus_that_share_their_nics(void **state)
{
    static const char tree[] =
        "/sys/bus/pci/devices/0000:03:00.0 -> ../../../devices/pci0000:00/0000:00:01.0/0000:03:00.0\n"
        "/sys/devices/pci0000:00/0000:00:01.0/0000:03:00.0/vendor = 0x10de\n"
        "/sys/devices/pci0000:00/0000:00:01.0/0000:03:00.0/class = 0x030200\n"
        "/sys/bus/pci/devices/0000:04:00.0 -> ../../../devices/pci0000:00/0000:00:02.0/0000:04:00.0\n"
        "/sys/devices/pci0000:00/0000:00:02.0/0000:04:00.0/vendor = 0x10de\n"
        "/sys/devices/pci0000:00/0000:00:02.0/0000:04:00.0/class = 0x030000\n"
        "/sys/class/net/a -> ../../devices/pci0000:00/0000:00:03.0/net/a\n"
        "/sys/devices/pci0000:00/0000:00:03.0/net/a/operstate = up\n"
        "/sys/class/net/b -> ../../devices/pci0000:00/0000:00:04.0/net/b\n"
        "/sys/devices/pci0000:00/0000:00:04.0/net/b/operstate = up\n";
    struct topo *topo = topo_of(tree, sizeof(tree) - 1);
    char got[400];
    choose(topo, TOPO_TCP, 0, "0", NULL, got);
    assert_string_equal(got, "a b");
    choose(topo, TOPO_TCP, 1, "0", NULL, got);
    assert_string_equal(got, "b a");
    topo_free(topo);
}

static void a_server(void **state)
{
    struct topo *topo = load("server");
    char got[400];
    assert_int_equal(topo->ngpus, 0); /* the board's VGA is none */
    const struct topo_choice *c = choose(topo, TOPO_TCP, TOPO_GPU_FROM_ENV, NULL, NULL, got);
    assert_string_equal(got, "ens1f0 ens1f1 ens2f0");
    is_cpus(&c->rails[2].pin, "16-31,48-63");
    assert_int_equal(c->nleft_out, 2);
    assert_string_equal(c->left_out[0].name, "eno1");
    assert_string_equal(c->left_out[0].why, "1000 Mb/s, and there is one of 25000");
    assert_string_equal(c->left_out[1].why, "no carrier");
    c = choose(topo, TOPO_TCP, TOPO_GPU_FROM_ENV, "20", NULL, got);
    assert_string_equal(got, "ens2f0 ens1f0 ens1f1");
    assert_int_equal(c->rails[0].penalty_ns, 0);
    assert_int_equal(c->rails[1].penalty_ns, STRIPE_NUMA_PENALTY_NS);
    c = choose(topo, TOPO_TCP, TOPO_GPU_FROM_ENV, "0,20", NULL, got); /* on both nodes */
    assert_string_equal(got, "ens1f0 ens1f1 ens2f0");
    assert_string_equal(c->rails[2].why, "no NIC is nearer than another");
    choose(topo, TOPO_RDMA, TOPO_GPU_FROM_ENV, NULL, NULL, got);
    assert_string_equal(got, "");
    /* With addresses known, a rail without one is not used. */
    topo->addresses_known = true;
    for (unsigned i = 0; i < topo->nnics; i++)
        topo->nics[i].naddresses = strcmp(topo->nics[i].netdev, "ens1f1") == 0;
    choose(topo, TOPO_TCP, TOPO_GPU_FROM_ENV, NULL, NULL, got);
    assert_string_equal(got, "ens1f1");
    topo_free(topo);
}

static void by_hand(void **state)
{
    struct topo *topo = load("dgx_h100");
    char got[400];
    const struct topo_choice *c = choose(topo, TOPO_RDMA, 0, NULL, "mlx5_9:1, mlx5_0:1,mlx5_9,,ibp64s0", got);
    assert_string_equal(got, "mlx5_9:1 mlx5_0:1 mlx5_1:1");
    assert_true(c->by_hand);
    assert_int_equal(c->rails[0].penalty_ns, STRIPE_NUMA_PENALTY_NS);
    choose(topo, TOPO_TCP, 0, NULL, "mlx5_9:1,eno3,lo", got);
    assert_string_equal(got, "ens9np0 eno3 lo");
    c = choose(topo, TOPO_RDMA, 0, NULL, "mlx5_9:1,eno3", got);
    assert_string_equal(got, "mlx5_9:1");
    assert_string_equal(c->left_out[0].why, "it has no RDMA");
    choose(topo, TOPO_RDMA, 0, NULL, " ,", got); /* names nothing */
    assert_memory_equal(got, "mlx5_0:1 | ", 11);
    setenv("LEAT_RAILS", "mlx5_3", 1);
    choose(topo, TOPO_RDMA, 0, NULL, NULL, got);
    assert_string_equal(got, "mlx5_3:1");
    choose(topo, TOPO_RDMA, 0, NULL, "mlx5_4", got); /* what was said to us comes first */
    assert_string_equal(got, "mlx5_4:1");
    clean_env();
    struct leat_error err;
    struct topo_choice *none = calloc(1, sizeof(*none));
    struct topo_request request = {.kind = TOPO_RDMA, .rails = "mlx5_77:1", .gpu = TOPO_GPU_NONE};
    assert_int_equal(topo_choose(topo, &request, none, &err), LEAT_INVALID);
    assert_non_null(strstr(err.message, "there is no NIC mlx5_77:1 here; there is mlx5_0:1 "));
    request.rails = "a-name-that-is-longer-than-that-of-any-device-in-the-world";
    assert_int_equal(topo_choose(topo, &request, none, &err), LEAT_INVALID);
    request = (struct topo_request){.gpu = 8};
    assert_int_equal(topo_choose(topo, &request, none, &err), LEAT_INVALID);
    topo_free(topo);
    /* Where /sys tells nothing, names are taken as they are, up to the limit. */
    topo = topo_of("", 0);
    choose(topo, TOPO_RDMA, TOPO_GPU_NONE, "0", "x:1,y:1", got);
    assert_string_equal(got, "x:1 y:1");
    request = (struct topo_request){.rails = "a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q", .gpu = TOPO_GPU_NONE};
    assert_int_equal(topo_choose(topo, &request, none, &err), LEAT_INVALID);
    free(none);
    topo_free(topo);
}

static void a_whole_host(void **state)
{
    struct topo *topo = load("dgx_h100");
    struct topo_choice *c = calloc(1, sizeof(*c));
    const struct topo_request request = {.kind = TOPO_RDMA, .whole_host = true, .cpus = &topo->online};
    setenv("CUDA_VISIBLE_DEVICES", "0", 1); /* of the rank that started the daemon */
    assert_int_equal(topo_choose(topo, &request, c, NULL), 0);
    assert_int_equal(c->n, 9);
    assert_int_equal(c->use, 9);
    assert_int_equal(c->gpu, -1);
    for (unsigned i = 0; i < c->n; i++)
        assert_int_equal(c->rails[i].penalty_ns, 0);
    is_cpus(&c->rails[0].pin, "0-55,112-167");
    is_cpus(&c->rails[8].pin, "56-111,168-223");
    is_cpus(&c->pin, "");
    clean_env();
    free(c);
    topo_free(topo);
}

static void the_gpu_of_the_environment(void **state)
{
    static const struct {
        const char *visible, *local_rank;
        int gpu;
    } cases[] = {
        {NULL, NULL, -1},
        {NULL, "3", 3},
        {NULL, "8", -1},
        {NULL, "x", -1},
        {"5", NULL, 5},
        {"5", "0", 5},
        {"5", "3", 5},
        {"4,6", NULL, -1},
        {"4,6", "1", 6},
        {"4, 6", "1", 6},
        {"4,6", "2", -1},
        {"", NULL, -1},
        {"-1", NULL, -1},
        {"NoDevFiles", NULL, -1},
        {"8", NULL, -1},
        {"99999999999", NULL, -1},
        {"GPU-bbbbbbb6", NULL, 6},
        {"GPU-bbbbbbb", NULL, -1},
        {"GPU-bbbbbbb2-0000-1111-2222-333333333333,GPU-bbbbbbb4", "1", 4},
        {"MIG-0", NULL, -1},
        {",,,", "1", -1},
    };
    struct topo *topo = load("dgx_h100");
    char got[400];
    for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
        clean_env();
        if (cases[i].visible)
            setenv("CUDA_VISIBLE_DEVICES", cases[i].visible, 1);
        if (cases[i].local_rank)
            setenv("LOCAL_RANK", cases[i].local_rank, 1);
        const struct topo_choice *c = choose(topo, TOPO_RDMA, TOPO_GPU_FROM_ENV, NULL, NULL, got);
        if (c->gpu != cases[i].gpu)
            fail_msg("CUDA_VISIBLE_DEVICES=%s LOCAL_RANK=%s: GPU %d (%s)", cases[i].visible,
                     cases[i].local_rank, c->gpu, c->why);
        assert_true(c->why[0]);
    }
    clean_env();
    topo_free(topo);
}

static void a_cloud_vm(void **state)
{
    struct topo *topo = load("cloud_vm");
    char got[400];
    const struct topo_choice *c = choose(topo, TOPO_TCP, TOPO_GPU_FROM_ENV, NULL, NULL, got);
    assert_string_equal(got, "ens5 eth1");
    assert_int_equal(c->gpu, 0); /* the only one */
    assert_int_equal(c->rails[0].distance, TOPO_PHB);
    assert_int_equal(c->rails[0].nominal_bytes_per_s, 0);
    is_cpus(&c->rails[0].pin, ""); /* the whole host: nothing to pin to */
    c = choose(topo, TOPO_TCP, TOPO_GPU_NONE, "3", NULL, got);
    assert_int_equal(c->rails[0].penalty_ns, 0);
    topo_free(topo);
}

static void an_empty_tree(void **state)
{
    struct topo *topo = topo_of("", 0);
    char got[400], folder[] = "/tmp/test_topo.XXXXXX";
    const struct topo_choice *c = choose(topo, TOPO_TCP, TOPO_GPU_FROM_ENV, "0-3", NULL, got);
    assert_string_equal(got, "");
    assert_true(c->confined); /* nothing is known, nothing is pinned */
    topo_free(topo);
    assert_non_null(mkdtemp(folder));
    struct topo_dir dir;
    struct topo_files files;
    assert_int_equal(topo_dir_open(folder, &dir, &files, NULL), 0);
    assert_int_equal(topo_read(&files, &topo, NULL), 0);
    assert_int_equal(topo->nnics + topo->ngpus + topo->nnodes, 0);
    topo_free(topo);
    topo_dir_close(&dir);
    rmdir(folder);
    assert_int_equal(topo_dir_open(folder, &dir, &files, NULL), -ENOENT);
}

static void bonds_bridges_and_soft_roce(void **state)
{
    static const char tree[] =
        "/sys/devices/system/node/node0/cpulist = 0-1\n"
        "/sys/devices/system/node/node1/cpulist = 2-3\n"
        "/sys/class/net/e0 -> ../../devices/pci0000:00/0000:00:03.0/net/e0\n"
        "/sys/devices/pci0000:00/0000:00:03.0/numa_node = 0\n"
        "/sys/devices/pci0000:00/0000:00:03.0/net/e0/operstate = up\n"
        "/sys/devices/pci0000:00/0000:00:03.0/net/e0/master -> ../../../../virtual/net/bond0\n"
        "/sys/class/net/e1 -> ../../devices/pci0000:80/0000:80:03.0/net/e1\n"
        "/sys/devices/pci0000:80/0000:80:03.0/numa_node = 1\n"
        "/sys/devices/pci0000:80/0000:80:03.0/net/e1/operstate = up\n"
        "/sys/devices/pci0000:80/0000:80:03.0/net/e1/master -> ../../../../virtual/net/bond0\n"
        "/sys/class/net/bond0 -> ../../devices/virtual/net/bond0\n"
        "/sys/devices/virtual/net/bond0/operstate = up\n"
        "/sys/devices/virtual/net/bond0/speed = 50000\n"
        "/sys/class/net/e2 -> ../../devices/pci0000:80/0000:80:04.0/virtio1/net/e2\n"
        "/sys/devices/pci0000:80/0000:80:04.0/numa_node = 1\n"
        "/sys/devices/pci0000:80/0000:80:04.0/virtio1/net/e2/operstate = up\n"
        "/sys/class/infiniband/rxe0 -> ../../devices/virtual/infiniband/rxe0\n"
        "/sys/devices/virtual/infiniband/rxe0/parent = e2\n"
        "/sys/devices/virtual/infiniband/rxe0/ports/1/state = 4: ACTIVE\n"
        "/sys/devices/virtual/infiniband/rxe0/ports/1/rate = 2.5 Gb/sec (1X SDR)\n"
        "/sys/devices/virtual/infiniband/rxe0/ports/1/link_layer = Ethernet\n";
    struct topo *topo = topo_of(tree, sizeof(tree) - 1);
    char got[400];
    is_cpus(&topo->online, "0-3"); /* of the nodes */
    choose(topo, TOPO_TCP, TOPO_GPU_NONE, NULL, "bond0,e2", got);
    choose(topo, TOPO_TCP, TOPO_GPU_NONE, NULL, NULL, got);
    assert_string_equal(got, "bond0 e2"); /* that rxe says 2.5 Gb/s means nothing to TCP */
    const struct topo_nic *bond = nic_of(topo, "bond0"), *rxe = nic_of(topo, "rxe0:1");
    assert_int_equal(bond->lowers, 2);
    assert_int_equal(bond->place.node, TOPO_NODE_ANY); /* on both sides */
    is_cpus(&bond->place.cpus, "0-3");
    assert_string_equal(rxe->netdev, "e2");
    assert_int_equal(rxe->rate_mbps, 2500);
    assert_int_equal(rxe->place.node, 1);
    const struct topo_choice *c = choose(topo, TOPO_RDMA, TOPO_GPU_NONE, "0", NULL, got);
    assert_string_equal(got, "rxe0:1");
    assert_int_equal(c->rails[0].penalty_ns, STRIPE_NUMA_PENALTY_NS);
    /* A RoCE port below a bond is found by the bond's address. */
    static const char roce[] =
        "/sys/class/net/e0 -> ../../devices/pci0000:00/0000:00:03.0/net/e0\n"
        "/sys/devices/pci0000:00/0000:00:03.0/net/e0/operstate = up\n"
        "/sys/devices/pci0000:00/0000:00:03.0/net/e0/master -> ../../../../virtual/net/bond0\n"
        "/sys/class/net/bond0 -> ../../devices/virtual/net/bond0\n"
        "/sys/class/infiniband/m -> ../../devices/pci0000:00/0000:00:03.0/infiniband/m\n"
        "/sys/devices/pci0000:00/0000:00:03.0/infiniband/m/ports/1/state = 4: ACTIVE\n";
    topo_free(topo);
    topo = topo_of(roce, sizeof(roce) - 1);
    struct topo_nic *upper = (struct topo_nic *)(uintptr_t)nic_of(topo, "bond0");
    upper->naddresses = 1;
    upper->addresses[0].sin6_family = AF_INET6;
    c = choose(topo, TOPO_RDMA, TOPO_GPU_NONE, "0", NULL, got);
    assert_string_equal(got, "m:1");
    assert_int_equal(c->rails[0].naddresses, 1);
    assert_int_equal(c->rails[0].addresses[0].sin6_family, AF_INET6);
    topo_free(topo);
}

/* --- hostile trees -------------------------------------------------------------------------------------------------- */

static void nonsense_in_files(void **state)
{
    static const char *const words[] = {"",
                                        "\\n\\n",
                                        "-1",
                                        "-2147483649",
                                        "99999999999999999999",
                                        "0x7fffffffffffffff",
                                        "4095",
                                        "4096",
                                        "nan",
                                        "\\xff\\xfe",
                                        "0-99999999",
                                        "-",
                                        "GT/s",
                                        "999999999999 GT/s",
                                        "1e9 Gb/sec",
                                        "up\\x1b[31m",
                                        "4: ",
                                        ": ACTIVE",
                                        "fe80::1",
                                        "0000:0000:0000:0000:0000:0000:0000:zzzz",
                                        "255",
                                        "%s%n"};
    static const char *const files[] = {"numa_node",
                                        "local_cpulist",
                                        "current_link_speed",
                                        "max_link_width",
                                        "vendor",
                                        "class",
                                        "net/e/carrier",
                                        "net/e/operstate",
                                        "net/e/speed",
                                        "net/e/type",
                                        "net/e/dev_port",
                                        "infiniband/m/ports/1/state",
                                        "infiniband/m/ports/1/phys_state",
                                        "infiniband/m/ports/1/rate",
                                        "infiniband/m/ports/1/link_layer",
                                        "infiniband/m/ports/1/gids/0",
                                        "infiniband/m/ports/1/gid_attrs/ndevs/0"};
    for (unsigned w = 0; w < ARRAY_LEN(words); w++) {
        char text[8192], got[400];
        size_t at = (size_t)snprintf(
            text, sizeof(text),
            "/sys/class/net/e -> ../../devices/pci0000:00/0000:00:03.0/net/e\n"
            "/sys/class/infiniband/m -> ../../devices/pci0000:00/0000:00:03.0/infiniband/m\n"
            "/sys/bus/pci/devices/0000:00:03.0 -> ../../../devices/pci0000:00/0000:00:03.0\n"
            "/sys/devices/system/cpu/online = %s\n/sys/devices/system/node/node0/cpulist = %s\n"
            "/sys/devices/system/node/node0/distance = %s\n",
            words[w], words[w], words[w]);
        for (unsigned f = 0; f < ARRAY_LEN(files); f++)
            at += (size_t)snprintf(text + at, sizeof(text) - at,
                                   "/sys/devices/pci0000:00/0000:00:03.0/%s = %s\n", files[f], words[w]);
        struct topo *topo = topo_of(text, at);
        assert_int_equal(topo->nnics, 1);
        for (const char *c = topo->nics[0].state; *c; c++)
            assert_in_range(*c, 0x20, 0x7e);
        assert_in_range(topo->nics[0].place.node + 1, 0, 4096);
        choose(topo, TOPO_TCP, TOPO_GPU_FROM_ENV, "0-3", NULL, got);
        choose(topo, TOPO_RDMA, TOPO_GPU_FROM_ENV, "0-3", NULL, got);
        topo_free(topo);
    }
}

static void links_to_anywhere(void **state)
{
    static const char *const targets[] = {"../../../etc/passwd",
                                          "/etc",
                                          "devices/../../etc/net/e",
                                          "../../devices/./x/e",
                                          "../../devices//e",
                                          "..",
                                          "",
                                          "e",
                                          "../../devices/pci0000:00/../../../../root",
                                          "../../devices/\x1b[2J/net/e",
                                          "../../devices/a b/net/e"};
    for (unsigned i = 0; i < ARRAY_LEN(targets); i++) {
        char text[300];
        int len = snprintf(text, sizeof(text), "/sys/class/net/e -> %s\n", targets[i]);
        struct topo *topo = topo_of(text, (size_t)len);
        assert_int_equal(topo->nnics, 0);
        topo_free(topo);
    }
    char text[1200] = "/sys/class/net/e -> ../../devices/";
    for (unsigned i = 0; i < 60; i++)
        strcat(text, "0000:00:01.0/");
    strcat(text, "e\n");
    struct topo *topo = topo_of(text, strlen(text));
    assert_int_equal(topo->nnics, 0); /* too deep to be one */
    topo_free(topo);
}

static void put_file(const char *root, const char *path, const char *text, size_t len)
{
    char full[400];
    snprintf(full, sizeof(full), "%s/%s", root, path);
    for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = '\0';
        mkdir(full, 0700);
    }
    int fd = open(full, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_return_code(fd, errno);
    assert_int_equal(write(fd, text, len), len);
    close(fd);
}

static void a_hostile_folder(void **state)
{
    char root[] = "/tmp/test_topo.XXXXXX", path[400];
    assert_non_null(mkdtemp(root));
    static char huge[1 << 20];
    memset(huge, '7', sizeof(huge));
#define AT(rest) (snprintf(path, sizeof(path), "%s/%s", root, rest), path)
    put_file(root, "sys/class/net/x", "", 0); /* no link */
    put_file(root, "sys/devices/pci0000:00/0000:00:03.0/numa_node", huge, sizeof(huge));
    put_file(root, "sys/devices/pci0000:00/0000:00:03.0/local_cpulist", huge, sizeof(huge));
    put_file(root, "sys/devices/pci0000:00/0000:00:03.0/net/e/operstate", "up\n", 3);
    put_file(root, "secret", "25000\n", 6);
    assert_return_code(symlink("../../devices/pci0000:00/0000:00:03.0/net/e", AT("sys/class/net/e")), errno);
    assert_return_code(symlink("../../devices/pci0000:00/0000:00:03.0/net/e", AT("sys/class/net/\xff\xc3(")),
                       errno);
    assert_return_code(symlink("../../devices/pci0000:00/0000:00:03.0/net/e", AT("sys/class/net/a b")),
                       errno);
    assert_return_code(symlink("loop", AT("sys/class/net/loop")), errno);
    assert_return_code(
        symlink("../../../../../../secret", AT("sys/devices/pci0000:00/0000:00:03.0/net/e/speed")), errno);
    assert_return_code(symlink(".", AT("sys/class/infiniband")), errno);
    assert_return_code(symlink("..", AT("sys/devices/system")), errno);
    assert_return_code(mkfifo(AT("sys/devices/pci0000:00/0000:00:03.0/net/e/dev_port"), 0600), errno);
    int pipe = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    assert_int_equal(write(pipe, "7\n", 2), 2);
    put_file(root, "outside/net/f/speed", "25000\n", 6); /* a link in the middle of a path */
    assert_return_code(symlink("../../../outside", AT("sys/devices/pci0000:00/0000:00:04.0")), errno);
    assert_return_code(symlink("../../devices/pci0000:00/0000:00:04.0/net/f", AT("sys/class/net/f")), errno);
    struct topo_dir dir;
    struct topo_files files;
    struct topo *topo;
    assert_int_equal(topo_dir_open(root, &dir, &files, NULL), 0);
    assert_int_equal(topo_read(&files, &topo, NULL), 0);
    topo_dir_close(&dir);
    close(pipe);
    assert_int_equal(topo->nnics, 2);
    assert_string_equal(topo->nics[0].netdev, "e");
    assert_int_equal(topo->nics[0].port, 1);
    assert_string_equal(topo->nics[1].netdev, "f");
    assert_int_equal(topo->nics[1].rate_mbps, 0);
    assert_int_equal(topo->nics[0].rate_mbps, 0); /* the link was not followed */
    assert_int_equal(topo->nics[0].place.node, TOPO_NODE_ANY);
    assert_int_equal(topo->left_out, 2);
    topo_free(topo);
    snprintf(path, sizeof(path), "rm -r %s", root);
    assert_int_equal(system(path), 0);
}

static void too_many_of_everything(void **state)
{
    const size_t cap = 4 << 20;
    char *text = malloc(cap);
    size_t at = 0;
    for (unsigned i = 0; i < 3000; i++)
        at += (size_t)snprintf(text + at, cap - at, "/sys/class/net/v%u -> ../../devices/%s/net/v%u\n", i,
                               i == 2999 ? "pci0000:00/0000:00:03.0" : "virtual", i);
    for (unsigned i = 0; i < 200; i++)
        at += (size_t)snprintf(
            text + at, cap - at,
            "/sys/bus/pci/devices/0000:%02x:00.0 -> ../../../devices/pci0000:00/0000:%02x:00.0\n"
            "/sys/devices/pci0000:00/0000:%02x:00.0/vendor = 0x1002\n"
            "/sys/devices/pci0000:00/0000:%02x:00.0/class = 0x120000\n"
            "/sys/devices/system/node/node%u/cpulist = %u\n",
            i, i, i, i, i, i);
    struct topo *topo = topo_of(text, at);
    assert_int_equal(topo->nnics, TOPO_NICS_MAX);
    assert_int_equal(topo->ngpus, TOPO_GPUS_MAX);
    assert_int_equal(topo->nnodes, TOPO_NODES_MAX);
    assert_int_equal(topo->left_out, 3000 - TOPO_NICS_MAX + 200 - TOPO_GPUS_MAX);
    assert_string_equal(topo->nics[0].netdev, "v2999"); /* what is physical is not what is left out */
    topo_free(topo);
    free(text);
}

static void texts_that_are_no_trees(void **state)
{
    static const char *const bad[] = {"x", "/a", "a = b", "/a=b", "/a = b\nc"};
    struct topo_text *tree;
    struct topo_files files;
    for (unsigned i = 0; i < ARRAY_LEN(bad); i++)
        assert_int_equal(topo_text_new(bad[i], strlen(bad[i]), &tree, &files, NULL), LEAT_INVALID);
    char out[64];
    const char *good = "# c\n/a/b = x\\\\\\n\\x41 \n/a-b = 1\n/a/c/d = \n/l -> t = u\n";
    assert_int_equal(topo_text_new(good, strlen(good), &tree, &files, NULL), 0);
    assert_int_equal(files.text(files.ctx, "/a/b", out, sizeof(out)), 0);
    assert_string_equal(out, "x\\\nA");
    assert_int_equal(files.text(files.ctx, "/a/b", out, 3), 0);
    assert_string_equal(out, "x\\");
    assert_int_equal(files.text(files.ctx, "/a", out, sizeof(out)), -ENOENT);
    assert_int_equal(files.link(files.ctx, "/l", out, sizeof(out)), 0);
    assert_string_equal(out, "t = u");
    topo_text_free(tree);
}

struct source {
    const char *text;
    size_t len;
};

static int read_and_choose(void *ctx)
{
    const struct source *source = ctx;
    struct topo_text *tree = NULL;
    struct topo_files files;
    struct topo *topo = NULL;
    int rc = topo_text_new(source->text, source->len, &tree, &files, NULL);
    if (!rc)
        rc = topo_read(&files, &topo, NULL);
    topo_free(topo);
    topo_text_free(tree);
    return rc;
}

static void every_allocation_fails(void **state)
{
    static char text[256 * 1024];
    FILE *in = fopen(TOPO_TREES "/dgx_a100.tree", "re");
    assert_non_null(in);
    struct source source = {text, fread(text, 1, sizeof(text), in)};
    fclose(in);
    assert_in_range(failalloc_run(read_and_choose, &source), 10, 1000);
}

static int setup(void **state)
{
    clean_env();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_of_cores),
        cmocka_unit_test(pinning_never_widens),
        cmocka_unit_test(threads_of_this_host),
        cmocka_unit_test(the_choice_here),
        cmocka_unit_test(a_dgx_a100),
        cmocka_unit_test(a_dgx_h100),
        cmocka_unit_test(distances),
        cmocka_unit_test(gpus_that_share_their_nics),
        cmocka_unit_test(a_server),
        cmocka_unit_test(by_hand),
        cmocka_unit_test(a_whole_host),
        cmocka_unit_test(the_gpu_of_the_environment),
        cmocka_unit_test(a_cloud_vm),
        cmocka_unit_test(an_empty_tree),
        cmocka_unit_test(bonds_bridges_and_soft_roce),
        cmocka_unit_test(nonsense_in_files),
        cmocka_unit_test(links_to_anywhere),
        cmocka_unit_test(a_hostile_folder),
        cmocka_unit_test(too_many_of_everything),
        cmocka_unit_test(texts_that_are_no_trees),
        cmocka_unit_test(every_allocation_fails),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
