/* The turn lock: see turn_lock.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "agent/turn_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/page.h"

#define TO_THE_END 0

#ifndef TURN_LOCK_MUTANT
#define TURN_LOCK_MUTANT 0 /* tests/agent/test_hammer.py builds this file with a mutant */
#endif

static int ofd_lock(int file, short type, uint64_t byte) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)byte, .l_len = 1};
    return fcntl(file, F_OFD_SETLK, &lock);
}

/* Return true if another open file description holds a lock on one of `length` bytes from `first` on. */
static bool held_by_another(int file, uint64_t first, uint64_t length) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)first, .l_len = (off_t)length};
    return fcntl(file, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

static bool another_turn_is_in(int file, uint64_t turn) {
    uint64_t below = turn - GPUSHARE_FIRST_TURN;
    if (TURN_LOCK_MUTANT == 1)
        return false;
    return (below && held_by_another(file, GPUSHARE_FIRST_TURN, below)) || held_by_another(file, turn + 1, TO_THE_END);
}

static void leave(int file, uint64_t turn) {
    ofd_lock(file, F_UNLCK, turn);
    flock(file, LOCK_UN);
}

/* Where the Linux kernel refuses OFD locks, a process has the device alone and no sibling joins it. */
static bool has_no_record_locks(int error) {
    return error == EINVAL || error == ENOSYS || error == EOPNOTSUPP || error == ENOLCK;
}

/* The exclusive lock of the first step decides between processes that begin at the same time. Without that lock,
 * all of them could find each other's bytes and give up. */
static enum turn_try enter(int file, uint64_t turn, bool join) {
    bool joins = turn_has_others(file, turn);
    if (!joins && (join || flock(file, LOCK_EX | LOCK_NB) != 0))
        return TURN_REFUSED;
    if (ofd_lock(file, F_RDLCK, turn) != 0) {
        if (!joins && has_no_record_locks(errno))
            return TURN_ENTERED;
        leave(file, turn);
        return TURN_REFUSED;
    }
    if (flock(file, LOCK_SH | LOCK_NB) != 0 || another_turn_is_in(file, turn)) {
        if (TURN_LOCK_MUTANT != 2)
            leave(file, turn);
        return TURN_REFUSED;
    }
    return TURN_ENTERED;
}

enum turn_try turn_enter(const int *files, int count, uint64_t turn, bool join) {
    if (count < 1 || turn < GPUSHARE_FIRST_TURN || turn >= INT64_MAX) /* no byte that other processes check */
        return TURN_REFUSED;
    for (int i = 0; i < count; i++)
        if (enter(files[i], turn, join) == TURN_REFUSED) {
            turn_leave(files, i, turn);
            return TURN_REFUSED;
        }
    return TURN_ENTERED;
}

void turn_leave(const int *files, int count, uint64_t turn) {
    for (int i = count - 1; i >= 0; i--)
        leave(files[i], turn);
}

bool turn_has_others(int file, uint64_t turn) {
    return held_by_another(file, turn, 1);
}

void turn_show_waiting(int file, bool waits) {
    ofd_lock(file, waits ? F_RDLCK : F_UNLCK, 0);
}
