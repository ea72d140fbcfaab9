/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cli.h: what the commands of `leat` share. A command is a row of a table: its options are rows too, and getopt's
 * tables, the help screens and the check against the man pages all come from there, so that they cannot disagree.
 *
 *   main.c    the table, dispatch, connecting          transfer.c  preload, append, index, verify
 *   usage.c   help screens, nearest names, getopt      look.c      ls, stat, cat
 *   output.c  sizes, JSON, errors                      daemon.c    status, stop, drop
 *   progress.c  bars and progress lines                doctor.c    the host; doctor_*.c its checks
 *   convert.c   folders, shards, arrays; convert_*.c   topo.c      NICs and GPUs; topo_record.c keeps where that is said
 *   cp.c        files and objects of S3; cp_*.c, remote.h   top.c       top: the daemon as it goes
 *   serve.c     the object store                       bucket.c    buckets of it, in front of others
 *   scrub.c     whether what it has is still what was stored
 */
#ifndef APPS_LEAT_CLI_H
#define APPS_LEAT_CLI_H

#include <jansson.h>
#include <stdio.h>

#include "base/base.h"
#include "base/size.h"
#include "leat/leat.h"

/* Objects that commands release at the end of a block. */
static inline void cli_ws_close(struct leat_ws **ws)
{
    leat_close(*ws);
}
static inline void cli_client_close(struct leat_client **client)
{
    leat_disconnect(*client);
}
static inline void cli_text_free(char **text)
{
    leat_free(*text);
}
static inline void cli_json_unref(json_t **j)
{
    json_decref(*j);
}
#define AUTO_WS     __attribute__((cleanup(cli_ws_close)))
#define AUTO_CLIENT __attribute__((cleanup(cli_client_close)))
#define AUTO_TEXT   __attribute__((cleanup(cli_text_free)))
#define AUTO_JSON   __attribute__((cleanup(cli_json_unref)))

/* Exit codes: leat(1) documents them. A code of the library maps to one by cli_exit_of. */
enum cli_exit {
    CLI_OK = 0,
    CLI_FAILURE = 1,
    CLI_USAGE = 2,
    CLI_NOT_FOUND = 3,
    CLI_DENIED = 4,
    CLI_NO_SPACE = 5,
    CLI_PEER = 6, /* timed out, or the daemon went away */
    CLI_CORRUPT = 7,
    CLI_BUSY = 8,
    CLI_STALE = 9,
    CLI_INTERRUPTED = 130,
};

#define CLI_STAGE_CONVERT 100 /* of struct leat_progress, beside enum leat_stage */
enum cli_progress { CLI_PROGRESS_AUTO, CLI_PROGRESS_BAR, CLI_PROGRESS_JSON, CLI_PROGRESS_NONE };

struct cli_command;
/* An option of the command as it was given. */
struct cli_given {
    int id;
    const char *arg; /* NULL: a switch */
};

struct cli {
    const struct cli_command *command;
    struct cli_given *given; /* its own options, in order, ended by id 0; main's */
    char **operands;         /* what is no option; as many as the command's row allows */
    int noperands;
    const char *socket, *job; /* NULL: the library's default */
    bool json, quiet;
    enum cli_progress progress;
    uint64_t timeout_ns; /* 0: the command's default */
    struct leat_error err;
};

struct cli_option {
    int id;           /* the letter, or above 255 for options that have none */
    const char *name; /* long name */
    const char *arg;  /* "SIZE", or NULL for a switch */
    const char *help;
};

struct cli_command {
    const char *name, *summary;
    const char *usage;                /* behind "leat NAME " */
    const char *about;                /* a paragraph of help, lines ready to print; NULL: none */
    const struct cli_option *options; /* of its own, ended by id 0; NULL: none */
    const char *examples;             /* a line each */
    int (*run)(struct cli *cli);      /* returns an enum cli_exit */
    int least, most;                  /* operands; most 0: none is expected */
    const char *wants;                /* said where there are fewer, or more */
};

#define CLI_ANY 1000000 /* most */

extern const struct cli_option cli_global_options[];
/* LEAT_CONNECT_* in flags. 0, or the library's code with cli->err set. */
int cli_connect(struct cli *cli, unsigned flags, struct leat_client **ret_client);
extern const struct cli_command cli_commands[]; /* ended by name NULL */
const struct cli_command *cli_command_find(const char *name);

/*
 * usage.c: all that stands behind the command, into cli: global options into their fields, its own into `given`, the rest into `operands`
 * (argv is permuted). argv[0] is the command; without one, the options that stand before its name, which is then the first operand.
 * 0; -1: it has printed what is wrong, the exit code is CLI_USAGE; -2: it has printed help, and that is CLI_OK.
 */
