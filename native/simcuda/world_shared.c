/* Device memory that several processes may have: it is counted once, and free when the last of them has let go. */
#include <string.h>

#include "world.h"

uint64_t world_shared_bytes(const struct world_device *device) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < device->shared_end; i++)
        if (device->shared[i].inode)
            bytes += device->shared[i].bytes;
    return bytes;
}

/* With the device locked. */
static struct world_shared *find(struct world_device *device, uint64_t inode) {
    for (uint32_t i = 0; i < device->shared_end; i++)
        if (device->shared[i].inode == inode)
            return &device->shared[i];
    return NULL;
}

static void hold(struct world_shared *entry, int slot) {
    entry->holders[slot / 64] |= 1ull << slot % 64;
}

/* Returns the bytes that this frees. */
static uint64_t let_go(struct world_shared *entry, int slot) {
    uint64_t left = 0;
    entry->holders[slot / 64] &= ~(1ull << slot % 64);
    for (int i = 0; i < WORLD_SLOTS / 64; i++)
        left |= entry->holders[i];
    if (left)
        return 0;
    entry->inode = 0;
    return entry->bytes;
}

int world_shared_open(struct world *world, int device_index, int slot, uint64_t inode, uint64_t bytes) {
    struct world_device *device = &world->device[device_index];
    world_lock_device(world, device_index);
    struct world_shared *entry = find(device, 0);
    if (!entry && device->shared_end < WORLD_SHARED)
        entry = &device->shared[device->shared_end++];
    if (entry) {
        memset(entry->holders, 0, sizeof entry->holders);
        entry->bytes = bytes;
        hold(entry, slot);
        device->share[slot].plain -= bytes;
        entry->inode = inode;
    }
    world_unlock_device(world, device_index);
    return entry ? 0 : -1;
}

int world_shared_join(struct world *world, int slot, uint64_t inode, int *device, uint64_t *bytes) {
    for (int i = 0; i < world->params.devices; i++) {
        world_lock_device(world, i);
        struct world_shared *entry = find(&world->device[i], inode);
        if (entry) {
            hold(entry, slot);
            *device = i;
            *bytes = entry->bytes;
        }
        world_unlock_device(world, i);
        if (entry)
            return 0;
    }
    return -1;
}

void world_shared_leave(struct world *world, int device_index, int slot, uint64_t inode) {
    struct world_device *device = &world->device[device_index];
    world_lock_device(world, device_index);
    struct world_shared *entry = find(device, inode);
    if (entry)
        device->used -= let_go(entry, slot);
    world_unlock_device(world, device_index);
}

void world_shared_forget(struct world_device *device, int slot) {
    for (uint32_t i = 0; i < device->shared_end; i++)
        if (device->shared[i].inode)
            let_go(&device->shared[i], slot);
}
