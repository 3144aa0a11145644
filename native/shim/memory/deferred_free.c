/* Releases that wait for a stream: cuMemFreeAsync of memory that does not come from the driver's pool. An event
 * marks the place in the stream. When the stream has passed it, the next thread that polls frees the memory. A release
 * without an event waits for the end of the turn, because a capture has kept cuMemFree from waiting. */
#include "memory/memory.h"

#include <stdlib.h>

struct release {
    struct entry entry;
    CUcontext context; /* of the event */
    CUevent event;     /* NULL: none */
    struct release *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t freeing = PTHREAD_MUTEX_INITIALIZER; /* held while completed releases are taken and freed */
static struct release *waiting;
static _Atomic uint32_t count_waiting; /* and not freed yet */

/* The memory is freed outside of the lock, because the driver may wait for the device. */
static void free_now(struct release *release) {
    CUcontext left;
    bool pushed = REAL(cuCtxPushCurrent_v2)(release->entry.context) == CUDA_SUCCESS;
    if (release->event)
        REAL(cuEventDestroy_v2)(release->event);
    CUresult result = memory_release(&release->entry);
    if (pushed)
        REAL(cuCtxPopCurrent_v2)(&left);
    if (result != CUDA_SUCCESS)
        log_once(LOG_INFO, "could not free memory after its stream's work (CUDA error %d)", result);
    memory_unaccount(&release->entry);
    atomic_fetch_sub(&count_waiting, 1);
    free(release);
}

/* The context of the stream may be a green context that is current in another thread. */
static CUresult record_event(struct release *release, CUstream stream) {
    CUcontext left;
    bool explicit = (uintptr_t)stream > (uintptr_t)CU_STREAM_PER_THREAD;
    if (!explicit || REAL(cuStreamGetCtx)(stream, &release->context) != CUDA_SUCCESS)
        REAL(cuCtxGetCurrent)(&release->context);
    bool pushed = release->context && REAL(cuCtxPushCurrent_v2)(release->context) == CUDA_SUCCESS;
    CUresult result = REAL(cuEventCreate)(&release->event, CU_EVENT_DISABLE_TIMING);
    if (result == CUDA_SUCCESS) {
        result = REAL(cuEventRecord)(release->event, stream);
        if (result != CUDA_SUCCESS) {
            REAL(cuEventDestroy_v2)(release->event);
            release->event = NULL;
        }
    }
    if (pushed)
        REAL(cuCtxPopCurrent_v2)(&left);
    return result;
}

static void add(struct release *release) {
    pthread_mutex_lock(&lock);
    release->next = waiting;
    waiting = release;
    pthread_mutex_unlock(&lock);
    if (atomic_fetch_add(&count_waiting, 1) == 0)
        agent_wake(); /* the agent polls from now on, because the program may not allocate again */
}

CUresult deferred_add(const struct entry *entry, CUstream stream) {
    RELAXED_MODE;
    struct release *release = calloc(1, sizeof *release);
    if (!release)
        return CUDA_ERROR_OUT_OF_MEMORY;
    release->entry = *entry;
    CUresult result = record_event(release, stream);
    if (result != CUDA_SUCCESS) {
        result = REAL(cuStreamSynchronize)(stream);
        if (result != CUDA_SUCCESS) {
            free(release);
            return result;
        }
        atomic_fetch_add(&count_waiting, 1);
        free_now(release);
        return CUDA_SUCCESS;
    }
    add(release);
    return CUDA_SUCCESS;
}

CUresult deferred_add_after_turn(const struct entry *entry) {
    struct release *release = calloc(1, sizeof *release);
    if (!release)
        return CUDA_ERROR_OUT_OF_MEMORY;
    release->entry = *entry;
    add(release);
    return CUDA_SUCCESS;
}

static struct release *take(bool (*chosen)(struct release *release, void *data), void *data) {
    struct release *taken = NULL;
    pthread_mutex_lock(&lock);
    for (struct release **link = &waiting; *link;) {
        struct release *release = *link;
        if (!chosen(release, data)) {
            link = &release->next;
            continue;
        }
        *link = release->next;
        release->next = taken;
        taken = release;
    }
    pthread_mutex_unlock(&lock);
    return taken;
}

static void free_all(struct release *taken) {
    while (taken) {
        struct release *next = taken->next;
        free_now(taken);
        taken = next;
    }
}

static bool has_completed(struct release *release, void *data) {
    (void)data;
    return release->event ? REAL(cuEventQuery)(release->event) != CUDA_ERROR_NOT_READY : !is_running();
}

static bool has_event(struct release *release, void *data) {
    (void)data;
    return release->event != NULL;
}

bool deferred_any(void) {
    return atomic_load_explicit(&count_waiting, memory_order_relaxed) != 0;
}

static void free_completed(void) {
    RELAXED_MODE;
    free_all(take(has_completed, NULL));
    pthread_mutex_unlock(&freeing);
}

void deferred_try_free(void) {
    if (deferred_any() && pthread_mutex_trylock(&freeing) == 0)
        free_completed();
}

void deferred_free_completed(void) {
    if (!deferred_any())
        return;
    pthread_mutex_lock(&freeing);
    free_completed();
}

bool deferred_drain(void) {
    RELAXED_MODE;
    struct release *taken = take(has_event, NULL);
    for (struct release *release = taken; release; release = release->next)
        REAL(cuEventSynchronize)(release->event);
    bool some = taken != NULL;
    free_all(taken);
    return some;
}

static bool is_of_context(struct release *release, void *context) {
    return release->context == context || release->entry.context == context;
}

/* The context has ended, and with it the event and the memory. */
void deferred_drop_context(CUcontext context, struct entry_sums *ended) {
    for (struct release *release = take(is_of_context, context); release;) {
        struct release *next = release->next;
        entry_sums_add(ended, &release->entry);
        pool_figures_remove(release->entry.pool, release->entry.bytes);
        atomic_fetch_sub(&count_waiting, 1);
        free(release);
        release = next;
    }
}

void deferred_after_fork(void) {
    pthread_mutex_init(&lock, NULL);
    pthread_mutex_init(&freeing, NULL);
    waiting = NULL;
    atomic_store(&count_waiting, 0);
}
