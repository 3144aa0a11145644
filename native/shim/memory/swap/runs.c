/* Calls on runs of neighbouring mappings in the mode "swap".
 *
 * A change of mappings may be slow, and may wait for the device (PyTorch's note on expandable segments). So one call
 * unmaps a run of mappings, or grants access to it. A run for which that call fails is left to the calls for single
 * blocks. */
#include "memory/swap/blocks.h"

#include <stdlib.h>
#include <string.h>

#define MAX_MAPPINGS 256 /* of the blocks of a run; further ones have calls of their own */

typedef bool (*wanted)(const struct mapping *mapping);
typedef CUresult (*change)(const struct mapping *first, uint64_t bytes);

static int by_address(const void *a, const void *b) {
    CUdeviceptr one = (*(struct mapping *const *)a)->address, two = (*(struct mapping *const *)b)->address;
    return one < two ? -1 : one > two;
}

static bool are_neighbours(const struct mapping *a, const struct mapping *b) {
    return a->address + a->bytes == b->address && swap_allocation_at(a->address) == swap_allocation_at(b->address) &&
           a->access_count == b->access_count &&
           memcmp(a->access, b->access, (size_t)a->access_count * sizeof a->access[0]) == 0;
}

bool run_continues(const struct block *last, const struct block *next) {
    const struct mapping *a = last->mappings, *b = next->mappings;
    return a && b && (are_neighbours(a, b) || are_neighbours(b, a));
}

/* Apply `call` to each run of at least two wanted mappings, and `done` to each mapping of a run that has succeeded. */
static void change_runs(struct block **blocks, int count, wanted is_wanted, change call,
                        void (*done)(struct mapping *mapping)) {
    struct mapping *list[MAX_MAPPINGS];
    int found = 0;
    for (int i = 0; i < count; i++)
        for (struct mapping *mapping = blocks[i]->mappings; mapping && found < MAX_MAPPINGS; mapping = mapping->next)
            if (is_wanted(mapping))
                list[found++] = mapping;
    qsort(list, (size_t)found, sizeof list[0], by_address);
    for (int first = 0, next; first < found; first = next) {
        uint64_t bytes = list[first]->bytes;
        for (next = first + 1; next < found && are_neighbours(list[next - 1], list[next]); next++)
            bytes += list[next]->bytes;
        if (next == first + 1 || call(list[first], bytes) != CUDA_SUCCESS)
            continue;
        for (int i = first; i < next; i++)
            done(list[i]);
    }
}

static bool is_mapped(const struct mapping *mapping) {
    return mapping->is_mapped;
}

static CUresult unmap(const struct mapping *first, uint64_t bytes) {
    return REAL(cuMemUnmap)(first->address, bytes);
}

static void note_unmapped(struct mapping *mapping) {
    mapping->is_mapped = mapping->has_access = false;
}

void runs_evict(struct block **blocks, int count) {
    change_runs(blocks, count, is_mapped, unmap, note_unmapped);
    for (int i = 0; i < count; i++)
        block_evict(blocks[i]);
}

static bool needs_access(const struct mapping *mapping) {
    return mapping->is_mapped && !mapping->has_access && mapping->access_count;
}

static CUresult grant(const struct mapping *first, uint64_t bytes) {
    return REAL(cuMemSetAccess)(first->address, bytes, first->access, (size_t)first->access_count);
}

static void note_access(struct mapping *mapping) {
    mapping->has_access = true;
}

void runs_begin_restore(struct block **blocks, int count) {
    int made = 0;
    while (made < count && block_map_all(blocks[made]))
        made++;
    change_runs(blocks, made, needs_access, grant, note_access);
}
