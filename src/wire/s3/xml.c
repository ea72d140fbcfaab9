/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Invariants: no allocation of ours grows with the document; after a failure the reader answers with it again. Not run on by deep
 * nesting: expat keeps no stack of calls, and we stop at XML_DEPTH_MAX.
 */
#include "wire/s3/xml.h"

#include <expat.h>

#include "base/bytes.h"

struct xml_reader {
    XML_Parser parser;
    xml_start_fn start;
    xml_element_fn end;
    void *user;
    int rc;
    const char *why;
    unsigned depth;
    size_t path_len[XML_DEPTH_MAX]; /* up to and with this level's name */
    char path[XML_NAME_MAX];
    char text[XML_TEXT_MAX + 1];
    size_t text_len;
};

static void stop(struct xml_reader *r, int rc, const char *why)
{
    if (r->rc == 0) {
        r->rc = rc;
        r->why = why;
    }
    XML_StopParser(r->parser, XML_FALSE);
}

static void on_start(void *user, const XML_Char *name, const XML_Char **attributes)
{
    struct xml_reader *r = user;
    (void)attributes;
    if (r->rc < 0)
        return;
    const char *colon = strrchr(name, ':');
    if (colon)
        name = colon + 1;
    size_t at = r->depth ? r->path_len[r->depth - 1] : 0, len = strlen(name);
    if (r->depth == XML_DEPTH_MAX || at + 1 + len + 1 > XML_NAME_MAX) {
        stop(r, LEAT_CORRUPT, "elements too deep, or names too long");
        return;
    }
    if (at)
        r->path[at++] = '/';
    memcpy(r->path + at, name, len + 1);
    r->path_len[r->depth++] = at + len;
    r->text_len = 0;
    int rc = r->start ? r->start(r->user, r->path) : 0;
    if (rc < 0)
        stop(r, rc, NULL);
}

static void on_end(void *user, const XML_Char *name)
{
    struct xml_reader *r = user;
    (void)name;
    if (r->rc < 0)
        return;
    r->text[r->text_len] = 0;
    int rc = r->end(r->user, r->path, r->text, r->text_len);
    if (rc < 0)
        stop(r, rc, NULL);
    r->depth--;
    r->path[r->depth ? r->path_len[r->depth - 1] : 0] = 0;
    r->text_len = 0;
}

static void on_text(void *user, const XML_Char *text, int len)
{
    struct xml_reader *r = user;
    if (r->rc < 0)
        return;
    if ((size_t)len > XML_TEXT_MAX - r->text_len) {
        stop(r, LEAT_CORRUPT, "a text too long");
        return;
    }
    memcpy(r->text + r->text_len, text, (size_t)len);
    r->text_len += (size_t)len;
}

static void on_doctype(void *user, const XML_Char *name, const XML_Char *system, const XML_Char *public,
                       int internal)
{
    (void)name, (void)system, (void)public, (void)internal;
    stop(user, LEAT_CORRUPT, "a document type, which S3 has none of");
}

struct xml_reader *xml_reader_new(xml_start_fn start, xml_element_fn end, void *user)
{
    struct xml_reader *r = calloc(1, sizeof(*r));
    if (!r)
        return NULL;
    r->start = start;
    r->end = end;
    r->user = user;
    r->parser = XML_ParserCreate("UTF-8");
    if (!r->parser) {
        free(r);
        return NULL;
    }
    XML_SetUserData(r->parser, r);
    XML_SetElementHandler(r->parser, on_start, on_end);
    XML_SetCharacterDataHandler(r->parser, on_text);
    XML_SetStartDoctypeDeclHandler(r->parser, on_doctype);
    return r;
}

void xml_reader_free(struct xml_reader *r)
{
    if (!r)
        return;
    XML_ParserFree(r->parser);
    free(r);
}

int xml_reader_feed(struct xml_reader *r, const void *data, size_t len, bool last, struct leat_error *err)
{
    const char *bytes = data;
    while (r->rc == 0) {
        int piece = (int)MIN(len, (size_t)(1 << 20));
        len -= (size_t)piece;
        enum XML_Status status = XML_Parse(r->parser, bytes, piece, last && len == 0);
        bytes += piece;
        if (status != XML_STATUS_OK && r->rc == 0) {
            enum XML_Error code = XML_GetErrorCode(r->parser);
            r->rc = code == XML_ERROR_NO_MEMORY ? -ENOMEM : LEAT_CORRUPT;
            r->why = XML_ErrorString(code);
        }
        if (len == 0)
            break;
    }
    if (r->rc == LEAT_CORRUPT && r->why)
        return error_set(err, r->rc, "XML, line %lu: %s", (unsigned long)XML_GetCurrentLineNumber(r->parser),
                         r->why);
    return r->rc;
}

void xml_put_text(struct bytes_out *out, const char *text, size_t len)
{
    static const char hex[] = "0123456789ABCDEF";
    size_t plain = 0; /* where what needs no reference began */
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        char number[] = {'&', '#', 'x', hex[c >> 4], hex[c & 15], ';', 0};
        const char *as = c == '&'                ? "&amp;"
                         : c == '<'              ? "&lt;"
                         : c == '>'              ? "&gt;"
                         : c == '"'              ? "&quot;"
                         : c < 0x20 || c == 0x7f ? number
                                                 : NULL;
        if (!as)
            continue;
        bytes_put(out, text + plain, i - plain);
        bytes_put(out, as, strlen(as));
        plain = i + 1;
    }
    bytes_put(out, text + plain, len - plain);
}
