/* SPDX-License-Identifier: Apache-2.0 */
/* engine.h: code shared by the implementations of disk.h; users of an engine do not need it. */
#ifndef DISK_ENGINE_H
#define DISK_ENGINE_H

#include "disk/disk.h"

/* A first-in first-out queue of requests through disk_read.link. */
struct disk_queue {
    struct disk_read *head, *tail;
};
static inline void disk_queue_push(struct disk_queue *q, struct disk_read *req)
{
    req->link = NULL;
    if (q->tail)
        q->tail->link = req;
    else
        q->head = req;
    q->tail = req;
}
/* For a request that continues after a short read: it keeps its turn. */
static inline void disk_queue_push_front(struct disk_queue *q, struct disk_read *req)
{
    req->link = q->head;
    q->head = req;
    if (!q->tail)
        q->tail = req;
}
static inline struct disk_read *disk_queue_pop(struct disk_queue *q)
{
    struct disk_read *req = q->head;
    if (req) {
        q->head = req->link;
        if (!q->head)
            q->tail = NULL;
        req->link = NULL;
    }
    return req;
}

/* The largest kernel read: 1 GiB, as above 2 GiB - 4 KiB the kernel cuts anyway and a registered buffer holds
 * 1 GiB at most. A multiple of every alignment that direct I/O requires. Tests make it small, before they
 * make an engine; no other code writes it. */
extern uint64_t disk_piece_max;

/* Counts the request, takes it out of flight and calls done(); the request may be gone afterwards. */
void disk_request_finish(struct disk_engine *e, struct disk_read *req, int64_t result);

/* After a read that returned less than was requested, `next` being the offset behind its last byte: true when
 * nothing more can come. Asks fstat instead of reading on, because at an unaligned end of file a second
 * direct read would be refused with EINVAL. */
bool disk_short_is_eof(int fd, uint64_t next);

/* Reads with pread until all bytes are there, EOF or an error; returns the result for done(). Blocks. */
int64_t disk_pread_all(const struct disk_read *req);

/* An eventfd used as a flag: readable, or not. */
void disk_event_set(int event_fd);
void disk_event_clear(int event_fd);

#endif
