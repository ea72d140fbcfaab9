/* SPDX-License-Identifier: Apache-2.0 */
/* Every key, every message, and what a configuration must be together. */
#include <setjmp.h>
#include <stdarg.h>

#include "base/log.h"
#include "failalloc.h"
#include "daemon/config.h"

#include <stdio.h>

#include <cmocka.h>

static char path[64];

static int config_load(struct config *c, const char *file, struct leat_error *err)
{
    struct ini_part parts[] = {{.keys = config_keys, .into = c}, {0}};
    return ini_load(parts, file, err);
}

static int config_set(struct config *c, const char *section, const char *key, const char *value,
                      struct leat_error *err)
{
    struct ini_part parts[] = {{.keys = config_keys, .into = c}, {0}};
    return ini_set(parts, section, key, value, err);
}

static void config_fini(struct config *c)
{
    ini_fini(config_keys, c);
}

static int load(struct config *c, const char *text, struct leat_error *err)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    config_init(c);
    return config_load(c, path, err);
}

static void test_every_key(void **state)
{
    struct config c;
    struct leat_error err = {0};
    assert_int_equal(
        load(&c,
             "; a comment\n"
             "[pool]\nsize = 3 GiB\nregion_size = 64MiB\nprefault = 1GiB\nhuge_pages = off\n"
             "[daemon]\nmode = system\nsocket = /run/x.sock\njob = train 1\nnode_name = n1\n"
             "roots = /data, /scratch/\nroots = /more\nidle_timeout = 1.5m\n"
             "[net]\nlisten = 10.0.0.1:7000\ntoken_file = /etc/token\nnodes = 10.0.0.1:7000\n"
             "  10.0.0.2:7000 10.0.0.3:7000\ndata_threads = 3\n"
             "[disk]\nengine = worker\nthreads = 5\ndepth = 32\n"
             "[s3]\nallowed_hosts = minio.lan, *.amazonaws.com\nown_credentials = yes\nprofile = p\n"
             "endpoint = http://m\nregion = r\nstyle = path\nca_file = /c\nanonymous = on\n"
             "connections = 7\n"
             "[log]\nlevel = warning\n",
             &err),
        0);
    assert_int_equal(config_finish(&c, &err), 0);
    assert_int_equal(c.pool_bytes, 3 * GIB);
    assert_int_equal(c.region_bytes, 64 * MIB);
    assert_int_equal(c.prefault_bytes, 1 * GIB);
    assert_false(c.huge_pages);
    assert_true(c.system);
    assert_string_equal(c.socket, "/run/x.sock");
    assert_string_equal(c.job, "train 1");
    assert_string_equal(c.node_name, "n1");
    assert_int_equal(c.nroots, 3);
    assert_string_equal(c.roots[0], "/data");
    assert_string_equal(c.roots[1], "/scratch"); /* without its slash */
    assert_string_equal(c.roots[2], "/more");
    assert_null(c.roots[3]);
    assert_int_equal(c.linger_ns, 90ull * 1000000000);
    assert_string_equal(c.listen, "10.0.0.1:7000");
    assert_string_equal(c.token_file, "/etc/token");
    assert_int_equal(c.nnodes, 3);
    assert_string_equal(c.nodes[2], "10.0.0.3:7000");
    assert_null(c.nodes[3]);
    assert_int_equal(c.data_threads, 3);
    assert_string_equal(c.disk_engine, "worker");
    assert_int_equal(c.disk_threads, 5);
    assert_int_equal(c.disk_depth, 32);
    assert_int_equal(c.s3.nallowed, 2);
    assert_string_equal(c.s3.allowed[1], "*.amazonaws.com");
    assert_true(c.s3.own && c.s3.anonymous);
    assert_string_equal(c.s3.profile, "p");
    assert_string_equal(c.s3.endpoint, "http://m");
    assert_string_equal(c.s3.style, "path");
    assert_int_equal(c.s3.connections, 7);
    config_fini(&c);
    log_set_level(LOG_LEVEL_WARNING);
}

