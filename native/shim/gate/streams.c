/* Streams that carry work of the present turn, and whether that work has finished.
 *
 * The table has an entry for each stream in use. All default streams of a context share one entry, because an event
 * on the context's legacy stream follows the work of all of them. Draining records an event for each entry and polls
 * it. An orphan event stands for the work of a stream that is destroyed or begins to capture. Contexts are never
 * synchronised, because that would invalidate another thread's capture.
 *
 * An event of a green context follows all of its work. It is recorded from the primary context, and only while no
 * stream of the green context captures, because it would invalidate the capture. */
#include "gate/gate.h"

#include <stdlib.h>

struct stream_state {
    CUcontext context; /* in which the event is made */
    CUgreenCtx green;  /* NULL: none */
    CUstream stream;   /* DEFAULT for all default streams of the context, or of the green context */
    CUevent event;     /* made when first needed */
    bool has_work, is_recorded;
    bool is_finished;   /* the stream had finished at the query, so there is no event to wait for */
    bool is_per_thread; /* the default streams include one that only its own thread can name */
    bool may_capture;   /* a capture has begun in this stream of a green context */
};

static struct {
    pthread_mutex_t lock;
    struct stream_state *states, *orphans;
    unsigned count, room, orphan_count, orphan_room;
    unsigned contexts_ending; /* with work in them: their destruction waits for it */
} streams = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool is_default(CUstream stream) {
    return (uintptr_t)stream <= (uintptr_t)CU_STREAM_PER_THREAD;
}

static struct stream_state *append(struct stream_state **states, unsigned *count, unsigned *room) {
    if (*count == *room) {
        unsigned wanted = *room ? 2 * *room : 32;
        struct stream_state *grown = realloc(*states, wanted * sizeof **states);
        if (!grown) {
            log_once(LOG_ERROR,
                     "The host is out of memory, so a turn may end before the work of one stream has finished.");
            return NULL;
        }
        *states = grown;
        *room = wanted;
    }
    struct stream_state *state = &(*states)[(*count)++];
    *state = (struct stream_state){0};
    return state;
}

static bool is_of(const struct stream_state *state, struct stream_home home) {
    return state->context == home.context && state->green == home.green;
}

/* Return the state of the stream, a new one if there was none. NULL: the host is out of memory. */
static struct stream_state *find_or_add(struct stream_home home, CUstream stream) {
    for (unsigned i = 0; i < streams.count; i++) /* a stream that the program has made is of one context */
        if (streams.states[i].stream == stream && (stream || is_of(&streams.states[i], home)))
            return &streams.states[i];
    struct stream_state *state = append(&streams.states, &streams.count, &streams.room);
    if (state) {
        state->context = home.context;
        state->green = home.green;
        state->stream = stream;
    }
    return state;
}

