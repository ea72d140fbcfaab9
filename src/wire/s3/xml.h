/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xml.h: the small, flat XML of S3, out of a stream: which text stands in which element. Parsing is expat's; document types and
 * so entities of one's own are refused, depth and length are bounded, namespaces are left out of names.
 */
#ifndef WIRE_S3_XML_H
#define WIRE_S3_XML_H

#include "base/base.h"

#define XML_DEPTH_MAX 16u
#define XML_TEXT_MAX  (8 * KIB) /* of one element */
#define XML_NAME_MAX  128u      /* of a path of names */

struct xml_reader;

/*
 * Called at the end of each element: `path` is the names from the root on ("ListBucketResult/Contents/Key"),
 * `text` its own text without that of other elements, with spaces at both ends, NUL-terminated (a NUL cannot
 * be in XML). A negative answer ends all.
 */
typedef int (*xml_element_fn)(void *user, const char *path, const char *text, size_t len);
/* The same at the start of each element, without text. May be NULL. */
typedef int (*xml_start_fn)(void *user, const char *path);

/* NULL: out of memory. */
struct xml_reader *xml_reader_new(xml_start_fn start, xml_element_fn end, void *user);
void xml_reader_free(struct xml_reader *r); /* NULL is fine */
/* Some more bytes; `last`: the document ends with them. 0, LEAT_CORRUPT (with line and reason), -ENOMEM, or what a callback answered. */
int xml_reader_feed(struct xml_reader *r, const void *data, size_t len, bool last, struct leat_error *err);

struct bytes_out;
/* Text of an element: & < > " and what XML 1.0 cannot hold as a reference (which readers may refuse). */
void xml_put_text(struct bytes_out *out, const char *text, size_t len);

#endif
