/* SPDX-License-Identifier: Apache-2.0 */
#include "base/metrics_text.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

static void add(struct bytes_out *out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void add(struct bytes_out *out, const char *fmt, ...)
{
    char line[512];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof(line), fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= sizeof(line))
        out->failed = true;
    else
        bytes_put(out, line, (size_t)n);
}

void metrics_family(struct bytes_out *out, const char *name, const char *type, const char *help)
{
    add(out, "# HELP leat_%s %s\n# TYPE leat_%s %s\n", name, help, name, type);
}

void metrics_sample(struct bytes_out *out, const char *name, const char *label, const char *value,
                    uint64_t number)
{
    add(out, "leat_%s{%s=\"", name, label);
    for (const char *c = value; *c; c++) {
        if (*c == '\\' || *c == '"')
            bytes_put(out, "\\", 1);
        bytes_put(out, *c == '\n' ? "\\n" : c, *c == '\n' ? 2 : 1);
    }
    add(out, "\"} %" PRIu64 "\n", number);
}

void metrics_counter(struct bytes_out *out, const char *name, const char *help, uint64_t number)
{
    metrics_family(out, name, "counter", help);
    add(out, "leat_%s %" PRIu64 "\n", name, number);
}

void metrics_gauge(struct bytes_out *out, const char *name, const char *help, uint64_t number)
{
    metrics_family(out, name, "gauge", help);
    add(out, "leat_%s %" PRIu64 "\n", name, number);
}

void metrics_histogram(struct bytes_out *out, const char *name, const char *help, const struct histogram *h)
{
    uint64_t total = 0;
    add(out, "# HELP leat_%s_seconds %s\n# TYPE leat_%s_seconds histogram\n", name, help, name);
    for (unsigned k = 0; k < HISTOGRAM_BUCKETS; k++) {
        total += atomic_load_explicit(&h->counts[k], memory_order_relaxed);
        add(out, "leat_%s_seconds_bucket{le=\"%.9g\"} %" PRIu64 "\n", name, (double)(1ull << k) * 1e-6,
            total);
    }
    total += atomic_load_explicit(&h->counts[HISTOGRAM_BUCKETS], memory_order_relaxed);
    add(out,
        "leat_%s_seconds_bucket{le=\"+Inf\"} %" PRIu64
        "\nleat_%s_seconds_sum %.9g\nleat_%s_seconds_count %" PRIu64 "\n",
        name, total, name, (double)atomic_load_explicit(&h->sum_ns, memory_order_relaxed) * 1e-9, name,
        total);
}
