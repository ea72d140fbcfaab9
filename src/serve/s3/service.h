/* SPDX-License-Identifier: Apache-2.0 */
/*
 * service.h: S3 over HTTP: the user, the operation, the permission; then the operation itself, on objects.h.
 *
 * s3_service_request is the handler of an HTTP server, or part of one. Any service thread of the server.
 */
#ifndef SERVE_S3_SERVICE_H
#define SERVE_S3_SERVICE_H

#include "base/budget.h"
#include "http/server/http_server.h"
#include "http/server/workers.h"
#include "serve/s3/keys.h"
#include "objects/objects.h"
#include "http/server/site.h"

struct s3_service_config {
    struct objects *objects;
    struct keyring *keys;
    struct http_workers *workers, *waiters; /* waiters: of their own, for what waits for remotes */
    struct budget *budget;                  /* of buffers and documents of requests */
    const char *region;                     /* NULL: us-east-1 */
    bool disks_encrypted;                   /* answers state it, and may be asked for it: AES256 */
    const char *const
        *domains;            /* in front of which a bucket may stand in Host; NULL-terminated; NULL: none */
    const struct site *site; /* outlives the service */
};

struct s3_service;
int s3_service_new(const struct s3_service_config *config, struct s3_service **ret_service);
void s3_service_free(struct s3_service *service); /* after the server; NULL is fine */
void s3_service_request(struct s3_service *service, struct http_request *req);
/* An <Error> document for what the server refuses by itself: a handler's `refuse`. */
void s3_service_refuse(struct s3_service *service, const struct http_refusal *refusal,
                       struct bytes_out *headers, struct bytes_out *body);

#endif
