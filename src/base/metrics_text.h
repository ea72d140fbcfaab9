/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metrics_text.h: numbers in Prometheus's text form (version 0.0.4). Names are without their prefix "leat_". A failure is in out->failed;
 * a name and its help have at most 400 bytes together.
 */
#ifndef BASE_METRICS_TEXT_H
#define BASE_METRICS_TEXT_H

#include "base/bytes.h"
#include "base/histogram.h"

/* HELP and TYPE, before the samples of a family with labels. */
void metrics_family(struct bytes_out *out, const char *name, const char *type, const char *help);
/* One of its samples; any bytes may be in `value`. */
void metrics_sample(struct bytes_out *out, const char *name, const char *label, const char *value,
                    uint64_t number);
/* Families of one sample. */
void metrics_counter(struct bytes_out *out, const char *name, const char *help, uint64_t number);
void metrics_gauge(struct bytes_out *out, const char *name, const char *help, uint64_t number);
/* "leat_NAME_seconds" */
void metrics_histogram(struct bytes_out *out, const char *name, const char *help, const struct histogram *h);

#endif
