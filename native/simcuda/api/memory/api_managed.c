/* Unified memory: prefetch, advice, range attributes. The old forms name a device, the new forms a location. */
#include "base/exports.h"
#include "context/context.h"
#include "machine/machine.h"
#include "memory/alloc.h"
#include "work/engine.h"

static int is_place(CUmemLocation location) {
    int index;
    if (location.type == CU_MEM_LOCATION_DEVICE)
        return device_of(location.id, &index) == CUDA_SUCCESS;
    return location.type == CU_MEM_LOCATION_HOST || location.type == CU_MEM_LOCATION_NUMA ||
           location.type == CU_MEM_LOCATION_NUMA_HERE;
}

/* Without concurrent managed access the driver neither prefetches to a device nor takes advice about it. */
static int is_device_without_paging(CUmemLocation location) {
    int index;
    return location.type == CU_MEM_LOCATION_DEVICE && device_of(location.id, &index) == CUDA_SUCCESS &&
           !sim.params.device[index].concurrent_managed_access;
}

static CUmemLocation location_of(CUdevice device) {
    CUmemLocation location = {device == CU_DEVICE_CPU ? CU_MEM_LOCATION_HOST : CU_MEM_LOCATION_DEVICE,
                              device == CU_DEVICE_CPU ? 0 : device};
    return location;
}

/* Pin the managed allocation that holds the whole range. */
static struct sim_alloc *pin_managed(CUdeviceptr address, size_t bytes) {
    struct sim_alloc *alloc = bytes ? alloc_pin_range(address, bytes) : NULL;
    if (alloc && alloc->kind != ALLOC_MANAGED) {
        alloc_unpin(alloc);
        alloc = NULL;
    }
    return alloc;
}

static CUresult submit(struct sim_stream *stream, CUdeviceptr address, size_t bytes, int to_device) {
    struct sim_command *command;
    CUresult result = engine_begin(stream, &command);
    if (result)
        return result;
    command->kind = COMMAND_PREFETCH;
    command->prefetch.address = address;
    command->prefetch.bytes = bytes;
    command->prefetch.to_device = to_device;
    return engine_commit(stream);
}

/* The driver maps pages on the host before it returns, so the caller waits for the copies (uvm_api_migrate in
 * uvm_migrate.c of NVIDIA's open kernel modules). On an H200 with driver 580.159.04, the caller of a
 * prefetch to the device waited for half of the copies, in a stream without other work. */
static CUresult prefetch(struct sim_stream *stream, CUdeviceptr address, size_t bytes, int to_device) {
    size_t awaited = !to_device ? bytes : engine_is_idle(stream) ? bytes / 2 / MACHINE_BLOCK * MACHINE_BLOCK : 0;
    CUresult result = awaited ? submit(stream, address, awaited, to_device) : CUDA_SUCCESS;
    if (awaited && !result)
        result = engine_synchronize(stream);
    return result || awaited == bytes ? result : submit(stream, address + awaited, bytes - awaited, to_device);
}

CUresult sim_cuMemPrefetchAsync_v2(CUstream fallback, CUdeviceptr address, size_t bytes, CUmemLocation location,
                                   unsigned flags, CUstream handle) {
    struct sim_stream *stream;
    int to_device = location.type == CU_MEM_LOCATION_DEVICE;
    CUresult result = stream_resolve(handle, fallback, &stream);
    if (result)
        return result;
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_place(location))
        return location.type == CU_MEM_LOCATION_DEVICE ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
    if (is_device_without_paging(location) || !sim.params.device[stream->context->device].concurrent_managed_access)
        return CUDA_ERROR_INVALID_DEVICE;
    if (atomic_load(&stream->capture))
        return capture_refuse(stream);
    struct sim_alloc *alloc = pin_managed(address, bytes);
    if (!alloc)
        return CUDA_ERROR_INVALID_VALUE;
    alloc->prefetch_type = location.type;
    alloc->prefetch_id = location.type == CU_MEM_LOCATION_DEVICE ? location.id : CU_DEVICE_CPU;
    alloc_unpin(alloc);
    return prefetch(stream, address, bytes, to_device);
}

CUresult sim_cuMemPrefetchAsync(CUstream fallback, CUdeviceptr address, size_t bytes, CUdevice device,
                                CUstream stream) {
    return sim_cuMemPrefetchAsync_v2(fallback, address, bytes, location_of(device), 0, stream);
}

/* Advice has "standard default stream semantics" (documentation of cuMemAdvise), and no twin for the per-thread default
 * stream. So an empty command takes its place in the legacy stream, although the advice itself holds at once. */
