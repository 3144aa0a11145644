/* The state of the simulated machine, shared by all its processes through one file.
 *
 * Every process maps the file. Each device has a robust mutex. A process that finds that the last holder has died
 * repairs the sums from the tables, which are always written so that a half-done change is a valid state. A process
 * takes one slot. The first process that notices a dead one, by pid and start time, empties its slot. Times are
 * CLOCK_MONOTONIC ns. */
#ifndef SIMCUDA_MACHINE_H
#define SIMCUDA_MACHINE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "base/params.h"

#define MACHINE_MAGIC (0x6d69736475630000ull + SIM_LAYOUT)
#define MACHINE_SLOTS 128
#define MACHINE_RANGES 16384
#define MACHINE_SHARED 1024
#define MACHINE_BLOCK (2ull << 20) /* unit of migration and eviction, bytes */

/* One process. `pid` is written last when taking and cleared last when emptying. */
struct machine_process {
    int32_t pid;
    uint64_t start_time; /* clock ticks after boot, from /proc/PID/stat */
};

/* A request of a process to another process or to itself (checkpoint/service.c). */
struct machine_request {
    struct machine_process sender, target;
    uint32_t operation, timeout_ms;
    uint32_t pairs;
    unsigned char pair[SIM_MAX_DEVICES][2][16]; /* UUIDs: the former device, the new one */
};

/* Requests to one process: one at a time, by the process that holds the lock. `thread` is written last by a process
 * that takes the slot. */
struct machine_checkpoint {
    pthread_mutex_t lock;
    _Atomic uint32_t state;               /* CU_PROCESS_STATE_… */
    _Atomic int32_t thread;               /* that answers; 0: none */
    _Atomic uint32_t requested, answered; /* futexes: numbers of the last request and of the last answer */
    struct machine_request request;
    uint32_t result; /* CUresult */
};

/* One process on one device. */
struct machine_share {
    uint64_t plain; /* bytes of ordinary allocations, contexts and modules */
    uint64_t saved; /* the same bytes while they are checkpointed, which are not on the device */
    uint32_t is_saved;
    uint64_t consumed;  /* device time consumed so far */
    uint64_t need;      /* consumed value at which all modelled work is done */
    uint32_t active;    /* streams with work on the device */
    uint32_t unbounded; /* of those, streams whose end is not known yet */
};

/* One allocation of unified memory. `owner` is written last when taking. */
struct machine_range {
    uint32_t owner;     /* slot + 1; 0: free entry */
    uint64_t resident;  /* bytes on the device */
    uint64_t unused;    /* bytes that a prefetch has moved to the host, and that nothing else has needed since */
    uint64_t populated; /* order in which ranges got their pages: the smallest is evicted first */
};

/* Ordinary memory in a file that several processes may open. `inode` is written last when taking. */
struct machine_shared {
    uint64_t inode; /* 0: free entry */
    uint64_t bytes;
    int owner;                            /* slot of the process that has made the memory */
    uint64_t holders[MACHINE_SLOTS / 64]; /* a bit per slot */
};

struct machine_device {
    pthread_mutex_t lock;
    uint64_t used; /* sum of plain, shared and resident */
    uint64_t populations;
    uint64_t link_free[2]; /* time from which a direction of the link has no reservation */
    uint64_t evicted;      /* bytes, since the beginning */
    uint32_t range_end;    /* entries from here on were never used */
    int32_t holder;        /* slot whose time slice it is, or -1 */
    uint64_t slice_start;  /* since when `consumed` of that slot is not up to date */
    uint64_t slice_end;
    uint32_t slice_waiters, slice_changes; /* futex */
    struct machine_share share[MACHINE_SLOTS];
    struct machine_range range[MACHINE_RANGES];
    uint32_t shared_end;
    struct machine_shared shared[MACHINE_SHARED];
};

struct machine {
    uint64_t magic;
    uint64_t bytes;       /* of the whole file: guards against another build's layout */
    pthread_mutex_t lock; /* process table; taken before a device's lock */
    struct sim_params params;
    struct machine_process process[MACHINE_SLOTS];
    struct machine_checkpoint checkpoint[MACHINE_SLOTS];
    struct machine_device device[SIM_MAX_DEVICES];
};

/* Map the machine named in params (create it if there is none) and take a slot. Return the slot, or -1 and one line
 * in `problem`. *params becomes the machine's own, because the first process in determines the devices. */
int machine_enter(struct machine **machine, struct sim_params *params, char *problem, size_t problem_size);

/* Map the machine in that file if there is one, without taking a slot; unmap it. NULL: there is none. */
struct machine *machine_attach(const char *path, int is_writable);
void machine_detach(const struct machine *machine);

/* machine_lock.c: lock a mutex of the machine; return whether the last holder died inside. */
int machine_lock_robust(pthread_mutex_t *lock);
/* Compute the sums of a locked device from its tables. */
void machine_repair_device(struct machine_device *device);
/* Lock the device; repair it after a holder's death. */
void machine_lock_device(struct machine *machine, int device);
void machine_unlock_device(struct machine *machine, int device);
uint64_t machine_shared_bytes(const struct machine_device *device);

/* machine.c: empty the slots of processes that have ended, at most every few milliseconds unless `now` is set. */
void machine_reap(struct machine *machine, int now);

