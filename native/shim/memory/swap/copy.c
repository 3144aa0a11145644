/* Copies of blocks, in both directions. A few copies are under way at a time, so that the link has its next one while
 * blocks are mapped or unmapped.
 *
 * Pinned memory is copied directly; other memory goes through pinned staging buffers, which are filled or emptied
 * here. A block counts as resident when the last of its copies has finished and none has failed. Copied blocks are
 * evicted a run at a time. */
#include "memory/swap/blocks.h"

#include <stdlib.h>
#include <string.h>

static struct copy_slot {
    struct block *block; /* NULL: no copy is under way here */
    CUevent finished;
    CUstream stream;
    struct host_buffer *stage; /* made when first needed */
    char *to;                  /* where the contents of the stage belong; NULL: nowhere */
    uint64_t bytes;
    bool out, last;
    CUdeviceptr borrowed; /* a mapping for this copy alone; 0: none */
} slots[COPY_SLOTS];

static unsigned next_slot;
static CUcontext event_context; /* of the events */
static uint64_t finished_bytes;
static struct block *leaving[RUN_BLOCKS]; /* copied, and still on the device */
static int leaving_count;
static uint64_t leaving_bytes;

static void abort_eviction(struct block *block) {
    log_once(LOG_ERROR, "Memory could not be moved off the device and stays there, so other clients have less room.");
    host_buffer_free(block->copy);
    block->copy = NULL;
    block_pin(block);
}

static void evict_leaving(void) {
    runs_evict(leaving, leaving_count);
    for (int i = 0; i < leaving_count; i++) {
        if (leaving[i]->is_resident)
            abort_eviction(leaving[i]);
        else
            finished_bytes += leaving[i]->bytes;
    }
    leaving_count = 0;
    leaving_bytes = 0;
}

static void finish_eviction(struct block *block) {
    if (block->has_failed) {
        abort_eviction(block);
        return;
    }
    if (leaving_count && (leaving_count == RUN_BLOCKS || leaving_bytes >= MAX_RUN_BYTES ||
                          !run_continues(leaving[leaving_count - 1], block)))
        evict_leaving();
    leaving[leaving_count++] = block;
    leaving_bytes += block->bytes;
}

static void finish_restore(struct block *block) {
    if (block->has_failed) {
        log_once(LOG_ERROR, "Memory did not arrive on the device; the shim copies it again.");
        return; /* its copy on the host is kept */
    }
    block_end_restore(block);
    host_buffer_free(block->copy);
    block->copy = NULL;
    finished_bytes += block->bytes;
}

static void free_borrowed(CUdeviceptr address, uint64_t bytes) {
    REAL(cuMemUnmap)(address, bytes);
    REAL(cuMemAddressFree)(address, bytes);
}

static void finish_copy(struct copy_slot *slot) {
    struct block *block = slot->block;
    if (!block)
        return;
    slot->block = NULL;
    bool finished = REAL(cuEventSynchronize)(slot->finished) == CUDA_SUCCESS;
    if (!finished)
        REAL(cuStreamSynchronize)(slot->stream); /* the buffers of this copy are used again */
    else if (slot->to)
        parallel_copy(slot->to, slot->stage->address, slot->bytes);
    block->has_failed = block->has_failed || !finished;
    if (!slot->last)
        return;
    if (slot->borrowed)
        free_borrowed(slot->borrowed, block->bytes);
    (slot->out ? finish_eviction : finish_restore)(block);
}

static void finish_all(void) {
    for (int i = 0; i < COPY_SLOTS; i++)
        finish_copy(&slots[next_slot++ % COPY_SLOTS]); /* the oldest first */
}

uint64_t finish_copies(void) {
    finish_all();
    evict_leaving();
    uint64_t bytes = finished_bytes;
    finished_bytes = 0;
    return bytes;
}

static void change_context(CUcontext context) {
    finish_all();
    for (int i = 0; i < COPY_SLOTS; i++) {
        if (slots[i].finished)
            REAL(cuEventDestroy_v2)(slots[i].finished);
        slots[i].finished = NULL;
    }
    event_context = context;
}

