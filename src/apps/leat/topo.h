/* SPDX-License-Identifier: Apache-2.0 */
/* topo.h: topo_record.c: a recorder stands before a tree's files and writes what is read through it to a tar archive. */
#ifndef APPS_LEAT_TOPO_H
#define APPS_LEAT_TOPO_H

#include "net/topo/topo.h"

struct topo_record;
/* The file must not be there. *ret_files reads through to `under` (which may be the same struct). */
int topo_record_new(const char *path, const struct topo_files *under, struct topo_record **ret_record,
                    struct topo_files *ret_files, struct leat_error *err);
unsigned topo_record_count(const struct topo_record *record);
/* Ends the archive, and frees the recorder. On failure the file is gone. */
int topo_record_finish(struct topo_record *record, struct leat_error *err);
void topo_record_free(struct topo_record *record); /* without an end: the file is gone. NULL is fine */

#endif
