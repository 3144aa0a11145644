/* Green contexts: a part of a device's multiprocessors, with streams of its own and the memory of the primary context.
 * Also events of all streams of a context, green or not. A primary context includes its green contexts then.
 * Green contexts differ from other contexts in the thread that may use them (context/thread.c). The number of
 * multiprocessors has no effect on times.
 *
 * Source: the driver's documentation of cuGreenCtxCreate, cuCtxFromGreenCtx, cuStreamGetCtx_v2, cuCtxRecordEvent and
 * cuCtxWaitEvent. */
#include <stdlib.h>

#include "base/exports.h"
#include "context/context.h"
#include "work/engine.h"
#include "api/work/work.h"
#include "api/api.h"

struct sim_green {
    uint32_t magic;
    struct sim_context *context;
    unsigned multiprocessors;
};

static int is_green(CUgreenCtx green) {
    return sim_is_object(green) && green->magic == MAGIC_GREEN;
}

static int is_event(CUevent event) {
    return sim_is_object(event) && event->magic == MAGIC_EVENT;
}

static CUresult open_context(struct sim_green *green, int device) {
    struct sim_context *primary, *context;
    CUresult result = context_retain(device, &primary);
    if (result)
        return result;
    if ((result = context_new(device, 0, &context))) {
        context_release(device, 0);
        return result;
    }
    context->green = green;
    context->primary = primary;
    pthread_mutex_lock(&primary->lock);
    context->next = primary->greens;
    primary->greens = context;
    pthread_mutex_unlock(&primary->lock);
    green->context = context;
    return CUDA_SUCCESS;
}

/* The memory of the context is never used again, because the program's streams refer to it until they are destroyed. */
static void close_context(struct sim_context *context) {
    struct sim_context *primary = context->primary;
    context_synchronize(context);
    context->magic = 0;
    pthread_mutex_lock(&primary->lock);
    for (struct sim_context **link = &primary->greens; *link; link = &(*link)->next)
        if (*link == context) {
            *link = context->next;
            break;
        }
    pthread_mutex_unlock(&primary->lock);
    context_release(context->device, 0);
}

static CUresult report(CUdevResource *resource, int type, int device, unsigned multiprocessors) {
    if (!resource)
        return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_DEV_RESOURCE_SM)
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    resource_describe(resource, device, multiprocessors);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource *resource, int type) {
    int index;
    SIM_ENTER();
    CUresult result = device_of(device, &index);
    return result ? result : report(resource, type, index, (unsigned)sim.params.device[index].multiprocessors);
}

