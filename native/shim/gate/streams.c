/* Streams that carry work of the present turn, and whether that work has finished.
 *
 * The table has an entry for each stream in use. All default streams of a context share one entry, because a query of
 * the context's legacy stream covers the work of all of them. An orphan event stands for the work of a stream that is
 * destroyed or becomes part of a capture. The rules of driver/captures.c hold: no context is synchronised, no stream is
 * queried that captures, and the legacy stream gets no event. Work behind such an event would wait for all work before
 * it, which may need a call that a step lets in.
 *
 * While a blocking stream captures, no query may name the legacy stream, and the driver refuses work for that. So if its
 * work has finished when such a capture begins, the drain need not wait for the end of the capture, which may stay open.
 * Nothing is known of work of per-thread default streams, because only its own thread can name the stream. Work that
 * another thread submits just before the capture is not noticed. The driver would refuse that a moment later.
 *
 * Default streams of a green context have names only where that is current, so an event of the whole green context
 * stands for their work. The event is recorded from the primary context, and only while no stream captures, because it
 * would end a capture in the green context. */
#include "gate/gate.h"

#include <stdlib.h>
#include <unistd.h>

#define MIN_PAUSE_NS 20000
#define MAX_PAUSE_NS 500000

struct stream_state {
    CUcontext context; /* in which events are made */
    CUgreenCtx green;  /* NULL: none */
    /* DEFAULT for all default streams of the context, or of the green context; of an orphan: NULL once the stream has
     * ended */
    CUstream stream;
    CUevent event; /* of an orphan, or of the default streams of a green context */
    bool has_work;
    bool is_finished;   /* at the last poll */
    bool is_recorded;   /* the event of the default streams of a green context covers their work */
    bool is_per_thread; /* some of the default streams' work is in per-thread ones */
    bool is_hidden;     /* the work of the legacy stream had not finished when the present capture began */
};

static struct {
    pthread_mutex_t lock;
    struct stream_state *states, *orphans;
    unsigned count, room, orphan_count, orphan_room;
} streams = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Atomic unsigned contexts_ending; /* with work in them: their destruction waits for it */

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

/* A stream that the program has made is of one context. */
static struct stream_state *find(struct stream_home home, CUstream stream) {
    for (unsigned i = 0; i < streams.count; i++)
        if (streams.states[i].stream == stream && (stream || is_of(&streams.states[i], home)))
            return &streams.states[i];
    return NULL;
}

CUcontext streams_mark(CUstream stream) {
    CUstream key = is_default(stream) ? DEFAULT : stream;
    if (stream != DEFAULT && stream != CU_STREAM_LEGACY && is_capturing(stream))
        return NULL;
    struct stream_home home = stream_home(stream);
    if (!home.context)
        return NULL;
    pthread_mutex_lock(&streams.lock);
    struct stream_state *state = find(home, key);
    if (!state && (state = append(&streams.states, &streams.count, &streams.room))) {
        state->context = home.context;
        state->green = home.green;
        state->stream = key;
    }
    if (state) {
        state->has_work = true;
        state->is_finished = state->is_recorded = false; /* an earlier query does not cover this work */
        state->is_per_thread = state->is_per_thread || stream == CU_STREAM_PER_THREAD;
    }
    pthread_mutex_unlock(&streams.lock);
    return state ? home.context : NULL;
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

enum progress {
    FINISHED,
    UNKNOWN, /* no query is possible before a capture has ended */
    UNFINISHED,
};

/* A context with an error, or one that has ended, has nothing left to wait for. */
static enum progress progress_of(CUresult result) {
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY)
        log_once(LOG_INFO, "count the work of a failed context as finished (CUDA error %d)", result);
    return result == CUDA_ERROR_NOT_READY ? UNFINISHED : FINISHED;
}

