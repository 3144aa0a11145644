/* Device memory as all processes share it: ordinary bytes, and the resident part of unified memory; and the link. */
#include "base/sim.h"
#include "base/waiting.h"
#include "machine/machine.h"

/* Evict `bytes` of unified memory, from the ranges that got their pages earliest, and from `spare` only when nothing
 * else is left. Return how much was found. The device is locked. */
static uint64_t evict(struct machine_device *device, uint64_t bytes, int spare) {
    uint64_t found = 0;
    while (found < bytes) {
        int victim = -1;
        for (uint32_t i = 0; i < device->range_end; i++) {
            const struct machine_range *range = &device->range[i];
            if (range->owner && range->resident && (int)i != spare &&
                (victim < 0 || range->populated < device->range[victim].populated))
                victim = (int)i;
        }
        if (victim < 0 && spare >= 0 && device->range[spare].resident)
            victim = spare;
        if (victim < 0)
            break;
        struct machine_range *range = &device->range[victim];
        uint64_t blocks = (bytes - found + MACHINE_BLOCK - 1) / MACHINE_BLOCK * MACHINE_BLOCK;
        uint64_t part = range->resident < blocks ? range->resident : blocks;
        range->resident -= part;
        device->used -= part;
        found += part;
    }
    device->evicted += found;
    return found;
}

static uint64_t room(const struct machine_device *device, uint64_t capacity) {
    return device->used < capacity ? capacity - device->used : 0;
}

/* Return the unused bytes of all ranges, after taking back the bytes that do not fit beside the used ones. The device is
 * locked. Source: open-gpu-kernel-modules 595.45.04, uvm_va_block.c, block_clear_resident_processor, and uvm_pmm_gpu.c,
 * which evicts unused chunks first. */
static uint64_t unused(struct machine_device *device, uint64_t capacity) {
    uint64_t sum = 0, free = room(device, capacity);
    for (uint32_t i = 0; i < device->range_end; i++) {
        struct machine_range *range = &device->range[i];
        if (!range->owner)
            continue;
        if (range->unused > free - sum)
            range->unused = free - sum;
        sum += range->unused;
    }
    return sum;
}

int machine_make_room(struct machine *machine, int place, uint64_t bytes, uint64_t *evicted) {
    struct machine_device *device = &machine->device[place];
    uint64_t capacity = machine->params.device[place].memory, plain = machine_shared_bytes(device);
    for (int i = 0; i < MACHINE_SLOTS; i++)
        plain += device->share[i].plain;
    if (plain > capacity || bytes > capacity - plain)
        return -1;
    uint64_t free = room(device, capacity);
    if (free < bytes)
        *evicted += evict(device, bytes - free, -1);
    return 0;
}

static int try_charge(struct machine *machine, int device_index, int slot, uint64_t bytes, uint64_t *evicted) {
    device_index = device_place(device_index);
    struct machine_device *device = &machine->device[device_index];
    struct machine_share *share = &device->share[slot];
    machine_lock_device(machine, device_index);
    int fits = share->is_saved || machine_make_room(machine, device_index, bytes, evicted) == 0;
    if (share->is_saved) {
        share->saved += bytes;
    } else if (fits) {
        share->plain += bytes;
        device->used += bytes;
        unused(device, machine->params.device[device_index].memory);
    }
    machine_unlock_device(machine, device_index);
    return fits ? 0 : -1;
}

int machine_charge(struct machine *machine, int device, int slot, uint64_t bytes, uint64_t *evicted) {
    if (try_charge(machine, device, slot, bytes, evicted) == 0)
        return 0;
    machine_reap(machine, 1);
    return try_charge(machine, device, slot, bytes, evicted);
}

void machine_discharge(struct machine *machine, int device_index, int slot, uint64_t bytes) {
    device_index = device_place(device_index);
    struct machine_device *device = &machine->device[device_index];
    machine_lock_device(machine, device_index);
    if (device->share[slot].is_saved) {
        device->share[slot].saved -= bytes;
    } else {
        device->share[slot].plain -= bytes;
        device->used -= bytes;
    }
    machine_unlock_device(machine, device_index);
}

