/* The devices of the process, and the move of the process to another device. */
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

void move_poll(void);                   /* refuse a request that this process cannot meet */
void move_set_waiting(void);            /* wait at the gate exactly while the move needs a turn */
bool move_is_in_turn(uint64_t devices); /* the turn on `devices` includes the device of the move */
bool move_is_due(uint64_t *next);       /* after that, in a drained turn: true while the move lasts */
bool move_has_ended(void);              /* after the turn in which the process has moved, until `move_forget` */
void move_forget(void);
void move_after_fork(void);

#pragma GCC visibility pop

#endif