static void test_defaults(void **state)
{
    struct config c;
    config_init(&c);
    assert_int_equal(config_set(&c, "daemon", "socket", "/tmp/s", NULL), 0);
    assert_int_equal(config_finish(&c, NULL), 0);
    assert_true(c.huge_pages);
    assert_int_equal(c.prefault_bytes, 0);
    assert_false(c.system);
    assert_int_equal(c.linger_ns, 120ull * 1000000000);
    assert_int_equal(c.disk_depth, 16);
    assert_true(c.pool_bytes >= 16 * MIB && c.region_bytes >= 2 * MIB);
    assert_int_equal(c.region_bytes & (c.region_bytes - 1), 0);
    assert_true(c.disk_threads >= 1 && c.data_threads >= 1);
    assert_string_equal(c.disk_engine, "auto");
    assert_true(c.node_name[0]);
    config_fini(&c);
}

static void test_refused(void **state)
{
    static const struct {
        const char *section, *key, *value, *says;
    } cases[] = {
        {"pool", "size", "lots", "size"},
        {"pool", "size", "1023KiB", "size = 1023KiB: give at least 1.0 MiB"},
        {"pool", "region_size", "3MiB", "region_size = 3MiB: give a power of two of at least 64KiB"},
        {"pool", "region_size", "32KiB", "region_size = 32KiB: give a power of two of at least 64KiB"},
        {"pool", "region_size", "-1", "region_size"},
        {"pool", "prefault", "soon", "prefault"},
        {"pool", "ready", "-1", "prefault"},
        {"pool", "huge_pages", "maybe", "huge_pages = maybe: give yes or no"},
        {"pool", "colour", "red", "[pool] has no key 'colour': it has size region_size prefault huge_pages"},
        {"pool", "size region_size", "1GiB", "[pool] has no key 'size region_size'"},
        {"pool", "", "1GiB", "[pool] has no key ''"},
        {"s3", "style", "curly", "style = curly: give path, virtual or auto"},
        {"s3", "own_credentials", "perhaps", "own_credentials = perhaps: give yes or no"},
        {"s3", "connections", "0", "connections = 0: give a whole number from 1 to 256"},
        {"s3", "secret", "x", "[s3] has no key 'secret'"},
        {"daemon", "mode", "public", "mode = public: give private or system"},
        {"daemon", "idle_timeout", "soon", "idle_timeout"},
        {"daemon", "uid", "0", "[daemon] has no key 'uid'"},
        {"net", "data_threads", "0", "data_threads = 0: give a whole number from 1 to 256"},
        {"net", "data_threads", "257", "data_threads = 257: give a whole number from 1 to 256"},
        {"net", "data_threads", "2x", "data_threads = 2x: give a whole number from 1 to 256"},
        {"net", "data_threads", "", "data_threads = : give a whole number from 1 to 256"},
        {"net", "port", "1", "[net] has no key 'port'"},
        {"disk", "threads", "-3", "threads = -3: give a whole number from 1 to 256"},
        {"disk", "depth", "1025", "depth = 1025: give a whole number from 1 to 1024"},
        {"disk", "engine", "spdk", "engine = spdk: give auto, uring or worker"},
        {"disk", "fast", "1", "[disk] has no key 'fast'"},
        {"log", "level", "loud", "level = loud: give error, warning, info or debug"},
        {"log", "file", "x", "[log] has no key 'file'"},
        {"", "size", "1GiB", "no section []: there are pool, daemon, net, disk, s3, limits, log"},
        {"limits", "user_sets", "0", "user_sets = 0: give a whole number from 1 to 1000000"},
        {"limits", "user_buffers", "1MiB", "user_buffers = 1MiB"},
        {"limits", "users", "1", "[limits] has no key 'users'"},
        {"Pool", "size", "1GiB", "no section [Pool]"},
    };
    for (unsigned k = 0; k < ARRAY_LEN(cases); k++) {
        struct config c;
        struct leat_error err = {0};
        config_init(&c);
        int rc = config_set(&c, cases[k].section, cases[k].key, cases[k].value, &err);
        if (rc != LEAT_INVALID || !strstr(err.message, cases[k].says))
            fail_msg("[%s] %s = %s: %d, \"%s\"", cases[k].section, cases[k].key, cases[k].value, rc,
                     err.message);
        assert_int_equal(config_set(&c, cases[k].section, cases[k].key, cases[k].value, NULL), LEAT_INVALID);
        config_fini(&c);
    }
}

