/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Happy path: the file is read in one go into a table sorted by access keys; a request finds its user by
 * bisection, and the day's signing key in the user's own cache.
 * Failure modes: a file that others may read, a section without a secret, a word that is not known: refused
 * whole, with its line.
 * Invariants: secrets are wiped when their table goes; a table in use stays as it is until its last user
 * releases it.
 */
#include "serve/s3/keys.h"

#include "base/array.h"
#include "base/bytes.h"
#include "base/fdio.h"
#include "base/ini.h"
#include "base/secret_file.h"
#include "base/setting.h"
#include "wire/http/http.h"
#include "wire/s3/sigv4_check.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <pthread.h>
#include <sys/stat.h>

#define FILE_MAX (4 * MIB)

struct keys {
    _Atomic unsigned refs;
    pthread_mutex_t lock; /* the users' derived keys */
    unsigned n;
    struct keys_user **users; /* with keys, by access key */
    struct keys_user anonymous;
};

/* --- the table ------------------------------------------------------------------------------------------------------------- */

static void user_fini(struct keys_user *u)
{
    free(u->access);
    if (u->secret)
        OPENSSL_cleanse(u->secret, strlen(u->secret));
    free(u->secret);
    setting_words_free(u->read);
    setting_words_free(u->write);
    OPENSSL_cleanse(u->derived, sizeof(u->derived));
}

struct keys *keys_ref(struct keys *keys)
{
    atomic_fetch_add_explicit(&keys->refs, 1, memory_order_relaxed);
    return keys;
}

void keys_unref(struct keys *keys)
{
    if (!keys || atomic_fetch_sub_explicit(&keys->refs, 1, memory_order_acq_rel) != 1)
        return;
    for (unsigned i = 0; i < keys->n; i++) {
        user_fini(keys->users[i]);
        free(keys->users[i]);
    }
    free(keys->users);
    user_fini(&keys->anonymous);
    pthread_mutex_destroy(&keys->lock);
    free(keys);
}

int keys_none(bool open, struct keys **ret_keys)
{
    struct keys *keys = calloc(1, sizeof(*keys));
    if (!keys)
        return -ENOMEM;
    keys->refs = 1;
    pthread_mutex_init(&keys->lock, NULL);
    memcpy(keys->anonymous.name, "anonymous", 10);
    keys->anonymous.admin = keys->anonymous.create = open;
    *ret_keys = keys;
    return 0;
}

static int compare(const void *a, const void *b)
{
    return strcmp((*(struct keys_user *const *)a)->access, (*(struct keys_user *const *)b)->access);
}

const struct keys_user *keys_find(const struct keys *keys, const char *access)
{
    unsigned low = 0, high = keys->n;
    while (low < high) {
        unsigned mid = (low + high) / 2;
        int order = strcmp(access, keys->users[mid]->access);
        if (order == 0)
            return keys->users[mid];
        if (order < 0)
            high = mid;
        else
            low = mid + 1;
    }
    return NULL;
}

const struct keys_user *keys_named(const struct keys *keys, const char *name)
{
    for (unsigned i = 0; i < keys->n; i++) {
        if (strcmp(keys->users[i]->name, name) == 0)
            return keys->users[i];
    }
    return NULL;
}

const struct keys_user *keys_anonymous(const struct keys *keys)
{
    return &keys->anonymous;
}

static int derive(const struct keys_user *user, const char date[9], const char *region,
                  struct sigv4_key *ret_key)
{
    time_t when;
    char text[SIGV4_TIME];
    snprintf(text, sizeof(text), "%.8sT000000Z", date);
    return sigv4_time_parse(text, SIGV4_TIME - 1, &when)
               ? sigv4_key_derive(user->secret, when, region, "s3", ret_key)
               : LEAT_INVALID;
}

