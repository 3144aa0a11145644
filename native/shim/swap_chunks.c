/* Small allocations of the mode "swap": many in a chunk of 2 MiB, in units of 512 bytes. */
#include "swap.h"

#include <stdlib.h>

#define UNIT 512ull
#define UNITS (GRAIN / UNIT)
#define WORDS (UNITS / 64)

struct chunk {
    uint64_t used[WORDS], starts[WORDS]; /* a bit a unit */
    uint64_t free, hint;
    struct span *span;
    struct chunk *next;
};

static struct chunk *chunks;

static bool get(const uint64_t *bits, uint64_t at) {
    return bits[at / 64] >> at % 64 & 1;
}

static void set(uint64_t *bits, uint64_t at, bool value) {
    uint64_t bit = 1ull << at % 64;
    bits[at / 64] = value ? bits[at / 64] | bit : bits[at / 64] & ~bit;
}

/* The first of `units` free ones in a row, UNITS if there are none. */
static uint64_t find(const struct chunk *chunk, uint64_t units, uint64_t from) {
    for (uint64_t at = from, run = 0; at < UNITS; at++) {
        if (at % 64 == 0 && chunk->used[at / 64] == UINT64_MAX) {
            run = 0;
            at += 63;
            continue;
        }
        run = get(chunk->used, at) ? 0 : run + 1;
        if (run == units)
            return at + 1 - units;
    }
    return UNITS;
}

static CUresult chunk_new(struct chunk **made) {
    struct chunk *chunk = calloc(1, sizeof *chunk);
    if (!chunk)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = span_new(GRAIN, &chunk->span);
    if (result != CUDA_SUCCESS) {
        free(chunk);
        return result;
    }
    block_count(chunk->span->blocks[0], -(int64_t)GRAIN); /* each allocation counts by itself */
    chunk->span->chunk = chunk;
    chunk->free = UNITS;
    chunk->next = chunks;
    chunks = chunk;
    *made = chunk;
    return result;
}

CUresult chunk_allocate(uint64_t bytes, CUdeviceptr *address, struct span **span) {
    uint64_t units = (bytes + UNIT - 1) / UNIT, at = UNITS;
    CUcontext context = NULL;
    struct chunk *chunk;
    REAL(cuCtxGetCurrent)(&context);
    for (chunk = chunks; chunk; chunk = chunk->next) {
        if (chunk->span->context != context || chunk->free < units)
            continue;
        at = find(chunk, units, chunk->hint);
        if (at == UNITS && chunk->hint)
            at = find(chunk, units, 0);
        if (at < UNITS)
            break;
    }
    if (!chunk) {
        CUresult result = chunk_new(&chunk);
        if (result != CUDA_SUCCESS)
            return result;
        at = 0;
    }
    for (uint64_t i = 0; i < units; i++)
        set(chunk->used, at + i, true);
    set(chunk->starts, at, true);
    chunk->free -= units;
    chunk->hint = at + units < UNITS ? at + units : 0;
    block_count(chunk->span->blocks[0], (int64_t)bytes);
    *address = chunk->span->base + at * UNIT;
    *span = chunk->span;
    return CUDA_SUCCESS;
}

void chunks_forget(struct span *span) {
    for (struct chunk **link = &chunks; span->chunk && *link; link = &(*link)->next)
        if (*link == span->chunk) {
            *link = span->chunk->next;
            free(span->chunk);
            span->chunk = NULL;
            break;
        }
}

CUresult chunk_free(struct span *span, CUdeviceptr address, uint64_t bytes) {
    struct chunk *chunk = span->chunk;
    uint64_t units = (bytes + UNIT - 1) / UNIT, at = (address - span->base) / UNIT;
    for (uint64_t i = 0; i < units; i++)
        set(chunk->used, at + i, false);
    set(chunk->starts, at, false);
    chunk->free += units;
    chunk->hint = at < chunk->hint ? at : chunk->hint;
    block_count(span->blocks[0], -(int64_t)bytes);
    if (chunk->free < UNITS || (chunks == chunk && !chunk->next)) /* one is kept for the next */
        return CUDA_SUCCESS;
    chunks_forget(span);
    return span_end(span);
}

void chunk_around(const struct span *span, CUdeviceptr address, CUdeviceptr *base, size_t *bytes) {
    const struct chunk *chunk = span->chunk;
    uint64_t at = (address - span->base) / UNIT, end;
    *bytes = 0;
    if (!get(chunk->used, at))
        return;
    while (!get(chunk->starts, at))
        at--;
    for (end = at + 1; end < UNITS && get(chunk->used, end) && !get(chunk->starts, end);)
        end++;
    *base = span->base + at * UNIT;
    *bytes = (end - at) * UNIT;
}

void chunks_after_fork(void) {
    chunks = NULL;
}
