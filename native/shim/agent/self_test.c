/* Test at the start whether each lookup of the program leads to the shim's function of the same form. Otherwise some
 * calls pass the gate, and memory that one call allocates is unknown to another: the process must not share then. */
#include "agent/agent.h"
#include "driver/driver.h"

#include <dlfcn.h>

/* The mapping of this library. */
extern const char __ehdr_start[], _end[] __attribute__((visibility("hidden")));

typedef CUresult (*lookup_function)(const char *name, void **function, int version, uint64_t flags, int *status);

static bool is_of_shim(const void *function) {
    return (uintptr_t)function >= (uintptr_t)__ehdr_start && (uintptr_t)function < (uintptr_t)_end;
}

/* The shim's functions come first in a search through all objects, as those of any preloaded library. */
static bool is_wrapper(const void *function, const struct driver_entry *row) {
    return is_of_shim(function) && function == real_dlsym(RTLD_DEFAULT, row->symbol);
}

/* A driver's lookup may return the function of another row, whose wrapper is right then. */
static bool is_wrapper_of_found(const void *function, const void *found) {
    for (int i = 0; i < HOOK_COUNT; i++)
        if (driver_entries[i].is_hooked && driver_function((enum hook_id)i) == found &&
            is_wrapper(function, &driver_entries[i]))
            return true;
    return false;
}

/* The lookup in the form of the row. A driver that does not have the row finds nothing or an older form. */
static bool is_found_past_wrapper(lookup_function lookup, const struct driver_entry *row) {
    void *found = NULL, *bare = NULL;
    int status = 0;
    uint64_t flags = row->per_thread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : 0;
    if (!lookup || lookup(row->base, &found, row->since, flags, &status) != CUDA_SUCCESS || !found)
        return false;
    if (!driver_has((enum hook_id)(row - driver_entries)))
        return !is_of_shim(found);
    if (is_wrapper(found, row))
        return false;
    REAL(cuGetProcAddress_v2)(row->base, &bare, row->since, flags, &status);
    return !is_wrapper_of_found(found, bare);
}

const char *find_bypassed_function(void) {
    void *driver = driver_library(true);
    dlsym_function visible = (dlsym_function)real_dlsym(RTLD_DEFAULT, "dlsym");
    if (!driver || !visible)
        return NULL;
    lookup_function lookup = (lookup_function)visible(driver, "cuGetProcAddress_v2"); /* from CUDA 12 on */
    for (int i = 0; i < HOOK_COUNT; i++) {
        const struct driver_entry *row = &driver_entries[i];
        if (!row->is_hooked)
            continue;
        void *found = visible(driver, row->symbol);
        if ((found && !is_wrapper(found, row)) || is_found_past_wrapper(lookup, row))
            return row->symbol;
    }
    return NULL;
}
