/* SPDX-License-Identifier: Apache-2.0 */
/*
 * proto.h: Leat's protocol between client and daemon (unix socket), and between hosts (TCP): frames, the types of messages, and the
 * proofs of a handshake. Bodies are in messages.h. Pure: bytes to structs and back; fuzzed.
 *
 *   frame    0  u32 magic "LEAT"      16  u64 id: of the request; replies and events carry it back
 *            4  u8  version           24  u32 body bytes (control), <= PROTO_BODY_MAX
 *            5  u8  kind (enum)       28  u32 nfds: descriptors sent beside it (SCM_RIGHTS), unix only
 *            6  u16 type              32  u64 payload bytes behind the body: sample bytes of READ replies, WRITE requests
 *            8  i32 status            40  body …, payload …
 *           12  u32 lost: of a READ reply: segments that were lost on this connection so far (mod 2^32), else 0
 *
 * All integers little-endian; strings are u32 length + UTF-8 bytes. A reply with status < 0 has a body of one string: the
 * message. A request may be followed by events with its id (progress) before its one reply. Daemon-initiated events have id 0.
 *
 * Permission to connect. Unix: SO_PEERCRED is the identity; the socket's folder is private or its mode the
 * administrator's. TCP: both sides prove that they know the token (32 bytes or more, from a file) without
 * sending it:
 *     client  HELLO  {versions, role, nonce_c[32], acting uid, gid, ws uuid}
 *     server  reply  {version, nonce_s[32]}: the highest that both speak, from here on in each frame
 *     client  PROOF  {mac_c = HMAC-SHA256(token, "leat client" ‖ transcript)}
 *     server  reply  {mac_s = HMAC-SHA256(token, "leat server" ‖ transcript), node id, generation, ...}
 * where transcript = the bytes of HELLO's body ‖ nonce_s. Nothing else is accepted before that. A daemon connects to its peers; for a
 * client's data connection it does so too and passes the open socket on, so that the token never leaves daemons.
 */
#ifndef WIRE_LEAT_PROTO_H
#define WIRE_LEAT_PROTO_H

#include "base/base.h"
#include "base/bytes.h"

#define PROTO_MAGIC       0x5441454cu /* "LEAT" */
#define PROTO_VERSION     3           /* the newest that is spoken here, */
#define PROTO_VERSION_MIN 2           /* and the oldest */
#define PROTO_FRAME       64          /* a line of the cache: see proto_frame_put */
#define PROTO_RANGE       16          /* a proto_range */
#define PROTO_BODY_MAX    (16u << 20)
#define PROTO_FDS_MAX     64
#define PROTO_STR_MAX     4096
#define PROTO_IDS_MAX     (1u << 20) /* samples in one WAIT or FETCH */
#define PROTO_READS_MAX   65536u     /* ranges in one READ */
#define PROTO_PAYLOAD_MAX (1ull << 48)
#define PROTO_KEYS_MAX    64u /* regions in one RDMA_KEYS */
#define PROTO_KEY_BYTES   1024u
#define PROTO_PUTS_MAX    4096u /* ranges in one RDMA_PUT */
#define PROTO_VIEWS_MAX   1024u /* of one data connection */
#define PROTO_URGENT_MAX  512u  /* samples in one URGENT, and those of a set that its receiver keeps */
#define PROTO_UUID        16

enum proto_kind { PROTO_REQUEST = 1, PROTO_REPLY = 2, PROTO_EVENT = 3 };

enum proto_role { PROTO_ROLE_CONTROL = 1, PROTO_ROLE_DATA = 2, PROTO_ROLE_PEER = 3 };

/* clang-format off */
/* Each with its body, a struct of messages.h; `×` is as many as its count says; `->` is the body of its reply, none when empty. */
enum proto_type {
    PROTO_HELLO = 1, /* proto_hello -> proto_welcome */
    PROTO_PROOF = 2, /* proto_proof -> proto_welcome again, now with mac, node and generation */