/* It is part of the pool: more than all of it is a mistake. */
static void test_ready_fits_the_pool(void **state)
{
    static const struct {
        const char *ready;
        int rc;
    } cases[] = {{"0", 0}, {"64MiB", 0}, {"65MiB", LEAT_INVALID}};
    for (unsigned k = 0; k < ARRAY_LEN(cases); k++) {
        struct config c;
        struct leat_error err = {0};
        config_init(&c);
        assert_int_equal(config_set(&c, "daemon", "socket", "/tmp/s", NULL), 0);
        assert_int_equal(config_set(&c, "pool", "size", "64MiB", NULL), 0);
        assert_int_equal(config_set(&c, "pool", "prefault", cases[k].ready, NULL), 0);
        assert_int_equal(config_finish(&c, &err), cases[k].rc);
        if (cases[k].rc)
            assert_non_null(
                strstr(err.message, "prefault = 65.0 MiB is more than the pool's size, 64.0 MiB"));
        config_fini(&c);
    }
}

static void test_booleans(void **state)
{
    static const char *const yes[] = {"yes", "on", "true", "1"}, *const no[] = {"no", "off", "false", "0"};
    struct config c;
    config_init(&c);
    for (unsigned k = 0; k < 4; k++) {
        assert_int_equal(config_set(&c, "pool", "huge_pages", no[k], NULL), 0);
        assert_false(c.huge_pages);
        assert_int_equal(config_set(&c, "pool", "huge_pages", yes[k], NULL), 0);
        assert_true(c.huge_pages);
    }
    config_fini(&c);
}

/* Each is reported once, however often it is given. */
static void test_old_names(void **state)
{
    struct config c;
    char name[] = "/tmp/leat-test-log-XXXXXX", text[1024] = "";
    int fd = mkstemp(name);
    assert_true(fd >= 0);
    log_set_level(LOG_LEVEL_WARNING);
    log_set_output(fd, "test");
    assert_int_equal(load(&c,
                          "[pool]\nready = 1GiB\nready = 2GiB\n[daemon]\nlinger = 3s\n"
                          "[s3]\nallowed = a\n  b\nallowed_hosts = c\n",
                          NULL),
                     0);
    log_set_output(STDERR_FILENO, "");
    assert_int_equal(c.prefault_bytes, 2 * GIB);
    assert_int_equal(c.linger_ns, 3000000000);
    assert_int_equal(c.s3.nallowed, 3);
    config_fini(&c);
    assert_true(pread(fd, text, sizeof(text) - 1, 0) > 0);
    static const char *const says[] = {"[pool] ready is now called prefault", "[daemon] linger is now called",
                                       "[s3] allowed is now called allowed_hosts"};
    for (unsigned k = 0; k < ARRAY_LEN(says); k++) {
        const char *at = strstr(text, says[k]);
        assert_non_null(at);
        assert_null(strstr(at + 1, says[k]));
    }
    close(fd);
    unlink(name);
}

