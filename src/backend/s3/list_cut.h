/* SPDX-License-Identifier: Apache-2.0 */
/* list_cut.h: where a long list may be cut (list.c), guessed from its pages. Pure. A bad guess costs requests, never keys. */
#ifndef BACKEND_S3_LIST_CUT_H
#define BACKEND_S3_LIST_CUT_H

#include "wire/s3/s3.h"

#define LIST_CUT_GUESSES 16u
#define LIST_CUT_PAGES   1.9 /* pages between two guesses */

/* Facts from the pages of one stream. Zeroed at first. */
struct list_cut {
    char *first, *last; /* keys of the last page; NULL: none came */
    size_t folder;      /* of `last`, the folder in which all of the page lies: so many bytes */
    bool flat;          /* `last` lies in it directly, not in a folder below */
    bool
        tiny; /* the folders below hold so little that asking for their names costs as much as listing them */
    double
        keys; /* of the page, by its folders (or of all of it, if flat): what lies between two cuts at folders */
    unsigned run; /* pages in turn that were flat or tiny, in one folder */
    bool asked;   /* the folders beside this one were asked for */
    bool looked;  /* at this page */
};

/* One more page of the stream of this prefix, of at least one object. -ENOMEM: nothing has changed. */
int list_cut_learn(struct list_cut *c, const char *prefix, const struct s3_list *page);
void list_cut_fini(struct list_cut *c);
/*
 * Once a page: what to do to find cuts behind `last`. *ret_folder, which the caller frees: ask for the names in it; or up to `most` guesses, *ret_n
 * texts that the caller frees, in order; or neither. -ENOMEM.
 */
int list_cut_where(struct list_cut *c, const char *prefix, unsigned most, char **ret_folder,
                   char *ret_cuts[LIST_CUT_GUESSES], unsigned *ret_n);

#endif
