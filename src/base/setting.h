/* SPDX-License-Identifier: Apache-2.0 */
/*
 * setting.h: values of configuration files, as text, into fields. Each returns 0, -ENOMEM, or LEAT_INVALID
 * with the key, the value and what is allowed; on failure the field is as it was (a list may have got some of
 * its words).
 */
#ifndef BASE_SETTING_H
#define BASE_SETTING_H

#include "base/base.h"

/* *field: freed and replaced by a copy. */
int setting_text(char **field, const char *value, struct leat_error *err);
/* yes, on, true, 1; no, off, false, 0 */
int setting_bool(bool *field, const char *key, const char *value, struct leat_error *err);
int setting_count(unsigned *field, const char *key, const char *value, unsigned least, unsigned most,
                  struct leat_error *err);
/* "64MiB" (base/size.h) */
int setting_bytes(uint64_t *field, const char *key, const char *value, uint64_t least,
                  struct leat_error *err);

/* A list that ends with NULL, and how many there are; *words NULL: an empty one. */
int setting_add_word(char ***words, unsigned *n, const char *word, struct leat_error *err);
/* Those in `value`, apart by commas or white space. */
int setting_add_words(char ***words, unsigned *n, const char *value, struct leat_error *err);
void setting_words_free(char **words); /* NULL is fine */

#endif
