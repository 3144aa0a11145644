/* The table of allocations: an array in address order. */
#include <stdlib.h>
#include <string.h>

#include "memory/alloc.h"

static struct {
    pthread_mutex_t lock;
    struct sim_alloc **entry;
    size_t count, room;
} table = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Return the index of the first entry whose base is above the address. */
static size_t upper_bound(uint64_t address) {
    size_t low = 0, high = table.count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (table.entry[middle]->base <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct sim_alloc *alloc_find(uint64_t address) {
    size_t index = upper_bound(address);
    if (!index)
        return NULL;
    struct sim_alloc *alloc = table.entry[index - 1];
    return address - alloc->base < alloc->size ? alloc : NULL;
}

struct sim_alloc *alloc_of_inode(uint64_t inode) {
    for (size_t i = 0; i < table.count; i++)
        if (table.entry[i]->inode == inode)
            return table.entry[i];
    return NULL;
}

int alloc_exists(unsigned kinds) {
    int exists = 0;
    pthread_mutex_lock(&table.lock);
    for (size_t i = 0; i < table.count && !exists; i++)
        exists = kinds >> table.entry[i]->kind & 1;
    pthread_mutex_unlock(&table.lock);
    return exists;
}

void alloc_lock(void) {
    pthread_mutex_lock(&table.lock);
}

void alloc_unlock(void) {
    pthread_mutex_unlock(&table.lock);
}

int alloc_insert(struct sim_alloc *alloc) {
    pthread_mutex_lock(&table.lock);
    if (table.count == table.room) {
        size_t room = table.room ? table.room * 2 : 256;
        struct sim_alloc **entry = realloc(table.entry, room * sizeof *entry);
        if (!entry) {
            pthread_mutex_unlock(&table.lock);
            return -1;
        }
        table.entry = entry;
        table.room = room;
    }
    size_t index = upper_bound(alloc->base);
    memmove(table.entry + index + 1, table.entry + index, (table.count - index) * sizeof *table.entry);
    table.entry[index] = alloc;
    table.count++;
    pthread_mutex_unlock(&table.lock);
    return 0;
}

/* The table is locked. */
static void take_out(size_t index) {
    memmove(table.entry + index, table.entry + index + 1, (table.count - index - 1) * sizeof *table.entry);
    table.count--;
}

int alloc_overlaps(uint64_t base, uint64_t bytes) {
    pthread_mutex_lock(&table.lock);
    size_t index = upper_bound(base + bytes - 1);
    int overlaps = index && table.entry[index - 1]->base + table.entry[index - 1]->size > base;
    pthread_mutex_unlock(&table.lock);
    return overlaps;
}

struct sim_alloc *alloc_take(uint64_t address, unsigned kinds) {
    pthread_mutex_lock(&table.lock);
    size_t index = upper_bound(address);
    struct sim_alloc *alloc = index ? table.entry[index - 1] : NULL;
    if (alloc && (alloc->base != address || !(kinds >> alloc->kind & 1)))
        alloc = NULL;
    if (alloc)
        take_out(index - 1);
    pthread_mutex_unlock(&table.lock);
    return alloc;
}

struct sim_alloc *alloc_take_of_context(const struct sim_context *context) {
    struct sim_alloc *alloc = NULL;
    pthread_mutex_lock(&table.lock);
    for (size_t i = table.count; i-- > 0 && !alloc;)
        if (table.entry[i]->context == context) {
            alloc = table.entry[i];
            take_out(i);
        }
    pthread_mutex_unlock(&table.lock);
    return alloc;
}
