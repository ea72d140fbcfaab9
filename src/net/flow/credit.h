/* SPDX-License-Identifier: Apache-2.0 */
/*
 * credit.h: how many bytes the processes of a host may have asked for and not yet received, over one rail, from all
 * servers together. The receiver grants them to itself, so that many servers that answer at once do not overrun the
 * last queue in front of it (incast).
 *
 *   credit_take ──▶ asked ──▶ answered ──▶ credit_done: given back, and what it tells about the path
 *        └── false: not now; ask again after an own completion, or credit_wait
 *
 *   limit = 4 × rate × base × boost   (bytes; 32 KiB … 64 MiB; below the ceiling that losses drew)
 *
 * The table is a memfd that the daemon makes for each user of the host. It passes the memfd to the user's
 * clients, each of which gets a slot of its own. The bytes in flight are the sum of the slots. The daemon
 * clears the slot of a process that is gone, so a process killed at any moment leaves nothing behind. There
 * is no lock: a stopped process stops no other. What it holds counts for a second more; by then its answers
 * wait in its own sockets. What other processes of the same user wrote is used only after clamping it.
 *
 * Threads: any; one `struct credit` belongs to one thread at a time. See
 * docs/decisions/0020-inflight-limit.md.
 */
#ifndef NET_FLOW_CREDIT_H
#define NET_FLOW_CREDIT_H

#include "base/base.h"

#define CREDIT_SLOTS 128u
#define CREDIT_RAILS 8u
/* Bounds of one request, where there is so much to ask for. */
#define CREDIT_PIECE_MIN (8 * KIB)
#define CREDIT_PIECE_MAX (1 * MIB)

struct credit_slot {
    _Alignas(64) _Atomic uint64_t in_flight_bytes;
    _Atomic uint64_t want_since_ns; /* it waits for credit; 0: it does not */
    _Atomic uint64_t want_seen_ns;  /* and last asked */
    _Atomic uint64_t moved_ns;      /* last asked for credit, or gave some back */
    _Atomic uint32_t busy;          /* users of it, of one process, that hold some or want it */
};

struct credit_rail {
    _Alignas(64) _Atomic uint64_t limit_bytes;
    _Atomic uint64_t rate_bytes_per_s; /* delivered to all processes: windowed maximum that fades */
    _Atomic uint64_t base_ns;       /* shortest answer to a request that was alone, less its bytes / rate */
    _Atomic uint64_t base_stamp_ns; /* 0: it is the whole answer, as no rate was known */
    _Atomic uint64_t base_bytes;    /* of the request that gave base_ns */
    _Atomic uint64_t probe_ns;      /* when a small request was last alone */
    _Atomic uint64_t delivered_bytes, lost_segments, peak_bytes;
    _Atomic uint64_t slow_ns;       /* when the last answer came that had waited long */
    _Atomic uint64_t ceiling_bytes; /* set by a loss, raised again slowly; 0: none */
    _Atomic uint32_t probes;        /* that gave a result, up to a few */
    _Atomic uint32_t slots_used;    /* no slot at or above was ever given out */
    _Atomic uint32_t wake;          /* futex: counts returns that a process waited for */
    _Atomic uint32_t adapting;      /* slot + 1 of the process that adapts; others skip it */
    /* of the adapting process */
    uint64_t window_start_ns, window_delivered;
    uint64_t idle_since_ns;  /* nothing is in flight; 0: something is */
    uint64_t idle_delivered; /* delivered_bytes at that time */
    /* When bytes last came, and for how long since the last stall. */
    uint64_t moved_at_ns, moved_ns;
    /* Lost segments at the last judgement of losses; its time; bytes delivered by then. */
    uint64_t lost_seen, loss_stamp_ns, loss_delivered;
    uint64_t ceiling_stamp_ns, ceiling_pause_ns;
    uint64_t high_bytes, high_ns;     /* the limit before it fell, and the last time it was that */
    uint64_t judged_ns, judged_bytes; /* windows since boost was judged */
    uint64_t best_bytes_per_s;        /* as rate, fading far more slowly */
    uint32_t boost;                   /* in 1/1024, at least 1024; 0 is 1024 */
    struct credit_slot slots[CREDIT_SLOTS];
};

struct credit_table {
    uint32_t magic, version;
    struct credit_rail rails[CREDIT_RAILS];
};

/* The daemon's: a sealed memfd, and its mapping. 0 or -errno. */
int credit_table_new(int *ret_fd, struct credit_table **ret_table);
/* A client's, from a descriptor that it was passed: LEAT_CORRUPT when it is not such a table. */
int credit_table_map(int fd, struct credit_table **ret_table);
void credit_table_unmap(struct credit_table *table); /* NULL is fine */
/* The daemon's, when a slot's process is gone and before the slot is given out again. */
void credit_slot_clear(struct credit_table *table, unsigned slot);
/* Before a slot is used: others count it from now on. */
void credit_slot_begin(struct credit_table *table, unsigned slot);

struct credit {
    struct credit_rail *rail;
    unsigned slot;
    struct credit_table *own; /* a private table, where there is none to share */
    uint64_t fixed_limit_bytes, floor_bytes, in_flight_bytes;
    uint64_t moved_ns;             /* when bytes last came, or a request began with nothing out */
    uint64_t stood_ns, stood_lost; /* the last end of a stall, and the losses known by then */
    bool busy;                     /* counted by its slot */
};

/*
 * table NULL: a private one is allocated (-ENOMEM). fixed_limit_bytes: of this user of the rail alone, nothing adapts;
 * 0: shared and adapting. same_host: the servers are on this host, which has no network queue to spare; private, and
 * never below 4 MiB.
 */
int credit_init(struct credit *credit, struct credit_table *table, unsigned slot, unsigned rail,
                uint64_t fixed_limit_bytes, bool same_host);
/* Gives back what was taken and not done. */
void credit_fini(struct credit *credit);

/* What may be in flight now, all processes together, and what one request should carry. */
uint64_t credit_limit(const struct credit *credit);
uint64_t credit_piece_bytes(const struct credit *credit);
/* Bytes of the next request: less where it is alone, to show the path's delay without its own bytes. */
uint64_t credit_request(const struct credit *credit, uint64_t now_ns);
/* Bytes of a piece that one request takes: the first of equal parts, none longer than a stage. */
uint64_t credit_slice(uint64_t stage, uint64_t bytes);
/* What one request should carry at least where several rails share the work: what this rail brings in a
 * moment. Longer requests keep a slow rail busy when the others are done; shorter ones leave a fast rail
 * waiting for the requester. */
uint64_t credit_share(const struct credit *credit);
/* Whether bytes were delivered by it so far. */
bool credit_measured(const struct credit *credit);
/* False: not now. Never false when no process has bytes in flight, however small the limit. *ret_alone:
 * nothing else was in flight, so that the answer shows the path's own delay. */
bool credit_take(struct credit *credit, uint64_t bytes, uint64_t now_ns, bool *ret_alone);
/* Ends what credit_take began, however it ended; rtt_ns 0: no information about the path. */
void credit_done(struct credit *credit, uint64_t bytes, uint64_t rtt_ns, bool sole_op, uint64_t now_ns);
/* Wants no more for now, even if it was refused: others need not wait for it. */
void credit_rest(struct credit *credit);
/* Servers lost so many segments. */
void credit_lost(struct credit *credit, uint64_t segments);
/* For a process with nothing in flight: sleeps until another gave credit back, or timeout_ms. */
void credit_wait(struct credit *credit, int timeout_ms);

#endif
