/* Blocks on their way: off the device in the agent, a few at a time; back before the turn's first call. */
#include "swap.h"

#define BATCH 16 /* blocks that leave while nobody else gets at any */

static struct {
    uint64_t bytes, nanoseconds;
    bool under_way;
} out;

/* Where the block can be reached for copying: its own place, or one that is borrowed for that. */
static bool borrow(struct block *block, CUdevice device, CUdeviceptr *address, bool *borrowed) {
    *borrowed = false;
    for (struct mapping *mapping = block->mappings; mapping; mapping = mapping->next)
        if (mapping->bytes == block->bytes && mapping->accesses &&
            mapping->access[0].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE &&
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
    *borrowed = true;
    return REAL(cuMemSetAccess)(*address, block->bytes, &access, 1) == CUDA_SUCCESS;
}

static void give_back(struct block *block, CUdeviceptr address, bool borrowed) {
    if (!borrowed)
        return;
    lanes_record();
    lanes_wait();
    REAL(cuMemUnmap)(address, block->bytes);
    REAL(cuMemAddressFree)(address, block->bytes);
}

/* `mark`: recorded behind the copy; made when first needed. */
static bool copy(struct block *block, CUcontext context, bool out_of, CUevent *mark) {
    struct lane *lane = lane_enter(context);
    CUdeviceptr address = 0;
    bool borrowed = false, well = lane && borrow(block, lane->device, &address, &borrowed);
    if (well)
        well = out_of ? host_fetch(lane, block->copy, address) : host_bring(lane, address, block->copy);
    give_back(block, address, borrowed);
    if (well && mark)
        well = (*mark || REAL(cuEventCreate)(mark, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS) &&
               REAL(cuEventRecord)(*mark, lane->stream) == CUDA_SUCCESS;
    if (lane)
        lane_leave();
    return well;
}

static void keep_here(struct block *block) {
    log_once(LOG_ERROR, "memory could not be copied off the device: it stays there");
    lanes_record();
    lanes_wait(); /* nothing may still be on its way into the host's memory */
    host_put(block->copy);
    block->copy = NULL;
    block->fixed = true;
}

static uint64_t finish(struct block *block, CUevent mark) {
    if (REAL(cuEventSynchronize)(mark) != CUDA_SUCCESS) {
        keep_here(block);
        return 0;
    }
    block_go(block);
    return block->counted;
}

/* Nothing is given up before its copy is whole. While one block is on its way, the one before it goes. */
static uint64_t fetch(uint64_t surplus) {
    CUevent marks[2] = {NULL, NULL};
    CUcontext context = NULL;
    struct block *coming = NULL;
    uint64_t asked = 0, gone = 0;
    int count = 0;
    for (struct block *block = swap_first; block && asked < surplus && count < BATCH; block = block->next) {
        if (!swap_is_movable(block) || (context && block->context != context))
            continue;
        if (!(block->copy = host_get(block->bytes)))
            break;
        context = block->context;
        if (!copy(block, context, true, &marks[count % 2])) {
            keep_here(block);
            continue;
        }
        if (coming)
            gone += finish(coming, marks[(count + 1) % 2]);
        coming = block;
        asked += block->counted;
        count++;
    }
    if (coming)
        gone += finish(coming, marks[(count + 1) % 2]);
    for (int i = 0; i < 2; i++)
        if (marks[i])
            REAL(cuEventDestroy_v2)(marks[i]);
    return gone;
}

static void report_evicted(void) {
    struct gpushare_report *report = &the_page()->report;
    if (!out.bytes)
        return;
    ADD(report->evicted_bytes, out.bytes);
    ADD(report->evicted_ns, out.nanoseconds);
    log_line(LOG_DEBUG, "evicted %.1f MiB in %.1f ms", (double)out.bytes / (1 << 20), (double)out.nanoseconds / MS);
    out.bytes = out.nanoseconds = 0;
}

/* The lock is let go between batches: a gate that opens meanwhile waits for one of them at most, and nothing leaves once
 * it is open: whoever passes it has had the lock after us. */
bool swap_evict(uint64_t target, uint64_t now, uint64_t *next) {
    uint64_t bytes = 0, resident = account_resident();
    pthread_mutex_lock(&movement_lock);
    if (resident > target && !is_open(gate_word(the_page()))) {
        uint64_t began = now_ns();
        bytes = fetch(resident - target);
        out.bytes += bytes;
        out.nanoseconds += now_ns() - began;
    }
    if (!bytes)
        report_evicted();
    pthread_mutex_unlock(&movement_lock);
    *next = now;
    return !bytes;
}

static bool bring_all(CUresult *result) {
    CUcontext here = NULL;
    REAL(cuCtxGetCurrent)(&here);
    *result = CUDA_SUCCESS;
    for (struct block *block = swap_first; block; block = block->next) {
        if (block->handle)
            continue;
        if (!block_come(block, result))
            return false;
        if (block->copy && !copy(block, block->context ? block->context : here, false, NULL)) {
            block_go(block); /* its copy is kept */
            *result = CUDA_ERROR_NOT_FOUND;
            return false;
        }
    }
    return true;
}

/* What has arrived needs its copy no more. */
static void forget_copies(void) {
    for (struct block *block = swap_first; block; block = block->next)
        if (block->handle && block->copy) {
            host_put(block->copy);
            block->copy = NULL;
        }
}

bool swap_restore(uint32_t word) {
    (void)word;
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED; /* none of this is in anybody's graph */
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&movement_lock);
    uint64_t away = swap_absent(), began = now_ns();
    bool all = !away;
    if (away) {
        bool exchanged = REAL(cuThreadExchangeStreamCaptureMode)(&mode) == CUDA_SUCCESS;
        all = bring_all(&result);
        lanes_record();
        if (!lanes_wait())
            log_once(LOG_ERROR, "memory did not arrive on the device");
        else
            forget_copies();
        struct gpushare_report *report = &the_page()->report;
        uint64_t bytes = away - swap_absent(), took = now_ns() - began;
        ADD(report->restored_bytes, bytes);
        ADD(report->restored_ns, took);
        if (bytes)
            log_line(LOG_DEBUG, "restored %.1f MiB in %.1f ms", (double)bytes / (1 << 20), (double)took / MS);
        if (exchanged)
            REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    }
    if (!all && result != CUDA_ERROR_OUT_OF_MEMORY)
        log_once(LOG_ERROR, "memory could not be brought back to the device (CUDA error %d): tried again", result);
    pthread_mutex_unlock(&movement_lock);
    return all;
}
