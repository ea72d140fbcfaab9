/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index.h: the index of a working set: which samples there are, which fields each has, where every byte comes
 * from, and where it lies in the working set's linear address space. One immutable blob, the same on disk (beside the
 * shards or in a cache), in a memfd that clients map, and on every host; opening it is a mmap and a check of its header.
 *
 * Linear address space. The sources' extents, one after another, make one address space; region mr_gid holds addresses
 * [mr_gid * region_bytes, (mr_gid + 1) * region_bytes). A sample may cross regions. Shards are laid out as images of their
 * files (address = file offset modulo 4096), so that direct I/O lands in place, headers included; arrays likewise, without
 * headers, unless their samples fit pages: then the first begins at a border. Small files are packed at 64-byte steps. Per field, addresses rise with the sample number.
 *
 *   0        header (struct index_header, 512 bytes)
 *   …        sections, each 64-byte aligned, little-endian, in the order of enum index_section:
 *            fields    struct index_field   [nfields]
 *            sources   struct index_source  [nsources]    in order of first address
 *            extents   struct index_extent  [nextents]    in order of address, never overlapping
 *            parts     struct index_part    [nsamples × ntable_fields]  sample-major; only fields of kind TABLE
 *            labels    u32                  [nsamples]    only with a field of kind LABEL
 *            key_ends  u64                  [nsamples]    end of key i in keys; absent: key is the decimal number
 *            keys      bytes
 *            sorted    u64                  [nsamples]    sample numbers in key order; absent: they are in order
 *            class_ends u64 [nclasses], classes bytes     names of the labels
 *            chunks    struct index_chunk   [nchunks]     HDF5: where an extent's bytes come from
 *            shapes    struct index_shape   [nshapes]     HDF5: filters and geometry, shared by many chunks
 *            strings   NUL-terminated; offset 0 is ""
 *
 * A blob from a file or a peer is hostile until index_open has looked at its header and index_validate at all
 * of it. A blob of this user or of root may be damaged: index_check_body compares its tables with their
 * checksum. A mapped file can change after either, so values from a table are checked again where they are
 * used: index_string, index_part, index_extent_sound, index_covered.
 */
#ifndef DATASET_INDEX_H
#define DATASET_INDEX_H

#include "base/base.h"

#define INDEX_MAGIC       0x315844495441454cull /* "LEATIDX1" */
#define INDEX_VERSION     2u                    /* 2: has a checksum of its tables */
#define INDEX_MAX_FIELDS  64u
#define INDEX_MAX_DIMS    8u
#define INDEX_MAX_ETAG    159u /* bytes */
#define INDEX_NO_ADDRESS  UINT64_MAX
#define INDEX_FILE_ALIGN  4096u /* where direct I/O lands in place: address = file offset modulo this */
#define INDEX_SMALL_ALIGN 64u

/* clang-format off */
enum index_section {
    INDEX_FIELDS, INDEX_SOURCES, INDEX_EXTENTS, INDEX_PARTS, INDEX_LABELS, INDEX_KEY_ENDS, INDEX_KEYS, INDEX_SORTED,
    INDEX_CLASS_ENDS, INDEX_CLASSES, INDEX_CHUNKS, INDEX_SHAPES, INDEX_STRINGS, INDEX_SECTIONS
};
/* clang-format on */

enum index_kind { INDEX_KIND_ARRAY = 1, INDEX_KIND_DIR = 2, INDEX_KIND_TAR = 3, INDEX_KIND_PUSHED = 4 };

/*
 * The number of the present rules for addresses, for a kind: raised when they change. An index of older ones
 * is right; where its source can be read it is made again. Arrays: 1 since samples begin at page borders
 * (docs/decisions/0111).
 */
static inline uint32_t index_layout(uint32_t kind)
{
    return kind == INDEX_KIND_ARRAY ? 1 : 0;
}

