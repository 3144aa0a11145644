/* The gate's fast path. Part of shim.h. */
#ifndef GPUSHARE_GATE_H
#define GPUSHARE_GATE_H

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

#endif
