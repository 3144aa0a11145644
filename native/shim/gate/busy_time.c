/* The time that the device has worked for this process: an estimate, because the driver does not report it. While
 * work is being submitted the agent samples whether some of it is unfinished. The time between two samples counts by
 * the mean of both. A drain shows when the last work ended. */
#include "gate/gate.h"

#define IDLE_SAMPLE_NS (100 * NS_PER_MS) /* a shorter cell of a notebook that keeps its turn may be missed */
#define ACTIVE_SAMPLE_NS                                                                                               \
    (40 * NS_PER_MS) /* and up to twice as long, so that samples do not run in step with the program */
#define SHORT_DRAIN_NS (NS_PER_MS / 10)

static struct {
    uint64_t sampled_at, next, submissions;
    bool busy;
    uint32_t random;
} busy_time;

static void record_sample(uint64_t now, bool busy) {
    uint64_t passed = now > busy_time.sampled_at ? now - busy_time.sampled_at : 0;
    PAGE_ADD(the_page()->report.gpu_ns, passed * (busy_time.busy + busy) / 2);
    busy_time.sampled_at = now;
    busy_time.busy = busy;
}

void busy_time_gate_opened(uint64_t now) {
    busy_time.sampled_at = now;
    busy_time.next = now + ACTIVE_SAMPLE_NS;
    busy_time.busy = false;
}

uint64_t busy_time_sample(uint64_t now) {
    struct counters sum;
    if (now < busy_time.next)
        return busy_time.next;
    threads_sum(&sum);
    uint64_t submissions = sum.launches + sum.copies + sum.others;
    bool active = busy_time.busy || submissions != busy_time.submissions;
    busy_time.submissions = submissions;
    record_sample(now, active && streams_have_work());
    busy_time.random = busy_time.random * 1664525 + 1013904223;
    busy_time.next =
        now + (active ? ACTIVE_SAMPLE_NS + ACTIVE_SAMPLE_NS * (busy_time.random >> 16) / 65536 : IDLE_SAMPLE_NS);
    return busy_time.next;
}

void busy_time_drained(uint64_t began, uint64_t now) {
    bool busy = now > began + SHORT_DRAIN_NS;
    record_sample(max_u64(began, busy_time.sampled_at), busy);
    record_sample(now, busy);
    busy_time.busy = false;
}
