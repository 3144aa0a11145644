/* Draining: after the gate has closed, wait until every thread is outside of it, then until every stream's work has
 * finished. No call blocks for long; the agent polls. */
#include "gate/gate.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MEMBARRIER_EXPEDITED 8
#define MEMBARRIER_REGISTER_EXPEDITED 16
#define MIN_PAUSE_NS 20000
#define MAX_SPIN_NS 40000 /* most calls return within this time; sleeping would take longer */
#define MAX_PAUSE_NS 500000

static struct {
    bool outside; /* all threads have been seen outside */
    uint32_t scan;
    uint64_t pause;
    uint64_t began;    /* the first poll after the gate closed; 0: none yet */
    uint64_t finished; /* when the work of the last drain finished */
} drain;

void drain_start(void) {
    shim.fences = syscall(SYS_membarrier, MEMBARRIER_REGISTER_EXPEDITED, 0, 0) != 0;
    if (shim.fences)
        log_message(LOG_INFO, "take a full fence in each call, because membarrier is refused");
}

void drain_begin(void) {
    drain.outside = false;
    drain.pause = MIN_PAUSE_NS;
    drain.began = 0;
    drain.scan = drain.scan + 1 ? drain.scan + 1 : 1; /* 0 is the value of a new thread */
    if (shim.fences || syscall(SYS_membarrier, MEMBARRIER_EXPEDITED, 0, 0) != 0)
        atomic_thread_fence(memory_order_seq_cst);
}

bool drain_poll(uint64_t now, uint64_t *next) {
    if (!drain.outside && all_threads_left_gate(drain.scan)) {
        drain.outside = true;
        drain.pause = MIN_PAUSE_NS;
    }
    if (drain.outside && streams_poll()) {
        drain.finished = now;
        return true;
    }
    drain.began = drain.began ? drain.began : now;
    if (now < drain.began + MAX_SPIN_NS) {
        sched_yield();
        *next = now;
        return false;
    }
    *next = min_u64(*next, now + drain.pause);
    drain.pause = min_u64(drain.pause * 3 / 2, MAX_PAUSE_NS);
    return false;
}

void drain_done(uint64_t closed) {
    struct gpushare_report *report = &the_page()->report;
    uint64_t took = drain.finished > closed ? drain.finished - closed : 0;
    unsigned bucket = 0;
    streams_clear();
    threads_clear_marks();
    while (bucket < GPUSHARE_DRAIN_BUCKETS - 1 && took >= NS_PER_MS << bucket)
        bucket++;
    busy_time_drained(closed, drain.finished);
    PAGE_STORE(report->drain_ns, took);
    PAGE_ADD(report->drain_total_ns, took);
    PAGE_ADD(report->drains[bucket], 1);
    if (took > PAGE_LOAD(report->drain_max_ns))
        PAGE_STORE(report->drain_max_ns, took);
}
