/* Figures of pools: the bytes that the program has in use from each pool, where the shim has put them elsewhere. */
#include "memory/memory.h"

#define MAX_POOLS                                                                                                      \
    1024 /* with figures of their own at the same time; more are rare, and show the driver's figures only */

static struct {
    CUmemoryPool pool; /* NULL: free, or destroyed while memory of the pool is in use */
    uint64_t used, used_high, reserved_high;
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
    while (at < count && (figures[at].pool || figures[at].used))
        at++;
    return at;
}

uint16_t pool_figures_add(CUmemoryPool pool, uint64_t bytes) {
    if (!pool)
        return 0;
    pthread_mutex_lock(&lock);
    uint32_t at = find(pool);
    if (at == count && (at = find_free()) < MAX_POOLS) {
        figures[at] = (__typeof__(*figures)){.pool = pool};
        count = at == count ? count + 1 : count;
    }
    if (at < MAX_POOLS) {
        figures[at].used += bytes;
        figures[at].used_high = max_u64(figures[at].used_high, figures[at].used);
        figures[at].reserved_high = max_u64(figures[at].reserved_high, figures[at].used);
    }
    pthread_mutex_unlock(&lock);
    return at < MAX_POOLS ? (uint16_t)(at + 1) : 0;
}

void pool_figures_remove(uint16_t number, uint64_t bytes) {
    if (!number)
        return;
    pthread_mutex_lock(&lock);
    figures[number - 1].used -= bytes;
    pthread_mutex_unlock(&lock);
}

uint64_t pool_figure(CUmemoryPool pool, int attribute) {
    uint64_t value = 0;
    pthread_mutex_lock(&lock);
    uint32_t at = find(pool);
    if (at < count)
        value = attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH       ? figures[at].used_high
                : attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH ? figures[at].reserved_high
                                                                 : figures[at].used;
    pthread_mutex_unlock(&lock);
    return value;
}

void pool_figures_reset_high(CUmemoryPool pool, int attribute) {
    pthread_mutex_lock(&lock);
    uint32_t at = find(pool);
    if (at < count && attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
        figures[at].used_high = figures[at].used;
    if (at < count && attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)
        figures[at].reserved_high = figures[at].used;
    pthread_mutex_unlock(&lock);
}

void pool_figures_drop(CUmemoryPool pool) {
    pthread_mutex_lock(&lock);
    uint32_t at = find(pool);
    if (at < count)
        figures[at].pool = NULL;
    pthread_mutex_unlock(&lock);
}

void pool_figures_after_fork(void) {
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    count = 0;
}
