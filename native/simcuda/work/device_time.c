/* The device time that commands take.
 *
 * A stream with work takes part in the device's time slices. `device_target` is the device time of this process at
 * which its last command ends in the model. The next command starts there, so that late wake-ups do not add up. The
 * worker does not sleep for ends less than SLACK_NS ahead, except for launches that promise to be busy for some
 * time. */
#include "base/waiting.h"
#include "machine/machine.h"
#include "work/execute.h"

#define CREDIT_NS 200000 /* lateness for which the next command may make up */

uint64_t device_time_scaled(double seconds) {
    return (uint64_t)(seconds * 1e9 * sim.params.time_scale);
}

/* A command begins at `now`. */
void device_time_enter(struct sim_stream *stream, uint64_t now) {
    stream->transferred = 0;
    if (stream->on_device && now - stream->device_sampled_at < CREDIT_NS)
        return;
    if (!stream->on_device)
        slices_enter(sim.machine, stream->context->device, sim.slot);
    uint64_t consumed = slices_consumed(sim.machine, stream->context->device, sim.slot);
    if (!stream->on_device)
        stream->device_target = consumed;
    else if (consumed > stream->device_target + CREDIT_NS)
        stream->device_target = consumed - CREDIT_NS;
    stream->on_device = 1;
    stream->device_consumed = consumed;
    stream->device_sampled_at = now;
}

/* Return how long before `now` (negative: after) the beginning command would have begun without wake-up latency. */
int64_t device_time_lateness(const struct sim_stream *stream, uint64_t now) {
    return (int64_t)(stream->device_consumed + (now - stream->device_sampled_at) - stream->device_target);
}

void execute_leave_device(struct sim_stream *stream) {
    if (!stream->on_device)
        return;
    slices_leave(sim.machine, stream->context->device, sim.slot);
    stream->on_device = 0;
}

void device_time_spend(struct sim_stream *stream, uint64_t ns, uint64_t slack_ns) {
    stream->device_target += ns;
    uint64_t queued = atomic_load_explicit(&stream->tail, memory_order_relaxed) -
                      atomic_load_explicit(&stream->head, memory_order_relaxed);
    stream->device_consumed =
        slices_wait(sim.machine, stream->context->device, sim.slot, stream->device_target, slack_ns, queued > 1);
    if (stream->device_consumed > stream->device_target + CREDIT_NS)
        stream->device_target = stream->device_consumed - CREDIT_NS;
    stream->device_sampled_at = sim_now();
}
