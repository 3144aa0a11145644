/* The streams on which memory moves, and requests for room on a full device. */
#ifndef GPUSHARE_TRANSFERS_H
#define GPUSHARE_TRANSFERS_H

#include "memory/account/mode.h"

#pragma GCC visibility push(hidden)

/* --- shortage.c: requests for room --- */

#define MAX_SHORTAGE_NS (15000 * NS_PER_MS) /* how long an allocation waits in turns without a coordinator's answer */
#define SHORTAGE_POLL_NS (1 * NS_PER_MS)

struct shortage {
    uint64_t began;               /* 0: no room has been requested */
    uint64_t posted_at;           /* 0: not in this turn */
    uint64_t waited_ns;           /* in all turns */
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
CUresult shortage_wait(struct shortage *shortage, struct room_needed needed);
CUresult shortage_next_turn(struct shortage *shortage); /* the turn has ended before there was room; returns likewise */
void shortage_end(struct shortage *shortage);           /* there is room, or the need has gone */
void shortage_begin_for_turn(struct room_needed needed); /* the first call of the turn needs room */
bool shortage_is_refused_for_turn(void);
void shortage_end_for_turn(void);
void shortage_after_fork(void);

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

#pragma GCC visibility pop

#endif
