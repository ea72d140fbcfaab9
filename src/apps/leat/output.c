/* SPDX-License-Identifier: Apache-2.0 */
/* output.c: what the commands print and how: errors with exit codes, sizes for people, JSON for programs. */
#include "apps/leat/cli.h"

#include "base/utf8.h"

#include <inttypes.h>
#include <math.h>
#include <openssl/evp.h>
#include <stdarg.h>

int cli_exit_of(int rc)
{
    switch (rc) {
    case 0:
        return CLI_OK;
    case LEAT_NOT_FOUND:
        return CLI_NOT_FOUND;
    case LEAT_DENIED:
    case -EPERM:
        return CLI_DENIED;
    case LEAT_NO_SPACE:
        return CLI_NO_SPACE;
    case LEAT_TIMED_OUT:
    case LEAT_PEER_GONE:
    case -EPIPE:
    case -ECONNREFUSED:
        return CLI_PEER;
    case LEAT_CORRUPT:
        return CLI_CORRUPT;
    case LEAT_BUSY:
        return CLI_BUSY;
    case LEAT_STALE:
        return CLI_STALE;
    case -ECANCELED:
        return CLI_INTERRUPTED;
    default:
        return CLI_FAILURE;
    }
}

static void put_error(const struct cli *cli, const char *text)
{
    fflush(stdout);
    if (cli->command)
        fprintf(stderr, "leat %s: %s\n", cli->command->name, text);
    else
        fprintf(stderr, "leat: %s\n", text);
}

int cli_fail(struct cli *cli, int rc)
{
    if (rc == -ECANCELED)
        put_error(cli, "interrupted");
    else
        put_error(cli, cli->err.message[0] ? cli->err.message : leat_strerror(rc));
    return cli_exit_of(rc);
}

int cli_error(const struct cli *cli, int exit_code, const char *fmt, ...)
{
    char text[600];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    put_error(cli, text);
    return exit_code;
}

int cli_finish(const struct cli *cli, int exit_code)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return exit_code;
    return cli_error(cli, CLI_FAILURE, "standard output: %s", strerror(errno ? errno : EIO));
}

char *cli_set_uri(const char *text)
{
    bool is_uri = strncasecmp(text, "file:", 5) == 0 || strpbrk(text, "/=") || strcmp(text, ".") == 0 ||
                  strcmp(text, "..") == 0;
    char *uri = NULL;
    if (asprintf(&uri, "%s%s", is_uri ? "" : "leat://", text) < 0)
        return NULL;
    return uri;
}

int cli_parse_size(const char *text, uint64_t *ret_bytes)
{
    uint64_t bytes;
    if (size_parse(text, &bytes, NULL) < 0 || bytes == 0)
        return -EINVAL;
    *ret_bytes = bytes;
    return 0;
}

int cli_parse_seconds(const char *text, uint64_t *ret_ns)
{
    if (strcmp(text, "none") == 0) {
        *ret_ns = UINT64_MAX;
        return 0;
    }
    /* A bare number is seconds here. */
    char with_unit[64];
    bool bare = text[strspn(text, "0123456789.")] == '\0';
    uint64_t ns;
    if ((size_t)snprintf(with_unit, sizeof(with_unit), "%s%s", text, bare ? "s" : "") >= sizeof(with_unit) ||
        duration_parse_ns(with_unit, &ns, NULL) < 0 || ns == 0)
        return -EINVAL;
    *ret_ns = ns;
    return 0;
}

int cli_parse_index(const char *text, uint64_t n, uint64_t *ret_index)
{
    bool negative = *text == '-';
    const char *digits = text + negative;
    if (*digits < '0' || *digits > '9')
        return -EINVAL;
    char *end;
    errno = 0;
    uint64_t v = strtoull(digits, &end, 10);
    if (*end)
        return -EINVAL;
    if (errno || (negative ? v == 0 ? n == 0 : v > n : v >= n))
        return -ERANGE;
    *ret_index = negative && v ? n - v : v;
    return 0;
}

const char *cli_count(uint64_t n, char buf[32])
{
    char digits[24];
    int len = snprintf(digits, sizeof(digits), "%" PRIu64, n), at = 0;
    for (int i = 0; i < len; i++) {
        if (i && (len - i) % 3 == 0)
            buf[at++] = ',';
        buf[at++] = digits[i];
    }
    buf[at] = '\0';
    return buf;
}

const char *cli_duration(double seconds, char buf[16])
{
    if (seconds < 0 || !isfinite(seconds) || seconds > 359999)
        snprintf(buf, 16, "--:--");
    else if (seconds < 10)
        snprintf(buf, 16, "%.2f s", seconds);
    else if (seconds < 3600)
        snprintf(buf, 16, "%u:%02u", (unsigned)seconds / 60 % 60, (unsigned)seconds % 60);
    else
        snprintf(buf, 16, "%u:%02u:%02u", (unsigned)seconds / 3600 % 1000, (unsigned)seconds / 60 % 60,
                 (unsigned)seconds % 60);
    return buf;
}

