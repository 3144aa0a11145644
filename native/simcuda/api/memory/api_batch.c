/* Many copies or prefetches by one call: as many commands, in order. Attributes about the order of accesses and
 * about locations have no effect here. */
#include "base/exports.h"
#include "context/context.h"

/* Attribute i holds for the elements from indices[i] up to the next. */
static CUresult check_attributes(size_t count, const void *attributes, const size_t *indices, size_t listed) {
    if (!count || !attributes || !indices || !listed || listed > count || indices[0])
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 1; i < listed; i++)
        if (indices[i] <= indices[i - 1] || indices[i] >= count)
            return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

/* The legacy stream is refused (documentation of cuMemcpyBatchAsync). */
static CUresult check_stream(CUstream fallback, CUstream handle) {
    struct sim_stream *stream;
    CUresult result = stream_resolve(handle, fallback, &stream);
    return result ? result : stream->is_legacy ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult sim_cuMemcpyBatchAsync(CUstream fallback, CUdeviceptr *dst, CUdeviceptr *src, size_t *sizes, size_t count,
                                void *attributes, size_t *indices, size_t listed, size_t *failed, CUstream stream) {
    if (failed)
        *failed = SIZE_MAX;
    CUresult result = check_stream(fallback, stream);
    if (result || (result = check_attributes(count, attributes, indices, listed)))
        return result;
    if (!dst || !src || !sizes)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count && !result; i++) {
        result = sizes[i] ? sim_cuMemcpyAsync(fallback, dst[i], src[i], sizes[i], stream) : CUDA_ERROR_INVALID_VALUE;
        if (result && failed)
            *failed = i;
    }
    return result;
}

CUresult sim_cuMemcpyBatchAsync_v2(CUstream fallback, CUdeviceptr *dst, CUdeviceptr *src, size_t *sizes, size_t count,
                                   void *attributes, size_t *indices, size_t listed, CUstream stream) {
    return sim_cuMemcpyBatchAsync(fallback, dst, src, sizes, count, attributes, indices, listed, NULL, stream);
}

CUresult sim_cuMemPrefetchBatchAsync(CUstream fallback, CUdeviceptr *addresses, size_t *sizes, size_t count,
                                     CUmemLocation *locations, size_t *indices, size_t listed, unsigned long long flags,
                                     CUstream stream) {
    CUresult result = check_stream(fallback, stream);
    if (result || (result = check_attributes(count, locations, indices, listed)))
        return result;
    if (!addresses || !sizes || flags)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0, place = 0; i < count && !result; i++) {
        if (place + 1 < listed && indices[place + 1] == i)
            place++;
        result = sim_cuMemPrefetchAsync_v2(fallback, addresses[i], sizes[i], locations[place], 0, stream);
    }
    return result;
}
