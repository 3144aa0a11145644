/* Hooks on memory that stays on the device, and is counted only: physical memory of the virtual-memory interface, arrays. */
#include "shim.h"

/* --- virtual-memory management -------------------------------------------------------------------------------------
 * Physical memory lives as long as a handle or a mapping of it, and the driver may give a handle's number to another
 * memory while mappings of the first live on. So each memory has a number of its own here, above all handles. */

#define PHYSICAL (1ull << 63)

static void unrefer(uint64_t physical) {
    struct entry gone;
    if (ledger_refer(physical, -1, &gone))
        account_release(gone.bytes, true);
}

CUresult hook_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties,
                          unsigned long long flags) {
    static _Atomic uint64_t serial;
    if (!handle || !bytes || !properties || properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        !shim_is_active())
        return REAL(cuMemCreate)(handle, bytes, properties, flags);
    if (swap_handles(properties, flags))
        return swap_create(handle, bytes, properties);
    if (!reserve(bytes, true))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL(cuMemCreate)(handle, bytes, properties, flags);
    if (result != CUDA_SUCCESS) {
        account_release(bytes, true);
        return result;
    }
    uint64_t physical = PHYSICAL | atomic_fetch_add(&serial, 1);
    struct entry memory = {.key = physical, .bytes = bytes, .kind = HANDLE, .references = 1};
    struct entry name = {.key = *handle, .kind = HANDLE, .references = 1, .of = physical};
    ledger_add(HANDLES, &memory);
    ledger_add(HANDLES, &name);
    return result;
}

CUresult hook_cuMemRelease(CUmemGenericAllocationHandle handle) {
    if (swap_named(handle))
        return swap_release(handle);
    struct entry name, gone;
    bool known = ledger_find(HANDLES, handle, &name);
    bool last = known && ledger_refer(handle, -1, &gone); /* first: then the number may belong to another memory */
    CUresult result = REAL(cuMemRelease)(handle);
    if (last && result == CUDA_SUCCESS)
        unrefer(name.of);
    else if (last) {
        name.references = 1;
        ledger_add(HANDLES, &name);
    } else if (known && result != CUDA_SUCCESS)
        ledger_refer(handle, 1, &gone);
    return result;
}

CUresult hook_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    if (handle && swap_mapped((CUdeviceptr)(uintptr_t)address))
        return swap_retain(handle, (CUdeviceptr)(uintptr_t)address);
    CUresult result = REAL(cuMemRetainAllocationHandle)(handle, address);
    struct entry mapping, name, gone;
    if (result != CUDA_SUCCESS || !ledger_find(MAPPINGS, (uint64_t)(uintptr_t)address, &mapping))
        return result;
    if (ledger_find(HANDLES, *handle, &name)) {
        ledger_refer(*handle, 1, &gone);
    } else {
        name = (struct entry){.key = *handle, .kind = HANDLE, .references = 1, .of = mapping.of};
        ledger_refer(mapping.of, 1, &gone);
        ledger_add(HANDLES, &name);
    }
    return result;
}

CUresult hook_cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                       unsigned long long flags) {
    if (swap_named(handle))
        return swap_map(address, bytes, offset, handle);
    CUresult result = REAL(cuMemMap)(address, bytes, offset, handle, flags);
    struct entry name, gone;
    if (result == CUDA_SUCCESS && ledger_find(HANDLES, handle, &name)) {
        struct entry mapping = {.key = address, .bytes = bytes, .kind = HANDLE, .of = name.of};
        ledger_refer(name.of, 1, &gone);
        ledger_add(MAPPINGS, &mapping);
    }
    return result;
}

CUresult hook_cuMemUnmap(CUdeviceptr address, size_t bytes) {
    if (swap_mapped(address))
        return swap_unmap(address, bytes);
    CUresult result = REAL(cuMemUnmap)(address, bytes);
    struct entry mapping;
    for (CUdeviceptr at = address; result == CUDA_SUCCESS && at < address + bytes; at += mapping.bytes) {
        if (!ledger_take(MAPPINGS, at, &mapping)) /* imported memory, not counted here */
            break;
        unrefer(mapping.of);
    }
    return result;
}

CUresult hook_cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access, size_t count) {
    return access && count && swap_mapped(address) ? swap_access(address, bytes, access, count)
                                                   : REAL(cuMemSetAccess)(address, bytes, access, count);
}

