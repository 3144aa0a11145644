/* Hooks on handing memory to other processes and devices: redirected memory cannot be, and the log says what helps. */
#include "shim.h"

static CUresult checked(CUresult result, const char *call, CUdeviceptr address) {
    if (result != CUDA_SUCCESS && is_redirected(address))
        log_once(
            LOG_ERROR,
            "%s cannot hand on unified memory, which device memory is here (CUDA error %d): for programs that pass "
            "device memory to other processes or devices set the memory mode plain (GPUSHARE_MEMORY_MODE=plain)",
            call, result);
    return result;
}

CUresult hook_cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address) {
    return checked(REAL(cuIpcGetMemHandle)(handle, address), "cuIpcGetMemHandle", address);
}

CUresult hook_cuMemPoolExportPointer(void *data, CUdeviceptr address) {
    return checked(REAL(cuMemPoolExportPointer)(data, address), "cuMemPoolExportPointer", address);
}

CUresult hook_cuMemGetHandleForAddressRange(void *handle, CUdeviceptr address, size_t bytes, int type,
                                            unsigned long long flags) {
    return checked(REAL(cuMemGetHandleForAddressRange)(handle, address, bytes, type, flags),
                   "cuMemGetHandleForAddressRange", address);
}