    /* control, client to daemon */
    PROTO_OPEN = 16,      /* proto_open -> proto_ws + fds {index, live}; events: PROGRESS while indexing */
    PROTO_CLOSE = 17,     /* proto_id, a set's handle: the lease ends */
    PROTO_REGIONS = 18,   /* proto_regions -> proto_regions_reply × proto_gid; fds: one read-only memfd each, local only */
    PROTO_WAIT = 19,      /* proto_wait × proto_id -> empty when every one is resident; n = 0: all of the set.
                             status < 0: the first that failed, message names it. Raises their priority. */
    PROTO_FETCH = 20,     /* proto_fetch × proto_span -> proto_fetched: streamed samples into staging */
    PROTO_RELEASE = 21,   /* proto_id, the lease of a FETCH; no reply */
    PROTO_APPEND = 22,    /* proto_open with name set -> proto_ws of the new version (fds as OPEN) */
    PROTO_CREATE = 23,    /* proto_create, fd: memfd with an index of kind PUSHED -> empty */
    PROTO_BROKER = 24,    /* proto_broker -> proto_brokered + fd: authenticated DATA connection to that node: by one rail of it (the
                             k-th of its addresses), or by whichever address answers */
    PROTO_QUERY = 25,     /* proto_query -> proto_query_reply */
    PROTO_DROP = 26,      /* proto_drop -> empty */
    PROTO_STOP = 27,      /* proto_stop -> empty, then the daemon ends */
    PROTO_VERIFY = 28,    /* proto_verify -> proto_verify_reply; events: PROGRESS */
    PROTO_CANCEL = 29,    /* proto_id of an own request: it is answered with -ECANCELED if it still can; no reply */
    PROTO_CREDITS = 31,   /* -> proto_credits; fd: the credit table (net/flow/credit.h) that this user's processes on this host share */
    PROTO_PREFETCH = 30,  /* proto_fetch × proto_span; no reply: into staging, while there is room that no reader holds. A FETCH of the
                             same range finds it there. */
    PROTO_REPORT = 32,    /* proto_report; no reply: how far a loader is */
    PROTO_SCAN = 33,      /* proto_scan (pool_bytes: of the window, at most) -> proto_scan_reply; fd: the window, read-only */
    PROTO_SCAN_NEXT = 34, /* proto_scan_next -> proto_scanned: objects from number `from` on, when there is
                           * one. Those below `released` are read no more, and their room is used again; what
                           * is requested again is sent again */
    PROTO_SCAN_END = 35,  /* proto_id of a scan; no reply */

    /* data: on a connection bound to one working set by its HELLO */
    PROTO_READ = 48,      /* u32 n, n × proto_range -> payload: the ranges, one after another */
    PROTO_WRITE = 49,     /* proto_write × proto_range; payload: their bytes -> empty. PUSHED sets only; the daemon checksums what arrives */
    PROTO_RDMA_CONNECT = 50, /* u32 n<=16, n × u64 secret of a rail of the client -> u32 rails, rails × {u32 incarnation, str address; 0 and "": closed}.
                                A connection to one of them that shows one of the secrets is accepted while this one lives, and the rail is of
                                the incarnation that was sent last: requested again after a connection broke */
    PROTO_RDMA_VIEW = 52, /* u32 id<PROTO_VIEWS_MAX, u64 address, u64 bytes, u32 rails of the client, rails × {u32 length, packed key} -> empty */
    PROTO_RDMA_PUT = 53, /* proto_puts × proto_put_range -> empty, once the bytes are there */
    PROTO_RDMA_KEYS = 51, /* proto_keys × proto_gid -> u32 n, n × {proto_key, u64 address, u64 bytes, u32 rails, rails × {u32 incarnation,
                             u32 length, packed key; none where the rail is closed}} */

