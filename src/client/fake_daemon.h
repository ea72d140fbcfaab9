/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_daemon.h: the least that a client needs to be tested against: one working set whose every byte is
 * known, served from a thread of the test. The test chooses its errors and delays.
 *
 * The set: fields "data" (<u2, 3×10), "blob" (raw, 0 to 5,000 bytes, absent in every seventh sample) and
 * "label".
 */
#ifndef CLIENT_FAKE_DAEMON_H
#define CLIENT_FAKE_DAEMON_H

#include <pthread.h>

#include "base/base.h"
#include "dataset/index.h"
#include "rpc/conn.h"
#include "wire/leat/messages.h"

#define FAKE_SAMPLES      400u
#define FAKE_REGION_BYTES (16 * KIB)
#define FAKE_FIELDS       3u
#define FAKE_MAX_REGIONS  128u

struct fake_options {
    bool remote_odd;    /* regions of odd number are on another node, reached by BROKER */
    bool places;        /* two nodes, and the live table says where regions are: fake_move */
    bool all_loading;   /* samples turn resident when they are waited for */
    bool streamed_tail; /* samples from FAKE_SAMPLES / 2 on are streamed */
    bool pushed;
    unsigned slow_open;    /* signs of progress before an OPEN is answered, 40 ms apart */
    uint64_t window_bytes; /* of streaming; 0: no limit */
    const char *path;      /* to listen at; NULL: in a folder of its own */
};

struct fake_daemon {
    struct fake_options options;
    char folder[64], path[108];
    int listen_fd;
    pthread_t thread;
    _Atomic bool stop;
    _Atomic int connection; /* of the only client at a time */

    struct index index;
    int index_fd, live_fd, stream_window_fd;
    struct live_header *live;
    _Atomic uint64_t *places;
    uint8_t *live_map;
    uint32_t nregions;
    int region_fds[FAKE_MAX_REGIONS];
    uint8_t *regions[FAKE_MAX_REGIONS];
    uint8_t *window;
    struct net_server *server;
    struct net_serve_target target;

    /* what the test turns and reads */
    _Atomic bool mute;         /* requests are read and not answered */
    _Atomic int broker_fails;  /* so many BROKERs are refused */
    _Atomic int hello_version; /* in the welcome; 0: the right one */
    struct proto_hello offered;
    _Atomic unsigned heard_version; /* of the last frame */
    _Atomic unsigned waits, fetches, releases, cancels, brokers, regions_asked, closes, reports;
    struct proto_report report; /* the last one: written before `reports` */
    _Atomic bool frozen;        /* the other node's memory cannot be resolved until thawed */
    int broker_peer;            /* our end of the last brokered connection when `hold_broker` */
    _Atomic int data_fd;        /* the client's end of the last one otherwise, -1: none */
    /* A scan: `scan_objects` of 60 bytes each, three an answer, in a window of FAKE_SCAN_BYTES, each at (i % 8) * 8192 */
    _Atomic uint64_t scan_objects, scan_from, scan_released; /* the last two: what the client said last */
    _Atomic uint64_t scan_skew;                              /* added to the offsets of objects */
    _Atomic unsigned scan_ends;
    _Atomic bool refuses; /* the other node does not have any region, */
    _Atomic bool
        leaves[FAKE_MAX_REGIONS]; /* or this one any more, which moves to our own when it is asked for, or
                                     from our own when it is to be mapped */
    _Atomic bool hold_broker;     /* no thread serves brokered connections: the test does */
};

#define FAKE_SCAN_BYTES 65536u
struct fake_daemon *fake_start(const struct fake_options *options);
void fake_stop(struct fake_daemon *f);
/* options.places: region gid to node 0, which is this one, or 1. */
void fake_move(struct fake_daemon *f, uint32_t gid, uint32_t node);
/* As if the set had been dropped by force. */
void fake_revoke(struct fake_daemon *f, bool send_event);
/* Closes the client's connection: the daemon died. */
void fake_hang_up(struct fake_daemon *f);
/* The last brokered connection: the other node died. */
void fake_node_hangs_up(struct fake_daemon *f);
/* The length of part (sample, field); its bytes come from fake_byte. */
uint64_t fake_bytes(uint64_t sample, unsigned field, bool *ret_present);
uint8_t fake_byte(uint64_t sample, unsigned field, uint64_t i);
bool fake_matches(uint64_t sample, unsigned field, const void *data, uint64_t bytes);
void fake_corrupt(struct fake_daemon *f, uint64_t sample, unsigned field);

#endif
