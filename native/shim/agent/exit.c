/* The end of the process. The driver ends with the process, by an exit handler of its own, and a call of another
 * thread is undefined from then on. The handler below runs before the driver's because it is younger. From then on the
 * agent begins no call of the driver, and a thread that waits at the gate gets an error. The agent lives on, and the
 * turn of the process ends with the process. */
#include "agent/agent.h"
#include "devices/devices.h"
#include "gate/gate.h"

#include <stdlib.h>
#include <time.h>

#define MAX_AGENT_WAIT_NS (5000 * NS_PER_MS)   /* for a call of the agent; the exit goes on then */
#define MAX_THREADS_WAIT_NS (1000 * NS_PER_MS) /* for calls of the program's other threads */
#define THREADS_POLL_NS (1 * NS_PER_MS)

static uint32_t agent_calls; /* 1: the agent may be inside the driver; a futex */

bool driver_calls_begin(void) {
    __atomic_store_n(&agent_calls, 1, __ATOMIC_SEQ_CST);
    if (!atomic_load(&shim.is_ending))
        return true;
    driver_calls_end();
    return false;
}

void driver_calls_end(void) {
    __atomic_store_n(&agent_calls, 0, __ATOMIC_SEQ_CST);
    if (unlikely(atomic_load(&shim.is_ending)))
        futex_wake_all(&agent_calls);
}

static void wait_for_agent(void) {
    uint64_t now = now_ns(), end = now + MAX_AGENT_WAIT_NS;
    for (; __atomic_load_n(&agent_calls, __ATOMIC_SEQ_CST) && now < end; now = now_ns())
        futex_wait(&agent_calls, 1, end - now);
    if (now >= end)
        log_message(LOG_INFO, "end the process although a call of the driver has not returned");
}

/* A thread of the program that has just passed the gate may be inside the driver. The thread that ends the process may
 * do so inside a call, as a host function does. */
static void wait_for_threads(void) {
    uint64_t end = now_ns() + MAX_THREADS_WAIT_NS;
    futex_wake_all(&shim.gate);
    while (!this_thread.depth && any_thread_in_gate() && now_ns() < end)
        nanosleep(&(struct timespec){.tv_nsec = THREADS_POLL_NS}, NULL);
}

/* In the child of a fork there is no other thread to wait for. */
static void end_driver_calls(void) {
    hibernation_end_before_exit();
    atomic_store(&shim.is_ending, true);
    wait_for_agent();
    wait_for_threads();
}

bool exit_watch(void) {
    return atexit(end_driver_calls) == 0;
}

void exit_after_fork(void) {
    agent_calls = 0;
    atomic_store(&shim.is_ending, false);
}
