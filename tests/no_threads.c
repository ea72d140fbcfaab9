/* SPDX-License-Identifier: Apache-2.0 */
/* Linked into unit tests that ThreadSanitizer does not run (single_threaded in meson.build): one that starts a thread ends here. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *arg)
{
    (void)thread, (void)attr, (void)start, (void)arg;
    fputs("this test starts a thread: take it out of single_threaded in meson.build\n", stderr);
    abort();
}
