/* Reuse of freed memory. An allocation from a pool takes memory that the program has freed to that pool. In the same
 * stream the allocation takes such memory at once, and in another stream after the event of the free. */
#include "memory/freed/freed.h"
#include "memory/freed/freed_list.h"

#define MAX_QUERIES 8         /* of events for one allocation */
#define MAX_EXCESS_FRACTION 8 /* memory that is larger by at most an eighth serves an allocation */

struct demand {
    uint64_t bytes;
    CUcontext context, current; /* of the memory, and of default streams */
    CUstream stream;
    bool may_stay_on_host;
    uint16_t pool;
    int queries;
};

/* Memory whose pages are on the host is slower than new memory. */
static bool is_suitable(const struct entry *entry, const struct demand *demand) {
    return entry->pool == demand->pool && entry->context == demand->context && entry->bytes >= demand->bytes &&
           entry->bytes - demand->bytes <= demand->bytes / MAX_EXCESS_FRACTION &&
           !(entry->kind == MEMORY_REDIRECTED && entry->references == ENTRY_EVICTED);
}

static bool is_ordered(const struct release *release, const struct demand *demand) {
    return release->stream && release->stream == demand->stream &&
           (release->stream != CU_STREAM_LEGACY || release->context == demand->current);
}

static enum search_step choose(struct release *release, void *data) {
    struct demand *demand = data;
    if (!release->event || release->may_stay_on_host != demand->may_stay_on_host ||
        !is_suitable(&release->entry, demand))
        return SKIP;
    if (is_ordered(release, demand) || REAL(cuEventQuery)(release->event) == CUDA_SUCCESS)
        return TAKE;
    return ++demand->queries < MAX_QUERIES ? SKIP : STOP;
}

bool deferred_reuse(CUmemoryPool pool, uint64_t bytes, CUcontext context, CUstream stream, struct entry *entry) {
    struct demand demand = {.bytes = bytes,
                            .context = context,
                            .pool = pool_figures_number(pool),
                            .stream = ordering_stream(stream),
                            .may_stay_on_host = account_may_stay_on_host()};
    if (!demand.pool || !deferred_any())
        return false;
    REAL(cuCtxGetCurrent)(&demand.current);
    struct release *found = freed_list_take_one(bytes, bytes + bytes / MAX_EXCESS_FRACTION, choose, &demand);
    if (!found)
        return false;
    *entry = found->entry;
    pool_figures_reuse(entry->pool, entry->bytes);
    freed_list_uncount();
    freed_list_spare(found);
    return true;
}