struct index_header {
    uint64_t magic;
    uint32_t version;
    uint32_t header_crc;  /* CRC32C of the header with this field and root_mtime_ns 0 */
    uint64_t total_bytes; /* of the blob */
    uint64_t nsamples;
    uint32_t nfields, ntable_fields;
    uint64_t nsources, nextents, nchunks, nclasses;
    uint64_t address_end;      /* of the linear space, before rounding up to a region */
    uint64_t payload_bytes;    /* sum of all part lengths: bytes of the samples */
    uint64_t max_sample_bytes; /* all fields together */
    uint8_t fingerprint[16];   /* XXH3-128 over keys, field names, dtypes, shapes and lengths; never times */
    uint32_t kind;             /* enum index_kind */
    uint32_t flags;            /* INDEX_FLAG_* */
    uint32_t root;             /* string: canonical path or URI that source paths are relative to */
    uint32_t nshapes;
    struct {
        uint64_t offset, bytes;
    } sections[INDEX_SECTIONS];
    uint32_t layout; /* the rules for its addresses: index_layout() of the program that made it */
    uint32_t reserved;
    uint64_t body_hash; /* XXH3-64 of all bytes behind the header */
    /* Beside a tree: of its root ("./"), once this index lay in it; 0: as its source says. In no checksum, for it is written last. */
    int64_t root_mtime_ns;
    uint8_t pad[512 - 128 - 16 * INDEX_SECTIONS - 2 * sizeof(uint32_t) - 2 * sizeof(uint64_t)];
};
_Static_assert(sizeof(struct index_header) == 512, "header layout");

#define INDEX_FLAG_SMALL_FILES 1u /* one source a sample (or few): open + read, no direct I/O */

enum index_field_kind {
    INDEX_FIELD_UNIFORM = 1, /* sample i is `stride` bytes at address + i * stride: arrays */
    /* in parts[]: files and tar members; may be absent in a sample, unless a stride is given */
    INDEX_FIELD_TABLE = 2,
    INDEX_FIELD_LABEL = 3, /* inline: a u32 out of labels[], named by classes[] */
};

struct index_field {
    uint32_t name;                  /* string: "image", "jpg", "data", "label", ... */
    uint32_t dtype;                 /* string: NumPy's ("<f4"), or "" for raw bytes */
    uint32_t kind;                  /* enum index_field_kind */
    uint32_t ndim;                  /* of one sample; 0: scalar, or raw bytes */
    uint64_t shape[INDEX_MAX_DIMS]; /* of one sample, where stride is not 0 */
    uint64_t address;               /* UNIFORM only */
    uint64_t stride;                /* bytes of every part. UNIFORM; TABLE: arrays after an append, else 0 */
    uint64_t max_bytes;             /* longest part */
    uint64_t total_bytes;           /* all parts */
    uint32_t table_slot;            /* TABLE: column in parts */
    uint32_t reserved;
};

/*
 * A path that ends with "/" is a directory of a tree, or a link that led nowhere (index_source_absent): it is there so that a change
 * is noticed, has no extents and is never read. These stand behind all other sources.
 */
struct index_source {
    uint32_t
        path; /* string, relative to header.root ("" = root itself), or an address; see index_source_path */
    uint32_t etag; /* string: of a remote object, with its quotes; "": there is none */
    uint64_t bytes;
    int64_t mtime_ns; /* with ETag, ctime and size: to notice a change, never part of the fingerprint */
    int64_t ctime_ns;
    uint64_t inode;
};

enum index_extent_kind {
    INDEX_EXTENT_RAW = 1,   /* file bytes [source_offset, +bytes) are the pool bytes [address, +bytes) */
    INDEX_EXTENT_ZERO = 2,  /* never written in the source (HDF5 fill of zeros) */
    INDEX_EXTENT_CHUNK = 3, /* stored bytes go through filters to rows: `chunk` says how */
};

struct index_extent {
    uint64_t address, bytes;
    uint64_t source_offset, source_bytes; /* RAW: source_bytes == bytes */
    uint32_t source, kind;
    uint64_t chunk; /* first of `nchunk` entries of chunks[]; CHUNK only */
    uint32_t nchunk, reserved;
};

