/* Contexts, primary ones too: creation, destruction, the calling thread's stack of them, and synchronisation. */
#include <string.h>

#include "base/exports.h"
#include "machine/machine.h"
#include "context/context.h"
#include "memory/alloc.h"
#include "work/engine.h"
#include "module/module.h"
#include "api/api.h"

CUresult context_new(int device, unsigned flags, struct sim_context **out) {
    struct sim_context *context = object_get(MAGIC_CONTEXT, sizeof *context);
    if (!context)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memset(context, 0, sizeof *context);
    pthread_mutex_init(&context->lock, NULL);
    context->flags = flags;
    context->id = atomic_fetch_add(&sim.next_id, 1) + 1;
    context->device = device;
    dump_settings_begin(context);
    context->magic = MAGIC_CONTEXT;
    CUresult result = stream_open(context, 0, 0, &context->legacy);
    if (result)
        return result;
    context->legacy->is_legacy = 1;
    context->legacy->is_blocking = 0;
    context->legacy->handle = CU_STREAM_LEGACY;
    *out = context;
    return CUDA_SUCCESS;
}

static void close_streams(struct sim_context *context) {
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
}

static CUresult context_open(int device, unsigned flags, int is_primary, struct sim_context **out) {
    const struct sim_device_params *params = &sim.params.device[device];
    uint64_t evicted = 0;
    if (machine_charge(sim.machine, device, sim.slot, params->context_memory, &evicted))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = context_new(device, flags, out);
    if (!result && (result = module_begin_context(*out))) {
        (*out)->magic = 0;
        close_streams(*out);
        object_put(*out, MAGIC_CONTEXT);
    }
    if (result) {
        *out = NULL;
        machine_discharge(sim.machine, device, sim.slot, params->context_memory);
        return result;
    }
    (*out)->is_primary = is_primary;
    (*out)->next = sim.contexts;
    sim.contexts = *out;
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
    peers_discard(context);
    context->magic = 0;
    module_end_context(context);
    close_streams(context);
    alloc_free_context(context);
    machine_discharge(sim.machine, context->device, sim.slot, sim.params.device[context->device].context_memory);
    object_put(context, MAGIC_CONTEXT);
}

CUresult context_retain(int device, struct sim_context **out) {
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&sim.lock);
    if (!sim.primary[device].context)
        result = context_open(device, sim.primary[device].flags, 1, &sim.primary[device].context);
    if (!result) {
        sim.primary[device].references++;
        *out = sim.primary[device].context;
    }
    pthread_mutex_unlock(&sim.lock);
    return result;
}

CUresult context_release(int device, int reset) {
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&sim.lock);
    struct sim_context *context = sim.primary[device].context;
    if (!context) {
        result = reset ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
    } else if (reset || --sim.primary[device].references == 0) {
        sim.primary[device].context = NULL;
        sim.primary[device].references = 0;
        context_close(context);
    }
    pthread_mutex_unlock(&sim.lock);
    return result;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device) {
    int index;
    SIM_ENTER();
    CUresult result = device_of(device, &index);
    if (result || !out)
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    return context_retain(index, out);
}

static CUresult primary_end(CUdevice device, int reset) {
    int index;
    SIM_ENTER();
    CUresult result = device_of(device, &index);
    return result ? result : context_release(index, reset);
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
    if (!context_is_valid(context) || context->green)
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
    CUresult result = context_hold(context);
    if (result)
        return result;
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
    context_let_go(sim_thread.current);
    sim_thread.current = sim_thread.depth ? sim_thread.more->stack[--sim_thread.depth] : NULL;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
    SIM_ENTER();
    if (context && !context_is_valid(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    CUresult result = context_hold(context);
    if (result)
        return result;
    context_let_go(sim_thread.current);
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
