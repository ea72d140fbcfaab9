/* SPDX-License-Identifier: Apache-2.0
 *
 * What UCX itself does on these rails, with the settings of the environment (UCX_*): so that a failure of
 * Leat can be distinguished from one of UCX, the kernel or the test bed.
 *
 *     probe get|put IP|worker [stop|kill|EVENT] [MiB]
 *
 * Two processes. The owner registers 4 MiB and tells the reader address and key over a socket pair. They
 * connect by a listener on IP, or (worker) by the address of the owner's worker. The reader gets (or puts)
 * slices of 64 KiB, 16 in flight, round and round, and compares every byte. When half of them are done,
 * something happens: the owner is stopped, or killed, or EVENT is run by the shell. stdout is one line of
 * JSON:
 *
 *     {"outcome": "done" | "error" | "overdue", "bytes": N, "status": "...", "ms_to_error": N, "ms_to_close":
 *     N}
 *
 * "overdue": neither an end nor an error LIMIT_S after the event. ms_to_close: how long closing the endpoint
 * by force took; -1, it never ended. ms_to_quiet, how long after the event the last operation came back; -1,
 * one never did.
 * Exit status 0 but for a wrong byte (3) or when nothing could be set up (4).
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

enum { SLICE = 65536, SLICES = 64, REGION = SLICE * SLICES, DEPTH = 16, LIMIT_S = 20, CLOSE_S = 10 };

struct side {
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_mem_h memory;
    uint8_t *region;
};

/* Sent once by the owner; the address (a sockaddr_in, or its worker's) and the key of its region follow. */
struct hello {
    uint64_t region;
    uint64_t address_bytes;
    uint64_t key_bytes;
};

struct run {
    struct side side;
    ucp_ep_h ep;
    ucp_rkey_h key;
    uint64_t remote;
    bool put;
    int in_flight;
    int failed; /* operations that ended with an error */
    uint64_t bytes;
    ucs_status_t status;
    ucs_status_t ep_status; /* the status that the endpoint's error handler got */
};

struct op {
    struct run *run;
    int slice; /* of the region; the reader's copy of it lies at op number * SLICE */
    int number;
    bool busy;
};

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void need(bool good, const char *what, ucs_status_t status)
{
    if (good)
        return;
    fprintf(stderr, "probe: %s: %s\n", what, ucs_status_string(status));
    exit(4);
}

static uint32_t word_of(int slice, size_t i)
{
    return ((uint32_t)slice << 20) ^ (uint32_t)i * 2654435761u;
}

static void pattern(uint8_t *to, int slice)
{
    for (size_t i = 0; i < SLICE / 4; i++) {
        uint32_t word = word_of(slice, i);
        memcpy(to + i * 4, &word, 4);
    }
}

static void check_pattern(const uint8_t *at, int slice)
{
    for (size_t i = 0; i < SLICE / 4; i++) {
        uint32_t word = word_of(slice, i);
        if (memcmp(at + i * 4, &word, 4) != 0) {
            fprintf(stderr, "probe: slice %d differs at byte %zu\n", slice, i * 4);
            exit(3);
        }
    }
}

static void side_open(struct side *side)
{
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_RMA};
    ucs_status_t status = ucp_init(&params, NULL, &side->context);
    need(status == UCS_OK, "ucp_init", status);
    ucp_worker_params_t worker = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                  .thread_mode = UCS_THREAD_MODE_SINGLE};
    status = ucp_worker_create(side->context, &worker, &side->worker);
    need(status == UCS_OK, "ucp_worker_create", status);
    side->region = mmap(NULL, REGION, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    need(side->region != MAP_FAILED, "mmap", UCS_ERR_NO_MEMORY);
    ucp_mem_map_params_t map = {.field_mask =
                                    UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
                                .address = side->region,
                                .length = REGION};
    status = ucp_mem_map(side->context, &map, &side->memory);
    need(status == UCS_OK, "ucp_mem_map", status);
}

static void send_all(int fd, const void *data, size_t bytes)
{
    need(send(fd, data, bytes, MSG_NOSIGNAL) == (ssize_t)bytes, "send to the other process",
         UCS_ERR_CONNECTION_RESET);
}

static void receive_all(int fd, void *data, size_t bytes)
{
    need(recv(fd, data, bytes, MSG_WAITALL) == (ssize_t)bytes, "hello of the other process",
         UCS_ERR_CONNECTION_RESET);
}

static void nothing(void *arg, ucp_ep_h ep, ucs_status_t status) {}

static void accept_it(ucp_conn_request_h request, void *arg)
{
    struct side *side = arg;
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .conn_request = request,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = nothing},
    };
    ucp_ep_h ep;
    ucs_status_t status = ucp_ep_create(side->worker, &params, &ep);
    need(status == UCS_OK, "ucp_ep_create of the owner", status);
}

