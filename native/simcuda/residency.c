/* Which blocks of an allocation of unified memory are on the device.
 *
 * The world knows only how many bytes of a range are resident, so that any process can evict them by lowering
 * the number. Which blocks that were is decided here, by the owner, when it next looks: the ones after those
 * it lost last.
 */
#include <stdlib.h>

#include "alloc.h"

static uint64_t block_count(const struct sim_alloc *alloc) {
    return (alloc->mapped + WORLD_BLOCK - 1) / WORLD_BLOCK;
}

static uint64_t block_bytes(const struct sim_alloc *alloc, uint64_t block) {
    uint64_t rest = alloc->mapped - block * WORLD_BLOCK;
    return rest < WORLD_BLOCK ? rest : WORLD_BLOCK;
}

void residency_open(struct sim_alloc *alloc) {
    alloc->on_device = calloc(block_count(alloc), 1);
    alloc->preferred_id = alloc->prefetch_id = CU_DEVICE_INVALID;
}

/* With the allocation locked: forgets blocks that others have evicted. */
static void reconcile(struct sim_alloc *alloc) {
    uint64_t resident = world_resident(sim.world, alloc->device, alloc->range), count = block_count(alloc);
    for (uint64_t i = 0; i < count && alloc->local_resident > resident; i++) {
        uint64_t block = alloc->evict_cursor++ % count;
        if (alloc->on_device[block]) {
            alloc->on_device[block] = 0;
            alloc->local_resident -= block_bytes(alloc, block);
        }
    }
    if (resident > alloc->local_resident) /* half a block was taken: the other half goes too */
        world_depopulate(sim.world, alloc->device, alloc->range, resident - alloc->local_resident);
}

uint64_t residency_missing(struct sim_alloc *alloc, uint64_t offset, uint64_t bytes) {
    uint64_t missing = 0;
    if (!bytes)
        return 0;
    pthread_mutex_lock(&alloc->lock);
    reconcile(alloc);
    for (uint64_t block = offset / WORLD_BLOCK; block <= (offset + bytes - 1) / WORLD_BLOCK; block++)
        if (!alloc->on_device[block])
            missing += block_bytes(alloc, block);
    pthread_mutex_unlock(&alloc->lock);
    return missing;
}

uint64_t residency_bring(struct sim_alloc *alloc, uint64_t offset, uint64_t bytes, uint64_t limit, uint64_t *evicted) {
    uint64_t brought = 0;
    if (!bytes)
        return 0;
    pthread_mutex_lock(&alloc->lock);
    reconcile(alloc);
    for (uint64_t block = offset / WORLD_BLOCK; block <= (offset + bytes - 1) / WORLD_BLOCK && brought < limit;
         block++) {
        if (alloc->on_device[block])
            continue;
        uint64_t size = block_bytes(alloc, block), before = *evicted;
        uint64_t fitted = world_populate(sim.world, alloc->device, alloc->range, size, evicted);
        brought += size; /* what doesn't fit is reached over the bus: it costs as much and stays away */
        if (fitted == size) {
            alloc->on_device[block] = 1;
            alloc->local_resident += size;
        } else if (fitted) {
            world_depopulate(sim.world, alloc->device, alloc->range, fitted);
        }
        if (*evicted != before)
            reconcile(alloc); /* it may have been this range's own */
    }
    pthread_mutex_unlock(&alloc->lock);
    return brought;
}

uint64_t residency_drop(struct sim_alloc *alloc, uint64_t offset, uint64_t bytes) {
    uint64_t dropped = 0;
    if (!bytes)
        return 0;
    pthread_mutex_lock(&alloc->lock);
    reconcile(alloc);
    for (uint64_t block = offset / WORLD_BLOCK; block <= (offset + bytes - 1) / WORLD_BLOCK; block++)
        if (alloc->on_device[block]) {
            alloc->on_device[block] = 0;
            dropped += block_bytes(alloc, block);
        }
    alloc->local_resident -= dropped;
    world_depopulate(sim.world, alloc->device, alloc->range, dropped);
    pthread_mutex_unlock(&alloc->lock);
    return dropped;
}
