/* SPDX-License-Identifier: Apache-2.0 */
/*
 * page.c: the page for people. It holds no data: it asks /v1 for it. The policy that goes with it allows the one script and the one style
 * that are in it, by their hashes, and nothing else from anywhere.
 */
#include "serve/admin/admin_internal.h"

#include <openssl/evp.h>
#include <stdio.h>

/* The text between <tag> and </tag>, hashed, in base64. */
static int hash_of(const char *tag, char out[64])
{
    const char *page = (const char *)admin_page_html;
    char open[16], close[16];
    unsigned char digest[32];
    unsigned len = sizeof(digest);
    snprintf(open, sizeof(open), "<%s>", tag);
    snprintf(close, sizeof(close), "</%s>", tag);
    const char *from = memmem(page, admin_page_html_len, open, strlen(open));
    if (!from)
        return -EINVAL;
    from += strlen(open);
    const char *to = memmem(from, (size_t)(page + admin_page_html_len - from), close, strlen(close));
    if (!to || EVP_Digest(from, (size_t)(to - from), digest, &len, EVP_sha256(), NULL) != 1)
        return -EINVAL;
    EVP_EncodeBlock((unsigned char *)out, digest, (int)len);
    return 0;
}

int page_policy(char *out, size_t cap)
{
    char script[64], style[64];
    int rc = hash_of("script", script);
    if (rc == 0)
        rc = hash_of("style", style);
    if (rc < 0)
        return rc;
    snprintf(out, cap,
             "default-src 'none'; script-src 'sha256-%s'; style-src 'sha256-%s'; connect-src 'self'; "
             "base-uri 'none'; form-action "
             "'none'; frame-ancestors 'none'",
             script, style);
    return 0;
}

void page_answer(struct admin *admin, struct http_request *req)
{
    struct http_piece piece = {.data = admin_page_html, .bytes = admin_page_html_len};
    struct bytes_out *head = http_respond(req, 200);
    http_put_header(head, "Content-Type", "text/html; charset=utf-8");
    http_put_header(head, "Content-Security-Policy", admin->policy);
    http_put_header(head, "Cache-Control", "no-cache");
    http_put_header(head, "X-Content-Type-Options", "nosniff");
    http_put_header(head, "Referrer-Policy", "no-referrer");
    http_send(req, piece.bytes, &piece, 1, true);
}
