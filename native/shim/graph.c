/* Hooks on graphs: what one launch of a graph amounts to, and the memory that its allocation nodes take.
 *
 * The driver gives such a graph its memory when it is uploaded or launched, may let several graphs use the same memory one
 * after the other, and keeps it when a graph ends, until it is trimmed. None of it can be moved. So it is counted, pinned,
 * from instantiation on: what the graphs need that exist, or what the driver says that it holds, if that is more. */
#include "shim.h"

#include <stdlib.h>

#define DEPTH 16 /* graphs within graphs */

struct memory {
    CUgraphExec graph;
    CUcontext context;
    uint64_t bytes;
    struct memory *next;
};

static struct {
    pthread_mutex_t lock;
    struct memory *first;
    uint64_t needed, counted;
} memories = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* What a launch of it does. */
struct sum {
    uint64_t launches, blocks, bytes;
};

static void add_kernel(CUgraphNode node, struct sum *sum) {
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
static void add_graph(CUgraph graph, struct sum *sum, int depth) {
    size_t count = 0;
    if (REAL(cuGraphGetNodes)(graph, NULL, &count) != CUDA_SUCCESS || !count || depth > DEPTH)
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
static uint64_t held(void) {
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

static bool need(uint64_t bytes) {
    pthread_mutex_lock(&memories.lock);
    memories.needed += bytes;
    uint64_t more = memories.needed > memories.counted ? memories.needed - memories.counted : 0;
    memories.counted += more;
    pthread_mutex_unlock(&memories.lock);
    if (!more || reserve(more, true))
        return true;
    pthread_mutex_lock(&memories.lock);
    memories.needed -= bytes;
    memories.counted -= more;
    pthread_mutex_unlock(&memories.lock);
    return false;
}

/* Something has ended or been trimmed: count what is left. */
static void settle(uint64_t ended) {
    uint64_t holds = held(), over = 0;
    pthread_mutex_lock(&memories.lock);
    memories.needed -= ended;
    uint64_t left = memories.needed > holds ? memories.needed : holds;
    if (left < memories.counted) {
        over = memories.counted - left;
        memories.counted = left;
    }
    pthread_mutex_unlock(&memories.lock);
    account_release(over, true);
}

/* The new graph's entry; its fields are used for what a launch of it counts as. */
static void enter(CUgraphExec graph, const struct sum *sum) {
    struct entry entry = {.key = (uint64_t)(uintptr_t)graph, .kind = GRAPH, .of = sum->blocks};
    entry.references = sum->launches ? (uint32_t)sum->launches : 1;
    REAL(cuCtxGetCurrent)(&entry.context);
    ledger_add(GRAPHS, &entry);
    struct memory *memory = sum->bytes ? calloc(1, sizeof *memory) : NULL;
    if (!memory)
        return;
    *memory = (struct memory){graph, entry.context, sum->bytes, NULL};
    pthread_mutex_lock(&memories.lock);
    memory->next = memories.first;
    memories.first = memory;
    pthread_mutex_unlock(&memories.lock);
}

/* The bytes of a graph, or of all of a context's graphs, that end. */
static uint64_t forget(CUgraphExec graph, CUcontext context) {
    uint64_t bytes = 0;
    pthread_mutex_lock(&memories.lock);
    for (struct memory **at = &memories.first; *at;) {
        struct memory *memory = *at;
        if (graph ? memory->graph != graph : memory->context != context) {
            at = &memory->next;
            continue;
        }
        bytes += memory->bytes;
        *at = memory->next;
        free(memory);
    }
    pthread_mutex_unlock(&memories.lock);
    return bytes;
}

#define INSTANTIATE(call)                                                                                              \
    do {                                                                                                               \
        struct sum sum = {0};                                                                                          \
        if (!exec || !graph || !shim_is_active())                                                                      \
            return (call);                                                                                             \
        add_graph(graph, &sum, 0);                                                                                     \
        if (sum.bytes && !need(sum.bytes))                                                                             \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                                           \
        CUresult result = (call);                                                                                      \
        if (result == CUDA_SUCCESS)                                                                                    \
            enter(*exec, &sum);                                                                                        \
        else if (sum.bytes)                                                                                            \
            settle(sum.bytes);                                                                                         \
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
    struct thread *thread = &self;
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
    bool known = ledger_take(GRAPHS, (uint64_t)(uintptr_t)graph, &entry); /* first: the handle may come again at once */
    uint64_t bytes = known ? forget(graph, NULL) : 0;
    CUresult result = REAL(cuGraphExecDestroy)(graph);
    if (bytes)
        settle(bytes);
    return result;
}

CUresult hook_cuDeviceGraphMemTrim(CUdevice device) {
    CUresult result = REAL(cuDeviceGraphMemTrim)(device);
    if (memories.counted)
        settle(0);
    return result;
}

void graphs_drop_context(CUcontext context) {
    uint64_t bytes = forget(NULL, context);
    if (bytes)
        settle(bytes);
}

void graphs_count(CUgraphExec graph, struct counters *counters) {
    struct entry entry = {.references = 1};
    ledger_find(GRAPHS, (uint64_t)(uintptr_t)graph, &entry);
    COUNTER_ADD(counters->launches, entry.references);
    COUNTER_ADD(counters->blocks, entry.of);
}

uint64_t graphs_counted(void) {
    pthread_mutex_lock(&memories.lock);
    uint64_t bytes = memories.counted;
    pthread_mutex_unlock(&memories.lock);
    return bytes;
}

void graphs_after_fork(void) {
    pthread_mutex_init(&memories.lock, NULL);
    memories.first = NULL; /* left to the parent's heap image */
    memories.needed = memories.counted = 0;
}
