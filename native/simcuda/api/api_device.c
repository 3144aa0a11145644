/* Initialisation, the version, names of errors, and queries of devices. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "api/api.h"
#include "base/exports.h"
#include "base/simlog.h"
#include "checkpoint/checkpoint.h"
#include "machine/machine.h"

/* The driver's state does not survive a fork: the child may neither call the driver nor start it again. */
static void mark_forked(void) {
    if (atomic_load(&sim.state) == SIM_READY || atomic_load(&sim.state) == SIM_LOCKED)
        atomic_store(&sim.state, SIM_FORKED);
}

static CUresult start(void) {
    char problem[512];
    if (sim_params_load(&sim.params, problem, sizeof problem)) {
        fprintf(stderr, "simulated GPU: %s\n", problem);
        return CUDA_ERROR_SYSTEM_NOT_READY;
    }
    if (sim.params.devices == 0)
        return CUDA_ERROR_NO_DEVICE;
    if ((sim.slot = machine_enter(&sim.machine, &sim.params, problem, sizeof problem)) < 0) {
        fprintf(stderr, "simulated GPU: %s\n", problem);
        return CUDA_ERROR_SYSTEM_NOT_READY;
    }
    for (int i = 0; i < SIM_MAX_DEVICES; i++)
        atomic_store(&sim.place[i], i);
    find_visible_devices();
    if (sim.params.log[0] && simlog_open(sim.params.log, problem, sizeof problem))
        fprintf(stderr, "simulated GPU: %s\n", problem);
    pthread_atfork(NULL, NULL, mark_forked);
    /* As with the real driver, an exit handler that is older than cuInit finds the driver gone (openucx/ucx #11275). */
    atexit(sim_end);
    checkpoint_start();
    return sim.visible_count ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

CUresult cuInit(unsigned flags) {
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    uint32_t state = atomic_load(&sim.state);
    if (state == SIM_READY)
        return CUDA_SUCCESS;
    if (state == SIM_LOCKED || state == SIM_FORKED || state == SIM_ENDED)
        return sim_ready();
    static CUresult refused;
    pthread_mutex_lock(&sim.lock);
    CUresult result = atomic_load(&sim.state) == SIM_READY ? CUDA_SUCCESS : sim.machine ? refused : start();
    refused = result;
    if (!result)
        atomic_store(&sim.state, SIM_READY);
    pthread_mutex_unlock(&sim.lock);
    return result;
}

CUresult cuDriverGetVersion(int *version) {
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = SIM_DRIVER_VERSION;
    return CUDA_SUCCESS;
}

static const struct {
    CUresult value;
    const char *name, *text;
} results[] = {
#define X(name, value, text) {value, #name, text},
    SIM_RESULTS(X)
#undef X
};

static CUresult find_result(CUresult error, size_t *index) {
    for (size_t i = 0; i < sizeof results / sizeof *results; i++)
        if (results[i].value == error)
            return *index = i, CUDA_SUCCESS;
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorName(CUresult error, const char **name) {
    size_t index;
    CUresult result = find_result(error, &index);
    if (name)
        *name = result ? NULL : results[index].name;
    return result;
}

CUresult cuGetErrorString(CUresult error, const char **text) {
    size_t index;
    CUresult result = find_result(error, &index);
    if (text)
        *text = result ? NULL : results[index].text;
    return result;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    int index;
    SIM_ENTER();
    CUresult result = device_of(ordinal, &index);
    if (!result && device)
        *device = ordinal;
    return result;
}

CUresult cuDeviceGetCount(int *count) {
    SIM_ENTER();
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    *count = sim.visible_count;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int size, CUdevice device) {
    int index;
    SIM_ENTER();
    CUresult result = device_of(device, &index);
    if (result)
        return result;
    if (!name || size <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    snprintf(name, (size_t)size, "%s", sim.params.device[index].name);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    int index;
    SIM_ENTER();
    CUresult result = device_of(device, &index);
    if (!result)
        sim_params_uuid(&sim.params, device_place(index), uuid->bytes);
    return result;
}

/* The UUID of the whole device, also for a MIG slice. */
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
    int index;
    SIM_ENTER();
    CUresult result = device_of(device, &index);
    if (!result)
        sim_params_uuid(&sim.params, device_place(whole_device(index)), uuid->bytes);
    return result;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    int index;
    SIM_ENTER();
    CUresult result = device_of(device, &index);
    if (!result)
        *bytes = sim.machine->params.device[device_place(index)].memory;
    return result;
}

CUresult cuDeviceGetPCIBusId(char *id, int size, CUdevice device) {
    int index;
    SIM_ENTER();
    CUresult result = device_of(device, &index);
    if (!result && snprintf(id, (size_t)size, "0000:%02x:00.0", device_place(whole_device(index)) + 1) >= size)
        result = CUDA_ERROR_INVALID_VALUE;
    return result;
}

CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *id) {
    SIM_ENTER();
    for (int i = 0; i < sim.visible_count; i++) {
        char own[16];
        snprintf(own, sizeof own, "0000:%02x:00.0", device_place(whole_device(sim.visible[i])) + 1);
        if (strcasecmp(own, id) == 0)
            return *device = i, CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_DEVICE;
}
