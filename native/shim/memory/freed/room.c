/* Room for contexts, modules and graphs on a full device: the memory that the program has freed, and then a request to
 * the other clients. No allocation shows what such an object takes. */
#include "memory/freed/freed.h"

/* A context takes less as a rule. A larger context, a module or a graph repeats the request. */
#define CONTEXT_BYTES (512ull << 20)

bool room_release_freed(void) {
    pthread_mutex_unlock(&residency_lock);
    bool some = deferred_drain();
    pthread_mutex_lock(&residency_lock);
    return some;
}

/* No call shows the device on which it takes memory, so the request must fit each device. */
static uint64_t wanted_bytes(void) {
    uint64_t bytes = CONTEXT_BYTES;
    for (int i = 0; i < shim.device_count; i++)
        bytes = min_u64(bytes, shim.devices[i].memory / 8);
    return bytes;
}

/* The coordinator makes room for clients that have their turns. */
static CUresult wait_for_room(struct shortage *shortage) {
    if (!is_running())
        return shortage_next_turn(shortage);
    if (room_release_freed())
        return CUDA_SUCCESS;
    return shortage_wait(shortage, (struct room_needed){ANY_DEVICE, wanted_bytes()});
}

bool room_make(struct shortage *shortage, CUresult *result) {
    pthread_mutex_lock(&residency_lock);
    bool is_full = *result == CUDA_ERROR_OUT_OF_MEMORY;
    if (is_full)
        *result = wait_for_room(shortage);
    bool again = is_full && *result == CUDA_SUCCESS;
    if (!again)
        shortage_end(shortage);
    pthread_mutex_unlock(&residency_lock);
    if (*result == CUDA_ERROR_OUT_OF_MEMORY)
        log_message(LOG_ERROR,
                    "The device has no room for a context, a module or a graph of this program, and no other "
                    "client has memory there that can leave. See jupyter gpushare status.");
    return again;
}
