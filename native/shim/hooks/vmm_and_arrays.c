/* Hooks on the virtual-memory interface and on arrays. In the mode "swap", the shim moves most physical memory
 * (memory/swap/vmm.c). Other physical memory and arrays stay on the device and are only counted. */
#include "hooks/hooks.h"
#include "memory/memory.h"

/* --- virtual-memory management -------------------------------------------------------------------------------------
 *
 * Physical memory lives as long as a handle or a mapping of it. The driver may give a handle's number to another memory
 * while mappings of the first live on. So each memory has a number of its own here, above all handles. */

#define PHYSICAL (1ull << 63)

/* The driver itself answers a call that it may refuse. The answer needs the memory on the device. */
#define SWAP_CALL(call)                                                                                                \
    ({                                                                                                                 \
        CUresult answer = (call);                                                                                      \
        answer == CUDA_ERROR_NOT_READY ? CALL_WITH_MEMORY(call) : answer;                                              \
    })

static void drop_reference(uint64_t physical) {
    struct entry gone;
    if (ledger_change_references(physical, -1, &gone))
        account_release(gone.bytes, true);
}

CUresult hook_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties,
                          unsigned long long flags) {
    static _Atomic uint64_t serial;
    if (!handle || !bytes || bytes >> 62 || !properties || properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        !shim_is_active())
        return REAL(cuMemCreate)(handle, bytes, properties, flags);
    CUresult result;
    if (swap_manages(properties, flags)) {
        result = swap_create(handle, bytes, properties);
        if (result == CUDA_SUCCESS)
            refusal_recovered(bytes);
        return result;
    }
    if (!reserve_memory(bytes, true))
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = REAL(cuMemCreate)(handle, bytes, properties, flags);
    if (result != CUDA_SUCCESS) {
        account_release(bytes, true);
        return result;
    }
    refusal_recovered(bytes);
    uint64_t physical = PHYSICAL | atomic_fetch_add(&serial, 1);
    struct entry memory = {.key = physical, .bytes = bytes, .kind = MEMORY_HANDLE, .references = 1};
    struct entry name = {.key = *handle, .kind = MEMORY_HANDLE, .references = 1, .physical_or_generation = physical};
    ledger_add(LEDGER_HANDLES, &memory);
    ledger_add(LEDGER_HANDLES, &name);
    return result;
}

CUresult hook_cuMemRelease(CUmemGenericAllocationHandle handle) {
    if (swap_owns_handle(handle))
        return swap_release(handle);
    struct entry name, gone;
    bool known = ledger_find(LEDGER_HANDLES, handle, &name);
    bool last =
        /* first, because the number may belong to another memory afterwards */
        known && ledger_change_references(handle, -1, &gone);
    CUresult result = REAL(cuMemRelease)(handle);
    if (last && result == CUDA_SUCCESS)
        drop_reference(name.physical_or_generation);
    else if (last) {
        name.references = 1;
        ledger_add(LEDGER_HANDLES, &name);
    } else if (known && result != CUDA_SUCCESS)
        ledger_change_references(handle, 1, &gone);
    return result;
}

/* Memory of cuMemAlloc has no handle, although the mode "swap" makes it of mapped blocks. */
CUresult hook_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    struct swap_pointer pointer;
    if (handle && swap_find_pointer((CUdeviceptr)(uintptr_t)address, &pointer))
        return pointer.is_mapping ? swap_retain(handle, (CUdeviceptr)(uintptr_t)address) : CUDA_ERROR_INVALID_VALUE;
    CUresult result = REAL(cuMemRetainAllocationHandle)(handle, address);
    struct entry mapping, name, gone;
    if (result != CUDA_SUCCESS || !ledger_find(LEDGER_MAPPINGS, (uint64_t)(uintptr_t)address, &mapping))
        return result;
    if (ledger_find(LEDGER_HANDLES, *handle, &name)) {
        ledger_change_references(*handle, 1, &gone);
    } else {
        name = (struct entry){.key = *handle,
                              .kind = MEMORY_HANDLE,
                              .references = 1,
                              .physical_or_generation = mapping.physical_or_generation};
        ledger_change_references(mapping.physical_or_generation, 1, &gone);
        ledger_add(LEDGER_HANDLES, &name);
    }
    return result;
}

