/* Memory on its way off the device and back: when, and under which lock. How is up to the memory mode.
 *
 * Off the device it goes in the agent, after a drain or while the gate is closed. Back it comes in whatever thread makes
 * the turn's first call: before that call goes ahead. */
#include "shim.h"

#include <string.h>

#define ROOM_NS (15000 * NS_PER_MS)       /* so long an allocation waits for others to leave */
#define ROOM_PATIENCE_NS (20 * NS_PER_MS) /* so long those may take to begin whose turn has just ended */
#define ROOM_PAUSE_NS (1 * NS_PER_MS)
#define ROOM_AGAIN_NS (100 * NS_PER_MS) /* between requests: another may have taken what was made room for this one */
#define SPARE 32 /* of a device, that part stays free for who has the turn when others' memory comes back */

pthread_mutex_t movement_lock = PTHREAD_MUTEX_INITIALIZER; /* nested into no other of the shim's but start.lock */

static _Atomic bool came;            /* memory, since the last turn began */
static _Atomic uint64_t waits_since; /* memory that has no room; 0: none */
static bool moving;                  /* the agent's: an eviction is under way */
static struct room *asking;          /* the page has one request at a time, under movement_lock; NULL: none */
static struct room turn;             /* what this turn's first call waits for */

static struct { /* the agent's */
    bool asked;
    uint32_t interrupts; /* since then */
} ahead;

void report_restored(uint64_t bytes, uint64_t began) {
    struct gpushare_report *report = &the_page()->report;
    uint64_t took = now_ns() - began;
    if (!bytes)
        return;
    PAGE_ADD(report->restored_bytes, bytes);
    PAGE_ADD(report->restored_ns, took);
    log_message(LOG_DEBUG, "restored %s in %.1f ms", size_text(bytes).text, (double)took / NS_PER_MS);
}

const struct memory_mode *mode_named(const char *name) {
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
    if (!shim.mode->evict || (!moving && PAGE_LOAD(the_page()->report.resident) <= target))
        return true;
    moving = !shim.mode->evict(target, now, next);
    return !moving;
}

bool memory_leaves(uint64_t now, uint64_t *next) {
    return !shim.mode->beside && !evict(now, next);
}

/* So that the turn finds it there. Who was interrupted has ceased to wait, and the coordinator hears of it. */
static uint64_t look_ahead(uint64_t now) {
    struct gpushare_orders *orders = &the_page()->orders;
    uint64_t most_bytes = atomic_load(&shim.link) == LINK_CONNECTED ? PAGE_LOAD(orders->restore_ahead) : 0;
    uint32_t interrupts = PAGE_LOAD(orders->interrupt_seq);
    if (!shim.mode->ahead)
        return NEVER;
    if (!ahead.asked)
        ahead.interrupts = interrupts;
    ahead.asked = most_bytes != 0;
    if (interrupts != ahead.interrupts)
        most_bytes = 0;
    return shim.mode->ahead(min_u64(most_bytes, PAGE_LOAD(orders->resident_target)), now);
}

/* After a turn, and whenever the coordinator takes away what an idle process has left on the device. Unified memory that
 * has never been used is nowhere: moving it would only fill the host. */
uint64_t memory_look(uint64_t now) {
    uint64_t next = NEVER;
    if (shim.mode == &mode_unified && !PAGE_LOAD(the_page()->report.last_submission_ns))
        return NEVER;
    return evict(now, &next) ? look_ahead(now) : next;
}

/* The bytes come first: a reader that reads the number before the bytes has those of this request or of a later one. */
static void say_short(struct room *room, uint64_t bytes) {
    struct gpushare_report *report = &the_page()->report;
    asking = bytes ? room : NULL;
    PAGE_STORE(report->short_bytes, bytes);
    room->asked = __atomic_add_fetch(&report->short_seq, 1, __ATOMIC_RELEASE);
    agent_ring();
}

static bool can_ask(void) {
    return atomic_load(&shim.link) == LINK_CONNECTED;
}

/* The coordinator may have refused before memory left that our last try did not find, so one more try follows. */
static bool is_refused(struct room *room, uint64_t now) {
    struct gpushare_orders *orders = &the_page()->orders;
    bool answered = asking == room && PAGE_LOAD(orders->no_room) - room->first <= room->asked - room->first;
    return answered || (!can_ask() && now > room->began + ROOM_NS);
}

