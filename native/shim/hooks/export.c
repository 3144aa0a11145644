/* Hooks on calls that pass memory to other processes or devices. The shim's movable memory cannot be passed, and the
 * log names the remedy. */
#include "hooks/hooks.h"
#include "memory/memory.h"

static bool is_swapped(CUdeviceptr address) {
    CUdeviceptr base;
    size_t bytes;
    return shim.mode == &mode_swap && (swap_find_allocation(address, &base, &bytes) || swap_owns_mapping(address));
}

static CUresult log_refusal(CUresult result, const char *call) {
    log_once(LOG_ERROR,
             "%s cannot pass device memory on in memory mode %s (CUDA error %d). Programs that pass device memory to "
             "other processes or devices need the mode plain: set GPUSHARE_MEMORY_MODE=plain.",
             call, shim.mode->name, result);
    return result;
}

/* The driver refuses unified memory itself. It would pass swapped memory on at its present place. */
#define EXPORT_MEMORY(call, name)                                                                                      \
    do {                                                                                                               \
        if (is_swapped(address))                                                                                       \
            return log_refusal(CUDA_ERROR_NOT_SUPPORTED, name);                                                        \
        CUresult result = (call);                                                                                      \
        return result != CUDA_SUCCESS && is_redirected(address) ? log_refusal(result, name) : result;                  \
    } while (0)

CUresult hook_cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address) {
    EXPORT_MEMORY(REAL(cuIpcGetMemHandle)(handle, address), "cuIpcGetMemHandle");
}

CUresult hook_cuMemPoolExportPointer(void *data, CUdeviceptr address) {
    EXPORT_MEMORY(REAL(cuMemPoolExportPointer)(data, address), "cuMemPoolExportPointer");
}

CUresult hook_cuMemGetHandleForAddressRange(void *handle, CUdeviceptr address, size_t bytes, int type,
                                            unsigned long long flags) {
    EXPORT_MEMORY(REAL(cuMemGetHandleForAddressRange)(handle, address, bytes, type, flags),
                  "cuMemGetHandleForAddressRange");
}
