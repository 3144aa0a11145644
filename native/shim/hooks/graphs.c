/* Hooks on graphs: what one launch of a graph amounts to, and the memory that its allocation nodes take.
 *
 * The driver gives such a graph its memory when it is uploaded or launched, may let several graphs use the same memory one
 * after the other, and keeps it when a graph ends, until it is trimmed. None of it can be moved. So it is counted, pinned,
 * from instantiation on: what the graphs need that exist, or what the driver says that it holds, if that is more. */
#include "shim.h"

#include <stdlib.h>

#define MAX_DEPTH 16 /* graphs within graphs */

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

/* What a launch of it does. */
struct graph_work {
    uint64_t launches, blocks, bytes;
};

static void add_kernel(CUgraphNode node, struct graph_work *sum) {
    CUDA_KERNEL_NODE_PARAMS kernel = {0};
    CUresult result = driver_has(HOOK_cuGraphKernelNodeGetParams_v2)
                          ? REAL(cuGraphKernelNodeGetParams_v2)(node, &kernel)
                          : REAL(cuGraphKernelNodeGetParams)(node, &kernel);
    sum->launches++;
    if (result == CUDA_SUCCESS)
        sum->blocks += (uint64_t)kernel.grid[0] * kernel.grid[1] * kernel.grid[2];
}

/* The bodies of conditional nodes are not looked into: how often they run is known on the device only, and they cannot
 * allocate. */
static void add_graph(CUgraph graph, struct graph_work *sum, int depth) {
    size_t count = 0;
    if (REAL(cuGraphGetNodes)(graph, NULL, &count) != CUDA_SUCCESS || !count || depth > MAX_DEPTH)
        return;
    CUgraphNode *nodes = calloc(count, sizeof *nodes);
    if (!nodes || REAL(cuGraphGetNodes)(graph, nodes, &count) != CUDA_SUCCESS)
        count = 0;
    for (size_t i = 0; i < count; i++) {
        int type = -1;
        CUgraph part;
        CUDA_MEM_ALLOC_NODE_PARAMS allocation = {0};
        if (REAL(cuGraphNodeGetType)(nodes[i], &type) != CUDA_SUCCESS)
            continue;
        if (type == CU_GRAPH_NODE_TYPE_KERNEL)
            add_kernel(nodes[i], sum);
        else if (type == CU_GRAPH_NODE_TYPE_GRAPH &&
                 REAL(cuGraphChildGraphNodeGetGraph)(nodes[i], &part) == CUDA_SUCCESS)
            add_graph(part, sum, depth + 1);
        else if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC &&
                 REAL(cuGraphMemAllocNodeGetParams)(nodes[i], &allocation) == CUDA_SUCCESS)
            sum->bytes += allocation.bytes;
    }
    free(nodes);
}

