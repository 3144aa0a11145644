/* Attributes and occupancy of functions, libraries that the program loads itself, and variables on the device. */
#include "runtime.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- functions --- */

static CUresult attributes_of(struct cudaFuncAttributes *out, const void *host) {
    CUkernel kernel;
    CUdevice device;
    CUresult result = kernel_find(host, &kernel);
    if (!result)
        result = driver.cuCtxGetDevice(&device);
    memset(out, 0, sizeof *out);
    int value = 0;
#define ATTRIBUTE(field, attribute)                                                                                    \
    if (!result) {                                                                                                     \
        result = driver.cuKernelGetAttribute(&value, attribute, kernel, device);                                       \
        out->field = (__typeof__(out->field))value;                                                                    \
    }
    ATTRIBUTE(maxThreadsPerBlock, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)
    ATTRIBUTE(sharedSizeBytes, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)
    ATTRIBUTE(constSizeBytes, CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES)
    ATTRIBUTE(localSizeBytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)
    ATTRIBUTE(numRegs, CU_FUNC_ATTRIBUTE_NUM_REGS)
    ATTRIBUTE(ptxVersion, CU_FUNC_ATTRIBUTE_PTX_VERSION)
    ATTRIBUTE(binaryVersion, CU_FUNC_ATTRIBUTE_BINARY_VERSION)
    ATTRIBUTE(maxDynamicSharedSizeBytes, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
    ATTRIBUTE(preferredShmemCarveout, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT)
#undef ATTRIBUTE
    return result;
}

EXPORT cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *host) {
    WITH_CONTEXT(out ? attributes_of(out, host) : CUDA_ERROR_INVALID_VALUE);
}

static CUresult set_attribute(const void *host, enum cudaFuncAttribute attribute, int value, int device) {
    CUkernel kernel;
    CUresult result = kernel_find(host, &kernel);
    if (!result && device < 0)
        result = driver.cuCtxGetDevice(&device);
    return result ? result : driver.cuKernelSetAttribute((CUfunction_attribute)attribute, value, kernel, device);
}

EXPORT cudaError_t cudaFuncSetAttribute(const void *host, enum cudaFuncAttribute attribute, int value) {
    WITH_CONTEXT(set_attribute(host, attribute, value, -1));
}

EXPORT cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t kernel, enum cudaFuncAttribute attribute, int value,
                                                   int device) {
    WITH_CONTEXT(set_attribute((const void *)kernel, attribute, value, device));
}

static CUresult occupancy(int *blocks, const void *host, int threads, size_t shared, unsigned flags) {
    CUkernel kernel;
    CUresult result = kernel_find(host, &kernel);
    return result ? result
                  : driver.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, (CUfunction)kernel, threads,
                                                                                shared, flags);
}

EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *host, int threads,
                                                                 size_t shared) {
    WITH_CONTEXT(occupancy(blocks, host, threads, shared, 0));
}

EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *host, int threads,
                                                                          size_t shared, unsigned flags) {
    WITH_CONTEXT(occupancy(blocks, host, threads, shared, flags));
}

/* --- variables --- */

struct variable {
    struct variable *next;
    const void *host;
    size_t bytes;
    CUdeviceptr address; /* 0: not made yet */
};
static struct variable *variables;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

EXPORT void __cudaRegisterVar(void **handle, char *host, char *on_device, const char *name, int is_external,
                              size_t bytes, int is_constant, int is_global) {
    (void)handle, (void)on_device, (void)name, (void)is_external, (void)is_constant, (void)is_global;
    struct variable *variable = calloc(1, sizeof *variable);
    if (!variable)
        return; /* cudaGetSymbolAddress reports that the variable is unknown */
    variable->host = host;
    variable->bytes = bytes;
    pthread_mutex_lock(&lock);
    variable->next = variables;
    variables = variable;
    pthread_mutex_unlock(&lock);
}

static CUresult make(struct variable *variable) {
    char text[256];
    snprintf(text, sizeof text,
             ".version 8.0\n.target sm_80\n.address_size 64\n.visible .global .align 16 .b8 v[%zu];\n",
             variable->bytes);
    CUlibrary library;
    size_t bytes;
    CUresult result = driver.cuLibraryLoadData(&library, text, NULL, NULL, 0, NULL, NULL, 0);
    return result ? result : driver.cuLibraryGetGlobal(&variable->address, &bytes, library, "v");
}

static CUresult find(const void *host, CUdeviceptr *address) {
    CUresult result = (CUresult)cudaErrorInvalidSymbol;
    pthread_mutex_lock(&lock);
    for (struct variable *variable = variables; variable; variable = variable->next)
        if (variable->host == host) {
            result = variable->address ? CUDA_SUCCESS : make(variable);
            *address = variable->address;
            break;
        }
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT cudaError_t cudaGetSymbolAddress(void **address, const void *host) {
    WITH_CONTEXT(find(host, (CUdeviceptr *)address));
}

EXPORT cudaError_t cudaMemcpyToSymbol(const void *host, const void *from, size_t bytes, size_t offset,
                                      enum cudaMemcpyKind kind) {
    void *address;
    cudaError_t error = cudaGetSymbolAddress(&address, host);
    return error ? error : cudaMemcpy((char *)address + offset, from, bytes, kind);
}

/* --- libraries --- */

EXPORT cudaError_t cudaLibraryLoadData(cudaLibrary_t *library, const void *code, enum cudaJitOption *jit,
                                       void **jit_values, unsigned jit_count, enum cudaLibraryOption *options,
                                       void **values, unsigned count) {
    (void)code, (void)jit, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    if (!library)
        return error_keep(cudaErrorInvalidValue);
    *library = malloc(1); /* a handle: the code is never run */
    return error_keep(*library ? cudaSuccess : cudaErrorMemoryAllocation);
}

EXPORT cudaError_t cudaLibraryUnload(cudaLibrary_t library) {
    free(library);
    return cudaSuccess;
}

EXPORT cudaError_t cudaLibraryGetKernel(cudaKernel_t *kernel, cudaLibrary_t library, const char *name) {
    (void)library;
    *kernel = (cudaKernel_t)kernel_of_library(name);
    return error_keep(*kernel ? cudaSuccess : cudaErrorMemoryAllocation);
}
