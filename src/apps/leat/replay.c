/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay.c: which samples stood in a past batch, out of the state of a leat.Loader (python/leat/_loader/loader.py, docs/decisions/0062).
 *
 * Happy path: state ──▶ leat_plan and its runs ──▶ the step's positions ──▶ samples.
 * Failure modes: a state that is not one, of a newer version, or of a sampler (only the sampler knows) is refused by name.
 */
#include "apps/leat/cli.h"

#include <inttypes.h>

#define STATE_VERSION 2

struct replay {
    struct leat_plan plan; /* of what is below, and of strings of the state */
    uint64_t global_batch, nruns;
    struct leat_plan_run *runs;
    uint64_t *numbers; /* skips, weights and lengths */
    char *fingerprints;
    size_t nsets; /* given */
    struct leat_client **clients;
    struct leat_ws **sets;
};

static bool parse_u64(const char *text, uint64_t *ret)
{
    char *end;
    errno = 0;
    *ret = strtoull(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end && !errno;
}

static bool take_u64(const json_t *v, uint64_t *ret)
{
    *ret = (uint64_t)json_integer_value(v);
    return json_is_integer(v) && json_integer_value(v) >= 0;
}

static bool get_u64(const json_t *state, const char *name, uint64_t *ret)
{
    return take_u64(json_object_get(state, name), ret);
}

static bool get_shuffle(const json_t *state, uint64_t *ret_block)
{
    const json_t *v = json_object_get(state, "shuffle");
    const char *text = json_string_value(v);
    *ret_block = json_is_false(v) ? LEAT_ORDER_SEQUENTIAL : 0;
    if (json_is_false(v) || (text && strcmp(text, "full") == 0))
        return true;
    return text && strncmp(text, "block:", 6) == 0 && parse_u64(text + 6, ret_block) && *ret_block > 0;
}

/* The n numbers of a list. */
static bool get_list(const json_t *list, size_t n, uint64_t *ret)
{
    bool good = json_array_size(list) == n;
    for (size_t i = 0; good && i < n; i++)
        good = take_u64(json_array_get(list, i), &ret[i]);
    return good;
}

/* Version 1 has no runs: all of it was of one size. */
static bool get_runs(const json_t *state, uint64_t version, struct replay *r)
{
    const json_t *list = json_object_get(state, "runs");
    r->nruns = version > 1 ? json_array_size(list) : 0;
    r->runs = calloc(r->nruns + 1, sizeof(*r->runs));
    if (!r->runs || (version > 1 && !json_is_array(list)))
        return false;
    for (size_t i = 0; i < r->nruns; i++)
        if (!get_list(json_array_get(list, i), 4, (uint64_t *)&r->runs[i]))
            return false;
    if (r->nruns == 0)
        r->runs[r->nruns++] = (struct leat_plan_run){.global_batch = r->global_batch};
    return true;
}

/* What the plan points to. */
static bool get_arrays(const json_t *state, struct replay *r)
{
    const json_t *skips = json_object_get(state, "skip_ranges"), *mixture = json_object_get(state, "mixture");
    const json_t *weights = json_object_get(mixture, "weights");
    const size_t nskips = json_array_size(skips), nparts = json_array_size(weights);
    uint64_t *numbers = r->numbers = calloc(2 * (nskips + nparts) + 1, sizeof(*numbers));
    r->fingerprints = calloc(nparts + 1, 32);
    bool good = numbers && r->fingerprints && json_is_array(skips) && (nparts || json_is_null(mixture)) &&
                json_is_string(json_object_get(state, "fingerprint"));
    for (size_t i = 0; good && i < nskips; i++)
        good = get_list(json_array_get(skips, i), 2, numbers + 2 * i);
    r->plan.skips = numbers;
    r->plan.nskips = nskips;
    r->plan.weights = numbers + 2 * nskips;
    r->plan.lengths = r->plan.weights + nparts;
    r->plan.nparts = nparts;
    r->plan.fingerprint = nparts ? r->fingerprints : json_string_value(json_object_get(state, "fingerprint"));
    good = good && get_list(weights, nparts, numbers + 2 * nskips) &&
           get_list(json_object_get(mixture, "lengths"), nparts, numbers + 2 * nskips + nparts);
    for (size_t k = 0; good && k < nparts; k++) {
        const json_t *digits = json_array_get(json_object_get(mixture, "fingerprints"), k);
        good = json_string_length(digits) == 32;
        if (good)
            memcpy(r->fingerprints + 32 * k, json_string_value(digits), 32);
    }
    return good;
}

/* 0, or an exit code with the message printed. */
static int read_state(const struct cli *cli, const json_t *state, struct replay *r)
{
    const char *kind = json_string_value(json_object_get(state, "kind"));
    uint64_t version;
    if (!kind || strcmp(kind, "leat.Loader") != 0 || !get_u64(state, "version", &version))
        return cli_error(cli, CLI_USAGE, "this is not the state of a leat.Loader");
    if (version < 1 || version > STATE_VERSION)
        return cli_error(cli, CLI_USAGE, "this state has version %" PRIu64 ", this program reads up to %d",
                         version, STATE_VERSION);
    if (!json_is_null(json_object_get(state, "sampler")))
        return cli_error(cli, CLI_USAGE, "the order of this state came from a sampler: only it knows");
    if (!get_u64(state, "seed", &r->plan.seed) || !get_u64(state, "epoch", &r->plan.epoch) ||
        !get_u64(state, "length", &r->plan.n) || !get_u64(state, "global_batch", &r->global_batch) ||
        !get_shuffle(state, &r->plan.block) || !get_runs(state, version, r) || !get_arrays(state, r))
        return cli_error(cli, CLI_USAGE, "this state is damaged");
    return 0;
}

static int print_samples(struct cli *cli, const struct replay *r, uint64_t first, uint64_t end)
{
    struct cli_json j = {.out = stdout, .first = true};
    if (cli->json)
        json_open(&j, NULL, '[');
    for (uint64_t p = first; p < end; p++) {
        char buf[LEAT_KEY_BUF];
        size_t len = 0, part = 0;
        uint64_t index;
        leat_plan_ids(&r->plan, p, 1, &index);
        if (r->plan.nparts)
            for (index &= LEAT_PLAN_ID_MASK; index >= r->plan.lengths[part]; part++)
                index -= r->plan.lengths[part];
        const char *key = r->nsets ? leat_ws_key(r->sets[part], index, buf, sizeof(buf), &len) : NULL;
        if (cli->json) {
            json_open(&j, NULL, '{');
            json_u64(&j, "position", p);
            if (r->plan.nparts)
                json_u64(&j, "source", part);
            json_u64(&j, "index", index);
            if (key)
                json_str(&j, "key", key, len);
            json_close(&j, '}');
            continue;
        }
        printf("%" PRIu64 "\t", p);
        if (r->plan.nparts)
            printf("%zu\t", part);
        printf("%" PRIu64, index);
        if (key) {
            putchar('\t');
            cli_print_key(stdout, key, len);
        }
        putchar('\n');
    }
    if (cli->json)
        json_close(&j, ']');
    return cli_finish(cli, CLI_OK);
}

/* 0, or an exit code with the message printed. */
static int open_sets(struct cli *cli, struct replay *r, char **uris)
{
    r->clients = calloc(r->nsets + 1, sizeof(*r->clients));
    r->sets = calloc(r->nsets + 1, sizeof(*r->sets));
    if (!r->clients || !r->sets)
        return cli_fail(cli, -ENOMEM);
    for (size_t k = 0; k < r->nsets; k++) {
        int rc = cli_open_set(cli, uris[k], &r->clients[k], &r->sets[k]);
        if (rc < 0)
            return cli_fail(cli, rc);
        if (strncmp(leat_ws_fingerprint(r->sets[k]), r->plan.fingerprint + 32 * k, 32) != 0)
            return cli_error(cli, CLI_STALE, "%s is another dataset than set %zu of the state", uris[k], k);
    }
    return 0;
}

static void replay_free(struct replay *r)
{
    for (size_t k = 0; r->clients && r->sets && k < r->nsets; k++) {
        leat_close(r->sets[k]);
        leat_disconnect(r->clients[k]);
    }
    free(r->clients);
    free(r->sets);
    free(r->runs);
    free(r->numbers);
    free(r->fingerprints);
}

/* world: 0 takes what the state knows. */
static int replay_step(struct cli *cli, struct replay *r, uint64_t number, uint64_t rank, uint64_t world,
                       bool all, char **uris)
{
    struct leat_plan_run run;
    uint64_t count;
    int rc = leat_plan_init(&r->plan, &cli->err);
    if (rc)
        return cli_error(cli, CLI_USAGE, "%s", cli->err.message);
    rc = leat_plan_find(&r->plan, r->runs, r->nruns, number, &run, &count, &cli->err);
    if (rc)
        return cli_error(cli, CLI_USAGE, "%s", cli->err.message);
    if (!world)
        world = run.batch_size ? MAX(run.global_batch / run.batch_size, 1ull) : 1;
    const uint64_t batch = run.global_batch / world;
    if (batch == 0 || rank >= world)
        return cli_error(cli, CLI_USAGE,
                         "rank %" PRIu64 ": step %" PRIu64 " was of %" PRIu64 " samples on %" PRIu64 " ranks",
                         rank, number, count, world);
    uint64_t first = all ? 0 : MIN(rank * batch, count), end = all ? count : MIN(first + batch, count);
    rc = open_sets(cli, r, uris);
    return rc ? rc : print_samples(cli, r, run.position + first, run.position + end);
}

int cmd_replay(struct cli *cli)
{
    const char *path = NULL;
    uint64_t step = UINT64_MAX, rank = UINT64_MAX, world = UINT64_MAX, epoch = UINT64_MAX;
    bool good = true;
    for (const struct cli_given *o = cli->given; o->id; o++) {
        if (o->id == 330)
            path = o->arg;
        else
            good = good && parse_u64(o->arg, o->id == 331   ? &step
                                             : o->id == 332 ? &rank
                                             : o->id == 333 ? &world
                                                            : &epoch);
    }
    if (!good || world == 0)
        return cli_usage_error(cli, "steps, ranks and epochs are whole numbers");
    if (!path || step == UINT64_MAX)
        return cli_usage_error(cli, "give --state and --step");
    json_error_t why;
    AUTO_JSON json_t *state = strcmp(path, "-") == 0 ? json_loadf(stdin, JSON_REJECT_DUPLICATES, &why)
                                                     : json_load_file(path, JSON_REJECT_DUPLICATES, &why);
    if (!state && why.line < 0)
        return cli_error(cli, errno == ENOENT ? CLI_NOT_FOUND : CLI_FAILURE, "%s: %s", path, strerror(errno));
    if (!state)
        return cli_error(cli, CLI_FAILURE,
                         "%s, line %d: %s: this is not what json.dump(loader.state_dict(), file) writes",
                         path, why.line, why.text);
    struct replay r = {0};
    int rc = read_state(cli, state, &r);
    if (epoch != UINT64_MAX)
        r.plan.epoch = epoch;
    bool all = rank == UINT64_MAX;
    size_t wanted = MAX(r.plan.nparts, 1ul);
    r.nsets = (size_t)cli->noperands;
    if (!rc && r.nsets && r.nsets != wanted)
        rc = cli_usage_error(cli, "give no set, or %zu, as many as the state is of", wanted);
    if (!rc)
        rc = replay_step(cli, &r, step, all ? 0 : rank, world == UINT64_MAX ? 0 : world, all, cli->operands);
    replay_free(&r);
    return rc;
}
