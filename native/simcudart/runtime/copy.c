/* Copies and sets. */
#include "runtime.h"

static CUresult copy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    if (!bytes)
        return CUDA_SUCCESS;
    if (kind == cudaMemcpyHostToDevice)
        return driver.cuMemcpyHtoD((CUdeviceptr)to, from, bytes);
    if (kind == cudaMemcpyDeviceToHost)
        return driver.cuMemcpyDtoH(to, (CUdeviceptr)from, bytes);
    if (kind == cudaMemcpyDeviceToDevice)
        return driver.cuMemcpyDtoD((CUdeviceptr)to, (CUdeviceptr)from, bytes);
    return driver.cuMemcpy((CUdeviceptr)to, (CUdeviceptr)from, bytes);
}

static CUresult copy_async(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    if (!bytes)
        return CUDA_SUCCESS;
    if (kind == cudaMemcpyHostToDevice)
        return driver.cuMemcpyHtoDAsync((CUdeviceptr)to, from, bytes, stream);
    if (kind == cudaMemcpyDeviceToHost)
        return driver.cuMemcpyDtoHAsync(to, (CUdeviceptr)from, bytes, stream);
    if (kind == cudaMemcpyDeviceToDevice)
        return driver.cuMemcpyDtoDAsync((CUdeviceptr)to, (CUdeviceptr)from, bytes, stream);
    return driver.cuMemcpyAsync((CUdeviceptr)to, (CUdeviceptr)from, bytes, stream);
}

EXPORT cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    WITH_CONTEXT(copy(to, from, bytes, kind));
}

EXPORT cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                                   cudaStream_t stream) {
    WITH_CONTEXT(copy_async(to, from, bytes, kind, stream));
}

static CUresult copy_to_peer(void *to, int to_device, const void *from, int from_device, size_t bytes,
                             cudaStream_t stream) {
    CUcontext context[2];
    CUresult result = driver.cuDevicePrimaryCtxRetain(&context[0], to_device);
    if (!result)
        result = driver.cuDevicePrimaryCtxRetain(&context[1], from_device);
    return result ? result
                  : driver.cuMemcpyPeerAsync((CUdeviceptr)to, context[0], (CUdeviceptr)from, context[1], bytes, stream);
}

EXPORT cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes,
                                       cudaStream_t stream) {
    WITH_CONTEXT(copy_to_peer(to, to_device, from, from_device, bytes, stream));
}

static CUDA_MEMCPY2D rectangle(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                               size_t height, enum cudaMemcpyKind kind) {
    CUDA_MEMCPY2D copy = {.srcPitch = from_pitch, .dstPitch = to_pitch, .WidthInBytes = width, .Height = height};
    copy.srcMemoryType = kind == cudaMemcpyDefault                                        ? CU_MEMORYTYPE_UNIFIED
                         : kind == cudaMemcpyHostToDevice || kind == cudaMemcpyHostToHost ? CU_MEMORYTYPE_HOST
                                                                                          : CU_MEMORYTYPE_DEVICE;
    copy.dstMemoryType = kind == cudaMemcpyDefault                                        ? CU_MEMORYTYPE_UNIFIED
                         : kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyHostToHost ? CU_MEMORYTYPE_HOST
                                                                                          : CU_MEMORYTYPE_DEVICE;
    copy.srcHost = from;
    copy.srcDevice = (CUdeviceptr)from;
    copy.dstHost = to;
    copy.dstDevice = (CUdeviceptr)to;
    return copy;
}

EXPORT cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                                size_t height, enum cudaMemcpyKind kind) {
    CUDA_MEMCPY2D copy = rectangle(to, to_pitch, from, from_pitch, width, height, kind);
    WITH_CONTEXT(driver.cuMemcpy2DUnaligned(&copy));
}

EXPORT cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                                     size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {
    CUDA_MEMCPY2D copy = rectangle(to, to_pitch, from, from_pitch, width, height, kind);
    WITH_CONTEXT(driver.cuMemcpy2DAsync(&copy, stream));
}

EXPORT cudaError_t cudaMemset(void *address, int value, size_t bytes) {
    WITH_CONTEXT(bytes ? driver.cuMemsetD8((CUdeviceptr)address, (unsigned char)value, bytes) : CUDA_SUCCESS);
}

EXPORT cudaError_t cudaMemsetAsync(void *address, int value, size_t bytes, cudaStream_t stream) {
    WITH_CONTEXT(bytes ? driver.cuMemsetD8Async((CUdeviceptr)address, (unsigned char)value, bytes, stream)
                       : CUDA_SUCCESS);
}

EXPORT cudaError_t cudaMemset2DAsync(void *address, size_t pitch, int value, size_t width, size_t height,
                                     cudaStream_t stream) {
    WITH_CONTEXT(driver.cuMemsetD2D8Async((CUdeviceptr)address, pitch, (unsigned char)value, width, height, stream));
}
