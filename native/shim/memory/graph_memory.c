/* The memory that allocation nodes of graphs take.
 *
 * The driver allocates such memory when a graph is uploaded or launched. The driver may let several graphs use the same
 * memory one after the other, and keeps it when a graph ends, until it is trimmed. No such memory can be moved. So,
 * from instantiation on, the larger of two figures counts as unmovable: the need of the existing graphs, and the memory
 * that the driver holds. */
#include "memory/memory.h"

#include <stdlib.h>

struct graph_memory {
    CUgraphExec graph;
    CUcontext context;
    uint64_t bytes;
    struct graph_memory *next;
};

static struct {
    pthread_mutex_t lock;
    struct graph_memory *first;
    uint64_t needed, reserved;
} graph_memory = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Return the bytes that the driver holds for graphs at this moment. */
static uint64_t driver_graph_bytes(void) {
    RELAXED_MODE;
    uint64_t sum = 0;
    for (int i = 0; i < shim.device_count; i++) {
        uint64_t bytes = 0;
        CUdevice device;
        if (REAL(cuDeviceGet)(&device, i) == CUDA_SUCCESS &&
            REAL(cuDeviceGetGraphMemAttribute)(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &bytes) == CUDA_SUCCESS)
            sum += bytes;
    }
    return sum;
}

bool graph_memory_reserve(uint64_t bytes) {
    pthread_mutex_lock(&graph_memory.lock);
    graph_memory.needed += bytes;
    uint64_t more = graph_memory.needed > graph_memory.reserved ? graph_memory.needed - graph_memory.reserved : 0;
    graph_memory.reserved += more;
    pthread_mutex_unlock(&graph_memory.lock);
    if (!more || reserve_memory(more, true)) {
        refusal_recovered(more);
        return true;
    }
    pthread_mutex_lock(&graph_memory.lock);
    graph_memory.needed -= bytes;
    graph_memory.reserved -= more;
    pthread_mutex_unlock(&graph_memory.lock);
    return false;
}

/* Lower the reservation after the end of a graph, a failed instantiation or a trim. */
void graph_memory_update(uint64_t ended) {
    uint64_t driver_bytes = driver_graph_bytes(), over = 0;
    pthread_mutex_lock(&graph_memory.lock);
    graph_memory.needed -= ended;
    uint64_t left = graph_memory.needed > driver_bytes ? graph_memory.needed : driver_bytes;
    if (left < graph_memory.reserved) {
        over = graph_memory.reserved - left;
        graph_memory.reserved = left;
    }
    pthread_mutex_unlock(&graph_memory.lock);
    account_release(over, true);
}

void graph_memory_add(CUgraphExec graph, CUcontext context, uint64_t bytes) {
    struct graph_memory *memory = calloc(1, sizeof *memory);
    if (!memory)
        return;
    *memory = (struct graph_memory){graph, context, bytes, NULL};
    pthread_mutex_lock(&graph_memory.lock);
    memory->next = graph_memory.first;
    graph_memory.first = memory;
    pthread_mutex_unlock(&graph_memory.lock);
}

/* Remove a graph, or all graphs of a context, and return their bytes. */
static uint64_t remove_graphs(CUgraphExec graph, CUcontext context) {
    uint64_t bytes = 0;
    pthread_mutex_lock(&graph_memory.lock);
    for (struct graph_memory **at = &graph_memory.first; *at;) {
        struct graph_memory *memory = *at;
        if (graph ? memory->graph != graph : memory->context != context) {
            at = &memory->next;
            continue;
        }
        bytes += memory->bytes;
        *at = memory->next;
        free(memory);
    }
    pthread_mutex_unlock(&graph_memory.lock);
    return bytes;
}

uint64_t graph_memory_remove(CUgraphExec graph) {
    return remove_graphs(graph, NULL);
}

void graphs_drop_context(CUcontext context) {
    uint64_t bytes = remove_graphs(NULL, context);
    if (bytes)
        graph_memory_update(bytes);
}

uint64_t graph_bytes(void) {
    pthread_mutex_lock(&graph_memory.lock);
    uint64_t bytes = graph_memory.reserved;
    pthread_mutex_unlock(&graph_memory.lock);
    return bytes;
}

void graphs_after_fork(void) {
    pthread_mutex_init(&graph_memory.lock, NULL);
    graph_memory.first = NULL; /* the child does not free the list of the parent */
    graph_memory.needed = graph_memory.reserved = 0;
}
