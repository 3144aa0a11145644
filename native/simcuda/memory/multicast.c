/* Multicast objects and the memory that is bound to them. */
#include <stdlib.h>

#include "memory/vmm.h"

struct sim_multicast *multicast_of(CUmemGenericAllocationHandle handle) {
    struct sim_multicast *object = (struct sim_multicast *)handle;
    return sim_is_object(object) && object->magic == MAGIC_MULTICAST ? object : NULL;
}

static int is_bound(const struct sim_multicast *object, int device, uint64_t at, uint64_t bytes) {
    for (size_t i = 0; i < object->bindings; i++) {
        const struct sim_binding *binding = &object->binding[i];
        if (binding->device == device && binding->at < at + bytes && at < binding->at + binding->bytes)
            return 1;
    }
    return 0;
}

CUresult multicast_bind(struct sim_multicast *object, uint64_t at, struct sim_physical *physical, uint64_t bytes) {
    if (is_bound(object, physical->device, at, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    if (object->bindings == object->room) {
        size_t room = object->room ? object->room * 2 : 8;
        struct sim_binding *binding = realloc(object->binding, room * sizeof *binding);
        if (!binding)
            return CUDA_ERROR_OUT_OF_MEMORY;
        object->binding = binding;
        object->room = room;
    }
    object->binding[object->bindings++] = (struct sim_binding){physical->device, at, bytes, physical};
    physical->mappings++;
    return CUDA_SUCCESS;
}

static void unbind(struct sim_multicast *object, size_t index, struct sim_physical **list) {
    struct sim_physical *physical = object->binding[index].physical;
    object->binding[index] = object->binding[--object->bindings];
    physical->mappings--;
    vmm_remove_unused(physical, list);
}

CUresult multicast_unbind(struct sim_multicast *object, int device, uint64_t at, uint64_t bytes,
                          struct sim_physical **list) {
    for (size_t i = 0; i < object->bindings; i++) {
        const struct sim_binding *binding = &object->binding[i];
        if (binding->device == device && binding->at == at && binding->bytes == bytes)
            return unbind(object, i, list), CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

int multicast_release(CUmemGenericAllocationHandle handle, struct sim_physical **list) {
    struct sim_multicast *object = multicast_of(handle);
    if (!object)
        return 0;
    object->magic = 0;
    while (object->bindings)
        unbind(object, object->bindings - 1, list);
    free(object->binding);
    object_put(object, MAGIC_MULTICAST);
    return 1;
}
