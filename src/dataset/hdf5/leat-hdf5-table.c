/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leat-hdf5-table [DATASET]: where the bytes of an HDF5 file's datasets lie. The file is standard input,
 * opened for reading; the table (table.h) goes to standard output. It is the only program that links libhdf5,
 * and runs once a file: files are not trusted, and the library has had memory errors.
 *
 * Happy path: limits; H5Fopen through a driver that reads descriptor 0 and nothing else; every dataset of the root
 * group, or the one that is named; types, shapes, and for each chunk its place. libhdf5 1.10 finds the place of one
 * chunk in O(chunks) by its own call, so that a list would cost the square; H5Dread_chunk finds it in O(log chunks), so
 * the driver notes which bytes that call would read, and reads none.
 *
 * Failure modes: one error record, exit status 0. Limits (CPU, memory) and crashes are the parent's to notice.
 *
 * Invariants: no file is opened here (RLIMIT_NOFILE is 3: external links and files, plugins and locks all fail; and the kernel
 * is asked to refuse what only a library that was taken over would want: see set_filter); no payload is read.
 */
#include <fcntl.h>
#include <hdf5.h>
#include <stdio.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#if H5_VERSION_GE(1, 13, 2)
#    include <H5FDdevelop.h>
#endif

#include "base/bytes.h"
#include "base/fdio.h"
#include "dataset/hdf5/table.h"

/* Sanitizers map terabytes of shadow; gcc and clang announce them in different ways. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#    define SANITIZED 1
#elif defined(__has_feature)
#    if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#        define SANITIZED 1
#    endif
#endif

#define CPU_SECONDS  120
#define MEMORY_BYTES (4ull << 30)

/* --- the driver ---------------------------------------------------------------------------------------------- */

struct fd_file {
    H5FD_t base;
    haddr_t eoa;
};

/* The range of the last read of raw data, while `noting`. */
static struct {
    bool noting;
    unsigned reads;
    uint64_t offset, bytes;
} note;

static uint64_t file_bytes;

static H5FD_t *driver_open(const char *name, unsigned flags, hid_t fapl, haddr_t maxaddr)
{
    if (flags & H5F_ACC_RDWR)
        return NULL;
    return calloc(1, sizeof(struct fd_file));
}

static herr_t driver_close(H5FD_t *f)
{
    free(f);
    return 0;
}

static herr_t driver_query(const H5FD_t *f, unsigned long *flags)
{
    *flags = 0;
    return 0;
}

static haddr_t driver_get_eoa(const H5FD_t *f, H5FD_mem_t type)
{
    return ((const struct fd_file *)f)->eoa;
}

static herr_t driver_set_eoa(H5FD_t *f, H5FD_mem_t type, haddr_t addr)
{
    ((struct fd_file *)f)->eoa = addr;
    return 0;
}

static haddr_t driver_get_eof(const H5FD_t *f, H5FD_mem_t type)
{
    return file_bytes;
}

static herr_t driver_read(H5FD_t *f, H5FD_mem_t type, hid_t dxpl, haddr_t addr, size_t size, void *buf)
{
    if (note.noting && type == H5FD_MEM_DRAW) {
        note.reads++;
        note.offset = addr;
        note.bytes = size;
        return 0;
    }
    if (addr > INT64_MAX - size)
        return -1;
    int64_t n = fd_read_at(STDIN_FILENO, buf, size, addr);
    if (n < 0)
        return -1;
    /* Behind the end of the file there are zeros, as for other drivers. */
    memset((char *)buf + n, 0, size - (size_t)n);
    return 0;
}

static herr_t driver_write(H5FD_t *f, H5FD_mem_t type, hid_t dxpl, haddr_t addr, size_t size, const void *buf)
{
    return -1;
}

static const H5FD_class_t driver = {
#if H5_VERSION_GE(1, 13, 2)
    .version = H5FD_CLASS_VERSION,
    .value = (H5FD_class_value_t)600,
#endif
    .name = "leat_stdin",
    .maxaddr = INT64_MAX,
    .fc_degree = H5F_CLOSE_STRONG,
    .open = driver_open,
    .close = driver_close,
    .query = driver_query,
    .get_eoa = driver_get_eoa,
    .set_eoa = driver_set_eoa,
    .get_eof = driver_get_eof,
    .read = driver_read,
    .write = driver_write,
    .fl_map = H5FD_FLMAP_DICHOTOMY,
};

