/* Allocations of the mode "swap": a range of addresses each, filled with blocks; found by any address in them. */
#include "memory/swap/blocks.h"

#include <stdlib.h>
#include <string.h>

static struct {
    struct swap_allocation **allocations; /* in the order of their addresses */
    uint64_t count, room;
} table;

static uint64_t above(CUdeviceptr address) {
    uint64_t low = 0, high = table.count;
    while (low < high) {
        uint64_t middle = (low + high) / 2;
        if (table.allocations[middle]->base <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct swap_allocation *swap_allocation_at(CUdeviceptr address) {
    uint64_t at = above(address);
    return at && address - table.allocations[at - 1]->base < table.allocations[at - 1]->bytes
               ? table.allocations[at - 1]
               : NULL;
}

bool swap_allocation_within(CUdeviceptr address, uint64_t bytes) {
    uint64_t at = above(address);
    return swap_allocation_at(address) || (at < table.count && table.allocations[at]->base - address < bytes);
}

static bool enter(struct swap_allocation *allocation) {
    if (table.count == table.room) {
        uint64_t room = table.room ? 2 * table.room : 64;
        struct swap_allocation **grown = realloc(table.allocations, room * sizeof *grown);
        if (!grown)
            return false;
        table.allocations = grown;
        table.room = room;
    }
    uint64_t at = above(allocation->base);
    memmove(table.allocations + at + 1, table.allocations + at, (table.count - at) * sizeof *table.allocations);
    table.allocations[at] = allocation;
    table.count++;
    return true;
}

static void take_out(struct swap_allocation *allocation) {
    uint64_t at = above(allocation->base) - 1;
    memmove(table.allocations + at, table.allocations + at + 1, (table.count - at - 1) * sizeof *table.allocations);
    table.count--;
}

static CUresult fill(struct swap_allocation *allocation, const CUmemAllocationProp *properties,
                     uint64_t charged_bytes) {
    CUmemAccessDesc access[MAX_DEVICES];
    CUresult result = CUDA_SUCCESS;
    for (uint64_t at = 0; at < allocation->bytes && result == CUDA_SUCCESS; at += MAX_BLOCK_BYTES) {
        uint64_t bytes = allocation->bytes - at < MAX_BLOCK_BYTES ? allocation->bytes - at : MAX_BLOCK_BYTES;
        struct mapping *mapping;
        struct block *block;
        if ((result = block_create(bytes, properties, charged_bytes - at, &block)) != CUDA_SUCCESS)
            break;
        result = block_map(block, allocation->base + at, bytes, 0, &mapping);
        if (result != CUDA_SUCCESS) {
            block_destroy(block);
            break;
        }
        allocation->blocks[allocation->count++] = block;
        result = mapping_access(mapping, access,
                                peers_access(properties->location.id, access)); /* the lock was released meanwhile */
    }
    return result;
}

static void empty(struct swap_allocation *allocation) {
    for (uint64_t i = 0; i < allocation->count; i++) {
        struct block *block = allocation->blocks[i];
        if (block->mappings && block_unmap(block->mappings) != CUDA_SUCCESS)
            log_once(LOG_INFO, "could not unmap memory, so its block stays");
        block_destroy(block);
    }
    allocation->count = 0;
}

static void discard(struct swap_allocation *allocation) {
    empty(allocation);
    REAL(cuMemAddressFree)(allocation->base, allocation->bytes);
    free(allocation->blocks);
    free(allocation);
}

CUresult swap_allocation_create(uint64_t charged_bytes, struct swap_allocation **made) {
    uint64_t bytes = (charged_bytes + GRANULE_BYTES - 1) / GRANULE_BYTES * GRANULE_BYTES;
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUresult result = REAL(cuCtxGetDevice)(&properties.location.id);
    if (result != CUDA_SUCCESS)
        return result;
    struct swap_allocation *allocation = swap_fits(bytes, &properties) ? calloc(1, sizeof *allocation) : NULL;
    if (allocation)
        allocation->blocks = calloc((bytes + MAX_BLOCK_BYTES - 1) / MAX_BLOCK_BYTES, sizeof *allocation->blocks);
    if (!allocation || !allocation->blocks) {
        free(allocation);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    allocation->bytes = bytes;
    allocation->context = memory_context();
    result = REAL(cuMemAddressReserve)(&allocation->base, bytes, 0, 0, 0);
    if (result != CUDA_SUCCESS) {
        free(allocation->blocks);
        free(allocation);
        return result;
    }
    result = fill(allocation, &properties, charged_bytes);
    if (result == CUDA_SUCCESS && !enter(allocation))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS) {
        discard(allocation);
        return result;
    }
    *made = allocation;
    return result;
}

CUresult swap_allocation_destroy(struct swap_allocation *allocation) {
    take_out(allocation);
    discard(allocation);
    return CUDA_SUCCESS;
}

struct swap_allocation *swap_allocation_of_context(CUcontext context) {
    for (uint64_t i = 0; i < table.count; i++)
        if (table.allocations[i]->context == context)
            return table.allocations[i];
    return NULL;
}

void swap_allocations_after_fork(void) {
    table.allocations = NULL; /* left to the parent's heap image, and so are the blocks */
    table.count = table.room = 0;
}
