/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists: every object below a prefix, or what lies in it directly, in the order of keys; of long ones several stretches at a time
 * (decisions 0097, 0106).
 *
 * Happy path: the first page is asked for plainly, and a list of one page is one request. Each page names the next, which is asked for
 * before the objects of this one are handed on: a stream. When the first page was handed on and the list continues, it is cut in ranges at guessed
 * keys: names of the folders to come (one request with a delimiter gets a thousand), or numbers that continue those of the last page.
 * Each range is a stream of its own, begun by start-after, and a few are on their way at a time, the nearest first. They are handed on in turn.
 *
 *       range 0                      range 1                   range 2
 *     k0 k1 ... k9 | k10 k11       k10 k11 ... k21 | k22      k22 ...
 *                  ^ until         ^ the seam holds: both streams have k10 here
 *
 * Invariant: what is handed on is one list as the server would have given it page by page, whatever its order is and whatever it makes of
 * start-after. A cut is only ever a guess: the stream on its left runs until it shows a key behind the cut, and the one on the right continues
 * with that very key, or is dropped, and the left one continues itself. A page with names of folders in it has no order that is known between
 * them and the keys: no seam is in one.
 *
 * Failure modes: what fails ahead of its turn is asked for again in its turn, plainly; then it is the list's error. Cuts that do not hold
 * (a list that changes, a server without start-after or with an order of its own) end the cutting after a few.
 */
#include <stdio.h>

#include "backend/s3/list_cut.h"
#include "backend/s3/session.h"

#define WIDTH_MAX   16u        /* requests of a list under way */
#define AHEAD_BYTES (16 * MIB) /* of pages, come or under way, beside the stream whose turn it is */
#define MISFITS_MAX 3u         /* so many seams may fail */
#define PAGE_ROOM   (64 * KIB) /* a page may be so much larger, and a quarter, than the largest before */

struct listing;
struct range;

struct page {
    struct s3_exchange rq;
    struct list node; /* range.pages */
    struct listing *l;
    struct range *range; /* NULL: it is gone (of a scout) */
    struct bytes_out query;
    struct s3_list *list;
    size_t bytes; /* that are charged for it */
    bool limited;
    bool folders; /* it has names of some, beside keys */
};

/* A stretch of the list. It begins behind the `until` of the one before it. */
struct range {
    struct list node;  /* listing.ranges, in the order of keys */
    char *until;       /* the last key that may be in it; NULL: there is no end */
    struct list pages; /* that came, in order */
    struct page *asked;
    char *token; /* of the next page; NULL: there is none, or it was not begun */
    bool begun;
    bool guessed;  /* where it begins is a number, not a folder */
    unsigned cuts; /* it is made of so many; 0: not known */
    uint64_t keys; /* handed on */
    int rc;        /* the page that was asked for failed: why; ahead of its turn? */
    struct leat_error err;
    bool ahead;
    struct list_cut cut; /* what the last page says of where to cut */
};

struct listing {
    struct s3_session *b;
    struct target target;
    bool recursive;
    const char *after; /* or NULL */
    size_t prefix_len; /* of the key that was given */
    char *uri;         /* of an object: room for the longest */
    size_t bucket_len; /* "s3://bucket/" */
    int (*object)(void *user, const struct backend_object *object);
    void *user;
    struct leat_error *err;

    struct list ranges;
    struct page *scout;     /* asks for names of folders */
    unsigned asked, npages; /* under way; these, and those that came and are not handed on */
    unsigned unbegun, taken, misfits;
    bool plain; /* nothing is cut (any more) */
    unsigned fruitless,
        rest; /* questions in turn that found no cut; so many pages are to be taken before the next one */
    unsigned guesses;                  /* at a time: fewer where they were bad */
    size_t ahead_bytes, largest, most; /* ...; the largest page: its bytes; the most keys of one */
    double cut_keys;                   /* between two cuts, as seen so far */
    bool woken;
    int rc; /* no memory, where no caller could be told */
};

/* --- pages ------------------------------------------------------------------------------------------------------------- */

static void page_free(struct page *p)
{
    if (!p)
        return;
    request_cancel(&p->rq);
    request_fini(&p->rq);
    p->l->ahead_bytes -= p->bytes;
    p->l->npages--;
    list_remove(&p->node);
    s3_list_free(p->list);
    bytes_out_fini(&p->query);
    free(p);
}

