/* SPDX-License-Identifier: Apache-2.0 */
/* topo.c: `leat topo`: the map of NICs and GPUs, what a process would use, and a recording of where that came from. */
#include "net/topo/topo.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "apps/leat/cli.h"
#include "apps/leat/topo.h"

struct ask {
    const char *root, *record;
    bool all, has_cpus;
    struct topo_cpus cpus;
    struct topo_request request;
};

/* --- pieces ----------------------------------------------------------------------------------------------------------- */

static bool shown(const struct topo_nic *nic, const struct ask *ask)
{
    return ask->all || nic->device[0] || !nic->is_virtual || nic->lowers;
}

static const char *rate_text(uint64_t mbps, char out[32])
{
    if (!mbps)
        return "?";
    if (mbps % 1000)
        snprintf(out, 32, "%llu Mb/s", (unsigned long long)mbps);
    else
        snprintf(out, 32, "%llu Gb/s", (unsigned long long)(mbps / 1000));
    return out;
}

static const char *node_text(int node, char out[16])
{
    if (node == TOPO_NODE_ANY)
        return "-";
    snprintf(out, 16, "%d", node);
    return out;
}

static const char *gid_text(const uint8_t gid[16], char out[INET6_ADDRSTRLEN])
{
    return inet_ntop(AF_INET6, gid, out, INET6_ADDRSTRLEN);
}

static const char *address_text(const struct sockaddr_in6 *address, char out[INET6_ADDRSTRLEN])
{
    const void *raw = &address->sin6_addr;
    if (address->sin6_family == AF_INET)
        raw = &((const struct sockaddr_in *)(const void *)address)->sin_addr;
    return inet_ntop(address->sin6_family, raw, out, INET6_ADDRSTRLEN);
}

/* --- text ------------------------------------------------------------------------------------------------------------- */

static void print_nics(const struct topo *topo, const struct ask *ask)
{
    printf("%-14s %-13s %-10s %-12s %-12s %-4s %s\n", "NIC", "netdev", "rate", "state", "PCI", "node",
           "cores");
    for (unsigned i = 0; i < topo->nnics; i++) {
        const struct topo_nic *nic = &topo->nics[i];
        char name[48], rate[32], node[16], cpus[40];
        if (!shown(nic, ask))
            continue;
        printf("%-14s %-13s %-10s %-12s %-12s %-4s %s\n", topo_nic_name(nic, name),
               nic->netdev[0] ? nic->netdev : "-", rate_text(nic->rate_mbps, rate), nic->state,
               nic->place.pci[0] ? nic->place.pci : "-", node_text(nic->place.node, node),
               topo_cpus_format(&nic->place.cpus, cpus, sizeof(cpus)));
    }
    for (unsigned i = 0; i < topo->ngpus; i++) {
        const struct topo_place *place = &topo->gpus[i].place;
        char name[16], node[16], cpus[40];
        snprintf(name, sizeof(name), "GPU%u", i);
        printf("%-14s %-13s %-10s %-12s %-12s %-4s %s\n", name, topo->gpus[i].amd ? "AMD" : "NVIDIA", "", "",
               place->pci, node_text(place->node, node), topo_cpus_format(&place->cpus, cpus, sizeof(cpus)));
    }
}

static void print_matrix(const struct topo *topo, const struct ask *ask)
{
    if (topo->ngpus == 0)
        return;
    printf("\n%-14s", "");
    for (unsigned g = 0; g < topo->ngpus; g++) {
        char name[16];
        snprintf(name, sizeof(name), "GPU%u", g);
        printf(" %-5s", name);
    }
    putchar('\n');
    for (unsigned i = 0; i < topo->nnics; i++) {
        char name[48];
        if (!shown(&topo->nics[i], ask))
            continue;
        printf("%-14s", topo_nic_name(&topo->nics[i], name));
        for (unsigned g = 0; g < topo->ngpus; g++)
            printf(" %-5s",
                   topo_distance_name(topo_distance(topo, &topo->gpus[g].place, &topo->nics[i].place)));
        putchar('\n');
    }
    printf("PIX: one PCIe switch between; PXB: several; PHB: the host bridge; NODE: in the NUMA node; SYS: "
           "another node\n");
}

