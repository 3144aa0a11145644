/* The calls of virtual memory management. Errors are those of the driver's documentation. Which of several errors
 * the real driver returns for calls in a wrong order is an assumption (tests/driver_facts). */
#include <fcntl.h>

#include "base/exports.h"
#include "memory/alloc.h"
#include "memory/call_times.h"
#include "memory/vmm.h"
#include "api/memory/memory.h"

#define HOST_PAGE 4096

static int is_host_location(const CUmemLocation *location) {
    return location->type >= CU_MEM_LOCATION_HOST && location->type <= CU_MEM_LOCATION_NUMA_HERE;
}

/* Host memory is not simulated, and neither are handles other than file descriptors. */
static CUresult check_properties(const CUmemAllocationProp *properties, int *device) {
    SIM_ENTER();
    if (!properties || properties->type != CU_MEM_ALLOCATION_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    if (properties->location.type != CU_MEM_LOCATION_DEVICE)
        return is_host_location(&properties->location) ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
    if (properties->handle_types & ~CU_MEM_HANDLE_POSIX_FD)
        return CUDA_ERROR_NOT_SUPPORTED;
    return device_of(properties->location.id, device);
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *properties, int option) {
    int device;
    CUresult result = check_properties(properties, &device);
    if (result)
        return result;
    if (!granularity || option < 0 || option > 1)
        return CUDA_ERROR_INVALID_VALUE;
    *granularity = VMM_GRANULARITY;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr hint,
                             unsigned long long flags) {
    SIM_ENTER();
    if (!address || !bytes || bytes % HOST_PAGE || hint % HOST_PAGE || (alignment & (alignment - 1)) || flags ||
        bytes > 1ull << 46 || alignment > 1ull << 40)
        return CUDA_ERROR_INVALID_VALUE;
    return alloc_reserve(bytes, alignment < VMM_GRANULARITY ? VMM_GRANULARITY : alignment, hint, address);
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
    SIM_ENTER();
    alloc_lock();
    struct sim_alloc *range = alloc_find(address);
    int fits = range && range->kind == ALLOC_RESERVED && range->base == address && range->reserved == bytes;
    int empty = fits && !range->mappings;
    alloc_unlock();
    return empty ? alloc_free(address, 1u << ALLOC_RESERVED) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties,
                     unsigned long long flags) {
    int device;
    struct sim_physical *physical;
    CUresult result = check_properties(properties, &device);
    if (result)
        return result;
    if (!handle || !bytes || !vmm_is_granular(bytes) || flags)
        return CUDA_ERROR_INVALID_VALUE;
    if ((result = vmm_create(device, bytes, properties, &physical)))
        return result;
    *handle = (CUmemGenericAllocationHandle)physical;
    spend_vmm_call(device, VMM_CREATE, bytes);
    return CUDA_SUCCESS;
}

/* Without handles the memory lives on while it is mapped. */
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    SIM_ENTER();
    struct sim_physical *list = NULL;
    alloc_lock();
    if (multicast_release(handle, &list)) {
        alloc_unlock();
        vmm_destroy(list);
        return CUDA_SUCCESS;
    }
    struct sim_physical *physical = physical_of(handle);
    if (!physical) {
        alloc_unlock();
        return CUDA_ERROR_INVALID_VALUE;
    }
    int device = physical->device;
    uint64_t bytes = physical->bytes;
    physical->handles--;
    vmm_remove_unused(physical, &list);
    alloc_unlock();
    vmm_destroy(list);
    spend_vmm_call(device, VMM_RELEASE, bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    SIM_ENTER();
    alloc_lock();
    struct sim_alloc *range = alloc_find((uint64_t)address);
    const struct sim_mapping *mapping =
        range && range->kind == ALLOC_RESERVED ? vmm_at(range, (uint64_t)address) : NULL;
    if (handle && mapping) {
        mapping->physical->handles++;
        *handle = (CUmemGenericAllocationHandle)mapping->physical;
    }
    alloc_unlock();
    return handle && mapping ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle) {
    SIM_ENTER();
    alloc_lock();
    struct sim_physical *physical = physical_of(handle);
    int known = properties && physical;
    if (known)
        *properties = physical->properties;
    alloc_unlock();
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Memory can only be mapped as a whole, as on an H200 (tests/driver_facts). A multicast object cannot be mapped. */
CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
    SIM_ENTER();
    if (!vmm_is_granular(address) || flags)
        return CUDA_ERROR_INVALID_VALUE;
    alloc_lock();
    struct sim_physical *physical = physical_of(handle);
    CUresult result = multicast_of(handle)                 ? CUDA_ERROR_NOT_SUPPORTED
                      : !physical                          ? CUDA_ERROR_INVALID_VALUE
                      : offset || bytes != physical->bytes ? CUDA_ERROR_NOT_SUPPORTED
                                                           : vmm_map(address, bytes, physical);
    int device = result ? 0 : physical->device;
    alloc_unlock();
    if (!result)
        spend_vmm_call(device, VMM_MAP, bytes);
    return result;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
    SIM_ENTER();
    struct sim_physical *list = NULL;
    if (!vmm_is_granular(address) || !vmm_is_granular(bytes))
        return CUDA_ERROR_INVALID_VALUE;
    int device;
    alloc_lock();
    CUresult result = vmm_unmap(address, bytes, &list, &device);
    alloc_unlock();
    vmm_destroy(list);
    if (!result && device >= 0)
        spend_vmm_call(device, VMM_UNMAP, bytes);
    return result;
}

/* An absent device is an invalid value here, unlike in cuMemCreate, as on an H200 (tests/driver_facts). */
static CUresult check_access(const CUmemAccessDesc *wanted) {
    int device;
    if (wanted->flags != CU_MEM_ACCESS_NONE && wanted->flags != CU_MEM_ACCESS_READ &&
        wanted->flags != CU_MEM_ACCESS_READWRITE)
        return CUDA_ERROR_INVALID_VALUE;
    if (is_host_location(&wanted->location))
        return CUDA_ERROR_NOT_SUPPORTED;
    return wanted->location.type == CU_MEM_LOCATION_DEVICE && !device_of(wanted->location.id, &device)
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *wanted, size_t wanted_count) {
    SIM_ENTER();
    if (!wanted || !wanted_count)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < wanted_count && !result; i++)
        result = check_access(&wanted[i]);
    if (result)
        return result;
    size_t count;
    alloc_lock();
    struct sim_mapping *first = vmm_whole(address, bytes, &count);
    if (!first)
        result = CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; first && i < count; i++)
        for (size_t j = 0; j < wanted_count; j++)
            first[i].access[sim.visible[wanted[j].location.id]] = (uint8_t)wanted[j].flags;
    int device = first ? first->physical->device : 0;
    alloc_unlock();
    if (!result)
        spend_vmm_call(device, VMM_SET_ACCESS, bytes);
    return result;
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address) {
    int device;
    SIM_ENTER();
    if (!flags || !location || location->type != CU_MEM_LOCATION_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = device_of(location->id, &device);
    if (result)
        return result;
    alloc_lock();
    struct sim_alloc *range = alloc_find(address);
    const struct sim_mapping *mapping = range && range->kind == ALLOC_RESERVED ? vmm_at(range, address) : NULL;
    if (mapping)
        *flags = mapping->access[device];
    alloc_unlock();
    return mapping ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Only memory that was created to be shared has a file that other processes may open. */
CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, int type,
                                      unsigned long long flags) {
    SIM_ENTER();
    if (!out || flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_POSIX_FD)
        return CUDA_ERROR_NOT_SUPPORTED;
    alloc_lock();
    struct sim_physical *physical = physical_of(handle);
    int is_multicast = multicast_of(handle) != NULL;
    int file = physical && physical->inode ? fcntl(physical->file, F_DUPFD_CLOEXEC, 0) : -1;
    alloc_unlock();
    if (is_multicast)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (file >= 0)
        *(int *)out = file;
    return file >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable, int type) {
    SIM_ENTER();
    struct sim_physical *physical;
    if (!handle)
        return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_POSIX_FD)
        return CUDA_ERROR_NOT_SUPPORTED;
    CUresult result = vmm_import((int)(intptr_t)shareable, &physical);
    if (!result)
        *handle = (CUmemGenericAllocationHandle)physical;
    return result;
}

