/* The process-wide state: whether the driver may be called, its end, and the devices that the program sees. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>

#include "base/sim.h"

struct sim_state sim = {.lock = PTHREAD_MUTEX_INITIALIZER, .capture_lock = PTHREAD_MUTEX_INITIALIZER, .slot = -1};
__thread struct sim_thread sim_thread __attribute__((tls_model("initial-exec")));

/* The driver's global state ends with the process, and calls after that are undefined (CUDA programming guide,
 * "Initialization"). The thread that ends the process gets an error. Another thread may crash. */
static CUresult refuse_after_end(void) {
    if (sim.params.strict_exit && !pthread_equal(sim.ending, pthread_self())) {
        fputs("simulated GPU: a thread uses the driver after the driver has ended with the process\n", stderr);
        abort();
    }
    return CUDA_ERROR_DEINITIALIZED;
}

void sim_end(void) {
    int ready = SIM_READY;
    sim.ending = pthread_self();
    if (!atomic_compare_exchange_strong(&sim.state, &ready, SIM_ENDED) || !sim.params.strict_exit ||
        !atomic_load(&sim.waits))
        return;
    fputs("simulated GPU: the process ends while a thread is inside the driver\n", stderr);
    abort();
}

CUresult sim_ready(void) {
    int state = atomic_load_explicit(&sim.state, memory_order_acquire);
    if (__builtin_expect(state != SIM_READY, 0))
        return state == SIM_ENDED ? refuse_after_end() : CUDA_ERROR_NOT_INITIALIZED;
    if (__builtin_expect(sim_thread.in_callback, 0))
        return CUDA_ERROR_NOT_PERMITTED; /* host functions must not call the driver */
    return CUDA_SUCCESS;
}

CUresult device_of(CUdevice ordinal, int *index) {
    if (ordinal < 0 || ordinal >= sim.visible_count)
        return CUDA_ERROR_INVALID_DEVICE;
    *index = sim.visible[ordinal];
    return CUDA_SUCCESS;
}

CUdevice ordinal_of(int index) {
    for (int i = 0; i < sim.visible_count; i++)
        if (sim.visible[i] == index)
            return i;
    return 0;
}
