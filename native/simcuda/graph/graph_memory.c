/* Memory of allocation nodes. The address is fixed when the node is made. Physical memory comes with the first launch
 * or upload and is kept for later ones until it is trimmed. Memory that a graph does not free outlives the graph.
 *
 * Memory counts as used from its first launch on until it is trimmed or its graph ends. A free does not lower that
 * figure (graphMemoryFootprint of NVIDIA/cuda-samples, "Freeing the allocations does not shrink the footprint"). */
#include <stdlib.h>
#include <string.h>

#include "base/exports.h"
#include "context/context.h"
#include "memory/alloc.h"
#include "memory/vmm.h"
#include "graph/graph.h"

struct sim_graph_memory {
    uint32_t references, launches; /* submitted and not complete */
    CUdeviceptr address;
    uint64_t bytes, room;
    int device, is_mapped; /* a mapping is a reference too */
    int is_used;           /* counted as used */
    struct sim_physical *physical;
    struct sim_graph_memory *next;
};

static struct {
    pthread_mutex_t lock; /* taken before alloc_lock */
    struct sim_graph_memory *all;
    struct sim_physical *unused[SIM_MAX_DEVICES]; /* left behind by graphs that have ended */
    uint64_t figure[SIM_MAX_DEVICES][4];          /* by CUgraphMem_attribute */
} graphs = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void count(int device, int attribute, uint64_t more, uint64_t less) {
    uint64_t *figure = graphs.figure[device];
    figure[attribute] = figure[attribute] + more - less;
    if (figure[attribute] > figure[attribute + 1])
        figure[attribute + 1] = figure[attribute];
}

CUresult graph_memory_new(int device, uint64_t bytes, struct sim_graph_memory **out) {
    struct sim_graph_memory *memory = bytes && bytes <= 1ull << 46 ? calloc(1, sizeof *memory) : NULL;
    if (!memory)
        return bytes ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    memory->bytes = bytes;
    memory->room = (bytes + VMM_GRANULARITY - 1) / VMM_GRANULARITY * VMM_GRANULARITY;
    memory->device = device;
    memory->references = 1;
    CUresult result = alloc_reserve(memory->room, VMM_GRANULARITY, 0, &memory->address);
    if (result) {
        free(memory);
        return result;
    }
    pthread_mutex_lock(&graphs.lock);
    memory->next = graphs.all;
    graphs.all = memory;
    pthread_mutex_unlock(&graphs.lock);
    *out = memory;
    return CUDA_SUCCESS;
}

/* The lock is held. */
static void set_used(struct sim_graph_memory *memory, int is_used) {
    if (is_used != memory->is_used)
        count(memory->device, CU_GRAPH_MEM_USED, is_used ? memory->room : 0, is_used ? 0 : memory->room);
    memory->is_used = is_used;
}

static struct sim_graph_memory *find(CUdeviceptr address, uint64_t bytes) {
    for (struct sim_graph_memory *memory = graphs.all; memory; memory = memory->next)
        if (address - memory->address < memory->bytes && bytes <= memory->bytes - (address - memory->address))
            return memory;
    return NULL;
}

struct sim_graph_memory *graph_memory_at(CUdeviceptr address) {
    pthread_mutex_lock(&graphs.lock);
    struct sim_graph_memory *memory = find(address, 0);
    if (memory && memory->address != address)
        memory = NULL;
    if (memory)
        memory->references++;
    pthread_mutex_unlock(&graphs.lock);
    return memory;
}

int graph_memory_covers(CUdeviceptr address, uint64_t bytes) {
    pthread_mutex_lock(&graphs.lock);
    int covers = find(address, bytes) != NULL;
    pthread_mutex_unlock(&graphs.lock);
    return covers;
}

CUdeviceptr graph_memory_address(const struct sim_graph_memory *memory, uint64_t *bytes, int *device) {
    *bytes = memory->bytes;
    *device = memory->device;
    return memory->address;
}

void graph_memory_hold(struct sim_graph_memory *memory) {
    pthread_mutex_lock(&graphs.lock);
    memory->references++;
    pthread_mutex_unlock(&graphs.lock);
}

/* The lock is held. The caller frees the addresses of the returned list. */
static struct sim_graph_memory *drop(struct sim_graph_memory *memory) {
    if (--memory->references)
        return NULL;
    for (struct sim_graph_memory **link = &graphs.all; *link; link = &(*link)->next)
        if (*link == memory) {
            *link = memory->next;
            break;
        }
    set_used(memory, 0);
    if (memory->physical) {
        memory->physical->next = graphs.unused[memory->device];
        graphs.unused[memory->device] = memory->physical;
    }
    return memory;
}

static void end(struct sim_graph_memory *memory) {
    if (memory)
        alloc_free(memory->address, 1u << ALLOC_RESERVED);
    free(memory);
}

void graph_memory_drop(struct sim_graph_memory *memory) {
    pthread_mutex_lock(&graphs.lock);
    struct sim_graph_memory *ended = drop(memory);
    pthread_mutex_unlock(&graphs.lock);
    end(ended);
}

