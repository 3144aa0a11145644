/* Arrays: memory whose layout is the driver's. Here rows are multiples of 512 bytes, and layers lie one behind
 * another. There are no textures to read arrays by, so a program can only copy them. */
#include <string.h>

#include "base/exports.h"
#include "context/context.h"
#include "memory/alloc.h"
#include "api/memory/memory.h"

struct sim_array {
    uint32_t magic;
    struct sim_memory_2d memory;
    CUDA_ARRAY3D_DESCRIPTOR shape;
};

static size_t element_bytes(int format, unsigned channels) {
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        return channels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        return 2ull * channels;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
        return 4ull * channels;
    default:
        return 0;
    }
}

int array_memory(CUarray array, struct sim_memory_2d *out) {
    if (!sim_is_object(array) || array->magic != MAGIC_ARRAY)
        return 0;
    *out = array->memory;
    return 1;
}

CUresult cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *shape) {
    struct sim_context *context;
    struct sim_alloc *alloc;
    CUresult result = context_current(&context);
    if (result)
        return result;
    if (!out || !shape || !shape->width || (shape->depth && !shape->height) ||
        (shape->channels != 1 && shape->channels != 2 && shape->channels != 4) ||
        !element_bytes(shape->format, shape->channels) || shape->width > 1u << 20 || shape->height > 1u << 20 ||
        shape->depth > 1u << 20)
        return CUDA_ERROR_INVALID_VALUE;
    if (shape->flags & ~1u) /* layered arrays also have their layers one behind another */
        return CUDA_ERROR_NOT_SUPPORTED;
    struct sim_memory_2d memory = {.width = shape->width * element_bytes(shape->format, shape->channels),
                                   .rows = shape->height ? shape->height : 1};
    memory.pitch = (memory.width + 511) / 512 * 512;
    if ((result = capture_check_unsafe()) ||
        (result = alloc_new(context, ALLOC_PLAIN, memory.pitch * memory.rows * (shape->depth ? shape->depth : 1), 0,
                            &alloc)))
        return result;
    struct sim_array *array = object_get(MAGIC_ARRAY, sizeof *array);
    if (!array) {
        alloc_free(alloc->base, 1u << ALLOC_PLAIN);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memory.address = alloc->base;
    array->memory = memory;
    array->shape = *shape;
    array->magic = MAGIC_ARRAY;
    *out = array;
    return CUDA_SUCCESS;
}

CUresult cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *shape) {
    if (!shape)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY3D_DESCRIPTOR all = {shape->width, shape->height, 0, shape->format, shape->channels, 0};
    return cuArray3DCreate_v2(out, &all);
}

CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *shape, CUarray array) {
    struct sim_memory_2d memory;
    SIM_ENTER();
    if (!array_memory(array, &memory))
        return CUDA_ERROR_INVALID_HANDLE;
    *shape = array->shape;
    return CUDA_SUCCESS;
}

CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *shape, CUarray array) {
    CUDA_ARRAY3D_DESCRIPTOR all;
    CUresult result = cuArray3DGetDescriptor_v2(&all, array);
    if (!result)
        *shape = (CUDA_ARRAY_DESCRIPTOR){all.width, all.height, all.format, all.channels};
    return result;
}

CUresult cuArrayDestroy(CUarray array) {
    struct sim_memory_2d memory;
    SIM_ENTER();
    if (!array_memory(array, &memory))
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = cuMemFree_v2(memory.address);
    if (!result)
        object_put(array, MAGIC_ARRAY);
    return result;
}
