/* Test at the start whether the lookups of the program lead to the shim. Otherwise some calls pass the gate, and memory
 * that one call allocates is unknown to another: the process must not share then. */
#include "agent/agent.h"
#include "driver/driver.h"

#include <dlfcn.h>

/* The mapping of this library. */
extern const char __ehdr_start[], _end[] __attribute__((visibility("hidden")));

typedef CUresult (*lookup_function)(const char *name, void **function, int version, uint64_t flags, int *status);

static bool is_of_shim(const void *function) {
    return (uintptr_t)function >= (uintptr_t)__ehdr_start && (uintptr_t)function < (uintptr_t)_end;
}

/* The lookup in the form of the row. A driver that does not have the row yet finds nothing. */
static bool is_found_past_shim(lookup_function lookup, const struct driver_entry *row) {
    void *found = NULL;
    int status = 0;
    uint64_t flags = row->per_thread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : 0;
    return lookup && lookup(row->base, &found, row->since, flags, &status) == CUDA_SUCCESS && found &&
           !is_of_shim(found);
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
        if ((found && !is_of_shim(found)) || is_found_past_shim(lookup, row))
            return row->symbol;
    }
    return NULL;
}