    /* peer, daemon to daemon */
    PROTO_NODE = 64,      /* proto_node_ask -> proto_node_reply */
    /* APPEND = 22 as well: as DESCRIBE; the set `name` is made longer first */
    PROTO_INSTALL = 66,   /* proto_ws with spec, owner, mode and full region table, proto_install; payload: the index blob -> empty; it then pulls */
    PROTO_COMMIT = 71,    /* event: proto_commit: an installed set is there now */
    PROTO_READY = 67,     /* event: proto_ready × proto_ready_record */
    PROTO_FORGET = 68,    /* event: proto_set_flags (1: dropped for all; 2: by force; else: we no longer need it held) */
    PROTO_DESCRIBE = 69,  /* proto_describe, sealed proto_access (to what is before it) or nothing -> proto_ws; payload: the index blob */
    PROTO_MOVED = 73,     /* event, from version 3 on: proto_moved × proto_place: where regions of a set are now */
    PROTO_URGENT = 74,    /* event, from version 3 on: proto_urgent × proto_id: samples that a client of the sender waits for, and of
                             which the receiver has bytes to load. Sent again while they are waited for */
    PROTO_ACCESS = 72,    /* event: proto_access_of, sealed proto_access (to what is before it): how that user reads it */
    PROTO_RESYNC = 70,    /* proto_set_flags (1: READY of all it filled, too; 2: it holds the set for us) -> proto_resync_reply */

    /* events from the daemon */
    PROTO_PROGRESS = 96,  /* proto_progress */
    PROTO_REVOKED = 97,   /* proto_revoked: dropped by force, or its node lost it */
};
/* clang-format on */

/*
 * The version of a connection whose other side speaks `min` to `max`: the highest common one; 0: there is
 * none.
 *   2  the oldest that is spoken
 *   3  the answer to BROKER says the version of its data connection; NODE says the incarnation of the node that asks; MOVED, URGENT
 */
unsigned proto_version_common(unsigned min, unsigned max);

struct proto_frame {
    uint8_t version, kind;
    uint16_t type;
    int32_t status;
    uint32_t lost;
    uint64_t id;
    uint32_t body_bytes, nfds;
    uint64_t payload_bytes;
};
/*
 * 40 bytes and zeros, so that what follows begins with a line of the cache. A reply mostly begins a page in the socket's buffers, and samples
 * come from where pages begin: copied to 40 bytes behind a page's border, 4 KiB took a tenth longer on a quiet AMD EPYC (Zen 4) than to 64, and
 * half as long again on a busy one.
 */
void proto_frame_put(uint8_t out[PROTO_FRAME], const struct proto_frame *frame);
/* 0; LEAT_CORRUPT: not a frame, or sizes past the limits. The version is the caller's to judge. */
int proto_frame_get(const uint8_t in[PROTO_FRAME], struct proto_frame *ret_frame);

/* 16 bytes on the wire. A READ has thousands: its functions are made for it, and have no table. */
struct proto_range {
    uint32_t gid, bytes;
    uint64_t offset;
};
void proto_range_write(uint8_t wire[PROTO_RANGE], const struct proto_range *m);
void proto_range_put(struct bytes_out *out, const struct proto_range *m);
void proto_range_get(struct bytes_in *in, struct proto_range *ret);

/* Handshake MACs: HMAC-SHA256 over "leat server"/"leat client" ‖ hello body ‖ nonce_s. 0, -ENOMEM or -EIO. */
int proto_mac(const void *token, size_t token_len, bool server, const void *hello_body, size_t hello_len,
              const uint8_t nonce_s[32], uint8_t ret_mac[32]);
/* The key of rpc/seal.h, by the same. */
int proto_seal_key(const void *token, size_t token_len, const void *hello_body, size_t hello_len,
                   const uint8_t nonce_s[32], uint8_t ret_key[32]);
bool proto_mac_equal(const uint8_t a[32], const uint8_t b[32]); /* constant time */

#endif
