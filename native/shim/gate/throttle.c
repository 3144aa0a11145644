/* The throttle: how much work an open gate lets in. THROTTLED in the gate word turns it on, while other clients wait or
 * a budget is set. Then every call comes here, and the fast path costs what it always does. The agent sets the bit. The
 * first call of a turn, which takes the slow path anyway, sets the bit too, so that no call of a turn comes before it.
 *
 * The in-flight window: for each stream, events divide the calls into batches. The device time of a batch determines
 * how many calls the next one may have, so that each batch lasts about an eighth of the window. Only as many batches
 * are outstanding as fill the window. A call beyond that waits for the oldest batch and never for all, so that the
 * device always has its next work. The bound holds as far as calls resemble those just before them. A launch or copy
 * that is longer than the window has no bound, because nothing preempts it: one call runs and one is queued.
 *
 * No thread waits here: the caller leaves the gate first, so that a drain need not wait for it. */
#include "gate/gate.h"

#include <stdlib.h>

#define EVENTS 8
#define MAX_OUTSTANDING 6 /* one place is for the last finished event, from which the next batch is measured */
#define BATCHES_PER_WINDOW 8
#define DEFAULT_WINDOW_NS (20 * NS_PER_MS)
#define MIN_PAUSE_NS 20000
#define MAX_PAUSE_NS (5 * NS_PER_MS) /* the page may change meanwhile, and the gate may close */
#define STUCK_NS (100 * NS_PER_MS)   /* without progress: the device may wait for a call that the throttle holds back */
#define RESET_WINDOWS 5              /* windows without a call, after which the next calls may differ much */
#define LINGER_NS (100 * NS_PER_MS)
#define MAX_BATCH_CALLS (1u << 20)

struct stream_state {
    struct stream_state *next_state;
    CUcontext context;
    /* DEFAULT for the legacy stream too; one state for the per-thread default streams of all threads */
    CUstream stream;
    CUevent events[EVENTS];
    uint32_t calls[EVENTS];  /* of the batch that the event ends */
    bool is_gapless[EVENTS]; /* the batch's duration is valid: the host submitted it without a pause */
    uint32_t finished,
        next; /* numbers of events since the start: those from `finished` to before `next` are outstanding */
    uint32_t batch_limit; /* calls that the present batch may have */
    uint32_t batch_calls; /* calls that it has */
    bool has_gap;
    bool is_held;                       /* a call waits, so a gap is not a pause of the host */
    uint64_t batch_ended_at, last_call; /* when the last event was recorded, and when the last call was made */
    uint64_t progress;                  /* when an event finished last, or could begin to */
    uint64_t call_ns;                   /* device time of a call: quick to rise, slow to fall; 0 = unknown */
    uint32_t generation;                /* of the throttle, in which the values above were measured */
    bool is_unbounded;
    bool
        /* by a thread that does not hold the lock meanwhile, because the driver may wait for the device */
        is_recording;
    bool is_dropped; /* while it was being recorded */
};

static struct {
    pthread_mutex_t lock;
    struct stream_state *states;
    _Atomic uint32_t generation;
    _Atomic bool was_contended;
    _Atomic uint64_t lingers_until; /* 0: contended now, or not contended before */
} throttle = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* A process that has just left asks again after a moment without waiting clients, in which the driver would take
 * thousands of launches. So the contention lingers. */
static bool is_contended(void) {
    if (atomic_load(&shim.contended)) {
        atomic_store_explicit(&throttle.was_contended, true, memory_order_relaxed);
        atomic_store_explicit(&throttle.lingers_until, 0, memory_order_relaxed);
        return true;
    }
    if (!atomic_load_explicit(&throttle.was_contended, memory_order_relaxed))
        return false;
    uint64_t now = now_ns(), until = atomic_load(&throttle.lingers_until);
    if (!until)
        atomic_store(&throttle.lingers_until, now + LINGER_NS);
    else if (now > until)
        atomic_store(&throttle.was_contended, false);
    return !until || now <= until;
}

