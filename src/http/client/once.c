/* SPDX-License-Identifier: Apache-2.0 */
#include "http/client/once.h"

#include "http/client/http_client.h"
#include "base/clock.h"
#include "loop/loop.h"
#include "wire/s3/s3.h"

struct ask {
    struct http_call call;
    int rc;
    struct leat_error err;
    bool over;
};

static void on_done(struct http_call *call, int rc, const struct leat_error *err)
{
    struct ask *a = container_of(call, struct ask, call);
    a->rc = rc;
    if (err)
        a->err = *err;
    a->over = true;
}

static int put_head(const struct http_once *once, struct http_origin *ret_origin, struct bytes_out *head,
                    struct leat_error *err)
{
    struct s3_endpoint e;
    char header[340];
    const char *rest = strstr(once->url, "://");
    for (const char *at = once->url; *at; at++) {
        if ((unsigned char)*at <= ' ' || *at == 0x7f)
            return error_set(err, LEAT_INVALID, "an address with spaces or line ends in it");
    }
    const char *path = rest ? rest + 3 + strcspn(rest + 3, "/?") : NULL;
    AUTO_FREE char *base = rest ? strndup(once->url, (size_t)(path - once->url)) : NULL;
    int rc =
        base ? s3_endpoint_parse(base, NULL, "path", &e, err)
             : error_set(err, LEAT_INVALID, "\"%.200s\" is no address: http[s]://HOST[:PORT]/...", once->url);
    if (rc < 0)
        return rc;
    *ret_origin = (struct http_origin){.tls = e.tls, .port = e.port};
    s3_endpoint_host(&e, NULL, ret_origin->host, header);
    http_put(head, once->method);
    http_put(head, *path == '/' ? " " : " /");
    http_put(head, path);
    http_put(head, " HTTP/1.1\r\n");
    http_put_header(head, "host", header);
    http_put_header(head, "user-agent", "leat");
    http_put(head, once->headers);
    http_put(head, "\r\n");
    return head->failed ? -ENOMEM : 0;
}

int http_once(const struct http_once *once, int *ret_status, char **ret_text, struct leat_error *err)
{
    struct http_origin origin = {0};
    struct bytes_out head = {0};
    struct loop *loop = NULL;
    struct http_client *client = NULL;
    int rc = put_head(once, &origin, &head, err);
    struct http_client_config config = {.connections = 1,
                                        .connect_ns = once->timeout_ns,
                                        .ca_file = once->ca_file,
                                        .insecure = once->insecure,
                                        .tls = origin.tls};
    struct ask a = {.call = {.origin = &origin,
                             .method = once->method,
                             .head = head.data,
                             .head_len = head.len,
                             .body = once->body,
                             .body_len = once->body_len,
                             .repeatable = true,
                             .text_max = once->text_max,
                             .deadline_ns = clock_now_ns() + once->timeout_ns,
                             .done = on_done}};
    if (rc == 0)
        rc = loop_new(&loop);
    if (rc == 0)
        rc = http_client_new(loop, &config, &client, err);
    if (rc == 0)
        rc = http_call_start(client, &a.call);
    if (rc == 0) {
        while (!a.over)
            loop_turn(loop, -1);
        rc = a.rc;
        if (rc < 0 && err)
            *err = a.err;
    }
    if (rc == 0) {
        *ret_status = a.call.status;
        *ret_text = a.call.text.len ? strndup((const char *)a.call.text.data, a.call.text.len) : strdup("");
        rc = *ret_text ? 0 : -ENOMEM;
    }
    if (a.call.text.data)
        explicit_bzero(a.call.text.data, a.call.text.len);
    bytes_out_fini(&a.call.text);
    if (head.data)
        explicit_bzero(head.data, head.len);
    bytes_out_fini(&head);
    http_client_free(client);
    if (loop)
        loop_turn(loop, 0); /* as in backend_free */
    loop_free(loop);
    return rc;
}
