/* Queries of a function, of a kernel handle of a library (here the same), and of occupancy. */
#include "base/exports.h"
#include "context/context.h"
#include "work/builtin_kernels.h"
#include "module/module.h"

static int is_valid(CUfunction function) {
    return sim_is_object(function) && function->magic == MAGIC_FUNCTION;
}

/* Documentation of cuModuleEnumerateFunctions: calls load a function that is not loaded yet. A kernel handle of a
 * library stands for its function in the current context. */
static CUresult load(CUfunction function) {
    SIM_ENTER();
    return is_valid(function) ? code_load_here(function->module) : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult get_attribute(int *value, int attribute, CUfunction function) {
    SIM_ENTER();
    if (!is_valid(function))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!value || attribute < 0 || attribute > 15)
        return CUDA_ERROR_INVALID_VALUE;
    static const int values[16] = {[0] = 1024, [4] = 32, [5] = 80, [6] = 80, [8] = 49152, [9] = -1};
    *value = values[attribute];
    return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function) {
    CUresult result = load(function);
    return result ? result : get_attribute(value, attribute, function);
}

CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value) {
    int ignored;
    (void)value;
    return cuFuncGetAttribute(&ignored, attribute, function);
}

CUresult cuFuncSetCacheConfig(CUfunction function, int config) {
    (void)config;
    return load(function);
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
    if (!state) /* documentation of cuFuncIsLoaded, its results */
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_context *context = function->module->context;
    CUresult result = context ? CUDA_SUCCESS : context_current(&context);
    if (!result)
        *state = code_is_loaded(function->module, context);
    return result;
}

CUresult cuFuncLoad(CUfunction function) {
    return load(function);
}

CUresult cuLibraryGetKernelCount(unsigned *count, CUmodule library) {
    return cuModuleGetFunctionCount(count, library);
}

CUresult cuKernelGetFunction(CUfunction *function, CUfunction kernel) {
    CUresult result = load(kernel);
    if (!result)
        *function = kernel;
    return result;
}

CUresult cuKernelGetLibrary(CUmodule *library, CUfunction kernel) {
    return cuFuncGetModule(library, kernel);
}
CUresult cuKernelGetName(const char **name, CUfunction kernel) {
    return cuFuncGetName(name, kernel);
}

CUresult cuKernelGetAttribute(int *value, int attribute, CUfunction kernel, CUdevice device) {
    (void)device;
    return get_attribute(value, attribute, kernel);
}

CUresult cuKernelSetAttribute(int attribute, int value, CUfunction kernel, CUdevice device) {
    int ignored;
    (void)value, (void)device;
    return get_attribute(&ignored, attribute, kernel);
}

CUresult cuKernelGetParamInfo(CUfunction kernel, size_t index, size_t *offset, size_t *size) {
    return cuFuncGetParamInfo(kernel, index, offset, size);
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int block_size, size_t shared) {
    (void)shared;
    CUresult result = load(function);
    if (result)
        return result;
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

/* Without the memory that the driver reserves for each block, and at most what a block may have without asking for more
 * (the attributes 81 and 8 of the device). */
CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, CUfunction function, int blocks, int block_size) {
    int most = 0;
    CUresult result = cuOccupancyMaxActiveBlocksPerMultiprocessor(&most, function, block_size, 0);
    if (!result && (!bytes || blocks < 1 || blocks > most))
        result = CUDA_ERROR_INVALID_VALUE;
    if (!result)
        *bytes = 102400 / blocks < 49152 ? 102400 / blocks : 49152;
    return result;
}

CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction function, size_t (*shared_of)(int),
                                          size_t shared, int limit) {
    (void)shared_of, (void)shared;
    struct sim_context *context;
    CUresult result = context_current(&context);
    if (result || (result = load(function)))
        return result;
    *block = limit > 0 && limit < 1024 ? limit : 1024;
    *grid = sim.params.device[context->device].multiprocessors * 2;
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction function, size_t (*shared_of)(int),
                                                   size_t shared, int limit, unsigned flags) {
    (void)flags;
    return cuOccupancyMaxPotentialBlockSize(grid, block, function, shared_of, shared, limit);
}
