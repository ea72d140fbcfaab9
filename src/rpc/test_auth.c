/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>

#include "base/clock.h"
#include "rpc/auth.h"
#include "rpc/conn.h"
#include "rpc/seal.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cmocka.h>

static const char token[] = "0123456789abcdef0123456789abcdef";
static const char other[] = "0123456789abcdef0123456789abcdeF";
#define TOKEN_LEN (sizeof(token) - 1)

static const struct proto_hello hello = {.version_min = PROTO_VERSION_MIN,
                                         .version_max = PROTO_VERSION,
                                         .role = PROTO_ROLE_DATA,
                                         .program = "test",
                                         .acting_uid = 1000,
                                         .uuid = {7}};

struct talk {
    struct net_auth client, server;
    struct bytes_out hello, welcome;
    struct proto_hello said;
    uint8_t proof[32], mac[32]; /* the client's, the server's */
};

/* Up to the server's answer; what was said can be tampered with in between by the offset and bits given. */
static int begin(struct talk *t, const char *client_token, const char *server_token, size_t flip_at,
                 uint8_t flip)
{
    struct proto_welcome welcome;
    *t = (struct talk){0};
    net_auth_init(&t->client, client_token, TOKEN_LEN);
    net_auth_init(&t->server, server_token, TOKEN_LEN);
    assert_int_equal(net_auth_client_start(&t->client, &hello, &t->hello), 0);
    assert_true(flip_at < t->hello.len);
    t->hello.data[flip_at] ^= flip;
    int rc = net_auth_server_hello(&t->server, t->hello.data, t->hello.len, &t->said, &welcome);
    if (rc < 0)
        return rc;
    proto_welcome_put(&t->welcome, &welcome);
    return 0;
}

static int client_step(struct talk *t)
{
    return net_auth_client_welcome(&t->client, t->welcome.data, t->welcome.len, t->proof);
}

static int server_step(struct talk *t)
{
    return net_auth_server_proof(&t->server, t->proof, sizeof(t->proof), t->mac);
}

static int confirm_step(struct talk *t)
{
    struct proto_welcome second = {0};
    memcpy(second.mac, t->mac, sizeof(second.mac));
    return net_auth_client_confirm(&t->client, &second);
}

static void end(struct talk *t)
{
    net_auth_fini(&t->client);
    net_auth_fini(&t->server);
    bytes_out_fini(&t->hello);
    bytes_out_fini(&t->welcome);
}

static void test_good(void **state)
{
    struct talk t;
    assert_int_equal(begin(&t, token, token, 0, 0), 0);
    assert_int_equal(t.said.role, PROTO_ROLE_DATA);
    assert_int_equal(t.said.acting_uid, 1000);
    /* No token on the wire. */
    assert_null(memmem(t.hello.data, t.hello.len, token, TOKEN_LEN));
    assert_int_equal(client_step(&t), 0);
    assert_int_equal(server_step(&t), 0);
    assert_int_equal(confirm_step(&t), 0);
    assert_int_equal(server_step(&t), LEAT_DENIED); /* once */
    assert_int_equal(confirm_step(&t), LEAT_DENIED);
    end(&t);
}

static void test_wrong_token(void **state)
{
    struct talk t;
    assert_int_equal(begin(&t, token, other, 0, 0), 0);
    assert_int_equal(client_step(&t), 0);
    assert_int_equal(server_step(&t), LEAT_DENIED);
    end(&t);
    /* To a stranger the server says nothing that it made of the token. */
    struct proto_welcome w;
    static const uint8_t nothing[32];
    assert_int_equal(begin(&t, token, token, 0, 0), 0);
    assert_int_equal(proto_welcome_get(t.welcome.data, t.welcome.len, &w), 0);
    assert_memory_equal(w.mac, nothing, 32);
    assert_int_equal(net_auth_server_proof(&t.server, w.mac, 32, t.mac), LEAT_DENIED);
    assert_int_equal(client_step(&t), 0);
    assert_int_equal(server_step(&t), LEAT_DENIED); /* and after a failure nothing is */
    end(&t);
    /* A server that does not know the token, but takes the proof: its mac is wrong, and the client's own is no mac of a server. */
    for (unsigned k = 0; k < 3; k++) {
        assert_int_equal(begin(&t, token, token, 0, 0), 0);
        assert_int_equal(confirm_step(&t), LEAT_DENIED); /* not before the proof; */
        end(&t);
        assert_int_equal(begin(&t, token, token, 0, 0), 0);
        assert_int_equal(client_step(&t), 0);
        memcpy(t.mac, k == 0 ? nothing : k == 1 ? t.proof : w.nonce, 32);
        assert_int_equal(confirm_step(&t), LEAT_DENIED);
        assert_int_equal(confirm_step(&t), LEAT_DENIED);
        end(&t);
    }
}

