/* When memory moves, on which streams, how a process gets room on a full device, and the mode "swap" for the hooks. */
#ifndef GPUSHARE_RESIDENCY_H
#define GPUSHARE_RESIDENCY_H

#include "memory/mode.h"

#pragma GCC visibility push(hidden)

/* --- residency.c --- */

bool residency_is_evicting(uint64_t now, uint64_t *next); /* agent, after a drain: memory that must leave is leaving */
uint64_t residency_poll(uint64_t now);                    /* agent, while not running: the time of the next call */
/* A thread at the open gate. CUDA_ERROR_NOT_READY: some memory cannot be restored yet. CUDA_ERROR_OUT_OF_MEMORY: the
 * device has had no room for long, and no client can make room. */
CUresult residency_restore(uint32_t word);
/* A thread inside the closed gate: all memory is mapped, and stays mapped until the thread is outside. */
bool residency_is_mapped(void);
void residency_pause(void);            /* no context is used for moving memory until … */
void residency_resume(CUcontext gone); /* … here; NULL: no context has ended */
void residency_after_fork(void);

/* --- shortage.c: requests for room --- */

#define MAX_SHORTAGE_NS (15000 * NS_PER_MS) /* how long an allocation waits without an answer of the coordinator */
#define SHORTAGE_POLL_NS (1 * NS_PER_MS)

struct shortage {
    uint64_t began;               /* 0: no room has been requested */
    uint64_t posted_at;           /* 0: not in this turn */
    uint32_t first_seq, last_seq; /* unmet_request_seq of the first and of the latest request */
    bool is_refused;
};

/* The gate, whose folder lies above this one. */
struct gate_functions {
    void (*begin_wait)(uint64_t now);
    bool (*is_interrupted)(void);
    CUresult (*wait_for_turn)(void);
    bool (*has_threads)(void); /* some thread is inside */
    bool (*has_work)(void);    /* some work of the program has perhaps not finished */
};

extern const struct gate_functions *the_gate;
void memory_set_gate(const struct gate_functions *gate); /* once, before the shim is active */
/* Request room from the other clients; residency_lock is released meanwhile. CUDA_SUCCESS: the caller tries again.
 * Anything else is the result for the program. */
CUresult shortage_wait(struct shortage *shortage, uint64_t bytes);
CUresult shortage_next_turn(struct shortage *shortage); /* the turn has ended before there was room; returns likewise */
void shortage_end(struct shortage *shortage);           /* there is room, or the need has gone */
void shortage_begin_for_turn(uint64_t bytes);           /* the first call of the turn needs room */
bool shortage_is_refused_for_turn(uint64_t now);
void shortage_end_for_turn(void);
void shortage_after_fork(void);

/* --- room.c --- */

bool room_release_freed(void); /* under residency_lock; false: the program has freed no memory that is still there */
/* For a call of the driver that takes memory which no allocation shows, as a new context does. True: the caller makes the
 * call again. False: *result is the result for the program. residency_lock is not held. */
bool room_make(struct shortage *shortage, CUresult *result);

/* --- transfer_streams.c: all under residency_lock, which nests only in start_lock --- */

extern pthread_mutex_t residency_lock;

struct transfer_stream {
    CUcontext context;
    CUdevice device;
    CUstream stream;
    CUevent event;
    bool is_busy; /* a transfer is under way */
};

struct transfer_stream *transfer_begin(CUcontext context); /* makes the context current; NULL: not possible */
void transfer_end(void);
void transfers_record(void);       /* an event behind all transfers that are under way */
bool transfers_are_complete(void); /* all that was recorded */
bool transfers_sync(void);         /* false: one failed */
void transfers_report_restored(uint64_t bytes, uint64_t began);
uint64_t transfers_free_bytes(void); /* free bytes of the current context's device, less a reserve */
void transfers_drop_context(CUcontext context);
void transfers_after_fork(void);

/* --- swap/: the program's virtual-memory management in the mode "swap" --- */

#define MAX_ACCESSES 16 /* devices with access to a mapping; with more of them the memory stays on its device */

/* The answers to queries of an address, which do not depend on the place of the memory. */
struct swap_pointer {
    CUdeviceptr base; /* of the allocation or mapping */
    uint64_t bytes;
    uint64_t buffer_id, block_id;
    CUcontext context; /* NULL for a mapping */
    CUdevice device;
    uint64_t handle_types;
    CUmemAccessDesc access[MAX_ACCESSES];
    int access_count;
    bool is_mapping; /* the program's own */
};

bool swap_find_pointer(CUdeviceptr address, struct swap_pointer *found); /* false: the address is not of this mode */
void swap_drop_context(CUcontext context);                               /* under residency_lock */
void swap_after_fork(void);
void host_buffers_poll(uint64_t now); /* agent: at least once in a while; gives unused host memory back */
bool swap_manages(const CUmemAllocationProp *properties, unsigned long long flags); /* the shim moves such memory */
bool swap_owns_handle(uint64_t handle);
bool swap_owns_mapping(CUdeviceptr address);
CUresult swap_create(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties);
CUresult swap_release(CUmemGenericAllocationHandle handle);
CUresult swap_map(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle);
CUresult swap_unmap(CUdeviceptr address, size_t bytes);
CUresult swap_access(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access, size_t count);
CUresult swap_retain(CUmemGenericAllocationHandle *handle, CUdeviceptr address);
/* For calls that let other processes or devices use memory. The caller is inside the gate, so the memory is on the
 * device. It stays there from the pin to its end. */
CUmemGenericAllocationHandle swap_driver_handle(CUmemGenericAllocationHandle handle); /* 0: there is none */
void swap_pin_handle(CUmemGenericAllocationHandle handle);
void swap_pin_range(CUdeviceptr address, uint64_t bytes);
CUresult swap_properties(CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle);
/* Give a device access to allocations on the device `home`: a context `from` may use memory of the context `to`. Without
 * `from` the device may use memory of the pool `to`. The own device of a pool has a grant as well. */
CUresult swap_grant(const void *from, const void *to, CUdevice device, CUdevice home);
void swap_withdraw(const void *from, const void *to, CUdevice device);
bool swap_pool_home(CUmemoryPool pool, CUdevice *home); /* false: no grant names the pool */
void swap_drop_pool(CUmemoryPool pool);

#pragma GCC visibility pop

#endif
