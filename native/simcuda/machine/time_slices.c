/* Device time, shared by processes in slices.
 *
 * Only one process holds the device at a time. The consumed time of a process is computed: its streams sleep until
 * the computation shows that their work is done. A process that reads the state brings it up to date for the time
 * that has passed. So late wake-ups delay only the process itself, and change no share. */
#define _GNU_SOURCE
#include "base/sim.h"
#include "base/waiting.h"
#include "machine/machine.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

static int is_runnable(const struct machine_share *share) {
    return share->active && (share->unbounded || share->consumed < share->need);
}

static int next_runnable(const struct machine_device *device, int after) {
    for (int i = 1; i <= MACHINE_SLOTS; i++) {
        int slot = (after + i + MACHINE_SLOTS) % MACHINE_SLOTS;
        if (is_runnable(&device->share[slot]))
            return slot;
    }
    return -1;
}

static void pass_device(struct machine_device *device, int slot, uint64_t at, uint64_t slice) {
    device->holder = slot;
    device->slice_start = at;
    device->slice_end = at + slice;
    device->slice_changes++;
}

void slices_update(struct machine_device *device, uint64_t now, const struct sim_params *params) {
    if (device->holder >= 0 && now > device->slice_start + 10000000000ull)
        device->slice_start = now - 10000000000ull; /* every process was stopped: do not replay hours */
    while (device->holder >= 0) {
        struct machine_share *share = &device->share[device->holder];
        uint64_t start = device->slice_start, until;
        if (!share->active)
            until = start;
        else if (share->unbounded)
            until = UINT64_MAX;
        else
            until = start + (share->need > share->consumed ? share->need - share->consumed : 0);
        int next = next_runnable(device, device->holder);
        int contended = next >= 0 && next != device->holder;
        if (contended && device->slice_end < until)
            until = device->slice_end > start ? device->slice_end : start;
        if (until > now) {
            if (now > start) {
                share->consumed += now - start;
                device->slice_start = now;
            }
            return;
        }
        share->consumed += until - start;
        if (contended)
            pass_device(device, next, until + params->slice_switch_ns, params->slice_ns);
        else if (is_runnable(share))
            pass_device(device, device->holder, until, params->slice_ns);
        else
            device->holder = -1;
    }
    int next = next_runnable(device, -1);
    if (next >= 0)
        pass_device(device, next, now, params->slice_ns);
}

static void wake_waiters(struct machine_device *device) {
    if (device->slice_waiters) {
        device->slice_waiters = 0;
        syscall(SYS_futex, &device->slice_changes, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    }
}

void slices_enter(struct machine *machine, int device_index, int slot) {
    device_index = device_place(device_index);
    struct machine_device *device = &machine->device[device_index];
    machine_lock_device(machine, device_index);
    uint64_t now = sim_now();
    slices_update(device, now, &machine->params);
    device->share[slot].active++;
    device->share[slot].unbounded++;
    slices_update(device, now, &machine->params);
    machine_unlock_device(machine, device_index);
}

void slices_leave(struct machine *machine, int device_index, int slot) {
    device_index = device_place(device_index);
    struct machine_device *device = &machine->device[device_index];
    machine_lock_device(machine, device_index);
    uint64_t now = sim_now();
    slices_update(device, now, &machine->params);
    device->share[slot].active--;
    device->share[slot].unbounded--;
    slices_update(device, now, &machine->params);
    wake_waiters(device);
    machine_unlock_device(machine, device_index);
}

void slices_remove(struct machine_device *device, int slot, uint64_t now) {
    device->share[slot].active = device->share[slot].unbounded = 0;
    if (device->holder == slot) {
        device->holder = -1;
        device->slice_start = now;
    }
    device->slice_changes++;
    wake_waiters(device);
}

uint64_t slices_consumed(struct machine *machine, int device_index, int slot) {
    device_index = device_place(device_index);
    struct machine_device *device = &machine->device[device_index];
    machine_lock_device(machine, device_index);
    slices_update(device, sim_now(), &machine->params);
    uint64_t consumed = device->share[slot].consumed;
    machine_unlock_device(machine, device_index);
    return consumed;
}
