/* Figures of pools of which the shim has put the memory elsewhere. A pool has bytes that the program uses, and freed bytes
 * that are kept. The place of a pool's memory is known if the program has made the pool, or has asked the driver for the pool
 * of a place. A pool beyond MAX_POOLS shows the driver's figures only, and keeps nothing. */
#include "memory/account/account.h"

static struct {
    CUmemoryPool pool; /* NULL: free, or destroyed while memory of the pool is in use or kept */
    uint64_t used, kept, used_high, reserved_high;
    uint64_t threshold;     /* the release threshold */
    uint64_t trim_to;       /* of cuMemPoolTrimTo, until the next allocation */
    CUmemLocation location; /* of type 0: unknown */
} figures[MAX_POOLS];
static uint32_t count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static uint32_t find(CUmemoryPool pool) {
    uint32_t at = 0;
    while (at < count && figures[at].pool != pool)
        at++;
    return at;
}

/* The place of a destroyed pool is free again when all memory of that pool is. */
static uint32_t find_free(void) {
    uint32_t at = 0;
    while (at < count && (figures[at].pool || figures[at].used || figures[at].kept))
        at++;
    return at;
}

/* The lock is held. */
static void update_highs(uint32_t at) {
    figures[at].used_high = max_u64(figures[at].used_high, figures[at].used);
    figures[at].reserved_high = max_u64(figures[at].reserved_high, figures[at].used + figures[at].kept);
}

/* The lock is held. Return the kept bytes above the threshold. */
static uint64_t above(uint32_t at) {
    uint64_t reserved = figures[at].used + figures[at].kept,
             threshold = figures[at].pool ? min_u64(figures[at].threshold, figures[at].trim_to) : 0;
    return reserved > threshold ? min_u64(figures[at].kept, reserved - threshold) : 0;
}

/* The lock is held. Return the place of the pool, or MAX_POOLS if there is none. */
static uint32_t enter(CUmemoryPool pool) {
    RELAXED_MODE;
    uint32_t at = find(pool);
    if (at == count && (at = find_free()) < MAX_POOLS) {
        figures[at] = (__typeof__(*figures)){.pool = pool, .trim_to = UINT64_MAX};
        REAL(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &figures[at].threshold);
        count = at == count ? count + 1 : count;
    }
    return at;
}

uint16_t pool_figures_add(CUmemoryPool pool, uint64_t bytes) {
    if (!pool)
        return 0;
    pthread_mutex_lock(&lock);
    uint32_t at = enter(pool);
    if (at < MAX_POOLS) {
        figures[at].used += bytes;
        figures[at].trim_to = UINT64_MAX;
        update_highs(at);
    }
    pthread_mutex_unlock(&lock);
    return at < MAX_POOLS ? (uint16_t)(at + 1) : 0;
}

uint16_t pool_figures_number(CUmemoryPool pool) {
    pthread_mutex_lock(&lock);
    uint32_t at = pool ? find(pool) : count;
    uint16_t number = at < count ? (uint16_t)(at + 1) : 0;
    pthread_mutex_unlock(&lock);
    return number;
}

CUmemoryPool pool_figures_pool(uint16_t number) {
    pthread_mutex_lock(&lock);
    CUmemoryPool pool = number ? figures[number - 1].pool : NULL;
    pthread_mutex_unlock(&lock);
    return pool;
}

static void change(uint16_t number, int64_t used, int64_t kept) {
    if (!number)
        return;
    pthread_mutex_lock(&lock);
    figures[number - 1].used += (uint64_t)used;
    figures[number - 1].kept += (uint64_t)kept;
    if (used > 0)
        figures[number - 1].trim_to = UINT64_MAX;
    update_highs(number - 1u);
    pthread_mutex_unlock(&lock);
}

void pool_figures_remove(uint16_t number, uint64_t bytes) {
    change(number, -(int64_t)bytes, 0);
}

void pool_figures_remove_kept(uint16_t number, uint64_t bytes) {
    change(number, 0, -(int64_t)bytes);
}

void pool_figures_reuse(uint16_t number, uint64_t bytes) {
    change(number, (int64_t)bytes, -(int64_t)bytes);
}

bool pool_figures_keep(uint16_t number, uint64_t bytes) {
    change(number, -(int64_t)bytes, (int64_t)bytes);
    pthread_mutex_lock(&lock);
    bool is_above = !number || above(number - 1u);
    pthread_mutex_unlock(&lock);
    return is_above;
}

void pool_figures_trim(uint16_t number, uint64_t keep) {
    pthread_mutex_lock(&lock);
    if (number)
        figures[number - 1].trim_to = min_u64(figures[number - 1].trim_to, keep);
    pthread_mutex_unlock(&lock);
}

void pool_figures_surplus(uint64_t surplus[MAX_POOLS + 1]) {
    pthread_mutex_lock(&lock);
    for (uint32_t at = 0; at < count; at++)
        surplus[at + 1] = above(at);
    pthread_mutex_unlock(&lock);
}

uint64_t pool_figure(CUmemoryPool pool, int attribute) {
    uint64_t value = 0;
    pthread_mutex_lock(&lock);
    uint32_t at = find(pool);
    if (at < count)
        value = attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH          ? figures[at].used_high
                : attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH    ? figures[at].reserved_high
                : attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT ? figures[at].used + figures[at].kept
                                                                    : figures[at].used;
    pthread_mutex_unlock(&lock);
    return value;
}

void pool_figures_set(CUmemoryPool pool, int attribute, uint64_t value) {
    pthread_mutex_lock(&lock);
    uint32_t at = find(pool);
    if (at < count && attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
        figures[at].used_high = figures[at].used;
    if (at < count && attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)
        figures[at].reserved_high = figures[at].used + figures[at].kept;
    if (at < count && attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        figures[at].threshold = value;
    pthread_mutex_unlock(&lock);
}

void pool_figures_drop(CUmemoryPool pool) {
    pthread_mutex_lock(&lock);
    uint32_t at = find(pool);
    if (at < count)
        figures[at].pool = NULL;
    pthread_mutex_unlock(&lock);
}

void pool_figures_set_location(CUmemoryPool pool, const CUmemLocation *location) {
    pthread_mutex_lock(&lock);
    uint32_t at = enter(pool);
    if (at < MAX_POOLS)
        figures[at].location = *location;
    pthread_mutex_unlock(&lock);
}

bool pool_figures_location(CUmemoryPool pool, CUmemLocation *location) {
    pthread_mutex_lock(&lock);
    uint32_t at = find(pool);
    bool is_known = at < count && figures[at].location.type;
    if (is_known)
        *location = figures[at].location;
    pthread_mutex_unlock(&lock);
    return is_known;
}

void pool_figures_after_fork(void) {
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    count = 0;
}
