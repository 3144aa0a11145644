/* Edges of graphs, and the removal of nodes with their edges. */
#include <string.h>

#include "base/exports.h"
#include "graph/graph.h"

#define EDGE_DATA_BYTES 8 /* of CUgraphEdgeData */

CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode *behind, void *edges, size_t *count) {
    size_t found = 0;
    SIM_ENTER();
    if (!sim_is_object(node) || !count || (edges && !behind))
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

CUresult cuGraphDestroyNode(CUgraphNode node) {
    SIM_ENTER();
    if (!sim_is_object(node))
        return CUDA_ERROR_INVALID_VALUE;
    const struct sim_graph *graph = graph_of_node(node);
    for (size_t i = 0; i < graph->count; i++)
        if (graph->node[i]->kind == COMMAND_ALLOC_NODE || graph->node[i]->kind == COMMAND_FREE_NODE)
            return CUDA_ERROR_INVALID_VALUE;
    graph_remove(node);
    return CUDA_SUCCESS;
}
