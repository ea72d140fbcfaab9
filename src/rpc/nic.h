/* SPDX-License-Identifier: Apache-2.0 */
/* nic.h: the local interface for a rail of another node: the one in the subnet of its address. */
#ifndef RPC_NIC_H
#define RPC_NIC_H

#include "base/base.h"

#include <net/if.h>
#include <sys/socket.h>

struct nic {
    struct sockaddr_storage address; /* ours, port 0 */
    socklen_t len;
    char name[IF_NAMESIZE];
    bool running; /* it is up and has a carrier */
};

/*
 * The interface for the far address of rail k. `listen`: our own addresses; one of them is taken before other
 * interfaces. Of several in that subnet the k-th is taken, so that flat networks have as many rails.
 * LEAT_NOT_FOUND: none is in that subnet.
 */
int nic_find(const struct sockaddr_storage *far, unsigned k, const char *listen, struct nic *ret_nic);
/* The socket's packets leave by that interface: its address, and the device itself where the kernel lets us. 0 or -errno. */
int nic_bind(int fd, const struct nic *nic);

#endif
