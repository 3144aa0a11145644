/* The driver's functions, and the C library's `dlsym` and `dlvsym`. Files above this folder call them by REAL.
 *
 * This file is built without sanitizers, because lookups run while a sanitizer itself starts. */
#include "driver/driver.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

void *driver_functions[HOOK_COUNT];

/* --- glibc's dlsym and dlvsym ------------------------------------------------------------------------------------- */

/* The shim's own dlsym and dlvsym hide the C library's, also from the shim, for every version. So this code reads
 * the C library's tables. The functions' version differs among architectures (2.2.5, 2.17, and 2.34 everywhere), but
 * their name does not. No function of another library is called, because libraries such as sanitizers look functions
 * up before their own functions can be called. */
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
        if ((entry | 1) == (hash | 1) && names_are_equal(strings + symbols[i].st_name, name) && symbols[i].st_value)
            return (void *)(object->l_addr + symbols[i].st_value);
        if (entry & 1)
            break;
    }
    return NULL;
}

static COLD void *find_in_libc(const char *name) {
    const char *libraries[] = {"libc.so.6", "libdl.so.2"}; /* libdl: before glibc 2.34 */
    for (int i = 0; i < 2; i++)
        for (const struct link_map *object = _r_debug.r_map; object; object = object->l_next) {
            bool fits = object->l_name && names_are_equal(file_name_of(object->l_name), libraries[i]);
            void *found = fits ? find_in(object, name) : NULL;
            if (found)
                return found;
        }
    return NULL;
}

static _Atomic(dlsym_function) found_dlsym;
static _Atomic(dlvsym_function) found_dlvsym;

static void *dlsym_not_found(void *handle, const char *name) {
    (void)handle, (void)name;
    return NULL;
}
static void *dlvsym_not_found(void *handle, const char *name, const char *version) {
    (void)handle, (void)name, (void)version;
    return NULL;
}

dlsym_function libc_dlsym(void) {
    dlsym_function function = atomic_load_explicit(&found_dlsym, memory_order_acquire);
    if (unlikely(!function)) {
        function = (dlsym_function)find_in_libc("dlsym");
        function = function ? function : dlsym_not_found;
        atomic_store(&found_dlsym, function);
    }
    return function;
}

dlvsym_function libc_dlvsym(void) {
    dlvsym_function function = atomic_load_explicit(&found_dlvsym, memory_order_acquire);
    if (unlikely(!function)) {
        function = (dlvsym_function)find_in_libc("dlvsym");
        function = function ? function : dlvsym_not_found;
        atomic_store(&found_dlvsym, function);
    }
    return function;
}

void *real_dlsym(void *handle, const char *name) {
    return libc_dlsym()(handle, name);
}

/* --- the driver's functions --------------------------------------------------------------------------------------- */

static CUresult missing(void) {
    return CUDA_ERROR_NOT_FOUND;
}

/* Loaded only when a hook is called: a lookup in another library must not load the driver. */
void *driver_library(bool load) {
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
    void *function = library ? real_dlsym(library, driver_entries[id].symbol) : NULL;
    if (!function)
        return (void *)missing; /* not kept, because the function may appear later or come by cuGetProcAddress */
    __atomic_store_n(&driver_functions[id], function, __ATOMIC_RELEASE);
    return function;
}

/* The functions that the driver lacks now are missing for good, because its library is loaded. */
bool driver_resolve_gated(void) {
    static const enum hook_id gated[] = {
#define GATED(twin, symbol, ...) HOOK_##twin(symbol)
#include "driver/hooks.def"
    };
    static _Atomic bool is_done;
    if (atomic_load(&is_done))
        return true;
    if (!driver_library(true))
        return false;
    for (size_t i = 0; i < sizeof gated / sizeof *gated; i++)
        __atomic_store_n(&driver_functions[gated[i]], driver_function(gated[i]), __ATOMIC_RELEASE);
    atomic_store(&is_done, true);
    return true;
}

bool driver_has(enum hook_id id) {
    return driver_function(id) != (void *)missing;
}

/* The simulated driver has a symbol that NVIDIA's does not have. */
bool driver_is_simulated(void) {
    void *library = driver_library(true);
    return library && real_dlsym(library, "simcuda_describe") != NULL;
}

#define ROW(symbol, base, since, per_thread) [HOOK_##symbol] = {#symbol, #base, since, per_thread, true},
#define ROWS_NONE(symbol, base, since) ROW(symbol, base, since, false)
#define ROWS_PTSZ(symbol, base, since) ROW(symbol, base, since, false) ROW(symbol##_ptsz, base, since, true)
#define ROWS_PTDS(symbol, base, since) ROW(symbol, base, since, false) ROW(symbol##_ptds, base, since, true)

const struct driver_entry driver_entries[HOOK_COUNT] = {
#define GATED(twin, symbol, base, since, ...) ROWS_##twin(symbol, base, since)
#define CUSTOM(twin, symbol, base, since, ...) ROWS_##twin(symbol, base, since)
#define LOADS(twin, symbol, base, since, ...) ROWS_##twin(symbol, base, since)
#define LOOKUP(twin, symbol, base, since, ...) ROWS_##twin(symbol, base, since)
#define USED(symbol, ...) [HOOK_##symbol] = {#symbol, "", 0, false, false},
#include "driver/hooks.def"
};

const struct driver_alias driver_aliases[] = {
#define ALIAS(base, since, symbol) {#base, since, HOOK_##symbol},
#include "driver/hooks.def"
    {NULL, 0, HOOK_COUNT},
};