/* --- messages ------------------------------------------------------------------------------------------------ */

static int put_error(struct bytes_out *out, const struct leat_error *err)
{
    bytes_out_reset(out);
    bytes_put_u32(out, HDF5_TABLE_MAGIC);
    bytes_put_u8(out, HDF5_TABLE_ERROR);
    bytes_put_u32(out, (uint32_t)err->code);
    bytes_put_str(out, err->message);
    return err->code;
}

/* --- types --------------------------------------------------------------------------------------------------- */

static char order_of(hid_t type)
{
    return H5Tget_order(type) == H5T_ORDER_BE ? '>' : '<';
}

static bool integer_dtype(hid_t type, char *dtype, size_t cap)
{
    size_t size = H5Tget_size(type);
    if ((size != 1 && size != 2 && size != 4 && size != 8) || H5Tget_precision(type) != 8 * size ||
        H5Tget_offset(type) != 0)
        return false;
    snprintf(dtype, cap, "%c%c%zu", size == 1 ? '|' : order_of(type),
             H5Tget_sign(type) == H5T_SGN_NONE ? 'u' : 'i', size);
    return true;
}

/* IEEE 754 half, single and double: nothing else has a name that NumPy understands on every machine. */
static bool float_dtype(hid_t type, char *dtype, size_t cap)
{
    static const struct {
        size_t size, exponent, mantissa;
    } ieee[] = {{2, 5, 10}, {4, 8, 23}, {8, 11, 52}};
    size_t sign_at, exponent_at, exponent, mantissa_at, mantissa, size = H5Tget_size(type);
    H5T_order_t order = H5Tget_order(type);
    if (H5Tget_fields(type, &sign_at, &exponent_at, &exponent, &mantissa_at, &mantissa) < 0 ||
        (order != H5T_ORDER_LE && order != H5T_ORDER_BE))
        return false;
    for (size_t i = 0; i < ARRAY_LEN(ieee); i++)
        if (size == ieee[i].size && exponent == ieee[i].exponent && mantissa == ieee[i].mantissa &&
            mantissa_at == 0 && exponent_at == mantissa && sign_at == mantissa + exponent &&
            H5Tget_norm(type) == H5T_NORM_IMPLIED && H5Tget_ebias(type) == (1u << (exponent - 1)) - 1) {
            snprintf(dtype, cap, "%cf%zu", order_of(type), size);
            return true;
        }
    return false;
}

/* h5py stores complex numbers as a pair of floats "r", "i". */
static bool complex_dtype(hid_t type, char *dtype, size_t cap)
{
    if (H5Tget_nmembers(type) != 2)
        return false;
    char *r = H5Tget_member_name(type, 0), *i = H5Tget_member_name(type, 1);
    hid_t part = H5Tget_member_type(type, 0), other = H5Tget_member_type(type, 1);
    size_t size = H5Tget_size(part);
    char float_type[16];
    bool good = r && i && !strcmp(r, "r") && !strcmp(i, "i") && H5Tget_class(part) == H5T_FLOAT &&
                H5Tequal(part, other) > 0 && H5Tget_member_offset(type, 0) == 0 &&
                H5Tget_member_offset(type, 1) == size && H5Tget_size(type) == 2 * size && size >= 4 &&
                float_dtype(part, float_type, sizeof(float_type));
    if (good)
        snprintf(dtype, cap, "%cc%zu", float_type[0], 2 * size);
    H5free_memory(r);
    H5free_memory(i);
    H5Tclose(part);
    H5Tclose(other);
    return good;
}

/* h5py stores booleans as an enumeration of one byte: FALSE is 0, TRUE is 1, in any order. */
static bool is_boolean(hid_t type)
{
    uint8_t no = 1, yes = 0;
    return H5Tget_size(type) == 1 && H5Tget_nmembers(type) == 2 && H5Tenum_valueof(type, "FALSE", &no) >= 0 &&
           H5Tenum_valueof(type, "TRUE", &yes) >= 0 && no == 0 && yes == 1;
}

