/* SPDX-License-Identifier: Apache-2.0 */
/* uploads.h: the uploads in parts that the store knows (uploads.c), for the calls that make, complete and abort them (multipart.c). */
#ifndef STORE_UPLOADS_H
#define STORE_UPLOADS_H

#include "store/internal.h"

struct upload {
    struct list node, chain; /* store.uploads, store.upload_chains */
    uint64_t charged;
    unsigned refs;       /* the list's, and those of parts in flight */
    unsigned committing; /* parts */
    bool ending, gone;   /* a thread completes or aborts it; it is no more */
    char bucket[STORE_BUCKET_MAX + 1];
    uint32_t bucket_id;
    uint8_t id[16];
    char text[STORE_UPLOAD_ID_TEXT];
    struct path *path;
    int64_t begun_ns, touched_ns;
    uint32_t flags;
    char remote[STORE_REMOTE_MAX + 1];
    size_t key_len, meta_len;
    uint8_t data[]; /* key, meta */
};

/* One of a new id; in no list yet, and not charged. NULL: no memory. */
struct upload *store_upload_new(const char *bucket, uint32_t bucket_id, const uint8_t id[16], const void *key,
                                size_t key_len, const void *meta, size_t meta_len);
/* No other thread has it, and it is in no list. */
void store_upload_free(struct store *s, struct upload *u);
/* Charges its memory. LEAT_BUSY: so many are open that others would have none. */
int store_upload_charge(struct store *s, struct upload *u, struct leat_error *err);
/* The list takes the reference. */
void store_upload_listed(struct store *s, struct upload *u);
/* A reference to the upload, if bucket and key are its own; else store_upload_none. */
int store_upload_find(struct store *s, const char *bucket, const void *key, size_t key_len, const char *id,
                      struct upload **ret, struct leat_error *err);
int store_upload_none(struct leat_error *err);
/* From here to store_upload_end_done no other thread completes or aborts it, and no part is being committed.
 * If one does so already, the call waits for its end, or returns LEAT_BUSY. */
int store_upload_end_begin(struct store *s, struct upload *u, bool wait, struct leat_error *err);
void store_upload_end_done(struct store *s, struct upload *u, bool gone);
/* multipart.c: its parts and itself are removed. */
int store_upload_give_up(struct store *s, struct upload *u, bool wait, struct leat_error *err);

#endif
