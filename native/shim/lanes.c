/* Lanes: a stream of our own in each context, on which memory moves. Other streams need not wait for it, nor it for them.
 * All under movement_lock. */
#include "shim.h"

#include <stdlib.h>

static struct {
    struct lane *lanes;
    unsigned count, room;
} all;

/* The context is current. */
static struct lane *make(CUcontext context) {
    struct lane lane = {.context = context};
    if (all.count == all.room) {
        unsigned room = all.room ? 2 * all.room : 4;
        struct lane *grown = realloc(all.lanes, room * sizeof *grown);
        if (!grown)
            return NULL;
        all.lanes = grown;
        all.room = room;
    }
    if (REAL(cuCtxGetDevice)(&lane.device) != CUDA_SUCCESS ||
        REAL(cuStreamCreate)(&lane.stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
        return NULL;
    if (REAL(cuEventCreate)(&lane.event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
        REAL(cuStreamDestroy_v2)(lane.stream);
        return NULL;
    }
    all.lanes[all.count] = lane;
    return &all.lanes[all.count++];
}

struct lane *lane_enter(CUcontext context) {
    CUcontext left;
    if (REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS)
        return NULL;
    for (unsigned i = 0; i < all.count; i++)
        if (all.lanes[i].context == context)
            return &all.lanes[i];
    struct lane *made = make(context);
    if (!made)
        REAL(cuCtxPopCurrent_v2)(&left);
    return made;
}

void lane_leave(void) {
    CUcontext left;
    REAL(cuCtxPopCurrent_v2)(&left);
}

void lanes_record(void) {
    CUcontext left;
    for (unsigned i = 0; i < all.count; i++) {
        struct lane *lane = &all.lanes[i];
        if (!lane->busy || REAL(cuCtxPushCurrent_v2)(lane->context) != CUDA_SUCCESS)
            continue;
        lane->busy = REAL(cuEventRecord)(lane->event, lane->stream) == CUDA_SUCCESS;
        REAL(cuCtxPopCurrent_v2)(&left);
    }
}

bool lanes_arrived(void) {
    bool busy = false;
    for (unsigned i = 0; i < all.count; i++) {
        struct lane *lane = &all.lanes[i];
        lane->busy = lane->busy && REAL(cuEventQuery)(lane->event) == CUDA_ERROR_NOT_READY;
        busy = busy || lane->busy;
    }
    return !busy;
}

bool lanes_wait(void) {
    bool well = true;
    for (unsigned i = 0; i < all.count; i++) {
        if (all.lanes[i].busy && REAL(cuEventSynchronize)(all.lanes[i].event) != CUDA_SUCCESS)
            well = false;
        all.lanes[i].busy = false;
    }
    return well;
}

/* Its stream and event went with it. */
void lanes_forget(CUcontext context) {
    for (unsigned i = 0; i < all.count;)
        if (all.lanes[i].context == context)
            all.lanes[i] = all.lanes[--all.count];
        else
            i++;
}

void lanes_after_fork(void) {
    all.lanes = NULL; /* left to the parent's heap image */
    all.count = all.room = 0;
}
