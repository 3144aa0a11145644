/* The state of the simulated machine, shared by all its processes through one file.
 *
 * Every process maps the file. Each device has a robust mutex; whoever finds that the last holder died
 * repairs the sums from the tables, which are always written so that a half-done change is a valid state. A
 * process takes one slot; the slot of a dead process (by pid and start time) is emptied by whoever notices
 * first. Times are CLOCK_MONOTONIC ns.
 */
#ifndef SIMCUDA_WORLD_H
#define SIMCUDA_WORLD_H

#include <pthread.h>
#include <stdint.h>

#include "params.h"

#define WORLD_MAGIC (0x6d69736475630000ull + SIM_LAYOUT)
#define WORLD_SLOTS 128
#define WORLD_RANGES 16384
#define WORLD_SHARED 1024
#define WORLD_BLOCK (2ull << 20) /* unit of migration and eviction, bytes */

/* One process. `pid` is written last when taking and cleared last when emptying. */
struct world_process {
    int32_t pid;
    uint64_t start_time; /* clock ticks after boot, from /proc/PID/stat */
};

/* One process on one device. */
struct world_share {
    uint64_t plain;     /* bytes of ordinary allocations and contexts */
    uint64_t consumed;  /* device time had so far */
    uint64_t need;      /* consumed value at which all modelled work is done */
    uint32_t active;    /* streams with work on the device */
    uint32_t unbounded; /* of those, the ones whose end isn't known yet */
};

/* One allocation of unified memory. `owner` is written last when taking. */
struct world_range {
    uint32_t owner;     /* slot + 1; 0: free entry */
    uint64_t resident;  /* bytes on the device */
    uint64_t populated; /* order in which ranges got their pages: the smallest is evicted first */
};

/* Ordinary memory in a file that several processes may have. `inode` is written last when taking. */
struct world_shared {
    uint64_t inode; /* 0: free entry */
    uint64_t bytes;
    uint64_t holders[WORLD_SLOTS / 64]; /* a bit per slot */
};

struct world_device {
    pthread_mutex_t lock;
    uint64_t used; /* sum of plain, shared and resident */
    uint64_t populations;
    uint64_t link_free[2]; /* time from which nothing is laid out in a direction of the link */
    uint64_t evicted;      /* bytes, ever */
    uint32_t range_end;    /* entries from here on were never used */
    int32_t turn;          /* slot whose time slice it is, or -1 */
    uint64_t turn_start;   /* since when `consumed` of that slot is not up to date */
    uint64_t turn_end;
    uint32_t turn_waiters, turn_changes; /* futex */
    struct world_share share[WORLD_SLOTS];
    struct world_range range[WORLD_RANGES];
    uint32_t shared_end;
    struct world_shared shared[WORLD_SHARED];
};

struct world {
    uint64_t magic;
    uint64_t bytes;       /* of the whole file: guards against a different build's layout */
    pthread_mutex_t lock; /* process table; taken before a device's lock */
    struct sim_params params;
    struct world_process process[WORLD_SLOTS];
    struct world_device device[SIM_MAX_DEVICES];
};

/* Maps the world named in params (creating it if there is none) and takes a slot. Returns the slot or -1 and
 * one line in `problem`. *params is replaced by the world's own: the device is what its first user said it
 * is. */
int world_enter(struct world **world, struct sim_params *params, char *problem, size_t problem_size);

/* Locks; after a holder's death repairs. */
void world_lock_device(struct world *world, int device);
void world_unlock_device(struct world *world, int device);

/* Empties the slots of processes that are gone. At most every few milliseconds unless `now` is set. */
void world_reap(struct world *world, int now);

/* Whether there is no such process any more. */
int world_is_gone(const struct world_process *process);

/* world_memory.c: all take the device's lock themselves. */

/* Charges bytes of ordinary memory, evicting unified memory if need be (*evicted: how many bytes). -1: no
 * room. */
int world_charge(struct world *world, int device, int slot, uint64_t bytes, uint64_t *evicted);
void world_discharge(struct world *world, int device, int slot, uint64_t bytes);
void world_used(struct world *world, int device, uint64_t *used, uint64_t *total);

/* A new range of unified memory with nothing resident; returns its index or -1. */
int world_range_open(struct world *world, int device, int slot);
void world_range_close(struct world *world, int device, int range);
uint64_t world_resident(struct world *world, int device, int range);
/* Makes `bytes` more of the range resident, evicting others (then itself). Returns what fitted. */
uint64_t world_populate(struct world *world, int device, int range, uint64_t bytes, uint64_t *evicted);
/* Takes `bytes` of the range off the device. */
void world_depopulate(struct world *world, int device, int range, uint64_t bytes);

/* world_shared.c: bytes charged to a slot become those of a file. -1: the table is full. */
int world_shared_open(struct world *world, int device, int slot, uint64_t inode, uint64_t bytes);
/* One more process has the file. -1: it is none of them. */
int world_shared_join(struct world *world, int slot, uint64_t inode, int *device, uint64_t *bytes);
/* The last one to leave frees the memory. */
void world_shared_leave(struct world *world, int device, int slot, uint64_t inode);
/* With the device locked; the caller mends `used`. */
void world_shared_forget(struct world_device *device, int slot);
uint64_t world_shared_bytes(const struct world_device *device);

enum link_direction { LINK_TO_DEVICE, LINK_TO_HOST };
/* Lays out `ns` on a direction of the link, not before `earliest`; returns when they begin. */
uint64_t world_link(struct world *world, int device, enum link_direction direction, uint64_t earliest, uint64_t ns);

/* turns.c: time on the device. A stream with work enters; between enter and leave the process takes part in
 * slicing. */

void turns_enter(struct world *world, int device, int slot);
void turns_leave(struct world *world, int device, int slot);
/* Device time the slot has consumed. */
uint64_t turns_consumed(struct world *world, int device, int slot);
/* Sleeps until the slot has consumed `target`. Returns the value seen then. Between two processes this takes
 * as long as it takes. A target no more than `slack_ns` ahead is not waited for if the device is the
 * caller's. `more`: work is queued behind, so the process keeps the rest of its slice. */
uint64_t turns_wait(struct world *world, int device, int slot, uint64_t target, uint64_t slack_ns, int more);
/* For world_reap, with the device locked. */
void turns_forget(struct world_device *device, int slot, uint64_t now);

uint64_t sim_now(void);
void sim_sleep_until(uint64_t deadline_ns);

#endif
