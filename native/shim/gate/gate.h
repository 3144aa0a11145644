/* The gate: admission of calls, the throttle, drains of unfinished work, and interrupts of waiting calls. */
#ifndef GPUSHARE_GATE_H
#define GPUSHARE_GATE_H

#include "driver/driver.h"
#include "gate/thread_state.h"

#pragma GCC visibility push(hidden)

/* --- threads.c: the threads of the program --- */

extern __thread struct thread this_thread __attribute__((tls_model("initial-exec")));

/* Return the record of this thread by its address. With accesses relative to the segment register, which a compiler
 * prefers otherwise, the fast path takes 4.4 ns instead of 2.5 ns (measured on an Intel Xeon, model 207). */
static inline struct thread *own_thread(void) {
    struct thread *thread = &this_thread;
    __asm__("" : "+r"(thread));
    return thread;
}

bool threads_start(void); /* once per process; false: no thread key is left */
/* False: the thread runs its last destructors, so that nothing may refer to it any more. */
bool threads_register(struct thread *thread);
void threads_drop_stream(CUstream stream);
void threads_clear_marks(void); /* agent: no thread is in the gate, and no stream is marked any more */
void threads_sum(struct counters *sum);
bool all_threads_left_gate(uint32_t scan); /* each has been seen outside of the gate since `scan` began */
bool any_thread_in_gate(void);
void threads_after_fork(void);

/* --- gate.c --- */

void gate_start(void);
void gate_publish_waiting(void); /* in the page */

/* --- streams.c: which streams carry work, and whether it has finished --- */

/* Return the context of the stream. NULL: not marked (no context, or capturing), so do not cache the stream. */
CUcontext streams_mark(CUstream stream);
/* Before the stream ends or captures: an orphan event stands for its work. The lock of captures.c is held. */
void streams_untrack(CUstream stream, bool ends);
/* Before the stream begins or joins a capture: note whether the work of the legacy stream, which no query may name
 * meanwhile, has finished. The lock of captures.c is held. */
void streams_note_capture(CUstream stream);
/* Before the end of a context, with the streams of `green`, or NULL. True: the context carried work, and
 * `streams_context_destroyed` must follow its end. */
bool streams_untrack_context(CUcontext context, CUgreenCtx green);
void streams_context_destroyed(void);
/* Agent: all marked work has finished. `anew`: work may have come since the last call. */
bool streams_poll(bool anew);
void streams_clear(void);     /* agent: all work has finished and the gate is closed */
bool streams_have_work(void); /* agent: some marked work has not finished */
/* Wait until the work of the context has finished. False: a capture prevents queries of default streams. */
bool streams_wait(CUcontext context);
void streams_after_fork(void);

/* --- drain.c --- */

void drain_init(void);
void drain_begin(void);                        /* agent: the gate has closed */
bool drain_poll(uint64_t now, uint64_t *next); /* agent; false: not drained, call again at *next */
void drain_done(uint64_t closed);              /* agent: clears the marks; `closed`: when the gate closed first */

/* --- throttle.c: how much work an open gate lets in --- */

/* Set THROTTLED in the word of the open gate as the page requires. True: the word has changed. */
bool throttle_update(uint32_t word);
/* Return 0 if a call for `stream`, which is inside the open gate, may go ahead. Otherwise the call leaves the gate and
 * tries again, at the latest after so many nanoseconds. */
uint64_t throttle_admit(struct thread *thread, CUstream stream);
void throttle_thread_ends(struct thread *thread); /* in that thread */
void throttle_drop_stream(CUstream stream);
void throttle_drop_context(CUcontext context);
void throttle_after_fork(void);

/* --- loaded_functions.c: functions whose code the driver has loaded in a context --- */

#define LOADED_FUNCTIONS_BITS 12

struct loaded_functions {
    CUfunction at[1 << LOADED_FUNCTIONS_BITS]; /* by a hash of the handle; a newer function replaces an older one */
};
struct loaded_functions *loaded_functions_in(CUcontext context);
/* The launch of the function for the stream has succeeded. */
void loaded_functions_add(const struct thread *thread, CUfunction function, CUstream stream);
/* Code in the context (NULL: in any context) is about to end, after which other functions may get the handles. */
void loaded_functions_forget(CUcontext context);

/* Fibonacci hashing (Knuth, The Art of Computer Programming, volume 3, section 6.4). */
static inline uint32_t loaded_functions_place(CUfunction function) {
    return (uint32_t)(uintptr_t)function * 0x9e3779b1u >> (32 - LOADED_FUNCTIONS_BITS);
}

