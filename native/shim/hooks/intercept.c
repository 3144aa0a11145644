/* Every way to a driver function (and to two of NVML's): exported symbols, dlsym and dlvsym, cuGetProcAddress. The real lookup is done first,
 * then what it found is replaced if it is a hook's function. cuGetExportTable passes: its tables hold no public calls. */
#include "shim.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#define KNOWN_VERSION 13050 /* the newest CUDA whose entry points hooks.def has been compared with */

void *driver_functions[HOOK_COUNT];

/* --- glibc's dlsym and dlvsym -------------------------------------------------------------------------------------- */

/* Ours hide them, also from ourselves, whatever version is asked for; so they are looked up in the C library's tables.
 * Their version differs among architectures (2.2.5, 2.17, and 2.34 everywhere), their name does not. No function of
 * another library is called for that: others look functions up before they are ready to have theirs called (sanitizers,
 * for instance). */
static bool equal(const char *a, const char *b) {
    while (*a && *a == *b)
        a++, b++;
    return *a == *b;
}

static const char *file_name_of(const char *path) {
    const char *file = path;
    for (; *path; path++)
        if (*path == '/')
            file = path + 1;
    return file;
}

static const void *address(const struct link_map *object, ElfW(Addr) pointer) {
    return (const void *)(pointer < object->l_addr ? object->l_addr + pointer : pointer);
}

static uint32_t gnu_hash(const char *name) {
    uint32_t hash = 5381;
    for (; *name; name++)
        hash = hash * 33 + (unsigned char)*name;
    return hash;
}

static void *find_in(const struct link_map *object, const char *name) {
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    const uint32_t *table = NULL;
    for (const ElfW(Dyn) *dynamic = object->l_ld; dynamic->d_tag != DT_NULL; dynamic++) {
        if (dynamic->d_tag == DT_SYMTAB)
            symbols = address(object, dynamic->d_un.d_ptr);
        if (dynamic->d_tag == DT_STRTAB)
            strings = address(object, dynamic->d_un.d_ptr);
        if (dynamic->d_tag == DT_GNU_HASH)
            table = address(object, dynamic->d_un.d_ptr);
    }
    if (!symbols || !strings || !table)
        return NULL;
    uint32_t buckets = table[0], first = table[1], words = table[2], hash = gnu_hash(name);
    const uint32_t *bucket = table + 4 + words * (sizeof(ElfW(Addr)) / 4), *chain = bucket + buckets;
    for (uint32_t i = buckets ? bucket[hash % buckets] : 0; i >= first && i != 0; i++) {
        uint32_t entry = chain[i - first];
        if ((entry | 1) == (hash | 1) && equal(strings + symbols[i].st_name, name) && symbols[i].st_value)
            return (void *)(object->l_addr + symbols[i].st_value);
        if (entry & 1)
            break;
    }
    return NULL;
}

static COLD void *find_in_libc(const char *name) {
    const char *libraries[] = {"libc.so.6", "libdl.so.2"}; /* the latter before glibc 2.34 */
    for (int i = 0; i < 2; i++)
        for (const struct link_map *object = _r_debug.r_map; object; object = object->l_next) {
            bool fits = object->l_name && equal(file_name_of(object->l_name), libraries[i]);
            void *found = fits ? find_in(object, name) : NULL;
            if (found)
                return found;
        }
    return NULL;
}

typedef void *(*dlsym_function)(void *handle, const char *name);
typedef void *(*dlvsym_function)(void *handle, const char *name, const char *version);
static _Atomic(dlsym_function) libc_dlsym;
static _Atomic(dlvsym_function) libc_dlvsym;

static void *dlsym_not_found(void *handle, const char *name) {
    (void)handle, (void)name;
    return NULL;
}
static void *dlvsym_not_found(void *handle, const char *name, const char *version) {
    (void)handle, (void)name, (void)version;
    return NULL;
}

static inline dlsym_function the_dlsym(void) {
    dlsym_function function = atomic_load_explicit(&libc_dlsym, memory_order_acquire);
    if (unlikely(!function)) {
        function = (dlsym_function)find_in_libc("dlsym");
        function = function ? function : dlsym_not_found;
        atomic_store(&libc_dlsym, function);
    }
    return function;
}

static inline dlvsym_function the_dlvsym(void) {
    dlvsym_function function = atomic_load_explicit(&libc_dlvsym, memory_order_acquire);
    if (unlikely(!function)) {
        function = (dlvsym_function)find_in_libc("dlvsym");
        function = function ? function : dlvsym_not_found;
        atomic_store(&libc_dlvsym, function);
    }
    return function;
}

void *real_dlsym(void *handle, const char *name) {
    return the_dlsym()(handle, name);
}

/* --- the driver's functions ---------------------------------------------------------------------------------------- */

static CUresult missing(void) {
    return CUDA_ERROR_NOT_FOUND;
}

/* Loaded only when a hook is called: a mere lookup in another library must not bring the driver in. */
static void *driver_library(bool load) {
    static _Atomic(void *) library;
    void *handle = atomic_load(&library);
    if (!handle) {
        handle = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
        if (!handle && load)
            handle = dlopen("libcuda.so.1", RTLD_LAZY);
        atomic_store(&library, handle);
    }
    return handle;
}

