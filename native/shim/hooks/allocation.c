/* Hooks on allocation and release. The client's memory mode (memory/account/mode.h) allocates device memory; memory that can
 * only be on the device counts as unmovable. The client's limit bounds all of it. */
#include "hooks/hooks.h"
#include "memory/memory.h"

#define ROW_ALIGNMENT_BYTES 512 /* the driver's alignment of rows, enough for every texture */

static void add_allocation(CUdeviceptr address, struct entry *entry) {
    static _Atomic uint64_t generations;
    refusal_recovered(entry->bytes);
    entry->key = address;
    if (entry->kind != MEMORY_SWAPPED)
        entry->physical_or_generation = atomic_fetch_add_explicit(&generations, 1, memory_order_relaxed);
    if (!entry->context)
        entry->context = memory_context();
    if (!ledger_add(LEDGER_ADDRESSES, entry)) { /* its release will not find an entry either */
        account_release(entry->bytes, is_unmovable(entry->kind));
        pool_figures_remove(entry->pool, entry->bytes);
    }
}

/* `pool`: the pool that the program asks, or NULL. */
static CUresult allocate(CUdeviceptr *address, size_t bytes, CUmemoryPool pool) {
    bool unmovable = shim.mode->is_unmovable;
    struct entry entry = {.bytes = bytes};
    if (!reserve_memory(bytes, unmovable))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = shim.mode->allocate(address, bytes, &entry);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && deferred_drain())
        result = shim.mode->allocate(address, bytes, &entry);
    if (result != CUDA_SUCCESS) {
        account_release(bytes, unmovable);
        return result;
    }
    if (is_unmovable(entry.kind) && !unmovable)
        account_mark_unmovable(ANY_DEVICE, (int64_t)bytes);
    entry.pool = pool_figures_add(pool, bytes);
    add_allocation(*address, &entry);
    if (shim.mode->populate)
        shim.mode->populate(&entry);
    return result;
}

CUresult hook_cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
    if (!address || !bytes || !shim_is_active())
        return REAL(cuMemAlloc_v2)(address, bytes);
    CUresult refused = captures_refuse_unsafe_call();
    return refused != CUDA_SUCCESS ? refused : allocate(address, bytes, NULL);
}

CUresult hook_cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned element) {
    size_t row = (width + ROW_ALIGNMENT_BYTES - 1) / ROW_ALIGNMENT_BYTES * ROW_ALIGNMENT_BYTES, bytes;
    bool sane = address && pitch && width && height && row >= width &&
                (element == 4 || element == 8 || element == 16) && !__builtin_mul_overflow(row, height, &bytes);
    if (!sane || !shim_is_active())
        return REAL(cuMemAllocPitch_v2)(address, pitch, width, height, element);
    CUresult result = captures_refuse_unsafe_call();
    if (result == CUDA_SUCCESS)
        result = allocate(address, bytes, NULL);
    if (result == CUDA_SUCCESS)
        *pitch = row;
    return result;
}

