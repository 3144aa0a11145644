/* The mode "unified": device memory is allocated as unified memory. The driver moves it by page faults, and the shim
 * in bulk, by prefetching it to the host or to the device.
 *
 * No query shows which pages exist, and a prefetch makes pages that do not exist. So an allocation above 1 GiB and
 * above a quarter of the device, such as a framework's preallocation, is never prefetched. The driver's own eviction
 * moves its pages. */
#include "memory/memory.h"

#include <stdlib.h>

#define MAX_MOVABLE_BYTES (1ull << 30) /* larger ones move only below a quarter of the device */
#define MIN_POPULATED_BYTES (2ull << 20)
#define EVICTION_POLL_NS 200000
#define MAX_EVICTED_BYTES (64ull << 20)      /* requested at a time, because the driver blocks its caller */
#define PREFETCH_BYTES (1ull << 30)          /* restored at a time before the turn */
#define MAX_FREED 32                         /* allocations at a time, for a change of the class */
#define FREE_MEMORY_POLL_NS (20 * NS_PER_MS) /* between polls for room */
#define LIMIT_POLL_NS (50 * NS_PER_MS)       /* between polls of what is resident in a turn with a limit */

static struct {
    bool evicting; /* under residency_lock, as all fields here */
    uint64_t began, bytes;
    struct entry leaving;                  /* allocation that is evicted in parts */
    uint64_t requested;                    /* bytes of it that are leaving or have left */
    _Atomic bool may_be_evicted;           /* some entries may be ENTRY_EVICTED */
    uint64_t restore_began, restore_bytes; /* of what is prefetched */
    bool was_limited;                      /* only the agent uses it: the limit of a turn keeps memory off the device */
} transfers;

/* --- allocating --------------------------------------------------------------------------------------------------- */

static struct pending unpopulated = {.lock = PTHREAD_MUTEX_INITIALIZER}; /* made outside of a turn */

static bool is_of_movable_size(const struct entry *entry) {
    return entry->bytes <= MAX_MOVABLE_BYTES || entry->bytes <= shim.devices[0].memory / 4;
}

/* The bytes of the device as the program finds them. */
static uint64_t total_memory(void) {
    uint64_t apparent = PAGE_LOAD(the_page()->control.memory_total);
    return apparent ? apparent : shim.devices[0].memory;
}

/* Request a prefetch, under residency_lock. */
static bool request(const struct entry *entry, uint64_t offset, uint64_t bytes, bool to_device) {
    struct transfer_stream *stream = transfer_begin(entry->context);
    if (!stream)
        return false;
    CUdeviceptr address = (CUdeviceptr)entry->key + offset;
    bool is_requested = REAL(cuMemPrefetchAsync)(address, bytes, to_device ? stream->device : CU_DEVICE_CPU,
                                                 stream->stream) == CUDA_SUCCESS;
    stream->is_busy = stream->is_busy || is_requested;
    transfer_end();
    return is_requested;
}

/* The bytes that may be resident in a turn. */
static uint64_t max_resident(void) {
    return min_u64(total_memory(), account_turn_limit());
}

/* Give a new allocation its pages on the device, under residency_lock. Pages of a client of class offline may belong on
 * the host. `requested`: bytes that other requests will take. */
static bool populate(const struct entry *entry, uint64_t requested) {
    if (is_offline() || account_resident() > max_resident() || !transfer_begin(entry->context))
        return false;
    bool has_room = entry->bytes + requested <= transfers_free_bytes();
    transfer_end();
    return has_room && request(entry, 0, entry->bytes, true);
}

/* Page faults of the first use are slow. */
static void populate_new(const struct entry *entry) {
    if (entry->kind != MEMORY_REDIRECTED)
        return;
    CUdeviceptr address = (CUdeviceptr)entry->key;
    advice_give(address, entry->bytes);
    if (entry->bytes < MIN_POPULATED_BYTES || !is_of_movable_size(entry))
        return;
    RELAXED_MODE;
    if (!is_running()) {
        pending_add(&unpopulated, address, entry->bytes);
    } else if (!pthread_mutex_trylock(&residency_lock)) {
        populate(entry, 0);
        pthread_mutex_unlock(&residency_lock);
    }
}

