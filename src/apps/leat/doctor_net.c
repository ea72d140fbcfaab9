/* SPDX-License-Identifier: Apache-2.0 */
/* doctor_net.c: what keeps NICs from giving what they could: ports without a link, narrow slots, the wrong side of the host, no way
 * into a GPU's memory. */
#include "apps/leat/doctor.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "net/topo/topo.h"

/* This host's or the recorded tree's; NULL: no NIC is to be seen. */
static struct topo *read_topo(const struct doctor *d)
{
    struct topo_dir dir;
    struct topo_files files;
    struct topo *topo = NULL;
    if (topo_dir_open(*d->root ? d->root : "/", &dir, &files, NULL) < 0)
        return NULL;
    int rc = topo_read(&files, &topo, NULL);
    topo_dir_close(&dir);
    unsigned physical = 0;
    for (unsigned i = 0; !rc && i < topo->nnics; i++)
        physical += topo->nics[i].device[0] || !topo->nics[i].is_virtual;
    if (physical)
        return topo;
    topo_free(topo);
    return NULL;
}

/* ", "-separated words; what does not fit any more is "…". */
struct words {
    char text[160];
    unsigned n;
};

static void add_word(struct words *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void add_word(struct words *w, const char *fmt, ...)
{
    char word[80];
    va_list args;
    va_start(args, fmt);
    vsnprintf(word, sizeof(word), fmt, args);
    va_end(args);
    size_t at = strlen(w->text);
    if (at + strlen(word) + 8 < sizeof(w->text))
        snprintf(w->text + at, sizeof(w->text) - at, "%s%s", w->n ? ", " : "", word);
    else if (at && w->text[at - 1] != '.')
        strcpy(w->text + at, ", ...");
    w->n++;
}

void check_ports(const struct doctor *d, struct finding *f)
{
    struct topo *topo = read_topo(d);
    if (!topo)
        return;
    struct words up = {0}, down = {0}, idle = {0};
    const struct topo_nic *first = NULL;
    for (unsigned i = 0; i < topo->nnics; i++) {
        const struct topo_nic *nic = &topo->nics[i];
        char name[48];
        topo_nic_name(nic, name);
        if (!nic->device[0] && nic->is_virtual && !nic->lowers)
            continue;
        if (nic->up && nic->rate_mbps)
            add_word(&up, "%s %" PRIu64 " Gb/s", name, (nic->rate_mbps + 500) / 1000);
        else if (nic->up)
            add_word(&up, "%s", name);
        else if (!nic->device[0])
            add_word(&idle, "%s", name);
        else
            add_word(&down, "%s (%s)", name, nic->state);
        if (!nic->up && nic->device[0] && !first)
            first = nic;
    }
    finding_number(f, "up", up.n);
    finding_number(f, "rdma_down", down.n);
    if (!first) {
        finding_say(f, up.n ? DOCTOR_OK : DOCTOR_WARN, "%s%s%s", up.n ? up.text : "no NIC is up",
                    idle.n ? "; without a link: " : "", idle.text);
        if (!up.n) {
            finding_cost(f, "other hosts cannot be reached");
            finding_repair(f, "ip link  (and plug a cable in)");
        }
    } else {
        finding_say(f, DOCTOR_WARN, "RDMA ports that carry nothing: %s", down.text);
        finding_cost(f, "so many rails fewer: the others carry their bytes");
        if (strncmp(first->state, "INIT", 4) == 0)
            finding_repair(f, "sudo systemctl start opensm  (or the fabric's own subnet manager)");
        else
            finding_repair(f, "rdma link show %s/%u  (then its cable, and the switch's port)", first->device,
                           first->port);
    }
    topo_free(topo);
}

/* Mb/s of all ports of the card that are up. */
static uint64_t card_mbps(const struct topo *topo, const struct topo_nic *of)
{
    uint64_t sum = 0;
    size_t card = strcspn(of->place.pci, ".");
    for (unsigned i = 0; i < topo->nnics; i++) {
        const struct topo_nic *nic = &topo->nics[i];
        if (nic->up && strncmp(nic->place.pci, of->place.pci, card + 1) == 0 && !nic->lowers)
            sum += nic->rate_mbps;
    }
    return sum;
}

void check_slots(const struct doctor *d, struct finding *f)
{
    struct topo *topo = read_topo(d);
    struct words slow = {0}, below = {0};
    const struct topo_nic *worst = NULL;
    unsigned told = 0;
    for (unsigned i = 0; topo && i < topo->nnics; i++) {
        const struct topo_nic *nic = &topo->nics[i];
        uint64_t now = topo_pcie_mbps(nic->pcie_gts10, nic->pcie_width),
                 could = topo_pcie_mbps(nic->pcie_max_gts10, nic->pcie_max_width);
        char name[48];
        topo_nic_name(nic, name);
        told += nic->up && now && could && !nic->lowers;
        if (!nic->up || !now || now >= could || nic->lowers)
            continue;
        if (now < card_mbps(topo, nic)) {
            add_word(&slow, "%s", name);
            worst = worst ? worst : nic;
        } else {
            add_word(&below, "%s", name);
        }
    }
    if (worst) {
        uint64_t now = topo_pcie_mbps(worst->pcie_gts10, worst->pcie_width), want = card_mbps(topo, worst);
        finding_number(f, "pcie_gb_per_s", (double)now / 8000);
        finding_number(f, "ports_gb_per_s", (double)want / 8000);
        finding_say(f, DOCTOR_WARN, "%s: %u lanes of %u.%u GT/s, it could do %u of %u.%u%s%s",
                    slow.n > 1 ? slow.text : worst->place.pci, worst->pcie_width, worst->pcie_gts10 / 10,
                    worst->pcie_gts10 % 10, worst->pcie_max_width, worst->pcie_max_gts10 / 10,
                    worst->pcie_max_gts10 % 10, slow.n > 1 ? "" : ": ", slow.n > 1 ? "" : slow.text);
        finding_cost(f, "PCIe carries %" PRIu64 " Gb/s where the card's ports carry %" PRIu64, now / 1000,
                     want / 1000);
        finding_repair(
            f, "sudo lspci -vv -s %s | grep LnkSta  (then reseat it, or use a slot with all its lanes)",
            worst->place.pci);
    } else if (told) {
        finding_say(f, DOCTOR_OK, "PCIe carries what the ports do%s%s",
                    below.n ? "; below what they could: " : "", below.text);
    }
    topo_free(topo);
}

/* Cores of this process, or of the recorded one if the recording has them, else all. */
static struct topo_cpus allowed_cores(const struct doctor *d, const struct topo *topo)
{
    struct topo_cpus cpus = topo->online;
    AUTO_FREE char *status = malloc(16 * KIB);
    if (!d->recorded) {
        topo_cpus_allowed(&cpus);
    } else if (status && doctor_read(d, "/proc/self/status", status, 16 * KIB) == 0) {
        char *line = strstr(status, "Cpus_allowed_list:");
        if (line) {
            line += strlen("Cpus_allowed_list:");
            topo_cpus_parse(line + strspn(line, " \t"), &cpus);
        }
    }
    return cpus;
}

void check_nodes(const struct doctor *d, struct finding *f)
{
    struct topo *topo = read_topo(d);
    struct topo_choice *choice = topo && topo->nnodes > 1 ? malloc(sizeof(*choice)) : NULL;
    struct words near = {0}, far = {0};
    char list[48], cpus[48];
    if (choice) {
        const struct topo_cpus allowed = allowed_cores(d, topo);
        struct topo_request request = {.kind = TOPO_RDMA, .gpu = TOPO_GPU_NONE, .cpus = &allowed};
        if (topo_choose(topo, &request, choice, NULL) != 0 || choice->n == 0) {
            request.kind = TOPO_TCP;
            if (topo_choose(topo, &request, choice, NULL) != 0)
                choice->n = 0;
        }
        topo_cpus_format(&allowed, list, sizeof(list));
    }
    for (unsigned i = 0; choice && i < choice->n; i++)
        add_word(choice->rails[i].distance == TOPO_SYS ? &far : &near, "%s", choice->rails[i].name);
    if (far.n && !near.n) {
        const struct topo_nic *nic =
            &topo->nics[choice->rails[0].nic]; /* the NUMA node is known: not a port named by hand */
        finding_say(f, DOCTOR_WARN, "no NIC is on a NUMA node of the cores allowed (%s); %s: on another",
                    list, far.text);
        finding_cost(f, "every byte crosses the sockets' interconnect on its way from the NIC");
        finding_repair(f, "taskset -c %s COMMAND  (or numactl --cpunodebind=%d)",
                       topo_cpus_format(&nic->place.cpus, cpus, sizeof(cpus)), nic->place.node);
    } else if (far.n) {
        finding_say(f, DOCTOR_OK, "near the cores allowed (%s): %s; far from all of them: %s", list,
                    near.text, far.text);
    } else if (near.n) {
        finding_say(f, DOCTOR_OK, "%u nodes; no NIC is far from all cores allowed (%s)", topo->nnodes, list);
    }
    free(choice);
    topo_free(topo);
}

static bool module_is_there(const struct doctor *d, const char *name)
{
    char path[4200];
    snprintf(path, sizeof(path), "%.4000s/sys/module/%s", d->root, name);
    return access(path, F_OK) == 0;
}

/* Memory of a GPU is registered as plain memory, which takes the module: dmabuf does not serve (docs/decisions/0113). */
void check_gpu_rdma(const struct doctor *d, struct finding *f)
{
    struct topo *topo = read_topo(d);
    unsigned gpus = 0, ports = 0;
    for (unsigned i = 0; topo && i < topo->ngpus; i++)
        gpus += !topo->gpus[i].amd && (topo->gpus[i].uuid[0] || module_is_there(d, "nvidia"));
    for (unsigned i = 0; topo && i < topo->nnics; i++)
        ports += topo->nics[i].device[0] && topo->nics[i].place.pci[0];
    topo_free(topo);
    if (!gpus || !ports)
        return;
    /* The driver's own; with older drivers, one that came by itself. */
    static const char *const modules[] = {"nvidia_peermem", "nv_peer_mem"};
    finding_number(f, "gpus", gpus);
    finding_number(f, "rdma_ports", ports);
    for (unsigned i = 0; i < ARRAY_LEN(modules); i++) {
        if (module_is_there(d, modules[i])) {
            finding_say(f, DOCTOR_OK, "%s is loaded: %u RDMA ports can register the memory of %u GPUs",
                        modules[i], ports, gpus);
            return;
        }
    }
    finding_say(f, DOCTOR_WARN,
                "%u GPUs and %u RDMA ports, but the kernel's module nvidia_peermem is not loaded", gpus,
                ports);
    finding_cost(f, "device_copy=\"direct\" is refused, and \"auto\" goes through the host's memory");
    finding_repair(f,
                   "echo nvidia_peermem | sudo tee /etc/modules-load.d/nvidia_peermem.conf && sudo modprobe "
                   "nvidia_peermem  (\"Invalid argument\": the NIC's driver has no peer memory; NVIDIA's "
                   "DOCA-OFED has it)");
}
