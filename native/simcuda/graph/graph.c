/* Graphs, made by capture or by hand. Nodes run one after the other in the order in which they were made, which
 * respects all edges. */
#include <stdlib.h>
#include <string.h>

#include "base/sim.h"
#include "context/context.h"
#include "graph/graph.h"

/* A node of a graph. The command comes first, because programs name a node by its command. */
struct sim_node {
    struct sim_command command;
    struct sim_nodes after;
    struct sim_graph *graph;
};

int graph_is_valid(const struct sim_graph *graph) {
    return sim_is_object(graph) && graph->magic == MAGIC_GRAPH;
}

struct sim_graph *graph_new(void) {
    struct sim_graph *graph = object_get(MAGIC_GRAPH, sizeof *graph);
    if (!graph)
        return NULL;
    memset(graph, 0, sizeof *graph);
    graph->magic = MAGIC_GRAPH;
    return graph;
}

void graph_drop_node(struct sim_command *node) {
    if (node->kind == COMMAND_RECORD_NODE || node->kind == COMMAND_WAIT_NODE)
        event_unpin(node->event.event);
    else if (node->kind == COMMAND_ALLOC_NODE || node->kind == COMMAND_FREE_NODE)
        graph_memory_drop(node->memory.memory);
    else if (node->kind == COMMAND_CHILD && node->child.graph)
        graph_free(node->child.graph);
    else if (node->kind == COMMAND_CONDITIONAL) {
        for (unsigned i = 0; i < node->conditional.part->size; i++)
            if (node->conditional.part->graph[i])
                graph_free(node->conditional.part->graph[i]);
        conditional_free(node->conditional.part);
    }
}

void graph_free(struct sim_graph *graph) {
    for (size_t i = 0; i < graph->count; i++) {
        graph_drop_node(graph->node[i]);
        free(((struct sim_node *)graph->node[i])->after.node);
        free(graph->node[i]);
    }
    references_drop(&graph->user_objects);
    conditions_drop(graph);
    free(graph->node);
    free(graph->tip.node);
    object_put(graph, MAGIC_GRAPH);
}

static int add(struct sim_nodes *nodes, struct sim_command *node) {
    if (nodes->count == nodes->room) {
        size_t room = nodes->room ? nodes->room * 2 : 2;
        struct sim_command **grown = realloc(nodes->node, room * sizeof *grown);
        if (!grown)
            return -1;
        nodes->node = grown;
        nodes->room = room;
    }
    nodes->node[nodes->count++] = node;
    return 0;
}

struct sim_command *graph_append(struct sim_graph *graph) {
    if (graph->count == graph->room) {
        size_t room = graph->room ? graph->room * 2 : 16;
        struct sim_command **node = realloc(graph->node, room * sizeof *node);
        if (!node)
            return NULL;
        graph->node = node;
        graph->room = room;
    }
    struct sim_node *node = calloc(1, sizeof *node);
    if (!node)
        return NULL;
    node->graph = graph;
    node->after = graph->tip;
    graph->tip = (struct sim_nodes){0};
    graph->node[graph->count++] = &node->command;
    add(&graph->tip, &node->command);
    return &node->command;
}

void graph_remove_last(struct sim_graph *graph) {
    struct sim_node *node = (struct sim_node *)graph->node[--graph->count];
    free(graph->tip.node);
    graph->tip = (struct sim_nodes){0};
    if (graph->count)
        add(&graph->tip, graph->node[graph->count - 1]);
    free(node->after.node);
    free(node);
}

static void remove_node(struct sim_nodes *nodes, const struct sim_command *node) {
    size_t kept = 0;
    for (size_t i = 0; i < nodes->count; i++)
        if (nodes->node[i] != node)
            nodes->node[kept++] = nodes->node[i];
    nodes->count = kept;
}

void graph_remove(struct sim_command *command) {
    struct sim_node *node = (struct sim_node *)command;
    struct sim_graph *graph = node->graph;
    size_t kept = 0;
    for (size_t i = 0; i < graph->count; i++)
        if (graph->node[i] != command) {
            remove_node(&((struct sim_node *)graph->node[i])->after, command);
            graph->node[kept++] = graph->node[i];
        }
    graph->count = kept;
    remove_node(&graph->tip, command);
    graph_drop_node(command);
    free(node->after.node);
    free(node);
}

const struct sim_graph *graph_of_node(const struct sim_command *node) {
    return ((const struct sim_node *)node)->graph;
}

const struct sim_nodes *graph_dependencies(const struct sim_command *node) {
    return &((const struct sim_node *)node)->after;
}

static int has_node(const struct sim_graph *graph, const struct sim_command *node) {
    for (size_t i = graph->count; i-- > 0;)
        if (graph->node[i] == node)
            return 1;
    return 0;
}

static CUresult change(const struct sim_graph *graph, struct sim_nodes *nodes, const CUgraphNode *more, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (!more || !has_node(graph, more[i]))
            return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (add(nodes, more[i]))
            return CUDA_ERROR_OUT_OF_MEMORY;
    return CUDA_SUCCESS;
}

CUresult graph_set_dependencies(struct sim_graph *graph, struct sim_command *node, const CUgraphNode *after,
                                size_t count) {
    struct sim_nodes *nodes = &((struct sim_node *)node)->after;
    nodes->count = 0;
    return change(graph, nodes, after, count);
}

CUresult graph_set_tip(struct sim_graph *graph, const CUgraphNode *nodes, size_t count, int adds) {
    struct sim_nodes tip = {0};
    CUresult result = adds ? change(graph, &tip, graph->tip.node, graph->tip.count) : CUDA_SUCCESS;
    if (!result)
        result = change(graph, &tip, nodes, count);
    free(result ? tip.node : graph->tip.node);
    if (!result)
        graph->tip = tip;
    return result;
}
