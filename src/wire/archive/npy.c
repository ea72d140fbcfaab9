/* SPDX-License-Identifier: Apache-2.0 */
/*
 * npy.c: parses the Python dictionary in front of a .npy file's data:
 *
 *   0   "\x93NUMPY"  major  minor
 *   8   u16 (1.x) or u32 (2.x, 3.x) length of the dictionary, little-endian
 *   …   {'descr': '<f4', 'fortran_order': False, 'shape': (60000, 28, 28), }   spaces   "\n"
 *
 * Only NumPy's own output is understood: three keys in any order, a string, a Boolean, a tuple of numbers. It
 * is read by hand, left to right, without recursion; longer, nested or repeated items are refused.
 */
#include "wire/archive/npy.h"

#include <stdio.h>

#define MAGIC     "\x93NUMPY"
#define MAGIC_LEN 6

struct cursor {
    const char *p, *end;
};

uint64_t npy_header_bytes(const void *buf, size_t len, struct leat_error *err)
{
    const uint8_t *b = buf;
    if (len >= MAGIC_LEN && len < 12 && !memcmp(b, MAGIC, MAGIC_LEN)) {
        error_set(err, LEAT_CORRUPT, "it is truncated inside its .npy header");
        return 0;
    }
    if (len < 12 || memcmp(b, MAGIC, MAGIC_LEN)) {
        error_set(err, LEAT_INVALID, "not a .npy file: it does not begin with \\x93NUMPY");
        return 0;
    }
    uint64_t bytes;
    if (b[6] == 1) {
        bytes = 10 + (uint64_t)(b[8] | b[9] << 8);
    } else if (b[6] == 2 || b[6] == 3) {
        bytes = 12 + (uint64_t)(b[8] | b[9] << 8 | b[10] << 16 | (uint32_t)b[11] << 24);
    } else {
        error_set(err, LEAT_UNSUPPORTED, "its .npy format version is %u.%u, and versions 1.0 to 3.0 are read",
                  b[6], b[7]);
        return 0;
    }
    if (bytes > NPY_MAX_HEADER) {
        error_set(err, LEAT_CORRUPT, "its .npy header claims %llu bytes, more than the %u that are read",
                  (unsigned long long)bytes, NPY_MAX_HEADER);
        return 0;
    }
    return bytes;
}

static int malformed(struct leat_error *err, const char *what)
{
    return error_set(err, LEAT_CORRUPT, "its .npy header is malformed: %s", what);
}

static void skip_space(struct cursor *c)
{
    while (c->p < c->end && (*c->p == ' ' || *c->p == '\t' || *c->p == '\n' || *c->p == '\r'))
        c->p++;
}

/* Takes one character if it is there, spaces before it too. */
static bool take(struct cursor *c, char want)
{
    skip_space(c);
    if (c->p == c->end || *c->p != want)
        return false;
    c->p++;
    return true;
}

/* A quoted string without escapes. */
static bool take_string(struct cursor *c, const char **ret_s, size_t *ret_len)
{
    skip_space(c);
    if (c->p == c->end || (*c->p != '\'' && *c->p != '"'))
        return false;
    char quote = *c->p++;
    const char *start = c->p;
    while (c->p < c->end && *c->p != quote && *c->p != '\\' && *c->p != '\n')
        c->p++;
    if (c->p == c->end || *c->p != quote)
        return false;
    *ret_s = start;
    *ret_len = (size_t)(c->p - start);
    c->p++;
    return true;
}

static bool take_word(struct cursor *c, const char *word)
{
    size_t len = strlen(word);
    skip_space(c);
    if ((size_t)(c->end - c->p) < len || memcmp(c->p, word, len))
        return false;
    c->p += len;
    return true;
}

/* Decimal. -EINVAL: no digit; -ERANGE past 2^64. */
static int take_number(struct cursor *c, uint64_t *ret_n)
{
    const char *start = c->p;
    uint64_t n = 0;
    for (; c->p < c->end && *c->p >= '0' && *c->p <= '9'; c->p++)
        if (mul_overflows(n, 10, &n) || add_overflows(n, *c->p - '0', &n))
            return -ERANGE;
    *ret_n = n;
    return c->p == start ? -EINVAL : 0;
}

#define UNIT_CAP 16u /* "[2147483647ms]" */