/* At the beginning of a turn, under residency_lock. */
static void populate_all(uint64_t requested) {
    uint64_t bytes = 0;
    pthread_mutex_lock(&unpopulated.lock);
    for (unsigned i = 0; i < unpopulated.count; i++) {
        struct entry found;
        if (pending_find(&unpopulated.list[i], &found) && !found.references && populate(&found, requested + bytes))
            bytes += found.bytes;
    }
    unpopulated.count = 0;
    pthread_mutex_unlock(&unpopulated.lock);
}

/* Allocate unified memory, or device memory where the driver refuses. */
static CUresult allocate(CUdeviceptr *address, size_t bytes, struct entry *entry) {
    CUresult result = REAL(cuMemAllocManaged)(address, bytes, CU_MEM_ATTACH_GLOBAL);
    entry->kind = MEMORY_REDIRECTED;
    if (result != CUDA_ERROR_NOT_SUPPORTED)
        return result;
    log_once(LOG_INFO, "allocate device memory, because the driver refuses unified memory");
    entry->kind = MEMORY_DEVICE;
    return REAL(cuMemAlloc_v2)(address, bytes);
}

static CUresult release(const struct entry *entry) {
    return REAL(cuMemFree_v2)((CUdeviceptr)entry->key);
}

static uint64_t subtract(uint64_t from, uint64_t bytes) {
    return from > bytes ? from - bytes : 0;
}

/* --- moving ------------------------------------------------------------------------------------------------------- */

/* Move the first `bytes` of an allocation, which counts as moved as a whole. If the allocation has ended, or its
 * address is another's by now, then the ledger is right and a page or two moved in vain. */
static bool move(const struct entry *entry, uint64_t bytes, bool to_device) {
    bool is_partly_evicted = entry->key == transfers.leaving.key && transfers.requested < transfers.leaving.bytes;
    uint32_t place = !to_device ? ENTRY_EVICTED : is_partly_evicted ? 0 : ENTRY_RESTORED;
    if (!request(entry, 0, bytes, to_device) || !ledger_set_place(entry, place))
        return false;
    if (!to_device)
        account_note_leaving(entry->references ? 0 : (int64_t)entry->bytes, entry->bytes - bytes);
    else if (!place)
        account_note_on_host(-(int64_t)entry->bytes);
    account_note_evicted(ANY_DEVICE, to_device ? -(int64_t)entry->bytes : (int64_t)entry->bytes);
    if (!to_device)
        atomic_store(&transfers.may_be_evicted, true);
    return true;
}

static bool is_movable(const struct entry *entry) {
    return !is_unmovable(entry->kind) && is_of_movable_size(entry);
}

static bool is_on_device(const struct entry *entry) {
    return is_movable(entry) && entry->references != ENTRY_EVICTED;
}

static bool is_evicted(const struct entry *entry) {
    return !is_unmovable(entry->kind) && entry->references == ENTRY_EVICTED;
}

/* Restored memory leaves first, because it needs no further host memory. No query shows the last use; a few large
 * allocations move faster than many small ones. */
static int eviction_order(const void *a, const void *b) {
    const struct entry *one = a, *two = b;
    if (one->references != two->references)
        return one->references == ENTRY_RESTORED ? -1 : 1;
    return one->bytes < two->bytes ? 1 : one->bytes > two->bytes ? -1 : 0;
}

/* Evict at most `max_bytes` of the rest of the allocation that is leaving. */
static uint64_t evict_rest(uint64_t max_bytes) {
    uint64_t bytes = min_u64(transfers.leaving.bytes - transfers.requested, max_bytes);
    bool is_requested = bytes && request(&transfers.leaving, transfers.requested, bytes, false);
    /* A refusal means that the program has freed the allocation. */
    transfers.requested = is_requested ? transfers.requested + bytes : transfers.leaving.bytes;
    return is_requested ? bytes : 0;
}

