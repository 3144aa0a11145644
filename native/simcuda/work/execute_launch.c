/* Execution of launches, with the page faults that they cause. */
#include "base/simlog.h"
#include "base/waiting.h"
#include "context/context.h"
#include "memory/alloc.h"
#include "work/builtin_kernels.h"
#include "work/execute.h"

/* Page faults: memory of the launch that is not on the device comes in pieces, at most once. So two processes that
 * take each other's pages both advance, however slowly. */
static void fault_in(struct sim_stream *stream, struct sim_alloc *alloc, uint64_t offset, uint64_t bytes, int again) {
    const struct sim_device_params *device = &sim.params.device[alloc->device];
    for (uint64_t done = 0; alloc_is_paged(alloc) && done < bytes;) {
        struct sim_movement m = {0};
        done += residency_bring(alloc, offset + done, bytes - done, FAULT_CHUNK, BRING_FAULT, &m);
        double seconds = (double)m.moved / device->fault + (double)m.populated / device->touch +
                         (double)m.evicted / device->d2h + (again ? 0 : (double)m.remote / device->h2d);
        if (seconds > 0)
            device_time_spend(stream, device_time_scaled(seconds), SLACK_NS);
    }
}

static void fault_in_all(struct sim_stream *stream, struct sim_execution *e, int again) {
    for (int i = 0; i < e->touches; i++)
        fault_in(stream, e->touch[i].alloc, e->touch[i].offset, e->touch[i].bytes, again);
}

void execute_launch(struct sim_stream *stream, struct sim_command *command) {
    int device = stream->context->device;
    struct sim_function *function = command->launch.function;
    struct sim_execution e = {
        .params = command->launch.params, .context = stream->context, .device = &sim.params.device[device]};
    uint64_t begin = sim_now();
    CUresult error = function->builtin->prepare(&e);
    if (!error) {
        device_time_enter(stream, begin);
        fault_in_all(stream, &e, 0);
        e.begin_ns = sim_real_time() - (uint64_t)device_time_lateness(stream, sim_now());
        function->builtin->run(&e);
        uint64_t left = (uint64_t)((double)(e.cost_ns + e.device->launch_ns) * sim.params.time_scale);
        /* a long launch loses its pages to other processes, and faults again */
        for (uint64_t part; left; left -= part) {
            part = left < sim.params.recharge_ns ? left : sim.params.recharge_ns;
            device_time_spend(stream, part, e.is_busy ? 0 : SLACK_NS);
            if (part < left)
                fault_in_all(stream, &e, 1);
        }
        if (function->builtin->finish)
            function->builtin->finish(&e);
    } else {
        context_fail(stream->context, error);
    }
    for (int i = 0; i < e.touches; i++)
        alloc_unpin(e.touch[i].alloc);
    simlog_write(LOG_LAUNCH, begin, sim_now(), device, stream->id, 0);
}
