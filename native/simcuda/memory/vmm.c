/* Physical memory and its mappings (virtual memory management). Physical memory is a part of a sparse file without a
 * name, the process's arena; memory that may be shared with other processes has a file of its own. Mapping memory maps
 * that file. The machine counts it like ordinary memory. */
#define _GNU_SOURCE
#include "machine/machine.h"
#include "memory/alloc.h"
#include "memory/vmm.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static struct {
    int file;
    uint64_t end; /* no place is used twice, because the file may be as long as needed */
} arena = {.file = -1};

static struct sim_physical *shared; /* memory with a file of its own */

static int new_file(uint64_t bytes) {
    int file = memfd_create("simulated device memory", MFD_CLOEXEC);
    if (file >= 0 && ftruncate(file, (off_t)bytes)) {
        close(file);
        file = -1;
    }
    return file;
}

/* alloc_lock is held. */
static int place_in_arena(struct sim_physical *physical) {
    if (arena.file < 0 && (arena.file = new_file(0)) < 0)
        return -1;
    if (ftruncate(arena.file, (off_t)(arena.end + physical->bytes)))
        return -1;
    physical->file = arena.file;
    physical->start = arena.end;
    arena.end += physical->bytes;
    return 0;
}

/* alloc_lock is held. The device's memory is charged already; here the charge becomes that of the file. */
static int place_in_file(struct sim_physical *physical) {
    struct stat st;
    if ((physical->file = new_file(physical->bytes)) < 0)
        return -1;
    if (fstat(physical->file, &st) ||
        machine_shared_open(sim.machine, physical->device, sim.slot, (uint64_t)st.st_ino, physical->bytes)) {
        close(physical->file);
        return -1;
    }
    physical->inode = (uint64_t)st.st_ino;
    physical->next = shared;
    shared = physical;
    return 0;
}

struct sim_physical *physical_of(CUmemGenericAllocationHandle handle) {
    struct sim_physical *physical = (struct sim_physical *)handle;
    return sim_is_object(physical) && physical->magic == MAGIC_PHYSICAL && physical->handles ? physical : NULL;
}

static struct sim_physical *new_physical(int device, uint64_t bytes) {
    struct sim_physical *physical = object_get(MAGIC_PHYSICAL, sizeof *physical);
    if (!physical)
        return NULL;
    memset(physical, 0, sizeof *physical);
    physical->device = device;
    physical->bytes = bytes;
    physical->handles = 1;
    physical->id = atomic_fetch_add(&sim.next_id, 1) + 1;
    return physical;
}