static void print_choice(const struct topo_choice *c, const char *kind)
{
    char cpus[64];
    printf("\n%s: ", kind);
    if (c->n == 0)
        printf("no NIC is fit\n");
    else
        printf("%u of %u %s, %s%s\n", c->use, c->n, c->n == 1 ? "rail" : "rails", c->why,
               c->by_hand ? "; named by hand" : "");
    for (unsigned i = 0; i < c->n; i++) {
        const struct topo_rail *rail = &c->rails[i];
        char rate[32];
        printf("  %-8s %-14s %-10s %s", i < c->use ? "use" : "stand by", rail->name,
               rate_text(rail->nominal_bytes_per_s / 125000, rate), rail->why);
        if (rail->penalty_ns)
            printf(", + %llu ns a slice", (unsigned long long)rail->penalty_ns);
        if (!topo_cpus_empty(&rail->pin))
            printf(", threads on %s", topo_cpus_format(&rail->pin, cpus, sizeof(cpus)));
        putchar('\n');
    }
    for (unsigned i = 0; i < c->nleft_out; i++)
        printf("  %-8s %-14s %s\n", "not", c->left_out[i].name, c->left_out[i].why);
}

static void print_text(const struct topo *topo, const struct ask *ask, const struct topo_choice choices[2])
{
    char cpus[100];
    print_nics(topo, ask);
    if (topo->nnics == 0 && topo->ngpus == 0)
        printf("(none found)\n");
    if (topo->left_out)
        printf("%u more are left out\n", topo->left_out);
    print_matrix(topo, ask);
    printf("\ncores allowed: %s of %s%s\n", topo_cpus_format(&choices[0].allowed, cpus, sizeof(cpus)),
           topo_cpus_empty(&topo->online) ? "?" : topo_cpus_format(&topo->online, (char[100]){0}, 100),
           choices[0].confined ? "; nothing is pinned" : "");
    print_choice(&choices[TOPO_RDMA], "RDMA");
    print_choice(&choices[TOPO_TCP], "TCP");
}

/* --- JSON --------------------------------------------------------------------------------------------------------------- */

static void json_cpus(struct cli_json *j, const char *key, const struct topo_cpus *cpus)
{
    char text[TOPO_TEXT_MAX];
    json_text(j, key, topo_cpus_format(cpus, text, sizeof(text)));
}

static void json_place(struct cli_json *j, const struct topo_place *place)
{
    json_text(j, "pci", place->pci[0] ? place->pci : NULL);
    if (place->node == TOPO_NODE_ANY)
        json_text(j, "numa_node", NULL);
    else
        json_u64(j, "numa_node", (uint64_t)place->node);
    json_cpus(j, "cpus", &place->cpus);
}

static void json_addresses(struct cli_json *j, const struct sockaddr_in6 *addresses, unsigned n)
{
    char text[INET6_ADDRSTRLEN];
    json_open(j, "addresses", '[');
    for (unsigned i = 0; i < n; i++)
        json_text(j, NULL, address_text(&addresses[i], text));
    json_close(j, ']');
}

static void json_nic(struct cli_json *j, const struct topo *topo, const struct topo_nic *nic)
{
    char text[64];
    json_open(j, NULL, '{');
    json_text(j, "name", topo_nic_name(nic, text));
    json_text(j, "netdev", nic->netdev[0] ? nic->netdev : NULL);
    json_text(j, "device", nic->device[0] ? nic->device : NULL);
    json_u64(j, "port", nic->port);
    json_text(j, "master", nic->master[0] ? nic->master : NULL);
    json_bool(j, "virtual", nic->is_virtual);
    json_bool(j, "up", nic->up);
    json_text(j, "state", nic->state);
    json_text(j, "link_layer", nic->infiniband ? "InfiniBand" : "Ethernet");
    json_u64(j, "rate_mbps", nic->rate_mbps);
    json_bool(j, "netdev_up", nic->netdev_up);
    json_u64(j, "netdev_mbps", nic->netdev_mbps);
    json_u64(j, "pcie_mbps", topo_pcie_mbps(nic->pcie_gts10, nic->pcie_width));
    json_u64(j, "pcie_max_mbps", topo_pcie_mbps(nic->pcie_max_gts10, nic->pcie_max_width));
    json_place(j, &nic->place);
    json_open(j, "gids", '[');
    for (unsigned i = 0; i < nic->ngids; i++)
        json_text(j, NULL, gid_text(nic->gids[i], text));
    json_close(j, ']');
    json_addresses(j, nic->addresses, nic->naddresses);
    json_open(j, "gpu_distances", '[');
    for (unsigned g = 0; g < topo->ngpus; g++)
        json_text(j, NULL, topo_distance_name(topo_distance(topo, &topo->gpus[g].place, &nic->place)));
    json_close(j, ']');
    json_close(j, '}');
}

