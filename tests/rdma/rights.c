/* SPDX-License-Identifier: Apache-2.0
 *
 * What a key of the daemon's lets its holder do, over verbs:
 *
 *     rights RAIL get|put|message [plain]
 *
 * Two workers of this process, connected over RAIL ("rxe0:1"), one with a region that is registered as a daemon registers its own.
 * The other one reads from it by the key (get), writes to it (put), or writes with a key that it unpacked before it was connected,
 * which has UCX send a message that the owner is to carry out (message). plain: nothing keeps UCX from what it does by itself.
 * stdout is one line: "landed", "refused: WHY" or "no answer".
 */
#include "net/ucx/rail.h"
#include "net/ucx/verbs.h"

#include <stdio.h>

#include "base/clock.h"

enum { REGION = 65536, SLICE = 4096 };
static struct ucx_rail owner, guest;
static ucp_ep_h far_end; /* of the owner */
static uint8_t *region, here[SLICE];

static void need(bool good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "%s\n", what);
    exit(4);
}

static void on_error(void *arg, ucp_ep_h ep, ucs_status_t status) {}

static void on_connection(ucp_conn_request_h request, void *arg)
{
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST |
                                            UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                                            UCP_EP_PARAM_FIELD_ERR_HANDLER,
                              .conn_request = request,
                              .err_mode = UCP_ERR_HANDLING_MODE_PEER,
                              .err_handler = {on_error, NULL}};
    need(owner.ucx->ucp_ep_create(owner.worker, &params, &far_end) == UCS_OK, "not accepted");
}

static void on_done(void *request, ucs_status_t status, void *arg)
{
    *(ucs_status_t *)arg = status;
}

/* Drives both until it is over; UCS_INPROGRESS: it was not within `seconds`. */
static ucs_status_t wait_for(ucs_status_ptr_t request, const ucs_status_t *status, unsigned seconds)
{
    if (!UCS_PTR_IS_PTR(request))
        return UCS_PTR_STATUS(request);
    for (uint64_t until = clock_now_ns() + seconds * NS_PER_S;
         *status == UCS_INPROGRESS && clock_now_ns() < until;) {
        ucx_rail_progress(&owner);
        ucx_rail_progress(&guest);
    }
    return *status;
}

static ucs_status_t flush(ucp_ep_h ep, unsigned seconds)
{
    static ucs_status_t status;
    status = UCS_INPROGRESS;
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                 .cb.send = on_done,
                                 .user_data = &status};
    return wait_for(guest.ucx->ucp_ep_flush_nbx(ep, &param), &status, seconds);
}

static ucp_ep_h begin(void)
{
    struct sockaddr_in6 listens = {0};
    ucp_listener_h listener;
    ucp_listener_params_t listen = {
        .field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
        .sockaddr = {(struct sockaddr *)&owner.address, ucx_address_len(&owner.address)},
        .conn_handler = {on_connection, NULL}};
    ucp_listener_attr_t attr = {.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR};
    need(owner.ucx->ucp_listener_create(owner.worker, &listen, &listener) == UCS_OK &&
             owner.ucx->ucp_listener_query(listener, &attr) == UCS_OK,
         "cannot listen");
    memcpy(&listens, &attr.sockaddr, sizeof(listens));
    ucp_ep_h ep;
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR |
                                            UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                                            UCP_EP_PARAM_FIELD_ERR_HANDLER,
                              .flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER,
                              .sockaddr = {(struct sockaddr *)&listens, ucx_address_len(&listens)},
                              .err_mode = UCP_ERR_HANDLING_MODE_PEER,
                              .err_handler = {on_error, NULL}};
    need(guest.ucx->ucp_ep_create(guest.worker, &params, &ep) == UCS_OK, "cannot connect");
    return ep;
}

int main(int argc, char **argv)
{
    static const struct net_rdma_config config;
    struct ucx_wanted wanted = {0};
    struct leat_error err = {0};
    const struct ucx_symbols *ucx;
    ucp_mem_h memh;
    ucp_rkey_h rkey;
    void *packed;
    size_t packed_bytes;
    need(argc >= 3, "rights RAIL get|put|message [plain]");
    const bool get = strcmp(argv[2], "get") == 0, message = strcmp(argv[2], "message") == 0, plain = argc > 3;
    snprintf(wanted.name, sizeof(wanted.name), "%s", argv[1]);
    need(ucx_load(&ucx, &err) == 0 && (plain || ucx_refuse_emulation()), "UCX has no such handlers");
    need(ucx_rail_open(&config, &wanted, 0, &owner, &err) == 0 &&
             ucx_rail_open(&config, &wanted, 1, &guest, &err) == 0 &&
             (region = aligned_alloc(SLICE, REGION)) != NULL,
         err.message);
    memset(region, 0x11, REGION);
    memset(here, 0x22, sizeof(here));
    need(ucx_rail_map(&owner, region, REGION, !plain, -1, &memh, &err) == 0, err.message);
    need(plain || ucx_reading_end(), "UCX registered by its own way");
    need(ucx->ucp_rkey_pack(owner.context, memh, &packed, &packed_bytes) == UCS_OK, "no key");
    void *copy = ucx_key_copy(packed, packed_bytes);
    ucp_ep_h ep = begin();
    if (message)
        need(ucx->ucp_ep_rkey_unpack(ep, copy, &rkey) == UCS_OK, "not unpacked");
    need(flush(ep, 20) == UCS_OK, "not connected");
    if (!message)
        need(ucx->ucp_ep_rkey_unpack(ep, copy, &rkey) == UCS_OK, "not unpacked");
    static ucs_status_t status = UCS_INPROGRESS;
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                 .cb.send = on_done,
                                 .user_data = &status};
    const uint64_t at = (uintptr_t)region;
    ucs_status_t ended = wait_for(get ? ucx->ucp_get_nbx(ep, here, SLICE, at, rkey, &param)
                                      : ucx->ucp_put_nbx(ep, here, SLICE, at, rkey, &param),
                                  &status, 20);
    if (ended == UCS_OK)
        ended = flush(ep, 5);
    if (memcmp(region, here, SLICE) == 0)
        printf("landed\n");
    else if (ended == UCS_INPROGRESS)
        printf("no answer\n");
    else
        printf("refused: %s\n", ucx->ucs_status_string(ended));
    return 0;
}
