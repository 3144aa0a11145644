/* Hooks on a program's queries about its memory, so that all queries agree. Redirected memory appears as the device
 * memory that the program asked for. */
#include "hooks/hooks.h"
#include "memory/memory.h"

/* Older drivers have no address range of unified memory, so an attribute leads from the middle to the start. */
static bool find_redirected(CUdeviceptr address, struct entry *entry) {
    CUdeviceptr base;
    if (atomic_load_explicit(&shim.state, memory_order_relaxed) != SHIM_ACTIVE)
        return false;
    bool known = ledger_find(LEDGER_ADDRESSES, address, entry) ||
                 (REAL(cuPointerGetAttribute)(&base, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address) == CUDA_SUCCESS &&
                  ledger_find(LEDGER_ADDRESSES, base, entry));
    return known && entry->kind == MEMORY_REDIRECTED;
}

bool is_redirected(CUdeviceptr address) {
    struct entry entry;
    return find_redirected(address, &entry);
}

/* Bytes behind an allocation belong to no range, even where the driver has more memory than the program asked for
 * (tests/driver_facts/test_pointers.py). */
CUresult hook_cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address) {
    struct swap_pointer pointer = {0};
    struct entry entry;
    bool is_swapped = swap_find_pointer(address, &pointer);
    bool is_ours = is_swapped || pointer.is_unused || find_redirected(address, &entry);
    if (!is_ours)
        return REAL(cuMemGetAddressRange_v2)(base, bytes, address);
    if (is_swapped || pointer.is_unused ? pointer.is_unused : address - entry.key >= entry.bytes)
        return CUDA_ERROR_NOT_FOUND;
    if (base)
        *base = is_swapped ? pointer.base : entry.key;
    if (bytes)
        *bytes = is_swapped ? pointer.bytes : entry.bytes;
    return CUDA_SUCCESS;
}

/* --- addresses of memory of the mode "swap", which may have nothing mapped at this moment --- */

static int access_of(const struct swap_pointer *pointer, CUdevice device) {
    for (int i = 0; i < pointer->access_count; i++)
        if (pointer->access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE && pointer->access[i].location.id == device)
            return pointer->access[i].flags;
    return 0;
}

CUresult hook_cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address) {
    struct swap_pointer pointer;
    CUresult result = REAL(cuMemGetAccess)(flags, location, address); /* which checks the location */
    if (flags && location && location->type == CU_MEM_LOCATION_TYPE_DEVICE && swap_find_pointer(address, &pointer)) {
        *flags = (unsigned long long)access_of(&pointer, location->id);
        result = CUDA_SUCCESS;
    }
    return result;
}

static int access_of_current_device(const struct swap_pointer *pointer) {
    CUdevice device;
    return REAL(cuCtxGetDevice)(&device) == CUDA_SUCCESS ? access_of(pointer, device) : 0;
}

/* Store the answer for device memory over the null value of the driver, which has the width that the driver gives the
 * attribute. The driver's own value stays where only the driver has one. */
static CUresult put_attribute(void *data, int attribute, CUdeviceptr address, const struct swap_pointer *pointer) {
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(CUcontext *)data = pointer->context;
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)data = CU_MEMORYTYPE_DEVICE;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)data = address;
        break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *(unsigned long long *)data = pointer->buffer_id;
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        *(unsigned long long *)data = pointer->block_id;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = pointer->device;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        if (!pointer->is_mapping) /* else the driver has the reserved range */
            *(CUdeviceptr *)data = pointer->base;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        if (!pointer->is_mapping)
            *(size_t *)data = pointer->bytes;
        break;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        *(CUdeviceptr *)data = pointer->base;
        break;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        *(size_t *)data = pointer->bytes;
        break;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *(unsigned char *)data = 1;
        break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *(unsigned long long *)data = pointer->handle_types;
        break;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: /* no, because it moves */
        *(unsigned char *)data = 0;
        break;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        *(int *)data = access_of_current_device(pointer);
        break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(CUmemoryPool *)data = pointer->pool;
        break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

static CUresult put_attributes(unsigned count, int *attributes, void **data, CUdeviceptr address,
                               const struct swap_pointer *pointer) {
    CUresult result = REAL(cuPointerGetAttributes)(count, attributes, data, address);
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++)
        if (data[i])
            put_attribute(data[i], attributes[i], address, pointer);
    return result;
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

/* Change the driver's answer for unified memory to that for device memory. */
static CUresult mask_unified(void *data, int attribute, const struct entry *entry) {
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        *(unsigned char *)data = 0; /* 1 becomes 0, however wide the program's boolean is */
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)data = CU_MEMORYTYPE_DEVICE;
        break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        *(void **)data = NULL;
        return CUDA_ERROR_INVALID_VALUE;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(CUmemoryPool *)data = pool_figures_pool(entry->pool);
        break;
    }
    return CUDA_SUCCESS;
}

CUresult hook_cuPointerGetAttribute(void *data, int attribute, CUdeviceptr address) {
    struct swap_pointer pointer;
    struct entry entry;
    CUresult result;
    if (data && swap_find_pointer(address, &pointer)) {
        result = put_attributes(1, &attribute, &data, address, &pointer);
        return result == CUDA_SUCCESS ? put_attribute(data, attribute, address, &pointer) : result;
    }
    result = REAL(cuPointerGetAttribute)(data, attribute, address);
    if (result == CUDA_SUCCESS && data && find_redirected(address, &entry))
        result = mask_unified(data, attribute, &entry);
    return result;
}

CUresult hook_cuPointerGetAttributes(unsigned count, int *attributes, void **data, CUdeviceptr address) {
    struct swap_pointer pointer;
    if (attributes && data && swap_find_pointer(address, &pointer))
        return put_attributes(count, attributes, data, address, &pointer);
    CUresult result = REAL(cuPointerGetAttributes)(count, attributes, data, address);
    struct entry entry;
    if (result != CUDA_SUCCESS || !attributes || !data || !find_redirected(address, &entry))
        return result;
    for (unsigned i = 0; i < count; i++)
        if (data[i])
            mask_unified(data[i], attributes[i], &entry);
    return result;
}
