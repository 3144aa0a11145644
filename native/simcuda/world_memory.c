/* Device memory as all processes share it: ordinary bytes, and what is resident of unified memory; and the link. */
#include "world.h"

/* Gives up `bytes` of unified memory, the ranges that got their pages earliest first, `spare` only when
 * nothing else is left. Returns how much was found. With the device locked. */
static uint64_t evict(struct world_device *device, uint64_t bytes, int spare) {
    uint64_t found = 0;
    while (found < bytes) {
        int victim = -1;
        for (uint32_t i = 0; i < device->range_end; i++) {
            const struct world_range *range = &device->range[i];
            if (range->owner && range->resident && (int)i != spare &&
                (victim < 0 || range->populated < device->range[victim].populated))
                victim = (int)i;
        }
        if (victim < 0 && spare >= 0 && device->range[spare].resident)
            victim = spare;
        if (victim < 0)
            break;
        struct world_range *range = &device->range[victim];
        uint64_t blocks = (bytes - found + WORLD_BLOCK - 1) / WORLD_BLOCK * WORLD_BLOCK;
        uint64_t part = range->resident < blocks ? range->resident : blocks;
        range->resident -= part;
        device->used -= part;
        found += part;
    }
    device->evicted += found;
    return found;
}

static uint64_t room(const struct world_device *device, uint64_t capacity) {
    return device->used < capacity ? capacity - device->used : 0;
}

static int try_charge(struct world *world, int device_index, int slot, uint64_t bytes, uint64_t *evicted) {
    struct world_device *device = &world->device[device_index];
    uint64_t capacity = world->params.device[device_index].memory;
    world_lock_device(world, device_index);
    uint64_t plain = world_shared_bytes(device);
    for (int i = 0; i < WORLD_SLOTS; i++)
        plain += device->share[i].plain;
    int fits = plain <= capacity && bytes <= capacity - plain;
    if (fits) {
        uint64_t free = room(device, capacity);
        if (free < bytes)
            *evicted += evict(device, bytes - free, -1);
        device->share[slot].plain += bytes;
        device->used += bytes;
    }
    world_unlock_device(world, device_index);
    return fits ? 0 : -1;
}

int world_charge(struct world *world, int device, int slot, uint64_t bytes, uint64_t *evicted) {
    if (try_charge(world, device, slot, bytes, evicted) == 0)
        return 0;
    world_reap(world, 1);
    return try_charge(world, device, slot, bytes, evicted);
}

void world_discharge(struct world *world, int device_index, int slot, uint64_t bytes) {
    struct world_device *device = &world->device[device_index];
    world_lock_device(world, device_index);
    device->share[slot].plain -= bytes;
    device->used -= bytes;
    world_unlock_device(world, device_index);
}

void world_used(struct world *world, int device, uint64_t *used, uint64_t *total) {
    world_reap(world, 1);
    world_lock_device(world, device);
    *used = world->device[device].used;
    *total = world->params.device[device].memory;
    world_unlock_device(world, device);
}

int world_range_open(struct world *world, int device_index, int slot) {
    struct world_device *device = &world->device[device_index];
    int found = -1;
    world_lock_device(world, device_index);
    for (uint32_t i = 0; i < device->range_end && found < 0; i++)
        if (!device->range[i].owner)
            found = (int)i;
    if (found < 0 && device->range_end < WORLD_RANGES)
        found = (int)device->range_end++;
    if (found >= 0) {
        device->range[found].resident = 0;
        device->range[found].populated = 0;
        device->range[found].owner = (uint32_t)slot + 1;
    }
    world_unlock_device(world, device_index);
    return found;
}

void world_range_close(struct world *world, int device_index, int range) {
    struct world_device *device = &world->device[device_index];
    world_lock_device(world, device_index);
    device->used -= device->range[range].resident;
    device->range[range].resident = 0;
    device->range[range].owner = 0;
    world_unlock_device(world, device_index);
}

uint64_t world_resident(struct world *world, int device, int range) {
    world_lock_device(world, device);
    uint64_t resident = world->device[device].range[range].resident;
    world_unlock_device(world, device);
    return resident;
}

uint64_t world_populate(struct world *world, int device_index, int range, uint64_t bytes, uint64_t *evicted) {
    struct world_device *device = &world->device[device_index];
    uint64_t capacity = world->params.device[device_index].memory;
    world_lock_device(world, device_index);
    uint64_t free = room(device, capacity);
    if (free < bytes) {
        *evicted += evict(device, bytes - free, range);
        free = room(device, capacity);
    }
    uint64_t part = bytes < free ? bytes : free;
    if (part) {
        device->range[range].resident += part;
        device->range[range].populated = ++device->populations;
        device->used += part;
    }
    world_unlock_device(world, device_index);
    return part;
}

void world_depopulate(struct world *world, int device_index, int range, uint64_t bytes) {
    struct world_device *device = &world->device[device_index];
    world_lock_device(world, device_index);
    struct world_range *entry = &device->range[range];
    uint64_t part = bytes < entry->resident ? bytes : entry->resident;
    entry->resident -= part;
    device->used -= part;
    world_unlock_device(world, device_index);
}

uint64_t world_link(struct world *world, int device, enum link_direction direction, uint64_t earliest, uint64_t ns) {
    uint64_t *free = &world->device[device].link_free[direction];
    world_lock_device(world, device);
    uint64_t begin = earliest > *free ? earliest : *free;
    *free = begin + ns;
    world_unlock_device(world, device);
    return begin;
}
