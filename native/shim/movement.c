/* Memory on its way off the device and back: when, and under which lock. How is up to the memory mode.
 *
 * Off the device it goes in the agent, after a drain or while the gate is closed. Back it comes in whatever thread makes
 * the turn's first call: before that call goes ahead. */
#include "shim.h"

#include <string.h>

#define ROOM_NS (15000 * MS) /* so long an allocation waits for others to leave */
#define ROOM_PAUSE_NS (1 * MS)

pthread_mutex_t movement_lock = PTHREAD_MUTEX_INITIALIZER; /* nested into no other of the shim's but start.lock */

static bool moving; /* the agent's: an eviction is under way */

const struct memory_mode *mode_named(const char *name) {
    static const struct memory_mode *const modes[] = {&mode_unified, &mode_swap, &mode_plain};
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++)
        if (strcmp(name, modes[i]->name) == 0)
            return modes[i];
    return NULL;
}

bool memory_moving(void) {
    return moving;
}

bool memory_evict(uint32_t word, uint64_t now, uint64_t *next) {
    struct gpushare_page *page = the_page();
    /* Without a coordinator nobody says what the next one needs. */
    uint64_t target = lockmode_active() && shim.mode == &mode_swap ? 0 : GET(page->orders.resident_target);
    if (!shim.mode->evict || (!moving && GET(page->report.resident) <= target))
        return true;
    bool done = shim.mode->evict(target, now, next);
    /* While memory moves nothing waits for a thread of ours: nobody needs to open the gate for it. */
    if (!done && !moving && (GET(page->orders.hears) & 1) && is_closing(word))
        socket_say(SAY_EVICTING);
    moving = !done;
    return done;
}

/* The coordinator may take away what an idle process has left on the device. What has never been used is nowhere: moving
 * it would only fill the host. */
uint64_t memory_look(uint64_t now) {
    struct gpushare_page *page = the_page();
    uint64_t next = NEVER;
    if (shim.mode == &mode_unified && !GET(page->report.last_submission_ns))
        return NEVER;
    return memory_evict(gate_word(page), now, &next) ? NEVER : next;
}

static void say_short(uint64_t bytes) {
    struct gpushare_report *report = &the_page()->report;
    PUT(report->short_bytes, bytes);
    ADD(report->short_seq, 1);
    socket_say_short();
}

static bool can_ask(void) {
    return (GET(the_page()->orders.hears) & 2) && atomic_load(&shim.contact) == THERE;
}

bool room_wait(uint64_t bytes, uint64_t *end) {
    struct gpushare_page *page = the_page();
    uint64_t now = now_ns();
    if (!can_ask())
        return false;
    if (!*end) {
        *end = now + ROOM_NS;
        say_short(bytes);
    }
    if (now >= *end || GET(page->orders.no_room) == GET(page->report.short_seq))
        return false;
    pthread_mutex_unlock(&movement_lock);
    futex_wait(&page->orders.gate, gate_word(page), ROOM_PAUSE_NS);
    pthread_mutex_lock(&movement_lock);
    return true;
}

void room_found(void) {
    if (GET(the_page()->report.short_bytes))
        say_short(0);
}

/* What does not fit yet will: others leave, now or when the coordinator hears of it. */
bool memory_ready(uint32_t word) {
    struct gpushare_page *page = the_page();
    if (!shim.mode || !shim.mode->restore)
        return true;
    if (shim.mode->restore(word)) {
        room_found();
        return true;
    }
    uint64_t absent = GET(page->report.absent);
    if (can_ask() && GET(page->report.short_bytes) != absent)
        say_short(absent);
    futex_wait(&page->orders.gate, word, ROOM_PAUSE_NS);
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
    lanes_after_fork();
    unified_after_fork();
    swap_after_fork();
}