/* Other enumerations are read as their numbers. */
static bool enum_dtype(hid_t type, char *dtype, size_t cap)
{
    hid_t base = H5Tget_super(type);
    bool good = integer_dtype(base, dtype, cap);
    if (good && is_boolean(type))
        snprintf(dtype, cap, "|b1");
    H5Tclose(base);
    return good;
}

/* NULL, or the type and what to do about it. */
static const char *dtype_of(hid_t type, char *dtype, size_t cap)
{
    switch (H5Tget_class(type)) {
    case H5T_INTEGER:
        return integer_dtype(type, dtype, cap) ? NULL : "an integer of an unusual size";
    case H5T_FLOAT:
        return float_dtype(type, dtype, cap)
                   ? NULL
                   : "a floating-point number that is not IEEE 754 half, single or double";
    case H5T_ENUM:
        return enum_dtype(type, dtype, cap) ? NULL : "an enumeration of unusual integers";
    case H5T_STRING:
        if (H5Tis_variable_str(type) != 0)
            return "strings of variable length; store fixed-length ones (dtype \"S20\"), or one file a "
                   "sample";
        snprintf(dtype, cap, "|S%zu", H5Tget_size(type));
        return NULL;
    case H5T_OPAQUE:
        snprintf(dtype, cap, "|V%zu", H5Tget_size(type));
        return NULL;
    case H5T_COMPOUND:
        return complex_dtype(type, dtype, cap)
                   ? NULL
                   : "a compound type; store each of its members as a dataset of its own";
    case H5T_VLEN:
        return "of variable length; store tar shards or one file a sample instead";
    case H5T_ARRAY:
        return "an array type; store the array as dimensions of the dataset";
    case H5T_REFERENCE:
        return "references to other objects";
    default:
        return "of a type that Leat does not read";
    }
}

/* --- datasets ------------------------------------------------------------------------------------------------ */

struct dataset {
    const char *name;
    hid_t id, type, dcpl;
    char dtype[16];
    unsigned ndim;
    hsize_t dims[H5S_MAX_RANK];
    size_t itemsize;
};

static int unsupported(const struct dataset *d, struct leat_error *err, const char *what)
{
    return error_set(err, LEAT_UNSUPPORTED, "its dataset \"%s\" is %s", d->name, what);
}

static int damaged(const struct dataset *d, struct leat_error *err, const char *what)
{
    return error_set(err, LEAT_CORRUPT, "its dataset \"%s\" is damaged: %s cannot be read", d->name, what);
}

/* The filters in their order; only shuffle, then deflate, then fletcher32, each at most once, can be undone. */
static int read_filters(const struct dataset *d, unsigned filters[3], int *ret_n, struct leat_error *err)
{
    int n = H5Pget_nfilters(d->dcpl);
    unsigned last = 0;
    for (int i = 0; i < n; i++) {
        unsigned flags, config, values[8], bit = 0;
        size_t nvalues = ARRAY_LEN(values);
        char name[64] = "";
        H5Z_filter_t id =
            H5Pget_filter2(d->dcpl, (unsigned)i, &flags, &nvalues, values, sizeof(name) - 1, name, &config);
        switch (id) {
        case H5Z_FILTER_ERROR:
            return damaged(d, err, "its list of filters");
        case H5Z_FILTER_SHUFFLE:
            bit = 1;
            break;
        case H5Z_FILTER_DEFLATE:
            bit = 2;
            break;
        case H5Z_FILTER_FLETCHER32:
            bit = 3;
            break;
        default: {
            char what[200];
            snprintf(what, sizeof(what),
                     "stored with filter %d (%s), and only shuffle, gzip and fletcher32 are read; rewrite "
                     "it with `h5repack -f GZIP=4 IN OUT`",
                     (int)id,
                     id == H5Z_FILTER_SZIP ? "szip"
                     : id == 32000         ? "lzf"
                     : *name               ? name
                                           : "unknown");
            return unsupported(d, err, what);
        }
        }
        if (bit <= last)
            return unsupported(
                d, err,
                "stored with filters in an unusual order; rewrite it with `h5repack -f GZIP=4 IN OUT`");
        last = bit;
        filters[i] = bit == 1   ? INDEX_FILTER_SHUFFLE
                     : bit == 2 ? INDEX_FILTER_DEFLATE
                                : INDEX_FILTER_FLETCHER32;
    }
    *ret_n = n;
    return n < 0 ? damaged(d, err, "its list of filters") : 0;
}

