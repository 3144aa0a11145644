/* Allocations of the mode "swap": a range of addresses each, filled with blocks; found again by any address in them. */
#include "swap.h"

#include <stdlib.h>
#include <string.h>

static struct {
    struct span **spans; /* by address */
    uint64_t count, room;
} table;

static uint64_t above(CUdeviceptr address) {
    uint64_t low = 0, high = table.count;
    while (low < high) {
        uint64_t middle = (low + high) / 2;
        if (table.spans[middle]->base <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct span *around(CUdeviceptr address) {
    uint64_t at = above(address);
    return at && address - table.spans[at - 1]->base < table.spans[at - 1]->bytes ? table.spans[at - 1] : NULL;
}

static bool enter(struct span *span) {
    if (table.count == table.room) {
        uint64_t room = table.room ? 2 * table.room : 64;
        struct span **grown = realloc(table.spans, room * sizeof *grown);
        if (!grown)
            return false;
        table.spans = grown;
        table.room = room;
    }
    uint64_t at = above(span->base);
    memmove(table.spans + at + 1, table.spans + at, (table.count - at) * sizeof *table.spans);
    table.spans[at] = span;
    table.count++;
    return true;
}

static void take_out(struct span *span) {
    uint64_t at = above(span->base) - 1;
    memmove(table.spans + at, table.spans + at + 1, (table.count - at - 1) * sizeof *table.spans);
    table.count--;
}

static CUresult fill(struct span *span, CUdevice device) {
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
    CUmemAccessDesc access = {.location = properties.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUresult result = CUDA_SUCCESS;
    for (uint64_t at = 0; at < span->bytes && result == CUDA_SUCCESS; at += PIECE) {
        uint64_t bytes = span->bytes - at < PIECE ? span->bytes - at : PIECE;
        struct mapping *mapping;
        struct block *block;
        if ((result = block_new(bytes, &properties, span->bytes - at, &block)) != CUDA_SUCCESS)
            break;
        result = block_map(block, span->base + at, bytes, 0, &mapping);
        if (result != CUDA_SUCCESS) {
            block_end(block);
            break;
        }
        span->blocks[span->count++] = block;
        result = mapping_access(mapping, &access, 1);
    }
    return result;
}

static void empty(struct span *span) {
    for (uint64_t i = 0; i < span->count; i++) {
        struct block *block = span->blocks[i];
        if (block->mappings && block_unmap(block->mappings) != CUDA_SUCCESS)
            log_once(LOG_INFO, "memory could not be unmapped: its block stays");
        block_end(block);
    }
    span->count = 0;
}

static void discard(struct span *span) {
    empty(span);
    REAL(cuMemAddressFree)(span->base, span->bytes);
    free(span->blocks);
    free(span);
}

CUresult span_new(uint64_t wanted, struct span **made) {
    uint64_t bytes = (wanted + GRAIN - 1) / GRAIN * GRAIN;
    CUdevice device;
    struct span *span = swap_fits(bytes) ? calloc(1, sizeof *span) : NULL;
    if (span)
        span->blocks = calloc((bytes + PIECE - 1) / PIECE, sizeof *span->blocks);
    if (!span || !span->blocks) {
        free(span);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    span->bytes = bytes;
    CUresult result = REAL(cuCtxGetDevice)(&device);
    REAL(cuCtxGetCurrent)(&span->context);
    if (result == CUDA_SUCCESS)
        result = REAL(cuMemAddressReserve)(&span->base, bytes, 0, 0, 0);
    if (result != CUDA_SUCCESS) {
        free(span->blocks);
        free(span);
        return result;
    }
    result = fill(span, device);
    if (result == CUDA_SUCCESS && !enter(span))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS) {
        discard(span);
        return result;
    }
    uint64_t left = wanted;
    for (uint64_t i = 0; i < span->count; i++) {
        uint64_t part = left < span->blocks[i]->bytes ? left : span->blocks[i]->bytes;
        block_count(span->blocks[i], (int64_t)part);
        left -= part;
    }
    *made = span;
    return result;
}

CUresult span_end(struct span *span) {
    take_out(span);
    discard(span);
    return CUDA_SUCCESS;
}

bool swap_around(CUdeviceptr address, CUdeviceptr *base, size_t *bytes, bool *here) {
    bool known = false;
    pthread_mutex_lock(&movement_lock);
    struct span *span = around(address);
    if (span) {
        *base = span->base;
        *bytes = span->bytes;
        *here = span->blocks[(address - span->base) / PIECE]->here;
        if (span->chunk)
            chunk_around(span, address, base, bytes);
        known = *bytes != 0;
    }
    pthread_mutex_unlock(&movement_lock);
    return known;
}

/* What a context's end takes with it. movement_lock is held. */
void swap_forget_context(CUcontext context) {
    for (uint64_t i = 0; i < table.count;) {
        struct span *span = table.spans[i];
        if (span->context != context) {
            i++;
            continue;
        }
        chunks_forget(span);
        span_end(span);
    }
    for (struct block *block = swap_first; block; block = block->next)
        if (block->context == context)
            block->context = NULL;
    copies_forget(context);
    host_forget(context);
}

void swap_after_fork(void) {
    table.spans = NULL; /* left to the parent's heap image, and so the blocks */
    table.count = table.room = 0;
    swap_first = NULL;
    chunks_after_fork();
    copies_after_fork();
    host_after_fork();
    swap_blocks_after_fork();
    swap_vmm_after_fork();
}
