/* SPDX-License-Identifier: Apache-2.0 */
/* top.h: the picture of `leat top` out of two looks at the daemon's status: pure, for tests. */
#ifndef APPS_LEAT_TOP_H
#define APPS_LEAT_TOP_H

#include "apps/leat/cli.h"

/* Rates between two documents, per second. A new reference; JSON null without an earlier document. */
json_t *top_rates(const json_t *before, const json_t *now, double seconds);
/* The picture, in lines of at most `width` columns, without a control character that is not a newline. `now` has "rates" in it. */
void top_draw(FILE *out, const json_t *now, unsigned width);

#endif
