/* Memory on its way off the device and back: when, and under which lock. How is up to the memory mode.
 *
 * Off the device it goes in the agent, after a drain or while the gate is closed. Back it comes in whatever thread makes
 * the turn's first call: before that call goes ahead. */
#include "shim.h"

#include <string.h>

pthread_mutex_t movement_lock = PTHREAD_MUTEX_INITIALIZER; /* nested into no other of the shim's but start.lock */

static bool moving; /* the agent's: an eviction is under way */

const struct memory_mode *mode_named(const char *name) {
    static const struct memory_mode *const modes[] = {&mode_unified, &mode_plain};
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
    uint64_t target = GET(page->orders.resident_target);
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
    if (!GET(page->report.last_submission_ns))
        return NEVER;
    return memory_evict(gate_word(page), now, &next) ? NEVER : next;
}

bool memory_ready(uint32_t word) {
    return !shim.mode || !shim.mode->restore || shim.mode->restore(word);
}

void memory_hold(void) {
    pthread_mutex_lock(&movement_lock);
}

void memory_let_go(CUcontext gone) {
    if (gone)
        unified_forget_context(gone);
    pthread_mutex_unlock(&movement_lock);
}

void memory_after_fork(void) {
    pthread_mutex_init(&movement_lock, NULL);
    moving = false;
    unified_after_fork();
}
