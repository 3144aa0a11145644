/* Which streams carry work of the present turn, and whether that work has finished.
 *
 * The table holds a row per stream used; all default streams of a context are one row, since an event on its legacy
 * stream follows the work of them all. Draining records an event per row and polls it. What a stream carries when it is
 * destroyed, or begins to capture, is noted in an orphan event of its own. Contexts are never synchronised: that would
 * invalidate another thread's capture. */
#include "shim.h"

#include <stdlib.h>

struct row {
    CUcontext context;
    CUstream stream; /* DEFAULT for all default streams of the context */
    CUevent event;   /* made when first needed */
    bool dirty, recorded;
    bool finished;   /* it was when asked; then there is no event to wait for */
    bool per_thread; /* of a context's default streams, also one that only its own thread can name */
};

static struct {
    pthread_mutex_t lock;
    struct row *rows, *orphans;
    unsigned count, room, orphan_count, orphan_room;
    unsigned contexts_ending; /* with work in them: their destruction waits for it */
} streams = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool is_default(CUstream stream) {
    return (uintptr_t)stream <= (uintptr_t)CU_STREAM_PER_THREAD;
}

static struct row *append(struct row **rows, unsigned *count, unsigned *room) {
    if (*count == *room) {
        unsigned wanted = *room ? 2 * *room : 32;
        struct row *grown = realloc(*rows, wanted * sizeof **rows);
        if (!grown) {
            log_once(LOG_ERROR, "out of host memory: work of a stream will not be waited for");
            return NULL;
        }
        *rows = grown;
        *room = wanted;
    }
    struct row *row = &(*rows)[(*count)++];
    *row = (struct row){0};
    return row;
}

static struct row *find(CUcontext context, CUstream stream) {
    for (unsigned i = 0; i < streams.count; i++) /* an explicit stream is of one context, whatever was asked for */
        if (streams.rows[i].stream == stream && (stream || streams.rows[i].context == context))
            return &streams.rows[i];
    return NULL;
}

bool streams_mark(CUstream stream) {
    CUcontext context = NULL;
    CUstream key = is_default(stream) ? DEFAULT : stream;
    if (stream != DEFAULT && stream != CU_STREAM_LEGACY && is_capturing(stream))
        return false;
    if (key == DEFAULT || REAL(cuStreamGetCtx)(stream, &context) != CUDA_SUCCESS)
        REAL(cuCtxGetCurrent)(&context);
    if (!context)
        return false;
    pthread_mutex_lock(&streams.lock);
    struct row *row = find(context, key);
    if (!row && (row = append(&streams.rows, &streams.count, &streams.room))) {
        row->context = context;
        row->stream = key;
    }
    if (row) {
        row->dirty = true;
        row->recorded = false; /* what was recorded before does not cover this work */
        row->per_thread = row->per_thread || stream == CU_STREAM_PER_THREAD;
    }
    pthread_mutex_unlock(&streams.lock);
    return row != NULL;
}

/* Makes a context current for a while and puts the thread's own back. */
struct visit {
    CUcontext context;
    bool pushed;
};

static bool visit(struct visit *visit, CUcontext context) {
    if (visit->pushed && visit->context == context)
        return true;
    CUcontext left;
    if (visit->pushed)
        REAL(cuCtxPopCurrent_v2)(&left);
    visit->pushed = REAL(cuCtxPushCurrent_v2)(context) == CUDA_SUCCESS;
    visit->context = context;
    return visit->pushed;
}

static void visit_end(struct visit *visit) {
    CUcontext left;
    if (visit->pushed)
        REAL(cuCtxPopCurrent_v2)(&left);
    visit->pushed = false;
}

enum recording { RECORDED, LATER, HOPELESS };

/* The context is current. */
static enum recording record(struct row *row) {
    CUstream stream = row->stream == DEFAULT ? CU_STREAM_LEGACY : row->stream;
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = REAL(cuStreamIsCapturing)(stream, &status);
    if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT || status != CU_STREAM_CAPTURE_STATUS_NONE)
        return LATER; /* it came into a capture by another stream; what it carried before is not noted */
    row->finished = !row->per_thread && REAL(cuStreamQuery)(stream) == CUDA_SUCCESS;
    if (row->finished) /* the usual case: no event has to find its way through the device */
        return RECORDED;
    if (!row->event && REAL(cuEventCreate)(&row->event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
        row->event = NULL;
        return HOPELESS;
    }
    result = REAL(cuEventRecord)(row->event, stream);
    if (result >= 900 && result <= 908) /* a capture began meanwhile */
        return LATER;
    return result == CUDA_SUCCESS ? RECORDED : HOPELESS;
}

/* A context with an error in it, or one that is gone, has nothing left to wait for. */
static bool finished(struct row *row) {
    if (row->finished)
        return true;
    CUresult result = REAL(cuEventQuery)(row->event);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY)
        log_once(LOG_INFO, "a context failed (CUDA error %d): its work counts as finished", result);
    return result != CUDA_ERROR_NOT_READY;
}

