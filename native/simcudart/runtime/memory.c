/* Memory of devices and pinned memory of the host. */
#include "runtime.h"

EXPORT cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
    WITH_CONTEXT(driver.cuMemGetInfo(free, total));
}

/* The documented answer to a size of zero is a null pointer. */
static CUresult allocate(void **address, size_t bytes) {
    if (!address)
        return CUDA_ERROR_INVALID_VALUE;
    *address = NULL;
    return bytes ? driver.cuMemAlloc((CUdeviceptr *)address, bytes) : CUDA_SUCCESS;
}

EXPORT cudaError_t cudaMalloc(void **address, size_t bytes) {
    WITH_CONTEXT(allocate(address, bytes));
}

EXPORT cudaError_t cudaMallocPitch(void **address, size_t *pitch, size_t width, size_t height) {
    WITH_CONTEXT(driver.cuMemAllocPitch((CUdeviceptr *)address, pitch, width, height, 16));
}

EXPORT cudaError_t cudaMallocManaged(void **address, size_t bytes, unsigned flags) {
    WITH_CONTEXT(driver.cuMemAllocManaged((CUdeviceptr *)address, bytes, flags));
}

EXPORT cudaError_t cudaFree(void *address) {
    WITH_CONTEXT(address ? driver.cuMemFree((CUdeviceptr)address) : CUDA_SUCCESS);
}

EXPORT cudaError_t cudaMallocHost(void **memory, size_t bytes) {
    WITH_CONTEXT(driver.cuMemHostAlloc(memory, bytes, 0));
}

EXPORT cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned flags) {
    WITH_CONTEXT(driver.cuMemHostAlloc(memory, bytes, flags));
}

EXPORT cudaError_t cudaFreeHost(void *memory) {
    WITH_CONTEXT(memory ? driver.cuMemFreeHost(memory) : CUDA_SUCCESS);
}

EXPORT cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned flags) {
    WITH_CONTEXT(driver.cuMemHostRegister(memory, bytes, flags));
}

EXPORT cudaError_t cudaHostUnregister(void *memory) {
    WITH_CONTEXT(driver.cuMemHostUnregister(memory));
}

EXPORT cudaError_t cudaHostGetDevicePointer(void **address, void *memory, unsigned flags) {
    WITH_CONTEXT(driver.cuMemHostGetDevicePointer((CUdeviceptr *)address, memory, flags));
}

EXPORT cudaError_t cudaHostGetFlags(unsigned *flags, void *memory) {
    WITH_CONTEXT(driver.cuMemHostGetFlags(flags, memory));
}

static CUresult attributes_of(struct cudaPointerAttributes *out, const void *pointer) {
    unsigned type = 0, is_managed = 0;
    int device = -2;
    CUdeviceptr on_device = 0;
    void *on_host = NULL;
    CUpointer_attribute wanted[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
                                    CU_POINTER_ATTRIBUTE_HOST_POINTER};
    void *values[] = {&type, &is_managed, &device, &on_device, &on_host};
    CUresult result = driver.cuPointerGetAttributes(5, wanted, values, (CUdeviceptr)pointer);
    if (result)
        return result;
    out->type = is_managed                   ? cudaMemoryTypeManaged
                : type == CU_MEMORYTYPE_HOST ? cudaMemoryTypeHost
                : type                       ? cudaMemoryTypeDevice
                                             : cudaMemoryTypeUnregistered;
    out->device = device;
    out->devicePointer = (void *)on_device;
    out->hostPointer = type ? on_host : (void *)pointer;
    return CUDA_SUCCESS;
}

EXPORT cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *pointer) {
    WITH_CONTEXT(out ? attributes_of(out, pointer) : CUDA_ERROR_INVALID_VALUE);
}

/* --- memory in the order of a stream, and its pools --- */

EXPORT cudaError_t cudaMallocAsync(void **address, size_t bytes, cudaStream_t stream) {
    WITH_CONTEXT(driver.cuMemAllocAsync((CUdeviceptr *)address, bytes, stream));
}

EXPORT cudaError_t cudaMallocFromPoolAsync(void **address, size_t bytes, cudaMemPool_t pool, cudaStream_t stream) {
    WITH_CONTEXT(driver.cuMemAllocFromPoolAsync((CUdeviceptr *)address, bytes, pool, stream));
}

EXPORT cudaError_t cudaFreeAsync(void *address, cudaStream_t stream) {
    WITH_CONTEXT(driver.cuMemFreeAsync((CUdeviceptr)address, stream));
}

EXPORT cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) {
    WITH_DRIVER(driver.cuDeviceGetDefaultMemPool(pool, device));
}

EXPORT cudaError_t cudaDeviceGetMemPool(cudaMemPool_t *pool, int device) {
    WITH_DRIVER(driver.cuDeviceGetMemPool(pool, device));
}

EXPORT cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t pool) {
    WITH_DRIVER(driver.cuDeviceSetMemPool(device, pool));
}

EXPORT cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, const struct cudaMemPoolProps *properties) {
    WITH_DRIVER(driver.cuMemPoolCreate(pool, (const CUmemPoolProps *)properties));
}

EXPORT cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
    WITH_DRIVER(driver.cuMemPoolDestroy(pool));
}

EXPORT cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const struct cudaMemAccessDesc *list, size_t count) {
    WITH_DRIVER(driver.cuMemPoolSetAccess(pool, (const CUmemAccessDesc *)list, count));
}

EXPORT cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) {
    WITH_DRIVER(driver.cuMemPoolGetAttribute(pool, (CUmemPool_attribute)attribute, value));
}

EXPORT cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) {
    WITH_DRIVER(driver.cuMemPoolSetAttribute(pool, (CUmemPool_attribute)attribute, value));
}

EXPORT cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t bytes) {
    WITH_DRIVER(driver.cuMemPoolTrimTo(pool, bytes));
}

/* --- memory and events of other processes --- */

EXPORT cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *address) {
    WITH_CONTEXT(driver.cuIpcGetMemHandle((CUipcMemHandle *)handle, (CUdeviceptr)address));
}

static CUresult open_memory(void **address, const cudaIpcMemHandle_t *handle, unsigned flags) {
    CUipcMemHandle of_driver;
    __builtin_memcpy(&of_driver, handle, sizeof of_driver);
    return driver.cuIpcOpenMemHandle((CUdeviceptr *)address, of_driver, flags);
}

EXPORT cudaError_t cudaIpcOpenMemHandle(void **address, cudaIpcMemHandle_t handle, unsigned flags) {
    WITH_CONTEXT(open_memory(address, &handle, flags));
}

EXPORT cudaError_t cudaIpcCloseMemHandle(void *address) {
    WITH_CONTEXT(driver.cuIpcCloseMemHandle((CUdeviceptr)address));
}

EXPORT cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *handle, cudaEvent_t event) {
    WITH_CONTEXT(driver.cuIpcGetEventHandle((CUipcEventHandle *)handle, event));
}

static CUresult open_event(cudaEvent_t *event, const cudaIpcEventHandle_t *handle) {
    CUipcEventHandle of_driver;
    __builtin_memcpy(&of_driver, handle, sizeof of_driver);
    return driver.cuIpcOpenEventHandle(event, of_driver);
}

EXPORT cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *event, cudaIpcEventHandle_t handle) {
    WITH_CONTEXT(open_event(event, &handle));
}