/* The launch is for the thread's last stream. */
static inline bool is_loaded(const struct thread *thread, CUfunction function) {
    return PAGE_LOAD(thread->loaded->at[loaded_functions_place(function)]) == function;
}

/* --- launch_budget.c: under the throttle's lock --- */

uint64_t budget_delay(struct thread *thread, uint32_t generation, uint64_t now);
void budget_charge_time(uint64_t worked); /* nanoseconds of the device */
void budget_charge_ending_thread(struct thread *thread, uint32_t generation);

struct budget {
    uint64_t rate; /* 0: no budget */
    uint32_t unit;
};

static inline struct budget budget_in_force(void) {
    const struct gpushare_control *control = &the_page()->control;
    return (struct budget){atomic_load(&shim.without_coordinator) ? 0 : PAGE_LOAD(control->budget_rate),
                           PAGE_LOAD(control->budget_unit)};
}

/* --- function_times.c: how long launches of a function take --- */

bool function_is_short(CUfunction function); /* known to take less than the page's exempt_ns */
/* True: the launch that has been let in is to be measured, and begin, take and end must follow. */
bool should_time_function(struct thread *thread);
void function_timing_begin(struct thread *thread, CUstream stream);
void function_timing_end(uint32_t timer_number, CUstream stream, CUresult launched);
void function_times_drop_context(CUcontext context);
void function_times_after_fork(void);

/* Return the argument for `function_timing_end`. The launch has passed the gate. */
static inline uint32_t function_timing_take(struct thread *thread) {
    uint32_t timer_number = thread->timer_number;
    thread->timer_number = 0;
    thread->function = NULL;
    return timer_number;
}

/* --- busy_time.c: how long the device works for this process; the agent calls it --- */

void busy_time_gate_opened(uint64_t now);
uint64_t busy_time_sample(uint64_t now); /* the time of the next call */
void busy_time_drained(uint64_t began, uint64_t now);

/* --- sigint.c --- */

void interrupt_start(void); /* wrap the program's SIGINT handler, if it has one */
void interrupt_begin(struct thread *thread, uint64_t began);
bool interrupt_pending(struct thread *thread); /* the waiting call of this thread must return an error */
void interrupt_after_fork(void);

/* --- python.c --- */

bool python_owns_handler(void *function); /* Python has set this handler, and this thread is one of Python's */
/* Run Python's signal handlers. `noted`: Python's own handler has noted the signal. True: they returned, and the
 * wait goes on. */
bool python_run_handlers(struct thread *thread, bool noted);
bool python_has_pending_exception(void); /* a handler has raised, and Python code has not received its exception yet */

/* --- the fast path --- */

CUresult gate_enter_slow(struct thread *thread, CUstream stream);

static inline unsigned marked_slot(CUstream stream) {
    return ((uintptr_t)stream >> 4 ^ (uintptr_t)stream >> 9) % MARKED_STREAMS;
}

/* Plain instructions where the compiler may use them, atomic ones for a checker that does not understand fences. */
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
    atomic_thread_fence(memory_order_release); /* a reader that finds the call over finds its effects too */
#endif
    DEPTH_ADD(thread, -1u, __ATOMIC_RELEASE);
}

/* Take the fast path: true if the call may go ahead. The call counts as inside in any case, and `gate_leave` must
 * follow.
 *
 * The agent closes exactly: it closes the gate, issues a membarrier and then reads every depth. So either the agent
 * reads this thread's depth, or this thread reads the closed gate. A compiler barrier is all that this side needs. */
static inline bool gate_try(struct thread *thread, CUstream stream) {
    DEPTH_ADD(thread, 1u, __ATOMIC_RELAXED);
    atomic_signal_fence(memory_order_seq_cst);
    uint32_t word = gate_word();
    return likely(word == atomic_load_explicit(&thread->marked_word, memory_order_relaxed)) && /* marked, thus open */
           likely(stream == atomic_load_explicit(&thread->last_stream, memory_order_relaxed));
}

/* Enter the gate with work for `stream`. CUDA_SUCCESS: the thread is inside, and `gate_leave` must follow. Anything
 * else is the result for the program, and the call is not made. */
static inline CUresult gate_enter(struct thread *thread, CUstream stream) {
    if (gate_try(thread, stream))
        return CUDA_SUCCESS;
    gate_leave(thread);
    return gate_enter_slow(thread, stream);
}

#pragma GCC visibility pop

#endif
