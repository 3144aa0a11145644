/* Freed memory by its size, and spare releases of which only the event is used again. */
#include "memory/freed/freed_list.h"

#include <stdlib.h>
#include <string.h>

#define BUCKETS 256 /* four for each power of two */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct release *waiting[BUCKETS];
static struct release *spares;
static _Atomic uint32_t count; /* in `waiting`, or taken from there and not freed yet */

bool deferred_any(void) {
    return atomic_load_explicit(&count, memory_order_relaxed) != 0;
}

/* The width of a bucket is at least an eighth of its sizes. */
static unsigned bucket_of(uint64_t bytes) {
    unsigned log = 63 - (unsigned)__builtin_clzll(bytes | 4);
    return log * 4 + ((bytes >> (log - 2)) & 3);
}

struct release *freed_list_new(CUcontext context) {
    pthread_mutex_lock(&lock);
    struct release **link = &spares, *found;
    while (*link && (*link)->context != context)
        link = &(*link)->next;
    if ((found = *link))
        *link = found->next;
    pthread_mutex_unlock(&lock);
    if (!found && (found = calloc(1, sizeof *found)))
        found->context = context;
    return found;
}

void freed_list_spare(struct release *release) {
    pthread_mutex_lock(&lock);
    release->next = spares;
    spares = release;
    pthread_mutex_unlock(&lock);
}

void freed_list_drop_spares(CUcontext context) {
    pthread_mutex_lock(&lock);
    for (struct release **link = &spares; *link;) {
        struct release *gone = *link;
        if (gone->context != context) {
            link = &gone->next;
            continue;
        }
        *link = gone->next;
        free(gone);
    }
    pthread_mutex_unlock(&lock);
}

void freed_list_add(struct release *release) {
    struct release **bucket = &waiting[bucket_of(release->entry.bytes)];
    atomic_fetch_add(&count, 1);
    pthread_mutex_lock(&lock);
    release->next = *bucket;
    *bucket = release;
    pthread_mutex_unlock(&lock);
}

struct release *freed_list_take(bool (*chosen)(struct release *release, void *data), void *data) {
    struct release *taken = NULL;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < BUCKETS; i++)
        for (struct release **link = &waiting[i]; *link;) {
            struct release *release = *link;
            if (!chosen(release, data)) {
                link = &release->next;
                continue;
            }
            *link = release->next;
            release->next = taken;
            taken = release;
        }
    pthread_mutex_unlock(&lock);
    return taken;
}

struct release *freed_list_take_one(uint64_t min_bytes, uint64_t max_bytes,
                                    enum search_step (*chosen)(struct release *release, void *data), void *data) {
    struct release *found = NULL;
    enum search_step step = SKIP;
    pthread_mutex_lock(&lock);
    for (unsigned i = bucket_of(min_bytes); i <= bucket_of(max_bytes) && step == SKIP; i++)
        for (struct release **link = &waiting[i]; *link && step == SKIP; link = &(*link)->next)
            if ((step = chosen(*link, data)) == TAKE) {
                found = *link;
                *link = found->next;
                break;
            }
    pthread_mutex_unlock(&lock);
    return found;
}

void freed_list_uncount(void) {
    atomic_fetch_sub(&count, 1);
}

/* The driver may give the address of a destroyed stream to the next one. */
void deferred_stream_ends(CUstream stream) {
    if (!deferred_any())
        return;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < BUCKETS; i++)
        for (struct release *release = waiting[i]; release; release = release->next)
            if (release->stream == stream)
                release->stream = NULL;
    pthread_mutex_unlock(&lock);
}

void freed_list_after_fork(void) {
    pthread_mutex_init(&lock, NULL);
    memset(waiting, 0, sizeof waiting); /* left to the parent's heap image */
    spares = NULL;
    atomic_store(&count, 0);
}