/* Record an event behind all work of the state's stream or green context. The context is current. */
static bool record(struct stream_state *state, CUstream stream) {
    if (!state->event && REAL(cuEventCreate)(&state->event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
        state->event = NULL;
        return false;
    }
    return (state->green ? REAL(cuGreenCtxRecordEvent)(state->green, state->event)
                         : REAL(cuEventRecord)(state->event, stream)) == CUDA_SUCCESS;
}

static enum progress query_green(struct stream_state *state, bool anew) {
    if (anew)
        state->is_recorded = false; /* an event of an earlier query does not cover the newest work */
    if (!state->is_recorded && captures_any())
        return UNKNOWN;
    state->is_recorded = state->is_recorded || record(state, DEFAULT);
    return state->is_recorded ? progress_of(REAL(cuEventQuery)(state->event)) : FINISHED;
}

/* The lock of captures.c is held. */
static enum progress query(struct visit *guest, struct stream_state *state, bool anew) {
    CUstream stream = state->stream == DEFAULT ? CU_STREAM_LEGACY : state->stream;
    if (!visit(guest, state->context))
        return FINISHED;
    if (state->green && state->stream == DEFAULT)
        return query_green(state, anew);
    if (!touches_capture(stream))
        return progress_of(REAL(cuStreamQuery)(stream));
    return state->stream != DEFAULT || state->is_per_thread || state->is_hidden ? UNKNOWN : FINISHED;
}

/* Return the slowest progress of a context's work, or of all work if `context` is NULL. */
static enum progress query_all(CUcontext context, bool anew) {
    enum progress slowest = FINISHED;
    struct visit guest = {0};
    queries_lock();
    pthread_mutex_lock(&streams.lock);
    for (unsigned i = 0; i < streams.count; i++) {
        struct stream_state *state = &streams.states[i];
        if (!state->has_work || (context && state->context != context))
            continue;
        enum progress progress = query(&guest, state, anew);
        state->is_finished = progress == FINISHED;
        slowest = progress > slowest ? progress : slowest;
    }
    for (unsigned i = 0; i < streams.orphan_count;) {
        struct stream_state *orphan = &streams.orphans[i];
        if (progress_of(REAL(cuEventQuery)(orphan->event)) != FINISHED) {
            slowest = !context || orphan->context == context ? UNFINISHED : slowest;
            i++;
            continue;
        }
        if (visit(&guest, orphan->context))
            REAL(cuEventDestroy_v2)(orphan->event);
        *orphan = streams.orphans[--streams.orphan_count];
    }
    visit_end(&guest);
    pthread_mutex_unlock(&streams.lock);
    queries_unlock();
    return slowest;
}

bool streams_poll(bool anew) {
    return query_all(NULL, anew) == FINISHED && atomic_load(&contexts_ending) == 0;
}

bool streams_have_work(void) {
    return query_all(NULL, true) == UNFINISHED;
}

bool streams_wait(CUcontext context) {
    RELAXED_MODE;
    uint64_t pause = MIN_PAUSE_NS;
    enum progress progress = query_all(context, true);
    for (; progress == UNFINISHED; progress = query_all(context, false)) {
        usleep((useconds_t)(pause / 1000));
        pause = min_u64(pause * 3 / 2, MAX_PAUSE_NS);
    }
    return progress == FINISHED;
}

/* A thread may be marking again already, if the gate has been opened since. */
void streams_clear(void) {
    pthread_mutex_lock(&streams.lock);
    for (unsigned i = 0; i < streams.count; i++)
        if (streams.states[i].is_finished)
            streams.states[i].has_work = streams.states[i].is_finished = streams.states[i].is_per_thread = false;
    pthread_mutex_unlock(&streams.lock);
}

/* Record an orphan for unfinished work of the stream. A later event of a stream covers its earlier work too. False: the
 * work of a stream of a green context has no event while some stream captures. */
static bool make_orphan(struct visit *guest, struct stream_state *state) {
    struct stream_state *orphan = NULL;
    if (query(guest, state, true) != UNFINISHED)
        return true;
    if (state->green && captures_any())
        return false;
    for (unsigned i = 0; i < streams.orphan_count && !orphan; i++)
        orphan = streams.orphans[i].stream == state->stream ? &streams.orphans[i] : NULL;
    if (!orphan && (orphan = append(&streams.orphans, &streams.orphan_count, &streams.orphan_room)))
        *orphan = (struct stream_state){.context = state->context, .green = state->green, .stream = state->stream};
    if (orphan && !record(orphan, state->stream)) {
        log_once(LOG_INFO, "could not record an event, so a turn may end before the work of one stream has finished");
        if (!orphan->event) /* it is new, and thus the last one */
            streams.orphan_count--;
    }
    return true;
}

/* Let the work of the whole green context stand for that of a stream: an event covers it once no stream captures. */
static void hold_green(struct stream_state *state) {
    struct stream_state *found = find((struct stream_home){state->context, state->green}, DEFAULT);
    struct stream_state *whole = found ? found : state;
    whole->stream = DEFAULT;
    whole->has_work = true;
    whole->is_finished = whole->is_recorded = false;
    if (whole != state)
        *state = streams.states[--streams.count];
}

void streams_untrack(CUstream stream, bool ends) {
    RELAXED_MODE;
    struct visit guest = {0};
    pthread_mutex_lock(&streams.lock);
    struct stream_state *state = is_default(stream) ? NULL : find((struct stream_home){NULL, NULL}, stream);
    /* Otherwise the stream's own query shows the progress of the work once its capture has ended. */
    if (state && (!state->has_work || make_orphan(&guest, state)))
        *state = streams.states[--streams.count];
    else if (state && ends)
        hold_green(state);
    for (unsigned i = 0; ends && i < streams.orphan_count; i++)
        if (streams.orphans[i].stream == stream) /* another stream may get the handle */
            streams.orphans[i].stream = NULL;
    visit_end(&guest);
    threads_drop_stream(stream);
    throttle_drop_stream(stream);
    pthread_mutex_unlock(&streams.lock);
}

/* Nothing changes during another capture: what has come since it began was refused. */
void streams_note_capture(CUstream stream) {
    RELAXED_MODE;
    unsigned flags;
    struct visit guest = {0};
    if (REAL(cuStreamGetFlags)(stream, &flags) != CUDA_SUCCESS || flags & CU_STREAM_NON_BLOCKING)
        return;
    struct stream_home home = stream_home(stream);
    pthread_mutex_lock(&streams.lock);
    struct stream_state *state = find(home, DEFAULT);
    if (state && visit(&guest, home.context) && !touches_capture(CU_STREAM_LEGACY))
        state->is_hidden = state->has_work && query(&guest, state, true) == UNFINISHED;
    visit_end(&guest);
    pthread_mutex_unlock(&streams.lock);
}

/* Events of a green context are those of its primary context. */
bool streams_untrack_context(CUcontext context, CUgreenCtx green) {
    bool busy = false;
    pthread_mutex_lock(&streams.lock);
    captures_remove_context(context);
    throttle_drop_context(context);
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
        if (state->event && state->context != context)
            REAL(cuEventDestroy_v2)(state->event);
        *state = streams.states[--streams.count];
    }
    for (unsigned i = 0; i < streams.orphan_count;) {
        if (streams.orphans[i].context != context) {
            i++;
            continue;
        }
        busy = true;
        streams.orphans[i] = streams.orphans[--streams.orphan_count]; /* its event ends with the context */
    }
    atomic_fetch_add(&contexts_ending, busy);
    pthread_mutex_unlock(&streams.lock);
    return busy;
}

void streams_context_destroyed(void) {
    atomic_fetch_sub(&contexts_ending, 1);
}

void streams_after_fork(void) {
    pthread_mutex_init(&streams.lock, NULL);
    streams.states = streams.orphans =
        NULL; /* left to the parent's heap image, because the allocator's state is unknown here */
    streams.count = streams.room = streams.orphan_count = streams.orphan_room = 0;
    atomic_store(&contexts_ending, 0);
}
