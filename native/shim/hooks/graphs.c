/* Hooks on graphs: what one launch of a graph counts as, and the reservation of the memory that its allocation nodes
 * take. */
#include "hooks/hooks.h"
#include "memory/memory.h"

#include <stdlib.h>

#define MAX_DEPTH 16 /* of graphs within graphs */

/* The work of one launch of a graph. */
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

/* Bodies of conditional nodes do not count: only the device determines how often they run, and they cannot allocate. */
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

/* Add the new graph to the ledger. `references` holds the launches of kernels in one launch of the graph, and
 * `physical_or_generation` their blocks. */
static void add_graph_exec(CUgraphExec graph, const struct graph_work *sum) {
    struct entry entry = {
        .key = (uint64_t)(uintptr_t)graph, .kind = MEMORY_GRAPH, .physical_or_generation = sum->blocks};
    entry.references = sum->launches ? (uint32_t)sum->launches : 1;
    entry.context = memory_context();
    ledger_add(LEDGER_GRAPHS, &entry);
    if (sum->bytes)
        graph_memory_add(graph, entry.context, sum->bytes);
}

#define IN_GATE(stream, call)                                                                                          \
    ({                                                                                                                 \
        CUresult inside = enter_gate(stream);                                                                          \
        this_thread.is_refused = inside != CUDA_SUCCESS;                                                               \
        if (!this_thread.is_refused) {                                                                                 \
            inside = (call);                                                                                           \
            gate_leave(&this_thread);                                                                                  \
        }                                                                                                              \
        inside;                                                                                                        \
    })

/* The driver loads the code of the graph's kernels, which a full device may have no room for.
 *
 * `stream`: the stream of the work that the call submits, or NO_STREAM for a call that submits no work. */
#define INSTANTIATE(stream, call)                                                                                      \
    do {                                                                                                               \
        struct graph_work sum = {0};                                                                                   \
        if (!exec || !graph || !shim_is_active())                                                                      \
            return (call);                                                                                             \
        add_graph(graph, &sum, 0);                                                                                     \
        if (sum.bytes && !graph_memory_reserve(sum.bytes))                                                             \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                                           \
        CUresult result = CALL_AT_GATE_WITH_ROOM(IN_GATE(stream, call), this_thread.is_refused);                       \
        if (result == CUDA_SUCCESS)                                                                                    \
            add_graph_exec(*exec, &sum);                                                                               \
        else if (sum.bytes)                                                                                            \
            graph_memory_update(sum.bytes);                                                                            \
        return result;                                                                                                 \
    } while (0)

static CUresult enter_gate(CUstream stream) {
    CUresult result = hook_enter(&this_thread, stream);
    if (result == CUDA_SUCCESS && stream != NO_STREAM)
        COUNTER_ADD(this_thread.counters.others, 1);
    return result;
}

CUresult hook_cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *failed, char *text, size_t room) {
    INSTANTIATE(NO_STREAM, REAL(cuGraphInstantiate)(exec, graph, failed, text, room));
}

CUresult hook_cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *failed, char *text, size_t room) {
    INSTANTIATE(NO_STREAM, REAL(cuGraphInstantiate_v2)(exec, graph, failed, text, room));
}

CUresult hook_cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    INSTANTIATE(NO_STREAM, REAL(cuGraphInstantiateWithFlags)(exec, graph, flags));
}

/* The call may upload the graph at once, which is work for the device. */
CUresult hook_cuGraphInstantiateWithParams(bool twin, CUgraphExec *exec, CUgraph graph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
    bool uploads = parameters && (parameters->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD);
    CUstream stream = uploads ? parameters->stream : NO_STREAM;
    INSTANTIATE(twin ? per_thread(stream) : stream,
                REAL_TWIN(cuGraphInstantiateWithParams, twin)(exec, graph, parameters));
}

CUresult hook_cuGraphExecDestroy(CUgraphExec graph) {
    struct entry entry;
    /* The entry is removed before the call, because another graph may get the handle at once. */
    bool known = ledger_remove(LEDGER_GRAPHS, (uint64_t)(uintptr_t)graph, &entry);
    uint64_t bytes = known ? graph_memory_remove(graph) : 0;
    CUresult result = REAL(cuGraphExecDestroy)(graph);
    if (bytes)
        graph_memory_update(bytes);
    return result;
}

CUresult hook_cuDeviceGraphMemTrim(CUdevice device) {
    CUresult result = REAL(cuDeviceGraphMemTrim)(device);
    if (graph_bytes())
        graph_memory_update(0);
    return result;
}

void graphs_count_launch(CUgraphExec graph, struct counters *counters) {
    struct entry entry = {.references = 1};
    ledger_find(LEDGER_GRAPHS, (uint64_t)(uintptr_t)graph, &entry);
    COUNTER_ADD(counters->launches, entry.references);
    COUNTER_ADD(counters->blocks, entry.physical_or_generation);
}
