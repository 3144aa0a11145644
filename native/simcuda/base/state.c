/* The process-wide state: whether the driver may be called, its end, and the devices that the program sees. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>

#include "base/sim.h"
#include "base/waiting.h"

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
    uint32_t state = atomic_load(&sim.state);
    sim.ending = pthread_self();
    while ((state == SIM_READY || state == SIM_LOCKED) && !atomic_compare_exchange_weak(&sim.state, &state, SIM_ENDED))
        ;
    if (state == SIM_LOCKED)
        futex_wake(&sim.state);
    if ((state != SIM_READY && state != SIM_LOCKED) || !sim.params.strict_exit || !atomic_load(&sim.waits))
        return;
    fputs("simulated GPU: the process ends while a thread is inside the driver\n", stderr);
    abort();
}

int sim_lock_calls(void) {
    uint32_t ready = SIM_READY;
    return atomic_compare_exchange_strong(&sim.state, &ready, SIM_LOCKED) ? 0 : -1;
}

void sim_unlock_calls(void) {
    uint32_t locked = SIM_LOCKED;
    atomic_compare_exchange_strong(&sim.state, &locked, SIM_READY);
    futex_wake(&sim.state);
}

/* A host function gets its error at once, because the work that a checkpoint completes contains the host function. */
static CUresult wait_or_refuse(uint32_t state) {
    while (state == SIM_LOCKED && !sim_thread.in_callback) {
        futex_wait(&sim.state, SIM_LOCKED, 0);
        state = atomic_load(&sim.state);
    }
    if (state == SIM_ENDED)
        return refuse_after_end();
    return state == SIM_READY || state == SIM_LOCKED ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult sim_ready(void) {
    uint32_t state = atomic_load_explicit(&sim.state, memory_order_acquire);
    if (__builtin_expect(state != SIM_READY, 0)) {
        CUresult result = wait_or_refuse(state);
        if (result)
            return result;
    }
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

int device_place(int index) {
    return atomic_load_explicit(&sim.place[index], memory_order_relaxed);
}

int device_at(int place) {
    for (int i = 0; i < SIM_MAX_DEVICES; i++)
        if (device_place(i) == place)
            return i;
    return place;
}