static CUresult take_place_in_legacy_stream(struct sim_context *context) {
    struct sim_command *command;
    CUresult result = engine_begin(context->legacy, &command);
    if (result)
        return result;
    command->kind = COMMAND_EMPTY;
    return engine_commit(context->legacy);
}

CUresult cuMemAdvise_v2(CUdeviceptr address, size_t bytes, int advice, CUmemLocation location) {
    struct sim_context *context;
    CUresult result = context_current(&context);
    if (result)
        return result;
    int needs_place = advice != CU_ADVISE_SET_READ_MOSTLY && advice != CU_ADVISE_UNSET_READ_MOSTLY &&
                      advice != CU_ADVISE_UNSET_PREFERRED;
    if (advice < CU_ADVISE_SET_READ_MOSTLY || advice > CU_ADVISE_UNSET_ACCESSED_BY ||
        (needs_place && !is_place(location)))
        return CUDA_ERROR_INVALID_VALUE;
    if (needs_place && is_device_without_paging(location))
        return CUDA_ERROR_INVALID_DEVICE;
    struct sim_alloc *alloc = pin_managed(address, bytes);
    if (!alloc)
        return CUDA_ERROR_INVALID_VALUE;
    if ((result = take_place_in_legacy_stream(context))) {
        alloc_unpin(alloc);
        return result;
    }
    int on_device = location.type == CU_MEM_LOCATION_DEVICE;
    uint32_t bit = 1u << (on_device ? location.id & 15 : 31);
    pthread_mutex_lock(&alloc->lock);
    if (advice == CU_ADVISE_SET_READ_MOSTLY || advice == CU_ADVISE_UNSET_READ_MOSTLY)
        alloc->read_mostly = advice == CU_ADVISE_SET_READ_MOSTLY;
    if (advice == CU_ADVISE_SET_PREFERRED) {
        alloc->preferred_type = location.type;
        alloc->preferred_id = on_device ? location.id : CU_DEVICE_CPU;
    }
    if (advice == CU_ADVISE_UNSET_PREFERRED) {
        alloc->preferred_type = 0;
        alloc->preferred_id = CU_DEVICE_INVALID;
    }
    if (advice == CU_ADVISE_SET_ACCESSED_BY)
        alloc->accessed_by |= bit;
    if (advice == CU_ADVISE_UNSET_ACCESSED_BY)
        alloc->accessed_by &= ~bit;
    pthread_mutex_unlock(&alloc->lock);
    alloc_unpin(alloc);
    return CUDA_SUCCESS;
}

CUresult cuMemAdvise(CUdeviceptr address, size_t bytes, int advice, CUdevice device) {
    return cuMemAdvise_v2(address, bytes, advice, location_of(device));
}

static CUresult range_attribute(struct sim_alloc *alloc, int attribute, int *out, size_t count) {
    switch (attribute) {
    case CU_RANGE_READ_MOSTLY:
        *out = alloc->read_mostly;
        return CUDA_SUCCESS;
    case CU_RANGE_PREFERRED:
    case CU_RANGE_PREFERRED_ID:
        *out = alloc->preferred_id;
        return CUDA_SUCCESS;
    case CU_RANGE_LAST_PREFETCH:
    case CU_RANGE_LAST_PREFETCH_ID:
        *out = alloc->prefetch_id;
        return CUDA_SUCCESS;
    case CU_RANGE_PREFERRED_TYPE:
        *out = alloc->preferred_type;
        return CUDA_SUCCESS;
    case CU_RANGE_LAST_PREFETCH_TYPE:
        *out = alloc->prefetch_type;
        return CUDA_SUCCESS;
    case CU_RANGE_ACCESSED_BY:
        for (int bit = 0; bit < 32 && count; bit++)
            if (alloc->accessed_by >> bit & 1) {
                *out++ = bit == 31 ? CU_DEVICE_CPU : bit;
                count--;
            }
        for (; count; count--)
            *out++ = CU_DEVICE_INVALID;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuMemRangeGetAttribute(void *data, size_t size, int attribute, CUdeviceptr address, size_t bytes) {
    SIM_ENTER();
    if (!data || size < sizeof(int) || size % sizeof(int))
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_alloc *alloc = pin_managed(address, bytes);
    CUresult result = alloc ? range_attribute(alloc, attribute, data, size / sizeof(int)) : CUDA_ERROR_INVALID_VALUE;
    alloc_unpin(alloc);
    return result;
}

CUresult cuMemRangeGetAttributes(void **data, size_t *sizes, int *attributes, size_t count, CUdeviceptr address,
                                 size_t bytes) {
    CUresult result = data && sizes && attributes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count && !result; i++)
        result = cuMemRangeGetAttribute(data[i], sizes[i], attributes[i], address, bytes);
    return result;
}
