/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rail.c: a device port as a rail.
 *
 * Settings go in by ucp_config_modify, last, so that UCX_* variables set for MPI do not change what Leat
 * relies on: device, transports, retransmissions, and registration of exactly what is named (no cache, and so
 * no hooks in the program's mmap and free). Connections are set up by RDMA_CM. With RC alone no datagram
 * transport is opened at all: one would end the process when a peer does not answer its wire-up. Nor does a
 * port listen that a client without a cookie could use.
 *
 * Failure modes: no library, no device, no IP address on its interface, no memory to lock: each
 * LEAT_UNSUPPORTED or -ENOMEM with the reason.
 */
#include "net/ucx/rail.h"

#include "base/log.h"
#include "net/topo/topo.h"
#include "net/ucx/verbs.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <limits.h>
#include <net/if.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#define DEVICES     "/sys/class/infiniband"
#define DEFAULT_TLS "rc_mlx5,rc_verbs"
#define KEY_PADDING 256   /* zeros behind a packed key; 1,024 views of a connection may be kept */
#define TURN        10000 /* calls of progress before others get their turn */

const char *ucx_tls(const struct net_rdma_config *config)
{
    const char *env = secure_getenv("LEAT_RDMA_TLS");
    if (config->tls && config->tls[0])
        return config->tls;
    return env && env[0] ? env : DEFAULT_TLS;
}

bool ucx_is_tcp(const struct net_rdma_config *config)
{
    return strcmp(ucx_tls(config), "tcp") == 0;
}

/* --- what there is --------------------------------------------------------------------------------------------- */

/* First line of a file, without its newline; false: not there. */
static bool read_line(const char *path, char *buf, size_t size)
{
    FILE *f = fopen(path, "re");
    bool there = f && fgets(buf, (int)size, f);
    if (there)
        buf[strcspn(buf, "\n")] = 0;
    if (f)
        fclose(f);
    return there;
}

static bool port_active(const char *device, unsigned port)
{
    char path[PATH_MAX], text[64];
    snprintf(path, sizeof(path), DEVICES "/%s/ports/%u/state", device, port);
    return read_line(path, text, sizeof(text)) && strstr(text, "ACTIVE");
}

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b);
}

static unsigned active_ports(char names[NET_RDMA_RAILS_MAX][32])
{
    unsigned n = 0;
    DIR *dir = opendir(DEVICES);
    const struct dirent *entry;
    while (dir && n < NET_RDMA_RAILS_MAX && (entry = readdir(dir))) {
        if (entry->d_name[0] == '.' || strlen(entry->d_name) > 24)
            continue;
        for (unsigned port = 1; port <= 2 && n < NET_RDMA_RAILS_MAX; port++)
            if (port_active(entry->d_name, port))
                snprintf(names[n++], sizeof(names[0]), "%.24s:%u", entry->d_name, port);
    }
    if (dir)
        closedir(dir);
    qsort(names, n, sizeof(names[0]), by_name);
    return n;
}

bool net_rdma_likely(void)
{
    char names[NET_RDMA_RAILS_MAX][32];
    const char *tls = secure_getenv("LEAT_RDMA_TLS");
    return (tls && tls[0]) || active_ports(names) > 0;
}

/* Over UCX's TCP rails are interfaces, and the loopback one is none that net/topo would choose. */
static int find_interfaces(const char *list, struct ucx_found *ret, struct leat_error *err)
{
    for (const char *at = list && list[0] ? list : "lo"; *at;) {
        size_t len = strcspn(at, ", ");
        if (len >= sizeof(ret->rails[0].name) || ret->n == NET_RDMA_RAILS_MAX)
            return error_set(err, LEAT_INVALID, "rails = %s: give at most %u names of interfaces", list,
                             NET_RDMA_RAILS_MAX);
        if (len) {
            memcpy(ret->rails[ret->n].name, at, len);
            ret->rails[ret->n++].name[len] = 0;
        }
        at += len + (at[len] != 0);
    }
    ret->use = ret->n;
    return 0;
}