/* Where the chunk at `offset` lies: 0 bytes when it is not in the index, which check_chunks judges. */
static int find_chunk(const struct dataset *d, const hsize_t *offset, void **buf, size_t *cap,
                      const unsigned *filters, int nfilters, struct bytes_out *out, uint64_t *found,
                      struct leat_error *err)
{
    hsize_t bytes = 0;
    uint32_t mask = 0, applied = 0;
    if (H5Dget_chunk_storage_size(d->id, offset, &bytes) < 0)
        bytes = 0; /* of a chunk that was never written, too, in libhdf5 1.10 */
    if (bytes) {
        if (bytes > *cap) {
            free(*buf);
            *buf = malloc(bytes); /* never touched: the driver reads nothing into it */
            *cap = *buf ? bytes : 0;
            if (!*buf)
                return error_set(err, LEAT_CORRUPT, "its dataset \"%s\" has a chunk of %llu bytes", d->name,
                                 (unsigned long long)bytes);
        }
        note.noting = true;
        note.reads = 0;
        herr_t rc = H5Dread_chunk(d->id, H5P_DEFAULT, offset, &mask, *buf);
        note.noting = false;
        if (rc < 0 || note.reads != 1 || note.bytes != bytes)
            return damaged(d, err, "the place of a chunk");
        for (int i = 0; i < nfilters; i++)
            if (!(mask & 1u << i))
                applied |= filters[i];
        ++*found;
    }
    bytes_put_u64(out, bytes ? note.offset : 0);
    bytes_put_u64(out, bytes);
    bytes_put_u32(out, applied);
    return out->failed ? -ENOMEM : 0;
}

/*
 * A chunk that was not found was never written, or its part of the index is damaged: libhdf5 1.10 reports both alike. Its
 * count walks the whole index, so it fails where a part cannot be read, and is higher where a chunk cannot be found.
 */
static int check_chunks(const struct dataset *d, uint64_t found, struct leat_error *err)
{
    hsize_t stored = 0;
    hid_t space = H5Dget_space(d->id);
    herr_t rc = H5Dget_num_chunks(d->id, space, &stored);
    H5Sclose(space);
    return rc < 0 || stored != found ? damaged(d, err, "the index of its chunks") : 0;
}

static int put_chunks(const struct dataset *d, const hsize_t *chunk, struct bytes_out *out,
                      struct leat_error *err)
{
    unsigned filters[3];
    int nfilters = 0;
    int rc = read_filters(d, filters, &nfilters, err);
    if (rc < 0)
        return rc;
    unsigned opts = 0;
#if H5_VERSION_GE(1, 10, 0)
    if (nfilters && H5Pget_chunk_opts(d->dcpl, &opts) >= 0 && (opts & H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS))
        return unsupported(d, err,
                           "stored with unfiltered edge chunks; rewrite it with `h5repack -f GZIP=4 IN OUT`");
#endif
    uint64_t grid = 1, found = 0;
    for (unsigned i = 0; i < d->ndim; i++)
        if (chunk[i] == 0 || mul_overflows(grid, div_up(d->dims[i], chunk[i]), &grid) ||
            grid > HDF5_CHUNKS_MAX)
            return unsupported(
                d, err, "stored in too many chunks; rewrite it with larger ones (`h5repack -l CHUNK=...`)");
    hsize_t offset[H5S_MAX_RANK] = {0};
    void *buf = NULL;
    size_t cap = 0;
    for (uint64_t c = 0; c < grid && rc == 0; c++) {
        rc = find_chunk(d, offset, &buf, &cap, filters, nfilters, out, &found, err);
        for (unsigned i = d->ndim; i-- > 0;) {
            offset[i] += chunk[i];
            if (offset[i] < d->dims[i])
                break;
            offset[i] = 0;
        }
    }
    free(buf);
    return rc == 0 && found < grid ? check_chunks(d, found, err) : rc;
}

