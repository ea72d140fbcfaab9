/* SPDX-License-Identifier: Apache-2.0 */
/* usage.c: getopt's tables made of ours, help screens, and one line for what was mistyped. */
#include "apps/leat/cli.h"

#include <getopt.h>
#include <stdarg.h>

#define OPTIONS_MAX 48

const struct cli_option cli_global_options[] = {
    {256, "socket", "PATH", "talk to the daemon at this unix socket"},
    {257, "job", "NAME", "the daemon of this job (default: LEAT_JOB, torchrun's or Slurm's, else the login)"},
    {258, "json", NULL, "print one JSON document instead of text"},
    {259, "progress", "HOW", "auto, bar, json (a JSON line for each step on stdout) or none"},
    {260, "timeout", "SECONDS", "fail after this time; 10m, 2h and none are allowed"},
    {'q', "quiet", NULL, "print errors only"},
    {'h', "help", NULL, "show this help"},
    {0},
};

/* The short string and the long table getopt wants. "+" stops at the first operand; ":" reports a missing
 * argument. */
struct tables {
    char letters[3 + 2 * OPTIONS_MAX];
    struct option longs[OPTIONS_MAX + 1];
    const char *names[OPTIONS_MAX];
    size_t n;
};

static void tables_add(struct tables *t, const struct cli_option *o)
{
    for (; o && o->id && t->n < OPTIONS_MAX; o++) {
        t->longs[t->n] = (struct option){o->name, o->arg ? required_argument : no_argument, NULL, o->id};
        t->names[t->n++] = o->name;
        if (o->id < 256) {
            size_t at = strlen(t->letters);
            t->letters[at] = (char)o->id;
            t->letters[at + 1] = o->arg ? ':' : '\0';
        }
    }
}

static void tables_make(struct tables *t, const struct cli_command *command)
{
    *t = (struct tables){0};
    strcpy(t->letters, command ? ":" : "+:");
    if (command)
        tables_add(t, command->options);
    tables_add(t, cli_global_options);
}

static unsigned min3(unsigned a, unsigned b, unsigned c)
{
    unsigned least = MIN(a, b);
    return MIN(least, c);
}

