/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server.c: configuration, start and end of a server, and its numbers.
 *
 * Happy path: addresses are opened, the TLS context is made, reactors are started. stop: listening sockets are closed, then the rest has its grace, then
 * it is broken off; free: reactors run the messages that are left, and end.
 * Invariants: reactors outlive every connection; listening sockets are closed only after each reactor has released them.
 */
#include "http/server/server_internal.h"

#include "base/clock.h"
#include "base/cond.h"

static unsigned default_doors(void)
{
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    cpus = MAX(cpus, 1L);
    return (unsigned)MIN(cpus, 4L);
}

static void defaults(struct http_server_config *c)
{
    c->reactors = c->reactors ? c->reactors : default_doors();
    c->connections_max = c->connections_max ? c->connections_max : 65536;
    c->retry_after_s = c->retry_after_s ? c->retry_after_s : 2;
    c->memory_bytes = c->memory_bytes ? c->memory_bytes : 256 * MIB;
    c->drain_bytes = c->drain_bytes ? c->drain_bytes : 256 * KIB;
    c->head_ns = c->head_ns ? c->head_ns : 20 * NS_PER_S;
    c->idle_ns = c->idle_ns ? c->idle_ns : 75 * NS_PER_S;
    c->slow_ns = c->slow_ns ? c->slow_ns : 30 * NS_PER_S;
    c->slow_bytes = c->slow_bytes ? c->slow_bytes : 32 * KIB;
}

/* The 503 of those for whom there is no memory is written beforehand. */
static int write_overload(struct http_server *server)
{
    static const char message[] = "the server is overloaded: try again later";
    struct bytes_out body = {0}, *out = &server->overload;
    char date[HTTP_DATE_BYTES];
    struct http_refusal refusal = {.status = 503, .message = message};
    http_date_format(time(NULL), date);
    put_status(out, 503, date, server->name);
    if (server->config.handler.refuse) {
        server->config.handler.refuse(server->config.handler.user, &refusal, out, &body);
    } else {
        http_put_header(out, "Content-Type", "text/plain; charset=utf-8");
        http_put(&body, message);
        http_put(&body, "\n");
    }
    http_put_header_u64(out, "Retry-After", server->config.retry_after_s);
    http_put_header_u64(out, "Content-Length", body.len);
    http_put(out, "Connection: close\r\n\r\n");
    bytes_put(out, body.data, body.len);
    bool failed = out->failed || body.failed;
    bytes_out_fini(&body);
    return failed ? -ENOMEM : 0;
}

static int open_listeners(struct http_server *server, struct leat_error *err)
{
    const struct http_server_config *config = &server->config;
    int rc = 0;
    if (config->nlisten == 0 || config->nlisten > UINT16_MAX)
        return error_set(err, LEAT_INVALID, "an HTTP server needs an address to listen at");
    server->listeners = calloc(config->nlisten, sizeof(*server->listeners));
    if (!server->listeners)
        return error_set(err, -ENOMEM, "no memory for an HTTP server");
    for (unsigned i = 0; rc == 0 && i < config->nlisten; i++) {
        if (config->listen[i].tls && !server->tls)
            rc = server_tls_context(server->cert_file, server->key_file, &server->tls, err);
        server->nlisteners = i + 1;
        server->listeners[i].fd = -1;
        if (rc == 0)
            rc = listener_open(&server->listeners[i], &config->listen[i], err);
    }
    return rc;
}

static int copy_names(struct http_server *server)
{
    const struct http_server_config *config = &server->config;
    server->name = strdup(config->server_name ? config->server_name : "leat");
    server->cert_file = config->cert_file ? strdup(config->cert_file) : NULL;
    server->key_file = config->key_file ? strdup(config->key_file) : NULL;
    bool all =
        server->name && (!config->cert_file || server->cert_file) && (!config->key_file || server->key_file);
    return all ? 0 : -ENOMEM;
}

static int start_doors(struct http_server *server)
{
    server->reactors = calloc(server->config.reactors, sizeof(*server->reactors));
    if (!server->reactors)
        return -ENOMEM;
    int rc = 0;
    /* All are whole before the first runs: reactors hand connections to each other. */
    for (unsigned i = 0; rc == 0 && i < server->config.reactors; i++) {
        server->nreactors = i + 1;
        rc = reactor_init(&server->reactors[i], server);
    }
    for (unsigned i = 0; rc == 0 && i < server->nreactors; i++)
        rc = reactor_start(&server->reactors[i]);
    return rc;
}

int http_server_new(const struct http_server_config *config, struct http_server **ret_server,
                    struct leat_error *err)
{
    struct http_server *server = calloc(1, sizeof(*server));
    if (!server)
        return error_set(err, -ENOMEM, "no memory for an HTTP server");
    server->config = *config;
    defaults(&server->config);
    pthread_mutex_init(&server->tls_lock, NULL);
    pthread_mutex_init(&server->stop_lock, NULL);
    cond_init(&server->stop_cond);
    budget_init(&server->budget, server->config.memory_bytes);
    int rc = copy_names(server);
    if (rc == 0)
        rc = write_overload(server);
    if (rc < 0)
        rc = error_set(err, rc, "no memory for an HTTP server");
    if (rc == 0)
        rc = open_listeners(server, err);
    if (rc == 0 && (rc = start_doors(server)) < 0)
        rc = error_sys(err, rc, "an HTTP server of %u threads cannot be started", server->config.reactors);
    server->config.listen = NULL; /* the caller's, and not looked at again */
    if (rc < 0) {
        http_server_free(server);
        return rc;
    }
    *ret_server = server;
    return 0;
}

