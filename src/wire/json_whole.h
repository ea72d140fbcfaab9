/* SPDX-License-Identifier: Apache-2.0 */
/* json_whole.h: JSON as text, whole or not at all. */
#ifndef WIRE_JSON_WHOLE_H
#define WIRE_JSON_WHOLE_H

#include <jansson.h>

/* Compact; the caller's to free(). NULL: out of memory, or `json` is NULL. As json_dumps, which continues where it lacks memory for a key, and
 * gives a text without it. */
char *json_whole(const json_t *json);

#endif
