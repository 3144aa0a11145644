/* Queries of a function, of a kernel handle of a library (here the same), and of occupancy. */
#include "base/exports.h"
#include "context/context.h"
#include "work/builtin_kernels.h"

static int is_valid(CUfunction function) {
    return sim_is_object(function) && function->magic == MAGIC_FUNCTION;
}

CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function) {
    SIM_ENTER();
    if (!is_valid(function))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!value || attribute < 0 || attribute > 15)
        return CUDA_ERROR_INVALID_VALUE;
    static const int values[16] = {[0] = 1024, [4] = 32, [5] = 80, [6] = 80, [8] = 49152, [9] = -1};
    *value = values[attribute];
    return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value) {
    int ignored;
    (void)value;
    return cuFuncGetAttribute(&ignored, attribute, function);
}

CUresult cuFuncSetCacheConfig(CUfunction function, int config) {
    (void)config;
    SIM_ENTER();
    return is_valid(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuFuncGetModule(CUmodule *module, CUfunction function) {
    SIM_ENTER();
    if (!is_valid(function))
        return CUDA_ERROR_INVALID_HANDLE;
    *module = function->module;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetName(const char **name, CUfunction function) {
    SIM_ENTER();
    if (!name || !function) /* documentation of cuFuncGetName */
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_valid(function))
        return CUDA_ERROR_INVALID_HANDLE;
    *name = function->name;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *size) {
    SIM_ENTER();
    if (!is_valid(function))
        return CUDA_ERROR_INVALID_HANDLE;
    if (index >= function->count)
        return CUDA_ERROR_INVALID_VALUE;
    if (offset)
        *offset = function->offset[index];
    if (size)
        *size = function->size[index];
    return CUDA_SUCCESS;
}

CUresult cuFuncIsLoaded(int *state, CUfunction function) {
    SIM_ENTER();
    if (!is_valid(function))
        return CUDA_ERROR_INVALID_HANDLE;
    *state = 1;
    return CUDA_SUCCESS;
}

CUresult cuFuncLoad(CUfunction function) {
    return cuFuncSetCacheConfig(function, 0);
}

CUresult cuLibraryGetKernel(CUfunction *function, CUmodule library, const char *name) {
    return cuModuleGetFunction(function, library, name);
}

CUresult cuLibraryGetKernelCount(unsigned *count, CUmodule library) {
    return cuModuleGetFunctionCount(count, library);
}

CUresult cuLibraryGetModule(CUmodule *module, CUmodule library) {
    SIM_ENTER();
    *module = library;
    return sim_is_object(library) && library->magic == MAGIC_MODULE ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *bytes, CUmodule library, const char *name) {
    return cuModuleGetGlobal_v2(address, bytes, library, name);
}

CUresult cuKernelGetFunction(CUfunction *function, CUfunction kernel) {
    SIM_ENTER();
    if (!is_valid(kernel))
        return CUDA_ERROR_INVALID_HANDLE;
    *function = kernel;
    return CUDA_SUCCESS;
}

CUresult cuKernelGetLibrary(CUmodule *library, CUfunction kernel) {
    return cuFuncGetModule(library, kernel);
}
CUresult cuKernelGetName(const char **name, CUfunction kernel) {
    return cuFuncGetName(name, kernel);
}

CUresult cuKernelGetAttribute(int *value, int attribute, CUfunction kernel, CUdevice device) {
    (void)device;
    return cuFuncGetAttribute(value, attribute, kernel);
}

CUresult cuKernelSetAttribute(int attribute, int value, CUfunction kernel, CUdevice device) {
    (void)device;
    return cuFuncSetAttribute(kernel, attribute, value);
}

CUresult cuKernelGetParamInfo(CUfunction kernel, size_t index, size_t *offset, size_t *size) {
    return cuFuncGetParamInfo(kernel, index, offset, size);
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int block_size, size_t shared) {
    (void)shared;
    SIM_ENTER();
    if (!is_valid(function))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!blocks || block_size < 1)
        return CUDA_ERROR_INVALID_VALUE;
    int fit = 2048 / ((block_size + 31) / 32 * 32);
    *blocks = block_size > 1024 ? 0 : fit > 16 ? 16 : fit;
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction function, int block_size,
                                                              size_t shared, unsigned flags) {
    (void)flags;
    return cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, block_size, shared);
}

CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction function, size_t (*shared_of)(int),
                                          size_t shared, int limit) {
    (void)shared_of, (void)shared;
    struct sim_context *context;
    CUresult result = context_current(&context);
    if (result)
        return result;
    if (!is_valid(function))
        return CUDA_ERROR_INVALID_HANDLE;
    *block = limit > 0 && limit < 1024 ? limit : 1024;
    *grid = sim.params.device[context->device].multiprocessors * 2;
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction function, size_t (*shared_of)(int),
                                                   size_t shared, int limit, unsigned flags) {
    (void)flags;
    return cuOccupancyMaxPotentialBlockSize(grid, block, function, shared_of, shared, limit);
}
