/* SPDX-License-Identifier: Apache-2.0 */
/* Sets that ranks fill. */
#include "client/test_fixture.h"

static struct leat_error err;

static void test_push(void **state)
{
    struct fixture x;
    fixture_open(&x, (struct fake_options){.pushed = true, .remote_odd = true, .all_loading = true});
    assert_string_equal(strrchr(leat_ws_uri(x.ws), 0) - 4, "/set"); /* absolute */
    /* Wipe the pool, push it all back, and read it. */
    for (uint32_t r = 0; r < x.daemon->nregions; r++)
        memset(x.daemon->regions[r], 0, FAKE_REGION_BYTES);
    uint8_t *data = malloc(60 * FAKE_SAMPLES), *blob = malloc(6000 * FAKE_SAMPLES), *at = blob;
    uint32_t labels[FAKE_SAMPLES];
    uint64_t lengths[FAKE_SAMPLES];
    for (uint64_t i = 0; i < FAKE_SAMPLES; i++) {
        bool present;
        for (unsigned k = 0; k < 60; k++)
            data[i * 60 + k] = fake_byte(i, 0, k);
        uint64_t bytes = fake_bytes(i, 1, &present);
        lengths[i] = present ? bytes : 0;
        for (uint64_t k = 0; k < lengths[i]; k++)
            *at++ = fake_byte(i, 1, k);
        labels[i] = i % 3;
    }
    struct leat_push_field fields[] = {
        {.size = sizeof(fields[0]), .data = data, .bytes = 60 * FAKE_SAMPLES},
        {.size = sizeof(fields[0]),
         .data = blob,
         .bytes = (uint64_t)(at - blob),
         .lengths = lengths,
         .nlengths = FAKE_SAMPLES},
        {.size = sizeof(fields[0])},
    };
    int rc = leat_push(x.ws, 0, FAKE_SAMPLES, fields, 3, 0, &err);
    if (rc)
        print_message("%s\n", err.message);
    assert_int_equal(rc, 0);
    fixture_read_all(x.ws);
    assert_int_equal(leat_push(x.ws, FAKE_SAMPLES - 1, 2, fields, 3, 0, &err), LEAT_INVALID);
    assert_int_equal(leat_push(x.ws, 0, FAKE_SAMPLES, fields, 2, 0, &err), LEAT_INVALID);
    assert_int_equal(leat_push(x.ws, 0, FAKE_SAMPLES, NULL, 3, 0, &err), LEAT_INVALID);

    /* Each wrong in one thing, which the message names. */
    const struct push_slip {
        unsigned field;
        struct leat_push_field is;
        const char *says;
    } slips[] = {
        {0, {sizeof(fields[0]), data, 60 * FAKE_SAMPLES - 1, NULL, 0}, "were given"},
        {0, {sizeof(fields[0]), NULL, 60 * FAKE_SAMPLES, NULL, 0}, "NULL"},
        {0, {sizeof(fields[0]), data, 60 * FAKE_SAMPLES, lengths, FAKE_SAMPLES}, "no lengths"},
        {1, {sizeof(fields[0]), blob, fields[1].bytes, NULL, 0}, "as many lengths"},
        {1, {sizeof(fields[0]), blob, fields[1].bytes, lengths, FAKE_SAMPLES - 1}, "as many lengths"},
        {1, {sizeof(fields[0]), blob, fields[1].bytes + 1, lengths, FAKE_SAMPLES}, "were given"},
        {2, {sizeof(fields[0]), labels, sizeof(labels), NULL, 0}, "labels"},
        {2, {0, NULL, 0, NULL, 0}, "another size"},
    };
    for (unsigned i = 0; i < ARRAY_LEN(slips); i++) {
        struct leat_push_field slip[3] = {fields[0], fields[1], fields[2]};
        slip[slips[i].field] = slips[i].is;
        assert_int_equal(leat_push(x.ws, 0, FAKE_SAMPLES, slip, 3, 0, &err), LEAT_INVALID);
        assert_non_null(strstr(err.message, slips[i].says));
    }
    /* The same sum, shared out otherwise: nothing may land in another sample. */
    unsigned i = 0;
    while (lengths[i] == lengths[i + 1])
        i++;
    const uint64_t swapped = lengths[i];
    lengths[i] = lengths[i + 1];
    lengths[i + 1] = swapped;
    assert_int_equal(leat_push(x.ws, 0, FAKE_SAMPLES, fields, 3, 0, &err), LEAT_INVALID);
    assert_non_null(strstr(err.message, "its length was given as"));
    free(data);
    free(blob);
    fixture_close(&x);
}

