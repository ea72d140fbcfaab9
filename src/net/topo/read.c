/* SPDX-License-Identifier: Apache-2.0 */
/*
 * read.c: what there is. /sys/class/net and /sys/class/infiniband hold links to where the devices hang: the text of such a link is
 * the device's way through the PCI bridges, so it is parsed and never followed, and attributes are read below it.
 *
 * Happy path: nodes, netdevs, RDMA ports (each takes its netdev over), bonds (take over the place of what is below them), GPUs.
 * Failure modes: files that are missing, empty, or full of nonsense leave their field at "unknown"; names that are not plain
 * [A-Za-z0-9_.:@+-] are passed over; what is past the limits is counted in left_out. Only memory can fail.
 * Invariant: no path is read but /sys/... and /proc/driver/nvidia/..., with no ".." in it.
 */
#include "base/array.h"
#include "net/topo/topo.h"

#include <ctype.h>
#include <stdio.h>

#define NET        "/sys/class/net"
#define RDMA       "/sys/class/infiniband"
#define PCI        "/sys/bus/pci/devices"
#define NODES      "/sys/devices/system/node"
#define PORTS      8u
#define GIDS       16u
#define PATHS      512u /* of a file here */
#define PCI_MAX    16384u

#define GPU_NVIDIA 0x10de
#define GPU_AMD    0x1002

/* --- names in a folder ---------------------------------------------------------------------------------------------- */

struct names {
    char (*list)[TOPO_NAME_MAX];
    unsigned n, cap, max, left_out;
    bool failed;
};

