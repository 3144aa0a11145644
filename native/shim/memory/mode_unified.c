/* The mode "unified": device memory is allocated as unified memory, which the driver moves by page faults and the shim
 * in bulk, by prefetching it.
 *
 * No query shows which pages exist. A prefetch makes those that do not exist, on the host too. So an allocation
 * whose touched part is unknown, such as a framework's preallocation, is never prefetched. Its pages move by the
 * driver's own eviction. */
#include "memory/memory.h"

#include <stdlib.h>

#define MAX_MOVABLE_BYTES (1ull << 30) /* larger ones move only below a quarter of the device */
#define MIN_ADVISED_BYTES 65536
#define EVICTION_POLL_NS 200000
#define PREFETCH_BYTES (1ull << 30)          /* restored at a time before the turn */
#define FREE_MEMORY_POLL_NS (20 * NS_PER_MS) /* between polls for room */

static struct {
    bool evicting; /* under residency_lock, as all fields here */
    uint64_t began, bytes;
    _Atomic bool may_be_evicted;           /* some entries may be ENTRY_EVICTED */
    _Atomic uint32_t unadvised;            /* entries that are ENTRY_UNADVISED, or soon will be */
    uint64_t restore_began, restore_bytes; /* of what is prefetched */
} transfers;

/* --- allocating ------------------------------------------------------------------------------------------------------ */

/* TGS: pages of guaranteed clients stay on the device, and pages of opportunistic ones are evicted and accessed
 * where they are. Advice is an operation of the legacy stream, so it waits until blocking streams are idle and capture
 * nothing. The context is current. False: it must wait. */
static bool advise(CUdeviceptr address, size_t bytes) {
    RELAXED_MODE;
    CUdevice device;
    bool offline = PAGE_LOAD(the_page()->control.quota_flags) & 4;
    if (bytes < MIN_ADVISED_BYTES || REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS)
        return true;
    int advice = offline ? CU_MEM_ADVISE_SET_ACCESSED_BY : CU_MEM_ADVISE_SET_PREFERRED_LOCATION;
    queries_lock();
    bool is_due = blocking_streams_are_idle();
    if (is_due && REAL(cuMemAdvise)(address, bytes, advice, device) != CUDA_SUCCESS)
        log_once(LOG_INFO, "could not advise the driver where memory belongs");
    queries_unlock();
    return is_due;
}

static bool is_unadvised(const struct entry *entry) {
    return entry->kind == MEMORY_REDIRECTED && entry->references == ENTRY_UNADVISED;
}

/* Agent, outside of a turn: no work is in flight. */
static void advise_late(void) {
    struct entry *list;
    if (!atomic_load(&transfers.unadvised))
        return;
    size_t count = ledger_list(LEDGER_ADDRESSES, is_unadvised, &list);
    for (size_t i = 0; i < count; i++) {
        if (!transfer_begin(list[i].context))
            continue;
        if (advise((CUdeviceptr)list[i].key, list[i].bytes) && ledger_set_flag(&list[i], 0))
            atomic_fetch_sub(&transfers.unadvised, 1);
        transfer_end();
    }
    free(list);
}

/* Allocate unified memory, or device memory where the driver refuses. */
static CUresult allocate(CUdeviceptr *address, size_t bytes, struct entry *entry) {
    CUresult result = REAL(cuMemAllocManaged)(address, bytes, CU_MEM_ATTACH_GLOBAL);
    entry->kind = MEMORY_REDIRECTED;
    if (result == CUDA_SUCCESS && !advise(*address, bytes)) {
        entry->references = ENTRY_UNADVISED;
        atomic_fetch_add(&transfers.unadvised, 1);
    }
    if (result != CUDA_ERROR_NOT_SUPPORTED)
        return result;
    log_once(LOG_INFO, "allocate device memory, because the driver refuses unified memory");
    entry->kind = MEMORY_DEVICE;
    return REAL(cuMemAlloc_v2)(address, bytes);
}

static CUresult release(const struct entry *entry) {
    CUresult result = REAL(cuMemFree_v2)((CUdeviceptr)entry->key);
    if (result == CUDA_SUCCESS && is_unadvised(entry))
        atomic_fetch_sub(&transfers.unadvised, 1);
    return result;
}

/* --- moving ---------------------------------------------------------------------------------------------------------- */

static bool move(const struct entry *entry, bool to_device) {
    struct transfer_stream *stream = transfer_begin(entry->context);
    if (!stream)
        return false;
    bool is_requested =
        REAL(cuMemPrefetchAsync)((CUdeviceptr)entry->key, entry->bytes, to_device ? stream->device : CU_DEVICE_CPU,
                                 stream->stream) == CUDA_SUCCESS;
    stream->is_busy = stream->is_busy || is_requested;
    transfer_end();
    /* If the allocation has ended, or its address is another's by now, then the ledger is right and a page or two
     * moved in vain. */
    if (!is_requested || !ledger_set_flag(entry, to_device ? 0 : ENTRY_EVICTED))
        return false;
    if (is_unadvised(entry)) /* a capture has kept the advice away */
        atomic_fetch_sub(&transfers.unadvised, 1);
    account_note_evicted(to_device ? -(int64_t)entry->bytes : (int64_t)entry->bytes);
    if (!to_device)
        atomic_store(&transfers.may_be_evicted, true);
    return true;
}

static bool is_movable(const struct entry *entry) {
    return !is_unmovable(entry->kind) &&
           (entry->bytes <= MAX_MOVABLE_BYTES || entry->bytes <= shim.devices[0].memory / 4);
}

static bool is_on_device(const struct entry *entry) {
    return is_movable(entry) && entry->references != ENTRY_EVICTED;
}

