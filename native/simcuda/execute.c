/* Carrying out one command: the work on the data, and the device time that the model says it takes.
 *
 * A stream with work takes part in the device's turns; `device_target` is the device time (of this process) at which its
 * last command ends in the model. The next command starts there, so that late wake-ups don't add up. Ends less than
 * SLACK_NS ahead aren't slept for, except those of launches that promise to be busy for some time.
 */
#include <stdlib.h>
#include <string.h>

#include "builtins.h"
#include "simlog.h"

#define SLACK_NS 50000
#define CREDIT_NS 200000 /* of lateness that the next command may make up for */
#define FAULT_CHUNK (16ull << 20)
#define POLL_NS 20000

static uint64_t scaled(double seconds) {
    return (uint64_t)(seconds * 1e9 * sim.params.time_scale);
}

/* A command begins at `now`. */
static void enter_device(struct sim_stream *stream, uint64_t now) {
    if (stream->on_device && now - stream->device_looked < CREDIT_NS)
        return;
    if (!stream->on_device)
        turns_enter(sim.world, stream->context->device, sim.slot);
    uint64_t consumed = turns_consumed(sim.world, stream->context->device, sim.slot);
    if (!stream->on_device)
        stream->device_target = consumed;
    else if (consumed > stream->device_target + CREDIT_NS)
        stream->device_target = consumed - CREDIT_NS;
    stream->on_device = 1;
    stream->device_consumed = consumed;
    stream->device_looked = now;
}

/* How long before `now` (negative: after) the command that begins now would have begun without wake-up latency. */
static int64_t lateness(const struct sim_stream *stream, uint64_t now) {
    return (int64_t)(stream->device_consumed + (now - stream->device_looked) - stream->device_target);
}

void execute_leave_device(struct sim_stream *stream) {
    if (!stream->on_device)
        return;
    turns_leave(sim.world, stream->context->device, sim.slot);
    stream->on_device = 0;
}

static void spend(struct sim_stream *stream, uint64_t ns, uint64_t slack_ns) {
    stream->device_target += ns;
    int more = atomic_load_explicit(&stream->tail, memory_order_relaxed) -
                   atomic_load_explicit(&stream->head, memory_order_relaxed) >
               1;
    stream->device_consumed =
        turns_wait(sim.world, stream->context->device, sim.slot, stream->device_target, slack_ns, more);
    stream->device_looked = sim_now();
}

/* Page faults: what the launch touches and isn't there comes in pieces, at most once, so that two processes that take
 * each other's pages both get on, however slowly. */
static void fault_in(struct sim_stream *stream, struct sim_alloc *alloc, uint64_t offset, uint64_t bytes) {
    if (alloc->kind != ALLOC_MANAGED)
        return;
    const struct sim_device_params *device = &sim.params.device[alloc->device];
    uint64_t missing = residency_missing(alloc, offset, bytes);
    while (missing) {
        uint64_t evicted = 0;
        uint64_t brought =
            residency_bring(alloc, offset, bytes, missing < FAULT_CHUNK ? missing : FAULT_CHUNK, &evicted);
        spend(stream, scaled((double)brought / device->fault + (double)evicted / device->d2h), SLACK_NS);
        if (!brought)
            return;
        missing -= brought < missing ? brought : missing;
    }
}

static void fault_in_all(struct sim_stream *stream, struct sim_execution *e) {
    for (int i = 0; i < e->touches; i++)
        fault_in(stream, e->touch[i].alloc, e->touch[i].offset, e->touch[i].bytes);
}

