/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>

#include "wire/json_whole.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "failalloc.h"

#include <cmocka.h>

static char whole[4096];

/* Jansson's own, so that they fail in turn as ours do. */
static void *jansson_malloc(size_t n)
{
    return malloc(n);
}

static void jansson_free(void *p)
{
    free(p);
}

static int whole_or_nothing(void *ctx)
{
    char *text = json_whole(ctx);
    if (!text)
        return -ENOMEM;
    assert_string_equal(text, whole);
    free(text);
    return 0;
}

static void test_whole_or_nothing(void **state)
{
    size_t at = 0;
    json_t *json = json_object();
    for (unsigned k = 0; k < 40; k++) {
        char key[32];
        snprintf(key, sizeof(key), "a key of some length, %u", k);
        json_object_set_new(json, key, json_integer(k));
        at += (size_t)snprintf(whole + at, sizeof(whole) - at, "%s\"%s\":%u", k ? "," : "{", key, k);
    }
    snprintf(whole + at, sizeof(whole) - at, "}");
    failalloc_run(whole_or_nothing, json);
    json_decref(json);
    assert_null(json_whole(NULL));
}

int main(void)
{
    json_set_alloc_funcs(jansson_malloc, jansson_free);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_whole_or_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