static void json_choice(struct cli_json *j, const char *key, const struct topo_choice *c)
{
    json_open(j, key, '{');
    json_text(j, "why", c->why);
    json_bool(j, "by_hand", c->by_hand);
    json_u64(j, "use", c->use);
    json_open(j, "rails", '[');
    for (unsigned i = 0; i < c->n; i++) {
        json_open(j, NULL, '{');
        json_text(j, "name", c->rails[i].name);
        json_bool(j, "use", i < c->use);
        json_text(j, "distance", topo_distance_name(c->rails[i].distance));
        json_u64(j, "penalty_ns", c->rails[i].penalty_ns);
        json_u64(j, "nominal_bytes_per_s", c->rails[i].nominal_bytes_per_s);
        json_cpus(j, "pin", &c->rails[i].pin);
        json_addresses(j, c->rails[i].addresses, c->rails[i].naddresses);
        json_text(j, "why", c->rails[i].why);
        json_close(j, '}');
    }
    json_close(j, ']');
    json_open(j, "left_out", '[');
    for (unsigned i = 0; i < c->nleft_out; i++) {
        json_open(j, NULL, '{');
        json_text(j, "name", c->left_out[i].name);
        json_text(j, "why", c->left_out[i].why);
        json_close(j, '}');
    }
    json_close(j, ']');
    json_close(j, '}');
}

static void print_json(const struct topo *topo, const struct ask *ask, const struct topo_choice choices[2])
{
    struct cli_json j;
    json_begin(&j, stdout, false);
    json_open(&j, "nics", '[');
    for (unsigned i = 0; i < topo->nnics; i++)
        if (shown(&topo->nics[i], ask))
            json_nic(&j, topo, &topo->nics[i]);
    json_close(&j, ']');
    json_open(&j, "gpus", '[');
    for (unsigned i = 0; i < topo->ngpus; i++) {
        json_open(&j, NULL, '{');
        json_text(&j, "vendor", topo->gpus[i].amd ? "AMD" : "NVIDIA");
        json_text(&j, "uuid", topo->gpus[i].uuid[0] ? topo->gpus[i].uuid : NULL);
        json_place(&j, &topo->gpus[i].place);
        json_close(&j, '}');
    }
    json_close(&j, ']');
    json_open(&j, "numa_nodes", '[');
    for (unsigned i = 0; i < topo->nnodes; i++) {
        json_open(&j, NULL, '{');
        json_u64(&j, "id", (uint64_t)topo->nodes[i].id);
        json_cpus(&j, "cpus", &topo->nodes[i].cpus);
        json_close(&j, '}');
    }
    json_close(&j, ']');
    json_u64(&j, "left_out", topo->left_out);
    json_cpus(&j, "online", &topo->online);
    json_open(&j, "process", '{');
    json_cpus(&j, "cpus", &choices[0].allowed);
    json_bool(&j, "confined", choices[0].confined);
    if (choices[0].gpu < 0)
        json_text(&j, "gpu", NULL);
    else
        json_u64(&j, "gpu", (uint64_t)choices[0].gpu);
    json_cpus(&j, "pin", &choices[0].pin);
    json_close(&j, '}');
    json_choice(&j, "rdma", &choices[TOPO_RDMA]);
    json_choice(&j, "tcp", &choices[TOPO_TCP]);
    json_close(&j, '}');
}

/* --- the command -------------------------------------------------------------------------------------------------------- */

/* A recorded tree in one text file, as tests have them. */
static int read_text(const char *path, struct topo_text **ret_tree, struct topo_files *ret_files,
                     struct leat_error *err)
{
    const size_t max = 16 * MIB;
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return error_sys(err, -errno, "%s", path);
    AUTO_FREE char *text = malloc(max);
    if (!text)
        return error_set(err, -ENOMEM, "out of memory");
    size_t len = 0;
    for (ssize_t n = 1; n > 0 && len < max; len += (size_t)n)
        if ((n = read(fd, text + len, max - len)) < 0)
            return error_sys(err, -errno, "%s", path);
    if (len == max)
        return error_set(err, LEAT_INVALID, "%s: larger than a recorded tree is", path);
    int rc = topo_text_new(text, len, ret_tree, ret_files, err);
    return rc ? error_prefix(err, rc, "%s", path) : 0;
}

