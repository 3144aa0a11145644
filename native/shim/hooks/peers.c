/* Hooks on the access of devices to each other's memory. The driver's own calls remain, since they cover the memory that
 * the shim does not make. */
#include "hooks/hooks.h"
#include "memory/memory.h"

static bool is_swapping(void) {
    return shim_is_active() && shim.mode->number == GPUSHARE_MEMORY_SWAP;
}

/* One side of the access. */
struct side {
    CUcontext context; /* that has the memory */
    CUdevice device;
};

static bool find_current(struct side *side) {
    side->context = memory_context();
    return side->context && REAL(cuCtxGetDevice)(&side->device) == CUDA_SUCCESS;
}

static bool find_both(CUcontext peer, struct side *own, struct side *there) {
    CUcontext left;
    if (!find_current(own) || REAL(cuCtxPushCurrent_v2)(peer) != CUDA_SUCCESS)
        return false;
    bool found = find_current(there);
    REAL(cuCtxPopCurrent_v2)(&left);
    return found;
}

CUresult hook_cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
    struct side own, there;
    CUresult result = REAL(cuCtxEnablePeerAccess)(peer, flags);
    if (result != CUDA_SUCCESS || !is_swapping() || !find_both(peer, &own, &there))
        return result;
    result = swap_enable_peer(own.context, own.device, there.context, there.device);
    if (result != CUDA_SUCCESS)
        REAL(cuCtxDisablePeerAccess)(peer);
    return result;
}

/* The driver has waited for the work that it must wait for. */
CUresult hook_cuCtxDisablePeerAccess(CUcontext peer) {
    struct side own, there;
    CUresult result = REAL(cuCtxDisablePeerAccess)(peer);
    if (result == CUDA_SUCCESS && is_swapping() && find_both(peer, &own, &there))
        swap_disable_peer(own.context, own.device, there.context);
    return result;
}
