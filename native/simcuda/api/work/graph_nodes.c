/* Nodes added to a graph by hand, and queries of nodes. A node is behind all its dependencies, because those must
 * exist when it is added. */
#include <string.h>

#include "base/exports.h"
#include "graph/graph.h"
#include "api/work/work.h"

#define EDGE_DATA_BYTES 8 /* of CUgraphEdgeData, whose zero means an ordinary edge */

static int is_graph(CUgraph graph) {
    return sim_is_object(graph) && graph->magic == MAGIC_GRAPH;
}

static CUresult add(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count, uint32_t kind) {
    SIM_ENTER();
    if (!out || !is_graph(graph))
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_command *node = graph_append(graph);
    if (!node)
        return CUDA_ERROR_OUT_OF_MEMORY;
    node->kind = COMMAND_EMPTY;
    CUresult result = graph_set_dependencies(graph, node, after, count);
    if (result) {
        graph_remove_last(graph);
        return result;
    }
    node->kind = kind;
    *out = node;
    return CUDA_SUCCESS;
}

CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count) {
    return add(node, graph, after, count, COMMAND_EMPTY);
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                 const CUDA_KERNEL_NODE_PARAMS *params) {
    struct sim_command command = {.kind = COMMAND_LAUNCH};
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = launch_command(params->function ? params->function : params->kernel, params->grid, params->block,
                                     params->shared_bytes, params->parameters, params->extra, &command);
    if (!result && !(result = add(node, graph, after, count, COMMAND_LAUNCH)))
        **node = command;
    return result;
}

CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                              const CUDA_KERNEL_NODE_PARAMS *params) {
    CUDA_KERNEL_NODE_PARAMS all = {0};
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&all, params, offsetof(CUDA_KERNEL_NODE_PARAMS, kernel));
    return cuGraphAddKernelNode_v2(node, graph, after, count, &all);
}

CUresult cuGraphAddHostNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                            const CUDA_HOST_NODE_PARAMS *params) {
    CUresult result =
        params && params->function ? add(node, graph, after, count, COMMAND_HOST) : CUDA_ERROR_INVALID_VALUE;
    if (!result) {
        (*node)->host.function = params->function;
        (*node)->host.data = params->data;
    }
    return result;
}

CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                  CUgraph child) {
    struct sim_graph *copy = is_graph(child) ? graph_copy(child) : NULL;
    if (!copy)
        return is_graph(child) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    CUresult result = add(node, graph, after, count, COMMAND_CHILD);
    if (result)
        graph_free(copy);
    else
        (*node)->child.graph = copy;
    return result;
}

static CUresult add_event(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, uint32_t kind,
                          CUevent event) {
    if (!sim_is_object(event) || event->magic != MAGIC_EVENT)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = add(node, graph, after, count, kind);
    if (!result) {
        atomic_fetch_add(&event->pending, 1);
        (*node)->event.event = event;
    }
    return result;
}

CUresult cuGraphAddEventRecordNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                   CUevent event) {
    return add_event(node, graph, after, count, COMMAND_RECORD_NODE, event);
}

CUresult cuGraphAddEventWaitNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                 CUevent event) {
    return add_event(node, graph, after, count, COMMAND_WAIT_NODE, event);
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                CUDA_MEM_ALLOC_NODE_PARAMS *params) {
    int device;
    SIM_ENTER();
    if (!params || params->pool.type != CU_MEM_ALLOCATION_PINNED ||
        params->pool.location.type != CU_MEM_LOCATION_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = device_of(params->pool.location.id, &device);
    struct sim_graph_memory *memory;
    if (result || (result = graph_memory_new(device, params->bytes, &memory)))
        return result;
    if ((result = add(node, graph, after, count, COMMAND_ALLOC_NODE))) {
        graph_memory_drop(memory);
        return result;
    }
    uint64_t bytes;
    (*node)->memory.memory = memory;
    params->address = graph_memory_address(memory, &bytes, &device);
    return CUDA_SUCCESS;
}

CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                               CUdeviceptr address) {
    struct sim_graph_memory *memory = graph_memory_at(address);
    if (!memory)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = add(node, graph, after, count, COMMAND_FREE_NODE);
    if (result)
        graph_memory_drop(memory);
    else
        (*node)->memory.memory = memory;
    return result;
}

/* As CUgraphNodeParams. */
struct node_params {
    int type, reserved[3];
    union {
        CUDA_KERNEL_NODE_PARAMS kernel;
        CUDA_HOST_NODE_PARAMS host;
        CUgraph child;
        CUevent event;
        CUDA_MEM_ALLOC_NODE_PARAMS alloc;
        CUdeviceptr free;
        char room[232];
    };
};

/* Edges with data, such as those of programmatic dependent launch, are not simulated. */
static int are_ordinary(const unsigned char *edges, size_t count) {
    for (size_t i = 0; edges && i < count * EDGE_DATA_BYTES; i++)
        if (edges[i])
            return 0;
    return 1;
}

CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count,
                           void *params) {
    struct node_params *given = params;
    if (!given)
        return CUDA_ERROR_INVALID_VALUE;
    if (!are_ordinary(edges, count))
        return CUDA_ERROR_NOT_SUPPORTED;
    switch (given->type) {
    case CU_NODE_KERNEL:
        return cuGraphAddKernelNode_v2(node, graph, after, count, &given->kernel);
    case CU_NODE_HOST:
        return cuGraphAddHostNode(node, graph, after, count, &given->host);
    case CU_NODE_GRAPH:
        return cuGraphAddChildGraphNode(node, graph, after, count, given->child);
    case CU_NODE_EMPTY:
        return cuGraphAddEmptyNode(node, graph, after, count);
    case CU_NODE_WAIT_EVENT:
        return cuGraphAddEventWaitNode(node, graph, after, count, given->event);
    case CU_NODE_EVENT_RECORD:
        return cuGraphAddEventRecordNode(node, graph, after, count, given->event);
    case CU_NODE_MEM_ALLOC:
        return cuGraphAddMemAllocNode(node, graph, after, count, &given->alloc);
    case CU_NODE_MEM_FREE:
        return cuGraphAddMemFreeNode(node, graph, after, count, given->free);
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, void *params) {
    return cuGraphAddNode_v2(node, graph, after, NULL, count, params);
}

/* Captured nodes depend on the node that was captured before, in whatever stream, because nodes run one by one. */
CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *after, void *edges, size_t *count) {
    SIM_ENTER();
    if (!sim_is_object(node) || !count || (edges && !after))
        return CUDA_ERROR_INVALID_VALUE;
    const struct sim_nodes *nodes = graph_dependencies(node);
    for (size_t i = 0; after && i < *count; i++)
        after[i] = i < nodes->count ? nodes->node[i] : NULL;
    if (edges)
        memset(edges, 0, *count * EDGE_DATA_BYTES);
    if (!after || *count > nodes->count)
        *count = nodes->count;
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *after, size_t *count) {
    return cuGraphNodeGetDependencies_v2(node, after, NULL, count);
}

/* All edges are ordinary ones, whose data is zero. */
CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to, void *edges, size_t *count) {
    size_t found = 0;
    SIM_ENTER();
    if (!is_graph(graph) || !count || !from != !to || (edges && !from))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < graph->count; i++) {
        const struct sim_nodes *after = graph_dependencies(graph->node[i]);
        for (size_t j = 0; j < after->count; j++, found++)
            if (from && found < *count) {
                from[found] = after->node[j];
                to[found] = graph->node[i];
            }
    }
    for (size_t i = found; from && i < *count; i++)
        from[i] = to[i] = NULL;
    if (edges)
        memset(edges, 0, *count * EDGE_DATA_BYTES);
    if (!from || *count > found)
        *count = found;
    return CUDA_SUCCESS;
}

CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count) {
    return cuGraphGetEdges_v2(graph, from, to, NULL, count);
}

static const int types[] = {
    [COMMAND_LAUNCH] = CU_NODE_KERNEL,
    [COMMAND_COPY] = CU_NODE_MEMCPY,
    [COMMAND_SET] = CU_NODE_MEMSET,
    [COMMAND_HOST] = CU_NODE_HOST,
    [COMMAND_WAIT_VALUE] = CU_NODE_BATCH_MEM_OP,
    [COMMAND_WRITE_VALUE] = CU_NODE_BATCH_MEM_OP,
    [COMMAND_EMPTY] = CU_NODE_EMPTY,
    [COMMAND_CHILD] = CU_NODE_GRAPH,
    [COMMAND_RECORD_NODE] = CU_NODE_EVENT_RECORD,
    [COMMAND_WAIT_NODE] = CU_NODE_WAIT_EVENT,
    [COMMAND_ALLOC_NODE] = CU_NODE_MEM_ALLOC,
    [COMMAND_FREE_NODE] = CU_NODE_MEM_FREE,
};

CUresult cuGraphNodeGetType(CUgraphNode node, int *type) {
    SIM_ENTER();
    if (!sim_is_object(node) || !type)
        return CUDA_ERROR_INVALID_VALUE;
    *type = types[node->kind];
    return CUDA_SUCCESS;
}

/* The arguments are not returned, because they are kept in another form. */
CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *params) {
    SIM_ENTER();
    if (!sim_is_object(node) || node->kind != COMMAND_LAUNCH || !params)
        return CUDA_ERROR_INVALID_VALUE;
    memset(params, 0, sizeof *params);
    params->function = node->launch.function;
    memcpy(params->grid, node->launch.grid, sizeof params->grid);
    memcpy(params->block, node->launch.block, sizeof params->block);
    return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *params) {
    CUDA_KERNEL_NODE_PARAMS all;
    CUresult result = params ? cuGraphKernelNodeGetParams_v2(node, &all) : CUDA_ERROR_INVALID_VALUE;
    if (!result)
        memcpy(params, &all, offsetof(CUDA_KERNEL_NODE_PARAMS, kernel));
    return result;
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph) {
    SIM_ENTER();
    if (!sim_is_object(node) || node->kind != COMMAND_CHILD || !graph)
        return CUDA_ERROR_INVALID_VALUE;
    *graph = node->child.graph;
    return CUDA_SUCCESS;
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *params) {
    int device;
    SIM_ENTER();
    if (!sim_is_object(node) || node->kind != COMMAND_ALLOC_NODE || !params)
        return CUDA_ERROR_INVALID_VALUE;
    memset(params, 0, sizeof *params);
    params->address = graph_memory_address(node->memory.memory, &params->bytes, &device);
    params->pool.type = CU_MEM_ALLOCATION_PINNED;
    params->pool.location.type = CU_MEM_LOCATION_DEVICE;
    params->pool.location.id = ordinal_of(device);
    return CUDA_SUCCESS;
}

CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr *address) {
    uint64_t bytes;
    int device;
    SIM_ENTER();
    if (!sim_is_object(node) || node->kind != COMMAND_FREE_NODE || !address)
        return CUDA_ERROR_INVALID_VALUE;
    *address = graph_memory_address(node->memory.memory, &bytes, &device);
    return CUDA_SUCCESS;
}
