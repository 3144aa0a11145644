/* Eviction, prefetch and restore of swap blocks. The agent evicts and prefetches in batches; a thread restores the rest
 * at the open gate. */
#include "memory/swap/blocks.h"

#define MAX_BATCH_BYTES (1ull << 30)         /* evicted under one hold of the lock */
#define MAX_PREFETCH_BYTES (256ull << 20)    /* prefetched under one hold of the lock */
#define MAX_PREFETCH_NS (20 * NS_PER_MS)     /* likewise, where the link is slow */
#define FREE_MEMORY_POLL_NS (20 * NS_PER_MS) /* between polls for room */
#define USE_POLL_NS (1 * NS_PER_MS)          /* between polls of threads that use mapped memory without a turn */

static struct {
    uint64_t bytes, nanoseconds;
} eviction_log;

/* A block is evicted only after its copy is complete. */
static uint64_t evict_batch(const uint64_t surplus[MAX_DEVICES]) {
    uint64_t requested = 0, max_bytes = account_max_eviction(), requested_of[MAX_DEVICES] = {0};
    for (struct block *block = swap_blocks; block && requested < MAX_BATCH_BYTES; block = block->next) {
        int device = block_device(block);
        if (requested_of[device] >= surplus[device])
            continue;
        if (block->handle && !block->is_resident) /* an earlier eviction stopped after the copy */
            block_evict(block);
        bool may_leave = swap_is_movable(block) && block->charged_bytes <= max_bytes - requested;
        struct transfer_stream *stream = may_leave ? transfer_begin(block->context) : NULL;
        if (!stream)
            continue;
        block->copy = host_buffer_alloc(block->bytes, block->context);
        if (block->copy && copy_begin(stream, block, true))
            requested += block->charged_bytes, requested_of[device] += block->charged_bytes;
        transfer_end();
        if (!block->copy && !block->is_unmovable)
            break; /* the host is full */
    }
    return finish_copies();
}

static void log_evicted(void) {
    if (eviction_log.bytes)
        log_message(LOG_DEBUG, "evicted %s in %.1f ms", size_text(eviction_log.bytes).text,
                    (double)eviction_log.nanoseconds / NS_PER_MS);
    eviction_log.bytes = eviction_log.nanoseconds = 0;
}

/* The lock is released between batches. A thread that passes the gate meanwhile waits for one batch at most.
 * No block is evicted while the gate is open: a thread takes residency_lock after it passes the gate, and the agent
 * checks the gate under that lock. */
bool swap_evict(const uint64_t surplus[MAX_DEVICES], uint64_t now, uint64_t *next) {
    struct gpushare_report *report = &the_page()->report;
    uint64_t bytes = 0;
    bool is_due = false;
    for (int i = 0; i < shim.device_count; i++)
        is_due = is_due || surplus[i];
    pthread_mutex_lock(&residency_lock);
    is_due = is_due && !is_open(gate_word());
    bool is_used = is_due && the_gate->has_threads();
    if (is_due && !is_used) {
        uint64_t began = now_ns();
        bytes = evict_batch(surplus);
        uint64_t took = now_ns() - began;
        PAGE_ADD(report->evicted_bytes, bytes);
        PAGE_ADD(report->evicted_ns, bytes ? took : 0);
        eviction_log.bytes += bytes;
        eviction_log.nanoseconds += took;
    }
    if (!bytes)
        log_evicted();
    pthread_mutex_unlock(&residency_lock);
    *next = is_used ? now + USE_POLL_NS : now;
    return !bytes && !is_used;
}

/* A thread that finds all memory mapped has entered the gate before it takes the lock. So the agent finds the thread
 * there before it evicts more. */
bool swap_is_mapped(void) {
    pthread_mutex_lock(&residency_lock);
    bool all = !swap_missing_bytes();
    pthread_mutex_unlock(&residency_lock);
    return all;
}

/* False, with an error in *result: the block cannot be restored (yet). */
static bool restore_block(struct block *block, CUcontext context, CUresult *result) {
    if (!block_begin_restore(block, result))
        return false;
    if (!block->copy) {
        block_end_restore(block);
        return true;
    }
    struct transfer_stream *stream = transfer_begin(context);
    bool is_ok = stream && copy_begin(stream, block, false);
    if (stream)
        transfer_end();
    *result = is_ok ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
    return is_ok;
}

/* Blocks whose mappings are made together. */
struct group {
    struct block *blocks[RUN_BLOCKS];
    int count;
    uint64_t bytes;
};

static bool group_ends(const struct group *group, const struct block *next) {
    return group->count && (group->count == RUN_BLOCKS || group->bytes >= MAX_RUN_BYTES ||
                            !run_continues(group->blocks[group->count - 1], next));
}

static void group_add(struct group *group, struct block *block) {
    group->blocks[group->count++] = block;
    group->bytes += block->bytes;
}

/* Return the bytes that are requested. Less than the group has: the time is over, or the next block cannot be restored
 * (yet) because of the error in *result. The rest of the group takes no room then. */
