/* SPDX-License-Identifier: Apache-2.0 */
/*
 * site.h: whether a browser may have been led here by a page of another site. Requests that carry no
 * credential rest on this alone: a signature or a token proves what a page of another site cannot know.
 *
 * Two attacks are refused (docs/decisions/0127). DNS rebinding: a page's own name is made to mean an address
 * of this server, and the browser then takes us for that page's origin; the name stands in Host. Cross-site
 * requests: a page sends a request that needs no permission by CORS, such as a POST of text; Sec-Fetch-Site
 * (Fetch Metadata, W3C) or Origin (RFC 6454) shows it. This server has no CORS rules, so no other origin is
 * allowed.
 */
#ifndef HTTP_SERVER_SITE_H
#define HTTP_SERVER_SITE_H

#include "base/base.h"
#include "http/server/http_server.h"

#define SITE_WHY_MAX 384

/* The names of this server. Never changes; any thread. */
struct site;

/*
 * Its names are the host's own, localhost, those among `listen` ("name:port"), and each of `domains` with a
 * label before it (a bucket). Both end with NULL and may be NULL. -ENOMEM.
 */
int site_new(const char *const *domains, const char *const *listen, struct site **ret_site);
void site_free(struct site *site); /* NULL is fine */

/* host: "name", "name:port", "[v6]:port". An address is a name of ours: a browser that has it in Host went to no name. */
bool site_is_ours(const struct site *site, struct http_text host);
/* Both as their headers have them, data NULL where there is none. Two signs, and either is enough. */
bool site_is_cross(struct http_text host, struct http_text origin, struct http_text fetch_site);

/*
 * May a request without a credential be answered? Over a unix socket always, as no browser comes by it. False, with a sentence for the client: its
 * Host is no name of ours, or it `changes` something and comes from another site.
 */
bool site_admits(const struct site *site, const struct http_request *req, bool changes,
                 char ret_why[SITE_WHY_MAX]);

#endif
