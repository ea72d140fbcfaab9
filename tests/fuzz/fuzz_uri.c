/* SPDX-License-Identifier: Apache-2.0 */
/* What a user calls a dataset. What is taken has absolute paths or addresses, and its canonical form is read back as itself. */
#include "dataset/dataset.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    AUTO_FREE char *text = malloc(size + 1);
    if (!text)
        return 0;
    memcpy(text, data, size);
    text[size] = 0;
    struct leat_error err = {0};
    struct dataset_spec spec, again;
    int rc = dataset_spec_parse(text, &spec, &err);
    if (rc != 0) {
        if ((rc != LEAT_INVALID && rc != LEAT_UNSUPPORTED && rc != -ENOMEM) || err.message[0] == 0)
            abort();
        return 0;
    }
    for (unsigned i = 0; i < spec.n; i++)
        if (spec.sources[i].uri[0] != '/' && !dataset_is_remote(spec.sources[i].uri))
            abort();
    AUTO_FREE char *canonical = dataset_spec_format(&spec);
    if (!canonical || dataset_spec_parse(canonical, &again, &err) != 0)
        abort();
    AUTO_FREE char *twice = dataset_spec_format(&again);
    if (!twice || strcmp(canonical, twice) != 0 || again.n != spec.n)
        abort();
    dataset_spec_free(&spec);
    dataset_spec_free(&again);
    return 0;
}
