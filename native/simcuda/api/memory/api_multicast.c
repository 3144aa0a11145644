/* Calls of multicast objects. Memory can be bound to an object and unbound, but the object cannot be mapped, so nothing
 * is ever broadcast. Which of several errors a call returns is an assumption (tests/driver_facts).
 *
 * Source: the driver's documentation of "Multicast Object Management". */
#include <string.h>

#include "base/exports.h"
#include "base/waiting.h"
#include "memory/alloc.h"
#include "memory/vmm.h"

#define LOOK_NS 1000000 /* how often a call that waits for the rest of the team looks again */

static int has_multicast(void) {
    for (int i = 0; i < sim.visible_count; i++)
        if (sim.params.device[sim.visible[i]].multicast)
            return 1;
    return 0;
}

static CUresult check_properties(const CUmulticastObjectProp *properties) {
    SIM_ENTER();
    if (!has_multicast())
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!properties || !properties->devices || properties->devices > SIM_MAX_DEVICES || properties->flags)
        return CUDA_ERROR_INVALID_VALUE;
    return properties->handle_types & ~(unsigned long long)CU_MEM_HANDLE_POSIX_FD ? CUDA_ERROR_NOT_SUPPORTED
                                                                                  : CUDA_SUCCESS;
}

CUresult cuMulticastGetGranularity(size_t *granularity, const CUmulticastObjectProp *properties, int option) {
    CUresult result = check_properties(properties);
    if (result)
        return result;
    if (!granularity || option < 0 || option > 1)
        return CUDA_ERROR_INVALID_VALUE;
    *granularity = VMM_GRANULARITY;
    return CUDA_SUCCESS;
}

CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *properties) {
    CUresult result = check_properties(properties);
    if (result)
        return result;
    if (!handle || !properties->bytes || !vmm_is_granular(properties->bytes))
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_multicast *object = object_get(MAGIC_MULTICAST, sizeof *object);
    if (!object)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memset(object, 0, sizeof *object);
    object->team = properties->devices;
    object->bytes = properties->bytes;
    object->handle_types = properties->handle_types;
    object->magic = MAGIC_MULTICAST;
    *handle = (CUmemGenericAllocationHandle)object;
    return CUDA_SUCCESS;
}

CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice device) {
    int index;
    SIM_ENTER();
    CUresult result = device_of(device, &index);
    if (result)
        return result;
    if (!sim.params.device[index].multicast)
        return CUDA_ERROR_NOT_SUPPORTED;
    alloc_lock();
    struct sim_multicast *object = multicast_of(handle);
    if (!object || object->is_member[index] || object->added == object->team) {
        result = CUDA_ERROR_INVALID_VALUE;
    } else {
        object->is_member[index] = 1;
        object->added++;
    }
    alloc_unlock();
    return result;
}

/* Lock, and return the object when its team is complete, which other threads complete. NULL, with the lock: there is no
 * such object. A request that locks the process waits for the call. */
static struct sim_multicast *lock_complete(CUmemGenericAllocationHandle handle) {
    struct sim_multicast *object;
    atomic_fetch_add(&sim.waits, 1);
    for (;;) {
        alloc_lock();
        object = multicast_of(handle);
        if (!object || object->added == object->team)
            break;
        alloc_unlock();
        sim_sleep_until(sim_now() + LOOK_NS);
    }
    atomic_fetch_sub(&sim.waits, 1);
    return object;
}

/* `device` is the memory's own, or less than zero for any. alloc_lock is held. */
static CUresult bind(struct sim_multicast *object, int device, uint64_t at, struct sim_physical *physical,
                     uint64_t offset, uint64_t bytes) {
    if (!object || !physical || !bytes || !vmm_is_granular(bytes) || !vmm_is_granular(at) || !vmm_is_granular(offset) ||
        at > object->bytes || bytes > object->bytes - at || offset > physical->bytes ||
        bytes > physical->bytes - offset || (object->handle_types && !physical->inode))
        return CUDA_ERROR_INVALID_VALUE;
    if (!object->is_member[physical->device] || (device >= 0 && device != physical->device))
        return CUDA_ERROR_INVALID_DEVICE;
    return multicast_bind(object, at, physical, bytes);
}

static CUresult bind_memory(CUmemGenericAllocationHandle handle, int device, size_t at,
                            CUmemGenericAllocationHandle memory, size_t offset, size_t bytes,
                            unsigned long long flags) {
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_multicast *object = lock_complete(handle);
    CUresult result = bind(object, device, at, physical_of(memory), offset, bytes);
    alloc_unlock();
    return result;
}

/* Memory of pools cannot be bound, unlike on NVIDIA's driver. */
static CUresult bind_address(CUmemGenericAllocationHandle handle, int device, size_t at, CUdeviceptr address,
                             size_t bytes, unsigned long long flags) {
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_multicast *object = lock_complete(handle);
    struct sim_alloc *range = alloc_find(address);
    const struct sim_mapping *mapping = range && range->kind == ALLOC_RESERVED ? vmm_at(range, address) : NULL;
    CUresult result = range && range->pool ? CUDA_ERROR_NOT_SUPPORTED
                      : mapping            ? bind(object, device, at, mapping->physical, address - mapping->base, bytes)
                                           : CUDA_ERROR_INVALID_VALUE;
    alloc_unlock();
    return result;
}

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t at, CUmemGenericAllocationHandle memory,
                            size_t offset, size_t bytes, unsigned long long flags) {
    SIM_ENTER();
    return bind_memory(handle, -1, at, memory, offset, bytes, flags);
}

CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle handle, CUdevice device, size_t at,
                               CUmemGenericAllocationHandle memory, size_t offset, size_t bytes,
                               unsigned long long flags) {
    int index;
    SIM_ENTER();
    CUresult result = device_of(device, &index);
    return result ? result : bind_memory(handle, index, at, memory, offset, bytes, flags);
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle handle, size_t at, CUdeviceptr address, size_t bytes,
                             unsigned long long flags) {
    SIM_ENTER();
    return bind_address(handle, -1, at, address, bytes, flags);
}

CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle handle, CUdevice device, size_t at, CUdeviceptr address,
                                size_t bytes, unsigned long long flags) {
    int index;
    SIM_ENTER();
    CUresult result = device_of(device, &index);
    return result ? result : bind_address(handle, index, at, address, bytes, flags);
}

CUresult cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice device, size_t at, size_t bytes) {
    int index;
    struct sim_physical *list = NULL;
    SIM_ENTER();
    CUresult result = device_of(device, &index);
    if (result)
        return result;
    alloc_lock();
    struct sim_multicast *object = multicast_of(handle);
    result = object ? multicast_unbind(object, index, at, bytes, &list) : CUDA_ERROR_INVALID_VALUE;
    alloc_unlock();
    vmm_destroy(list);
    return result;
}
