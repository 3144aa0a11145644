/* Answers to queries of an address in the mode "swap": the same on the device and off it. */
#include "memory/swap/blocks.h"

#include <string.h>

static void copy_access(const struct mapping *mapping, struct swap_pointer *found) {
    memcpy(found->access, mapping->access, sizeof found->access);
    found->access_count = mapping->access_count;
}

/* The size is what the program asked for. */
static void describe_allocation(const struct swap_allocation *allocation, CUdeviceptr address,
                                struct swap_pointer *found) {
    struct entry entry;
    const struct block *block = allocation->blocks[0];
    found->base = allocation->base;
    found->bytes = allocation->bytes;
    if (allocation->slab)
        slab_find(allocation, address, &found->base, &found->bytes);
    found->buffer_id = block->id + (found->base - allocation->base) / SLAB_UNIT_BYTES;
    if (ledger_find(LEDGER_ADDRESSES, found->base, &entry)) {
        found->bytes = entry.bytes;
        found->pool = pool_figures_pool(entry.pool);
    }
    found->is_unused = address - found->base >= found->bytes;
    found->context = allocation->context;
    copy_access(block->mappings, found);
}

static void describe_mapping(const struct mapping *mapping, struct swap_pointer *found) {
    found->is_mapping = true;
    found->base = mapping->address;
    found->bytes = mapping->bytes;
    found->buffer_id = mapping->block->id;
    found->handle_types = (uint64_t)mapping->block->properties.handle_types;
    copy_access(mapping, found);
}

static struct block *block_at(CUdeviceptr address) {
    const struct swap_allocation *allocation = swap_allocation_at(address);
    const struct mapping *mapping = allocation ? NULL : swap_mapping_at(address);
    return allocation ? allocation->blocks[(address - allocation->base) / MAX_BLOCK_BYTES]
           : mapping  ? mapping->block
                      : NULL;
}

void swap_pin_range(CUdeviceptr address, uint64_t bytes) {
    pthread_mutex_lock(&residency_lock);
    for (CUdeviceptr at = address / GRANULE_BYTES * GRANULE_BYTES; at < address + bytes; at += GRANULE_BYTES) {
        struct block *block = block_at(at);
        if (block)
            block_pin(block);
    }
    pthread_mutex_unlock(&residency_lock);
}

bool swap_find_pointer(CUdeviceptr address, struct swap_pointer *found) {
    if (shim.mode != &mode_swap)
        return false;
    memset(found, 0, sizeof *found);
    pthread_mutex_lock(&residency_lock);
    const struct swap_allocation *allocation = swap_allocation_at(address);
    const struct mapping *mapping = allocation ? NULL : swap_mapping_at(address);
    const struct block *block = block_at(address);
    if (allocation)
        describe_allocation(allocation, address, found);
    else if (mapping)
        describe_mapping(mapping, found);
    if (block) {
        found->block_id = block->id;
        found->device = block->properties.location.id;
    }
    pthread_mutex_unlock(&residency_lock);
    return found->bytes != 0; /* a slab has free parts */
}
