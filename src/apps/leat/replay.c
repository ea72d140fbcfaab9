/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay.c: which samples stood in a past batch, out of the state of a leat.Loader (python/leat/_loader/loader.py, docs/decisions/0062).
 *
 * Happy path: state ──▶ order (seed, epoch, length, fingerprint, shuffle) ──▶ the step's positions, less skip_ranges ──▶ samples.
 * A restart may change the size of a step: "runs" of the state says from which position on (python/leat/_loader/state.py has the same in Python).
 * Of a mixture the sample's set comes first, then its place in that set's own order: python/leat/_loader/mixture.py tells how.
 * Failure modes: a state that is not one, of a newer version, or of a sampler (only the sampler knows) is refused by name.
 */
#include "apps/leat/cli.h"

#include <inttypes.h>

#define STATE_VERSION   2
#define PARTS_MAX       256
#define MIXTURE_PLACES  (UINT64_C(1) << 38) /* times a weight: below 2^63 */
#define WEIGHTS_MAX     (UINT64_C(1) << 25) /* all of a mixture */
#define MIXTURE_SEED_BY UINT64_C(0x9E3779B97F4A7C15)

/* From (epoch, position) on a step has global_batch samples, batch of each rank (0: not known). */
struct run {
    uint64_t epoch, position, global_batch, batch;
};

/* A step: samples [first, end), in batches of `batch` for each of `world` ranks. */
struct step {
    uint64_t first, end, batch, world;
};

/* One set of a mixture. */
struct part {
    uint64_t weight, length;
    const char *fingerprint;
    struct leat_order order; /* of its own epoch `epoch`; UINT64_MAX: none yet */
    uint64_t epoch;
    struct leat_ws *ws; /* for keys; NULL: not given */
};

struct replay {
    uint64_t seed, epoch, length, global_batch, block;
    const char *fingerprint;
    uint64_t nskips, *skips; /* first, end; sorted, disjoint */
    uint64_t left;           /* samples of the epoch without those left out */
    size_t nruns;
    struct run *runs;
    size_t nparts; /* 0: no mixture */
    struct part *parts;
};

