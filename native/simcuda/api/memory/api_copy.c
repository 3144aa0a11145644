/* Calls that copy and set memory. Each call becomes commands that work on rows of bytes. */
#include <stdlib.h>
#include <string.h>

#include "base/exports.h"
#include "base/simlog.h"
#include "context/context.h"
#include "memory/alloc.h"
#include "graph/graph.h"
#include "work/engine.h"
#include "api/memory/memory.h"

#define STAGED 65536 /* pageable host memory up to this size is copied to a buffer first, as the real driver does */

enum { SIDE_ANY, SIDE_HOST, SIDE_DEVICE };

struct transfer {
    uint64_t dst, src;
    int dst_side, src_side;
    size_t width, height, dst_pitch, src_pitch;
    size_t depth, dst_layer, src_layer; /* the last two in bytes */
};

static uint64_t extent(size_t width, size_t height, size_t pitch) {
    return (height - 1) * pitch + width;
}

/* Find the memory of an address: *pageable if it is not the driver's. A device address must be the driver's. */
static CUresult find_memory(uint64_t address, uint64_t bytes, int side, int *is_host, int *pageable) {
    struct sim_alloc *alloc = alloc_pin(address);
    int known = alloc != NULL;
    struct sim_alloc *whole = known ? alloc_pin_range(address, bytes) : NULL;
    int fits = whole || (known && graph_memory_covers(address, bytes)); /* its memory may come with a launch */
    alloc_unpin(whole);
    *is_host = !known || alloc->kind == ALLOC_HOST || alloc->kind == ALLOC_REGISTERED;
    *pageable = !known;
    alloc_unpin(alloc);
    if (side == SIDE_HOST)
        *is_host = 1;
    if ((known && !fits) || (side == SIDE_DEVICE && !known) || !address)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

static uint64_t source_bytes(const struct transfer *t) {
    return (t->depth - 1) * t->src_layer + extent(t->width, t->height, t->src_pitch);
}

/* Make the command of a transfer that is not empty. */
static CUresult make_command(const struct transfer *t, struct sim_command *command, int *dst_pageable,
                             int *src_pageable) {
    int dst_host, src_host;
    uint64_t dst_bytes = (t->depth - 1) * t->dst_layer + extent(t->width, t->height, t->dst_pitch);
    CUresult result = find_memory(t->dst, dst_bytes, t->dst_side, &dst_host, dst_pageable);
    if (result || (result = find_memory(t->src, source_bytes(t), t->src_side, &src_host, src_pageable)))
        return result;
    command->kind = COMMAND_COPY;
    command->copy.dst = (void *)t->dst;
    command->copy.src = (const void *)t->src;
    command->copy.width = t->width;
    command->copy.height = t->height;
    command->copy.depth = t->depth;
    command->copy.dst_pitch = t->dst_pitch;
    command->copy.src_pitch = t->src_pitch;
    command->copy.dst_layer = t->dst_layer;
    command->copy.src_layer = t->src_layer;
    command->copy.kind = dst_host ? LOG_DEVICE_TO_HOST : src_host ? LOG_HOST_TO_DEVICE : LOG_DEVICE_TO_DEVICE;
    command->copy.staging = NULL;
    command->copy.is_host_only = dst_host && src_host;
    return CUDA_SUCCESS;
}

static int is_empty(const struct transfer *t) {
    return !t->width || !t->height || !t->depth;
}

static CUresult transfer(struct sim_stream *stream, const struct transfer *t, int synchronous) {
    int dst_pageable, src_pageable;
    struct sim_command made = {0};
    CUresult result = is_empty(t) ? CUDA_SUCCESS : make_command(t, &made, &dst_pageable, &src_pageable);
    if (result || is_empty(t))
        return result;
    uint64_t src_bytes = source_bytes(t);
    int capturing = atomic_load(&stream->capture) != NULL;
    if (synchronous && capturing)
        return capture_refuse(stream);
    void *staging = NULL;
    if (!synchronous && !capturing && src_pageable && src_bytes <= STAGED && (staging = malloc(src_bytes)))
        memcpy(staging, (const void *)t->src, src_bytes);
    struct sim_command *command;
    if ((result = engine_begin(stream, &command))) {
        free(staging);
        return result;
    }
    command->kind = made.kind;
    command->copy = made.copy;
    command->copy.staging = staging;
    if (staging)
        command->copy.src = staging;
    uint64_t position = atomic_load(&stream->tail) + 1;
    engine_commit(stream);
    if (capturing || (!synchronous && !dst_pageable && (!src_pageable || staging)))
        return CUDA_SUCCESS;
    engine_wait(stream, position); /* pageable memory: the caller may reuse it on return */
    return atomic_load(&stream->context->error);
}

static CUresult linear(CUstream fallback, CUstream handle, uint64_t dst, int dst_side, uint64_t src, int src_side,
                       size_t bytes, int synchronous) {
    struct sim_stream *stream;
    CUresult result = stream_resolve(handle, fallback, &stream);
    if (result)
        return result;
    struct transfer t = {dst, src, dst_side, src_side, bytes, 1, bytes, bytes, 1, 0, 0};
    return transfer(stream, &t, synchronous);
}

#define COPY(name, params, stream, dst, dst_side, src, src_side, synchronous)                                          \
    CUresult sim_##name(CUstream fallback, SIM_LIST params) {                                                          \
        return linear(fallback, stream, (uint64_t)(dst), dst_side, (uint64_t)(src), src_side, bytes, synchronous);     \
    }

