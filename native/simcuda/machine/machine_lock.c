/* The locks of the machine and of its devices, and the repair of a device after a holder's death. */
#define _GNU_SOURCE
#include <errno.h>

#include "machine/machine.h"

uint64_t machine_shared_bytes(const struct machine_device *device) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < device->shared_end; i++)
        if (device->shared[i].inode)
            bytes += device->shared[i].bytes;
    return bytes;
}

void machine_repair_device(struct machine_device *device) {
    uint64_t used = 0;
    for (int i = 0; i < MACHINE_SLOTS; i++)
        used += device->share[i].plain;
    for (uint32_t i = 0; i < device->range_end; i++)
        if (device->range[i].owner)
            used += device->range[i].resident;
    device->used = used + machine_shared_bytes(device);
}

int machine_lock_robust(pthread_mutex_t *lock) {
    if (pthread_mutex_lock(lock) != EOWNERDEAD)
        return 0;
    pthread_mutex_consistent(lock);
    return 1;
}

void machine_lock_device(struct machine *machine, int device) {
    if (machine_lock_robust(&machine->device[device].lock))
        machine_repair_device(&machine->device[device]);
}

void machine_unlock_device(struct machine *machine, int device) {
    pthread_mutex_unlock(&machine->device[device].lock);
}
