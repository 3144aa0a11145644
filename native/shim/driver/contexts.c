/* Contexts in which the shim makes calls of its own.
 *
 * A green context can be current in one thread only, so the shim never makes one current. Streams and memory of a green
 * context are reached from the primary context of the device, whose memory they use. Drivers before CUDA 12.5 do not
 * report the green context of a stream. */
#include "driver/driver.h"

struct stream_home stream_home(CUstream stream) {
    struct stream_home home = {NULL, NULL};
    bool made = (uintptr_t)stream > (uintptr_t)CU_STREAM_PER_THREAD;
    if (REAL(cuStreamGetCtx_v2)(stream, &home.context, &home.green) == CUDA_SUCCESS)
        return home;
    home = (struct stream_home){NULL, NULL};
    if (!made || REAL(cuStreamGetCtx)(stream, &home.context) != CUDA_SUCCESS)
        REAL(cuCtxGetCurrent)(&home.context);
    return home;
}

CUcontext memory_context(void) {
    return stream_home(CU_STREAM_LEGACY).context;
}

/* The query changes nothing in the end. */
CUcontext primary_context(CUdevice device) {
    CUcontext context = NULL;
    unsigned flags;
    int active = 0;
    if (REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) != CUDA_SUCCESS || !active ||
        REAL(cuDevicePrimaryCtxRetain)(&context, device) != CUDA_SUCCESS)
        return NULL;
    REAL(cuDevicePrimaryCtxRelease_v2)(device);
    return context;
}

bool primary_context_has_ended(CUdevice device) {
    unsigned flags;
    int active = 1;
    return REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) == CUDA_SUCCESS && !active;
}
