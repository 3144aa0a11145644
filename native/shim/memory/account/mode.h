/* The memory modes behind one interface. docs/explanation/memory.md compares them. */
#ifndef GPUSHARE_MODE_H
#define GPUSHARE_MODE_H

#include "memory/account/account.h"

#pragma GCC visibility push(hidden)

/* Bytes that need room on a device, by its place in `shim.devices`. */
struct room_needed {
    int device; /* ANY_DEVICE: on any device of the process */
    uint64_t bytes;
};

struct memory_mode {
    const char *name;
    uint32_t number;        /* GPUSHARE_MEMORY_… */
    bool is_unmovable;      /* allocations stay on the device */
    bool evicts_after_turn; /* while the next client restores: restoring takes no more room than there is */
    /* Allocate bytes that are reserved already, and set the entry's kind. */
    CUresult (*allocate)(CUdeviceptr *address, size_t bytes, struct entry *entry);
    /* Advise the driver on new memory, and request its pages. The ledger has the entry already, because the agent does
     * the same later for entries that must wait. NULL: the driver decides. */
    void (*populate)(const struct entry *entry);
    CUresult (*release)(const struct entry *entry);
    /* Agent, while nothing of this process runs: evict `surplus` bytes of each device, or as many as are movable. Does
     * not block for long: false means another call at *next. NULL: the mode moves nothing. */
    bool (*evict)(const uint64_t surplus[MAX_DEVICES], uint64_t now, uint64_t *next);
    /* All memory is mapped, and the calling thread is inside the gate, so that none is evicted. NULL: always. */
    bool (*is_mapped)(void);
    /* Restore what was evicted, and wait for it. `word` is the open gate for which this is done.
     * CUDA_ERROR_OUT_OF_MEMORY: a device has no room yet for *missing; any other error is the driver's. */
    CUresult (*restore)(uint32_t word, struct room_needed *missing);
    /* Agent, while the gate is closed: restore while a device has room and at most `max_bytes` are resident there; 0
     * ends that. Does not block for long: returns the time of the next call. NULL: nothing is ever evicted. */
    uint64_t (*prefetch)(const uint64_t max_bytes[MAX_DEVICES], uint64_t now);
    /* Agent, in a turn whose work goes on: evict what is resident above `limit` bytes, and restore evicted memory as far
     * as `limit` and the device have room. Does not block for long: returns the time of the next call. NULL: the mode
     * keeps all memory on the device in a turn, because its programs could not reach other memory. */
    uint64_t (*adjust)(uint64_t limit, uint64_t now);
    uint64_t (*capacity)(void); /* bytes that a client can have at all; NULL: only the limit bounds them */
};

#pragma GCC visibility pop

#endif