COPY(cuMemcpy, (CUdeviceptr dst, CUdeviceptr src, size_t bytes), NULL, dst, SIDE_ANY, src, SIDE_ANY, 1)
COPY(cuMemcpyAsync, (CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream), stream, dst, SIDE_ANY, src,
     SIDE_ANY, 0)
COPY(cuMemcpyHtoD_v2, (CUdeviceptr dst, const void *src, size_t bytes), NULL, dst, SIDE_DEVICE, src, SIDE_HOST, 1)
COPY(cuMemcpyHtoDAsync_v2, (CUdeviceptr dst, const void *src, size_t bytes, CUstream stream), stream, dst, SIDE_DEVICE,
     src, SIDE_HOST, 0)
COPY(cuMemcpyDtoH_v2, (void *dst, CUdeviceptr src, size_t bytes), NULL, dst, SIDE_HOST, src, SIDE_DEVICE, 1)
COPY(cuMemcpyDtoHAsync_v2, (void *dst, CUdeviceptr src, size_t bytes, CUstream stream), stream, dst, SIDE_HOST, src,
     SIDE_DEVICE, 0)
COPY(cuMemcpyDtoD_v2, (CUdeviceptr dst, CUdeviceptr src, size_t bytes), NULL, dst, SIDE_DEVICE, src, SIDE_DEVICE, 1)
COPY(cuMemcpyDtoDAsync_v2, (CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream), stream, dst, SIDE_DEVICE,
     src, SIDE_DEVICE, 0)

CUresult sim_cuMemcpyPeer(CUstream fallback, CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src,
                          CUcontext src_context, size_t bytes) {
    if (!context_is_valid(dst_context) || !context_is_valid(src_context))
        return CUDA_ERROR_INVALID_CONTEXT;
    return linear(fallback, NULL, dst, SIDE_DEVICE, src, SIDE_DEVICE, bytes, 1);
}

CUresult sim_cuMemcpyPeerAsync(CUstream fallback, CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src,
                               CUcontext src_context, size_t bytes, CUstream stream) {
    if (!context_is_valid(dst_context) || !context_is_valid(src_context))
        return CUDA_ERROR_INVALID_CONTEXT;
    return linear(fallback, stream, dst, SIDE_DEVICE, src, SIDE_DEVICE, bytes, 0);
}

static int side_of(int type) {
    return type == CU_MEMORYTYPE_HOST ? SIDE_HOST : type == CU_MEMORYTYPE_UNIFIED ? SIDE_ANY : SIDE_DEVICE;
}

/* Find one side of a copy by rows. `width`: of the copied part, which a missing pitch means; `rows`: of a layer. */
static CUresult locate(int type, const void *host, CUdeviceptr device, CUarray array, size_t pitch, size_t rows,
                       size_t width, struct sim_memory_2d *out) {
    if (type == CU_MEMORYTYPE_ARRAY)
        return array_memory(array, out) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    out->address = type == CU_MEMORYTYPE_HOST ? (uint64_t)host : device;
    out->width = out->pitch = pitch ? pitch : width;
    out->rows = rows;
    return CUDA_SUCCESS;
}

