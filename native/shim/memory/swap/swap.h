/* The mode "swap" from the inside. Everything here is under residency_lock.
 *
 * Device memory is made of blocks: physical memory of the virtual-memory interface, mapped at addresses that stay. Evicting
 * a block copies it to the host, unmaps it and gives the physical memory back; restoring makes new one, maps that at the
 * same addresses and copies it in. A block that the program makes while it must not run is not on the device before its
 * turn, and then has nothing to copy. */
#ifndef GPUSHARE_SWAP_H
#define GPUSHARE_SWAP_H

#include "memory/memory.h"

#pragma GCC visibility push(hidden)

#define GRANULE_BYTES (2ull << 20)    /* the driver's, of every device so far */
#define MAX_BLOCK_BYTES (64ull << 20) /* blocks of a large allocation: what leaves here makes room for others soon */
#define MAX_ACCESSES 4

/* What a block holds while it is away. */
struct host_buffer {
    void *address;
    uint64_t bytes;
    CUcontext pinned; /* by this one; NULL: it is ordinary memory */
    struct host_buffer *next;
};

struct mapping {
    CUdeviceptr address;
    uint64_t bytes, offset;
    bool is_mapped; /* at this moment */
    CUmemAccessDesc access[MAX_ACCESSES];
    int access_count;
    struct block *block;
    struct mapping *next;
};

struct block {
    uint64_t bytes;
    uint64_t charged_bytes; /* of them, in the client's account */
    CUcontext context;      /* in which it is copied; NULL: it has ended */
    CUmemAllocationProp properties;
    CUmemGenericAllocationHandle handle; /* 0: none on the device */
    bool is_resident;                    /* on the device, mapped, with its contents */
    struct host_buffer *copy;            /* NULL: nothing to bring back */
    bool has_failed;                     /* a copy of it that is under way has failed */
    struct mapping *mappings;
    uint64_t program_handle; /* the program's handle, 0: none */
    uint32_t program_references;
    bool is_unmovable; /* cannot be moved */
    struct block *next, *previous;
};

/* An allocation of cuMemAlloc, or a chunk of GRAIN bytes for many small ones. */
struct swap_allocation {
    CUdeviceptr base;
    uint64_t bytes;
    CUcontext context;
    struct block **blocks;
    uint64_t count;
    struct slab *slab;
};

/* --- swap_blocks.c --- */

extern struct block *swap_blocks;
uint64_t swap_capacity(void);   /* bytes that a client of this mode can have */
bool swap_fits(uint64_t bytes); /* could it be on the device together with all that there is already? */
/* `wanted`: bytes that are to come in all, this block's among them. */
CUresult block_create(uint64_t bytes, const CUmemAllocationProp *properties, uint64_t wanted, struct block **made);
void block_destroy(struct block *block); /* if nothing names or maps it any more */
void block_charge(struct block *block, int64_t bytes);
CUresult block_map(struct block *block, CUdeviceptr address, uint64_t bytes, uint64_t offset, struct mapping **made);
CUresult block_unmap(struct mapping *mapping);
CUresult mapping_access(struct mapping *mapping, const CUmemAccessDesc *access, size_t count);
bool block_page_in(struct block *block, CUresult *result); /* on to the device, mapped, without contents */
void block_loaded(struct block *block);                    /* and these have come too */
void block_page_out(
    struct block *block); /* off the device; `here` afterwards: it cannot be unmapped, and is as it was */
bool swap_is_movable(const struct block *block);
uint64_t swap_missing_bytes(void);

/* --- swap_spans.c, swap_chunks.c: cuMemAlloc and cuMemFree --- */

CUresult swap_allocation_create(uint64_t bytes, struct swap_allocation **made);
CUresult swap_allocation_destroy(struct swap_allocation *allocation);
struct swap_allocation *swap_allocation_at(CUdeviceptr address);       /* NULL: there is none */
struct swap_allocation *swap_allocation_of_context(CUcontext context); /* one of them; NULL: there is none */
void swap_allocations_after_fork(void);
CUresult slab_allocate(uint64_t bytes, CUdeviceptr *address, struct swap_allocation **allocation);
CUresult slab_free(struct swap_allocation *allocation, CUdeviceptr address, uint64_t bytes);
void slab_find(const struct swap_allocation *allocation, CUdeviceptr address, CUdeviceptr *base, size_t *bytes);
void slab_discard(struct swap_allocation *allocation);
void slabs_after_fork(void);

/* --- swap_move.c --- */

bool swap_evict(uint64_t target, uint64_t now, uint64_t *next);
bool swap_restore(uint32_t word);
uint64_t swap_prefetch(uint64_t max_bytes, uint64_t now);

/* --- swap_copy.c: contents on their way --- */

/* Begins with the contents of a block, to `copy` or from it; false: none of that is under way, nor will be. Once they have
 * arrived the block goes off the device, or has come. */
bool copy_begin(struct transfer_stream *stream, struct block *block, bool out);
uint64_t finish_copies(void); /* waits for all; bytes of blocks that have arrived since the last time */
void copies_drop_context(CUcontext context);
void copies_after_fork(void);

/* --- swap_host.c --- */

struct host_buffer *host_buffer_alloc(uint64_t bytes,
                                      CUcontext context); /* which is current; NULL: there is no host memory */
void host_buffer_free(struct host_buffer *host);
struct host_buffer *
host_buffer_alloc_staging(uint64_t bytes); /* beside the budget; ordinary memory if it cannot be pinned */
void host_buffer_pin(struct host_buffer *stage, CUcontext context);
void host_buffers_drop_context(CUcontext context); /* what it had pinned and no block uses */
void host_buffer_unpinned(struct host_buffer *buffer);
void host_buffers_after_fork(void);
void swap_blocks_after_fork(void);
void swap_vmm_after_fork(void);

#pragma GCC visibility pop

#endif
