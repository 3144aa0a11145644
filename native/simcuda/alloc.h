/* Memory the program got from this driver, found by any address inside it. */
#ifndef SIMCUDA_ALLOC_H
#define SIMCUDA_ALLOC_H

#include "sim.h"

#define MAPPED_FROM 65536 /* bytes; smaller ones come from the C library; unified memory has at least so much */

enum sim_alloc_kind { ALLOC_PLAIN, ALLOC_MANAGED, ALLOC_HOST, ALLOC_REGISTERED, ALLOC_RESERVED, ALLOC_IMPORTED };

struct sim_mapping; /* vmm.h */

struct sim_alloc {
    uint64_t base, size; /* as the program asked */
    uint64_t mapped;     /* as mapped and charged */
    enum sim_alloc_kind kind;
    struct sim_context *context; /* NULL: none (a reserved range) */
    int device;
    uint64_t id;
    unsigned flags;
    struct sim_pool *pool; /* NULL: from none */
    _Atomic uint32_t pins; /* commands at work on it */

    /* unified memory */
    int range;               /* in the machine */
    pthread_mutex_t lock;    /* what follows */
    uint8_t *place;          /* per MACHINE_BLOCK, enum sim_place */
    uint64_t local_resident; /* bytes according to place; others may have evicted some of them */
    uint64_t evict_cursor;
    int read_mostly, preferred_type, preferred_id, prefetch_type, prefetch_id;
    uint32_t accessed_by; /* bit per device, the CPU last */

    /* memory that other processes may have (allocator_shared.c) */
    int file;
    uint64_t inode; /* of the file; 0: none */
    int opened;     /* how often this process has opened it */

    /* a reserved range of addresses: what is mapped there, in address order; under alloc_lock */
    struct sim_mapping *mapping;
    size_t mappings, mapping_room;
};

CUresult alloc_new(struct sim_context *context, enum sim_alloc_kind kind, size_t bytes, unsigned flags,
                   struct sim_alloc **out);
/* Ordinary memory, charged to the pool. */
CUresult alloc_from_pool(struct sim_context *context, struct sim_pool *pool, size_t bytes, struct sim_alloc **out);
CUresult alloc_register(struct sim_context *context, void *host, size_t bytes, unsigned flags);
/* The allocation around an address, with a pin to be taken off by alloc_unpin; NULL if there is none. */
struct sim_alloc *alloc_pin(uint64_t address);
void alloc_unpin(struct sim_alloc *alloc);
/* Is [address, address + bytes) inside one allocation, and may the device use it? Pins it. */
struct sim_alloc *alloc_pin_range(uint64_t address, uint64_t bytes);
/* Takes it out of the table (waits for pins) and gives its memory back. */
CUresult alloc_free(uint64_t address, unsigned kinds);
void alloc_free_context(struct sim_context *context);
struct sim_context *alloc_context(uint64_t address, unsigned kinds);
/* A range of addresses without memory, at `hint` if that is free. */
CUresult alloc_reserve(uint64_t bytes, uint64_t alignment, uint64_t hint, CUdeviceptr *out);
/* allocator_shared.c: a file for an ordinary allocation, which others may open; and opening it. */
CUresult alloc_share(uint64_t address, int *file, uint64_t *inode);
CUresult alloc_open(struct sim_context *context, int file, CUdeviceptr *out);
CUresult alloc_close(uint64_t address);
int alloc_insert(struct sim_alloc *alloc);
/* The table's lock, and the allocation around an address while it is held. */
void alloc_lock(void);
void alloc_unlock(void);
struct sim_alloc *alloc_find(uint64_t address);
struct sim_alloc *alloc_of_inode(uint64_t inode);
/* The time that evicting others' pages takes; allocation of ordinary memory waits for it. */
void alloc_pay_eviction(int device, uint64_t evicted);

/* pool.c */
struct sim_pool *pool_current(int device);
int pool_take(struct sim_pool *pool, uint64_t bytes, uint64_t *evicted); /* -1: no room */
void pool_give(struct sim_pool *pool, uint64_t bytes);

/* residency.c: where the pages of unified memory are. */
enum sim_place { PLACE_NOWHERE, PLACE_HOST, PLACE_DEVICE }; /* nowhere: never touched, without memory */
enum sim_bring { BRING_FAULT, BRING_PREFETCH };             /* a fault heeds advice */

/* Bytes, by what had to be done with them. */
struct sim_movement {
    uint64_t moved;     /* came from the host */
    uint64_t populated; /* touched for the first time */
    uint64_t remote;    /* stay on the host, where advice wants them, and are reached there */
    uint64_t evicted;   /* lost by others */
};

/* Brings [offset, offset + bytes) to the device from its beginning on, until `limit` bytes are brought. Adds to
 * *movement; returns how far it got, so that the caller can spend the time and go on. */
uint64_t residency_bring(struct sim_alloc *alloc, uint64_t offset, uint64_t bytes, uint64_t limit, enum sim_bring how,
                         struct sim_movement *movement);
/* Puts the range on the host; returns the bytes moved, and *populated: what was nowhere. */
uint64_t residency_drop(struct sim_alloc *alloc, uint64_t offset, uint64_t bytes, uint64_t *populated);
void residency_open(struct sim_alloc *alloc);

#endif
