/* The interception of each way to a driver function and to two of NVML's: exported symbols, dlsym and dlvsym,
 * cuGetProcAddress. The real lookup runs first, and its result is replaced if it is a hooked function. cuGetExportTable
 * passes, because its tables hold no public calls.
 *
 * This file is built without sanitizers, because lookups run while a sanitizer itself starts. */
#include "hooks/hooks.h"

#include <dlfcn.h>

#define POINTER(symbol) [HOOK_##symbol] = (void *)symbol,
#define POINTERS_NONE(symbol) POINTER(symbol)
#define POINTERS_PTSZ(symbol) POINTER(symbol) POINTER(symbol##_ptsz)
#define POINTERS_PTDS(symbol) POINTER(symbol) POINTER(symbol##_ptds)

/* NULL: the shim itself calls the function, and programs' calls pass. */
static void *const wrappers[HOOK_COUNT] = {
#define GATED(twin, symbol, ...) POINTERS_##twin(symbol)
#define CUSTOM(twin, symbol, ...) POINTERS_##twin(symbol)
#define LOADS(twin, symbol, ...) POINTERS_##twin(symbol)
#define LOOKUP(twin, symbol, ...) POINTERS_##twin(symbol)
#include "driver/hooks.def"
};

static void *wrapper_of(const struct driver_entry *hook) {
    return wrappers[hook - driver_entries];
}

static const struct driver_entry *find_hook(const char *symbol) {
    for (int i = 0; i < HOOK_COUNT; i++)
        if (driver_entries[i].is_hooked && names_are_equal(driver_entries[i].symbol, symbol))
            return &driver_entries[i];
    return NULL;
}

/* A library that is not the driver, such as a stub or another shim, may have functions of these names too; they
 * stay. */
static void *replace(void *found, const struct driver_entry *hook) {
    if (!found || !driver_library(false))
        return found;
    return found == driver_function((enum hook_id)(hook - driver_entries)) ? wrapper_of(hook) : found;
}

/* --- dlsym and dlvsym --------------------------------------------------------------------------------------------- */

/* For names that are not in the table: NVML's, and the driver's unhooked ones. */
static const struct driver_entry nvml_hook = {0}, no_hook = {0};

static const struct driver_entry *hook_for_name(void *handle, const char *name) {
    if (likely(!name || (name[0] != 'c' && name[0] != 'n')) || handle == RTLD_NEXT || handle == RTLD_DEFAULT)
        return NULL;
    if (name[0] == 'n')
        return name[1] == 'v' && is_hooked_nvml_name(name) ? &nvml_hook : NULL;
    if (!is_driver_name(name))
        return NULL;
    const struct driver_entry *hook = find_hook(name);
    return hook ? hook : &no_hook;
}

/* The C library determines the meaning of RTLD_NEXT from its caller. These functions end in a jump, so that the C
 * library finds the program as its caller. In a search through all objects the shim's own symbols come first anyway,
 * as those of any preloaded library. */
#define TAIL_CALLS                                                                                                     \
    __attribute__((noinline, optimize("O2", "optimize-sibling-calls"), no_sanitize("address", "thread", "undefined")))

static void *replace_found(void *found, const char *name, const struct driver_entry *hook) {
    if (hook == &nvml_hook)
        return nvml_replace(found, name);
    if (hook != &no_hook)
        return replace(found, hook);
    void *library = found ? driver_library(false) : NULL;
    if (library && found == real_dlsym(library, name))
        note_unhooked(name);
    return found;
}

static __attribute__((noinline)) void *dlsym_hook(void *handle, const char *name, const struct driver_entry *hook) {
    return replace_found(libc_dlsym()(handle, name), name, hook);
}

static __attribute__((noinline)) void *dlvsym_hook(void *handle, const char *name, const char *version,
                                                   const struct driver_entry *hook) {
    return replace_found(libc_dlvsym()(handle, name, version), name, hook);
}

EXPORT TAIL_CALLS void *dlsym(void *handle, const char *name) {
    const struct driver_entry *hook = hook_for_name(handle, name);
    if (hook)
        return dlsym_hook(handle, name, hook);
    return libc_dlsym()(handle, name);
}

EXPORT TAIL_CALLS void *dlvsym(void *handle, const char *name, const char *version) {
    const struct driver_entry *hook = hook_for_name(handle, name);
    if (hook)
        return dlvsym_hook(handle, name, version, hook);
    return libc_dlvsym()(handle, name, version);
}

/* --- cuGetProcAddress --------------------------------------------------------------------------------------------- */

/* Replace what the driver has just found. The table's versions are known up to KNOWN_VERSION; a newer form of a
 * function has an unknown address and passes unhooked. */
static void replace_by_version(const char *name, void **function, int version, uint64_t flags) {
    bool is_per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    const struct driver_entry *best = NULL, *same = NULL;
    bool ours = false;
    int best_since = 0;
    for (int i = 0; i < HOOK_COUNT; i++) {
        const struct driver_entry *hook = &driver_entries[i];
        if (!hook->is_hooked || (!names_are_equal(hook->base, name) && !names_are_equal(hook->symbol, name)))
            continue;
        ours = true;
        if (*function == driver_function((enum hook_id)i) && (!same || hook->per_thread == is_per_thread))
            same = hook;
        if (hook->since > version || hook->per_thread > is_per_thread || !driver_has((enum hook_id)i))
            continue;
        if (!best || hook->per_thread > best->per_thread ||
            (hook->per_thread == best->per_thread && hook->since >= best_since)) {
            best = hook;
            best_since = hook->since;
        }
    }
    for (const struct driver_alias *alias = driver_aliases; alias->base; alias++) {
        if (!names_are_equal(alias->base, name))
            continue;
        if (*function == driver_function(alias->id))
            same = &driver_entries[alias->id];
        if (alias->since <= version && alias->since > best_since && driver_has(alias->id))
            best = &driver_entries[alias->id];
    }
    if (same)
        best = same;
    else if (version > KNOWN_VERSION)
        best = NULL;
    if (best)
        *function = wrapper_of(best);
    else if (ours && version > KNOWN_VERSION)
        note_newer_version(name, version);
    else
        note_unhooked(name);
}

EXPORT CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    CUresult result = REAL(cuGetProcAddress)(name, function, version, flags);
    if (result == CUDA_SUCCESS && name && function && *function)
        replace_by_version(name, function, version, flags);
    return result;
}

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    CUresult result = REAL(cuGetProcAddress_v2)(name, function, version, flags, status);
    if (result == CUDA_SUCCESS && name && function && *function)
        replace_by_version(name, function, version, flags);
    return result;
}
