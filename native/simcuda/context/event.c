/* Memory of events, which may be a file that other processes open, and completion of event records. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/sim.h"
#include "base/waiting.h"
#include "context/context.h"

#define SHARED_POLL_NS 1000000 /* of an event that another process may complete */

static int is_shared(const struct sim_event *event) {
    return event->progress != &event->own;
}

void event_await_pinned(struct sim_event *event, uint64_t generation) {
    for (;;) {
        uint32_t seen = atomic_load(&event->progress->done);
        if (atomic_load(&event->progress->reached) >= generation)
            return;
        atomic_fetch_add(&event->waiters, 1);
        if (atomic_load(&event->progress->done) == seen)
            futex_wait(&event->progress->done, seen, is_shared(event) ? SHARED_POLL_NS : 0);
        atomic_fetch_sub(&event->waiters, 1);
    }
}

void event_complete(struct sim_event *event, uint64_t generation) {
    atomic_store(&event->progress->time, sim_now());
    uint64_t reached = atomic_load(&event->progress->reached); /* another process may be ahead */
    while (reached < generation && !atomic_compare_exchange_weak(&event->progress->reached, &reached, generation))
        ;
    atomic_fetch_add(&event->progress->done, 1);
    if (atomic_load(&event->waiters))
        futex_wake(&event->progress->done);
    event_unpin(event);
}

void event_await(struct sim_event *event, uint64_t generation) {
    event_await_pinned(event, generation);
    event_unpin(event);
}

/* Commands in flight keep a destroyed event's memory. */
void event_unpin(struct sim_event *event) {
    if (atomic_fetch_sub(&event->pending, 1) != 1)
        return;
    if (is_shared(event)) {
        munmap(event->progress, sizeof *event->progress);
        if (event->file >= 0)
            close(event->file);
    }
    object_put(event, MAGIC_EVENT);
}

CUresult event_new(struct sim_context *context, unsigned flags, int file, CUevent *out) {
    struct sim_event *event = object_get(MAGIC_EVENT, sizeof *event);
    if (!event)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memset(event, 0, sizeof *event);
    event->progress = &event->own;
    if (file >= 0)
        event->progress = mmap(NULL, sizeof *event->progress, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (event->progress == MAP_FAILED) {
        object_put(event, MAGIC_EVENT);
        return CUDA_ERROR_MAP_FAILED;
    }
    event->flags = flags;
    event->context = context;
    event->file = -1;
    atomic_store(&event->pending, 1);
    event->magic = MAGIC_EVENT;
    *out = event;
    return CUDA_SUCCESS;
}

CUresult event_import(struct sim_context *context, int file, CUevent *out) {
    return event_new(context, CU_EVENT_DISABLE_TIMING, file, out);
}

CUresult event_new_interprocess(struct sim_context *context, unsigned flags, CUevent *out) {
    int file = memfd_create("simcuda-event", MFD_CLOEXEC);
    if (file < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    CUresult result = ftruncate(file, sizeof(struct sim_event_progress)) ? CUDA_ERROR_OPERATING_SYSTEM
                                                                         : event_new(context, flags, file, out);
    if (result)
        close(file);
    else
        (*out)->file = file;
    return result;
}
