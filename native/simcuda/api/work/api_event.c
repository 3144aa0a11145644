/* Events: records, waits, queries, elapsed time. A record is a command. A wait refers to a record by the
 * generation of the record. */
#include "base/exports.h"
#include "context/context.h"
#include "graph/graph.h"
#include "work/engine.h"
#include "api/work/work.h"

static int is_valid(CUevent event) {
    return sim_is_object(event) && event->magic == MAGIC_EVENT;
}

CUresult cuEventCreate(CUevent *out, unsigned flags) {
    struct sim_context *context;
    CUresult result = context_current(&context);
    if (result)
        return result;
    if (!out || flags > 7 || ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING)))
        return CUDA_ERROR_INVALID_VALUE;
    return flags & CU_EVENT_INTERPROCESS ? event_new_interprocess(context, flags, out)
                                         : event_new(context, flags, -1, out);
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

/* Capture an "external" record or wait as a node of its own, which synchronises work outside the graph with work in it. */
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
    CUresult result = capture_check_event(event);
    return result ? result : capture_check_unsafe();
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
    event_await_pinned(event, atomic_load(&event->progress->recorded));
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