static bool plain(const char *name)
{
    for (const char *c = name; *c; c++)
        if (!(*c > 0 && isalnum((unsigned char)*c)) && !strchr("_.:@+-", *c))
            return false;
    return *name && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

static bool take_name(void *arg, const char *name)
{
    struct names *names = arg;
    if (strlen(name) >= TOPO_NAME_MAX || !plain(name) || names->n == names->max) {
        names->left_out++;
        return true;
    }
    if (array_reserve(&names->list, &names->cap, names->n + 1) < 0) {
        names->failed = true;
        return false;
    }
    strcpy(names->list[names->n++], name);
    return true;
}

static int natural(const void *a, const void *b)
{
    return strverscmp(a, b);
}

/* In natural order: mlx5_2 before mlx5_10. Caller frees names->list. */
static int list_names(const struct topo_files *files, const char *path, unsigned max, struct names *names)
{
    *names = (struct names){.max = max};
    files->list(files->ctx, path, take_name, names);
    if (names->failed) {
        free(TAKE_PTR(names->list));
        return -ENOMEM;
    }
    if (names->n)
        qsort(names->list, names->n, sizeof(*names->list), natural);
    return 0;
}

/* --- attributes ------------------------------------------------------------------------------------------------------ */

/* dir/name; "": there is none, or it does not fit. */
static bool attr(const struct topo_files *files, const char *dir, const char *name, char *out, size_t cap)
{
    char path[PATHS];
    out[0] = '\0';
    if ((size_t)snprintf(path, sizeof(path), "%s/%s", dir, name) >= sizeof(path))
        return false;
    return files->text(files->ctx, path, out, cap) == 0 && out[0];
}

/* A whole decimal number of at most 9 digits, with or without a sign; else `other`. */
static long attr_number(const struct topo_files *files, const char *dir, const char *name, long other)
{
    char text[32], *end;
    if (!attr(files, dir, name, text, sizeof(text)) || strlen(text) > 10)
        return other;
    long v = strtol(text, &end, 10);
    return *end ? other : v;
}

static unsigned attr_hex(const struct topo_files *files, const char *dir, const char *name)
{
    char text[32], *end;
    if (!attr(files, dir, name, text, sizeof(text)) || strlen(text) > 10)
        return 0;
    unsigned long v = strtoul(text, &end, 16);
    return *end || v > UINT32_MAX ? 0 : (unsigned)v;
}

static struct topo_cpus attr_cpus(const struct topo_files *files, const char *dir, const char *name)
{
    char text[TOPO_TEXT_MAX];
    struct topo_cpus cpus = {0};
    if (attr(files, dir, name, text, sizeof(text)))
        topo_cpus_parse(text, &cpus);
    return cpus;
}

/* "16.0 GT/s PCIe", "200 Gb/sec (4X HDR)": the number in tenths; 0: none. */
static uint64_t tenths(const char *text)
{
    uint64_t v = 0;
    unsigned digits = 0;
    for (; *text >= '0' && *text <= '9' && digits < 9; text++, digits++)
        v = v * 10 + (uint64_t)(*text - '0');
    if (!digits)
        return 0;
    v *= 10;
    if (text[0] == '.' && text[1] >= '0' && text[1] <= '9')
        v += (uint64_t)(text[1] - '0');
    return v;
}

static unsigned attr_gts10(const struct topo_files *files, const char *dir, const char *name)
{
    char text[64];
    uint64_t v = attr(files, dir, name, text, sizeof(text)) && strstr(text, "GT/s") ? tenths(text) : 0;
    return v > 10000 ? 0 : (unsigned)v;
}

static unsigned attr_width(const struct topo_files *files, const char *dir, const char *name)
{
    long v = attr_number(files, dir, name, 0);
    return v > 0 && v <= 32 ? (unsigned)v : 0; /* a link that is down says 255 */
}

/* --- places ----------------------------------------------------------------------------------------------------------- */

static unsigned hex_digits(const char *s)
{
    return (unsigned)strspn(s, "0123456789abcdef");
}

/* "0000:07:00.0", domains of 4 to 8 digits. */
static bool is_pci_address(const char *s, size_t len)
{
    unsigned domain = hex_digits(s);
    return domain >= 4 && domain <= 8 && len == domain + 8 && s[domain] == ':' &&
           hex_digits(s + domain + 1) == 2 && s[domain + 3] == ':' && hex_digits(s + domain + 4) == 2 &&
           s[domain + 6] == '.' && hex_digits(s + domain + 7) == 1;
}

/* "pci0000:a0" */
static bool is_pci_root(const char *s, size_t len)
{
    if (strncmp(s, "pci", 3) != 0)
        return false;
    unsigned domain = hex_digits(s + 3);
    return domain >= 4 && domain <= 8 && len == domain + 6 && s[3 + domain] == ':' &&
           hex_digits(s + domain + 4) == 2;
}

/* "../../devices/pci0000:00/0000:00:03.0/virtio2/net/eth0" -> dir "/sys/devices/…/eth0", pci_dir up to the
 * last PCI address ("" without one), and the place's path. False: it is none of those links. */
static bool parse_link(const char *target, char dir[PATHS], char pci_dir[PATHS], struct topo_place *place)
{
    while (strncmp(target, "../", 3) == 0)
        target += 3;
    if (strncmp(target, "devices/", 8) != 0 || strlen(target) + 8 > PATHS)
        return false;
    for (const char *c = target; *c; c++)
        if (*c <= ' ' || *c > '~') /* such a path has only letters, digits and signs */
            return false;
    pci_dir[0] = '\0';
    int len = snprintf(dir, PATHS, "/sys/%s", target);
    const char *path = NULL, *end = NULL, *last = NULL;
    for (const char *at = dir + 1; at < dir + len;) {
        size_t n = strcspn(at, "/");
        if (n == 0 || (n == 1 && at[0] == '.') || (n == 2 && at[0] == '.' && at[1] == '.'))
            return false;
        bool address = is_pci_address(at, n);
        if (!path && (address || is_pci_root(at, n)))
            path = at;
        if (address) {
            last = at;
            end = at + n;
        }
        at += n + 1;
    }
    if (!last || (size_t)(end - path) >= sizeof(place->path))
        return true;
    snprintf(place->path, sizeof(place->path), "%.*s", (int)(end - path), path);
    snprintf(place->pci, sizeof(place->pci), "%.*s", (int)(end - last), last);
    snprintf(pci_dir, PATHS, "%.*s", (int)(end - dir), dir);
    return true;
}

static void read_place(const struct topo_files *files, const struct topo *topo, const char *pci_dir,
                       struct topo_place *place)
{
    long node = attr_number(files, pci_dir, "numa_node", TOPO_NODE_ANY);
    place->node = node >= 0 && node < 4096 ? (int)node : TOPO_NODE_ANY;
    place->cpus = attr_cpus(files, pci_dir, "local_cpulist");
    for (unsigned i = 0; topo_cpus_empty(&place->cpus) && i < topo->nnodes; i++)
        if (topo->nodes[i].id == place->node)
            place->cpus = topo->nodes[i].cpus;
}

static void read_slot(const struct topo_files *files, const char *pci_dir, struct topo_nic *nic)
{
    nic->pcie_gts10 = attr_gts10(files, pci_dir, "current_link_speed");
    nic->pcie_max_gts10 = attr_gts10(files, pci_dir, "max_link_speed");
    nic->pcie_width = attr_width(files, pci_dir, "current_link_width");
    nic->pcie_max_width = attr_width(files, pci_dir, "max_link_width");
}

/* A class device's link, its folder, and its place. False: not to be used. */
static bool locate(const struct topo_files *files, const struct topo *topo, const char *class,
                   const char *name, char dir[PATHS], struct topo_nic *nic)
{
    char path[PATHS], target[PATHS], pci_dir[PATHS];
    snprintf(path, sizeof(path), "%s/%s", class, name);
    nic->place.node = TOPO_NODE_ANY;
    if (files->link(files->ctx, path, target, sizeof(target)) < 0 ||
        !parse_link(target, dir, pci_dir, &nic->place))
        return false;
    nic->is_virtual = strncmp(dir, "/sys/devices/virtual/", 21) == 0;
    if (pci_dir[0]) {
        read_place(files, topo, pci_dir, &nic->place);
        read_slot(files, pci_dir, nic);
    }
    return true;
}

/* --- nodes ------------------------------------------------------------------------------------------------------------ */

static int read_nodes(const struct topo_files *files, struct topo *topo)
{
    struct names names;
    int rc = list_names(files, NODES, 1024, &names);
    topo->nodes = rc ? NULL : calloc(TOPO_NODES_MAX, sizeof(*topo->nodes));
    if (!rc && !topo->nodes)
        rc = -ENOMEM;
    for (unsigned i = 0; !rc && i < names.n && topo->nnodes < TOPO_NODES_MAX; i++) {
        const char *digits = names.list[i] + 4;
        if (strncmp(names.list[i], "node", 4) != 0 || !*digits || digits[strspn(digits, "0123456789")] ||
            strlen(digits) > 4)
            continue;
        struct topo_node *node = &topo->nodes[topo->nnodes++];
        char dir[PATHS], text[TOPO_TEXT_MAX];
        node->id = atoi(digits);
        snprintf(dir, sizeof(dir), NODES "/%s", names.list[i]);
        node->cpus = attr_cpus(files, dir, "cpulist");
        attr(files, dir, "distance", text, sizeof(text));
        char *at = text;
        for (unsigned k = 0; k < TOPO_NODES_MAX && *at; k++) {
            unsigned long v = strtoul(at, &at, 10);
            node->distance[k] = v > 255 ? 0 : (uint8_t)v;
            at += strspn(at, " ");
            if (*at && !isdigit((unsigned char)*at))
                break;
        }
    }
    free(names.list);
    topo->online = attr_cpus(files, "/sys/devices/system/cpu", "online");
    for (unsigned i = 0; topo_cpus_empty(&topo->online) && i < topo->nnodes; i++)
        for (unsigned k = i; k < topo->nnodes; k++)
            topo->online = topo_cpus_or(&topo->online, &topo->nodes[k].cpus);
    return rc;
}

/* --- NICs ------------------------------------------------------------------------------------------------------------- */

static struct topo_nic *find_netdev(struct topo *topo, const char *name)
{
    for (unsigned i = 0; i < topo->nnics; i++)
        if (topo->nics[i].netdev[0] && strcmp(topo->nics[i].netdev, name) == 0)
            return &topo->nics[i];
    return NULL;
}

static void read_netdev(const struct topo_files *files, const char *dir, struct topo_nic *nic)
{
    char text[64], target[PATHS], path[PATHS];
    long carrier = attr_number(files, dir, "carrier", -1);
    nic->port = (unsigned)MIN(MAX(attr_number(files, dir, "dev_port", 0), 0l), 255l) + 1;
    nic->infiniband = attr_number(files, dir, "type", 1) == 32;
    attr(files, dir, "operstate", text, sizeof(text));
    /* Drivers without a state report "unknown", and still the carrier. */
    nic->up = strcmp(text, "up") == 0 || (strcmp(text, "unknown") == 0 && carrier == 1);
    bool told = plain(text) && strcmp(text, "unknown") != 0;
    snprintf(nic->state, sizeof(nic->state), "%.31s",
             nic->up        ? "up"
             : carrier == 0 ? "no carrier"
             : told         ? text
                            : "unknown");
    long speed = attr_number(files, dir, "speed", 0);
    nic->rate_mbps = nic->netdev_mbps = speed > 0 ? (uint64_t)speed : 0;
    nic->netdev_up = nic->up;
    memcpy(nic->netdev_state, nic->state, sizeof(nic->state));
    if ((size_t)snprintf(path, sizeof(path), "%s/master", dir) < sizeof(path) &&
        files->link(files->ctx, path, target, sizeof(target)) == 0) {
        const char *slash = strrchr(target, '/');
        const char *name = slash ? slash + 1 : target;
        if (plain(name) && strlen(name) < sizeof(nic->master))
            strcpy(nic->master, name);
    }
}

static int read_netdevs(const struct topo_files *files, struct topo *topo)
{
    struct names names;
    int rc = list_names(files, NET, 65536, &names);
    for (int turn = 0; !rc && turn < 2; turn++) { /* physical ones first, should there be too many */
        for (unsigned i = 0; i < names.n; i++) {
            struct topo_nic nic = {0};
            char dir[PATHS];
            if (strlen(names.list[i]) >= sizeof(nic.netdev) ||
                !locate(files, topo, NET, names.list[i], dir, &nic) || nic.is_virtual != (turn == 1))
                continue;
            if (topo->nnics == TOPO_NICS_MAX) {
                topo->left_out++;
                continue;
            }
            strcpy(nic.netdev, names.list[i]);
            read_netdev(files, dir, &nic);
            topo->nics[topo->nnics++] = nic;
        }
    }
    topo->left_out += rc ? 0 : names.left_out;
    free(names.list);
    return rc;
}

/* Bonds and bridges stand where the NICs below them stand. */
static void join_masters(struct topo *topo)
{
    for (unsigned i = 0; i < topo->nnics; i++) {
        const struct topo_nic *lower = &topo->nics[i];
        struct topo_nic *upper =
            lower->master[0] && !lower->is_virtual ? find_netdev(topo, lower->master) : NULL;
        if (!upper || upper == lower)
            continue;
        if (upper->lowers++ == 0 && !upper->place.pci[0]) {
            upper->place = lower->place;
        } else if (upper->place.node != lower->place.node) {
            upper->place.node = TOPO_NODE_ANY; /* on both sides */
            upper->place.cpus = topo_cpus_or(&upper->place.cpus, &lower->place.cpus);
        }
    }
}

/* "fe80:0000:0000:0000:506b:4b03:00c0:ffee" */
static bool parse_gid(const char *text, uint8_t gid[16])
{
    uint8_t any = 0;
    for (unsigned i = 0; i < 8; i++, text += 5) {
        if (hex_digits(text) != 4 || text[4] != (i < 7 ? ':' : '\0'))
            return false;
        unsigned v = (unsigned)strtoul((char[]){text[0], text[1], text[2], text[3], 0}, NULL, 16);
        gid[2 * i] = (uint8_t)(v >> 8);
        gid[2 * i + 1] = (uint8_t)v;
        any |= i >= 4 ? gid[2 * i] | gid[2 * i + 1] : 0;
    }
    return any; /* only a prefix: an empty place of the table */
}

/* The netdev of a port: from its GIDs, as a software device's parent, else of the same function and port. */
static struct topo_nic *netdev_of_port(const struct topo_files *files, struct topo *topo,
                                       const char *device_dir, const char *port_dir,
                                       const struct topo_nic *port)
{
    char name[TOPO_NAME_MAX], path[PATHS];
    struct topo_nic *found = NULL;
    for (unsigned i = 0; !found && i < GIDS; i++) {
        snprintf(path, sizeof(path), "gid_attrs/ndevs/%u", i);
        if (attr(files, port_dir, path, name, sizeof(name)))
            found = find_netdev(topo, name);
    }
    if (!found && attr(files, device_dir, "parent", name, sizeof(name)))
        found = find_netdev(topo, name);
    for (int exact = 1; !found && port->place.pci[0] && exact >= 0; exact--)
        for (unsigned i = 0; !found && i < topo->nnics; i++) {
            struct topo_nic *nic = &topo->nics[i];
            if (!nic->device[0] && !nic->is_virtual && strcmp(nic->place.pci, port->place.pci) == 0 &&
                (!exact || nic->port == port->port))
                found = nic;
        }
    return found && !found->device[0] ? found : NULL;
}

static void read_port(const struct topo_files *files, const char *dir, struct topo_nic *nic)
{
    char text[128], physical[64];
    attr(files, dir, "state", text, sizeof(text));
    attr(files, dir, "phys_state", physical, sizeof(physical));
    const char *state = strstr(text, ": "), *phys = strstr(physical, ": ");
    state = state && plain(state + 2) ? state + 2 : "unknown";
    nic->up = strcmp(state, "ACTIVE") == 0;
    if (!nic->up && phys && plain(phys + 2))
        snprintf(nic->state, sizeof(nic->state), "%.14s: %.14s", state, phys + 2);
    else
        snprintf(nic->state, sizeof(nic->state), "%.31s", state);
    attr(files, dir, "link_layer", text, sizeof(text));
    nic->infiniband = strcmp(text, "InfiniBand") == 0;
    nic->rate_mbps =
        attr(files, dir, "rate", text, sizeof(text)) && strstr(text, "Gb/sec") ? tenths(text) * 100 : 0;
    for (unsigned i = 0; i < GIDS && nic->ngids < ARRAY_LEN(nic->gids); i++) {
        char name[32];
        snprintf(name, sizeof(name), "gids/%u", i);
        uint8_t gid[16];
        bool seen = false;
        if (!attr(files, dir, name, text, sizeof(text)) || !parse_gid(text, gid))
            continue;
        for (unsigned k = 0; k < nic->ngids; k++)
            seen = seen || memcmp(nic->gids[k], gid, 16) == 0;
        if (!seen)
            memcpy(nic->gids[nic->ngids++], gid, 16);
    }
}

static void add_port(const struct topo_files *files, struct topo *topo, const char *device_dir,
                     const char *port_dir, const struct topo_nic *port)
{
    struct topo_nic *nic = netdev_of_port(files, topo, device_dir, port_dir, port);
    if (!nic && topo->nnics == TOPO_NICS_MAX) {
        topo->left_out++;
        return;
    }
    if (!nic) {
        topo->nics[topo->nnics++] = *port;
        return;
    }
    struct topo_nic merged = *port;
    strcpy(merged.netdev, nic->netdev);
    strcpy(merged.master, nic->master);
    merged.lowers = nic->lowers;
    merged.netdev_up = nic->netdev_up;
    merged.netdev_mbps = nic->netdev_mbps;
    memcpy(merged.netdev_state, nic->netdev_state, sizeof(nic->netdev_state));
    merged.is_virtual = nic->is_virtual;
    if (!port->place.pci[0]) /* soft-RoCE: where its netdev is */
        merged.place = nic->place;
    if (!merged.pcie_gts10) {
        merged.pcie_gts10 = nic->pcie_gts10;
        merged.pcie_width = nic->pcie_width;
        merged.pcie_max_gts10 = nic->pcie_max_gts10;
        merged.pcie_max_width = nic->pcie_max_width;
    }
    if (!merged.rate_mbps)
        merged.rate_mbps = nic->rate_mbps;
    *nic = merged;
}

static int read_rdma(const struct topo_files *files, struct topo *topo)
{
    struct names devices, ports;
    int rc = list_names(files, RDMA, 4096, &devices);
    for (unsigned i = 0; !rc && i < devices.n; i++) {
        struct topo_nic device = {0};
        char dir[PATHS], ports_dir[PATHS + 8];
        if (strlen(devices.list[i]) >= sizeof(device.device) ||
            !locate(files, topo, RDMA, devices.list[i], dir, &device))
            continue;
        strcpy(device.device, devices.list[i]);
        device.is_virtual = false; /* made to be used */
        snprintf(ports_dir, sizeof(ports_dir), "%s/ports", dir);
        rc = list_names(files, ports_dir, PORTS, &ports);
        for (unsigned k = 0; !rc && k < ports.n; k++) {
            struct topo_nic port = device;
            char port_dir[PATHS];
            if (strspn(ports.list[k], "0123456789") != strlen(ports.list[k]) || strlen(ports.list[k]) > 3 ||
                (size_t)snprintf(port_dir, sizeof(port_dir), "%s/%s", ports_dir, ports.list[k]) >=
                    sizeof(port_dir))
                continue;
            port.port = (unsigned)atoi(ports.list[k]);
            read_port(files, port_dir, &port);
            add_port(files, topo, dir, port_dir, &port);
        }
        if (!rc)
            free(ports.list);
    }
    free(devices.list);
    return rc;
}

/* RDMA first, then physical, then virtual; each in natural order of names. */
static int by_kind_and_name(const void *a, const void *b)
{
    const struct topo_nic *x = a, *y = b;
    char nx[48], ny[48];
    if (!x->device[0] != !y->device[0])
        return x->device[0] ? -1 : 1;
    bool vx = x->is_virtual && !x->lowers, vy = y->is_virtual && !y->lowers;
    if (vx != vy)
        return vx ? 1 : -1;
    return strverscmp(topo_nic_name(x, nx), topo_nic_name(y, ny));
}

const char *topo_nic_name(const struct topo_nic *nic, char out[48])
{
    if (nic->device[0])
        snprintf(out, 48, "%s:%u", nic->device, nic->port);
    else
        snprintf(out, 48, "%s", nic->netdev);
    return out;
}

uint64_t topo_pcie_mbps(unsigned gts10, unsigned width)
{
    uint64_t mbps = (uint64_t)gts10 * 100 * width;
    return gts10 <= 50 ? mbps * 8 / 10 : mbps * 128 / 130; /* 8b/10b up to 5 GT/s */
}

/* --- GPUs ------------------------------------------------------------------------------------------------------------- */

/* "GPU UUID: \t GPU-..." of the driver's file. */
static void read_uuid(const struct topo_files *files, struct topo_gpu *gpu)
{
    char dir[PATHS], text[TOPO_TEXT_MAX];
    snprintf(dir, sizeof(dir), "/proc/driver/nvidia/gpus/%s", gpu->place.pci);
    attr(files, dir, "information", text, sizeof(text));
    const char *at = strstr(text, "GPU UUID:");
    if (!at)
        return;
    at += 9;
    at += strspn(at, " \t");
    size_t len = strspn(at, "0123456789abcdefABCDEFGPU-");
    if (strncmp(at, "GPU-", 4) == 0 && len < sizeof(gpu->uuid))
        snprintf(gpu->uuid, sizeof(gpu->uuid), "%.*s", (int)len, at);
}

static int by_address(const void *a, const void *b)
{
    const struct topo_gpu *x = a, *y = b;
    size_t nx = strlen(x->place.pci), ny = strlen(y->place.pci); /* longer domains are larger numbers */
    return nx != ny ? (nx < ny ? -1 : 1) : strcmp(x->place.pci, y->place.pci);
}

/* NVIDIA's are displays and 3D controllers; AMD's also "other display" and processing accelerators. */
static bool is_gpu(unsigned vendor, unsigned class)
{
    bool display = class >> 8 == 0x0300 || class >> 8 == 0x0302;
    bool accelerator = class >> 8 == 0x0380 || class >> 8 == 0x1200;
    return (vendor == GPU_NVIDIA && display) || (vendor == GPU_AMD && (display || accelerator));
}

static int read_gpus(const struct topo_files *files, struct topo *topo)
{
    struct names names;
    int rc = list_names(files, PCI, PCI_MAX, &names);
    for (unsigned i = 0; !rc && i < names.n; i++) {
        struct topo_gpu gpu = {.place.node = TOPO_NODE_ANY};
        char path[PATHS], target[PATHS], dir[PATHS], pci_dir[PATHS];
        snprintf(path, sizeof(path), PCI "/%s", names.list[i]);
        if (!is_pci_address(names.list[i], strlen(names.list[i])) ||
            files->link(files->ctx, path, target, sizeof(target)) < 0 ||
            !parse_link(target, dir, pci_dir, &gpu.place) || strcmp(gpu.place.pci, names.list[i]) != 0)
            continue;
        unsigned vendor = attr_hex(files, pci_dir, "vendor");
        if ((vendor != GPU_NVIDIA && vendor != GPU_AMD) || !is_gpu(vendor, attr_hex(files, pci_dir, "class")))
            continue;
        if (topo->ngpus == TOPO_GPUS_MAX) {
            topo->left_out++;
            continue;
        }
        gpu.amd = vendor == GPU_AMD;
        read_place(files, topo, pci_dir, &gpu.place);
        if (!gpu.amd)
            read_uuid(files, &gpu);
        topo->gpus[topo->ngpus++] = gpu;
    }
    free(names.list);
    if (topo->ngpus)
        qsort(topo->gpus, topo->ngpus, sizeof(*topo->gpus), by_address);
    return rc;
}

/* --- all -------------------------------------------------------------------------------------------------------------- */

int topo_read(const struct topo_files *files, struct topo **ret_topo, struct leat_error *err)
{
    struct topo *topo = calloc(1, sizeof(*topo));
    int rc = topo ? 0 : -ENOMEM;
    if (!rc) {
        topo->nics = calloc(TOPO_NICS_MAX, sizeof(*topo->nics));
        topo->gpus = calloc(TOPO_GPUS_MAX, sizeof(*topo->gpus));
        rc = topo->nics && topo->gpus ? 0 : -ENOMEM;
    }
    if (!rc)
        rc = read_nodes(files, topo);
    if (!rc)
        rc = read_netdevs(files, topo);
    if (!rc)
        rc = read_rdma(files, topo);
    if (!rc)
        rc = read_gpus(files, topo);
    if (rc) {
        topo_free(topo);
        return error_set(err, rc, "out of memory for the topology");
    }
    join_masters(topo);
    if (topo->nnics)
        qsort(topo->nics, topo->nnics, sizeof(*topo->nics), by_kind_and_name);
    *ret_topo = topo;
    return 0;
}

void topo_free(struct topo *topo)
{
    if (!topo)
        return;
    free(topo->nics);
    free(topo->gpus);
    free(topo->nodes);
    free(topo);
}
