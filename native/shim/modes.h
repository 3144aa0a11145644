/* The memory modes behind one interface, and what is on the device. Part of shim.h.
 * docs/explanation/memory.md compares the modes. */
#ifndef GPUSHARE_MODES_H
#define GPUSHARE_MODES_H

/* What a mode does with device memory that the program asks for. */
struct memory_mode {
    const char *name;
    uint32_t number; /* GPUSHARE_MEMORY_… */
    bool pinned;     /* what it allocates stays on the device */
    bool beside; /* memory leaves after the turn, while the next client's comes: it takes no more room than there is */
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
    uint64_t (*ahead)(uint64_t most, uint64_t now);
    uint64_t (*most)(void);                    /* bytes that a client can have at all; NULL: the limit alone says */
    void (*describe)(char *text, size_t room); /* for the log */
};

extern const struct memory_mode mode_unified, mode_plain, mode_swap;

const struct memory_mode *mode_named(const char *name); /* NULL: there is none of that name */
#define MODE_NAMES "unified, swap, plain"

/* --- movement.c --- */

bool memory_leaves(uint64_t now, uint64_t *next); /* agent, after a drain: memory is leaving that must, come again */
uint64_t memory_look(uint64_t now);               /* agent, not running: when to look again */
bool memory_ready(uint32_t word);   /* a thread at the open gate: bring back what is away; false: it cannot be yet */
void memory_hold(void);             /* no context is used for moving memory until ... */
void memory_let_go(CUcontext gone); /* ... here; NULL: none has ended */
void memory_after_fork(void);
extern pthread_mutex_t movement_lock;

/* A need for room on the device, which is full. */
struct room {
    uint64_t began;        /* 0: it has not been asked for */
    uint64_t asked_at;     /* 0: not in this turn */
    uint32_t first, asked; /* the short_seq of the first request for it, and of the present one */
    bool refused;
};

/* Others are asked to leave. CUDA_SUCCESS: try again (movement_lock is let go meanwhile); else what is to be returned. */
CUresult room_wait(struct room *room, uint64_t bytes);
CUresult room_next_turn(struct room *room); /* the turn has ended before there was room; returns the same */
void room_found(struct room *room);         /* or not needed any more */
void report_restored(uint64_t bytes, uint64_t began);
uint64_t room_to_spare(void); /* bytes of the current context's device that nobody has, but for a reserve */

/* --- lanes.c: all under movement_lock --- */

struct lane {
    CUcontext context;
    CUdevice device;
    CUstream stream;
    CUevent event;
    bool busy; /* something is on its way in it */
};

struct lane *lane_enter(CUcontext context); /* makes the context current; NULL: it cannot be */
void lane_leave(void);
void lanes_record(void);  /* behind all that is on its way */
bool lanes_arrived(void); /* has all that was recorded? */
bool lanes_wait(void);    /* false: something failed */
void lanes_forget(CUcontext context);
void lanes_after_fork(void);

/* --- swap*.c --- */

bool swap_around(CUdeviceptr address, CUdeviceptr *base, size_t *bytes, bool *here);
void swap_forget_context(CUcontext context); /* movement_lock is held */
void swap_after_fork(void);
bool swap_handles(const CUmemAllocationProp *properties, unsigned long long flags); /* is it memory that moves? */
bool swap_named(uint64_t handle);
bool swap_mapped(CUdeviceptr address);
CUresult swap_create(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties);
CUresult swap_release(CUmemGenericAllocationHandle handle);
CUresult swap_map(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle);
CUresult swap_unmap(CUdeviceptr address, size_t bytes);
CUresult swap_access(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access, size_t count);
CUresult swap_retain(CUmemGenericAllocationHandle *handle, CUdeviceptr address);
CUresult swap_properties(CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle);

void unified_after_fork(void);

#endif
