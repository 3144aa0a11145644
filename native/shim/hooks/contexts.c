/* Hooks on streams, contexts and captures. The end of a stream or context, and the beginning of a capture, must not
 * lose work that a drain waits for. The cached default stream of a thread holds only as long as its current context. */
#include "hooks/hooks.h"
#include "memory/memory.h"

#define MAX_SLEEP_NS (200 * NS_PER_MS) /* bounds the cost of a lost wake-up */

static bool is_active(void) {
    return atomic_load_explicit(&shim.state, memory_order_relaxed) == SHIM_ACTIVE;
}

static bool is_default(CUstream stream) {
    return (uintptr_t)stream <= (uintptr_t)CU_STREAM_PER_THREAD;
}

/* All default streams hash to the same place. */
static void drop_default_stream(void) {
    if (is_default(atomic_load_explicit(&this_thread.marked[0], memory_order_relaxed)))
        atomic_store_explicit(&this_thread.marked[0], NO_STREAM, memory_order_relaxed);
    if (is_default(atomic_load_explicit(&this_thread.last_stream, memory_order_relaxed)))
        atomic_store_explicit(&this_thread.last_stream, NO_STREAM, memory_order_relaxed);
}

/* Between the orphan event and the call, no other thread of the shim queries the stream. */
#define END_STREAM(call)                                                                                               \
    do {                                                                                                               \
        if (!is_active())                                                                                              \
            return (call);                                                                                             \
        queries_lock();                                                                                                \
        streams_untrack(stream, true);                                                                                 \
        captures_remove(stream);                                                                                       \
        deferred_stream_ends(stream);                                                                                  \
        CUresult result = (call);                                                                                      \
        queries_unlock();                                                                                              \
        return result;                                                                                                 \
    } while (0)

CUresult hook_cuStreamDestroy(CUstream stream) {
    END_STREAM(REAL(cuStreamDestroy)(stream));
}

CUresult hook_cuStreamDestroy_v2(CUstream stream) {
    END_STREAM(REAL(cuStreamDestroy_v2)(stream));
}

/* Evicted memory returns first, because a call within the capture would otherwise wait for room, or fail. */
#define BEGIN_CAPTURE(mode, call)                                                                                      \
    do {                                                                                                               \
        if (!is_active())                                                                                              \
            return (call);                                                                                             \
        return CALL_WITH_MEMORY(({                                                                                     \
            queries_lock();                                                                                            \
            captures_expect_stream();                                                                                  \
            streams_untrack(stream, false);                                                                            \
            streams_note_capture(twin ? per_thread(stream) : stream);                                                  \
            CUresult result = (call);                                                                                  \
            if (result == CUDA_SUCCESS)                                                                                \
                captures_add(twin ? per_thread(stream) : stream, (mode));                                              \
            queries_unlock();                                                                                          \
            result;                                                                                                    \
        }));                                                                                                           \
    } while (0)

CUresult hook_cuStreamBeginCapture(bool twin, CUstream stream) {
    BEGIN_CAPTURE(CU_STREAM_CAPTURE_MODE_GLOBAL, REAL_TWIN(cuStreamBeginCapture, twin)(stream));
}

CUresult hook_cuStreamBeginCapture_v2(bool twin, CUstream stream, int mode) {
    BEGIN_CAPTURE(mode, REAL_TWIN(cuStreamBeginCapture_v2, twin)(stream, mode));
}

CUresult hook_cuStreamBeginCaptureToGraph(bool twin, CUstream stream, CUgraph graph, const CUgraphNode *nodes,
                                          const void *edges, size_t count, int mode) {
    BEGIN_CAPTURE(mode, REAL_TWIN(cuStreamBeginCaptureToGraph, twin)(stream, graph, nodes, edges, count, mode));
}

CUresult hook_cuStreamBeginCaptureToCig(bool twin, CUstream stream, void *parameters) {
    BEGIN_CAPTURE(CU_STREAM_CAPTURE_MODE_RELAXED, REAL_TWIN(cuStreamBeginCaptureToCig, twin)(stream, parameters));
}

CUresult hook_cuStreamBeginRecaptureToGraph(bool twin, CUstream stream, int mode, CUgraph graph, void *f, void *data) {
    BEGIN_CAPTURE(mode, REAL_TWIN(cuStreamBeginRecaptureToGraph, twin)(stream, mode, graph, f, data));
}

/* A capture goes on after some errors, such as a call for another stream of it. */
#define END_CAPTURE(call)                                                                                              \
    do {                                                                                                               \
        if (!captures_any())                                                                                           \
            return (call);                                                                                             \
        queries_lock();                                                                                                \
        CUresult result = (call);                                                                                      \
        if (!is_capturing(twin ? per_thread(stream) : stream))                                                         \
            captures_remove(twin ? per_thread(stream) : stream);                                                       \
        queries_unlock();                                                                                              \
        return result;                                                                                                 \
    } while (0)

