/* Transfer streams: a stream of the shim in each context, on which memory moves. Other streams and transfer streams
 * do not wait for each other. All under residency_lock. */
#include "memory/transfers/transfers.h"

#include <stdlib.h>

#define SPARE_FRACTION 32 /* this part of a device stays free for the running client while other clients prefetch */

pthread_mutex_t residency_lock = PTHREAD_MUTEX_INITIALIZER;

static struct {
    struct transfer_stream *streams;
    unsigned count, room;
} table;

/* The context is current. */
static struct transfer_stream *make(CUcontext context) {
    struct transfer_stream transfer = {.context = context};
    if (table.count == table.room) {
        unsigned room = table.room ? 2 * table.room : 4;
        struct transfer_stream *grown = realloc(table.streams, room * sizeof *grown);
        if (!grown)
            return NULL;
        table.streams = grown;
        table.room = room;
    }
    if (REAL(cuCtxGetDevice)(&transfer.device) != CUDA_SUCCESS ||
        REAL(cuStreamCreate)(&transfer.stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
        return NULL;
    if (REAL(cuEventCreate)(&transfer.event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
        REAL(cuStreamDestroy_v2)(transfer.stream);
        return NULL;
    }
    table.streams[table.count] = transfer;
    return &table.streams[table.count++];
}

struct transfer_stream *transfer_begin(CUcontext context) {
    CUcontext left;
    if (REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS)
        return NULL;
    for (unsigned i = 0; i < table.count; i++)
        if (table.streams[i].context == context)
            return &table.streams[i];
    struct transfer_stream *made = make(context);
    if (!made)
        REAL(cuCtxPopCurrent_v2)(&left);
    return made;
}

void transfer_end(void) {
    CUcontext left;
    REAL(cuCtxPopCurrent_v2)(&left);
}

void transfers_record(void) {
    CUcontext left;
    for (unsigned i = 0; i < table.count; i++) {
        struct transfer_stream *transfer = &table.streams[i];
        if (!transfer->is_busy || REAL(cuCtxPushCurrent_v2)(transfer->context) != CUDA_SUCCESS)
            continue;
        transfer->is_busy = REAL(cuEventRecord)(transfer->event, transfer->stream) == CUDA_SUCCESS;
        REAL(cuCtxPopCurrent_v2)(&left);
    }
}

bool transfers_are_complete(void) {
    bool is_busy = false;
    for (unsigned i = 0; i < table.count; i++) {
        struct transfer_stream *transfer = &table.streams[i];
        transfer->is_busy = transfer->is_busy && REAL(cuEventQuery)(transfer->event) == CUDA_ERROR_NOT_READY;
        is_busy = is_busy || transfer->is_busy;
    }
    return !is_busy;
}

bool transfers_sync(void) {
    bool is_ok = true;
    for (unsigned i = 0; i < table.count; i++) {
        if (table.streams[i].is_busy && REAL(cuEventSynchronize)(table.streams[i].event) != CUDA_SUCCESS)
            is_ok = false;
        table.streams[i].is_busy = false;
    }
    return is_ok;
}

/* The stream and the event ended with the context. */
void transfers_drop_context(CUcontext context) {
    for (unsigned i = 0; i < table.count;)
        if (table.streams[i].context == context)
            table.streams[i] = table.streams[--table.count];
        else
            i++;
}

void transfers_after_fork(void) {
    pthread_mutex_init(&residency_lock, NULL);
    table.streams = NULL; /* left to the parent's heap image */
    table.count = table.room = 0;
}

void transfers_report_restored(uint64_t bytes, uint64_t began) {
    struct gpushare_report *report = &the_page()->report;
    uint64_t took = now_ns() - began;
    if (!bytes)
        return;
    PAGE_ADD(report->restored_bytes, bytes);
    PAGE_ADD(report->restored_ns, took);
    log_message(LOG_DEBUG, "restored %s in %.1f ms", size_text(bytes).text, (double)took / NS_PER_MS);
}

uint64_t transfers_free_bytes(void) {
    size_t free_bytes = 0, total = 0;
    if (REAL(cuMemGetInfo_v2)(&free_bytes, &total) != CUDA_SUCCESS)
        return 0;
    return free_bytes > total / SPARE_FRACTION ? free_bytes - total / SPARE_FRACTION : 0;
}
