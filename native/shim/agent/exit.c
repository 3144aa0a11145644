/* The end of the process. The driver ends with the process, by an exit handler of its own, and a call of another
 * thread is undefined from then on. So the agent begins no call of the driver after the handler below, which runs before
 * the driver's because it is younger. The agent lives on: threads that wait at the gate get their turns, and the
 * turn of the process ends with the process. */
#include "agent/agent.h"
#include "devices/devices.h"
#include "gate/gate.h"

#include <stdlib.h>

#define MAX_WAIT_NS (5000 * NS_PER_MS) /* for a call of the agent; the exit goes on then */

static struct {
    _Atomic bool is_ending;
    uint32_t has_calls; /* the agent may be inside the driver; a futex */
} driver;

bool driver_calls_begin(void) {
    __atomic_store_n(&driver.has_calls, 1, __ATOMIC_SEQ_CST);
    if (!atomic_load(&driver.is_ending))
        return true;
    driver_calls_end();
    return false;
}

void driver_calls_end(void) {
    __atomic_store_n(&driver.has_calls, 0, __ATOMIC_SEQ_CST);
    if (unlikely(atomic_load(&driver.is_ending)))
        futex_wake_all(&driver.has_calls);
}

/* In the child of a fork there is no agent to wait for. */
static void end_driver_calls(void) {
    hibernation_end_before_exit();
    uint64_t now = now_ns(), end = now + MAX_WAIT_NS;
    atomic_store(&driver.is_ending, true);
    this_thread.is_ending = true;
    for (; __atomic_load_n(&driver.has_calls, __ATOMIC_SEQ_CST) && now < end; now = now_ns())
        futex_wait(&driver.has_calls, 1, end - now);
    if (now >= end)
        log_message(LOG_INFO, "end the process although a call of the driver has not returned");
}

bool exit_watch(void) {
    return atexit(end_driver_calls) == 0;
}

void exit_after_fork(void) {
    driver.has_calls = 0;
}