CUresult hook_cuStreamEndCapture(bool twin, CUstream stream, CUgraph *graph) {
    END_CAPTURE(REAL_TWIN(cuStreamEndCapture, twin)(stream, graph));
}

CUresult hook_cuStreamEndCaptureToCig(bool twin, CUstream stream) {
    END_CAPTURE(REAL_TWIN(cuStreamEndCaptureToCig, twin)(stream));
}

/* The stream joins a capture if the event was recorded in one. No query can show that beforehand. */
CUresult hook_cuStreamWaitEvent(bool twin, CUstream stream, CUevent event, unsigned flags) {
    if (!captures_any())
        return REAL_TWIN(cuStreamWaitEvent, twin)(stream, event, flags);
    queries_lock();
    captures_expect_stream();
    streams_untrack(stream, false);
    streams_note_capture(twin ? per_thread(stream) : stream);
    CUresult result = REAL_TWIN(cuStreamWaitEvent, twin)(stream, event, flags);
    queries_unlock();
    return result;
}

#define SWITCH(call)                                                                                                   \
    do {                                                                                                               \
        CUresult result = (call);                                                                                      \
        drop_default_stream();                                                                                         \
        residency_use_current_context();                                                                               \
        return result;                                                                                                 \
    } while (0)

CUresult hook_cuCtxCreate(CUcontext *context, unsigned flags, CUdevice device) {
    SWITCH(CALL_WITH_ROOM(REAL(cuCtxCreate)(context, flags, device)));
}

CUresult hook_cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device) {
    SWITCH(CALL_WITH_ROOM(REAL(cuCtxCreate_v2)(context, flags, device)));
}

CUresult hook_cuCtxCreate_v3(CUcontext *context, void *affinity, int count, unsigned flags, CUdevice device) {
    SWITCH(CALL_WITH_ROOM(REAL(cuCtxCreate_v3)(context, affinity, count, flags, device)));
}

CUresult hook_cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned flags, CUdevice device) {
    SWITCH(CALL_WITH_ROOM(REAL(cuCtxCreate_v4)(context, parameters, flags, device)));
}

CUresult hook_cuCtxSetCurrent(CUcontext context) {
    SWITCH(REAL(cuCtxSetCurrent)(context));
}

CUresult hook_cuCtxPushCurrent(CUcontext context) {
    SWITCH(REAL(cuCtxPushCurrent)(context));
}

CUresult hook_cuCtxPushCurrent_v2(CUcontext context) {
    SWITCH(REAL(cuCtxPushCurrent_v2)(context));
}

CUresult hook_cuCtxPopCurrent(CUcontext *context) {
    SWITCH(REAL(cuCtxPopCurrent)(context));
}

CUresult hook_cuCtxPopCurrent_v2(CUcontext *context) {
    SWITCH(REAL(cuCtxPopCurrent_v2)(context));
}

/* Memory that ends with a context no longer counts for the client. */
static void release_context_memory(CUcontext context) {
    struct entry_sums ended = {0};
    ledger_drop_context(context, &ended);
    deferred_drop_context(context, &ended);
    account_release_entries(&ended);
    graphs_drop_context(context);
}

#define DESTROY(call)                                                                                                  \
    do {                                                                                                               \
        if (!is_active())                                                                                              \
            return (call);                                                                                             \
        loaded_functions_forget(context);                                                                              \
        queries_lock();                                                                                                \
        bool busy = streams_untrack_context(context, NULL);                                                            \
        queries_unlock();                                                                                              \
        residency_pause();                                                                                             \
        CUresult result = (call);                                                                                      \
        residency_resume(result == CUDA_SUCCESS ? context : NULL);                                                     \
        if (busy)                                                                                                      \
            streams_context_destroyed();                                                                               \
        if (result == CUDA_SUCCESS)                                                                                    \
            release_context_memory(context);                                                                           \
        drop_default_stream();                                                                                         \
        return result;                                                                                                 \
    } while (0)

CUresult hook_cuCtxDestroy(CUcontext context) {
    DESTROY(REAL(cuCtxDestroy)(context));
}

CUresult hook_cuCtxDestroy_v2(CUcontext context) {
    DESTROY(REAL(cuCtxDestroy_v2)(context));
}

CUresult hook_cuCtxDetach(CUcontext context) { /* the attach count has been 1 at most since CUDA 4 */
    DESTROY(REAL(cuCtxDetach)(context));
}

/* NULL: there is nothing to untrack. */
static CUcontext tracked_primary(CUdevice device) {
    return is_active() ? primary_context(device) : NULL;
}

/* Only the last release ends the context, and no caller can know which is the last. So the agent uses no context
 * meanwhile. */