static int put_fill(const struct dataset *d, struct bytes_out *out, struct leat_error *err)
{
    H5D_fill_value_t defined;
    if (H5Pfill_value_defined(d->dcpl, &defined) < 0)
        return damaged(d, err, "its fill value");
    uint8_t *value = calloc(1, d->itemsize);
    char *hex = calloc(2, d->itemsize + 1);
    bool zero = true;
    int rc = value && hex ? 0 : -ENOMEM;
    if (rc == 0 && defined == H5D_FILL_VALUE_USER_DEFINED && H5Pget_fill_value(d->dcpl, d->type, value) < 0)
        rc = damaged(d, err, "its fill value");
    for (size_t i = 0; rc == 0 && i < d->itemsize; i++) {
        zero = zero && value[i] == 0;
        snprintf(hex + 2 * i, 3, "%02x", value[i]);
    }
    if (rc == 0)
        bytes_put_str(out, zero ? "" : hex);
    free(value);
    free(hex);
    return rc;
}

/* Was it ever written? The status says; the offset is one of a user block's bytes then, in libhdf5 1.10. */
static int put_contiguous(const struct dataset *d, struct bytes_out *out, struct leat_error *err)
{
    H5D_space_status_t status;
    int external = H5Pget_external_count(d->dcpl);
    if (external > 0)
        return unsupported(
            d, err, "stored in other files (external storage); copy it into one with `h5repack -l CONTI`");
    if (external < 0 || H5Dget_space_status(d->id, &status) < 0)
        return damaged(d, err, "its layout");
    if (status == H5D_SPACE_STATUS_NOT_ALLOCATED) {
        bytes_put_u8(out, HDF5_ABSENT);
        return 0;
    }
    haddr_t offset = H5Dget_offset(d->id);
    if (offset == HADDR_UNDEF)
        return damaged(d, err, "its place in the file");
    bytes_put_u8(out, HDF5_CONTIGUOUS);
    bytes_put_u64(out, offset);
    return 0;
}

static int put_layout(const struct dataset *d, struct bytes_out *out, struct leat_error *err)
{
    hsize_t chunk[H5S_MAX_RANK];
    switch (H5Pget_layout(d->dcpl)) {
    case H5D_CONTIGUOUS:
        return put_contiguous(d, out, err);
    case H5D_CHUNKED:
        if (H5Pget_chunk(d->dcpl, H5S_MAX_RANK, chunk) != (int)d->ndim)
            return damaged(d, err, "the shape of its chunks");
        bytes_put_u8(out, HDF5_CHUNKED);
        for (unsigned i = 0; i < d->ndim; i++)
            bytes_put_u64(out, chunk[i]);
        return put_chunks(d, chunk, out, err);
    case H5D_COMPACT:
        return unsupported(
            d, err, "stored compact, inside of its header; rewrite it with `h5repack -l CONTI IN OUT`");
    case H5D_VIRTUAL:
        return unsupported(
            d, err,
            "virtual, made of other datasets; open those, or copy it with `h5repack -l CONTI IN OUT`");
    default:
        return damaged(d, err, "its layout");
    }
}

