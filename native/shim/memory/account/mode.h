/* The memory modes behind one interface. docs/explanation/memory.md compares them. */
#ifndef GPUSHARE_MODE_H
#define GPUSHARE_MODE_H

#include "memory/account/account.h"

#pragma GCC visibility push(hidden)

struct memory_mode {
    const char *name;
    uint32_t number;        /* GPUSHARE_MEMORY_… */
    bool is_unmovable;      /* allocations stay on the device */
    bool evicts_after_turn; /* while the next client restores: restoring takes no more room than there is */
    /* Allocate bytes that are reserved already, and set the entry's kind. */
    CUresult (*allocate)(CUdeviceptr *address, size_t bytes, struct entry *entry);
    CUresult (*release)(const struct entry *entry);
    /* Agent, while nothing of this process runs: evict until at most `target` bytes are resident, or nothing movable
     * is. Does not block for long: false means another call at *next. NULL: the mode moves nothing. */
    bool (*evict)(uint64_t target, uint64_t now, uint64_t *next);
    /* All memory is mapped, and the calling thread is inside the gate, so that none is evicted. NULL: always. */
    bool (*is_mapped)(void);
    /* Restore what was evicted, and wait for it. `word` is the open gate for which this is done.
     * CUDA_ERROR_OUT_OF_MEMORY: the device has no room yet; any other error is the driver's. */
    CUresult (*restore)(uint32_t word);
    /* Agent, while the gate is closed: restore while the device has room and at most `max_bytes` are resident; 0 ends
     * that. Does not block for long: returns the time of the next call. NULL: nothing is ever evicted. */
    uint64_t (*prefetch)(uint64_t max_bytes, uint64_t now);
    uint64_t (*capacity)(void); /* bytes that a client can have at all; NULL: only the limit bounds them */
};

#pragma GCC visibility pop

#endif
