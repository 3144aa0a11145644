/* Waiting for device time. A waiting process also empties the slot of a holder that has ended. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/sim.h"
#include "base/waiting.h"
#include "machine/machine.h"

/* How often a process that waits for slices checks whether the holder was killed: its work stays active until then. */
#define SAMPLE_NS 20000000ull

static _Atomic uint64_t sampled_at;

/* Sleep to an absolute time, or until the holder changes. The device is locked; it is unlocked meanwhile. */
static void wait_for_slice(struct machine *machine, int device_index, uint64_t deadline) {
    struct machine_device *device = &machine->device[device_index];
    uint32_t seen = device->slice_changes;
    device->slice_waiters = 1;
    machine_unlock_device(machine, device_index);
    struct timespec ts = {.tv_sec = (time_t)(deadline / 1000000000ull), .tv_nsec = (long)(deadline % 1000000000ull)};
    syscall(SYS_futex, &device->slice_changes, FUTEX_WAIT_BITSET, seen, &ts, NULL, FUTEX_BITSET_MATCH_ANY);
    machine_lock_device(machine, device_index);
}

uint64_t slices_wait(struct machine *machine, int device_index, int slot, uint64_t target, uint64_t slack_ns,
                     int more) {
    device_index = device_place(device_index);
    struct machine_device *device = &machine->device[device_index];
    struct machine_share *share = &device->share[(unsigned)slot % MACHINE_SLOTS];
    const struct sim_params *params = &machine->params;
    machine_lock_device(machine, device_index);
    uint64_t now = sim_now();
    slices_update(device, now, params);
    int bounded = 0;
    while (!(device->holder == slot && share->consumed + slack_ns >= target) && share->consumed < target) {
        /* while all streams only wait, other processes can compute when this process will be done */
        if (!bounded && !more) {
            bounded = 1;
            share->unbounded--;
            if (share->need < target)
                share->need = target;
            slices_update(device, now, params);
        }
        const struct machine_share *holder = device->holder >= 0 ? &device->share[device->holder] : NULL;
        uint64_t deadline = now + SAMPLE_NS;
        if (device->holder == slot) {
            deadline = now + (target - share->consumed);
        } else if (holder) {
            uint64_t rest = !holder->unbounded && holder->need > holder->consumed ? holder->need - holder->consumed : 0;
            deadline = rest && now + rest < device->slice_end ? now + rest : device->slice_end;
            if (deadline <= now)
                deadline = now + params->slice_ns;
        }
        if (device->holder == slot) {
            machine_unlock_device(machine, device_index);
            sim_sleep_until(deadline);
            machine_lock_device(machine, device_index);
        } else {
            wait_for_slice(machine, device_index, deadline < now + SAMPLE_NS ? deadline : now + SAMPLE_NS);
        }
        now = sim_now();
        if (device->holder != slot && now > sampled_at + SAMPLE_NS) {
            sampled_at = now;
            machine_unlock_device(machine, device_index);
            machine_reap(machine, 0);
            machine_lock_device(machine, device_index);
            now = sim_now();
        }
        slices_update(device, now, params);
    }
    if (bounded)
        share->unbounded++;
    slices_update(device, now, params);
    uint64_t consumed = share->consumed;
    machine_unlock_device(machine, device_index);
    return consumed;
}
