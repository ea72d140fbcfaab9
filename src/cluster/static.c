/* SPDX-License-Identifier: Apache-2.0 */
/* static.c: members from a configured list that never changes. */
#include "cluster/membership.h"

int membership_static_new(char *const *addresses, uint32_t n, const char *self, uint64_t incarnation,
                          struct membership **ret_members, struct leat_error *err)
{
    struct membership *m = calloc(1, sizeof(*m));
    int rc = m && (m->members = calloc(MAX(n, 1u), sizeof(*m->members)))
                 ? 0
                 : error_set(err, -ENOMEM, "out of memory");
    for (; rc == 0 && m->n < n; m->n++) {
        m->members[m->n] = (struct cluster_member){.id = m->n + 1ull, .address = strdup(addresses[m->n])};
        if (!m->members[m->n].address)
            rc = error_set(err, -ENOMEM, "out of memory");
    }
    if (rc == 0 && (m->self = membership_find(m, self)) == MEMBER_NONE)
        rc = error_set(err, LEAT_INVALID,
                       "nodes does not contain listen = %s: write it there as the other nodes do", self);
    if (rc < 0) {
        membership_free(m);
        return rc;
    }
    m->members[m->self].incarnation = incarnation;
    *ret_members = m;
    return 0;
}