CUresult hook_cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                       unsigned long long flags) {
    if (swap_owns_handle(handle))
        return SWAP_CALL(swap_map(address, bytes, offset, handle, flags));
    CUresult result = REAL(cuMemMap)(address, bytes, offset, handle, flags);
    struct entry name, gone;
    if (result == CUDA_SUCCESS && ledger_find(LEDGER_HANDLES, handle, &name)) {
        struct entry mapping = {.key = address,
                                .bytes = bytes,
                                .kind = MEMORY_HANDLE,
                                .physical_or_generation = name.physical_or_generation};
        ledger_change_references(name.physical_or_generation, 1, &gone);
        ledger_add(LEDGER_MAPPINGS, &mapping);
    }
    return result;
}

/* The range may have holes (tests/driver_facts/test_vmm.py), and imported memory, which does not count here. */
CUresult hook_cuMemUnmap(CUdeviceptr address, size_t bytes) {
    CUresult result =
        swap_owns_range(address, bytes) ? SWAP_CALL(swap_unmap(address, bytes)) : REAL(cuMemUnmap)(address, bytes);
    struct entry mapping;
    for (CUdeviceptr at = address; result == CUDA_SUCCESS && at < address + bytes;) {
        bool is_known = ledger_remove(LEDGER_MAPPINGS, at, &mapping);
        if (is_known)
            drop_reference(mapping.physical_or_generation);
        at += is_known ? mapping.bytes : GRANULE_BYTES;
    }
    return result;
}

CUresult hook_cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access, size_t count) {
    return swap_owns_range(address, bytes) ? SWAP_CALL(swap_access(address, bytes, access, count))
                                           : REAL(cuMemSetAccess)(address, bytes, access, count);
}

/* The driver refuses the call while memory is mapped there. */
CUresult hook_cuMemAddressFree(CUdeviceptr address, size_t bytes) {
    return swap_owns_range(address, bytes) ? CALL_WITH_MEMORY(REAL(cuMemAddressFree)(address, bytes))
                                           : REAL(cuMemAddressFree)(address, bytes);
}

CUresult hook_cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties,
                                                     CUmemGenericAllocationHandle handle) {
    return swap_owns_handle(handle) ? swap_properties(properties, handle)
                                    : REAL(cuMemGetAllocationPropertiesFromHandle)(properties, handle);
}

/* --- arrays ------------------------------------------------------------------------------------------------------- */

static uint64_t element_bytes(int format) {
    switch (format) {
    case 0x01: /* 8-bit integers */
    case 0x08:
        return 1;
    case 0x02: /* 16-bit integers and halves */
    case 0x09:
    case 0x10:
        return 2;
    default: /* 32-bit formats, and an upper bound for packed and compressed ones */
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
        if (!reserve_memory(bytes, true))                                                                              \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                                           \
        CUresult result = (call);                                                                                      \
        struct entry entry = {.key = (uint64_t)(uintptr_t)*array, .bytes = bytes, .kind = MEMORY_ARRAY};               \
        entry.context = memory_context();                                                                              \
        if (result != CUDA_SUCCESS || !ledger_add(LEDGER_ARRAYS, &entry))                                              \
            account_release(bytes, true);                                                                              \
        else                                                                                                           \
            refusal_recovered(bytes);                                                                                  \
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
        bool known = ledger_remove(LEDGER_ARRAYS, (uint64_t)(uintptr_t)array, &entry);                                 \
        CUresult result = (call);                                                                                      \
        if (known && result == CUDA_SUCCESS)                                                                           \
            account_release(entry.bytes, true);                                                                        \
        else if (known)                                                                                                \
            ledger_add(LEDGER_ARRAYS, &entry);                                                                         \
        return result;                                                                                                 \
    } while (0)

CUresult hook_cuArrayDestroy(CUarray array) {
    DESTROY_ARRAY(REAL(cuArrayDestroy)(array));
}

CUresult hook_cuMipmappedArrayDestroy(CUmipmappedArray array) {
    DESTROY_ARRAY(REAL(cuMipmappedArrayDestroy)(array));
}