/* At the gate, so that all that the program has is on the device when this is tried again: what has no room then, and
 * nothing can make any, has none at all. */
CUresult room_next_turn(struct room *room) {
    room_found(room);
    pthread_mutex_unlock(&movement_lock);
    CUresult result = gate_enter(&self, DEFAULT);
    if (result == CUDA_SUCCESS)
        gate_leave(&self);
    pthread_mutex_lock(&movement_lock);
    *room = (struct room){.began = now_ns()};
    return result;
}

CUresult room_wait(struct room *room, uint64_t bytes) {
    uint64_t now = now_ns();
    if (room->refused || (!room->began && !can_ask()))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!room->began) {
        room->began = now;
        threads_register(&self); /* which finds out whether it is the main one */
        interrupt_begin(&self, now);
    }
    if (!asking || asking == &turn || (asking == room && now > room->asked_at + ROOM_AGAIN_NS)) {
        say_short(room, bytes);
        room->first = room->asked_at ? room->first : room->asked;
        room->asked_at = now;
    }
    room->refused = is_refused(room, now);
    pthread_mutex_unlock(&movement_lock);
    if (!room->refused)
        futex_wait(&shim.gate, gate_word(), ROOM_PAUSE_NS);
    bool interrupted = self.main && interrupt_pending(&self);
    pthread_mutex_lock(&movement_lock);
    if (interrupted)
        log_message(LOG_INFO, "interrupted while waiting for room on the device: nothing was allocated");
    return interrupted ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

uint64_t room_to_spare(void) {
    size_t free_bytes = 0, total = 0;
    if (REAL(cuMemGetInfo_v2)(&free_bytes, &total) != CUDA_SUCCESS)
        return 0;
    return free_bytes > total / SPARE ? free_bytes - total / SPARE : 0;
}

void room_found(struct room *room) {
    if (asking == room)
        say_short(room, 0);
}

static void turn_needs_room(uint64_t bytes) {
    pthread_mutex_lock(&movement_lock);
    if (can_ask() && (!asking || asking == &turn) && PAGE_LOAD(the_page()->report.short_bytes) != bytes)
        say_short(&turn, bytes);
    pthread_mutex_unlock(&movement_lock);
}

static void turn_has_room(void) {
    if (!PAGE_LOAD(the_page()->report.short_bytes))
        return;
    pthread_mutex_lock(&movement_lock);
    room_found(&turn);
    pthread_mutex_unlock(&movement_lock);
}

/* What does not fit yet will: others leave, now or when the coordinator hears of it. */
bool memory_ready(uint32_t word) {
    struct gpushare_page *page = the_page();
    if (!shim.mode || !shim.mode->restore)
        return true;
    uint64_t before = PAGE_LOAD(page->report.restored_bytes), absent_before = PAGE_LOAD(page->report.absent);
    bool all = shim.mode->restore(word);
    if (PAGE_LOAD(page->report.restored_bytes) != before)
        atomic_store(&came, true);
    if (all) {
        turn_has_room();
        waits_since = 0;
        if (atomic_load_explicit(&came, memory_order_relaxed) && atomic_exchange(&came, false)) {
            PAGE_ADD(page->report.restored, 1);
            agent_ring();
        }
        return true;
    }
    uint64_t absent = PAGE_LOAD(page->report.absent), now = now_ns();
    if (absent < absent_before)
        return false; /* others are leaving: there is room for more by now */
    if (!waits_since)
        waits_since = now;
    if (now > waits_since + ROOM_PATIENCE_NS)
        turn_needs_room(absent);
    if (now > waits_since + ROOM_NS)
        log_once(LOG_ERROR, "%s of this program's memory do not fit on the device any more: it waits for room",
                 size_text(absent).text);
    futex_wait(&shim.gate, gate_word(), ROOM_PAUSE_NS);
    return false;
}

void memory_hold(void) {
    pthread_mutex_lock(&movement_lock);
}

void memory_let_go(CUcontext gone) {
    if (gone)
        lanes_forget(gone), swap_forget_context(gone);
    pthread_mutex_unlock(&movement_lock);
}

void memory_after_fork(void) {
    pthread_mutex_init(&movement_lock, NULL);
    moving = false;
    asking = NULL;
    ahead.asked = false;
    waits_since = 0;
    lanes_after_fork();
    unified_after_fork();
    swap_after_fork();
}