static int show(struct cli *cli, struct ask *ask, struct topo *topo)
{
    struct topo_choice *choices = calloc(2, sizeof(*choices));
    int rc = choices ? 0 : error_set(&cli->err, -ENOMEM, "out of memory");
    /* The affinity of this process says nothing about a recorded host. */
    ask->request.cpus = ask->has_cpus ? &ask->cpus : ask->root ? &topo->online : NULL;
    for (unsigned kind = TOPO_TCP; !rc && kind <= TOPO_RDMA; kind++) {
        ask->request.kind = (enum topo_kind)kind;
        rc = topo_choose(topo, &ask->request, &choices[kind], &cli->err);
    }
    if (!rc && cli->json)
        print_json(topo, ask, choices);
    else if (!rc)
        print_text(topo, ask, choices);
    free(choices);
    return rc == LEAT_INVALID ? cli_usage_error(cli, "%s", cli->err.message)
           : rc               ? cli_fail(cli, rc)
                              : CLI_OK;
}

static int look(struct cli *cli, struct ask *ask)
{
    struct topo_dir dir = {.fd = -1};
    struct topo_text *tree = NULL;
    struct topo_files files;
    struct topo_record *record = NULL;
    struct topo *topo = NULL;
    struct stat st;
    bool is_text = ask->root && stat(ask->root, &st) == 0 && S_ISREG(st.st_mode);
    int rc = is_text ? read_text(ask->root, &tree, &files, &cli->err)
                     : topo_dir_open(ask->root ? ask->root : "/", &dir, &files, &cli->err);
    if (!rc && ask->record)
        rc = topo_record_new(ask->record, &files, &record, &files, &cli->err);
    if (!rc)
        rc = topo_read(&files, &topo, &cli->err);
    if (!rc && record) {
        unsigned n = topo_record_count(record);
        rc = topo_record_finish(TAKE_PTR(record), &cli->err);
        if (!rc && !cli->quiet)
            fprintf(stderr, "leat topo: %u small files and links of /sys and /proc are in %s\n", n,
                    ask->record);
    }
    if (!rc && !ask->root)
        topo_addresses(topo); /* unknown, if it fails */
    int code = rc ? cli_fail(cli, rc) : ask->record ? CLI_OK : show(cli, ask, topo);
    topo_record_free(record);
    topo_free(topo);
    topo_text_free(tree);
    topo_dir_close(&dir);
    return code;
}

int cmd_topo(struct cli *cli)
{
    struct ask ask = {.request.gpu = TOPO_GPU_FROM_ENV};
    uint64_t gpu;
    for (const struct cli_given *o = cli->given; o->id; o++) {
        switch (o->id) {
        case 320:
            ask.root = o->arg;
            break;
        case 321:
            if (strcmp(o->arg, "none") == 0)
                ask.request.gpu = TOPO_GPU_NONE;
            else if (cli_parse_index(o->arg, TOPO_GPUS_MAX, &gpu) == 0 && o->arg[0] != '-')
                ask.request.gpu = (int)gpu;
            else
                return cli_usage_error(
                    cli, "--gpu %s: give a GPU's number, as `leat topo` counts them, or none", o->arg);
            break;
        case 322:
            if (topo_cpus_parse(o->arg, &ask.cpus) != 0 || topo_cpus_empty(&ask.cpus))
                return cli_usage_error(cli, "--cpus %s: give a list, as 0-3,8", o->arg);
            ask.has_cpus = true;
            break;
        case 323:
            ask.request.rails = o->arg;
            break;
        case 324:
            ask.record = o->arg;
            break;
        default:
            ask.all = true;
        }
    }
    /* The environment of this process says nothing about another host, nor about a process confined otherwise. */
    if (ask.request.gpu == TOPO_GPU_FROM_ENV && (ask.root || ask.has_cpus))
        ask.request.gpu = TOPO_GPU_NONE;
    return look(cli, &ask);
}
