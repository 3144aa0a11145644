/* Counts of the calls that enter the simulated driver from outside, by function.
 *
 * This file is linked with the driver's sources, which are compiled with -finstrument-functions. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define HIDDEN __attribute__((visibility("hidden")))
#define PLAIN __attribute__((no_instrument_function))
#define MAX_FUNCTIONS 256

extern const char __ehdr_start HIDDEN, etext HIDDEN; /* the linker's, of this library */

static struct {
    void *_Atomic function;
    _Atomic unsigned calls;
} rows[MAX_FUNCTIONS];

static PLAIN int is_of_driver(const void *address) {
    return (const char *)address >= &__ehdr_start && (const char *)address < &etext;
}

PLAIN HIDDEN void __cyg_profile_func_enter(void *function, void *caller) {
    if (is_of_driver(caller))
        return;
    for (int i = 0; i < MAX_FUNCTIONS; i++) {
        void *seen = NULL;
        if (atomic_compare_exchange_strong(&rows[i].function, &seen, function) || seen == function) {
            rows[i].calls++;
            return;
        }
    }
}

PLAIN HIDDEN void __cyg_profile_func_exit(void *function, void *caller) {
    (void)function;
    (void)caller;
}

/* Write "NAME CALLS" for each exported function that was called since the last call of this function. */
EXPORT PLAIN void counted_calls(char *text, size_t size) {
    text[0] = '\0';
    for (int i = 0; i < MAX_FUNCTIONS && rows[i].function; i++) {
        Dl_info info;
        unsigned calls = atomic_exchange(&rows[i].calls, 0);
        size_t used = strlen(text);
        if (calls && dladdr(rows[i].function, &info) && info.dli_sname && info.dli_saddr == rows[i].function)
            snprintf(text + used, size - used, "%s %u\n", info.dli_sname, calls);
    }
}