static bool parse_u64(const char *text, uint64_t *ret)
{
    char *end;
    errno = 0;
    *ret = strtoull(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end && !errno;
}

static bool get_u64(const json_t *state, const char *name, uint64_t *ret)
{
    const json_t *v = json_object_get(state, name);
    if (!json_is_integer(v) || json_integer_value(v) < 0)
        return false;
    *ret = (uint64_t)json_integer_value(v);
    return true;
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

static bool get_skips(const json_t *state, struct replay *r)
{
    const json_t *list = json_object_get(state, "skip_ranges");
    size_t n = json_array_size(list);
    uint64_t before = 0;
    r->left = r->length;
    r->skips = calloc(2 * n + 1, sizeof(*r->skips));
    if (!r->skips || !json_is_array(list))
        return false;
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_array_get(list, i);
        json_int_t first = json_integer_value(json_array_get(one, 0)),
                   end = json_integer_value(json_array_get(one, 1));
        if (first < 0 || end <= first || (uint64_t)first < before)
            return false;
        before = (uint64_t)end;
        if ((uint64_t)first >= r->length)
            continue;
        r->skips[2 * r->nskips] = (uint64_t)first;
        r->skips[2 * r->nskips++ + 1] = MIN((uint64_t)end, r->length);
        r->left -= MIN((uint64_t)end, r->length) - (uint64_t)first;
    }
    return true;
}

static bool get_run(const json_t *one, struct run *ret_run)
{
    uint64_t *fields[4] = {&ret_run->epoch, &ret_run->position, &ret_run->global_batch, &ret_run->batch};
    for (size_t k = 0; k < 4; k++) {
        const json_t *v = json_array_get(one, k);
        if (!json_is_integer(v) || json_integer_value(v) < 0)
            return false;
        *fields[k] = (uint64_t)json_integer_value(v);
    }
    return ret_run->global_batch > 0 && json_array_size(one) == 4;
}

/* Version 1 has no runs: all of it was of one size. */
static bool get_runs(const json_t *state, uint64_t version, struct replay *r)
{
    const json_t *list = json_object_get(state, "runs");
    size_t n = version > 1 ? json_array_size(list) : 0;
    r->runs = calloc(n + 1, sizeof(*r->runs));
    if (!r->runs || (version > 1 && !json_is_array(list)))
        return false;
    for (size_t i = 0; i < n; i++) {
        struct run *run = &r->runs[i];
        if (!get_run(json_array_get(list, i), run))
            return false;
        if (i && (run->epoch < run[-1].epoch ||
                  (run->epoch == run[-1].epoch && run->position <= run[-1].position)))
            return false;
    }
    r->nruns = n;
    if (n == 0)
        r->runs[r->nruns++] = (struct run){.global_batch = r->global_batch};
    return true;
}

/* Steps count from the start of the epoch, through all runs in it. False: it has *ret_steps steps, no more. */
static bool find_step(const struct replay *r, uint64_t number, struct step *ret_step, uint64_t *ret_steps)
{
    size_t at = 0;
    while (at + 1 < r->nruns && (r->runs[at + 1].epoch < r->epoch ||
                                 (r->runs[at + 1].epoch == r->epoch && r->runs[at + 1].position == 0)))
        at++; /* the one that the epoch began in */
    for (uint64_t first = 0, done = 0;; at++) {
        const struct run *run = &r->runs[at];
        bool last = at + 1 == r->nruns || r->runs[at + 1].epoch != r->epoch;
        uint64_t end = last ? r->left : MIN(r->runs[at + 1].position, r->left);
        uint64_t steps = end > first ? (end - first - 1) / run->global_batch + 1 : 0;
        if (number - done < steps) {
            ret_step->first = first + (number - done) * run->global_batch;
            ret_step->end = ret_step->first + MIN(run->global_batch, end - ret_step->first);
            ret_step->batch = run->batch ? run->batch : run->global_batch;
            ret_step->world = run->global_batch / ret_step->batch;
            return true;
        }
        done += steps;
        first = end;
        if (last) {
            *ret_steps = done;
            return false;
        }
    }
}

/* The place in the order of the position-th sample that was not left out. */
static uint64_t place_of(const struct replay *r, uint64_t position)
{
    for (uint64_t i = 0; i < r->nskips && position >= r->skips[2 * i]; i++)
        position += r->skips[2 * i + 1] - r->skips[2 * i];
    return position;
}

static bool get_parts(const json_t *state, struct replay *r)
{
    const json_t *mixture = json_object_get(state, "mixture");
    const json_t *weights = json_object_get(mixture, "weights"),
                 *lengths = json_object_get(mixture, "lengths"),
                 *fingerprints = json_object_get(mixture, "fingerprints");
    if (json_is_null(mixture))
        return true;
    size_t n = json_array_size(weights);
    uint64_t sum = 0;
    if (n < 1 || n > PARTS_MAX || json_array_size(lengths) != n || json_array_size(fingerprints) != n ||
        r->length >= MIXTURE_PLACES)
        return false;
    r->parts = calloc(n, sizeof(*r->parts));
    if (!r->parts)
        return false;
    for (size_t k = 0; k < n; k++) {
        struct part *part = &r->parts[k];
        json_int_t weight = json_integer_value(json_array_get(weights, k));
        json_int_t length = json_integer_value(json_array_get(lengths, k));
        part->fingerprint = json_string_value(json_array_get(fingerprints, k));
        part->epoch = UINT64_MAX;
        if (weight < 1 || (uint64_t)weight >= WEIGHTS_MAX || length < 1 || !part->fingerprint)
            return false;
        part->weight = (uint64_t)weight;
        part->length = (uint64_t)length;
        sum += part->weight;
    }
    r->nparts = n;
    return sum < WEIGHTS_MAX;
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
    r->fingerprint = json_string_value(json_object_get(state, "fingerprint"));
    if (!get_u64(state, "seed", &r->seed) || !get_u64(state, "epoch", &r->epoch) ||
        !get_u64(state, "length", &r->length) || !get_u64(state, "global_batch", &r->global_batch) ||
        !get_shuffle(state, &r->block) || !get_skips(state, r) || !r->fingerprint || !r->global_batch ||
        !get_runs(state, version, r) || !get_parts(state, r))
        return cli_error(cli, CLI_USAGE, "this state is damaged");
    return 0;
}

/* The set that the sample at a place of the stream is of, and its number there. 0, or a code with err set. */
static int find_in_parts(const struct replay *r, uint64_t place, size_t *ret_part, uint64_t *ret_index,
                         struct leat_error *err)
{
    uint64_t left = 0;
    for (size_t k = 0; k < r->nparts; k++)
        left += r->parts[k].weight;
    for (size_t k = 0;; k++) {
        struct part *part = &r->parts[k];
        uint64_t before = (place * part->weight + left / 2) / left;
        if (((place + 1) * part->weight + left / 2) / left > before) {
            uint64_t epoch = before / part->length;
            int rc = 0;
            if (part->epoch != epoch)
                rc = leat_order_init(&part->order, part->length, r->seed + k * MIXTURE_SEED_BY, epoch,
                                     r->block, part->fingerprint, err);
            if (rc < 0)
                return rc;
            part->epoch = epoch;
            *ret_part = k;
            *ret_index = leat_order_at(&part->order, before % part->length);
            return 0;
        }
        place -= before; /* of the last one it is, as its weight is all that is left */
        left -= part->weight;
    }
}

static int print_samples(struct cli *cli, const struct leat_order *order, const struct replay *r,
                         const struct leat_ws *ws, uint64_t first, uint64_t end)
{
    struct cli_json j = {.out = stdout, .first = true};
    if (cli->json)
        json_open(&j, NULL, '[');
    for (uint64_t p = first; p < end; p++) {
        char buf[LEAT_KEY_BUF];
        size_t len = 0;
        uint64_t index = 0;
        size_t part = 0;
        if (r->nparts) {
            int rc = find_in_parts(r, r->epoch * r->length + place_of(r, p), &part, &index, &cli->err);
            if (rc < 0)
                return cli_fail(cli, rc);
            ws = r->parts[part].ws;
        } else {
            index = leat_order_at(order, place_of(r, p));
        }
        const char *key = ws ? leat_ws_key(ws, index, buf, sizeof(buf), &len) : NULL;
        if (cli->json) {
            json_open(&j, NULL, '{');
            json_u64(&j, "position", p);
            if (r->nparts)
                json_u64(&j, "source", part);
            json_u64(&j, "index", index);
            if (key)
                json_str(&j, "key", key, len);
            json_close(&j, '}');
            continue;
        }
        printf("%" PRIu64 "\t", p);
        if (r->nparts)
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
static int open_parts(struct cli *cli, const struct replay *r, char **sets, struct leat_client **clients)
{
    for (size_t k = 0; k < r->nparts; k++) {
        int rc = cli_open_set(cli, sets[k], &clients[k], &r->parts[k].ws);
        if (rc < 0)
            return cli_fail(cli, rc);
        if (strcmp(leat_ws_fingerprint(r->parts[k].ws), r->parts[k].fingerprint) != 0)
            return cli_error(cli, CLI_STALE, "%s is another dataset than set %zu of the state", sets[k], k);
    }
    return 0;
}

static int replay_mixture(struct cli *cli, const struct replay *r, uint64_t first, uint64_t end, char **sets)
{
    struct leat_client **clients = calloc(r->nparts, sizeof(*clients));
    if (!clients)
        return cli_fail(cli, -ENOMEM);
    int rc;
    if (r->epoch >= MIXTURE_PLACES / r->length)
        rc = cli_error(cli, CLI_USAGE, "epoch %" PRIu64 " is beyond the end of a mixture", r->epoch);
    else
        rc = sets ? open_parts(cli, r, sets, clients) : 0;
    if (!rc)
        rc = print_samples(cli, NULL, r, NULL, first, end);
    for (size_t k = 0; k < r->nparts; k++) {
        leat_close(r->parts[k].ws);
        leat_disconnect(clients[k]);
    }
    free(clients);
    return rc;
}

/* world: 0 takes what the state knows. */
static int replay_step(struct cli *cli, const struct replay *r, uint64_t number, uint64_t rank,
                       uint64_t world, bool all, char **sets)
{
    const char *set = sets ? sets[0] : NULL;
    struct leat_client *client = NULL;
    struct leat_ws *ws = NULL;
    struct leat_order order;
    struct step step;
    uint64_t steps;
    if (!find_step(r, number, &step, &steps))
        return cli_error(cli, CLI_USAGE, "step %" PRIu64 ": the epoch has %" PRIu64 " steps", number, steps);
    if (world) {
        step.batch = step.batch * step.world / world;
        step.world = world;
    }
    if (rank >= step.world || step.batch == 0)
        return cli_error(cli, CLI_USAGE,
                         "rank %" PRIu64 ": step %" PRIu64 " was of %" PRIu64 " samples on %" PRIu64 " ranks",
                         rank, number, step.end - step.first, step.world);
    uint64_t first = step.first + MIN(all ? 0 : rank * step.batch, step.end - step.first);
    uint64_t end = all ? step.end : MIN(first + step.batch, step.end);
    if (r->nparts)
        return replay_mixture(cli, r, first, end, sets);
    int rc = leat_order_init(&order, r->length, r->seed, r->epoch, r->block, r->fingerprint, &cli->err);
    if (!rc && set)
        rc = cli_open_set(cli, set, &client, &ws);
    if (rc < 0) {
        rc = cli_fail(cli, rc);
    } else if (ws && strcmp(leat_ws_fingerprint(ws), r->fingerprint) != 0) {
        rc = cli_error(cli, CLI_STALE, "%s is another dataset than that of the state", set);
    } else {
        rc = print_samples(cli, &order, r, ws, first, end);
    }
    leat_close(ws);
    leat_disconnect(client);
    return rc;
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
        r.epoch = epoch;
    bool all = rank == UINT64_MAX;
    size_t wanted = MAX(r.nparts, (size_t)1);
    if (!rc && cli->noperands && (size_t)cli->noperands != wanted)
        rc = cli_usage_error(cli, "give no set, or %zu, as many as the state is of", wanted);
    if (!rc)
        rc = replay_step(cli, &r, step, all ? 0 : rank, world == UINT64_MAX ? 0 : world, all,
                         cli->noperands ? cli->operands : NULL);
    free(r.skips);
    free(r.runs);
    free(r.parts);
    return rc;
}