/* The context is current. `stage_bytes`: of the stage; 0: none. NULL: the driver has no event, or the host no memory. */
static struct copy_slot *take(CUcontext context, uint64_t stage_bytes) {
    if (event_context != context)
        change_context(context);
    struct copy_slot *slot = &slots[next_slot++ % COPY_SLOTS];
    finish_copy(slot);
    if (!slot->finished &&
        REAL(cuEventCreate)(&slot->finished, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
        slot->finished = NULL;
        return NULL;
    }
    if (!stage_bytes)
        return slot;
    if (slot->stage && slot->stage->bytes != stage_bytes) {
        host_buffer_discard_staging(slot->stage);
        slot->stage = NULL;
    }
    if (!slot->stage)
        slot->stage = host_buffer_alloc_staging(stage_bytes);
    if (slot->stage)
        host_buffer_pin(slot->stage, context);
    return slot->stage ? slot : NULL;
}

/* Find an address of the block for copying: its own mapping, or one that is made for the copy. */
static bool find_address(struct block *block, CUdevice device, CUdeviceptr *address, CUdeviceptr *borrowed) {
    *borrowed = 0;
    for (struct mapping *mapping = block->mappings; mapping; mapping = mapping->next)
        if (mapping->bytes == block->bytes && mapping->access_count &&
            mapping->access[0].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE &&
            mapping->access[0].location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
            mapping->access[0].location.id == device) {
            *address = mapping->address;
            return true;
        }
    CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, device},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    if (REAL(cuMemAddressReserve)(address, block->bytes, 0, 0, 0) != CUDA_SUCCESS)
        return false;
    if (REAL(cuMemMap)(*address, block->bytes, 0, block->handle, 0) != CUDA_SUCCESS) {
        REAL(cuMemAddressFree)(*address, block->bytes);
        return false;
    }
    *borrowed = *address;
    return REAL(cuMemSetAccess)(*address, block->bytes, &access, 1) == CUDA_SUCCESS;
}

static bool submit(struct transfer_stream *stream, struct copy_slot *slot, CUdeviceptr device, void *host_address,
                   bool out) {
    void *transfer_address = slot->to ? slot->stage->address : host_address;
    if (slot->to && !out)
        parallel_copy(transfer_address, host_address, slot->bytes);
    CUresult result = out ? REAL(cuMemcpyDtoHAsync_v2)(transfer_address, device, slot->bytes, stream->stream)
                          : REAL(cuMemcpyHtoDAsync_v2)(device, transfer_address, slot->bytes, stream->stream);
    return result == CUDA_SUCCESS && REAL(cuEventRecord)(slot->finished, stream->stream) == CUDA_SUCCESS;
}

bool copy_begin(struct transfer_stream *stream, struct block *block, bool out) {
    struct host_buffer *host = block->copy;
    CUdeviceptr address, borrowed;
    uint64_t stage_bytes = host->pinned ? 0 : host_staging_bytes(), max_bytes = stage_bytes ? stage_bytes : host->bytes;
    bool is_ok = find_address(block, stream->device, &address, &borrowed);
    block->has_failed = false;
    for (uint64_t at = 0; is_ok && at < block->bytes; at += max_bytes) {
        struct copy_slot *slot = take(stream->context, stage_bytes);
        char *host_address = (char *)host->address + at;
        if (!(is_ok = slot != NULL))
            break;
        slot->bytes = min_u64(max_bytes, block->bytes - at);
        slot->to = host->pinned ? NULL : host_address;
        if (!(is_ok = submit(stream, slot, address + at, host_address, out)))
            break;
        slot->to = out ? slot->to : NULL;
        slot->out = out;
        slot->stream = stream->stream;
        slot->last = at + slot->bytes == block->bytes;
        slot->borrowed = borrowed;
        slot->block = block;
    }
    if (is_ok)
        return true;
    finish_all();
    REAL(cuStreamSynchronize)(stream->stream); /* copies may be under way that no event covers */
    if (borrowed)
        free_borrowed(borrowed, block->bytes);
    if (out)
        abort_eviction(block);
    return false;
}

/* Events ended with their context; no copy is under way while a context ends. */
void copies_drop_context(CUcontext context) {
    for (int i = 0; i < COPY_SLOTS; i++) {
        if (event_context == context)
            slots[i].finished = NULL;
        if (slots[i].stage && slots[i].stage->pinned == context)
            slots[i].stage->pinned = NULL;
    }
    event_context = event_context == context ? NULL : event_context;
}

void copies_after_fork(void) {
    memset(slots, 0, sizeof slots); /* left to the parent's heap image */
    leaving_count = 0;
    leaving_bytes = 0;
    event_context = NULL;
    finished_bytes = 0;
    parallel_copy_after_fork();
}