CUresult hook_cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned flags) {
    if (!address || !bytes || !shim_is_active())
        return REAL(cuMemAllocManaged)(address, bytes, flags);
    uint32_t kind = shim.pages_unified ? MEMORY_MANAGED : MEMORY_DEVICE;
    if (!reserve_memory(bytes, is_unmovable(kind)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    atomic_store(&shim.uses_managed, true); /* before the memory exists, because the agent may be about to move */
    CUresult result = REAL(cuMemAllocManaged)(address, bytes, flags);
    if (result == CUDA_SUCCESS) {
        add_allocation(*address, &(struct entry){.bytes = bytes, .kind = kind});
        PAGE_STORE(the_page()->report.uses_managed_memory, shim.pages_unified);
    } else
        account_release(bytes, is_unmovable(kind));
    return result;
}

/* The entry is removed first: as soon as the driver has the memory back, another thread may get the same address. */
CUresult hook_cuMemFree_v2(CUdeviceptr address) {
    struct entry entry;
    if (!ledger_remove(LEDGER_ADDRESSES, address, &entry))
        return REAL(cuMemFree_v2)(address);
    CUresult result = entry.kind == MEMORY_SWAPPED ? captures_refuse_unsafe_call() : CUDA_SUCCESS;
    bool later = false;
    if (result == CUDA_SUCCESS) {
        /* Work in flight may still use memory that the shim unmaps. */
        later = entry.kind == MEMORY_SWAPPED && is_running() && !streams_wait(entry.context);
        result = later                         ? deferred_add_after_turn(&entry)
                 : entry.kind == MEMORY_POOLED ? REAL(cuMemFree_v2)(address)
                                               : memory_release(&entry);
    }
    if (result != CUDA_SUCCESS)
        ledger_add(LEDGER_ADDRESSES, &entry);
    else if (!later)
        memory_unaccount(&entry);
    return result;
}

/* A request to a pool of device memory is served like any other allocation. The driver never takes such a request for
 * unsafe. Inside a capture the allocation becomes part of the graph, which only the driver can do. */
static CUresult allocate_relaxed(CUdeviceptr *address, size_t bytes, struct pool_place place, CUstream stream) {
    RELAXED_MODE;
    struct entry entry;
    CUcontext left;
    if (deferred_reuse(place.pool, bytes, place.context, stream, &entry)) {
        *address = (CUdeviceptr)entry.key;
        add_allocation(*address, &entry);
        return CUDA_SUCCESS;
    }
    bool pushed = place.context != memory_context() && REAL(cuCtxPushCurrent_v2)(place.context) == CUDA_SUCCESS;
    CUresult result = allocate(address, bytes, place.pool);
    if (pushed)
        REAL(cuCtxPopCurrent_v2)(&left);
    return result;
}

#define ALLOCATE_ASYNC(find_place, call)                                                                               \
    do {                                                                                                               \
        if (!address || !bytes || !shim_is_active() || is_capturing(twin ? per_thread(stream) : stream))               \
            return (call);                                                                                             \
        struct pool_place place = {0};                                                                                 \
        if (!shim.mode->is_unmovable)                                                                                  \
            place = (find_place);                                                                                      \
        if (place.context)                                                                                             \
            return allocate_relaxed(address, bytes, place, twin ? per_thread(stream) : stream);                        \
        if (!reserve_memory(bytes, true))                                                                              \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                                           \
        CUresult result = (call);                                                                                      \
        if (result == CUDA_SUCCESS)                                                                                    \
            add_allocation(*address, &(struct entry){.bytes = bytes, .kind = MEMORY_POOLED});                          \
        else                                                                                                           \
            account_release(bytes, true);                                                                              \
        return result;                                                                                                 \
    } while (0)

CUresult hook_cuMemAllocAsync(bool twin, CUdeviceptr *address, size_t bytes, CUstream stream) {
    ALLOCATE_ASYNC(pool_place_of_stream(twin ? per_thread(stream) : stream),
                   REAL_TWIN(cuMemAllocAsync, twin)(address, bytes, stream));
}

CUresult hook_cuMemAllocFromPoolAsync(bool twin, CUdeviceptr *address, size_t bytes, CUmemoryPool pool,
                                      CUstream stream) {
    if (!pool || pool_is_of_host(pool)) /* an error, or no memory of the client's account */
        return REAL_TWIN(cuMemAllocFromPoolAsync, twin)(address, bytes, pool, stream);
    ALLOCATE_ASYNC(pool_place(pool, twin ? per_thread(stream) : stream),
                   REAL_TWIN(cuMemAllocFromPoolAsync, twin)(address, bytes, pool, stream));
}

CUresult hook_cuMemFreeAsync(bool twin, CUdeviceptr address, CUstream stream) {
    struct entry entry;
    if (!ledger_remove(LEDGER_ADDRESSES, address, &entry))
        return REAL_TWIN(cuMemFreeAsync, twin)(address, stream);
    /* a graph frees what graphs allocate, so the driver decides */
    if (is_capturing(twin ? per_thread(stream) : stream)) {
        ledger_add(LEDGER_ADDRESSES, &entry);
        return REAL_TWIN(cuMemFreeAsync, twin)(address, stream);
    }
    CUresult result;
    if (entry.kind == MEMORY_POOLED) {
        result = REAL_TWIN(cuMemFreeAsync, twin)(address, stream);
        if (result == CUDA_SUCCESS)
            account_release(entry.bytes, true);
    } else
        result = deferred_add(&entry, twin ? per_thread(stream) : stream);
    if (result != CUDA_SUCCESS)
        ledger_add(LEDGER_ADDRESSES, &entry);
    return result;
}
