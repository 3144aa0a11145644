/* Blocks on their way: off the device in the agent, a few at a time; back before the turn's first call. */
#include "swap.h"

#define BATCH (1ull << 30)        /* bytes that leave while nobody else gets at any */
#define AHEAD (256ull << 20)      /* and that come back so */
#define AHEAD_NS (20 * NS_PER_MS) /* or about so long, where the link is slow */
#define PAUSE_NS (20 * NS_PER_MS) /* between looks for room */

static struct {
    uint64_t bytes, nanoseconds;
} out;

/* Nothing is given up before its copy is whole. */
static uint64_t fetch(uint64_t surplus) {
    uint64_t asked = 0;
    for (struct block *block = swap_first; block && asked < surplus && asked < BATCH; block = block->next) {
        if (block->handle && !block->here) /* stuck on its way, so that its copy is on the host already */
            block_go(block);
        struct lane *lane = swap_is_movable(block) ? lane_enter(block->context) : NULL;
        if (!lane)
            continue;
        block->copy = host_get(block->bytes, block->context);
        if (block->copy && copy_begin(lane, block, true))
            asked += block->counted;
        lane_leave();
        if (!block->copy && !block->fixed)
            break; /* the host is full */
    }
    return copies_end();
}

static void log_evicted(void) {
    if (out.bytes)
        log_message(LOG_DEBUG, "evicted %s in %.1f ms", size_text(out.bytes).text, (double)out.nanoseconds / NS_PER_MS);
    out.bytes = out.nanoseconds = 0;
}

/* The lock is let go between batches: a gate that opens meanwhile waits for one of them at most, and nothing leaves once
 * it is open: whoever passes it has had the lock after us. */
bool swap_evict(uint64_t target, uint64_t now, uint64_t *next) {
    struct gpushare_report *report = &the_page()->report;
    uint64_t bytes = 0, resident = account_resident();
    pthread_mutex_lock(&movement_lock);
    if (resident > target && !is_open(gate_word())) {
        uint64_t began = now_ns();
        bytes = fetch(resident - target);
        uint64_t took = now_ns() - began;
        PAGE_ADD(report->evicted_bytes, bytes);
        PAGE_ADD(report->evicted_ns, bytes ? took : 0);
        out.bytes += bytes;
        out.nanoseconds += took;
    }
    if (!bytes)
        log_evicted();
    pthread_mutex_unlock(&movement_lock);
    *next = now;
    return !bytes;
}

/* False, with an error in *result: it cannot come (yet). */
static bool bring(struct block *block, CUcontext context, CUresult *result) {
    if (!block_come(block, result))
        return false;
    if (!block->copy) {
        block_came(block);
        return true;
    }
    struct lane *lane = lane_enter(context);
    bool well = lane && copy_begin(lane, block, false);
    if (lane)
        lane_leave();
    *result = well ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
    return well;
}

static bool bring_all(CUresult *result) {
    CUcontext here = NULL;
    bool well = true;
    REAL(cuCtxGetCurrent)(&here);
    for (struct block *block = swap_first; block && well; block = block->next)
        if (!block->here)
            well = bring(block, block->context ? block->context : here, result);
    return well;
}

/* Nothing arrives in a context that has failed, and the program is to hear of that by its own call. */
static bool is_beyond_help(void) {
    CUcontext here = NULL;
    REAL(cuCtxGetCurrent)(&here);
    struct lane *lane = here ? lane_enter(here) : NULL;
    if (!lane)
        return false;
    CUresult result = REAL(cuStreamQuery)(lane->stream);
    lane_leave();
    return result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY;
}

static uint64_t room_for(const struct block *block) {
    if (!lane_enter(block->context))
        return 0;
    uint64_t room = room_to_spare();
    lane_leave();
    return room;
}

/* A part of it at a time: whoever opens the gate meanwhile waits for that one, and brings the rest. */
static uint64_t bring_part(uint64_t most_bytes, uint64_t end) {
    uint64_t asked = 0, counted = account_resident(), room = 0;
    CUresult result;
    for (struct block *block = swap_first; block && asked < AHEAD; block = block->next) {
        if (block->here || !block->context)
            continue;
        if (!asked)
            room = room_for(block);
        if (now_ns() > end || asked + block->bytes > room || counted + block->counted > most_bytes ||
            !bring(block, block->context, &result))
            break;
        asked += block->bytes;
        counted += block->counted;
    }
    return asked;
}

uint64_t swap_ahead(uint64_t most_bytes, uint64_t now) {
    uint64_t next = NEVER;
    pthread_mutex_lock(&movement_lock);
    if (most_bytes && swap_absent() && !is_open(gate_word())) {
        uint64_t began = now_ns();
        next = bring_part(most_bytes, began + AHEAD_NS) ? now : now + PAUSE_NS;
        report_restored(copies_end(), began);
    }
    pthread_mutex_unlock(&movement_lock);
    return next;
}

bool swap_restore(uint32_t word) {
    (void)word;
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED; /* none of this is in anybody's graph */
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&movement_lock);
    bool all = !swap_absent();
    if (!all) {
        uint64_t began = now_ns();
        bool exchanged = REAL(cuThreadExchangeStreamCaptureMode)(&mode) == CUDA_SUCCESS;
        bool asked = bring_all(&result);
        report_restored(copies_end(), began);
        all = asked && !swap_absent();
        if (!all && result != CUDA_ERROR_OUT_OF_MEMORY) {
            log_once(LOG_ERROR, "memory could not be brought back to the device (CUDA error %d): tried again", result);
            all = is_beyond_help();
        }
        if (exchanged)
            REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    }
    pthread_mutex_unlock(&movement_lock);
    return all;
}
