/* List of the freed memory that is neither released nor reused yet, of the files of this folder only. */
#ifndef GPUSHARE_FREED_LIST_H
#define GPUSHARE_FREED_LIST_H

#include "memory/freed/freed.h"

#pragma GCC visibility push(hidden)

struct release {
    struct entry entry;
    CUcontext context;     /* of the event */
    CUevent event;         /* NULL: none */
    CUstream stream;       /* orders the free; NULL: it has ended, or is the default stream of one thread */
    bool may_stay_on_host; /* at the free, for which the memory has advice */
    uint64_t began;
    struct release *next;
};

enum search_step { SKIP, TAKE, STOP }; /* STOP: end the search without a release */

static inline CUstream ordering_stream(CUstream stream) {
    return stream == DEFAULT ? CU_STREAM_LEGACY : stream == CU_STREAM_PER_THREAD ? NULL : stream;
}

struct release *
freed_list_new(CUcontext context);              /* with an event of the context, where a spare one has such an event */
void freed_list_spare(struct release *release); /* keep it for its event, without its memory */
void freed_list_drop_spares(CUcontext context); /* the context has ended, and with it the events */
void freed_list_add(struct release *release);
/* Take all chosen releases. A taken release counts for deferred_any until freed_list_uncount. `chosen` runs under the
 * lock. */
struct release *freed_list_take(bool (*chosen)(struct release *release, void *data), void *data);
/* Likewise one release, of those with about min_bytes to max_bytes. */
struct release *freed_list_take_one(uint64_t min_bytes, uint64_t max_bytes,
                                    enum search_step (*chosen)(struct release *release, void *data), void *data);
void freed_list_uncount(void);
void freed_list_after_fork(void);

#pragma GCC visibility pop

#endif
