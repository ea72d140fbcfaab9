/* SPDX-License-Identifier: Apache-2.0 */
/* address.c: see address.h */
#include "wire/address.h"

#include <strings.h>

static const struct {
    const char *prefix;
    enum address address;
} known[] = {{"leat://", ADDRESS_SET},
             {"s3://", ADDRESS_S3},
             {"http://", ADDRESS_WEB},
             {"https://", ADDRESS_WEB},
             {"store://", ADDRESS_STORE}};

enum address address_of(const char *text)
{
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (strncasecmp(text, known[i].prefix, strlen(known[i].prefix)) == 0)
            return known[i].address;
    return ADDRESS_NONE;
}

bool address_is_remote(enum address address)
{
    return address == ADDRESS_WEB || address_has_lists(address);
}

bool address_has_lists(enum address address)
{
    return address == ADDRESS_S3 || address == ADDRESS_STORE;
}
