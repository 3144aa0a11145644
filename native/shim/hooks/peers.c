/* Hooks on the access of devices to each other's memory. The driver's own calls remain, since they cover the memory that
 * the shim does not make. */
#include "hooks/hooks.h"
#include "memory/memory.h"

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
    result = swap_grant(own.context, there.context, own.device, there.device);
    if (result != CUDA_SUCCESS)
        REAL(cuCtxDisablePeerAccess)(peer);
    return result;
}

/* The driver has waited for the work that it must wait for. */
CUresult hook_cuCtxDisablePeerAccess(CUcontext peer) {
    struct side own, there;
    CUresult result = REAL(cuCtxDisablePeerAccess)(peer);
    if (result == CUDA_SUCCESS && is_swapping() && find_both(peer, &own, &there))
        swap_withdraw(own.context, there.context, own.device);
    return result;
}

/* The memory of a pool is where other allocations are (allocation.c). */
CUresult hook_cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *access, size_t count) {
    CUdevice home;
    CUresult result = REAL(cuMemPoolSetAccess)(pool, access, count);
    if (result != CUDA_SUCCESS || !is_swapping() || !pool_home(pool, &home))
        return result;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        CUdevice device = access[i].location.id;
        if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || device == home)
            continue;
        if (access[i].flags)
            result = swap_grant(NULL, pool, device, home);
        else
            swap_withdraw(NULL, pool, device);
    }
    return result;
}
