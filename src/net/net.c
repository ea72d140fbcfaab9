/* SPDX-License-Identifier: Apache-2.0 */
#include "net/net.h"

#include "rpc/conn.h"

#include <sys/socket.h>

void net_free(struct net_ctx *ctx)
{
    if (ctx)
        ctx->ops->free(ctx);
}

int net_send_queued(int fd, struct bytes_out *out, size_t *sent)
{
    while (*sent < out->len) {
        ssize_t n = send(fd, out->data + *sent, out->len - *sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK ? -EAGAIN : LEAT_PEER_GONE;
        *sent += (size_t)n;
    }
    bytes_out_reset(out);
    *sent = 0;
    return 0;
}