static void listen_on(struct side *side, const char *ip, struct sockaddr_storage *ret_address)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    need(inet_pton(AF_INET, ip, &at.sin_addr) == 1, "IP address", UCS_ERR_INVALID_PARAM);
    ucp_listener_params_t params = {.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR |
                                                  UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
                                    .sockaddr = {(struct sockaddr *)&at, sizeof at},
                                    .conn_handler = {.cb = accept_it, .arg = side}};
    ucp_listener_h listener;
    ucs_status_t status = ucp_listener_create(side->worker, &params, &listener);
    need(status == UCS_OK, "ucp_listener_create", status);
    ucp_listener_attr_t attr = {.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR};
    status = ucp_listener_query(listener, &attr);
    need(status == UCS_OK, "ucp_listener_query", status);
    *ret_address = attr.sockaddr;
}

/* Owns its region and progresses until it is killed; compares what was put when asked by a byte, and answers with it. */
static _Noreturn void owner(int fd, const char *ip)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct side side;
    side_open(&side);
    for (int i = 0; i < SLICES; i++)
        pattern(side.region + (size_t)i * SLICE, i);
    struct sockaddr_storage listening;
    ucp_address_t *address = NULL;
    void *key;
    size_t address_bytes = sizeof listening, key_bytes;
    ucs_status_t status = UCS_OK;
    if (ip)
        listen_on(&side, ip, &listening);
    else
        status = ucp_worker_get_address(side.worker, &address, &address_bytes);
    need(status == UCS_OK, "ucp_worker_get_address", status);
    status = ucp_rkey_pack(side.context, side.memory, &key, &key_bytes);
    need(status == UCS_OK, "ucp_rkey_pack", status);
    struct hello hello = {(uintptr_t)side.region, address_bytes, key_bytes};
    send_all(fd, &hello, sizeof hello);
    send_all(fd, ip ? (void *)&listening : address, address_bytes);
    send_all(fd, key, key_bytes);
    for (char c;;) {
        ucp_worker_progress(side.worker);
        if (recv(fd, &c, 1, MSG_DONTWAIT) == 1) {
            for (int i = 0; i < SLICES; i++)
                check_pattern(side.region + (size_t)i * SLICE, i);
            send_all(fd, &c, 1);
        }
    }
}

static void ep_failed(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    struct run *run = arg;
    run->ep_status = status;
}

static void op_done(void *request, ucs_status_t status, void *arg)
{
    struct op *op = arg;
    struct run *run = op->run;
    run->in_flight--;
    op->busy = false;
    if (status == UCS_OK) {
        if (!run->put)
            check_pattern(run->side.region + (size_t)op->number * SLICE, op->slice);
        run->bytes += SLICE;
    } else {
        run->failed++;
        run->status = status;
    }
    if (request)
        ucp_request_free(request);
}

static void op_start(struct op *op, int slice)
{
    struct run *run = op->run;
    op->slice = slice;
    op->busy = true;
    run->in_flight++;
    uint8_t *local = run->side.region + (size_t)op->number * SLICE;
    if (run->put)
        pattern(local, slice);
    else
        memset(local, 0, SLICE);
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                                                 UCP_OP_ATTR_FIELD_MEMH,
                                 .cb.send = op_done,
                                 .user_data = op,
                                 .memh = run->side.memory};
    uint64_t remote = run->remote + (uint64_t)slice * SLICE;
    ucs_status_ptr_t p = run->put ? ucp_put_nbx(run->ep, local, SLICE, remote, run->key, &param)
                                  : ucp_get_nbx(run->ep, local, SLICE, remote, run->key, &param);
    if (!UCS_PTR_IS_PTR(p))
        op_done(NULL, UCS_PTR_STATUS(p), op);
}

/* Until what was begun has ended, or the connection is known to be broken, or LIMIT_S are over. */
static void flush(struct run *run)
{
    double start = now_ms();
    ucp_request_param_t none = {0};
    ucs_status_ptr_t p = ucp_ep_flush_nbx(run->ep, &none);
    if (!UCS_PTR_IS_PTR(p))
        return;
    while (ucp_request_check_status(p) == UCS_INPROGRESS && now_ms() - start < LIMIT_S * 1e3)
        ucp_worker_progress(run->side.worker);
    ucp_request_free(p);
}

static void connect_to(struct run *run, int fd, bool by_ip)
{
    struct hello hello;
    receive_all(fd, &hello, sizeof hello);
    void *address = malloc(hello.address_bytes), *key = malloc(hello.key_bytes);
    need(address && key, "malloc", UCS_ERR_NO_MEMORY);
    receive_all(fd, address, hello.address_bytes);
    receive_all(fd, key, hello.key_bytes);
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER |
                      (by_ip ? UCP_EP_PARAM_FIELD_SOCK_ADDR | UCP_EP_PARAM_FIELD_FLAGS
                             : UCP_EP_PARAM_FIELD_REMOTE_ADDRESS),
        .flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER,
        .sockaddr = {address, sizeof(struct sockaddr_in)},
        .address = address,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = ep_failed, .arg = run},
    };
    ucs_status_t status = ucp_ep_create(run->side.worker, &params, &run->ep);
    need(status == UCS_OK, "ucp_ep_create", status);
    /* A key that is unpacked before the connection is there knows no device: all goes by messages, which the owner answers. */
    if (by_ip)
        flush(run);
    status = ucp_ep_rkey_unpack(run->ep, key, &run->key);
    need(status == UCS_OK, "ucp_ep_rkey_unpack", status);
    run->remote = hello.region;
    free(address);
    free(key);
}

