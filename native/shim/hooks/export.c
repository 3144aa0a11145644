/* Hooks on calls that pass memory to other processes or devices. The shim's movable memory cannot be passed, and the
 * log names the remedy. */
#include "hooks/hooks.h"
#include "memory/memory.h"

static bool is_movable_memory(CUdeviceptr address) {
    struct swap_pointer pointer;
    return is_redirected(address) || swap_find_pointer(address, &pointer);
}

static CUresult log_if_movable(CUresult result, const char *call, CUdeviceptr address) {
    if (result != CUDA_SUCCESS && is_movable_memory(address))
        log_once(LOG_ERROR,
                 "%s cannot pass device memory on in memory mode %s (CUDA error %d). Programs that pass device memory "
                 "to other "
                 "processes or devices need the mode plain: set GPUSHARE_MEMORY_MODE=plain.",
                 call, shim.mode->name, result);
    return result;
}

CUresult hook_cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address) {
    return log_if_movable(REAL(cuIpcGetMemHandle)(handle, address), "cuIpcGetMemHandle", address);
}

CUresult hook_cuMemPoolExportPointer(void *data, CUdeviceptr address) {
    return log_if_movable(REAL(cuMemPoolExportPointer)(data, address), "cuMemPoolExportPointer", address);
}

CUresult hook_cuMemGetHandleForAddressRange(void *handle, CUdeviceptr address, size_t bytes, int type,
                                            unsigned long long flags) {
    return log_if_movable(REAL(cuMemGetHandleForAddressRange)(handle, address, bytes, type, flags),
                          "cuMemGetHandleForAddressRange", address);
}
