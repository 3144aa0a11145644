/* Copies of graphs, and bodies. A body is the list of nodes that a launch executes: the nodes of an executable graph, with
 * the nodes of each child graph in the place of the child. */
#include <stdlib.h>

#include "base/sim.h"
#include "graph/graph.h"

/* Copy a node, which refers to the same objects as the original. -1: out of memory. */
static int copy_node(struct sim_command *to, const struct sim_command *from) {
    *to = *from;
    if (from->kind == COMMAND_RECORD_NODE || from->kind == COMMAND_WAIT_NODE)
        atomic_fetch_add(&from->event.event->pending, 1);
    else if (from->kind == COMMAND_ALLOC_NODE || from->kind == COMMAND_FREE_NODE)
        graph_memory_hold(from->memory.memory);
    else if (from->kind == COMMAND_CHILD && !(to->child.graph = graph_copy(from->child.graph)))
        return -1;
    return 0;
}

/* Give the last node of the copy the edges of its original. */
static CUresult copy_edges(struct sim_graph *copy, const struct sim_graph *graph) {
    const struct sim_nodes *after = graph_dependencies(graph->node[copy->count - 1]);
    struct sim_command **node = calloc(after->count + 1, sizeof *node);
    for (size_t i = 0; node && i < after->count; i++)
        for (size_t at = copy->count - 1; at-- > 0 && !node[i];)
            if (graph->node[at] == after->node[i])
                node[i] = copy->node[at];
    CUresult result =
        node ? graph_set_dependencies(copy, copy->node[copy->count - 1], node, after->count) : CUDA_ERROR_OUT_OF_MEMORY;
    free(node);
    return result;
}

struct sim_graph *graph_copy(const struct sim_graph *graph) {
    struct sim_graph *copy = graph_new();
    for (size_t i = 0; copy && i < graph->count; i++) {
        struct sim_command *node = graph_append(copy);
        if (!node || copy_node(node, graph->node[i]) || copy_edges(copy, graph)) {
            graph_free(copy);
            return NULL;
        }
    }
    if (copy && references_copy(&copy->user_objects, &graph->user_objects)) {
        graph_free(copy);
        return NULL;
    }
    return copy;
}

static size_t total(const struct sim_graph *graph) {
    size_t count = 0;
    for (size_t i = 0; i < graph->count; i++)
        count += graph->node[i]->kind == COMMAND_CHILD ? total(graph->node[i]->child.graph) : 1;
    return count;
}

static void drop(struct sim_command *node) {
    if (node->kind == COMMAND_CONDITIONAL)
        for (unsigned i = 0; i < node->conditional.part->size; i++)
            if (node->conditional.part->body[i])
                graph_body_release(node->conditional.part->body[i]);
    graph_drop_node(node);
}

/* Give a conditional node in a body the bodies of the original. -1: out of memory. */
static int copy_bodies(struct sim_command *copy, const struct sim_conditional *original) {
    if (conditional_copy(original, &copy->conditional.part))
        return -1;
    for (unsigned i = 0; i < original->size; i++) {
        copy->conditional.part->body[i] =
            original->graph[i] ? graph_body(original->graph[i]) : graph_body_copy(original->body[i]);
        if (!copy->conditional.part->body[i]) {
            drop(copy);
            return -1;
        }
    }
    return 0;
}

/* Add a copy of a node to the body. -1: out of memory. */
static int add(struct sim_graph_body *body, const struct sim_command *node, const struct sim_command *origin) {
    struct sim_command *copy = &body->node[body->count];
    if (copy_node(copy, node) || (node->kind == COMMAND_CONDITIONAL && copy_bodies(copy, node->conditional.part)))
        return -1;
    body->origin[body->count++] = origin;
    return 0;
}

/* Return 0, or -1 without memory; the nodes until then are in the body. */
static int fill(struct sim_graph_body *body, const struct sim_graph *graph) {
    references_copy(&body->user_objects, &graph->user_objects);
    for (size_t i = 0; i < graph->count; i++) {
        const struct sim_command *node = graph->node[i];
        if (node->kind == COMMAND_CHILD ? fill(body, node->child.graph) : add(body, node, node))
            return -1;
    }
    return 0;
}

/* Return an empty body with room for `count` nodes; NULL: out of memory. */
static struct sim_graph_body *new_body(size_t count) {
    struct sim_graph_body *body = calloc(1, sizeof *body);
    if (!body)
        return NULL;
    atomic_store(&body->references, 1);
    body->node = calloc(count + 1, sizeof *body->node);
    body->origin = calloc(count + 1, sizeof *body->origin);
    if (body->node && body->origin)
        return body;
    graph_body_release(body);
    return NULL;
}

struct sim_graph_body *graph_body(const struct sim_graph *graph) {
    struct sim_graph_body *body = new_body(total(graph));
    if (body && fill(body, graph)) {
        graph_body_release(body);
        return NULL;
    }
    return body;
}

struct sim_graph_body *graph_body_copy(const struct sim_graph_body *body) {
    struct sim_graph_body *copy = new_body(body->count);
    int failed = copy && references_copy(&copy->user_objects, &body->user_objects);
    for (size_t i = 0; copy && !failed && i < body->count; i++)
        failed = add(copy, &body->node[i], body->origin[i]);
    if (failed) {
        graph_body_release(copy);
        return NULL;
    }
    return copy;
}

struct sim_command *graph_body_find(const struct sim_graph_body *body, const struct sim_command *origin) {
    struct sim_command *found = NULL;
    for (size_t i = 0; i < body->count && !found; i++) {
        struct sim_command *node = &body->node[i];
        if (body->origin[i] == origin)
            found = node;
        else if (node->kind == COMMAND_CONDITIONAL)
            for (unsigned each = 0; each < node->conditional.part->size && !found; each++)
                found = graph_body_find(node->conditional.part->body[each], origin);
    }
    return found;
}

CUresult graph_body_replace(struct sim_graph_body *body, const struct sim_graph_body *old,
                            const struct sim_graph_body *new) {
    for (size_t i = 0; i < old->count; i++) {
        struct sim_command *node = graph_body_find(body, old->origin[i]);
        if (!node)
            return CUDA_ERROR_INVALID_VALUE;
        drop(node);
        node->kind = COMMAND_EMPTY; /* for the release of the body after a failure */
        if (copy_node(node, &new->node[i]))
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

void graph_body_release(struct sim_graph_body *body) {
    if (atomic_fetch_sub(&body->references, 1) != 1)
        return;
    for (size_t i = 0; i < body->count; i++)
        drop(&body->node[i]);
    references_drop(&body->user_objects);
    free(body->node);
    free(body->origin);
    free(body);
}

void graph_end_launch(const struct sim_graph_body *body, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (body->node[i].kind == COMMAND_ALLOC_NODE)
            graph_memory_launched(body->node[i].memory.memory);
}

/* Prepare one launch: get all its memory, and reset its events. */
CUresult graph_prepare(const struct sim_graph_body *body) {
    for (size_t i = 0; i < body->count; i++) {
        CUresult result =
            body->node[i].kind == COMMAND_ALLOC_NODE ? graph_memory_prepare(body->node[i].memory.memory) : CUDA_SUCCESS;
        if (result) {
            graph_end_launch(body, i);
            return result;
        }
    }
    for (size_t i = 0; i < body->count; i++)
        if (body->node[i].kind == COMMAND_RECORD_NODE)
            atomic_fetch_add(&body->node[i].event.event->progress->recorded, 1);
    return CUDA_SUCCESS;
}
