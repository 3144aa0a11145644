/* Contexts: the calling thread's stack of them, their creation and destruction. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "api.h"

/* The driver's global state ends with the process, and calls after that are undefined (CUDA programming guide,
 * "Initialization"). The thread that ends the process gets an error. Another thread may crash. */
static CUresult refuse_after_end(void) {
    if (sim.params.strict_exit && !pthread_equal(sim.ending, pthread_self())) {
        fputs("simulated GPU: a thread uses the driver after the driver has ended with the process\n", stderr);
        abort();
    }
    return CUDA_ERROR_DEINITIALIZED;
}

void sim_end(void) {
    int ready = SIM_READY;
    sim.ending = pthread_self();
    if (!atomic_compare_exchange_strong(&sim.state, &ready, SIM_ENDED) || !sim.params.strict_exit ||
        !atomic_load(&sim.waits))
        return;
    fputs("simulated GPU: the process ends while a thread is inside the driver\n", stderr);
    abort();
}

CUresult sim_ready(void) {
    int state = atomic_load_explicit(&sim.state, memory_order_acquire);
    if (__builtin_expect(state != SIM_READY, 0))
        return state == SIM_ENDED ? refuse_after_end() : CUDA_ERROR_NOT_INITIALIZED;
    if (__builtin_expect(sim_thread.in_callback, 0))
        return CUDA_ERROR_NOT_PERMITTED; /* host functions must not call the driver */
    return CUDA_SUCCESS;
}

int context_is_valid(const struct sim_context *context) {
    return sim_is_object(context) && context->magic == MAGIC_CONTEXT;
}

CUresult context_current(struct sim_context **out) {
    CUresult ready = sim_ready();
    if (ready)
        return ready;
    struct sim_context *context = sim_thread.current;
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (__builtin_expect(!context_is_valid(context), 0))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *out = context;
    return atomic_load_explicit(&context->error, memory_order_relaxed);
}

void context_fail(struct sim_context *context, CUresult error) {
    int expected = 0;
    atomic_compare_exchange_strong(&context->error, &expected, error);
}

static CUresult context_open(int device, unsigned flags, int is_primary, struct sim_context **out) {
    const struct sim_device_params *params = &sim.params.device[device];
    uint64_t evicted = 0;
    if (machine_charge(sim.machine, device, sim.slot, params->context_memory, &evicted))
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct sim_context *context = object_get(MAGIC_CONTEXT, sizeof *context);
    if (!context) {
        machine_discharge(sim.machine, device, sim.slot, params->context_memory);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memset(context, 0, sizeof *context);
    pthread_mutex_init(&context->lock, NULL);
    context->flags = flags;
    context->id = atomic_fetch_add(&sim.next_id, 1) + 1;
    context->device = device;
    context->is_primary = is_primary;
    context->magic = MAGIC_CONTEXT;
    CUresult result = stream_open(context, 0, 0, &context->legacy);
    if (result)
        return result;
    context->legacy->is_legacy = 1;
    context->legacy->is_blocking = 0;
    context->legacy->handle = CU_STREAM_LEGACY;
    context->next = sim.contexts;
    sim.contexts = context;
    *out = context;
    return CUDA_SUCCESS;
}

/* sim.lock is held, and released while the work in flight ends. */
static void context_close(struct sim_context *context) {
    for (struct sim_context **link = &sim.contexts; *link; link = &(*link)->next)
        if (*link == context) {
            *link = context->next;
            break;
        }
    context_synchronize(context);
    context->magic = 0;
    module_unload_context(context);
    pthread_mutex_lock(&context->lock);
    struct sim_stream *streams = context->streams;
    context->streams = NULL;
    pthread_mutex_unlock(&context->lock);
    while (streams) {
        struct sim_stream *next = streams->next;
        streams->next = NULL;
        stream_close(streams, 1);
        streams = next;
    }
    alloc_free_context(context);
    machine_discharge(sim.machine, context->device, sim.slot, sim.params.device[context->device].context_memory);
    object_put(context, MAGIC_CONTEXT);
}

CUresult context_synchronize(struct sim_context *context) {
    pthread_mutex_lock(&context->lock);
    size_t count = 0;
    for (struct sim_stream *stream = context->streams; stream; stream = stream->next)
        count++;
    struct {
        struct sim_stream *stream;
        uint64_t position;
    } *points = malloc((count + 1) * sizeof *points);
    size_t filled = 0;
    for (struct sim_stream *stream = context->streams; points && stream && filled < count; stream = stream->next) {
        points[filled].stream = stream;
        points[filled++].position = atomic_load(&stream->tail);
    }
    pthread_mutex_unlock(&context->lock);
    for (size_t i = 0; i < filled; i++)
        engine_wait(points[i].stream, points[i].position);
    free(points);
    return atomic_load(&context->error);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device) {
    int index;
    SIM_ENTER();
    CUresult result = device_of(device, &index);
    if (result || !out)
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    if (!sim.primary[index].context)
        result = context_open(index, sim.primary[index].flags, 1, &sim.primary[index].context);
    if (!result) {
        sim.primary[index].references++;
        *out = sim.primary[index].context;
    }
    pthread_mutex_unlock(&sim.lock);
    return result;
}

static CUresult primary_end(CUdevice device, int reset) {
    int index;
    SIM_ENTER();
    CUresult result = device_of(device, &index);
    if (result)
        return result;
    pthread_mutex_lock(&sim.lock);
    struct sim_context *context = sim.primary[index].context;
    if (!context) {
        result = reset ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
    } else if (reset || --sim.primary[index].references == 0) {
        sim.primary[index].context = NULL;
        sim.primary[index].references = 0;
        context_close(context);
    }
    pthread_mutex_unlock(&sim.lock);
    return result;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    return primary_end(device, 0);
}
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    return primary_end(device, 1);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    int index;
    SIM_ENTER();
    CUresult result = device_of(device, &index);
    if (result)
        return result;
    if (flags)
        *flags = sim.primary[index].flags;
    if (active)
        *active = sim.primary[index].context != NULL;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
    int index;
    SIM_ENTER();
    CUresult result = device_of(device, &index);
    if (!result)
        sim.primary[index].flags = flags;
    return result;
}

