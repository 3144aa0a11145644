/* Blocks of the mode "swap": physical memory that is evicted and restored, and its mappings. */
#include "memory/swap/blocks.h"

#include <stdlib.h>
#include <string.h>

struct block *swap_blocks;
static uint64_t missing[MAX_DEVICES];     /* bytes of blocks that are not on the device */
static uint64_t unmade;                   /* of all those, of blocks that were never there */
static uint64_t block_bytes[MAX_DEVICES]; /* of all blocks, by device */
static _Atomic uint64_t without_context;  /* number of blocks that no known context can copy */

static int device_of(const CUmemAllocationProp *properties) {
    int id = properties->location.id;
    return id >= 0 && id < shim.device_count ? id : 0;
}

int block_device(const struct block *block) {
    return device_of(&block->properties);
}

static uint64_t sum(const uint64_t by_device[MAX_DEVICES]) {
    uint64_t all = 0;
    for (int i = 0; i < shim.device_count; i++)
        all += by_device[i];
    return all;
}

uint64_t swap_missing_bytes(void) {
    return sum(missing);
}

uint64_t swap_missing_bytes_of(int device) {
    return missing[device];
}

uint64_t swap_evicted_bytes(void) {
    return sum(missing) - unmade;
}

static void add_missing(const struct block *block, int64_t bytes) {
    missing[block_device(block)] += (uint64_t)bytes;
    unmade += block->was_resident ? 0 : (uint64_t)bytes;
    PAGE_STORE(the_page()->report.missing_bytes, sum(missing));
}

/* Count bytes of a block that is off its device as evicted, or as unmade if they were never there; negative: no longer. */
static void note_off_device(const struct block *block, int64_t bytes) {
    if (block->was_resident)
        account_note_evicted(block_device(block), bytes);
    else
        account_note_unmade(block_device(block), bytes);
}

/* A copy needs a context. */
static bool stays(const struct block *block) {
    return block->is_unmovable || !block->context;
}

/* A block counts for the client with the requested bytes, on the device or not. The bytes are resident while the block
 * has physical memory, even before the contents have arrived: other clients can use that room after an eviction only. */
void block_charge(struct block *block, int64_t bytes) {
    block->charged_bytes += (uint64_t)bytes;
    account_note_placed(block_device(block), bytes);
    if (!block->handle)
        note_off_device(block, bytes);
    if (stays(block))
        account_mark_unmovable(block_device(block), bytes);
}

void block_pin(struct block *block) {
    if (!stays(block))
        account_mark_unmovable(block_device(block), (int64_t)block->charged_bytes);
    block->is_unmovable = true;
}

void block_set_context(struct block *block, CUcontext context) {
    bool stayed = stays(block);
    without_context += (uint64_t)!context - (uint64_t)!block->context;
    block->context = context;
    if (stayed != stays(block))
        account_mark_unmovable(block_device(block), (stayed ? -1 : 1) * (int64_t)block->charged_bytes);
}

bool swap_lacks_context(void) {
    return atomic_load_explicit(&without_context, memory_order_relaxed) != 0;
}

void swap_offer_context(CUcontext context) {
    CUdevice device = -1;
    CUcontext left;
    if (!context || !swap_lacks_context() || REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS)
        return;
    CUresult result = REAL(cuCtxGetDevice)(&device);
    REAL(cuCtxPopCurrent_v2)(&left);
    for (struct block *block = swap_blocks; block && result == CUDA_SUCCESS; block = block->next)
        if (!block->context && block_device(block) == device)
            block_set_context(block, context);
}

static void set_resident(struct block *block, bool here) {
    int64_t change = here ? 1 : -1;
    block->is_resident = here;
    add_missing(block, -change * (int64_t)block->bytes);
    block->was_resident = true;
}

/* Context memory of all clients never leaves the device, and grows later, as the driver loads code at launches. An
 * allocation that does not fit beside context memory would never pass the gate. */
static uint64_t device_capacity(int device) {
    uint64_t memory = shim.devices[device].memory,
             context_bytes = min_u64(PAGE_LOAD(the_page()->control.context_bytes), memory),
             reserved = context_bytes ? context_bytes + memory / 64 : memory / 16;
    return memory > reserved ? memory - reserved : 0;
}

uint64_t swap_capacity(void) {
    uint64_t sum = 0;
    for (int i = 0; i < shim.device_count; i++)
        sum += device_capacity(i);
    return sum;
}