bool streams_poll(bool record_anew) {
    bool done = true;
    struct visit guest = {0};
    pthread_mutex_lock(&streams.lock);
    for (unsigned i = 0; i < streams.count; i++) {
        struct row *row = &streams.rows[i];
        if (record_anew)
            row->recorded = false;
        if (!row->dirty || row->recorded)
            continue;
        enum recording outcome = visit(&guest, row->context) ? record(row) : HOPELESS;
        row->recorded = outcome == RECORDED;
        if (outcome == LATER)
            done = false;
        if (outcome == HOPELESS) {
            log_once(LOG_INFO, "a stream that was used can no longer be asked: its work counts as finished");
            row->dirty = false;
        }
    }
    for (unsigned i = 0; i < streams.count; i++) {
        struct row *row = &streams.rows[i];
        if (row->dirty && row->recorded && !finished(row))
            done = false;
    }
    for (unsigned i = 0; i < streams.orphan_count;) {
        struct row *row = &streams.orphans[i];
        if (!finished(row)) {
            done = false;
            i++;
            continue;
        }
        if (visit(&guest, row->context))
            REAL(cuEventDestroy_v2)(row->event);
        *row = streams.orphans[--streams.orphan_count];
    }
    done = done && streams.contexts_ending == 0;
    visit_end(&guest);
    pthread_mutex_unlock(&streams.lock);
    return done;
}

/* A thread may be marking again already, if the gate has been opened since. */
void streams_clear(void) {
    pthread_mutex_lock(&streams.lock);
    for (unsigned i = 0; i < streams.count; i++)
        if (streams.rows[i].recorded)
            streams.rows[i].dirty = streams.rows[i].recorded = false;
    pthread_mutex_unlock(&streams.lock);
}

/* Only asked, without an event, where the stream itself can tell. */
static bool unfinished(struct row *row) {
    CUstream stream = row->stream == DEFAULT ? CU_STREAM_LEGACY : row->stream;
    if (row->per_thread)
        return record(row) == RECORDED && !finished(row);
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    return REAL(cuStreamIsCapturing)(stream, &status) == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_NONE &&
           REAL(cuStreamQuery)(stream) == CUDA_ERROR_NOT_READY;
}

bool streams_busy(void) {
    bool busy = false;
    struct visit guest = {0};
    pthread_mutex_lock(&streams.lock);
    for (unsigned i = 0; i < streams.count && !busy; i++) {
        struct row *row = &streams.rows[i];
        if (row->dirty && visit(&guest, row->context))
            busy = unfinished(row);
    }
    visit_end(&guest);
    pthread_mutex_unlock(&streams.lock);
    return busy;
}

static void drop_locked(CUstream stream) {
    struct row *row = is_default(stream) ? NULL : find(NULL, stream);
    if (row) {
        struct visit guest = {0};
        int mode = CU_STREAM_CAPTURE_MODE_RELAXED; /* asking a stream is no harm to a capture elsewhere */
        bool exchanged = REAL(cuThreadExchangeStreamCaptureMode)(&mode) == CUDA_SUCCESS;
        if (visit(&guest, row->context)) {
            struct row *orphan = NULL;
            if (row->dirty && record(row) == RECORDED && !row->finished)
                orphan = append(&streams.orphans, &streams.orphan_count, &streams.orphan_room);
            if (orphan)
                *orphan = *row;
            else if (row->event)
                REAL(cuEventDestroy_v2)(row->event);
            visit_end(&guest);
        }
        if (exchanged)
            REAL(cuThreadExchangeStreamCaptureMode)(&mode);
        *row = streams.rows[--streams.count];
    }
    threads_forget_stream(stream);
    meter_forget(stream);
}

void streams_drop(CUstream stream) {
    pthread_mutex_lock(&streams.lock);
    drop_locked(stream);
    pthread_mutex_unlock(&streams.lock);
}

static bool drop_context_locked(CUcontext context) {
    bool busy = false;
    meter_forget_context(context);
    for (unsigned i = 0; i < streams.count;) {
        struct row *row = &streams.rows[i];
        if (row->context != context) {
            i++;
            continue;
        }
        busy = busy || row->dirty;
        for (uintptr_t stream = 0; row->stream == DEFAULT && stream <= (uintptr_t)CU_STREAM_PER_THREAD; stream++)
            threads_forget_stream((CUstream)stream);
        threads_forget_stream(row->stream);
        *row = streams.rows[--streams.count]; /* its event goes with the context */
    }
    for (unsigned i = 0; i < streams.orphan_count;) {
        if (streams.orphans[i].context != context) {
            i++;
            continue;
        }
        busy = true;
        streams.orphans[i] = streams.orphans[--streams.orphan_count];
    }
    return busy;
}

bool streams_drop_context(CUcontext context) {
    pthread_mutex_lock(&streams.lock);
    bool busy = drop_context_locked(context);
    streams.contexts_ending += busy;
    pthread_mutex_unlock(&streams.lock);
    return busy;
}

/* Between the two the agent asks nothing of any stream or context: no event of ours gets into a capture that is about to
 * begin, and no context is touched while it may be ending. */
void streams_hold(CUstream stream) {
    pthread_mutex_lock(&streams.lock);
    drop_locked(stream);
}

void streams_let_go(CUcontext gone) {
    if (gone)
        drop_context_locked(gone);
    pthread_mutex_unlock(&streams.lock);
}

void streams_context_gone(void) {
    pthread_mutex_lock(&streams.lock);
    streams.contexts_ending--;
    pthread_mutex_unlock(&streams.lock);
}

void streams_after_fork(void) {
    pthread_mutex_init(&streams.lock, NULL);
    streams.rows = streams.orphans = NULL; /* left to the parent's heap image: the allocator's state is unknown here */
    streams.count = streams.room = streams.orphan_count = streams.orphan_room = 0;
    streams.contexts_ending = 0;
}
