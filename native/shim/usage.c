/* How long the device has worked for this process: an estimate, since nobody can ask for it. While work is being submitted
 * the agent looks now and then whether any of it is outstanding; between two looks it is taken to have been so for the
 * mean of what they saw. A drain tells when the last work ended. */
#include "shim.h"

#define SELDOM_NS (1000 * NS_PER_MS)
#define OFTEN_NS (40 * NS_PER_MS) /* and up to twice as long, so that looks don't fall into step with the program */
#define SHORT_DRAIN_NS (NS_PER_MS / 10)

static struct {
    uint64_t looked, next, submissions;
    bool busy;
    uint32_t random;
} usage;

static void saw(uint64_t now, bool busy) {
    uint64_t passed = now > usage.looked ? now - usage.looked : 0;
    PAGE_ADD(the_page()->report.gpu_ns, passed * (usage.busy + busy) / 2);
    usage.looked = now;
    usage.busy = busy;
}

void usage_opened(uint64_t now) {
    usage.looked = now;
    usage.next = now + OFTEN_NS;
    usage.busy = false;
}

uint64_t usage_look(uint64_t now) {
    struct counters sum;
    if (now < usage.next)
        return usage.next;
    threads_sum(&sum);
    uint64_t submissions = sum.launches + sum.copies + sum.others;
    bool active = usage.busy || submissions != usage.submissions;
    usage.submissions = submissions;
    saw(now, active && streams_busy());
    usage.random = usage.random * 1664525 + 1013904223;
    usage.next = now + (active ? OFTEN_NS + OFTEN_NS * (usage.random >> 16) / 65536 : SELDOM_NS);
    return usage.next;
}

void usage_drained(uint64_t began, uint64_t now) {
    bool busy = now > began + SHORT_DRAIN_NS;
    saw(max_u64(began, usage.looked), busy);
    saw(now, busy);
    usage.busy = false;
}
