/* The turn lock of a device: a file that admits one turn at a time.
 *
 * Membership of turn `n` is a read lock on byte `n` of the file (an OFD lock, n >= GPUSHARE_FIRST_TURN) and a shared
 * `flock`. Each process opens the file itself; the Linux kernel releases both locks when the process ends, however it
 * ends. No call here blocks.
 *
 * Why two turns are never in at the same time: each process checks for the bytes of other turns after it has locked
 * its own byte. Of two processes that are in, the one that checked later found the other's byte, so both bytes are
 * the same. docs/explanation/turns.md has the proof and the measurements. */
#ifndef GPUSHARE_TURN_LOCK_H
#define GPUSHARE_TURN_LOCK_H

#include <stdbool.h>
#include <stdint.h>

enum turn_try {
    TURN_REFUSED, /* another turn is in or is trying, or there is no such turn; no lock is held */
    TURN_ENTERED,
};

/* Enter turn `turn` on all `count` files, or on none. All processes must pass the files in the same order, otherwise
 * two processes could refuse each other again and again. `join`: only if another process is in that turn already. */
enum turn_try turn_enter(const int *files, int count, uint64_t turn, bool join);
void turn_leave(const int *files, int count, uint64_t turn);

/* Return true if another process is in the turn on that device. */
bool turn_has_others(int file, uint64_t turn);

/* Hold or release the read lock on byte 0, which shows that a client of this coordinator, or a process without a
 * coordinator, waits for the device. */
void turn_show_waiting(int file, bool waits);

#endif