static int put_opened(struct dataset *d, struct bytes_out *out, struct leat_error *err)
{
    hid_t space = H5Dget_space(d->id);
    int ndim = space < 0 ? -1 : H5Sget_simple_extent_ndims(space);
    bool null = space >= 0 && H5Sget_simple_extent_type(space) == H5S_NULL;
    if (ndim < 0 || H5Sget_simple_extent_dims(space, d->dims, NULL) < 0)
        return damaged(d, err, "its shape");
    H5Sclose(space);
    if (null)
        return unsupported(d, err, "without a shape");
    if (ndim > (int)INDEX_MAX_DIMS + 1)
        return unsupported(d, err, "of more than 9 dimensions");
    d->ndim = (unsigned)ndim;
    const char *why = dtype_of(d->type, d->dtype, sizeof(d->dtype));
    if (why)
        return unsupported(d, err, why);
    d->itemsize = H5Tget_size(d->type);
    if (d->itemsize == 0 || d->itemsize > 65536)
        return unsupported(d, err, "made of elements of more than 64 KiB");
    bytes_put_u8(out, HDF5_TABLE_DATASET);
    bytes_put_str(out, d->name);
    bytes_put_str(out, d->dtype);
    bytes_put_u32(out, (uint32_t)d->itemsize);
    bytes_put_u8(out, (uint8_t)d->ndim);
    for (unsigned i = 0; i < d->ndim; i++)
        bytes_put_u64(out, d->dims[i]);
    int rc = put_fill(d, out, err);
    return rc < 0 ? rc : put_layout(d, out, err);
}

