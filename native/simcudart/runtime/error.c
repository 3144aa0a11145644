/* The last error of each thread, and the names of errors. The numbers of the runtime's errors are the driver's. */
#include "runtime.h"

static __thread cudaError_t last;

static const struct {
    cudaError_t error;
    const char *name;
} names[] = {
#define ERROR(name) {name, #name},
#include "error_names.inc" /* made by build.py from the public header */
#undef ERROR
};

cudaError_t error_keep(cudaError_t error) {
    if (error)
        last = error;
    return error;
}

EXPORT cudaError_t cudaGetLastError(void) {
    cudaError_t error = last;
    last = cudaSuccess;
    return error;
}

EXPORT cudaError_t cudaPeekAtLastError(void) {
    return last;
}

EXPORT const char *cudaGetErrorName(cudaError_t error) {
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].error == error)
            return names[i].name;
    return "unrecognized error code";
}

EXPORT const char *cudaGetErrorString(cudaError_t error) {
    const char *text = NULL;
    if (error == cudaErrorInsufficientDriver)
        return "CUDA driver version is insufficient for CUDA runtime version";
    if (driver.cuGetErrorString)
        driver.cuGetErrorString((CUresult)error, &text);
    return text ? text : cudaGetErrorName(error);
}