/* Every byte of HELLO: role, user, working set and nonce are all covered. */
static void test_tampering(void **state)
{
    struct talk t;
    assert_int_equal(begin(&t, token, token, 0, 0), 0);
    size_t len = t.hello.len;
    end(&t);
    unsigned refused = 0;
    for (size_t at = 0; at < len; at++) {
        int rc = begin(&t, token, token, at, 1);
        if (rc == 0) {
            assert_int_equal(client_step(&t), 0);
            assert_int_equal(server_step(&t), LEAT_DENIED);
        } else {
            assert_int_equal(rc, LEAT_CORRUPT); /* no longer a HELLO */
            refused++;
        }
        end(&t);
    }
    assert_true(refused < 12);
}

static void test_replay(void **state)
{
    struct talk t, u;
    assert_int_equal(begin(&t, token, token, 0, 0), 0);
    assert_int_equal(client_step(&t), 0);
    /* A recorded HELLO and PROOF, played to another connection: the server's nonce is another. */
    struct net_auth victim;
    struct proto_hello said;
    struct proto_welcome welcome;
    net_auth_init(&victim, token, TOKEN_LEN);
    assert_int_equal(net_auth_server_hello(&victim, t.hello.data, t.hello.len, &said, &welcome), 0);
    assert_int_equal(net_auth_server_proof(&victim, t.proof, 32, u.mac), LEAT_DENIED);
    net_auth_fini(&victim);
    /* Both of a server's replies, recorded and played to another client: the client's nonce is another. */
    assert_int_equal(server_step(&t), 0);
    assert_int_equal(begin(&u, token, token, 0, 0), 0);
    assert_int_equal(net_auth_client_welcome(&u.client, t.welcome.data, t.welcome.len, u.proof), 0);
    memcpy(u.mac, t.mac, sizeof(u.mac));
    assert_int_equal(confirm_step(&u), LEAT_DENIED);
    end(&u);
    end(&t);
}

static void test_order(void **state)
{
    struct talk t;
    struct net_auth a;
    uint8_t proof[32] = {0}, mac[32];
    net_auth_init(&a, token, TOKEN_LEN);
    assert_int_equal(net_auth_server_proof(&a, proof, 32, mac), LEAT_DENIED); /* no HELLO yet */
    assert_int_equal(begin(&t, token, token, 0, 0), 0);
    assert_int_equal(
        net_auth_server_hello(&t.server, t.hello.data, t.hello.len, &t.said, &(struct proto_welcome){0}),
        LEAT_DENIED); /* twice */
    assert_int_equal(client_step(&t), 0);
    assert_int_equal(server_step(&t), LEAT_DENIED);
    end(&t);
    assert_int_equal(begin(&t, token, token, 0, 0), 0);
    assert_int_equal(client_step(&t), 0);
    assert_int_equal(net_auth_server_proof(&t.server, t.proof, 31, t.mac), LEAT_DENIED);
    end(&t);
}

/* --- sealed ----------------------------------------------------------------------------------------------------- */

static int unseal(struct net_seal *seal, const struct net_auth *auth, const char *aad,
                  const struct bytes_out *sealed, const char *expected)
{
    uint8_t *text = NULL;
    size_t len = 0;
    int rc = net_unseal(seal, auth, aad, strlen(aad), sealed->data, sealed->len, &text, &len);
    if (rc == 0) {
        assert_int_equal(len, strlen(expected));
        assert_string_equal((char *)text, expected);
    }
    free(text);
    return rc;
}