/* What the driver holds for graphs at this moment, in bytes. */
static uint64_t driver_graph_bytes(void) {
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

static bool reserve_graph_memory(uint64_t bytes) {
    pthread_mutex_lock(&graph_memory.lock);
    graph_memory.needed += bytes;
    uint64_t more = graph_memory.needed > graph_memory.reserved ? graph_memory.needed - graph_memory.reserved : 0;
    graph_memory.reserved += more;
    pthread_mutex_unlock(&graph_memory.lock);
    if (!more || reserve_memory(more, true))
        return true;
    pthread_mutex_lock(&graph_memory.lock);
    graph_memory.needed -= bytes;
    graph_memory.reserved -= more;
    pthread_mutex_unlock(&graph_memory.lock);
    return false;
}

/* Something has ended or been trimmed: count what is left. */
static void update_reservation(uint64_t ended) {
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

/* The new graph's entry; its fields are used for what a launch of it counts as. */
static void add_graph_exec(CUgraphExec graph, const struct graph_work *sum) {
    struct entry entry = {
        .key = (uint64_t)(uintptr_t)graph, .kind = MEMORY_GRAPH, .physical_or_generation = sum->blocks};
    entry.references = sum->launches ? (uint32_t)sum->launches : 1;
    REAL(cuCtxGetCurrent)(&entry.context);
    ledger_add(LEDGER_GRAPHS, &entry);
    struct graph_memory *memory = sum->bytes ? calloc(1, sizeof *memory) : NULL;
    if (!memory)
        return;
    *memory = (struct graph_memory){graph, entry.context, sum->bytes, NULL};
    pthread_mutex_lock(&graph_memory.lock);
    memory->next = graph_memory.first;
    graph_memory.first = memory;
    pthread_mutex_unlock(&graph_memory.lock);
}

/* The bytes of a graph, or of all of a context's graphs, that end. */
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

#define INSTANTIATE(call)                                                                                              \
    do {                                                                                                               \
        struct graph_work sum = {0};                                                                                   \
        if (!exec || !graph || !shim_is_active())                                                                      \
            return (call);                                                                                             \
        add_graph(graph, &sum, 0);                                                                                     \
        if (sum.bytes && !reserve_graph_memory(sum.bytes))                                                             \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                                           \
        CUresult result = (call);                                                                                      \
        if (result == CUDA_SUCCESS)                                                                                    \
            add_graph_exec(*exec, &sum);                                                                               \
        else if (sum.bytes)                                                                                            \
            update_reservation(sum.bytes);                                                                             \
        return result;                                                                                                 \
    } while (0)

CUresult hook_cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *failed, char *text, size_t room) {
    INSTANTIATE(REAL(cuGraphInstantiate)(exec, graph, failed, text, room));
}

CUresult hook_cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *failed, char *text, size_t room) {
    INSTANTIATE(REAL(cuGraphInstantiate_v2)(exec, graph, failed, text, room));
}

CUresult hook_cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    INSTANTIATE(REAL(cuGraphInstantiateWithFlags)(exec, graph, flags));
}

/* It may upload the graph at once, which is work for the device. */
static CUresult instantiate_with(bool twin, CUgraphExec *exec, CUgraph graph,
                                 CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
    if (!parameters || !(parameters->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD))
        return REAL_TWIN(cuGraphInstantiateWithParams, twin)(exec, graph, parameters);
    struct thread *thread = &this_thread;
    CUresult result = gate_enter(thread, twin ? per_thread(parameters->stream) : parameters->stream);
    if (result != CUDA_SUCCESS)
        return result;
    COUNTER_ADD(thread->counters.others, 1);
    result = REAL_TWIN(cuGraphInstantiateWithParams, twin)(exec, graph, parameters);
    gate_leave(thread);
    return result;
}

CUresult hook_cuGraphInstantiateWithParams(bool twin, CUgraphExec *exec, CUgraph graph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
    INSTANTIATE(instantiate_with(twin, exec, graph, parameters));
}

CUresult hook_cuGraphExecDestroy(CUgraphExec graph) {
    struct entry entry;
    bool known =
        ledger_remove(LEDGER_GRAPHS, (uint64_t)(uintptr_t)graph, &entry); /* first: the handle may come again at once */
    uint64_t bytes = known ? remove_graphs(graph, NULL) : 0;
    CUresult result = REAL(cuGraphExecDestroy)(graph);
    if (bytes)
        update_reservation(bytes);
    return result;
}

CUresult hook_cuDeviceGraphMemTrim(CUdevice device) {
    CUresult result = REAL(cuDeviceGraphMemTrim)(device);
    if (graph_memory.reserved)
        update_reservation(0);
    return result;
}

void graphs_drop_context(CUcontext context) {
    uint64_t bytes = remove_graphs(NULL, context);
    if (bytes)
        update_reservation(bytes);
}

void graphs_count_launch(CUgraphExec graph, struct counters *counters) {
    struct entry entry = {.references = 1};
    ledger_find(LEDGER_GRAPHS, (uint64_t)(uintptr_t)graph, &entry);
    COUNTER_ADD(counters->launches, entry.references);
    COUNTER_ADD(counters->blocks, entry.physical_or_generation);
}

uint64_t graph_bytes(void) {
    pthread_mutex_lock(&graph_memory.lock);
    uint64_t bytes = graph_memory.reserved;
    pthread_mutex_unlock(&graph_memory.lock);
    return bytes;
}

void graphs_after_fork(void) {
    pthread_mutex_init(&graph_memory.lock, NULL);
    graph_memory.first = NULL; /* left to the parent's heap image */
    graph_memory.needed = graph_memory.reserved = 0;
}
