/* Hooks on calls that pass memory to or from other processes, devices or interfaces. Memory that must move and cannot be
 * kept on the device is refused, and the log names the remedy. A process with such memory stays on its device (move.c). */
#include "hooks/hooks.h"
#include "memory/memory.h"

static bool is_movable_memory(CUdeviceptr address) {
    struct swap_pointer pointer;
    return is_redirected(address) || swap_find_pointer(address, &pointer);
}

/* Evaluates to the result of the call. The note comes before the call, because the agent may be about to move the process. */
#define SHARED(call) (atomic_store(&shim.shares_memory, true), (call))

static CUresult log_if_movable(CUresult result, const char *call, CUdeviceptr address) {
    if (result != CUDA_SUCCESS && is_movable_memory(address))
        log_once(LOG_ERROR,
                 "%s cannot pass device memory on in memory mode %s (CUDA error %d). Programs that pass device memory "
                 "to other processes or devices need the mode plain: set GPUSHARE_MEMORY_MODE=plain.",
                 call, shim.mode->name, result);
    return result;
}

/* A program makes this setting before another device accesses the memory directly (GPUDirect RDMA). Such a device
 * would not follow when the memory moves. */
CUresult hook_cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr address) {
    if (attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || !is_movable_memory(address))
        return REAL(cuPointerSetAttribute)(value, attribute, address);
    return log_if_movable(CUDA_ERROR_NOT_SUPPORTED, "cuPointerSetAttribute with SYNC_MEMOPS", address);
}

CUresult hook_cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address) {
    return log_if_movable(SHARED(REAL(cuIpcGetMemHandle)(handle, address)), "cuIpcGetMemHandle", address);
}

/* The process that made the memory counts it. */
CUresult hook_cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags) {
    return SHARED(REAL(cuIpcOpenMemHandle)(address, handle, flags));
}

CUresult hook_cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags) {
    return SHARED(REAL(cuIpcOpenMemHandle_v2)(address, handle, flags));
}

CUresult hook_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable, int type) {
    return SHARED(REAL(cuMemImportFromShareableHandle)(handle, shareable, type));
}

CUresult hook_cuImportExternalMemory(void **memory, const void *description) {
    return SHARED(REAL(cuImportExternalMemory)(memory, description));
}

CUresult hook_cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *shareable, int type,
                                                 unsigned long long flags) {
    return SHARED(REAL(cuMemPoolImportFromShareableHandle)(pool, shareable, type, flags));
}

CUresult hook_cuMemPoolExportToShareableHandle(void *shareable, CUmemoryPool pool, int type, unsigned long long flags) {
    return SHARED(REAL(cuMemPoolExportToShareableHandle)(shareable, pool, type, flags));
}

CUresult hook_cuMemPoolExportPointer(void *data, CUdeviceptr address) {
    return log_if_movable(SHARED(REAL(cuMemPoolExportPointer)(data, address)), "cuMemPoolExportPointer", address);
}

/* --- memory of the mode "swap", which stays on the device once another process or device may use it --- */

#define SHARE(condition, pin, call)                                                                                    \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            return (call);                                                                                             \
        CUresult result = hook_enter(&this_thread, DEFAULT);                                                           \
        if (result != CUDA_SUCCESS)                                                                                    \
            return result;                                                                                             \
        result = (call);                                                                                               \
        if (result == CUDA_SUCCESS)                                                                                    \
            pin;                                                                                                       \
        gate_leave(&this_thread);                                                                                      \
        return result;                                                                                                 \
    } while (0)
#define SHARE_HANDLE(call) SHARE(swap_owns_handle(handle), swap_pin_handle(handle), call)
#define SHARE_RANGE(call)                                                                                              \
    struct swap_pointer pointer;                                                                                       \
    SHARE(swap_find_pointer((CUdeviceptr)address, &pointer), swap_pin_range((CUdeviceptr)address, bytes), call)

static CUmemGenericAllocationHandle driver_handle(CUmemGenericAllocationHandle handle) {
    return swap_owns_handle(handle) ? swap_driver_handle(handle) : handle;
}

CUresult hook_cuMemExportToShareableHandle(void *data, CUmemGenericAllocationHandle handle, int type,
                                           unsigned long long flags) {
    SHARE_HANDLE(SHARED(REAL(cuMemExportToShareableHandle)(data, driver_handle(handle), type, flags)));
}

CUresult hook_cuMulticastBindMem(CUmemGenericAllocationHandle object, size_t object_offset,
                                 CUmemGenericAllocationHandle handle, size_t offset, size_t bytes,
                                 unsigned long long flags) {
    SHARE_HANDLE(REAL(cuMulticastBindMem)(object, object_offset, driver_handle(handle), offset, bytes, flags));
}

CUresult hook_cuMulticastBindMem_v2(CUmemGenericAllocationHandle object, CUdevice device, size_t object_offset,
                                    CUmemGenericAllocationHandle handle, size_t offset, size_t bytes,
                                    unsigned long long flags) {
    SHARE_HANDLE(
        REAL(cuMulticastBindMem_v2)(object, device, object_offset, driver_handle(handle), offset, bytes, flags));
}

CUresult hook_cuLogicalEndpointBindMem(unsigned endpoint, CUdevice device, uint64_t endpoint_offset,
                                       CUmemGenericAllocationHandle handle, uint64_t offset, uint64_t bytes,
                                       unsigned long long flags) {
    SHARE_HANDLE(
        REAL(cuLogicalEndpointBindMem)(endpoint, device, endpoint_offset, driver_handle(handle), offset, bytes, flags));
}

CUresult hook_cuMulticastBindAddr(CUmemGenericAllocationHandle object, size_t object_offset, CUdeviceptr address,
                                  size_t bytes, unsigned long long flags) {
    SHARE_RANGE(REAL(cuMulticastBindAddr)(object, object_offset, address, bytes, flags));
}

CUresult hook_cuMulticastBindAddr_v2(CUmemGenericAllocationHandle object, CUdevice device, size_t object_offset,
                                     CUdeviceptr address, size_t bytes, unsigned long long flags) {
    SHARE_RANGE(REAL(cuMulticastBindAddr_v2)(object, device, object_offset, address, bytes, flags));
}

CUresult hook_cuLogicalEndpointBindAddr(unsigned endpoint, CUdevice device, uint64_t endpoint_offset, void *address,
                                        uint64_t bytes, unsigned long long flags) {
    SHARE_RANGE(REAL(cuLogicalEndpointBindAddr)(endpoint, device, endpoint_offset, address, bytes, flags));
}

CUresult hook_cuMemGetHandleForAddressRange(void *handle, CUdeviceptr address, size_t bytes, int type,
                                            unsigned long long flags) {
    SHARE_RANGE(log_if_movable(SHARED(REAL(cuMemGetHandleForAddressRange)(handle, address, bytes, type, flags)),
                               "cuMemGetHandleForAddressRange", address));
}
