/* The mode "swap" from the inside. Everything here is under movement_lock.
 *
 * Device memory is made of blocks: physical memory of the virtual-memory interface, mapped at addresses that stay. Evicting
 * a block copies it to the host, unmaps it and gives the physical memory back; restoring makes new one, maps that at the
 * same addresses and copies it in. A block that the program makes while it must not run is not on the device before its
 * turn, and then has nothing to copy. */
#ifndef GPUSHARE_SWAP_H
#define GPUSHARE_SWAP_H

#include "shim.h"

#define GRAIN (2ull << 20)  /* the driver's, of every device so far */
#define PIECE (64ull << 20) /* blocks of a large allocation: what leaves here makes room for others soon */
#define MOST_ACCESSES 4

/* What a block holds while it is away. */
struct host {
    void *at;
    uint64_t bytes;
    CUcontext pinned; /* by this one; NULL: it is ordinary memory */
    struct host *next;
};

struct mapping {
    CUdeviceptr address;
    uint64_t bytes, offset;
    bool mapped; /* at this moment */
    CUmemAccessDesc access[MOST_ACCESSES];
    int accesses;
    struct block *block;
    struct mapping *next;
};

struct block {
    uint64_t bytes;
    uint64_t counted;  /* of them, in the client's account */
    CUcontext context; /* in which it is copied; NULL: it has ended */
    CUmemAllocationProp properties;
    CUmemGenericAllocationHandle handle; /* 0: none on the device */
    bool here;                           /* on the device, mapped, with its contents */
    struct host *copy;                   /* NULL: nothing to bring back */
    bool broken;                         /* a copy of it that is under way has failed */
    struct mapping *mappings;
    uint64_t name; /* the program's handle, 0: none */
    uint32_t names;
    bool fixed; /* cannot be moved */
    struct block *next, *previous;
};

/* An allocation of cuMemAlloc, or a chunk of GRAIN bytes for many small ones. */
struct span {
    CUdeviceptr base;
    uint64_t bytes;
    CUcontext context;
    struct block **blocks;
    uint64_t count;
    struct chunk *chunk;
};

/* --- swap_blocks.c --- */

extern struct block *swap_first;
uint64_t swap_most(void);       /* bytes that a client of this mode can have */
bool swap_fits(uint64_t bytes); /* could it be on the device together with all that there is already? */
/* `wanted`: bytes that are to come in all, this block's among them. */
CUresult block_new(uint64_t bytes, const CUmemAllocationProp *properties, uint64_t wanted, struct block **made);
void block_end(struct block *block); /* if nothing names or maps it any more */
void block_count(struct block *block, int64_t bytes);
CUresult block_map(struct block *block, CUdeviceptr address, uint64_t bytes, uint64_t offset, struct mapping **made);
CUresult block_unmap(struct mapping *mapping);
CUresult mapping_access(struct mapping *mapping, const CUmemAccessDesc *access, size_t count);
bool block_come(struct block *block, CUresult *result); /* on to the device, mapped, without contents */
void block_came(struct block *block);                   /* and these have come too */
void block_go(struct block *block); /* off the device; `here` afterwards: it cannot be unmapped, and is as it was */
bool swap_is_movable(const struct block *block);
uint64_t swap_absent(void);

/* --- swap_spans.c, swap_chunks.c: cuMemAlloc and cuMemFree --- */

CUresult span_new(uint64_t bytes, struct span **made);
CUresult span_end(struct span *span);
CUresult chunk_allocate(uint64_t bytes, CUdeviceptr *address, struct span **span);
CUresult chunk_free(struct span *span, CUdeviceptr address, uint64_t bytes);
void chunk_around(const struct span *span, CUdeviceptr address, CUdeviceptr *base, size_t *bytes);
void chunks_forget(struct span *span);
void chunks_after_fork(void);

/* --- swap_move.c --- */

bool swap_evict(uint64_t target, uint64_t now, uint64_t *next);
bool swap_restore(uint32_t word);
uint64_t swap_ahead(uint64_t most, uint64_t now);

/* --- swap_copy.c: contents on their way --- */

/* Begins with the contents of a block, to `copy` or from it; false: none of that is under way, nor will be. Once they have
 * arrived the block goes off the device, or has come. */
bool copy_begin(struct lane *lane, struct block *block, bool out);
uint64_t copies_end(void); /* waits for all; bytes of blocks that have arrived since the last time */
void copies_forget(CUcontext context);
void copies_after_fork(void);

/* --- swap_host.c --- */

struct host *host_get(uint64_t bytes, CUcontext context); /* which is current; NULL: there is no host memory */
void host_put(struct host *host);
struct host *host_stage(uint64_t bytes); /* beside the budget; ordinary memory if it cannot be pinned */
void host_pin(struct host *stage, CUcontext context);
void host_forget(CUcontext context);
void host_after_fork(void);
void swap_blocks_after_fork(void);
void swap_vmm_after_fork(void);

#endif