/* Returns the milliseconds it took, -1 if CLOSE_S did not do. */
static double close_by_force(struct run *run)
{
    double start = now_ms();
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_EP_CLOSE_FLAG_FORCE};
    ucp_rkey_destroy(run->key);
    ucs_status_ptr_t p = ucp_ep_close_nbx(run->ep, &param);
    if (!UCS_PTR_IS_PTR(p))
        return now_ms() - start;
    while (ucp_request_check_status(p) == UCS_INPROGRESS) {
        ucp_worker_progress(run->side.worker);
        if (now_ms() - start > CLOSE_S * 1e3)
            return -1;
    }
    ucp_request_free(p);
    return now_ms() - start;
}

static void happen(const char *event, pid_t child)
{
    if (strcmp(event, "stop") == 0)
        kill(child, SIGSTOP);
    else if (strcmp(event, "kill") == 0)
        kill(child, SIGKILL);
    else if (system(event) != 0)
        fprintf(stderr, "probe: '%s' failed\n", event);
}

int main(int argc, char **argv)
{
    if (argc < 3 || (strcmp(argv[1], "get") != 0 && strcmp(argv[1], "put") != 0)) {
        fprintf(stderr, "usage: probe get|put IP|worker [stop|kill|EVENT] [MiB]\n");
        return 4;
    }
    const char *ip = strcmp(argv[2], "worker") == 0 ? NULL : argv[2];
    const char *event = argc > 3 && *argv[3] ? argv[3] : NULL;
    uint64_t total = (argc > 4 ? strtoull(argv[4], NULL, 10) : 8) << 20;
    int pair[2];
    need(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "socketpair", UCS_ERR_IO_ERROR);
    pid_t child = fork();
    need(child >= 0, "fork", UCS_ERR_NO_RESOURCE);
    if (child == 0) {
        close(pair[0]);
        owner(pair[1], ip);
    }
    close(pair[1]);

    struct run run = {.put = argv[1][0] == 'p'};
    struct op ops[DEPTH];
    for (int i = 0; i < DEPTH; i++)
        ops[i] = (struct op){.run = &run, .number = i};
    side_open(&run.side);
    connect_to(&run, pair[0], ip != NULL);

    double event_at = 0, error_at = 0;
    bool overdue = false;
    double started = now_ms();
    for (uint64_t asked = 0; run.bytes < total || run.in_flight;) {
        bool bad = run.failed || run.ep_status;
        if (bad && !error_at)
            error_at = now_ms();
        for (int i = 0; i < DEPTH && asked < total && !bad; i++)
            if (!ops[i].busy) {
                op_start(&ops[i], (int)(asked / SLICE % SLICES));
                asked += SLICE;
            }
        ucp_worker_progress(run.side.worker);
        if (event && !event_at && run.bytes >= total / 2) {
            happen(event, child);
            event_at = now_ms();
        }
        if (bad && (!run.in_flight || now_ms() - error_at > CLOSE_S * 1e3))
            break;
        overdue = now_ms() - (event_at ? event_at : started) > LIMIT_S * 1e3;
        if (overdue)
            break;
    }
    double ended = now_ms();
    double quiet = run.in_flight ? -1 : event_at ? ended - event_at : 0;
    bool failed = run.failed || run.ep_status;

    double closing = 0;
    if (run.put && !failed && !overdue) { /* a flush, then the owner compares */
        flush(&run);
        kill(child, SIGCONT);
        char c = 0;
        send_all(pair[0], &c, 1);
        receive_all(pair[0], &c, 1);
    }
    closing = close_by_force(&run);
    printf("{\"outcome\": \"%s\", \"bytes\": %llu, \"status\": \"%s\", \"ep_status\": \"%s\", \"ms\": %.0f, "
           "\"ms_to_error\": %.0f, "
           "\"ms_to_quiet\": %.0f, \"ms_to_close\": %.0f}\n",
           overdue  ? "overdue"
           : failed ? "error"
                    : "done",
           (unsigned long long)run.bytes, ucs_status_string(run.status), ucs_status_string(run.ep_status),
           ended - started, error_at && event_at ? error_at - event_at : 0, quiet, closing);
    fflush(stdout);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    ucp_worker_destroy(run.side.worker);
    ucp_mem_unmap(run.side.context, run.side.memory);
    ucp_cleanup(run.side.context);
    return 0;
}
