/* SPDX-License-Identifier: Apache-2.0 */
/* dataset_remote.h: datasets on S3 and web servers (dataset.h's struct dataset_remote) by a session of backend.h. */
#ifndef POOL_SOURCE_DATASET_REMOTE_H
#define POOL_SOURCE_DATASET_REMOTE_H

#include "backend/backend.h"
#include "dataset/dataset.h"

/* `opener` asks `b` for remote sources from now on; its handling of files stays. The session stays the
 * caller's, outlives what is made with the opener, and is used by the thread that calls dataset_index_*
 * only. */
void remote_opener(struct backend *b, struct dataset_opener *opener);

#endif