/* Evict one part of `surplus` bytes, and return the part's bytes. */
static uint64_t evict_part(uint64_t surplus) {
    struct entry *list;
    uint64_t bytes = evict_rest(MAX_EVICTED_BYTES);
    size_t count = surplus && bytes < MAX_EVICTED_BYTES ? ledger_list(LEDGER_ADDRESSES, is_on_device, &list) : 0;
    if (count)
        qsort(list, count, sizeof *list, eviction_order);
    for (size_t i = 0; i < count && surplus && bytes < MAX_EVICTED_BYTES; i++) {
        while (i + 1 < count && list[i + 1].bytes >= surplus && list[i + 1].references == list[i].references)
            i++; /* a smaller one is enough */
        uint64_t part = min_u64(list[i].bytes, MAX_EVICTED_BYTES - bytes);
        if (list[i].bytes > account_max_eviction() || !move(&list[i], part, false))
            continue;
        transfers.leaving = list[i];
        transfers.requested = part;
        bytes += part;
        surplus = subtract(surplus, list[i].bytes);
    }
    if (count)
        free(list);
    transfers_record();
    account_note_leaving(0, transfers.leaving.bytes - transfers.requested);
    return bytes;
}

static void report_evicted(uint64_t bytes, uint64_t began) {
    struct gpushare_report *report = &the_page()->report;
    uint64_t took = now_ns() - began;
    if (!bytes)
        return;
    PAGE_ADD(report->evicted_bytes, bytes);
    PAGE_ADD(report->evicted_ns, took);
    log_message(LOG_DEBUG, "evicted %s in %.1f ms", size_text(bytes).text, (double)took / NS_PER_MS);
}

/* The first call moves nothing, so that the page shows the end of the drain before the driver blocks the agent. */
static bool evict(const uint64_t by_device[MAX_DEVICES], uint64_t now, uint64_t *next) {
    uint64_t surplus = 0;
    for (int i = 0; i < shim.device_count; i++)
        surplus += by_device[i];
    pthread_mutex_lock(&residency_lock);
    bool done = !transfers.evicting && !surplus;
    if (!transfers.evicting && surplus) {
        transfers.evicting = true;
        advice_give_pending();
        transfers.began = now;
        transfers.bytes = 0;
        *next = now;
    } else if (transfers.evicting && transfers_are_complete()) {
        uint64_t bytes = evict_part(surplus);
        transfers.bytes += bytes;
        done = !bytes;
        *next = now + EVICTION_POLL_NS;
    } else {
        *next = now + EVICTION_POLL_NS;
    }
    if (done) {
        report_evicted(transfers.bytes, transfers.began);
        transfers.bytes = 0;
    }
    transfers.evicting = !done;
    pthread_mutex_unlock(&residency_lock);
    return done;
}

/* Restore evicted allocations that fit into `room`, until at least `max_bytes` are requested. *evicted: the number of
 * evicted entries before. */
