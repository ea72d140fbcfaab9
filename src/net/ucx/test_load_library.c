/* SPDX-License-Identifier: Apache-2.0 */
/* Loaded as if it were UCX: changes the environment while it is, as another thread may, and tells what it saw. */
#include <stdlib.h>

__attribute__((constructor)) static void change(void)
{
    const char *events = getenv("UCX_MEM_EVENTS");
    setenv("LEAT_TEST_EVENTS", events ? events : "", 1);
    for (char name[] = "LEAT_TEST_A"; name[10] <= 'Z'; name[10]++)
        setenv(name, "new", 1);
}