/* "[25ns]": so many of a unit, of which NumPy has these. One of it is "[ns]". */
static bool take_unit(struct cursor *c, char ret_unit[UNIT_CAP])
{
    static const char *const units[] = {"Y",  "M",  "W",  "D",  "h",  "m", "s",
                                        "ms", "us", "ns", "ps", "fs", "as"};
    uint64_t count;
    if (*c->p++ != '[')
        return false;
    int rc = take_number(c, &count);
    if (rc == -ERANGE || (rc == 0 && (count < 1 || count > INT32_MAX)))
        return false;
    size_t len = 0;
    while (len < (size_t)(c->end - c->p) && c->p[len] != ']')
        len++;
    for (size_t i = 0; i < ARRAY_LEN(units); i++)
        if (strlen(units[i]) == len && !memcmp(units[i], c->p, len)) {
            c->p += len;
            if (rc == 0 && count > 1)
                snprintf(ret_unit, UNIT_CAP, "[%u%s]", (unsigned)count, units[i]);
            else
                snprintf(ret_unit, UNIT_CAP, "[%s]", units[i]);
            return c->p < c->end && *c->p++ == ']';
        }
    return false;
}

/* Whether NumPy has a type of this kind and size. */
static bool is_type(char kind, uint64_t n)
{
    switch (kind) {
    case 'b':
        return n == 1;
    case 'i':
    case 'u':
        return n == 1 || n == 2 || n == 4 || n == 8;
    case 'f':
        return n == 2 || n == 4 || n == 8 || n == 16;
    case 'c':
        return n == 8 || n == 16 || n == 32;
    case 'm':
    case 'M':
        return n == 8;
    case 'U':
        return n < (1u << 28);
    case 'S':
    case 'V':
        return n < (1u << 30);
    default:
        return false;
    }
}

/* "<f4": byte order, kind, size in bytes (in characters of 4 bytes for U). M8 and m8 carry a unit: "<M8[ns]". */
int npy_dtype(const char *s, size_t len, char ret_dtype[NPY_DTYPE_CAP], uint32_t *ret_itemsize,
              struct leat_error *err)
{
    struct cursor c = {s, s + len};
    bool ordered = len && memchr("<>|=", s[0], 4);
    char order = ordered ? *c.p++ : '|', kind = c.p < c.end ? *c.p++ : 0;
    const char *digits = c.p;
    uint64_t n = 0;
    if (kind == 'O')
        return error_set(err, LEAT_UNSUPPORTED,
                         "the array holds Python objects; save it as a numeric or fixed-length "
                         "dtype (arr.astype(...)), or store the objects as files");
    bool good = take_number(&c, &n) == 0;
    if (kind == '?' && c.p == digits && c.p == c.end) {
        good = true;
        kind = 'b';
        n = 1;
    } else if (kind == 'a') {
        kind = 'S'; /* its old name */
    }
    char unit[UNIT_CAP] = "";
    if (good && (kind == 'M' || kind == 'm') && c.p < c.end)
        good = take_unit(&c, unit);
    if (!good || c.p != c.end || !is_type(kind, n))
        return error_set(err, LEAT_UNSUPPORTED,
                         "its dtype \"%.*s\" is none that is read; they are written as in \"<f4\", \"|u1\", "
                         "\"<U12\", \"<M8[ns]\"",
                         (int)MIN(len, (size_t)60), s);
    /* One spelling for one type: the machine's own order is little-endian, and single bytes have none. */
    bool no_order = kind == 'S' || kind == 'V' || (n == 1 && kind != 'U');
    order = no_order ? '|' : order == '>' ? '>' : '<';
    snprintf(ret_dtype, NPY_DTYPE_CAP, "%c%c%u%s", order, kind, (unsigned)n, unit);
    *ret_itemsize = (uint32_t)(kind == 'U' ? 4 * n : n);
    return 0;
}

static int parse_shape(struct cursor *c, struct npy_header *h, struct leat_error *err)
{
    if (!take(c, '('))
        return malformed(err, "its shape is not a tuple");
    for (h->ndim = 0; !take(c, ')');) {
        uint64_t n;
        if (h->ndim == NPY_MAX_DIMS)
            return malformed(err, "it has more than 32 dimensions");
        skip_space(c);
        int rc = take_number(c, &n);
        if (rc == 0 && c->p < c->end && *c->p == 'L')
            c->p++; /* as Python 2 wrote it */
        if (rc == -ERANGE)
            return malformed(err, "its shape overflows");
        if (rc < 0)
            return malformed(err, "its shape is not a tuple of numbers");
        h->shape[h->ndim++] = n;
        if (!take(c, ',')) {
            if (h->ndim == 1 || !take(c, ')')) /* (5) is a number in Python, not a tuple */
                return malformed(err, "its shape is not a tuple");
            break;
        }
    }
    return 0;
}