static int find_devices(const struct net_rdma_config *config, bool whole_host, struct ucx_found *ret,
                        struct leat_error *err)
{
    const struct topo_request request = {
        .kind = TOPO_RDMA, .rails = config->rails, .whole_host = whole_host, .gpu = TOPO_GPU_FROM_ENV};
    struct topo_choice *choice = NULL;
    int rc = topo_choose_here(&request, &choice, err);
    for (unsigned i = 0; !rc && i < choice->n && ret->n < NET_RDMA_RAILS_MAX; i++) {
        const struct topo_rail *rail = &choice->rails[i];
        struct ucx_wanted *wanted = &ret->rails[ret->n];
        if (strlen(rail->name) >= sizeof(wanted->name))
            continue;
        memcpy(wanted->name, rail->name, strlen(rail->name) + 1);
        wanted->nominal_bytes_per_s = rail->nominal_bytes_per_s;
        wanted->penalty_ns = rail->penalty_ns;
        ret->n++;
        ret->use += i < choice->use;
    }
    free(choice);
    return rc;
}

int ucx_rails_find(const struct net_rdma_config *config, bool whole_host, struct ucx_found *ret_found,
                   struct leat_error *err)
{
    struct ucx_found found = {0};
    const char *list = config->rails && config->rails[0] ? config->rails : secure_getenv("LEAT_RAILS");
    int rc = ucx_is_tcp(config) ? find_interfaces(list, &found, err)
                                : find_devices(config, whole_host, &found, err);
    if (rc)
        return rc;
    if (found.n == 0)
        return error_set(err, LEAT_UNSUPPORTED, "no RDMA device with an active port (%s)",
                         access(DEVICES, F_OK) == 0 ? "see rdma link" : "there is no " DEVICES);
    *ret_found = found;
    return 0;
}

/* The network interface of a port: RoCE's is listed with its first GID; IPoIB's is its child. */
static bool interface_of(const char *device, unsigned port, char ret[IF_NAMESIZE])
{
    char path[PATH_MAX], text[64];
    snprintf(path, sizeof(path), DEVICES "/%s/ports/%u/gid_attrs/ndevs/0", device, port);
    if (read_line(path, text, sizeof(text)) && text[0]) {
        snprintf(ret, IF_NAMESIZE, "%.15s", text);
        return true;
    }
    snprintf(path, sizeof(path), DEVICES "/%s/device/net", device);
    DIR *dir = opendir(path);
    const struct dirent *entry;
    bool found = false;
    while (dir && !found && (entry = readdir(dir))) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof(path), "/sys/class/net/%s/dev_port", entry->d_name);
        found = !read_line(path, text, sizeof(text)) || (unsigned)atoi(text) + 1 == port;
        if (found)
            snprintf(ret, IF_NAMESIZE, "%.15s", entry->d_name);
    }
    if (dir)
        closedir(dir);
    return found;
}

static bool usable(const struct ifaddrs *a, const char *interface, int family)
{
    if (!a->ifa_addr || a->ifa_addr->sa_family != family || strcmp(a->ifa_name, interface) != 0)
        return false;
    return family == AF_INET ||
           !IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)a->ifa_addr)->sin6_addr);
}

static int interface_address(const char *interface, struct ucx_rail *rail, struct leat_error *err)
{
    struct ifaddrs *list = NULL;
    if (getifaddrs(&list) < 0)
        return error_sys(err, -errno, "cannot list addresses");
    const int families[] = {AF_INET, AF_INET6};
    bool found = false;
    for (unsigned f = 0; f < 2 && !found; f++)
        for (const struct ifaddrs *a = list; a && !found; a = a->ifa_next) {
            size_t len = f ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
            found = usable(a, interface, families[f]);
            if (!found)
                continue;
            memcpy(&rail->address, a->ifa_addr, len);
            if (a->ifa_netmask)
                memcpy(&rail->netmask, a->ifa_netmask, len);
        }
    freeifaddrs(list);
    return found ? 0
                 : error_set(
                       err, LEAT_UNSUPPORTED,
                       "rail %s: its interface %s has no IP address, by which RDMA connections are set up",
                       rail->name, interface);
}

/* The device, or UCX's interface for tests, as sysfs has it now: another one each time it appears. False: it
 * is not there. */
