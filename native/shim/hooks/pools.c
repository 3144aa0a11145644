/* Hooks on pools of stream-ordered memory, whose allocations are in allocation.c. */
#include "hooks/hooks.h"
#include "memory/memory.h"

static bool is_default(CUmemoryPool pool, CUdevice *home) {
    CUmemoryPool found;
    for (*home = 0; *home < shim.device_count; ++*home)
        if (REAL(cuDeviceGetDefaultMemPool)(&found, *home) == CUDA_SUCCESS && found == pool)
            return true;
    return false;
}

bool pool_home(CUmemoryPool pool, CUdevice *home) {
    CUmemLocation location;
    if (!pool_figures_location(pool, &location))
        return is_default(pool, home);
    *home = location.id;
    return location.type == CU_MEM_LOCATION_TYPE_DEVICE;
}

/* `own`: the result of memory_context(). */
static bool find_device(CUcontext context, CUcontext own, CUdevice *device) {
    CUcontext left;
    if (context == own)
        return REAL(cuCtxGetDevice)(device) == CUDA_SUCCESS;
    if (REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS)
        return false;
    bool found = REAL(cuCtxGetDevice)(device) == CUDA_SUCCESS;
    REAL(cuCtxPopCurrent_v2)(&left);
    return found;
}

/* The current context comes first, because the program may use several contexts of the device. */
static CUcontext context_on(CUdevice home, CUcontext own, CUcontext of_stream) {
    CUdevice device;
    if (own && find_device(own, own, &device) && device == home)
        return own;
    if (of_stream && find_device(of_stream, own, &device) && device == home)
        return of_stream;
    return primary_context(home);
}

struct pool_place pool_place(CUmemoryPool pool, CUstream stream) {
    RELAXED_MODE;
    CUdevice home;
    CUcontext own = memory_context();
    if (pool_home(pool, &home))
        return (struct pool_place){pool, context_on(home, own, stream_home(stream).context)};
    return (struct pool_place){pool, is_swapping() ? NULL : own}; /* unified memory may be anywhere */
}

struct pool_place pool_place_of_stream(CUstream stream) {
    CUdevice home;
    CUcontext own = memory_context(), of_stream = stream_home(stream).context;
    struct pool_place place = {NULL, own};
    if (of_stream && find_device(of_stream, own, &home)) {
        REAL(cuDeviceGetMemPool)(&place.pool, home);
        place.context = context_on(home, own, of_stream);
    }
    return place;
}

/* Managed memory of a pool may be anywhere. */
static void note_place(CUmemoryPool pool, int type, const CUmemLocation *location) {
    if (shim_is_active() && type == CU_MEM_ALLOCATION_TYPE_PINNED)
        pool_figures_set_location(pool, location);
}

CUresult hook_cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, int type) {
    CUresult result = REAL(cuMemGetDefaultMemPool)(pool, location, type);
    if (result == CUDA_SUCCESS)
        note_place(*pool, type, location);
    return result;
}

CUresult hook_cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, int type) {
    CUresult result = REAL(cuMemGetMemPool)(pool, location, type);
    if (result == CUDA_SUCCESS)
        note_place(*pool, type, location);
    return result;
}

bool pool_is_of_host(CUmemoryPool pool) {
    CUmemLocation location;
    return pool_figures_location(pool, &location) &&
           (location.type == CU_MEM_LOCATION_TYPE_HOST || location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
            location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT);
}

CUresult hook_cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    CUresult result = REAL(cuMemPoolCreate)(pool, properties);
    if (result == CUDA_SUCCESS)
        note_place(*pool, properties->type, &properties->location);
    return result;
}

CUresult hook_cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value) {
    deferred_free_completed(); /* memory above the release threshold no longer counts */
    CUresult result = REAL(cuMemPoolGetAttribute)(pool, attribute, value);
    if (result == CUDA_SUCCESS && attribute >= CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT &&
        attribute <= CU_MEMPOOL_ATTR_USED_MEM_HIGH)
        *(uint64_t *)value += pool_figure(pool, attribute);
    return result;
}

CUresult hook_cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value) {
    CUresult result = REAL(cuMemPoolSetAttribute)(pool, attribute, value);
    if (result == CUDA_SUCCESS)
        pool_figures_set(pool, attribute, attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD ? *(uint64_t *)value : 0);
    deferred_request_poll();
    return result;
}

CUresult hook_cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    CUresult result = REAL(cuMemPoolTrimTo)(pool, keep);
    if (result == CUDA_SUCCESS)
        deferred_trim(pool, keep);
    return result;
}

/* The records end before the call, because another pool may get the handle at once. The driver refuses to destroy default
 * pools. */
CUresult hook_cuMemPoolDestroy(CUmemoryPool pool) {
    CUdevice device;
    if (is_default(pool, &device))
        return REAL(cuMemPoolDestroy)(pool);
    pool_figures_drop(pool);
    swap_drop_pool(pool);
    deferred_free_completed(); /* the memory that has been kept for the pool */
    deferred_request_poll();
    return REAL(cuMemPoolDestroy)(pool);
}