static uint64_t window_in_force(struct budget budget) {
    uint64_t window = PAGE_LOAD(the_page()->control.window_ns);
    window = window && is_contended() ? window : 0;
    bool of_time = budget.rate && budget.unit == GPUSHARE_BUDGET_TIME;
    return window || !of_time ? window : DEFAULT_WINDOW_NS; /* a pause after a deep queue has no effect */
}

bool throttle_update(uint32_t word) {
    /* The device may wait for these calls, so no step is throttled. */
    struct budget budget = budget_in_force();
    bool on = !is_step(word) && (window_in_force(budget) || budget.rate);
    uint32_t wanted = on ? word | GATE_THROTTLED : without_throttle(word);
    if (wanted == word)
        return false;
    if (__atomic_compare_exchange_n(&shim.gate, &word, wanted, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
        log_message(LOG_DEBUG, "throttled: %s", on ? "yes" : "no");
        if (on)
            atomic_fetch_add(&throttle.generation, 1); /* earlier measurements do not count */
        else
            futex_wake_all(&shim.gate);
    }
    return true;
}

/* --- batches of a stream ------------------------------------------------------------------------------------------ */

static CUstream key_of(CUstream stream) {
    return stream == CU_STREAM_LEGACY ? DEFAULT : stream;
}

static bool is_of_context(CUstream stream) {
    return (uintptr_t)stream <= (uintptr_t)CU_STREAM_PER_THREAD;
}

/* Return the stream's state, a new one if there was none. */
static struct stream_state *find_state(CUstream stream) {
    CUcontext context = NULL;
    if (is_of_context(stream) && (REAL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS || !context))
        return NULL;
    for (struct stream_state *state = throttle.states; state; state = state->next_state)
        if (state->stream == stream && (!context || state->context == context))
            return state;
    if (!context && REAL(cuStreamGetCtx)(stream, &context) != CUDA_SUCCESS)
        return NULL;
    struct stream_state *state = malloc(sizeof *state);
    if (!state)
        return NULL;
    *state = (struct stream_state){.next_state = throttle.states, .context = context, .stream = stream};
    return throttle.states = state;
}

/* A call of unknown duration counts as long: first one call per batch, then twice as many each time that the batch
 * proves short. */
static void add_sample(struct stream_state *state, uint32_t calls, uint64_t worked, uint64_t goal) {
    uint64_t call = worked / calls + 1;
    state->call_ns = state->call_ns ? max_u64(call, state->call_ns - state->call_ns / 8 + call / 8) : call;
    uint64_t allowed = min_u64(goal / state->call_ns, max_u64(state->batch_limit, 2 * (uint64_t)calls));
    state->batch_limit = (uint32_t)min_u64(max_u64(allowed, 1), MAX_BATCH_CALLS);
}

/* Collect finished events. An event that fails counts as finished, because its context has nothing left to wait for. */
static void collect(struct stream_state *state, uint64_t now, uint64_t goal) {
    while (state->finished != state->next) {
        uint32_t at = state->finished % EVENTS;
        CUresult result = REAL(cuEventQuery)(state->events[at]);
        float took = -1;
        if (result == CUDA_ERROR_NOT_READY)
            return;
        if (result == CUDA_SUCCESS && state->is_gapless[at] && state->calls[at] &&
            REAL(cuEventElapsedTime)(&took, state->events[(state->finished - 1) % EVENTS], state->events[at]) ==
                CUDA_SUCCESS &&
            took >= 0) {
            uint64_t worked = (uint64_t)((double)took * NS_PER_MS);
            add_sample(state, state->calls[at], worked, goal);
            budget_charge_time(worked);
        } else if (state->calls[at]) {
            budget_charge_time(state->calls[at] * state->call_ns);
        }
        state->finished++;
        state->progress = now;
    }
}

static void discard(struct stream_state *state, bool with_events) {
    for (int i = 0; with_events && i < EVENTS; i++)
        if (state->events[i])
            REAL(cuEventDestroy_v2)(state->events[i]);
    free(state);
}

static CUresult record_event(CUcontext context, CUevent *event, CUstream stream) {
    CUcontext current = NULL, left;
    REAL(cuCtxGetCurrent)(&current);
    bool pushed = current != context && REAL(cuCtxPushCurrent_v2)(context) == CUDA_SUCCESS;
    bool is_current = pushed || current == context; /* a green context may be current in another thread */
    if (!*event && (!is_current || REAL(cuEventCreate)(event, 0) != CUDA_SUCCESS))
        *event = NULL;
    CUresult result = *event ? record_outside_captures(*event, stream) : CUDA_ERROR_INVALID_VALUE;
    if (pushed)
        REAL(cuCtxPopCurrent_v2)(&left);
    return result;
}

/* A new event ends the batch and begins the next. False: the stream has ended meanwhile, and so has its state. While
 * another thread queries streams, no event can be recorded. Then the call is held for a window at most, because that
 * thread may wait for the device, and the device for this call. */
static bool end_batch(struct stream_state *state, CUstream stream, uint64_t now, uint64_t window, bool is_gapless) {
    uint32_t at = state->next % EVENTS, batch_calls = state->batch_calls;
    state->is_recording = true;
    pthread_mutex_unlock(&throttle.lock);
    CUresult result = record_event(state->context, &state->events[at], stream);
    pthread_mutex_lock(&throttle.lock);
    state->is_recording = false;
    if (state->is_dropped) {
        discard(state, true);
        return false;
    }
    if (result == CUDA_ERROR_NOT_READY)
        state->is_held = batch_calls && now < state->last_call + window;
    if (result == CUDA_ERROR_NOT_READY || result == CUDA_ERROR_CAPTURED_EVENT)
        return true; /* a later call ends the batch */
    if (result != CUDA_SUCCESS) {
        log_once(LOG_INFO, "could not record an event, so the work of a stream has no bound");
        state->is_unbounded = true;
        return true;
    }
    state->calls[at] = batch_calls;
    state->is_gapless[at] = is_gapless;
    if (state->finished == state->next)
        state->progress = now;
    state->next++;
    state->batch_calls -= batch_calls;
    state->has_gap = false;
    state->batch_ended_at = now;
    return true;
}

static void reset(struct stream_state *state, uint32_t generation, uint64_t now) {
    state->generation = generation;
    state->finished = state->next;
    state->batch_limit = 1;
    state->batch_calls = 0;
    state->call_ns = 0;
    state->is_unbounded = false;
    state->last_call = now;
}

static uint32_t max_outstanding(const struct stream_state *state, uint64_t window) {
    if (state->call_ns == 0)
        return 1;
    uint64_t fit = window / (state->call_ns * state->batch_limit);
    return (uint32_t)(fit < 2 ? 1 : min_u64(fit - 1, MAX_OUTSTANDING)); /* the present batch is outstanding too */
}

/* Return about how long the oldest batch will take. */
static uint64_t expected_delay(const struct stream_state *state, uint64_t now, uint64_t goal) {
    uint64_t expected = state->progress + state->call_ns * state->calls[state->finished % EVENTS];
    uint64_t left = expected > now ? (expected - now) / 2 : (now - state->progress) / 8;
    return max_u64(min_u64(left, goal / 4), MIN_PAUSE_NS);
}

/* Return true if a batch ends or begins with this call. Most calls are neither, and cause no call of the driver. */
static bool is_batch_boundary(struct stream_state *state, uint64_t now, uint64_t goal, bool *ends) {
    if (!state->is_held && now > state->last_call + goal) {
        state->has_gap = true;
        if (now > state->last_call + RESET_WINDOWS * BATCHES_PER_WINDOW * goal) {
            state->batch_limit = 1;
            state->call_ns = 0;
        }
    }
    state->is_held = false;
    *ends = state->batch_calls >= state->batch_limit || (state->batch_calls && now > state->batch_ended_at + goal);
    return *ends ||
           (state->batch_calls == 0 && (state->next == state->finished || now > state->batch_ended_at + goal / 8));
}

/* Return how long this call must wait for earlier work of its stream. `*found` is NULL afterwards if the stream has
 * ended. */
static uint64_t delay_until_room(struct stream_state **found, CUstream stream, uint64_t now, uint64_t window,
                                 bool ends) {
    struct stream_state *state = *found;
    uint64_t goal = window / BATCHES_PER_WINDOW;
    if (touches_capture(stream)) /* the stream has joined another stream's capture */
        return 0;
    collect(state, now, goal);
    if (state->is_recording)
        return MIN_PAUSE_NS;
    if (ends && state->next - state->finished >= max_outstanding(state, window)) {
        uint64_t stuck_timeout = max_u64(STUCK_NS, 4 * state->call_ns * state->batch_limit);
        state->is_held = now < state->progress + stuck_timeout;
        if (state->is_held)
            return expected_delay(state, now, goal);
        state->progress = now; /* one more call, and the same timeout again */
        return 0;
    }
    /* A batch is measured from the event before it, or from its own if the device had nothing to do before. */
    bool begins = ends || state->next == state->finished;
    if (begins && !end_batch(state, stream, now, window, ends && !state->has_gap))
        *found = NULL;
    return *found && state->is_held ? MIN_PAUSE_NS : 0;
}

/* --- calls of other files ----------------------------------------------------------------------------------------- */

uint64_t throttle_admit(struct thread *thread, CUstream stream) {
    uint64_t now = now_ns(), window = window_in_force(budget_in_force()), pause = 0;
    pthread_mutex_lock(&throttle.lock);
    uint32_t generation = atomic_load(&throttle.generation);
    struct stream_state *state = NULL;
    if (window)
        state = find_state(key_of(stream));
    if (state && state->generation != generation)
        reset(state, generation, now);
    bool ends;
    if (state && !state->is_unbounded && is_batch_boundary(state, now, window / BATCHES_PER_WINDOW, &ends)) {
        RELAXED_MODE;
        pause = delay_until_room(&state, stream, now, window, ends);
    }
    pause = max_u64(pause, budget_delay(thread, generation, now));
    if (!pause && state) {
        state->batch_calls++;
        state->last_call = now;
    }
    pthread_mutex_unlock(&throttle.lock);
    if (!pause && should_time_function(thread))
        function_timing_begin(thread, stream);
    return min_u64(pause, MAX_PAUSE_NS);
}

void throttle_thread_ends(struct thread *thread) {
    pthread_mutex_lock(&throttle.lock);
    budget_charge_ending_thread(thread, atomic_load(&throttle.generation));
    pthread_mutex_unlock(&throttle.lock);
}

static void drop(struct stream_state **link, bool with_events) {
    struct stream_state *state = *link;
    *link = state->next_state;
    if (state->is_recording)
        state->is_dropped = true;
    else
        discard(state, with_events);
}

void throttle_drop_stream(CUstream stream) {
    pthread_mutex_lock(&throttle.lock);
    for (struct stream_state **link = &throttle.states; *link && !is_of_context(stream); link = &(*link)->next_state)
        if ((*link)->stream == stream) {
            drop(link, true);
            break;
        }
    pthread_mutex_unlock(&throttle.lock);
}

/* The context's events end with it. */
void throttle_drop_context(CUcontext context) {
    pthread_mutex_lock(&throttle.lock);
    function_times_drop_context(context);
    for (struct stream_state **link = &throttle.states; *link;)
        if ((*link)->context == context)
            drop(link, false);
        else
            link = &(*link)->next_state;
    pthread_mutex_unlock(&throttle.lock);
}

void throttle_after_fork(void) {
    pthread_mutex_init(&throttle.lock, NULL);
    throttle.states = NULL; /* left to the parent's heap image */
    function_times_after_fork();
}
