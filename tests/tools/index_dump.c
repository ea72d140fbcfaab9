/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leat-index-dump SPEC [--data]: builds the index of a dataset, validates it, and prints it as JSON: what a test compares
 * with NumPy, h5py and tarfile. With --open it goes through dataset_index_open (cache and all), with --write it writes the
 * index beside the data. Every sample is read back the way a pool would: extent by extent, into one address space.
 * Exit status 0, or 1 with {"error": code name, "message": ...}.
 */
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <sys/mman.h>
#include <libdeflate.h>

#include "pool/source/dataset_remote.h"

#define SPACE_MAX (4ull << 30)

static int fail_json(int code, const struct leat_error *err)
{
    json_t *message = json_string(err->message);
    if (!message)
        message = json_string("(not UTF-8)");
    json_t *o = json_pack("{s:s, s:o}", "error", leat_strerror(code), "message", message);
    json_dumpf(o, stdout, JSON_ENSURE_ASCII);
    putchar('\n');
    json_decref(o);
    return 1;
}

static int load_object(const struct index *ix, const struct index_extent *x, const char *uri,
                       struct backend *session, char *space, struct leat_error *err)
{
    const struct index_source *s = &ix->sources[x->source];
    struct backend_file *file;
    int rc = backend_open(session, uri, index_string(ix, s->etag), s->bytes, &file, err);
    if (rc < 0)
        return rc;
    int64_t n = backend_pread(session, file, space + x->address, x->bytes, x->source_offset, err);
    backend_close(file);
    return n < 0 ? (int)n : 0;
}

/* Fills the address space with what the extents say. */
static char *load(const struct index *ix, struct backend *session, struct leat_error *err)
{
    uint64_t bytes = align_up(ix->header->address_end + 1, 4096);
    if (bytes > SPACE_MAX) {
        error_set(err, LEAT_NO_SPACE, "too large for this tool");
        return NULL;
    }
    char *space =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED) {
        error_sys(err, -errno, "mmap");
        return NULL;
    }
    struct dataset_scratch scratch = {0};
    for (uint64_t e = 0; e < ix->header->nextents; e++) {
        const struct index_extent *x = &ix->extents[e];
        char path[PATH_MAX];
        index_source_path(ix, x->source, path, sizeof(path));
        if (dataset_is_remote(path)) {
            if (load_object(ix, x, path, session, space, err) < 0)
                return NULL;
            continue;
        }
        AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
        int rc = fd < 0 ? error_sys(err, -errno, "%s", path) : 0;
        if (rc == 0 && x->kind == INDEX_EXTENT_RAW) {
            if (pread(fd, space + x->address, x->bytes, (off_t)x->source_offset) != (ssize_t)x->bytes)
                rc = error_set(err, LEAT_CORRUPT, "%s: short read", path);
        } else if (rc == 0) {
            rc = dataset_extent_decode(ix, x, fd, space + x->address, &scratch, err);
        }
        if (rc < 0) {
            dataset_scratch_fini(&scratch);
            return NULL;
        }
    }
    dataset_scratch_fini(&scratch);
    return space;
}

static json_t *dump_fields(const struct index *ix)
{
    static const char *const kinds[] = {"", "uniform", "table", "label"};
    json_t *fields = json_array();
    for (unsigned f = 0; f < ix->header->nfields; f++) {
        const struct index_field *field = &ix->fields[f];
        json_t *shape = json_array();
        for (unsigned d = 0; d < field->ndim; d++)
            json_array_append_new(shape, json_integer((json_int_t)field->shape[d]));
        json_array_append_new(fields, json_pack("{s:s, s:s, s:s, s:o, s:I, s:I}", "name",
                                                index_string(ix, field->name), "dtype",
                                                index_string(ix, field->dtype), "kind", kinds[field->kind],
                                                "shape", shape, "max_bytes", (json_int_t)field->max_bytes,
                                                "total_bytes", (json_int_t)field->total_bytes));
    }
    return fields;
}

static json_t *dump_sample(const struct index *ix, uint64_t i, const char *space)
{
    char scratch[24];
    size_t len;
    const char *key = index_key(ix, i, scratch, &len);
    json_t *o = json_object(), *parts = json_object();
    json_object_set_new(o, "key", json_stringn(key, len));
    json_object_set_new(o, "found", json_boolean(index_find(ix, key, len) == i));
    for (unsigned f = 0; f < ix->header->nfields; f++) {
        struct index_part part;
        const char *name = index_string(ix, ix->fields[f].name);
        if (ix->fields[f].kind == INDEX_FIELD_LABEL) {
            const char *class = index_class(ix, ix->labels[i], &len);
            json_object_set_new(o, "label", json_integer(ix->labels[i]));
            json_object_set_new(o, "class", json_stringn(class, len));
        } else if (index_part(ix, i, f, &part)) {
            json_t *p =
                json_pack("{s:I, s:I}", "bytes", (json_int_t)part.bytes, "address", (json_int_t)part.address);
            if (space)
                json_object_set_new(
                    p, "crc32",
                    json_integer((json_int_t)libdeflate_crc32(0, space + part.address, part.bytes)));
            json_object_set_new(parts, name, p);
        }
    }
    json_object_set_new(o, "parts", parts);
    return o;
}

