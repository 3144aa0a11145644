/* The mode "swap" from the inside. Everything here is under residency_lock.
 *
 * Device memory consists of blocks: physical memory of the virtual-memory interface, mapped at addresses that stay.
 * Evicting a block copies it to the host, unmaps it and releases the physical memory. Restoring makes new physical
 * memory, maps it at the same addresses and copies the contents in. A block that the program makes outside of its
 * turn gets its physical memory with the turn, and then has nothing to copy. */
#ifndef GPUSHARE_BLOCKS_H
#define GPUSHARE_BLOCKS_H

#include "memory/freed/freed.h"
#include "memory/swap/host/host.h"
#include "memory/swap/swap.h"

#pragma GCC visibility push(hidden)

/* A block of a large allocation has at most this size, so that evicted blocks soon make room for other clients. */
#define MAX_BLOCK_BYTES (64ull << 20)
#define SLAB_UNIT_BYTES 512ull      /* of small allocations */
#define FIRST_BLOCK_ID (1ull << 62) /* above all numbers of the driver */
/* Numbers for each block: one for each small allocation of a slab. */
#define BLOCK_IDS (GRANULE_BYTES / SLAB_UNIT_BYTES)

struct mapping {
    CUdeviceptr address;
    uint64_t bytes, offset;
    bool is_mapped, has_access; /* at this moment */
    CUmemAccessDesc access[MAX_ACCESSES];
    int access_count;
    struct block *block;
    struct mapping *next;
};

struct block {
    uint64_t id; /* never used again */
    uint64_t bytes;
    uint64_t charged_bytes; /* of `bytes`, in the client's account */
    CUcontext context;      /* in which it is copied; NULL: none is known, so it stays */
    CUmemAllocationProp properties;
    CUmemGenericAllocationHandle handle; /* 0: no physical memory */
    bool is_resident;                    /* mapped, with its contents */
    bool was_resident;                   /* otherwise no memory has been made for it yet */
    struct host_buffer *copy;            /* NULL: nothing to copy in */
    bool has_failed;                     /* a copy of it that is under way has failed */
    struct mapping *mappings;
    uint64_t program_handle; /* of the virtual-memory interface; 0: none */
    uint32_t program_references;
    bool is_unmovable;
    struct block *next, *previous;
};

/* An allocation of cuMemAlloc, or a slab of GRANULE_BYTES for many small ones. */
struct swap_allocation {
    CUdeviceptr base;
    uint64_t bytes;
    CUcontext context;
    struct block **blocks;
    uint64_t count;
    struct slab *slab;
};

/* --- block.c --- */

extern struct block *swap_blocks;
uint64_t swap_capacity(void); /* bytes that a client of this mode can have on all devices */
/* A new block could be on its device together with all present blocks. Logs if it could not. */
bool swap_fits(uint64_t bytes, const CUmemAllocationProp *properties);
/* `charged_bytes`: those that the account has of this block and of all later ones of the caller. */
CUresult block_create(uint64_t bytes, const CUmemAllocationProp *properties, uint64_t charged_bytes,
                      struct block **made);
void block_destroy(struct block *block); /* unless the program names or maps it */
int block_device(const struct block *block);
void block_charge(struct block *block, int64_t bytes);
void block_pin(struct block *block); /* it stays on the device until its end */
void block_set_context(struct block *block, CUcontext context);
CUresult block_map(struct block *block, CUdeviceptr address, uint64_t bytes, uint64_t offset, struct mapping **made);
CUresult block_unmap(struct mapping *mapping);
CUresult mapping_access(struct mapping *mapping, const CUmemAccessDesc *access, size_t count);
bool block_map_all(struct block *block); /* gets physical memory, mapped, perhaps without access */
bool block_begin_restore(struct block *block, CUresult *result); /* gets physical memory, mapped, without contents */
void block_end_restore(struct block *block);                     /* the contents are there too */
void block_evict(struct block *block); /* still resident afterwards: it could not be unmapped, and is as before */
bool swap_is_movable(const struct block *block);
uint64_t swap_missing_bytes(void);
uint64_t swap_missing_bytes_of(int device);
uint64_t swap_evicted_bytes(void); /* the missing bytes that were on a device before */
void swap_blocks_after_fork(void);

/* --- allocation.c, slab.c: cuMemAlloc and cuMemFree --- */

CUresult swap_allocation_create(uint64_t charged_bytes, struct swap_allocation **made);
CUresult swap_allocation_destroy(struct swap_allocation *allocation);
struct swap_allocation *swap_allocation_at(CUdeviceptr address);       /* NULL: there is none */
bool swap_allocation_within(CUdeviceptr address, uint64_t bytes);      /* a part of one is there, or the first byte */
struct swap_allocation *swap_allocation_of_context(CUcontext context); /* one of them; NULL: there is none */
void swap_allocations_after_fork(void);
CUresult slab_allocate(uint64_t bytes, CUdeviceptr *address, struct swap_allocation **allocation);
CUresult slab_free(struct swap_allocation *allocation, CUdeviceptr address, uint64_t bytes);
void slab_find(const struct swap_allocation *allocation, CUdeviceptr address, CUdeviceptr *base, uint64_t *bytes);
void slab_discard(struct swap_allocation *allocation);
void slabs_after_fork(void);

/* --- peers.c --- */

/* Find the access that an allocation on this device begins with, and return the number of devices. */
size_t peers_access(CUdevice home, CUmemAccessDesc access[MAX_DEVICES]);
void peers_drop_context(CUcontext context);
void peers_after_fork(void);

/* --- vmm.c: the program's own mappings --- */

struct mapping *swap_mapping_at(CUdeviceptr address); /* NULL: there is none */
void swap_vmm_after_fork(void);

/* --- runs.c: several blocks at a time, whose neighbouring mappings change in one call --- */

#define RUN_BLOCKS 64
#define MAX_RUN_BYTES (4 * MAX_BLOCK_BYTES) /* more would leave the link without copies for too long */

bool run_continues(const struct block *last, const struct block *next); /* they are neighbours */
void runs_evict(struct block **blocks, int count);                      /* as block_evict for each */
/* block_begin_restore must follow for each, and does the rest. */
void runs_begin_restore(struct block **blocks, int count);

/* --- migrate.c --- */

bool swap_evict(const uint64_t surplus[MAX_DEVICES], uint64_t now, uint64_t *next);
bool swap_is_mapped(void);
CUresult swap_restore(uint32_t word, struct room_needed *missing);
uint64_t swap_prefetch(const uint64_t max_bytes[MAX_DEVICES], uint64_t now);

/* --- copy.c --- */

/* Begin to copy the contents of a block to `copy` or from it. False: no copy of it is under way. When all copies
 * have finished, the block is evicted or resident. */
bool copy_begin(struct transfer_stream *stream, struct block *block, bool out);
uint64_t finish_copies(void); /* waits for all copies; the bytes of blocks that have finished since the last call */
void copies_drop_context(CUcontext context);
void copies_after_fork(void);

#pragma GCC visibility pop

#endif
