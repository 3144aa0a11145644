/* The time, and waits on a word of memory (futex). */
#include "base/base.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000 * NS_PER_MS + (uint64_t)time.tv_nsec;
}

void futex_wait(uint32_t *word, uint32_t value, uint64_t nanoseconds) {
    struct timespec time = {(time_t)(nanoseconds / (1000 * NS_PER_MS)), (long)(nanoseconds % (1000 * NS_PER_MS))};
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, &time, NULL, 0);
}

void futex_wake_all(uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}
