/* The devices of the process, the move of the process to another device, and its hibernation. */
#ifndef GPUSHARE_DEVICES_H
#define GPUSHARE_DEVICES_H

#include "base/base.h"

#pragma GCC visibility push(hidden)

/* --- device_list.c --- */

/* Find every device that the program may use. False: there is none, or the driver is not initialised. `maps_memory`: all
 * of them have virtual memory management. */
bool devices_find(bool *maps_memory);
void devices_read_again(void); /* of a process with one device, after its move */

/* --- move.c: the agent calls it --- */

void move_poll(void);        /* refuse a request that this process cannot meet */
void move_set_waiting(void); /* wait at the gate exactly while the move needs a turn */
/* The devices that a turn must include, if the coordinator permits a turn on `permitted`. */
uint64_t move_own_devices(uint64_t permitted);
bool move_is_in_turn(uint64_t devices); /* the turn on `devices` includes the device of the move */
/* In a turn that began for a move: the turn may lack the process's own devices, or have another one besides. */
bool move_keeps_gate_closed(uint64_t devices);
/* The permit on these devices was for a move whose request has ended: no turn may begin by this permit. */
bool move_permit_is_over(uint64_t permitted);
bool move_turn_is_over(uint64_t devices); /* such a turn, whose request has ended: the process must leave */
bool move_is_due(uint64_t *next);         /* after that, in a drained turn: true while the move lasts */
bool move_has_ended(void);                /* after the turn in which the process has moved, until `move_forget` */
void move_forget(void);
void move_after_fork(void);

/* --- hibernation.c --- */

/* Agent, before the process leaves its device; NULL: there is no obstacle. */
const char *hibernation_obstacle(void);
void hibernation_begin(uint64_t bytes);  /* agent: the driver has checkpointed the process */
void hibernation_end(void);              /* agent: the driver has unlocked the restored process */
uint64_t hibernation_poll(uint64_t now); /* agent: the time of the next call */
bool hibernation_wants_return(void);     /* agent: a thread of the program may wait in the driver */
void hibernation_end_before_exit(void);  /* exit handler: wait for the return of the process, with a bound */
void hibernation_after_fork(void);

#pragma GCC visibility pop

#endif