static uint64_t request_restore(uint64_t room, uint64_t max_bytes, size_t *evicted) {
    struct entry *list;
    uint64_t bytes = 0;
    *evicted = ledger_list(LEDGER_ADDRESSES, is_evicted, &list);
    for (size_t i = 0; i < *evicted && bytes < max_bytes; i++) {
        if (bytes + list[i].bytes > room || !move(&list[i], list[i].bytes, true))
            continue;
        bytes += list[i].bytes;
    }
    free(list);
    transfers_record();
    return bytes;
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

/* No part of this memory has a known device, so the device with the least room bounds all parts. */
static uint64_t prefetch(const uint64_t by_device[MAX_DEVICES], uint64_t now) {
    uint64_t next = NEVER, least = by_device[0];
    for (int i = 1; i < shim.device_count; i++)
        least = min_u64(least, by_device[i]);
    uint64_t max_bytes = min_u64(least * (uint64_t)shim.device_count, account_turn_limit());
    size_t evicted = 0;
    if (advice_class_has_changed() && deferred_free_some(MAX_FREED)) /* no reuse with the old advice */
        return now;
    pthread_mutex_lock(&residency_lock);
    advice_give_for_class();
    advice_give_pending();
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

/* Restore memory in a turn. Return the time of the next call. */
static uint64_t grow(uint64_t limit, uint64_t now) {
    size_t evicted = 0;
    uint64_t room = min_u64(subtract(min_u64(total_memory(), limit), account_resident()), free_bytes_for_prefetch());
    transfers.restore_began = now_ns();
    transfers.restore_bytes = request_restore(room, PREFETCH_BYTES, &evicted);
    if (!evicted)
        atomic_store(&transfers.may_be_evicted, false);
    return now + (transfers.restore_bytes ? EVICTION_POLL_NS : LIMIT_POLL_NS);
}

/* The driver keeps unified memory coherent while work uses it, so memory moves without a drain. Source: documentation
 * of cuMemPrefetchAsync, and CUDA programming guide, "Unified Memory Programming". */
static uint64_t adjust(uint64_t limit, uint64_t now) {
    uint64_t next = now + LIMIT_POLL_NS;
    bool is_limited = limit != UINT64_MAX;
    if (!is_limited && !transfers.was_limited)
        return NEVER;
    if (pthread_mutex_trylock(&residency_lock)) /* a thread restores memory */
        return next;
    bool has_rest = transfers.requested < transfers.leaving.bytes;
    uint64_t resident = account_resident();
    if (!transfers_are_complete()) {
        next = now + EVICTION_POLL_NS;
    } else {
        finish_prefetch();
        advice_give_for_class();
        if ((resident > limit || has_rest) && !is_offline() && advice_class_has_changed()) {
            next = now + EVICTION_POLL_NS; /* page faults would take the memory back at once */
        } else if (resident > limit || has_rest) {
            advice_give_pending();
            uint64_t began = now_ns(), bytes = evict_part(subtract(resident, limit));
            report_evicted(bytes, began);
            next = now + (bytes ? EVICTION_POLL_NS : LIMIT_POLL_NS);
        } else if (atomic_load(&transfers.may_be_evicted)) {
            next = grow(limit, now);
        }
    }
    transfers.was_limited = is_limited || atomic_load(&transfers.may_be_evicted);
    pthread_mutex_unlock(&residency_lock);
    return next;
}

/* Memory beyond the size of the device comes by page faults. */
static CUresult restore(uint32_t word, struct room_needed *missing) {
    (void)missing;
    bool is_due = atomic_load_explicit(&transfers.may_be_evicted, memory_order_acquire) || unpopulated.count;
    if (!is_due || is_step(word)) /* a single call: page by page */
        return CUDA_SUCCESS;
    RELAXED_MODE;
    size_t evicted;
    pthread_mutex_lock(&residency_lock);
    uint64_t began = transfers.restore_bytes ? transfers.restore_began : now_ns();
    uint64_t bytes =
        transfers.restore_bytes + request_restore(subtract(max_resident(), account_resident()), UINT64_MAX, &evicted);
    transfers.restore_bytes = 0;
    account_note_leaving(0, 0);
    transfers.requested = transfers.leaving.bytes; /* no rest of an allocation leaves after the whole came back */
    if (!evicted)
        atomic_store(&transfers.may_be_evicted, false);
    populate_all(bytes);
    transfers_sync();
    transfers_report_restored(bytes, began);
    pthread_mutex_unlock(&residency_lock);
    return CUDA_SUCCESS;
}

void unified_after_fork(void) {
    transfers.evicting = false;
    transfers.leaving.bytes = transfers.requested = 0;
    transfers.restore_bytes = 0;
    transfers.was_limited = false;
    atomic_store(&transfers.may_be_evicted, false);
    pthread_mutex_init(&unpopulated.lock, NULL);
    unpopulated.count = 0;
    advice_after_fork();
}

const struct memory_mode mode_unified = {
    .name = "unified",
    .number = GPUSHARE_MEMORY_UNIFIED,
    .allocate = allocate,
    .populate = populate_new,
    .release = release,
    .evict = evict,
    .restore = restore,
    .prefetch = prefetch,
    .adjust = adjust,
};
