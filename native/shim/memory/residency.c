/* When memory leaves the device and when it is restored, and under which lock. The memory mode does the moving.
 *
 * Eviction runs in the agent, after a drain or while the gate is closed. Restoring runs in the thread that makes the
 * turn's first call, before that call goes ahead. */
#include "channel/channel.h"
#include "memory/memory.h"

#include <string.h>

/* how long other clients' memory may take to begin to leave after their turn */
#define MIN_SHORTAGE_NS (20 * NS_PER_MS)

/* An idle process may keep a capture open for ever. */
#define MAX_CAPTURE_NS (10000 * NS_PER_MS)
#define CAPTURE_POLL_NS (5 * NS_PER_MS)

#define MAX_FAILED_RESTORES 100                /* in a row, until the program gets the error of the driver */
#define FAILED_RESTORE_POLL_NS (1 * NS_PER_MS) /* between them */

#define MAX_FREED 32 /* allocations that the agent frees at a time, because the driver may block it */

static _Atomic bool was_restored; /* memory was restored since the last turn began */
static bool is_evicting;          /* agent: an eviction is under way */

static struct {
    _Atomic uint64_t waited_ns; /* how long memory has had no room, in turns only: between them, other clients use it */
    _Atomic uint64_t polled_at; /* 0: memory has room */
    _Atomic uint32_t polled_in; /* the opening of the gate at the last poll */
} room;

static _Atomic uint32_t failed_restores; /* in a row, for another reason than lack of room */

static struct { /* used by the agent */
    bool was_requested;
    uint32_t interrupts; /* interrupt_seq when prefetching began */
} prefetching;

/* Captured memory stays mapped until the capture has ended, although each call that needs it would restore it. A thread
 * at the gate goes on only after other clients have had their turns, which may need the room. */
static bool is_captured(uint64_t now) {
    static uint64_t since;
    if (!captures_any() || atomic_load(&shim.waiting)) {
        since = 0;
        return false;
    }
    since = since ? since : now;
    return now < since + MAX_CAPTURE_NS;
}

/* Find the bytes that must leave each device. Return false if there are none. */
static bool find_surplus(uint64_t surplus[MAX_DEVICES]) {
    /* Without a coordinator no level shows what the next client needs. */
    bool all = atomic_load(&shim.without_coordinator) && shim.mode->number == GPUSHARE_MEMORY_SWAP, some = false;
    account_resident_by_device(surplus);
    for (int i = 0; i < shim.device_count; i++) {
        uint64_t target = all ? 0 : PAGE_LOAD(the_page()->control.resident_target[i]);
        surplus[i] = surplus[i] > target ? surplus[i] - target : 0;
        some = some || surplus[i];
    }
    return some;
}

static bool evict(uint64_t now, uint64_t *next) {
    uint64_t surplus[MAX_DEVICES];
    bool is_due = shim.mode->evict && find_surplus(surplus);
    if (!is_evicting && is_due && deferred_free_some(MAX_FREED)) {
        *next = now;
        return false;
    }
    if (!shim.mode->evict || (!is_evicting && (!is_due || !account_max_eviction())))
        return true;
    /* also within an eviction, whose end may come only with the next turn's end */
    if (is_due && shim.mode->number == GPUSHARE_MEMORY_SWAP && bypassing_libraries()) {
        log_once(LOG_INFO, "keep memory on the device, because work that passes the gate may use it");
        account_pin();
        is_evicting = false;
        return true;
    }
    if (shim.mode->is_mapped && is_captured(now)) {
        *next = now + CAPTURE_POLL_NS;
        return false;
    }
    is_evicting = !shim.mode->evict(surplus, now, next);
    return !is_evicting;
}

bool residency_is_evicting(bool always, uint64_t now, uint64_t *next) {
    return (always || !shim.mode->evicts_after_turn) && !evict(now, next);
}

/* So that the turn finds the memory resident. An interrupted program no longer waits, and the coordinator gets to
 * know that later. */
static uint64_t prefetch(uint64_t now) {
    struct gpushare_control *control = &the_page()->control;
    uint64_t max_bytes[MAX_DEVICES] = {0};
    uint32_t interrupts = PAGE_LOAD(control->interrupt_seq);
    bool is_requested = false;
    if (!shim.mode->prefetch)
        return NEVER;
    for (int i = 0; i < shim.device_count && atomic_load(&shim.link) == LINK_CONNECTED; i++) {
        uint64_t limit = PAGE_LOAD(control->prefetch_limit[i]);
        is_requested = is_requested || limit;
        max_bytes[i] = min_u64(limit, PAGE_LOAD(control->resident_target[i]));
    }
    if (!prefetching.was_requested)
        prefetching.interrupts = interrupts;
    prefetching.was_requested = is_requested;
    if (interrupts != prefetching.interrupts)
        memset(max_bytes, 0, sizeof max_bytes);
    return shim.mode->prefetch(max_bytes, now);
}

/* After a turn, and whenever the coordinator lowers what an idle process may keep on the device. Unified memory that
 * has never been used is nowhere: moving it would only fill the host. */