static CUresult attribute_of(const struct sim_alloc *range, const struct sim_mapping *mapping, int attribute,
                             CUdeviceptr address, void *data) {
    if (attribute == CU_POINTER_RANGE_START) {
        *(CUdeviceptr *)data = range->base;
        return CUDA_SUCCESS;
    }
    if (attribute == CU_POINTER_RANGE_SIZE) {
        *(size_t *)data = range->reserved;
        return CUDA_SUCCESS;
    }
    if (attribute == CU_POINTER_MAPPED) {
        *(int *)data = mapping != NULL;
        return CUDA_SUCCESS;
    }
    if (!mapping)
        return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_POINTER_CONTEXT:
        *(CUcontext *)data = NULL;
        return CUDA_SUCCESS;
    case CU_POINTER_MEMORY_TYPE:
        *(unsigned *)data = CU_MEMORYTYPE_DEVICE;
        return CUDA_SUCCESS;
    case CU_POINTER_DEVICE_POINTER:
        *(CUdeviceptr *)data = address;
        return CUDA_SUCCESS;
    case CU_POINTER_SYNC_MEMOPS:
    case CU_POINTER_IS_MANAGED:
    case CU_POINTER_IPC_CAPABLE:
        *(int *)data = 0;
        return CUDA_SUCCESS;
    case CU_POINTER_RDMA_CAPABLE:
        *(int *)data = mapping->physical->properties.rdma;
        return CUDA_SUCCESS;
    case CU_POINTER_BUFFER_ID:
    case CU_POINTER_BLOCK_ID:
        *(unsigned long long *)data = mapping->physical->id;
        return CUDA_SUCCESS;
    case CU_POINTER_DEVICE_ORDINAL:
        *(int *)data = ordinal_of(mapping->physical->device);
        return CUDA_SUCCESS;
    case CU_POINTER_HANDLE_TYPES:
        *(unsigned long long *)data = (unsigned long long)mapping->physical->properties.handle_types;
        return CUDA_SUCCESS;
    case CU_POINTER_ACCESS_FLAGS:
        *(int *)data = mapping->access[sim_thread.current ? sim_thread.current->device : mapping->physical->device];
        return CUDA_SUCCESS;
    case CU_POINTER_POOL:
        *(CUmemoryPool *)data = NULL;
        return CUDA_SUCCESS;
    case CU_POINTER_MAPPING_BASE:
        *(CUdeviceptr *)data = mapping->base;
        return CUDA_SUCCESS;
    case CU_POINTER_MAPPING_SIZE:
        *(size_t *)data = mapping->size;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult vmm_attribute(const struct sim_alloc *range, int attribute, CUdeviceptr address, void *data) {
    alloc_lock();
    CUresult result = attribute_of(range, vmm_at(range, address), attribute, address, data);
    alloc_unlock();
    return result;
}