CUresult vmm_create(int device, uint64_t bytes, const CUmemAllocationProp *properties, struct sim_physical **out) {
    uint64_t evicted = 0;
    if (bytes > 1ull << 46 || machine_charge(sim.machine, device, sim.slot, bytes, &evicted))
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct sim_physical *physical = new_physical(device, bytes);
    int failed = !physical;
    if (!failed) {
        physical->properties = *properties;
        alloc_lock();
        failed = properties->handle_types ? place_in_file(physical) : place_in_arena(physical);
        if (!failed)
            physical->magic = MAGIC_PHYSICAL;
        alloc_unlock();
    }
    if (failed) {
        machine_discharge(sim.machine, device, sim.slot, bytes);
        if (physical)
            object_put(physical, MAGIC_PHYSICAL);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    machine_spend_eviction(sim.machine, device, evicted);
    *out = physical;
    return CUDA_SUCCESS;
}

/* The file's inode identifies the memory. */
CUresult vmm_import(int file, struct sim_physical **out) {
    struct stat st;
    int device;
    uint64_t bytes;
    if (fstat(file, &st))
        return CUDA_ERROR_INVALID_VALUE;
    alloc_lock();
    for (struct sim_physical *own = shared; own; own = own->next)
        if (own->inode == (uint64_t)st.st_ino) {
            own->handles++;
            *out = own;
            alloc_unlock();
            return CUDA_SUCCESS;
        }
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (machine_shared_join(sim.machine, sim.slot, (uint64_t)st.st_ino, &device, &bytes) == 0) {
        struct sim_physical *physical = (uint64_t)st.st_size == bytes ? new_physical(device, bytes) : NULL;
        if (physical && (physical->file = fcntl(file, F_DUPFD_CLOEXEC, 0)) >= 0) {
            physical->inode = (uint64_t)st.st_ino;
            physical->properties.type = CU_MEM_ALLOCATION_PINNED;
            physical->properties.handle_types = CU_MEM_HANDLE_POSIX_FD;
            physical->properties.location.type = CU_MEM_LOCATION_DEVICE;
            physical->properties.location.id = ordinal_of(device);
            physical->next = shared;
            shared = physical;
            physical->magic = MAGIC_PHYSICAL;
            *out = physical;
            result = CUDA_SUCCESS;
        } else {
            machine_shared_leave(sim.machine, device, sim.slot, (uint64_t)st.st_ino);
            if (physical)
                object_put(physical, MAGIC_PHYSICAL);
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    alloc_unlock();
    return result;
}

void vmm_remove_unused(struct sim_physical *physical, struct sim_physical **list) {
    if (physical->handles || physical->mappings)
        return;
    physical->magic = 0;
    for (struct sim_physical **link = &shared; physical->inode && *link; link = &(*link)->next)
        if (*link == physical) {
            *link = physical->next;
            break;
        }
    physical->next = *list;
    *list = physical;
}

void vmm_destroy(struct sim_physical *list) {
    const int hole = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    while (list) {
        struct sim_physical *physical = list;
        list = physical->next;
        if (physical->inode) {
            machine_shared_leave(sim.machine, physical->device, sim.slot, physical->inode);
            close(physical->file);
        } else {
            (void)!fallocate(physical->file, hole, (off_t)physical->start, (off_t)physical->bytes);
            machine_discharge(sim.machine, physical->device, sim.slot, physical->bytes);
        }
        object_put(physical, MAGIC_PHYSICAL);
    }
}

/* Return the index of the first mapping that ends above the address. */
static size_t index_of(const struct sim_alloc *range, uint64_t address) {
    size_t low = 0, high = range->mappings;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (range->mapping[middle].base + range->mapping[middle].size <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const struct sim_mapping *vmm_at(const struct sim_alloc *range, uint64_t address) {
    size_t index = index_of(range, address);
    return index < range->mappings && range->mapping[index].base <= address ? &range->mapping[index] : NULL;
}

static int device_has_access(const struct sim_mapping *mapping, int device) {
    if (device != ANY_DEVICE)
        return mapping->access[device];
    for (int i = 0; i < SIM_MAX_DEVICES; i++)
        if (mapping->access[i])
            return 1;
    return 0;
}

int vmm_is_accessible(const struct sim_alloc *range, uint64_t address, uint64_t bytes, int device) {
    uint64_t end = address + bytes;
    for (size_t i = index_of(range, address); address < end; i++) {
        const struct sim_mapping *mapping = &range->mapping[i];
        if (i == range->mappings || mapping->base > address || !device_has_access(mapping, device))
            return 0;
        address = mapping->base + mapping->size;
    }
    return 1;
}

static struct sim_alloc *range_around(uint64_t address, uint64_t bytes) {
    struct sim_alloc *range = alloc_find(address);
    return range && range->kind == ALLOC_RESERVED && bytes && bytes <= range->base + range->size - address ? range
                                                                                                           : NULL;
}

CUresult vmm_map(uint64_t address, uint64_t bytes, struct sim_physical *physical) {
    struct sim_alloc *range = range_around(address, bytes);
    if (!range)
        return CUDA_ERROR_INVALID_VALUE;
    size_t index = index_of(range, address);
    if (index < range->mappings && range->mapping[index].base < address + bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (range->mappings == range->mapping_room) {
        size_t room = range->mapping_room ? range->mapping_room * 2 : 16;
        struct sim_mapping *mapping = realloc(range->mapping, room * sizeof *mapping);
        if (!mapping)
            return CUDA_ERROR_OUT_OF_MEMORY;
        range->mapping = mapping;
        range->mapping_room = room;
    }
    if (mmap((void *)address, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, physical->file,
             (off_t)physical->start) == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct sim_mapping *place = range->mapping + index;
    memmove(place + 1, place, (range->mappings - index) * sizeof *place);
    *place = (struct sim_mapping){.base = address, .size = bytes, .physical = physical};
    range->mappings++;
    physical->mappings++;
    return CUDA_SUCCESS;
}

struct sim_mapping *vmm_whole(uint64_t address, uint64_t bytes, size_t *count) {
    struct sim_alloc *range = range_around(address, bytes);
    size_t first = range ? index_of(range, address) : 0, i = first;
    uint64_t at = address;
    for (; range && at < address + bytes; i++) {
        if (i == range->mappings || range->mapping[i].base != at)
            return NULL;
        at += range->mapping[i].size;
    }
    *count = i - first;
    return range && at == address + bytes ? range->mapping + first : NULL;
}

/* Work in flight continues with pages that no mapping shows. */
CUresult vmm_unmap(uint64_t address, uint64_t bytes, struct sim_physical **list, int *device) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    struct sim_alloc *range = range_around(address, bytes);
    size_t first = range ? index_of(range, address) : 0, end = first;
    for (; range && end < range->mappings && range->mapping[end].base < address + bytes; end++)
        if (range->mapping[end].base < address || range->mapping[end].base + range->mapping[end].size > address + bytes)
            return CUDA_ERROR_INVALID_VALUE;
    if (!range || mmap((void *)address, bytes, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED)
        return CUDA_ERROR_INVALID_VALUE;
    *device = first < end ? range->mapping[first].physical->device : -1;
    for (size_t i = first; i < end; i++) {
        range->mapping[i].physical->mappings--;
        vmm_remove_unused(range->mapping[i].physical, list);
    }
    memmove(range->mapping + first, range->mapping + end, (range->mappings - end) * sizeof *range->mapping);
    range->mappings -= end - first;
    return CUDA_SUCCESS;
}