bool swap_fits(uint64_t bytes, const CUmemAllocationProp *properties) {
    int device = device_of(properties);
    uint64_t capacity = device_capacity(device);
    if (bytes <= capacity && block_bytes[device] <= capacity - bytes)
        return true;
    refusal_log(bytes,
                "An allocation of %s was refused: %s are allocated, and in memory mode swap a client has at most "
                "%s of this device. Mode unified has no such bound, on devices that can page unified memory.",
                size_text(bytes).text, size_text(block_bytes[device]).text, size_text(capacity).text);
    return false;
}

/* Every driver makes such memory if it has room. */
static bool is_ordinary(const CUmemAllocationProp *properties) {
    static const unsigned char zeroes[sizeof properties->reserved];
    return !properties->handle_types && !properties->win32_meta && !properties->rdma && !properties->compression &&
           memcmp(properties->reserved, zeroes, sizeof zeroes) == 0;
}

/* Only a client that has its turn takes room on the device. Memory that the driver may refuse for other reasons waits for
 * the turn, so that the program gets the refusal. */
static CUresult create_physical(struct block *block, uint64_t charged_bytes) {
    struct shortage room = {0};
    CUresult result = CUDA_SUCCESS;
    struct room_needed needed = {block_device(block),
                                 (charged_bytes + GRANULE_BYTES - 1) / GRANULE_BYTES * GRANULE_BYTES};
    account_note_waiting(block_device(block), (int64_t)charged_bytes);
    if (!is_running() && !is_ordinary(&block->properties)) {
        result = shortage_next_turn(&room);
        room = (struct shortage){0};
    }
    while (result == CUDA_SUCCESS) {
        if (!is_running()) {
            if (!room.began)
                break; /* it is made with the next turn */
            result = shortage_next_turn(&room);
            continue;
        }
        result = REAL(cuMemCreate)(&block->handle, block->bytes, &block->properties, 0);
        if (result != CUDA_ERROR_OUT_OF_MEMORY)
            break;
        block->handle = 0;
        result = room_release_freed() ? CUDA_SUCCESS : shortage_wait(&room, needed);
    }
    shortage_end(&room);
    account_note_waiting(block_device(block), -(int64_t)charged_bytes);
    if (block->handle && !is_running())
        agent_wake(); /* the turn has ended meanwhile, and the memory may have to leave */
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        refusal_log(
            needed.bytes,
            "An allocation was refused: the device has no room for %s of it, and no other client has memory there "
            "that can leave. See jupyter gpushare status.",
            size_text(needed.bytes).text);
    return result;
}

CUresult block_create(uint64_t bytes, const CUmemAllocationProp *properties, uint64_t charged_bytes,
                      struct block **made) {
    static uint64_t next_id = FIRST_BLOCK_ID;
    struct block *block = swap_fits(bytes, properties) ? calloc(1, sizeof *block) : NULL;
    if (!block)
        return CUDA_ERROR_OUT_OF_MEMORY;
    block->id = next_id;
    next_id += BLOCK_IDS;
    block->bytes = bytes;
    block->properties = *properties;
    block->context = memory_context();
    if (!block->context)
        block->context = primary_context(block_device(block));
    CUresult result = create_physical(block, charged_bytes);
    if (result != CUDA_SUCCESS) {
        free(block);
        return result;
    }
    block->next = swap_blocks;
    if (swap_blocks)
        swap_blocks->previous = block;
    swap_blocks = block;
    without_context += !block->context;
    block->is_resident = block->was_resident = block->handle != 0;
    block_bytes[device_of(properties)] += bytes;
    if (!block->is_resident)
        add_missing(block, (int64_t)bytes);
    block_charge(block, (int64_t)min_u64(bytes, charged_bytes));
    *made = block;
    return CUDA_SUCCESS;
}

void block_destroy(struct block *block) {
    if (block->program_references || block->mappings)
        return;
    if (block->handle)
        REAL(cuMemRelease)(block->handle);
    without_context -= !block->context;
    if (stays(block))
        account_mark_unmovable(block_device(block), -(int64_t)block->charged_bytes);
    block_bytes[device_of(&block->properties)] -= block->bytes;
    if (!block->is_resident)
        add_missing(block, -(int64_t)block->bytes);
    if (!block->handle)
        note_off_device(block, -(int64_t)block->charged_bytes);
    account_note_placed(block_device(block), -(int64_t)block->charged_bytes);
    if (block->copy)
        host_buffer_free(block->copy);
    host_buffers_bound(sum(block_bytes));
    if (block->next)
        block->next->previous = block->previous;
    if (block->previous)
        block->previous->next = block->next;
    else
        swap_blocks = block->next;
    free(block);
}

