/* Map of the devices of a restore, from pairs of UUIDs.
 *
 * The process keeps its own numbers of devices, and `sim.place` has the device of the machine behind each number. So no
 * object of the process changes with a restore on another device, nor do the parameters by which it was charged. */
#include <string.h>

#include "checkpoint/checkpoint.h"

static int find_place(const unsigned char uuid[16]) {
    for (int i = 0; i < sim.params.devices; i++) {
        unsigned char own[16];
        sim_params_uuid(&sim.params, i, own);
        if (memcmp(own, uuid, sizeof own) == 0)
            return i;
    }
    return -1;
}

/* Documentation of cuCheckpointProcessRestore: the new GPU has the chip type of the old one. A MIG slice stays. */
static int can_move(int from, int to) {
    const struct sim_device_params *a = &sim.machine->params.device[from], *b = &sim.machine->params.device[to];
    if (from == to)
        return 1;
    return a->parent < 0 && b->parent < 0 && !a->slices && !b->slices && strcmp(a->name, b->name) == 0 &&
           a->multiprocessors == b->multiprocessors && a->compute_major == b->compute_major &&
           a->compute_minor == b->compute_minor;
}

/* Give each place that is new and not old the place at the beginning of its chain of pairs, which is old only. So no two
 * devices of the process ever lie on one device of the machine. */
static void complete(int to[SIM_MAX_DEVICES], int from[SIM_MAX_DEVICES]) {
    for (int place = 0; place < SIM_MAX_DEVICES; place++) {
        int first = place;
        while (to[place] < 0 && from[first] >= 0)
            first = from[first];
        if (to[place] < 0)
            to[place] = first;
    }
}

CUresult device_map_read(const struct machine_request *request, int to[SIM_MAX_DEVICES]) {
    int from[SIM_MAX_DEVICES];
    for (int i = 0; i < SIM_MAX_DEVICES; i++)
        to[i] = from[i] = -1;
    for (uint32_t i = 0; i < request->pairs && i < SIM_MAX_DEVICES; i++) {
        int old = find_place(request->pair[i][0]), new = find_place(request->pair[i][1]);
        if (old < 0 || new < 0 || to[old] >= 0 || from[new] >= 0 || !can_move(old, new))
            return CUDA_ERROR_INVALID_VALUE;
        to[old] = new;
        from[new] = old;
    }
    for (int i = 0; i < sim.params.devices && request->pairs; i++)
        if (to[i] < 0 && machine_ordinary_bytes(sim.machine, i, sim.slot))
            return CUDA_ERROR_INVALID_VALUE; /* every checkpointed device has a pair */
    complete(to, from);
    return CUDA_SUCCESS;
}

void device_map_apply(const int to[SIM_MAX_DEVICES]) {
    for (int i = 0; i < SIM_MAX_DEVICES; i++)
        atomic_store(&sim.place[i], to[device_place(i)]);
}