static void test_create(void **state)
{
    struct fixture x;
    fixture_open(&x, (struct fake_options){0});
    const uint64_t shape[] = {28, 28}, lengths[] = {10, 20, 0}, huge[] = {1ull << 40, 1ull << 40};
    const char *const keys[] = {"a", "b", "c"};
    enum { SIZE = sizeof(struct leat_create_field) };
    const struct leat_create_field image = {
        .size = SIZE, .name = "image", .dtype = "|u1", .shape = shape, .ndim = 2};
    const struct leat_create_field text = {.size = SIZE, .name = "text", .lengths = lengths, .nlengths = 3};
    struct leat_create_field fields[2] = {image, text};
    struct leat_create_options o = {.size = sizeof(o), .fields = fields, .nfields = 1, .nsamples = 100};
    assert_int_equal(leat_create(x.client, "mine", &o, &err), 0);
    o = (struct leat_create_options){
        .size = sizeof(o), .fields = fields, .nfields = 2, .nsamples = 3, .keys = keys, .nkeys = 3};
    assert_int_equal(leat_create(x.client, "mine", &o, &err), 0);

    const struct leat_create_field bad[] = {
        {.size = SIZE, .name = "text"},
        {.size = SIZE, .name = "text", .lengths = lengths, .nlengths = 2},
        {.size = SIZE, .name = "text", .nlengths = 3},
        {.size = SIZE, .name = "", .lengths = lengths, .nlengths = 3},
        {.size = SIZE,
         .name = "image",
         .dtype = "|u1",
         .shape = shape,
         .ndim = 2,
         .lengths = lengths,
         .nlengths = 3},
        {.size = SIZE, .name = "image", .dtype = "|u1", .ndim = 2},
        {.size = SIZE, .name = "image", .dtype = "|u1", .shape = shape, .ndim = 9},
        {.size = SIZE, .name = "image", .dtype = "object"},
        {.size = SIZE, .name = "image", .dtype = "<f7"},
        {.size = SIZE, .name = "image", .dtype = "<M8[foo]"},
        {.size = SIZE, .name = "image", .dtype = "<f8", .shape = huge, .ndim = 2},
    };
    for (unsigned i = 0; i < ARRAY_LEN(bad); i++) {
        fields[1] = bad[i];
        assert_int_equal(leat_create(x.client, "mine", &o, &err), LEAT_INVALID);
    }
    fields[1] = text;
    o.nkeys = 2;
    assert_int_equal(leat_create(x.client, "mine", &o, &err), LEAT_INVALID);
    o.nkeys = 3;
    o.keys = NULL;
    assert_int_equal(leat_create(x.client, "mine", &o, &err), LEAT_INVALID);
    o.keys = (const char *const[]){"a", NULL, "c"};
    assert_int_equal(leat_create(x.client, "mine", &o, &err), LEAT_INVALID);
    o.keys = keys;
    o.flags = LEAT_OPEN_PUBLIC | 1u << 20;
    assert_int_equal(leat_create(x.client, "mine", &o, &err), LEAT_INVALID);
    o.flags = LEAT_OPEN_PUBLIC;
    assert_int_equal(leat_create(x.client, "mine", &o, &err), 0);
    fixture_close(&x);
}

static void test_share(void **state)
{
    for (uint64_t n = 0; n < 50; n++)
        for (unsigned world = 1; world < 9; world++) {
            uint64_t next = 0, first, end;
            for (unsigned r = 0; r < world; r++) {
                leat_share(n, r, world, &first, &end);
                assert_int_equal(first, next);
                assert_true(end - first == n / world || end - first == n / world + 1);
                next = end;
            }
            assert_int_equal(next, n);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_push),
        cmocka_unit_test(test_create),
        cmocka_unit_test(test_share),
    };
    return cmocka_run_group_tests_name("client_push", tests, NULL, NULL);
}
