/* SPDX-License-Identifier: Apache-2.0 */
/*
 * losses.h: how many segments of a connection were truly lost, as its sender knows it: those that TCP
 * retransmitted, less those that the receiver reported as duplicates (DSACK). A reader that does not get its
 * CPU in time acknowledges late; TCP then retransmits the tail although nothing was lost. This is normal on a
 * busy machine and must not lower a limit.
 *
 * DSACK arrives a round trip later, so that a figure counts once it has stood for LOSSES_SETTLE_NS. TCP is
 * asked once in LOSSES_ASK_NS: the question costs as much as a small reply's checks. Pure but for losses_of.
 * Threads: as the connection.
 */
#ifndef NET_FLOW_LOSSES_H
#define NET_FLOW_LOSSES_H

#include "base/base.h"

#define LOSSES_ASK_NS    1000000ull
#define LOSSES_SETTLE_NS 5000000ull

struct losses {
    uint32_t told; /* never falls; modulo 2^32 */
    uint32_t least;
    /* Since when more than the reported number is known, of which `least` at least; 0: not */
    uint64_t asked_ns, since_ns;
    uint32_t min_rtt_us; /* of the connection, as TCP knew it when it was asked last; UINT32_MAX: not known */
};

/* The losses to report, from TCP's totals of a connection: segments retransmitted, and duplicates. */
uint32_t losses_judge(struct losses *losses, uint32_t sent_anew, uint32_t came_twice, uint64_t now_ns);
/* The same, asking the socket where it is time, for its round trip as well. One that is not TCP loses nothing. */
uint32_t losses_of(struct losses *losses, int fd, uint64_t now_ns);

#endif
