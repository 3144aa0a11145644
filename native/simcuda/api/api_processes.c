/* List of the processes with memory on the simulated devices, for programs that do not use the devices themselves. The
 * function reads the shared file without its locks, so that no process of the devices waits for the function. */
#define _GNU_SOURCE
#include <stdio.h>

#include "base/exports.h"
#include "machine/machine.h"

int simcuda_processes(char *json, size_t size) {
    struct sim_params params;
    char problem[512];
    if (!json)
        size = 0;
    if (sim_params_load(&params, problem, sizeof problem))
        return -1;
    const struct machine *machine = machine_attach(params.machine, 0);
    int n = snprintf(json, size, "["), devices = machine ? machine->params.devices : 0;
    for (int i = 0; i < devices && i < SIM_MAX_DEVICES; i++) {
        const struct machine_device *device = &machine->device[i];
        uint64_t bytes[MACHINE_SLOTS];
        for (int slot = 0; slot < MACHINE_SLOTS; slot++)
            bytes[slot] = device->share[slot].plain;
        for (uint32_t r = 0; r < device->range_end && r < MACHINE_RANGES; r++) {
            uint32_t owner = device->range[r].owner;
            if (owner && owner <= MACHINE_SLOTS)
                bytes[owner - 1] += device->range[r].resident;
        }
        for (int slot = 0; slot < MACHINE_SLOTS; slot++) {
            struct machine_process process = machine->process[slot];
            if (!process.pid || !bytes[slot] || machine_is_gone(&process))
                continue;
            size_t used = (size_t)n < size ? (size_t)n : size;
            n += snprintf(json ? json + used : NULL, size - used, "%s{\"index\": %d, \"pid\": %d, \"memory\": %llu}",
                          n > 1 ? ", " : "", i, (int)process.pid, (unsigned long long)bytes[slot]);
        }
    }
    if (machine)
        machine_detach(machine);
    size_t used = (size_t)n < size ? (size_t)n : size;
    n += snprintf(json ? json + used : NULL, size - used, "]");
    return n;
}
