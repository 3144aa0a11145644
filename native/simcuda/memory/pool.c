/* Memory pools: freed memory stays in the pool up to its release threshold, for later allocations. Only sizes are
 * counted, because a real pool joins scattered pieces by mapping, so any free bytes are enough. */
#include <string.h>

#include "base/exports.h"
#include "machine/machine.h"
#include "context/context.h"
#include "memory/alloc.h"

enum { THRESHOLD = 4, RESERVED, RESERVED_HIGH, USED, USED_HIGH }; /* CUmemPool_attribute */

struct sim_pool {
    uint32_t magic;
    int device, is_default, is_ended;
    uint32_t peers; /* other devices with access, a bit each */
    uint64_t attribute[USED_HIGH + 1];
} __attribute__((aligned(16))); /* as every object is */

static struct {
    pthread_mutex_t lock;
    struct sim_pool defaults[SIM_MAX_DEVICES];
    struct sim_pool *current[SIM_MAX_DEVICES]; /* NULL: the default one */
} pools = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The lock is held. Made once, because threads with the handle read it without the lock. */
static struct sim_pool *default_pool(int device) {
    struct sim_pool *pool = &pools.defaults[device];
    if (pool->magic != MAGIC_POOL) {
        pool->device = device;
        pool->is_default = 1;
        __atomic_store_n(&pool->magic, MAGIC_POOL, __ATOMIC_RELEASE);
    }
    return pool;
}

int pool_is_valid(CUmemoryPool pool) {
    return sim_is_object(pool) && __atomic_load_n(&pool->magic, __ATOMIC_ACQUIRE) == MAGIC_POOL;
}

struct sim_pool *pool_current(int device) {
    pthread_mutex_lock(&pools.lock);
    struct sim_pool *pool = pools.current[device] ? pools.current[device] : default_pool(device);
    pthread_mutex_unlock(&pools.lock);
    return pool;
}

int pool_device(const struct sim_pool *pool) {
    return pool->device;
}

int pool_is_accessible(const struct sim_pool *pool, int device) {
    pthread_mutex_lock(&pools.lock);
    int allowed = device == pool->device || (pool->peers >> device & 1);
    pthread_mutex_unlock(&pools.lock);
    return allowed;
}

static void add(struct sim_pool *pool, int attribute, uint64_t bytes) {
    pool->attribute[attribute] += bytes;
    if (pool->attribute[attribute + 1] < pool->attribute[attribute])
        pool->attribute[attribute + 1] = pool->attribute[attribute];
}

int pool_take(struct sim_pool *pool, uint64_t bytes, uint64_t *evicted) {
    pthread_mutex_lock(&pools.lock);
    uint64_t spare = pool->attribute[RESERVED] - pool->attribute[USED], more = bytes > spare ? bytes - spare : 0;
    int failed = more && machine_charge(sim.machine, pool->device, sim.slot, more, evicted);
    if (!failed) {
        add(pool, RESERVED, more);
        add(pool, USED, bytes);
    }
    pthread_mutex_unlock(&pools.lock);
    return failed ? -1 : 0;
}

/* The lock is held. */
static void trim(struct sim_pool *pool, uint64_t keep) {
    if (keep < pool->attribute[USED])
        keep = pool->attribute[USED];
    if (pool->attribute[RESERVED] <= keep)
        return;
    machine_discharge(sim.machine, pool->device, sim.slot, pool->attribute[RESERVED] - keep);
    pool->attribute[RESERVED] = keep;
}

/* The lock is held. A destroyed pool ends with its last allocation. */
static void end(struct sim_pool *pool) {
    if (!pool->is_ended || pool->attribute[USED])
        return;
    trim(pool, 0);
    object_put(pool, MAGIC_POOL);
}

void pool_give(struct sim_pool *pool, uint64_t bytes) {
    pthread_mutex_lock(&pools.lock);
    pool->attribute[USED] -= bytes;
    trim(pool, pool->attribute[THRESHOLD]);
    end(pool);
    pthread_mutex_unlock(&pools.lock);
}

CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *properties) {
    int device;
    SIM_ENTER();
    if (!out || !properties)
        return CUDA_ERROR_INVALID_VALUE;
    if (properties->type != CU_MEM_ALLOCATION_PINNED || properties->handle_types ||
        properties->location.type != CU_MEM_LOCATION_DEVICE)
        return CUDA_ERROR_NOT_SUPPORTED;
    CUresult result = device_of(properties->location.id, &device);
    struct sim_pool *pool = result ? NULL : object_get(MAGIC_POOL, sizeof *pool);
    if (!pool)
        return result ? result : CUDA_ERROR_OUT_OF_MEMORY;
    memset(pool, 0, sizeof *pool);
    pool->device = device;
    pool->magic = MAGIC_POOL;
    *out = pool;
    return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    SIM_ENTER();
    if (!pool_is_valid(pool) || pool->is_default)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&pools.lock);
    if (pools.current[pool->device] == pool)
        pools.current[pool->device] = NULL;
    pool->magic = 0;
    pool->is_ended = 1;
    end(pool);
    pthread_mutex_unlock(&pools.lock);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) {
    int index;
    SIM_ENTER();
    CUresult result = device_of(device, &index);
    if (result)
        return result;
    pthread_mutex_lock(&pools.lock);
    *pool = default_pool(index);
    pthread_mutex_unlock(&pools.lock);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) {
    int index;
    SIM_ENTER();
    CUresult result = device_of(device, &index);
    if (!result)
        *pool = pool_current(index);
    return result;
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
    int index;
    SIM_ENTER();
    CUresult result = device_of(device, &index);
    if (result || !pool_is_valid(pool) || pool->device != index)
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&pools.lock);
    pools.current[index] = pool;
    pthread_mutex_unlock(&pools.lock);
    return CUDA_SUCCESS;
}