static bool identity_of(const struct ucx_rail *rail, struct ucx_identity *ret)
{
    char path[PATH_MAX];
    struct stat st;
    snprintf(path, sizeof(path), "%s/%.*s", rail->tcp ? "/sys/class/net" : DEVICES,
             (int)strcspn(rail->name, rail->tcp ? "" : ":"), rail->name);
    if (stat(path, &st) < 0)
        return false;
    *ret = (struct ucx_identity){st.st_dev, st.st_ino};
    return true;
}

static int find_address(struct ucx_rail *rail, struct leat_error *err)
{
    char device[32], interface[IF_NAMESIZE];
    if (rail->tcp)
        return interface_address(rail->name, rail, err);
    size_t len = strcspn(rail->name, ":");
    memcpy(device, rail->name, len);
    device[len] = 0;
    unsigned port = rail->name[len] ? (unsigned)atoi(rail->name + len + 1) : 1;
    if (!port_active(device, port))
        return error_set(err, LEAT_UNSUPPORTED, "rail %s: there is no such device, or its port is not active",
                         rail->name);
    if (!interface_of(device, port, interface))
        return error_set(err, LEAT_UNSUPPORTED, "rail %s: no network interface belongs to it", rail->name);
    return interface_address(interface, rail, err);
}

/* Whether the host still has the address; yes where that is unknown. */
static bool address_is_here(const struct sockaddr_in6 *address)
{
    AUTO_CLOSE int fd = socket(address->sin6_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    return fd < 0 || bind(fd, (const struct sockaddr *)address, ucx_address_len(address)) == 0 ||
           errno != EADDRNOTAVAIL;
}

bool ucx_rail_gone(const struct ucx_rail *rail)
{
    struct ucx_identity now;
    if (rail->identity.inode && (!identity_of(rail, &now) || now.device != rail->identity.device ||
                                 now.inode != rail->identity.inode))
        return true;
    if (address_is_here(&rail->address))
        return false;
    struct ucx_rail other = {.tcp = rail->tcp};
    memcpy(other.name, rail->name, sizeof(other.name));
    return find_address(&other, NULL) == 0 &&
           memcmp(&other.address, &rail->address, sizeof(other.address)) != 0;
}

/* --- addresses ---------------------------------------------------------------------------------------------------- */

void ucx_address_print(const struct sockaddr *address, char buf[80])
{
    char ip[INET6_ADDRSTRLEN] = "?";
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)address;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)address;
    if (address->sa_family == AF_INET) {
        inet_ntop(AF_INET, &v4->sin_addr, ip, sizeof(ip));
        snprintf(buf, 80, "%s:%u", ip, ntohs(v4->sin_port));
    } else {
        inet_ntop(AF_INET6, &v6->sin6_addr, ip, sizeof(ip));
        snprintf(buf, 80, "[%s]:%u", ip, ntohs(v6->sin6_port));
    }
}

int ucx_address_parse(const char *text, struct sockaddr_in6 *ret_address)
{
    char ip[INET6_ADDRSTRLEN];
    const char *colon = strrchr(text, ':'), *start = text;
    if (!colon)
        return LEAT_CORRUPT;
    size_t len = (size_t)(colon - text);
    bool v6 = text[0] == '[' && len > 2 && text[len - 1] == ']';
    if (v6) {
        start++;
        len -= 2;
    }
    unsigned long port = strtoul(colon + 1, NULL, 10);
    if (len >= sizeof(ip) || port == 0 || port > 65535)
        return LEAT_CORRUPT;
    memcpy(ip, start, len);
    ip[len] = 0;
    struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    struct sockaddr_in *v4 = (struct sockaddr_in *)&a;
    int ok;
    if (v6) {
        ok = inet_pton(AF_INET6, ip, &a.sin6_addr);
    } else {
        v4->sin_family = AF_INET;
        ok = inet_pton(AF_INET, ip, &v4->sin_addr);
    }
    if (ok != 1)
        return LEAT_CORRUPT;
    *ret_address = a;
    return 0;
}

