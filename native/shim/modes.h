/* The memory modes behind one interface, and what is on the device. Part of shim.h. docs/memory.md compares the modes. */
#ifndef GPUSHARE_MODES_H
#define GPUSHARE_MODES_H

/* What a mode does with device memory that the program asks for. */
struct memory_mode {
    const char *name;
    bool pinned; /* what it allocates stays on the device */
    /* Fills in the entry's kind. The bytes are reserved already. */
    CUresult (*allocate)(CUdeviceptr *address, size_t bytes, struct entry *entry);
    CUresult (*release)(const struct entry *entry);
    /* Agent, nothing of this process runs: move memory off the device until no more than `target` bytes are left, or
     * nothing that could be moved. Does not block for long: false, come again at *next. NULL: nothing can be moved. */
    bool (*evict)(uint64_t target, uint64_t now, uint64_t *next);
    /* Move back what was evicted, and wait for it; `word`: the open gate for which that is done. False: it could not be
     * done (yet). */
    bool (*restore)(uint32_t word);
    void (*describe)(char *text, size_t room); /* for the log */
};

extern const struct memory_mode mode_unified, mode_plain;

const struct memory_mode *mode_named(const char *name); /* NULL: there is none of that name */
#define MODE_NAMES "unified, plain"

/* --- movement.c --- */

bool memory_evict(uint32_t word, uint64_t now, uint64_t *next); /* agent: all has left that must, after a drain */
uint64_t memory_look(uint64_t now);                             /* agent, not running: when to look again */
bool memory_moving(void);                                       /* agent: is memory_evict at it? */
bool memory_ready(uint32_t word);   /* a thread at the open gate: bring back what is away; false: it cannot be yet */
void memory_hold(void);             /* no context is used for moving memory until ... */
void memory_let_go(CUcontext gone); /* ... here; NULL: none has ended */
void memory_after_fork(void);
extern pthread_mutex_t movement_lock;

void unified_forget_context(CUcontext context); /* movement_lock is held */
void unified_after_fork(void);

#endif
