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
    uint32_t magic;
    int is_placed; /* while the nodes are ordered */
    struct sim_nodes after;
    struct sim_graph *graph;
};

static struct sim_node *node_of(const struct sim_command *command) {
    return (struct sim_node *)command;
}

int graph_node_is_valid(CUgraphNode node) {
    return sim_is_object(node) && node_of(node)->magic == MAGIC_NODE;
}

static void free_node(struct sim_node *node) {
    free(node->after.node);
    node->magic = 0;
    object_put(node, MAGIC_NODE);
}

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
        free_node(node_of(graph->node[i]));
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
    struct sim_node *node = object_get(MAGIC_NODE, sizeof *node);
    if (!node)
        return NULL;
    memset(node, 0, sizeof *node);
    node->magic = MAGIC_NODE;
    node->graph = graph;
    node->after = graph->tip;
    graph->tip = (struct sim_nodes){0};
    graph->node[graph->count++] = &node->command;
    add(&graph->tip, &node->command);
    return &node->command;
}

void graph_remove_last(struct sim_graph *graph) {
    struct sim_node *node = node_of(graph->node[--graph->count]);
    free(graph->tip.node);
    graph->tip = (struct sim_nodes){0};
    if (graph->count)
        add(&graph->tip, graph->node[graph->count - 1]);
    free_node(node);
}

static void remove_node(struct sim_nodes *nodes, const struct sim_command *node) {
    size_t kept = 0;
    for (size_t i = 0; i < nodes->count; i++)
        if (nodes->node[i] != node)
            nodes->node[kept++] = nodes->node[i];
    nodes->count = kept;
}

void graph_remove(struct sim_command *command) {
    struct sim_graph *graph = node_of(command)->graph;
    size_t kept = 0;
    for (size_t i = 0; i < graph->count; i++)
        if (graph->node[i] != command) {
            remove_node(&node_of(graph->node[i])->after, command);
            graph->node[kept++] = graph->node[i];
        }
    graph->count = kept;
    remove_node(&graph->tip, command);
    graph_drop_node(command);
    free_node(node_of(command));
}

const struct sim_graph *graph_of_node(const struct sim_command *node) {
    return node_of(node)->graph;
}

const struct sim_nodes *graph_dependencies(const struct sim_command *node) {
    return &node_of(node)->after;
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
    struct sim_nodes *nodes = &node_of(node)->after;
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

int edges_are_ordinary(const void *edges, size_t count) {
    for (size_t i = 0; edges && i < count * EDGE_DATA_BYTES; i++)
        if (((const unsigned char *)edges)[i])
            return 0;
    return 1;
}

static int has_edge(const struct sim_command *from, const struct sim_command *to) {
    const struct sim_nodes *after = graph_dependencies(to);
    for (size_t i = 0; i < after->count; i++)
        if (after->node[i] == from)
            return 1;
    return 0;
}

static int can_be_placed(const struct sim_node *node) {
    for (size_t i = 0; i < node->after.count; i++)
        if (!node_of(node->after.node[i])->is_placed)
            return 0;
    return !node->is_placed;
}

/* Order the nodes anew, so that the order respects all edges. -1: the edges have a circle, or there is no memory. */
static int order(struct sim_graph *graph) {
    struct sim_command **ordered = malloc(graph->room * sizeof *ordered);
    size_t placed = 0, before;
    for (size_t i = 0; i < graph->count; i++)
        node_of(graph->node[i])->is_placed = 0;
    do {
        before = placed;
        for (size_t i = 0; ordered && i < graph->count; i++)
            if (can_be_placed(node_of(graph->node[i]))) {
                node_of(graph->node[i])->is_placed = 1;
                ordered[placed++] = graph->node[i];
            }
    } while (placed > before);
    if (placed < graph->count) {
        free(ordered);
        return -1;
    }
    free(graph->node);
    graph->node = ordered;
    return 0;
}

static void remove_edges(const CUgraphNode *from, const CUgraphNode *to, size_t count) {
    for (size_t i = 0; i < count; i++)
        remove_node(&node_of(to[i])->after, from[i]);
}

/* Check that all edges are between nodes of the graph, and that all or none of the edges exist. */
static int are_edges(const struct sim_graph *graph, const CUgraphNode *from, const CUgraphNode *to, size_t count,
                     int exist) {
    for (size_t i = 0; i < count; i++)
        if (!has_node(graph, from[i]) || !has_node(graph, to[i]) || has_edge(from[i], to[i]) != exist)
            return 0;
    return 1;
}

CUresult graph_add_edges(struct sim_graph *graph, const CUgraphNode *from, const CUgraphNode *to, size_t count) {
    size_t added = 0;
    if (!are_edges(graph, from, to, count, 0))
        return CUDA_ERROR_INVALID_VALUE;
    while (added < count && !has_edge(from[added], to[added]) && !add(&node_of(to[added])->after, from[added]))
        added++;
    if (added == count && (!count || !order(graph)))
        return CUDA_SUCCESS;
    remove_edges(from, to, added);
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult graph_remove_edges(struct sim_graph *graph, const CUgraphNode *from, const CUgraphNode *to, size_t count) {
    if (!are_edges(graph, from, to, count, 1))
        return CUDA_ERROR_INVALID_VALUE;
    remove_edges(from, to, count);
    return CUDA_SUCCESS;
}
