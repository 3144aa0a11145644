/* Interface between the files of the hooks. Nothing below this folder includes it. */
#ifndef GPUSHARE_HOOKS_H
#define GPUSHARE_HOOKS_H

#include "agent/agent.h"
#include "gate/gate.h"

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

extern void *const hook_wrappers[HOOK_COUNT]; /* wrappers.c; NULL: only used */

void graphs_count_launch(CUgraphExec graph, struct counters *counters); /* graphs.c */
bool is_redirected(CUdeviceptr address);                                /* memory_queries.c */
bool is_hooked_nvml_name(const char *name);                             /* nvml.c */
void *nvml_replace(void *found, const char *name);

#pragma GCC visibility pop

#endif