CUresult cuCtxGetDevResource(CUcontext context, CUdevResource *resource, int type) {
    SIM_ENTER();
    if (!context_is_valid(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    return report(resource, type, context->device,
                  context->green ? context->green->multiprocessors
                                 : (unsigned)sim.params.device[context->device].multiprocessors);
}

CUresult cuGreenCtxGetDevResource(CUgreenCtx green, CUdevResource *resource, int type) {
    SIM_ENTER();
    return is_green(green) ? report(resource, type, green->context->device, green->multiprocessors)
                           : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult sim_cuStreamGetDevResource(CUstream fallback, CUstream handle, CUdevResource *resource, int type) {
    struct sim_stream *stream;
    CUresult result = stream_resolve(handle, fallback, &stream);
    return result ? result : cuCtxGetDevResource(stream->context, resource, type);
}

CUresult cuGreenCtxCreate(CUgreenCtx *out, CUdevResourceDesc description, CUdevice device, unsigned flags) {
    int index;
    SIM_ENTER();
    CUresult result = device_of(device, &index);
    if (result || !out || !description || flags > 1)
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    struct sim_green *green = object_get(MAGIC_GREEN, sizeof *green);
    if (!green)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if ((result = open_context(green, index)))
        return result;
    green->multiprocessors = description->multiprocessors;
    green->magic = MAGIC_GREEN;
    *out = green;
    return CUDA_SUCCESS;
}

/* The program's streams stay until they are destroyed. */
CUresult cuGreenCtxDestroy(CUgreenCtx green) {
    SIM_ENTER();
    if (!is_green(green))
        return CUDA_ERROR_INVALID_HANDLE;
    green->magic = 0;
    close_context(green->context);
    stream_close(green->context->legacy, 1);
    return CUDA_SUCCESS;
}

CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green) {
    SIM_ENTER();
    if (!context || !is_green(green))
        return context ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    *context = green->context;
    return CUDA_SUCCESS;
}

CUresult cuGreenCtxGetId(CUgreenCtx green, unsigned long long *id) {
    struct sim_context *current;
    CUresult result = green ? sim_ready() : context_current(&current);
    if (result)
        return result;
    if (!green && !(green = current->green))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!is_green(green))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (!id)
        return CUDA_ERROR_INVALID_VALUE;
    *id = green->context->id;
    return CUDA_SUCCESS;
}

CUresult cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx green, unsigned flags, int priority) {
    SIM_ENTER();
    if (!is_green(green) || !stream || flags != CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    return stream_open(green->context, flags, priority > 0 ? 0 : priority < -5 ? -5 : priority, stream);
}

static CUresult submit_record(struct sim_context *context, CUevent event, struct sim_stream *stream) {
    struct sim_command *command;
    struct sim_points *points = context_points(context);
    CUresult result = engine_begin(stream, &command);
    if (result)
        return result;
    command->kind = COMMAND_HOST;
    command->host.function = points_await;
    command->host.data = points;
    result = engine_commit(stream);
    return result ? result : event_submit(event, stream);
}

/* The record has a stream of its own, so that no other work waits for all that was submitted. */
CUresult cuCtxRecordEvent(CUcontext context, CUevent event) {
    struct sim_stream *stream;
    SIM_ENTER();
    if (!context_is_valid(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!is_event(event) || context_of_memory(event->context) != context_of_memory(context))
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = capture_check_context(context);
    if (result || (result = stream_open(context, CU_STREAM_NON_BLOCKING, 0, &stream)))
        return result;
    result = submit_record(context, event, stream);
    stream_close(stream, 0);
    return result;
}

/* Calls that wait for room in a stream must not hold the context's lock, so the streams are listed first. */
static CUresult wait_in_streams(struct sim_context *context, CUevent event) {
    size_t count = 0;
    pthread_mutex_lock(&context->lock);
    for (struct sim_stream *stream = context->streams; stream; stream = stream->next)
        count++;
    CUstream *streams = calloc(count + 1, sizeof *streams);
    count = 0;
    for (struct sim_stream *stream = context->streams; stream && streams; stream = stream->next)
        streams[count++] = stream;
    pthread_mutex_unlock(&context->lock);
    CUresult result = streams ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < count && !result; i++)
        if (streams[i]->magic == MAGIC_STREAM) /* otherwise it has ended */
            result = sim_cuStreamWaitEvent(CU_STREAM_LEGACY, streams[i], event, 0);
    free(streams);
    return result;
}

/* A stream that is made later does not wait. */
CUresult cuCtxWaitEvent(CUcontext context, CUevent event) {
    SIM_ENTER();
    if (!context_is_valid(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!is_event(event))
        return CUDA_ERROR_INVALID_HANDLE;
    if (capture_check_event(event))
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    CUresult result = capture_check_context(context);
    if (!result)
        result = wait_in_streams(context, event);
    for (struct sim_context *green = context->greens; green && !result; green = green->next)
        result = wait_in_streams(green, event);
    return result;
}

CUresult cuGreenCtxRecordEvent(CUgreenCtx green, CUevent event) {
    SIM_ENTER();
    return is_green(green) ? cuCtxRecordEvent(green->context, event) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuGreenCtxWaitEvent(CUgreenCtx green, CUevent event) {
    SIM_ENTER();
    return is_green(green) ? cuCtxWaitEvent(green->context, event) : CUDA_ERROR_INVALID_HANDLE;
}
