/* Lookup of the driver's functions, which is allowed on the simulated driver only. */
#include "runtime.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

struct driver driver;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static cudaError_t problem;

static CUresult missing(void) {
    return CUDA_ERROR_NOT_SUPPORTED;
}

static void look_up(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        problem = cudaErrorInsufficientDriver;
        return;
    }
    if (!dlsym(library, "simcuda_describe")) {
        fprintf(stderr, "simcudart: this stand-in for the CUDA runtime computes nothing, so it refuses a real driver."
                        " Remove its folder from LD_LIBRARY_PATH.\n");
        problem = cudaErrorInsufficientDriver;
        return;
    }
    PFN_cuGetProcAddress_v12000 get = (PFN_cuGetProcAddress_v12000)dlsym(library, "cuGetProcAddress_v2");
#define DRIVER(name, since)                                                                                            \
    {                                                                                                                  \
        void *found = NULL;                                                                                            \
        CUdriverProcAddressQueryResult status;                                                                         \
        if (get(#name, &found, since, CU_GET_PROC_ADDRESS_DEFAULT, &status) || !found)                                 \
            found = (void *)missing;                                                                                   \
        driver.name = (PFN_##name##_v##since)found;                                                                    \
    }
#include "driver_functions.def"
#undef DRIVER
}

cudaError_t driver_enter(void) {
    static _Atomic int
        is_ready; /* stays set in a child after a fork, in which the driver refuses the calls themselves */
    if (is_ready)
        return cudaSuccess;
    pthread_once(&once, look_up);
    cudaError_t error = problem ? problem : (cudaError_t)driver.cuInit(0);
    is_ready = !error;
    return error;
}

EXPORT cudaError_t cudaDriverGetVersion(int *version) {
    pthread_once(&once, look_up);
    if (!version)
        return error_keep(cudaErrorInvalidValue);
    *version = 0; /* the documented answer without a driver */
    return problem ? cudaSuccess : error_keep((cudaError_t)driver.cuDriverGetVersion(version));
}

EXPORT cudaError_t cudaRuntimeGetVersion(int *version) {
    if (!version)
        return error_keep(cudaErrorInvalidValue);
    *version = RUNTIME_VERSION;
    return cudaSuccess;
}

EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                                    unsigned long long flags,
                                                    enum cudaDriverEntryPointQueryResult *status) {
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    cudaError_t error = driver_enter();
    if (!error) {
        error = (cudaError_t)driver.cuGetProcAddress(symbol, function, (int)version, flags, &found);
        if (status && error == cudaErrorSymbolNotFound)
            error = cudaSuccess; /* the status reports it */
    }
    if (status)
        *status = (enum cudaDriverEntryPointQueryResult)found;
    return error_keep(error);
}

EXPORT cudaError_t cudaProfilerStart(void) {
    WITH_CONTEXT(driver.cuProfilerStart());
}

EXPORT cudaError_t cudaProfilerStop(void) {
    WITH_CONTEXT(driver.cuProfilerStop());
}
