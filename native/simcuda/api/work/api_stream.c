/* Calls that create, query and end streams, and commands that wait for values in memory or write such values. */
#include <signal.h>

#include "base/exports.h"
#include "context/context.h"
#include "memory/alloc.h"
#include "graph/graph.h"
#include "machine/machine.h"
#include "work/engine.h"

CUresult cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority) {
    struct sim_context *context;
    CUresult result = context_current(&context);
    if (result)
        return result;
    if (!out || flags > CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    return stream_open(context, flags, priority > 0 ? 0 : priority < -5 ? -5 : priority, out);
}

CUresult cuStreamCreate(CUstream *out, unsigned flags) {
    return cuStreamCreateWithPriority(out, flags, 0);
}

CUresult cuStreamDestroy_v2(CUstream handle) {
    SIM_ENTER();
    if (!sim_is_object(handle) || handle->magic != MAGIC_STREAM)
        return CUDA_ERROR_INVALID_HANDLE;
    capture_discard(handle);
    stream_close(handle, 0);
    return CUDA_SUCCESS;
}

/* Refuse a query of a capturing stream, and a query of the legacy stream while a blocking stream captures. */
static CUresult check_query(CUstream fallback, CUstream handle, struct sim_stream **out) {
    CUresult result = stream_resolve(handle, fallback, out);
    if (result)
        return result;
    if ((*out)->is_legacy && (result = capture_check_legacy((*out)->context)))
        return result;
    return atomic_load(&(*out)->capture) ? capture_refuse(*out) : CUDA_SUCCESS;
}

CUresult sim_cuStreamQuery(CUstream fallback, CUstream handle) {
    struct sim_stream *stream;
    if (sim.machine && atomic_load(&sim.machine->checkpoint[sim.slot].state) == CU_PROCESS_CHECKPOINTED)
        raise(SIGSEGV); /* as seen on an H200 */
    CUresult result = check_query(fallback, handle, &stream);
    return result ? result : engine_is_idle(stream) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult sim_cuStreamSynchronize(CUstream fallback, CUstream handle) {
    struct sim_stream *stream;
    CUresult result = check_query(fallback, handle, &stream);
    return result ? result : engine_synchronize(stream);
}

#define OF_STREAM(action)                                                                                              \
    do {                                                                                                               \
        struct sim_stream *stream;                                                                                     \
        CUresult result = stream_resolve(handle, fallback, &stream);                                                   \
        if (!result)                                                                                                   \
            action;                                                                                                    \
        return result;                                                                                                 \
    } while (0)

CUresult sim_cuStreamGetCtx(CUstream fallback, CUstream handle, CUcontext *out) {
    OF_STREAM(*out = stream->context);
}

CUresult sim_cuStreamGetCtx_v2(CUstream fallback, CUstream handle, CUcontext *out, CUgreenCtx *green) {
    OF_STREAM((*out = context_of_memory(stream->context), *green = stream->context->green));
}

CUresult sim_cuStreamGetFlags(CUstream fallback, CUstream handle, unsigned *out) {
    OF_STREAM(*out = stream->flags);
}

CUresult sim_cuStreamGetPriority(CUstream fallback, CUstream handle, int *out) {
    OF_STREAM(*out = stream->priority);
}

CUresult sim_cuStreamGetId(CUstream fallback, CUstream handle, unsigned long long *out) {
    OF_STREAM(*out = stream->id);
}

CUresult sim_cuStreamGetDevice(CUstream fallback, CUstream handle, CUdevice *out) {
    OF_STREAM(*out = ordinal_of(stream->context->device));
}

CUresult sim_cuStreamAttachMemAsync(CUstream fallback, CUstream handle, CUdeviceptr address, size_t bytes,
                                    unsigned flags) {
    struct sim_stream *stream;
    (void)bytes;
    CUresult result = stream_resolve(handle, fallback, &stream);
    if (result)
        return result;
    return flags > CU_MEM_ATTACH_SINGLE || !alloc_context(address, 1u << ALLOC_MANAGED) ? CUDA_ERROR_INVALID_VALUE
                                                                                        : CUDA_SUCCESS;
}

static CUresult value(CUstream fallback, CUstream handle, uint32_t kind, CUdeviceptr address, uint64_t value,
                      uint32_t bytes, unsigned flags) {
    struct sim_stream *stream;
    struct sim_command *command;
    CUresult result = stream_resolve(handle, fallback, &stream);
    if (result)
        return result;
    struct sim_alloc *alloc = alloc_pin_range(address, bytes);
    if (!alloc || address % bytes)
        result = CUDA_ERROR_INVALID_VALUE;
    alloc_unpin(alloc);
    if (result || (result = engine_begin(stream, &command)))
        return result;
    command->kind = kind;
    command->value.address = address;
    command->value.value = value;
    command->value.bytes = bytes;
    command->value.compare = flags & 3;
    return engine_commit(stream);
}

CUresult sim_cuStreamWaitValue32_v2(CUstream fallback, CUstream stream, CUdeviceptr address, uint32_t word,
                                    unsigned flags) {
    return value(fallback, stream, COMMAND_WAIT_VALUE, address, word, 4, flags);
}

CUresult sim_cuStreamWaitValue64_v2(CUstream fallback, CUstream stream, CUdeviceptr address, uint64_t word,
                                    unsigned flags) {
    return value(fallback, stream, COMMAND_WAIT_VALUE, address, word, 8, flags);
}

CUresult sim_cuStreamWriteValue32_v2(CUstream fallback, CUstream stream, CUdeviceptr address, uint32_t word,
                                     unsigned flags) {
    return value(fallback, stream, COMMAND_WRITE_VALUE, address, word, 4, flags);
}

CUresult sim_cuStreamWriteValue64_v2(CUstream fallback, CUstream stream, CUdeviceptr address, uint64_t word,
                                     unsigned flags) {
    return value(fallback, stream, COMMAND_WRITE_VALUE, address, word, 8, flags);
}
