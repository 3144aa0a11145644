/* Memory that the program has from this driver, found by any address inside it. */
#ifndef SIMCUDA_ALLOC_H
#define SIMCUDA_ALLOC_H

#include "base/sim.h"

#define MAPPED_FROM 65536 /* bytes; smaller ones come from the C library; unified memory has at least this size */

enum sim_alloc_kind { ALLOC_PLAIN, ALLOC_MANAGED, ALLOC_HOST, ALLOC_REGISTERED, ALLOC_RESERVED, ALLOC_IMPORTED };

struct sim_mapping; /* vmm.h */

struct sim_alloc {
    uint64_t base, size; /* as the program requested; a reserved range is rounded up */
    uint64_t mapped;     /* as mapped and charged */
    enum sim_alloc_kind kind;
    struct sim_context *context; /* NULL: none (a reserved range) */
    int device;
    uint64_t id;
    unsigned flags;
    struct sim_pool *pool; /* NULL: no pool */
    _Atomic uint32_t pins; /* commands that work on it */

    /* unified memory */
    int range;               /* in the machine */
    pthread_mutex_t lock;    /* for the fields below */
    uint8_t *place;          /* per MACHINE_BLOCK, enum sim_place */
    uint64_t local_resident; /* bytes according to place; other processes may have evicted some of them */
    uint64_t evict_cursor;
    int read_mostly, preferred_type, preferred_id, prefetch_type, prefetch_id;
    uint32_t accessed_by; /* bit per device, the CPU last */

    /* memory that other processes may open (allocator_shared.c) */
    int file;
    uint64_t inode; /* of the file; 0: none */
    int opened;     /* how often this process has opened it */

    /* a reserved range of addresses: the mappings in it, in address order; under alloc_lock */
    struct sim_mapping *mapping;
    size_t mappings, mapping_room;
    uint64_t reserved; /* bytes that the program requested */
};

/* Return whether the memory moves by pages: unified memory of a device with concurrent managed access. Unified
 * memory of other devices cannot exceed the device (CUDA programming guide, "Unified Memory on Windows or devices
 * with compute capability 5.x"). */
static inline int alloc_is_paged(const struct sim_alloc *alloc) {
    return alloc->kind == ALLOC_MANAGED && sim.params.device[alloc->device].concurrent_managed_access;
}

CUresult alloc_new(struct sim_context *context, enum sim_alloc_kind kind, size_t bytes, unsigned flags,
                   struct sim_alloc **out);
/* Allocate ordinary memory and charge it to the pool. */
CUresult alloc_from_pool(struct sim_context *context, struct sim_pool *pool, size_t bytes, struct sim_alloc **out);
CUresult alloc_register(struct sim_context *context, void *host, size_t bytes, unsigned flags);
/* Return the allocation around an address, with a pin that alloc_unpin removes; NULL if there is none. */
struct sim_alloc *alloc_pin(uint64_t address);
void alloc_unpin(struct sim_alloc *alloc);
/* Return the allocation that holds [address, address + bytes) if some device may use it, with a pin. */
struct sim_alloc *alloc_pin_range(uint64_t address, uint64_t bytes);
/* Take the allocation out of the table after its pins, and release its memory. */
CUresult alloc_free(uint64_t address, unsigned kinds);
void alloc_free_context(struct sim_context *context);
struct sim_context *alloc_context(uint64_t address, unsigned kinds);
/* Reserve a range of addresses without memory, at `hint` if that is free. */
CUresult alloc_reserve(uint64_t bytes, uint64_t alignment, uint64_t hint, CUdeviceptr *out);
/* allocator_shared.c: make the file of an ordinary allocation, which other processes may open; open such a file. */
CUresult alloc_share(uint64_t address, int *file, uint64_t *inode);
CUresult alloc_open(struct sim_context *context, int file, CUdeviceptr *out);
CUresult alloc_close(uint64_t address);

/* alloc_table.c */
int alloc_insert(struct sim_alloc *alloc);
/* Lock the table; return the allocation around an address while it is locked. */
void alloc_lock(void);
void alloc_unlock(void);
struct sim_alloc *alloc_find(uint64_t address);
struct sim_alloc *alloc_of_inode(uint64_t inode);
int alloc_exists(unsigned kinds);                  /* memory of one of the kinds (bits); locks the table */
int alloc_overlaps(uint64_t base, uint64_t bytes); /* another allocation has a part of these addresses */
/* Take the allocation that begins at the address, if its kind is one of `kinds` (bits), or one allocation of the
 * context, out of the table. NULL: there is none. */
struct sim_alloc *alloc_take(uint64_t address, unsigned kinds);
struct sim_alloc *alloc_take_of_context(const struct sim_context *context);

/* peers.c */
void peers_discard(const struct sim_context *ended); /* sim.lock is held */
/* Return whether a launch in the context may use the pinned memory. */
int peers_allow(struct sim_context *context, const struct sim_alloc *alloc, uint64_t address, uint64_t bytes);

/* pool.c */
int pool_is_valid(CUmemoryPool pool);
struct sim_pool *pool_current(int device);
int pool_device(const struct sim_pool *pool);
int pool_is_accessible(const struct sim_pool *pool, int device);
int pool_take(struct sim_pool *pool, uint64_t bytes, uint64_t *evicted); /* -1: no room */
void pool_give(struct sim_pool *pool, uint64_t bytes);

/* residency.c: the place of the pages of unified memory. */
enum sim_place { PLACE_NOWHERE, PLACE_HOST, PLACE_DEVICE }; /* nowhere: never touched, without memory */
enum sim_bring { BRING_FAULT, BRING_PREFETCH };             /* a fault follows advice */

/* Bytes, by the work that they needed. */
struct sim_movement {
    uint64_t moved;     /* came from the host */
    uint64_t populated; /* touched for the first time */
    uint64_t remote;    /* stay on the host because of advice, and are accessed there */
    uint64_t evicted;   /* evicted from other ranges */
};

/* Bring [offset, offset + bytes) to the device from its beginning on, until `limit` bytes are there. Add to
 * *movement; return how far it got, so that the caller can spend the time and continue. */
uint64_t residency_bring(struct sim_alloc *alloc, uint64_t offset, uint64_t bytes, uint64_t limit, enum sim_bring how,
                         struct sim_movement *movement);
/* Put the range on the host; return the bytes moved, and in *populated the bytes that had no memory. */
uint64_t residency_drop(struct sim_alloc *alloc, uint64_t offset, uint64_t bytes, uint64_t *populated);
void residency_open(struct sim_alloc *alloc);

#endif
