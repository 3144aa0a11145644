/* Limits of what an open gate lets in, off by default; the meter (meter.c) asks, under its lock.
 *
 * The rate is a bucket of blocks, charged with what the thread's last calls had: a launch larger than the bucket passes
 * whole, and those after it pay; launches of functions that are known to be short pass freely (as GPUShare limits long
 * ones only). Spacing leaves, after each stretch of work, the pause that its time on the device asks
 * for (as AntMan spaces launches). */
#include "shim.h"

#define BURST_PER_S 20 /* the bucket holds a twentieth of a second's blocks */
#define LEAST_WAIT_NS 20000

static struct {
    double tokens; /* blocks; below 0: launched and still to be paid for */
    uint64_t filled_at;
    uint32_t filled_for; /* stretch of metering */
    uint64_t not_before; /* spacing: no call until then */
} limits;

/* What a coordinator has set for the sake of a neighbour that ran at the same time holds nothing back without one. */
uint64_t limits_rate(void) {
    return atomic_load(&shim.alone) ? 0 : GET(the_page()->orders.launch_rate);
}

uint32_t limits_spacing(void) {
    return atomic_load(&shim.alone) ? 0 : GET(the_page()->orders.spacing_ppm);
}

/* How long until the bucket is not empty. */
static uint64_t until_paid(struct thread *thread, uint32_t turn, uint64_t now) {
    double rate = (double)limits_rate(), burst = rate / BURST_PER_S;
    uint64_t blocks = GET(thread->counters.blocks);
    if (rate <= 0 || thread->charged_for != turn || blocks < thread->charged || thread->freely)
        thread->charged = blocks; /* what was launched without a limit costs nothing */
    thread->charged_for = turn;
    thread->freely = false;
    if (rate <= 0) {
        limits.filled_for = turn - 1;
        return 0;
    }
    if (limits.filled_for != turn)
        limits.tokens = burst;
    else
        limits.tokens += (double)(now > limits.filled_at ? now - limits.filled_at : 0) * rate / 1e9;
    limits.tokens = limits.tokens < burst ? limits.tokens : burst;
    limits.tokens -= (double)(blocks - thread->charged);
    thread->charged = blocks;
    limits.filled_at = now;
    limits.filled_for = turn;
    thread->freely = durations_short(thread->function);
    return limits.tokens > 0 || thread->freely ? 0 : (uint64_t)(-limits.tokens / rate * 1e9) + LEAST_WAIT_NS;
}

static uint64_t until_spaced(uint64_t now) {
    uint32_t ppm = limits_spacing();
    if (ppm == GPUSHARE_SPACING_STOP)
        return NEVER;
    if (ppm == 0 || ppm >= 1000000)
        limits.not_before = 0;
    return now < limits.not_before ? limits.not_before - now : 0;
}

void limits_worked(uint64_t worked, uint64_t now) {
    uint32_t ppm = limits_spacing();
    if (ppm && ppm < 1000000)
        limits.not_before = most(limits.not_before, now > worked ? now - worked : 0) + worked * 1000000 / ppm;
}

uint64_t limits_pause(struct thread *thread, uint32_t turn, uint64_t now) {
    return most(until_spaced(now), until_paid(thread, turn, now));
}
