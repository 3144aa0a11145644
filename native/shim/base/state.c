/* The state of the process, and the end of sharing in it. */
#include "base/base.h"

struct gpushare_page no_page;

struct shim shim = {.page = &no_page, .wake_receiver = -1, .wake_sender = -1, .page_fd = -1, .client_fd = -1};

void shim_disable(const char *reason) {
    if (reason)
        log_message(LOG_ERROR, "The GPU is not shared in this process, because %s.", reason);
    atomic_store(&shim.state, SHIM_DISABLED);
    atomic_store(&shim.phase, GPUSHARE_IN);
    __atomic_store_n(&shim.gate, GATE_OPEN, __ATOMIC_SEQ_CST);
    futex_wake_all(&shim.gate);
}

void state_after_fork(void) {
    shim.wake_receiver = shim.wake_sender = shim.page_fd = shim.client_fd = -1;
    shim.device_count = 0;
    shim.client = NULL;
    atomic_store(&shim.link, LINK_DISCONNECTED);
    atomic_store(&shim.waiting, 0);
    atomic_store(&shim.contended, false);
    atomic_store(&shim.hibernated_bytes, 0);
    atomic_store(&shim.without_coordinator, false);
    if (atomic_load(&shim.state) == SHIM_DISABLED)
        return;
    atomic_store(&shim.state, SHIM_UNINITIALISED);
    atomic_store(&shim.phase, GPUSHARE_OUT);
    __atomic_store_n(&shim.gate, GATE_CLOSED, __ATOMIC_RELAXED);
}