static void page_over(struct s3_exchange *rq, int rc, const struct leat_error *err);

/* after, token: where it begins; NULL: at the first key. limited: only so large as could be expected. */
static int page_ask(struct listing *l, struct range *r, const char *after, const char *token,
                    const char *prefix, bool folders, bool limited, struct page **ret_page)
{
    struct page *p = calloc(1, sizeof(*p));
    if (!p)
        return -ENOMEM;
    p->l = l;
    p->range = r;
    l->npages++;
    list_init(&p->node);
    list_init(&p->rq.node);
    p->list = s3_list_new();
    if (token)
        s3_query_put(&p->query, "continuation-token", token);
    if (folders)
        s3_query_put(&p->query, "delimiter", "/");
    s3_query_put(&p->query, "encoding-type", "url");
    s3_query_put(&p->query, "list-type", "2");
    if (*prefix)
        s3_query_put(&p->query, "prefix", prefix);
    if (after && !token)
        s3_query_put(&p->query, "start-after", after);
    bytes_put(&p->query, "", 1);
    if (!p->list || p->query.failed) {
        page_free(p);
        return -ENOMEM;
    }
    p->limited = limited;
    p->bytes = limited ? l->largest + l->largest / 4 + PAGE_ROOM : 0;
    l->ahead_bytes += p->bytes;
    p->rq = (struct s3_exchange){
        .b = l->b,
        .target = &l->target,
        .say = {.method = "GET", .query = (const char *)p->query.data},
        .of_bucket = true,
        .repeatable = true,
        .text_max = p->bytes,
        .finished = page_over,
    };
    request_start(&p->rq);
    l->asked++;
    *ret_page = p;
    return 0;
}

static struct s3_object page_at(const struct page *p, size_t i)
{
    return s3_list_at(p->list, i);
}

/* --- ranges ------------------------------------------------------------------------------------------------------------ */

static struct range *range_of(struct list *node)
{
    return container_of(node, struct range, node);
}

static struct range *range_next(struct listing *l, struct range *r)
{
    return r->node.next == &l->ranges ? NULL : range_of(r->node.next);
}

/* A new one behind `before`, which ends with `cut` now; what was its end is that of the new one. */
static int range_cut(struct listing *l, struct range *before, const char *cut)
{
    struct range *r = calloc(1, sizeof(*r));
    char *until = strdup(cut);
    if (!r || !until) {
        free(r);
        free(until);
        return -ENOMEM;
    }
    list_init(&r->pages);
    list_push_front(&before->node, &r->node);
    r->until = before->until;
    r->cuts = 1;
    before->until = until;
    l->unbegun++;
    return 0;
}

static void range_free(struct listing *l, struct range *r)
{
    struct page *p;
    if (r->asked)
        l->asked--;
    page_free(r->asked);
    while ((p = list_first(&r->pages, struct page, node)))
        page_free(p);
    l->unbegun -= !r->begun;
    if (l->scout && l->scout->range == r)
        l->scout->range = NULL;
    list_remove(&r->node);
    free(r->until);
    free(r->token);
    list_cut_fini(&r->cut);
    free(r);
}

/* `r` extends to where the next one ends. */
static void range_swallow(struct listing *l, struct range *r)
{
    struct range *next = range_next(l, r);
    free(r->until);
    r->until = TAKE_PTR(next->until);
    if (r->cuts)
        r->cuts += next->cuts;
    range_free(l, next);
}

/* The value of a range: the rest of its last page is thrown away. */
static double range_keys(const struct listing *l)
{
    return LIST_CUT_PAGES * (double)l->most;
}

/* Does it continue, and within its end as far as is known? */
static bool range_goes_on(const struct range *r)
{
    return r->token && (!r->until || !r->cut.last || strcmp(r->cut.last, r->until) < 0);
}

static bool range_may_ask(const struct range *r)
{
    return range_goes_on(r) && !r->asked && r->rc == 0;
}

/* Asks for its next page, or its first. */
static int range_ask(struct listing *l, struct range *r, bool limited)
{
    const char *after = l->after;
    if (r->node.prev != &l->ranges)
        after = range_of(r->node.prev)->until;
    return page_ask(l, r, after, r->token, l->target.key, !l->recursive, limited, &r->asked);
}

