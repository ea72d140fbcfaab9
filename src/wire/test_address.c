/* SPDX-License-Identifier: Apache-2.0 */
/* Schemes: in any case, whole, and nothing else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "wire/address.h"

static void test_of(void **state)
{
    static const struct {
        const char *text;
        enum address address;
        bool remote, lists;
    } known[] = {{"leat://train", ADDRESS_SET, false, false},
                 {"LEAT://train", ADDRESS_SET, false, false},
                 {"s3://bucket/key", ADDRESS_S3, true, true},
                 {"S3://bucket", ADDRESS_S3, true, true},
                 {"http://h/x", ADDRESS_WEB, true, false},
                 {"https://h/x", ADDRESS_WEB, true, false},
                 {"HttpS://h/x", ADDRESS_WEB, true, false},
                 {"store://bucket/", ADDRESS_STORE, true, true},
                 {"Store://bucket/", ADDRESS_STORE, true, true},
                 {"", ADDRESS_NONE, false, false},
                 {"s3", ADDRESS_NONE, false, false},
                 {"s3:/", ADDRESS_NONE, false, false},
                 {"s3:/bucket", ADDRESS_NONE, false, false},
                 {"s3s://bucket", ADDRESS_NONE, false, false},
                 {" s3://bucket", ADDRESS_NONE, false, false},
                 {"/s3://bucket", ADDRESS_NONE, false, false},
                 {"gs://bucket", ADDRESS_NONE, false, false},
                 {"file:///data", ADDRESS_NONE, false, false}};
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        assert_int_equal(address_of(known[i].text), known[i].address);
        assert_int_equal(address_is_remote(known[i].address), known[i].remote);
        assert_int_equal(address_has_lists(known[i].address), known[i].lists);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_of)};
    return cmocka_run_group_tests_name("wire_address", tests, NULL, NULL);
}
