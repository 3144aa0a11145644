/* Calls that submit launches and host functions. */
#include <stdio.h>
#include <string.h>

#include "base/exports.h"
#include "context/context.h"
#include "work/builtin_kernels.h"
#include "work/engine.h"
#include "module/module.h"
#include "api/work/work.h"

/* Take the parameters from an array of pointers, or from one packed buffer described by `extra`. */
static CUresult gather(const struct sim_function *function, void **params, void **extra, uint64_t *out) {
    const char *buffer = NULL;
    size_t size = 0;
    for (int i = 0; extra && extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
        if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER)
            buffer = extra[i + 1];
        else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE)
            size = *(const size_t *)extra[i + 1];
    }
    for (uint32_t i = 0; i < function->count; i++) {
        const void *from = params                                                      ? params[i]
                           : buffer && function->offset[i] + function->size[i] <= size ? buffer + function->offset[i]
                                                                                       : NULL;
        if (__builtin_expect(!from, 0))
            return CUDA_ERROR_INVALID_VALUE;
        uint64_t word = 0;
        if (function->size[i] == 8) {
            memcpy(&word, from, 8);
        } else if (function->size[i] == 4) {
            uint32_t half;
            memcpy(&half, from, 4);
            word = half;
        } else {
            memcpy(&word, from, function->size[i] < 8 ? function->size[i] : 8);
        }
        out[i] = word;
    }
    return CUDA_SUCCESS;
}

static CUresult cannot_run(const struct sim_function *function) {
    fprintf(stderr, "simulated GPU: the function %s is not one of the built-in ones and can't be run\n",
            function->name);
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* Fill in a launch command. */
CUresult launch_command(CUfunction function, const unsigned grid[3], const unsigned block[3], unsigned shared,
                        void **params, void **extra, struct sim_command *command) {
    if (__builtin_expect(!sim_is_object(function) || function->magic != MAGIC_FUNCTION, 0))
        return CUDA_ERROR_INVALID_HANDLE;
    if (__builtin_expect(!function->builtin, 0))
        return cannot_run(function);
    uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
    if (__builtin_expect(!threads || threads > 1024 || block[2] > 64 || !grid[0] || !grid[1] || !grid[2] ||
                             grid[1] > 65535 || grid[2] > 65535 || shared > 101376,
                         0))
        return CUDA_ERROR_INVALID_VALUE;
    command->kind = COMMAND_LAUNCH;
    command->launch.function = function;
    memcpy(command->launch.grid, grid, sizeof command->launch.grid);
    memcpy(command->launch.block, block, sizeof command->launch.block);
    return gather(function, params, extra, command->launch.params);
}

static CUresult launch(CUstream fallback, CUfunction function, const unsigned grid[3], const unsigned block[3],
                       unsigned shared, CUstream handle, void **params, void **extra) {
    struct sim_stream *stream;
    struct sim_command *command, filled;
    CUresult result = stream_resolve(handle, fallback, &stream);
    if (__builtin_expect(result, 0))
        return result;
    if (__builtin_expect((result = launch_command(function, grid, block, shared, params, extra, &filled)), 0))
        return result;
    if (__builtin_expect((result = code_load_for_launch(function, stream->context)), 0))
        return result;
    if (__builtin_expect((result = engine_begin(stream, &command)), 0))
        return result;
    command->kind = filled.kind;
    command->launch = filled.launch;
    return engine_commit(stream);
}

CUresult sim_cuLaunchKernel(CUstream fallback, CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                            unsigned by, unsigned bz, unsigned shared, CUstream stream, void **params, void **extra) {
    const unsigned grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
    return launch(fallback, function, grid, block, shared, stream, params, extra);
}

CUresult sim_cuLaunchKernelEx(CUstream fallback, const CUlaunchConfig *config, CUfunction function, void **params,
                              void **extra) {
    if (!config)
        return CUDA_ERROR_INVALID_VALUE;
    return launch(fallback, function, config->grid, config->block, config->shared_bytes, config->stream, params, extra);
}

CUresult sim_cuLaunchCooperativeKernel(CUstream fallback, CUfunction function, unsigned gx, unsigned gy, unsigned gz,
                                       unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream stream,
                                       void **params) {
    const unsigned grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
    return launch(fallback, function, grid, block, shared, stream, params, NULL);
}

static CUresult call_host(CUstream fallback, CUstream handle, CUhostFn function, CUstreamCallback callback,
                          void *data) {
    struct sim_stream *stream;
    struct sim_command *command;
    CUresult result = stream_resolve(handle, fallback, &stream);
    if (result)
        return result;
    if (!function && !callback)
        return CUDA_ERROR_INVALID_VALUE;
    if (callback && atomic_load(&stream->capture))
        return capture_refuse(stream);
    if ((result = engine_begin(stream, &command)))
        return result;
    command->kind = COMMAND_HOST;
    command->host.function = function;
    command->host.callback = callback;
    command->host.data = data;
    command->host.handle = handle;
    return engine_commit(stream);
}

CUresult sim_cuLaunchHostFunc(CUstream fallback, CUstream stream, CUhostFn function, void *data) {
    return call_host(fallback, stream, function, NULL, data);
}

CUresult sim_cuStreamAddCallback(CUstream fallback, CUstream stream, CUstreamCallback callback, void *data,
                                 unsigned flags) {
    return flags ? CUDA_ERROR_INVALID_VALUE : call_host(fallback, stream, NULL, callback, data);
}
