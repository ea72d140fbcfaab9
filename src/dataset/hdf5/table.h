/* SPDX-License-Identifier: Apache-2.0 */
/*
 * table.h: the output of leat-hdf5-table, the child that runs libhdf5, to its parent over a pipe, and its
 * parser. The child worked on a hostile file and may be taken over: its output is not trusted.
 *
 *   u32 magic
 *   then records, each begun by a u8 tag, until HDF5_TABLE_END:
 *   HDF5_TABLE_ERROR    i32 code (a LEAT_ code), str message            nothing follows
 *   HDF5_TABLE_DATASET  str name, str dtype (NumPy's), u32 element bytes, u8 ndim, u64 × ndim dims,
 *                       str fill (one element in hex, "" = zeros), u8 layout, then
 *     contiguous  u64 offset in the file
 *     absent      -                                                     never written: all fill
 *     chunked     u64 × ndim chunk dims, then per chunk, in row-major order over the grid:
 *                 u64 offset, u64 bytes (0: never written), u32 INDEX_FILTER_* that were applied
 */
#ifndef DATASET_HDF5_TABLE_H
#define DATASET_HDF5_TABLE_H

#include "base/bytes.h"
#include "dataset/index.h"
#include "wire/archive/npy.h"

#define HDF5_TABLE_MAGIC 0x3148544cu  /* "LTH1" */
#define HDF5_TABLE_MAX   (1ull << 30) /* bytes: 50 million chunks */
#define HDF5_CHUNKS_MAX  (1ull << 25)

enum { HDF5_TABLE_END = 0, HDF5_TABLE_DATASET = 1, HDF5_TABLE_ERROR = 2 };
enum hdf5_layout { HDF5_CONTIGUOUS = 1, HDF5_ABSENT = 2, HDF5_CHUNKED = 3 };

struct hdf5_chunk {
    uint64_t offset, bytes;
    uint32_t filters, reserved;
};

struct hdf5_dataset {
    char *name;
    char dtype[NPY_DTYPE_CAP];
    uint32_t itemsize;
    unsigned ndim;
    uint64_t dims[INDEX_MAX_DIMS + 1];
    char *fill; /* hex, "" = zeros */
    enum hdf5_layout layout;
    uint64_t offset;
    uint64_t chunk_dims[INDEX_MAX_DIMS + 1];
    struct hdf5_chunk *chunks;
    uint64_t nchunks;
};

struct hdf5_table {
    struct hdf5_dataset *datasets;
    unsigned n;
};

/* Checks all of it against a file of file_bytes. LEAT_CORRUPT, -ENOMEM, or the error that the child reports. */
int hdf5_table_parse(const void *data, size_t len, uint64_t file_bytes, struct hdf5_table *ret_table,
                     struct leat_error *err);
void hdf5_table_fini(struct hdf5_table *table);

extern uint64_t hdf5_idle_ns; /* how long the child may be silent; for tests */

/* Lays out a dataset that the parser accepted, so many rows a sample: the `place` of an array (dataset/scan.h). */
int hdf5_place(const struct hdf5_dataset *d, uint64_t rows, struct index_builder *b, uint32_t source,
               uint64_t *ret_address, struct leat_error *err);

#endif
