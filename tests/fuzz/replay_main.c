/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay_main.c: runs a fuzz target without libFuzzer: over each file of the folders (or the files) named as
 * arguments, then over changes of it that a fixed seed gives: cut short, bytes replaced. One TAP line a file.
 *
 * The target says nothing; it fails by crashing or by a sanitizer's report. On the way down the input that did it is
 * named, and written to $REPLAY_SAVE if that is set. Every input lies in a block of exactly its size, so that ASan
 * sees a read one byte past it.
 */
#include <dirent.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CUTS    64u
#define CHANGES 256u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
__attribute__((weak)) int LLVMFuzzerInitialize(int *argc, char ***argv);
__attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)(void));

static unsigned test_no;
static const char *current_name;
static char current_change[64];
static const uint8_t *current_data;
static size_t current_size;

static void on_death(void)
{
    if (!current_name)
        return;
    printf("not ok %u - %s (%s)\n", test_no, current_name, current_change);
    fflush(stdout);
    const char *save = getenv("REPLAY_SAVE");
    FILE *f = save ? fopen(save, "wb") : NULL;
    if (f) {
        fwrite(current_data, 1, current_size, f);
        fclose(f);
    }
    current_name = NULL;
}

static void on_abort(int sig)
{
    on_death();
    signal(sig, SIG_DFL);
    raise(sig);
}

static uint64_t random_next(uint64_t *state) /* splitmix64 */
{
    uint64_t z = *state += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

static void run_exact(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1);
    if (!copy)
        abort();
    memcpy(copy, data, size);
    current_data = copy;
    current_size = size;
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

static void run_input(uint8_t *data, size_t size)
{
    snprintf(current_change, sizeof(current_change), "as it is");
    run_exact(data, size);
    size_t step = size / CUTS + 1;
    for (size_t len = 0; len < size; len += step) {
        snprintf(current_change, sizeof(current_change), "cut to %zu bytes", len);
        run_exact(data, len);
    }
    uint64_t seed = size;
    static const uint8_t edges[] = {0x00, 0xff, 0x7f, 0x80, 0x01, '0', '/', '\n'};
    for (unsigned i = 0; size && i < CHANGES; i++) {
        /* Headers come first: half of the changes go to the first 512 bytes. */
        size_t reach = i % 2 && size > 512 ? 512 : size;
        size_t at = random_next(&seed) % reach, n = 1 + random_next(&seed) % 8;
        uint8_t kept[8];
        if (n > size - at)
            n = size - at;
        memcpy(kept, data + at, n);
        uint64_t r = random_next(&seed);
        if (r % 3 == 0)
            memset(data + at, edges[(r >> 8) % sizeof(edges)], n);
        else if (r % 3 == 1)
            memcpy(data + at, &r, n);
        else
            data[at] ^= (uint8_t)(1u << (r >> 8) % 8);
        snprintf(current_change, sizeof(current_change), "change %u, at byte %zu", i, at);
        run_exact(data, size);
        memcpy(data + at, kept, n);
    }
}

static int run_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    struct stat st;
    if (!f || fstat(fileno(f), &st) < 0 || !S_ISREG(st.st_mode)) {
        printf("not ok %u - %s: cannot read it\n", ++test_no, path);
        if (f)
            fclose(f);
        return 1;
    }
    size_t size = (size_t)st.st_size;
    uint8_t *data = malloc(size + 1);
    if (!data || fread(data, 1, size, f) != size)
        abort();
    fclose(f);
    test_no++;
    current_name = path;
    run_input(data, size);
    current_name = NULL;
    printf("ok %u - %s\n", test_no, path);
    fflush(stdout);
    free(data);
    return 0;
}

static int run_folder(const char *folder)
{
    struct dirent **list;
    int n = scandir(folder, &list, NULL, alphasort), bad = 0;
    for (int i = 0; i < n; i++) {
        char path[4096];
        if (list[i]->d_name[0] != '.') {
            snprintf(path, sizeof(path), "%s/%s", folder, list[i]->d_name);
            bad |= run_file(path);
        }
        free(list[i]);
    }
    if (n >= 0)
        free(list);
    return bad;
}

int main(int argc, char **argv)
{
    if (LLVMFuzzerInitialize)
        LLVMFuzzerInitialize(&argc, &argv);
    if (__sanitizer_set_death_callback)
        __sanitizer_set_death_callback(on_death);
    else
        signal(SIGSEGV, on_abort);
    signal(SIGABRT, on_abort);
    int bad = 0;
    for (int i = 1; i < argc; i++) {
        struct stat st;
        bad |= stat(argv[i], &st) == 0 && S_ISDIR(st.st_mode) ? run_folder(argv[i]) : run_file(argv[i]);
    }
    if (test_no == 0) {
        printf("not ok 1 - no input: a corpus holds at least one seed\n");
        bad = test_no = 1;
    }
    printf("1..%u\n", test_no);
    return bad;
}
