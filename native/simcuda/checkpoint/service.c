/* The thread of a process that locks, checkpoints, restores and unlocks the process on request.
 *
 * The thread sleeps on a word of the machine file, so it costs a process nothing else. The state of the process is in
 * the machine file as well, and only this thread writes it. If the sender of a request dies, the thread gives up a
 * request that still waits, and completes any other one.
 *
 * Source: documentation of the CUDA driver, "CUDA Checkpointing"; README of NVIDIA/cuda-checkpoint. */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/prctl.h>

#include "base/simlog.h"
#include "base/waiting.h"
#include "checkpoint/checkpoint.h"
#include "memory/alloc.h"
#include "work/execute.h"

#define POLL_NS 200000ull     /* of the conditions that a request waits for */
#define SAMPLE_NS 50000000ull /* how often the thread checks whether the sender has ended */
#define PART (8ull << 20)     /* bytes that a copy reserves on the link at a time */

static _Atomic uint32_t *own_state(void) {
    return &sim.machine->checkpoint[sim.slot].state;
}

static int is_past_calls(void) {
    return atomic_load(&sim.waits) == 0;
}

/* Wait for a condition. Return an error if the process or the sender ends before, or after the timeout (0: none). */
static CUresult await(const struct machine_request *request, int (*is_met)(void), uint32_t timeout_ms) {
    uint64_t begin = sim_now(), sampled = begin, now;
    while (!is_met()) {
        sim_sleep_until((now = sim_now()) + POLL_NS);
        if (timeout_ms && now - begin > timeout_ms * 1000000ull)
            return CUDA_ERROR_NOT_READY;
        if (atomic_load(&sim.state) != SIM_LOCKED)
            return CUDA_ERROR_DEINITIALIZED;
        if (now - sampled > SAMPLE_NS) {
            sampled = now;
            if (machine_is_gone(&request->sender))
                return CUDA_ERROR_NOT_READY;
        }
    }
    return CUDA_SUCCESS;
}

static CUresult lock(const struct machine_request *request) {
    if (sim_lock_calls())
        return CUDA_ERROR_DEINITIALIZED;
    CUresult result = await(request, is_past_calls, request->timeout_ms);
    if (result)
        sim_unlock_calls();
    else
        atomic_store(own_state(), CU_PROCESS_LOCKED);
    return result;
}

/* Take the time of copying all ordinary memory of a device. */
static void spend_copy(int place, enum copy_direction direction) {
    int index = device_at(place);
    const struct sim_device_params *device = &sim.params.device[index];
    uint64_t bytes = machine_ordinary_bytes(sim.machine, place, sim.slot), begin = sim_now(), at = begin;
    for (uint64_t done = 0; done < bytes; done += PART) {
        double part = (double)(bytes - done < PART ? bytes - done : PART);
        uint64_t ns = device_time_scaled(part / (direction == COPY_TO_HOST ? device->d2h : device->h2d));
        at = machine_transfer(sim.machine, index, direction, at, ns) + ns;
        sim_sleep_until(at);
    }
    if (bytes)
        simlog_write(direction == COPY_TO_HOST ? LOG_DEVICE_TO_HOST : LOG_HOST_TO_DEVICE, begin, sim_now(), index, 0,
                     bytes);
}

/* The bytes stay where they are in this process, because the host has them in any case. */
static CUresult save(const struct machine_request *request) {
    if (alloc_exists(1u << ALLOC_MANAGED))
        return CUDA_ERROR_NOT_SUPPORTED;
    CUresult result = await(request, work_is_quiet, 0);
    if (result)
        return result;
    for (int place = 0; place < sim.params.devices; place++)
        spend_copy(place, COPY_TO_HOST);
    for (int place = 0; place < sim.params.devices; place++)
        machine_save(sim.machine, place, sim.slot);
    atomic_store(own_state(), CU_PROCESS_CHECKPOINTED);
    return CUDA_SUCCESS;
}

/* As with NVIDIA's driver 580, a restore without room is the last one (NVIDIA/cuda-checkpoint, issue 44). A process that
 * has opened memory of another process is not restored. */
static CUresult restore(const struct machine_request *request) {
    static int has_failed; /* used by the thread alone */
    int to[SIM_MAX_DEVICES];
    uint64_t evicted[SIM_MAX_DEVICES] = {0};
    CUresult result = device_map_read(request, to);
    if (result)
        return result;
    if (machine_has_opened(sim.machine, sim.slot))
        return CUDA_ERROR_INVALID_VALUE;
    if (has_failed)
        return CUDA_ERROR_OPERATING_SYSTEM;
    has_failed = machine_restore(sim.machine, sim.slot, to, evicted);
    if (has_failed)
        return CUDA_ERROR_OUT_OF_MEMORY;
    device_map_apply(to);
    for (int place = 0; place < sim.params.devices; place++) {
        machine_spend_eviction(sim.machine, device_at(place), evicted[place]);
        spend_copy(place, COPY_TO_DEVICE);
    }
    atomic_store(own_state(), CU_PROCESS_LOCKED);
    return CUDA_SUCCESS;
}

static CUresult unlock(const struct machine_request *request) {
    (void)request;
    atomic_store(own_state(), CU_PROCESS_RUNNING);
    sim_unlock_calls();
    return CUDA_SUCCESS;
}

static CUresult perform(const struct machine_request *request) {
    static const struct {
        uint32_t state;
        CUresult (*run)(const struct machine_request *request);
    } operations[] = {
        [CHECKPOINT_LOCK] = {CU_PROCESS_RUNNING, lock},
        [CHECKPOINT_SAVE] = {CU_PROCESS_LOCKED, save},
        [CHECKPOINT_RESTORE] = {CU_PROCESS_CHECKPOINTED, restore},
        [CHECKPOINT_UNLOCK] = {CU_PROCESS_LOCKED, unlock},
    };
    const struct machine_process *own = &sim.machine->process[sim.slot];
    if (request->target.pid != own->pid || request->target.start_time != own->start_time ||
        request->operation < CHECKPOINT_LOCK || request->operation > CHECKPOINT_UNLOCK)
        return CUDA_ERROR_INVALID_VALUE; /* meant for the process that had the slot before */
    if (atomic_load(own_state()) != operations[request->operation].state)
        return CUDA_ERROR_ILLEGAL_STATE;
    return operations[request->operation].run(request);
}

static void *serve(void *unused) {
    struct machine_request request;
    prctl(PR_SET_NAME, "simcuda", 0, 0, 0);
    machine_receive_requests(sim.machine, sim.slot);
    for (;;) {
        machine_await_request(sim.machine, sim.slot, &request);
        machine_answer(sim.machine, sim.slot, (uint32_t)perform(&request));
    }
    return unused;
}

void checkpoint_start(void) {
    sigset_t all, before;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&thread, NULL, serve, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed)
        return;
    pthread_detach(thread);
    machine_await_receiver(sim.machine, sim.slot);
}
