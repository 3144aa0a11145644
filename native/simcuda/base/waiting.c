/* The clock, and waits for a time or for a change of a word in memory. */
#define _GNU_SOURCE
#include "base/waiting.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

uint64_t sim_now(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000ull + (uint64_t)ts.tv_nsec;
}

void sim_sleep_until(uint64_t deadline_ns) {
    struct timespec ts = {.tv_sec = (time_t)(deadline_ns / 1000000000ull),
                          .tv_nsec = (long)(deadline_ns % 1000000000ull)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL) == EINTR)
        ;
}

static void wait_on(_Atomic uint32_t *word, int operation, uint32_t seen, uint64_t timeout_ns) {
    struct timespec ts = {.tv_sec = (time_t)(timeout_ns / 1000000000ull),
                          .tv_nsec = (long)(timeout_ns % 1000000000ull)};
    syscall(SYS_futex, word, operation, seen, timeout_ns ? &ts : NULL, NULL, 0);
}

void futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns) {
    wait_on(word, FUTEX_WAIT_PRIVATE, seen, timeout_ns);
}

void futex_wait_shared(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns) {
    wait_on(word, FUTEX_WAIT, seen, timeout_ns);
}

void futex_wake(_Atomic uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void futex_wake_shared(_Atomic uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
