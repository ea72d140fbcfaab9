/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A page that spans several folders is followed by more of them: their names are the cuts. One that lies in a
 * single folder lies beside others. Where there are no folders, or tiny ones, or an endless one, names are
 * numbers, perhaps: the pages to come are as far from each other as the ends of this one are.
 */
#include "backend/s3/list_cut.h"

#include <ctype.h>

#define DIGITS 12u /* 16^12 times what is done with it stays below 2^64 */
#define TINY   8u  /* keys of a folder */
#define CARRY  6u  /* digits that all of the page has in common, and the next ones may not */

void list_cut_fini(struct list_cut *c)
{
    free(c->first);
    free(c->last);
    *c = (struct list_cut){0};
}

/* Bytes up to and with the last "/" before `end`. */
static size_t folder_len(const char *key, size_t end)
{
    while (end && key[end - 1] != '/')
        end--;
    return end;
}

static size_t common_len(const char *a, const char *b)
{
    size_t n = 0;
    while (a[n] && a[n] == b[n])
        n++;
    return n;
}

int list_cut_learn(struct list_cut *c, const char *prefix, const struct s3_list *page)
{
    size_t n = s3_list_count(page), folders = 1;
    char *first = strdup(s3_list_at(page, 0).key), *last = strdup(s3_list_at(page, n - 1).key);
    if (!first || !last) {
        free(first);
        free(last);
        return -ENOMEM;
    }
    size_t folder = MAX(folder_len(first, common_len(first, last)), folder_len(prefix, strlen(prefix)));
    bool flat = !strchr(last + folder, '/');
    for (size_t i = 1; i < n && !flat; i++) {
        const char *a = s3_list_at(page, i - 1).key, *b = s3_list_at(page, i).key;
        size_t same = common_len(a, b);
        folders += same <= folder || !memchr(b + folder, '/', same - folder);
    }
    bool tiny = !flat && n < TINY * folders;
    bool again = c->last && flat == c->flat && folder == c->folder && strncmp(last, c->last, folder) == 0;
    if ((!flat && !tiny) || (c->last && !again))
        c->run = 0;
    c->run += flat || tiny;
    c->asked = c->asked && again && flat;
    c->tiny = tiny;
    c->keys = (double)n / (double)folders;
    c->folder = folder;
    c->flat = flat;
    c->looked = false;
    free(c->first);
    free(c->last);
    c->first = first;
    c->last = last;
    return 0;
}

/* --- numbers ----------------------------------------------------------------------------------------------------------- */

static const char digits[] = "0123456789abcdefghijklmnopqrstuvwxyz";

static unsigned digit_of(char c)
{
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (unsigned)(at - digits) : ARRAY_LEN(digits);
}

static unsigned guess(const struct list_cut *c, unsigned most, char *ret_cuts[])
{
    const char *a = c->first, *b = c->last;
    size_t same = common_len(a, b), end = same, start = same;
    unsigned top = 0, base, n = 0;
    for (unsigned x, y; end - same < DIGITS && (x = digit_of(a[end])) < 36 && (y = digit_of(b[end])) < 36;
         end++)
        top = MAX(top, x > y ? x : y);
    base = top < 10 ? 10 : top < 16 ? 16 : 36;
    while (start > c->folder && same - start < CARRY && digit_of(a[start - 1]) < base)
        start--;
    end = MIN(end, start + (base == 36 ? 9 : DIGITS)); /* 36^9 is below 2^47 */
    uint64_t low = 0, high = 0, limit = 1;
    for (size_t i = start; i < end; i++) {
        low = low * base + digit_of(a[i]);
        high = high * base + digit_of(b[i]);
        limit *= base;
    }
    uint64_t step = high > low ? (uint64_t)((double)(high - low) * LIST_CUT_PAGES) : 0;
    for (uint64_t v = high + step; step && v < limit && n < most; v += step) {
        char *cut = strndup(b, end);
        if (!cut)
            break;
        uint64_t rest = v;
        for (size_t i = end; i-- > start; rest /= base)
            cut[i] = digits[rest % base];
        ret_cuts[n++] = cut;
    }
    return n;
}

int list_cut_where(struct list_cut *c, const char *prefix, unsigned most, char **ret_folder,
                   char *ret_cuts[LIST_CUT_GUESSES], unsigned *ret_n)
{
    size_t least = strlen(prefix), len = c->flat ? folder_len(c->last, MAX(c->folder, 1u) - 1) : c->folder;
    bool beside = !c->flat || c->folder > least; /* are there folders beside, below the prefix? */
    *ret_folder = NULL;
    *ret_n = 0;
    c->looked = true;
    if (beside && !c->asked && !c->tiny) {
        char *folder = len > least ? strndup(c->last, len) : strdup(prefix);
        if (!folder)
            return -ENOMEM;
        c->asked = true;
        *ret_folder = folder;
    } else if (c->tiny || (c->flat && c->run > beside)) {
        most = MIN(most, LIST_CUT_GUESSES);
        *ret_n = guess(c, MIN(most, 2 * c->run), ret_cuts);
    }
    return 0;
}
