/* The agent thread, the start of the shim, and the turn locks. */
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

/* --- environment.c --- */

void environment_read(void);
const char *memory_mode_from_environment(void);

/* --- agent.c --- */

bool agent_start(void);
void agent_after_fork(void);

/* --- lock_files.c: `devices` are bits of the client page's table; all by the agent --- */

bool locks_open(uint64_t devices);                            /* false: logged */
bool locks_enter(uint64_t turn, uint64_t devices, bool join); /* on all of them or on none */
void locks_leave(void);
bool locks_have_others(uint64_t devices, uint64_t turn); /* another process is in it, on one of the devices */
void locks_show_waiting(uint64_t devices, bool waits);
void locks_ring(uint64_t devices);
int locks_bell(uint64_t devices); /* the bell of the one device, or -1 */
bool locks_drain_bell(int bell);  /* it has rung; and is silent from here on */
bool locks_poll(uint64_t now);    /* now and then; true: other files stand in the folder, they are ours now */
bool locks_reopen(void);          /* the descriptors are gone; a turn goes on; false: logged */
void locks_close(void);           /* the shim is off */
void locks_after_fork(void);

#pragma GCC visibility pop

#endif
