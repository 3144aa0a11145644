/* Device memory that processes share: counted once, and freed when the last process releases it. */
#include <string.h>

#include "base/sim.h"
#include "machine/machine.h"

/* The device is locked. */
static struct machine_shared *find(struct machine_device *device, uint64_t inode) {
    for (uint32_t i = 0; i < device->shared_end; i++)
        if (device->shared[i].inode == inode)
            return &device->shared[i];
    return NULL;
}

static void hold(struct machine_shared *entry, int slot) {
    entry->holders[slot / 64] |= 1ull << slot % 64;
}

/* Return the bytes that this frees. */
static uint64_t let_go(struct machine_shared *entry, int slot) {
    uint64_t left = 0;
    entry->holders[slot / 64] &= ~(1ull << slot % 64);
    for (int i = 0; i < MACHINE_SLOTS / 64; i++)
        left |= entry->holders[i];
    if (left)
        return 0;
    entry->inode = 0;
    return entry->bytes;
}

int machine_shared_open(struct machine *machine, int device_index, int slot, uint64_t inode, uint64_t bytes) {
    device_index = device_place(device_index);
    struct machine_device *device = &machine->device[device_index];
    machine_lock_device(machine, device_index);
    int is_saved = device->share[slot].is_saved; /* then the bytes are not on the device */
    struct machine_shared *entry = is_saved ? NULL : find(device, 0);
    if (!entry && !is_saved && device->shared_end < MACHINE_SHARED)
        entry = &device->shared[device->shared_end++];
    if (entry) {
        memset(entry->holders, 0, sizeof entry->holders);
        entry->bytes = bytes;
        entry->owner = slot;
        hold(entry, slot);
        device->share[slot].plain -= bytes;
        entry->inode = inode;
    }
    machine_unlock_device(machine, device_index);
    return entry ? 0 : -1;
}

int machine_shared_join(struct machine *machine, int slot, uint64_t inode, int *device, uint64_t *bytes) {
    for (int i = 0; i < machine->params.devices; i++) {
        machine_lock_device(machine, i);
        struct machine_shared *entry = find(&machine->device[i], inode);
        if (entry) {
            hold(entry, slot);
            *device = device_at(i);
            *bytes = entry->bytes;
        }
        machine_unlock_device(machine, i);
        if (entry)
            return 0;
    }
    return -1;
}

void machine_shared_leave(struct machine *machine, int device_index, int slot, uint64_t inode) {
    device_index = device_place(device_index);
    struct machine_device *device = &machine->device[device_index];
    machine_lock_device(machine, device_index);
    struct machine_shared *entry = find(device, inode);
    if (entry)
        device->used -= let_go(entry, slot);
    machine_unlock_device(machine, device_index);
}

int machine_has_opened(struct machine *machine, int slot) {
    int found = 0;
    for (int i = 0; i < machine->params.devices; i++) {
        const struct machine_device *device = &machine->device[i];
        machine_lock_device(machine, i);
        for (uint32_t e = 0; e < device->shared_end; e++)
            found |= device->shared[e].inode && device->shared[e].owner != slot &&
                     (device->shared[e].holders[slot / 64] >> slot % 64 & 1);
        machine_unlock_device(machine, i);
    }
    return found;
}

void machine_shared_remove(struct machine_device *device, int slot) {
    for (uint32_t i = 0; i < device->shared_end; i++)
        if (device->shared[i].inode)
            let_go(&device->shared[i], slot);
}
