/* SPDX-License-Identifier: Apache-2.0 */
#include "http/server/site.h"

#include "base/setting.h"

#include <arpa/inet.h>
#include <limits.h>
#include <stdio.h>

struct site {
    char **domains; /* ended by NULL: matched with the label before them */
    char **names;   /* ended by NULL: matched whole */
};

/* "name:port" or "[v6]:port" without the port. A dot at the end says that a name is whole: the same name. */
static struct http_text without_port(struct http_text host)
{
    if (host.len == 0)
        return host;
    const char *bracket = host.data[0] == '[' ? memchr(host.data, ']', host.len) : NULL;
    const char *end = bracket ? bracket + 1 : memchr(host.data, ':', host.len);
    size_t len = end ? (size_t)(end - host.data) : host.len;
    if (len > 1 && host.data[len - 1] == '.')
        len--;
    return (struct http_text){host.data, len};
}

static bool is_address(struct http_text name)
{
    char text[INET6_ADDRSTRLEN + 2];
    struct in6_addr any;
    if (name.len >= sizeof(text))
        return false;
    http_text_copy(name, text, sizeof(text));
    if (text[0] != '[')
        return inet_pton(AF_INET, text, &any) == 1;
    text[name.len - 1] = 0; /* the other bracket */
    return inet_pton(AF_INET6, text + 1, &any) == 1;
}

static int add_name(char ***names, unsigned *n, const char *host)
{
    struct http_text name = without_port((struct http_text){host, strlen(host)});
    char text[256]; /* a name of DNS has 253 at most */
    if (name.len == 0 || name.len >= sizeof(text))
        return 0;
    http_text_copy(name, text, sizeof(text));
    return setting_add_word(names, n, text, NULL);
}

int site_new(const char *const *domains, const char *const *listen, struct site **ret_site)
{
    struct site *site = calloc(1, sizeof(*site));
    char host[HOST_NAME_MAX + 1] = "";
    unsigned ndomains = 0, nnames = 0;
    if (!site)
        return -ENOMEM;
    int rc = setting_add_word(&site->domains, &ndomains, "localhost", NULL); /* RFC 6761: always this host */
    for (; rc == 0 && domains && *domains; domains++)
        rc = setting_add_word(&site->domains, &ndomains, *domains, NULL);
    if (rc == 0 && gethostname(host, sizeof(host) - 1) == 0) {
        rc = add_name(&site->names, &nnames, host);
        host[strcspn(host, ".")] = 0;
        if (rc == 0)
            rc = add_name(&site->names, &nnames, host);
    }
    for (; rc == 0 && listen && *listen; listen++)
        rc = strncmp(*listen, "unix:", 5) ? add_name(&site->names, &nnames, *listen) : 0;
    if (rc < 0) {
        site_free(site);
        return -ENOMEM;
    }
    *ret_site = site;
    return 0;
}

void site_free(struct site *site)
{
    if (!site)
        return;
    setting_words_free(site->domains);
    setting_words_free(site->names);
    free(site);
}

bool site_is_ours(const struct site *site, struct http_text host)
{
    struct http_text name = without_port(host);
    if (name.len == 0 || is_address(name))
        return name.len > 0;
    for (char **n = site->names; n && *n; n++)
        if (http_text_is_case(name, *n))
            return true;
    for (char **d = site->domains; *d; d++) {
        size_t len = strlen(*d);
        struct http_text end = {name.data + name.len - MIN(len, name.len), MIN(len, name.len)};
        if (http_text_is_case(end, *d) && (name.len == len || end.data[-1] == '.'))
            return true;
    }
    return false;
}

bool site_is_cross(struct http_text host, struct http_text origin, struct http_text fetch_site)
{
    if (fetch_site.data && !http_text_is_case(fetch_site, "same-origin") &&
        !http_text_is_case(fetch_site, "none"))
        return true;
    if (!origin.data)
        return false;
    const char *slashes = memmem(origin.data, origin.len, "://", 3);
    if (!slashes) /* "null": a sandboxed frame, or a file */
        return true;
    size_t len = origin.len - (size_t)(slashes + 3 - origin.data);
    return len != host.len || strncasecmp(slashes + 3, host.data, len) != 0;
}

bool site_admits(const struct site *site, const struct http_request *req, bool changes,
                 char ret_why[SITE_WHY_MAX])
{
    struct http_text host = http_header(req->reader, req->head, "host");
    struct http_text origin = {0}, fetch_site = {0};
    /* HTTP/1.0 may lack it; browsers never do. */
    bool ours = host.len == 0 || site_is_ours(site, host);
    if (changes) {
        origin = http_header(req->reader, req->head, "origin");
        fetch_site = http_header(req->reader, req->head, "sec-fetch-site");
    }
    bool cross = changes && site_is_cross(host, origin, fetch_site);
    if (ours && !cross)
        return true;
    struct http_peer peer;
    http_request_peer(req, &peer);
    if (peer.local)
        return true;
    if (!ours)
        snprintf(
            ret_why, SITE_WHY_MAX,
            "An unsigned request for the host '%.*s', which is no name of this server: sign it, or add the "
            "name to domains in [serve] of leatd.conf (leat serve --domain NAME).",
            (int)MIN(host.len, (size_t)100), host.data);
    else
        snprintf(
            ret_why, SITE_WHY_MAX,
            "An unsigned request that changes something, sent by a page of another site (%.*s): sign it, or "
            "send it from a program.",
            (int)MIN(origin.data ? origin.len : fetch_site.len, (size_t)100),
            origin.data ? origin.data : fetch_site.data);
    return false;
}
