/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One HTTP message, whole and in pieces: what is understood is the same, all spans lie inside, and payload never exceeds what came.
 * First byte: bit 0 response, bit 1 to a HEAD; the rest of it the size of pieces.
 */
#include "wire/http/http.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int count(void *user, const void *data, size_t len)
{
    volatile uint8_t sum = 0;
    for (size_t i = 0; i < len; i++)
        sum = (uint8_t)(sum + ((const uint8_t *)data)[i]);
    *(size_t *)user += len;
    return 0;
}

static int parse(struct http_reader *r, const char *buf, size_t size, size_t step, uint8_t how,
                 size_t *ret_payload)
{
    int rc = 0;
    how & 1 ? http_reader_init_response(r, 4096) : http_reader_init_request(r, 4096);
    *ret_payload = 0;
    for (size_t have = MIN(step, size);; have = MIN(have + step, size)) {
        char *moved = malloc(have ? have : 1);
        if (!moved)
            exit(0);
        memcpy(moved, buf, have);
        rc = http_head_feed(r, moved, have, how & 2 ? "HEAD" : "GET", NULL);
        for (unsigned i = 0; rc == 1 && i < r->nheaders; i++) {
            struct http_text name, value;
            http_header_at(r, moved, i, &name, &value);
            if (name.data < moved || name.data + name.len > moved + r->head_bytes ||
                (value.len && (value.data < moved || value.data + value.len > moved + r->head_bytes)))
                abort();
        }
        free(moved);
        if (rc || have == size)
            break;
    }
    if (rc != 1)
        return rc;
    if (r->head_bytes > size ||
        (r->body == HTTP_BODY_LENGTH) != (r->body == HTTP_BODY_LENGTH && r->status / 100 != 1))
        abort();
    for (size_t at = r->head_bytes; r->body == HTTP_BODY_CHUNKED && at < size && !r->ended;) {
        size_t used, n = MIN(step, size - at);
        if (http_body_feed(r, buf + at, n, count, ret_payload, &used, NULL) < 0)
            return LEAT_CORRUPT;
        if (used > n || (used < n && !r->ended))
            abort();
        at += used;
    }
    if (*ret_payload > size)
        abort();
    return 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct http_reader whole, pieces;
    size_t payload, payload_pieces;
    if (size < 1)
        return 0;
    const char *buf = (const char *)data + 1;
    int rc = parse(&whole, buf, size - 1, size, data[0], &payload);
    int rc_pieces = parse(&pieces, buf, size - 1, 1 + (data[0] >> 2), data[0], &payload_pieces);
    if ((rc == 1) != (rc_pieces == 1))
        abort();
    if (rc == 1 &&
        (whole.head_bytes != pieces.head_bytes || whole.nheaders != pieces.nheaders ||
         whole.body != pieces.body || payload != payload_pieces || whole.body_bytes != pieces.body_bytes))
        abort();
    struct http_text text = {buf, size - 1};
    uint64_t a, b, c;
    time_t t;
    if (http_content_range(text, &a, &b, &c) && (a > b || b >= c))
        abort();
    http_date_parse(text, &t);
    return 0;
}
