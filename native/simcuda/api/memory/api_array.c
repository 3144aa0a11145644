/* Copies between arrays and other memory by a byte offset. */
#include "base/exports.h"
#include "api/memory/memory.h"

/* A copy by a byte offset stays in the first row. */
static CUresult at(CUarray array, size_t offset, size_t bytes, CUdeviceptr *out) {
    struct sim_memory_2d memory;
    if (!array_memory(array, &memory))
        return CUDA_ERROR_INVALID_HANDLE;
    if (offset > memory.width || bytes > memory.width - offset)
        return CUDA_ERROR_INVALID_VALUE;
    *out = memory.address + offset;
    return CUDA_SUCCESS;
}

CUresult sim_cuMemcpyHtoA_v2(CUstream fallback, CUarray dst, size_t offset, const void *src, size_t bytes) {
    CUdeviceptr address;
    CUresult result = at(dst, offset, bytes, &address);
    return result ? result : sim_cuMemcpyHtoD_v2(fallback, address, src, bytes);
}

CUresult sim_cuMemcpyHtoAAsync_v2(CUstream fallback, CUarray dst, size_t offset, const void *src, size_t bytes,
                                  CUstream stream) {
    CUdeviceptr address;
    CUresult result = at(dst, offset, bytes, &address);
    return result ? result : sim_cuMemcpyHtoDAsync_v2(fallback, address, src, bytes, stream);
}

CUresult sim_cuMemcpyAtoH_v2(CUstream fallback, void *dst, CUarray src, size_t offset, size_t bytes) {
    CUdeviceptr address;
    CUresult result = at(src, offset, bytes, &address);
    return result ? result : sim_cuMemcpyDtoH_v2(fallback, dst, address, bytes);
}

CUresult sim_cuMemcpyAtoHAsync_v2(CUstream fallback, void *dst, CUarray src, size_t offset, size_t bytes,
                                  CUstream stream) {
    CUdeviceptr address;
    CUresult result = at(src, offset, bytes, &address);
    return result ? result : sim_cuMemcpyDtoHAsync_v2(fallback, dst, address, bytes, stream);
}

CUresult sim_cuMemcpyDtoA_v2(CUstream fallback, CUarray dst, size_t offset, CUdeviceptr src, size_t bytes) {
    CUdeviceptr address;
    CUresult result = at(dst, offset, bytes, &address);
    return result ? result : sim_cuMemcpyDtoD_v2(fallback, address, src, bytes);
}

CUresult sim_cuMemcpyAtoD_v2(CUstream fallback, CUdeviceptr dst, CUarray src, size_t offset, size_t bytes) {
    CUdeviceptr address;
    CUresult result = at(src, offset, bytes, &address);
    return result ? result : sim_cuMemcpyDtoD_v2(fallback, dst, address, bytes);
}

CUresult sim_cuMemcpyAtoA_v2(CUstream fallback, CUarray dst, size_t to, CUarray src, size_t from, size_t bytes) {
    CUdeviceptr dst_address, src_address;
    CUresult result = at(dst, to, bytes, &dst_address);
    if (result || (result = at(src, from, bytes, &src_address)))
        return result;
    return sim_cuMemcpyDtoD_v2(fallback, dst_address, src_address, bytes);
}
