/* Checkpoints of a process, this one or another one of the user. The calls need no initialised driver, because they only
 * send requests to the process (checkpoint/service.c).
 *
 * Source: documentation of the CUDA driver, "CUDA Checkpointing"; README of NVIDIA/cuda-checkpoint. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <string.h>

#include "base/exports.h"
#include "checkpoint/checkpoint.h"

struct target {
    struct machine *machine;
    int slot;
    struct machine_process process;
};

static CUresult absent(int pid) {
    uint64_t start_time;
    return machine_process_birth(pid, &start_time) ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_ERROR_NOT_INITIALIZED;
}

static void leave(const struct target *target) {
    if (target->machine && target->machine != sim.machine)
        machine_detach(target->machine);
}

static CUresult reach(int pid, struct target *target) {
    struct sim_params params;
    char problem[512];
    if (sim_thread.in_callback || atomic_load(&sim.state) == SIM_ENDED)
        return sim_ready();
    if (pid <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (kill(pid, 0))
        return errno == ESRCH ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_ERROR_NOT_PERMITTED;
    target->machine = sim.machine;
    if (!target->machine && sim_params_load(&params, problem, sizeof problem) == 0)
        target->machine = machine_attach(params.machine, 1);
    target->slot = target->machine ? machine_find_process(target->machine, pid, &target->process) : -1;
    if (target->slot >= 0)
        return CUDA_SUCCESS;
    leave(target);
    return absent(pid);
}

static CUresult request(int pid, struct machine_request *request) {
    struct target target;
    uint32_t answer;
    CUresult result = reach(pid, &target);
    if (result)
        return result;
    request->target = target.process;
    result = machine_send_request(target.machine, target.slot, request, &answer) ? absent(pid) : (CUresult)answer;
    leave(&target);
    return result;
}

static int is_zero(const void *bytes, size_t size) {
    const unsigned char *byte = bytes;
    while (size && !*byte)
        byte++, size--;
    return !size;
}

CUresult cuCheckpointProcessGetState(int pid, int *state) {
    struct target target;
    if (!state)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = reach(pid, &target);
    if (result)
        return result;
    *state = (int)atomic_load(&target.machine->checkpoint[target.slot].state);
    leave(&target);
    return CUDA_SUCCESS;
}

CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *thread) {
    struct target target;
    if (!thread)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = reach(pid, &target);
    if (result)
        return result;
    *thread = atomic_load(&target.machine->checkpoint[target.slot].thread);
    leave(&target);
    return CUDA_SUCCESS;
}

CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args) {
    struct machine_request lock = {.operation = CHECKPOINT_LOCK, .timeout_ms = args ? args->timeout_ms : 0};
    if (args && (args->reserved0 || !is_zero(args->reserved1, sizeof args->reserved1)))
        return CUDA_ERROR_INVALID_VALUE;
    return request(pid, &lock);
}

CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args) {
    struct machine_request save = {.operation = CHECKPOINT_SAVE};
    return args && !is_zero(args, sizeof *args) ? CUDA_ERROR_INVALID_VALUE : request(pid, &save);
}

CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args) {
    struct machine_request restore = {.operation = CHECKPOINT_RESTORE, .pairs = args ? args->pair_count : 0};
    if (args && (!is_zero(args->reserved, sizeof args->reserved) || args->pair_count > SIM_MAX_DEVICES ||
                 (args->pair_count && !args->pairs)))
        return CUDA_ERROR_INVALID_VALUE;
    for (uint32_t i = 0; i < restore.pairs; i++) {
        memcpy(restore.pair[i][0], args->pairs[i].old_uuid.bytes, sizeof restore.pair[i][0]);
        memcpy(restore.pair[i][1], args->pairs[i].new_uuid.bytes, sizeof restore.pair[i][1]);
    }
    return request(pid, &restore);
}

CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args) {
    struct machine_request unlock = {.operation = CHECKPOINT_UNLOCK};
    return args && !is_zero(args, sizeof *args) ? CUDA_ERROR_INVALID_VALUE : request(pid, &unlock);
}