void machine_used(struct machine *machine, int device, uint64_t *used, uint64_t *total) {
    device = device_place(device);
    machine_reap(machine, 1);
    machine_lock_device(machine, device);
    *total = machine->params.device[device].memory;
    *used = machine->device[device].used + unused(&machine->device[device], *total);
    machine_unlock_device(machine, device);
}

int machine_range_open(struct machine *machine, int device_index, int slot) {
    device_index = device_place(device_index);
    struct machine_device *device = &machine->device[device_index];
    int found = -1;
    machine_lock_device(machine, device_index);
    for (uint32_t i = 0; i < device->range_end && found < 0; i++)
        if (!device->range[i].owner)
            found = (int)i;
    if (found < 0 && device->range_end < MACHINE_RANGES)
        found = (int)device->range_end++;
    if (found >= 0) {
        device->range[found].resident = device->range[found].unused = 0;
        device->range[found].populated = 0;
        device->range[found].owner = (uint32_t)slot + 1;
    }
    machine_unlock_device(machine, device_index);
    return found;
}

void machine_range_close(struct machine *machine, int device_index, int range) {
    device_index = device_place(device_index);
    struct machine_device *device = &machine->device[device_index];
    machine_lock_device(machine, device_index);
    device->used -= device->range[range].resident;
    device->range[range].resident = 0;
    device->range[range].owner = 0;
    machine_unlock_device(machine, device_index);
}

uint64_t machine_resident(struct machine *machine, int device, int range) {
    device = device_place(device);
    machine_lock_device(machine, device);
    uint64_t resident = machine->device[device].range[range].resident;
    machine_unlock_device(machine, device);
    return resident;
}

uint64_t machine_populate(struct machine *machine, int device_index, int range, uint64_t bytes, uint64_t *evicted) {
    device_index = device_place(device_index);
    struct machine_device *device = &machine->device[device_index];
    uint64_t capacity = machine->params.device[device_index].memory;
    machine_lock_device(machine, device_index);
    uint64_t free = room(device, capacity);
    if (free < bytes) {
        *evicted += evict(device, bytes - free, range);
        free = room(device, capacity);
    }
    uint64_t part = bytes < free ? bytes : free;
    if (part) {
        device->range[range].resident += part;
        device->range[range].unused -= part < device->range[range].unused ? part : device->range[range].unused;
        device->range[range].populated = ++device->populations;
        device->used += part;
        unused(device, capacity);
    }
    machine_unlock_device(machine, device_index);
    return part;
}

void machine_depopulate(struct machine *machine, int device_index, int range, uint64_t bytes) {
    device_index = device_place(device_index);
    struct machine_device *device = &machine->device[device_index];
    machine_lock_device(machine, device_index);
    struct machine_range *entry = &device->range[range];
    uint64_t part = bytes < entry->resident ? bytes : entry->resident;
    entry->resident -= part;
    device->used -= part;
    machine_unlock_device(machine, device_index);
}

void machine_leave_unused(struct machine *machine, int device_index, int range, uint64_t bytes) {
    machine_depopulate(machine, device_index, range, bytes);
    device_index = device_place(device_index);
    if (!machine->params.device[device_index].keeps_unused)
        return;
    machine_lock_device(machine, device_index);
    machine->device[device_index].range[range].unused += bytes;
    machine_unlock_device(machine, device_index);
}

uint64_t machine_transfer(struct machine *machine, int device, enum copy_direction direction, uint64_t earliest,
                          uint64_t ns) {
    device = device_place(device);
    uint64_t *free = &machine->device[device].link_free[direction];
    machine_lock_device(machine, device);
    uint64_t begin = earliest > *free ? earliest : *free;
    *free = begin + ns;
    machine_unlock_device(machine, device);
    return begin;
}

void machine_spend_eviction(struct machine *machine, int device, uint64_t evicted) {
    device = device_place(device);
    double ns = (double)evicted / machine->params.device[device].d2h * 1e9 * machine->params.time_scale;
    if (evicted)
        sim_sleep_until(sim_now() + (uint64_t)ns);
}
