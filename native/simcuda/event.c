/* Events: records, waits, queries, elapsed time. A record is a command; its generation identifies the record that a
 * wait is for. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "api.h"

#define SHARED_POLL_NS 1000000 /* of an event that another process may complete */

static int is_valid(CUevent event) {
    return sim_is_object(event) && event->magic == MAGIC_EVENT;
}

static int is_shared(const struct sim_event *event) {
    return event->progress != &event->own;
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

static void await(struct sim_event *event, uint64_t generation) {
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

void event_await(struct sim_event *event, uint64_t generation) {
    await(event, generation);
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

static CUresult make(struct sim_context *context, unsigned flags, int file, CUevent *out) {
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
    return make(context, CU_EVENT_DISABLE_TIMING, file, out);
}

static CUresult make_interprocess(struct sim_context *context, unsigned flags, CUevent *out) {
    int file = memfd_create("simcuda-event", MFD_CLOEXEC);
    if (file < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    CUresult result = ftruncate(file, sizeof(struct sim_event_progress)) ? CUDA_ERROR_OPERATING_SYSTEM
                                                                         : make(context, flags, file, out);
    if (result)
        close(file);
    else
        (*out)->file = file;
    return result;
}

CUresult cuEventCreate(CUevent *out, unsigned flags) {
    struct sim_context *context;
    CUresult result = context_current(&context);
    if (result)
        return result;
    if (!out || flags > 7 || ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING)))
        return CUDA_ERROR_INVALID_VALUE;
    return flags & CU_EVENT_INTERPROCESS ? make_interprocess(context, flags, out) : make(context, flags, -1, out);
}

CUresult cuEventDestroy_v2(CUevent event) {
    SIM_ENTER();
    if (!is_valid(event))
        return CUDA_ERROR_INVALID_HANDLE;
    event->magic = 0;
    event_unpin(event);
    return CUDA_SUCCESS;
}

CUresult event_submit(struct sim_event *event, struct sim_stream *stream) {
    struct sim_command *command;
    CUresult result = engine_begin(stream, &command);
    if (result)
        return result;
    atomic_fetch_add(&event->pending, 1);
    command->kind = COMMAND_EVENT;
    command->event.event = event;
    command->event.generation = atomic_fetch_add(&event->progress->recorded, 1) + 1;
    event->capture_id = 0;
    return engine_commit(stream);
}

CUresult sim_cuEventRecord(CUstream fallback, CUevent event, CUstream handle) {
    struct sim_stream *stream;
    CUresult result = stream_resolve(handle, fallback, &stream);
    if (result)
        return result;
    if (!is_valid(event) || event->context != stream->context)
        return CUDA_ERROR_INVALID_HANDLE;
    if (atomic_load(&stream->capture) && (result = capture_record(event, stream)) != CUDA_ERROR_NOT_READY)
        return result;
    return event_submit(event, stream);
}

/* "External": a separate node, by which work outside the graph and inside synchronise. */
static CUresult capture_node(struct sim_stream *stream, uint32_t kind, struct sim_event *event) {
    struct sim_command *command;
    CUresult result = engine_begin(stream, &command);
    if (result)
        return result;
    atomic_fetch_add(&event->pending, 1);
    command->kind = kind;
    command->event.event = event;
    return engine_commit(stream);
}

CUresult sim_cuEventRecordWithFlags(CUstream fallback, CUevent event, CUstream handle, unsigned flags) {
    struct sim_stream *stream;
    if (flags > 1)
        return CUDA_ERROR_INVALID_VALUE;
    if (flags && is_valid(event) && !stream_resolve(handle, fallback, &stream) && atomic_load(&stream->capture))
        return capture_node(stream, COMMAND_RECORD_NODE, event);
    return sim_cuEventRecord(fallback, event, handle);
}

CUresult sim_cuStreamWaitEvent(CUstream fallback, CUstream handle, CUevent event, unsigned flags) {
    struct sim_stream *stream;
    struct sim_command *command;
    CUresult result = stream_resolve(handle, fallback, &stream);
    if (result)
        return result;
    if (!is_valid(event))
        return CUDA_ERROR_INVALID_HANDLE;
    if (flags > 1)
        return CUDA_ERROR_INVALID_VALUE;
    if (flags && atomic_load(&stream->capture))
        return capture_node(stream, COMMAND_WAIT_NODE, event);
    if ((event->capture_id || atomic_load(&stream->capture)) &&
        (result = capture_wait(event, stream)) != CUDA_ERROR_NOT_READY)
        return result;
    uint64_t generation = atomic_load(&event->progress->recorded);
    if ((result = engine_begin(stream, &command)))
        return result;
    atomic_fetch_add(&event->pending, 1);
    command->kind = COMMAND_WAIT_EVENT;
    command->event.event = event;
    command->event.generation = generation;
    return engine_commit(stream);
}

/* A query of an event is "potentially unsafe" during another thread's global capture
 * (cuThreadExchangeStreamCaptureMode). */
static CUresult check_query(CUevent event) {
    SIM_ENTER();
    if (!is_valid(event))
        return CUDA_ERROR_INVALID_HANDLE;
    if (event->capture_id)
        return CUDA_ERROR_CAPTURED_EVENT;
    return capture_check_unsafe();
}

CUresult cuEventQuery(CUevent event) {
    CUresult result = check_query(event);
    if (result)
        return result;
    if ((result = atomic_load(&event->context->error)))
        return result;
    return atomic_load(&event->progress->reached) >= atomic_load(&event->progress->recorded) ? CUDA_SUCCESS
                                                                                             : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent event) {
    CUresult result = check_query(event);
    if (result)
        return result;
    atomic_fetch_add(&event->pending, 1);
    atomic_fetch_add(&sim.waits, 1);
    await(event, atomic_load(&event->progress->recorded));
    atomic_fetch_sub(&sim.waits, 1);
    result = atomic_load(&event->context->error);
    event_unpin(event);
    return result;
}

CUresult cuEventElapsedTime_v2(float *out, CUevent start, CUevent end) {
    return cuEventElapsedTime(out, start, end);
}

CUresult cuEventElapsedTime(float *out, CUevent start, CUevent end) {
    SIM_ENTER();
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_valid(start) || !is_valid(end) || ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) ||
        !atomic_load(&start->progress->recorded) || !atomic_load(&end->progress->recorded))
        return CUDA_ERROR_INVALID_HANDLE;
    if (start->capture_id || end->capture_id)
        return CUDA_ERROR_CAPTURED_EVENT;
    if (atomic_load(&start->progress->reached) < atomic_load(&start->progress->recorded) ||
        atomic_load(&end->progress->reached) < atomic_load(&end->progress->recorded))
        return CUDA_ERROR_NOT_READY;
    *out = (float)((double)(int64_t)(atomic_load(&end->progress->time) - atomic_load(&start->progress->time)) / 1e6);
    return CUDA_SUCCESS;
}
