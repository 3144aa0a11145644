/* The move of this process to another device of its type, and the two parts of a hibernation. The driver checkpoints the
 * process, which takes its contexts and the rest of its memory off the device, and restores it on the other device.
 * Addresses, streams and modules stay.
 *
 * The move happens at the end of a turn on both devices. No other client runs on them then, and the work of this process
 * has finished. Movable memory of the process has left. A restore without room could never be repeated, so the
 * coordinator starts the move once the other device has room (tests/driver_facts/test_checkpoints.py).
 *
 * A process that waits for its own device moves in a turn on the other device alone. Clients of its own device may take
 * the room that it has left. So, if the driver does not restore it on the other device, it is hibernated, and returns
 * in a turn of its own.
 *
 * Source: documentation of the CUDA driver, "CUDA Checkpointing"; README of NVIDIA/cuda-checkpoint. */
#include "channel/channel.h"
#include "coordinator/coordinator.h"
#include "devices/devices.h"
#include "driver/driver.h"
#include "gate/gate.h"
#include "memory/memory.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MAX_ROOM_WAIT_NS (30000 * NS_PER_MS) /* in the turn, until the coordinator starts the move */
#define LOCK_TIMEOUT_MS 10000                /* for calls of the program that wait in the driver */
#define IDLE_LOCK_TIMEOUT_MS 500             /* likewise, where no user waits for the end of these calls */

static struct {
    bool waits;   /* counts as a thread at the gate */
    bool was_out; /* the request came before the turn */
    bool is_in_turn;
    uint64_t permitted;    /* the devices of the last permit for a move */
    bool turn_is_for_move; /* until the turn ends, also if the request has ended with its connection */
    bool has_own_device;   /* the turn of the move includes the device that the process leaves */
    bool has_moved;
    uint64_t drained_at; /* 0: no turn of the move is drained */
} move;

/* Also under the lock of the driver, because the program may go on until then. */
static const char *memory_obstacle(void) {
    if (atomic_load(&shim.uses_managed))
        return "the program has asked for unified memory, which the driver cannot move";
    if (atomic_load(&shim.shares_memory))
        return "the program shares device memory with other processes, which the driver cannot move";
    return NULL;
}

static const char *obstacle(void) {
    if (shim.device_count != 1)
        return "the process uses several devices";
    if (shim.mode->number == GPUSHARE_MEMORY_UNIFIED)
        return "the process has memory mode unified, and the driver cannot move unified memory: start it with "
               "GPUSHARE_MEMORY_MODE=swap or plain";
    int uses_mps = 0;
    if (REAL(cuDeviceGetAttribute)(&uses_mps, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, 0) == CUDA_SUCCESS && uses_mps)
        return "the process is a client of CUDA's Multi-Process Service, which the driver cannot move";
    return memory_obstacle();
}

static bool is_to_own_device(const struct move_request *request) {
    return strcmp(request->devices[0], shim.devices[0].uuid) == 0;
}

void move_poll(void) {
    const struct move_request *request = move_request();
    if (!request->count)
        return;
    const char *reason = NULL;
    if (is_to_own_device(request) && request->hibernates == is_hibernated())
        move_request_answer(NULL); /* the process is there already */
    else if (is_hibernated())
        reason = is_to_own_device(request) ? NULL : "the process is hibernated";
    else
        reason = obstacle();
    if (reason)
        move_request_answer(reason);
}

void move_set_waiting(void) {
    bool is_out = atomic_load(&shim.phase) == GPUSHARE_OUT, is_requested = move_request()->count;
    bool waits = is_out && (is_requested || hibernation_wants_return());
    move.was_out = is_requested && (is_out || move.was_out);
    move.turn_is_for_move = move.turn_is_for_move && !is_out;
    if (is_out)
        move_request_restart();
    if (waits == move.waits)
        return;
    move.waits = waits;
    if (waits)
        atomic_fetch_add(&shim.waiting, 1);
    else
        atomic_fetch_sub(&shim.waiting, 1);
    gate_publish_waiting();
}

/* --- the driver's calls ------------------------------------------------------------------------------------------- */

