/* Device time, shared by processes in slices.
 *
 * Only one process has the device at a moment (the turn). What a process has consumed is bookkeeping: its
 * streams sleep until the books say that their work is done. The books are brought up to date ("settled") by
 * whoever looks, for the time that has passed, so that late wake-ups delay the looker but distort nobody's
 * share.
 */
#define _GNU_SOURCE
#include "world.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* A process that waits for slices looks this often whether the holder has been killed: its work stays active until then. */
#define LOOK_NS 20000000ull

static _Atomic uint64_t looked;

static int is_runnable(const struct world_share *share) {
    return share->active && (share->unbounded || share->consumed < share->need);
}

static int next_runnable(const struct world_device *device, int after) {
    for (int i = 1; i <= WORLD_SLOTS; i++) {
        int slot = (after + i + WORLD_SLOTS) % WORLD_SLOTS;
        if (is_runnable(&device->share[slot]))
            return slot;
    }
    return -1;
}

static void pass_turn(struct world_device *device, int slot, uint64_t at, uint64_t slice) {
    device->turn = slot;
    device->turn_start = at;
    device->turn_end = at + slice;
    device->turn_changes++;
}

/* Brings the books up to `now`. */
static void settle(struct world_device *device, uint64_t now, uint64_t slice) {
    if (device->turn >= 0 && now > device->turn_start + 10000000000ull)
        device->turn_start = now - 10000000000ull; /* everybody was stopped: don't replay hours */
    while (device->turn >= 0) {
        struct world_share *share = &device->share[device->turn];
        uint64_t start = device->turn_start, until;
        if (!share->active)
            until = start;
        else if (share->unbounded)
            until = UINT64_MAX;
        else
            until = start + (share->need > share->consumed ? share->need - share->consumed : 0);
        int next = next_runnable(device, device->turn);
        int contended = next >= 0 && next != device->turn;
        if (contended && device->turn_end < until)
            until = device->turn_end > start ? device->turn_end : start;
        if (until > now) {
            if (now > start) {
                share->consumed += now - start;
                device->turn_start = now;
            }
            return;
        }
        share->consumed += until - start;
        if (contended)
            pass_turn(device, next, until, slice);
        else if (is_runnable(share))
            pass_turn(device, device->turn, until, slice);
        else
            device->turn = -1;
    }
    int next = next_runnable(device, -1);
    if (next >= 0)
        pass_turn(device, next, now, slice);
}

static void wake_waiters(struct world_device *device) {
    if (device->turn_waiters) {
        device->turn_waiters = 0;
        syscall(SYS_futex, &device->turn_changes, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    }
}

void turns_enter(struct world *world, int device_index, int slot) {
    struct world_device *device = &world->device[device_index];
    world_lock_device(world, device_index);
    uint64_t now = sim_now();
    settle(device, now, world->params.slice_ns);
    device->share[slot].active++;
    device->share[slot].unbounded++;
    settle(device, now, world->params.slice_ns);
    world_unlock_device(world, device_index);
}

void turns_leave(struct world *world, int device_index, int slot) {
    struct world_device *device = &world->device[device_index];
    world_lock_device(world, device_index);
    uint64_t now = sim_now();
    settle(device, now, world->params.slice_ns);
    device->share[slot].active--;
    device->share[slot].unbounded--;
    settle(device, now, world->params.slice_ns);
    wake_waiters(device);
    world_unlock_device(world, device_index);
}

void turns_forget(struct world_device *device, int slot, uint64_t now) {
    device->share[slot].active = device->share[slot].unbounded = 0;
    if (device->turn == slot) {
        device->turn = -1;
        device->turn_start = now;
    }
    device->turn_changes++;
    wake_waiters(device);
}

uint64_t turns_consumed(struct world *world, int device_index, int slot) {
    struct world_device *device = &world->device[device_index];
    world_lock_device(world, device_index);
    settle(device, sim_now(), world->params.slice_ns);
    uint64_t consumed = device->share[slot].consumed;
    world_unlock_device(world, device_index);
    return consumed;
}

/* Sleeps to an absolute time, or until the turn changes. Called with the device locked; unlocks and locks
 * again. */
static void wait_turn(struct world *world, int device_index, uint64_t deadline) {
    struct world_device *device = &world->device[device_index];
    uint32_t seen = device->turn_changes;
    device->turn_waiters = 1;
    world_unlock_device(world, device_index);
    struct timespec ts = {.tv_sec = (time_t)(deadline / 1000000000ull), .tv_nsec = (long)(deadline % 1000000000ull)};
    syscall(SYS_futex, &device->turn_changes, FUTEX_WAIT_BITSET, seen, &ts, NULL, FUTEX_BITSET_MATCH_ANY);
    world_lock_device(world, device_index);
}

uint64_t turns_wait(struct world *world, int device_index, int slot, uint64_t target, uint64_t slack_ns, int more) {
    struct world_device *device = &world->device[device_index];
    struct world_share *share = &device->share[(unsigned)slot % WORLD_SLOTS];
    uint64_t slice = world->params.slice_ns;
    world_lock_device(world, device_index);
    uint64_t now = sim_now();
    settle(device, now, slice);
    int bounded = 0;
    while (!(device->turn == slot && share->consumed + slack_ns >= target) && share->consumed < target) {
        if (!bounded && !more) { /* while all streams only wait, others can know when this process will be done */
            bounded = 1;
            share->unbounded--;
            if (share->need < target)
                share->need = target;
            settle(device, now, slice);
        }
        const struct world_share *holder = device->turn >= 0 ? &device->share[device->turn] : NULL;
        uint64_t deadline = now + LOOK_NS;
        if (device->turn == slot) {
            deadline = now + (target - share->consumed);
        } else if (holder) {
            uint64_t rest = !holder->unbounded && holder->need > holder->consumed ? holder->need - holder->consumed : 0;
            deadline = rest && now + rest < device->turn_end ? now + rest : device->turn_end;
            if (deadline <= now)
                deadline = now + slice;
        }
        if (device->turn == slot) {
            world_unlock_device(world, device_index);
            sim_sleep_until(deadline);
            world_lock_device(world, device_index);
        } else {
            wait_turn(world, device_index, deadline < now + LOOK_NS ? deadline : now + LOOK_NS);
        }
        now = sim_now();
        if (device->turn != slot && now > looked + LOOK_NS) {
            looked = now;
            world_unlock_device(world, device_index);
            world_reap(world, 0);
            world_lock_device(world, device_index);
            now = sim_now();
        }
        settle(device, now, slice);
    }
    if (bounded)
        share->unbounded++;
    settle(device, now, slice);
    uint64_t consumed = share->consumed;
    world_unlock_device(world, device_index);
    return consumed;
}