bool streams_mark(CUstream stream) {
    if (stream != DEFAULT && stream != CU_STREAM_LEGACY && is_capturing(stream))
        return false;
    struct stream_home home = stream_home(stream);
    if (!home.context)
        return false;
    pthread_mutex_lock(&streams.lock);
    struct stream_state *state = find_or_add(home, is_default(stream) ? DEFAULT : stream);
    if (state) {
        state->has_work = true;
        state->is_recorded = false; /* an earlier event does not cover this work */
        state->is_per_thread = state->is_per_thread || stream == CU_STREAM_PER_THREAD;
    }
    pthread_mutex_unlock(&streams.lock);
    return state != NULL;
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

enum recording { RECORDED, LATER, UNRECORDABLE };

/* Return true if the stream itself can be queried for all of the work. The default streams of a green context have
 * names only where that is current. */
static bool is_queryable(const struct stream_state *state) {
    return !state->is_per_thread && !(state->green && state->stream == DEFAULT);
}

static bool is_green_capturing(CUgreenCtx green) {
    for (unsigned i = 0; i < streams.count; i++) {
        struct stream_state *state = &streams.states[i];
        if (state->green == green && state->may_capture && (state->may_capture = is_capturing(state->stream)))
            return true;
    }
    return false;
}

/* The context is current. */
static enum recording record(struct stream_state *state) {
    CUstream stream = state->stream == DEFAULT ? CU_STREAM_LEGACY : state->stream;
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = CUDA_SUCCESS;
    if (!state->green || state->stream != DEFAULT)
        result = REAL(cuStreamIsCapturing)(stream, &status);
    if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT || status != CU_STREAM_CAPTURE_STATUS_NONE)
        return LATER; /* the stream joined another stream's capture; its earlier work has no event yet */
    state->is_finished = is_queryable(state) && REAL(cuStreamQuery)(stream) == CUDA_SUCCESS;
    if (state->is_finished) /* the usual case: no event has to pass through the device */
        return RECORDED;
    if (state->green && is_green_capturing(state->green))
        return LATER;
    if (!state->event && REAL(cuEventCreate)(&state->event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
        state->event = NULL;
        return UNRECORDABLE;
    }
    result = state->green ? REAL(cuGreenCtxRecordEvent)(state->green, state->event)
                          : REAL(cuEventRecord)(state->event, stream);
    if (result >= 900 && result <= 908) /* a capture began meanwhile */
        return LATER;
    return result == CUDA_SUCCESS ? RECORDED : UNRECORDABLE;
}

/* A context with an error, or one that has ended, has nothing left to wait for. */
static bool has_finished(struct stream_state *state) {
    if (state->is_finished)
        return true;
    CUresult result = REAL(cuEventQuery)(state->event);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY)
        log_once(LOG_INFO, "count the work of a failed context as finished (CUDA error %d)", result);
    return result != CUDA_ERROR_NOT_READY;
}

