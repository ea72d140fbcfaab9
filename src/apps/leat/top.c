/* SPDX-License-Identifier: Apache-2.0 */
/*
 * top.c: the pool, its sets, and the jobs that read them, as they go.
 *
 *   status ──▶ rates against the look before ──▶ picture ──▶ terminal: over the last one; else: one after the other; --json: a document a line
 *
 * Failure modes: the daemon ends: its error and exit code, under the last picture. Ctrl-C, a closed pipe: the end.
 * Invariants: top_draw.c's.
 */
#include "apps/leat/top.h"

#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>

#include "base/clock.h"

#define WIDTH_PLAIN 132u /* where there is no terminal to ask */
#define WIDTH_MOST  400u

static unsigned terminal_width(void)
{
    struct winsize size;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) < 0 || size.ws_col == 0)
        return WIDTH_PLAIN;
    return MIN((unsigned)size.ws_col, WIDTH_MOST);
}

static int look(struct cli *cli, struct leat_client *client, json_t **ret_status)
{
    char *text;
    int rc = leat_query(client, LEAT_QUERY_STATUS, NULL, &text, &cli->err);
    if (rc < 0)
        return rc;
    *ret_status = json_loads(text, 0, NULL);
    leat_free(text);
    return json_is_object(*ret_status)
               ? 0
               : error_set(&cli->err, LEAT_CORRUPT, "the daemon's answer is not JSON: another version?");
}

static void show(const struct cli *cli, const json_t *status, bool terminal, bool first)
{
    if (cli->json) {
        json_dumpf(status, stdout, JSON_COMPACT | JSON_REAL_PRECISION(12));
        putchar('\n');
    } else if (!terminal) {
        if (!first)
            putchar('\n');
        top_draw(stdout, status, WIDTH_PLAIN);
    } else {
        AUTO_FREE char *text = NULL;
        size_t bytes = 0;
        FILE *lines = open_memstream(&text, &bytes);
        if (!lines)
            return;
        top_draw(lines, status, terminal_width());
        if (fclose(lines) != 0 || !text)
            return;
        fputs(first ? "\033[2J\033[H" : "\033[H", stdout); /* what is drawn over does not flicker */
        for (const char *c = text; *c; c++) {
            if (*c == '\n')
                fputs("\033[K", stdout);
            putchar(*c);
        }
        fputs("\033[J", stdout);
    }
    fflush(stdout);
}

static atomic_bool ended;

static void on_end(int sig)
{
    atomic_store(&ended, true);
}

/* Until Ctrl-C: 0; or why not. */
static int watch(struct cli *cli, struct leat_client *client, uint64_t every_ns, bool once)
{
    const char *term = getenv("TERM");
    bool terminal = isatty(STDOUT_FILENO) && !once && term && strcmp(term, "dumb") != 0;
    AUTO_JSON json_t *before = NULL;
    uint64_t before_ns = 0;
    for (bool first = true;; first = false) {
        json_t *now;
        int rc = look(cli, client, &now);
        if (rc < 0)
            return rc;
        uint64_t now_ns = clock_now_ns();
        json_object_set_new(now, "rates",
                            top_rates(before, now, (double)(now_ns - before_ns) / (double)NS_PER_S));
        show(cli, now, terminal, first);
        json_decref(before);
        before = now;
        before_ns = now_ns;
        if (once || ferror(stdout))
            return 0;
        poll(NULL, 0, (int)(MIN(every_ns, 24 * 3600 * NS_PER_S) / NS_PER_MS));
        if (atomic_load(&ended))
            return 0;
    }
}

int cmd_top(struct cli *cli)
{
    uint64_t every_ns = 2 * NS_PER_S;
    bool once = false;
    for (const struct cli_given *o = cli->given; o->id; o++) {
        if (o->id == 381)
            once = true;
        else if (cli_parse_seconds(o->arg, &every_ns) < 0 || every_ns < NS_PER_S / 10)
            return cli_usage_error(cli, "--interval %s: give seconds, 0.1 or more", o->arg);
    }
    AUTO_CLIENT struct leat_client *client = NULL;
    int rc = cli_connect(cli, LEAT_CONNECT_NO_START, &client);
    struct sigaction action = {.sa_handler = on_end,
                               .sa_flags = SA_RESETHAND}; /* no restart: it wakes us up */
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    if (rc == 0)
        rc = watch(cli, client, every_ns, once);
    return rc < 0 ? cli_fail(cli, rc) : CLI_OK;
}
