/* The shim from the inside: the process-wide state, the state of a thread, and what each file offers the others.
 *
 * Who runs where. Program threads run the hooks: the gate (gate.c), memory, contexts. One agent thread (agent.c) does
 * everything that waits: it talks to the coordinator, takes turns, drains. A signal handler
 * (interrupt.c) touches atomics and a futex only. The main thread of a Python program runs Python's signal handlers while
 * it waits (python.c); another thread of ours tries the interpreter lock for it. A fork's child starts from nothing (start.c).
 *
 * Locks, in the order in which they may nest: start_lock, residency_lock (movement.c), streams (streams.c), meter (meter.c),
 * durations (durations.c), ledger shards (ledger.c), account_lock, threads.lock, files.lock. None is held while waiting at
 * the gate or in a driver call that may wait for the device, but for the recording of an event, and residency_lock while
 * memory moves. */
#ifndef GPUSHARE_SHIM_H
#define GPUSHARE_SHIM_H

#include "base/base.h"
#include "channel/channel.h"
#include "driver/driver.h"

#pragma GCC visibility push(hidden)

#include "agent/agent.h"
#include "driver/driver.h"
#include "hooks/hooks.h"

#include "gate/gate.h"

/* --- ledger.c, account.c, memory.c, deferred.c, views.c, graph.c ------------------------------------------------------- */

#include "memory/memory.h"

/* --- agent.c, lock_files.c, socket.c, join.c, wire.c ---------------------------------------------------------------- */

#include "coordinator/coordinator.h"

#pragma GCC visibility pop

#endif
