/* Hooks on calls that make primary and green contexts or load code: all take device memory that never moves. */
#include "hooks/hooks.h"

CUresult hook_cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    return CALL_WITH_ROOM(REAL(cuDevicePrimaryCtxRetain)(context, device));
}

CUresult hook_cuGreenCtxCreate(CUgreenCtx *green, void *resources, CUdevice device, unsigned flags) {
    return CALL_WITH_ROOM(REAL(cuGreenCtxCreate)(green, resources, device, flags));
}

CUresult hook_cuModuleLoad(CUmodule *module, const char *path) {
    return CALL_WITH_ROOM(REAL(cuModuleLoad)(module, path));
}

CUresult hook_cuModuleLoadData(CUmodule *module, const void *image) {
    return CALL_WITH_ROOM(REAL(cuModuleLoadData)(module, image));
}

CUresult hook_cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, int *options, void **values) {
    return CALL_WITH_ROOM(REAL(cuModuleLoadDataEx)(module, image, count, options, values));
}

CUresult hook_cuModuleLoadFatBinary(CUmodule *module, const void *image) {
    return CALL_WITH_ROOM(REAL(cuModuleLoadFatBinary)(module, image));
}

CUresult hook_cuLibraryLoadData(CUlibrary *library, const void *code, int *jit, void **jit_values, unsigned jit_count,
                                int *options, void **values, unsigned count) {
    return CALL_WITH_ROOM(REAL(cuLibraryLoadData)(library, code, jit, jit_values, jit_count, options, values, count));
}

CUresult hook_cuLibraryLoadFromFile(CUlibrary *library, const char *path, int *jit, void **jit_values,
                                    unsigned jit_count, int *options, void **values, unsigned count) {
    return CALL_WITH_ROOM(
        REAL(cuLibraryLoadFromFile)(library, path, jit, jit_values, jit_count, options, values, count));
}

/* With lazy loading, code takes memory when the program gets a function of it. */
CUresult hook_cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    return CALL_WITH_ROOM(REAL(cuModuleGetFunction)(function, module, name));
}

CUresult hook_cuLibraryGetModule(CUmodule *module, CUlibrary library) {
    return CALL_WITH_ROOM(REAL(cuLibraryGetModule)(module, library));
}

CUresult hook_cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
    return CALL_WITH_ROOM(REAL(cuKernelGetFunction)(function, kernel));
}

CUresult hook_cuFuncLoad(CUfunction function) {
    return CALL_WITH_ROOM(REAL(cuFuncLoad)(function));
}
