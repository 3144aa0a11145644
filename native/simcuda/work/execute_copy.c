/* Execution of copies, sets and prefetches. */
#include <stdlib.h>
#include <string.h>

#include "base/simlog.h"
#include "base/waiting.h"
#include "machine/machine.h"
#include "context/context.h"
#include "memory/alloc.h"
#include "work/execute.h"

static void copy_rows(const struct sim_command *command, char *dst, const char *src) {
    if (command->copy.height == 1 ||
        (command->copy.width == command->copy.dst_pitch && command->copy.width == command->copy.src_pitch)) {
        memmove(dst, src, command->copy.width * command->copy.height);
        return;
    }
    for (size_t row = 0; row < command->copy.height; row++)
        memmove(dst + row * command->copy.dst_pitch, src + row * command->copy.src_pitch, command->copy.width);
}

static void copy_layers(const struct sim_command *command) {
    for (size_t z = 0; z < command->copy.depth; z++)
        copy_rows(command, (char *)command->copy.dst + z * command->copy.dst_layer,
                  (const char *)command->copy.src + z * command->copy.src_layer);
}

static uint64_t copied(const struct sim_command *command) {
    return command->copy.width * command->copy.height * command->copy.depth;
}

static uint64_t extent(size_t width, size_t height, size_t pitch) {
    return height ? (height - 1) * pitch + width : 0;
}

/* The target of a copy or set is brought to the device, whatever it held before. */
static void bring(struct sim_alloc *alloc, uint64_t address, uint64_t bytes, struct sim_movement *movement) {
    if (alloc && alloc_is_paged(alloc))
        residency_bring(alloc, address - alloc->base, bytes, UINT64_MAX, BRING_PREFETCH, movement);
}

static int is_pinned(const struct sim_alloc *alloc) {
    return alloc && (alloc->kind == ALLOC_HOST || alloc->kind == ALLOC_REGISTERED);
}

/* Spend the time of a copy that begins at `now`. The bytes have been copied meanwhile. */
static void spend_copy(struct sim_stream *stream, const struct sim_command *command, uint64_t now, int pinned,
                       const struct sim_movement *m) {
    const struct sim_device_params *device = &sim.params.device[stream->context->device];
    uint64_t bytes = copied(command);
    struct transfer t;
    transfer_begin(&t, stream, stream->context->device, now);
    transfer_bytes(&t, COPY_TO_HOST, m->evicted, device->d2h);
    if (command->copy.kind == LOG_HOST_TO_DEVICE)
        transfer_bytes(&t, COPY_TO_DEVICE, bytes, pinned ? device->h2d : device->pageable_h2d);
    else if (command->copy.kind == LOG_DEVICE_TO_HOST)
        transfer_bytes(&t, COPY_TO_HOST, bytes, pinned ? device->d2h : device->pageable_d2h);
    else
        transfer_bytes(&t, COPY_TO_DEVICE, m->moved, device->h2d);
    if (command->copy.kind == LOG_DEVICE_TO_DEVICE) {
        device_time_enter(stream, now);
        device_time_spend(stream, device_time_scaled(2.0 * (double)bytes / device->bandwidth), SLACK_NS);
    }
}

void execute_copy(struct sim_stream *stream, struct sim_command *command) {
    uint64_t dst_bytes = (command->copy.depth - 1) * command->copy.dst_layer +
                         extent(command->copy.width, command->copy.height, command->copy.dst_pitch);
    uint64_t src_bytes = (command->copy.depth - 1) * command->copy.src_layer +
                         extent(command->copy.width, command->copy.height, command->copy.src_pitch);
    int kind = command->copy.kind;
    uint64_t begin = sim_now();
    struct sim_alloc *dst = alloc_pin_range((uint64_t)command->copy.dst, dst_bytes);
    struct sim_alloc *src = alloc_pin_range((uint64_t)command->copy.src, src_bytes);
    if ((!dst && kind != LOG_DEVICE_TO_HOST) || (!src && kind != LOG_HOST_TO_DEVICE && !command->copy.is_host_only)) {
        context_fail(stream->context, CUDA_ERROR_ILLEGAL_ADDRESS); /* freed since it was submitted */
    } else {
        struct sim_movement m = {0};
        if (kind == LOG_DEVICE_TO_DEVICE)
            bring(src, (uint64_t)command->copy.src, src_bytes, &m);
        if (kind != LOG_DEVICE_TO_HOST)
            bring(dst, (uint64_t)command->copy.dst, dst_bytes, &m);
        copy_layers(command);
        spend_copy(stream, command, begin, is_pinned(kind == LOG_HOST_TO_DEVICE ? src : dst), &m);
    }
    alloc_unpin(dst);
    alloc_unpin(src);
    free(command->copy.staging);
    command->copy.staging = NULL;
    simlog_write((enum sim_log_kind)kind, begin, sim_now(), stream->context->device, stream->id, copied(command));
}

static void set_row(char *row, const struct sim_command *command) {
    uint32_t value = command->set.value;
    if (command->set.element == 4 && command->set.width == 1) /* a word for which another stream may be waiting */
        __atomic_store_n((uint32_t *)row, value, __ATOMIC_RELEASE);
    else if (command->set.element == 1)
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
    uint64_t bytes = extent(width, command->set.height, command->set.pitch);
    struct sim_movement m = {0};
    uint64_t begin = sim_now();
    struct sim_alloc *dst = alloc_pin_range((uint64_t)command->set.dst, bytes);
    if (!dst) {
        context_fail(stream->context, CUDA_ERROR_ILLEGAL_ADDRESS);
        return;
    }
    device_time_enter(stream, begin);
    bring(dst, (uint64_t)command->set.dst, bytes, &m);
    for (size_t row = 0; row < command->set.height; row++)
        set_row((char *)command->set.dst + row * command->set.pitch, command);
    alloc_unpin(dst);
    device_time_spend(
        stream,
        device_time_scaled((double)(width * command->set.height) / device->bandwidth + (double)m.evicted / device->d2h),
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
    struct transfer t;
    transfer_begin(&t, stream, alloc->device, begin);
    for (uint64_t done = 0; command->prefetch.to_device && done < bytes;) {
        struct sim_movement m = {0};
        done += residency_bring(alloc, offset + done, bytes - done, FAULT_CHUNK, BRING_PREFETCH, &m);
        transfer_bytes(&t, COPY_TO_HOST, m.evicted, device->d2h);
        transfer_bytes(&t, COPY_TO_DEVICE, m.moved, device->h2d);
        transfer_spend(&t, device_time_scaled((double)m.populated / device->populate));
        moved += m.moved;
    }
    if (!command->prefetch.to_device) {
        uint64_t populated = 0;
        moved = residency_drop(alloc, offset, bytes, &populated);
        transfer_bytes(&t, COPY_TO_HOST, moved, device->d2h);
        transfer_spend(&t, device_time_scaled((double)populated / device->populate));
    }
    alloc_unpin(alloc);
    simlog_write(command->prefetch.to_device ? LOG_PREFETCH_TO_DEVICE : LOG_PREFETCH_TO_HOST, begin, sim_now(),
                 stream->context->device, stream->id, moved);
}
