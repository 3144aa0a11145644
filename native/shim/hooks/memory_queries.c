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
static bool is_swapped(CUdeviceptr address, CUdeviceptr *base, size_t *bytes) {
    struct entry entry;
    if (shim.mode != &mode_swap || !swap_find_allocation(address, base, bytes))
        return false;
    if (ledger_find(LEDGER_ADDRESSES, *base, &entry))
        *bytes = entry.bytes;
    return true;
}

/* Enter the gate for a query that only the driver can answer, if the memory may be evicted. */
static CUresult enter_for_query(CUdeviceptr address, bool *entered) {
    CUdeviceptr base;
    size_t bytes;
    *entered = shim.mode == &mode_swap && (swap_owns_mapping(address) || is_swapped(address, &base, &bytes));
    CUresult result = *entered ? hook_enter(&this_thread, NO_STREAM) : CUDA_SUCCESS;
    *entered = *entered && result == CUDA_SUCCESS;
    return result;
}

#define QUERY(address, call)                                                                                           \
    ({                                                                                                                 \
        bool entered;                                                                                                  \
        CUresult answer = enter_for_query(address, &entered);                                                          \
        if (answer == CUDA_SUCCESS)                                                                                    \
            answer = (call);                                                                                           \
        if (entered)                                                                                                   \
            gate_leave(&this_thread);                                                                                  \
        answer;                                                                                                        \
    })

CUresult hook_cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address) {
    CUdeviceptr begin;
    size_t length;
    if (!is_swapped(address, &begin, &length))
        return QUERY(address, REAL(cuMemGetAddressRange_v2)(base, bytes, address));
    if (base)
        *base = begin;
    if (bytes)
        *bytes = length;
    return CUDA_SUCCESS;
}

static int device_of(CUcontext context) {
    CUcontext left;
    CUdevice device = 0;
    if (context && REAL(cuCtxPushCurrent_v2)(context) == CUDA_SUCCESS) {
        REAL(cuCtxGetDevice)(&device);
        REAL(cuCtxPopCurrent_v2)(&left);
    }
    return device;
}

/* Return what the driver returns for device memory, also while the memory is evicted. NOT_FOUND: only the driver can
 * answer. */
static CUresult get_swapped_attribute(void *data, int attribute, CUdeviceptr address) {
    CUdeviceptr base;
    size_t bytes;
    struct entry entry = {0};
    if (!is_swapped(address, &base, &bytes))
        return CUDA_ERROR_NOT_FOUND;
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
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = device_of(entry.context);
        return CUDA_SUCCESS;
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
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        return CUDA_ERROR_INVALID_VALUE;
    default:
        return CUDA_ERROR_NOT_FOUND;
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
    CUresult result = data ? get_swapped_attribute(data, attribute, address) : CUDA_ERROR_NOT_FOUND;
    if (result != CUDA_ERROR_NOT_FOUND)
        return result;
    result = QUERY(address, REAL(cuPointerGetAttribute)(data, attribute, address));
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

/* Return true if the driver need not be asked. */
static bool get_swapped_attributes(unsigned count, const int *attributes, void **data, CUdeviceptr address) {
    bool all = true;
    for (unsigned i = 0; i < count; i++) {
        CUresult result = data[i] ? get_swapped_attribute(data[i], attributes[i], address) : CUDA_ERROR_NOT_FOUND;
        if (result == CUDA_ERROR_INVALID_VALUE)
            *(void **)data[i] = NULL; /* unlike the singular form, this one clears what does not apply */
        all = all && result != CUDA_ERROR_NOT_FOUND;
    }
    return all;
}

CUresult hook_cuPointerGetAttributes(unsigned count, int *attributes, void **data, CUdeviceptr address) {
    if (attributes && data && count && get_swapped_attributes(count, attributes, data, address))
        return CUDA_SUCCESS;
    CUresult result = QUERY(address, REAL(cuPointerGetAttributes)(count, attributes, data, address));
    if (result != CUDA_SUCCESS || !attributes || !data)
        return result;
    get_swapped_attributes(count, attributes, data, address);
    if (!is_redirected(address))
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
