/* Hooks on what a program can ask about its memory: one story in every view. Redirected memory is shown as the device
 * memory that was asked for. */
#include "shim.h"

bool is_redirected(CUdeviceptr address) {
    struct entry entry;
    CUdeviceptr base;
    size_t bytes;
    if (atomic_load_explicit(&shim.state, memory_order_relaxed) != AWAKE)
        return false;
    if (!ledger_find(ADDRESSES, address, &entry)) { /* may point into the middle */
        if (REAL(cuMemGetAddressRange_v2)(&base, &bytes, address) != CUDA_SUCCESS)
            return false;
        if (!ledger_find(ADDRESSES, base, &entry))
            return false;
    }
    return entry.kind == REDIRECTED;
}

CUresult hook_cuMemGetInfo_v2(size_t *free, size_t *total) {
    size_t real_free = 0, real_total = 0;
    if (!free || !total || !shim_awake())
        return REAL(cuMemGetInfo_v2)(free, total);
    CUresult result = REAL(cuMemGetInfo_v2)(&real_free, &real_total);
    if (result != CUDA_SUCCESS)
        return result;
    uint64_t told_total, told_free;
    account_figures(real_total, real_free, &told_total, &told_free);
    *free = told_free;
    *total = told_total;
    return result;
}

CUresult hook_cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    CUresult result = REAL(cuDeviceTotalMem_v2)(bytes, device);
    if (result == CUDA_SUCCESS && bytes && shim_awake()) {
        uint64_t total, unused;
        account_figures(*bytes, *bytes, &total, &unused);
        *bytes = total;
    }
    return result;
}

CUresult hook_cuPointerGetAttribute(void *data, int attribute, CUdeviceptr address) {
    CUresult result = REAL(cuPointerGetAttribute)(data, attribute, address);
    if (result != CUDA_SUCCESS || !data || !is_redirected(address))
        return result;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned char *)data = 0; /* 1 has become 0, however wide the program's boolean is */
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
