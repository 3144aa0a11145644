/* The meter: how much work is let in, beside whether the gate is open. METERED in the gate word turns it on, while others
 * wait or a budget is set; then every call comes here, and the fast path costs what it always does. The agent sees to that,
 * and the first call of a turn, which takes the slow path anyway: so that no call of a turn comes before it.
 *
 * The window. Of each stream, events cut the calls into stretches; what the device took for a stretch says how many calls
 * the next one may have, so that each lasts about an eighth of the window. Only so many stretches are outstanding as fill
 * the window; a call that would be more waits for the oldest of them, never for all, so the device always has its next work.
 * The bound holds as far as calls resemble those just before them. One launch or copy that is longer than the window
 * cannot be bounded, for nothing preempts it: one call runs and one is queued then.
 *
 * Nobody waits here: the caller leaves the gate first, so that a drain need not wait for it. */
#include "shim.h"

#include <stdlib.h>

#define RING 8
#define MOST_OUTSTANDING 6 /* one place is for the last finished event, from which the next stretch is measured */
#define STRETCHES 8        /* of a window */
#define DEFAULT_WINDOW_NS (20 * NS_PER_MS)
#define SHORTEST_PAUSE_NS 20000
#define LONGEST_PAUSE_NS (5 * NS_PER_MS) /* orders change meanwhile, and the gate may close */
#define STUCK_NS (100 * NS_PER_MS) /* without progress: what the device waits for may be a call that we hold back */
#define LONG_GAP 5                 /* windows without a call, after which the next calls may be quite different ones */
#define LINGER_NS (100 * NS_PER_MS)
#define MOST_CALLS (1u << 20)

struct row {
    struct row *later;
    CUcontext context;
    CUstream stream; /* DEFAULT for the legacy stream too; one row for the per-thread default streams of all threads */
    CUevent events[RING];
    uint32_t calls[RING]; /* of the stretch that the event ends */
    bool whole[RING];     /* it says how long they took: the host made them without a pause */
    uint32_t finished,
        next;         /* of the events, counted for ever: those from `finished` to before `next` are outstanding */
    uint32_t stretch; /* calls that the present stretch may have */
    uint32_t made;    /* and those it has */
    bool has_gap;
    bool held;                  /* a call waits: it is not the host that pauses */
    uint64_t cut_at, last_call; /* when the last event was recorded, the last call made */
    uint64_t progress;          /* when an event finished last, or could begin to */
    uint64_t call_ns;           /* what the device takes for a call: quick to rise, slow to fall; 0 = not known */
    uint32_t turn;              /* of metering, that the above is about */
    bool hopeless;
    bool recording; /* by a thread that does not hold the lock meanwhile: the driver may have to wait for the device */
    bool gone;      /* meanwhile */
};

static struct {
    pthread_mutex_t lock;
    struct row *rows;
    _Atomic uint32_t turn;
    _Atomic bool was_contended;
    _Atomic uint64_t lingers_until; /* 0: it is contended, or was not */
} meter = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Who has just had to go asks again after a moment in which nobody waits: the driver would take in thousands of launches. */
static bool contended(void) {
    if (atomic_load(&shim.contended)) {
        atomic_store_explicit(&meter.was_contended, true, memory_order_relaxed);
        atomic_store_explicit(&meter.lingers_until, 0, memory_order_relaxed);
        return true;
    }
    if (!atomic_load_explicit(&meter.was_contended, memory_order_relaxed))
        return false;
    uint64_t now = now_ns(), until = atomic_load(&meter.lingers_until);
    if (!until)
        atomic_store(&meter.lingers_until, now + LINGER_NS);
    else if (now > until)
        atomic_store(&meter.was_contended, false);
    return !until || now <= until;
}

static uint64_t window_in_force(struct budget budget) {
    uint64_t window = PAGE_LOAD(the_page()->orders.window_ns);
    window = window && contended() ? window : 0;
    bool of_time = budget.rate && budget.unit == GPUSHARE_BUDGET_TIME;
    return window || !of_time ? window : DEFAULT_WINDOW_NS; /* a pause after a deep queue is none */
}