void cli_bar(char *out, size_t cap, unsigned width, double share)
{
    if (cap < (size_t)width + 3) {
        if (cap)
            out[0] = '\0';
        return;
    }
    unsigned full = share <= 0 ? 0 : share >= 1 ? width : (unsigned)(share * width);
    out[0] = '[';
    memset(out + 1, '#', full);
    memset(out + 1 + full, '-', width - full);
    out[width + 1] = ']';
    out[width + 2] = '\0';
}

static void print_shown(FILE *out, const char *s, size_t len)
{
    const unsigned char *u = (const unsigned char *)s;
    for (size_t i = 0; i < len;) {
        unsigned n = utf8_printable(u + i, len - i);
        if (n == 0)
            fprintf(out, "\\x%02x", u[i++]);
        fwrite(s + i, 1, n, out);
        i += n;
    }
}

void cli_print_key(FILE *out, const char *s, size_t len)
{
    if (isatty(fileno(out)))
        print_shown(out, s, len);
    else
        fwrite(s, 1, len, out);
}

void cli_print_text(FILE *out, const char *s)
{
    print_shown(out, s, strlen(s));
}

/* --- JSON ---------------------------------------------------------------------------------------------------- */

static void json_quote(FILE *out, const char *s, size_t len)
{
    const unsigned char *u = (const unsigned char *)s;
    fputc('"', out);
    for (size_t i = 0; i < len;) {
        unsigned n = utf8_length(u + i, len - i);
        if (n == 0) {
            fprintf(out, "\\udc%02x", u[i]);
            i++;
        } else if (u[i] == '"' || u[i] == '\\') {
            fprintf(out, "\\%c", u[i]);
            i++;
        } else if (u[i] < 0x20 || u[i] == 0x7f) {
            fprintf(out, "\\u%04x", u[i]);
            i++;
        } else {
            fwrite(s + i, 1, n, out);
            i += n;
        }
    }
    fputc('"', out);
}

static void json_lead(struct cli_json *j, const char *key)
{
    if (j->depth > 0) {
        if (!j->first)
            fputs(j->lines ? ", " : ",", j->out);
        if (!j->lines)
            fprintf(j->out, "\n%*s", (int)(2 * j->depth), "");
    }
    j->first = false;
    if (key) {
        json_quote(j->out, key, strlen(key));
        fputs(": ", j->out);
    }
}

void json_open(struct cli_json *j, const char *key, char bracket)
{
    json_lead(j, key);
    fputc(bracket, j->out);
    j->depth++;
    j->first = true;
}

void json_begin(struct cli_json *j, FILE *out, bool lines)
{
    *j = (struct cli_json){.out = out, .lines = lines, .first = true};
    json_open(j, NULL, '{');
}

void json_close(struct cli_json *j, char bracket)
{
    j->depth--;
    if (!j->first && !j->lines)
        fprintf(j->out, "\n%*s", (int)(2 * j->depth), "");
    fputc(bracket, j->out);
    j->first = false;
    if (j->depth == 0) {
        fputc('\n', j->out);
        j->first = true;
    }
}

void json_str(struct cli_json *j, const char *key, const char *s, size_t len)
{
    json_lead(j, key);
    json_quote(j->out, s, len);
}

void json_text(struct cli_json *j, const char *key, const char *s)
{
    json_lead(j, key);
    if (s)
        json_quote(j->out, s, strlen(s));
    else
        fputs("null", j->out);
}

void json_u64(struct cli_json *j, const char *key, uint64_t v)
{
    json_lead(j, key);
    fprintf(j->out, "%" PRIu64, v);
}

void json_double(struct cli_json *j, const char *key, double v)
{
    json_lead(j, key);
    if (isfinite(v) && v == floor(v) && fabs(v) < 9e15)
        fprintf(j->out, "%.0f", v);
    else if (isfinite(v))
        fprintf(j->out, "%.6g", v);
    else
        fputs("null", j->out);
}

void json_bool(struct cli_json *j, const char *key, bool v)
{
    json_lead(j, key);
    fputs(v ? "true" : "false", j->out);
}

void json_base64(struct cli_json *j, const char *key, const void *data, size_t bytes)
{
    const unsigned char *u = data;
    json_lead(j, key);
    fputc('"', j->out);
    for (size_t i = 0; i < bytes; i += 48) { /* a multiple of 3: only the last piece is padded */
        unsigned char text[65];
        int n = EVP_EncodeBlock(text, u + i, (int)MIN(bytes - i, (size_t)48));
        fwrite(text, 1, (size_t)n, j->out);
    }
    fputc('"', j->out);
}

void json_result_begin(struct cli_json *j, const struct cli *cli)
{
    json_begin(j, stdout, cli->progress == CLI_PROGRESS_JSON);
    if (cli->progress == CLI_PROGRESS_JSON)
        json_text(j, "event", "done");
}

void json_result_end(struct cli_json *j, double seconds)
{
    json_double(j, "seconds", seconds);
    json_close(j, '}');
}