/* The last component of a path: the name of its field. */
static const char *last_component(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

static int unreadable(const char *path, struct leat_error *err)
{
    return error_set(err, LEAT_CORRUPT, "its \"%s\" is damaged and cannot be opened", path);
}

static int put_dataset(hid_t file, const char *path, struct bytes_out *out, struct leat_error *err)
{
    struct dataset d = {.name = last_component(path)};
    d.id = H5Dopen2(file, path, H5P_DEFAULT);
    if (d.id < 0)
        return unreadable(path, err);
    d.type = H5Dget_type(d.id);
    d.dcpl = H5Dget_create_plist(d.id);
    int rc = d.type < 0 || d.dcpl < 0 ? damaged(&d, err, "its type") : put_opened(&d, out, err);
    H5Pclose(d.dcpl);
    H5Tclose(d.type);
    H5Dclose(d.id);
    return rc;
}

struct each {
    struct bytes_out *out;
    struct leat_error *err;
    unsigned n;
    int rc;
};

/* Left out, it would be a field that every sample lacks: the whole file is refused instead. */
static herr_t each_unreadable(struct each *each, const char *name)
{
    each->rc = error_set(each->err, LEAT_CORRUPT,
                         "its \"%s\" is damaged and cannot be opened; datasets beside it can be, by name "
                         "(\"x.h5#/DATASET\")",
                         name);
    return -1;
}

static herr_t each_link(hid_t group, const char *name, const H5L_info_t *info, void *arg)
{
    struct each *each = arg;
    if (info->type != H5L_TYPE_HARD)
        return 0; /* soft links name what is there already, external ones another file */
    H5O_info_t object;
    if (H5Oget_info_by_name(group, name, &object, H5P_DEFAULT) < 0 || object.type == H5O_TYPE_UNKNOWN)
        return each_unreadable(each, name);
    if (object.type != H5O_TYPE_DATASET)
        return 0;
    /* A single value beside the arrays is an annotation, not a field. */
    hid_t id = H5Dopen2(group, name, H5P_DEFAULT);
    hid_t space = id < 0 ? -1 : H5Dget_space(id);
    int ndim = space < 0 ? -1 : H5Sget_simple_extent_ndims(space);
    H5Sclose(space);
    H5Dclose(id);
    if (ndim < 0)
        return each_unreadable(each, name);
    if (ndim == 0)
        return 0;
    each->n++;
    each->rc = put_dataset(group, name, each->out, each->err);
    return each->rc < 0 ? -1 : 0;
}

static int put_root(hid_t file, struct bytes_out *out, struct leat_error *err)
{
    struct each each = {.out = out, .err = err};
    herr_t rc = H5Literate(file, H5_INDEX_NAME, H5_ITER_INC, NULL, each_link, &each);
    if (each.rc < 0)
        return each.rc;
    if (rc < 0)
        return error_set(err, LEAT_CORRUPT, "its root group cannot be read; it is damaged");
    if (each.n == 0)
        return error_set(err, LEAT_INVALID,
                         "there is no array in its root group; name one behind \"#\", as in "
                         "\"x.h5#/train/images\" (`h5ls -r` lists them)");
    return 0;
}

/* Does the path lead to an object of this file, be it damaged? A link by name (soft, external) may lead to nothing. */
static bool is_linked(hid_t file, const char *inner)
{
    char *path = strdup(inner);
    bool linked = path != NULL;
    H5L_info_t last;
    for (char *slash = path; linked && slash;) {
        slash = strchr(slash + 1, '/');
        if (slash)
            *slash = 0;
        linked = H5Lexists(file, path, H5P_DEFAULT) > 0;
        if (slash)
            *slash = '/';
    }
    free(path);
    return linked && H5Lget_info(file, inner, &last, H5P_DEFAULT) >= 0 && last.type == H5L_TYPE_HARD;
}

/* The address of the superblock is 0 or a power of two from 512 on; byte 11 of versions 2 and 3 has the flags of a writer. */
static bool is_being_written(void)
{
    static const char signature[8] = "\x89HDF\r\n\x1a\n";
    uint8_t head[12];
    for (uint64_t at = 0; at + sizeof(head) <= file_bytes; at = at ? 2 * at : 512)
        if (pread(STDIN_FILENO, head, sizeof(head), (off_t)at) == (ssize_t)sizeof(head) &&
            !memcmp(head, signature, sizeof(signature)))
            return head[8] == 3 && (head[11] & 1);
    return false;
}

static int put_table(const char *inner, struct bytes_out *out, struct leat_error *err)
{
    hid_t fapl = H5Pcreate(H5P_FILE_ACCESS), id = H5FDregister(&driver);
    if (id < 0 || H5Pset_driver(fapl, id, NULL) < 0)
        return error_set(err, -EIO, "libhdf5 cannot be set up");
    /* libhdf5 asks this only of its own drivers. What it would read now may be half of a change. */
    if (is_being_written())
        return error_set(err, LEAT_BUSY,
                         "a program has it open for writing; close it there first. If that program ended "
                         "without closing it, "
                         "`h5clear -s FILE` makes it readable");
    hid_t file = H5Fopen("stdin", H5F_ACC_RDONLY, fapl);
    if (file < 0)
        return error_set(err, LEAT_CORRUPT,
                         "it is truncated or damaged, or a program still writes it: libhdf5 cannot open it");
    bytes_put_u32(out, HDF5_TABLE_MAGIC);
    if (!inner)
        return put_root(file, out, err);
    H5O_info_t object;
    if (H5Oget_info_by_name(file, inner, &object, H5P_DEFAULT) < 0)
        return is_linked(file, inner)
                   ? unreadable(inner, err)
                   : error_set(err, LEAT_NOT_FOUND, "there is no dataset \"%s\" in it (`h5ls -r` lists them)",
                               inner);
    if (object.type != H5O_TYPE_DATASET)
        return error_set(err, LEAT_INVALID, "its \"%s\" is not a dataset (`h5ls -r` lists them)", inner);
    return put_dataset(file, inner, out, err);
}

static void set_limit(int resource, rlim_t n)
{
    struct rlimit l;
    if (getrlimit(resource, &l) == 0) {
        l.rlim_cur = l.rlim_max = MIN(l.rlim_max, n);
        setrlimit(resource, &l);
    }
}

#if defined(__x86_64__) || defined(__aarch64__)
/*
 * Refuses system calls that are not needed any more: only reading, writing and memory are left. Not a list of
 * allowed ones, which would change with every libc. But nothing here opens, connects or starts anything,
 * whatever the file made of the library.
 */
static const int refused[] = {
    SYS_openat,
    SYS_openat2,
    SYS_open_by_handle_at,
    SYS_socket,
    SYS_connect,
    SYS_sendto,
    SYS_sendmsg,
    SYS_bind,
    SYS_execve,
    SYS_execveat,
    SYS_clone,
    SYS_clone3,
    SYS_unlinkat,
    SYS_renameat2,
    SYS_linkat,
    SYS_symlinkat,
    SYS_mkdirat,
    SYS_mknodat,
    SYS_fchmod,
    SYS_fchmodat,
    SYS_fchownat,
    SYS_fchown,
    SYS_ftruncate,
    SYS_truncate,
    SYS_kill,
    SYS_tkill,
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_bpf,
    SYS_io_uring_setup,
    SYS_userfaultfd,
    SYS_perf_event_open,
    SYS_memfd_create,
    SYS_keyctl,
    SYS_mount,
    SYS_unshare,
    SYS_setns,
    SYS_pidfd_getfd,
    SYS_shmget,
    SYS_msgget,
#    ifdef __x86_64__
    SYS_open,
    SYS_creat,
    SYS_fork,
    SYS_vfork,
    SYS_unlink,
    SYS_rename,
    SYS_link,
    SYS_symlink,
    SYS_mkdir,
    SYS_rmdir,
    SYS_chmod,
    SYS_chown,
    SYS_renameat,
    SYS_mknod,
#    endif
};

static void set_filter(void)
{
#    ifdef __x86_64__
    const uint32_t arch = AUDIT_ARCH_X86_64,
                   limit = 0x40000000; /* from there on: x32, the same calls by other numbers */
#    else
    const uint32_t arch = AUDIT_ARCH_AARCH64, limit = UINT32_MAX;
#    endif
    struct sock_filter program[ARRAY_LEN(refused) + 8], *p = program;
    *p++ = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch));
    *p++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, arch, 1, 0);
    *p++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    *p++ = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    *p++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, limit, ARRAY_LEN(refused) + 1, 0);
    for (size_t i = 0; i < ARRAY_LEN(refused); i++)
        *p++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)refused[i],
                                            (uint8_t)(ARRAY_LEN(refused) - i), 0);
    *p++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    *p++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
    struct sock_fprog fprog = {(unsigned short)(p - program), program};
    /* Where a container or an old kernel has no filters, the limits remain. */
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0)
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &fprog);
}
#else
static void set_filter(void) {}
#endif

