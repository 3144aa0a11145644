/* The gate's slow path: registration of threads, marks of streams, restored memory, and waits for the turn or for the
 * throttle. */
#include "gate/gate.h"
#include "memory/memory.h"

#define MAX_SLEEP_NS (200 * NS_PER_MS) /* of a waiting thread: bounds the cost of a lost wake-up */
#define INTERRUPTED_POLL_NS (5 * NS_PER_MS)
#define MAX_INTERRUPT_DELAY_NS (1000 * NS_PER_MS) /* between an interrupted call that was made and the next one */

static bool may_enter(struct thread *thread, uint32_t word) {
    return is_open(word) && !(is_step(word) && thread->stepped == word);
}

/* Threads begin and end to wait at the same time: the last store must be of the last number. */
void gate_publish_waiting(void) {
    uint32_t *shown = &the_page()->report.waiting, waiting;
    do {
        waiting = atomic_load(&shim.waiting);
        __atomic_store_n(shown, waiting, __ATOMIC_SEQ_CST);
    } while (waiting != atomic_load(&shim.waiting));
}

/* Return true if the turn is to end and its work has not finished. That work may wait on the device for the very call
 * that waits here, as half of a collective operation does. So the call must be made, in a step at the latest. */
static bool has_unfinished_turn(void) {
    uint32_t phase = atomic_load(&shim.phase);
    return phase == GPUSHARE_CLOSING || phase == GPUSHARE_STEP;
}

/* The thread is outside of the gate here, so that a drain need not wait for it. The thread wakes the agent if it is
 * the first thread that waits, or the last one that gives up. `interrupted`: the throttle held the call back before. */
static CUresult wait_for_opening(struct thread *thread, bool interrupted) {
    struct gpushare_report *report = &the_page()->report;
    uint64_t began = now_ns();
    uint32_t refusals = atomic_load(&shim.room_refusals);
    CUresult verdict = CUDA_SUCCESS;
    interrupted = interrupted || began < thread->interrupted_until;
    thread->interrupted_until = 0;
    if (!interrupted)
        interrupt_begin(thread, began);
    bool is_first = atomic_fetch_add(&shim.waiting, 1) == 0;
    gate_publish_waiting();
    if (is_first)
        agent_wake();
    for (;;) {
        uint32_t word = gate_word();
        if (atomic_load(&shim.is_ending))
            break;
        if (may_enter(thread, word)) {
            if (interrupted && !python_has_pending_exception()) /* the next call returns the error */
                thread->interrupted_until = now_ns() + MAX_INTERRUPT_DELAY_NS;
            break;
        }
        interrupted = interrupt_pending(thread) || interrupted;
        if (interrupted && !has_unfinished_turn()) {
            log_message(LOG_INFO, "interrupted a call that waited for the GPU");
            verdict = CUDA_ERROR_OPERATING_SYSTEM;
            break;
        }
        if (atomic_load(&shim.room_refusals) != refusals && !has_unfinished_turn()) {
            verdict = CUDA_ERROR_OUT_OF_MEMORY;
            break;
        }
        /* the gate's word does not change when the work has finished */
        futex_wait(&shim.gate, word, interrupted ? INTERRUPTED_POLL_NS : MAX_SLEEP_NS);
    }
    bool was_last = atomic_fetch_sub(&shim.waiting, 1) == 1;
    gate_publish_waiting();
    if (verdict != CUDA_SUCCESS && was_last)
        agent_wake();
    PAGE_ADD(report->gate_waits, 1);
    PAGE_ADD(report->gate_wait_ns, now_ns() - began);
    return verdict;
}

struct throttling {
    uint64_t began;   /* 0: the call has not been held back */
    bool interrupted; /* the throttle no longer holds the call, so that the program handles its signal soon */
};

/* Also outside of the gate. A call that is interrupted here may go ahead if the gate is still open: nothing has
 * failed, and the program returns to its interpreter all the same. */
static void wait_for_throttle(struct thread *thread, struct throttling *throttling, uint64_t pause) {
    if (!throttling->began) {
        throttling->began = now_ns();
        interrupt_begin(thread, throttling->began);
    }
    uint32_t word = gate_word();
    if (word & GATE_THROTTLED)
        futex_wait(&shim.gate, word, pause);
    throttling->interrupted = interrupt_pending(thread);
}

static void throttling_ends(const struct throttling *throttling) {
    struct gpushare_report *report = &the_page()->report;
    if (!throttling->began)
        return;
    PAGE_ADD(report->throttle_waits, 1);
    PAGE_ADD(report->throttle_wait_ns, now_ns() - throttling->began);
}

static void set_last_stream(struct thread *thread, CUstream stream) {
    thread->loaded = thread->marked_loaded[marked_slot(stream)];
    atomic_store(&thread->last_stream, stream);
}

/* `context`: of the stream; NULL: unknown. */
static void cache_stream(struct thread *thread, CUstream stream, CUcontext context, uint32_t word) {
    if (!driver_resolve_gated())
        return;
    if (atomic_load(&thread->marked_word) != word) {
        for (int i = 0; i < MARKED_STREAMS; i++)
            atomic_store(&thread->marked[i], NO_STREAM);
        atomic_store(&thread->marked_word, word);
    }
    thread->marked_loaded[marked_slot(stream)] = loaded_functions_in(context);
    atomic_store(&thread->marked[marked_slot(stream)], stream);
    set_last_stream(thread, stream);
}

