/* How long launches take, by function: so that short ones pass by a budget of blocks, which is there to keep a client
 * from holding the device (GPUShare predicts launch times per function, and limits long ones only).
 *
 * A function's first launches are measured, then one in many, by an event before the launch and one behind it; newer
 * measurements weigh more. Only launches that it limits, and of which some are exempt, come here at all. The table is
 * small: functions that have not been launched for long make room. */
#include "shim.h"

#include <string.h>

#define SETS 64
#define WAYS 4
#define TIMERS 4 /* measurements under way at a time */
#define FIRST 4  /* launches that are all measured */
#define EACH 16  /* and then one in so many */
#define ENOUGH 2 /* measurements, before which nothing is believed */
#define WEIGHT 4 /* the newest counts a quarter */

struct known {
    CUfunction function;
    uint64_t ns, used;
    uint32_t launches, measured;
};

struct timer {
    enum { FREE, BEGUN, MADE } state; /* BEGUN: it belongs to the thread that launches */
    CUfunction function;
    CUcontext context; /* of the events */
    CUevent from, to;
};

static struct {
    pthread_mutex_t lock;
    struct known known[SETS][WAYS];
    struct timer timers[TIMERS];
    uint64_t uses;
} durations = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct known *set_of(CUfunction function) {
    uint64_t hash = (uint64_t)(uintptr_t)function * 0x9e3779b97f4a7c15ull;
    return durations.known[hash >> 32 & (SETS - 1)];
}

static struct known *find(CUfunction function) {
    struct known *set = set_of(function);
    for (int i = 0; i < WAYS; i++)
        if (set[i].function == function)
            return &set[i];
    return NULL;
}

static struct known *enter(CUfunction function) {
    struct known *set = set_of(function), *oldest = set;
    for (int i = 1; i < WAYS; i++)
        if (set[i].used < oldest->used)
            oldest = &set[i];
    *oldest = (struct known){.function = function};
    return oldest;
}

static void learn(CUfunction function, uint64_t ns) {
    struct known *known = find(function);
    if (!known)
        return;
    known->ns = known->measured ? known->ns - known->ns / WEIGHT + ns / WEIGHT : ns;
    known->measured += known->measured < FIRST;
}

static void collect(void) {
    for (int i = 0; i < TIMERS; i++) {
        struct timer *timer = &durations.timers[i];
        float took = -1;
        CUresult result = timer->state == MADE ? REAL(cuEventQuery)(timer->to) : CUDA_ERROR_NOT_READY;
        if (result == CUDA_ERROR_NOT_READY)
            continue;
        timer->state = FREE;
        if (result == CUDA_SUCCESS && REAL(cuEventElapsedTime)(&took, timer->from, timer->to) == CUDA_SUCCESS &&
            took >= 0)
            learn(timer->function, (uint64_t)((double)took * NS_PER_MS));
    }
}

bool durations_short(CUfunction function) {
    uint64_t exempt = PAGE_LOAD(the_page()->orders.exempt_ns);
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED; /* asking for an event is no harm to a capture elsewhere */
    if (!exempt || !function)
        return false;
    bool exchanged = REAL(cuThreadExchangeStreamCaptureMode)(&mode) == CUDA_SUCCESS;
    pthread_mutex_lock(&durations.lock);
    collect();
    const struct known *known = find(function);
    bool is_short = known && known->measured >= ENOUGH && known->ns < exempt;
    pthread_mutex_unlock(&durations.lock);
    if (exchanged)
        REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    return is_short;
}

static struct timer *take(void) {
    for (int i = 0; i < TIMERS; i++)
        if (durations.timers[i].state == FREE)
            return &durations.timers[i];
    return NULL;
}

bool durations_wanted(struct thread *thread) {
    struct budget budget = budget_in_force();
    bool of_blocks = budget.rate && budget.unit == GPUSHARE_BUDGET_BLOCKS;
    if (!thread->function || !PAGE_LOAD(the_page()->orders.exempt_ns) || !of_blocks)
        return false;
    pthread_mutex_lock(&durations.lock);
    struct known *known = find(thread->function);
    known = known ? known : enter(thread->function);
    known->used = ++durations.uses;
    bool wanted = known->measured < FIRST || ++known->launches % EACH == 0;
    struct timer *timer = wanted ? take() : NULL;
    if (timer) {
        timer->state = BEGUN;
        timer->function = thread->function;
        thread->timed = (uint32_t)(timer - durations.timers) + 1;
    }
    pthread_mutex_unlock(&durations.lock);
    return timer != NULL;
}

static void settle(struct timer *timer, bool made) {
    pthread_mutex_lock(&durations.lock);
    timer->state = made ? MADE : FREE;
    pthread_mutex_unlock(&durations.lock);
}

/* The events are of the current context. */
static bool prepare(struct timer *timer) {
    CUcontext context = NULL;
    REAL(cuCtxGetCurrent)(&context);
    if (timer->context != context) {
        if (timer->from)
            REAL(cuEventDestroy_v2)(timer->from);
        if (timer->to)
            REAL(cuEventDestroy_v2)(timer->to);
        timer->from = timer->to = NULL;
        timer->context = context;
    }
    if (!timer->from && REAL(cuEventCreate)(&timer->from, 0) != CUDA_SUCCESS)
        timer->from = NULL;
    if (!timer->to && REAL(cuEventCreate)(&timer->to, 0) != CUDA_SUCCESS)
        timer->to = NULL;
    return timer->from && timer->to;
}

static bool record(CUevent event, CUstream stream) {
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    bool exchanged = REAL(cuThreadExchangeStreamCaptureMode)(&mode) == CUDA_SUCCESS;
    bool recorded = !is_capturing(stream) && REAL(cuEventRecord)(event, stream) == CUDA_SUCCESS;
    if (exchanged)
        REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    return recorded;
}

void durations_begin(struct thread *thread, CUstream stream) {
    struct timer *timer = &durations.timers[thread->timed - 1];
    if (prepare(timer) && record(timer->from, stream))
        return;
    settle(timer, false);
    thread->timed = 0;
}

void durations_end(uint32_t timed, CUstream stream, CUresult launched) {
    struct timer *timer = &durations.timers[timed - 1];
    settle(timer, launched == CUDA_SUCCESS && timer->to && record(timer->to, stream));
}

/* Its functions and events went with it. */
void durations_forget_context(CUcontext context) {
    pthread_mutex_lock(&durations.lock);
    for (int i = 0; i < TIMERS; i++) {
        struct timer *timer = &durations.timers[i];
        if (timer->context != context)
            continue;
        timer->from = timer->to = NULL;
        timer->context = NULL;
        timer->state = timer->state == MADE ? FREE : timer->state;
    }
    memset(durations.known, 0, sizeof durations.known);
    pthread_mutex_unlock(&durations.lock);
}

void durations_after_fork(void) {
    pthread_mutex_init(&durations.lock, NULL);
    for (int i = 0; i < TIMERS; i++)
        durations.timers[i] = (struct timer){0}; /* the events are the parent's */
}
