/* Edges added to a graph and removed from it, and the description of a graph for people. */
#include <stdio.h>

#include "base/exports.h"
#include "graph/graph.h"

static CUresult check(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const void *edges, size_t count) {
    SIM_ENTER();
    if (!graph_is_valid(graph) || (count && (!from || !to)))
        return CUDA_ERROR_INVALID_VALUE;
    return edges_are_ordinary(edges, count) ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const void *edges,
                                   size_t count) {
    CUresult result = check(graph, from, to, edges, count);
    return result ? result : graph_add_edges(graph, from, to, count);
}

CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count) {
    return cuGraphAddDependencies_v2(graph, from, to, NULL, count);
}

CUresult cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const void *edges,
                                      size_t count) {
    CUresult result = check(graph, from, to, edges, count);
    return result ? result : graph_remove_edges(graph, from, to, count);
}

CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count) {
    return cuGraphRemoveDependencies_v2(graph, from, to, NULL, count);
}

/* The description has the nodes with their types and the edges, whatever the flags. The form of a card's differs. */
CUresult cuGraphDebugDotPrint(CUgraph graph, const char *path, unsigned flags) {
    (void)flags;
    SIM_ENTER();
    if (!graph_is_valid(graph) || !path)
        return CUDA_ERROR_INVALID_VALUE;
    FILE *file = fopen(path, "w");
    if (!file)
        return CUDA_ERROR_OPERATING_SYSTEM;
    fprintf(file, "digraph dot {\n");
    for (size_t i = 0; i < graph->count; i++) {
        const struct sim_nodes *after = graph_dependencies(graph->node[i]);
        int type = -1;
        cuGraphNodeGetType(graph->node[i], &type);
        fprintf(file, "\"%p\" [label=\"%zu: type %d\"];\n", (void *)graph->node[i], i, type);
        for (size_t j = 0; j < after->count; j++)
            fprintf(file, "\"%p\" -> \"%p\";\n", (void *)after->node[j], (void *)graph->node[i]);
    }
    fprintf(file, "}\n");
    return fclose(file) ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}
