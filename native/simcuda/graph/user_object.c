/* User objects: a program's own objects with a count of references, some of which graphs own. Copies of a graph own as
 * many references as the graph (CUDA programming guide, "CUDA User Objects"). */
#include <pthread.h>
#include <stdlib.h>

#include "base/exports.h"
#include "graph/graph.h"

struct sim_user_object {
    uint32_t magic;
    _Atomic uint64_t references;
    CUhostFn destroy;
    void *data;
};

struct sim_reference {
    struct sim_user_object *object;
    uint64_t count;
    struct sim_reference *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the lists of all graphs */

static int is_object(CUuserObject object) {
    return sim_is_object(object) && object->magic == MAGIC_USER_OBJECT;
}

/* In a thread of its own, as in the driver's internal thread, and without access to the driver. */
static void *destroy(void *argument) {
    struct sim_user_object *object = argument;
    sim_thread.in_callback = 1;
    object->destroy(object->data);
    object_put(object, MAGIC_USER_OBJECT);
    return NULL;
}

static void release(struct sim_user_object *object, uint64_t count) {
    pthread_t thread;
    if (atomic_fetch_sub(&object->references, count) != count)
        return;
    object->magic = 0;
    if (pthread_create(&thread, NULL, destroy, object) == 0)
        pthread_detach(thread);
}

static int add(struct sim_reference **list, struct sim_user_object *object, uint64_t count) {
    struct sim_reference *reference = malloc(sizeof *reference);
    if (!reference)
        return -1;
    *reference = (struct sim_reference){object, count, *list};
    *list = reference;
    return 0;
}

int references_copy(struct sim_reference **to, struct sim_reference *const *from) {
    int failed = 0;
    pthread_mutex_lock(&lock);
    for (struct sim_reference *each = *from; each && !failed; each = each->next)
        if (!(failed = add(to, each->object, each->count)))
            atomic_fetch_add(&each->object->references, each->count);
    pthread_mutex_unlock(&lock);
    return failed;
}

void references_drop(struct sim_reference **list) {
    while (*list) {
        struct sim_reference *reference = *list;
        *list = reference->next;
        release(reference->object, reference->count);
        free(reference);
    }
}

CUresult cuUserObjectCreate(CUuserObject *out, void *data, CUhostFn destructor, unsigned count, unsigned flags) {
    SIM_ENTER();
    if (!out || !destructor || !count || flags != CU_USER_OBJECT_NO_SYNC)
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_user_object *object = object_get(MAGIC_USER_OBJECT, sizeof *object);
    if (!object)
        return CUDA_ERROR_OUT_OF_MEMORY;
    object->destroy = destructor;
    object->data = data;
    atomic_store(&object->references, count);
    object->magic = MAGIC_USER_OBJECT;
    *out = object;
    return CUDA_SUCCESS;
}

CUresult cuUserObjectRetain(CUuserObject object, unsigned count) {
    SIM_ENTER();
    if (!is_object(object) || !count)
        return CUDA_ERROR_INVALID_VALUE;
    atomic_fetch_add(&object->references, count);
    return CUDA_SUCCESS;
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned count) {
    SIM_ENTER();
    if (!is_object(object) || !count || count > atomic_load(&object->references))
        return CUDA_ERROR_INVALID_VALUE;
    release(object, count);
    return CUDA_SUCCESS;
}

CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned count, unsigned flags) {
    SIM_ENTER();
    if (!sim_is_object(graph) || graph->magic != MAGIC_GRAPH || !is_object(object) || !count ||
        flags > CU_GRAPH_USER_OBJECT_MOVE)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    int failed = add(&graph->user_objects, object, count);
    if (!failed && flags != CU_GRAPH_USER_OBJECT_MOVE)
        atomic_fetch_add(&object->references, count);
    pthread_mutex_unlock(&lock);
    return failed ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned count) {
    SIM_ENTER();
    if (!sim_is_object(graph) || graph->magic != MAGIC_GRAPH || !is_object(object) || !count)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t left = count;
    pthread_mutex_lock(&lock);
    for (struct sim_reference **link = &graph->user_objects; *link && left;) {
        struct sim_reference *reference = *link;
        uint64_t taken = reference->object != object ? 0 : reference->count < left ? reference->count : left;
        left -= taken;
        reference->count -= taken;
        if (reference->count) {
            link = &reference->next;
            continue;
        }
        *link = reference->next;
        free(reference);
    }
    pthread_mutex_unlock(&lock);
    if (count - left)
        release(object, count - left);
    return left ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
