/* Hooks on a program's queries about its memory, so that all queries agree. Redirected memory appears as the device
 * memory that the program asked for. */
#include "hooks/hooks.h"
#include "memory/memory.h"

bool is_redirected(CUdeviceptr address) {
    struct entry entry;
    CUdeviceptr base;
    size_t bytes;
    if (atomic_load_explicit(&shim.state, memory_order_relaxed) != SHIM_ACTIVE)
        return false;
    if (!ledger_find(LEDGER_ADDRESSES, address, &entry)) { /* the address may point into the middle */
        if (REAL(cuMemGetAddressRange_v2)(&base, &bytes, address) != CUDA_SUCCESS)
            return false;
        if (!ledger_find(LEDGER_ADDRESSES, base, &entry))
            return false;
    }
    return entry.kind == MEMORY_REDIRECTED;
}

/* Memory of the mode "swap" consists of blocks, and is unmapped while evicted. Its size is what the program asked
 * for. */
static bool is_swapped(CUdeviceptr address, CUdeviceptr *base, size_t *bytes, bool *is_resident) {
    struct entry entry;
    if (shim.mode != &mode_swap || !swap_find_allocation(address, base, bytes, is_resident))
        return false;
    if (ledger_find(LEDGER_ADDRESSES, *base, &entry))
        *bytes = entry.bytes;
    return true;
}

CUresult hook_cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address) {
    CUdeviceptr begin;
    size_t length;
    bool is_resident;
    if (!is_swapped(address, &begin, &length, &is_resident))
        return REAL(cuMemGetAddressRange_v2)(base, bytes, address);
    if (base)
        *base = begin;
    if (bytes)
        *bytes = length;
    return CUDA_SUCCESS;
}

/* Return what the driver returns for device memory, for an address that has nothing mapped at this moment. */
static CUresult get_evicted_attribute(void *data, int attribute, CUdeviceptr address, CUdeviceptr base, size_t bytes) {
    struct entry entry = {0};
    ledger_find(LEDGER_ADDRESSES, base, &entry);
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(CUcontext *)data = entry.context;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)data = CU_MEMORYTYPE_DEVICE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)data = address;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: {
        CUcontext left;
        CUdevice device = 0;
        if (entry.context && REAL(cuCtxPushCurrent_v2)(entry.context) == CUDA_SUCCESS) {
            REAL(cuCtxGetDevice)(&device);
            REAL(cuCtxPopCurrent_v2)(&left);
        }
        *(int *)data = device;
        return CUDA_SUCCESS;
    }
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(CUdeviceptr *)data = base;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *(size_t *)data = bytes;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *(unsigned char *)data = 1;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned char *)data = 0;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult hook_cuMemGetInfo_v2(size_t *free, size_t *total) {
    size_t real_free = 0, real_total = 0;
    if (!free || !total || !shim_is_active())
        return REAL(cuMemGetInfo_v2)(free, total);
    CUresult result = REAL(cuMemGetInfo_v2)(&real_free, &real_total);
    if (result != CUDA_SUCCESS)
        return result;
    deferred_free_completed(); /* memory whose stream has passed its free counts as free */
    uint64_t apparent_total, apparent_free;
    account_apparent_memory(real_total, real_free, &apparent_total, &apparent_free);
    *free = apparent_free;
    *total = apparent_total;
    return result;
}

CUresult hook_cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    CUresult result = REAL(cuDeviceTotalMem_v2)(bytes, device);
    if (result == CUDA_SUCCESS && bytes && shim_is_active()) {
        uint64_t total, unused;
        account_apparent_memory(*bytes, *bytes, &total, &unused);
        *bytes = total;
    }
    return result;
}

CUresult hook_cuPointerGetAttribute(void *data, int attribute, CUdeviceptr address) {
    CUdeviceptr base;
    size_t bytes;
    bool is_resident;
    if (data && is_swapped(address, &base, &bytes, &is_resident) && !is_resident)
        return get_evicted_attribute(data, attribute, address, base, bytes);
    CUresult result = REAL(cuPointerGetAttribute)(data, attribute, address);
    if (result != CUDA_SUCCESS || !data || !is_redirected(address))
        return result;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned char *)data = 0; /* 1 becomes 0, however wide the program's boolean is */
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)data = CU_MEMORYTYPE_DEVICE;
        break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        return CUDA_ERROR_INVALID_VALUE; /* as for device memory */
    }
    return result;
}

CUresult hook_cuPointerGetAttributes(unsigned count, int *attributes, void **data, CUdeviceptr address) {
    CUdeviceptr base;
    size_t bytes;
    bool is_resident;
    if (attributes && data && is_swapped(address, &base, &bytes, &is_resident) && !is_resident) {
        for (unsigned i = 0; i < count; i++)
            if (data[i] && get_evicted_attribute(data[i], attributes[i], address, base, bytes) != CUDA_SUCCESS)
                *(char *)data[i] = 0; /* as for an attribute that does not apply */
        return CUDA_SUCCESS;
    }
    CUresult result = REAL(cuPointerGetAttributes)(count, attributes, data, address);
    if (result != CUDA_SUCCESS || !attributes || !data || !is_redirected(address))
        return result;
    for (unsigned i = 0; i < count; i++) {
        if (!data[i])
            continue;
        if (attributes[i] == CU_POINTER_ATTRIBUTE_IS_MANAGED)
            *(unsigned char *)data[i] = 0;
        if (attributes[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
            *(unsigned *)data[i] = CU_MEMORYTYPE_DEVICE;
        if (attributes[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER)
            *(void **)data[i] = NULL;
    }
    return result;
}