uint64_t residency_poll(uint64_t now) {
    uint64_t next = NEVER;
    bool is_unused = shim.mode->number == GPUSHARE_MEMORY_UNIFIED && !PAGE_LOAD(the_page()->report.last_submission_ns);
    return is_unused || evict(now, &next) ? prefetch(now) : next;
}

/* The limit of a turn may change in the turn. */
uint64_t residency_adjust(uint64_t now) {
    return shim.mode->adjust ? shim.mode->adjust(account_turn_limit(), now) : NEVER;
}

bool residency_is_mapped(void) {
    return !shim.mode || !shim.mode->is_mapped || shim.mode->is_mapped();
}

/* A refusal of an earlier turn may no longer hold. */
static void renew_shortage(uint32_t word) {
    static _Atomic uint32_t requested_in;
    if (atomic_exchange(&requested_in, word) != word)
        shortage_end_for_turn();
}

/* Return how long memory has had no room. Several threads may wait. */
static uint64_t add_wait(uint32_t word) {
    uint64_t now = now_ns(), before = atomic_exchange(&room.polled_at, now);
    bool is_same_turn = atomic_exchange(&room.polled_in, word) == word;
    if (before && is_same_turn && before < now)
        atomic_fetch_add(&room.waited_ns, now - before);
    return room.waited_ns;
}

static void end_wait(void) {
    room.waited_ns = room.polled_at = 0;
}

/* Memory that does not fit yet may fit later: other clients' memory leaves, now or after a request to the coordinator, and
 * programs end. */
static CUresult wait_for_room(uint32_t word, struct room_needed needed) {
    uint64_t waited = add_wait(word);
    renew_shortage(word);
    if (waited > MIN_SHORTAGE_NS)
        shortage_begin_for_turn(needed);
    if (waited > MAX_SHORTAGE_NS && shortage_is_refused_for_turn()) {
        shortage_end_for_turn();
        log_message(LOG_ERROR,
                    "%s of this program's memory have no room on the device, and no other client has memory there that "
                    "can leave. So the call failed, and the program's data is unchanged. Free some memory, or see "
                    "jupyter gpushare status.",
                    size_text(needed.bytes).text);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (waited > MAX_SHORTAGE_NS)
        log_once(
            LOG_ERROR,
            "%s of this program's memory do not fit on the device now, so the program waits for room. Other clients or "
            "processes hold the rest; see jupyter gpushare status.",
            size_text(needed.bytes).text);
    futex_wait(&shim.gate, gate_word(), SHORTAGE_POLL_NS);
    return CUDA_ERROR_NOT_READY;
}

/* A failed call of the driver may succeed at another try. */
static CUresult wait_for_driver(CUresult error) {
    if (atomic_fetch_add(&failed_restores, 1) < MAX_FAILED_RESTORES) {
        futex_wait(&shim.gate, gate_word(), FAILED_RESTORE_POLL_NS);
        return CUDA_ERROR_NOT_READY;
    }
    log_once(LOG_ERROR,
             "Memory of this program could not be restored to the device (CUDA error %d). So the call failed, and the "
             "program's data is unchanged.",
             error);
    return error;
}

CUresult residency_restore(uint32_t word) {
    struct gpushare_page *page = the_page();
    if (!shim.mode || !shim.mode->restore)
        return CUDA_SUCCESS;
    uint64_t restored_before = PAGE_LOAD(page->report.restored_bytes),
             missing_before = PAGE_LOAD(page->report.missing_bytes);
    struct room_needed needed = {ANY_DEVICE, 0};
    CUresult result = shim.mode->restore(word, &needed);
    /* Only a restore copies. Unmade memory may become resident meanwhile, and another thread may free missing memory. */
    if (PAGE_LOAD(page->report.restored_bytes) != restored_before)
        atomic_store(&was_restored, true);
    uint64_t missing = PAGE_LOAD(page->report.missing_bytes);
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY || missing < missing_before)
        atomic_store(&failed_restores, 0);
    if (result == CUDA_SUCCESS) {
        shortage_end_for_turn();
        end_wait();
        if (atomic_load_explicit(&was_restored, memory_order_relaxed) && atomic_exchange(&was_restored, false)) {
            PAGE_ADD(page->report.restored, 1);
            outbox_post(OUTBOX_CHANGED);
        }
        return CUDA_SUCCESS;
    }
    if (missing < missing_before)
        return CUDA_ERROR_NOT_READY; /* memory of other clients is leaving, so there is room for more by now */
    return result == CUDA_ERROR_OUT_OF_MEMORY ? wait_for_room(word, needed) : wait_for_driver(result);
}

void residency_pause(void) {
    pthread_mutex_lock(&residency_lock);
}

void residency_resume(CUcontext gone) {
    if (gone)
        transfers_drop_context(gone), swap_drop_context(gone);
    pthread_mutex_unlock(&residency_lock);
}

void residency_use_current_context(void) {
    if (!swap_lacks_context())
        return;
    pthread_mutex_lock(&residency_lock);
    swap_offer_context(memory_context());
    pthread_mutex_unlock(&residency_lock);
}

void residency_after_fork(void) {
    is_evicting = false;
    shortage_after_fork();
    prefetching.was_requested = false;
    end_wait();
    transfers_after_fork();
    unified_after_fork();
    swap_after_fork();
}