int keys_signing(struct keys *keys, const struct keys_user *user, const char date[9], const char *region,
                 struct sigv4_key *ret_key)
{
    struct keys_derived *slots = ((struct keys_user *)(uintptr_t)user)->derived;
    int rc = 0;
    if (strlen(region) >= sizeof(slots->region))
        return LEAT_INVALID;
    pthread_mutex_lock(&keys->lock);
    if (strcmp(slots[0].key.date, date) != 0 || strcmp(slots[0].region, region) != 0) {
        struct keys_derived other = slots[1];
        slots[1] = slots[0];
        slots[0] = other;
        if (strcmp(slots[0].key.date, date) != 0 || strcmp(slots[0].region, region) != 0) {
            slots[0].region[0] = 0;
            rc = derive(user, date, region, &slots[0].key);
            if (rc == 0)
                memcpy(slots[0].region, region, strlen(region) + 1);
        }
        OPENSSL_cleanse(&other, sizeof(other));
    }
    if (rc == 0)
        *ret_key = slots[0].key;
    pthread_mutex_unlock(&keys->lock);
    return rc;
}

static bool granted(char *const *patterns, const char *bucket)
{
    for (; patterns && *patterns; patterns++) {
        if (fnmatch(*patterns, bucket, 0) == 0)
            return true;
    }
    return false;
}

static bool user_may(const struct keys_user *user, const char *bucket, enum keys_right right)
{
    if (user->admin)
        return true;
    if (right == KEYS_OWN)
        return false;
    return granted(user->write, bucket) || (right == KEYS_READ && granted(user->read, bucket));
}

bool keys_may(const struct keys *keys, const struct keys_user *user, const char *bucket, const char *owner,
              enum keys_right right)
{
    return user_may(user, bucket, right) || user_may(&keys->anonymous, bucket, right) ||
           (user->access && *owner && strcmp(user->name, owner) == 0);
}

/* --- the file -------------------------------------------------------------------------------------------------------------- */

struct load {
    struct keys *keys;
    unsigned cap;
    const char *path;
    struct leat_error *err;
};

static struct keys_user *user_of(struct load *l, const char *section)
{
    struct keys *keys = l->keys;
    if (strcmp(section, "anonymous") == 0)
        return &keys->anonymous;
    for (unsigned i = keys->n; i > 0; i--) { /* usually the last one */
        if (strcmp(keys->users[i - 1]->name, section) == 0)
            return keys->users[i - 1];
    }
    if (keys->n >= KEYS_USERS_MAX || array_reserve(&keys->users, &l->cap, keys->n + 1) < 0)
        return NULL;
    struct keys_user *u = calloc(1, sizeof(*u));
    if (!u)
        return NULL;
    http_text_copy((struct http_text){section, strlen(section)}, u->name, sizeof(u->name));
    return keys->users[keys->n++] = u;
}

static int set_access(struct load *l, struct keys_user *u, const char *value)
{
    if (strcmp(value, "admin") == 0)
        u->admin = u->create = true;
    else if (strcmp(value, "create") == 0)
        u->create = true;
    else if (strcmp(value, "none") != 0)
        return error_set(l->err, LEAT_INVALID, "access = %.40s: give admin, create or none", value);
    return 0;
}

static int set_text(char **field, const char *value, size_t max)
{
    if (*field || !*value || strlen(value) > max)
        return LEAT_INVALID;
    *field = strdup(value);
    return *field ? 0 : -ENOMEM;
}