/*
 * HDF5: an extent of kind CHUNK is a run of whole rows (samples), covered by nchunk chunks. A chunk is a small
 * n-dimensional box: after the filters it is decoded_bytes long, and nested loops move its runs to the extent:
 *
 *     for i0 < loops[0].count: for i1 < loops[1].count: ...
 *         memcpy(extent + extent_offset + sum(i * extent_step), decoded + sum(i * decoded_step), run_bytes)
 */
struct index_chunk {
    uint64_t source_offset, source_bytes; /* stored; source_bytes 0: unallocated, fill value */
    uint64_t extent_offset;               /* where its first byte goes, from the extent's start */
    uint32_t shape;                       /* of shapes[] */
    uint32_t reserved;
};
struct index_shape {
    uint64_t decoded_bytes; /* after the filters; at most INDEX_CHUNK_MAX */
    uint64_t run_bytes;     /* contiguous on both sides */
    uint32_t filters;       /* INDEX_FILTER_* that were applied */
    uint32_t element_bytes; /* for the shuffle filter and the fill value */
    uint32_t fill;          /* string: fill value, one element in hex; "" = zeros */
    uint32_t nloops;
    struct {
        uint64_t count, decoded_step, extent_step;
    } loops[INDEX_MAX_DIMS];
};
#define INDEX_CHUNK_MAX         (1ull << 32) /* HDF5's own limit on a chunk */
#define INDEX_FILTER_DEFLATE    1u
#define INDEX_FILTER_SHUFFLE    2u
#define INDEX_FILTER_FLETCHER32 4u

/* A part of 0 bytes is legal. Whether direct I/O lands an extent in place on any disk is seen from its address: = source_offset mod 4096. */
struct index_part {
    uint64_t address; /* INDEX_NO_ADDRESS: this sample has no such field */
    uint64_t bytes;
};

/* An opened blob: pointers into it. Read-only, any number of threads. */
struct index {
    const struct index_header *header;
    const struct index_field *fields;
    const struct index_source *sources;
    const struct index_extent *extents;
    const struct index_part *parts;
    const uint32_t *labels;
    const uint64_t *key_ends;
    const char *keys;
    const uint64_t *sorted;
    const uint64_t *class_ends;
    const char *classes;
    const struct index_chunk *chunks;
    const struct index_shape *shapes;
    const char *strings;
    const void *blob;
    uint64_t blob_bytes;
    bool mapped; /* index_close unmaps */
};

/* Looks at the header and the bounds of every section: O(fields). LEAT_CORRUPT with a reason. The blob must outlive it. */
int index_open(const void *blob, uint64_t bytes, struct index *ret_index, struct leat_error *err);
/* Maps a file or memfd and opens it; the descriptor may be closed afterwards. */
int index_map(int fd, struct index *ret_index, struct leat_error *err);
void index_close(struct index *index);
/* Compares all that follows the header with its checksum: LEAT_CORRUPT, or why it cannot be read. O(bytes); read through the descriptor, so that
 * a bad disk is an error and no signal. */
int index_check_body(int fd, const struct index *index, struct leat_error *err);
/* Walks every table: required for a blob of a peer or of another user before it is used. O(samples). */
int index_validate(const struct index *index, struct leat_error *err);