static bool is_evicted(const struct entry *entry) {
    return !is_unmovable(entry->kind) && entry->references == ENTRY_EVICTED;
}

static int largest_first(const void *a, const void *b) {
    uint64_t one = ((const struct entry *)a)->bytes, two = ((const struct entry *)b)->bytes;
    return one < two ? 1 : one > two ? -1 : 0;
}

/* No query shows the last use; a few large allocations move faster than many small ones. */
static void begin_eviction(uint64_t surplus) {
    struct entry *list;
    size_t count = ledger_list(LEDGER_ADDRESSES, is_on_device, &list);
    qsort(list, count, sizeof *list, largest_first);
    for (size_t i = 0; i < count && surplus; i++) {
        while (i + 1 < count && list[i + 1].bytes >= surplus)
            i++; /* a smaller one is enough */
        if (!move(&list[i], false))
            continue;
        transfers.bytes += list[i].bytes;
        surplus -= list[i].bytes < surplus ? list[i].bytes : surplus;
    }
    free(list);
    transfers_record();
}

static bool evict(uint64_t target, uint64_t now, uint64_t *next) {
    uint64_t resident = account_resident();
    pthread_mutex_lock(&residency_lock);
    if (!transfers.evicting && resident > target) {
        advise_late();
        transfers.began = now;
        transfers.bytes = 0;
        begin_eviction(resident - target);
        transfers.evicting = transfers.bytes > 0;
    }
    bool done = !transfers.evicting || transfers_are_complete();
    if (transfers.evicting && done) {
        struct gpushare_report *report = &the_page()->report;
        uint64_t took = now_ns() - transfers.began;
        PAGE_ADD(report->evicted_bytes, transfers.bytes);
        PAGE_ADD(report->evicted_ns, took);
        log_message(LOG_DEBUG, "evicted %s in %.1f ms", size_text(transfers.bytes).text, (double)took / NS_PER_MS);
    }
    transfers.evicting = !done;
    pthread_mutex_unlock(&residency_lock);
    *next = now + EVICTION_POLL_NS;
    return done;
}

/* Restore as much of `max_bytes` as there is room for. *evicted: the number of evicted entries. */
static uint64_t request_restore(uint64_t room, uint64_t max_bytes, size_t *evicted) {
    struct entry *list;
    uint64_t bytes = 0;
    *evicted = ledger_list(LEDGER_ADDRESSES, is_evicted, &list);
    for (size_t i = 0; i < *evicted && bytes < max_bytes; i++) {
        if (bytes + list[i].bytes > room || !move(&list[i], true))
            continue;
        bytes += list[i].bytes;
    }
    free(list);
    transfers_record();
    return bytes;
}

static uint64_t subtract(uint64_t from, uint64_t bytes) {
    return from > bytes ? from - bytes : 0;
}

static void finish_prefetch(void) {
    transfers_report_restored(transfers.restore_bytes, transfers.restore_began);
    transfers.restore_bytes = 0;
}

/* Return the free bytes of the device, as any context of the process shows them. */
static uint64_t free_bytes_for_prefetch(void) {
    struct entry *list;
    uint64_t room = 0;
    size_t count = ledger_list(LEDGER_ADDRESSES, is_evicted, &list);
    if (count && transfer_begin(list[0].context)) {
        room = transfers_free_bytes();
        transfer_end();
    }
    free(list);
    return room;
}

static uint64_t prefetch(uint64_t max_bytes, uint64_t now) {
    uint64_t next = NEVER;
    size_t evicted = 0;
    pthread_mutex_lock(&residency_lock);
    advise_late();
    bool arrived = !transfers.restore_bytes || transfers_are_complete();
    if (arrived)
        finish_prefetch();
    if (!arrived) {
        next = now + EVICTION_POLL_NS;
    } else if (max_bytes && atomic_load(&transfers.may_be_evicted) && !is_open(gate_word())) {
        transfers.restore_began = now_ns();
        transfers.restore_bytes = request_restore(
            min_u64(subtract(max_bytes, account_resident()), free_bytes_for_prefetch()), PREFETCH_BYTES, &evicted);
        next = transfers.restore_bytes ? now + EVICTION_POLL_NS : evicted ? now + FREE_MEMORY_POLL_NS : NEVER;
    }
    pthread_mutex_unlock(&residency_lock);
    return next;
}

/* Memory beyond the size of the device comes by page faults. */
static bool restore(uint32_t word) {
    if (!atomic_load_explicit(&transfers.may_be_evicted, memory_order_acquire) ||
        is_step(word)) /* a single call: page by page */
        return true;
    RELAXED_MODE;
    uint64_t apparent_total = PAGE_LOAD(the_page()->control.memory_total),
             total = apparent_total ? apparent_total : shim.devices[0].memory;
    size_t evicted;
    pthread_mutex_lock(&residency_lock);
    uint64_t began = transfers.restore_bytes ? transfers.restore_began : now_ns();
    uint64_t bytes =
        transfers.restore_bytes + request_restore(subtract(total, account_resident()), UINT64_MAX, &evicted);
    transfers.restore_bytes = 0;
    if (!evicted)
        atomic_store(&transfers.may_be_evicted, false);
    transfers_sync();
    transfers_report_restored(bytes, began);
    pthread_mutex_unlock(&residency_lock);
    return true;
}

void unified_after_fork(void) {
    transfers.evicting = false;
    transfers.restore_bytes = 0;
    atomic_store(&transfers.may_be_evicted, false);
    atomic_store(&transfers.unadvised, 0);
}

const struct memory_mode mode_unified = {
    .name = "unified",
    .number = GPUSHARE_MEMORY_UNIFIED,
    .allocate = allocate,
    .release = release,
    .evict = evict,
    .restore = restore,
    .prefetch = prefetch,
};