static uint64_t restore_group(struct group *group, CUcontext current, uint64_t end, CUresult *result) {
    uint64_t requested = 0;
    bool is_ok = true;
    runs_begin_restore(group->blocks, group->count);
    for (int i = 0; i < group->count; i++) {
        struct block *block = group->blocks[i];
        /* the first one always, so that each call restores some memory */
        is_ok =
            is_ok && (!i || now_ns() <= end) && restore_block(block, block->context ? block->context : current, result);
        if (is_ok)
            requested += block->bytes;
        else if (block->handle)
            block_evict(block);
    }
    *group = (struct group){0};
    return requested;
}

/* Restore the blocks of one device, up to the first error. */
static CUresult restore_device(int device) {
    CUcontext current = memory_context();
    CUresult result = CUDA_SUCCESS;
    struct group group = {0};
    for (struct block *block = swap_blocks; block; block = block->next) {
        uint64_t wanted = group.bytes;
        if (block->is_resident || block_device(block) != device)
            continue;
        if (group_ends(&group, block) && restore_group(&group, current, NEVER, &result) < wanted)
            return result;
        group_add(&group, block);
    }
    restore_group(&group, current, NEVER, &result);
    return result;
}

/* A full device keeps no memory off the other devices. *full: the first full device. */
static CUresult restore_all(int *full) {
    CUresult result = CUDA_SUCCESS;
    for (int i = 0; i < shim.device_count && (result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY); i++) {
        CUresult error = restore_device(i);
        if (error == CUDA_ERROR_OUT_OF_MEMORY && result == CUDA_SUCCESS)
            *full = i;
        result = error == CUDA_SUCCESS ? result : error;
    }
    return result;
}

/* A failed context accepts no copy, so the program's own call must return the error. */
static bool is_unrecoverable(void) {
    CUcontext current = memory_context();
    struct transfer_stream *stream = current ? transfer_begin(current) : NULL;
    if (!stream)
        return false;
    CUresult result = REAL(cuStreamQuery)(stream->stream);
    transfer_end();
    return result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY;
}

/* Return 0 for memory that the program has made on another device than that of its context: it waits for the turn. */
static uint64_t free_bytes_for(const struct block *block) {
    struct transfer_stream *stream = transfer_begin(block->context);
    if (!stream)
        return 0;
    uint64_t room = stream->device == block_device(block) ? transfers_free_bytes() : 0;
    transfer_end();
    return room;
}

/* Restore one batch. A thread that passes the gate meanwhile waits for this batch and restores the rest. Unmade memory is
 * left to the turn, because it needs no copy. */
static uint64_t restore_batch(const uint64_t max_bytes[MAX_DEVICES], uint64_t end) {
    uint64_t requested = 0, wanted = 0, charged_bytes[MAX_DEVICES];
    struct {
        bool is_known, is_full;
        uint64_t bytes;
    } room[MAX_DEVICES] = {0};
    struct group group = {0};
    CUresult result;
    account_resident_by_device(charged_bytes);
    for (struct block *block = swap_blocks; block && wanted < MAX_PREFETCH_BYTES; block = block->next) {
        int device = block_device(block);
        if (block->is_resident || !block->was_resident || !block->context || room[device].is_full)
            continue;
        if (!room[device].is_known)
            room[device].bytes = free_bytes_for(block);
        room[device].is_known = true;
        room[device].is_full =
            block->bytes > room[device].bytes || charged_bytes[device] + block->charged_bytes > max_bytes[device];
        if (room[device].is_full)
            continue;
        if (group_ends(&group, block)) {
            requested += restore_group(&group, NULL, end, &result);
            if (requested < wanted || now_ns() > end)
                break;
        }
        wanted += block->bytes;
        room[device].bytes -= block->bytes;
        charged_bytes[device] += block->charged_bytes;
        group_add(&group, block);
    }
    return requested + restore_group(&group, NULL, end, &result);
}

uint64_t swap_prefetch(const uint64_t max_bytes[MAX_DEVICES], uint64_t now) {
    uint64_t next = NEVER;
    bool is_requested = false;
    for (int i = 0; i < shim.device_count; i++)
        is_requested = is_requested || max_bytes[i];
    pthread_mutex_lock(&residency_lock);
    if (is_requested && swap_evicted_bytes() && !is_open(gate_word())) {
        uint64_t began = now_ns();
        next = restore_batch(max_bytes, began + MAX_PREFETCH_NS) ? now : now + FREE_MEMORY_POLL_NS;
        transfers_report_restored(finish_copies(), began);
    }
    pthread_mutex_unlock(&residency_lock);
    return next;
}

CUresult swap_restore(uint32_t word, struct room_needed *missing) {
    (void)word;
    RELAXED_MODE;
    CUresult result = CUDA_SUCCESS;
    int full = 0;
    pthread_mutex_lock(&residency_lock);
    if (swap_missing_bytes()) {
        uint64_t began = now_ns();
        result = restore_all(&full);
        transfers_report_restored(finish_copies(), began);
        if (result == CUDA_SUCCESS && swap_missing_bytes()) /* a copy has failed */
            result = CUDA_ERROR_UNKNOWN;
        if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY) {
            log_once(LOG_ERROR, "Memory could not be restored to the device (CUDA error %d); the shim tries again.",
                     result);
            result = is_unrecoverable() ? CUDA_SUCCESS : result;
        }
        *missing = (struct room_needed){full, swap_missing_bytes_of(full)};
    }
    pthread_mutex_unlock(&residency_lock);
    return result;
}
