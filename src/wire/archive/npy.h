/* SPDX-License-Identifier: Apache-2.0 */
/* npy.h: the header of a NumPy .npy file, formats 1.0, 2.0 and 3.0 (NEP 1). Pure: bytes in, struct out. */
#ifndef WIRE_ARCHIVE_NPY_H
#define WIRE_ARCHIVE_NPY_H

#include "base/base.h"

#define NPY_MAX_DIMS 32
/* Of the longest dtype, a time span "<m8[2147483647ns]", and more. */
#define NPY_DTYPE_CAP 24
/* A header longer than this is refused: no real array needs it. */
#define NPY_MAX_HEADER (1u << 20)

struct npy_header {
    /* NumPy's array-protocol string, byte order first: "<f4", "|u1", ">i8", "<U12", "|S5", "|V16" */
    char dtype[NPY_DTYPE_CAP];
    uint32_t itemsize;
    uint32_t ndim; /* 0 for a scalar array */
    uint64_t shape[NPY_MAX_DIMS];
    uint64_t data_offset; /* of the first element, from the start of the file */
    uint64_t data_bytes;  /* product of shape and itemsize; checked for overflow */
};

/* Bytes needed to parse the header: give the first >= 12 bytes of the file. 0 if it is no .npy file (err is set). */
uint64_t npy_header_bytes(const void *buf, size_t len, struct leat_error *err);
/*
 * Parses it. LEAT_INVALID: not an .npy file; LEAT_CORRUPT: truncated or contradictory header, overflow;
 * LEAT_UNSUPPORTED: Fortran order where it is not C order too, Python objects ('O'), structured dtypes, a dtype that is none of
 * NumPy's: each message says what to do instead.
 */
int npy_parse(const void *buf, size_t len, struct npy_header *ret_header, struct leat_error *err);

/* A dtype alone: "<f4" and the like, in the one spelling that Leat uses, and the bytes of an element. As npy_parse. */
int npy_dtype(const char *s, size_t len, char ret_dtype[NPY_DTYPE_CAP], uint32_t *ret_itemsize,
              struct leat_error *err);

#endif
