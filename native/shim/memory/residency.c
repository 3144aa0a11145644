/* Memory on its way off the device and back: when, and under which lock. How is up to the memory mode.
 *
 * Off the device it goes in the agent, after a drain or while the gate is closed. Back it comes in whatever thread makes
 * the turn's first call: before that call goes ahead. */
#include "shim.h"

#include <string.h>

#define MAX_SHORTAGE_NS (15000 * NS_PER_MS) /* so long an allocation waits for others to leave */
#define MIN_SHORTAGE_NS (20 * NS_PER_MS)    /* so long those may take to begin whose turn has just ended */
#define SHORTAGE_POLL_NS (1 * NS_PER_MS)
#define SHORTAGE_RETRY_NS                                                                                              \
    (100 * NS_PER_MS)     /* between requests: another may have taken what was made room for this one */
#define SPARE_FRACTION 32 /* of a device, that part stays free for who has the turn when others' memory comes back */

pthread_mutex_t residency_lock = PTHREAD_MUTEX_INITIALIZER; /* nested into no other of the shim's but start.lock */

static _Atomic bool was_restored;         /* memory, since the last turn began */
static _Atomic uint64_t short_since;      /* memory that has no room; 0: none */
static bool is_evicting;                  /* the agent's: an eviction is under way */
static struct shortage *current_shortage; /* the page has one request at a time, under residency_lock; NULL: none */
static struct shortage turn_shortage;     /* what this turn's first call waits for */

static struct { /* the agent's */
    bool was_requested;
    uint32_t interrupts; /* since then */
} prefetching;

void transfers_report_restored(uint64_t bytes, uint64_t began) {
    struct gpushare_report *report = &the_page()->report;
    uint64_t took = now_ns() - began;
    if (!bytes)
        return;
    PAGE_ADD(report->restored_bytes, bytes);
    PAGE_ADD(report->restored_ns, took);
    log_message(LOG_DEBUG, "restored %s in %.1f ms", size_text(bytes).text, (double)took / NS_PER_MS);
}

const struct memory_mode *memory_mode_by_name(const char *name) {
    static const struct memory_mode *const modes[] = {&mode_unified, &mode_swap, &mode_plain};
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++)
        if (strcmp(name, modes[i]->name) == 0)
            return modes[i];
    return NULL;
}

static bool evict(uint64_t now, uint64_t *next) {
    /* Without a coordinator no one says what the next client needs. */
    bool all = atomic_load(&shim.without_coordinator) && shim.mode == &mode_swap;
    uint64_t target = all ? 0 : PAGE_LOAD(the_page()->orders.resident_target);
    if (!shim.mode->evict || (!is_evicting && PAGE_LOAD(the_page()->report.resident) <= target))
        return true;
    is_evicting = !shim.mode->evict(target, now, next);
    return !is_evicting;
}

bool residency_is_evicting(uint64_t now, uint64_t *next) {
    return !shim.mode->evicts_after_turn && !evict(now, next);
}

/* So that the turn finds it there. Who was interrupted has ceased to wait, and the coordinator hears of it. */
static uint64_t prefetch(uint64_t now) {
    struct gpushare_orders *orders = &the_page()->orders;
    uint64_t max_bytes = atomic_load(&shim.link) == LINK_CONNECTED ? PAGE_LOAD(orders->restore_ahead) : 0;
    uint32_t interrupts = PAGE_LOAD(orders->interrupt_seq);
    if (!shim.mode->prefetch)
        return NEVER;
    if (!prefetching.was_requested)
        prefetching.interrupts = interrupts;
    prefetching.was_requested = max_bytes != 0;
    if (interrupts != prefetching.interrupts)
        max_bytes = 0;
    return shim.mode->prefetch(min_u64(max_bytes, PAGE_LOAD(orders->resident_target)), now);
}

/* After a turn, and whenever the coordinator takes away what an idle process has left on the device. Unified memory that
 * has never been used is nowhere: moving it would only fill the host. */
uint64_t residency_poll(uint64_t now) {
    uint64_t next = NEVER;
    if (shim.mode == &mode_unified && !PAGE_LOAD(the_page()->report.last_submission_ns))
        return NEVER;
    return evict(now, &next) ? prefetch(now) : next;
}

/* The bytes come first: a reader that reads the number before the bytes has those of this request or of a later one. */
static void publish_shortage(struct shortage *shortage, uint64_t bytes) {
    struct gpushare_report *report = &the_page()->report;
    current_shortage = bytes ? shortage : NULL;
    PAGE_STORE(report->short_bytes, bytes);
    shortage->last_seq = __atomic_add_fetch(&report->short_seq, 1, __ATOMIC_RELEASE);
    outbox_post(OUTBOX_CHANGED);
}

static bool is_connected(void) {
    return atomic_load(&shim.link) == LINK_CONNECTED;
}

/* The coordinator may have refused before memory left that our last try did not find, so one more try follows. */
static bool check_refused(struct shortage *shortage, uint64_t now) {
    struct gpushare_orders *orders = &the_page()->orders;
    bool answered = current_shortage == shortage &&
                    PAGE_LOAD(orders->no_room) - shortage->first_seq <= shortage->last_seq - shortage->first_seq;
    return answered || (!is_connected() && now > shortage->began + MAX_SHORTAGE_NS);
}

