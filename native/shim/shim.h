/* The shim from the inside: the process-wide state, the state of a thread, and what each file offers the others.
 *
 * Who runs where. Program threads run the hooks: the gate (gate.c), memory, contexts. One agent thread (agent.c) does
 * everything that waits: it talks to the coordinator, takes turns, drains. A signal handler
 * (interrupt.c) touches atomics and a futex only. The main thread of a Python program runs Python's signal handlers while
 * it waits (python.c); another thread of ours tries the interpreter lock for it. A fork's child starts from nothing (start.c).
 *
 * Locks, in the order in which they may nest: start_lock, residency_lock (movement.c), streams (streams.c), meter (meter.c),
 * durations (durations.c), ledger shards (ledger.c), account_lock, threads.lock, files.lock. None is held while waiting at
 * the gate or in a driver call that may wait for the device, but for the recording of an event, and residency_lock while
 * memory moves. */
#ifndef GPUSHARE_SHIM_H
#define GPUSHARE_SHIM_H

#include "base/base.h"
#include "channel/channel.h"
#include "driver/driver.h"

#pragma GCC visibility push(hidden)

/* --- a thread of the program (threads.c) ----------------------------------------------------------------------- */

#include "gate/thread_state.h"

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

/* --- start.c ----------------------------------------------------------------------------------------------------- */

bool shim_start(void);              /* after the driver has been initialised; true: the shim is awake */
void *map_client(int file);         /* NULL if it cannot be */
bool shim_replace_page(void);       /* agent, before hello: a page for the connection that begins */
bool shim_reopen_descriptors(void); /* agent: the program has closed our descriptors; false: the shim is off */

/* For hooks that only act when the shim does; the first of them wakes it. */
static inline bool shim_is_active(void) {
    uint32_t state = atomic_load_explicit(&shim.state, memory_order_acquire);
    return state == SHIM_ACTIVE || (state == SHIM_UNINITIALISED && shim_start());
}

void environment_read(void); /* environment.c */
const char *memory_mode_from_environment(void);

#include "driver/driver.h"
#include "hooks/hooks.h"

/* --- gate.c ------------------------------------------------------------------------------------------------------ */

#include "gate/gate.h"

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

/* --- ledger.c, account.c, memory.c, deferred.c, views.c, graph.c ------------------------------------------------------- */

#include "memory/memory.h"

/* --- agent.c, lock_files.c, socket.c, join.c, wire.c ---------------------------------------------------------------- */

#include "coordinator/coordinator.h"

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

#pragma GCC visibility pop

#endif
