/* Access of a device's launches to the memory of other devices. Every two devices can be peers. Copies that the program
 * submits need no access.
 *
 * Source: CUDA programming guide, "Peer-to-Peer Memory Access" and "Virtual Memory Management". */
#include "base/exports.h"
#include "context/context.h"
#include "memory/alloc.h"
#include "memory/vmm.h"

enum { P2P_PERFORMANCE_RANK = 1, P2P_ACCESS_SUPPORTED, P2P_LAST = 5 }; /* CUdevice_P2PAttribute */

static pthread_mutex_t peers_lock = PTHREAD_MUTEX_INITIALIZER; /* the field `peers` of all contexts */

static CUresult two_devices(CUdevice device, CUdevice peer, int *is_same) {
    int first, second;
    SIM_ENTER();
    CUresult result = device_of(device, &first);
    if (!result)
        result = device_of(peer, &second);
    if (!result)
        *is_same = first == second;
    return result;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
    int is_same;
    CUresult result = two_devices(device, peer, &is_same);
    if (result || !can)
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    *can = !is_same;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int *value, int attribute, CUdevice device, CUdevice peer) {
    int is_same;
    CUresult result = two_devices(device, peer, &is_same);
    if (result || is_same)
        return result ? result : CUDA_ERROR_INVALID_DEVICE;
    if (!value || attribute < P2P_PERFORMANCE_RANK || attribute > P2P_LAST)
        return CUDA_ERROR_INVALID_VALUE;
    *value = attribute == P2P_ACCESS_SUPPORTED;
    return CUDA_SUCCESS;
}

/* peers_lock is held. NULL: there is none. */
static uint64_t *place_of(struct sim_context *context, uint64_t id) {
    for (int i = 0; i < SIM_MAX_PEERS; i++)
        if (context->peers[i] == id)
            return &context->peers[i];
    return NULL;
}

static CUresult both_contexts(struct sim_context **current, struct sim_context **peer) {
    CUresult result = context_current(current);
    if (result || !context_is_valid(*peer))
        return result ? result : CUDA_ERROR_INVALID_CONTEXT;
    *current = context_of_memory(*current);
    *peer = context_of_memory(*peer);
    return *current == *peer ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

/* The error for two contexts of one device is an assumption: such a device cannot be its own peer. */
CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
    struct sim_context *context;
    CUresult result = both_contexts(&context, &peer);
    if (result || flags)
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    if (context->device == peer->device)
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    pthread_mutex_lock(&peers_lock);
    uint64_t *free_place = place_of(context, 0);
    if (place_of(context, peer->id))
        result = CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    else if (!free_place)
        result = CUDA_ERROR_TOO_MANY_PEERS;
    else
        *free_place = peer->id;
    pthread_mutex_unlock(&peers_lock);
    return result;
}

CUresult cuCtxDisablePeerAccess(CUcontext peer) {
    struct sim_context *context;
    CUresult result = both_contexts(&context, &peer);
    if (result)
        return result;
    pthread_mutex_lock(&peers_lock);
    uint64_t *place = place_of(context, peer->id);
    if (place)
        *place = 0;
    pthread_mutex_unlock(&peers_lock);
    return place ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}

void peers_discard(const struct sim_context *ended) {
    pthread_mutex_lock(&peers_lock);
    for (struct sim_context *context = sim.contexts; context; context = context->next) {
        uint64_t *place = place_of(context, ended->id);
        if (place)
            *place = 0;
    }
    pthread_mutex_unlock(&peers_lock);
}

static int is_enabled(struct sim_context *context, const struct sim_context *peer) {
    pthread_mutex_lock(&peers_lock);
    int found = place_of(context, peer->id) != NULL;
    pthread_mutex_unlock(&peers_lock);
    return found;
}

/* Every device reaches unified memory and the host's. The access to memory of pools and to mapped memory is by device,
 * and cuCtxEnablePeerAccess does not change it. Source: CUDA programming guide, "Stream-Ordered Memory Allocator"
 * (device accessibility) and "Virtual Memory Management" (memory access rights). */
int peers_allow(struct sim_context *context, const struct sim_alloc *alloc, uint64_t address, uint64_t bytes) {
    int allowed;
    context = context_of_memory(context);
    switch (alloc->kind) {
    case ALLOC_RESERVED:
        alloc_lock();
        allowed = vmm_is_accessible(alloc, address, bytes, context->device);
        alloc_unlock();
        return allowed;
    case ALLOC_PLAIN:
        if (alloc->device == context->device)
            return 1;
        return alloc->pool ? pool_is_accessible(alloc->pool, context->device) : is_enabled(context, alloc->context);
    default:
        return 1;
    }
}
