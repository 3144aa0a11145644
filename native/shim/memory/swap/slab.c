/* Small allocations of the mode "swap": many in a slab of 2 MiB, in units of 512 bytes. */
#include "memory/swap/blocks.h"

#include <stdlib.h>

#define SLAB_UNITS (GRANULE_BYTES / SLAB_UNIT_BYTES)
#define SLAB_WORDS (SLAB_UNITS / 64)

struct slab {
    uint64_t used[SLAB_WORDS], starts[SLAB_WORDS]; /* one bit per unit */
    uint64_t free, hint;
    struct swap_allocation *allocation;
    struct slab *next;
};

static struct slab *slabs;

static bool get(const uint64_t *bits, uint64_t at) {
    return bits[at / 64] >> at % 64 & 1;
}

static void set(uint64_t *bits, uint64_t at, bool value) {
    uint64_t bit = 1ull << at % 64;
    bits[at / 64] = value ? bits[at / 64] | bit : bits[at / 64] & ~bit;
}

/* Return the first of `units` free units in a row, SLAB_UNITS if there are none. */
static uint64_t find(const struct slab *slab, uint64_t units, uint64_t from) {
    for (uint64_t at = from, run = 0; at < SLAB_UNITS; at++) {
        if (at % 64 == 0 && slab->used[at / 64] == UINT64_MAX) {
            run = 0;
            at += 63;
            continue;
        }
        run = get(slab->used, at) ? 0 : run + 1;
        if (run == units)
            return at + 1 - units;
    }
    return SLAB_UNITS;
}

/* The account has only the bytes of the program's allocations, of which this is the first. */
static CUresult slab_create(uint64_t charged_bytes, struct slab **made) {
    struct slab *slab = calloc(1, sizeof *slab);
    if (!slab)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = swap_allocation_create(charged_bytes, &slab->allocation);
    if (result != CUDA_SUCCESS) {
        free(slab);
        return result;
    }
    slab->allocation->slab = slab;
    slab->free = SLAB_UNITS;
    slab->next = slabs;
    slabs = slab;
    *made = slab;
    return result;
}

CUresult slab_allocate(uint64_t bytes, CUdeviceptr *address, struct swap_allocation **allocation) {
    uint64_t units = (bytes + SLAB_UNIT_BYTES - 1) / SLAB_UNIT_BYTES, at = SLAB_UNITS;
    CUcontext context = memory_context();
    struct slab *slab;
    for (slab = slabs; slab; slab = slab->next) {
        if (slab->allocation->context != context || slab->free < units)
            continue;
        at = find(slab, units, slab->hint);
        if (at == SLAB_UNITS && slab->hint)
            at = find(slab, units, 0);
        if (at < SLAB_UNITS)
            break;
    }
    if (slab) {
        block_charge(slab->allocation->blocks[0], (int64_t)bytes);
    } else {
        CUresult result = slab_create(bytes, &slab);
        if (result != CUDA_SUCCESS)
            return result;
        at = 0;
    }
    for (uint64_t i = 0; i < units; i++)
        set(slab->used, at + i, true);
    set(slab->starts, at, true);
    slab->free -= units;
    slab->hint = at + units < SLAB_UNITS ? at + units : 0;
    *address = slab->allocation->base + at * SLAB_UNIT_BYTES;
    *allocation = slab->allocation;
    return CUDA_SUCCESS;
}

void slab_discard(struct swap_allocation *allocation) {
    for (struct slab **link = &slabs; allocation->slab && *link; link = &(*link)->next)
        if (*link == allocation->slab) {
            *link = allocation->slab->next;
            free(allocation->slab);
            allocation->slab = NULL;
            break;
        }
}

CUresult slab_free(struct swap_allocation *allocation, CUdeviceptr address, uint64_t bytes) {
    struct slab *slab = allocation->slab;
    uint64_t units = (bytes + SLAB_UNIT_BYTES - 1) / SLAB_UNIT_BYTES,
             at = (address - allocation->base) / SLAB_UNIT_BYTES;
    for (uint64_t i = 0; i < units; i++)
        set(slab->used, at + i, false);
    set(slab->starts, at, false);
    slab->free += units;
    slab->hint = at < slab->hint ? at : slab->hint;
    block_charge(allocation->blocks[0], -(int64_t)bytes);
    if (slab->free < SLAB_UNITS || (slabs == slab && !slab->next)) /* one empty slab is kept */
        return CUDA_SUCCESS;
    slab_discard(allocation);
    return swap_allocation_destroy(allocation);
}

void slab_find(const struct swap_allocation *allocation, CUdeviceptr address, CUdeviceptr *base, uint64_t *bytes) {
    const struct slab *slab = allocation->slab;
    uint64_t at = (address - allocation->base) / SLAB_UNIT_BYTES, end;
    *bytes = 0;
    if (!get(slab->used, at))
        return;
    while (!get(slab->starts, at))
        at--;
    for (end = at + 1; end < SLAB_UNITS && get(slab->used, end) && !get(slab->starts, end);)
        end++;
    *base = allocation->base + at * SLAB_UNIT_BYTES;
    *bytes = (end - at) * SLAB_UNIT_BYTES;
}

void slabs_after_fork(void) {
    slabs = NULL;
}
