/* Frees in a stream: cuMemFreeAsync of memory that does not come from the driver's pool.
 *
 * An event marks the place of the free in the stream. Memory of a pool stays allocated up to the release threshold of the
 * pool, as in the driver, and serves later allocations (reuse.c). All freed memory is released before other memory of the
 * program is evicted, and before an allocation is refused.
 *
 * A free without an event waits for the end of the turn: a capture has kept cuMemFree from waiting, or the driver has
 * refused the event. A wait for the stream would end a capture that the stream begins meanwhile. */
#include "memory/freed/freed.h"
#include "memory/freed/freed_list.h"

#include <stdlib.h>

#define MIN_KEPT_NS (10 * NS_PER_MS)
#define FREE_POLL_NS (10 * NS_PER_MS) /* between the agent's polls */

static pthread_mutex_t freeing = PTHREAD_MUTEX_INITIALIZER; /* held while releases are chosen and freed */
static _Atomic bool poll_requested;                         /* since the agent's last poll */
static uint64_t surplus[MAX_POOLS + 1];                     /* under `freeing`: by pool number, bytes to be freed */

static void destroy(struct release *release) {
    if (release->event)
        REAL(cuEventDestroy_v2)(release->event);
    free(release);
}

/* The memory is freed outside of the lock, because the driver may wait for the device. */
static void free_now(struct release *release) {
    CUcontext left;
    struct entry *entry = &release->entry;
    bool pushed = REAL(cuCtxPushCurrent_v2)(entry->context) == CUDA_SUCCESS;
    CUresult result = memory_release(entry);
    if (result != CUDA_SUCCESS)
        log_once(LOG_INFO, "could not free memory after its stream's work (CUDA error %d)", result);
    pool_figures_remove_kept(entry->pool, entry->bytes);
    entry->pool = 0;
    memory_unaccount(entry);
    destroy(release);
    if (pushed)
        REAL(cuCtxPopCurrent_v2)(&left);
}

/* The context of the stream may be a green context that is current in another thread. */
static CUcontext context_of(CUstream stream) {
    CUcontext context;
    if ((uintptr_t)stream > (uintptr_t)CU_STREAM_PER_THREAD && REAL(cuStreamGetCtx)(stream, &context) == CUDA_SUCCESS)
        return context;
    return REAL(cuCtxGetCurrent)(&context) == CUDA_SUCCESS ? context : NULL;
}

static CUresult record_event(struct release *release, CUstream stream) {
    CUcontext left;
    bool pushed = release->context && REAL(cuCtxPushCurrent_v2)(release->context) == CUDA_SUCCESS;
    CUresult result = release->event ? CUDA_SUCCESS : REAL(cuEventCreate)(&release->event, CU_EVENT_DISABLE_TIMING);
    if (result == CUDA_SUCCESS)
        result = REAL(cuEventRecord)(release->event, stream);
    if (pushed)
        REAL(cuCtxPopCurrent_v2)(&left);
    return result;
}

/* The agent polls while freed memory is to be released, because the program may not call the shim again. */
void deferred_request_poll(void) {
    if (deferred_any() && !atomic_exchange(&poll_requested, true))
        agent_wake();
}

static void add(struct release *release) {
    bool over = pool_figures_keep(release->entry.pool, release->entry.bytes);
    release->began = now_ns();
    release->may_stay_on_host = account_may_stay_on_host();
    freed_list_add(release);
    if (over)
        deferred_request_poll();
}

/* Memory without an event is kept for no pool. */
static void add_after_turn(struct release *release) {
    pool_figures_remove(release->entry.pool, release->entry.bytes);
    release->entry.pool = 0;
    release->event = NULL;
    release->stream = NULL;
    add(release);
}

CUresult deferred_add(const struct entry *entry, CUstream stream) {
    RELAXED_MODE;
    struct release *release = freed_list_new(context_of(stream));
    if (!release)
        return CUDA_ERROR_OUT_OF_MEMORY;
    release->entry = *entry;
    release->stream = ordering_stream(stream);
    queries_lock();
    bool is_captured = touches_capture(stream); /* since the caller's own check */
    bool has_event = !is_captured && record_event(release, stream) == CUDA_SUCCESS;
    CUresult result = is_captured || has_event ? CUDA_SUCCESS : REAL(cuStreamQuery)(stream);
    queries_unlock();
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY) {
        destroy(release);
        return result;
    }
    if (!has_event && release->event)
        REAL(cuEventDestroy_v2)(release->event);
    (has_event ? add : add_after_turn)(release);
    return CUDA_SUCCESS;
}

