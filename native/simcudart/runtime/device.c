/* Devices: queries, peers, limits, synchronisation, reset, and the memory of graphs. */
#include "runtime.h"

#include <string.h>

EXPORT cudaError_t cudaGetDeviceCount(int *count) {
    if (!count)
        return error_keep(cudaErrorInvalidValue);
    *count = 0;
    cudaError_t error = driver_enter();
    if (!error)
        error = (cudaError_t)driver.cuDeviceGetCount(count);
    return error_keep(!error && !*count ? cudaErrorNoDevice : error);
}

EXPORT cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    WITH_DRIVER(driver.cuDeviceGetAttribute(value, (CUdevice_attribute)attribute, device));
}

/* The fields of cudaDeviceProp that are an attribute each. */
#define PROPERTIES(X)                                                                                                  \
    X(sharedMemPerBlock, cudaDevAttrMaxSharedMemoryPerBlock)                                                           \
    X(regsPerBlock, cudaDevAttrMaxRegistersPerBlock)                                                                   \
    X(warpSize, cudaDevAttrWarpSize)                                                                                   \
    X(memPitch, cudaDevAttrMaxPitch)                                                                                   \
    X(maxThreadsPerBlock, cudaDevAttrMaxThreadsPerBlock)                                                               \
    X(maxThreadsDim[0], cudaDevAttrMaxBlockDimX)                                                                       \
    X(maxThreadsDim[1], cudaDevAttrMaxBlockDimY)                                                                       \
    X(maxThreadsDim[2], cudaDevAttrMaxBlockDimZ)                                                                       \
    X(maxGridSize[0], cudaDevAttrMaxGridDimX)                                                                          \
    X(maxGridSize[1], cudaDevAttrMaxGridDimY)                                                                          \
    X(maxGridSize[2], cudaDevAttrMaxGridDimZ)                                                                          \
    X(totalConstMem, cudaDevAttrTotalConstantMemory)                                                                   \
    X(major, cudaDevAttrComputeCapabilityMajor)                                                                        \
    X(minor, cudaDevAttrComputeCapabilityMinor)                                                                        \
    X(textureAlignment, cudaDevAttrTextureAlignment)                                                                   \
    X(texturePitchAlignment, cudaDevAttrTexturePitchAlignment)                                                         \
    X(multiProcessorCount, cudaDevAttrMultiProcessorCount)                                                             \
    X(integrated, cudaDevAttrIntegrated)                                                                               \
    X(canMapHostMemory, cudaDevAttrCanMapHostMemory)                                                                   \
    X(concurrentKernels, cudaDevAttrConcurrentKernels)                                                                 \
    X(ECCEnabled, cudaDevAttrEccEnabled)                                                                               \
    X(pciBusID, cudaDevAttrPciBusId)                                                                                   \
    X(pciDeviceID, cudaDevAttrPciDeviceId)                                                                             \
    X(pciDomainID, cudaDevAttrPciDomainId)                                                                             \
    X(asyncEngineCount, cudaDevAttrAsyncEngineCount)                                                                   \
    X(unifiedAddressing, cudaDevAttrUnifiedAddressing)                                                                 \
    X(memoryBusWidth, cudaDevAttrGlobalMemoryBusWidth)                                                                 \
    X(l2CacheSize, cudaDevAttrL2CacheSize)                                                                             \
    X(maxThreadsPerMultiProcessor, cudaDevAttrMaxThreadsPerMultiProcessor)                                             \
    X(streamPrioritiesSupported, cudaDevAttrStreamPrioritiesSupported)                                                 \
    X(sharedMemPerMultiprocessor, cudaDevAttrMaxSharedMemoryPerMultiprocessor)                                         \
    X(regsPerMultiprocessor, cudaDevAttrMaxRegistersPerMultiprocessor)                                                 \
    X(managedMemory, cudaDevAttrManagedMemory)                                                                         \
    X(pageableMemoryAccess, cudaDevAttrPageableMemoryAccess)                                                           \
    X(concurrentManagedAccess, cudaDevAttrConcurrentManagedAccess)                                                     \
    X(computePreemptionSupported, cudaDevAttrComputePreemptionSupported)                                               \
    X(canUseHostPointerForRegisteredMem, cudaDevAttrCanUseHostPointerForRegisteredMem)                                 \
    X(cooperativeLaunch, cudaDevAttrCooperativeLaunch)                                                                 \
    X(sharedMemPerBlockOptin, cudaDevAttrMaxSharedMemoryPerBlockOptin)                                                 \
    X(maxBlocksPerMultiProcessor, cudaDevAttrMaxBlocksPerMultiprocessor)                                               \
    X(hostRegisterSupported, cudaDevAttrHostRegisterSupported)                                                         \
    X(memoryPoolsSupported, cudaDevAttrMemoryPoolsSupported)

