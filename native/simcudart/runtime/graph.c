/* Graphs. */
#include "runtime.h"

EXPORT cudaError_t cudaGraphCreate(cudaGraph_t *graph, unsigned flags) {
    WITH_CONTEXT(driver.cuGraphCreate(graph, flags));
}

EXPORT cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    WITH_CONTEXT(driver.cuGraphDestroy(graph));
}

EXPORT cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
    WITH_CONTEXT(driver.cuGraphGetNodes(graph, nodes, count));
}

EXPORT cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, enum cudaGraphNodeType *type) {
    WITH_CONTEXT(driver.cuGraphNodeGetType(node, (CUgraphNodeType *)type));
}

EXPORT cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t *nodes, cudaGraphEdgeData *edges,
                                                size_t *count) {
    WITH_CONTEXT(driver.cuGraphNodeGetDependencies(node, nodes, (CUgraphEdgeData *)edges, count));
}

EXPORT cudaError_t cudaGraphAddNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *after,
                                    const cudaGraphEdgeData *edges, size_t count, struct cudaGraphNodeParams *params) {
    WITH_CONTEXT(
        driver.cuGraphAddNode(node, graph, after, (const CUgraphEdgeData *)edges, count, (CUgraphNodeParams *)params));
}

static CUresult conditional_handle(cudaGraphConditionalHandle *handle, cudaGraph_t graph, unsigned value,
                                   unsigned flags) {
    CUcontext context;
    CUresult result = driver.cuCtxGetCurrent(&context);
    return result ? result
                  : driver.cuGraphConditionalHandleCreate((CUgraphConditionalHandle *)handle, graph, context, value,
                                                          flags);
}

EXPORT cudaError_t cudaGraphConditionalHandleCreate(cudaGraphConditionalHandle *handle, cudaGraph_t graph,
                                                    unsigned value, unsigned flags) {
    WITH_CONTEXT(conditional_handle(handle, graph, value, flags));
}

EXPORT cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags) {
    WITH_CONTEXT(driver.cuGraphInstantiateWithFlags(exec, graph, flags));
}

EXPORT cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags) {
    WITH_CONTEXT(driver.cuGraphInstantiateWithFlags(exec, graph, flags));
}

EXPORT cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    WITH_CONTEXT(driver.cuGraphExecDestroy(exec));
}

EXPORT cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphExecUpdateResultInfo *info) {
    WITH_CONTEXT(driver.cuGraphExecUpdate(exec, graph, (CUgraphExecUpdateResultInfo *)info));
}

EXPORT cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream) {
    WITH_CONTEXT(driver.cuGraphUpload(exec, stream));
}

EXPORT cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    WITH_CONTEXT(driver.cuGraphLaunch(exec, stream));
}

EXPORT cudaError_t cudaGraphDebugDotPrint(cudaGraph_t graph, const char *path, unsigned flags) {
    WITH_CONTEXT(driver.cuGraphDebugDotPrint(graph, path, flags));
}

/* --- objects of the program whose life ends with that of a graph --- */

EXPORT cudaError_t cudaUserObjectCreate(cudaUserObject_t *object, void *data, cudaHostFn_t destroy, unsigned count,
                                        unsigned flags) {
    WITH_DRIVER(driver.cuUserObjectCreate(object, data, destroy, count, flags));
}

EXPORT cudaError_t cudaUserObjectRetain(cudaUserObject_t object, unsigned count) {
    WITH_DRIVER(driver.cuUserObjectRetain(object, count));
}

EXPORT cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned count) {
    WITH_DRIVER(driver.cuUserObjectRelease(object, count));
}

EXPORT cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned count,
                                             unsigned flags) {
    WITH_DRIVER(driver.cuGraphRetainUserObject(graph, object, count, flags));
}

EXPORT cudaError_t cudaGraphReleaseUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned count) {
    WITH_DRIVER(driver.cuGraphReleaseUserObject(graph, object, count));
}
