/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.c: formats a line on the stack and hands it to the kernel with one write(2), so that lines of different
 * threads and processes do not mix. Failure mode: a line longer than the buffer ends in "..."; a failing
 * write is ignored, because it cannot be reported. errno survives a call.
 */
#include "base/log.h"
#include "base/base.h"
#include "base/clock.h"
#include "base/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#define LINE_MAX_BYTES 1024
#define LEVEL_UNSET    (-1)

static _Atomic int level_now = LEVEL_UNSET;
static _Atomic int out_fd = 2;
static char program_name[32] = "leat";

static const char *const level_names[] = {"error", "warning", "info", "debug"};

void log_set_level(enum log_level level)
{
    atomic_store_explicit(&level_now, (int)level, memory_order_relaxed);
}

int log_parse_level(const char *name, enum log_level *ret_level)
{
    for (unsigned i = 0; name && i < ARRAY_LEN(level_names); i++) {
        if (strcmp(name, level_names[i]) == 0) {
            *ret_level = (enum log_level)i;
            return 0;
        }
    }
    return -EINVAL;
}

void log_set_output(int fd, const char *program)
{
    atomic_store_explicit(&out_fd, fd, memory_order_relaxed);
    snprintf(program_name, sizeof(program_name), "%s", program ? program : "leat");
}

static int current_level(void)
{
    int level = atomic_load_explicit(&level_now, memory_order_relaxed);
    if (level != LEVEL_UNSET)
        return level;
    enum log_level parsed = LOG_LEVEL_WARNING;
    log_parse_level(getenv("LEAT_LOG"), &parsed);
    int unset = LEVEL_UNSET; /* a log_set_level in between wins */
    atomic_compare_exchange_strong(&level_now, &unset, (int)parsed);
    return atomic_load_explicit(&level_now, memory_order_relaxed);
}

static size_t clamp_len(int printed, size_t room)
{
    if (printed < 0)
        return 0;
    return (size_t)printed < room ? (size_t)printed : room - 1;
}

/* "leatd: warning: ", with the time where a file is read later. */
static size_t put_head(char *line, size_t room, enum log_level level, int fd)
{
    struct timespec ts;
    struct tm tm;
    if (fd == 2)
        return clamp_len(snprintf(line, room, "%s: %s: ", program_name, level_names[level]), room);
    clock_gettime(CLOCK_REALTIME, &ts);
    gmtime_r(&ts.tv_sec, &tm);
    return clamp_len(snprintf(line, room, "%s: %04d-%02d-%02dT%02d:%02d:%02d.%03ldZ %s: ", program_name,
                              tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec,
                              ts.tv_nsec / 1000000, level_names[level]),
                     room);
}

static void write_line(enum log_level level, unsigned left_out, const char *end, const char *fmt, va_list ap)
{
    int saved_errno = errno;
    int fd = atomic_load_explicit(&out_fd, memory_order_relaxed);
    char line[LINE_MAX_BYTES], text[LINE_MAX_BYTES];
    size_t room = sizeof(line) - 1 - strlen(end); /* one byte for the newline */
    size_t len = put_head(line, room, level, fd);
    if (left_out)
        len += clamp_len(snprintf(line + len, room - len, "(%u such lines were left out) ", left_out),
                         room - len);
    int printed = vsnprintf(text, sizeof(text), fmt, ap);
    size_t text_len = clamp_len(printed, sizeof(text));
    /* Names out of files and messages are logged: a newline in one must not forge a line. */
    bool cut = utf8_show(text, text_len, line + len, room - len) < text_len || printed >= (int)sizeof(text);
    len += strlen(line + len);
    if (cut)
        memcpy(line + len - 3, "...", 3);
    len += clamp_len(snprintf(line + len, sizeof(line) - len, "%s\n", end), sizeof(line) - len);
    ssize_t n;
    do {
        n = write(fd, line, len);
    } while (n < 0 && errno == EINTR);
    errno = saved_errno;
}

void log_write(enum log_level level, const char *fmt, ...)
{
    if ((int)level > current_level())
        return;
    va_list ap;
    va_start(ap, fmt);
    write_line(level, 0, "", fmt, ap);
    va_end(ap);
}

bool log_limit_pass(struct log_limit *limit, uint64_t now_ns, unsigned *ret_left_out, bool *ret_last)
{
    uint64_t period = now_ns / LOG_LIMIT_NS + 1, before = atomic_load(&limit->period);
    *ret_left_out = 0;
    if (before != period && atomic_compare_exchange_strong(&limit->period, &before, period)) {
        atomic_store(&limit->lines, 0);
        *ret_left_out = atomic_exchange(&limit->left_out, 0);
    }
    unsigned lines = atomic_fetch_add(&limit->lines, 1) + 1;
    *ret_last = lines == LOG_LIMIT_LINES;
    if (lines <= LOG_LIMIT_LINES)
        return true;
    atomic_fetch_add(&limit->left_out, 1 + *ret_left_out);
    return false;
}

void log_write_limited(enum log_level level, struct log_limit *limit, const char *fmt, ...)
{
    unsigned left_out;
    bool last;
    if ((int)level > current_level() || !log_limit_pass(limit, clock_now_ns(), &left_out, &last))
        return;
    va_list ap;
    va_start(ap, fmt);
    write_line(level, left_out, last ? " (more such lines are suppressed for up to 5 s)" : "", fmt, ap);
    va_end(ap);
}