/* process.c: find the start time of a process. -1: it has ended. A zombie has released its memory, so it counts as
 * ended. */
int machine_process_birth(int pid, uint64_t *start_time);
/* Return whether the process has ended. */
int machine_is_gone(const struct machine_process *process);
/* Find the slot of a process. -1: it is not in the machine. */
int machine_find_process(const struct machine *machine, int pid, struct machine_process *process);

/* machine_memory.c: these functions take the device's lock themselves. */

/* Charge bytes of ordinary memory, evicting unified memory if needed (*evicted: the bytes). -1: no room. */
int machine_charge(struct machine *machine, int device, int slot, uint64_t bytes, uint64_t *evicted);
/* Spend the time of evicting other processes' pages; allocation of ordinary memory waits for it. */
void machine_spend_eviction(struct machine *machine, int device, uint64_t evicted);
void machine_discharge(struct machine *machine, int device, int slot, uint64_t bytes);
void machine_used(struct machine *machine, int device, uint64_t *used, uint64_t *total);

/* Make a range of unified memory with nothing resident; return its index or -1. */
int machine_range_open(struct machine *machine, int device, int slot);
void machine_range_close(struct machine *machine, int device, int range);
uint64_t machine_resident(struct machine *machine, int device, int range);
/* Make `bytes` more of the range resident, evicting other ranges first and then itself. Return the bytes that
 * fitted. */
uint64_t machine_populate(struct machine *machine, int device, int range, uint64_t bytes, uint64_t *evicted);
/* Take `bytes` of the range off the device. */
void machine_depopulate(struct machine *machine, int device, int range, uint64_t bytes);
/* The same after a prefetch to the host: if the device keeps unused memory, the bytes do not count as free. */
void machine_leave_unused(struct machine *machine, int device, int range, uint64_t bytes);

/* machine_alloc.c: bytes charged to a slot become those of a file. -1: the table is full. */
int machine_shared_open(struct machine *machine, int device, int slot, uint64_t inode, uint64_t bytes);
/* One more process has the file. -1: there is no such file. */
int machine_shared_join(struct machine *machine, int slot, uint64_t inode, int *device, uint64_t *bytes);
/* The last process to leave frees the memory. */
void machine_shared_leave(struct machine *machine, int device, int slot, uint64_t inode);
int machine_has_opened(struct machine *machine, int slot); /* the process has opened memory of another process */
/* The device is locked; the caller corrects `used`. */
void machine_shared_remove(struct machine_device *device, int slot);

/* saved_memory.c: take the ordinary memory of a slot off a device of the machine. The share keeps the number of its
 * bytes, and later charges and discharges change that number. */
void machine_save(struct machine *machine, int place, int slot);
/* Return the bytes of ordinary memory of a slot, on the device or saved. */
uint64_t machine_ordinary_bytes(struct machine *machine, int place, int slot);
/* Put the saved memory of a slot from each place to the place `to[place]`, all of it or nothing. Evicted bytes of
 * unified memory are added by new place. -1: no room. */
int machine_restore(struct machine *machine, int slot, const int to[SIM_MAX_DEVICES],
                    uint64_t evicted[SIM_MAX_DEVICES]);
/* machine_memory.c: make room for ordinary memory of that many bytes on a locked device. -1: no room. */
int machine_make_room(struct machine *machine, int place, uint64_t bytes, uint64_t *evicted);

/* requests.c: send a request to the process in the slot, and wait for its result. -1: the process has ended, or its
 * thread that answers. */
int machine_send_request(struct machine *machine, int slot, struct machine_request *request, uint32_t *result);
/* The receiving thread of the slot: begin, wait for the next request, and answer it. */
void machine_receive_requests(struct machine *machine, int slot);
void machine_await_receiver(struct machine *machine, int slot); /* until that thread has begun */
void machine_await_request(struct machine *machine, int slot, struct machine_request *request);
void machine_answer(struct machine *machine, int slot, uint32_t result);

enum copy_direction { COPY_TO_DEVICE, COPY_TO_HOST };
/* machine_memory.c: reserve `ns` on a direction of the link, not before `earliest`; return when they begin. */
uint64_t machine_transfer(struct machine *machine, int device, enum copy_direction direction, uint64_t earliest,
                          uint64_t ns);

/* time_slices.c: time on the device. A stream with work enters. Between enter and leave the process takes part in
 * slicing. */

void slices_enter(struct machine *machine, int device, int slot);
void slices_leave(struct machine *machine, int device, int slot);
/* Bring the consumed times of a locked device up to `now`. */
void slices_update(struct machine_device *device, uint64_t now, const struct sim_params *params);
/* Return the device time that the slot has consumed. */
uint64_t slices_consumed(struct machine *machine, int device, int slot);
/* slice_wait.c: sleep until the slot has consumed `target`, and return the value at that moment. Another process may
 * make this take longer. A target at most `slack_ns` ahead needs no wait if the caller holds the device. `more`:
 * further work is queued, so the process keeps the rest of its slice. */
uint64_t slices_wait(struct machine *machine, int device, int slot, uint64_t target, uint64_t slack_ns, int more);
/* time_slices.c: for machine_reap, with the device locked. */
void slices_remove(struct machine_device *device, int slot, uint64_t now);

#endif
