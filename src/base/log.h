/* SPDX-License-Identifier: Apache-2.0 */
/* log.h: one line a message on stderr, or to a file. Only the function that decides about an error logs it.
 * Never log a token, a challenge or a credential. Thread-safe: one write(2) a line. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARNING, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

/* Level from LEAT_LOG (error, warning, info, debug; default warning) unless set here. */
void log_set_level(enum log_level level);
int log_parse_level(const char *name, enum log_level *ret_level);
/* Lines go to `fd` (default 2). The name ("leatd") stands at the start of each line. */
void log_set_output(int fd, const char *program);
void log_write(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...)   log_write(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warning(...) log_write(LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_info(...)    log_write(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...)   log_write(LOG_LEVEL_DEBUG, __VA_ARGS__)

/*
 * For messages that peers can cause at any rate: from each place in the code at most LOG_LIMIT_LINES in
 * LOG_LIMIT_NS. The last of these announces that more are suppressed; the first line after a silence has
 * their number.
 */
#define LOG_LIMIT_LINES 10u
#define LOG_LIMIT_NS    (5 * 1000000000ull)
struct log_limit {
    _Atomic uint64_t period; /* which one `lines` counts */
    _Atomic unsigned lines, left_out;
};
/* False: leave this line out. *ret_left_out: how many were left out since the last line, to be reported with
 * this one. *ret_last: no other line passes in this period. */
bool log_limit_pass(struct log_limit *limit, uint64_t now_ns, unsigned *ret_left_out, bool *ret_last);
void log_write_limited(enum log_level level, struct log_limit *limit, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#define LOG_LIMITED(level, ...)                                                                              \
    do {                                                                                                     \
        static struct log_limit limit_;                                                                      \
        log_write_limited(level, &limit_, __VA_ARGS__);                                                      \
    } while (0)
#define log_error_limited(...)   LOG_LIMITED(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warning_limited(...) LOG_LIMITED(LOG_LEVEL_WARNING, __VA_ARGS__)

#endif
