/* Ordinary memory of a checkpointed process: its bytes leave the device, and come back there or to another device. */
#include "machine/machine.h"

void machine_save(struct machine *machine, int place, int slot) {
    struct machine_device *device = &machine->device[place];
    struct machine_share *share = &device->share[slot];
    machine_lock_device(machine, place);
    device->used -= share->plain;
    share->saved += share->plain;
    share->is_saved = 1;
    share->plain = 0;
    machine_unlock_device(machine, place);
}

uint64_t machine_ordinary_bytes(struct machine *machine, int place, int slot) {
    machine_lock_device(machine, place);
    uint64_t bytes = machine->device[place].share[slot].plain + machine->device[place].share[slot].saved;
    machine_unlock_device(machine, place);
    return bytes;
}

/* The devices are locked. */
static void put(struct machine_device *device, int slot, uint64_t bytes) {
    device->share[slot].plain = bytes;
    device->used += bytes;
}

static int try_restore(struct machine *machine, int slot, const int to[SIM_MAX_DEVICES],
                       uint64_t evicted[SIM_MAX_DEVICES]) {
    int devices = machine->params.devices, result = 0;
    for (int i = 0; i < devices; i++)
        machine_lock_device(machine, i);
    for (int i = 0; i < devices && !result; i++)
        result = machine_make_room(machine, to[i], machine->device[i].share[slot].saved, &evicted[to[i]]);
    for (int i = 0; i < devices && !result; i++)
        put(&machine->device[to[i]], slot, machine->device[i].share[slot].saved);
    for (int i = 0; i < devices && !result; i++)
        machine->device[i].share[slot].saved = machine->device[i].share[slot].is_saved = 0;
    for (int i = devices; i-- > 0;)
        machine_unlock_device(machine, i);
    return result;
}

int machine_restore(struct machine *machine, int slot, const int to[SIM_MAX_DEVICES],
                    uint64_t evicted[SIM_MAX_DEVICES]) {
    if (try_restore(machine, slot, to, evicted) == 0)
        return 0;
    machine_reap(machine, 1);
    return try_restore(machine, slot, to, evicted);
}