/* For a thread that changes between streams: the stream is marked, but was not the last one. */
static bool enter_marked_stream(struct thread *thread, CUstream stream) {
    if (atomic_load_explicit(&thread->marked[marked_slot(stream)], memory_order_relaxed) != stream)
        return false;
    DEPTH_ADD(thread, 1u, __ATOMIC_RELAXED);
    atomic_signal_fence(memory_order_seq_cst);
    if (gate_word() == atomic_load_explicit(&thread->marked_word, memory_order_relaxed)) {
        set_last_stream(thread, stream);
        return true;
    }
    gate_leave(thread);
    return false;
}

static bool has_cached_stream(struct thread *thread, CUstream stream, uint32_t word) {
    return atomic_load(&thread->marked_word) == word && atomic_load(&thread->marked[marked_slot(stream)]) == stream;
}

/* The device has no room for the program's memory yet. The wait may last, so it can be interrupted. */
static bool is_interrupted(struct thread *thread, uint64_t *since) {
    if (!*since) {
        *since = now_ns();
        interrupt_begin(thread, *since);
    }
    bool interrupted = interrupt_pending(thread);
    if (interrupted)
        log_message(LOG_INFO, "interrupted a call that waited for room on the device");
    return interrupted;
}

/* The driver takes calls, the call has no work for the device now, and its memory is on the device and stays there while
 * it is in the gate. */
static bool needs_no_turn(CUstream stream) {
    return !is_hibernated() && (stream == NO_STREAM || is_capturing(stream)) && residency_is_mapped();
}

CUresult gate_enter_slow(struct thread *thread, CUstream stream) {
    if (enter_marked_stream(thread, stream))
        return CUDA_SUCCESS;
    bool nested = thread->depth > 0, has_work = stream != NO_STREAM;
    struct throttling throttling = {0};
    uint64_t shortage_since = 0;
    for (;;) {
        DEPTH_ADD(thread, 1u, __ATOMIC_RELAXED);
        atomic_thread_fence(memory_order_seq_cst); /* for a refused membarrier, and until this thread is listed */
        uint32_t state = atomic_load(&shim.state);
        if (state == SHIM_UNINITIALISED)
            return CUDA_SUCCESS;
        if (state == SHIM_DISABLED) {
            cache_stream(thread, stream, NULL, gate_word());
            return CUDA_SUCCESS;
        }
        bool is_registered = threads_register(thread);
        if (!is_registered)
            log_once(LOG_DEBUG, "admit work from a thread's last destructors, which no drain waits for");
        atomic_thread_fence(memory_order_seq_cst); /* the agent may have scanned before this thread was listed */
        if (unlikely(atomic_load(&shim.is_ending)) && !nested) { /* the driver would return the same, after a turn */
            gate_leave(thread);
            throttling_ends(&throttling);
            return CUDA_ERROR_DEINITIALIZED;
        }
        uint32_t throttled_word = gate_word(), word = without_throttle(throttled_word);
        if (may_enter(thread, word)) {
            /* In this order: this call uses restored memory even if the turn has ended meanwhile. */
            if (throttled_word == word && throttle_update(word)) {
                gate_leave(thread);
                continue;
            }
            bool is_cached = has_cached_stream(thread, stream, word);
            CUresult restored = is_cached ? CUDA_SUCCESS : residency_restore(word);
            if (restored != CUDA_SUCCESS) {
                gate_leave(thread);
                if (restored == CUDA_ERROR_NOT_READY && !is_interrupted(thread, &shortage_since))
                    continue;
                throttling_ends(&throttling);
                return restored == CUDA_ERROR_NOT_READY ? CUDA_ERROR_OPERATING_SYSTEM : restored;
            }
            CUcontext context = has_work && !is_cached ? streams_mark(stream) : NULL;
            bool marked = has_work && (is_cached || context);
            if (is_step(word) && has_work)
                thread->stepped = word; /* so that the next call takes the slow path again */
            else if (marked && is_cached)
                set_last_stream(thread, stream);
            else if (marked && is_registered && !shim.fences)
                cache_stream(thread, stream, context, word);
            uint64_t pause = throttled_word != word && marked && !nested && !throttling.interrupted
                                 ? throttle_admit(thread, stream)
                                 : 0;
            if (!pause) {
                throttling_ends(&throttling);
                return CUDA_SUCCESS;
            }
            gate_leave(thread);
            wait_for_throttle(thread, &throttling, pause);
            continue;
        }
        if (nested) { /* the outer call holds the drain off */
            if (has_work)
                streams_mark(stream);
            return CUDA_SUCCESS;
        }
        if (needs_no_turn(stream))
            return CUDA_SUCCESS;
        gate_leave(thread);
        throttling_ends(&throttling);
        CUresult verdict = wait_for_opening(thread, throttling.interrupted);
        throttling = (struct throttling){0};
        if (verdict != CUDA_SUCCESS)
            return verdict;
    }
}

static void begin_shortage(uint64_t now) {
    threads_register(&this_thread); /* which also finds out whether it is the main thread */
    interrupt_begin(&this_thread, now);
}

static bool shortage_is_interrupted(void) {
    return interrupt_pending(&this_thread);
}

static CUresult wait_for_turn(void) {
    CUresult result = gate_enter(&this_thread, DEFAULT);
    if (result == CUDA_SUCCESS)
        gate_leave(&this_thread);
    return result;
}

static bool has_work(void) {
    return !streams_poll(true);
}

void gate_start(void) {
    static const struct gate_functions functions = {
        .begin_wait = begin_shortage,
        .is_interrupted = shortage_is_interrupted,
        .wait_for_turn = wait_for_turn,
        .has_threads = any_thread_in_gate,
        .has_work = has_work,
    };
    memory_set_gate(&functions);
}