static inline const char *index_string(const struct index *index, uint32_t offset)
{
    return offset < index->header->sections[INDEX_STRINGS].bytes ? index->strings + offset : "";
}
/* May this extent be used? Its table can change after it was checked. */
static inline bool index_extent_sound(const struct index *index, const struct index_extent *e)
{
    const struct index_header *h = index->header;
    if (e->source >= h->nsources)
        return false;
    const uint64_t source_end = MIN(index->sources[e->source].bytes, (uint64_t)INT64_MAX);
    return e->address <= h->address_end && e->bytes <= h->address_end - e->address &&
           e->source_offset <= source_end && e->source_bytes <= source_end - e->source_offset &&
           (e->kind != INDEX_EXTENT_RAW || e->source_bytes == e->bytes) &&
           (e->kind != INDEX_EXTENT_CHUNK || (e->chunk <= h->nchunks && e->nchunk <= h->nchunks - e->chunk));
}
/* Where field f of sample i lies, within the address space. False when this sample has no such field. LABEL fields have no address. */
static inline bool index_part(const struct index *index, uint64_t i, unsigned f, struct index_part *ret)
{
    const struct index_field *field = &index->fields[f];
    if (field->kind == INDEX_FIELD_UNIFORM)
        *ret = (struct index_part){field->address + i * field->stride, field->stride};
    else if (field->kind == INDEX_FIELD_TABLE)
        *ret = index->parts[i * index->header->ntable_fields + field->table_slot];
    else
        return false;
    uint64_t end = index->header->address_end;
    return ret->address <= end && ret->bytes <= end - ret->address; /* INDEX_NO_ADDRESS is above any end */
}
/* A link of a tree that led nowhere: its path ends with "/", as a folder's, and all else is 0. */
static inline bool index_source_absent(const struct index *index, const struct index_source *s)
{
    const char *path = index_string(index, s->path);
    size_t len = strlen(path);
    return len && path[len - 1] == '/' && !s->mtime_ns && !s->ctime_ns && !s->inode;
}
/* Root and path of a source joined, "s3://bucket/key" for what lies there: snprintf's return value (>= cap: it did not fit). */
int index_source_path(const struct index *index, uint64_t source, char *buf, size_t cap);
/* Is this source (below nsources) on a server, not a file? */
bool index_source_is_remote(const struct index *index, uint64_t source);
/* Field number by name, or -1. */
int index_field_find(const struct index *index, const char *name);
/* The key of sample i: not NUL-terminated; numbers are written into scratch (24 bytes). */
const char *index_key(const struct index *index, uint64_t i, char scratch[24], size_t *ret_len);
/* Sample number of a key, or UINT64_MAX. O(log n). */
uint64_t index_find(const struct index *index, const char *key, size_t len);
static inline uint64_t index_sorted(const struct index *index, uint64_t position)
{
    return index->sorted ? index->sorted[position] : position;
}
/* Name of class `label`, not NUL-terminated. */
const char *index_class(const struct index *index, uint32_t label, size_t *ret_len);
/* First extent that ends after `address`: nextents if none. O(log n). */
uint64_t index_extent_at(const struct index *index, uint64_t address);
/* Do extents cover [address, +bytes)? Looks at *extent and the next first, and leaves it where it ended: begin with 0. */
bool index_covered(const struct index *index, uint64_t address, uint64_t bytes, uint64_t *extent);
/* First sample whose part of field f ends after `address` (parts of a field rise): nsamples if none. O(log n). */
uint64_t index_sample_at(const struct index *index, unsigned f, uint64_t address);

/*
 * The live half of a locator: a memfd that the daemon writes and clients map read-only. Sample i is readable once
 * its state is RESIDENT (acquire); its CRCs were written before that.
 *   0     struct live_header (4096 bytes)
 *   4096  _Atomic uint8_t state[nsamples], padded to 64
 *   …     uint32_t crc[nsamples × nfields]
 *   …     _Atomic uint64_t places[nplaces], at a multiple of 64 KiB, the largest page: of a set on several nodes
 */
/* clang-format off */
enum live_state { LIVE_ABSENT = 0, LIVE_LOADING = 1, LIVE_RESIDENT = 2, LIVE_FAILED = 3, LIVE_LOST = 4, LIVE_STREAMED = 5 };
/* clang-format on */