static int range_begin(struct listing *l, struct range *r)
{
    struct range *next;
    while (r->until && (next = range_next(l, r)) && !next->begun &&
           (r->cuts + 1) * l->cut_keys <= range_keys(l))
        range_swallow(l, r);
    r->begun = true;
    l->unbegun--;
    return range_ask(l, r, true);
}

/* --- what comes -------------------------------------------------------------------------------------------------------- */

/* Cuts a range behind what came of it; places that are not in order, or not inside, are passed over. */
static int split(struct listing *l, struct range *r, char *const *cuts, size_t n, bool guessed)
{
    const char *least = r->cut.last;
    double keys = r->cut.keys;
    unsigned before = l->unbegun, run = r->cut.run;
    for (size_t i = 0; i < n; i++) {
        if (strcmp(cuts[i], least) <= 0)
            continue;
        if (r->until && strcmp(cuts[i], r->until) >= 0)
            break;
        int rc = range_cut(l, r, cuts[i]);
        if (rc < 0)
            return rc;
        least = r->until;
        r = range_next(l, r);
        r->guessed = guessed;
    }
    if (l->unbegun == before) {
        l->rest = l->taken + (1u << MIN(l->fruitless++, 10u));
        return 0;
    }
    l->fruitless = 0;
    l->cut_keys = guessed ? range_keys(l) : keys;
    if (guessed)
        r->cut.run = run + 2 * (l->unbegun - before); /* it continues from there, as far again */
    return 0;
}

/* The folders behind what is known. */
static int scout_over(struct listing *l, struct page *p, int rc)
{
    struct range *r = p->range;
    size_t n = rc == 0 ? s3_list_count(p->list) : 0, found = 0;
    l->plain |=
        rc < 0; /* a server that has no such lists, or is in trouble: it is not asked for more than is due */
    if (!r || rc < 0)
        return 0;
    char **cuts = calloc(n + 1, sizeof(*cuts));
    for (size_t i = 0; cuts && i < n; i++) {
        struct s3_object o = page_at(p, i);
        if (o.prefix)
            cuts[found++] = (char *)o.key;
    }
    rc = cuts ? split(l, r, cuts, found, false) : -ENOMEM;
    free(cuts);
    return rc;
}

static int range_page(struct listing *l, struct range *r, struct page *p)
{
    const char *token = s3_list_next(p->list);
    if (token && strcmp(token, r->token ? r->token : "") == 0)
        return error_set(&r->err, LEAT_CORRUPT, "%.300s: list of objects: it repeats itself without end",
                         l->target.shown);
    size_t n = s3_list_count(p->list);
    l->most = MAX(l->most, n);
    /* Keys before the cut were not requested: the seam will not hold, and nor will others. */
    if (!r->cut.last && n && r->node.prev != &l->ranges &&
        strcmp(s3_list_at(p->list, 0).key, range_of(r->node.prev)->until) <= 0)
        l->plain = true;
    char *next = token ? strdup(token) : NULL;
    int rc = token && !next ? -ENOMEM : 0;
    for (size_t i = 0; i < n && !l->recursive; i++)
        p->folders |= s3_list_at(p->list, i).prefix;
    if (rc == 0 && n && !p->folders)
        rc = list_cut_learn(&r->cut, l->target.key, p->list);
    if (rc < 0) {
        free(next);
        return rc;
    }
    free(r->token);
    r->token = next;
    return 0;
}

static void page_over(struct s3_exchange *rq, int rc, const struct leat_error *err)
{
    struct page *p = container_of(rq, struct page, rq);
    struct listing *l = p->l;
    struct range *r = p->range;
    struct leat_error why = {0};
    l->woken = true;
    l->asked--;
    if (rc == 0) {
        rc = s3_list_feed(p->list, rq->text.data, rq->text.len, true, &why);
        if (rc < 0)
            error_prefix(&why, rc, "%.300s", l->target.shown);
    } else if (err) {
        why = *err;
    }
    l->ahead_bytes -= p->bytes;
    p->bytes = rq->text.len;
    l->ahead_bytes += p->bytes;
    l->largest = MAX(l->largest, rq->text.len);
    bytes_out_fini(&rq->text);
    rq->text = (struct bytes_out){0};
    if (p == l->scout) {
        rc = scout_over(l, p, rc);
        if (rc < 0)
            l->rc = rc;
        l->scout = NULL;
        page_free(p);
        return;
    }
    r->asked = NULL;
    r->err = why;
    r->ahead = p->limited;
    if (rc == 0)
        rc = range_page(l, r, p);
    r->rc = rc;
    if (rc == 0)
        list_push_back(&r->pages, &p->node);
    else
        page_free(p);
}

