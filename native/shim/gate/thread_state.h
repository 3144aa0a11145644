/* What the shim keeps of a thread of the program. Part of shim.h. */
#ifndef GPUSHARE_THREAD_H
#define GPUSHARE_THREAD_H

#include "driver/driver.h"

#define MARKED_STREAMS 8
#define NO_STREAM ((CUstream)UINTPTR_MAX)
#define NO_WORD UINT32_MAX

struct counters {
    uint64_t launches, copies, others, blocks, bytes_copied;
};

/* Lives in the thread's own storage. `depth` and `counters` are changed by their owner with plain instructions (an atomic
 * one would make the compiler forgo its best), always as whole words; the agent reads them. */
struct thread {
    uint32_t depth;                /* calls inside the gate, nested ones included */
    _Atomic uint32_t marked_word;  /* the gate word under which the streams below were marked */
    _Atomic(CUstream) last_stream; /* the last of them that was used */
    struct counters counters;
    _Atomic(CUstream) marked[MARKED_STREAMS]; /* streams known to be in the table of streams.c: by hash of the handle */
    uint32_t stepped;                         /* the gate word of the last step in which it made a call */
    uint64_t interrupts;                      /* SIGINTs that this thread has answered or let pass */
    uint32_t interrupt_seq;                   /* likewise of the page's orders */
    bool registered, main;
    uint8_t registrations;   /* a thread that ends may register again in a later destructor, not for ever */
    uint32_t left_gate_scan; /* the agent's: the last scan in which depth was seen 0 */
    struct thread *next, *previous;
    uint64_t charged_blocks;     /* budget.c: of counters.blocks, what has been charged */
    uint32_t charged_generation; /* budget.c: in which stretch of metering */
    CUfunction function;   /* what the call that is about to pass the gate launches; NULL: not known, or nothing */
    bool is_exempt;        /* budget.c: the last call that was let in costs nothing */
    uint32_t timer_number; /* durations.c: how long it takes is to be measured; 0: it is not */
};

#endif
