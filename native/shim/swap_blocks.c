/* Blocks of the mode "swap": physical memory that comes and goes, and where it is mapped. */
#include "swap.h"

#include <stdlib.h>

struct block *swap_first;
static uint64_t absent, present; /* bytes of blocks that are not on the device, and that are */

uint64_t swap_absent(void) {
    return absent;
}

static void note_absent(int64_t bytes) {
    absent += (uint64_t)bytes;
    PAGE_STORE(the_page()->report.absent, absent);
}

/* In the client's account a block counts what was asked for, away or not; what is away is not resident. */
void block_count(struct block *block, int64_t bytes) {
    block->counted += (uint64_t)bytes;
    if (!block->here)
        account_moved(bytes);
}

static void note_here(struct block *block, bool here) {
    int64_t change = here ? 1 : -1;
    block->here = here;
    present += (uint64_t)(change * (int64_t)block->bytes);
    note_absent(-change * (int64_t)block->bytes);
    account_moved(-change * (int64_t)block->counted);
}

static CUcontext current(void) {
    CUcontext context = NULL;
    REAL(cuCtxGetCurrent)(&context);
    return context;
}

/* What does not fit on the device would never be let through the gate. The rest is the driver's own. */
uint64_t swap_most(void) {
    return shim.devices[0].memory / 16 * 15;
}

bool swap_fits(uint64_t bytes) {
    if (bytes + absent + present <= swap_most())
        return true;
    log_message(LOG_ERROR,
                "an allocation of %s was refused: %s are allocated, and in memory mode swap a client has at most "
                "%s of this device (mode unified has no such bound)",
                size_text(bytes).text, size_text(absent + present).text, size_text(swap_most()).text);
    return false;
}

/* Only who has its turn takes room on the device. */
static CUresult create(struct block *block, uint64_t wanted) {
    struct room room = {0};
    CUresult result = CUDA_SUCCESS;
    while (result == CUDA_SUCCESS) {
        if (!is_running()) {
            if (!room.began)
                break; /* it comes with the next turn */
            result = room_next_turn(&room);
            continue;
        }
        result = REAL(cuMemCreate)(&block->handle, block->bytes, &block->properties, 0);
        if (result != CUDA_ERROR_OUT_OF_MEMORY)
            break;
        block->handle = 0;
        result = room_wait(&room, wanted);
    }
    room_found(&room);
    return result;
}

CUresult block_new(uint64_t bytes, const CUmemAllocationProp *properties, uint64_t wanted, struct block **made) {
    struct block *block = swap_fits(bytes) ? calloc(1, sizeof *block) : NULL;
    if (!block)
        return CUDA_ERROR_OUT_OF_MEMORY;
    block->bytes = bytes;
    block->properties = *properties;
    block->context = current();
    CUresult result = create(block, wanted);
    if (result != CUDA_SUCCESS) {
        free(block);
        return result;
    }
    block->next = swap_first;
    if (swap_first)
        swap_first->previous = block;
    swap_first = block;
    block->here = block->handle != 0;
    if (block->here)
        present += bytes;
    else
        note_absent((int64_t)bytes);
    *made = block;
    return CUDA_SUCCESS;
}

void block_end(struct block *block) {
    if (block->names || block->mappings)
        return;
    if (block->handle)
        REAL(cuMemRelease)(block->handle);
    if (block->here) {
        present -= block->bytes;
    } else {
        note_absent(-(int64_t)block->bytes);
        account_moved(-(int64_t)block->counted);
    }
    if (block->copy)
        host_put(block->copy);
    if (block->next)
        block->next->previous = block->previous;
    if (block->previous)
        block->previous->next = block->next;
    else
        swap_first = block->next;
    free(block);
}

