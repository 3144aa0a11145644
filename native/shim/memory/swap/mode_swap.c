/* The mode "swap": device memory is physical memory of our own making, which leaves the device and comes back at the same
 * addresses. Where it is needs no guess, and no page fault moves it; in return a client must fit on the device. */
#include "memory/swap/swap.h"

static CUresult allocate(CUdeviceptr *address, size_t bytes, struct entry *entry) {
    struct swap_allocation *allocation = NULL;
    pthread_mutex_lock(&residency_lock);
    CUresult result = bytes <= GRANULE_BYTES / 2 ? slab_allocate(bytes, address, &allocation)
                                                 : swap_allocation_create(bytes, &allocation);
    pthread_mutex_unlock(&residency_lock);
    if (result != CUDA_SUCCESS)
        return result;
    if (!allocation->slab)
        *address = allocation->base;
    entry->kind = MEMORY_SWAPPED;
    entry->physical_or_generation = (uint64_t)(uintptr_t)allocation;
    return result;
}

/* Work may still use it: cuMemFree waits, and so must we before the memory is unmapped or another's. */
static CUresult release(const struct entry *entry) {
    struct swap_allocation *allocation = (struct swap_allocation *)(uintptr_t)entry->physical_or_generation;
    pthread_mutex_lock(&residency_lock);
    CUresult result =
        allocation->slab ? slab_free(allocation, entry->key, entry->bytes) : swap_allocation_destroy(allocation);
    pthread_mutex_unlock(&residency_lock);
    return result;
}

const struct memory_mode mode_swap = {
    .name = "swap",
    .number = GPUSHARE_MEMORY_SWAP,
    .evicts_after_turn = true,
    .allocate = allocate,
    .release = release,
    .evict = swap_evict,
    .restore = swap_restore,
    .prefetch = swap_prefetch,
    .capacity = swap_capacity,
};
