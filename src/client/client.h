/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client.h: inside of the DataClient (include/leat/leat.h is its face).
 *
 *   connect.c  find or start the daemon, hello          order.c   epoch order: pure
 *   rpc.c      one socket, many threads: calls, events   sched.c   how much may be in flight: pure
 *   ws.c       working sets: index, live table, regions  view.c    ring of slots: holders, quarantine, release events
 *   batch.c    samples -> pieces -> transports -> CRC    stream.c  the window of a set larger than the pool
 *   iter.c     epoch iterator: reads ahead               push.c    create and push
 */
#ifndef CLIENT_CLIENT_H
#define CLIENT_CLIENT_H

#include "base/base.h"
#include "leat/leat.h"

/* Where a piece of a batch comes from and how it is checked is batch.c's; what may be in flight is decided here, purely:
 * stages of pipelined requests, bytes granted by the receiver (us), adapted to the rate and delay that completions show. */
struct sched {
    uint64_t limit_bytes;      /* in flight, all servers */
    uint64_t stage_bytes;      /* a request to one server carries at least this much where there is more to ask for */
    uint64_t in_flight_bytes;
    uint64_t min_rtt_ns, rate_bytes_per_s; /* measured; windowed min and max */
    uint64_t fixed_limit_bytes; /* set by the user: no adapting */
    /* window of measurement */
    uint64_t window_start_ns, window_bytes, rtt_stamp_ns;
    unsigned stages;
};
void sched_init(struct sched *s, uint64_t fixed_limit_bytes);
/* How many bytes may be asked for now (0: wait for a completion). Never 0 when nothing is in flight: no stall. */
uint64_t sched_grant(const struct sched *s);
void sched_sent(struct sched *s, uint64_t bytes);
void sched_done(struct sched *s, uint64_t bytes, uint64_t rtt_ns, uint64_t now_ns);

#endif