bool ucx_same_subnet(const struct ucx_rail *rail, const struct sockaddr_in6 *other)
{
    if (rail->address.sin6_family != other->sin6_family)
        return false;
    if (other->sin6_family == AF_INET) {
        uint32_t mask = ((const struct sockaddr_in *)&rail->netmask)->sin_addr.s_addr;
        uint32_t a = ((const struct sockaddr_in *)&rail->address)->sin_addr.s_addr;
        return ((a ^ ((const struct sockaddr_in *)other)->sin_addr.s_addr) & mask) == 0;
    }
    for (unsigned i = 0; i < 16; i++)
        if ((rail->address.sin6_addr.s6_addr[i] ^ other->sin6_addr.s6_addr[i]) &
            rail->netmask.sin6_addr.s6_addr[i])
            return false;
    return true;
}

/* --- totals -------------------------------------------------------------------------------------------------------- */

static pthread_mutex_t totals_lock = PTHREAD_MUTEX_INITIALIZER;
static struct net_rdma_total totals[NET_RDMA_RAILS_MAX];
static _Atomic unsigned ntotals; /* names are written once, before they are counted */

static struct net_rdma_total *find_total(const char *name)
{
    struct net_rdma_total *found = NULL;
    pthread_mutex_lock(&totals_lock);
    unsigned n = ntotals;
    for (unsigned i = 0; i < n && !found; i++)
        found = strcmp(totals[i].name, name) == 0 ? &totals[i] : NULL;
    if (!found && n < ARRAY_LEN(totals)) {
        found = &totals[n];
        snprintf(found->name, sizeof(found->name), "%s", name);
        ntotals = n + 1;
    }
    pthread_mutex_unlock(&totals_lock);
    return found;
}

unsigned net_rdma_totals(const struct net_rdma_total **ret_totals)
{
    *ret_totals = totals;
    return ntotals;
}

/* --- context and worker --------------------------------------------------------------------------------------------- */

struct setting {
    const char *name, *value;
};

static int configure(const struct ucx_rail *rail, const struct net_rdma_config *config,
                     ucp_config_t **ret_config, struct leat_error *err)
{
    const struct ucx_symbols *ucx = rail->ucx;
    bool tcp = ucx_is_tcp(config);
    const struct setting settings[] = {
        {"TLS", ucx_tls(config)},
        {"NET_DEVICES", rail->name},
        {"SOCKADDR_TLS_PRIORITY", tcp ? "tcp" : "rdmacm"},
        {"CM_USE_ALL_DEVICES", "n"},
        {"RCACHE_ENABLE", "n"},
        {"MEMTYPE_CACHE", "n"},
        {"KEEPALIVE_INTERVAL", "2s"},
        /* 4 × 2^n × 4.096 µs each time, the next n that reaches it: a peer that vanished is noticed within about 2 s. */
        {"RC_TIMEOUT", "200ms"},
        {"RC_RETRY_COUNT", "5"},
        {"REG_METHODS", "direct"},
        {"INDIRECT_ATOMIC", "n"}, /* no second key of mlx5's to the same memory, with rights of its own */
        /* As versions of UCX after 1.13 spell them; the one that is not known is passed over. */
        {"RC_VERBS_TIMEOUT", "200ms"},
        {"RC_VERBS_RETRY_COUNT", "5"},
        {"RC_MLX5_TIMEOUT", "200ms"},
        {"RC_MLX5_RETRY_COUNT", "5"},
        {"IB_REG_METHODS", "direct"},
        {"IB_INDIRECT_ATOMIC", "n"},
    };
    ucp_config_t *c;
    ucs_status_t status = ucx->ucp_config_read(NULL, NULL, &c);
    if (status != UCS_OK)
        return error_set(err, ucx_errno(status), "UCX cannot be configured: %s",
                         ucx->ucs_status_string(status));
    for (unsigned i = 0; i < ARRAY_LEN(settings); i++) {
        status = ucx->ucp_config_modify(c, settings[i].name, settings[i].value);
        if (status != UCS_OK)
            log_debug("UCX does not take %s=%s: %s", settings[i].name, settings[i].value,
                      ucx->ucs_status_string(status));
        if (status != UCS_OK && i < 3) {
            ucx->ucp_config_release(c);
            return error_set(err, LEAT_INVALID, "UCX does not take %s=%s: %s", settings[i].name,
                             settings[i].value, ucx->ucs_status_string(status));
        }
    }
    *ret_config = c;
    return 0;
}

