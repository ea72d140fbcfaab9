/* SPDX-License-Identifier: Apache-2.0 */
/*
 * progress.c: how far something is. A bar stands on stderr when that is a terminal; --progress=json writes
 * one JSON object a line on stdout instead. The rate is that of the last few seconds, and the time left
 * follows from it.
 * Ctrl-C asks the library to cancel; a second one ends the program at once.
 */
#include "apps/leat/remote.h"

#include <math.h>
#include <signal.h>
#include <sys/ioctl.h>

#include "base/clock.h"

#define REDRAW_NS (100 * NS_PER_MS)
#define MARK_NS   (150 * NS_PER_MS) /* 32 marks: the last five seconds */

static atomic_bool interrupted;

static void on_interrupt(int sig)
{
    atomic_store(&interrupted, true);
}

void progress_begin(struct progress *p, const struct cli *cli)
{
    *p = (struct progress){.cli = cli, .start_ns = clock_now_ns()};
    const char *term = getenv("TERM");
    bool terminal = isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0;
    p->json = cli->progress == CLI_PROGRESS_JSON;
    p->bar =
        cli->progress == CLI_PROGRESS_BAR || (cli->progress == CLI_PROGRESS_AUTO && terminal && !cli->quiet);
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = SA_RESETHAND | SA_RESTART};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

const atomic_bool *progress_interrupted(void)
{
    return &interrupted;
}

double progress_seconds(const struct progress *p)
{
    return (double)(clock_now_ns() - p->start_ns) / 1e9;
}

static const char *stage_name(int stage)
{
    switch (stage) {
    case LEAT_STAGE_INDEX:
        return "indexing";
    case LEAT_STAGE_LOAD:
        return "loading";
    case LEAT_STAGE_VERIFY:
        return "verifying";
    case CLI_STAGE_CONVERT:
        return "converting";
    case CLI_STAGE_COPY:
        return "copying";
    default:
        return "working";
    }
}

/* Share done by bytes where they are known, else by samples; negative when neither total is. */
static double share_of(const struct leat_progress *r)
{
    if (r->bytes_total)
        return MIN((double)r->bytes_done / (double)r->bytes_total, 1.0);
    if (r->samples_total)
        return MIN((double)r->samples_done / (double)r->samples_total, 1.0);
    return -1;
}

static double seconds_left(const struct leat_progress *r, double rate)
{
    uint64_t total = r->bytes_total ? r->bytes_total : r->samples_total;
    uint64_t done = r->bytes_total ? r->bytes_done : r->samples_done;
    if (total == 0 || rate <= 0)
        return INFINITY;
    return done >= total ? 0 : (double)(total - done) / rate;
}

void progress_line(const struct leat_progress *r, double rate, unsigned width, char *out, size_t cap)
{
    char done[SIZE_TEXT_MAX], total[SIZE_TEXT_MAX], per_s[SIZE_TEXT_MAX], left[SIZE_TEXT_MAX], count[32],
        middle[120];
    double share = share_of(r);
    bool bytes = r->bytes_total || r->bytes_done;
    const char *things = r->stage == CLI_STAGE_COPY ? "files" : "samples";
    if (bytes && r->bytes_total)
        snprintf(middle, sizeof(middle), "%s of %s  %s/s", size_format(r->bytes_done, done),
                 size_format(r->bytes_total, total), size_format(rate > 0 ? (uint64_t)rate : 0, per_s));
    else if (bytes)
        snprintf(middle, sizeof(middle), "%s %s  %s  %s/s", cli_count(r->samples_done, count), things,
                 size_format(r->bytes_done, done), size_format(rate > 0 ? (uint64_t)rate : 0, per_s));
    else
        snprintf(middle, sizeof(middle), "%s %s  %.0f/s", cli_count(r->samples_done, count), things,
                 rate > 0 ? rate : 0);

    char bar[64] = "";
    if (share >= 0 && width >= 100)
        cli_bar(bar, sizeof(bar), 30, share);
    else if (share >= 0 && width >= 80)
        cli_bar(bar, sizeof(bar), 12, share);
    char text[320];
    if (share < 0)
        snprintf(text, sizeof(text), "%-9s %s", stage_name((int)r->stage), middle);
    else
        snprintf(text, sizeof(text), "%-9s %3.0f%% %s%s%s  %s left", stage_name((int)r->stage),
                 floor(share * 100), bar, bar[0] ? " " : "", middle,
                 cli_duration(seconds_left(r, rate), left));
    snprintf(out, MIN(cap, (size_t)width + 1), "%s", text);
}