/* Continue where an earlier call failed. */
static CUresult map_real(struct mapping *mapping) {
    CUresult result = CUDA_SUCCESS;
    if (!mapping->is_mapped)
        result = REAL(cuMemMap)(mapping->address, mapping->bytes, mapping->offset, mapping->block->handle, 0);
    mapping->is_mapped = result == CUDA_SUCCESS;
    if (result == CUDA_SUCCESS && mapping->access_count && !mapping->has_access) {
        result = REAL(cuMemSetAccess)(mapping->address, mapping->bytes, mapping->access, (size_t)mapping->access_count);
        mapping->has_access = result == CUDA_SUCCESS;
    }
    return result;
}

static CUresult unmap_real(struct mapping *mapping) {
    CUresult result = mapping->is_mapped ? REAL(cuMemUnmap)(mapping->address, mapping->bytes) : CUDA_SUCCESS;
    mapping->is_mapped = result != CUDA_SUCCESS;
    mapping->has_access = mapping->has_access && mapping->is_mapped;
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
    if (mapping->is_mapped) {
        result = REAL(cuMemSetAccess)(mapping->address, mapping->bytes, access, count);
        mapping->has_access = result == CUDA_SUCCESS;
    }
    for (size_t i = 0; result == CUDA_SUCCESS && i < count; i++) {
        int at = 0;
        while (at < mapping->access_count && (mapping->access[at].location.type != access[i].location.type ||
                                              mapping->access[at].location.id != access[i].location.id))
            at++;
        if (at == MAX_ACCESSES) {
            block_pin(mapping->block);
            log_once(LOG_INFO, "keep memory on its device, because more than %d devices have access", MAX_ACCESSES);
            break;
        }
        mapping->access[at] = access[i];
        mapping->access_count += at == mapping->access_count;
    }
    return result;
}

bool swap_is_movable(const struct block *block) {
    return block->is_resident && !stays(block);
}

static bool map_all(struct block *block, CUresult *result) {
    *result = CUDA_SUCCESS;
    for (struct mapping *mapping = block->mappings; mapping && *result == CUDA_SUCCESS; mapping = mapping->next)
        *result = map_real(mapping);
    return *result == CUDA_SUCCESS;
}

/* A block that is stuck halfway keeps its physical memory and counts as missing: from there it can be restored
 * or evicted. */
void block_evict(struct block *block) {
    CUresult result = CUDA_SUCCESS;
    for (struct mapping *mapping = block->mappings; mapping && result == CUDA_SUCCESS; mapping = mapping->next)
        result = unmap_real(mapping);
    if (result != CUDA_SUCCESS && block->is_resident && map_all(block, &result))
        return;
    if (result == CUDA_SUCCESS) {
        REAL(cuMemRelease)(block->handle);
        block->handle = 0;
        note_off_device(block, (int64_t)block->charged_bytes);
    }
    if (block->is_resident)
        set_resident(block, false);
}

static CUresult make_physical(struct block *block) {
    if (block->handle)
        return CUDA_SUCCESS;
    CUresult result = REAL(cuMemCreate)(&block->handle, block->bytes, &block->properties, 0);
    if (result == CUDA_SUCCESS)
        note_off_device(block, -(int64_t)block->charged_bytes);
    else
        block->handle = 0;
    return result;
}

bool block_map_all(struct block *block) {
    CUresult result = make_physical(block);
    for (struct mapping *mapping = block->mappings; mapping && result == CUDA_SUCCESS; mapping = mapping->next) {
        if (!mapping->is_mapped)
            result = REAL(cuMemMap)(mapping->address, mapping->bytes, mapping->offset, block->handle, 0);
        mapping->is_mapped = mapping->is_mapped || result == CUDA_SUCCESS;
    }
    return result == CUDA_SUCCESS;
}

bool block_begin_restore(struct block *block, CUresult *result) {
    *result = make_physical(block);
    return *result == CUDA_SUCCESS && map_all(block, result);
}

void block_end_restore(struct block *block) {
    set_resident(block, true);
}

void swap_blocks_after_fork(void) {
    swap_blocks = NULL;
    unmade = without_context = 0;
    memset(missing, 0, sizeof missing);
    memset(block_bytes, 0, sizeof block_bytes);
}
