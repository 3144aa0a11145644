/* Requests from one process to another, through the machine file. The lock of the slot admits one sender at a time. A
 * sender that dies leaves the lock to the next one, which first waits for the answer to the request of the dead one. */
#define _GNU_SOURCE
#include "machine/machine.h"

#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/waiting.h"

#define SAMPLE_NS 20000000ull /* how often a sender checks whether the receiver has ended */

/* A process that has executed another program has the same pid and start time, and another thread or none. */
static int is_receiving(const struct machine_checkpoint *place, const struct machine_process *target, int thread) {
    if (!thread || thread != atomic_load(&place->thread) || machine_is_gone(target))
        return 0;
    return syscall(SYS_tgkill, target->pid, thread, 0) == 0 || errno != ESRCH;
}

/* Return 0 when that thread of the process has answered all requests, and -1 when it has ended. */
static int await_answer(struct machine_checkpoint *place, const struct machine_process *target, int thread) {
    uint32_t answered;
    while ((answered = atomic_load(&place->answered)) != atomic_load(&place->requested)) {
        futex_wait_shared(&place->answered, answered, SAMPLE_NS);
        if (atomic_load(&place->answered) == answered && !is_receiving(place, target, thread))
            return -1;
    }
    return is_receiving(place, target, thread) ? 0 : -1;
}

int machine_send_request(struct machine *machine, int slot, struct machine_request *request, uint32_t *result) {
    struct machine_checkpoint *place = &machine->checkpoint[slot];
    request->sender.pid = (int32_t)getpid();
    machine_process_birth(request->sender.pid, &request->sender.start_time);
    machine_lock_robust(&place->lock);
    int thread = atomic_load(&place->thread);
    int failed = await_answer(place, &request->target, thread);
    if (!failed) {
        place->request = *request;
        atomic_fetch_add(&place->requested, 1);
        futex_wake_shared(&place->requested);
        failed = await_answer(place, &request->target, thread);
        *result = place->result;
    }
    pthread_mutex_unlock(&place->lock);
    return failed ? -1 : 0;
}

void machine_receive_requests(struct machine *machine, int slot) {
    struct machine_checkpoint *place = &machine->checkpoint[slot];
    atomic_store(&place->answered, atomic_load(&place->requested));
    atomic_store(&place->thread, (int32_t)syscall(SYS_gettid));
    futex_wake_shared((_Atomic uint32_t *)&place->thread);
}

void machine_await_receiver(struct machine *machine, int slot) {
    struct machine_checkpoint *place = &machine->checkpoint[slot];
    while (!atomic_load(&place->thread))
        futex_wait_shared((_Atomic uint32_t *)&place->thread, 0, 0);
}

void machine_await_request(struct machine *machine, int slot, struct machine_request *request) {
    struct machine_checkpoint *place = &machine->checkpoint[slot];
    uint32_t answered = atomic_load(&place->answered);
    while (atomic_load(&place->requested) == answered)
        futex_wait_shared(&place->requested, answered, 0);
    *request = place->request;
}

void machine_answer(struct machine *machine, int slot, uint32_t result) {
    struct machine_checkpoint *place = &machine->checkpoint[slot];
    place->result = result;
    atomic_store(&place->answered, atomic_load(&place->requested));
    futex_wake_shared(&place->answered);
}