/* The message names the file, and the line that is wrong. */
static void test_files(void **state)
{
    static const struct {
        const char *text;
        int line;
        const char *says;
    } cases[] = {
        {"[pool]\nsize = 1GiB\n\nregion_size = 5\n", 4, "region_size = 5"},
        {"[pool]\nsize 1GiB\n", 2, "give `key = value` or `[section]`"},
        {"[pool\nsize = 1GiB\n", 1, "give `key = value` or `[section]`"},
        {"size = 1GiB\n", 1, "no section []"},
        /* What is wrong first is named, whatever kind it is. */
        {"[pool]\nnonsense\nsize = 1\n", 2, "give `key = value` or `[section]`"},
        {"[pool]\nsize = 1\nnonsense\n", 2, "size = 1: give"},
        /* It would be taken for a part of the name of a file. */
        {"[net]\ntoken_file = /etc/token # ours\n", 2, "token_file: a comment behind a value begins with ;"},
        {"[pool]\nsize = 1GiB\t# half of it\n", 2, "size: a comment behind a value begins with ;"},
    };
    for (unsigned k = 0; k < ARRAY_LEN(cases); k++) {
        struct config c;
        struct leat_error err = {0};
        char place[128];
        int rc = load(&c, cases[k].text, &err);
        snprintf(place, sizeof(place), "%s, line %d: ", path, cases[k].line);
        if (rc != LEAT_INVALID || strncmp(err.message, place, strlen(place)) != 0 ||
            !strstr(err.message, cases[k].says))
            fail_msg("case %u: %d, \"%s\"", k, rc, err.message);
        config_fini(&c);
    }
    struct config c;
    struct leat_error err = {0};
    config_init(&c);
    assert_int_equal(config_load(&c, "/nonexistent/leatd.conf", &err), LEAT_NOT_FOUND);
    assert_non_null(
        strstr(err.message, "cannot read the configuration /nonexistent/leatd.conf: No such file"));
    assert_int_equal(config_load(&c, "/nonexistent/leatd.conf", NULL), LEAT_NOT_FOUND);
    config_fini(&c);
}

/* A list of all nodes is long: it goes over several lines, and one line that is too long is an error. */
static void test_long_lines(void **state)
{
    char text[8192] = "# a comment may be as long as it likes, and this one does: ";
    memset(text + strlen(text), 'x', 500);
    strcat(text, "\n[net]\nnodes =");
    for (unsigned k = 0; k < 64; k++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s trainer-%02u.example.org:7000",
                 k % 4 == 3 ? "\n" : "", k);
    struct config c;
    struct leat_error err = {0};
    if (load(&c, text, &err) != 0)
        fail_msg("%s", err.message);
    assert_int_equal(c.nnodes, 64);
    assert_string_equal(c.nodes[0], "trainer-00.example.org:7000");
    assert_string_equal(c.nodes[63], "trainer-63.example.org:7000");
    config_fini(&c);
    for (char *at = strchr(text, '\n') + 14; (at = strchr(at, '\n'));)
        *at = ' ';
    assert_int_equal(load(&c, text, &err), LEAT_INVALID);
    assert_non_null(strstr(err.message, ", line 3: it is too long; continue in the next line"));
    config_fini(&c);
}

static void finish(const char *text, const char *says)
{
    struct config c;
    struct leat_error err = {0};
    assert_int_equal(load(&c, text, &err), 0);
    int rc = config_finish(&c, &err);
    if (says ? rc != LEAT_INVALID || !strstr(err.message, says) : rc != 0)
        fail_msg("%s: %d, \"%s\"", text, rc, err.message);
    config_fini(&c);
}

/* Said where the configuration is read, by --check-config too. */
static void test_too_many_nodes(void **state)
{
    for (unsigned n = 64; n <= 65; n++) {
        char text[4096] = "[daemon]\nsocket = /s\n[net]\nlisten = h:1\ntoken_file = /t\nnodes =";
        for (unsigned k = 1; k <= n; k++)
            snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s h:%u", k % 16 ? "" : "\n", k);
        finish(text, n > 64 ? "nodes names 65 nodes, and at most 64 keep sets together" : NULL);
    }
}

static void test_finish(void **state)
{
    finish("", "a private daemon needs --socket PATH");
    finish("[daemon]\nmode = system\n", "a system daemon needs roots");
    finish("[daemon]\nmode = system\nroots = data\n", "roots = data: give an absolute path");
    finish("[daemon]\nsocket = /s\n[net]\nlisten = h:1\n", "listen = h:1 needs token_file");
    finish("[daemon]\nsocket = /s\n[net]\nnodes = h:1\n", "nodes needs listen");
    finish("[daemon]\nsocket = /s\n[net]\nlisten = h:1\ntoken_file = /t\nnodes = h:1 i:1\n", NULL);
    finish("[daemon]\nsocket = /s\nroots = / // /a///\n", NULL);
    struct config c;
    assert_int_equal(load(&c, "[daemon]\nmode = system\nroots = /\n", NULL), 0);
    assert_int_equal(config_finish(&c, NULL), 0);
    assert_string_equal(c.socket, "/run/leat/leatd.sock");
    assert_string_equal(c.roots[0], "/");
    config_fini(&c);
    assert_int_equal(load(&c, "[daemon]\nsocket = /s\n[net]\nlisten = h:1\ntoken_file = /t\n", NULL), 0);
    assert_int_equal(config_finish(&c, NULL), 0);
    assert_string_equal(c.node_name, "h:1");
    config_fini(&c);
}

