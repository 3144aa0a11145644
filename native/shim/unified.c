/* The mode "unified": device memory is made as unified memory, which the driver moves by page faults, and we in bulk, by
 * prefetching it.
 *
 * Nobody can ask which pages exist. A prefetch makes those that do not, on the host too: so an allocation whose touched
 * part is unknown, a framework's preallocation, is never prefetched. Its pages move by the driver's own eviction. */
#include "shim.h"

#include <stdio.h>
#include <stdlib.h>

#define PREALLOCATION (1ull << 30) /* bytes; and a quarter of the device */
#define LEAST_ADVISED 65536
#define PAUSE_NS 200000
#define AHEAD (1ull << 30)             /* bytes that come back at a time before the turn */
#define ROOM_PAUSE_NS (20 * NS_PER_MS) /* between looks for room */

static struct {
    bool evicting; /* under movement_lock, like all here */
    uint64_t began, bytes;
    _Atomic bool away;               /* there may be entries that are EVICTED */
    uint64_t back_began, back_bytes; /* what comes back ahead of the turn */
} moves;

/* --- allocating ------------------------------------------------------------------------------------------------------ */

/* TGS: guaranteed clients' pages stay on the device, opportunistic ones' give way and are reached where they are. */
static void advise(CUdeviceptr address, size_t bytes) {
    CUdevice device;
    bool offline = PAGE_LOAD(the_page()->orders.quota_set) & 4;
    if (bytes < LEAST_ADVISED || REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS)
        return;
    int advice = offline ? CU_MEM_ADVISE_SET_ACCESSED_BY : CU_MEM_ADVISE_SET_PREFERRED_LOCATION;
    if (REAL(cuMemAdvise)(address, bytes, advice, device) != CUDA_SUCCESS)
        log_once(LOG_INFO, "the driver takes no advice on where memory belongs");
}

/* The managed form of an allocation, or the plain one where the driver refuses. */
static CUresult allocate(CUdeviceptr *address, size_t bytes, struct entry *entry) {
    CUresult result = REAL(cuMemAllocManaged)(address, bytes, CU_MEM_ATTACH_GLOBAL);
    entry->kind = REDIRECTED;
    if (result == CUDA_SUCCESS)
        advise(*address, bytes);
    if (result != CUDA_ERROR_NOT_SUPPORTED)
        return result;
    log_once(LOG_INFO, "the driver refuses unified memory: allocations stay plain");
    entry->kind = DEVICE;
    return REAL(cuMemAlloc_v2)(address, bytes);
}

static CUresult release(const struct entry *entry) {
    return REAL(cuMemFree_v2)((CUdeviceptr)entry->key);
}

/* --- moving ---------------------------------------------------------------------------------------------------------- */

static bool prefetch(const struct entry *entry, bool to_device) {
    struct lane *lane = lane_enter(entry->context);
    if (!lane)
        return false;
    bool asked = REAL(cuMemPrefetchAsync)((CUdeviceptr)entry->key, entry->bytes,
                                          to_device ? lane->device : CU_DEVICE_CPU, lane->stream) == CUDA_SUCCESS;
    lane->busy = lane->busy || asked;
    lane_leave();
    /* If it is gone, or its address another's, by now, then the book is right, and a page or two moved in vain. */
    if (!asked || !ledger_mark(entry, to_device ? 0 : EVICTED))
        return false;
    account_moved(to_device ? -(int64_t)entry->bytes : (int64_t)entry->bytes);
    if (!to_device)
        atomic_store(&moves.away, true);
    return true;
}

static bool is_movable(const struct entry *entry) {
    return !is_pinned(entry->kind) && (entry->bytes <= PREALLOCATION || entry->bytes <= shim.devices[0].memory / 4);
}

static bool is_here(const struct entry *entry) {
    return is_movable(entry) && entry->references != EVICTED;
}

static bool is_away(const struct entry *entry) {
    return !is_pinned(entry->kind) && entry->references == EVICTED;
}

static int largest_first(const void *a, const void *b) {
    uint64_t one = ((const struct entry *)a)->bytes, two = ((const struct entry *)b)->bytes;
    return one < two ? 1 : one > two ? -1 : 0;
}

/* Which were used last nobody knows; few large ones are moved faster than many small ones. */
static void begin_eviction(uint64_t surplus) {
    struct entry *list;
    size_t count = ledger_list(ADDRESSES, is_here, &list);
    qsort(list, count, sizeof *list, largest_first);
    for (size_t i = 0; i < count && surplus; i++) {
        while (i + 1 < count && list[i + 1].bytes >= surplus)
            i++; /* a smaller one will do */
        if (!prefetch(&list[i], false))
            continue;
        moves.bytes += list[i].bytes;
        surplus -= list[i].bytes < surplus ? list[i].bytes : surplus;
    }
    free(list);
    lanes_record();
}