/* Return memory of that size that an ended graph has left, if there is any. */
static struct sim_physical *take_unused(int device, uint64_t bytes) {
    for (struct sim_physical **link = &graphs.unused[device]; *link; link = &(*link)->next)
        if ((*link)->bytes == bytes) {
            struct sim_physical *found = *link;
            *link = found->next;
            return found;
        }
    return NULL;
}

CUresult graph_memory_prepare(struct sim_graph_memory *memory) {
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_PINNED,
                                      .location = {CU_MEM_LOCATION_DEVICE, ordinal_of(memory->device)}};
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&graphs.lock);
    if (!memory->physical && !(memory->physical = take_unused(memory->device, memory->room)) &&
        !(result = vmm_create(memory->device, memory->room, &properties, &memory->physical)))
        count(memory->device, CU_GRAPH_MEM_RESERVED, memory->room, 0);
    if (!result)
        memory->launches++;
    pthread_mutex_unlock(&graphs.lock);
    return result;
}

void graph_memory_launched(struct sim_graph_memory *memory) {
    pthread_mutex_lock(&graphs.lock);
    memory->launches--;
    pthread_mutex_unlock(&graphs.lock);
}

/* The worker calls it at the node. Memory of an earlier launch is used again. */
void graph_memory_map(struct sim_graph_memory *memory) {
    size_t mappings;
    pthread_mutex_lock(&graphs.lock);
    if (!memory->is_mapped) {
        alloc_lock();
        if (!vmm_map(memory->address, memory->room, memory->physical)) {
            vmm_whole(memory->address, memory->room, &mappings)->access[memory->device] = CU_MEM_ACCESS_READWRITE;
            memory->is_mapped = 1;
            memory->references++;
            set_used(memory, 1);
        }
        alloc_unlock();
    }
    pthread_mutex_unlock(&graphs.lock);
}

int graph_memory_unmap(struct sim_graph_memory *memory) {
    struct sim_physical *none = NULL; /* the handle keeps it */
    int device;
    struct sim_graph_memory *ended = NULL;
    pthread_mutex_lock(&graphs.lock);
    int was_mapped = memory->is_mapped;
    if (was_mapped) {
        alloc_lock();
        vmm_unmap(memory->address, memory->room, &none, &device);
        alloc_unlock();
        memory->is_mapped = 0;
        ended = drop(memory);
    }
    pthread_mutex_unlock(&graphs.lock);
    end(ended);
    return was_mapped;
}

static void give_back(int device, struct sim_physical *list) {
    for (struct sim_physical *physical = list; physical; physical = physical->next)
        count(device, CU_GRAPH_MEM_RESERVED, 0, physical->bytes);
    vmm_destroy(list);
}

CUresult cuDeviceGraphMemTrim(CUdevice ordinal) {
    int device;
    SIM_ENTER();
    CUresult result = device_of(ordinal, &device);
    if (result)
        return result;
    pthread_mutex_lock(&graphs.lock);
    struct sim_physical *list = graphs.unused[device];
    graphs.unused[device] = NULL;
    for (struct sim_graph_memory *memory = graphs.all; memory; memory = memory->next)
        if (memory->device == device && memory->physical && !memory->is_mapped && !memory->launches) {
            memory->physical->next = list;
            list = memory->physical;
            memory->physical = NULL;
            set_used(memory, 0);
        }
    give_back(device, list);
    pthread_mutex_unlock(&graphs.lock);
    return CUDA_SUCCESS;
}

static CUresult check(CUdevice ordinal, int attribute, const void *value, int *device) {
    SIM_ENTER();
    if (!value || attribute < CU_GRAPH_MEM_USED || attribute > CU_GRAPH_MEM_RESERVED_HIGH)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = device_of(ordinal, device);
    return result ? result : capture_check_unsafe();
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice ordinal, int attribute, void *value) {
    int device;
    CUresult result = check(ordinal, attribute, value, &device);
    if (result)
        return result;
    pthread_mutex_lock(&graphs.lock);
    memcpy(value, &graphs.figure[device][attribute], sizeof(uint64_t));
    pthread_mutex_unlock(&graphs.lock);
    return CUDA_SUCCESS;
}

/* The high marks can be reset to zero. */
CUresult cuDeviceSetGraphMemAttribute(CUdevice ordinal, int attribute, void *value) {
    int device;
    uint64_t wanted;
    CUresult result = check(ordinal, attribute, value, &device);
    if (result)
        return result;
    memcpy(&wanted, value, sizeof wanted);
    if (wanted || (attribute != CU_GRAPH_MEM_USED_HIGH && attribute != CU_GRAPH_MEM_RESERVED_HIGH))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&graphs.lock);
    graphs.figure[device][attribute] = graphs.figure[device][attribute - 1];
    pthread_mutex_unlock(&graphs.lock);
    return CUDA_SUCCESS;
}
