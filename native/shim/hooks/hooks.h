/* Interface of the hooks for each other and for the wrappers. */
#ifndef GPUSHARE_HOOKS_H
#define GPUSHARE_HOOKS_H

#include "agent/agent.h"
#include "gate/gate.h"
#include "memory/memory.h"

#pragma GCC visibility push(hidden)

/* Enter the gate as gate_enter does. The first call of the process initialises the shim; if that fails, the driver's
 * own result shows what is wrong. */
static inline CUresult hook_enter(struct thread *thread, CUstream stream) {
    if (gate_try(thread, stream))
        return CUDA_SUCCESS;
    gate_leave(thread);
    if (unlikely(atomic_load(&shim.state) == SHIM_UNINITIALISED))
        shim_start();
    return gate_enter_slow(thread, stream);
}

/* Make a call that takes device memory which no allocation shows, as a new context does. A full device gets room by the
 * eviction of other clients' memory, and the call is made again. `is_refused`: the gate refused the call. */
#define CALL_WITH_ROOM(call) CALL_AT_GATE_WITH_ROOM(call, false)
#define CALL_AT_GATE_WITH_ROOM(call, is_refused)                                                                       \
    ({                                                                                                                 \
        struct shortage lacking = {0};                                                                                 \
        CUresult result;                                                                                               \
        do                                                                                                             \
            result = (call);                                                                                           \
        while (unlikely((result == CUDA_ERROR_OUT_OF_MEMORY && !(is_refused)) || lacking.began) &&                     \
               can_wait_for_room() && room_make(&lacking, &result));                                                   \
        result;                                                                                                        \
    })

/* Make a call inside the gate, where all memory is on the device until the call has ended. */
#define CALL_WITH_MEMORY(call)                                                                                         \
    ({                                                                                                                 \
        CUresult entered = hook_enter(&this_thread, NO_STREAM);                                                        \
        if (entered == CUDA_SUCCESS) {                                                                                 \
            entered = (call);                                                                                          \
            gate_leave(&this_thread);                                                                                  \
        }                                                                                                              \
        entered;                                                                                                       \
    })

/* A call inside another call of the program holds off the end of the turn. */
static inline bool can_wait_for_room(void) {
    return atomic_load_explicit(&shim.state, memory_order_relaxed) == SHIM_ACTIVE && !this_thread.depth;
}

static inline bool is_swapping(void) {
    return shim_is_active() && shim.mode->number == GPUSHARE_MEMORY_SWAP;
}

/* Load the code of a kernel of a library into the current context, if a launch in this stream may be the first one there.
 * Inside the gate. CUDA_ERROR_OUT_OF_MEMORY: there is no room; any other error is left to the launch. */
CUresult kernel_load(const struct thread *thread, CUfunction function, CUstream stream); /* modules.c */
void graphs_count_launch(CUgraphExec graph, struct counters *counters);                  /* graphs.c */
bool is_redirected(CUdeviceptr address);                                                 /* memory_queries.c */
bool is_hooked_nvml_name(const char *name);                                              /* nvml.c */
void *nvml_replace(void *found, const char *name);

/* --- pools.c --- */

bool pool_home(CUmemoryPool pool, CUdevice *home); /* the device of the pool's memory; false: unknown */
bool pool_is_of_host(CUmemoryPool pool);
/* Where an allocation is made: in a context on the device of the pool. NULL: the driver makes it. */
struct pool_place {
    CUmemoryPool pool;
    CUcontext context;
};
struct pool_place pool_place(CUmemoryPool pool, CUstream stream);
struct pool_place pool_place_of_stream(CUstream stream); /* of the current pool of the stream's device */

#pragma GCC visibility pop

#endif
