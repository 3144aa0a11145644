/* The mode "swap": device memory is physical memory that the shim makes, which is evicted and restored at the same
 * addresses. The place of memory is exact, and no page fault moves it; in return a client must fit on the device. */
#include "memory/swap/blocks.h"

static CUresult allocate(CUdeviceptr *address, size_t bytes, struct entry *entry) {
    RELAXED_MODE;
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

/* Work may still use the memory. The hook on cuMemFree has waited for that work. */
static CUresult release(const struct entry *entry) {
    RELAXED_MODE;
    struct swap_allocation *allocation = (struct swap_allocation *)(uintptr_t)entry->physical_or_generation;
    pthread_mutex_lock(&residency_lock);
    CUresult result =
        allocation->slab ? slab_free(allocation, entry->key, entry->bytes) : swap_allocation_destroy(allocation);
    pthread_mutex_unlock(&residency_lock);
    return result;
}

/* The program's own mappings outlive the context in which they were made. */
static void find_other_context(CUcontext ended) {
    CUcontext offered = swap_lacks_context() ? memory_context() : NULL;
    if (offered != ended)
        swap_offer_context(offered);
    for (int i = 0; i < shim.device_count && swap_lacks_context(); i++)
        swap_offer_context(primary_context(i));
    for (struct block *block = swap_blocks; block && swap_lacks_context(); block = block->next)
        if (block->context && block->context != offered)
            swap_offer_context(offered = block->context);
}

/* Discard what ends with a context. residency_lock is held. */
void swap_drop_context(CUcontext context) {
    struct swap_allocation *allocation;
    while ((allocation = swap_allocation_of_context(context))) {
        slab_discard(allocation);
        swap_allocation_destroy(allocation);
    }
    peers_drop_context(context);
    copies_drop_context(context);
    host_buffers_drop_context(context);
    for (struct block *block = swap_blocks; block; block = block->next) {
        if (block->context == context)
            block_set_context(block, NULL);
        if (block->copy && block->copy->pinned == context)
            host_buffer_unpinned(block->copy);
    }
    find_other_context(context);
}

void swap_after_fork(void) {
    swap_allocations_after_fork();
    slabs_after_fork();
    peers_after_fork();
    copies_after_fork();
    host_buffers_after_fork();
    swap_blocks_after_fork();
    swap_vmm_after_fork();
}

const struct memory_mode mode_swap = {
    .name = "swap",
    .number = GPUSHARE_MEMORY_SWAP,
    .evicts_after_turn = true,
    .allocate = allocate,
    .release = release,
    .evict = swap_evict,
    .is_mapped = swap_is_mapped,
    .restore = swap_restore,
    .prefetch = swap_prefetch,
    .capacity = swap_capacity,
};
