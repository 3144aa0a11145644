/* Copies, sets and prefetches. */
#include <stdlib.h>
#include <string.h>

#include "execute.h"
#include "simlog.h"

static void copy_rows(struct sim_command *command) {
    char *dst = command->copy.dst;
    const char *src = command->copy.src;
    if (command->copy.height == 1 ||
        (command->copy.width == command->copy.dst_pitch && command->copy.width == command->copy.src_pitch)) {
        memmove(dst, src, command->copy.width * command->copy.height);
        return;
    }
    for (size_t row = 0; row < command->copy.height; row++)
        memmove(dst + row * command->copy.dst_pitch, src + row * command->copy.src_pitch, command->copy.width);
}

static uint64_t extent(size_t width, size_t height, size_t pitch) {
    return height ? (height - 1) * pitch + width : 0;
}

static uint64_t bring_target(struct sim_alloc *alloc, uint64_t address, uint64_t bytes, uint64_t *evicted) {
    if (!alloc || alloc->kind != ALLOC_MANAGED)
        return 0;
    return residency_bring(alloc, address - alloc->base, bytes, UINT64_MAX, evicted);
}

void execute_copy(struct sim_stream *stream, struct sim_command *command) {
    const struct sim_device_params *device = &sim.params.device[stream->context->device];
    uint64_t bytes = command->copy.width * command->copy.height, evicted = 0;
    uint64_t dst_bytes = extent(command->copy.width, command->copy.height, command->copy.dst_pitch);
    uint64_t src_bytes = extent(command->copy.width, command->copy.height, command->copy.src_pitch);
    int kind = command->copy.kind;
    uint64_t begin = sim_now();
    struct sim_alloc *dst = alloc_pin_range((uint64_t)command->copy.dst, dst_bytes);
    struct sim_alloc *src = alloc_pin_range((uint64_t)command->copy.src, src_bytes);
    if ((!dst && kind != LOG_DEVICE_TO_HOST) || (!src && kind != LOG_HOST_TO_DEVICE && !command->copy.is_host_only)) {
        context_fail(stream->context, CUDA_ERROR_ILLEGAL_ADDRESS); /* freed since it was submitted */
    } else {
        pace_enter(stream, begin);
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
        pace_spend(stream, pace_scaled(seconds + (double)evicted / device->d2h), SLACK_NS);
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

void execute_set(struct sim_stream *stream, struct sim_command *command) {
    const struct sim_device_params *device = &sim.params.device[stream->context->device];
    size_t width = command->set.width * command->set.element;
    uint64_t bytes = extent(width, command->set.height, command->set.pitch), evicted = 0;
    uint64_t begin = sim_now();
    struct sim_alloc *dst = alloc_pin_range((uint64_t)command->set.dst, bytes);
    if (!dst) {
        context_fail(stream->context, CUDA_ERROR_ILLEGAL_ADDRESS);
        return;
    }
    pace_enter(stream, begin);
    bring_target(dst, (uint64_t)command->set.dst, bytes, &evicted);
    for (size_t row = 0; row < command->set.height; row++)
        set_row((char *)command->set.dst + row * command->set.pitch, command);
    alloc_unpin(dst);
    pace_spend(stream,
               pace_scaled((double)(width * command->set.height) / device->bandwidth + (double)evicted / device->d2h),
               SLACK_NS);
    simlog_write(LOG_SET, begin, sim_now(), stream->context->device, stream->id, width * command->set.height);
}

void execute_prefetch(struct sim_stream *stream, struct sim_command *command) {
    struct sim_alloc *alloc = alloc_pin(command->prefetch.address);
    if (!alloc)
        return;
    const struct sim_device_params *device = &sim.params.device[alloc->device];
    uint64_t offset = command->prefetch.address - alloc->base, bytes = command->prefetch.bytes, moved = 0;
    if (bytes > alloc->mapped - offset)
        bytes = alloc->mapped - offset;
    uint64_t begin = sim_now();
    pace_enter(stream, begin);
    if (command->prefetch.to_device) {
        for (;;) {
            uint64_t evicted = 0, part = residency_bring(alloc, offset, bytes, FAULT_CHUNK, &evicted);
            if (!part || moved >= bytes)
                break;
            moved += part;
            pace_spend(stream, pace_scaled((double)part / device->h2d + (double)evicted / device->d2h), SLACK_NS);
        }
    } else {
        moved = residency_drop(alloc, offset, bytes);
        pace_spend(stream, pace_scaled((double)moved / device->d2h), SLACK_NS);
    }
    alloc_unpin(alloc);
    simlog_write(command->prefetch.to_device ? LOG_PREFETCH_TO_DEVICE : LOG_PREFETCH_TO_HOST, begin, sim_now(),
                 stream->context->device, stream->id, moved);
}