static bool read_uuid(const char *text, CUuuid *uuid) {
    const char *at = strchr(text, '-');
    for (int i = 0; i < 16; i++) {
        unsigned byte;
        at += at && *at == '-';
        if (!at || sscanf(at, "%2x", &byte) != 1)
            return false;
        uuid->bytes[i] = (unsigned char)byte;
        at += 2;
    }
    return *at == 0;
}

static CUresult restore(const CUcheckpointGpuPair *pairs, unsigned count) {
    CUcheckpointRestoreArgs arguments = {.pairs = (CUcheckpointGpuPair *)pairs, .pair_count = count};
    return REAL(cuCheckpointProcessRestore)((int)getpid(), count ? &arguments : NULL);
}

/* Restore the process on the new device. A map with every device of the host is as the driver's own tools make it. Some
 * drivers may accept only the devices that the process sees. A map that the driver refuses changes nothing. */
static CUresult restore_elsewhere(const struct move_request *request) {
    CUcheckpointGpuPair pairs[MAX_DEVICES + 1];
    unsigned count = 2;
    CUuuid there, here;
    if (!read_uuid(request->devices[0], &there) || !read_uuid(shim.devices[0].uuid, &here))
        return CUDA_ERROR_INVALID_VALUE;
    pairs[0] = (CUcheckpointGpuPair){here, there};
    pairs[1] = (CUcheckpointGpuPair){there, here};
    for (int i = 1; i < request->count; i++) {
        CUuuid other;
        if (strcmp(request->devices[i], shim.devices[0].uuid) != 0 && read_uuid(request->devices[i], &other))
            pairs[count++] = (CUcheckpointGpuPair){other, other};
    }
    CUresult result = restore(pairs, count);
    return result == CUDA_ERROR_INVALID_VALUE ? restore(pairs, 1) : result;
}

static void answer(const char *format, CUresult result) {
    char text[256];
    snprintf(text, sizeof text, format, (int)result);
    log_message(LOG_ERROR, "%s", text);
    move_request_answer(text);
}

/* Hold back queries of the program that the driver does not hold back (hooks/contexts.c). */
static void set_checkpointed(uint32_t value) {
    __atomic_store_n(&shim.checkpointed, value, __ATOMIC_RELEASE);
    if (!value)
        futex_wake_all(&shim.checkpointed);
}

/* Unlock the process, whose calls go on then. */
static CUresult unlock(void) {
    CUresult result = REAL(cuCheckpointProcessUnlock)((int)getpid(), NULL);
    if (result == CUDA_SUCCESS)
        set_checkpointed(0);
    return result;
}

/* Lock and checkpoint the process. False: the request is answered. */
static bool leave(uint32_t lock_timeout_ms) {
    int pid = (int)getpid();
    CUcheckpointLockArgs lock = {.timeout_ms = lock_timeout_ms};
    set_checkpointed(1);
    CUresult result = REAL(cuCheckpointProcessLock)(pid, &lock);
    if (result != CUDA_SUCCESS) {
        set_checkpointed(0);
        answer("the driver does not checkpoint the process now (CUDA error %d); nothing has changed", result);
        return false;
    }
    const char *reason = memory_obstacle();
    if (reason && unlock() == CUDA_SUCCESS) {
        move_request_answer(reason);
        return false;
    }
    result = REAL(cuCheckpointProcessCheckpoint)(pid, NULL);
    if (result == CUDA_SUCCESS)
        return true;
    CUresult unlocked = unlock();
    answer(unlocked == CUDA_SUCCESS
               ? "the driver could not checkpoint the process (CUDA error %d); nothing has changed"
               : "the driver could not checkpoint the process (CUDA error %d), and the process can no longer use "
                 "the GPU: restart it",
           result);
    return false;
}

/* Restore the process, which has left, on the device of the request, else on its own, and answer the request. */
static void come_back(const struct move_request *request) {
    CUresult moved = restore_elsewhere(request);
    if (moved != CUDA_SUCCESS && !move.has_own_device) {
        hibernation_begin(request->bytes);
        answer("the driver could not move the process (CUDA error %d), which returns to its device", moved);
        return;
    }
    CUresult back = moved == CUDA_SUCCESS ? moved : restore(NULL, 0);
    CUresult unlocked = unlock();
    if (back != CUDA_SUCCESS || unlocked != CUDA_SUCCESS) {
        answer("the driver could not restore the process (CUDA error %d), which can no longer use the GPU: restart it",
               moved ? moved : unlocked);
        return;
    }
    if (moved != CUDA_SUCCESS) {
        answer("the driver could not move the process (CUDA error %d), which stays on its device", moved);
        return;
    }
    log_message(LOG_INFO, "moved to the device %s", request->devices[0]);
    devices_read_again();
    move.has_moved = true;
    move_request_answer(NULL);
}

