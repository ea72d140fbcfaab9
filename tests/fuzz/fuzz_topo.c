/* SPDX-License-Identifier: Apache-2.0 */
/* A hostile recorded tree; its first line, as a comment, is the value of `rails`. The output is plain text
 * in any case. */
#include "net/topo/topo.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void plain(const char *text)
{
    for (; *text; text++)
        if (*text < 0x20 || *text > 0x7e)
            abort();
}

static void look(const struct topo *topo, const char *rails)
{
    static struct topo_choice c;
    char text[TOPO_TEXT_MAX];
    for (unsigned i = 0; i < topo->nnics; i++) {
        const struct topo_nic *nic = &topo->nics[i];
        plain(nic->netdev);
        plain(nic->device);
        plain(nic->master);
        plain(nic->state);
        plain(nic->place.path);
        if (nic->place.node < TOPO_NODE_ANY || (!nic->netdev[0] && !nic->device[0]))
            abort();
        for (unsigned g = 0; g < topo->ngpus; g++)
            if (topo_distance(topo, &topo->gpus[g].place, &nic->place) !=
                topo_distance(topo, &nic->place, &topo->gpus[g].place))
                abort();
    }
    plain(topo_cpus_format(&topo->online, text, sizeof(text)));
    for (unsigned kind = TOPO_TCP; kind <= TOPO_RDMA; kind++)
        for (int gpu = TOPO_GPU_NONE; gpu < 2; gpu++) {
            const struct topo_request request = {
                .kind = (enum topo_kind)kind, .gpu = gpu, .cpus = &topo->online, .rails = rails};
            if (topo_choose(topo, &request, &c, NULL) != 0)
                continue;
            if (c.use > c.n || c.n > TOPO_RAILS_MAX)
                abort();
            for (unsigned i = 0; i < c.n; i++) {
                const struct topo_cpus inside = topo_cpus_and(&c.rails[i].pin, &topo->online);
                if (!topo_cpus_equal(&inside, &c.rails[i].pin))
                    abort(); /* that would widen */
            }
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct topo_text *tree;
    struct topo_files files;
    struct topo *topo;
    struct leat_error err = {0};
    if (size == 0)
        return 0;
    int rc = topo_text_new((const char *)data, size, &tree, &files, &err);
    if (rc == LEAT_INVALID && err.message[0])
        return 0;
    if (rc)
        abort();
    if (topo_read(&files, &topo, NULL) != 0)
        abort();
    char rails[200] = "";
    const uint8_t *end = memchr(data, '\n', MIN(size, sizeof(rails) - 1));
    if (end && data[0] == '#')
        memcpy(rails, data + 1, (size_t)(end - data) - 1);
    look(topo, rails);
    topo_free(topo);
    topo_text_free(tree);
    return 0;
}
