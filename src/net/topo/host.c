/* SPDX-License-Identifier: Apache-2.0 */
/* host.c: this host's topology, read once, and its threads. */
#include "net/topo/topo.h"

#include <ifaddrs.h>
#include <net/if.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct topo *host;

int topo_addresses(struct topo *topo)
{
    struct ifaddrs *all;
    if (getifaddrs(&all) < 0)
        return -errno;
    for (unsigned i = 0; i < topo->nnics; i++) {
        struct topo_nic *nic = &topo->nics[i];
        nic->naddresses = 0;
        for (const struct ifaddrs *a = all; a && nic->netdev[0]; a = a->ifa_next) {
            int family = a->ifa_addr ? a->ifa_addr->sa_family : AF_UNSPEC;
            if ((family != AF_INET && family != AF_INET6) || strcmp(a->ifa_name, nic->netdev) != 0 ||
                nic->naddresses == ARRAY_LEN(nic->addresses))
                continue;
            memcpy(&nic->addresses[nic->naddresses++], a->ifa_addr,
                   family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
        }
    }
    freeifaddrs(all);
    topo->addresses_known = true;
    return 0;
}

static int read_now(struct topo **ret_topo, struct leat_error *err)
{
    struct topo_dir dir;
    struct topo_files files;
    int rc = topo_dir_open("/", &dir, &files, err);
    if (rc)
        return rc;
    rc = topo_read(&files, ret_topo, err);
    topo_dir_close(&dir);
    if (!rc)
        topo_addresses(*ret_topo); /* unknown, if that fails */
    return rc;
}

static void read_host(void)
{
    read_now(&host, NULL);
}

const struct topo *topo_host(void)
{
    pthread_once(&once, read_host);
    return host;
}

int topo_choose_here(const struct topo_request *request, struct topo_choice **ret_choice,
                     struct leat_error *err)
{
    struct topo *topo = NULL;
    struct topo_choice *choice = malloc(sizeof(*choice));
    int rc = choice ? read_now(&topo, err) : error_set(err, -ENOMEM, "out of memory for the choice of rails");
    if (!rc)
        rc = topo_choose(topo, request, choice, err);
    topo_free(topo);
    if (!rc)
        *ret_choice = TAKE_PTR(choice);
    free(choice);
    return rc;
}

/* With a single node, or with LEAT_PIN=0, nothing else is read. */
static bool worth_it(void)
{
    const char *said = secure_getenv("LEAT_PIN");
    char text[64] = "";
    struct topo_dir dir;
    struct topo_files files;
    if ((said && strcmp(said, "0") == 0) || topo_dir_open("/", &dir, &files, NULL) < 0)
        return false;
    files.text(files.ctx, "/sys/devices/system/node/online", text, sizeof(text));
    topo_dir_close(&dir);
    return strpbrk(text, ",-") != NULL;
}

static void pin(pthread_t thread, const struct topo_request *request, bool to_rail)
{
    const struct topo *topo = worth_it() ? topo_host() : NULL;
    struct topo_choice *choice = topo ? malloc(sizeof(*choice)) : NULL;
    if (choice && topo_choose(topo, request, choice, NULL) == 0)
        topo_pin(thread, to_rail ? &choice->rails[0].pin : &choice->pin); /* none is none */
    free(choice);
}

void topo_pin_to_rail(pthread_t thread, const char *rail)
{
    const struct topo_request request = {
        .kind = strchr(rail, ':') ? TOPO_RDMA : TOPO_TCP, .rails = rail, .whole_host = true};
    pin(thread, &request, true);
}

void topo_pin_to_gpu(pthread_t thread)
{
    const struct topo_request request = {.kind = TOPO_TCP, .gpu = TOPO_GPU_FROM_ENV};
    pin(thread, &request, false);
}
