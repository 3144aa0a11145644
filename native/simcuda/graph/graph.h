/* Graphs, their memory, and the captures that make graphs. */
#ifndef SIMCUDA_GRAPH_H
#define SIMCUDA_GRAPH_H

#include "base/sim.h"

/* Nodes, each of which is named by its command. */
struct sim_nodes {
    struct sim_command **node;
    size_t count, room;
};

/* The nodes of a graph, in an order that respects all edges. */
struct sim_graph {
    uint32_t magic;
    struct sim_command **node;
    size_t count, room;
    struct sim_nodes tip; /* the nodes on which the next captured node depends */
    struct sim_reference *user_objects;
    struct sim_condition *conditions; /* of the handles that the program has created for the graph */
};

/* graph.c */
struct sim_graph *graph_new(void);
int graph_is_valid(const struct sim_graph *graph);
void graph_free(struct sim_graph *graph);
void graph_drop_node(struct sim_command *node);            /* frees the objects of the command */
struct sim_command *graph_append(struct sim_graph *graph); /* a node that depends on the tip, and is the tip now */
void graph_remove_last(struct sim_graph *graph);           /* undoes graph_append of a node without objects */
void graph_remove(struct sim_command *node);               /* with its edges and objects */
int graph_node_is_valid(CUgraphNode node);                 /* not destroyed, and its graph neither */
const struct sim_graph *graph_of_node(const struct sim_command *node);
const struct sim_nodes *graph_dependencies(const struct sim_command *node);
CUresult graph_set_dependencies(struct sim_graph *graph, struct sim_command *node, const CUgraphNode *after,
                                size_t count);
#define EDGE_DATA_BYTES 8                                /* of CUgraphEdgeData, whose zero means an ordinary edge */
int edges_are_ordinary(const void *edges, size_t count); /* edges with other data are not simulated */
/* Add or remove `count` edges; CUDA_ERROR_INVALID_VALUE: none of them. */
CUresult graph_add_edges(struct sim_graph *graph, const CUgraphNode *from, const CUgraphNode *to, size_t count);
CUresult graph_remove_edges(struct sim_graph *graph, const CUgraphNode *from, const CUgraphNode *to, size_t count);
/* Replace the nodes on which the next captured node depends, or add to them. */
CUresult graph_set_tip(struct sim_graph *graph, const CUgraphNode *nodes, size_t count, int adds);

/* user_object.c: references to objects of the program, which graphs own */
int references_copy(struct sim_reference **to, struct sim_reference *const *from); /* -1: out of memory */
void references_drop(struct sim_reference **list);

/* graph_body.c: what a launch executes, unchanged by later changes of the executable graph */
struct sim_graph_body {
    _Atomic uint32_t references;
    struct sim_command *node;          /* with those of child graphs in their places */
    const struct sim_command **origin; /* of each node: its node of the graph */
    size_t count;
    struct sim_reference *user_objects;
};
struct sim_graph_body *graph_body(const struct sim_graph *graph); /* NULL: out of memory */
void graph_body_release(struct sim_graph_body *body);
/* Return the node of the body that was made from a node of the graph; NULL: none. */
struct sim_command *graph_body_find(const struct sim_graph_body *body, const struct sim_command *origin);
struct sim_graph_body *graph_body_copy(const struct sim_graph_body *body); /* NULL: out of memory */
/* Replace the nodes that `old` has as well by those of `new`, which has nodes of the same kinds. */
CUresult graph_body_replace(struct sim_graph_body *body, const struct sim_graph_body *old,
                            const struct sim_graph_body *new);
struct sim_graph *graph_copy(const struct sim_graph *graph);
CUresult graph_prepare(const struct sim_graph_body *body);              /* memory for its allocations */
void graph_end_launch(const struct sim_graph_body *body, size_t count); /* of the first `count` nodes */

/* exec.c */
struct sim_graph_exec {
    uint32_t magic;
    struct sim_graph_body *body; /* under the lock: an update replaces it */
    uint64_t flags;
};
int exec_is_valid(CUgraphExec exec);
struct sim_graph_body *exec_body(struct sim_graph_exec *exec);             /* with a reference */
int exec_update(struct sim_graph_exec *exec, struct sim_graph_body *body); /* the outcome; takes the body */
/* Change a node, or the nodes of a child graph, as though they had had these commands at instantiation. */
CUresult exec_change_node(CUgraphExec exec, CUgraphNode node, const struct sim_command *command);
CUresult exec_change_child(CUgraphExec exec, CUgraphNode node, const struct sim_graph *child);

/* conditional.c: conditional nodes */
struct sim_conditional {
    struct sim_condition *condition;
    unsigned type, size;
    struct sim_graph **graph;     /* of a node: its bodies */
    struct sim_graph_body **body; /* of a node in a body: what each of them executes */
};
CUresult condition_new(struct sim_graph *graph, struct sim_context *context, uint32_t value, uint32_t flags,
                       CUgraphConditionalHandle *out);
void conditions_drop(struct sim_graph *graph);
int condition_set(CUgraphConditionalHandle handle, uint32_t value); /* 0: no such condition */
/* These two give no bodies yet, and the last does not free them. */
CUresult conditional_new(const CUDA_CONDITIONAL_NODE_PARAMS *params, struct sim_conditional **out);
CUresult conditional_copy(const struct sim_conditional *other, struct sim_conditional **out);
void conditional_free(struct sim_conditional *conditional);
int conditionals_are_valid(const struct sim_graph *graph); /* their bodies have only nodes that are allowed there */
int graph_has_conditional(const struct sim_graph *graph);
void conditionals_begin_launch(const struct sim_graph_body *body); /* gives conditions their default values */
/* Return the body to execute by the present value; NULL: none. */
const struct sim_graph_body *conditional_choose(const struct sim_conditional *conditional);

/* graph_memory.c: the memory of allocation nodes */
CUresult graph_memory_new(int device, uint64_t bytes, struct sim_graph_memory **out);
struct sim_graph_memory *graph_memory_at(CUdeviceptr address); /* with a reference; NULL: none begins there */
int graph_memory_covers(CUdeviceptr address, uint64_t bytes);
CUdeviceptr graph_memory_address(const struct sim_graph_memory *memory, uint64_t *bytes, int *device);
void graph_memory_hold(struct sim_graph_memory *memory);
void graph_memory_drop(struct sim_graph_memory *memory);
CUresult graph_memory_prepare(struct sim_graph_memory *memory); /* before a launch; undone by graph_memory_launched */
void graph_memory_launched(struct sim_graph_memory *memory);
void graph_memory_map(struct sim_graph_memory *memory);
int graph_memory_unmap(struct sim_graph_memory *memory); /* 0: it was not mapped */

/* capture.c */
CUresult capture_append(struct sim_stream *stream,
                        struct sim_command **out); /* keeps sim.capture_lock if it succeeds */
void capture_discard(struct sim_stream *stream);   /* the stream is being destroyed */
CUresult capture_record(struct sim_event *event, struct sim_stream *stream);
CUresult capture_wait(struct sim_event *event, struct sim_stream *stream);

#endif