CUresult hook_cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties,
                                                     CUmemGenericAllocationHandle handle) {
    return swap_named(handle) ? swap_properties(properties, handle)
                              : REAL(cuMemGetAllocationPropertiesFromHandle)(properties, handle);
}

/* --- arrays -------------------------------------------------------------------------------------------------------- */

static uint64_t element_bytes(int format) {
    switch (format) {
    case 0x01: /* 8-bit integers */
    case 0x08:
        return 1;
    case 0x02: /* 16-bit integers and halves */
    case 0x09:
    case 0x10:
        return 2;
    default: /* 32-bit ones; of the packed and compressed formats an upper bound */
        return 4;
    }
}

static uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned levels) {
    uint64_t width = shape->width, height = shape->height, depth = shape->depth, bytes = 0;
    for (unsigned level = 0; level < levels; level++) {
        uint64_t texels;
        if (__builtin_mul_overflow(width, height ? height : 1, &texels) ||
            __builtin_mul_overflow(texels, depth ? depth : 1, &texels) || texels >> 48)
            return UINT64_MAX;
        bytes += texels * element_bytes(shape->format) * (shape->channels ? shape->channels : 1);
        width = width > 1 ? width / 2 : 1;
        height /= 2;
        depth /= 2;
    }
    return bytes;
}

#define CREATE_ARRAY(size, call)                                                                                       \
    do {                                                                                                               \
        if (!array || !shape || !shim_is_active())                                                                     \
            return (call);                                                                                             \
        uint64_t bytes = (size);                                                                                       \
        if (bytes == UINT64_MAX)                                                                                       \
            return (call);                                                                                             \
        if (!reserve(bytes, true))                                                                                     \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                                           \
        CUresult result = (call);                                                                                      \
        struct entry entry = {.key = (uint64_t)(uintptr_t)*array, .bytes = bytes, .kind = ARRAY};                      \
        REAL(cuCtxGetCurrent)(&entry.context);                                                                         \
        if (result != CUDA_SUCCESS || !ledger_add(ARRAYS, &entry))                                                     \
            account_release(bytes, true);                                                                              \
        return result;                                                                                                 \
    } while (0)

CUresult hook_cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *shape) {
    CREATE_ARRAY(
        array_bytes(&(CUDA_ARRAY3D_DESCRIPTOR){shape->width, shape->height, 0, shape->format, shape->channels, 0}, 1),
        REAL(cuArrayCreate_v2)(array, shape));
}

CUresult hook_cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *shape) {
    CREATE_ARRAY(
        array_bytes(&(CUDA_ARRAY3D_DESCRIPTOR){shape->width, shape->height, 0, shape->format, shape->channels, 0}, 1),
        REAL(cuArrayCreate)(array, shape));
}

CUresult hook_cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *shape) {
    CREATE_ARRAY(array_bytes(&(CUDA_ARRAY3D_DESCRIPTOR){shape->width, shape->height, shape->depth, shape->format,
                                                        shape->channels, 0},
                             1),
                 REAL(cuArray3DCreate)(array, shape));
}

CUresult hook_cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape) {
    CREATE_ARRAY(array_bytes(shape, 1), REAL(cuArray3DCreate_v2)(array, shape));
}

CUresult hook_cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned levels) {
    CREATE_ARRAY(array_bytes(shape, levels < 32 ? levels : 32), REAL(cuMipmappedArrayCreate)(array, shape, levels));
}

#define DESTROY_ARRAY(call)                                                                                            \
    do {                                                                                                               \
        struct entry entry;                                                                                            \
        bool known = ledger_take(ARRAYS, (uint64_t)(uintptr_t)array, &entry);                                          \
        CUresult result = (call);                                                                                      \
        if (known && result == CUDA_SUCCESS)                                                                           \
            account_release(entry.bytes, true);                                                                        \
        else if (known)                                                                                                \
            ledger_add(ARRAYS, &entry);                                                                                \
        return result;                                                                                                 \
    } while (0)

CUresult hook_cuArrayDestroy(CUarray array) {
    DESTROY_ARRAY(REAL(cuArrayDestroy)(array));
}

CUresult hook_cuMipmappedArrayDestroy(CUmipmappedArray array) {
    DESTROY_ARRAY(REAL(cuMipmappedArrayDestroy)(array));
}