static void launch(struct sim_stream *stream, struct sim_command *command) {
    int device = stream->context->device;
    struct sim_function *function = command->launch.function;
    struct sim_execution e = {.params = command->launch.params, .device = &sim.params.device[device]};
    uint64_t begin = sim_now();
    CUresult error = function->builtin->prepare(&e);
    if (!error) {
        enter_device(stream, begin);
        fault_in_all(stream, &e);
        e.begin_ns = sim_real_time() - (uint64_t)lateness(stream, sim_now());
        function->builtin->run(&e);
        uint64_t left = (uint64_t)((double)(e.cost_ns + e.device->launch_ns) * sim.params.time_scale);
        for (uint64_t part; left;
             left -= part) { /* a long launch loses its pages to others, and faults again */
            part = left < sim.params.recharge_ns ? left : sim.params.recharge_ns;
            spend(stream, part, e.is_busy ? 0 : SLACK_NS);
            if (part < left)
                fault_in_all(stream, &e);
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

static void copy_rows(struct sim_command *command) {
    char *dst = command->copy.dst;
    const char *src = command->copy.src;
    if (command->copy.height == 1 ||
        (command->copy.width == command->copy.dst_pitch && command->copy.width == command->copy.src_pitch)) {
        memmove(dst, src, command->copy.width * command->copy.height);
        return;
    }
    for (size_t row = 0; row < command->copy.height; row++)
        memmove(dst + row * command->copy.dst_pitch, src + row * command->copy.src_pitch,
                command->copy.width);
}

static uint64_t extent(size_t width, size_t height, size_t pitch) {
    return height ? (height - 1) * pitch + width : 0;
}

static uint64_t bring_target(struct sim_alloc *alloc, uint64_t address, uint64_t bytes, uint64_t *evicted) {
    if (!alloc || alloc->kind != ALLOC_MANAGED)
        return 0;
    return residency_bring(alloc, address - alloc->base, bytes, UINT64_MAX, evicted);
}

static void copy(struct sim_stream *stream, struct sim_command *command) {
    const struct sim_device_params *device = &sim.params.device[stream->context->device];
    uint64_t bytes = command->copy.width * command->copy.height, evicted = 0;
    uint64_t dst_bytes = extent(command->copy.width, command->copy.height, command->copy.dst_pitch);
    uint64_t src_bytes = extent(command->copy.width, command->copy.height, command->copy.src_pitch);
    int kind = command->copy.kind;
    uint64_t begin = sim_now();
    struct sim_alloc *dst = alloc_pin_range((uint64_t)command->copy.dst, dst_bytes);
    struct sim_alloc *src = alloc_pin_range((uint64_t)command->copy.src, src_bytes);
    if ((!dst && kind != LOG_DEVICE_TO_HOST) ||
        (!src && kind != LOG_HOST_TO_DEVICE && !command->copy.is_host_only)) {
        context_fail(stream->context, CUDA_ERROR_ILLEGAL_ADDRESS); /* freed since it was submitted */
    } else {
        enter_device(stream, begin);
        double seconds = 0;
        if (kind == LOG_DEVICE_TO_DEVICE) {
            uint64_t moved = bring_target(src, (uint64_t)command->copy.src, src_bytes, &evicted) +
                             bring_target(dst, (uint64_t)command->copy.dst, dst_bytes, &evicted);
            seconds = 2.0 * (double)bytes / device->bandwidth + (double)moved / device->h2d;
        } else if (kind == LOG_HOST_TO_DEVICE) {
            bring_target(dst, (uint64_t)command->copy.dst, dst_bytes, &evicted);
            seconds = (double)bytes / device->h2d;
        } else {
            seconds = (double)bytes / device->d2h;
        }
        copy_rows(command);
        spend(stream, scaled(seconds + (double)evicted / device->d2h), SLACK_NS);
    }
    alloc_unpin(dst);
    alloc_unpin(src);
    free(command->copy.staging);
    command->copy.staging = NULL;
    simlog_write((enum sim_log_kind)kind, begin, sim_now(), stream->context->device, stream->id, bytes);
}

static void set_row(char *row, const struct sim_command *command) {
    uint32_t value = command->set.value;
    if (command->set.element == 1)
        memset(row, (int)value, command->set.width);
    else if (command->set.element == 2)
        for (size_t i = 0; i < command->set.width; i++)
            ((uint16_t *)row)[i] = (uint16_t)value;
    else
        for (size_t i = 0; i < command->set.width; i++)
            ((uint32_t *)row)[i] = value;
}

static void set(struct sim_stream *stream, struct sim_command *command) {
    const struct sim_device_params *device = &sim.params.device[stream->context->device];
    size_t width = command->set.width * command->set.element;
    uint64_t bytes = extent(width, command->set.height, command->set.pitch), evicted = 0;
    uint64_t begin = sim_now();
    struct sim_alloc *dst = alloc_pin_range((uint64_t)command->set.dst, bytes);
    if (!dst) {
        context_fail(stream->context, CUDA_ERROR_ILLEGAL_ADDRESS);
        return;
    }
    enter_device(stream, begin);
    bring_target(dst, (uint64_t)command->set.dst, bytes, &evicted);
    for (size_t row = 0; row < command->set.height; row++)
        set_row((char *)command->set.dst + row * command->set.pitch, command);
    alloc_unpin(dst);
    spend(stream,
          scaled((double)(width * command->set.height) / device->bandwidth + (double)evicted / device->d2h),
          SLACK_NS);
    simlog_write(LOG_SET, begin, sim_now(), stream->context->device, stream->id, width * command->set.height);
}

static void prefetch(struct sim_stream *stream, struct sim_command *command) {
    struct sim_alloc *alloc = alloc_pin(command->prefetch.address);
    if (!alloc)
        return;
    const struct sim_device_params *device = &sim.params.device[alloc->device];
    uint64_t offset = command->prefetch.address - alloc->base, bytes = command->prefetch.bytes, moved = 0;
    if (bytes > alloc->mapped - offset)
        bytes = alloc->mapped - offset;
    uint64_t begin = sim_now();
    enter_device(stream, begin);
    if (command->prefetch.to_device) {
        for (;;) {
            uint64_t evicted = 0, part = residency_bring(alloc, offset, bytes, FAULT_CHUNK, &evicted);
            if (!part || moved >= bytes)
                break;
            moved += part;
            spend(stream, scaled((double)part / device->h2d + (double)evicted / device->d2h), SLACK_NS);
        }
    } else {
        moved = residency_drop(alloc, offset, bytes);
        spend(stream, scaled((double)moved / device->d2h), SLACK_NS);
    }
    alloc_unpin(alloc);
    simlog_write(command->prefetch.to_device ? LOG_PREFETCH_TO_DEVICE : LOG_PREFETCH_TO_HOST, begin,
                 sim_now(), stream->context->device, stream->id, moved);
}

static void host(struct sim_command *command, struct sim_stream *stream) {
    execute_leave_device(stream);
    sim_thread.in_callback = 1;
    if (command->host.function)
        command->host.function(command->host.data);
    else
        command->host.callback(command->host.handle, atomic_load(&stream->context->error),
                               command->host.data);
    sim_thread.in_callback = 0;
}

static int value_reached(const struct sim_command *command) {
    uint64_t mask = command->value.bytes == 4 ? UINT32_MAX : UINT64_MAX, wanted = command->value.value & mask;
    uint64_t seen = command->value.bytes == 4
                        ? __atomic_load_n((uint32_t *)command->value.address, __ATOMIC_ACQUIRE)
                        : __atomic_load_n((uint64_t *)command->value.address, __ATOMIC_ACQUIRE);
    switch (command->value.compare) {
    case CU_WAIT_GEQ:
        return command->value.bytes == 4 ? (int32_t)(seen - wanted) >= 0 : (int64_t)(seen - wanted) >= 0;
    case CU_WAIT_EQ:
        return seen == wanted;
    case CU_WAIT_AND:
        return (seen & wanted) != 0;
    default:
        return (~(seen | wanted) & mask) != 0;
    }
}

static void value(struct sim_stream *stream, struct sim_command *command) {
    struct sim_alloc *alloc = alloc_pin_range(command->value.address, command->value.bytes);
    if (!alloc) {
        context_fail(stream->context, CUDA_ERROR_ILLEGAL_ADDRESS);
        return;
    }
    if (command->kind == COMMAND_WAIT_VALUE) {
        while (!value_reached(command)) { /* a waiting channel gives the device to others */
            execute_leave_device(stream);
            sim_sleep_until(sim_now() + POLL_NS);
        }
    } else if (command->value.bytes == 4) {
        __atomic_store_n((uint32_t *)command->value.address, (uint32_t)command->value.value,
                         __ATOMIC_RELEASE);
    } else {
        __atomic_store_n((uint64_t *)command->value.address, command->value.value, __ATOMIC_RELEASE);
    }
    alloc_unpin(alloc);
}

void execute(struct sim_stream *stream, struct sim_command *command) {
    switch (command->kind) {
    case COMMAND_LAUNCH:
        if (!atomic_load_explicit(&stream->context->error, memory_order_relaxed))
            launch(stream, command);
        break;
    case COMMAND_COPY:
        copy(stream, command);
        break;
    case COMMAND_SET:
        set(stream, command);
        break;
    case COMMAND_PREFETCH:
        prefetch(stream, command);
        break;
    case COMMAND_EVENT:
        event_complete(command->event.event, command->event.generation);
        break;
    case COMMAND_WAIT_EVENT:
        if (atomic_load(&command->event.event->reached) < command->event.generation)
            execute_leave_device(stream);
        event_await(command->event.event, command->event.generation);
        break;
    case COMMAND_HOST:
        host(command, stream);
        break;
    case COMMAND_WAIT_VALUE:
    case COMMAND_WRITE_VALUE:
        value(stream, command);
        break;
    case COMMAND_GRAPH:
        graph_execute(stream, command->graph.exec);
        break;
    case COMMAND_FREE:
        alloc_free(command->free.address, 1u << ALLOC_PLAIN);
        break;
    default:
        break;
    }
}