COLD void *driver_resolve(enum hook_id id) {
    void *library = driver_library(true);
    void *function = library ? real_dlsym(library, hooks[id].symbol) : NULL;
    if (!function)
        return (void *)missing; /* not kept: it may be there later, or come by cuGetProcAddress */
    __atomic_store_n(&driver_functions[id], function, __ATOMIC_RELEASE);
    return function;
}

bool driver_has(enum hook_id id) {
    return driver_function(id) != (void *)missing;
}

/* The simulated driver says so by a symbol that NVIDIA's does not have. */
bool driver_is_simulated(void) {
    void *library = driver_library(true);
    return library && real_dlsym(library, "simcuda_describe") != NULL;
}

static const struct hook *find_hook(const char *symbol) {
    for (int i = 0; i < HOOK_COUNT; i++)
        if (hooks[i].wrapper && equal(hooks[i].symbol, symbol))
            return &hooks[i];
    return NULL;
}

/* A library that is not the driver may have functions of these names too (stubs, other shims): they stay. */
static void *replace(void *found, const struct hook *hook) {
    if (!found || !driver_library(false))
        return found;
    return found == driver_function((enum hook_id)(hook - hooks)) ? hook->wrapper : found;
}

/* --- dlsym and dlvsym ---------------------------------------------------------------------------------------------- */

/* These stand for functions that are not in the table: NVML's, and the driver's that are not hooked. */
static const struct hook nvml_hook = {0}, no_hook = {0};

static const struct hook *hook_for_name(void *handle, const char *name) {
    if (likely(!name || (name[0] != 'c' && name[0] != 'n')) || handle == RTLD_NEXT || handle == RTLD_DEFAULT)
        return NULL;
    if (name[0] == 'n')
        return name[1] == 'v' && is_hooked_nvml_name(name) ? &nvml_hook : NULL;
    if (!is_driver_name(name))
        return NULL;
    const struct hook *hook = find_hook(name);
    return hook ? hook : &no_hook;
}

/* The C library tells what RTLD_NEXT means by who called it: these end in a jump, so that it sees our caller. In a search
 * through all objects our own symbols come first anyway, as those of any preloaded library. */
#define TAIL_CALLS                                                                                                     \
    __attribute__((noinline, optimize("O2", "optimize-sibling-calls"), no_sanitize("address", "thread", "undefined")))

static void *replace_found(void *found, const char *name, const struct hook *hook) {
    if (hook == &nvml_hook)
        return nvml_replace(found, name);
    if (hook != &no_hook)
        return replace(found, hook);
    void *library = found ? driver_library(false) : NULL;
    if (library && found == real_dlsym(library, name))
        note_unhooked(name);
    return found;
}

static __attribute__((noinline)) void *dlsym_hook(void *handle, const char *name, const struct hook *hook) {
    return replace_found(the_dlsym()(handle, name), name, hook);
}

static __attribute__((noinline)) void *dlvsym_hook(void *handle, const char *name, const char *version,
                                                   const struct hook *hook) {
    return replace_found(the_dlvsym()(handle, name, version), name, hook);
}

EXPORT TAIL_CALLS void *dlsym(void *handle, const char *name) {
    const struct hook *hook = hook_for_name(handle, name);
    if (hook)
        return dlsym_hook(handle, name, hook);
    return the_dlsym()(handle, name);
}

EXPORT TAIL_CALLS void *dlvsym(void *handle, const char *name, const char *version) {
    const struct hook *hook = hook_for_name(handle, name);
    if (hook)
        return dlvsym_hook(handle, name, version, hook);
    return the_dlvsym()(handle, name, version);
}

/* --- cuGetProcAddress ---------------------------------------------------------------------------------------------- */

/* The hook for what the driver has just found. Its table of versions is known up to KNOWN_VERSION; a newer form of a
 * function is recognised as new by its address and passes unhooked. */
static void replace_by_version(const char *name, void **function, int version, uint64_t flags) {
    bool is_per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    const struct hook *best = NULL, *same = NULL;
    bool ours = false;
    int best_since = 0;
    for (int i = 0; i < HOOK_COUNT; i++) {
        const struct hook *hook = &hooks[i];
        if (!hook->wrapper || (!equal(hook->base, name) && !equal(hook->symbol, name)))
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
    for (const struct alias *alias = aliases; alias->base; alias++) {
        if (!equal(alias->base, name))
            continue;
        if (*function == driver_function(alias->id))
            same = &hooks[alias->id];
        if (alias->since <= version && alias->since > best_since && driver_has(alias->id))
            best = &hooks[alias->id];
    }
    if (same)
        best = same;
    else if (version > KNOWN_VERSION)
        best = NULL;
    if (best)
        *function = best->wrapper;
    else if (ours)
        note_newer_version(name, version);
    else
        note_unhooked(name);
}

CUresult hook_cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    CUresult result = REAL(cuGetProcAddress)(name, function, version, flags);
    if (result == CUDA_SUCCESS && name && function && *function)
        replace_by_version(name, function, version, flags);
    return result;
}

CUresult hook_cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    CUresult result = REAL(cuGetProcAddress_v2)(name, function, version, flags, status);
    if (result == CUDA_SUCCESS && name && function && *function)
        replace_by_version(name, function, version, flags);
    return result;
}
