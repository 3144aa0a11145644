/* The durations of launches, by function, so that short launches can pass by a budget of blocks, which keeps a client
 * from holding the device. GPUShare predicts launch times per function too, and limits only long ones.
 *
 * A function's first launches are measured, and later one in many, by an event before the launch and one behind it.
 * Few measurements are under way at a time. Newer measurements weigh more. Only launches under a budget of blocks, with
 * an exemption in force, are measured. The table is small: functions that have not been launched for long are
 * replaced. */
#include "gate/gate.h"

#include <string.h>

#define SETS 64
#define WAYS 4
#define TIMERS 4            /* measurements under way at a time */
#define MAX_FIRST_SAMPLES 4 /* the first launches are all measured */
#define SAMPLE_INTERVAL 16  /* later one launch in so many is measured */
#define MIN_SAMPLES 2       /* fewer measurements give no result */
#define SAMPLE_WEIGHT 4     /* the newest counts a quarter */

struct function_time {
    CUfunction function;
    uint64_t ns, used;
    uint32_t launches, samples;
};

struct timer {
    enum { TIMER_FREE, TIMER_BEGUN, TIMER_RECORDED } state; /* BEGUN: it belongs to the thread that launches */
    CUfunction function;
    CUcontext context; /* of the events */
    CUevent from, to;
};

static struct {
    pthread_mutex_t lock;
    struct function_time entries[SETS][WAYS];
    struct timer timers[TIMERS];
    uint64_t uses;
} function_times = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct function_time *set_of(CUfunction function) {
    uint64_t hash = (uint64_t)(uintptr_t)function * 0x9e3779b97f4a7c15ull;
    return function_times.entries[hash >> 32 & (SETS - 1)];
}

static struct function_time *find_entry(CUfunction function) {
    struct function_time *set = set_of(function);
    for (int i = 0; i < WAYS; i++)
        if (set[i].function == function)
            return &set[i];
    return NULL;
}

static struct function_time *replace_oldest(CUfunction function) {
    struct function_time *set = set_of(function), *oldest = set;
    for (int i = 1; i < WAYS; i++)
        if (set[i].used < oldest->used)
            oldest = &set[i];
    *oldest = (struct function_time){.function = function};
    return oldest;
}

static void add_sample(CUfunction function, uint64_t ns) {
    struct function_time *entry = find_entry(function);
    if (!entry)
        return;
    entry->ns = entry->samples ? entry->ns - entry->ns / SAMPLE_WEIGHT + ns / SAMPLE_WEIGHT : ns;
    entry->samples += entry->samples < MAX_FIRST_SAMPLES;
}

static void collect(void) {
    for (int i = 0; i < TIMERS; i++) {
        struct timer *timer = &function_times.timers[i];
        float took = -1;
        CUresult result = timer->state == TIMER_RECORDED ? REAL(cuEventQuery)(timer->to) : CUDA_ERROR_NOT_READY;
        if (result == CUDA_ERROR_NOT_READY)
            continue;
        timer->state = TIMER_FREE;
        if (result == CUDA_SUCCESS && REAL(cuEventElapsedTime)(&took, timer->from, timer->to) == CUDA_SUCCESS &&
            took >= 0)
            add_sample(timer->function, (uint64_t)((double)took * NS_PER_MS));
    }
}

bool function_is_short(CUfunction function) {
    uint64_t exempt = PAGE_LOAD(the_page()->control.exempt_ns);
    if (!exempt || !function)
        return false;
    RELAXED_MODE;
    pthread_mutex_lock(&function_times.lock);
    collect();
    const struct function_time *entry = find_entry(function);
    bool is_short = entry && entry->samples >= MIN_SAMPLES && entry->ns < exempt;
    pthread_mutex_unlock(&function_times.lock);
    return is_short;
}

static struct timer *take_timer(void) {
    for (int i = 0; i < TIMERS; i++)
        if (function_times.timers[i].state == TIMER_FREE)
            return &function_times.timers[i];
    return NULL;
}

bool should_time_function(struct thread *thread) {
    struct budget budget = budget_in_force();
    bool of_blocks = budget.rate && budget.unit == GPUSHARE_BUDGET_BLOCKS;
    if (!thread->function || !PAGE_LOAD(the_page()->control.exempt_ns) || !of_blocks)
        return false;
    pthread_mutex_lock(&function_times.lock);
    struct function_time *entry = find_entry(thread->function);
    entry = entry ? entry : replace_oldest(thread->function);
    entry->used = ++function_times.uses;
    bool wanted = entry->samples < MAX_FIRST_SAMPLES || ++entry->launches % SAMPLE_INTERVAL == 0;
    struct timer *timer = wanted ? take_timer() : NULL;
    if (timer) {
        timer->state = TIMER_BEGUN;
        timer->function = thread->function;
        thread->timer_number = (uint32_t)(timer - function_times.timers) + 1;
    }
    pthread_mutex_unlock(&function_times.lock);
    return timer != NULL;
}

static void finish_timer(struct timer *timer, bool recorded) {
    pthread_mutex_lock(&function_times.lock);
    timer->state = recorded ? TIMER_RECORDED : TIMER_FREE;
    pthread_mutex_unlock(&function_times.lock);
}

/* Make the timer's events in the current context. */
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
    return record_outside_captures(event, stream) == CUDA_SUCCESS;
}

void function_timing_begin(struct thread *thread, CUstream stream) {
    RELAXED_MODE;
    struct timer *timer = &function_times.timers[thread->timer_number - 1];
    if (prepare(timer) && record(timer->from, stream))
        return;
    finish_timer(timer, false);
    thread->timer_number = 0;
}

void function_timing_end(uint32_t timer_number, CUstream stream, CUresult launched) {
    RELAXED_MODE;
    struct timer *timer = &function_times.timers[timer_number - 1];
    finish_timer(timer, launched == CUDA_SUCCESS && timer->to && record(timer->to, stream));
}

/* The context's functions and events have ended with it. */
void function_times_drop_context(CUcontext context) {
    pthread_mutex_lock(&function_times.lock);
    for (int i = 0; i < TIMERS; i++) {
        struct timer *timer = &function_times.timers[i];
        if (timer->context != context)
            continue;
        timer->from = timer->to = NULL;
        timer->context = NULL;
        timer->state = timer->state == TIMER_RECORDED ? TIMER_FREE : timer->state;
    }
    memset(function_times.entries, 0, sizeof function_times.entries);
    pthread_mutex_unlock(&function_times.lock);
}

void function_times_after_fork(void) {
    pthread_mutex_init(&function_times.lock, NULL);
    for (int i = 0; i < TIMERS; i++)
        function_times.timers[i] = (struct timer){0}; /* the events are the parent's */
}
