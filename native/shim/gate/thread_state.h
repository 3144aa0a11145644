/* The shim's record of a thread of the program. */
#ifndef GPUSHARE_THREAD_H
#define GPUSHARE_THREAD_H

#include "driver/driver.h"

#define MARKED_STREAMS 8
#define NO_WORD UINT32_MAX

struct counters {
    uint64_t launches, copies, others, blocks, bytes_copied;
};

struct loaded_functions;

/* Lies in the thread's own storage. The thread changes `depth` and `counters` with plain instructions, always as whole
 * words, because compilers emit slower code for atomic ones. The agent reads them. */
struct thread {
    uint32_t depth;                  /* calls inside the gate, nested ones included */
    _Atomic uint32_t marked_word;    /* the gate word under which the streams below were marked */
    _Atomic(CUstream) last_stream;   /* the marked stream that was used last */
    struct loaded_functions *loaded; /* in the context of that stream */
    struct counters counters;
    _Atomic(CUstream) marked[MARKED_STREAMS];               /* marked streams of streams.c, by a hash of the handle */
    struct loaded_functions *marked_loaded[MARKED_STREAMS]; /* in the context of each marked stream */
    uint32_t stepped;           /* the gate word of the last step in which the thread made a call */
    uint64_t interrupts;        /* SIGINTs that this thread has handled or let pass */
    uint32_t interrupt_seq;     /* likewise, of the page */
    uint64_t interrupted_until; /* an interrupted call was made; a wait before this time is interrupted */
    bool registered, main;
    bool is_refused;         /* the gate refused the last call of the slow path */
    uint8_t registrations;   /* an ending thread may register again in a later destructor, but not for ever */
    uint32_t left_gate_scan; /* agent: the last scan that found depth 0 */
    struct thread *next, *previous;
    uint64_t charged_blocks;     /* launch_budget.c: blocks of `counters` that have been charged */
    uint32_t charged_generation; /* launch_budget.c: the generation of the throttle that charged them */
    CUfunction function;   /* the function of the launch that is about to pass the gate; NULL: unknown, or no launch */
    bool is_exempt;        /* launch_budget.c: the last call that was let in costs nothing */
    uint32_t timer_number; /* function_times.c: the timer of the launch that was let in; 0: none */
};

#endif