static int dump(const struct index *ix, bool with_data, bool scanned, struct backend *session,
                struct leat_error *err)
{
    const char *space = with_data ? load(ix, session, err) : NULL;
    if (with_data && !space)
        return -1;
    char hex[33];
    for (int i = 0; i < 16; i++)
        snprintf(hex + 2 * i, 3, "%02x", ix->header->fingerprint[i]);
    json_t *samples = json_array(), *sources = json_array(), *extents = json_array();
    for (uint64_t i = 0; i < ix->header->nsamples; i++)
        json_array_append_new(samples, dump_sample(ix, i, space));
    for (uint64_t i = 0; i < ix->header->nsources; i++)
        json_array_append_new(sources, json_string(index_string(ix, ix->sources[i].path)));
    for (uint64_t i = 0; i < ix->header->nextents; i++) {
        const struct index_extent *e = &ix->extents[i];
        json_array_append_new(extents, json_pack("{s:I, s:I, s:I, s:i}", "address", (json_int_t)e->address,
                                                 "bytes", (json_int_t)e->bytes, "offset",
                                                 (json_int_t)e->source_offset, "kind", (int)e->kind));
    }
    json_t *o = json_pack("{s:I, s:i, s:i, s:I, s:I, s:I, s:s, s:s, s:b, s:o, s:o, s:o, s:o}", "nsamples",
                          (json_int_t)ix->header->nsamples, "kind", (int)ix->header->kind, "flags",
                          (int)ix->header->flags, "address_end", (json_int_t)ix->header->address_end,
                          "payload_bytes", (json_int_t)ix->header->payload_bytes, "max_sample_bytes",
                          (json_int_t)ix->header->max_sample_bytes, "fingerprint", hex, "root",
                          index_string(ix, ix->header->root), "scanned", scanned, "fields", dump_fields(ix),
                          "samples", samples, "sources", sources, "extents", extents);
    json_dumpf(o, stdout, JSON_ENSURE_ASCII);
    putchar('\n');
    json_decref(o);
    return 0;
}

int main(int argc, char **argv)
{
    bool with_data = true, by_open = false, by_write = false, quiet = false;
    const char *text = NULL;
    for (int i = 1; i < argc; i++) {
        by_open |= !strcmp(argv[i], "--open");
        by_write |= !strcmp(argv[i], "--write");
        quiet |= !strcmp(argv[i], "--quiet");
        with_data &= strcmp(argv[i], "--no-data") != 0;
        if (argv[i][0] != '-')
            text = argv[i];
    }
    if (!text) {
        fprintf(stderr, "usage: leat-index-dump [--open|--write] [--no-data] [--quiet] SPEC\n");
        return 2;
    }
    struct dataset_spec spec;
    struct leat_error err = {0};
    bool scanned = true;
    int fd = -1;
    int rc = dataset_spec_parse(text, &spec, &err);
    if (rc < 0)
        return fail_json(rc, &err);
    /* Remote sources with the settings of the environment, as the programs do. */
    struct backend *session = NULL;
    struct dataset_opener with_session = {0};
    const struct dataset_opener *opener = NULL;
    if (dataset_is_remote(spec.sources[0].uri)) {
        rc = backend_new(&(struct backend_config){0}, &session, &err);
        if (rc == 0)
            remote_opener(session, &with_session);
        opener = &with_session;
    }
    if (rc == 0 && by_write) {
        AUTO_FREE char *path = NULL;
        rc = dataset_index_write(&spec, opener, NULL, true, &path, &fd, &err);
        if (rc == 0) {
            fprintf(stderr, "%s\n", path);
            close(fd);
        }
    }
    if (rc == 0 && (by_open || by_write)) {
        rc = dataset_index_open(&spec, opener, NULL, true, &fd, &scanned, &err);
    } else if (rc == 0) {
        fd = memfd_create("index", MFD_CLOEXEC);
        rc = dataset_index_build(&spec, opener, NULL, fd, &err);
    }
    dataset_spec_free(&spec);
    struct index ix = {0};
    if (rc == 0)
        rc = index_map(fd, &ix, &err);
    if (fd >= 0)
        close(fd);
    if (rc == 0)
        rc = index_validate(&ix, &err);
    if (rc == 0 && quiet)
        printf("{\"nsamples\": %llu}\n", (unsigned long long)ix.header->nsamples);
    else if (rc == 0)
        rc = dump(&ix, with_data, scanned, session, &err);
    backend_free(session);
    return rc < 0 ? fail_json(err.code ? err.code : rc, &err) : 0;
}