/* Pools of the host and of unified memory are not simulated. */
static CUresult check_place(const CUmemLocation *location, int type) {
    SIM_ENTER();
    if (!location || (type != CU_MEM_ALLOCATION_PINNED && type != CU_MEM_ALLOCATION_MANAGED))
        return CUDA_ERROR_INVALID_VALUE;
    if (location->type != CU_MEM_LOCATION_DEVICE && location->type != CU_MEM_LOCATION_HOST &&
        location->type != CU_MEM_LOCATION_NUMA && (location->type || type == CU_MEM_ALLOCATION_PINNED))
        return CUDA_ERROR_INVALID_VALUE;
    return location->type == CU_MEM_LOCATION_DEVICE && type == CU_MEM_ALLOCATION_PINNED ? CUDA_SUCCESS
                                                                                        : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, int type) {
    CUresult result = check_place(location, type);
    if (result || !pool)
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    return cuDeviceGetDefaultMemPool(pool, location->id);
}

CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, int type) {
    CUresult result = check_place(location, type);
    if (result || !pool)
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    return cuDeviceGetMemPool(pool, location->id);
}

CUresult cuMemSetMemPool(CUmemLocation *location, int type, CUmemoryPool pool) {
    CUresult result = check_place(location, type);
    return result ? result : cuDeviceSetMemPool(location->id, pool);
}

static CUresult check(CUmemoryPool pool, int attribute, const void *value) {
    SIM_ENTER();
    if (!pool_is_valid(pool) || !value || attribute < 1 || attribute > USED_HIGH)
        return CUDA_ERROR_INVALID_VALUE;
    return capture_check_unsafe();
}

/* Attributes 1 to 3 are ints, the other attributes 64-bit numbers. */
CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value) {
    CUresult result = check(pool, attribute, value);
    if (result)
        return result;
    pthread_mutex_lock(&pools.lock);
    if (attribute < THRESHOLD)
        *(int *)value = 1;
    else
        *(uint64_t *)value = pool->attribute[attribute];
    pthread_mutex_unlock(&pools.lock);
    return CUDA_SUCCESS;
}

/* A write of 0 resets a high mark to the present number. The present numbers cannot be set. */
CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value) {
    CUresult result = check(pool, attribute, value);
    int is_high = attribute == RESERVED_HIGH || attribute == USED_HIGH;
    if (result || attribute < THRESHOLD)
        return result;
    if (attribute != THRESHOLD && (!is_high || *(uint64_t *)value))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&pools.lock);
    pool->attribute[attribute] = is_high ? pool->attribute[attribute - 1] : *(uint64_t *)value;
    pthread_mutex_unlock(&pools.lock);
    return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    CUresult result = check(pool, THRESHOLD, pool);
    if (result)
        return result;
    pthread_mutex_lock(&pools.lock);
    trim(pool, keep);
    pthread_mutex_unlock(&pools.lock);
    return CUDA_SUCCESS;
}

/* A pool's own device always has access. */
CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *wanted, size_t count) {
    int device;
    CUresult result = check(pool, THRESHOLD, wanted);
    for (size_t i = 0; i < count && !result; i++)
        if (wanted[i].location.type != CU_MEM_LOCATION_DEVICE || (wanted[i].flags && wanted[i].flags != 3))
            result = CUDA_ERROR_INVALID_VALUE;
        else if (!(result = device_of(wanted[i].location.id, &device)))
            result = device == pool->device && !wanted[i].flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    pthread_mutex_lock(&pools.lock);
    for (size_t i = 0; i < count && !result; i++) {
        uint32_t bit = 1u << sim.visible[wanted[i].location.id];
        pool->peers = wanted[i].flags ? pool->peers | bit : pool->peers & ~bit;
    }
    pthread_mutex_unlock(&pools.lock);
    return result;
}

CUresult cuMemPoolGetAccess(int *flags, CUmemoryPool pool, CUmemLocation *location) {
    int device;
    CUresult result = check(pool, THRESHOLD, flags);
    if (result || !location || location->type != CU_MEM_LOCATION_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    if (!(result = device_of(location->id, &device)))
        *flags = pool_is_accessible(pool, device) ? CU_MEM_ACCESS_READWRITE : CU_MEM_ACCESS_NONE;
    return result;
}
