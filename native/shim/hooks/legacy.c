/* Hooks on the 32-bit API, from before CUDA 3.2, which cannot address unified memory. So allocations by that API
 * stay on the device and count as unmovable, and sizes are clamped to 32 bits. Arrays are in vmm_and_arrays.c. */
#include "hooks/hooks.h"
#include "memory/memory.h"

#define ROW 512 /* the largest alignment of rows in the driver, in bytes */

static CUresult count_allocation(CUresult result, CUdeviceptr_v1 *address, uint64_t bytes) {
    struct entry entry = {.bytes = bytes, .kind = MEMORY_DEVICE};
    if (result == CUDA_SUCCESS) {
        entry.key = *address;
        entry.context = memory_context();
    }
    if (result != CUDA_SUCCESS || !ledger_add(LEDGER_ADDRESSES, &entry))
        account_release(bytes, true);
    return result;
}

CUresult hook_cuMemAlloc(CUdeviceptr_v1 *address, unsigned bytes) {
    if (!address || !bytes || !shim_is_active())
        return REAL(cuMemAlloc)(address, bytes);
    if (!reserve_memory(bytes, true))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return count_allocation(REAL(cuMemAlloc)(address, bytes), address, bytes);
}

CUresult hook_cuMemAllocPitch(CUdeviceptr_v1 *address, unsigned *pitch, unsigned width, unsigned height,
                              unsigned element) {
    uint64_t bytes = ((uint64_t)width + ROW - 1) / ROW * ROW * height;
    if (!address || !pitch || !bytes || !shim_is_active())
        return REAL(cuMemAllocPitch)(address, pitch, width, height, element);
    if (!reserve_memory(bytes, true))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return count_allocation(REAL(cuMemAllocPitch)(address, pitch, width, height, element), address, bytes);
}

CUresult hook_cuMemFree(CUdeviceptr_v1 address) {
    struct entry entry;
    if (!ledger_remove(LEDGER_ADDRESSES, address, &entry))
        return REAL(cuMemFree)(address);
    CUresult result = REAL(cuMemFree)(address);
    if (result == CUDA_SUCCESS)
        account_release(entry.bytes, is_unmovable(entry.kind));
    else
        ledger_add(LEDGER_ADDRESSES, &entry);
    return result;
}

static unsigned clamp(uint64_t bytes) {
    return bytes < UINT32_MAX ? (unsigned)bytes : UINT32_MAX;
}

CUresult hook_cuMemGetAddressRange(CUdeviceptr_v1 *base, unsigned *bytes, CUdeviceptr_v1 address) {
    return REAL(cuMemGetAddressRange)(base, bytes, address); /* movable memory has higher addresses */
}

CUresult hook_cuMemGetInfo(unsigned *free, unsigned *total) {
    size_t wide_free, wide_total;
    if (!free || !total || !shim_is_active() || !driver_has(HOOK_cuMemGetInfo))
        return REAL(cuMemGetInfo)(free, total);
    CUresult result = hook_cuMemGetInfo_v2(&wide_free, &wide_total);
    if (result == CUDA_SUCCESS) {
        *free = clamp(wide_free);
        *total = clamp(wide_total);
    }
    return result;
}

CUresult hook_cuDeviceTotalMem(unsigned *bytes, CUdevice device) {
    size_t wide;
    if (!bytes || !shim_is_active() || !driver_has(HOOK_cuDeviceTotalMem))
        return REAL(cuDeviceTotalMem)(bytes, device);
    CUresult result = hook_cuDeviceTotalMem_v2(&wide, device);
    if (result == CUDA_SUCCESS)
        *bytes = clamp(wide);
    return result;
}