bool streams_poll(bool record_anew) {
    bool done = true;
    struct visit guest = {0};
    pthread_mutex_lock(&streams.lock);
    for (unsigned i = 0; i < streams.count; i++) {
        struct stream_state *state = &streams.states[i];
        if (record_anew)
            state->is_recorded = false;
        if (!state->has_work || state->is_recorded)
            continue;
        enum recording outcome = visit(&guest, state->context) ? record(state) : UNRECORDABLE;
        state->is_recorded = outcome == RECORDED;
        if (outcome == LATER)
            done = false;
        if (outcome == UNRECORDABLE) {
            log_once(LOG_INFO, "count the work of a stream without queries as finished");
            state->has_work = false;
        }
    }
    for (unsigned i = 0; i < streams.count; i++) {
        struct stream_state *state = &streams.states[i];
        if (state->has_work && state->is_recorded && !has_finished(state))
            done = false;
    }
    for (unsigned i = 0; i < streams.orphan_count;) {
        struct stream_state *state = &streams.orphans[i];
        if (!has_finished(state)) {
            done = false;
            i++;
            continue;
        }
        if (visit(&guest, state->context))
            REAL(cuEventDestroy_v2)(state->event);
        *state = streams.orphans[--streams.orphan_count];
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
        if (streams.states[i].is_recorded)
            streams.states[i].has_work = streams.states[i].is_recorded = false;
    pthread_mutex_unlock(&streams.lock);
}

/* Query the stream without an event where that is enough. */
static bool is_unfinished(struct stream_state *state) {
    CUstream stream = state->stream == DEFAULT ? CU_STREAM_LEGACY : state->stream;
    if (!is_queryable(state))
        return record(state) == RECORDED && !has_finished(state);
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    return REAL(cuStreamIsCapturing)(stream, &status) == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_NONE &&
           REAL(cuStreamQuery)(stream) == CUDA_ERROR_NOT_READY;
}

bool streams_have_work(void) {
    bool busy = false;
    struct visit guest = {0};
    pthread_mutex_lock(&streams.lock);
    for (unsigned i = 0; i < streams.count && !busy; i++) {
        struct stream_state *state = &streams.states[i];
        if (state->has_work && visit(&guest, state->context))
            busy = is_unfinished(state);
    }
    visit_end(&guest);
    pthread_mutex_unlock(&streams.lock);
    return busy;
}

static void drop_locked(CUstream stream) {
    struct stream_state *state = NULL;
    for (unsigned i = 0; i < streams.count && !is_default(stream) && !state; i++)
        state = streams.states[i].stream == stream ? &streams.states[i] : NULL;
    if (state) {
        struct visit guest = {0};
        int mode = CU_STREAM_CAPTURE_MODE_RELAXED; /* a query of a stream does not harm another thread's capture */
        bool exchanged = REAL(cuThreadExchangeStreamCaptureMode)(&mode) == CUDA_SUCCESS;
        if (visit(&guest, state->context)) {
            struct stream_state *orphan = NULL;
            if (state->has_work && record(state) == RECORDED && !state->is_finished)
                orphan = append(&streams.orphans, &streams.orphan_count, &streams.orphan_room);
            if (orphan)
                *orphan = *state;
            else if (state->event)
                REAL(cuEventDestroy_v2)(state->event);
            visit_end(&guest);
        }
        if (exchanged)
            REAL(cuThreadExchangeStreamCaptureMode)(&mode);
        *state = streams.states[--streams.count];
    }
    threads_drop_stream(stream);
    throttle_drop_stream(stream);
}

void streams_untrack(CUstream stream) {
    pthread_mutex_lock(&streams.lock);
    drop_locked(stream);
    pthread_mutex_unlock(&streams.lock);
}

/* Also drop the streams of `green`, whose events are those of the primary context. */
static bool drop_context_locked(CUcontext context, CUgreenCtx green) {
    bool busy = false;
    for (unsigned i = 0; i < streams.count;) {
        struct stream_state *state = &streams.states[i];
        if (state->context != context && !(green && state->green == green)) {
            i++;
            continue;
        }
        busy = busy || state->has_work;
        for (uintptr_t stream = 0; state->stream == DEFAULT && stream <= (uintptr_t)CU_STREAM_PER_THREAD; stream++)
            threads_drop_stream((CUstream)stream);
        threads_drop_stream(state->stream);
        if (state->green && state->event && state->context != context)
            REAL(cuEventDestroy_v2)(state->event);
        *state = streams.states[--streams.count]; /* its event ends with the context */
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

bool streams_untrack_context(CUcontext context, CUgreenCtx green) {
    pthread_mutex_lock(&streams.lock);
    throttle_drop_context(context);
    bool busy = drop_context_locked(context, green);
    streams.contexts_ending += busy;
    pthread_mutex_unlock(&streams.lock);
    return busy;
}

/* Between lock and unlock the agent queries no stream and no context. So no event of the shim gets into a capture
 * that is about to begin, and no ending context is used. */
void streams_lock_all(CUstream stream) {
    struct stream_home home = is_default(stream) ? (struct stream_home){NULL, NULL} : stream_home(stream);
    pthread_mutex_lock(&streams.lock);
    drop_locked(stream);
    struct stream_state *state = home.green ? find_or_add(home, stream) : NULL;
    if (state)
        state->may_capture = true;
}

void streams_unlock_all(CUcontext gone) {
    if (gone) {
        throttle_drop_context(gone);
        drop_context_locked(gone, NULL);
    }
    pthread_mutex_unlock(&streams.lock);
}

void streams_context_destroyed(void) {
    pthread_mutex_lock(&streams.lock);
    streams.contexts_ending--;
    pthread_mutex_unlock(&streams.lock);
}

void streams_after_fork(void) {
    pthread_mutex_init(&streams.lock, NULL);
    streams.states = streams.orphans =
        NULL; /* left to the parent's heap image, because the allocator's state is unknown here */
    streams.count = streams.room = streams.orphan_count = streams.orphan_room = 0;
    streams.contexts_ending = 0;
}