static void hibernate(const struct move_request *request) {
    const char *reason = hibernation_obstacle();
    if (reason) {
        move_request_answer(reason);
    } else if (leave(IDLE_LOCK_TIMEOUT_MS)) {
        hibernation_begin(request->bytes);
        move_request_answer(NULL);
    }
}

/* Restore the hibernated process. There is one attempt, because the driver refuses every later one. */
static void return_to_device(void) {
    static CUresult failure;
    if (failure == CUDA_SUCCESS)
        failure = restore(NULL, 0);
    if (failure == CUDA_SUCCESS)
        failure = unlock();
    if (failure != CUDA_SUCCESS) {
        answer("the driver could not restore the process (CUDA error %d), which can no longer use the GPU: restart it",
               failure);
        return;
    }
    hibernation_end();
    move_request_answer(NULL);
}

/* --- the turn ----------------------------------------------------------------------------------------------------- */

static bool includes(uint64_t devices, const char *uuid) {
    uint32_t count = (uint32_t)min_u64(PAGE_LOAD(shim.client->device_count), GPUSHARE_DEVICES);
    for (uint32_t i = 0; i < count; i++)
        if ((devices >> i & 1) && strncmp(shim.client->devices[i], uuid, GPUSHARE_UUID_BYTES) == 0)
            return true;
    return false;
}

uint64_t move_own_devices(uint64_t permitted) {
    bool is_alone = move.was_out && move_request()->count && includes(permitted, move_request()->devices[0]);
    return is_alone ? permitted : client_page_own_devices(shim.client);
}

bool move_is_in_turn(uint64_t devices) {
    bool is_closed = move.was_out || is_hibernated(); /* the gate, since the turn began */
    move.is_in_turn = move_request()->count && is_closed && includes(devices, move_request()->devices[0]);
    move.has_own_device = includes(devices, shim.devices[0].uuid);
    move.turn_is_for_move |= move.is_in_turn;
    move.drained_at = move.is_in_turn ? move.drained_at : 0;
    return move.is_in_turn;
}

bool move_permit_is_over(uint64_t permitted) {
    const struct move_request *request = move_request();
    if (request->count && includes(permitted, request->devices[0]))
        move.permitted = permitted;
    else if (permitted != move.permitted)
        move.permitted = 0;
    return !request->count && move.permitted && permitted != client_page_own_devices(shim.client);
}

bool move_keeps_gate_closed(uint64_t devices) {
    return move_is_in_turn(devices) || move.turn_is_for_move;
}

bool move_turn_is_over(uint64_t devices) {
    return move.turn_is_for_move && !move_is_in_turn(devices) && !is_hibernated();
}

bool move_is_due(uint64_t *next) {
    const struct move_request *request = move_request();
    uint64_t now = now_ns();
    if (!move.is_in_turn)
        return false;
    if (!move.drained_at) {
        move.drained_at = now;
        outbox_post(OUTBOX_CHANGED); /* the report shows that the movable memory has left */
    }
    if (!request->may_start && now < move.drained_at + MAX_ROOM_WAIT_NS) {
        *next = min_u64(*next, move.drained_at + MAX_ROOM_WAIT_NS);
        return true;
    }
    move.drained_at = 0;
    if (!request->may_start)
        move_request_answer("no room has come on the other device");
    else if (is_hibernated())
        return_to_device();
    else if (request->hibernates)
        hibernate(request);
    else if (leave(LOCK_TIMEOUT_MS))
        come_back(request);
    return false;
}

bool move_has_ended(void) {
    return move.has_moved && atomic_load(&shim.phase) == GPUSHARE_OUT;
}

void move_forget(void) {
    move.has_moved = false;
}

void move_after_fork(void) {
    move = (typeof(move)){0};
    set_checkpointed(0);
}
