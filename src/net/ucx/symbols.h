/* SPDX-License-Identifier: Apache-2.0 */
/*
 * symbols.h: the functions of UCX that Leat calls, as a table filled by dlsym. Nothing links against UCX, so
 * that programs start, and read over shared memory and TCP, where it is not installed. Once loaded it stays
 * for the life of the process.
 */
#ifndef NET_UCX_SYMBOLS_H
#define NET_UCX_SYMBOLS_H

#include <ucp/api/ucp.h>

#include "base/base.h"

/* clang-format off */
#define UCX_SYMBOLS(X)                                                                                       \
    X(ucp_config_read) X(ucp_config_modify) X(ucp_config_release) X(ucp_init_version) X(ucp_cleanup)         \
    X(ucp_get_version_string)                                                           \
    X(ucp_worker_create) X(ucp_worker_destroy) X(ucp_worker_progress) X(ucp_worker_get_efd)                  \
    X(ucp_worker_arm)                                                                                        \
    X(ucp_listener_create) X(ucp_listener_destroy) X(ucp_listener_query) X(ucp_listener_reject)              \
    X(ucp_conn_request_query)                                                                                \
    X(ucp_ep_create) X(ucp_ep_close_nbx) X(ucp_ep_flush_nbx)                                                 \
    X(ucp_mem_map) X(ucp_mem_unmap) X(ucp_rkey_pack) X(ucp_rkey_buffer_release)                              \
    X(ucp_ep_rkey_unpack) X(ucp_rkey_destroy)                                                                \
    X(ucp_get_nbx) X(ucp_put_nbx) X(ucp_request_free)                                                        \
    X(ucs_status_string)
/* clang-format on */

struct ucx_symbols {
#define UCX_SYMBOL(name) __typeof__(name) *name;
    UCX_SYMBOLS(UCX_SYMBOL)
#undef UCX_SYMBOL
};

/*
 * Loads UCX once, and from then on returns the same. No signal handler of it stays installed, and its log
 * goes to ours. LEAT_UNSUPPORTED: it is not installed, or too old; the message names the library. Any thread.
 * $LEAT_LIBUCP names another library: for tests of its absence.
 */
int ucx_load(const struct ucx_symbols **ret_ucx, struct leat_error *err);
/* -errno for a status of UCX. */
int ucx_errno(ucs_status_t status);

#endif