static CUresult properties(struct cudaDeviceProp *out, int device) {
    memset(out, 0, sizeof *out);
    CUresult result = driver.cuDeviceGetName(out->name, sizeof out->name, device);
    if (!result)
        result = driver.cuDeviceGetUuid((CUuuid *)&out->uuid, device);
    if (!result)
        result = driver.cuDeviceTotalMem(&out->totalGlobalMem, device);
    int value = 0;
#define X(field, attribute)                                                                                            \
    if (!result) {                                                                                                     \
        result = driver.cuDeviceGetAttribute(&value, (CUdevice_attribute)attribute, device);                           \
        out->field = (__typeof__(out->field))value;                                                                    \
    }
    PROPERTIES(X)
#undef X
    return result;
}

EXPORT cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device) {
    WITH_DRIVER(out ? properties(out, device) : CUDA_ERROR_INVALID_VALUE);
}

EXPORT cudaError_t cudaDeviceGetPCIBusId(char *id, int length, int device) {
    WITH_DRIVER(driver.cuDeviceGetPCIBusId(id, length, device));
}

EXPORT cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *id) {
    WITH_DRIVER(driver.cuDeviceGetByPCIBusId(device, id));
}

EXPORT cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    WITH_DRIVER(driver.cuDeviceCanAccessPeer(can, device, peer));
}

EXPORT cudaError_t cudaDeviceGetP2PAttribute(int *value, enum cudaDeviceP2PAttr attribute, int device, int peer) {
    WITH_DRIVER(driver.cuDeviceGetP2PAttribute(value, (CUdevice_P2PAttribute)attribute, device, peer));
}

static CUresult enable_peer(int peer, unsigned flags) {
    CUcontext context;
    CUresult result = driver.cuDevicePrimaryCtxRetain(&context, peer);
    return result ? result : driver.cuCtxEnablePeerAccess(context, flags);
}

EXPORT cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    WITH_CONTEXT(enable_peer(peer, flags));
}

EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    WITH_CONTEXT(driver.cuCtxGetStreamPriorityRange(least, greatest));
}

EXPORT cudaError_t cudaDeviceGetLimit(size_t *value, enum cudaLimit limit) {
    WITH_CONTEXT(driver.cuCtxGetLimit(value, (CUlimit)limit));
}

EXPORT cudaError_t cudaDeviceSetLimit(enum cudaLimit limit, size_t value) {
    WITH_CONTEXT(driver.cuCtxSetLimit((CUlimit)limit, value));
}

EXPORT cudaError_t cudaDeviceSynchronize(void) {
    WITH_CONTEXT(driver.cuCtxSynchronize());
}

EXPORT cudaError_t cudaDeviceReset(void) {
    return error_keep(context_reset());
}

EXPORT cudaError_t cudaDeviceGetGraphMemAttribute(int device, enum cudaGraphMemAttributeType attribute, void *value) {
    WITH_DRIVER(driver.cuDeviceGetGraphMemAttribute(device, (CUgraphMem_attribute)attribute, value));
}

EXPORT cudaError_t cudaDeviceSetGraphMemAttribute(int device, enum cudaGraphMemAttributeType attribute, void *value) {
    WITH_DRIVER(driver.cuDeviceSetGraphMemAttribute(device, (CUgraphMem_attribute)attribute, value));
}

EXPORT cudaError_t cudaDeviceGraphMemTrim(int device) {
    WITH_DRIVER(driver.cuDeviceGraphMemTrim(device));
}