/* Edits (insert, delete, replace, swap of neighbours) from a to b; both at most 63 long, else far. */
static unsigned edit_distance(const char *a, const char *b)
{
    size_t na = strlen(a), nb = strlen(b);
    if (na > 63 || nb > 63)
        return UINT32_MAX;
    unsigned rows[3][64];
    for (size_t j = 0; j <= nb; j++)
        rows[0][j] = (unsigned)j;
    for (size_t i = 1; i <= na; i++) {
        unsigned *now = rows[i % 3], *up = rows[(i + 2) % 3], *up2 = rows[(i + 1) % 3];
        now[0] = (unsigned)i;
        for (size_t j = 1; j <= nb; j++) {
            now[j] = min3(up[j] + 1, now[j - 1] + 1, up[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                now[j] = MIN(now[j], up2[j - 2] + 1);
        }
    }
    return rows[na % 3][nb];
}

const char *cli_nearest(const char *text, const char *const *names, size_t n)
{
    const char *best = NULL;
    unsigned best_distance = UINT32_MAX;
    for (size_t i = 0; i < n; i++) {
        unsigned d = edit_distance(text, names[i]);
        /* A beginning of three letters or more is a name half typed. */
        if (strlen(text) >= 3 && strncmp(text, names[i], strlen(text)) == 0)
            d = 0;
        if (d < best_distance) {
            best_distance = d;
            best = names[i];
        }
    }
    return best && best_distance <= MAX(strlen(best) / 3, (size_t)1) ? best : NULL;
}

int cli_usage_error(const struct cli *cli, const char *fmt, ...)
{
    char text[400];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    if (cli->command)
        fprintf(stderr, "leat %s: %s; see `leat %s --help`\n", cli->command->name, text, cli->command->name);
    else
        fprintf(stderr, "leat: %s; see `leat --help`\n", text);
    return CLI_USAGE;
}

static void unknown_option(const struct cli *cli, const struct tables *t, const char *word)
{
    if (optopt && optopt < 256 && (word[0] != '-' || word[1] != '-')) {
        cli_usage_error(cli, "unknown option -%c", optopt);
        return;
    }
    char name[64];
    snprintf(name, sizeof(name), "%s", word + 2);
    name[strcspn(name, "=")] = '\0';
    if (optopt) { /* known, but it takes no argument */
        cli_usage_error(cli, "option --%s takes no argument", name);
        return;
    }
    size_t fits = 0;
    for (size_t i = 0; i < t->n; i++)
        fits += strncmp(t->names[i], name, strlen(name)) == 0;
    const char *near = cli_nearest(name, t->names, t->n);
    if (fits > 1)
        cli_usage_error(cli, "option --%s is ambiguous", name);
    else if (near)
        cli_usage_error(cli, "unknown option --%s (did you mean --%s?)", name, near);
    else
        cli_usage_error(cli, "unknown option --%s", name);
}

/* A global option's value into cli. 0, or -1 (said). */
static int take_global(struct cli *cli, int id, const char *arg)
{
    static const char *const ways[] = {"auto", "bar", "json", "none"};
    switch (id) {
    case 256:
        cli->socket = arg;
        return 0;
    case 257:
        cli->job = arg;
        return 0;
    case 258:
        cli->json = true;
        return 0;
    case 259:
        for (size_t i = 0; i < ARRAY_LEN(ways); i++) {
            if (strcmp(arg, ways[i]) == 0) {
                cli->progress = (enum cli_progress)i;
                return 0;
            }
        }
        cli_usage_error(cli, "--progress %s: it is one of auto, bar, json, none", arg);
        return -1;
    case 260:
        if (cli_parse_seconds(arg, &cli->timeout_ns) == 0)
            return 0;
        cli_usage_error(cli, "--timeout %s: give seconds above 0, as 30, 2.5, 10m, 2h or none", arg);
        return -1;
    default:
        cli->quiet = true;
        return 0;
    }
}

static bool is_global(int id)
{
    for (const struct cli_option *o = cli_global_options; o->id; o++) {
        if (o->id == id)
            return true;
    }
    return false;
}

static int next_option(struct cli *cli, const struct tables *t, int argc, char **argv, const char **ret_arg)
{
    for (;;) {
        opterr = 0;
        optopt = 0;
        int before = optind ? optind : 1;
        int id = getopt_long(argc, argv, t->letters, t->longs, NULL);
        if (id == -1)
            return 0;
        if (id == '?') {
            /* getopt moved past the word, unless it is inside a cluster of letters. */
            const char *word = argv[optind > before ? optind - 1 : before];
            unknown_option(cli, t, word);
            return -1;
        }
        if (id == ':') {
            const char *word = argv[optind - 1];
            cli_usage_error(cli, "option %s needs an argument", word);
            return -1;
        }
        if (id == 'h') {
            cli_help(stdout, cli->command);
            return -2;
        }
        if (!is_global(id)) {
            *ret_arg = optarg;
            return id;
        }
        if (take_global(cli, id, optarg) < 0)
            return -1;
    }
}

static int check_operands(const struct cli *cli)
{
    const struct cli_command *c = cli->command;
    if (cli->noperands < c->least)
        return cli_usage_error(cli, "%s", c->wants);
    if (cli->noperands > c->most)
        return cli_usage_error(cli, "%s: %s", cli->operands[c->most],
                               c->most ? c->wants : "no argument is expected");
    return 0;
}

int cli_parse(struct cli *cli, int argc, char **argv)
{
    struct tables t;
    const char *arg = NULL;
    size_t n = 0, most = 1;
    int id;
    tables_make(&t, cli->command);
    for (int i = 0; i < argc; i++)
        most += strlen(argv[i]); /* letters may stand together */
    cli->given = calloc(most, sizeof(*cli->given));
    if (!cli->given) {
        cli_error(cli, CLI_FAILURE, "out of memory");
        return -1;
    }
    optind = 0; /* GNU: from the start, and permute */
    while ((id = next_option(cli, &t, argc, argv, &arg)) > 0)
        cli->given[n++] = (struct cli_given){id, arg};
    cli->operands = argv + optind;
    cli->noperands = argc - optind;
    /* --progress=json is JSON throughout: the result is its last line. */
    if (cli->progress == CLI_PROGRESS_JSON)
        cli->json = true;
    return id < 0 ? id : cli->command && check_operands(cli) ? -1 : 0;
}

static void print_options(FILE *out, const struct cli_option *o)
{
    for (; o && o->id; o++) {
        char left[64];
        snprintf(left, sizeof(left), "%c%c%s --%s%s%s", o->id < 256 ? '-' : ' ', o->id < 256 ? o->id : ' ',
                 o->id < 256 ? "," : " ", o->name, o->arg ? "=" : "", o->arg ? o->arg : "");
        fprintf(out, "  %-26s %s\n", left, o->help);
    }
}

void cli_help(FILE *out, const struct cli_command *command)
{
    if (!command) {
        fprintf(out, "leat: datasets in a memory pool, read in batches at memory speed\n\n"
                     "usage: leat COMMAND [OPTION ...] [ARGUMENT ...]\n"
                     "       leat --version\n\ncommands:\n");
        for (const struct cli_command *c = cli_commands; c->name; c++)
            fprintf(out, "  %-9s %s\n", c->name, c->summary);
        fprintf(out, "\noptions of all commands:\n");
        print_options(out, cli_global_options);
        fprintf(out, "\n`leat help COMMAND` shows one of them; leat(1) has the exit codes.\n");
        return;
    }
    fprintf(out, "leat %s: %s\n\nusage: leat %s %s\n", command->name, command->summary, command->name,
            command->usage);
    if (command->about)
        fprintf(out, "\n%s\n", command->about);
    if (command->options && command->options->id) {
        fprintf(out, "\noptions:\n");
        print_options(out, command->options);
    }
    fprintf(out, "\noptions of all commands:\n");
    print_options(out, cli_global_options);
    fprintf(out, "\nexamples:\n");
    for (const char *e = command->examples, *end; *e; e = end + (*end == '\n')) {
        end = strchrnul(e, '\n');
        fprintf(out, "  %.*s\n", (int)(end - e), e);
    }
}
