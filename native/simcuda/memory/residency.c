/* The places of the blocks of an allocation of unified memory.
 *
 * The machine has only the number of resident bytes of a range, so that any process can evict some by lowering the
 * number. The owner decides which blocks were evicted when the owner next updates the range: the blocks after those
 * that it lost last.
 *
 * Advice works as in the CUDA programming guide ("Unified Memory Programming", data usage hints). Faults leave pages
 * on the host if the device has a mapping of them (accessed by) or if the host is their preferred location. A prefetch
 * moves such pages all the same. A preferred location on the device overrides the mapping. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>

#include "machine/machine.h"
#include "memory/alloc.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* since Linux 5.14 */
#endif

static uint64_t block_count(const struct sim_alloc *alloc) {
    return (alloc->mapped + MACHINE_BLOCK - 1) / MACHINE_BLOCK;
}

static uint64_t block_bytes(const struct sim_alloc *alloc, uint64_t block) {
    uint64_t rest = alloc->mapped - block * MACHINE_BLOCK;
    return rest < MACHINE_BLOCK ? rest : MACHINE_BLOCK;
}

void residency_open(struct sim_alloc *alloc) {
    alloc->place = calloc(block_count(alloc), 1);
    alloc->preferred_id = alloc->prefetch_id = CU_DEVICE_INVALID;
}

/* The driver takes host pages for a block that leaves the device, charges them to its process, and keeps them when the
 * block returns. Source: open-gpu-kernel-modules 595.45.04, nvidia-uvm/uvm_va_block.c, block_populate_pages_cpu. */
static void move_to_host(struct sim_alloc *alloc, uint64_t block) {
    alloc->place[block] = PLACE_HOST;
    madvise((void *)(alloc->base + block * MACHINE_BLOCK), block_bytes(alloc, block), MADV_POPULATE_WRITE);
}

/* The allocation is locked. Drop blocks that other processes have evicted. */
static void reconcile(struct sim_alloc *alloc) {
    uint64_t resident = machine_resident(sim.machine, alloc->device, alloc->range), count = block_count(alloc);
    for (uint64_t i = 0; i < count && alloc->local_resident > resident; i++) {
        uint64_t block = alloc->evict_cursor++ % count;
        if (alloc->place[block] == PLACE_DEVICE) {
            move_to_host(alloc, block);
            alloc->local_resident -= block_bytes(alloc, block);
        }
    }
    if (resident > alloc->local_resident) /* half a block was evicted, so the other half is evicted as well */
        machine_depopulate(sim.machine, alloc->device, alloc->range, resident - alloc->local_resident);
}

/* The host's own accesses are not visible, only the pages that they leave. */
static int is_touched_by_host(const struct sim_alloc *alloc, uint64_t block) {
    unsigned char present[MACHINE_BLOCK / 4096];
    uint64_t bytes = block_bytes(alloc, block);
    if (mincore((void *)(alloc->base + block * MACHINE_BLOCK), bytes, present))
        return 1;
    for (uint64_t page = 0; page < bytes / 4096; page++)
        if (present[page] & 1)
            return 1;
    return 0;
}

static void update_touched(struct sim_alloc *alloc, uint64_t block) {
    if (alloc->place[block] == PLACE_NOWHERE && is_touched_by_host(alloc, block))
        alloc->place[block] = PLACE_HOST;
}

static int stays_on_host(const struct sim_alloc *alloc, uint64_t block) {
    if (alloc->preferred_type == CU_MEM_LOCATION_DEVICE)
        return 0;
    return alloc->preferred_type ||
           (alloc->place[block] == PLACE_HOST && (alloc->accessed_by >> (ordinal_of(alloc->device) & 15) & 1));
}

/* Bring one block that is not on the device. A block that does not fit is accessed over the link: that costs as much,
 * and the block stays on the host. */
static void bring_block(struct sim_alloc *alloc, uint64_t block, struct sim_movement *movement) {
    uint64_t size = block_bytes(alloc, block), before = movement->evicted;
    uint64_t fitted = machine_populate(sim.machine, alloc->device, alloc->range, size, &movement->evicted);
    if (fitted == size && alloc->place[block] == PLACE_NOWHERE)
        movement->populated += size;
    else
        movement->moved += size;
    alloc->place[block] = fitted == size ? PLACE_DEVICE : PLACE_HOST;
    if (fitted == size)
        alloc->local_resident += size;
    else if (fitted)
        machine_depopulate(sim.machine, alloc->device, alloc->range, fitted);
    if (movement->evicted != before)
        reconcile(alloc); /* the evicted block may have been this range's own */
}

uint64_t residency_bring(struct sim_alloc *alloc, uint64_t offset, uint64_t bytes, uint64_t limit, enum sim_bring how,
                         struct sim_movement *movement) {
    uint64_t at = offset, end = offset + bytes;
    pthread_mutex_lock(&alloc->lock);
    reconcile(alloc);
    while (at < end && movement->moved + movement->populated < limit) {
        uint64_t block = at / MACHINE_BLOCK,
                 next = (block + 1) * MACHINE_BLOCK < end ? (block + 1) * MACHINE_BLOCK : end;
        update_touched(alloc, block);
        if (alloc->place[block] != PLACE_DEVICE && how == BRING_FAULT && stays_on_host(alloc, block)) {
            alloc->place[block] = PLACE_HOST;
            movement->remote += next - at;
        } else if (alloc->place[block] != PLACE_DEVICE) {
            bring_block(alloc, block, movement);
        }
        at = next;
    }
    pthread_mutex_unlock(&alloc->lock);
    return at - offset;
}

uint64_t residency_drop(struct sim_alloc *alloc, uint64_t offset, uint64_t bytes, uint64_t *populated) {
    uint64_t dropped = 0;
    if (!bytes)
        return 0;
    pthread_mutex_lock(&alloc->lock);
    reconcile(alloc);
    for (uint64_t block = offset / MACHINE_BLOCK; block <= (offset + bytes - 1) / MACHINE_BLOCK; block++) {
        update_touched(alloc, block);
        if (alloc->place[block] == PLACE_DEVICE)
            dropped += block_bytes(alloc, block);
        else if (alloc->place[block] == PLACE_NOWHERE)
            *populated += block_bytes(alloc, block);
        move_to_host(alloc, block);
    }
    alloc->local_resident -= dropped;
    machine_leave_unused(sim.machine, alloc->device, alloc->range, dropped);
    pthread_mutex_unlock(&alloc->lock);
    return dropped;
}