static int set(void *load, const char *section, const char *name, const char *value, struct leat_error *err)
{
    struct load *l = load;
    (void)err;
    if (!*section || strlen(section) > KEYS_NAME_MAX)
        return error_set(l->err, LEAT_INVALID,
                         "a user's name, as [default], of 1 to %u bytes stands before its lines",
                         KEYS_NAME_MAX);
    struct keys_user *u = user_of(l, section);
    if (!u)
        return error_set(l->err, -ENOMEM, "out of memory, or more than %u users", KEYS_USERS_MAX);
    int rc = 0;
    bool anonymous = u == &l->keys->anonymous;
    if (strcmp(name, "aws_access_key_id") == 0 && !anonymous)
        rc = set_text(&u->access, value, SIGV4_ACCESS_MAX);
    else if (strcmp(name, "aws_secret_access_key") == 0 && !anonymous)
        rc = set_text(&u->secret, value, 255);
    else if (strcmp(name, "access") == 0)
        return set_access(l, u, value);
    else if (strcmp(name, "read") == 0)
        rc = setting_add_words(&u->read, &u->nread, value, l->err);
    else if (strcmp(name, "write") == 0)
        rc = setting_add_words(&u->write, &u->nwrite, value, l->err);
    else if (anonymous)
        return error_set(l->err, LEAT_INVALID, "[anonymous] has no '%.40s': it has access, read, write",
                         name);
    else if (strncmp(name, "aws_", 4) != 0 && strcmp(name, "region") != 0)
        return error_set(
            l->err, LEAT_INVALID,
            "no '%.40s': a user has aws_access_key_id, aws_secret_access_key, access, read, write", name);
    return rc == LEAT_INVALID ? error_set(l->err, rc, "%s is empty, too long, or given twice", name) : rc;
}

static bool may_nothing(const struct keys_user *u)
{
    return !u->admin && !u->create && !u->read && !u->write;
}

/* Half a pair of keys is no key: an error. A file without users was cut off, or is not written yet. */
static int finish(struct load *l)
{
    struct keys *keys = l->keys;
    if (!keys->n && may_nothing(&keys->anonymous))
        return error_set(
            l->err, LEAT_INVALID,
            "%s: it names no user, so every request would be refused: give one, as in leat-serve(1), or "
            "remove the file and have it made by `leat serve --keys %s --new-keys`",
            l->path, l->path);
    for (unsigned i = 0; i < keys->n; i++) {
        const struct keys_user *u = keys->users[i];
        if (!u->access || !u->secret)
            return error_set(l->err, LEAT_INVALID,
                             "%s: [%s] needs aws_access_key_id and aws_secret_access_key", l->path, u->name);
    }
    if (keys->n)
        qsort(keys->users, keys->n, sizeof(keys->users[0]), compare);
    for (unsigned i = 1; i < keys->n; i++) {
        if (strcmp(keys->users[i - 1]->access, keys->users[i]->access) == 0)
            return error_set(l->err, LEAT_INVALID, "%s: [%s] and [%s] have the same aws_access_key_id",
                             l->path, keys->users[i - 1]->name, keys->users[i]->name);
    }
    return 0;
}

/* Lines pass a buffer of ours, which is wiped: stdio would leave secrets behind. */
static int read_file(struct load *l, FILE *file)
{
    char buffer[4096];
    setvbuf(file, buffer, _IOFBF, sizeof(buffer));
    int rc = ini_read(file, l->path, set, l, l->err);
    fclose(file);
    OPENSSL_cleanse(buffer, sizeof(buffer));
    return rc < 0 ? rc : finish(l);
}

static int load(const char *path, struct keys **ret_keys, struct stat *ret_st, struct leat_error *err)
{
    struct load l = {.path = path, .err = err};
    AUTO_CLOSE int fd = -1;
    char hint[LEAT_ERROR_MESSAGE_MAX];
    snprintf(hint, sizeof(hint), "; make one with: leat serve --keys %.300s --new-keys", path);
    int rc = secret_file_open("keys file", path, hint, false, &fd, err);
    if (rc < 0)
        return rc;
    if (fstat(fd, ret_st) < 0)
        return error_sys(err, -errno, "cannot look at keys file %s", path);
    if (ret_st->st_size > (off_t)FILE_MAX)
        return error_set(err, LEAT_INVALID, "keys file %s has %lld bytes, at most %llu are read", path,
                         (long long)ret_st->st_size, (unsigned long long)FILE_MAX);
    rc = keys_none(false, &l.keys);
    FILE *file = rc == 0 ? fdopen(fd, "re") : NULL;
    if (!file)
        rc = error_set(err, -ENOMEM, "out of memory for keys file %s", path);
    else {
        (void)TAKE_FD(fd);
        rc = read_file(&l, file);
    }
    if (rc < 0)
        keys_unref(l.keys);
    else
        *ret_keys = l.keys;
    return rc;
}

