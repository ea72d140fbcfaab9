/* SPDX-License-Identifier: Apache-2.0 */
/* dataset_remote.h: datasets on S3 and web servers (dataset.h's struct dataset_remote) by a session of backend.h. */
#ifndef POOL_SOURCE_DATASET_REMOTE_H
#define POOL_SOURCE_DATASET_REMOTE_H

#include "backend/backend.h"
#include "dataset/dataset.h"

/* For sources elsewhere `opener` asks `b` from now on; what it does with files stays. The session stays the caller's, outlives what is
 * made with the opener, and is used by the thread that calls dataset_index_* only. */
void remote_opener(struct backend *b, struct dataset_opener *opener);

#endif
