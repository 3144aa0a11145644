/* Queries of addresses: ranges, flags, attributes. */
#include <string.h>

#include "base/exports.h"
#include "memory/alloc.h"
#include "memory/vmm.h"
#include "api/memory/memory.h"

/* There is no answer for unified memory (openucx/ucx pull request 7485). */
CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address) {
    SIM_ENTER();
    CUdeviceptr start;
    size_t size;
    struct sim_alloc *alloc = alloc_pin(address);
    CUresult result = alloc ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
    if (alloc && alloc->kind == ALLOC_RESERVED) { /* one mapping, without its neighbours */
        if (vmm_attribute(alloc, CU_POINTER_MAPPING_BASE, address, &start) ||
            vmm_attribute(alloc, CU_POINTER_MAPPING_SIZE, address, &size))
            result = CUDA_ERROR_NOT_FOUND;
    } else if (alloc) {
        start = alloc->base;
        size = alloc->size;
    }
    if (!result && base)
        *base = start;
    if (!result && bytes)
        *bytes = size;
    alloc_unpin(alloc);
    return result;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *memory, unsigned flags) {
    SIM_ENTER();
    struct sim_alloc *alloc = alloc_pin((uint64_t)memory);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (alloc && out && !flags && (alloc->kind == ALLOC_HOST || alloc->kind == ALLOC_REGISTERED)) {
        *out = (CUdeviceptr)memory;
        result = CUDA_SUCCESS;
    }
    alloc_unpin(alloc);
    return result;
}

CUresult cuMemHostGetFlags(unsigned *flags, void *memory) {
    SIM_ENTER();
    struct sim_alloc *alloc = alloc_pin((uint64_t)memory);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (alloc && flags && alloc->kind == ALLOC_HOST) {
        *flags = alloc->flags | 2; /* all of it is mapped */
        result = CUDA_SUCCESS;
    }
    alloc_unpin(alloc);
    return result;
}

static int is_host(const struct sim_alloc *alloc) {
    return alloc->kind == ALLOC_HOST || alloc->kind == ALLOC_REGISTERED;
}

/* Return one attribute of an address inside `alloc`. */
static CUresult attribute_of(const struct sim_alloc *alloc, int attribute, CUdeviceptr address, void *data) {
    if (alloc->kind == ALLOC_RESERVED)
        return vmm_attribute(alloc, attribute, address, data);
    switch (attribute) {
    case CU_POINTER_CONTEXT:
        *(CUcontext *)data = alloc->context;
        return CUDA_SUCCESS;
    case CU_POINTER_MEMORY_TYPE:
        *(unsigned *)data = is_host(alloc) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        return CUDA_SUCCESS;
    case CU_POINTER_DEVICE_POINTER:
        *(CUdeviceptr *)data = address;
        return CUDA_SUCCESS;
    case CU_POINTER_HOST_POINTER:
        if (alloc->kind == ALLOC_PLAIN)
            return CUDA_ERROR_INVALID_VALUE;
        *(void **)data = (void *)address;
        return CUDA_SUCCESS;
    case CU_POINTER_SYNC_MEMOPS:
        *(int *)data = 0;
        return CUDA_SUCCESS;
    case CU_POINTER_RDMA_CAPABLE: /* for unified memory an assumption, the worse one for the shim */
        *(int *)data = !is_host(alloc);
        return CUDA_SUCCESS;
    case CU_POINTER_BUFFER_ID:
    case CU_POINTER_BLOCK_ID:
        *(unsigned long long *)data = alloc->id;
        return CUDA_SUCCESS;
    case CU_POINTER_IS_MANAGED:
        *(unsigned *)data = alloc->kind == ALLOC_MANAGED;
        return CUDA_SUCCESS;
    case CU_POINTER_DEVICE_ORDINAL:
        *(int *)data = ordinal_of(alloc->device);
        return CUDA_SUCCESS;
    case CU_POINTER_IPC_CAPABLE:
        *(int *)data = alloc->kind == ALLOC_PLAIN && !alloc->pool;
        return CUDA_SUCCESS;
    case CU_POINTER_RANGE_START:
    case CU_POINTER_MAPPING_BASE:
        *(CUdeviceptr *)data = alloc->base;
        return CUDA_SUCCESS;
    case CU_POINTER_RANGE_SIZE:
    case CU_POINTER_MAPPING_SIZE:
        *(size_t *)data = alloc->size;
        return CUDA_SUCCESS;
    case CU_POINTER_MAPPED:
        *(int *)data = 1;
        return CUDA_SUCCESS;
    case CU_POINTER_HANDLE_TYPES:
        *(unsigned long long *)data = 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ACCESS_FLAGS:
        *(int *)data = 3; /* read and write */
        return CUDA_SUCCESS;
    case CU_POINTER_POOL:
        *(CUmemoryPool *)data = alloc->pool;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

/* Return the bytes that the plural form clears for an address that is not the driver's. */
static size_t attribute_size(int attribute) {
    switch (attribute) {
    case CU_POINTER_MEMORY_TYPE:
    case CU_POINTER_IS_MANAGED:
    case CU_POINTER_SYNC_MEMOPS:
    case CU_POINTER_RDMA_CAPABLE:
    case CU_POINTER_DEVICE_ORDINAL:
    case CU_POINTER_IPC_CAPABLE:
    case CU_POINTER_MAPPED:
    case CU_POINTER_ACCESS_FLAGS:
        return 4;
    default:
        return attribute >= CU_POINTER_CONTEXT && attribute <= CU_POINTER_BLOCK_ID && attribute != 5 ? 8 : 0;
    }
}

CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr address) {
    SIM_ENTER();
    if (!data)
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_alloc *alloc = alloc_pin(address);
    CUresult result = alloc ? attribute_of(alloc, attribute, address, data) : CUDA_ERROR_INVALID_VALUE;
    alloc_unpin(alloc);
    return result;
}

/* Unlike the singular form, this succeeds for addresses that the driver does not have, with zeroes as values. */
CUresult cuPointerGetAttributes(unsigned count, int *attributes, void **data, CUdeviceptr address) {
    SIM_ENTER();
    if (!attributes || !data)
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_alloc *alloc = alloc_pin(address);
    CUresult result = CUDA_SUCCESS;
    for (unsigned i = 0; i < count && !result; i++) {
        size_t size = attribute_size(attributes[i]);
        if (!size || !data[i])
            result = CUDA_ERROR_INVALID_VALUE;
        else if (!alloc || attribute_of(alloc, attributes[i], address, data[i]))
            memset(data[i], 0, size);
        if (!result && !alloc && attributes[i] == CU_POINTER_DEVICE_ORDINAL)
            *(int *)data[i] = CU_DEVICE_INVALID;
    }
    alloc_unpin(alloc);
    return result;
}

/* Mapped memory has no such setting (openucx/ucx issue 9895). Copies here are synchronous enough without it. */
CUresult cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr address) {
    SIM_ENTER();
    struct sim_alloc *alloc = alloc_pin(address);
    CUresult result = alloc && value && attribute == CU_POINTER_SYNC_MEMOPS ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (!result && alloc->kind == ALLOC_RESERVED)
        result = CUDA_ERROR_NOT_SUPPORTED;
    alloc_unpin(alloc);
    return result;
}
