/* Queries of the nodes and edges of graphs. */
#include <string.h>

#include "base/exports.h"
#include "graph/graph.h"
#include "api/memory/memory.h"

/* Captured nodes depend on the node that was captured before, in whatever stream, because nodes run one by one. */
CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *after, void *edges, size_t *count) {
    SIM_ENTER();
    if (!graph_node_is_valid(node) || !count || (edges && !after))
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

CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode *behind, void *edges, size_t *count) {
    size_t found = 0;
    SIM_ENTER();
    if (!graph_node_is_valid(node) || !count || (edges && !behind))
        return CUDA_ERROR_INVALID_VALUE;
    const struct sim_graph *graph = graph_of_node(node);
    for (size_t i = 0; i < graph->count; i++) {
        const struct sim_nodes *after = graph_dependencies(graph->node[i]);
        for (size_t j = 0; j < after->count; j++)
            if (after->node[j] == node) {
                if (behind && found < *count)
                    behind[found] = graph->node[i];
                found++;
            }
    }
    for (size_t i = found; behind && i < *count; i++)
        behind[i] = NULL;
    if (edges)
        memset(edges, 0, *count * EDGE_DATA_BYTES);
    if (!behind || *count > found)
        *count = found;
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode *behind, size_t *count) {
    return cuGraphNodeGetDependentNodes_v2(node, behind, NULL, count);
}

/* All edges are ordinary ones, whose data is zero. */
CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to, void *edges, size_t *count) {
    size_t found = 0;
    SIM_ENTER();
    if (!graph_is_valid(graph) || !count || !from != !to || (edges && !from))
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

CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *roots, size_t *count) {
    size_t found = 0;
    SIM_ENTER();
    if (!graph_is_valid(graph) || !count)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < graph->count; i++) {
        if (graph_dependencies(graph->node[i])->count)
            continue;
        if (roots && found < *count)
            roots[found] = graph->node[i];
        found++;
    }
    for (size_t i = found; roots && i < *count; i++)
        roots[i] = NULL;
    if (!roots || *count > found)
        *count = found;
    return CUDA_SUCCESS;
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
    [COMMAND_CONDITIONAL] = CU_NODE_CONDITIONAL,
};

CUresult cuGraphNodeGetType(CUgraphNode node, int *type) {
    SIM_ENTER();
    if (!graph_node_is_valid(node) || !type)
        return CUDA_ERROR_INVALID_VALUE;
    *type = types[node->kind];
    return CUDA_SUCCESS;
}

/* The arguments are not returned, because they are kept in another form. */
CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *params) {
    SIM_ENTER();
    if (!graph_node_is_valid(node) || node->kind != COMMAND_LAUNCH || !params)
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
    if (!graph_node_is_valid(node) || node->kind != COMMAND_CHILD || !graph)
        return CUDA_ERROR_INVALID_VALUE;
    *graph = node->child.graph;
    return CUDA_SUCCESS;
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *params) {
    int device;
    SIM_ENTER();
    if (!graph_node_is_valid(node) || node->kind != COMMAND_ALLOC_NODE || !params)
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
    if (!graph_node_is_valid(node) || node->kind != COMMAND_FREE_NODE || !address)
        return CUDA_ERROR_INVALID_VALUE;
    *address = graph_memory_address(node->memory.memory, &bytes, &device);
    return CUDA_SUCCESS;
}

CUresult cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D *copy) {
    SIM_ENTER();
    if (!graph_node_is_valid(node) || node->kind != COMMAND_COPY || !copy)
        return CUDA_ERROR_INVALID_VALUE;
    copy_parameters(node, copy);
    return CUDA_SUCCESS;
}

CUresult cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS *params) {
    SIM_ENTER();
    if (!graph_node_is_valid(node) || node->kind != COMMAND_SET || !params)
        return CUDA_ERROR_INVALID_VALUE;
    params->dst = (CUdeviceptr)node->set.dst;
    params->pitch = node->set.pitch;
    params->value = node->set.value;
    params->element = node->set.element;
    params->width = node->set.width;
    params->height = node->set.height;
    return CUDA_SUCCESS;
}
