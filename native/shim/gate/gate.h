/* The gate: which calls may go ahead, which work is unfinished, and how a waiting call is interrupted. */
#ifndef GPUSHARE_GATE_H
#define GPUSHARE_GATE_H

#include "driver/driver.h"
#include "gate/thread_state.h"

#pragma GCC visibility push(hidden)

/* --- threads.c: the threads of the program --- */

extern __thread struct thread this_thread __attribute__((tls_model("initial-exec")));

bool threads_start(void); /* once per process; false: no key could be had */
bool threads_register(
    struct thread *thread); /* false: in the thread's last destructors, nothing may refer to it any more */
void threads_drop_stream(CUstream stream);
void threads_clear_marks(void); /* agent: nobody is inside, and nothing is marked any more */
void threads_sum(struct counters *sum);
bool all_threads_left_gate(uint32_t scan); /* has every thread been seen outside of the gate since `scan` began? */
bool any_thread_in_gate(void);             /* is any thread inside the gate now? */
void threads_after_fork(void);

/* --- gate.c ------------------------------------------------------------------------------------------------------ */

void gate_start(void);
void gate_publish_waiting(void); /* in the page */

/* --- streams.c, drain.c: which streams carry work, and when it has finished ---------------------------------------- */

bool streams_mark(CUstream stream);    /* false: nothing was marked (no context, capturing), so nothing may be cached */
void streams_untrack(CUstream stream); /* before its end or capture: what it carries is noted in an orphan event */
void streams_lock_all(CUstream stream);  /* keeps the agent off all streams; `stream` is dropped */
void streams_unlock_all(CUcontext gone); /* NULL: no context ended meanwhile */
bool streams_untrack_context(
    CUcontext context); /* true: it carried work, `streams_context_destroyed` must follow its end */
void streams_context_destroyed(void);
bool streams_poll(bool record_anew); /* agent: has all marked work finished? records what has not been */
void streams_clear(void);            /* agent: all has finished and the gate is closed */
bool streams_have_work(void);        /* agent: is any marked work not finished? */
void streams_after_fork(void);

void drain_start(void);
void drain_begin(void);                        /* agent: the gate has closed */
bool drain_poll(uint64_t now, uint64_t *next); /* agent: no call is inside, no work unfinished; else come again */
void drain_done(uint64_t closed);              /* agent: forget what has finished; `closed`: when the gate first was */

/* --- meter.c, budget.c: how much work is let in while others wait, or by a budget ------------------------------------ */

bool throttle_update(uint32_t word); /* METERED as the orders have it; true: the open gate's word is another one now */
/* A call for `stream` stands inside the open gate. 0: it may go ahead; else it is to leave, and to come again after so many
 * nanoseconds at most. */
uint64_t throttle_admit(struct thread *thread, CUstream stream);
void throttle_drop_stream(CUstream stream);
void throttle_drop_context(CUcontext context);
void throttle_after_fork(void);
/* Under the meter's lock; `turn` counts stretches of metering. */
uint64_t budget_delay(struct thread *thread, uint32_t generation, uint64_t now);
void budget_charge_time(uint64_t worked); /* the device has, for so long */

/* The orders' budget, without a neighbour none; rate 0: none. */
struct budget {
    uint64_t rate;
    uint32_t unit;
};
struct budget budget_in_force(void);

/* --- durations.c: how long launches of a function take, while some are exempt from a budget of blocks ---------------- */

bool function_is_short(CUfunction function); /* is it known to take less than orders.exempt_ns? */
bool should_time_function(
    struct thread *thread); /* is the launch that has been let in to be measured? Then these must follow: */
void function_timing_begin(struct thread *thread, CUstream stream);
void function_timing_end(uint32_t timer_number, CUstream stream, CUresult launched);
void function_times_drop_context(CUcontext context);
void function_times_after_fork(void);

/* What is to be told to `function_timing_end`; and the launch is no longer about to pass the gate. */
static inline uint32_t function_timing_take(struct thread *thread) {
    uint32_t timer_number = thread->timer_number;
    thread->timer_number = 0;
    thread->function = NULL;
    return timer_number;
}

/* --- usage.c: how long the device works for us; all by the agent ----------------------------------------------------- */

void busy_time_gate_opened(uint64_t now);
uint64_t busy_time_sample(uint64_t now); /* when to come again */
void busy_time_drained(uint64_t began, uint64_t now);

/* --- interrupt.c, python.c, log.c -------------------------------------------------------------------------------- */

void interrupt_after_fork(void);
void interrupt_start(void); /* wrap the program's SIGINT handler, if it has one */
void interrupt_begin(struct thread *thread, uint64_t began);
bool interrupt_pending(struct thread *thread); /* must the waiting call of this thread return an error? */

bool python_owns_handler(
    void *function); /* is this thread one of Python's, and `function` the handler that Python has set? */
/* Run Python's signal handlers. `noted`: Python has noted the signal, by that handler. True: they returned, the wait goes on. */
bool python_run_handlers(struct thread *thread, bool noted);
bool python_has_pending_exception(void); /* a handler has raised, and Python code has not seen its exception yet */

/* --- the fast path ---------------------------------------------------------------------------------------------- */

CUresult gate_enter_slow(struct thread *thread, CUstream stream);

static inline unsigned marked_slot(CUstream stream) {
    return ((uintptr_t)stream >> 4 ^ (uintptr_t)stream >> 9) % MARKED_STREAMS;
}

/* Plain instructions where the compiler may use them, atomic ones for a checker that cannot see through fences. */
#ifdef __SANITIZE_THREAD__
#define DEPTH_ADD(thread, change, order)                                                                               \
    __atomic_store_n(&(thread)->depth, PAGE_LOAD((thread)->depth) + (change), order)
#define COUNTER_ADD(counter, more) PAGE_STORE(counter, PAGE_LOAD(counter) + (more))
#else
#define COUNTER_ADD(counter, more) ((counter) += (more))
#define DEPTH_ADD(thread, change, order) (__atomic_signal_fence(order), (thread)->depth += (change))
#endif

static inline void gate_leave(struct thread *thread) {
#ifndef __SANITIZE_THREAD__
    atomic_thread_fence(memory_order_release); /* what the call did is seen by whoever sees it over */
#endif
    DEPTH_ADD(thread, -1u, __ATOMIC_RELEASE);
}

/* The fast path: true if the call may go ahead. It counts as inside in any case, and `gate_leave` must follow.
 *
 * The agent closes exactly: it sees the gate closed, issues a membarrier and then reads every depth. So either this
 * thread's depth is seen, or this thread sees the closed gate; a compiler barrier is all that is needed here. */
static inline bool gate_try(struct thread *thread, CUstream stream) {
    DEPTH_ADD(thread, 1u, __ATOMIC_RELAXED);
    atomic_signal_fence(memory_order_seq_cst);
    uint32_t word = gate_word();
    return likely(word == atomic_load_explicit(&thread->marked_word, memory_order_relaxed)) && /* marked, thus open */
           likely(stream == atomic_load_explicit(&thread->last_stream, memory_order_relaxed));
}

/* Enter the gate with work for `stream`. CUDA_SUCCESS: inside, `gate_leave` must follow. Anything else is to be returned
 * to the program; the call is not made. */
static inline CUresult gate_enter(struct thread *thread, CUstream stream) {
    if (gate_try(thread, stream))
        return CUDA_SUCCESS;
    gate_leave(thread);
    return gate_enter_slow(thread, stream);
}

#pragma GCC visibility pop

#endif
