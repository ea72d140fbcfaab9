/* SPDX-License-Identifier: Apache-2.0 */
/* address.h: the schemes of sources' addresses, in one place: where each leads, and what it supports. */
#ifndef WIRE_ADDRESS_H
#define WIRE_ADDRESS_H

#include "base/base.h"

enum address {
    ADDRESS_NONE,  /* a path, a file: URI, or a scheme that nothing here reads */
    ADDRESS_SET,   /* leat://NAME: in the pool */
    ADDRESS_S3,    /* s3://BUCKET/KEY */
    ADDRESS_WEB,   /* http://, https:// */
    ADDRESS_STORE, /* store://BUCKET/KEY: what the daemon's own store holds */
};

/* Of the letters in front of "://", in any case (RFC 3986, 3.1). Any thread. */
enum address address_of(const char *text);
/* Does it name something remote, which a back end reads? */
bool address_is_remote(enum address address);
/* Is what lies below it listed there? A web server does not. */
bool address_has_lists(enum address address);

#endif
