/* SPDX-License-Identifier: Apache-2.0 */
/* load.h: libcuda at run time. */
#ifndef GPU_LOAD_H
#define GPU_LOAD_H

#include "base/base.h"
#include "gpu/cuda.h"

/* LEAT_UNSUPPORTED: not installed, or too old; the message names the library. The first answer stays. Any
 * thread. $LEAT_LIBCUDA names another library: for tests. */
int cuda_load(const struct cuda_symbols **ret_cuda, struct leat_error *err);

#endif