static bool evict(uint64_t target, uint64_t now, uint64_t *next) {
    uint64_t resident = account_resident();
    pthread_mutex_lock(&movement_lock);
    if (!moves.evicting && resident > target) {
        moves.began = now;
        moves.bytes = 0;
        begin_eviction(resident - target);
        moves.evicting = moves.bytes > 0;
    }
    bool done = !moves.evicting || lanes_arrived();
    if (moves.evicting && done) {
        struct gpushare_report *report = &the_page()->report;
        uint64_t took = now_ns() - moves.began;
        PAGE_ADD(report->evicted_bytes, moves.bytes);
        PAGE_ADD(report->evicted_ns, took);
        log_message(LOG_DEBUG, "evicted %s in %.1f ms", size_text(moves.bytes).text, (double)took / NS_PER_MS);
    }
    moves.evicting = !done;
    pthread_mutex_unlock(&movement_lock);
    *next = now + PAUSE_NS;
    return done;
}

/* As much as there is room for, of `most_bytes`; *away: how many entries are. */
static uint64_t ask_back(uint64_t room, uint64_t most_bytes, size_t *away) {
    struct entry *list;
    uint64_t bytes = 0;
    *away = ledger_list(ADDRESSES, is_away, &list);
    for (size_t i = 0; i < *away && bytes < most_bytes; i++) {
        if (bytes + list[i].bytes > room || !prefetch(&list[i], true))
            continue;
        bytes += list[i].bytes;
    }
    free(list);
    lanes_record();
    return bytes;
}

static uint64_t less(uint64_t from, uint64_t bytes) {
    return from > bytes ? from - bytes : 0;
}

static void ahead_arrived(void) {
    report_restored(moves.back_bytes, moves.back_began);
    moves.back_bytes = 0;
}

/* The device's room, as any context of ours sees it. */
static uint64_t room_ahead(void) {
    struct entry *list;
    uint64_t room = 0;
    size_t count = ledger_list(ADDRESSES, is_away, &list);
    if (count && lane_enter(list[0].context)) {
        room = room_to_spare();
        lane_leave();
    }
    free(list);
    return room;
}

static uint64_t ahead(uint64_t most_bytes, uint64_t now) {
    uint64_t next = NEVER;
    size_t away = 0;
    pthread_mutex_lock(&movement_lock);
    bool arrived = !moves.back_bytes || lanes_arrived();
    if (arrived)
        ahead_arrived();
    if (!arrived) {
        next = now + PAUSE_NS;
    } else if (most_bytes && atomic_load(&moves.away) && !is_open(gate_word())) {
        moves.back_began = now_ns();
        moves.back_bytes = ask_back(min_u64(less(most_bytes, account_resident()), room_ahead()), AHEAD, &away);
        next = moves.back_bytes ? now + PAUSE_NS : away ? now + ROOM_PAUSE_NS : NEVER;
    }
    pthread_mutex_unlock(&movement_lock);
    return next;
}

/* What is larger than the device comes as it is touched. */
static bool restore(uint32_t word) {
    if (!atomic_load_explicit(&moves.away, memory_order_acquire) || is_step(word)) /* a single call: page by page */
        return true;
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED; /* waiting for an event of ours is no harm to a capture elsewhere */
    bool exchanged = REAL(cuThreadExchangeStreamCaptureMode)(&mode) == CUDA_SUCCESS;
    uint64_t told = PAGE_LOAD(the_page()->orders.memory_total), total = told ? told : shim.devices[0].memory;
    size_t away;
    pthread_mutex_lock(&movement_lock);
    uint64_t began = moves.back_bytes ? moves.back_began : now_ns();
    uint64_t bytes = moves.back_bytes + ask_back(less(total, account_resident()), UINT64_MAX, &away);
    moves.back_bytes = 0;
    if (!away)
        atomic_store(&moves.away, false);
    lanes_wait();
    report_restored(bytes, began);
    pthread_mutex_unlock(&movement_lock);
    if (exchanged)
        REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    return true;
}

static void describe(char *text, size_t room) {
    snprintf(text, room, "unified: more than the device holds, moved by prefetching and page faults");
}

void unified_after_fork(void) {
    moves.evicting = false;
    moves.back_bytes = 0;
    atomic_store(&moves.away, false);
}

const struct memory_mode mode_unified = {
    .name = "unified",
    .number = GPUSHARE_MEMORY_UNIFIED,
    .allocate = allocate,
    .release = release,
    .evict = evict,
    .restore = restore,
    .ahead = ahead,
    .describe = describe,
};