/* Goes on where it failed before. */
static CUresult map_real(struct mapping *mapping) {
    CUresult result = CUDA_SUCCESS;
    if (!mapping->mapped)
        result = REAL(cuMemMap)(mapping->address, mapping->bytes, mapping->offset, mapping->block->handle, 0);
    mapping->mapped = result == CUDA_SUCCESS;
    if (result == CUDA_SUCCESS && mapping->accesses)
        result = REAL(cuMemSetAccess)(mapping->address, mapping->bytes, mapping->access, (size_t)mapping->accesses);
    return result;
}

static CUresult unmap_real(struct mapping *mapping) {
    CUresult result = mapping->mapped ? REAL(cuMemUnmap)(mapping->address, mapping->bytes) : CUDA_SUCCESS;
    mapping->mapped = result != CUDA_SUCCESS;
    return result;
}

CUresult block_map(struct block *block, CUdeviceptr address, uint64_t bytes, uint64_t offset, struct mapping **made) {
    struct mapping *mapping = calloc(1, sizeof *mapping);
    if (!mapping)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *mapping = (struct mapping){.address = address, .bytes = bytes, .offset = offset, .block = block};
    CUresult result = block->handle ? map_real(mapping) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS) {
        free(mapping);
        return result;
    }
    mapping->next = block->mappings;
    block->mappings = mapping;
    *made = mapping;
    return result;
}

CUresult block_unmap(struct mapping *mapping) {
    struct block *block = mapping->block;
    CUresult result = unmap_real(mapping);
    if (result != CUDA_SUCCESS)
        return result;
    for (struct mapping **link = &block->mappings; *link; link = &(*link)->next)
        if (*link == mapping) {
            *link = mapping->next;
            break;
        }
    free(mapping);
    return result;
}

CUresult mapping_access(struct mapping *mapping, const CUmemAccessDesc *access, size_t count) {
    CUresult result = CUDA_SUCCESS;
    if (mapping->mapped)
        result = REAL(cuMemSetAccess)(mapping->address, mapping->bytes, access, count);
    for (size_t i = 0; result == CUDA_SUCCESS && i < count; i++) {
        int at = 0;
        while (at < mapping->accesses && (mapping->access[at].location.type != access[i].location.type ||
                                          mapping->access[at].location.id != access[i].location.id))
            at++;
        if (at == MOST_ACCESSES) {
            mapping->block->fixed = true;
            log_once(LOG_INFO, "memory that more than %d devices reach stays where it is", MOST_ACCESSES);
            break;
        }
        mapping->access[at] = access[i];
        mapping->accesses += at == mapping->accesses;
    }
    return result;
}

bool swap_is_movable(const struct block *block) {
    return block->here && !block->fixed && block->context;
}

static bool map_all(struct block *block, CUresult *result) {
    *result = CUDA_SUCCESS;
    for (struct mapping *mapping = block->mappings; mapping && *result == CUDA_SUCCESS; mapping = mapping->next)
        *result = map_real(mapping);
    return *result == CUDA_SUCCESS;
}

/* Should it be stuck halfway, its physical memory is kept, and it counts as away: it can come back or go from there. */
void block_go(struct block *block) {
    CUresult result = CUDA_SUCCESS;
    for (struct mapping *mapping = block->mappings; mapping && result == CUDA_SUCCESS; mapping = mapping->next)
        result = unmap_real(mapping);
    if (result != CUDA_SUCCESS && block->here && map_all(block, &result))
        return;
    if (result == CUDA_SUCCESS) {
        REAL(cuMemRelease)(block->handle);
        block->handle = 0;
    }
    if (block->here)
        note_here(block, false);
}

bool block_come(struct block *block, CUresult *result) {
    if (!block->handle &&
        (*result = REAL(cuMemCreate)(&block->handle, block->bytes, &block->properties, 0)) != CUDA_SUCCESS) {
        block->handle = 0;
        return false;
    }
    return map_all(block, result);
}

void block_came(struct block *block) {
    note_here(block, true);
}

void swap_blocks_after_fork(void) {
    absent = present = 0;
}
