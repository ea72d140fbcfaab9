/* SPDX-License-Identifier: Apache-2.0 */
/* losses.c: see losses.h. A separate file: only the kernel's header has all of tcp_info. */
#include "net/flow/losses.h"

#include <linux/tcp.h>
#include <netinet/in.h>

uint32_t losses_judge(struct losses *l, uint32_t sent_anew, uint32_t came_twice, uint64_t now_ns)
{
    uint32_t lost = sent_anew - came_twice;
    if ((int32_t)(lost - l->told) <= 0) { /* all new ones are duplicates */
        l->since_ns = 0;
        return l->told;
    }
    if (!l->since_ns || (int32_t)(lost - l->least) < 0)
        l->least = lost;
    if (!l->since_ns) {
        l->since_ns = now_ns;
    } else if (now_ns - l->since_ns >= LOSSES_SETTLE_NS) {
        l->told = l->least;
        l->since_ns = 0;
    }
    return l->told;
}

uint32_t losses_of(struct losses *l, int fd, uint64_t now_ns)
{
    struct tcp_info info = {.tcpi_min_rtt =
                                UINT32_MAX}; /* an older kernel leaves unknown fields as they are */
    socklen_t len = sizeof(info);
    if (l->asked_ns && now_ns - l->asked_ns < LOSSES_ASK_NS)
        return l->told;
    l->asked_ns = now_ns;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) < 0)
        return l->told;
    l->min_rtt_us = info.tcpi_min_rtt;
    return losses_judge(l, info.tcpi_total_retrans, info.tcpi_dsack_dups, now_ns);
}