static void close_others(void)
{
    if (syscall(SYS_close_range, 3u, ~0u, 0u) == 0)
        return;
    struct rlimit l; /* close_range(2) is younger than some supported kernels */
    int end = getrlimit(RLIMIT_NOFILE, &l) == 0 ? (int)MIN(l.rlim_cur, (rlim_t)65536) : 65536;
    for (int fd = 3; fd < end; fd++)
        close(fd);
}

static void set_limits(void)
{
    close_others();
    set_limit(RLIMIT_CORE, 0);
    set_limit(RLIMIT_FSIZE, 0);
    set_limit(RLIMIT_NOFILE, 3);
    set_limit(RLIMIT_CPU, CPU_SECONDS);
#ifndef SANITIZED
    set_limit(RLIMIT_AS, MEMORY_BYTES);
    set_filter();
#endif
}

int main(int argc, char **argv)
{
    struct stat st;
    struct bytes_out out = {0};
    struct leat_error err = {0};
    setenv("HDF5_USE_FILE_LOCKING", "FALSE", 1);
    set_limits();
    if (fstat(STDIN_FILENO, &st) < 0 || !S_ISREG(st.st_mode)) {
        fprintf(stderr, "usage: leat-hdf5-table [DATASET] < FILE.h5 > TABLE\n");
        return 2;
    }
    file_bytes = (uint64_t)st.st_size;
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    int rc = put_table(argc > 1 ? argv[1] : NULL, &out, &err);
    bytes_put_u8(&out, HDF5_TABLE_END);
    if (rc == 0 && (out.failed || out.len > HDF5_TABLE_MAX))
        rc = error_set(&err, LEAT_UNSUPPORTED,
                       "it has too many chunks; rewrite it with larger ones (`h5repack -l CHUNK=...`)");
    if (rc < 0) {
        if (!err.code)
            error_set(&err, rc, "leat-hdf5-table is out of memory");
        bytes_out_fini(&out);
        out = (struct bytes_out){0};
        put_error(&out, &err);
    }
    if (fd_write(STDOUT_FILENO, out.data, out.len) < 0)
        return 1;
    _exit(0); /* the library's own clean-up is of no use, and may trip over what a hostile file left */
}