CUresult cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice device) {
    int index;
    SIM_ENTER();
    CUresult result = device_of(device, &index);
    if (result || !out)
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    result = context_open(index, flags, 0, out);
    pthread_mutex_unlock(&sim.lock);
    return result ? result : cuCtxPushCurrent_v2(*out);
}

CUresult cuCtxCreate_v3(CUcontext *out, void *affinity, int count, unsigned flags, CUdevice device) {
    return affinity || count ? CUDA_ERROR_NOT_SUPPORTED : cuCtxCreate_v2(out, flags, device);
}

CUresult cuCtxCreate_v4(CUcontext *out, void *params, unsigned flags, CUdevice device) {
    (void)params; /* affinity and graphics interoperation: nothing to simulate */
    return cuCtxCreate_v2(out, flags, device);
}

CUresult cuCtxDestroy_v2(CUcontext context) {
    SIM_ENTER();
    if (!context_is_valid(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (sim_thread.current == context)
        cuCtxPopCurrent_v2(NULL);
    pthread_mutex_lock(&sim.lock);
    if (!context->is_primary)
        context_close(context);
    pthread_mutex_unlock(&sim.lock);
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
    SIM_ENTER();
    if (!context_is_valid(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    struct sim_thread_more *more = thread_more();
    if (!more || sim_thread.depth == SIM_STACK)
        return CUDA_ERROR_OUT_OF_MEMORY;
    more->stack[sim_thread.depth++] = sim_thread.current;
    sim_thread.current = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *out) {
    SIM_ENTER();
    if (!sim_thread.current)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (out)
        *out = sim_thread.current;
    sim_thread.current = sim_thread.depth ? sim_thread.more->stack[--sim_thread.depth] : NULL;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
    SIM_ENTER();
    if (context && !context_is_valid(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    sim_thread.current = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *out) {
    SIM_ENTER();
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = context_is_valid(sim_thread.current) ? sim_thread.current : NULL;
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void) {
    struct sim_context *context;
    CUresult result = context_current(&context);
    if (result || (result = capture_check_context(context)))
        return result;
    return context_synchronize(context);
}

CUresult cuCtxSynchronize_v2(CUcontext context) {
    SIM_ENTER();
    if (!context)
        return cuCtxSynchronize();
    if (!context_is_valid(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    CUresult result = capture_check_context(context);
    return result ? result : context_synchronize(context);
}