enum { SEEN_DESCR = 1, SEEN_ORDER = 2, SEEN_SHAPE = 4, SEEN_ALL = 7, IS_FORTRAN = 8 };

static int parse_entry(struct cursor *c, struct npy_header *h, unsigned *seen, struct leat_error *err)
{
    const char *key, *value;
    size_t key_len, value_len;
    unsigned bit = 0;
    if (!take_string(c, &key, &key_len) || !take(c, ':'))
        return malformed(err, "a key is missing");
    if (key_len == 5 && !memcmp(key, "descr", 5))
        bit = SEEN_DESCR;
    else if (key_len == 13 && !memcmp(key, "fortran_order", 13))
        bit = SEEN_ORDER;
    else if (key_len == 5 && !memcmp(key, "shape", 5))
        bit = SEEN_SHAPE;
    if (bit == 0 || (*seen & bit))
        return malformed(err, "a key is unknown or there twice");
    *seen |= bit;

    if (bit == SEEN_SHAPE)
        return parse_shape(c, h, err);
    if (bit == SEEN_ORDER) {
        if (take_word(c, "False"))
            return 0;
        if (!take_word(c, "True"))
            return malformed(err, "fortran_order is neither True nor False");
        *seen |= IS_FORTRAN;
        return 0;
    }
    if (take(c, '['))
        return error_set(err, LEAT_UNSUPPORTED,
                         "the array has a structured dtype; save each of its fields as an array "
                         "of its own and open them together (\"a=a.npy;b=b.npy\")");
    if (!take_string(c, &value, &value_len))
        return malformed(err, "its dtype is not a string");
    return npy_dtype(value, value_len, h->dtype, &h->itemsize, err);
}

/* Both orders are one where at most one dimension has more than one place: (n,), (n, 1), (1, n); Julia marks these Fortran. */
static bool is_c_order(const struct npy_header *h)
{
    unsigned longer = 0;
    for (uint32_t d = 0; d < h->ndim; d++)
        longer += h->shape[d] > 1;
    return longer <= 1;
}

int npy_parse(const void *buf, size_t len, struct npy_header *ret_header, struct leat_error *err)
{
    struct leat_error local;
    err = err ? err : &local;
    uint64_t bytes = npy_header_bytes(buf, len, err);
    if (bytes == 0)
        return err->code;
    if (bytes > len)
        return error_set(err, LEAT_CORRUPT, "it is truncated inside its .npy header");
    struct npy_header h = {.data_offset = bytes};
    const char *text = buf;
    struct cursor c = {text + (text[6] == 1 ? 10 : 12), text + bytes};
    unsigned seen = 0;
    if (!take(&c, '{'))
        return malformed(err, "it is not a dictionary");
    while (!take(&c, '}')) {
        int rc = parse_entry(&c, &h, &seen, err);
        if (rc < 0)
            return rc;
        if (!take(&c, ',')) {
            if (!take(&c, '}'))
                return malformed(err, "it is not a dictionary");
            break;
        }
    }
    skip_space(&c);
    if ((seen & SEEN_ALL) != SEEN_ALL || c.p != c.end)
        return malformed(err, "a key is missing, or something follows the dictionary");

    h.data_bytes = h.itemsize;
    bool empty = h.itemsize == 0;
    for (uint32_t d = 0; d < h.ndim; d++)
        empty = empty || h.shape[d] == 0;
    for (uint32_t d = 0; d < h.ndim && !empty; d++)
        if (mul_overflows(h.data_bytes, h.shape[d], &h.data_bytes))
            return malformed(err, "its shape overflows");
    if (empty)
        h.data_bytes = 0;
    if (h.data_bytes > INT64_MAX - h.data_offset)
        return malformed(err, "its shape overflows");
    if ((seen & IS_FORTRAN) && !empty && !is_c_order(&h))
        return error_set(err, LEAT_UNSUPPORTED,
                         "the array is in Fortran order, where a sample's bytes do not lie "
                         "together; save np.ascontiguousarray(arr) instead");
    *ret_header = h;
    return 0;
}