int cli_parse(struct cli *cli, int argc, char **argv);
void cli_help(FILE *out, const struct cli_command *command); /* NULL: the list of commands */
/* "leat preload: MESSAGE" and the hint to --help. Returns CLI_USAGE. */
int cli_usage_error(const struct cli *cli, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The name of `names` nearest to `text`, or NULL when none is near: at most a third of it is different. */
const char *cli_nearest(const char *text, const char *const *names, size_t n);

/* output.c */
int cli_exit_of(int rc);
/* Prints cli->err (or the code's name) behind "leat COMMAND: " on stderr and returns the exit code. */
int cli_fail(struct cli *cli, int rc);
int cli_error(const struct cli *cli, int exit_code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Flushes stdout; a full disk or closed pipe is a failure. Returns `exit_code`, or CLI_FAILURE. */
int cli_finish(const struct cli *cli, int exit_code);
/* "leat://NAME" or the URI itself when `text` has "://", "/" or "=" in it. Caller frees; NULL: out of memory. */
char *cli_set_uri(const char *text);
int cli_parse_size(const char *text, uint64_t *ret_bytes); /* size_parse, and not 0; 0 or -EINVAL */
int cli_parse_seconds(const char *text, uint64_t *ret_ns); /* "30", "2.5", "10m", "none" = UINT64_MAX */
int cli_parse_index(const char *text, uint64_t n,
                    uint64_t *ret_index);               /* negative counts from the end; -EINVAL, -ERANGE */
const char *cli_count(uint64_t n, char buf[32]);        /* "1,234,567" */
const char *cli_duration(double seconds, char buf[16]); /* "0.12 s", "3:05", "1:02:03" */
void cli_bar(char *out, size_t cap, unsigned width, double share); /* "[####----]", ASCII */
/* Text of a file name or key: control characters and broken UTF-8 as \xNN where `out` is a terminal. */
void cli_print_key(FILE *out, const char *s, size_t len);
/* The same wherever `out` goes: of names among words for people, which may be another user's. */
void cli_print_text(FILE *out, const char *s);

/* JSON, written as it comes: one document, two-space indents unless `lines`. */
struct cli_json {
    FILE *out;
    unsigned depth;
    bool lines; /* compact: one document a line */
    bool first; /* nothing yet at this depth */
};
void json_begin(struct cli_json *j, FILE *out, bool lines); /* and opens the object that it is */
/* The last document of a command, a line of its own among progress lines. */
void json_result_begin(struct cli_json *j, const struct cli *cli);
void json_result_end(struct cli_json *j, double seconds);
void json_open(struct cli_json *j, const char *key,
               char bracket);                      /* key NULL inside an array; bracket '{' or '[' */
void json_close(struct cli_json *j, char bracket); /* '}' or ']'; a newline after the outermost */
/* Bytes that are not UTF-8 become lone surrogates U+DC80..U+DCFF (Python's surrogateescape): nothing is lost. */
void json_str(struct cli_json *j, const char *key, const char *s, size_t len);
void json_text(struct cli_json *j, const char *key, const char *s); /* NULL: null */
void json_u64(struct cli_json *j, const char *key, uint64_t v);
void json_double(struct cli_json *j, const char *key, double v);
void json_bool(struct cli_json *j, const char *key, bool v);
void json_base64(struct cli_json *j, const char *key, const void *data, size_t bytes);

/* progress.c: a leat_progress_fn with `user` = struct progress. Redraws at most ten times a second. */
struct progress {
    const struct cli *cli;
    bool bar, json;
    bool drawn;
    int stage;
    uint64_t start_ns, shown_ns;
    /* rate over the last seconds: a ring of (time, bytes, samples) */
    struct progress_mark {
        uint64_t ns, bytes, samples;
    } marks[32];
    unsigned nmarks, next;
};
void progress_begin(struct progress *p, const struct cli *cli);
int progress_report(const struct leat_progress *report, void *user);
int progress_scan(void *user, uint64_t samples,
                  uint64_t bytes);             /* the same for a scan: dataset_progress.report */
void progress_end(struct progress *p);         /* takes the bar away */
const atomic_bool *progress_interrupted(void); /* by Ctrl-C, once progress_begin was called */
double progress_seconds(const struct progress *p);
/* The line of a bar, at most `width` columns: pure, for tests. rate: bytes/s (samples/s when bytes are unknown). */
void progress_line(const struct leat_progress *report, double rate, unsigned width, char *out, size_t cap);

/* transfer.c: "a=x b=y" -> "a=x;b=y"; one operand as it is. Caller frees; NULL after a message. */
char *cli_join_sources(const struct cli *cli, int n, char **operands);
/* transfer.c: a dataset's name with absolute paths. Caller frees; NULL, and *ret_code with cli->err set. */
char *cli_canonical(struct cli *cli, const char *text, int *ret_code);
/* look.c: a set that is in the pool already, by name or URI, without starting a daemon. The code, with cli->err set. */
int cli_open_set(struct cli *cli, const char *text, struct leat_client **ret_client, struct leat_ws **ret_ws);
/* look.c: sets as the daemon describes them, a line each; a table when `full`. */
void look_print_sets(const json_t *sets, bool full);

/* the commands */
int cmd_preload(struct cli *cli);
int cmd_append(struct cli *cli);
int cmd_index(struct cli *cli);
int cmd_verify(struct cli *cli);
int cmd_ls(struct cli *cli);
int cmd_stat(struct cli *cli);
int cmd_cat(struct cli *cli);
int cmd_status(struct cli *cli);
int cmd_top(struct cli *cli);
int cmd_stop(struct cli *cli);
int cmd_drop(struct cli *cli);
int cmd_doctor(struct cli *cli);
int cmd_topo(struct cli *cli);
int cmd_convert(struct cli *cli);
int cmd_replay(struct cli *cli);
int cmd_cp(struct cli *cli);
int cmd_serve(struct cli *cli);
int cmd_bucket(struct cli *cli);
extern const struct cli_option bucket_options[]; /* bucket.c */
extern const struct cli_option serve_options[];  /* serve.c */
int cmd_scrub(struct cli *cli);
extern const struct cli_option scrub_options[]; /* scrub.c */
int cmd_help(struct cli *cli);

#endif