bool meter_switch(uint32_t word) {
    /* What the device waits for is not to be held back: no step is metered. */
    struct budget budget = budget_in_force();
    bool on = !is_step(word) && (window_in_force(budget) || budget.rate);
    uint32_t wanted = on ? word | GATE_METERED : unmetered(word);
    if (wanted == word)
        return false;
    if (__atomic_compare_exchange_n(&shim.gate, &word, wanted, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
        log_message(LOG_DEBUG, "metered: %s", on ? "yes" : "no");
        if (on)
            atomic_fetch_add(&meter.turn, 1); /* what was measured before does not count */
        else
            futex_wake_all(&shim.gate);
    }
    return true;
}

/* --- stretches of a stream -------------------------------------------------------------------------------------------- */

static CUstream key_of(CUstream stream) {
    return stream == CU_STREAM_LEGACY ? DEFAULT : stream;
}

static bool of_context(CUstream stream) {
    return (uintptr_t)stream <= (uintptr_t)CU_STREAM_PER_THREAD;
}

/* The stream's row, also a new one. */
static struct row *find(CUstream stream) {
    CUcontext context = NULL;
    if (of_context(stream) && (REAL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS || !context))
        return NULL;
    for (struct row *row = meter.rows; row; row = row->later)
        if (row->stream == stream && (!context || row->context == context))
            return row;
    if (!context && REAL(cuStreamGetCtx)(stream, &context) != CUDA_SUCCESS)
        return NULL;
    struct row *row = malloc(sizeof *row);
    if (!row)
        return NULL;
    *row = (struct row){.later = meter.rows, .context = context, .stream = stream};
    return meter.rows = row;
}

/* What is not known yet is taken to be long: first one call, then twice as many each time that it proves short. */
static void learn(struct row *row, uint32_t calls, uint64_t worked, uint64_t goal) {
    uint64_t call = worked / calls + 1;
    row->call_ns = row->call_ns ? max_u64(call, row->call_ns - row->call_ns / 8 + call / 8) : call;
    uint64_t allowed = min_u64(goal / row->call_ns, max_u64(row->stretch, 2 * (uint64_t)calls));
    row->stretch = (uint32_t)min_u64(max_u64(allowed, 1), MOST_CALLS);
}

/* Take notice of events that have finished. One that fails has: its context has nothing left to wait for. */
static void collect(struct row *row, uint64_t now, uint64_t goal) {
    while (row->finished != row->next) {
        uint32_t at = row->finished % RING;
        CUresult result = REAL(cuEventQuery)(row->events[at]);
        float took = -1;
        if (result == CUDA_ERROR_NOT_READY)
            return;
        if (result == CUDA_SUCCESS && row->whole[at] && row->calls[at] &&
            REAL(cuEventElapsedTime)(&took, row->events[(row->finished - 1) % RING], row->events[at]) == CUDA_SUCCESS &&
            took >= 0) {
            uint64_t worked = (uint64_t)((double)took * NS_PER_MS);
            learn(row, row->calls[at], worked, goal);
            budget_worked(worked);
        } else if (row->calls[at]) {
            budget_worked(row->calls[at] * row->call_ns);
        }
        row->finished++;
        row->progress = now;
    }
}

static void discard(struct row *row, bool with_events) {
    for (int i = 0; with_events && i < RING; i++)
        if (row->events[i])
            REAL(cuEventDestroy_v2)(row->events[i]);
    free(row);
}

static bool record(CUcontext context, CUevent *event, CUstream stream) {
    CUcontext current = NULL, left;
    REAL(cuCtxGetCurrent)(&current);
    bool pushed = current != context && REAL(cuCtxPushCurrent_v2)(context) == CUDA_SUCCESS;
    if (!*event && REAL(cuEventCreate)(event, 0) != CUDA_SUCCESS)
        *event = NULL;
    bool recorded = *event && REAL(cuEventRecord)(*event, stream) == CUDA_SUCCESS;
    if (pushed)
        REAL(cuCtxPopCurrent_v2)(&left);
    return recorded;
}

/* A new event ends the stretch, and begins the next. False: the stream has gone meanwhile, and its row too. */
static bool cut(struct row *row, CUstream stream, uint64_t now, bool whole) {
    uint32_t at = row->next % RING, made = row->made;
    row->recording = true;
    pthread_mutex_unlock(&meter.lock);
    bool recorded = record(row->context, &row->events[at], stream);
    pthread_mutex_lock(&meter.lock);
    row->recording = false;
    if (row->gone) {
        discard(row, true);
        return false;
    }
    if (!recorded) {
        log_once(LOG_INFO, "an event could not be recorded: work of a stream is not bounded");
        row->hopeless = true;
        return true;
    }
    row->calls[at] = made;
    row->whole[at] = whole;
    if (row->finished == row->next)
        row->progress = now;
    row->next++;
    row->made -= made;
    row->has_gap = false;
    row->cut_at = now;
    return true;
}

static void begin(struct row *row, uint32_t turn, uint64_t now) {
    row->turn = turn;
    row->finished = row->next;
    row->stretch = 1;
    row->made = 0;
    row->call_ns = 0;
    row->hopeless = false;
    row->last_call = now;
}

static uint32_t most_outstanding(const struct row *row, uint64_t window) {
    if (row->call_ns == 0)
        return 1;
    uint64_t fit = window / (row->call_ns * row->stretch);
    return (uint32_t)(fit < 2 ? 1 : min_u64(fit - 1, MOST_OUTSTANDING)); /* the present one is outstanding too */
}

/* About how long until the oldest stretch ends. */
static uint64_t pause_for(const struct row *row, uint64_t now, uint64_t goal) {
    uint64_t expected = row->progress + row->call_ns * row->calls[row->finished % RING];
    uint64_t left = expected > now ? (expected - now) / 2 : (now - row->progress) / 8;
    return max_u64(min_u64(left, goal / 4), SHORTEST_PAUSE_NS);
}

/* Does a stretch end or begin with this call? Most calls are neither, and nothing is asked of the driver for them. */
static bool turns_over(struct row *row, uint64_t now, uint64_t goal, bool *ends) {
    if (!row->held && now > row->last_call + goal) {
        row->has_gap = true;
        if (now > row->last_call + LONG_GAP * STRETCHES * goal) {
            row->stretch = 1;
            row->call_ns = 0;
        }
    }
    row->held = false;
    *ends = row->made >= row->stretch || (row->made && now > row->cut_at + goal);
    return *ends || (row->made == 0 && (row->next == row->finished || now > row->cut_at + goal / 8));
}

/* How long this call must wait for earlier work of its stream. `*found` is NULL afterwards if the stream has gone. */
static uint64_t until_room(struct row **found, CUstream stream, uint64_t now, uint64_t window, bool ends) {
    struct row *row = *found;
    uint64_t goal = window / STRETCHES;
    if (is_capturing(stream)) /* it has come into another stream's capture */
        return 0;
    collect(row, now, goal);
    if (row->recording)
        return SHORTEST_PAUSE_NS;
    if (ends && row->next - row->finished >= most_outstanding(row, window)) {
        uint64_t patience = max_u64(STUCK_NS, 4 * row->call_ns * row->stretch);
        row->held = now < row->progress + patience;
        if (row->held)
            return pause_for(row, now, goal);
        row->progress = now; /* one more, and again as long */
        return 0;
    }
    /* A stretch is measured from the event before it, or from its own when the device had nothing to do before. */
    if ((ends || row->next == row->finished) && !cut(row, stream, now, ends && !row->has_gap))
        *found = NULL;
    return 0;
}

/* --- what the others call --------------------------------------------------------------------------------------------- */

uint64_t meter_pass(struct thread *thread, CUstream stream) {
    uint64_t now = now_ns(), window = window_in_force(budget_in_force()), pause = 0;
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED; /* asking for an event is no harm to a capture elsewhere */
    pthread_mutex_lock(&meter.lock);
    uint32_t turn = atomic_load(&meter.turn);
    struct row *row = NULL;
    if (window)
        row = find(key_of(stream));
    if (row && row->turn != turn)
        begin(row, turn, now);
    bool ends;
    if (row && !row->hopeless && turns_over(row, now, window / STRETCHES, &ends)) {
        bool exchanged = REAL(cuThreadExchangeStreamCaptureMode)(&mode) == CUDA_SUCCESS;
        pause = until_room(&row, stream, now, window, ends);
        if (exchanged)
            REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    }
    pause = max_u64(pause, budget_pause(thread, turn, now));
    if (!pause && row) {
        row->made++;
        row->last_call = now;
    }
    pthread_mutex_unlock(&meter.lock);
    if (!pause && durations_wanted(thread))
        durations_begin(thread, stream);
    return min_u64(pause, LONGEST_PAUSE_NS);
}

static void drop(struct row **link, bool with_events) {
    struct row *row = *link;
    *link = row->later;
    if (row->recording)
        row->gone = true;
    else
        discard(row, with_events);
}

void meter_forget(CUstream stream) {
    pthread_mutex_lock(&meter.lock);
    for (struct row **link = &meter.rows; *link && !of_context(stream); link = &(*link)->later)
        if ((*link)->stream == stream) {
            drop(link, true);
            break;
        }
    pthread_mutex_unlock(&meter.lock);
}

/* Its events go with it. */
void meter_forget_context(CUcontext context) {
    pthread_mutex_lock(&meter.lock);
    durations_forget_context(context);
    for (struct row **link = &meter.rows; *link;)
        if ((*link)->context == context)
            drop(link, false);
        else
            link = &(*link)->later;
    pthread_mutex_unlock(&meter.lock);
}

void meter_after_fork(void) {
    pthread_mutex_init(&meter.lock, NULL);
    meter.rows = NULL; /* left to the parent's heap image */
    durations_after_fork();
}
