/* SPDX-License-Identifier: Apache-2.0 */
#include "dataset/scan.h"

int hdf5_scan(struct scan *scan, const char *path, const char *inner, const char *field, int fd,
              const struct stat *st, struct scan_arrays *arrays, struct leat_error *err)
{
    return error_set(err, LEAT_UNSUPPORTED, "%s: HDF5 is not read yet", path);
}
