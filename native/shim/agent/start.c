/* The start of the shim at the first CUDA call, the reset of a fork's child, and the shim's version. */
#include "agent/agent.h"
#include "coordinator/coordinator.h"
#include "devices/devices.h"
#include "gate/gate.h"
#include "memory/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT2(number) #number
#define TEXT(number) TEXT2(number)

/* For `jupyter gpushare doctor`, which reads it by a call, or from the file without loading it. */
__attribute__((section(".gpushare.version"), used)) static const char version_text[] =
    "gpushare shim " GPUSHARE_SHIM_VERSION " page " TEXT(GPUSHARE_PAGE_VERSION) " wire 1 cuda " TEXT(KNOWN_VERSION);

EXPORT const char *gpushare_version(void);
EXPORT const char *gpushare_version(void) {
    return version_text;
}

static pthread_mutex_t start_lock = PTHREAD_MUTEX_INITIALIZER;

/* Devices without concurrent managed access are virtual GPUs (vGPU) and those of WSL. */
static const struct memory_mode *choose_mode(bool maps_memory) {
    const struct memory_mode *mode = memory_mode_by_name(memory_mode_from_environment()), *other = mode;
    if (mode == &mode_unified && !shim.pages_unified)
        other = maps_memory ? &mode_swap : &mode_plain;
    if (mode == &mode_swap && !maps_memory)
        other = &mode_plain;
    if (other == &mode_swap && mode != other)
        log_message(LOG_INFO,
                    "use memory mode swap instead of unified, because this device cannot page unified memory");
    else if (other != mode)
        log_message(LOG_ERROR,
                    "This device does not support memory mode %s, so the mode is plain. Clients share its time, but "
                    "together they have no more memory than it holds.",
                    mode->name);
    return other;
}

/* Drop what a child must not share with its parent: mappings, descriptors, which would keep the parent's locks, and
 * mutexes that another thread may have held. Only calls that are safe between fork and exec. */
static void after_fork(void) {
    pages_after_fork();
    fds_after_fork();
    state_after_fork();
    captures_after_fork();
    pthread_mutex_init(&start_lock, NULL);
    threads_after_fork();
    streams_after_fork();
    throttle_after_fork();
    ledger_after_fork();
    pool_figures_after_fork();
    graphs_after_fork();
    unhooked_after_fork();
    details_after_fork();
    account_after_fork();
    refusal_after_fork();
    deferred_after_fork();
    residency_after_fork();
    connection_after_fork();
    client_page_after_fork();
    locks_after_fork();
    agent_after_fork();
    training_after_fork();
    move_after_fork();
    hibernation_after_fork();
    exit_after_fork();
    interrupt_after_fork();
}

/* start_lock is held. */
static bool initialise(void) {
    static bool watches_forks;
    char reason[512];
    log_start();
    bool maps_memory;
    if (!devices_find(&maps_memory))
        return false;
    shim.mode = choose_mode(maps_memory);
    environment_read();
    const char *bypassed = find_bypassed_function();
    if (bypassed) {
        int version = 0;
        REAL(cuDriverGetVersion)(&version);
        snprintf(reason, sizeof reason,
                 "calls of %s cannot be intercepted (driver of CUDA %d.%d; the newest known is %d.%d). Update "
                 "jupyter-gpushare, and let no other library in LD_PRELOAD come before libgpushare.so",
                 bypassed, version / 1000, version % 1000 / 10, KNOWN_VERSION / 1000, KNOWN_VERSION % 1000 / 10);
        return shim_disable(reason), false;
    }
    if (!threads_start())
        return shim_disable("the process has no thread key left"), false;
    if (!watches_forks && pthread_atfork(NULL, NULL, after_fork) != 0)
        return shim_disable("pthread_atfork has failed"), false;
    watches_forks = true;
    if (!pages_open())
        return shim_disable("memfd_create has failed"), false;
    if (!wakeup_open())
        return shim_disable("socketpair has failed"), false;
    if (!locks_open(~0ull >> (64 - shim.device_count)))
        return shim_disable(
                   "the devices' lock files could not be opened; check the folder that GPUSHARE_LOCK_DIR names"),
               false;
    drain_init();
    gate_start();
    if (!exit_watch())
        return shim_disable("atexit has failed"), false;
    if (!agent_start())
        return shim_disable("a thread could not be started"), false;
    interrupt_start();
    log_message(LOG_INFO, "%s: client %s, %d device(s), first %s, memory %s%s", version_text, shim.client_id,
                shim.device_count, shim.devices[0].uuid, shim.mode->name, shim.simulated ? ", simulated" : "");
    atomic_store(&shim.state, SHIM_ACTIVE);
    return true;
}

bool shim_start(void) {
    pthread_mutex_lock(&start_lock);
    bool first = false;
    if (atomic_load(&shim.state) == SHIM_UNINITIALISED) {
        const char *disable = getenv("GPUSHARE_DISABLE");
        if (disable && strcmp(disable, "1") == 0)
            shim_disable(NULL);
        else
            first = initialise();
    }
    bool awake = atomic_load(&shim.state) == SHIM_ACTIVE;
    pthread_mutex_unlock(&start_lock);
    if (first)
        connection_wait_for_welcome();
    return awake;
}