static CUresult describe_3d(const CUDA_MEMCPY3D *c, struct transfer *t) {
    struct sim_memory_2d dst, src;
    CUresult result =
        locate(c->dst_type, c->dst_host, c->dst_device, c->dst_array, c->dst_pitch, c->dst_height, c->width, &dst);
    if (result || (result = locate(c->src_type, c->src_host, c->src_device, c->src_array, c->src_pitch, c->src_height,
                                   c->width, &src)))
        return result;
    if (c->dst_x + c->width > dst.width || c->src_x + c->width > src.width ||
        (c->depth > 1 && (src.rows < c->src_y + c->height || dst.rows < c->dst_y + c->height)))
        return CUDA_ERROR_INVALID_VALUE;
    *t = (struct transfer){
        .dst = dst.address + (c->dst_z * dst.rows + c->dst_y) * dst.pitch + c->dst_x,
        .src = src.address + (c->src_z * src.rows + c->src_y) * src.pitch + c->src_x,
        .dst_side = side_of(c->dst_type),
        .src_side = side_of(c->src_type),
        .width = c->width,
        .height = c->height,
        .dst_pitch = dst.pitch,
        .src_pitch = src.pitch,
        .depth = c->depth,
        .dst_layer = dst.rows * dst.pitch,
        .src_layer = src.rows * src.pitch,
    };
    return CUDA_SUCCESS;
}

static CUresult copy_3d(CUstream fallback, CUstream handle, const CUDA_MEMCPY3D *c, int synchronous) {
    struct sim_stream *stream;
    struct transfer t;
    CUresult result = stream_resolve(handle, fallback, &stream);
    if (result || (result = describe_3d(c, &t)))
        return result;
    return transfer(stream, &t, synchronous);
}

CUresult copy_command(const CUDA_MEMCPY3D *copy, struct sim_command *command) {
    int dst_pageable, src_pageable;
    struct transfer t;
    CUresult result = copy ? describe_3d(copy, &t) : CUDA_ERROR_INVALID_VALUE;
    if (result || is_empty(&t))
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    return make_command(&t, command, &dst_pageable, &src_pageable);
}

static int is_host_memory(uint64_t address) {
    struct sim_alloc *alloc = alloc_pin(address);
    int is_host = !alloc || alloc->kind == ALLOC_HOST || alloc->kind == ALLOC_REGISTERED;
    alloc_unpin(alloc);
    return is_host;
}

/* An equivalent copy: offsets are part of the addresses, and arrays are memory of the device. */
void copy_parameters(const struct sim_command *command, CUDA_MEMCPY3D *copy) {
    uint64_t dst = (uint64_t)command->copy.dst, src = (uint64_t)command->copy.src;
    size_t dst_pitch = command->copy.dst_pitch, src_pitch = command->copy.src_pitch;
    *copy = (CUDA_MEMCPY3D){
        .src_type = is_host_memory(src) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE,
        .src_pitch = src_pitch,
        .src_height = src_pitch ? command->copy.src_layer / src_pitch : 0,
        .dst_type = is_host_memory(dst) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE,
        .dst_pitch = dst_pitch,
        .dst_height = dst_pitch ? command->copy.dst_layer / dst_pitch : 0,
        .width = command->copy.width,
        .height = command->copy.height,
        .depth = command->copy.depth,
    };
    if (copy->src_type == CU_MEMORYTYPE_HOST)
        copy->src_host = command->copy.src;
    else
        copy->src_device = src;
    if (copy->dst_type == CU_MEMORYTYPE_HOST)
        copy->dst_host = command->copy.dst;
    else
        copy->dst_device = dst;
}

static CUresult copy_2d(CUstream fallback, CUstream stream, const CUDA_MEMCPY2D *c, int synchronous) {
    if (!c)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_MEMCPY3D all = {
        .src_x = c->src_x,
        .src_y = c->src_y,
        .src_type = c->src_type,
        .src_host = c->src_host,
        .src_device = c->src_device,
        .src_array = c->src_array,
        .src_pitch = c->src_pitch,
        .dst_x = c->dst_x,
        .dst_y = c->dst_y,
        .dst_type = c->dst_type,
        .dst_host = c->dst_host,
        .dst_device = c->dst_device,
        .dst_array = c->dst_array,
        .dst_pitch = c->dst_pitch,
        .width = c->width,
        .height = c->height,
        .depth = 1,
    };
    return copy_3d(fallback, stream, &all, synchronous);
}

CUresult sim_cuMemcpy2D_v2(CUstream fallback, const CUDA_MEMCPY2D *copy) {
    return copy_2d(fallback, NULL, copy, 1);
}

CUresult sim_cuMemcpy2DUnaligned_v2(CUstream fallback, const CUDA_MEMCPY2D *copy) {
    return copy_2d(fallback, NULL, copy, 1);
}

CUresult sim_cuMemcpy2DAsync_v2(CUstream fallback, const CUDA_MEMCPY2D *copy, CUstream stream) {
    return copy_2d(fallback, stream, copy, 0);
}