CUresult deferred_add_after_turn(const struct entry *entry) {
    struct release *release = calloc(1, sizeof *release);
    if (!release)
        return CUDA_ERROR_OUT_OF_MEMORY;
    release->entry = *entry;
    add_after_turn(release);
    return CUDA_SUCCESS;
}

static bool has_completed(const struct release *release) {
    return release->event ? REAL(cuEventQuery)(release->event) != CUDA_ERROR_NOT_READY : !is_running();
}

static bool free_all(struct release *taken) {
    bool some = taken != NULL;
    while (taken) {
        struct release *next = taken->next;
        free_now(taken);
        freed_list_uncount();
        taken = next;
    }
    return some;
}

struct choice {
    uint64_t latest; /* beginning of a release that is chosen */
    bool any_pool;   /* also within the release threshold */
    unsigned count;  /* chosen at most */
    bool has_more;   /* some memory is to be freed later */
};

static bool is_surplus(struct release *release, void *data) {
    struct choice *choice = data;
    uint16_t pool = release->entry.pool;
    if (pool && !surplus[pool] && !choice->any_pool)
        return false;
    if (!choice->count || (pool && release->began > choice->latest) || !has_completed(release)) {
        choice->has_more = true;
        return false;
    }
    choice->count--;
    surplus[pool] -= pool ? min_u64(surplus[pool], release->entry.bytes) : 0;
    return true;
}

/* `freeing` is held, and surplus is set. The driver's own free waits for all work of the device, which may wait for the
 * program. */
static void free_surplus(struct choice *choice) {
    RELAXED_MODE;
    choice->has_more = the_gate->has_work();
    if (!choice->has_more)
        free_all(freed_list_take(is_surplus, choice));
}

uint64_t deferred_poll(uint64_t now) {
    static uint64_t next; /* used by the agent */
    if (!atomic_load_explicit(&poll_requested, memory_order_relaxed))
        return NEVER;
    if (now < next)
        return next;
    next = now + FREE_POLL_NS;
    if (pthread_mutex_trylock(&freeing))
        return next;
    struct choice choice = {.latest = now - MIN_KEPT_NS, .count = UINT32_MAX};
    atomic_store(&poll_requested, false);
    pool_figures_surplus(surplus);
    free_surplus(&choice);
    pthread_mutex_unlock(&freeing);
    if (choice.has_more)
        atomic_store(&poll_requested, true);
    return choice.has_more ? next : NEVER;
}

void deferred_free_completed(void) {
    if (!deferred_any())
        return;
    struct choice choice = {.latest = UINT64_MAX, .count = UINT32_MAX};
    pthread_mutex_lock(&freeing);
    pool_figures_surplus(surplus);
    free_surplus(&choice);
    pthread_mutex_unlock(&freeing);
    if (choice.has_more)
        deferred_request_poll();
}

bool deferred_free_some(unsigned max_count) {
    if (!deferred_any())
        return false;
    struct choice choice = {.latest = UINT64_MAX, .any_pool = true, .count = max_count};
    RELAXED_MODE;
    pthread_mutex_lock(&freeing);
    bool some = free_all(freed_list_take(is_surplus, &choice));
    pthread_mutex_unlock(&freeing);
    return some;
}

void deferred_trim(CUmemoryPool pool, uint64_t keep) {
    pool_figures_trim(pool_figures_number(pool), keep);
    deferred_free_completed();
}

static bool may_be_awaited(struct release *release, void *is_idle) {
    return release->event || *(bool *)is_idle;
}

bool deferred_drain(void) {
    RELAXED_MODE;
    bool is_idle = !is_running() || !the_gate->has_work();
    struct release *taken = freed_list_take(may_be_awaited, &is_idle);
    for (struct release *release = taken; release; release = release->next)
        if (release->event)
            REAL(cuEventSynchronize)(release->event);
    return free_all(taken);
}

static bool is_of_context(struct release *release, void *context) {
    return release->context == context || release->entry.context == context;
}

/* The context has ended, and with it its events and its memory. */
void deferred_drop_context(CUcontext context, struct entry_sums *ended) {
    for (struct release *release = freed_list_take(is_of_context, context); release;) {
        struct release *next = release->next;
        pool_figures_remove_kept(release->entry.pool, release->entry.bytes);
        release->entry.pool = 0;
        freed_list_uncount();
        if (release->entry.context == context) {
            entry_sums_add(ended, &release->entry);
            free(release);
        } else {
            add_after_turn(release);
        }
        release = next;
    }
    freed_list_drop_spares(context);
}

void deferred_after_fork(void) {
    pthread_mutex_init(&freeing, NULL);
    freed_list_after_fork();
    atomic_store(&poll_requested, false);
}