static int open_context(struct ucx_rail *rail, const struct net_rdma_config *config, struct leat_error *err)
{
    const struct ucx_symbols *ucx = rail->ucx;
    ucp_config_t *c = NULL;
    int rc = configure(rail, config, &c, err);
    if (rc)
        return rc;
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED,
                           .features = UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP,
                           .mt_workers_shared = 1};
    ucs_status_t status = ucx->ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, c, &rail->context);
    ucx->ucp_config_release(c);
    if (status != UCS_OK) {
        rail->context = NULL;
        return error_set(err, status == UCS_ERR_NO_MEMORY ? -ENOMEM : LEAT_UNSUPPORTED,
                         "rail %s: UCX cannot open it with %s: %s", rail->name, ucx_tls(config),
                         ucx->ucs_status_string(status));
    }
    return 0;
}

int ucx_rail_open(const struct net_rdma_config *config, const struct ucx_wanted *wanted, uint64_t client_id,
                  struct ucx_rail *ret_rail, struct leat_error *err)
{
    struct ucx_rail rail = {
        .fd = -1, .nominal_bytes_per_s = wanted->nominal_bytes_per_s, .penalty_ns = wanted->penalty_ns};
    int rc = ucx_load(&rail.ucx, err);
    if (rc)
        return rc;
    snprintf(rail.name, sizeof(rail.name), "%s", wanted->name);
    rail.tcp = ucx_is_tcp(config);
    if (!identity_of(&rail, &rail.identity)) /* before it is opened: a device that comes later is another */
        rail.identity = (struct ucx_identity){0};
    rc = find_address(&rail, err);
    if (rc == 0)
        rc = open_context(&rail, config, err);
    if (rc)
        return rc;
    ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE |
                                                (client_id ? UCP_WORKER_PARAM_FIELD_CLIENT_ID : 0),
                                  .thread_mode = UCS_THREAD_MODE_SERIALIZED,
                                  .client_id = client_id};
    ucs_status_t status = rail.ucx->ucp_worker_create(rail.context, &params, &rail.worker);
    if (status != UCS_OK)
        rail.worker = NULL;
    else
        status = rail.ucx->ucp_worker_get_efd(rail.worker, &rail.fd);
    if (status != UCS_OK) {
        rc = error_set(err, ucx_errno(status), "rail %s: UCX cannot drive it: %s", rail.name,
                       rail.ucx->ucs_status_string(status));
        ucx_rail_close(&rail);
        return rc;
    }
    if (client_id)
        rail.total = find_total(rail.name);
    *ret_rail = rail;
    return 0;
}

void ucx_rail_close(struct ucx_rail *rail)
{
    if (rail->worker)
        rail->ucx->ucp_worker_destroy(rail->worker);
    if (rail->context)
        rail->ucx->ucp_cleanup(rail->context);
    rail->worker = NULL;
    rail->context = NULL;
    rail->fd = -1; /* the worker's */
}

bool ucx_rail_progress(struct ucx_rail *rail)
{
    for (unsigned i = 0; rail->worker && i < TURN; i++)
        if (rail->ucx->ucp_worker_progress(rail->worker) == 0)
            return false;
    return rail->worker;
}

