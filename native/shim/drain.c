/* Draining: after the gate has closed, see every thread outside of it, then every stream's work finished, then what memory
 * must off the device. A step never blocks for long; the agent comes again. */
#include "shim.h"

#include <sys/syscall.h>
#include <unistd.h>

#define MEMBARRIER_EXPEDITED 8
#define MEMBARRIER_REGISTER_EXPEDITED 16
#define FIRST_PAUSE_NS 20000
#define LONGEST_PAUSE_NS 500000

enum phase { REST, CALLS, STREAMS, MEMORY };

static struct {
    enum phase phase;
    uint32_t word, scan;
    uint64_t began, pause;
    uint64_t since; /* when the first of a row of closings began that were taken back for steps; 0 = none */
    bool record;
} drain;

void drain_start(void) {
    shim.fences = syscall(SYS_membarrier, MEMBARRIER_REGISTER_EXPEDITED, 0, 0) != 0;
    if (shim.fences)
        log_line(LOG_INFO, "membarrier is refused here: calls take a full fence each");
}

void drain_abandon(bool step) {
    if (!step)
        drain.since = 0; /* of steps the drain goes on when they are over */
    drain.phase = REST;  /* events that were recorded are recorded anew by the next drain */
}

uint64_t drain_began(void) {
    return drain.began;
}

static bool pause_for(uint64_t now, uint64_t *next) {
    *next = now + drain.pause;
    drain.pause = drain.pause * 3 / 2 < LONGEST_PAUSE_NS ? drain.pause * 3 / 2 : LONGEST_PAUSE_NS;
    return false;
}

static void account_for(struct gpushare_report *report, uint64_t now) {
    uint64_t took = now - drain.since;
    unsigned bucket = 0;
    while (bucket < GPUSHARE_DRAIN_BUCKETS - 1 && took >= MS << bucket)
        bucket++;
    usage_drained(drain.since, now);
    drain.since = 0;
    PUT(report->drain_ns, took);
    ADD(report->drain_total_ns, took);
    ADD(report->drains[bucket], 1);
    if (took > GET(report->drain_most_ns))
        PUT(report->drain_most_ns, took);
}

bool drain_step(uint32_t word, uint64_t now, uint64_t *next) {
    if (drain.phase == REST || drain.word != word) {
        drain.phase = CALLS;
        drain.word = word;
        drain.began = now;
        drain.since = drain.since ? drain.since : now;
        drain.pause = FIRST_PAUSE_NS;
        drain.scan = drain.scan + 1 ? drain.scan + 1 : 1; /* 0 is what a new thread starts with */
        if (shim.fences || syscall(SYS_membarrier, MEMBARRIER_EXPEDITED, 0, 0) != 0)
            atomic_thread_fence(memory_order_seq_cst);
    }
    if (drain.phase == CALLS) {
        if (!threads_quiet(drain.scan))
            return pause_for(now, next);
        drain.phase = STREAMS;
        drain.pause = FIRST_PAUSE_NS;
        drain.record = true;
    }
    bool done = streams_poll(drain.record);
    drain.record = false;
    if (!done)
        return pause_for(now, next);
    struct gpushare_report *report = &the_page()->report;
    if (drain.phase == STREAMS)
        account_for(report, now_ns());
    drain.phase = MEMORY;
    if (!memory_evict(word, now, next))
        return false;
    *next = now;
    if (gate_word(the_page()) != word)
        return false; /* other orders have come: what passes by them is not to be forgotten */
    streams_clear();
    threads_forget_marks(); /* an epoch may come again: coordinators come and go, and each counts */
    drain.phase = REST;
    relay_hand_on();
    __atomic_store_n(&report->drained_epoch, epoch_of(word), __ATOMIC_SEQ_CST);
    return true;
}