#define RELEASE(call)                                                                                                  \
    do {                                                                                                               \
        CUcontext context = tracked_primary(device);                                                                   \
        if (!context)                                                                                                  \
            return (call);                                                                                             \
        loaded_functions_forget(context);                                                                              \
        residency_pause();                                                                                             \
        queries_lock();                                                                                                \
        CUresult result = (call);                                                                                      \
        bool gone = primary_context_has_ended(device);                                                                 \
        if (gone && streams_untrack_context(context, NULL))                                                            \
            streams_context_destroyed();                                                                               \
        queries_unlock();                                                                                              \
        residency_resume(gone ? context : NULL);                                                                       \
        if (gone)                                                                                                      \
            release_context_memory(context);                                                                           \
        drop_default_stream();                                                                                         \
        return result;                                                                                                 \
    } while (0)

CUresult hook_cuDevicePrimaryCtxRelease(CUdevice device) {
    RELEASE(REAL(cuDevicePrimaryCtxRelease)(device));
}

CUresult hook_cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    RELEASE(REAL(cuDevicePrimaryCtxRelease_v2)(device));
}

CUresult hook_cuDevicePrimaryCtxReset(CUdevice device) {
    CUcontext context = tracked_primary(device);
    if (!context)
        return REAL(cuDevicePrimaryCtxReset)(device);
    DESTROY(REAL(cuDevicePrimaryCtxReset)(device));
}

CUresult hook_cuDevicePrimaryCtxReset_v2(CUdevice device) {
    CUcontext context = tracked_primary(device);
    if (!context)
        return REAL(cuDevicePrimaryCtxReset_v2)(device);
    DESTROY(REAL(cuDevicePrimaryCtxReset_v2)(device));
}

/* The green context has retained a primary context, which may end now too. Streams that the green context leaves behind
 * can only be destroyed. */
CUresult hook_cuGreenCtxDestroy(CUgreenCtx green) {
    CUcontext context = NULL, primaries[MAX_DEVICES], gone = NULL;
    if (!is_active() || REAL(cuCtxFromGreenCtx)(&context, green) != CUDA_SUCCESS || !context)
        return REAL(cuGreenCtxDestroy)(green);
    for (int i = 0; i < shim.device_count; i++)
        primaries[i] = primary_context(i);
    loaded_functions_forget(NULL);
    residency_pause();
    queries_lock();
    bool busy = streams_untrack_context(context, green);
    CUresult result = REAL(cuGreenCtxDestroy)(green);
    for (int i = 0; i < shim.device_count; i++)
        if (primaries[i] && primary_context_has_ended(i))
            gone = primaries[i];
    if (gone && streams_untrack_context(gone, NULL))
        streams_context_destroyed();
    queries_unlock();
    residency_resume(gone);
    if (busy)
        streams_context_destroyed();
    if (gone)
        release_context_memory(gone);
    drop_default_stream();
    return result;
}

/* --- queries of streams, which a program may also make outside of its turns --------------------------------------- */

/* The driver does not hold every query of a checkpointed process back: on an H200 cuStreamQuery ended the process with
 * SIGSEGV. So the shim holds these calls back until the process is restored. */
static bool is_checkpointed(void) {
    return unlikely(__atomic_load_n(&shim.checkpointed, __ATOMIC_ACQUIRE));
}

/* The waiting thread counts as one at the gate, so that a hibernated process returns. */
static COLD CUresult wait_until_restored(void) {
    struct thread *thread = &this_thread;
    CUresult result = CUDA_SUCCESS;
    interrupt_begin(thread, now_ns());
    atomic_fetch_add(&shim.waiting, 1);
    gate_publish_waiting();
    agent_wake();
    while (is_checkpointed() && result == CUDA_SUCCESS) {
        futex_wait(&shim.checkpointed, 1, MAX_SLEEP_NS);
        if (atomic_load(&shim.is_ending))
            result = CUDA_ERROR_DEINITIALIZED;
        else if (is_hibernated() && interrupt_pending(thread))
            result = CUDA_ERROR_OPERATING_SYSTEM;
    }
    atomic_fetch_sub(&shim.waiting, 1);
    gate_publish_waiting();
    return result;
}

static CUresult query_begin(void) {
    return is_checkpointed() ? wait_until_restored() : CUDA_SUCCESS;
}

CUresult hook_cuStreamQuery(bool twin, CUstream stream) {
    CUresult result = query_begin();
    if (result != CUDA_SUCCESS)
        return result;
    return twin ? REAL(cuStreamQuery_ptsz)(stream) : REAL(cuStreamQuery)(stream);
}

CUresult hook_cuStreamIsCapturing(bool twin, CUstream stream, int *status) {
    CUresult result = query_begin();
    if (result != CUDA_SUCCESS)
        return result;
    return twin ? REAL(cuStreamIsCapturing_ptsz)(stream, status) : REAL(cuStreamIsCapturing)(stream, status);
}

CUresult hook_cuEventQuery(CUevent event) {
    CUresult result = query_begin();
    return result == CUDA_SUCCESS ? REAL(cuEventQuery)(event) : result;
}