int keys_create(const char *path, struct leat_error *err)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"; /* no two that look alike */
    static const char more[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    uint8_t random[56];
    char access[21] = "LEAT", secret[41] = "", text[512];
    if (RAND_bytes(random, sizeof(random)) != 1)
        return error_set(err, -EIO, "no random bytes for a key");
    for (unsigned i = 4; i < 20; i++)
        access[i] = letters[random[i - 4] & 31];
    for (unsigned i = 0; i < 40; i++)
        secret[i] = more[random[16 + i] & 63];
    int n = snprintf(
        text, sizeof(text),
        "# Keys of `leat serve`, and what they may do: leat-serve(1). AWS's tools read this file as well:\n"
        "# AWS_SHARED_CREDENTIALS_FILE. Keep it to yourself (mode 0600).\n"
        "[default]\n"
        "aws_access_key_id = %s\n"
        "aws_secret_access_key = %s\n"
        "access = admin\n",
        access, secret);
    fd_make_parents(path);
    AUTO_CLOSE int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    int rc = 0;
    if (fd < 0)
        rc = errno == EEXIST
                 ? error_set(err, -EEXIST, "the keys file %s is there already: it is used without --new-keys",
                             path)
                 : error_set(err, LEAT_DENIED, "cannot make the keys file %s: %s; --keys names another", path,
                             strerror(errno));
    else if (write(fd, text, (size_t)n) != n || fsync(fd) < 0) {
        rc = error_set(err, errno == ENOSPC ? LEAT_NO_SPACE : -EIO, "cannot write the keys file %s: %s", path,
                       strerror(errno));
        unlink(path); /* half a file of keys would stand in the way of the next try */
    }
    OPENSSL_cleanse(text, sizeof(text));
    OPENSSL_cleanse(secret, sizeof(secret));
    OPENSSL_cleanse(random, sizeof(random));
    return rc;
}

/* --- the table of now ---------------------------------------------------------------------------------------------------------- */

struct keyring {
    pthread_mutex_t lock;
    struct keys *now;
    char *path;
    struct stat seen; /* keyring_check's caller's thread */
};

int keyring_new(const char *path, bool open, struct keyring **ret_ring, struct leat_error *err)
{
    struct keyring *ring = calloc(1, sizeof(*ring));
    if (!ring)
        return -ENOMEM;
    pthread_mutex_init(&ring->lock, NULL);
    int rc = 0;
    if (path) {
        ring->path = strdup(path);
        rc = ring->path ? load(path, &ring->now, &ring->seen, err) : -ENOMEM;
    } else {
        rc = keys_none(open, &ring->now);
    }
    if (rc < 0)
        keyring_free(ring);
    else
        *ret_ring = ring;
    return rc;
}

void keyring_free(struct keyring *ring)
{
    if (!ring)
        return;
    keys_unref(ring->now);
    free(ring->path);
    pthread_mutex_destroy(&ring->lock);
    free(ring);
}

struct keys *keyring_get(struct keyring *ring)
{
    pthread_mutex_lock(&ring->lock);
    struct keys *keys = keys_ref(ring->now);
    pthread_mutex_unlock(&ring->lock);
    return keys;
}

int keyring_check(struct keyring *ring, struct leat_error *err)
{
    struct stat st;
    struct keys *keys;
    if (!ring->path || stat(ring->path, &st) < 0)
        return 0; /* an editor may be replacing it */
    if (st.st_ino == ring->seen.st_ino && st.st_size == ring->seen.st_size &&
        st.st_mtim.tv_sec == ring->seen.st_mtim.tv_sec && st.st_mtim.tv_nsec == ring->seen.st_mtim.tv_nsec &&
        st.st_mode == ring->seen.st_mode)
        return 0;
    ring->seen = st; /* said once, whether it is good or not */
    int rc = load(ring->path, &keys, &st, err);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&ring->lock);
    struct keys *old = ring->now;
    ring->now = keys;
    pthread_mutex_unlock(&ring->lock);
    keys_unref(old);
    return 1;
}