/* At the gate, so that all that the program has is on the device when this is tried again: what has no room then, and
 * nothing can make any, has none at all. */
CUresult shortage_next_turn(struct shortage *shortage) {
    shortage_end(shortage);
    pthread_mutex_unlock(&residency_lock);
    CUresult result = gate_enter(&this_thread, DEFAULT);
    if (result == CUDA_SUCCESS)
        gate_leave(&this_thread);
    pthread_mutex_lock(&residency_lock);
    *shortage = (struct shortage){.began = now_ns()};
    return result;
}

CUresult shortage_wait(struct shortage *shortage, uint64_t bytes) {
    uint64_t now = now_ns();
    if (shortage->is_refused || (!shortage->began && !is_connected()))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!shortage->began) {
        shortage->began = now;
        threads_register(&this_thread); /* which finds out whether it is the main one */
        interrupt_begin(&this_thread, now);
    }
    if (!current_shortage || current_shortage == &turn_shortage ||
        (current_shortage == shortage && now > shortage->posted_at + SHORTAGE_RETRY_NS)) {
        publish_shortage(shortage, bytes);
        shortage->first_seq = shortage->posted_at ? shortage->first_seq : shortage->last_seq;
        shortage->posted_at = now;
    }
    shortage->is_refused = check_refused(shortage, now);
    pthread_mutex_unlock(&residency_lock);
    if (!shortage->is_refused)
        futex_wait(&shim.gate, gate_word(), SHORTAGE_POLL_NS);
    bool interrupted = this_thread.main && interrupt_pending(&this_thread);
    pthread_mutex_lock(&residency_lock);
    if (interrupted)
        log_message(LOG_INFO, "interrupted while waiting for room on the device: nothing was allocated");
    return interrupted ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

uint64_t transfers_free_bytes(void) {
    size_t free_bytes = 0, total = 0;
    if (REAL(cuMemGetInfo_v2)(&free_bytes, &total) != CUDA_SUCCESS)
        return 0;
    return free_bytes > total / SPARE_FRACTION ? free_bytes - total / SPARE_FRACTION : 0;
}

void shortage_end(struct shortage *shortage) {
    if (current_shortage == shortage)
        publish_shortage(shortage, 0);
}

static void turn_shortage_begin(uint64_t bytes) {
    pthread_mutex_lock(&residency_lock);
    if (is_connected() && (!current_shortage || current_shortage == &turn_shortage) &&
        PAGE_LOAD(the_page()->report.short_bytes) != bytes)
        publish_shortage(&turn_shortage, bytes);
    pthread_mutex_unlock(&residency_lock);
}

static void turn_shortage_end(void) {
    if (!PAGE_LOAD(the_page()->report.short_bytes))
        return;
    pthread_mutex_lock(&residency_lock);
    shortage_end(&turn_shortage);
    pthread_mutex_unlock(&residency_lock);
}

/* What does not fit yet will: others leave, now or when the coordinator hears of it. */
bool residency_restore(uint32_t word) {
    struct gpushare_page *page = the_page();
    if (!shim.mode || !shim.mode->restore)
        return true;
    uint64_t restored_before = PAGE_LOAD(page->report.restored_bytes), missing_before = PAGE_LOAD(page->report.absent);
    bool all = shim.mode->restore(word);
    if (PAGE_LOAD(page->report.restored_bytes) != restored_before)
        atomic_store(&was_restored, true);
    if (all) {
        turn_shortage_end();
        short_since = 0;
        if (atomic_load_explicit(&was_restored, memory_order_relaxed) && atomic_exchange(&was_restored, false)) {
            PAGE_ADD(page->report.restored, 1);
            outbox_post(OUTBOX_CHANGED);
        }
        return true;
    }
    uint64_t missing = PAGE_LOAD(page->report.absent), now = now_ns();
    if (missing < missing_before)
        return false; /* others are leaving: there is room for more by now */
    if (!short_since)
        short_since = now;
    if (now > short_since + MIN_SHORTAGE_NS)
        turn_shortage_begin(missing);
    if (now > short_since + MAX_SHORTAGE_NS)
        log_once(LOG_ERROR, "%s of this program's memory do not fit on the device any more: it waits for room",
                 size_text(missing).text);
    futex_wait(&shim.gate, gate_word(), SHORTAGE_POLL_NS);
    return false;
}

void residency_pause(void) {
    pthread_mutex_lock(&residency_lock);
}

void residency_resume(CUcontext gone) {
    if (gone)
        transfers_drop_context(gone), swap_drop_context(gone);
    pthread_mutex_unlock(&residency_lock);
}

void residency_after_fork(void) {
    pthread_mutex_init(&residency_lock, NULL);
    is_evicting = false;
    current_shortage = NULL;
    prefetching.was_requested = false;
    short_since = 0;
    transfers_after_fork();
    unified_after_fork();
    swap_after_fork();
}