/* Bytes (or samples, where no bytes come) a second over the marks at hand. */
static double rate_of(struct progress *p, const struct leat_progress *r, uint64_t now)
{
    unsigned newest = (p->next + ARRAY_LEN(p->marks) - 1) % ARRAY_LEN(p->marks);
    if (p->nmarks == 0 || now - p->marks[newest].ns >= MARK_NS) {
        p->marks[p->next] = (struct progress_mark){now, r->bytes_done, r->samples_done};
        p->next = (p->next + 1) % ARRAY_LEN(p->marks);
        p->nmarks = MIN(p->nmarks + 1, (unsigned)ARRAY_LEN(p->marks));
    }
    unsigned oldest = p->nmarks < ARRAY_LEN(p->marks) ? 0 : p->next;
    const struct progress_mark *m = &p->marks[oldest];
    if (now <= m->ns)
        return 0;
    uint64_t was = r->bytes_done ? m->bytes : m->samples,
             is = r->bytes_done ? r->bytes_done : r->samples_done;
    return is <= was ? 0 : (double)(is - was) * 1e9 / (double)(now - m->ns);
}

static unsigned terminal_width(void)
{
    struct winsize size;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 20)
        return MIN((unsigned)size.ws_col, 200u) - 1;
    return 79;
}

int progress_report(const struct leat_progress *report, void *user)
{
    struct progress *p = user;
    if (atomic_load(&interrupted))
        return -ECANCELED;
    if (!p->bar && !p->json)
        return 0;
    uint64_t now = clock_now_ns();
    if ((int)report->stage != p->stage) { /* another count begins */
        p->stage = (int)report->stage;
        p->nmarks = p->next = 0;
        /* A scan begins with nothing; what is loaded or verified may have been under way before we looked. */
        if (report->stage == LEAT_STAGE_INDEX) {
            p->marks[0] = (struct progress_mark){p->start_ns, 0, 0};
            p->nmarks = p->next = 1;
        }
        p->shown_ns = 0;
    }
    bool complete = share_of(report) >= 1;
    if (p->shown_ns && now - p->shown_ns < REDRAW_NS && !complete)
        return 0;
    double rate = rate_of(p, report, now);
    p->shown_ns = now;
    if (p->json) {
        struct cli_json j;
        json_begin(&j, stdout, true);
        json_text(&j, "event", "progress");
        json_text(&j, "stage", stage_name(p->stage));
        json_u64(&j, "samples_done", report->samples_done);
        json_u64(&j, "samples_total", report->samples_total);
        json_u64(&j, "bytes_done", report->bytes_done);
        json_u64(&j, "bytes_total", report->bytes_total);
        json_double(&j, report->bytes_done ? "bytes_per_s" : "samples_per_s", rate);
        json_double(&j, "seconds_left", seconds_left(report, rate));
        json_close(&j, '}');
        fflush(stdout);
    }
    if (p->bar) {
        char line[256];
        progress_line(report, rate, terminal_width(), line, sizeof(line));
        fprintf(stderr, "\r%s\033[K", line);
        fflush(stderr);
        p->drawn = true;
    }
    return 0;
}

int progress_scan(void *user, uint64_t samples, uint64_t bytes)
{
    struct leat_progress report = {
        .size = sizeof(report), .stage = LEAT_STAGE_INDEX, .samples_done = samples, .bytes_done = bytes};
    return progress_report(&report, user);
}

void progress_end(struct progress *p)
{
    if (p->drawn)
        fputs("\r\033[K", stderr);
    p->drawn = false;
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
}
