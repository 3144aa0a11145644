/* Library to preload before the shim: counts the memory that programs give back to the host by munmap, and holds a caller.
 * Smaller parts than 2 MiB belong to the interpreter. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define MIN_BYTES (2ull << 20)
#define MAX_HOLD_MS 20000

EXPORT _Atomic uint64_t unmapped_by_agent, unmapped_by_program; /* bytes */
EXPORT _Atomic uint64_t hold_after;                             /* bytes of the agent; 0: hold no caller */
EXPORT _Atomic int is_holding;

static int is_agent(void) {
    char name[16];
    prctl(PR_GET_NAME, name);
    return strcmp(name, "gpushare") == 0;
}

EXPORT int munmap(void *address, size_t bytes) {
    if (bytes >= MIN_BYTES && !is_agent())
        unmapped_by_program += bytes;
    if (bytes >= MIN_BYTES && is_agent()) {
        for (int i = 0; i < MAX_HOLD_MS && hold_after && unmapped_by_agent >= hold_after; i++) {
            is_holding = 1;
            usleep(1000);
        }
        unmapped_by_agent += bytes;
    }
    return (int)syscall(SYS_munmap, address, bytes);
}