int ucx_rail_arm(struct ucx_rail *rail)
{
    if (!rail->worker)
        return 0;
    ucs_status_t status = rail->ucx->ucp_worker_arm(rail->worker);
    if (status != UCS_OK)
        return status == UCS_ERR_BUSY ? -EBUSY : -EIO;
    /* Over plain verbs a completion between the last progress and the request causes no event. */
    return rail->ucx->ucp_worker_progress(rail->worker) ? -EBUSY : 0;
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

int ucx_rail_map(struct ucx_rail *rail, void *addr, uint64_t bytes, bool remote_read, int device,
                 ucp_mem_h *ret_memh, struct leat_error *err)
{
    ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_PROT | UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,
        .address = addr,
        .length = bytes,
        .prot = remote_read ? UCP_MEM_MAP_PROT_LOCAL_READ | UCP_MEM_MAP_PROT_REMOTE_READ
                            : UCP_MEM_MAP_PROT_LOCAL_READ | UCP_MEM_MAP_PROT_LOCAL_WRITE |
                                  UCP_MEM_MAP_PROT_REMOTE_WRITE,
        .memory_type = UCS_MEMORY_TYPE_HOST}; /* a GPU's, too: 0113 */
    if (remote_read)
        ucx_reading_begin();
    ucs_status_t status = rail->ucx->ucp_mem_map(rail->context, &params, ret_memh);
    if (remote_read)
        ucx_reading_end();
    if (status == UCS_OK)
        return 0;
    if (device >= 0)
        return error_set(
            err, LEAT_UNSUPPORTED,
            "rail %s cannot register memory of GPU %d (%s): is the kernel's module nvidia_peermem "
            "loaded?",
            rail->name, device, rail->ucx->ucs_status_string(status));
    struct rlimit limit = {RLIM_INFINITY, RLIM_INFINITY};
    getrlimit(RLIMIT_MEMLOCK, &limit);
    if (limit.rlim_cur != RLIM_INFINITY)
        return error_set(err, -ENOMEM,
                         "rail %s cannot register %" PRIu64 " bytes: %s; this process may lock %" PRIu64
                         " bytes (ulimit -l): RDMA needs it unlimited",
                         rail->name, bytes, rail->ucx->ucs_status_string(status), (uint64_t)limit.rlim_cur);
    return error_set(err, status == UCS_ERR_NO_MEMORY ? -ENOMEM : ucx_errno(status),
                     "rail %s cannot register %" PRIu64 " bytes: %s", rail->name, bytes,
                     rail->ucx->ucs_status_string(status));
}

int ucx_shape_take(struct ucx_rail *rail, struct ucx_shape *ret_shape, struct leat_error *err)
{
    struct ucx_shape shape = {0};
    ucp_mem_h memh;
    void *key, *page = aligned_alloc(4 * KIB, 4 * KIB);
    if (!page)
        return error_set(err, -ENOMEM, "out of memory for a key");
    int rc = ucx_rail_map(rail, page, 4 * KIB, true, -1, &memh, err);
    if (rc) {
        free(page);
        return rc;
    }
    ucs_status_t status = rail->ucx->ucp_rkey_pack(rail->context, memh, &key, &shape.bytes);
    if (status == UCS_OK) {
        memcpy(shape.head, key, MIN(shape.bytes, sizeof(shape.head)));
        shape.read_only = ucx_reading_end(); /* as of ucx_rail_map's */
        rail->ucx->ucp_rkey_buffer_release(key);
        *ret_shape = shape;
    }
    rail->ucx->ucp_mem_unmap(rail->context, memh);
    free(page);
    return status == UCS_OK ? 0 : error_set(err, ucx_errno(status), "rail %s gives no key", rail->name);
}

bool ucx_shape_fits(const struct ucx_shape *shape, const void *key, size_t len)
{
    return len == shape->bytes && memcmp(key, shape->head, MIN(len, sizeof(shape->head))) == 0;
}

void *ucx_key_copy(const void *key, size_t len)
{
    uint8_t *copy = calloc(1, len + KEY_PADDING);
    if (copy)
        memcpy(copy, key, len);
    return copy;
}

/* --- for leat doctor -------------------------------------------------------------------------------------------------- */

void net_rdma_report(struct net_rdma_report *ret_report)
{
    struct net_rdma_report r = {.built = true};
    const struct ucx_symbols *ucx;
    struct leat_error err = {0};
    char names[NET_RDMA_RAILS_MAX][32];
    struct rlimit limit = {0};
    r.ucx = ucx_load(&ucx, &err) == 0;
    if (r.ucx)
        snprintf(r.ucx_text, sizeof(r.ucx_text), "UCX %s", ucx->ucp_get_version_string());
    else
        snprintf(r.ucx_text, sizeof(r.ucx_text), "%.150s", err.message);
    unsigned n = active_ports(names);
    r.devices = n > 0;
    size_t used = 0;
    for (unsigned i = 0; i < n && used < sizeof(r.devices_text) - 40; i++)
        used += (size_t)snprintf(r.devices_text + used, sizeof(r.devices_text) - used, "%s%s", i ? ", " : "",
                                 names[i]);
    getrlimit(RLIMIT_MEMLOCK, &limit);
    r.memlock_unlimited = limit.rlim_cur == RLIM_INFINITY;
    r.memlock_bytes = limit.rlim_cur;
    *ret_report = r;
}
