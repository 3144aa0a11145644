/* Calls that allocate, register and release memory, also in the order of a stream; and the memory that is free. */
#include "base/exports.h"
#include "machine/machine.h"
#include "context/context.h"
#include "memory/alloc.h"
#include "memory/call_times.h"
#include "graph/graph.h"
#include "work/engine.h"

static CUresult allocate(enum sim_alloc_kind kind, size_t bytes, unsigned flags, CUdeviceptr *out) {
    struct sim_context *context;
    struct sim_alloc *alloc;
    CUresult result = context_current(&context);
    if (result)
        return result;
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    if ((result = capture_check_unsafe()) || (result = alloc_new(context, kind, bytes, flags, &alloc)))
        return result;
    *out = alloc->base;
    if (kind == ALLOC_HOST)
        spend_pin_call(context->device, PIN_ALLOC, bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
    struct sim_context *context;
    CUresult result = context_current(&context);
    if (result)
        return result;
    uint64_t used, all;
    machine_used(sim.machine, context->device, &used, &all);
    if (free)
        *free = used < all ? all - used : 0;
    if (total)
        *total = all;
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
    return allocate(ALLOC_PLAIN, bytes, 0, address);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned element) {
    if (!pitch || !width || !height || (element != 4 && element != 8 && element != 16))
        return CUDA_ERROR_INVALID_VALUE;
    *pitch = (width + 511) / 512 * 512;
    return allocate(ALLOC_PLAIN, *pitch * height, 0, address);
}

CUresult cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned flags) {
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)
        return CUDA_ERROR_INVALID_VALUE;
    return allocate(ALLOC_MANAGED, bytes, flags, address);
}

/* A release waits for the work of the context, which may use the memory. */
static CUresult release(uint64_t address, unsigned kinds) {
    SIM_ENTER();
    CUresult result = capture_check_unsafe();
    if (result)
        return result;
    struct sim_context *context = alloc_context(address, kinds);
    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    if ((result = context_synchronize(context)))
        return result;
    return alloc_free(address, kinds);
}

/* Memory that a graph has allocated and not freed is freed like any other memory. */
static CUresult release_of_graph(struct sim_graph_memory *memory) {
    struct sim_context *context;
    CUresult result = context_current(&context);
    if (!result && !(result = capture_check_unsafe()) && !(result = context_synchronize(context)))
        result = graph_memory_unmap(memory) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    graph_memory_drop(memory);
    return result;
}

CUresult cuMemFree_v2(CUdeviceptr address) {
    struct sim_graph_memory *memory = graph_memory_at(address);
    if (memory)
        return release_of_graph(memory);
    return release(address, 1u << ALLOC_PLAIN | 1u << ALLOC_MANAGED);
}

CUresult cuMemHostAlloc(void **memory, size_t bytes, unsigned flags) {
    if (!memory || flags > 7)
        return CUDA_ERROR_INVALID_VALUE;
    return allocate(ALLOC_HOST, bytes, flags, (CUdeviceptr *)memory);
}

CUresult cuMemAllocHost_v2(void **memory, size_t bytes) {
    return cuMemHostAlloc(memory, bytes, 0);
}

static CUresult release_pinned(void *memory, enum sim_alloc_kind kind, enum sim_pin_call call) {
    struct sim_alloc *alloc = alloc_pin((uint64_t)memory);
    int device = alloc ? alloc->device : 0;
    uint64_t bytes = alloc ? alloc->size : 0;
    alloc_unpin(alloc);
    CUresult result = release((uint64_t)memory, 1u << kind);
    if (!result)
        spend_pin_call(device, call, bytes);
    return result;
}

CUresult cuMemFreeHost(void *memory) {
    return release_pinned(memory, ALLOC_HOST, PIN_FREE);
}

CUresult cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags) {
    struct sim_context *context;
    CUresult result = context_current(&context);
    if (result || (result = capture_check_unsafe()))
        return result;
    if (!(result = alloc_register(context, memory, bytes, flags)))
        spend_pin_call(context->device, PIN_REGISTER, bytes);
    return result;
}

CUresult cuMemHostUnregister(void *memory) {
    CUresult result = release_pinned(memory, ALLOC_REGISTERED, PIN_UNREGISTER);
    return result == CUDA_ERROR_INVALID_VALUE ? CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED : result;
}

/* Add a node to the graph that the stream captures. */
static CUresult capture_memory(struct sim_stream *stream, uint32_t kind, struct sim_graph_memory *memory) {
    struct sim_command *command;
    CUresult result = engine_begin(stream, &command);
    if (result) {
        graph_memory_drop(memory);
        return result;
    }
    command->kind = kind;
    command->memory.memory = memory;
    return engine_commit(stream);
}

/* Stream-ordered allocation: allocated at once, released when the stream gets there. No pool: the present one. */
static CUresult allocate_async(CUstream fallback, CUdeviceptr *address, size_t bytes, struct sim_pool *pool,
                               CUstream handle) {
    struct sim_stream *stream;
    struct sim_alloc *alloc;
    CUresult result = stream_resolve(handle, fallback, &stream);
    if (result)
        return result;
    if (!address)
        return CUDA_ERROR_INVALID_VALUE;
    if (!bytes && !atomic_load(&stream->capture)) {
        *address = 0;
        return CUDA_SUCCESS;
    }
    if (atomic_load(&stream->capture)) {
        struct sim_graph_memory *memory;
        uint64_t room;
        int device;
        if ((result = graph_memory_new(stream->context->device, bytes, &memory)))
            return result;
        *address = graph_memory_address(memory, &room, &device);
        return capture_memory(stream, COMMAND_ALLOC_NODE, memory);
    }
    if (stream->is_legacy && (result = capture_check_legacy(stream->context)))
        return result;
    if (!pool)
        pool = pool_current(stream->context->device);
    if ((result = alloc_from_pool(stream->context, pool, bytes, &alloc)))
        return result;
    *address = alloc->base;
    return CUDA_SUCCESS;
}

CUresult sim_cuMemAllocFromPoolAsync(CUstream fallback, CUdeviceptr *address, size_t bytes, CUmemoryPool pool,
                                     CUstream stream) {
    return pool_is_valid(pool) ? allocate_async(fallback, address, bytes, pool, stream) : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuMemAllocAsync(CUstream fallback, CUdeviceptr *address, size_t bytes, CUstream stream) {
    return allocate_async(fallback, address, bytes, NULL, stream);
}

CUresult sim_cuMemFreeAsync(CUstream fallback, CUdeviceptr address, CUstream handle) {
    struct sim_stream *stream;
    struct sim_command *command;
    CUresult result = stream_resolve(handle, fallback, &stream);
    if (result)
        return result;
    struct sim_graph_memory *memory = graph_memory_at(address);
    if (memory && atomic_load(&stream->capture))
        return capture_memory(stream, COMMAND_FREE_NODE, memory);
    int known = memory || alloc_context(address, 1u << ALLOC_PLAIN);
    if (memory)
        graph_memory_drop(memory);
    if (!known || atomic_load(&stream->capture))
        return CUDA_ERROR_INVALID_VALUE;
    if ((result = engine_begin(stream, &command)))
        return result;
    command->kind = COMMAND_FREE;
    command->free.address = address;
    return engine_commit(stream);
}
