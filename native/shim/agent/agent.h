/* The agent thread, the start of the shim, the reading of the environment, and the devices' lock files. */
#ifndef GPUSHARE_AGENT_H
#define GPUSHARE_AGENT_H

#include "base/base.h"

#pragma GCC visibility push(hidden)

/* --- start.c --- */

bool shim_start(void); /* after the driver has been initialised; true: the shim is active */

/* For hooks that act only in an active shim. The first of them initialises it. */
static inline bool shim_is_active(void) {
    uint32_t state = atomic_load_explicit(&shim.state, memory_order_acquire);
    return state == SHIM_ACTIVE || (state == SHIM_UNINITIALISED && shim_start());
}

/* --- device_binding.c --- */

/* Before the driver is initialised: set CUDA_VISIBLE_DEVICES to the devices that the coordinator chooses now, at most a
 * little more than ANSWER_NS later. Without an answer, and if the user has chosen devices, nothing changes. */
void bind_devices(void);

/* --- environment.c --- */

void environment_read(void);
const char *memory_mode_from_environment(void);

/* --- self_test.c --- */

const char *find_bypassed_function(void); /* of the driver, whose lookup does not lead to the shim; NULL: none */

/* --- agent.c --- */

bool agent_start(void);
void agent_after_fork(void);

/* --- training.c: training steps and progress, as the program reports them --- */

void training_publish(struct gpushare_report *report); /* agent */
uint64_t training_steps(void);
uint64_t training_boundary(void);            /* when a step ended last, from the time that the agent has asked for */
void training_await_boundary(uint64_t from); /* agent: the end of a step wakes it from then on; NEVER: it does not */
void training_after_fork(void);

/* --- exit.c --- */

bool exit_watch(void);         /* after the driver has been initialised; false: no exit handler is left */
bool driver_calls_begin(void); /* agent; false: the process ends, and the driver must not be called any more */
void driver_calls_end(void);
void exit_after_fork(void);

/* --- lock_files.c: the agent calls it; `devices` are bits of the client page's table --- */

bool locks_open(uint64_t devices);                            /* false: logged */
bool locks_enter(uint64_t turn, uint64_t devices, bool join); /* on all of them or on none */
void locks_leave(void);
bool locks_have_others(uint64_t devices, uint64_t turn); /* another process is in the turn on one of the devices */
void locks_show_waiting(uint64_t devices, bool waits);
void locks_ring(uint64_t devices);
int locks_bell(uint64_t devices); /* the bell of the one device, or -1 */
bool locks_drain_bell(int bell);  /* true: it has rung; it is silent now */
bool locks_poll(uint64_t now);    /* true: the folder has other files, and they are open now */
bool locks_reopen(void);          /* the program has closed the descriptors; a turn goes on; false: logged */
void locks_close(void);           /* the shim is disabled */
void locks_after_fork(void);

#pragma GCC visibility pop

#endif