struct live_header {
    uint64_t magic;
    uint64_t nsamples;
    uint32_t nfields;
    _Atomic uint32_t generation; /* raised by a revoke: every address handed out before is stale */
    _Atomic uint64_t resident_samples, resident_bytes, failed_samples;
    uint64_t state_offset, crc_offset, total_bytes;
    _Atomic uint32_t
        page_bytes; /* smallest page size obtained by a region of this host that holds data; 0: none yet */
    _Atomic uint64_t lost_samples; /* with a node that is gone */
    /* Where each region lives: live_place(). 0: where the answer to OPEN said, for good. */
    uint64_t places_offset;
    uint32_t nplaces;
    _Atomic uint32_t moves; /* of regions: raised after each */
};
#define LIVE_MAGIC 0x3145564954414541ull
/* A region is at a node, by its number in the set's list; the generation rises with each of its moves. */
static inline uint64_t live_place(uint32_t node, uint32_t generation)
{
    return (uint64_t)generation << 32 | node;
}
static inline uint64_t live_crc_offset(uint64_t nsamples)
{
    return 4096 + align_up(nsamples, 64);
}
static inline uint64_t live_bytes(uint64_t nsamples, uint32_t nfields)
{
    return align_up(live_crc_offset(nsamples) + nsamples * nfields * 4, 4096);
}

/* --- building ------------------------------------------------------------------------------------------------ */

/*
 * A builder takes sources, extents and samples in address order and writes the blob. Tables are kept in memory
 * until index_builder_finish, which computes fingerprint, sorted and statistics and writes to fd (a memfd, or a file).
 */
struct index_builder;
int index_builder_new(enum index_kind kind, const char *root, struct index_builder **ret_builder);
void index_builder_free(struct index_builder *b);
/* Field number, or -errno. UNIFORM: shape, dtype, address and stride; TABLE: name only, or all but the address when every
 * part has `stride` bytes; LABEL: name only. Same name: same number. */
int index_builder_field(struct index_builder *b, const char *name, const char *dtype,
                        enum index_field_kind kind, unsigned ndim, const uint64_t *shape, uint64_t address,
                        uint64_t stride);
struct stat;
/* Source number or -errno (as int64). */
int64_t index_builder_source(struct index_builder *b, const char *relative_path, const struct stat *st);
/* The ETag of a source; "" is fine. Every byte of it is to be printable. */
int index_builder_etag(struct index_builder *b, uint32_t source, const char *etag);
/* Reserves linear space for `bytes` whose address is = phase modulo align; returns the address. Wraps never: -EOVERFLOW
 * comes back from finish. */
uint64_t index_builder_reserve(struct index_builder *b, uint64_t bytes, uint64_t align, uint64_t phase);
int index_builder_extent(struct index_builder *b, const struct index_extent *extent);
int64_t index_builder_shape(struct index_builder *b,
                            const struct index_shape *shape); /* same shape: same number */
int64_t index_builder_chunk(struct index_builder *b,
                            const struct index_chunk *chunk); /* its number or -errno */
void index_builder_flags(struct index_builder *b, uint32_t flags);
int64_t index_builder_string(struct index_builder *b, const char *s); /* its offset or -errno */
/* Number, same name: same number. UINT32_MAX: out of memory. */
uint32_t index_builder_class(struct index_builder *b, const char *name);
/* Begins sample number nsamples with this key (NULL: numbered). Then its parts and label. */
int index_builder_sample(struct index_builder *b, const char *key, size_t key_len);
int index_builder_part(struct index_builder *b, unsigned field, uint64_t address, uint64_t bytes);
int index_builder_label(struct index_builder *b, uint32_t label);
/* Array-like sets have no per-sample tables: just how many. */
void index_builder_count(struct index_builder *b, uint64_t nsamples);
/* LEAT_INVALID: no samples, or two with one key. An earlier failure of any call (-ENOMEM, -EOVERFLOW) is
 * returned here at the latest, so that a scanner may ignore the other calls' results. */
int index_builder_finish(struct index_builder *b, int fd, struct leat_error *err);

/*
 * Writes an index with the samples of `old` and, behind them, those of `added`. Addresses of these are moved
 * up by `base` (a multiple of the region size at or above old's address_end). Fields must be the same in
 * names, dtypes and sample shapes, in any order, else LEAT_INVALID naming the difference; keys must not
 * repeat. Uniform fields become tables (a part for each sample), and keep dtype, shape and stride. Numbered
 * keys continue counting; new classes follow those of `old`. The result's sources have absolute paths and an
 * empty root; directories stand behind the files of each half.
 */
int index_append(const struct index *old, const struct index *added, uint64_t base, int fd,
                 struct leat_error *err);

#endif