/* A comma joins the addresses of one node, white space parts nodes. */
static void test_rails(void **state)
{
    static const struct {
        const char *nodes, *says;
    } bad[] = {
        {"a1:7,a2:7 b1:7,", NULL}, /* as a list with commas and spaces may end */
        {"a1:7,a2:7, b1:7,b2:7", NULL},
        {"a1:7 b1:7", "nodes has this node as a1:7, but listen = a1:7,a2:7"},
        {"a2:7,a1:7 b1:7", "write the same addresses in the same order"},
        {"a1:7,a2:7,b1:7,b2:7", "a space, not a comma, between nodes"},
        {"b1:7,b2:7", "nodes does not contain listen = a1:7,a2:7"},
        {"a1:7,a2:7 b1:7,a2:7", "a2:7 is an address of both a1:7,a2:7 and b1:7,a2:7"},
        {"a1:7,,a2:7", "'' is neither host:port nor [ipv6]:port"},
        {"a1:7,a2:7 b1", "'b1' is neither host:port nor [ipv6]:port"},
        {"a1:7,a2:7 fe80::1:7", "'fe80::1:7' is neither"},
        {"a1:7,a2:7 [fe80::1]:7,[fe80::2]:7", NULL},
        {"a1:7,a2:7 b1:7,b1:7", "b1:7 is there twice"},
        {"a1:7,a2:7 b:1,b:2,b:3,b:4,b:5,b:6,b:7,b:8,b:9", "at most 8 addresses"},
    };
    for (unsigned i = 0; i < ARRAY_LEN(bad); i++) {
        char text[512];
        struct config c;
        struct leat_error err = {0};
        snprintf(text, sizeof(text),
                 "[daemon]\nsocket = /s\n[net]\nlisten = a1:7,a2:7\ntoken_file = /t\nnodes = %s\n",
                 bad[i].nodes);
        int rc = load(&c, text, &err);
        rc = rc ? rc : config_finish(&c, &err);
        if (bad[i].says ? rc != LEAT_INVALID || !strstr(err.message, bad[i].says) : rc != 0)
            fail_msg("%s: %d, \"%s\"", bad[i].nodes, rc, err.message);
        if (!bad[i].says) {
            assert_int_equal(c.nnodes, 2);
            assert_string_equal(c.nodes[0], "a1:7,a2:7");
        }
        config_fini(&c);
    }
}

static int all(void *ctx)
{
    struct config c;
    struct leat_error err = {0};
    config_init(&c);
    int rc = config_load(&c, path, &err);
    if (rc == 0)
        rc = config_finish(&c, &err);
    config_fini(&c);
    assert_true(rc == 0 || err.message[0]);
    return rc;
}

static void test_allocations(void **state)
{
    struct config c;
    assert_int_equal(load(&c,
                          "[daemon]\nsocket = /s\nsocket = /t\njob = j\nroots = /a /b\n"
                          "[net]\nlisten = h:1\ntoken_file = /t\nnodes = h:1 i:1 j:1\n",
                          NULL),
                     0);
    config_fini(&c);
    assert_true(failalloc_run(all, NULL) > 10);
}

static int begin(void **state)
{
    strcpy(path, "/tmp/leat-test-config-XXXXXX");
    int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int end(void **state)
{
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_key),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_rails),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_booleans),
        cmocka_unit_test(test_old_names),
        cmocka_unit_test(test_ready_fits_the_pool),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_long_lines),
        cmocka_unit_test(test_finish),
        cmocka_unit_test(test_too_many_nodes),
        cmocka_unit_test(test_allocations),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
