/* Memory that the program has freed in a stream: cuMemFreeAsync of memory that does not come from the driver's pool.
 *
 * An event marks the place of the free in the stream. Memory of a pool stays allocated up to the release threshold of the
 * pool, as in the driver. A later allocation from the pool takes such memory: at once in the same stream, and in another
 * stream after the event. All freed memory is released before other memory of the program is evicted, and before an
 * allocation is refused.
 *
 * A free without an event waits for the end of the turn, because a capture has kept cuMemFree from waiting. */
#include "memory/freed/freed.h"

#include <stdlib.h>
#include <string.h>

#define BUCKETS 256           /* four for each power of two */
#define MAX_QUERIES 8         /* of events for one allocation */
#define MAX_EXCESS_FRACTION 8 /* memory that is larger by at most an eighth serves an allocation */
#define MIN_KEPT_NS (10 * NS_PER_MS)
#define FREE_POLL_NS (10 * NS_PER_MS) /* between the agent's polls */

struct release {
    struct entry entry;
    CUcontext context; /* of the event */
    CUevent event;     /* NULL: none */
    CUstream stream;   /* orders the free; NULL: it has ended, or is the default stream of one thread */
    uint64_t began;
    struct release *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t freeing = PTHREAD_MUTEX_INITIALIZER; /* held while releases are chosen and freed */
static struct release *waiting[BUCKETS];
static struct release *spares;          /* without an entry, for their events */
static _Atomic uint32_t count;          /* in `waiting`, or taken from there and not freed yet */
static _Atomic bool poll_requested;     /* since the agent's last poll */
static uint64_t surplus[MAX_POOLS + 1]; /* under `freeing`: by pool number, bytes to be freed */

bool deferred_any(void) {
    return atomic_load_explicit(&count, memory_order_relaxed) != 0;
}

/* The width of a bucket is at least an eighth of its sizes. */
static unsigned bucket_of(uint64_t bytes) {
    unsigned log = 63 - (unsigned)__builtin_clzll(bytes | 4);
    return log * 4 + ((bytes >> (log - 2)) & 3);
}

static void spare(struct release *release) {
    pthread_mutex_lock(&lock);
    release->next = spares;
    spares = release;
    pthread_mutex_unlock(&lock);
}

/* Return a release with an event of the context, where one is to hand. */
static struct release *new_release(CUcontext context) {
    pthread_mutex_lock(&lock);
    struct release **link = &spares, *found;
    while (*link && (*link)->context != context)
        link = &(*link)->next;
    if ((found = *link))
        *link = found->next;
    pthread_mutex_unlock(&lock);
    if (!found && (found = calloc(1, sizeof *found)))
        found->context = context;
    return found;
}

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
    atomic_fetch_sub(&count, 1);
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

static CUstream ordering_stream(CUstream stream) {
    return stream == DEFAULT ? CU_STREAM_LEGACY : stream == CU_STREAM_PER_THREAD ? NULL : stream;
}

/* The agent polls while freed memory is to be released, because the program may not call the shim again. */
void deferred_request_poll(void) {
    if (deferred_any() && !atomic_exchange(&poll_requested, true))
        agent_wake();
}

static void add(struct release *release) {
    struct release **bucket = &waiting[bucket_of(release->entry.bytes)];
    bool over = pool_figures_keep(release->entry.pool, release->entry.bytes);
    release->began = now_ns();
    atomic_fetch_add(&count, 1);
    pthread_mutex_lock(&lock);
    release->next = *bucket;
    *bucket = release;
    pthread_mutex_unlock(&lock);
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
    struct release *release = new_release(context_of(stream));
    if (!release)
        return CUDA_ERROR_OUT_OF_MEMORY;
    release->entry = *entry;
    release->stream = ordering_stream(stream);
    queries_lock();
    bool is_captured = touches_capture(stream); /* since the caller's own check */
    CUresult result = is_captured ? CUDA_SUCCESS : record_event(release, stream);
    queries_unlock();
    if (is_captured && release->event)
        REAL(cuEventDestroy_v2)(release->event);
    if (result == CUDA_SUCCESS) {
        (is_captured ? add_after_turn : add)(release);
        return result;
    }
    result = REAL(cuStreamSynchronize)(stream);
    if (result != CUDA_SUCCESS) {
        destroy(release);
        return result;
    }
    atomic_fetch_add(&count, 1);
    pool_figures_keep(entry->pool, entry->bytes);
    free_now(release);
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

/* --- reuse ------------------------------------------------------------------------------------------------------------ */

struct demand {
    uint64_t bytes;
    CUcontext context, current; /* of the memory, and of default streams */
    CUstream stream;
    uint16_t pool;
    int queries;
};

/* Memory whose pages are on the host is slower than new memory. */
static bool serves(const struct release *release, struct demand *demand) {
    const struct entry *entry = &release->entry;
    if (entry->pool != demand->pool || entry->context != demand->context || !release->event ||
        entry->bytes < demand->bytes || entry->bytes - demand->bytes > demand->bytes / MAX_EXCESS_FRACTION ||
        (entry->kind == MEMORY_REDIRECTED && entry->references == ENTRY_EVICTED))
        return false;
    bool is_default = release->stream == CU_STREAM_LEGACY;
    if (release->stream && release->stream == demand->stream && (!is_default || release->context == demand->current))
        return true;
    return demand->queries++ < MAX_QUERIES && REAL(cuEventQuery)(release->event) == CUDA_SUCCESS;
}

static struct release *take_from(struct release **link, struct demand *demand) {
    for (; *link && demand->queries < MAX_QUERIES; link = &(*link)->next)
        if (serves(*link, demand)) {
            struct release *found = *link;
            *link = found->next;
            return found;
        }
    return NULL;
}

bool deferred_reuse(CUmemoryPool pool, uint64_t bytes, CUcontext context, CUstream stream, struct entry *entry) {
    struct demand demand = {
        .bytes = bytes, .context = context, .pool = pool_figures_number(pool), .stream = ordering_stream(stream)};
    if (!demand.pool || !deferred_any())
        return false;
    REAL(cuCtxGetCurrent)(&demand.current);
    unsigned first = bucket_of(bytes), last = bucket_of(bytes + bytes / MAX_EXCESS_FRACTION);
    pthread_mutex_lock(&lock);
    struct release *found = take_from(&waiting[first], &demand);
    if (!found && last != first)
        found = take_from(&waiting[last], &demand);
    pthread_mutex_unlock(&lock);
    if (!found)
        return false;
    *entry = found->entry;
    pool_figures_reuse(entry->pool, entry->bytes);
    atomic_fetch_sub(&count, 1);
    spare(found);
    return true;
}

/* The driver may give the address of a destroyed stream to the next one. */
void deferred_stream_ends(CUstream stream) {
    if (!deferred_any())
        return;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < BUCKETS; i++)
        for (struct release *release = waiting[i]; release; release = release->next)
            if (release->stream == stream)
                release->stream = NULL;
    pthread_mutex_unlock(&lock);
}

/* --- freeing ---------------------------------------------------------------------------------------------------------- */

static struct release *take(bool (*chosen)(struct release *release, void *data), void *data) {
    struct release *taken = NULL;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < BUCKETS; i++)
        for (struct release **link = &waiting[i]; *link;) {
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

static bool free_all(struct release *taken) {
    bool some = taken != NULL;
    while (taken) {
        struct release *next = taken->next;
        free_now(taken);
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
        free_all(take(is_surplus, choice));
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
    bool some = free_all(take(is_surplus, &choice));
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
    struct release *taken = take(may_be_awaited, &is_idle);
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
    for (struct release *release = take(is_of_context, context); release;) {
        struct release *next = release->next;
        pool_figures_remove_kept(release->entry.pool, release->entry.bytes);
        release->entry.pool = 0;
        atomic_fetch_sub(&count, 1);
        if (release->entry.context == context) {
            entry_sums_add(ended, &release->entry);
            free(release);
        } else {
            add_after_turn(release);
        }
        release = next;
    }
    pthread_mutex_lock(&lock);
    for (struct release **link = &spares; *link;) {
        struct release *gone = *link;
        if (gone->context != context) {
            link = &gone->next;
            continue;
        }
        *link = gone->next;
        free(gone);
    }
    pthread_mutex_unlock(&lock);
}

void deferred_after_fork(void) {
    pthread_mutex_init(&lock, NULL);
    pthread_mutex_init(&freeing, NULL);
    memset(waiting, 0, sizeof waiting); /* left to the parent's heap image */
    spares = NULL;
    atomic_store(&count, 0);
    atomic_store(&poll_requested, false);
}