static void test_sealed(void **state)
{
    static const char secret[] = "a user's secret key";
    struct talk t, u;
    struct net_seal from = {0}, to = {0}, stranger = {0};
    struct bytes_out first = {0}, second = {0}, empty = {0};
    assert_int_equal(begin(&t, token, token, 0, 0), 0);
    assert_int_equal(net_seal(&from, &t.client, "x", 1, secret, sizeof(secret) - 1, &first), LEAT_DENIED);
    bytes_out_reset(&first);
    assert_int_equal(client_step(&t), 0);
    assert_int_equal(net_seal(&from, &t.client, "x", 1, secret, sizeof(secret) - 1, &first), LEAT_DENIED);
    bytes_out_reset(&first); /* not to a server that has proved nothing */
    assert_int_equal(server_step(&t), 0);
    assert_int_equal(confirm_step(&t), 0);
    assert_int_equal(net_seal(&from, &t.client, "to", 2, secret, sizeof(secret) - 1, &first), 0);
    assert_int_equal(net_seal(&from, &t.client, "to", 2, secret, sizeof(secret) - 1, &second), 0);
    assert_int_equal(first.len, sizeof(secret) - 1 + NET_SEAL_BYTES);
    assert_memory_not_equal(first.data + 8, second.data + 8, first.len - 8);
    assert_null(memmem(first.data, first.len, secret, 6));
    /* Each of its bits counts, and what it was sealed to. */
    for (size_t at = 0; at < first.len; at++) {
        first.data[at] ^= 0x10;
        assert_int_equal(unseal(&to, &t.server, "to", &first, secret), LEAT_CORRUPT);
        first.data[at] ^= 0x10;
    }
    assert_int_equal(unseal(&to, &t.server, "TO", &first, secret), LEAT_CORRUPT);
    for (size_t len = 0; len < first.len; len++)
        assert_int_equal(
            unseal(&to, &t.server, "to", &(struct bytes_out){.data = first.data, .len = len}, ""),
            LEAT_CORRUPT);
    /* Another connection of the same two. */
    assert_int_equal(begin(&u, token, token, 0, 0), 0);
    assert_int_equal(client_step(&u), 0);
    assert_int_equal(server_step(&u), 0);
    assert_int_equal(unseal(&stranger, &u.server, "to", &first, secret), LEAT_CORRUPT);
    /* Once each, in their order. */
    assert_int_equal(unseal(&to, &t.server, "to", &second, secret), 0);
    assert_int_equal(unseal(&to, &t.server, "to", &second, secret), LEAT_CORRUPT);
    assert_int_equal(unseal(&to, &t.server, "to", &first, secret), LEAT_CORRUPT);
    assert_int_equal(net_seal(&from, &t.client, "", 0, "", 0, &empty), 0);
    assert_int_equal(unseal(&to, &t.server, "", &empty, ""), 0);
    net_seal_fini(&from);
    net_seal_fini(&to);
    net_seal_fini(&stranger);
    bytes_out_fini(&first);
    bytes_out_fini(&second);
    bytes_out_fini(&empty);
    end(&t);
    end(&u);
}

/* --- the token's file ----------------------------------------------------------------------------------------------- */

static char path[64];

static void write_file(const char *text, mode_t mode)
{
    unlink(path);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
}

static int load(struct leat_error *err)
{
    void *got;
    size_t len;
    int rc = net_token_load(path, &got, &len, err);
    if (rc == 0) {
        assert_int_equal(len, TOKEN_LEN);
        assert_memory_equal(got, token, len);
        net_token_free(got, len);
    }
    return rc;
}

static void test_token_file(void **state)
{
    struct leat_error err;
    char text[NET_TOKEN_MAX + 3];
    snprintf(path, sizeof(path), "/tmp/leat-test-token-%d", (int)getpid());
    unlink(path);
    assert_int_equal(load(&err), LEAT_NOT_FOUND);
    assert_non_null(strstr(err.message, "head -c 32 /dev/urandom | base64 > /tmp/"));
    snprintf(text, sizeof(text), "%s\r\n\n", token);
    write_file(text, 0600);
    assert_int_equal(load(&err), 0);
    write_file(token, 0400);
    assert_int_equal(load(&err), 0);
    mode_t open_modes[] = {0640, 0604, 0620, 0601};
    for (unsigned i = 0; i < ARRAY_LEN(open_modes); i++) {
        write_file(token, open_modes[i]);
        assert_int_equal(load(&err), LEAT_DENIED);
        assert_non_null(strstr(err.message, "chmod 600"));
    }
    write_file("0123456789abcdef0123456789abcde\n\n", 0600);
    assert_int_equal(load(&err), LEAT_INVALID);
    memset(text, 'x', sizeof(text));
    text[NET_TOKEN_MAX + 1] = 0;
    write_file(text, 0600);
    assert_int_equal(load(&err), LEAT_INVALID);
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0); /* must not hang */
    assert_int_equal(load(&err), LEAT_INVALID);
    unlink(path);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(load(&err), LEAT_INVALID);
    rmdir(path);
}

/* The server takes the highest version of both; a client takes none that it has not offered. */
static void test_versions(void **state)
{
    struct talk t;
    struct proto_welcome w;
    assert_int_equal(begin(&t, token, token, 0, 0), 0);
    assert_int_equal(proto_welcome_get(t.welcome.data, t.welcome.len, &w), 0);
    assert_int_equal(w.version, PROTO_VERSION);
    assert_int_equal(client_step(&t), 0);
    assert_int_equal(t.client.version, PROTO_VERSION);
    end(&t);
    for (unsigned k = 0; k < 2; k++) {
        assert_int_equal(begin(&t, token, token, 0, 0), 0);
        t.welcome.data[0] = k ? PROTO_VERSION + 1 : PROTO_VERSION_MIN - 1;
        assert_int_equal(client_step(&t), LEAT_UNSUPPORTED);
        assert_int_equal(t.client.version, t.welcome.data[0]); /* for the message */
        assert_int_equal(confirm_step(&t), LEAT_DENIED);
        end(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),       cmocka_unit_test(test_wrong_token),
        cmocka_unit_test(test_tampering),  cmocka_unit_test(test_replay),
        cmocka_unit_test(test_order),      cmocka_unit_test(test_sealed),
        cmocka_unit_test(test_token_file), cmocka_unit_test(test_versions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
