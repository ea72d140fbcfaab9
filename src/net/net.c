/* SPDX-License-Identifier: Apache-2.0 */
#include "net/net.h"

void net_free(struct net_ctx *ctx)
{
    if (ctx)
        ctx->ops->free(ctx);
}
