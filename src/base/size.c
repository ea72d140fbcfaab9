/* SPDX-License-Identifier: Apache-2.0 */
/*
 * size.c: decimal numbers with a unit, in integers throughout: a double would lose bytes from 8 PiB on, and strtod
 * follows the locale.
 */
#include "base/size.h"

#include <inttypes.h>
#include <stdio.h>
#include <strings.h>

struct unit {
    const char *name;
    uint64_t factor;
};

static const struct unit size_units[] = {
    {"", 1},      {"b", 1},        {"k", KIB},         {"kib", KIB},          {"m", MIB},
    {"mib", MIB}, {"g", GIB},      {"gib", GIB},       {"t", 1ull << 40},     {"tib", 1ull << 40},
    {"kb", 1000}, {"mb", 1000000}, {"gb", 1000000000}, {"tb", 1000000000000},
};

static const struct unit duration_units[] = {
    {"ns", 1},          {"us", 1000},         {"ms", 1000000},      {"s", 1000000000},
    {"m", 60000000000}, {"min", 60000000000}, {"h", 3600000000000}, {"d", 86400000000000},
};

/* More digits than this behind the point can not change a result by one in any unit, near enough. */
#define FRACTION_DIGITS 18

enum verdict { OK, NOT_A_NUMBER, UNKNOWN_UNIT, TOO_LARGE };

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static enum verdict parse(const char *text, const struct unit *units, unsigned unit_count,
                          uint64_t *ret_value)
{
    const char *p = text;
    uint64_t whole = 0, fraction = 0, scale = 1;
    bool overflow = false;
    if (!is_digit(*p))
        return NOT_A_NUMBER;
    for (; is_digit(*p); p++)
        overflow |= mul_overflows(whole, 10, &whole) || add_overflows(whole, *p - '0', &whole);
    if (*p == '.') {
        if (!is_digit(*++p))
            return NOT_A_NUMBER;
        for (unsigned digits = 0; is_digit(*p); p++, digits++) {
            if (digits < FRACTION_DIGITS) {
                fraction = fraction * 10 + (uint64_t)(*p - '0');
                scale *= 10;
            }
        }
    }
    while (*p == ' ')
        p++;
    for (unsigned i = 0; i < unit_count; i++) {
        if (strcasecmp(p, units[i].name) != 0)
            continue;
        uint64_t value, rest = (uint64_t)((unsigned __int128)fraction * units[i].factor / scale);
        if (overflow || mul_overflows(whole, units[i].factor, &value) || add_overflows(value, rest, &value))
            return TOO_LARGE;
        *ret_value = value;
        return OK;
    }
    /* "+5", "5x", "1e9", "5 MiB please": what follows the digits is not a unit. */
    return UNKNOWN_UNIT;
}

int size_parse(const char *text, uint64_t *ret_bytes, struct leat_error *err)
{
    switch (parse(text ? text : "", size_units, ARRAY_LEN(size_units), ret_bytes)) {
    case OK:
        return 0;
    case TOO_LARGE:
        return error_set(err, LEAT_INVALID, "size '%.40s' is too large: the most is 16 EiB - 1", text);
    case UNKNOWN_UNIT:
        return error_set(
            err, LEAT_INVALID,
            "size '%.40s' has an unknown unit: write K, M, G, T (or KiB ...) for powers of 1024, KB, MB, "
            "GB, TB for powers of 1000, or plain bytes",
            text);
    case NOT_A_NUMBER:
    default:
        return error_set(err, LEAT_INVALID,
                         "size '%.40s' is not a number with a unit, such as 512MiB or 10GB",
                         text ? text : "");
    }
}

int duration_parse_ns(const char *text, uint64_t *ret_ns, struct leat_error *err)
{
    uint64_t zero;
    enum verdict verdict = parse(text ? text : "", duration_units, ARRAY_LEN(duration_units), ret_ns);
    if (verdict == UNKNOWN_UNIT && parse(text, size_units, 1, &zero) == OK && zero == 0) {
        *ret_ns = 0; /* nothing is nothing in every unit */
        return 0;
    }
    switch (verdict) {
    case OK:
        return 0;
    case TOO_LARGE:
        return error_set(err, LEAT_INVALID, "duration '%.40s' is too long: the most is 584 years", text);
    case UNKNOWN_UNIT:
        return error_set(
            err, LEAT_INVALID,
            "duration '%.40s' has no unit that is known: write ns, us, ms, s, m, h or d behind the number",
            text);
    case NOT_A_NUMBER:
    default:
        return error_set(err, LEAT_INVALID,
                         "duration '%.40s' is not a number with a unit, such as 120s or 500ms",
                         text ? text : "");
    }
}

const char *size_format(uint64_t bytes, char out[SIZE_TEXT_MAX])
{
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    unsigned unit = 0;
    while (unit + 1 < ARRAY_LEN(names) && bytes >> (10 * (unit + 1)))
        unit++;
    if (unit == 0) {
        snprintf(out, SIZE_TEXT_MAX, "%" PRIu64 " B", bytes);
        return out;
    }
    uint64_t one = 1ull << (10 * unit);
    uint64_t whole = bytes / one,
             tenths = (uint64_t)(((unsigned __int128)(bytes % one) * 10 + one / 2) / one);
    if (tenths == 10) {
        whole++;
        tenths = 0;
        if (whole == 1024 && unit + 1 < ARRAY_LEN(names)) {
            whole = 1;
            unit++;
        }
    }
    snprintf(out, SIZE_TEXT_MAX, "%u.%u %s", (unsigned)whole, (unsigned)tenths, names[unit]);
    return out;
}