CUresult sim_cuMemcpy3D_v2(CUstream fallback, const CUDA_MEMCPY3D *copy) {
    return copy ? copy_3d(fallback, NULL, copy, 1) : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuMemcpy3DAsync_v2(CUstream fallback, const CUDA_MEMCPY3D *copy, CUstream stream) {
    return copy ? copy_3d(fallback, stream, copy, 0) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult make_set(CUdeviceptr dst, size_t pitch, uint32_t value, uint32_t element, size_t width, size_t height,
                         struct sim_command *command) {
    if (dst % element || (height > 1 && pitch < width * element) || width > 1ull << 46 || height > 1ull << 46)
        return CUDA_ERROR_INVALID_VALUE;
    if (!width || !height)
        return CUDA_SUCCESS;
    struct sim_alloc *alloc = alloc_pin_range(dst, extent(width * element, height, pitch));
    if (!alloc && !graph_memory_covers(dst, extent(width * element, height, pitch)))
        return CUDA_ERROR_INVALID_VALUE;
    alloc_unpin(alloc);
    command->kind = COMMAND_SET;
    command->set.dst = (void *)dst;
    command->set.width = width;
    command->set.height = height;
    command->set.pitch = pitch;
    command->set.value = value;
    command->set.element = element;
    return CUDA_SUCCESS;
}

CUresult set_command(const CUDA_MEMSET_NODE_PARAMS *params, struct sim_command *command) {
    if (!params || !params->width || !params->height ||
        (params->element != 1 && params->element != 2 && params->element != 4))
        return CUDA_ERROR_INVALID_VALUE;
    return make_set(params->dst, params->pitch, params->value, params->element, params->width, params->height, command);
}

/* CUDA driver API, "API synchronization behavior": a set without "Async" waits for its work only if its target is pinned
 * host memory or unified memory. */
static int is_waiting_set(CUdeviceptr dst) {
    struct sim_alloc *alloc = alloc_pin_range(dst, 1);
    int is_waiting =
        alloc && (alloc->kind == ALLOC_MANAGED || alloc->kind == ALLOC_HOST || alloc->kind == ALLOC_REGISTERED);
    alloc_unpin(alloc);
    return is_waiting;
}

static CUresult set(CUstream fallback, CUstream handle, CUdeviceptr dst, size_t pitch, uint32_t value, uint32_t element,
                    size_t width, size_t height, int synchronous) {
    struct sim_stream *stream;
    struct sim_command *command, made = {0};
    CUresult result = stream_resolve(handle, fallback, &stream);
    if (result || (result = make_set(dst, pitch, value, element, width, height, &made)) || !width || !height)
        return result;
    if ((result = engine_begin(stream, &command)))
        return result;
    command->kind = made.kind;
    command->set = made.set;
    int waits = synchronous && !atomic_load(&stream->capture) && is_waiting_set(dst);
    uint64_t position = atomic_load(&stream->tail) + 1;
    result = engine_commit(stream);
    if (result || !waits)
        return result;
    engine_wait(stream, position);
    return atomic_load(&stream->context->error);
}

#define SET(bits, type, symbol, symbol2d)                                                                              \
    CUresult sim_cuMemsetD##symbol(CUstream fallback, CUdeviceptr dst, type value, size_t count) {                     \
        return set(fallback, NULL, dst, 0, value, bits / 8, count, 1, 1);                                              \
    }                                                                                                                  \
    CUresult sim_cuMemsetD##bits##Async(CUstream fallback, CUdeviceptr dst, type value, size_t count,                  \
                                        CUstream stream) {                                                             \
        return set(fallback, stream, dst, 0, value, bits / 8, count, 1, 0);                                            \
    }                                                                                                                  \
    CUresult sim_cuMemsetD##symbol2d(CUstream fallback, CUdeviceptr dst, size_t pitch, type value, size_t width,       \
                                     size_t height) {                                                                  \
        return set(fallback, NULL, dst, pitch, value, bits / 8, width, height, 1);                                     \
    }                                                                                                                  \
    CUresult sim_cuMemsetD2D##bits##Async(CUstream fallback, CUdeviceptr dst, size_t pitch, type value, size_t width,  \
                                          size_t height, CUstream stream) {                                            \
        return set(fallback, stream, dst, pitch, value, bits / 8, width, height, 0);                                   \
    }

SET(8, unsigned char, 8_v2, 2D8_v2)
SET(16, unsigned short, 16_v2, 2D16_v2)
SET(32, unsigned, 32_v2, 2D32_v2)