const char *http_server_address(const struct http_server *server, unsigned i)
{
    return i < server->nlisteners ? server->listeners[i].address : NULL;
}

int http_server_reload_tls(struct http_server *server, struct leat_error *err)
{
    SSL_CTX *fresh = NULL;
    pthread_mutex_lock(&server->tls_lock);
    bool none = !server->tls;
    pthread_mutex_unlock(&server->tls_lock);
    if (none)
        return 0;
    int rc = server_tls_context(server->cert_file, server->key_file, &fresh, err);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&server->tls_lock);
    SSL_CTX *old = server->tls;
    server->tls = fresh;
    pthread_mutex_unlock(&server->tls_lock);
    SSL_CTX_free(old);
    return 0;
}

static void order(struct http_server *server, int level)
{
    for (unsigned i = 0; i < server->nreactors; i++)
        reactor_stop(&server->reactors[i], level);
}

/* Until every reactor has stop_acked `level`, and, where `empty`, no connection is left; or until deadline_ns; 0: for ever. */
static void wait_for(struct http_server *server, int level, bool empty, uint64_t deadline_ns)
{
    int rc = 0;
    pthread_mutex_lock(&server->stop_lock);
    while (rc == 0 &&
           ((empty && atomic_load(&server->conns) > 0) || server->stop_acked[level] < server->nreactors))
        rc = cond_wait_until(&server->stop_cond, &server->stop_lock, deadline_ns);
    pthread_mutex_unlock(&server->stop_lock);
}

/* Once no reactor waits on them: the kernel refuses later connections, and clients try another address. */
static void close_listeners(struct http_server *server)
{
    for (unsigned i = 0; i < server->nlisteners; i++)
        listener_close(&server->listeners[i]);
}

void http_server_stop(struct http_server *server, uint64_t grace_ns)
{
    if (atomic_exchange(&server->stopping, true))
        return;
    if (grace_ns) {
        uint64_t deadline_ns = clock_now_ns() + grace_ns;
        order(server, STOP_NO_MORE);
        wait_for(server, STOP_NO_MORE, false, 0); /* a reactor obeys in its next turn */
        close_listeners(server);
        wait_for(server, STOP_NO_MORE, true, deadline_ns);
    }
    order(server, STOP_BREAK);
    wait_for(server, STOP_BREAK, true, 0);
    close_listeners(server);
}

bool http_server_stopping(const struct http_server *server)
{
    return atomic_load(&server->stopping);
}

void http_server_free(struct http_server *server)
{
    if (!server)
        return;
    bool running = server->nreactors > 0;
    for (unsigned i = 0; i < server->nreactors; i++)
        running = running && server->reactors[i].started;
    if (running)
        http_server_stop(server, 0);
    for (unsigned i = 0; i < server->nreactors; i++)
        reactor_fini(&server->reactors[i]);
    for (unsigned i = 0; i < server->nlisteners; i++) {
        listener_close(&server->listeners[i]);
        free(server->listeners[i].address);
    }
    SSL_CTX_free(server->tls);
    bytes_out_fini(&server->overload);
    pthread_cond_destroy(&server->stop_cond);
    pthread_mutex_destroy(&server->stop_lock);
    pthread_mutex_destroy(&server->tls_lock);
    free(server->listeners);
    free(server->reactors);
    free(server->cert_file);
    free(server->key_file);
    free(server->name);
    free(server);
}

static uint64_t get(_Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

void http_server_stats(struct http_server *server, struct http_server_stats *ret_stats)
{
    struct http_server_stats *s = ret_stats;
    memset(s, 0, sizeof(*s));
    for (unsigned i = 0; i < server->nreactors; i++) {
        struct reactor_stats *d = &server->reactors[i].stats;
        s->accepted += get(&d->accepted);
        s->handshakes += get(&d->handshakes);
        s->handshakes_failed += get(&d->handshakes_failed);
        s->resumed += get(&d->resumed);
        s->busy += get(&d->busy);
        s->requests += get(&d->requests);
        for (unsigned k = 0; k < ARRAY_LEN(s->answers); k++)
            s->answers[k] += get(&d->answers[k]);
        s->refused += get(&d->refused);
        s->overload += get(&d->overload);
        s->timeouts += get(&d->timeouts);
        s->aborted += get(&d->aborted);
        s->bytes_in += get(&d->bytes_in);
        s->bytes_out += get(&d->bytes_out);
        for (unsigned k = 0; k < ARRAY_LEN(s->latency.counts); k++)
            s->latency.counts[k] += get(&d->latency.counts[k]);
        s->latency.sum_ns += get(&d->latency.sum_ns);
    }
    s->connections = atomic_load(&server->conns);
    s->memory_bytes = get(&server->budget.used_bytes);
    s->memory_peak_bytes = get(&server->budget.peak_bytes);
}
