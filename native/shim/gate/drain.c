/* Drain: after the gate has closed, wait until no thread is inside the gate, then until all streams have finished.
 * No function of this file blocks; the agent polls. */
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
    bool threads_are_outside;
    bool is_first_poll; /* of streams */
    uint32_t scan_number;
    uint64_t pause;
    uint64_t began;    /* first poll that found unfinished calls or work; 0: none */
    uint64_t finished; /* when the work of the last drain finished */
} drain;

void drain_init(void) {
    shim.fences = syscall(SYS_membarrier, MEMBARRIER_REGISTER_EXPEDITED, 0, 0) != 0;
    if (shim.fences)
        log_message(LOG_INFO, "take a full fence in each call, because membarrier is refused");
}

void drain_begin(void) {
    drain.threads_are_outside = false;
    drain.pause = MIN_PAUSE_NS;
    drain.began = 0;
    drain.scan_number = drain.scan_number + 1 ? drain.scan_number + 1 : 1; /* 0 is the value of a new thread */
    if (shim.fences || syscall(SYS_membarrier, MEMBARRIER_EXPEDITED, 0, 0) != 0)
        atomic_thread_fence(memory_order_seq_cst);
}

bool drain_poll(uint64_t now, uint64_t *next) {
    if (!drain.threads_are_outside && all_threads_left_gate(drain.scan_number)) {
        drain.threads_are_outside = drain.is_first_poll = true;
        drain.pause = MIN_PAUSE_NS;
    }
    if (drain.threads_are_outside && streams_poll(drain.is_first_poll)) {
        drain.finished = now;
        return true;
    }
    drain.is_first_poll = false;
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