/* --- what is asked for ------------------------------------------------------------------------------------------------- */

/* Nothing is left to begin: cut the nearest range that continues, if a cut is known. */
static int cut_more(struct listing *l)
{
    list_for_each (node, &l->ranges) {
        struct range *r = range_of(node);
        if (!range_goes_on(r) || !r->cut.last || r->cut.looked)
            continue;
        char *folder, *cuts[LIST_CUT_GUESSES];
        unsigned n;
        int rc = list_cut_where(&r->cut, l->target.key, l->guesses, &folder, cuts, &n);
        if (rc == 0 && folder)
            rc = page_ask(l, r, r->cut.last, NULL, folder, true, false, &l->scout);
        else if (rc == 0 && n)
            rc = split(l, r, cuts, n, true);
        for (unsigned i = 0; i < n; i++)
            free(cuts[i]);
        bool found = folder || n;
        free(folder);
        if (rc < 0 || found)
            return rc;
    }
    return 0;
}

static int pump(struct listing *l)
{
    struct s3_session *b = l->b;
    struct range *head = range_of(l->ranges.next);
    /* The range in turn continues by itself, as if it were alone: one page ahead. */
    bool bare = list_empty(&head->pages);
    if (bare ? head->token && !head->asked && head->rc == 0
             : head->pages.next == head->pages.prev && range_may_ask(head)) {
        int rc = range_ask(l, head, false);
        if (rc < 0)
            return rc;
    }
    if (l->plain || l->taken == 0)
        return 0;
    /* The longer a list is read, the more is asked for ahead: a caller that wants a few keys does not cost
     * the server many requests. */
    unsigned most = MIN(WIDTH_MAX, b->config.connections), width = MIN(most, 2 * l->taken);
    width = MIN(width, (unsigned)throttle_limit(b->throttle, b->max_blocks));
    if (l->unbegun == 0 && !l->scout && l->taken >= l->rest) {
        int rc = cut_more(l);
        if (rc < 0)
            return rc;
    }
    list_for_each (node, &l->ranges) {
        struct range *r = range_of(node);
        size_t room = l->largest + l->largest / 4 + PAGE_ROOM;
        if (l->asked >= width || l->npages >= 2 * width || l->ahead_bytes + room > AHEAD_BYTES)
            break;
        int rc = !r->begun ? range_begin(l, r) : range_may_ask(r) ? range_ask(l, r, true) : 0;
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Until something has come. */
static int listing_wait(struct listing *l)
{
    l->woken = false;
    int rc = session_run(l->b, &l->woken, l->err);
    rc = rc == 0 ? l->rc : rc;
    return rc < 0 ? rc : pump(l);
}

/* --- what is handed on ------------------------------------------------------------------------------------------------- */

static int hand_on(struct listing *l, const struct s3_object *o)
{
    if (strncmp(o->key, l->target.key, l->prefix_len) != 0)
        return error_set(l->err, LEAT_CORRUPT, "%.300s: list of objects: a key outside the requested range",
                         l->target.shown);
    memcpy(l->uri + l->bucket_len, o->key, o->key_len + 1);
    struct backend_object out = {
        .uri = l->uri,
        .name = l->uri + l->bucket_len + l->prefix_len,
        .bytes = o->bytes,
        .etag = strlen(o->etag) < BACKEND_ETAG_MAX ? o->etag : "",
        .modified = o->modified,
        .prefix = o->prefix,
    };
    return l->object(l->user, &out);
}

/* The stream of the first range shows this key, which is behind its end. 1: the next range continues with
 * it; 0: the first one does. `plain`: its page has keys alone. */
static int seam(struct listing *l, struct range *r, const char *key, bool plain)
{
    struct range *next;
    if (r->cuts)
        l->cut_keys += ((double)r->keys / r->cuts - l->cut_keys) / 8;
    if (r->guessed && (double)r->keys < range_keys(l) / 8)
        l->guesses /= 2;
    else if (r->guessed && l->guesses)
        l->guesses = MIN(l->guesses + 1, LIST_CUT_GUESSES);
    /* Pages that arrive here may cut `r` once more, if the server has an order of its own: the range that
     * is next by then continues. */
    while ((next = range_next(l, r))->begun && next->asked && list_empty(&next->pages)) {
        int rc = listing_wait(l);
        if (rc < 0)
            return rc;
    }
    struct page *p = list_first(&next->pages, struct page, node);
    if (plain && p && !p->folders && s3_list_count(p->list) && strcmp(page_at(p, 0).key, key) == 0) {
        range_free(l, r);
        return 1;
    }
    if (next->begun && ++l->misfits >= MISFITS_MAX)
        l->plain = true;
    range_swallow(l, r);
    return 0;
}

/* One page of the range whose turn it is. 1: there is more; 0: that was all. */
static int take(struct listing *l)
{
    struct range *r = range_of(l->ranges.next);
    struct page *p;
    while (!(p = list_first(&r->pages, struct page, node))) {
        if (r->rc < 0 && !r->ahead) {
            if (l->err)
                *l->err = r->err;
            return r->rc;
        }
        if (!r->token && !r->asked)
            return 0;
        r->rc = 0; /* it failed ahead of its turn: now it is asked for plainly */
        int rc = r->asked ? listing_wait(l) : pump(l);
        if (rc < 0)
            return rc;
    }
    l->taken++;
    int rc = pump(l);
    /* Requested pages are on their way while the objects are handed on. A timer that a callback sets fires
     * in the next turn. */
    for (int i = 0; i < 3 && rc == 0; i++)
        rc = MIN(loop_turn(l->b->loop, 0), 0);
    for (size_t i = 0; rc == 0 && i < s3_list_count(p->list); i++) {
        struct s3_object o = page_at(p, i);
        while (r->until && strcmp(o.key, r->until) > 0) {
            rc = seam(l, r, o.key, !p->folders);
            if (rc != 0)
                return rc;
        }
        rc = hand_on(l, &o);
        r->keys++;
    }
    page_free(p);
    return rc < 0 ? rc : 1;
}

int s3_list(struct backend *base, const char *uri, bool recursive, const char *after,
            int (*object)(void *user, const struct backend_object *object), void *user,
            struct leat_error *err)
{
    struct s3_session *b = session_of(base);
    struct listing l = {.b = b,
                        .recursive = recursive,
                        .after = after && *after ? after : NULL,
                        .guesses = LIST_CUT_GUESSES,
                        .object = object,
                        .user = user,
                        .err = err};
    list_init(&l.ranges);
    int rc = target_parse(b, uri, &l.target, err);
    if (rc == 0 && !l.target.bucket)
        rc = error_set(err, LEAT_UNSUPPORTED,
                       "%.300s: a plain web server has no lists: give the files one by one, or a pattern "
                       "like shard-{000..099}.tar",
                       uri);
    struct range *all = rc == 0 ? calloc(1, sizeof(*all)) : NULL;
    if (rc == 0) {
        l.prefix_len = strlen(l.target.key);
        l.bucket_len = strlen("s3://") + strlen(l.target.bucket->name) + 1;
        l.uri = malloc(l.bucket_len + S3_KEY_MAX + 1);
        rc = l.uri && all ? 0 : -ENOMEM;
    }
    if (all) {
        list_init(&all->pages);
        list_push_back(&l.ranges, &all->node);
        all->begun = true;
    }
    if (rc == 0) {
        snprintf(l.uri, l.bucket_len + 1, "s3://%s/", l.target.bucket->name);
        rc = range_ask(&l, all, false);
    }
    while (rc == 0 && (rc = take(&l)) == 1)
        rc = 0;
    page_free(TAKE_PTR(l.scout)); /* else its range would be notified of its end */
    while (!list_empty(&l.ranges))
        range_free(&l, range_of(l.ranges.next));
    free(l.uri);
    target_fini(&l.target);
    return rc;
}
