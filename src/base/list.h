/* SPDX-License-Identifier: Apache-2.0 */
/* list.h: a doubly linked list whose nodes live inside their objects. Not thread-safe. */
#ifndef BASE_LIST_H
#define BASE_LIST_H

#include "base/base.h"

struct list {
    struct list *prev, *next;
};

static inline void list_init(struct list *l)
{
    l->prev = l->next = l;
}
static inline bool list_empty(const struct list *l)
{
    return l->next == l;
}
static inline void list_add_before(struct list *at, struct list *node)
{
    node->prev = at->prev;
    node->next = at;
    at->prev->next = node;
    at->prev = node;
}
#define list_push_back(head, node)  list_add_before((head), (node))
#define list_push_front(head, node) list_add_before((head)->next, (node))
/* Unlinks, and leaves the node a list of its own, so that removing twice does no harm. */
static inline void list_remove(struct list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    list_init(node);
}
#define list_first(head, type, member) (list_empty(head) ? NULL : container_of((head)->next, type, member))
#define list_for_each(pos, head)       for (struct list *pos = (head)->next; pos != (head); pos = pos->next)
#define list_for_each_safe(pos, head)                                                                        \
    for (struct list *pos = (head)->next, *pos##_next = pos->next; pos != (head);                            \
         pos = pos##_next, pos##_next = pos->next)

#endif
