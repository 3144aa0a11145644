/* The hook on the driver's initialisation. */
#include "hooks/hooks.h"

CUresult hook_cuInit(unsigned flags) {
    if (atomic_load(&shim.state) == SHIM_UNINITIALISED)
        bind_devices();
    CUresult result = REAL(cuInit)(flags);
    if (result == CUDA_SUCCESS && atomic_load(&shim.state) == SHIM_UNINITIALISED)
        shim_start();
    return result;
}
