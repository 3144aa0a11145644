/* The launch budget: how much an open gate lets in while another client is colocated; off by default. The throttle
 * calls it under its lock.
 *
 * One bucket, of blocks or of device time, fills at the budget's rate, up to a twentieth of a second's worth. A call
 * passes while the bucket is above 0. Blocks are charged when the thread that launched them calls again or ends, device
 * time when a batch of calls proves to have taken it. So a call larger than the bucket passes whole, and pauses follow
 * work in proportion, as AntMan spaces launches. Launches of functions that are known to be short pass by a bucket
 * of blocks, as GPUShare limits only long ones. */
#include "gate/gate.h"

#define BURSTS_PER_S 20
#define MIN_WAIT_NS 20000

static struct {
    double credit; /* below 0: used, and not paid for yet */
    uint64_t filled_at;
    uint32_t unit;
    uint32_t filled_generation; /* generation of the throttle; the next one begins with a full bucket */
} bucket;

static void fill(struct budget budget, uint32_t generation, uint64_t now) {
    double burst = (double)budget.rate / BURSTS_PER_S;
    if (bucket.filled_generation != generation || bucket.unit != budget.unit)
        bucket.credit = burst;
    else
        bucket.credit += (double)(now > bucket.filled_at ? now - bucket.filled_at : 0) * (double)budget.rate / 1e9;
    bucket.credit = bucket.credit < burst ? bucket.credit : burst;
    bucket.filled_at = now;
    bucket.unit = budget.unit;
    bucket.filled_generation = generation;
}

/* Return the blocks that the thread has launched since the last charge, if they are to be charged. */
static uint64_t uncharged_blocks(struct thread *thread, bool counted, uint32_t generation) {
    uint64_t blocks = PAGE_LOAD(thread->counters.blocks), before = thread->charged_blocks;
    bool is_charged = counted && thread->charged_generation == generation && blocks >= before && !thread->is_exempt;
    thread->charged_blocks = blocks;
    thread->charged_generation = generation;
    thread->is_exempt = false;
    return is_charged ? blocks - before : 0;
}

void budget_charge_time(uint64_t worked) {
    if (bucket.unit == GPUSHARE_BUDGET_TIME)
        bucket.credit -= (double)worked;
}

void budget_charge_ending_thread(struct thread *thread, uint32_t generation) {
    if (bucket.unit == GPUSHARE_BUDGET_BLOCKS)
        bucket.credit -= (double)uncharged_blocks(thread, true, generation);
}

uint64_t budget_delay(struct thread *thread, uint32_t generation, uint64_t now) {
    struct budget budget = budget_in_force();
    bool limited = budget.rate && budget.rate != GPUSHARE_BUDGET_STOP;
    uint64_t blocks = uncharged_blocks(thread, limited && budget.unit == GPUSHARE_BUDGET_BLOCKS, generation);
    if (!limited) {
        bucket.filled_generation = generation - 1;
        return budget.rate ? NEVER : 0;
    }
    fill(budget, generation, now);
    bucket.credit -= (double)blocks;
    thread->is_exempt = budget.unit == GPUSHARE_BUDGET_BLOCKS && function_is_short(thread->function);
    if (bucket.credit > 0 || thread->is_exempt)
        return 0;
    return (uint64_t)(-bucket.credit / (double)budget.rate * 1e9) + MIN_WAIT_NS;
}
