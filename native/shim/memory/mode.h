/* The memory modes behind one interface, and what is on the device. Part of shim.h.
 * docs/explanation/memory.md compares the modes. */
#ifndef GPUSHARE_MODES_H
#define GPUSHARE_MODES_H

/* What a mode does with device memory that the program asks for. */
struct memory_mode {
    const char *name;
    uint32_t number;   /* GPUSHARE_MEMORY_… */
    bool is_unmovable; /* what it allocates stays on the device */
    bool
        evicts_after_turn; /* memory leaves after the turn, while the next client's comes: it takes no more room than there is */
    /* Fills in the entry's kind. The bytes are reserved already. */
    CUresult (*allocate)(CUdeviceptr *address, size_t bytes, struct entry *entry);
    CUresult (*release)(const struct entry *entry);
    /* Agent, nothing of this process runs: move memory off the device until no more than `target` bytes are left, or
     * nothing that could be moved. Does not block for long: false, come again at *next. NULL: nothing can be moved. */
    bool (*evict)(uint64_t target, uint64_t now, uint64_t *next);
    /* Move back what was evicted, and wait for it; `word`: the open gate for which that is done. False: it could not be
     * done (yet). */
    bool (*restore)(uint32_t word);
    /* Agent, the gate is closed: move back what was evicted, as long as there is room for it on the device and no more
     * than `most` bytes are there; 0: no more of that. Does not block for long; when to come again. NULL: nothing is ever away. */
    uint64_t (*prefetch)(uint64_t max_bytes, uint64_t now);
    uint64_t (*capacity)(void); /* bytes that a client can have at all; NULL: the limit alone says */
};

extern const struct memory_mode mode_unified, mode_plain, mode_swap;

const struct memory_mode *memory_mode_by_name(const char *name); /* NULL: there is none of that name */
#define MEMORY_MODE_NAMES "unified, swap, plain"

/* --- movement.c --- */

bool residency_is_evicting(uint64_t now,
                           uint64_t *next); /* agent, after a drain: memory is leaving that must, come again */
uint64_t residency_poll(uint64_t now);      /* agent, not running: when to look again */
bool residency_restore(uint32_t word); /* a thread at the open gate: bring back what is away; false: it cannot be yet */
void residency_pause(void);            /* no context is used for moving memory until ... */
void residency_resume(CUcontext gone); /* ... here; NULL: none has ended */
void residency_after_fork(void);
extern pthread_mutex_t residency_lock;

/* --- shortage.c: requests for room on the device, which is full --- */

#define MAX_SHORTAGE_NS (15000 * NS_PER_MS) /* so long an allocation waits for others to leave */
#define SHORTAGE_POLL_NS (1 * NS_PER_MS)

struct shortage {
    uint64_t began;               /* 0: it has not been asked for */
    uint64_t posted_at;           /* 0: not in this turn */
    uint32_t first_seq, last_seq; /* the short_seq of the first request for it, and of the present one */
    bool is_refused;
};

/* How a thread that waits for room uses the gate, whose folder lies above this one. */
struct shortage_gate {
    void (*begin_wait)(uint64_t now);
    bool (*is_interrupted)(void);
    CUresult (*wait_for_turn)(void);
};

void shortage_set_gate(const struct shortage_gate *gate); /* once, before the shim is active */
void shortage_begin_for_turn(uint64_t bytes);             /* the first call of the turn needs room */
void shortage_end_for_turn(void);
void shortage_after_fork(void);

/* Others are asked to leave. CUDA_SUCCESS: try again (residency_lock is let go meanwhile); else what is to be returned. */
CUresult shortage_wait(struct shortage *shortage, uint64_t bytes);
CUresult shortage_next_turn(struct shortage *shortage); /* the turn has ended before there was room; returns the same */
void shortage_end(struct shortage *shortage);           /* or not needed any more */
void transfers_report_restored(uint64_t bytes, uint64_t began);
uint64_t transfers_free_bytes(void); /* bytes of the current context's device that nobody has, but for a reserve */

/* --- lanes.c: all under residency_lock --- */

struct transfer_stream {
    CUcontext context;
    CUdevice device;
    CUstream stream;
    CUevent event;
    bool is_busy; /* something is on its way in it */
};

struct transfer_stream *transfer_begin(CUcontext context); /* makes the context current; NULL: it cannot be */
void transfer_end(void);
void transfers_record(void);       /* behind all that is on its way */
bool transfers_are_complete(void); /* has all that was recorded? */
bool transfers_sync(void);         /* false: something failed */
void transfers_drop_context(CUcontext context);
void transfers_after_fork(void);

/* --- swap*.c --- */

bool swap_find_allocation(CUdeviceptr address, CUdeviceptr *base, size_t *bytes, bool *is_resident);
void swap_drop_context(CUcontext context); /* residency_lock is held */
void swap_after_fork(void);
bool swap_manages(const CUmemAllocationProp *properties, unsigned long long flags); /* is it memory that moves? */
bool swap_owns_handle(uint64_t handle);
bool swap_owns_mapping(CUdeviceptr address);
CUresult swap_create(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties);
CUresult swap_release(CUmemGenericAllocationHandle handle);
CUresult swap_map(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle);
CUresult swap_unmap(CUdeviceptr address, size_t bytes);
CUresult swap_access(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access, size_t count);
CUresult swap_retain(CUmemGenericAllocationHandle *handle, CUdeviceptr address);
CUresult swap_properties(CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle);

void unified_after_fork(void);

#endif
